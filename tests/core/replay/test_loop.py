"""Laws of the deterministic loop: asyncio's meaning, virtual time, and a worker's loop left as it was."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from pyengine.core.loop.event_loop import DeterministicLoop, loop_version
from pyengine.core.loop.futures import TimerToken
from pyengine.errors import ForbiddenInWorkflow
from tests.core.replay.loop_driver import Driver, MemoryTimers, traced

Program = Callable[[], Coroutine[Any, Any, Any]]


def outer_runners() -> list[Any]:
    """Every kind of loop that a worker may run on."""
    runners: list[Any] = [pytest.param(asyncio.run, id="asyncio")]
    with contextlib.suppress(ImportError):
        import uvloop

        runners.append(pytest.param(uvloop.run, id="uvloop"))
    return runners


# --- ready callbacks ----------------------------------------------------------------------------------------


def test_callbacks_run_first_in_first_out_until_quiet() -> None:
    """Callbacks run in the order they became ready, those they make after them, cancelled ones never."""
    driver, seen = traced()
    driver.loop.call_soon(lambda: driver.loop.call_soon(seen.append, 3))
    driver.loop.call_soon(seen.append, 1)
    driver.loop.call_soon(seen.append, 0).cancel()
    driver.loop.call_soon(seen.append, 2)
    assert driver.loop.ready
    driver.loop.run_until_idle()
    assert seen == [1, 2, 3]
    assert not driver.loop.ready


def test_a_blocked_task_shows_as_idle_and_pending() -> None:
    """A task that waits for something outside leaves the loop idle and itself among the pending tasks."""
    driver = Driver()
    task = driver.start(driver.step)
    assert not driver.loop.ready
    assert list(driver.loop.pending_tasks) == [task]
    driver.complete(0, "done")
    assert task.result() == "done"
    assert list(driver.loop.pending_tasks) == []
    driver.loop.close()


def test_a_waiting_task_outlives_the_garbage_collector() -> None:
    """A task that nobody holds a reference to is not collected while it waits."""
    driver, seen = traced()

    async def child() -> None:
        event = asyncio.Event()
        waiting = asyncio.ensure_future(event.wait())
        driver.loop.call_later(1, event.set)
        seen.append(await waiting)

    async def program() -> None:
        asyncio.create_task(child())  # noqa: RUF006
        await asyncio.sleep(0)

    driver.start(program)
    gc.collect()
    driver.fire_next()
    assert seen == [True]


def test_errors_of_unawaited_tasks_are_collected() -> None:
    """An error that no code receives is kept in unhandled, at the latest when the loop is closed."""
    driver = Driver()

    async def failing() -> None:
        raise ValueError("nobody looks")

    async def program() -> None:
        asyncio.create_task(failing())  # noqa: RUF006
        driver.loop.call_soon(lambda: 1 / 0)

    driver.run(program)
    driver.loop.close()
    gc.collect()
    assert [type(each.error) for each in driver.loop.unhandled] == [ZeroDivisionError, ValueError]


def test_task_names_do_not_depend_on_other_runs() -> None:
    """Default names of tasks count within the run, so that code which uses them replays."""

    async def program() -> list[str]:
        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
        tasks.append(asyncio.create_task(asyncio.sleep(0), name="mine"))
        await asyncio.gather(*tasks)
        return [task.get_name() for task in tasks]

    first, second = Driver().run(program), Driver("another").run(program)
    assert first == second
    assert first[-1] == "mine"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_a_task_may_start_eagerly() -> None:
    """A task with eager_start runs to its first wait while it is made, and then as any other."""
    driver, seen = traced()

    async def child() -> None:
        seen.append("child")
        seen.append(await driver.step())

    async def program() -> None:
        task = driver.loop.create_task(child(), eager_start=True)
        seen.append("main")
        await task

    driver.start(program)
    driver.complete(0, "step")
    assert seen == ["child", "main", "step"]


def test_a_busy_loop_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow that polls with sleep(0) for ever is refused instead of hanging its worker."""
    monkeypatch.setattr("pyengine.core.loop.event_loop._CALLBACKS_MAX", 1000)
    driver = Driver()

    async def program() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(ForbiddenInWorkflow, match=r"asyncio\.sleep\(0\)"):
        driver.start(program)
    driver.loop.evict()


