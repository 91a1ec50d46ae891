"""Schedules in a tick."""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    ask,
    create,
    tick,
)


def test_schedules_and_deadlines_take_turns(conn: Connection, clock: Clock) -> None:
    """A round that fires schedules does nothing else and asks to be called again; a caller that has had one
    asks for the rest and is told that schedules are still due."""
    schedule = "select durable.schedule_create('s', '* * * * *', 's.{{.timestamp}}', 60000)"
    ask(conn, (schedule, ()))
    ask(conn, create("due", clock.now_ms + 60_000, external="true"))
    clock.advance(1_000 * 60_000)
    assert {"schedules": 1, "promises": 0, "more": True}.items() <= tick(conn).items()
    (answer,) = ask(conn, ("select durable.tick_v1(1, false)", ()))
    assert {"schedules": 0, "promises": 1, "more": True}.items() <= answer.items()
    rounds = 1
    while tick(conn)["schedules"]:
        rounds += 1
    assert rounds == 10
    (fired,) = ask(conn, ("select count(*) from durable._promises where id ~ '^s[.]'", ()))
    assert fired == 1_000
