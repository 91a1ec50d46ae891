"""Law: many runs that have ended are tried again under new ids, each from before the call that failed; the
same call again, after an abort too, makes no fork twice; one that cannot be forked spoils nothing for the
others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stages import states
from tests.support.verbs import (
    Connection,
    adopt,
    ask,
    begin_run,
    broken,
    claim,
    complete,
    create,
    done,
    events_of,
    fail,
    refusal,
    report,
    run,
    settle,
    suspend,
    take_turn,
)


def failed(conn: Connection, id_: str, *outcomes: Any) -> None:
    """A run that reported these outcomes of steps and failed."""
    take_turn(conn, "W", report(begin_run(conn, id_), outcomes=list(outcomes), end=fail()))


def forked(conn: Connection, ids: str, key: str = "k", more: str = "") -> dict[str, tuple[Any, ...]]:
    """What fork_many says of each id."""
    call = f"select * from durable.fork_many(%s::text[], %s{more})"
    return {row[0]: row[1:] for row in conn.execute(call.encode(), (ids, key)).fetchall()}


def steps_of(conn: Connection, id_: str) -> list[str]:
    """The steps whose results a journal has."""
    text = "select name from durable.journal_events where id = %s and event = 'InvokeCompleted' order by seq"
    return [name for (name,) in conn.execute(text, (id_,)).fetchall()]


def test_each_goes_on_before_what_failed(conn: Connection) -> None:
    """The copy ends before the last call that failed, at a step or a child run; without one it has all
    events but the end. A failure that the code had survived before stays recorded.
    """
    failed(conn, "step", done(0, name="a"), broken(1, name="b"), done(2, name="c"), broken(3, name="d"))
    failed(conn, "code", done(0, name="a"))
    held = begin_run(conn, "child")
    answer = take_turn(conn, "W", report(held, outcomes=[done(0, name="a")]))
    seen = answer.next_of(held)
    answer = take_turn(conn, "W", report(held, commands=[run(1, queue="kids")], seen=seen))
    take_turn(conn, "W", report(held, end=suspend(1), seen=answer.next_of(held)))
    take_turn(conn, "W", report(claim(conn, "W", "kids"), end=fail()))
    take_turn(conn, "W", report(claim(conn, "W", "q-child"), end=fail()))
    told = forked(conn, "{step,code,child}")
    assert {id_: row[0] for id_, row in told.items()} == dict.fromkeys(("step", "code", "child"), "done")
    assert steps_of(conn, told["step"][1]) == ["a", "b", "c"]
    assert steps_of(conn, told["code"][1]) == ["a"]
    assert events_of(conn, told["child"][1])[-1] == "InvokeCompleted"
    assert set(states(conn).values()) == {"failed", "queued"}


def test_positions_and_values(conn: Connection) -> None:
    """A position, replaced results, a queue and a version hold for all; a run that has no such step is
    refused with the reason, and the others are made.
    """
    for id_ in ("x", "y"):
        failed(conn, id_, done(0, name="a"), broken(1, name="b"))
    failed(conn, "z", done(0, name="other"))
    told = forked(conn, "{x,z,y}", "begin", ", seq => 1, queue => 'late', version => '2'")
    assert {row[0] for row in told.values()} == {"done"}
    assert steps_of(conn, told["x"][1]) == []
    placed = "select distinct queue, version from durable.runs where id = any (%s)"
    assert conn.execute(placed, ([row[1] for row in told.values()],)).fetchall() == [("late", "2")]
    told = forked(conn, "{x,z,y}", "given", """, step => 'b', set_values => '{"a": 7}'""")
    assert [told[id_][0] for id_ in ("x", "z", "y")] == ["done", "refused", "done"]
    assert told["z"][1] is None
    assert "'b'" in told["z"][2]
    replaced = "select replaced from durable._forks where id = %s"
    assert ask(conn, (replaced, (told["y"][1],))) == ({"0": 7},)


def test_each_id_gets_an_outcome(conn: Connection) -> None:
    """Runs that live, promises and unknown ids are told apart, and nothing raises."""
    failed(conn, "over")
    take_turn(conn, "W", report(begin_run(conn, "well"), end=complete()))
    begin_run(conn, "live")
    ask(conn, create("plain"))
    told = forked(conn, "{over,well,live,plain,none,over}")
    assert {id_: row[0] for id_, row in told.items()} == {
        "over": "done",
        "well": "done",
        "live": "refused",
        "plain": "not_found",
        "none": "not_found",
    }
    assert told["live"][2] == "it has not ended"
    assert forked(conn, "{}") == {}


def test_the_same_call_again_makes_none_twice(conn: Connection) -> None:
    """An aborted call goes on where it stopped; a fork of it is no origin for it, whatever became of it, and
    neither is a fork that was deleted forgotten. Another key is another call.
    """
    for id_ in ("x", "y", "z"):
        failed(conn, id_)
    first = forked(conn, "{x}")["x"][1]
    told = forked(conn, "{x,y,z}")
    assert [told[id_][0] for id_ in "xyz"] == ["already", "done", "done"]
    assert told["x"][1] == first
    ask(conn, ("select durable.cancel(%s, force => true)", (first,)))
    assert forked(conn, f"{{{first},x}}") == {first: ("already", first, None), "x": ("already", first, None)}
    ask(conn, ("select durable.delete(%s)", (first,)))
    assert forked(conn, "{x}") == {"x": ("already", first, None)}
    other = forked(conn, "{x}", "another")["x"]
    assert other[0] == "done"
    assert other[1] != first
    assert forked(conn, f"{{{other[1]}}}", "another")[other[1]][0] == "already"


def test_promises_of_others(conn: Connection) -> None:
    """A run that ended while it waited for a promise of somebody else is forked to wait for it again; if that
    promise is gone, it is refused.
    """
    for id_, awaited in (("x", "there"), ("y", "gone")):
        ask(conn, create(awaited))
        held = begin_run(conn, id_)
        answer = take_turn(conn, "W", report(held, commands=[adopt(0, awaited)]))
        take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
        ask(conn, ("select durable.cancel(%s, force => true)", (id_,)))
    ask(conn, settle("gone"))
    ask(conn, ("select durable._remove_ended('{gone}', durable._never())", ()))
    told = forked(conn, "{x,y}")
    assert told["x"][0] == "done"
    assert told["y"][0] == "refused"
    assert "gone" in told["y"][2]


@pytest.mark.parametrize(
    "arguments",
    [
        "'{x}', null",
        "'{x}', ''",
        "null, 'k'",
        "'{x,null}', 'k'",
        "'{x}', 'k', set_values => '[]'",
        "array(select n::text from generate_series(1, 1001) n), 'k'",
    ],
)
def test_refused(conn: Connection, arguments: str) -> None:
    """What is malformed for all is refused before anything is looked at."""
    assert refusal(conn, (f"select * from durable.fork_many({arguments})", ())) == "WF004"
