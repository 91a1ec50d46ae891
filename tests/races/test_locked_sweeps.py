"""Law: rows that a user has locked take no place of others in a sweep. What a tick or a service leaves out is
named, and neither is tried again at once; the rest is done in the same call.
"""

from __future__ import annotations

import pytest

from tests.races.test_try_locks import ROWS, children_of, holding
from tests.support.clock import Clock
from tests.support.rows import arm, shop, until
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
        assert (first["promises"], first["held"]) == (2, ["r1.0"])
        second = tick(conn)
        assert (second["promises"], second["more"], second["held"]) == (0, False, ["r1.0"])
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
        assert tick(conn, LIMIT)["held"] == ["parent"]
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
        assert tick(conn, LIMIT)["held"] == ["parent"]
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
        assert any(answer.get("held") == ["many"] for answer in answers)
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
