"""Law: any number of steps that wait for room may end as soon as they are started."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import types
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.values.codec import Codec
from pyengine.core.worker import step_runner
from pyengine.core.worker.attempts import Attempt
from pyengine.core.worker.capacity import Capacity
from pyengine.core.worker.effects import StartAttempt
from pyengine.core.worker.events import Event
from pyengine.core.worker.step_runner import StepRunner
from tests.core.worker.run_stage import Stage, closed


class _Eager(asyncio.Task[None]):
    """A task that is started at once, as those of Python 3.12 and later can be."""

    def __new__(cls, body: Coroutine[Any, Any, None], **_: Any) -> Any:
        """Run a body that does not wait."""
        try:
            body.send(None)
        except StopIteration:
            return types.SimpleNamespace()
        raise AssertionError("the body waits")


def test_steps_that_end_at_once_do_not_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one at a time, each ending starts the next; a thousand of them do not fill the stack."""
    events: list[Event] = []
    failures: list[BaseException] = []

    async def main() -> None:
        stage = Stage()
        run = stage.claim("steps")
        (effect,) = (one for one in stage.effects if isinstance(one, StartAttempt))
        loop = asyncio.get_running_loop()
        runner = StepRunner(
            loop,
            codec=Codec(),
            randomness=random.Random(1),
            concurrency=1,
            threads=1,
            post=events.append,
            failed=failures.append,
            in_sql=lambda *_: asyncio.sleep(0),  # type: ignore[arg-type,return-value]
            slots=Capacity(1, {}, list),
            terms=LeaseTerms(60),
            values=ValueThreads(loop),
        )
        free, call = asyncio.Event(), effect.attempt.call

        async def wait(n: int) -> int:
            await free.wait()
            return n

        waits = replace(call, step=dataclasses.replace(call.step, fn=wait))
        for one in (waits, *[call] * 1000):
            runner.start(StartAttempt(run, Attempt(run.execution, run.info.id, one)))
        await asyncio.sleep(0)
        monkeypatch.setattr(step_runner, "_EAGER", True)
        monkeypatch.setattr(asyncio, "Task", _Eager)
        free.set()
        while not events:
            await asyncio.sleep(0)
        monkeypatch.undo()
        closed(stage, run)

    asyncio.run(main())
    assert len(events) == 1001 and not failures
