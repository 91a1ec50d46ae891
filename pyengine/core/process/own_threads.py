"""Threads for calls of ours that block.

Lives here: `in_a_thread`, and `resolve_in_threads`, which gives a loop such threads for names of hosts. May
not: functions of users (thread_pool.py). Design: the default executor of a loop is for its program, whose
threads may all hang. Then names would not be resolved any more, a lost connection would not come back, and an
end would wait. So each call has a thread, which is a daemon: nobody waits for a thread that hangs. asyncio
looks names up in the default executor, on behalf of every driver; so a loop of asyncio gets another look-up,
unless its program has one. uvloop has threads of its own for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LOOKUPS = 32


async def in_a_thread(body: Callable[..., T], *args: Any) -> T:
    """Call a function in a thread of its own, and return what it returns or raise what it raises.

    A caller that is cancelled leaves the thread behind.
    """
    return await asyncio.shield(_begun(functools.partial(body, *args)))


def resolve_in_threads(loop: asyncio.AbstractEventLoop, most: int = _LOOKUPS) -> None:
    """Let a loop of asyncio look up names of hosts in threads of ours; once for each loop.

    Args:
        loop: the loop.
        most: look-ups at a time; one that hangs counts until it ends.
    """
    if getattr(loop.getaddrinfo, "__func__", None) is not asyncio.BaseEventLoop.getaddrinfo:
        return
    room = asyncio.Semaphore(most)

    async def getaddrinfo(
        host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        await room.acquire()
        found = _begun(functools.partial(socket.getaddrinfo, host, port, family, type, proto, flags))
        found.add_done_callback(lambda _: room.release())
        return await asyncio.shield(found)

    loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign]


def _begun(body: Callable[[], T]) -> asyncio.Future[T]:
    """Begin a call in a thread; the outcome is forgotten if its loop has been closed."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            tell = functools.partial(outcome.set_result, context.run(body))
        except BaseException as error:  # boundary of the thread: whoever awaits it gets it
            tell = functools.partial(outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=call, name="pyengine-call", daemon=True).start()
    return outcome
