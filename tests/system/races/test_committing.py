"""Law: the commit of a workflow's transaction takes its locks in the one order: turns of its run wait
for it, renewals pass, two commits that touch each other take turns.
"""

from __future__ import annotations

import pytest

from tests.support.barrier import Stage
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    commit,
    create,
    report,
    settling,
    signal_to,
    take_turn,
    turn,
    types_of,
)


@pytest.mark.parametrize(
    "other",
    [
        turn(
            "W",
            {"execution": 1, "id": "r", "version": 1, "seen": 1, "outcomes": [], "commands": [], "end": None},
        ),
        ("select durable.worker_heartbeat_v1('W', '{1}', '{r}', '{1}')", ()),
    ],
    ids=["turn", "heartbeat"],
)
def test_a_row_and_a_turn_of_one_run_follow_each_other(conn: Connection, stage: Stage, other: Call) -> None:
    """A turn of the run and a renewal pass it by while its own transaction is being committed."""
    held = begin_run(conn, "r")
    assert held.execution == 1
    code, worker = stage.player("code"), stage.player("worker")
    code.begin()
    code.do(*commit(held)).rows()
    asked = worker.do(*other)
    assert not asked.blocked
    if "turn" in other[0]:
        assert asked.value()["busy"] == [held.execution]
    assert not code.commit().blocked
    assert take_turn(conn, "W", report(held)).of(held) == ("ok", "acquired")


def test_two_commits_that_touch_each_other_take_turns(conn: Connection, stage: Stage) -> None:
    """Each signals the other's run and settles the same promises, in opposite orders: one waits for the
    other."""
    a, b = begin_run(conn, "a"), begin_run(conn, "b")
    for name in ("p", "q"):
        ask(conn, create(name, external="true"))
    first, second = stage.player("first"), stage.player("second")
    first.begin()
    second.begin()
    first.do(*commit(a, 0, signal_to("b"), settling("q"), settling("p"))).rows()
    late = second.do(*commit(b, 0, signal_to("a"), settling("p"), settling("q")))
    assert late.blocked
    assert not first.commit().blocked
    late.rows()
    second.commit().rows()
    assert (types_of(conn, "a"), types_of(conn, "b")) == (
        ["execution_started", "step_completed", "signal_delivered"],
        ["execution_started", "signal_delivered", "step_completed"],
    )
