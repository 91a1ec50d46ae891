"""Laws of eviction: finally blocks run, nothing hangs, nothing is printed, whatever workflow code does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyengine.errors import Evicted
from tests.core.replay.loop_driver import Driver, traced

Program = Callable[[Driver, list[Any]], Coroutine[Any, Any, Any]]

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """What was there before these tests is not looked through after each of them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if anything is warned, logged or unraisable until all garbage is collected."""
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: unraisable.append(repr(each.exc_value)))
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        yield
        gc.collect()
    texts = [str(each.message) for each in warned if "ResourceWarning" not in str(each.category)]
    assert (unraisable, texts, caplog.messages) == ([], [], [])


def evicted(program: Program) -> tuple[Driver, list[Any]]:
    """Run a program until it blocks, evict it, and return what it traced."""
    driver, trace = traced()
    driver.start(lambda: program(driver, trace))
    scheduled = len(driver.timers.delays_s)
    driver.loop.evict()
    assert driver.loop.closing
    assert driver.loop.is_closed()
    assert not driver.loop.ready
    assert len(driver.timers.delays_s) == scheduled
    assert driver.timers.cancelled == []
    driver.calls.clear()
    return driver, trace


async def waiter(driver: Driver, trace: list[Any], name: str) -> None:
    """Wait for a durable call, and tell what came instead."""
    try:
        await driver.step()
    except BaseException as error:
        trace.append((name, type(error).__name__))
        raise
    finally:
        trace.append((name, driver.loop.closing))


async def in_a_step(driver: Driver, trace: list[Any]) -> None:
    """One durable call."""
    await waiter(driver, trace, "main")


async def in_children(driver: Driver, trace: list[Any]) -> None:
    """A task that waits for a task that waits for a durable call."""
    try:
        await asyncio.create_task(waiter(driver, trace, "child"))
    except BaseException as error:
        trace.append(type(error).__name__)
        raise


async def in_a_gather(driver: Driver, trace: list[Any]) -> None:
    """Branches of a gather."""
    try:
        await asyncio.gather(*(waiter(driver, trace, str(number)) for number in range(3)))
    finally:
        trace.append("left")


async def in_a_group_body(driver: Driver, trace: list[Any]) -> None:
    """A TaskGroup whose body waits as its members do."""
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(in_children(driver, trace), name=str(number))
            await waiter(driver, trace, "body")
    finally:
        trace.append("left")


async def in_a_group_exit(driver: Driver, trace: list[Any]) -> None:
    """A TaskGroup that waits for its members at its end."""
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(waiter(driver, trace, str(number)))
    finally:
        trace.append("left")


async def in_a_timeout(driver: Driver, trace: list[Any]) -> None:
    """Timeouts around a sleep and a wait_for."""
    try:
        async with asyncio.timeout(5):
            await asyncio.wait_for(waiter(driver, trace, "inner"), 3)
    finally:
        trace.append("left")


async def in_primitives(driver: Driver, trace: list[Any]) -> None:
    """Locks, queues, conditions, waits and shields that are waited for."""
    lock, queue, condition = asyncio.Lock(), asyncio.Queue[int](), asyncio.Condition()
    tasks: list[asyncio.Future[Any]]

    async def locked() -> None:
        async with lock:
            await waiter(driver, trace, "lock")

    async def conditional() -> None:
        async with condition:
            await condition.wait()

    tasks = [asyncio.create_task(locked()) for _ in range(3)]
    tasks += [asyncio.create_task(conditional()) for _ in range(3)]
    tasks += [asyncio.create_task(queue.get()), asyncio.ensure_future(asyncio.Event().wait())]
    tasks += [asyncio.ensure_future(asyncio.shield(asyncio.sleep(1))), asyncio.create_task(asyncio.sleep(9))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=7)
    finally:
        trace.append("left")


WAITERS = (in_a_step, in_children, in_a_gather, in_a_group_body, in_a_group_exit, in_a_timeout, in_primitives)


@pytest.mark.parametrize("program", WAITERS)
def test_each_wait_ends_with_evicted(program: Program) -> None:
    """Wherever code waits it sees Evicted, never a cancellation, with closing set, and unwinds."""
    _, trace = evicted(program)
    assert trace
    assert {each for each in trace if isinstance(each, str)} <= {"Evicted", "left"}
    pairs = {each[1] for each in trace if isinstance(each, tuple)}
    assert pairs <= {"Evicted", True}
    assert "Evicted" in pairs


def test_children_unwind_before_their_parents() -> None:
    """The newest task is thrown away first, so that a parent finds its children done."""
    _, trace = evicted(in_children)
    assert trace == [("child", "Evicted"), ("child", True), "Evicted"]


async def swallowing_all(driver: Driver, trace: list[Any]) -> None:
    """Retries for ever around a bare except."""
    while True:
        try:
            await driver.step()
        except BaseException:
            trace.append("swallowed")


async def swallowing_sleep(driver: Driver, trace: list[Any]) -> None:
    """Sleeps for ever around a bare except, inside a timeout."""
    while True:
        with contextlib.suppress(BaseException):
            async with asyncio.timeout(1):
                trace.append("swallowed")
                await asyncio.sleep(1)


async def swallowing_now(driver: Driver, trace: list[Any]) -> None:
    """Asks for a value that needs no waiting, for ever around a bare except."""
    while True:
        with contextlib.suppress(BaseException):
            if driver.loop.closing:
                trace.append("swallowed")
                driver.loop.raise_evicted()
            await driver.step()


async def swallowing_busily(driver: Driver, trace: list[Any]) -> None:
    """Goes round sleep(0) for ever once it has swallowed the eviction."""
    try:
        await driver.step()
    except BaseException:
        while True:
            trace.append("swallowed")
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0)


async def swallowing_once(driver: Driver, trace: list[Any]) -> None:
    """Takes the eviction for an answer and goes on."""
    with contextlib.suppress(BaseException):
        await driver.step()
    trace.append("went on")
    await driver.step()
    trace.append("not reached")


@pytest.mark.parametrize("program", [swallowing_all, swallowing_sleep, swallowing_now, swallowing_busily])
def test_code_that_swallows_everything_is_left_in_memory(program: Program) -> None:
    """Code that swallows Evicted for ever gets it a bounded number of times and is then left alone."""
    driver, trace = evicted(program)
    assert 1 <= trace.count("swallowed") < 100_000
    assert [program.__name__ in each.message for each in driver.loop.unhandled] == [True]


def test_code_that_swallows_once_meets_it_again() -> None:
    """The next durable call after a swallowed Evicted raises it again."""
    _, trace = evicted(swallowing_once)
    assert trace == ["went on"]


def test_timers_of_dead_code_block_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is dead although its loop is open gets Evicted from its timers, and in the end a wait."""
    driver, trace = traced()
    driver.start(lambda: swallowing_sleep(driver, trace))

    def refuse(delay_s: float) -> Any:
        raise Evicted

    monkeypatch.setattr(driver.timers, "schedule", refuse)
    driver.fire_next()
    assert 1 < len(trace) < 1000
    driver.loop.evict()


