"""Laws of what workflow code may not call: each refusal names the call and the way that works."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.loop.restrictions import asyncio_hint
from pyengine.errors import ForbiddenInWorkflow
from tests.core.replay.loop_driver import Driver, traced

Program = Callable[[], Coroutine[Any, Any, Any]]


async def in_a_thread() -> None:
    """Threads."""
    await asyncio.to_thread(print)


async def from_a_thread() -> None:
    """Futures of threads."""
    await asyncio.wrap_future(concurrent.futures.Future())


async def over_a_socket() -> None:
    """Connections."""
    await asyncio.open_connection("localhost", 1)


async def with_a_socket() -> None:
    """Bare sockets."""
    with socket.socket() as plain:
        await asyncio.get_running_loop().sock_connect(plain, ("localhost", 1))


async def as_a_process() -> None:
    """Subprocesses."""
    await asyncio.create_subprocess_exec("true")


async def on_a_signal() -> None:
    """Signals to the process."""
    asyncio.get_running_loop().add_signal_handler(15, print)


async def in_this_loop_again() -> None:
    """The loop driven by its own code."""
    asyncio.get_running_loop().run_until_complete(over_a_socket())


async def in_order_of_address() -> None:
    """Coroutines in a plain set."""
    for each in asyncio.as_completed([asyncio.sleep(1), asyncio.sleep(2)]):
        await each


async def in_order_of_address_twice() -> None:
    """Futures that hash by address in a plain set."""
    await asyncio.wait([asyncio.gather(asyncio.sleep(0)), asyncio.gather(asyncio.sleep(0))])


@pytest.mark.parametrize(
    ("program", "called", "instead"),
    [
        (in_a_thread, "asyncio.to_thread()", "plain `def` step"),
        (from_a_thread, "asyncio.wrap_future()", "a step"),
        (over_a_socket, "loop.create_connection()", "`async def` step"),
        (with_a_socket, "loop.sock_connect()", "a step"),
        (as_a_process, "loop.subprocess_exec()", "a step"),
        (on_a_signal, "loop.add_signal_handler()", "ctx.promise()"),
        (in_this_loop_again, "loop.run_until_complete()", "await"),
        (in_order_of_address, "asyncio.as_completed()", "ctx.as_completed()"),
        (in_order_of_address_twice, "asyncio.wait()", "asyncio.create_task()"),
    ],
)
def test_the_outside_world_is_refused(program: Program, called: str, instead: str) -> None:
    """A refusal names the call, the run, and what to use instead, and leaves no warning behind."""
    driver = Driver("run-of-the-mill")
    with pytest.raises(ForbiddenInWorkflow, match="run-of-the-mill") as refused:
        driver.run(program)
    assert called in refused.value.message
    assert instead in str(refused.value.hint)
    driver.loop.close()
    gc.collect()


def test_every_method_of_an_event_loop_is_answered() -> None:
    """Each public method that asyncio knows is either implemented or refused, on every Python."""
    missing = [
        name
        for name in dir(asyncio.AbstractEventLoop)
        if not name.startswith("_")
        and getattr(DeterministicLoop, name) is getattr(asyncio.AbstractEventLoop, name)
    ]
    assert missing == []


def test_another_thread_is_refused() -> None:
    """call_soon_threadsafe raises in the thread that calls it, and makes nothing ready."""
    driver, seen = traced()

    def call() -> None:
        try:
            driver.loop.call_soon_threadsafe(print)
        except ForbiddenInWorkflow as error:
            seen.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert not driver.loop.ready


def test_a_second_loop_inside_is_refused_and_explained() -> None:
    """asyncio refuses a loop inside the loop by itself; the hint for it says what to do instead."""

    async def program() -> None:
        second = asyncio.new_event_loop()
        main = asyncio.sleep(0)
        try:
            second.run_until_complete(main)
        finally:
            main.close()
            second.close()

    async def simple() -> None:
        main = asyncio.sleep(0)
        try:
            asyncio.run(main)
        finally:
            main.close()

    for each in (program, simple):
        with pytest.raises(RuntimeError) as refused:
            Driver().run(each)
        assert "await the coroutine" in str(asyncio_hint(refused.value))
    assert asyncio_hint(ValueError("cannot be called from a running event loop")) is None


def test_a_future_of_another_loop_is_refused() -> None:
    """Workflow code that waits for a future of the worker's loop gets an error, never its value."""

    async def outer() -> None:
        foreign = asyncio.get_running_loop().create_future()

        async def program() -> None:
            await foreign

        with pytest.raises(RuntimeError, match="different loop"):
            Driver().run(program)

    asyncio.run(outer())
