"""Law: every registered callback is consumed exactly once, with one of six outcomes for its awaiter; a run
waiting for all is woken once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    acquire,
    ask,
    begin_run,
    create,
    park,
    promise,
    release,
    report,
    settle,
    suspend,
    take,
    take_turn,
    task_of,
    types_of,
)

Prepare = Callable[[Connection, Clock], None]
REGISTER = ("select state from durable.promise_register_callback('x', 't')", ())


def resumes(conn: Connection) -> list[tuple[str, str]]:
    """The wake reasons that are kept."""
    return conn.execute("select task_id, awaited_id from durable._resumes order by 1, 2").fetchall()


def fulfilled(conn: Connection, _: Clock) -> None:
    """The awaiter has been settled since it registered."""
    ask(conn, REGISTER)
    ask(conn, settle("t"))


def expired(conn: Connection, clock: Clock) -> None:
    """The awaiter's own deadline has passed and nobody has noticed."""
    ask(conn, park("t", "x"))
    clock.advance(2000)


def suspended(conn: Connection, _: Clock) -> None:
    """The awaiter sleeps."""
    ask(conn, park("t", "x"))


def acquired(conn: Connection, _: Clock) -> None:
    """The awaiter runs."""
    ask(conn, REGISTER)


def pending(conn: Connection, _: Clock) -> None:
    """The awaiter waits for a worker."""
    ask(conn, REGISTER)
    ask(conn, ("select durable.task_release('t', 1)", ()))


def halted(conn: Connection, _: Clock) -> None:
    """The awaiter is set aside."""
    ask(conn, REGISTER)
    ask(conn, ("select durable.task_halt('t')", ()))


def duplicate(conn: Connection, _: Clock) -> None:
    """The same reason is there already."""
    ask(conn, REGISTER)
    conn.execute("insert into durable._resumes (task_id, awaited_id) values ('t', 'x')")