async def awaiting_in_finally(driver: Driver, trace: list[Any]) -> None:
    """Cleans up with durable calls, sleeps, locks and a timeout, none of which can happen any more."""
    lock = asyncio.Lock()
    try:
        await driver.step()
    finally:
        for clean_up in (driver.step, lambda: asyncio.sleep(5), asyncio.Event().wait, lock.acquire):
            try:
                async with asyncio.timeout(3):
                    await clean_up()
            except Evicted:
                trace.append("dead")
            else:
                trace.append("done")


async def spawning_in_finally(driver: Driver, trace: list[Any]) -> None:
    """Starts tasks while closing: alone, in a gather, in a group."""

    async def child() -> None:
        trace.append("ran")

    try:
        await driver.step()
    finally:
        asyncio.create_task(child())  # noqa: RUF006
        try:
            await asyncio.gather(child(), child())
        except Evicted:
            trace.append("gather")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
        except Evicted:
            trace.append("group")


async def raising_in_finally(driver: Driver, trace: list[Any]) -> None:
    """Hides the eviction behind an error of its own, in the main task and in another."""

    async def child() -> None:
        try:
            await driver.step()
        finally:
            raise ValueError("child")

    asyncio.create_task(child())  # noqa: RUF006
    try:
        await driver.step()
    except BaseException as error:
        raise ValueError("main") from error


async def leaving_generators(driver: Driver, trace: list[Any]) -> None:
    """Holds an async generator open whose finally awaits."""

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            trace.append(name)
            await driver.step()

    held = numbers("held")
    await anext(held)
    async for _ in numbers("looped"):
        await driver.step()


def test_a_finally_block_may_await_in_vain() -> None:
    """Awaits in finally blocks raise Evicted one after the other; what needs no waiting works."""
    _, trace = evicted(awaiting_in_finally)
    assert trace == ["dead", "dead", "dead", "done"]


