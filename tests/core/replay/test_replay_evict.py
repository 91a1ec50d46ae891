"""Law: what is freed when a run ends is freed inside of it, where every call is dead; not in the worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyengine.core.definitions.current_run import scope
from pyengine.core.protocol.commands import Complete
from tests.core.replay.memory_run import MemoryRun, workflow


class Probe:
    """Notes, when it is freed, whose code finds itself there: a run's, and whether its calls count."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __del__(self) -> None:
        found = scope.get()
        self.seen.append(None if found is None else found.alive)


async def returned(seen: list[Any]) -> Probe:
    """A result that nobody takes."""
    return Probe(seen)


@pytest.mark.parametrize("where", ["a task", "a timer"])
def test_leftovers_are_freed_inside_the_run(where: str) -> None:
    """A task that is done keeps its result, and a timer its callback, until the run ends."""
    seen: list[Any] = []

    async def code() -> str:
        if where == "a task":
            asyncio.get_running_loop().create_task(returned(seen))
            await asyncio.sleep(0)
        else:
            asyncio.get_running_loop().call_later(60, print, Probe(seen))
        return "done"

    run = MemoryRun(workflow(code))
    assert isinstance(run.end, Complete)
    assert seen == [False]
