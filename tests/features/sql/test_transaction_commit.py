"""Law: a workflow's transaction ends with one call that holds the fence, writes the journal row and does what
the code asked of the engine; with its COMMIT all of it is true, without it nothing is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    COMMITTED,
    HASH,
    TTL_MS,
    Connection,
    ask,
    begin_run,
    cancel,
    captured,
    commit,
    create,
    done,
    events_of,
    promise_of,
    receive,
    refusal,
    report,
    run_of,
    settle,
    settling,
    signal_to,
    suspend,
    take_turn,
    task_of,
    tick,
    types_of,
)


def test_the_row_is_that_of_a_step(conn: Connection) -> None:
    """It completes its child, the answer is the journal from what was seen on, and the run goes on."""
    held = begin_run(conn, "r")
    (answer,) = ask(conn, commit(held))
    (row,) = answer["rows"]
    assert (answer["next"], row[:7]) == (4, [1, "step_completed", 0, 1, "move", HASH, COMMITTED])
    assert events_of(conn, "r") == ["ExecutionStarted", "InvokeScheduled", "InvokeStarted", "InvokeCompleted"]
    assert task_of(conn, "r") == ("acquired", 1, "W")


def test_rows_of_others_come_with_the_answer(conn: Connection) -> None:
    """Rows that the worker has not seen come with the answer, in their order."""
    held = begin_run(conn, "r")
    ask(conn, ("select durable.signal('r', 'go')", ()))
    (answer,) = ask(conn, commit(held))
    assert [row[1] for row in answer["rows"]] == ["signal_delivered", "step_completed"]


def test_numbers_below_may_still_be_open(conn: Connection) -> None:
    """A step that runs has its number reserved, so the commit takes the one after it, or before a captured
    value that is recorded already."""
    held = begin_run(conn, "r")
    ask(conn, commit(held, 1))
    take_turn(conn, "W", report(held, outcomes=[done(0)], commands=[captured(3)], seen=4))
    ask(conn, commit(held, 2, seen=8))
    assert types_of(conn, "r") == [
        *("execution_started", "step_completed", "random_generated"),
        *("step_completed", "step_completed"),
    ]


@pytest.mark.parametrize("how", ["version", "worker", "deadline", "released", "ended", "unknown", "another"])
def test_a_lost_lease_cannot_commit(conn: Connection, clock: Clock, how: str) -> None:
    """Every way to have lost it is refused with WF002, and nothing is written."""
    held = begin_run(conn, "r", timeout="1 min")
    call = commit(held)
    match how:
        case "version":
            call = commit(held, version=0)
        case "worker":
            call = commit(held, worker="V")
        case "deadline":
            clock.advance(60_000)
        case "released":
            clock.advance(TTL_MS)
            tick(conn)
        case "ended":
            ask(conn, settle("r"))
        case "another":
            other = begin_run(conn, "s")
            assert refusal(conn, commit(replace(held, id="lost"))) == "WF002"
            call = commit(replace(held, id=other.id))
        case _:
            call = commit(replace(held, execution=10**9))
    before = types_of(conn, "r")
    assert refusal(conn, call) == "WF002"
    assert types_of(conn, "r") == before


def test_an_unseen_cancellation_request_comes_first(conn: Connection) -> None:
    """A run that was asked to end commits only what it decided after it knew."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r", grace_ms=60_000))
    assert refusal(conn, commit(held)) == "WF099"
    ask(conn, commit(held, seen=2))
    assert types_of(conn, "r") == ["execution_started", "cancel_requested", "step_completed"]


def test_a_row_is_written_once(conn: Connection) -> None:
    """A number that is taken tells the worker to replay, whatever took it."""
    held = begin_run(conn, "r")
    ask(conn, commit(held))
    assert refusal(conn, commit(held, seen=4)) == "WF099"
    assert types_of(conn, "r") == ["execution_started", "step_completed"]


