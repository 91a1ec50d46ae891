"""Law: where no worker runs, durable.tick() does what a worker's tick does."""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, create, start


def test_tick_for_people_hints(conn: Connection, clock: Clock) -> None:
    """durable.tick() does one round and answers the same."""
    ask(conn, start("r", timeout="5 ms"))
    clock.advance(5)
    (answer,) = ask(conn, ("select durable.tick()", ()))
    assert answer["promises"] == 1


def test_people_get_both_in_one_call(conn: Connection, clock: Clock) -> None:
    """durable.tick() fires what is due and settles what is overdue, so that a cron job that calls it once a
    minute does not put off the deadlines for ever."""
    ask(conn, ("select durable.schedule_create('s', '* * * * *', 's.{{.timestamp}}', 60000)", ()))
    ask(conn, create("due", clock.now_ms + 60_000, external="true"))
    clock.advance(60_000)
    (answer,) = ask(conn, ("select durable.tick()", ()))
    assert {"schedules": 1, "promises": 1}.items() <= answer.items()
