"""The rules of runs that come of other runs."""

from __future__ import annotations

from pyengine.core.rules import RULES
from tests.core.sql.test_workers_rules import OLD_HELLO, born, hello
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    claim,
    continue_as_new,
    fail,
    report,
    run,
    suspend,
    take_turn,
)


def test_runs_of_runs(conn: Connection) -> None:
    """A child run and the next generation are born as a start is, after a failure too; a fork has the rules
    of its origin, whose rows it copies."""
    held = begin_run(conn, "r")
    assert born(conn, "r") == 1
    hello(conn)
    take_turn(conn, "W", report(held, commands=[run(0, name="child")], end=suspend(0)))
    assert (born(conn, "r"), born(conn, "r.0")) == (1, RULES)
    fork = ask(conn, ("select durable.fork('r', new_id => 'f')", ()))
    assert fork == ("f",)
    assert born(conn, "f") == 1
    conn.execute("select durable.cancel('f', force => true)")
    other = begin_run(conn, "s")
    ask(conn, (OLD_HELLO, ()))
    take_turn(conn, "W", report(other, end=continue_as_new()))
    assert born(conn, "s") == 1
    hello(conn)
    again = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(again, end=fail() | {"do": "continue", "value": "[]"}))
    assert born(conn, "s") == RULES
    rules = "select array_agg(h.rules order by h.execution) from durable._executions h where h.id = 's'"
    assert ask(conn, (rules, ())) == ([RULES, 1, RULES],)
