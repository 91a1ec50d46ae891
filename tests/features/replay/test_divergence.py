"""A replay that differs from its journal is repeated: two that differ show code that is not deterministic."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.protocol.commands import Halt
from pyengine.core.protocol.journal import Row
from pyengine.core.replay.divergence import explain
from pyengine.core.values.codec import Codec
from pyengine.errors import NondeterminismError
from pyengine.features.checks.compatibility import Journal, check_journal
from pyengine.features.checks.warning import DETERMINISM
from tests.core.replay.memory_run import MemoryRun, add, greet, ship, workflow

ENVIRONMENT = ["region a"]


def counting(*, start: int = 1, name: str = "n") -> Workflow[..., Any]:
    """Return a workflow whose step gets another number each time that its code runs."""
    numbers = itertools.count(start)

    async def code() -> int:
        return await add(next(numbers), 0)

    code.__name__ = name
    return workflow(code)


def halted(run: MemoryRun, code: Workflow[..., Any]) -> NondeterminismError:
    """Replay the journal of a run with some code, and once more if they differ; return the error."""
    end = run.cold(code).end
    assert isinstance(end, Halt)
    end = explain(end, replace(code.definition, home=Registry([DETERMINISM])), lambda: run.cold(code).end)
    error = run.codec.decode_error(end.problem)
    assert isinstance(error, NondeterminismError) and str(error.message) == json.loads(end.problem)["message"]
    return error


def test_code_that_is_not_deterministic() -> None:
    """Both values are shown, and what to take instead."""
    code = counting()
    run = MemoryRun(code)
    run.complete(0, 5)
    error = halted(run, code)
    assert error.message == (
        "run run-1, child 0: the code is not deterministic: two replays of the same journal gave "
        f"step add (input [2,0]), then step add (input [3,0]); the journal expects {error.expected}"
    )
    assert (error.got, error.again) == ("step add (input [2,0])", "step add (input [3,0])")
    kept = "step add (of its input the journal keeps only the hash, "
    assert error.expected is not None and error.expected.startswith(kept)
    assert error.hint is not None and error.hint.startswith("take time, random numbers and ids from ctx.now")
    assert "then fork the run from before this call" in error.hint


def test_a_mended_clock_needs_a_fork() -> None:
    """The recorded value is an entry that the journal of the halted run lacks: the hint names the fork."""

    async def before() -> None:
        await greet("12:00")

    async def after() -> None:
        await greet(f"{ctx.now():%H:%M}")

    run = MemoryRun(workflow(before))
    run.complete(0, "x")
    error = halted(run, workflow(after))
    assert (error.got, error.again) == ("time now", None)
    assert error.hint is not None and "fork the run from before this call" in error.hint


def test_a_recorded_input_is_shown() -> None:
    """The input of a step that was begun before it ended is in the journal: all three values are shown."""
    code = counting()
    run = MemoryRun(code)
    [call] = run.moves.steps
    begun = Row(1, "step_started", 0, 1, "add", call.hash, '{"input": [1,0]}')  # type: ignore[arg-type]
    end = run.cold(code, [*run.rows, begun]).end
    assert isinstance(end, Halt)
    problem = json.loads(end.problem)
    assert (problem["expected"], problem["got"]) == ("step add (input [1,0])", "step add (input [2,0])")
    assert problem["neighbours"] == ["0: step add (input [1,0])"]


def test_code_that_was_changed() -> None:
    """A second replay does the same: the sentence is that of a change, and so is the hint."""

    async def before() -> None:
        await greet("a")

    async def after() -> None:
        await ship(7)

    run = MemoryRun(workflow(before))
    run.complete(0, "x")
    error = halted(run, workflow(after))
    assert error.again is None
    assert error.message == (
        f"run run-1, child 0: the journal expects {error.expected}, the code made child run ship (input [7])"
    )
    assert error.hint == (
        "the code or its Python was changed after the run began: a second replay did the same; deploy the "
        "code that began the run, or give the change a new version"
    )


def test_code_that_reads_what_has_changed() -> None:
    """Two replays agree, since the environment changed once: the hint names the line that reads it."""

    async def code() -> None:
        import os

        await greet(os.environ.get("PATH", "") + ENVIRONMENT[0])

    run = MemoryRun(workflow(code))
    run.complete(0, "x")
    ENVIRONMENT[0] = "region b"
    error = halted(run, workflow(code))
    assert error.again is None and error.hint is not None
    assert f"{__file__}:{code.__code__.co_firstlineno + 3} uses os.environ: use a step" in error.hint
    assert "or reads what has changed" in error.hint and "deploy the code that began the run" in error.hint


@pytest.mark.parametrize(
    ("answers", "again"),
    [
        ([True, False, True], "what the journal expects"),
        ([True, False, None], "step add (input [1,1]) as child 1"),
    ],
)
def test_a_branch_by_chance(answers: list[bool | None], again: str) -> None:
    """A second replay that finds no difference, or another one elsewhere, is no proof of a change."""
    draw = iter(answers)

    async def code() -> None:
        match next(draw):
            case True:
                await greet("a")
                await greet("b")
            case None:
                await greet("a")
                await add(1, 1)
            case _:
                await greet("z")

    made = workflow(code)
    run = MemoryRun(made)
    run.complete(0, "x")
    run.complete(1, "y")
    error = halted(run, made)
    assert (error.child, error.got, error.again) == (0, 'step greet (input ["z"])', again)


def test_a_long_input_is_cut() -> None:
    """A long input is cut, and its hash tells two of them apart."""
    numbers = itertools.count()

    async def code() -> None:
        await greet("x" * 500 + str(next(numbers)))

    made = workflow(code)
    run = MemoryRun(made)
    run.complete(0, "x")
    error = halted(run, made)
    assert error.got is not None and error.again is not None and error.got != error.again
    assert len(error.got) < 260 and "…, hash " in error.got


def test_other_halts_stay_as_they_are() -> None:
    """A run that is halted for another reason is not replayed again."""
    end = Halt(problem='{"type": "KeyError", "message": "x"}')
    assert explain(end, counting().definition, lambda: pytest.fail("replayed")) is end


def check(code: Workflow[..., Any], run: MemoryRun, **more: Any) -> Any:
    """Return the divergence that a check of the journal finds."""
    rows = json.dumps([[getattr(row, name) for name in Row.__struct_fields__] for row in run.rows])
    fields: dict[str, Any] = {"execution": 1, "id": "run-1", "workflow": code.name, "version": "1"}
    return check_journal(Journal(**fields, rows=rows, **more), code.definition, Codec()).divergence


def test_a_check_of_journals_finds_the_cause_too() -> None:
    """`check_journal` replays twice where code and journal differ, in a call or in the end of a run."""
    code = counting()
    run = MemoryRun(code)
    run.complete(0, 5)
    found = check(code, run)
    assert (found.got, found.again) == ("step add (input [2,0])", "step add (input [3,0])")
    assert check(workflow(ctx_only), run).again is None
    ends = ending()
    run = MemoryRun(ends)
    found = check(ends, run, state="completed", outcome="1")
    assert (found.expected, found.got, found.again) == (
        "the workflow completed: 1",
        "the workflow completed: 2",
        "the workflow completed: 3",
    )


async def ctx_only() -> None:
    """Wait."""
    await ctx.sleep(1)


def ending() -> Workflow[..., Any]:
    """Return a workflow that returns another number at each replay."""
    numbers = itertools.count(1)

    async def code() -> int:
        return next(numbers)

    return workflow(code)
