"""Typical mistakes of newcomers, by the rows of the list: failures, which must be seen."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pyengine import App, Retry, Workflow
from pyengine.errors import RunFailed
from tests.system.mistakes.places import line_of

HERE = Path(__file__).name


def failing(dsn: str) -> App:
    """Return an app whose step fails twice in a thread, then for good."""
    app = App(dsn)

    @app.step(retry=Retry(max_attempts=3, initial="5ms", jitter=0))
    def divide(a: int, b: int) -> float:
        return inner_division(a, b)

    @app.workflow
    async def compute(secret: str) -> float:
        return await divide(len(secret), 0)

    @app.workflow
    async def parent() -> float:
        return await compute("the secret")

    return app


def flow(app: App, name: str) -> Workflow[..., Any]:
    """Return a workflow of an app by its name."""
    return Workflow(app.registry.workflow(name))


def inner_division(a: int, b: int) -> float:
    """Divide."""
    return a / b  # the bug


def test_row_35_a_failed_attempt_is_logged(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """One warning for each failed attempt, with the time of the next, and an error for the run; no
    arguments in any of them.
    """
    caplog.set_level(logging.INFO)
    app = failing(dsn)
    with pytest.raises(RunFailed):
        app.run(flow(app, "compute"), "the secret")
    records = [one for one in caplog.records if one.__dict__.get("event", "").startswith(("attempt", "run"))]
    assert [(one.levelname, one.__dict__["event"]) for one in records] == [
        ("INFO", "run_began"),
        ("WARNING", "attempt_failed"),
        ("WARNING", "attempt_failed"),
        ("WARNING", "attempt_failed"),
        ("ERROR", "run_failed"),
    ]
    first, last, run = records[1], records[3], records[4]
    id = first.__dict__["run"]
    text = f"step divide of run {id} failed in attempt 1: ZeroDivisionError: division by zero"
    text += "; attempt 2 in 0.005 s"
    assert first.message.startswith(
        f"{text}, at {first.__dict__['retry_at']}\nTraceback (most recent call last)"
    )
    fields = {name: first.__dict__[name] for name in ("workflow", "step", "attempt", "queue")}
    assert fields == {"workflow": "compute", "step": "divide", "attempt": 1, "queue": "default"}
    assert last.message.split("\n")[0].endswith("; there is no other attempt")
    assert run.message.startswith(
        f"run {id} of compute failed: ZeroDivisionError: division by zero\nTraceback"
    )
    assert f'{HERE}", line {line_of(inner_division, "# the bug")}, in inner_division' in run.message
    assert "the secret" not in caplog.text


@pytest.mark.parametrize("name", ["compute", "parent"])
def test_row_36_a_bug_in_a_step(dsn: str, name: str) -> None:
    """RunFailed has the original error as its cause, and notes with run, step, attempt, worker, file, line
    and the traceback through workflow and step, without frames of the engine.
    """
    app = failing(dsn)
    with pytest.raises(RunFailed) as caught:
        app.run(flow(app, name), *(["x"] if name == "compute" else []))
    error: BaseException | None = caught.value
    assert "failed: ZeroDivisionError: division by zero" in str(error)
    where, at, trace = caught.value.__notes__
    line = line_of(inner_division, "# the bug")
    assert where.startswith("in run ") and ", step divide, attempt 3, worker " in where
    assert at == f'File "{__file__}", line {line}'
    functions = ["in compute", "in divide", "in inner_division"]
    assert [trace.index(one) for one in functions] == sorted(trace.index(one) for one in functions)
    assert "pyengine/core/worker" not in trace and "frames of pyengine left out: " in trace
    while isinstance(error, RunFailed):
        error = error.__cause__
    assert isinstance(error, ZeroDivisionError)


def test_row_36_a_bug_below_a_library(dsn: str) -> None:
    """The place is a line of the user's code, though the error is raised in a module of Python."""
    app = App(dsn)

    @app.step
    async def parse(text: str) -> int:
        return int(json.loads(text))

    @app.workflow
    async def read(text: str) -> int:
        return await parse(text)

    with pytest.raises(RunFailed, match="failed: JSONDecodeError: Expecting") as caught:
        app.run(read, "{")
    line = line_of(test_row_36_a_bug_below_a_library, "int(json.loads(text))")
    assert f'File "{__file__}", line {line}' in caught.value.__notes__
    assert "in raw_decode" in caught.value.__notes__[-1]
