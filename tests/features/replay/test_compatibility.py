"""The verdict on one journal, as a table: no database, no worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.core.definitions.registry import Workflow
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.values.codec import Codec
from pyengine.features.checks.compatibility import Finding, Journal, check_journal
from tests.core.replay.memory_run import MemoryRun, add, greet, ship, workflow


async def waits() -> str:
    """A step, then a promise that is awaited."""
    await greet("a")
    return await ctx.promise(str, name="go")


async def gives_up() -> str:
    """The same calls; nobody waits for the promise."""
    await greet("a")
    ctx.promise(str, name="go")
    return "done"


async def fails() -> str:
    """The same calls, and an error."""
    await gives_up()
    raise LookupError("nothing")


async def adds() -> str:
    """The same calls, and a step beside the wait."""
    await greet("a")
    await ctx.gather(ctx.promise(str, name="go"), add(1, 2))
    return "done"


async def waits_for_more() -> str:
    """The same calls, and another promise beside the wait."""
    await greet("a")
    await ctx.gather(ctx.promise(str, name="go"), ctx.promise(str, name="more"))
    return "done"


async def reads_number() -> int:
    """The same calls; the step's result is read as a number."""
    return int(await greet("a")) + len(await ctx.promise(str, name="go"))


def journal(code: Workflow[..., Any], rows: list[Row], **more: Any) -> Journal:
    """The journal as the procedure gives it."""
    fields: dict[str, Any] = {"execution": 1, "id": "run-1", "workflow": code.name, "version": "1"}
    text = json.dumps([[getattr(row, name) for name in Row.__struct_fields__] for row in rows])
    return Journal(**fields | {"rows": text} | more)


def waiting() -> MemoryRun:
    """A run of `waits` that waits for its promise."""
    run = MemoryRun(workflow(waits))
    run.complete(0, "hello a")
    return run


def verdict(code: Any, rows: list[Row], **more: Any) -> Finding:
    """The verdict on these rows with this code."""
    made = workflow(code)
    return check_journal(journal(made, rows, **more), made.definition, Codec())


@pytest.mark.parametrize(
    ("code", "state", "ends", "got"),
    [
        (waits, "waiting", "waits", None),
        (waits, "halted", "waits", None),
        (adds, "waiting", "works", None),
        (waits_for_more, "waiting", "waits", None),
        (waits_for_more, "paused", "waits", "the workflow waits for 1, 2"),
        (gives_up, "waiting", "completed", 'the workflow completed: "done"'),
        (fails, "waiting", "failed", "the workflow failed: LookupError: nothing"),
    ],
)
def test_a_run_that_waits(code: Any, state: str, ends: str, got: str | None) -> None:
    """A run that waits may not end in its replay, and one that is set aside may wait for nothing new."""
    one = verdict(code, waiting().rows, state=state, waiting_on=[1])
    assert (one.verdict, one.ends) == ("ok" if got is None else "diverged", ends)
    assert (None if one.divergence is None else one.divergence.got) == got


def test_a_run_that_can_advance_may_end() -> None:
    """A live run that waits for nothing ends where its code ends, be it an error: nothing says otherwise."""
    rows = waiting().rows[:2]
    assert [(verdict(code, rows).verdict, verdict(code, rows).ends) for code in (gives_up, fails)] == [
        ("ok", "completed"),
        ("ok", "failed"),
    ]


def test_a_recorded_value_that_the_code_cannot_read() -> None:
    """A result that does not fit the annotation any more is a divergence, though no call differs."""

    async def reads() -> int:
        return await ctx.promise(int, name="n")

    rows = [
        Row(0, RowType.EXECUTION_STARTED),
        Row(1, RowType.PROMISE_REGISTERED, 0, None, "n"),
        Row(2, RowType.OPEN_CHILD_SETTLED, 0, None, None, None, '"text"', True),
    ]
    one = verdict(reads, rows)
    assert one.divergence is not None
    assert (one.verdict, "DecodeError" in one.divergence.got) == ("diverged", True)


def ended(code: Any, value: Any) -> tuple[list[Row], str]:
    """Rows of a run of `waits` whose promise was resolved, up to its end, and its value."""
    run = waiting()
    run.rows.append(Row(run.next_seq, RowType.EXECUTION_RESUMED))
    rows = [
        *run.rows,
        Row(run.next_seq, RowType.OPEN_CHILD_SETTLED, 1, None, None, None, json.dumps(value), True),
    ]
    return [*rows, Row(rows[-1].seq + 1, RowType.EXECUTION_COMPLETED)], json.dumps(value)


@pytest.mark.parametrize(
    ("state", "outcome", "verdict_"),
    [
        ("completed", '"x"', "ok"),
        ("completed", ' "x" ', "ok"),
        ("completed", '"y"', "diverged"),
        ("failed", '{"type": "LookupError", "message": "x"}', "diverged"),
        ("timed_out", '{"type": "Timeout"}', "ok"),
        ("cancelled", '{"type": "Cancelled"}', "ok"),
    ],
)
def test_a_run_that_has_ended(state: str, outcome: str, verdict_: str) -> None:
    """It must end again with an equal value, unless it was ended from outside, wherever its code was."""
    rows, _ = ended(waits, "x")
    assert verdict(waits, rows, state=state, outcome=outcome).verdict == verdict_


def test_errors_are_the_same_by_class_and_message() -> None:
    """Tracebacks differ from code to code; class, message and causes count."""
    rows = [*waiting().rows[:2], Row(7, RowType.EXECUTION_FAILED)]
    error = {"type": "LookupError", "module": "builtins", "message": "nothing", "traceback": "other lines"}
    assert verdict(fails, rows, state="failed", outcome=json.dumps(error)).verdict == "ok"
    for change in ({"message": "something"}, {"type": "KeyError"}, {"cause": {"type": "OSError"}}):
        one = verdict(fails, rows, state="failed", outcome=json.dumps(error | change))
        assert (change, one.verdict) == (change, "diverged")


def test_a_run_that_was_settled_from_outside() -> None:
    """A run whose promise was settled while its code waited shows in its journal: the wait is still open; any
    outcome will do, JSON or not.
    """
    rows = [*waiting().rows, Row(20, RowType.EXECUTION_COMPLETED)]
    assert verdict(waits, rows, state="completed", outcome="no JSON").verdict == "ok"


def test_the_first_difference_is_reported() -> None:
    """A halt's problem is handed on: number, both sides, neighbours."""

    async def other() -> None:
        await greet("a")
        await ship(1)

    one = verdict(other, waiting().rows, waiting_on=[1])
    assert one.divergence is not None
    assert (one.ends, one.divergence.child, one.divergence.expected) == (None, 1, "promise go")
    assert one.divergence.got.startswith("child run ship (input ")
    assert len(one.divergence.neighbours) == 2


def test_no_code_is_unknown() -> None:
    """Without code for it a run is unknown and is not replayed."""
    one = check_journal(journal(workflow(waits), waiting().rows), None, Codec())
    assert (one.verdict, one.ends, one.divergence) == ("unknown", None, None)