# --- virtual time -------------------------------------------------------------------------------------------


def test_time_starts_at_zero_and_only_moves_forward() -> None:
    """Virtual time is 0.0 at the start, goes where it is advanced to, and never back."""
    loop = Driver().loop
    assert loop.time() == 0.0
    loop.advance_to(5.0)
    loop.advance_to(3.0)
    assert loop.time() == 5.0


def test_sleeps_and_timeouts_are_durable_timers() -> None:
    """sleep, timeout and wait_for schedule the delay that the code states, wherever the clock stands."""
    driver = Driver()

    async def program() -> None:
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await asyncio.sleep(0.2)
        await asyncio.wait_for(asyncio.sleep(0.3), 7)

    driver.run(program)
    assert driver.timers.delays_s[:2] == [0.1, 5.0]
    assert sorted(driver.timers.delays_s) == [0.1, 0.2, 0.3, 5.0, 7.0]
    assert len(driver.timers.cancelled) == 2
    assert driver.loop.time() == pytest.approx(0.6)


def test_no_timer_for_no_delay_and_none_for_ever() -> None:
    """sleep(0) and delays of 0 or less only yield; an infinite delay is no timer; NaN is refused."""
    driver, seen = traced()

    async def program() -> None:
        driver.loop.call_later(0, seen.append, "later")
        driver.loop.call_at(-1, seen.append, "at")
        seen.append("now")
        await asyncio.sleep(0)
        seen.append("after")
        driver.loop.call_later(math.inf, seen.append, "never").cancel()
        with pytest.raises(ValueError, match="NaN"):
            driver.loop.call_later(math.nan, seen.append, "never")

    driver.run(program)
    assert seen == ["now", "later", "at", "after"]
    assert driver.timers.delays_s == []


def test_a_cancelled_timer_is_cancelled_once() -> None:
    """Cancelling a handle tells Timers once, after it fired not at all, and a late firing finds nobody."""
    driver, seen = traced()
    first, second = driver.loop.call_later(1, seen.append, 1), driver.loop.call_later(2, seen.append, 2)
    assert driver.loop.pending_timers == (0, 1)
    first.cancel()
    first.cancel()
    assert driver.timers.cancelled == [0]
    assert driver.loop.fire(TimerToken(0)) is False
    driver.fire_next()
    second.cancel()
    assert seen == [2]
    assert driver.timers.cancelled == [0]


def test_a_timer_cancelled_between_firing_and_running_does_not_run() -> None:
    """A fired timer that an earlier callback cancels stays silent, as in asyncio."""
    driver, seen = traced()
    handles = [driver.loop.call_later(1, seen.append, 1)]
    driver.loop.call_soon(handles[0].cancel)
    driver.loop.fire(TimerToken(0))
    driver.loop.run_until_idle()
    assert seen == []
    assert driver.timers.cancelled == []


# --- the meaning of asyncio ---------------------------------------------------------------------------------


class SoonLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, whose clock goes on to the next timer once nothing else is to be done: however slow
    the machine is, timers fire one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            self._now_s += timeout or 0.0
            return select(None if timeout is None else 0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s


async def results_of_gather() -> Any:
    """Results in the order of the arguments, not of completion."""
    return await asyncio.gather(*(asyncio.sleep(delay, delay) for delay in (0.03, 0.01, 0.02)))


async def errors_of_a_group() -> Any:
    """A failing member cancels its siblings and leaves as an exception group."""
    seen = []

    async def sibling(name: str) -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            seen.append(name)
            raise

    async def failing() -> None:
        await asyncio.sleep(0.01)
        raise KeyError("first")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling("a"))
            group.create_task(failing())
            group.create_task(sibling("b"))
    except* KeyError as errors:
        seen.append(repr(errors.exceptions))
    task = asyncio.current_task()
    assert task is not None
    return sorted(seen), task.cancelling()


