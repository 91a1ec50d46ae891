"""Law: rows that a user has locked take no place of others in a sweep. What a tick or a service leaves out is
named, and neither is tried again at once; the rest is done in the same call.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.rows import arm, events, settle_rows, shop, until
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    cancel,
    create,
    promise_of,
    report,
    run,
    start,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
)
from tests.system.races.test_try_locks import ROWS, children_of, holding

CHILDREN = 5
LIMIT = 3
"""Of a sweep: fewer than the rows that it has to leave out."""


def suspended_over(conn: Connection, name: str, commands: list[dict[str, object]], kind: str = "all") -> None:
    """A run that has suspended over all of these commands."""
    leased = begin_run(conn, name)
    answer = take_turn(conn, "W", report(leased, commands=commands))
    end = suspend(*range(len(commands)), kind=kind)
    take_turn(conn, "W", report(leased, end=end, seen=answer.next_of(leased)))


def test_a_locked_timer_is_named_and_not_polled(dsn: str, conn: Connection, clock: Clock) -> None:
    """A due timer whose promise is locked is reported, and the tick names the time of the next one."""
    for number in range(3):
        suspended_over(conn, f"r{number}", [timer(0, 10)], "single")
    ask(conn, create("later", clock.now_ms + 1010, external="true"))
    clock.advance(10)
    with holding(dsn, "promise", "r1.0"):
        first = tick(conn)
        assert (first["promises"], first["locked"]) == (2, ["r1.0"])
        second = tick(conn)
        assert (second["promises"], second["more"], second["locked"]) == (0, False, ["r1.0"])
        assert second["next_due_ms"] == 1000
    assert tick(conn)["promises"] == 1


def test_cancels_of_a_locked_owner_take_no_place(dsn: str, conn: Connection, clock: Clock) -> None:
    """Children of a locked run whose grace is over do not fill the sweep."""
    suspended_over(conn, "parent", [run(number, queue="kids") for number in range(CHILDREN)])
    take_turn(conn, "W", want=50, queues=["kids"])
    for number in range(CHILDREN):
        ask(conn, cancel(f"parent.{number}", grace_ms=10))
    clock.advance(1)
    begin_run(conn, "other")
    ask(conn, cancel("other", grace_ms=10))
    clock.advance(10)
    with holding(dsn, "head", "parent"):
        assert tick(conn, LIMIT)["locked"] == ["parent"]
        assert (promise_of(conn, "other") or ("",))[0] == "rejected_canceled"
        assert (promise_of(conn, "parent.0") or ("",))[0] == "pending"
    while tick(conn, LIMIT)["more"]:
        pass
    assert (promise_of(conn, "parent.0") or ("",))[0] == "rejected_canceled"


def test_leases_of_a_locked_owner_take_no_place(dsn: str, conn: Connection, clock: Clock) -> None:
    """Children of a locked run whose leases ended do not fill the sweep."""
    children_of(conn, "parent", CHILDREN)
    take_turn(conn, "W", want=50, queues=["kids"])
    begin_run(conn, "other")
    clock.advance(TTL_MS)
    with holding(dsn, "head", "parent"):
        assert tick(conn, LIMIT)["locked"] == ["parent"]
        assert (task_of(conn, "other") or ("",))[0] == "pending"
        assert (task_of(conn, "parent.0") or ("",))[0] == "acquired"
    while tick(conn, LIMIT)["more"]:
        pass
    assert (task_of(conn, "parent.0") or ("",))[0] == "pending"


def test_waits_for_rows_of_a_locked_run_take_no_place(dsn: str, conn: Connection, clock: Clock) -> None:
    """Reported waits of a locked run do not fill the sweep."""
    shop(conn)
    suspended_over(conn, "many", [until(number, {"id": number}) for number in range(CHILDREN)])
    suspended_over(conn, "other", [until(0, {"id": 9})], "single")
    arm(conn)
    for number in (*range(CHILDREN), 9):
        conn.execute("insert into orders values (%s, 'paid')", (number,))
    with holding(dsn, "head", "many"):
        answers = [tick(conn, LIMIT) for _ in range(3)]
        assert any(answer.get("locked") == ["many"] for answer in answers)
        assert (promise_of(conn, "other.0") or ("",))[0] == "resolved"
        assert (promise_of(conn, "many.0") or ("",))[0] == "pending"
    while tick(conn, LIMIT)["more"]:
        pass
    assert (promise_of(conn, "many.0") or ("",))[0] == "resolved"


@pytest.mark.parametrize("row", ROWS)
def test_a_locked_task_of_a_service_is_passed_over(
    dsn: str, conn: Connection, clock: Clock, row: str
) -> None:
    """A service serves the next task instead, and none if only the locked one is left; nothing waits."""
    conn.execute("create function public.double(n integer) returns integer language sql as 'select 2 * n'")
    ask(conn, ("select durable.serve('public.double(integer)')", ()))
    for number in range(2):
        ask(conn, start(f"s{number}", f"[{number}]", workflow="sql://public.double"))
        clock.advance(1)
    conn.execute("set lock_timeout = '5s'")
    with holding(dsn, row, "s0"):
        (served,) = ask(conn, ("select durable.serve_v1(n.id) from durable.next_service_v1() n", ()))
        assert served["served"] == 1
        assert (promise_of(conn, "s1") or ("",))[0] == "resolved"
        assert conn.execute("select * from durable.next_service_v1()").fetchall() == []
        (swept,) = ask(conn, ("select durable.tick()", ()))
        assert (swept["served"], swept["more"]) == (0, False)
    (served,) = ask(conn, ("select durable.serve_v1(n.id) from durable.next_service_v1() n", ()))
    assert (served["served"], (promise_of(conn, "s0") or ("",))[0]) == (1, "resolved")


def waiting_for_rows(conn: Connection, name: str, *keys: int) -> None:
    """A run that waits for these orders, which nothing has tested yet."""
    suspended_over(conn, name, [until(child, {"id": key}) for child, key in enumerate(keys)])


@pytest.mark.parametrize("call", ["select durable.tick_v1(500)", "select durable.tick()"])
def test_an_open_tick_holds_only_the_waits_that_it_tested(
    dsn: str, conn: Connection, clock: Clock, call: str
) -> None:
    """A user leaves a tick open. Ticks of others test the waits of other runs and end them, more waits than a
    sweep takes were tested by the open one; and the tables of users can be altered.
    """
    shop(conn)
    conn.execute("insert into orders select n, 'paid' from generate_series(0, 20) n")
    waiting_for_rows(conn, "tested", *range(LIMIT + 2))
    tested = "select count(*) from durable._row_events where starts_with(promise_id, 'tested')"
    with psycopg.connect(dsn) as user:
        while ask(user, (tested, ())) == (0,):
            user.execute(call.encode())
        waiting_for_rows(conn, "other", 20)
        conn.execute("set lock_timeout = '400ms'")
        for _ in range(4):
            answer = tick(conn, LIMIT)
        assert (promise_of(conn, "other.0") or ("",))[0] == "resolved"
        assert (promise_of(conn, "tested.0") or ("",))[0] == "pending"
        assert answer["more"] is False
        conn.execute("alter table orders add column note text")
        user.commit()
    settle_rows(conn)
    assert (promise_of(conn, "tested.0") or ("",))[0] == "resolved"


def test_two_sweeps_at_a_time_test_a_wait_once(dsn: str, conn: Connection, clock: Clock) -> None:
    """A sweep that tested what another has noted meanwhile leaves no second result."""
    shop(conn)
    conn.execute("insert into orders values (0, 'paid')")
    waiting_for_rows(conn, "r", 0)
    noted = (
        "select durable._record_tests(t.due, t.tested, t.outcomes, t.since, t.oldest, durable._now_ms()) "
        "from durable._test_due(durable._now_ms(), 500) t"
    )
    with psycopg.connect(dsn) as other:
        other.execute("select t.* into temporary found from durable._test_due(durable._now_ms(), 500) t")
        assert ask(conn, (noted, ())) == (1,)
        late = noted.split(" from ")[0] + " from found t"
        assert ask(other, (late, ())) == (0,)
        other.commit()
    assert ask(conn, ("select count(*) from durable._row_events where promise_id = 'r.0'", ())) == (1,)
    settle_rows(conn)
    assert (promise_of(conn, "r.0") or ("",))[0] == "resolved"


def test_waits_that_cannot_be_asked_again_are_remembered_once(
    dsn: str, conn: Connection, clock: Clock
) -> None:
    """Rows that ask for a test of locked waits do not multiply while the locks are held: neither those of one
    key, nor those of a watch whose table is gone.
    """
    shop(conn)
    for number in range(CHILDREN):
        waiting_for_rows(conn, f"r{number}", 1)
    arm(conn)
    conn.execute(
        "insert into durable._row_events (xid, watch) select pg_current_xact_id(), id from durable._watches"
    )
    with psycopg.connect(dsn) as user:
        user.execute("select from durable._row_waits for update")
        tick(conn)
        assert events(conn) == 1
        conn.execute("drop table orders")
        for _ in range(3):
            assert tick(conn)["more"] is False
            assert events(conn) == 1
        user.commit()
    settle_rows(conn)
    assert [(promise_of(conn, f"r{n}.0") or ("",))[0] for n in range(CHILDREN)] == ["rejected"] * CHILDREN