def test_tasks_started_while_closing_do_not_run() -> None:
    """A task made while closing runs none of its code, and who awaits it gets Evicted."""
    _, trace = evicted(spawning_in_finally)
    assert trace == ["gather", "group"]


def test_errors_during_eviction_are_not_reported() -> None:
    """Errors that code raises while it unwinds are neither reported nor printed."""
    driver, _ = evicted(raising_in_finally)
    assert driver.loop.unhandled == []


def test_async_generators_run_their_finally_blocks() -> None:
    """Generators that are held open are closed by the eviction."""
    _, trace = evicted(leaving_generators)
    assert sorted(trace) == ["held", "looped"]


def test_a_task_that_never_ran_never_runs() -> None:
    """A run evicted before its first advance executes no line of its code."""
    driver, trace = traced()
    task = driver.loop.create_task(swallowing_all(driver, trace))
    driver.loop.evict()
    assert task.cancelled()
    assert trace == []


def test_ready_work_is_dead_too() -> None:
    """A result that was set but not yet delivered reaches its code, whose next call is dead."""
    driver, trace = traced()

    async def program() -> None:
        trace.append(await driver.step())
        await asyncio.sleep(0)
        try:
            await driver.step()
        except Evicted:
            trace.append("evicted")

    driver.start(program)
    driver.calls.pop(0).set_result("late")
    driver.loop.evict()
    assert trace == ["late", "evicted"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_after_all_is_closed(interrupt: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit out of a finally block are raised once everything has been unwound."""

    async def outer() -> None:
        driver, trace = traced()

        async def interrupted() -> None:
            try:
                await driver.step()
            finally:
                raise interrupt

        async def program() -> None:
            tasks = [asyncio.create_task(interrupted()) for _ in range(2)]
            tasks.append(asyncio.create_task(waiter(driver, trace, "other")))
            await asyncio.wait(tasks)

        driver.start(program)
        task = asyncio.current_task()
        with pytest.raises(interrupt):
            driver.loop.evict()
        assert ("other", True) in trace
        assert driver.loop.is_closed()
        assert asyncio.current_task() is task
        await asyncio.sleep(0)

    asyncio.run(outer())


def test_a_closed_loop_ignores_what_comes_late() -> None:
    """After eviction a late result, timer or second eviction does nothing."""
    driver, trace = traced()
    driver.start(lambda: in_a_timeout(driver, trace))
    call, due = driver.calls[0], list(driver.timers.due_s)
    driver.loop.evict()
    length = len(trace)
    if not call.done():
        call.set_result("late")
    driver.loop.call_soon(trace.append, "late")
    driver.loop.call_later(1, trace.append, "late")
    assert not any(driver.loop.fire(token) for token in due)
    driver.loop.run_until_idle()
    driver.loop.evict()
    driver.loop.close()
    assert len(trace) == length


def test_a_finished_run_closes_what_it_left_behind() -> None:
    """Closing after the main task is done evicts background tasks and keeps their siblings' errors."""
    driver, trace = traced()

    async def failing() -> None:
        raise ValueError("background")

    async def program() -> str:
        asyncio.create_task(waiter(driver, trace, "background"))  # noqa: RUF006
        asyncio.create_task(failing())  # noqa: RUF006
        await asyncio.sleep(0)
        return "done"

    assert driver.run(program) == "done"
    driver.loop.close()
    assert trace == [("background", "Evicted"), ("background", True)]
    assert [str(each.error) for each in driver.loop.unhandled] == ["background"]


def test_many_tasks_are_evicted_together() -> None:
    """Two thousand waiting tasks unwind in one eviction."""

    async def program(driver: Driver, trace: list[Any]) -> None:
        await asyncio.gather(*(waiter(driver, trace, "task") for _ in range(2000)))

    _, trace = evicted(program)
    assert len(trace) == 4000


def test_the_process_ends_in_silence() -> None:
    """A process that evicted all kinds of workflows and drops everything prints nothing, up to its end."""
    names = [program.__name__ for program in WAITERS]
    names += ["awaiting_in_finally", "spawning_in_finally", "raising_in_finally", "leaving_generators"]
    names += ["swallowing_all", "swallowing_sleep", "swallowing_now", "swallowing_busily", "swallowing_once"]
    script = "from tests.core.replay import test_loop_evict as t\n"
    script += f"for name in {names!r}: t.evicted(getattr(t, name))"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "always", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
