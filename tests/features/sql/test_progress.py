"""Law: a run shows the last values that it has set, in the order of its journal; they leave no event, go with
the run, and are written only with a report that counts.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Held,
    ask,
    begin_run,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    events_of,
    progress,
    refusal,
    report,
    run,
    settle,
    take,
    take_turn,
)


def shown(conn: Connection, id_: str = "r") -> tuple[Any, ...] | None:
    """What people see of a run."""
    query = "select done, total, note, named from durable.progress where id = %s"
    return conn.execute(query, (id_,)).fetchone()


def tell(conn: Connection, held: Held, seq: int, number: float | None = None, **more: Any) -> None:
    """Report what a run has set, and nothing else."""
    answer = take_turn(conn, "W", report(held, progress=progress(held, seq, number, **more)))
    assert answer.of(held) == ("ok", "acquired")


def test_the_last_values_are_shown(conn: Connection, clock: Clock) -> None:
    """Progress and values by name, each as it was set last; values of other names stay."""
    held = begin_run(conn, "r")
    assert shown(conn) is None
    tell(conn, held, 1, stage="first", basket={"apples": 3})
    assert shown(conn) == (None, None, None, {"stage": "first", "basket": {"apples": 3}})
    clock.advance(5)
    tell(conn, held, 1, 2, total=10, note="resizing")
    tell(conn, held, 1, stage=None)
    assert shown(conn) == (2, 10, "resizing", {"stage": None, "basket": {"apples": 3}})
    tell(conn, held, 1, 2.5)
    assert shown(conn) == (2.5, None, None, {"stage": None, "basket": {"apples": 3}})
    assert events_of(conn, "r") == ["ExecutionStarted"]


def test_a_value_is_read_by_its_name(conn: Connection) -> None:
    """durable.get_value, also after the end; null if the run has set none."""
    held = begin_run(conn, "r")
    given = progress(held, 1, 3, stage="last")
    take_turn(conn, "W", report(held, outcomes=[done(0)], end=complete(), progress=given))
    assert ask(conn, ("select durable.get_value('r', 'stage'), durable.get_value('r', 'x')", ())) == (
        "last",
        None,
    )
    assert refusal(conn, ("select durable.get_value('nobody', 'x')", ())) == "WF001"
    begin_run(conn, "q")
    assert ask(conn, ("select durable.get_value('q', 'x')", ())) == (None,)
    assert shown(conn) == (3, None, None, {"stage": "last"})


def test_an_older_value_does_not_replace_a_newer_one(conn: Connection) -> None:
    """A replay sets again what was set before, each value at the same position; of one position the last
    report counts.
    """
    held = begin_run(conn, "r")
    tell(conn, held, 1, 1, a="old", b="old")
    take_turn(conn, "W", report(held, outcomes=[done(0)], progress=progress(held, 1, 9, a="new")))
    ask(conn, ("select durable.set_progress('r', 50, 100)", ()))
    tell(conn, held, 1, 9, a="again", b="again")
    assert shown(conn) == (50, 100, None, {"a": "again", "b": "again"})
    ask(conn, ("select durable.set_value('r', 'b', '7')", ()))
    tell(conn, held, 1, b="old", c="old")
    assert shown(conn) == (50, 100, None, {"a": "again", "b": 7, "c": "old"})
    tell(conn, held, 4, 51, b="newest")
    assert shown(conn) == (51, None, None, {"a": "again", "b": "newest", "c": "old"})


def test_a_later_generation_replaces_all(conn: Connection) -> None:
    """A run that continues as new keeps its values, and sets them from its first event on."""
    held = begin_run(conn, "r")
    tell(conn, held, 1, 9, stage="long", other=1)
    take_turn(conn, "W", report(held, end=continue_as_new()))
    held = claim(conn, "W", "q-r")
    assert shown(conn) == (9, None, None, {"stage": "long", "other": 1})
    tell(conn, held, 0, 0, stage="short")
    assert shown(conn) == (0, None, None, {"stage": "short", "other": 1})


def test_a_report_that_does_not_count_sets_nothing(conn: Connection) -> None:
    """The lease is lost, or the journal has what the worker has not seen; the other run of the turn does."""
    lost, stale, other = (begin_run(conn, name) for name in ("lost", "stale", "other"))
    conn.execute("update durable._tasks set pid = 'V' where id = 'lost'")
    take_turn(conn, "W", report(stale, outcomes=[done(0)]))
    answer = take_turn(
        conn,
        "W",
        report(lost, progress=progress(lost, 1, 1)),
        report(stale, commands=[run(0)], progress=progress(stale, 1, 1)),
        report(other, progress=progress(other, 1, 1)),
    )
    assert [answer.of(held)[0] for held in (lost, stale, other)] == ["lost", "stale", "ok"]
    assert [shown(conn, name) for name in ("lost", "stale", "other")] == [None, None, (1, None, None, {})]


def test_a_value_may_hold_what_jsonb_does_not(conn: Connection) -> None:
    """A NUL inside a text fails no turn; people see the text of such a value."""
    held = begin_run(conn, "r")
    tell(conn, held, 1, odd="a\0b", even=1)
    row = shown(conn)
    assert row is not None and row[3] == {"odd": '"a\\u0000b"', "even": 1}


# -- from outside


def test_values_from_outside(conn: Connection) -> None:
    """Plain SQL sets progress and values of runs and of tasks without a journal."""
    begin_run(conn, "r")
    take(conn, "t")
    for name in ("r", "t"):
        ask(conn, ("select durable.set_progress(%s, 1, 3, 'one of three')", (name,)))
        ask(conn, ("select durable.set_value(id => %s, name => 'x', value => '[1]')", (name,)))
        ask(conn, ("select durable.set_value(%s, 'y', null)", (name,)))
        assert shown(conn, name) == (1, 3, "one of three", {"x": [1], "y": None})


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("set_progress('r', -1)", "WF004"),
        ("set_progress('r', 'NaN')", "WF004"),
        ("set_progress('r', null)", "WF004"),
        ("set_progress('r', 1, 'infinity')", "WF004"),
        ("set_progress('r', 1, 2, repeat('x', 2001))", "WF004"),
        ("set_value('r', '', '1')", "WF004"),
        ("set_value('r', null, '1')", "WF004"),
        ("set_progress('nobody', 1)", "WF001"),
        ("set_value('nobody', 'x', '1')", "WF001"),
        ("set_progress('ended', 1)", "WF003"),
        ("set_value('bare', 'x', '1')", "WF003"),
    ],
)
def test_refusals(conn: Connection, call: str, code: str) -> None:
    """Wrong values, a run that is not there, has ended, or is no run."""
    begin_run(conn, "r")
    held = begin_run(conn, "ended")
    take_turn(conn, "W", report(held, end=complete()))
    ask(conn, create("bare"))
    assert refusal(conn, (f"select durable.{call}", ())) == code


def test_a_value_over_the_limit(conn: Connection) -> None:
    """The limit of payloads holds for values."""
    begin_run(conn, "r")
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    assert refusal(conn, ("select durable.set_value('r', 'x', to_jsonb(repeat('x', 2000)))", ())) == "WF008"


# -- children


def test_children_are_counted(conn: Connection) -> None:
    """Child runs by their outcome: no timers and promises, no grandchildren, none of another generation."""
    counts = "select total, done, failed, running from durable.child_counts('r')"
    held = begin_run(conn, "r")
    assert ask(conn, (counts, ())) == (0, 0, 0, 0)
    assert conn.execute("select * from durable.child_counts('nobody')").fetchall() == []
    children = [run(number, queue="kids") for number in range(4)]
    take_turn(conn, "W", report(held, commands=[*children, {"do": "promise", "child": 4, "name": ""}]))
    grandparent = take_turn(conn, "W", want=1, queues=["kids"]).tasks[0]
    take_turn(conn, "W", report(grandparent, commands=[run(0, queue="others")]))
    for name, state in (("r.1", "resolved"), ("r.2", "rejected")):
        ask(conn, settle(name, '"x"', state=state))
    assert ask(conn, (counts, ())) == (4, 1, 1, 2)
