"""Law: an event is applied once, with all that follows from it. An error that no part expects ends the
worker, and what else follows from the event goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from pyengine import App, Client, Worker
from pyengine.core.process import thread_pool
from pyengine.core.process.thread_pool import ThreadPool
from pyengine.core.worker.dispatcher import Dispatcher
from pyengine.core.worker.effects import PostLater, RollBack
from pyengine.core.worker.events import Event, PollDue
from pyengine.core.worker.step_runner import StepRunner


class _Runs:
    """Returns as many effects as an event has runs; `PollDue` of a number stands for any event."""

    def __init__(self) -> None:
        self.dirty: deque[Any] = deque()
        self.applied: list[Any] = []

    def apply(self, event: Event) -> list[Any]:
        """Note the event, and ask for an effect for each of its letters."""
        assert isinstance(event, PollDue)
        self.applied.append(event.run)
        if event.run == "broken":
            raise ValueError("broken")
        return [RollBack(letter) for letter in event.run]  # type: ignore[arg-type]


def _event(name: str) -> Event:
    return PollDue(name)  # type: ignore[arg-type]


def _driven(body: Callable[[Dispatcher, _Runs], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        runs = _Runs()
        await body(Dispatcher(runs, lambda: None), runs)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_other_effects_of_an_event_go_on() -> None:
    """One of three effects fails; the others are executed, and so is the next event."""
    done: list[Any] = []

    def execute(effect: RollBack) -> None:
        if effect.run == "b":  # type: ignore[comparison-overlap]
            raise ValueError("b failed")
        done.append(effect.run)

    async def body(dispatcher: Dispatcher, runs: _Runs) -> None:
        dispatcher.start({RollBack: execute})
        dispatcher.post(_event("abc"))
        dispatcher.post(_event("d"))
        assert done == ["a", "c", "d"]
        with pytest.raises(ValueError, match="b failed"):
            await dispatcher.failure()

    _driven(body)


def test_an_event_that_cannot_be_applied_is_a_failure() -> None:
    """Its error is not raised where the event was posted, and the next event is applied."""

    async def body(dispatcher: Dispatcher, runs: _Runs) -> None:
        await dispatcher.post_all([_event("broken"), _event("")])
        assert runs.applied == ["broken", ""]
        with pytest.raises(ValueError, match="broken"):
            await dispatcher.failure()

    _driven(body)


def test_what_is_posted_between_two_slices_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event is applied once, in the order of posting; an effect's events come before the next event."""
    monkeypatch.setattr("pyengine.core.worker.dispatcher._SLICE_S", 0.0)

    async def body(dispatcher: Dispatcher, runs: _Runs) -> None:
        dispatcher.start({RollBack: lambda effect: dispatcher.post(_event(""))})
        slices = asyncio.get_running_loop().create_task(
            dispatcher.post_all([_event("1"), _event("2"), _event("3")])
        )
        await asyncio.sleep(0)
        assert runs.applied == ["1", ""]
        dispatcher.post(_event("x"))
        assert runs.applied == ["1", ""]
        await slices
        assert runs.applied == ["1", "", "x", "2", "", "", "3", ""]
        dispatcher.post(_event(""))
        assert runs.applied[-1] == "" and len(runs.applied) == 9

    _driven(body)


def test_slices_that_are_cancelled_leave_their_queue_to_the_next_post(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that is let go of applies `Closed` at once, after what was posted before."""
    monkeypatch.setattr("pyengine.core.worker.dispatcher._SLICE_S", 0.0)

    async def body(dispatcher: Dispatcher, runs: _Runs) -> None:
        slices = asyncio.get_running_loop().create_task(dispatcher.post_all([_event(""), _event("")]))
        await asyncio.sleep(0)
        dispatcher.post(_event("1"))
        slices.cancel()
        await asyncio.gather(slices, return_exceptions=True)
        dispatcher.start({RollBack: lambda effect: None})
        dispatcher.post(_event("2"))
        assert runs.applied == ["", "1", "2"]

    _driven(body)


def test_a_closed_dispatcher_posts_nothing_that_waits_for_its_time() -> None:
    """Of two events that are to be posted later, one comes before the close and the other never."""

    async def body(dispatcher: Dispatcher, runs: _Runs) -> None:
        dispatcher.start({RollBack: lambda effect: None})
        for name, in_s in (("soon", 0.0), ("late", 0.05)):
            dispatcher.post_later(PostLater(_event(name), in_s))
        while not runs.applied:
            await asyncio.sleep(0)
        dispatcher.close()
        await asyncio.sleep(0.1)
        assert runs.applied == ["soon"]

    _driven(body)


app = App()


@app.step
async def one() -> int:
    """A step."""
    return 1


@app.workflow
async def single() -> int:
    """A run with one step."""
    return await one()


def test_an_unknown_error_stops_the_worker(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker raises it, and gives its leases back: another worker ends the run."""
    start = StepRunner.start

    def fail(runner: StepRunner, effect: Any) -> None:
        monkeypatch.setattr(StepRunner, "start", start)
        raise ZeroDivisionError("a fault")

    async def main() -> None:
        async with Client(dsn) as client:
            run = await client.start(single, id="fault")
            monkeypatch.setattr(StepRunner, "start", fail)
            async with Worker(app.registry, dsn) as worker:
                with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError, match="a fault"):
                    async with asyncio.timeout(20):
                        await worker.wait()
            async with Worker(app.registry, dsn):
                assert await run.result(timeout=20) == 1

    asyncio.run(main())
    assert "cannot go on" in caplog.text


def test_a_step_waits_for_a_thread_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system has no thread to give; a moment later it has, and every step that waits is executed."""
    monkeypatch.setattr(thread_pool, "_THREAD_AGAIN_S", 0.01)
    failures = [RuntimeError("can't start new thread")] * 2
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        start(thread)

    async def main() -> None:
        pool = ThreadPool(asyncio.get_running_loop(), 2)
        ended: asyncio.Queue[int] = asyncio.Queue()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for number in range(3):
            pool.submit(partial(int, number), lambda value, error: ended.put_nowait(value))
        async with asyncio.timeout(10):
            assert sorted([await ended.get() for _ in range(3)]) == [0, 1, 2]
        pool.close()

    asyncio.run(main())
    assert failures == [] and "no thread for a step" in caplog.text