def test_a_blocked_run_commits_nothing(conn: Connection) -> None:
    """One that was continued after a halt may only wait again."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[receive(0)]))
    answer = take_turn(conn, "W", report(held, end=suspend(0, kind="signal"), seen=held.next))
    assert answer.of(held) == ("ok", "suspended")
    ask(conn, ("select durable.pause('r')", ()))
    ask(conn, ("select durable.resume('r')", ()))
    (again,) = take_turn(conn, "W", want=1, queues=["q-r"]).tasks
    assert refusal(conn, commit(again, 1)) == "WF006"


def test_effects_come_with_the_commit_and_go_with_the_rollback(conn: Connection) -> None:
    """Runs, signals and settlements are there after the commit; after a rollback nothing is, and no number
    of the journal is taken."""
    other, held = begin_run(conn, "other"), begin_run(conn, "r")
    for id_ in ("p", "q"):
        ask(conn, create(id_, external="true"))
    call = commit(
        held, 0, run_of("new"), signal_to("other"), signal_to("r"), settling("p"), settling("q", '"x"')
    )
    with conn.transaction(force_rollback=True):
        ask(conn, call)
    assert (types_of(conn, "r"), types_of(conn, "other"), promise_of(conn, "new")) == (
        ["execution_started"],
        ["execution_started"],
        None,
    )
    assert promise_of(conn, "p") == ("pending", None)
    ask(conn, call)
    assert (types_of(conn, "r"), types_of(conn, "other"), types_of(conn, "new")) == (
        ["execution_started", "step_completed", "signal_delivered"],
        ["execution_started", "signal_delivered"],
        ["execution_started"],
    )
    assert promise_of(conn, "p") == ("resolved", "1")
    assert promise_of(conn, "q") == ("resolved", '"x"')
    assert task_of(conn, "r") == ("acquired", 1, "W")
    assert other.id == "other"


def test_settlements_wake_their_waiters(conn: Connection) -> None:
    """Also its own run, which keeps its lease."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[{"do": "promise", "child": 0, "name": "x", "timeout": None}]))
    ask(conn, commit(held, 1, settling("r.0")))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "step_completed", "child_settled"),
    ]
    waiter = begin_run(conn, "s")
    commands = [{"do": "promise", "child": 0, "name": "x", "timeout": None}]
    answer = take_turn(conn, "W", report(waiter, commands=commands))
    take_turn(conn, "W", report(waiter, end=suspend(0), seen=answer.next_of(waiter)))
    ask(conn, commit(held, 2, settling("s.0"), seen=9))
    assert task_of(conn, "s") == ("pending", 1, None)


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "unknown run": ([signal_to("nobody")], "WF001"),
    "ended run": ([signal_to("over")], "WF003"),
    "unknown promise": ([settling("nothing")], "WF001"),
    "settled": ([settling("p", "2")], "WF003"),
    "other input": ([{**run_of("over"), "args": "[2]"}], "WF009"),
    "no queue": ([{**run_of("n"), "queue": "a/b"}], "WF004"),
    "too late": ([run_of("n"), signal_to("r"), settling("nothing")], "WF001"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_one_effect_that_is_refused_refuses_all(conn: Connection, why: str) -> None:
    """With its own error, and nothing is left."""
    begin_run(conn, "over", args="[1]")
    ask(conn, settle("over"))
    ask(conn, create("p", external="true"))
    ask(conn, settle("p"))
    held = begin_run(conn, "r")
    effects, code = REFUSED[why]
    assert refusal(conn, commit(held, 0, *effects)) == code
    assert (types_of(conn, "r"), promise_of(conn, "n")) == (["execution_started"], None)


def test_the_same_outcome_again_is_no_conflict(conn: Connection) -> None:
    """A promise that has the very outcome already is as it should be; so is a run that was started so."""
    ask(conn, create("p", external="true"))
    ask(conn, settle("p"))
    held = begin_run(conn, "r")
    ask(conn, commit(held, 0, settling("p"), run_of("new"), run_of("new")))
    assert types_of(conn, "r") == ["execution_started", "step_completed"]


def test_after_a_fence_nothing_may_follow(conn: Connection) -> None:
    """The transaction has locked a task; the commit would lock what comes before."""
    held = begin_run(conn, "r")
    with conn.transaction(force_rollback=True):
        conn.execute("select durable.fence('r', 1)")
        assert refusal(conn, commit(held)) == "WF003"