async def nested_timeouts() -> Any:
    """The inner timeout passes, the outer one cancels what is inside and turns into TimeoutError."""
    seen: list[Any] = []
    outer = asyncio.timeout(0.02)
    try:
        async with outer:
            try:
                async with asyncio.timeout(5):
                    await asyncio.sleep(1)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
    except TimeoutError:
        seen.append(outer.expired())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        seen.append("not reached")
    async with asyncio.timeout(0.01) as moved:
        moved.reschedule(None)
        await asyncio.sleep(0.02)
    return seen


async def shielded_work() -> Any:
    """A shield keeps the inner task alive when the outer await is cancelled."""
    inner = asyncio.create_task(asyncio.sleep(0.02, "inner"))
    outer = asyncio.ensure_future(asyncio.shield(inner))
    await asyncio.sleep(0)
    outer.cancel()
    cancelled = await asyncio.gather(outer, return_exceptions=True)
    return type(cancelled[0]).__name__, await inner


async def primitives() -> Any:
    """Event, Lock, Semaphore, Condition, Barrier and the queues pass values on in order."""
    lock, barrier, condition = asyncio.Lock(), asyncio.Barrier(2), asyncio.Condition()
    queue: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
    seen = []

    async def worker(number: int) -> None:
        async with lock:
            await asyncio.sleep(0.001)
            seen.append(number)
        await queue.put(-number)
        await barrier.wait()
        async with condition:
            condition.notify_all()

    workers = [asyncio.create_task(worker(number)) for number in range(4)]
    async with condition:
        await condition.wait()
    await asyncio.gather(*workers)
    return seen, [queue.get_nowait() for _ in workers]


async def context_of_tasks() -> Any:
    """A task has a copy of the context of its maker, and keeps its own changes."""
    variable: ContextVar[int] = ContextVar("variable")
    variable.set(1)

    async def child() -> int:
        before = variable.get()
        variable.set(2)
        await asyncio.sleep(0.001)
        return before * 10 + variable.get()

    return await asyncio.create_task(child()), variable.get()


