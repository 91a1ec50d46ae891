"""Starts of one client that come at the same time.

Lives here: `ConcurrentStarts`, which sends them together. May not: SQL, hints. Design: a start that finds no
other one under way goes alone, at once. Those that come meanwhile wait for it and go together, in one
statement for all that differ in their arguments only, which costs the server little more than one start. Only
runs with ids of their own are sent so: they meet no other run, so none waits for a lock or fails the others.
If a statement for many does not succeed, each goes alone and gets its own answer or error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pyengine.database.statements.procedures import StartRequest

__all__ = ["ConcurrentStarts"]

_RUNS_MAX = 100
_ARGS_MAX = 16_384
"""The largest arguments that are sent together with others, in characters."""


class _Waiter(NamedTuple):
    """A start that waits, and where its caller waits for the row."""

    request: StartRequest
    row: asyncio.Future[Any]


class ConcurrentStarts:
    """Sends starts alone or together.

    Args:
        alone: starts one run and returns its row of `START`.
        together: starts runs that differ in arguments and id only, or none of them; returns whether it did.
    """

    def __init__(
        self,
        alone: Callable[[StartRequest], Awaitable[Any]],
        together: Callable[[list[StartRequest]], Awaitable[bool]],
    ) -> None:
        self._alone = alone
        self._together = together
        self._is_busy = False
        # by what they have in common, the longest waiting first
        self._waiting: dict[StartRequest, list[_Waiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, request: StartRequest) -> Any:
        """Start a run and return its row of `START`.

        Args:
            request: a start that is `fresh`.

        Raises:
            EngineError: as `alone`.
        """
        if len(request.args) > _ARGS_MAX:
            return await self._alone(request)
        if self._is_busy:
            return await self._wait(request)
        self._is_busy = True
        try:
            return await self._alone(request)
        finally:
            self._send_next()

    async def close(self) -> None:
        """Wait for the starts that were taken."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _wait(self, request: StartRequest) -> Any:
        row = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(request._replace(args="", id=None), []).append(_Waiter(request, row))
        return await row

    def _send_next(self) -> None:
        """Send what waits, or nothing."""
        self._is_busy = bool(self._waiting)
        if not self._is_busy:
            return
        common = next(iter(self._waiting))
        waiting = self._waiting.pop(common)
        if len(waiting) > _RUNS_MAX:
            self._waiting[common] = waiting[_RUNS_MAX:]
        task = asyncio.create_task(self._send(waiting[:_RUNS_MAX]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, waiting: list[_Waiter]) -> None:
        try:
            # a caller that was cancelled while it waited wants no run
            waiting = [one for one in waiting if not one.row.done()]
            if len(waiting) > 1 and await self._has_sent([one.request for one in waiting]):
                for one in waiting:
                    _answer(one.row, {"id": one.request.id, "created": True, "handed_off": False})
            else:
                alone = (self._alone(one.request) for one in waiting)
                answers = await asyncio.gather(*alone, return_exceptions=True)
                for one, answer in zip(waiting, answers, strict=True):
                    _answer(one.row, answer)
        finally:
            self._send_next()

    async def _has_sent(self, requests: list[StartRequest]) -> bool:
        """Send starts together; return whether they were started."""
        # whatever goes wrong, each of them gets an error of its own alone
        (sent,) = await asyncio.gather(self._together(requests), return_exceptions=True)
        return sent is True


def _answer(row: asyncio.Future[Any], answer: Any) -> None:
    if row.done():
        return
    if isinstance(answer, BaseException):
        row.set_exception(answer)
    else:
        row.set_result(answer)
