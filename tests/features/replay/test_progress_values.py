"""Law: progress and values are no part of the journal; a replay sets the last of them, at the positions at
which they were set before.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from pyengine import ChildCounts, Progress, ctx
from pyengine.core.protocol.commands import Complete, Fail
from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.values.codec import Codec
from pyengine.errors import EncodeError, InvalidRequest, PayloadTooLarge
from pyengine.features.progress.live_bar import summary
from tests.core.replay.memory_run import Done, MemoryRun, add, step, workflow


@workflow
async def counting(times: int) -> int:
    """Steps one after the other, with progress between them."""
    total = 0
    ctx.set("stage", "first")
    for number in range(times):
        ctx.progress(number, times, f"number {number}")
        total += await add(number, 1)
    ctx.set("stage", "last")
    return total


def test_the_last_values_of_an_advance_are_given() -> None:
    """One report for each advance, with the position of its row."""
    run = MemoryRun(counting, 2)
    assert run.moves.progress == ProgressReport(
        seq=0, done=0, total=2, note="number 0", named={"stage": (1, 0, '"first"')}
    )
    assert run.moves.commands == ()
    run.turn(Done(0, 1))
    first = run.moves.progress
    assert first is not None and (first.done, first.named) == (1, {})
    run.turn(Done(1, 2))
    last = run.moves.progress
    assert last is not None and last.done is None and list(last.named) == ["stage"]
    assert isinstance(run.end, Complete)


def test_a_replay_gives_the_last_of_all() -> None:
    """The positions are those of before, so that nothing newer is replaced."""
    run = MemoryRun(counting, 2)
    run.turn(Done(0, 1))
    live = run.moves.progress
    cold = run.cold().progress
    assert live is not None and cold is not None
    assert (cold.seq, cold.done, cold.note) == (live.seq, 1, "number 1")
    assert cold.named == {"stage": (1, 0, '"first"')}


def test_a_run_that_sets_nothing_gives_nothing() -> None:
    """No report, not even an empty one."""

    @workflow
    async def quiet() -> int:
        return await add(1, 2)

    run = MemoryRun(quiet)
    run.turn(Done(0, 3))
    assert run.moves.progress is None and run.cold().progress is None


# -- what may be set

WRONG: dict[str, Any] = {
    "negative": lambda: ctx.progress(-1),
    "not a number": lambda: ctx.progress(math.nan),
    "infinite": lambda: ctx.progress(math.inf),
    "too big": lambda: ctx.progress(10**400),
    "a text": lambda: ctx.progress("1"),  # type: ignore[arg-type]
    "true": lambda: ctx.progress(True),
    "a wrong total": lambda: ctx.progress(1, -1),
    "a wrong note": lambda: ctx.progress(1, 2, 3),  # type: ignore[arg-type]
    "no name": lambda: ctx.set("", 1),
    "a long name": lambda: ctx.set("é" * 129, 1),
    "a name with NUL": lambda: ctx.set("a\0b", 1),
    "half a character": lambda: ctx.set("\ud800", 1),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_values_are_refused(wrong: str) -> None:
    """At once, in a workflow and outside."""

    @workflow
    async def go() -> None:
        WRONG[wrong]()

    assert isinstance(MemoryRun(go).end, Fail)
    with pytest.raises(InvalidRequest, match=r"ctx\.(progress|set)"):
        WRONG[wrong]()


@dataclass
class Basket:
    """A value with a type."""

    fruit: list[str]
    price: Decimal


def test_values_of_any_type_are_written() -> None:
    """What JSON can hold, without an annotation; nothing reads them back as they were."""

    @workflow
    async def go() -> None:
        ctx.set("basket", [Basket(["apple"], Decimal("1.5"))])
        ctx.progress(3, note="x" * 1000 + "\0")

    progress = MemoryRun(go).moves.progress
    assert progress is not None and progress.named["basket"][2] == '[{"fruit":["apple"],"price":"1.5"}]'
    assert progress.note == "x" * 500


def test_what_cannot_be_written_fails_the_run() -> None:
    """A value without JSON, with NUL, too large; and too many names."""
    found = []

    @workflow
    async def go() -> None:
        for value in (object(), "a\0b", "x" * 5000):
            try:
                ctx.set("x", value)
            except (EncodeError, PayloadTooLarge) as error:
                found.append(type(error))
        for number in range(1000):
            ctx.set(f"name {number}", number)
        with pytest.raises(InvalidRequest, match="more than 1000"):
            ctx.set("one more", 1)

    run = MemoryRun(go, codec=Codec(max_bytes=4000))
    assert isinstance(run.end, Complete)
    assert found == [EncodeError, EncodeError, PayloadTooLarge]


def test_outside_a_run_nothing_happens() -> None:
    """A step is called as the function that it is."""

    @step
    async def work() -> int:
        ctx.progress(1, 2)
        ctx.set("x", 1)
        return 1

    assert asyncio.run(work()) == 1


# -- map


def test_a_map_keeps_its_order_and_its_limit() -> None:
    """As many calls as its concurrency are open; each that ends lets the next one start."""

    @workflow
    async def go() -> list[int]:
        async def one(number: int) -> int:
            return await add(number, 1)

        return await ctx.map(one, range(5), concurrency=2)

    run = MemoryRun(go)
    assert list(run.open) == [0, 1]
    run.turn(Done(1, 20))
    assert list(run.open) == [0, 2]
    for child, value in ((2, 30), (0, 10), (3, 40), (4, 50)):
        run.turn(Done(child, value))
    assert run.end == Complete(value="[10,20,30,40,50]")
    assert run.cold().end == run.end


def test_a_map_without_a_limit_is_a_gather() -> None:
    """A thousand calls at once, one wait."""

    @workflow
    async def go() -> int:
        return len(await ctx.map(lambda number: add(number, 1), range(1000), concurrency=None))

    run = MemoryRun(go)
    assert len(run.open) == 1000
    for child in reversed(range(1000)):
        run.turn(Done(child, child))
    assert run.end == Complete(value="1000")


@pytest.mark.parametrize("concurrency", [1, None])
def test_errors_of_a_map(concurrency: int | None) -> None:
    """Every call ends; then the first error in the order of the items is raised, or all are in the list."""

    async def one(number: int) -> int:
        if number == 3:
            raise KeyError("early")
        return await add(number, 1)

    @workflow
    async def go() -> str:
        try:
            await ctx.map(one, range(4), concurrency=concurrency)
        except LookupError as error:
            return str(error)
        return "none"

    @workflow
    async def kept() -> list[str]:
        found = await ctx.map(one, range(4), concurrency=concurrency, return_exceptions=True)
        return [type(each).__name__ for each in found]

    for code, wanted in ((go, '"bad"'), (kept, '["int","LookupError","int","KeyError"]')):
        run = MemoryRun(code)
        for child in range(3):
            assert not isinstance(run.end, Complete)
            run.turn(Done(child, 1) if child != 1 else Done(child, error=LookupError("bad")))
        assert run.end == Complete(value=wanted)


def test_a_map_shows_its_progress() -> None:
    """After each call that ended, also with all at once."""

    @workflow
    async def go(concurrency: int | None) -> None:
        await ctx.map(lambda number: add(number, 1), [1, 2, 3], concurrency=concurrency, progress=True)

    for concurrency in (2, None):
        run = MemoryRun(go, concurrency)
        shown = []
        for child in range(3):
            run.turn(Done(child, 1))
            assert run.moves.progress is not None
            shown.append((run.moves.progress.done, run.moves.progress.total))
        assert shown == [(1, 3), (2, 3), (3, 3)]


def test_a_cancelled_map_cancels_its_calls() -> None:
    """And waits until they have ended."""

    @workflow
    async def go() -> str:
        mapping = asyncio.ensure_future(ctx.map(lambda number: add(number, 1), range(5), concurrency=2))
        await asyncio.sleep(0)
        mapping.cancel()
        try:
            await mapping
        except asyncio.CancelledError:
            return "cancelled"
        return "ended"

    assert MemoryRun(go).end == Complete(value='"cancelled"')


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"concurrency": True}, {"concurrency": 1.5}])
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    """A concurrency is a number above 0; and the items are no set."""

    @workflow
    async def go() -> None:
        with pytest.raises(InvalidRequest, match="another order"):
            ctx.map(lambda number: add(number, 1), {1, 2})
        ctx.map(lambda number: add(number, 1), [1], **wrong)

    assert isinstance(MemoryRun(go).end, Fail)


# -- the bar


def test_what_the_bar_says() -> None:
    """State, numbers, note and children, on one line."""
    progress = Progress(done=37, total=100, note="re\nsizing")
    children = ChildCounts(total=10, done=2, failed=1, running=7)
    assert summary("running", None, None) == "running"
    assert summary("running", Progress(done=2.5), None) == "running 2.5"
    assert summary("running", Progress(done=1_234_567, total=10**9), None) == "running 1234567/1000000000"
    assert summary("waiting", progress, children) == "waiting 37/100 re sizing, children 3/10 (1 failed)"