async def first_completed() -> Any:
    """wait returns what is done and what is not; as_completed gives made tasks in order of completion."""
    tasks = [asyncio.create_task(asyncio.sleep(0.01 * n, n)) for n in (5, 1, 3)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return len(done), len(pending), [await each for each in asyncio.as_completed(tasks)]


@pytest.mark.parametrize(
    "program",
    [
        results_of_gather,
        errors_of_a_group,
        nested_timeouts,
        shielded_work,
        primitives,
        context_of_tasks,
        first_completed,
    ],
)
def test_a_program_means_what_it_means_in_asyncio(program: Program) -> None:
    """The loop gives the results that asyncio's own loop gives."""
    with asyncio.Runner(loop_factory=SoonLoop) as runner:
        assert Driver().run(program) == runner.run(program())


def test_an_async_generator_left_open_is_closed_inside_the_run() -> None:
    """Leaving an async for early closes the generator by a task of this loop, durable awaits included."""
    driver, seen = traced()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append(await driver.step())

    async def program() -> None:
        async for _ in numbers():
            break

    driver.start(program)
    driver.complete(0, "closed")
    assert seen == ["closed"]


def test_an_async_generator_freed_by_the_collector_does_not_run() -> None:
    """A generator that only the collector finds is reported, and runs no code at a moment of chance."""
    driver, seen = traced()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            seen.append("finally")

    async def program() -> None:
        cycle: list[Any] = [numbers()]
        cycle.append(cycle)
        await anext(cycle[0])

    driver.run(program)
    gc.collect()
    assert seen == []
    assert not driver.loop.ready
    assert "aclosing" in driver.loop.unhandled[0].message


def test_the_machine_cannot_be_driven_from_inside() -> None:
    """Workflow code can neither advance nor close the loop that runs it."""
    driver = Driver()

    async def program() -> list[str]:
        texts = []
        for call in (driver.loop.run_until_idle, driver.loop.evict):
            with pytest.raises(RuntimeError) as refused:
                call()
            texts.append(str(refused.value))
        with pytest.raises(RuntimeError, match="already"), driver.loop.installed:
            pass
        return texts

    advanced, closed = driver.run(program)
    assert "advanced from inside" in advanced
    assert "closed from inside" in closed


# --- the worker's own loop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", outer_runners())
@pytest.mark.parametrize("failure", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_outer_loop_is_left_as_it_was(
    run: Callable[..., Any], failure: type[BaseException] | None
) -> None:
    """Whatever workflow code raises, the worker's loop, task, generator hooks and collector are as before."""

    async def outer() -> None:
        loop, task, hooks = asyncio.get_running_loop(), asyncio.current_task(), sys.get_asyncgen_hooks()
        driver = Driver()

        async def program() -> None:
            assert asyncio.get_running_loop() is driver.loop
            assert asyncio.current_task() is inner
            assert asyncio.all_tasks() == {inner}
            assert driver.loop.is_running()
            assert not gc.isenabled()
            if failure is not None:
                raise failure

        inner = driver.loop.create_task(program())
        fatal = failure is not None and not issubclass(failure, Exception)
        with pytest.raises(failure) if failure and fatal else contextlib.nullcontext():
            driver.loop.run_until_idle()
        assert failure is None or isinstance(inner.exception(), failure)
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task() is task
        assert task in asyncio.all_tasks()
        assert inner not in asyncio.all_tasks()
        assert sys.get_asyncgen_hooks() == hooks
        assert gc.isenabled()
        assert not driver.loop.is_running()
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await asyncio.create_task(asyncio.sleep(0, "alive")) == "alive"
        driver.loop.close()

    run(outer())


@pytest.mark.parametrize("run", outer_runners())
def test_many_advances_share_one_installation(run: Callable[..., Any]) -> None:
    """Inside installed() each advance does the same as outside, and the outer loop returns at its end."""

    async def outer() -> None:
        task = asyncio.current_task()
        driver = Driver()

        async def program() -> int:
            return sum([await driver.step() for _ in range(10)])

        inner = driver.start(program)
        with driver.loop.installed:
            for number in range(10):
                driver.complete(number, number)
        assert inner.result() == 45
        assert asyncio.current_task() is task
        await asyncio.sleep(0)

    run(outer())


def test_an_interrupt_leaves_other_callbacks_ready() -> None:
    """After KeyboardInterrupt out of one task, the next advance goes on with the other callbacks."""
    driver, seen = traced()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    task = driver.loop.create_task(interrupted())
    driver.loop.call_soon(seen.append, "rest")
    with pytest.raises(KeyboardInterrupt):
        driver.loop.run_until_idle()
    assert isinstance(task.exception(), KeyboardInterrupt)
    driver.loop.run_until_idle()
    assert seen == ["rest"]


def test_the_collector_stays_off_if_it_was_off() -> None:
    """A worker that has switched the garbage collector off finds it off."""
    gc.disable()
    try:
        Driver().start(lambda: asyncio.sleep(0))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_runs_hash_apart_and_alike() -> None:
    """Tasks of one run hash the same at every replay, and those of two runs do not."""

    def hashes(name: str) -> list[int]:
        loop = DeterministicLoop(MemoryTimers(), name)
        return [hash(loop.create_future()) for _ in range(3)] + [hash(loop.new_future())]

    assert hashes("run-1") == hashes("run-1")
    assert not set(hashes("run-1")) & set(hashes("run-2"))
    assert loop_version == "1"
