"""Random programs under random interleavings: a live run and every cold replay of its journal do the same.

The run is advanced by completions, signals and a request of cancellation in random order, one or several in a
turn; at each point a cold replay of the journal so far must ask for exactly what is still open, and at the
end give the same result (programs.py).
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pyengine.core.protocol.commands import Cancelled, Complete, Fail, Halt, Receive
from pyengine.core.replay.advance import StepCall
from tests.core.replay.memory_run import MemoryRun, greet, workflow
from tests.core.replay.programs import cleaning, drive, program

ROUNDS = 120


def check_end(run: MemoryRun, said: Any) -> None:
    """The whole journal replays to the same end and wants nothing more."""
    again = run.cold()
    assert again.end == run.end and again.steps == (), said
    # that a receive was registered cannot be seen in the journal if nothing was recorded after it
    assert all(isinstance(command, Receive) for command in again.commands), said


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("new", [False, True])
def test_live_and_cold_agree(depth: int, new: bool, seed: int) -> None:
    """Whatever the program and the order of completions: same numbers, same waits, same result."""
    for n in range(ROUNDS):
        rng = random.Random(f"{seed} {n}")
        tree = program(rng, depth, new=new)
        run = drive(cleaning(tree, None), rng)
        assert isinstance(run.end, Complete | Fail), (seed, n, tree, run.end)
        check_end(run, (seed, n, tree))


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_cancelled_live_and_cold_agree(depth: int, seed: int) -> None:
    """Wherever a request of cancellation comes, seen or overtaking a turn: live and cold clean up alike."""
    ends: set[type[Any]] = set()
    for n in range(ROUNDS):
        rng = random.Random(f"{seed} {n}")
        tree = program(rng, depth, new=True)
        clean_up = program(rng, depth - 1, new=True) if rng.random() < 0.7 else None
        run = drive(cleaning(tree, clean_up), rng, cancel=0.2)
        assert isinstance(run.end, Complete | Fail | Cancelled), (seed, n, tree, clean_up, run.end)
        ends.add(type(run.end))
        check_end(run, (seed, n, tree, clean_up))
    assert ends >= {Complete, Cancelled}


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
        tree, clean_up = program(rng, 3, new=True), program(rng, 2, new=True)
        run = drive(cleaning(tree, clean_up), rng, cancel=0.1)
        for length in range(1, len(run.rows) + 1):
            moves = run.cold(rows=run.rows[:length])
            assert not isinstance(moves.end, Halt), (seed, n, tree, clean_up, length, moves.end)
