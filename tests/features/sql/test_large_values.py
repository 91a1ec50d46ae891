"""Large values as features and views see them."""

from __future__ import annotations

import json

from tests.core.sql.test_large_values import _small_limit, compact, message, replayed, values, write
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    ask,
    at_end,
    begin_run,
    begun,
    claim,
    complete,
    continue_as_new,
    done,
    report,
    take_turn,
)

__all__ = ["_small_limit"]


def test_people_see_the_value(conn: Connection, clock: Clock) -> None:
    """Steps, events, the promise of a step and a run as of a moment show what was written."""
    value = {"chat": [message(n) for n in range(6)]}
    held = begin_run(conn, "r")
    param = compact([value])
    answer = take_turn(conn, "W", report(held, outcomes=[{**begun(0), "param": param}]))
    held = at_end(held, answer.next_of(held))
    answer = take_turn(conn, "W", report(held, outcomes=[done(0, compact(value))]))
    held = at_end(held, answer.next_of(held))
    assert ask(conn, ("select param, value from durable.steps where run = 'r'", ())) == ([value], value)
    payloads = [
        payload or {}
        for (payload,) in conn.execute("select payload from durable.journal_events where id = 'r'")
    ]
    assert {"result": value} in [{key: p[key] for key in p if key == "result"} for p in payloads]
    assert any(p.get("input") == [value] for p in payloads)
    assert json.loads(ask(conn, ("select (durable.promise_get('r.0')).value_data", ()))[0]) == value
    children = ask(conn, ("select children from durable.as_of('r', seq => %s)", (held.next,)))[0]
    assert value in [child.get("value", child.get("result")) for child in children.values()]


def test_a_later_generation_and_a_fork_have_values_of_their_own(conn: Connection, clock: Clock) -> None:
    """The input of a later generation and the rows of a fork are stored in their own journals."""
    value = [message(n) for n in range(8)]
    held = write(conn, begin_run(conn, "r"), compact(value))
    take_turn(conn, "W", report(held, end=continue_as_new(compact([value]), on=0)))
    later = claim(conn, "W", "q-r")
    assert later.execution != held.execution
    assert values(conn, later)
    held = write(conn, later, compact([*value, message(9)]), first=later.first_child)
    take_turn(conn, "W", report(held, end=complete()))
    ask(conn, ("select durable.fork('r', new_id => 'copy')", ()))
    copy = claim(conn, "W", "q-r")
    assert values(conn, copy)
    assert replayed(conn, copy) == [compact([*value, message(9)])]


def test_a_purge_leaves_no_value(conn: Connection, clock: Clock) -> None:
    """Values go with their run."""
    held = write(conn, begin_run(conn, "r"), compact([message(n) for n in range(8)]))
    take_turn(conn, "W", report(held, end=complete()))
    assert values(conn, held)
    clock.advance(86_400_000)
    assert ask(conn, ("select runs from durable.purge('1 hour')", ())) == (1,)
    assert ask(conn, ("select count(*) from durable._journal_values", ())) == (0,)