# outcome -> (how the awaiter got there, its state and version afterwards, wake reasons)
OUTCOMES: dict[str, tuple[Prepare, tuple[str, int] | None, list[tuple[str, str]]]] = {
    "fulfilled": (fulfilled, None, []),
    "expired": (expired, ("suspended", 1), []),
    "resumed": (suspended, ("pending", 1), [("t", "x")]),
    "buffered_acquired": (acquired, ("acquired", 1), [("t", "x")]),
    "buffered_pending": (pending, ("pending", 1), [("t", "x")]),
    "buffered_halted": (halted, ("halted", 1), [("t", "x")]),
    "duplicate": (duplicate, ("acquired", 1), [("t", "x")]),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcomes(conn: Connection, clock: Clock, outcome: str) -> None:
    """The awaiter of a settled promise is resumed, gets the reason kept, or is left alone; the callback is
    gone either way."""
    prepare, state, kept = OUTCOMES[outcome]
    ask(conn, create("x", external="true"))
    take(conn, "t", clock.now_ms + 1000)
    prepare(conn, clock)
    ask(conn, settle("x"))
    found = task_of(conn, "t")
    assert (found and found[:2]) == state
    assert resumes(conn) == kept
    assert conn.execute("select from durable._callbacks").fetchall() == []


@pytest.mark.unlawful
def test_outcome_absent(conn: Connection) -> None:
    """A callback whose awaiter has no task is consumed and does nothing."""
    ask(conn, create("x", external="true"))
    conn.execute("insert into durable._callbacks (awaited_id, awaiter_id) values ('x', 'nobody')")
    assert ask(conn, settle("x"))[0] == "resolved"
    assert conn.execute("select from durable._callbacks").fetchall() == []
    assert resumes(conn) == []


def test_a_resumed_task_is_ready_now_and_nothing_else_changes(conn: Connection, clock: Clock) -> None:
    """A wake keeps the version, dispatches at once and counts as one reason until the acquire clears it."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    ask(conn, park("t", "x"))
    clock.advance(7)
    ask(conn, settle("x"))
    assert ask(
        conn, ("select retry_at, resumes from durable._tasks t, durable.task_get('t') where t.id = 't'", ())
    ) == (
        clock.now_ms,
        1,
    )
    assert ask(conn, acquire("t", 1))[2:4] == (2, 0)


def test_one_wake_for_many(conn: Connection) -> None:
    """Further settlements add reasons to a woken task and do not wake it again."""
    for name in "xyz":
        ask(conn, create(name, external="true"))
    take(conn, "t")
    ask(conn, park("t", "x", "y", "z"))
    for name in "xyz":
        ask(conn, settle(name))
    assert resumes(conn) == [("t", "x"), ("t", "y"), ("t", "z")]
    assert task_of(conn, "t") == ("pending", 1, None)


@pytest.mark.parametrize(
    ("kind", "order", "wakes_after"),
    [("any", "012", 1), ("all", "012", 3), ("all", "210", 3), ("single", "0", 1)],
)
def test_kinds_of_a_wait(conn: Connection, kind: str, order: str, wakes_after: int) -> None:
    """Single and any end with the first child of the wait, all with the last, and ExecutionResumed is
    written once."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(child) for child in range(3)]))
    on = [int(child) for child in order]
    take_turn(conn, "W", report(held, end=suspend(*on, kind=kind), seen=answer.next_of(held)))
    for count, child in enumerate(order, start=1):
        ask(conn, settle(f"r.{child}"))
        assert (task_of(conn, "r") or ("",))[0] == ("pending" if count >= wakes_after else "suspended")
    assert types_of(conn, "r").count("execution_resumed") == 1


def test_a_child_outside_the_wait_does_not_wake(conn: Connection) -> None:
    """A settlement of a child that the run does not wait for is journalled and lets it sleep."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0), promise(1)]))
    take_turn(conn, "W", report(held, end=suspend(1), seen=answer.next_of(held)))
    ask(conn, settle("r.0"))
    assert task_of(conn, "r") == ("suspended", 1, None)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered"),
        *("execution_awaiting", "child_settled"),
    ]


def test_a_settling_child_makes_a_released_run_ready(conn: Connection, clock: Clock) -> None:
    """A run released until later is ready at once when one of its children settles."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0)]))
    take_turn(conn, "W", report(held, end=release(60_000)))
    assert ask(conn, ("select retry_at from durable._tasks", ())) == (clock.now_ms + 60_000,)
    ask(conn, settle("r.0"))
    assert ask(conn, ("select retry_at from durable._tasks", ())) == (clock.now_ms,)


def test_all_at_once(conn: Connection, clock: Clock) -> None:
    """Children of one wait that settle in one transaction wake their run once, for all and for any."""
    for name, kind in (("a", "all"), ("b", "any")):
        held = begin_run(conn, name)
        answer = take_turn(conn, "W", report(held, commands=[promise(0, 50), promise(1, 60)]))
        take_turn(conn, "W", report(held, end=suspend(0, 1, kind=kind), seen=answer.next_of(held)))
    clock.advance(100)
    ask(conn, ("select durable.tick_v1(100)", ()))
    for name in "ab":
        assert task_of(conn, name) == ("pending", 1, None)
        assert types_of(conn, name) == [
            *("execution_started", "promise_registered", "promise_registered", "execution_awaiting"),
            *("child_settled", "child_settled", "execution_resumed"),
        ]


@pytest.mark.parametrize(("present", "wait_ms"), [(True, 200), (False, None)])
def test_preference(conn: Connection, clock: Clock, present: bool, wait_ms: int | None) -> None:
    """A woken task waits prefer_ms for the worker that suspended it, if that worker is present."""
    ask(conn, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()))
    conn.execute("update durable._workers set present = %s", (present,))
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0)]))
    take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    ask(conn, settle("r.0"))
    (until,) = ask(conn, ("select prefer_until from durable._tasks", ()))
    assert until == (None if wait_ms is None else clock.now_ms + wait_ms)
    other = take_turn(conn, "V", want=1, queues=["q-r"]).tasks
    assert bool(other) != present
    clock.advance(200)
    assert bool(take_turn(conn, "V", want=1, queues=["q-r"]).tasks) == present


def test_a_task_with_never_due_awaits_is_not_touched(conn: Connection) -> None:
    """Settling one promise leaves the awaiters of others alone."""
    for name in ("x", "y"):
        ask(conn, create(name, NEVER, external="true"))
        take(conn, f"t{name}")
        ask(conn, park(f"t{name}", name))
    ask(conn, settle("x"))
    assert task_of(conn, "ty") == ("suspended", 1, None)
    assert conn.execute("select awaited_id from durable._callbacks").fetchall() == [("y",)]
