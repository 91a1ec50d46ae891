"""Law: everything that time starts is swept in bounded rounds, by any number of callers, and a missed round
only delays."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    TTL_MS,
    Connection,
    ask,
    begin_run,
    claim,
    create,
    promise,
    report,
    run,
    settle,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)


def test_a_round_with_nothing_to_do(conn: Connection, clock: Clock) -> None:
    """The answer tells that nothing was done and nothing is due."""
    ask(conn, create("x", NEVER, external="true"))
    assert tick(conn) == {
        "promises": 0,
        "leases": 0,
        "schedules": 0,
        "next_due_ms": None,
        "more": False,
        "hints": [],
        "problem": None,
        "warning": None,
        "gone_in_ms": None,
        "locked": [],
    }


def test_the_answer(conn: Connection, clock: Clock) -> None:
    """What was settled and taken, when the next deadline is due, which queues got work."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[timer(0, 100), timer(1, 300)]))
    take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    take(conn, "t")
    clock.advance(110)
    assert tick(conn) == {
        "promises": 1,
        "leases": 0,
        "schedules": 0,
        "next_due_ms": 190,
        "more": False,
        "hints": ["q-r"],
        "problem": None,
        "warning": None,
        "gone_in_ms": None,
        "locked": [],
    }
    assert types_of(conn, "r") == [
        *("execution_started", "timer_scheduled", "timer_scheduled", "execution_awaiting"),
        *("timer_fired", "execution_resumed"),
    ]


@pytest.mark.parametrize(
    ("due", "limit", "rounds"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3, 0]), (2, 500, [2, 0, 0])]
)
def test_a_round_is_bounded(conn: Connection, clock: Clock, due: int, limit: int, rounds: list[int]) -> None:
    """A round settles at most its limit, the earliest first, and says whether to call again."""
    for number in range(due):
        ask(conn, create(f"x{number}", clock.now_ms + 10 + number, external="true"))
    clock.advance(100)
    answers = [tick(conn, limit) for _ in rounds]
    assert [answer["promises"] for answer in answers] == rounds
    assert [answer["more"] for answer in answers] == [done == limit for done in rounds]
    order = [
        id_ for (id_,) in conn.execute("select id from durable._promises order by settled_at").fetchall()
    ]
    assert order == [f"x{number}" for number in range(due)]


def test_leases_are_bounded_too(conn: Connection, clock: Clock) -> None:
    """A round takes at most its limit of lost leases."""
    for number in range(5):
        take(conn, f"t{number}")
    clock.advance(TTL_MS)
    assert [tick(conn, 2)["leases"] for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("count", [1500, pytest.param(10_000, marks=pytest.mark.full)])
def test_many_due_at_once(conn: Connection, clock: Clock, count: int) -> None:
    """However many are due and whatever is asked for, one transaction settles at most sweep_limit of them."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held))
    for first in range(0, count, 500):
        answer = take_turn(
            conn, "W", report(held, commands=[timer(first + n, 10) for n in range(500)], seen=1)
        )
    take_turn(conn, "W", report(held, end=suspend(*range(count), kind="all"), seen=answer.next_of(held)))
    clock.advance(10)
    for _ in range(count // 500):
        assert task_of(conn, "r") == ("suspended", 1, None)
        assert tick(conn, 1_000_000)["promises"] == 500
    assert tick(conn)["promises"] == 0
    assert task_of(conn, "r") == ("pending", 1, None)
    assert ask(conn, ("select count(*) from durable._journal where type = 'timer_fired'", ())) == (count,)


def test_sweep_limit_is_a_setting(conn: Connection, clock: Clock) -> None:
    """A smaller sweep_limit wins over what the caller asks for."""
    ask(conn, ("select durable.set_setting('sweep_limit', '2')", ()))
    for number in range(3):
        ask(conn, create(f"x{number}", clock.now_ms + 1, external="true"))
    clock.advance(1)
    assert [tick(conn, 100)["promises"] for _ in range(2)] == [2, 1]


def test_deadlines_come_before_leases(conn: Connection, clock: Clock) -> None:
    """A task whose promise and lease end together is settled, not offered again."""
    take(conn, "t", clock.now_ms + TTL_MS)
    clock.advance(TTL_MS)
    found = tick(conn)
    assert (found["promises"], found["leases"], found["hints"]) == (1, 0, [])
    assert task_of(conn, "t") is None


def test_a_parent_of_expired_and_lost_children(conn: Connection, clock: Clock) -> None:
    """One round tells a parent of a child that expired and of another one whose worker was lost."""
    held = begin_run(conn, "r")
    answer = take_turn(
        conn, "W", report(held, commands=[run(0, queue="a", timeout=TTL_MS), run(1, queue="b")])
    )
    take_turn(conn, "W", report(held, end=suspend(0, 1, kind="all"), seen=answer.next_of(held)))
    claim(conn, "A", "a")
    claim(conn, "B", "b")
    clock.advance(TTL_MS)
    found = tick(conn)
    assert (found["promises"], found["leases"], found["hints"]) == (1, 1, ["b"])
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_scheduled", "execution_awaiting"),
        *("child_run_started", "child_run_started", "open_child_settled", "child_run_interrupted"),
    ]
    assert task_of(conn, "r") == ("suspended", 1, None)


def test_an_overdue_lease_whose_promise_is_dead_waits_for_its_deadline(
    conn: Connection, clock: Clock
) -> None:
    """No dead dispatch: an internal deadline that has passed keeps the sweep from offering the task."""
    ask(conn, create("t", clock.now_ms + TTL_MS, target="g"))
    ask(conn, ("select from durable.task_acquire('t', 0, 'P', 10)", ()))
    clock.advance(TTL_MS)
    assert tick(conn, 1)["leases"] == 0


def test_everybody_may_sweep(dsn: str) -> None:
    """Two sweeps at once take different promises and do not wait for each other."""
    clock = Clock(dsn)
    with (
        psycopg.connect(dsn, autocommit=True) as own,
        psycopg.connect(dsn) as first,
        psycopg.connect(dsn) as second,
    ):
        for number in range(6):
            ask(own, create(f"x{number}", clock.now_ms + 1, external="true"))
        clock.advance(1)
        assert [tick(first, 4)["promises"], tick(second, 4)["promises"]] == [4, 2]
        second.rollback()
        first.commit()
        assert tick(own)["promises"] == 2
    clock.close()


def test_time_that_goes_back(conn: Connection, clock: Clock) -> None:
    """A clock that is set back undoes nothing and settles nothing early."""
    ask(conn, create("x", clock.now_ms + 100, external="true"))
    ask(conn, create("y", clock.now_ms + 200, external="true"))
    clock.advance(100)
    assert tick(conn)["promises"] == 1
    clock.advance(-90)
    assert tick(conn)["promises"] == 0
    assert ask(conn, settle("x")) == ("rejected_timedout", None)
    clock.advance(90)


def test_the_sweep_does_not_end_an_owners_wait_twice(conn: Connection, clock: Clock) -> None:
    """A child that was settled by hand just before its deadline is left alone by the sweep."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0, 10)]))
    take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    ask(conn, settle("r.0"))
    clock.advance(10)
    assert tick(conn)["promises"] == 0
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]
