"""How a turn is written: what the database reads, and nothing that says nothing."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from pyengine.core.protocol.commands import (
    Adopt,
    CallRemote,
    Cancelled,
    Captured,
    Command,
    Complete,
    ContinueAsNew,
    Ending,
    Fail,
    Halt,
    Intend,
    MakeJoinSet,
    MakePromise,
    Receive,
    Release,
    RunChild,
    StartTimer,
    StepOutcome,
    Submit,
    Suspend,
    Take,
)
from pyengine.core.protocol.turn import RunReport, decode_answer, encode_reports, encode_texts

CHILD = RunChild(
    child=5, name="ship", version="1", queue=None, hash="ab", param="[]", timeout_ms=None, detached=False
)


def written(report: RunReport) -> Any:
    """What one report looks like in a turn."""
    (one,) = json.loads(encode_reports([report]))
    return one


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (CHILD, {"do": "run", "name": "ship", "version": "1", "hash": "ab", "param": "[]"}),
        (
            RunChild(
                child=5,
                name="ship",
                version="2",
                queue="slow",
                hash="ab",
                param="[]",
                timeout_ms=9,
                detached=True,
                abandon=True,
            ),
            {
                "do": "run",
                "name": "ship",
                "version": "2",
                "queue": "slow",
                "hash": "ab",
                "param": "[]",
                "timeout": 9,
                "detached": True,
                "abandon": True,
            },
        ),
        (StartTimer(child=5, duration_ms=7), {"do": "timer", "duration": 7}),
        (StartTimer(child=5, duration_ms=7, name="go"), {"do": "timer", "duration": 7, "name": "go"}),
        (
            CallRemote(child=5, name="f", target="poll://any@g", hash="00", param="{}", timeout_ms=8),
            {"do": "rpc", "name": "f", "queue": "poll://any@g", "hash": "00", "param": "{}", "timeout": 8},
        ),
        (MakePromise(child=5, name="word", timeout_ms=8), {"do": "promise", "name": "word", "timeout": 8}),
        (
            Captured(child=5, kind="time", name="now", value="3"),
            {"do": "time", "name": "now", "value": "3"},
        ),
        (Adopt(child=5, name="other"), {"do": "adopt", "name": "other"}),
        (Receive(child=5, name="approve"), {"do": "receive", "name": "approve"}),
        (MakeJoinSet(child=5), {"do": "join_set"}),
        (Submit(child=5, join_set=4), {"do": "submit", "set": 4}),
        (Take(child=5, join_set=0), {"do": "take", "set": 0}),
        (
            Intend(child=5, name="step", hash="ab", param="[1]", retry='{"max_attempts":3}'),
            {"do": "intent", "name": "step", "hash": "ab", "param": "[1]", "retry": '{"max_attempts":3}'},
        ),
        (
            Intend(child=5, name="step", hash="ab", param="[1]"),
            {"do": "intent", "name": "step", "hash": "ab", "param": "[1]"},
        ),
    ],
)
def test_commands(command: Command, expected: dict[str, Any]) -> None:
    """Every command of a coroutine has its own form, with its child number."""
    assert written(RunReport(1, "r", 2, 3, commands=[command]))["commands"] == [expected | {"child": 5}]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (Suspend(on=(1, 2), kind="any"), {"do": "suspend", "on": [1, 2], "kind": "any"}),
        (Suspend(on=(1,), kind="signal"), {"do": "suspend", "on": [1], "kind": "signal"}),
        (Complete(value="1"), {"do": "complete", "value": "1"}),
        (Fail(error="{}"), {"do": "fail", "error": "{}"}),
        (Halt(problem="{}"), {"do": "halt", "problem": "{}"}),
        (Cancelled(), {"do": "cancel"}),
        (ContinueAsNew(value="[2]", children=(7,)), {"do": "continue", "value": "[2]", "on": [7]}),
        (
            ContinueAsNew(value="[]", children=(7, 3, 5)),
            {"do": "continue", "value": "[]", "on": [7, 3, 5]},
        ),
        (Release(retry_in_ms=5), {"do": "release", "retry_in": 5}),
    ],
)
def test_endings(end: Ending, expected: dict[str, Any]) -> None:
    """Every way to leave a task has its own form."""
    assert written(RunReport(1, "r", 2, 3, end=end))["end"] == expected


def test_what_is_absent_is_left_out() -> None:
    """A report that only asks says who asks and what was seen; an outcome only what it knows."""
    assert written(RunReport(1, "r", 2, 3)) == {"execution": 1, "id": "r", "version": 2, "seen": 3}
    begun = StepOutcome(child=0, name="s", hash="ab", attempt=1, begun=True, param="[]", retry="{}")
    ended = StepOutcome(child=0, name="s", hash="ab", attempt=1, error="{}", retry_in_ms=4)
    known = {"child": 0, "name": "s", "hash": "ab", "attempt": 1}
    assert written(RunReport(1, "r", 2, 3, outcomes=[begun, ended]))["outcomes"] == [
        known | {"begun": True, "param": "[]", "retry": "{}"},
        known | {"error": "{}", "retry_in": 4},
    ]


def test_an_answer_of_an_older_database_is_read() -> None:
    """A claimed task without a first child number begins with 0, and one without rules has the first."""
    task = [1, "r", 1, "w", "1", "[]", 0, 1, [[0, "execution_started"]], 0, 5, "default"]
    answer = {"now": 1, "verdicts": None, "tails": [], "hints": [], "settled": False, "due_in": None}
    read = decode_answer(json.dumps(answer | {"tasks": [task, [*task, 3]]}))
    assert [one.first_child for one in read.tasks] == [0, 3]
    assert [one.rules for one in read.tasks] == [1, 1]


def test_texts_arrive_as_they_are(conn: psycopg.Connection[Any]) -> None:
    """An array literal is read back as the texts it was made of, whatever is in them."""
    texts = ["", "default", 'a"b', "c\\d", "{e,f}", "null", " g ", "\u00e9\n"]
    for each in (texts, [], [""]):
        assert conn.execute("select %s::text::text[]", (encode_texts(each),)).fetchone() == (each,)
