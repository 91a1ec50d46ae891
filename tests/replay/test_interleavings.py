"""Random programs under random interleavings: a live run and every cold replay of its journal do the same.

A program is a tree of branches; each leaf is one durable call of some kind. The run is advanced by
completions in random order, one or several in a turn; at each point a cold replay of the journal so far must
ask for exactly what is still open, and at the end give the same result. The result holds ids, captured values
and virtual times, so that a number that moved cannot go unnoticed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyengine.context import ctx
from pyengine.model import Captured, Complete, Halt, StepCall, Suspend
from tests.replay.memory_run import MemoryRun, add, greet, ship, workflow

Node = tuple[Any, ...]
LEAVES = ("step", "child", "promise", "sleep", "aio_sleep", "now", "random", "uuid4", "timeout", "given_up")
FORKS = ("seq", "gather", "aio_gather", "group", "first", "as_completed")
ROUNDS = 150


def program(rng: random.Random, depth: int) -> Node:
    """Return a random program of at most that depth."""
    if depth == 0 or rng.random() < 0.3:
        return (rng.choice(LEAVES), rng.randrange(100))
    fork = rng.choice(FORKS)
    return (fork, *(program(rng, depth - 1) for _ in range(rng.randint(1, 3))))


async def timed(call: Awaitable[Any], delay: float) -> Any:
    """Wait for a call, but not longer than that."""
    try:
        async with asyncio.timeout(delay):
            return await call
    except TimeoutError:
        return ["late", asyncio.get_running_loop().time()]


async def leaf(kind: str, n: int) -> Any:
    """Make one durable call."""
    match kind:
        case "step":
            return await add(n, n)
        case "child":
            child = ctx.start(ship, n)
            return [child.id, await child]
        case "promise":
            promise = ctx.promise(name=f"p{n}")
            return [promise.id, await promise]
        case "sleep":
            return await ctx.sleep(n / 10)
        case "aio_sleep":
            return await asyncio.sleep(n / 10)
        case "now":
            return ctx.now().isoformat()
        case "random":
            return ctx.random()
        case "uuid4":
            return str(ctx.uuid4())
        case "timeout":
            return await timed(greet(str(n)), 1 + n)
        case _:
            _ = greet(f"nobody waits for {n}")
            return "gone"


async def play(node: Node) -> Any:
    """Run a program."""
    kind, rest = node[0], node[1:]
    if kind in LEAVES:
        return [kind, await leaf(kind, rest[0])]
    if kind == "seq":
        return [await play(one) for one in rest]
    if kind == "gather":
        return list(await ctx.gather(*map(play, rest)))
    if kind == "aio_gather":
        return list(await asyncio.gather(*map(play, rest)))
    if kind == "first":
        return list(await ctx.first(*map(play, rest)))
    if kind == "as_completed":
        return [await one for one in ctx.as_completed(*map(play, rest))]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play(one)) for one in rest]
    return [task.result() for task in tasks]


def check_cold(run: MemoryRun) -> None:
    """A replay by another process wants what is open, and nothing that was done."""
    moves = run.cold()
    assert not isinstance(moves.end, Halt), moves.end
    assert moves.acts == ()
    steps = {one.child: one for one in moves.steps}
    open_steps = {n: one for n, one in run.open.items() if isinstance(one, StepCall)}
    # a step that was given up before it was ever recorded is not asked for again
    assert steps.items() <= open_steps.items()
    assert len(steps) == run.moves.waiting_steps == moves.waiting_steps
    assert moves.end == run.end


def drive(code: Callable[..., Any], rng: random.Random) -> MemoryRun:
    """Play a program to its end with completions in random order."""
    run = MemoryRun(workflow(code), seed=rng.randrange(2**30))
    while not run.warm.finished:
        check_cold(run)
        if isinstance(run.end, Suspend):
            assert set(run.end.on) <= set(run.open)
            choices = [n for n in run.open if n in run.end.on or rng.random() < 0.3]
        else:
            choices = list(run.open)
        picked = rng.sample(choices, min(len(choices), rng.choice((1, 1, 1, 2, 3))))
        run.now_ms += rng.randrange(50_000)
        outcomes = [
            (n, {"child": n} if isinstance(run.open[n], Captured) else _value(run, n), None) for n in picked
        ]
        run.complete_all(outcomes)
    return run


def _value(run: MemoryRun, child: int) -> Any:
    call = run.open[child]
    if isinstance(call, StepCall):
        return sum(call.args) if call.name == "add" else f"hello {child}"
    return f"value {child}"


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_live_and_cold_agree(depth: int, seed: int) -> None:
    """Whatever the program and the order of completions: same numbers, same waits, same result."""
    for n in range(ROUNDS):
        rng = random.Random(f"{seed} {n}")
        tree = program(rng, depth)

        async def code(tree: Node = tree) -> Any:
            return await play(tree)

        async def bare() -> Any:
            return await code()

        run = drive(bare, rng)
        assert isinstance(run.end, Complete), (seed, n, tree, run.end)
        again = run.cold()
        assert again.end == run.end and again.acts == () and again.steps == (), (seed, n, tree)


def test_two_branches_of_sequential_steps(seed: int) -> None:
    """Sequential steps inside branches of one gather: numbers follow completions, and replay finds them."""

    async def branch(name: str) -> list[str]:
        return [await greet(f"{name}{n}") for n in range(4)]

    async def code() -> list[list[str]]:
        return list(await asyncio.gather(branch("a"), branch("b"), branch("c")))

    for n in range(100):
        rng = random.Random(f"{seed} {n}")
        run = MemoryRun(workflow(code))
        while not run.warm.finished:
            child = rng.choice(list(run.open))
            call = run.open[child]
            assert isinstance(call, StepCall)
            run.complete(child, f"{call.args[0]} as {child}")
        assert run.cold().end == run.end, (seed, n)
        assert [[text[:2] for text in branch] for branch in run.value] == [
            [f"{name}{n}" for n in range(4)] for name in "abc"
        ]


def test_every_prefix_replays(seed: int) -> None:
    """A journal cut after any row replays without a complaint, so a crash at any moment is harmless."""
    rng = random.Random(seed)
    for n in range(60):
        tree = program(rng, 3)

        async def code(tree: Node = tree) -> Any:
            return await play(tree)

        async def bare() -> Any:
            return await code()

        run = drive(bare, rng)
        for length in range(1, len(run.rows) + 1):
            moves = run.cold(rows=run.rows[:length])
            assert not isinstance(moves.end, Halt), (seed, n, tree, length, moves.end)
