"""Law: a result by which its run ends is appended with the end, in the order in which both happened, and the
head is written once for both.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.verbs import (
    Connection,
    at_end,
    begin_run,
    begun,
    broken,
    captured,
    claim,
    complete,
    done,
    fail,
    report,
    run,
    suspend,
    take_turn,
    types_of,
)


def writes(conn: Connection) -> int:
    """Versions of heads that this transaction has written."""
    row = conn.execute("select pg_stat_get_xact_tuples_updated('durable._executions'::regclass)").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("end", [complete(), fail()])
@pytest.mark.parametrize("outcome", [done(0), broken(0)])
def test_the_head_is_written_once(conn: Connection, outcome: dict[str, Any], end: dict[str, Any]) -> None:
    """Three runs end by their last results in one turn with one that goes on: four versions of heads."""
    ending = [begin_run(conn, name) for name in "abc"]
    going = begin_run(conn, "d")
    before = writes(conn)
    answer = take_turn(
        conn,
        "W",
        *(report(held, outcomes=[outcome], end=end) for held in ending),
        report(going, outcomes=[done(0)]),
    )
    assert writes(conn) - before == 4
    for held in ending:
        assert answer.next_of(held) == held.next + 3
        step = "step_completed" if outcome == done(0) else "step_failed"
        last = "execution_completed" if end == complete() else "execution_failed"
        assert types_of(conn, held.id) == ["execution_started", step, last]
    assert answer.next_of(going) == going.next + 3
    assert types_of(conn, going.id) == ["execution_started", "step_completed"]


def test_beside_reports_that_say_more(conn: Connection) -> None:
    """Where others bring commands and many outcomes, each answer names the row after what its report
    brought.
    """
    ending, many, acting = (begin_run(conn, name) for name in "abc")
    answer = take_turn(
        conn,
        "W",
        report(ending, outcomes=[done(0)], end=complete()),
        report(many, outcomes=[done(0), done(1)], end=complete()),
        report(acting, commands=[captured(0)], end=complete()),
    )
    assert answer.next_of(ending) == ending.next + 3
    assert types_of(conn, ending.id) == ["execution_started", "step_completed", "execution_completed"]
    assert answer.next_of(many) == many.next + 6
    assert types_of(conn, many.id) == [
        *("execution_started", "step_completed", "step_completed", "execution_completed"),
    ]
    assert types_of(conn, acting.id) == ["execution_started", "random_generated", "execution_completed"]


def test_a_step_that_was_open_is_closed(conn: Connection) -> None:
    """The result of a step that had begun is folded into the open steps, too, of its own run alone."""
    opened = [begin_run(conn, name) for name in "rs"]
    answer = take_turn(conn, "W", *(report(held, outcomes=[begun(0)]) for held in opened))
    closing, leaving = (at_end(held, answer.next_of(held)) for held in opened)
    before = writes(conn)
    take_turn(conn, "W", report(closing, outcomes=[done(0)], end=complete()), report(leaving, end=complete()))
    assert writes(conn) - before == 3
    left = conn.execute("select open_steps, open_running from durable._executions order by id").fetchall()
    assert left == [([], []), ([0], [True])]
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "open_step_completed", "execution_completed"),
    ]
    assert types_of(conn, "s") == ["execution_started", "step_started", "execution_completed"]


def test_a_child_ends_in_its_parent_after_its_last_result(conn: Connection) -> None:
    """A parent in the same turn hears of its child, whose own journal has its result before its end."""
    parent = begin_run(conn, "r")
    take_turn(conn, "W", report(parent, commands=[run(0, queue="kids")], end=suspend(0)))
    child = claim(conn, "W", "kids")
    other = begin_run(conn, "s")
    take_turn(
        conn,
        "W",
        report(child, outcomes=[done(0)], end=complete()),
        report(other, outcomes=[done(0)], end=complete()),
    )
    assert types_of(conn, "r.0") == ["execution_started", "step_completed", "execution_completed"]
    assert types_of(conn, "r")[-2:] == ["open_child_settled", "execution_resumed"]
