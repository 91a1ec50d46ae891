"""A tick by hand that finds nothing due sends no hint."""

from __future__ import annotations

from tests.core.sql.test_notifications import conn, drain, heard
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, create, start, take

__all__ = ["conn", "heard"]


def test_a_tick_that_finds_nothing_hints_nobody(conn: Connection, clock: Clock, heard: Connection) -> None:
    """An operation hints when it made a task ready or settled something, and only then."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    ask(conn, start("r"))
    clock.advance(1000)
    drain(heard)
    ask(conn, ("select durable.tick()", ()))
    assert drain(heard) == []
