"""Starts of one client that come at the same time.

Lives here: `ConcurrentStarts`, which sends them together. May not: SQL, hints. Design: starts are equal if
they differ in arguments and id only. One that finds no equal one under way goes alone, at once. Those that
come meanwhile wait for it and go together, in one statement, which costs the server little more than one
start. If that starts none of them, each goes alone and gets its own answer or error. A statement that is
slow, perhaps because its connection is dead, is waited for a moment only; then the next one goes beside it.
Only runs with random ids are sent so: none of them can meet a run that exists, and wait for its lock.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pyengine.core.database.statements.procedures import StartRequest
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.client")

_RUNS_MAX = 100
_ARGS_MAX = 16_384
"""The largest arguments that are sent together with others, in characters."""
_PATIENCE_S = 0.1
"""How long equal starts wait for a statement that is under way."""


class _Waiter(NamedTuple):
    """A start that waits, and the row for its caller."""

    request: StartRequest
    row: asyncio.Future[Any]


class _Statement:
    """A statement under way, and the starts that wait for it.

    Args:
        common: what its starts and theirs have in common.
        waiting: those that wait.

    Attributes:
        timer: ends the wait, if the statement has not ended by then.
    """

    timer: clock.Timer

    def __init__(self, common: StartRequest, waiting: list[_Waiter]) -> None:
        self.common = common
        self.waiting = waiting


class ConcurrentStarts:
    """Sends starts alone or together.

    Args:
        alone: starts one run and returns its row of `START`.
        together: starts runs that differ in arguments and id only, all or none; returns whether it did.
    """

    def __init__(
        self,
        alone: Callable[[StartRequest], Awaitable[Any]],
        together: Callable[[list[StartRequest]], Awaitable[bool]],
    ) -> None:
        self._alone = alone
        self._together = together
        # the newest statement under way, by what its starts have in common
        self._newest: dict[StartRequest, _Statement] = {}
        self._background = Background(_log)

    async def start(self, request: StartRequest) -> Any:
        """Start a run and return its row of `START`.

        Args:
            request: a start under a random id.

        Raises:
            EngineError: as `alone`.
        """
        is_service = ":" in request.workflow
        if is_service or len(request.args) > _ARGS_MAX:
            return await self._alone(request)
        common = request._replace(args="", id=None)
        if common in self._newest:
            row = asyncio.get_running_loop().create_future()
            self._newest[common].waiting.append(_Waiter(request, row))
            return await row
        statement = self._begin(common, [])
        try:
            return await self._alone(request)
        finally:
            self._stop_waiting(statement)

    def _begin(self, common: StartRequest, waiting: list[_Waiter]) -> _Statement:
        statement = self._newest[common] = _Statement(common, waiting)
        statement.timer = clock.call_later(_PATIENCE_S, self._stop_waiting, statement)
        return statement

    def _stop_waiting(self, statement: _Statement) -> None:
        """Send the starts that waited for a statement, because it has ended or is slow."""
        statement.timer.cancel()
        if self._newest.get(statement.common) is not statement:
            return
        # a caller that was cancelled while it waited wants no run
        waiting = [one for one in statement.waiting if not one.row.done()]
        if not waiting:
            del self._newest[statement.common]
            return
        following = self._begin(statement.common, waiting[_RUNS_MAX:])
        # what one caller has in its context does not concern the others
        self._background.start(self._send(following, waiting[:_RUNS_MAX]), context=contextvars.Context())

    async def _send(self, statement: _Statement, starts: list[_Waiter]) -> None:
        try:
            if len(starts) > 1 and await self._start_all([one.request for one in starts]):
                for one in starts:
                    _answer(one.row, {"id": one.request.id, "created": True, "handed_off": False})
            else:
                each = (self._alone(one.request) for one in starts)
                answers = await asyncio.gather(*each, return_exceptions=True)
                for one, answer in zip(starts, answers, strict=True):
                    _answer(one.row, answer)
        except Exception as error:  # boundary: the callers wait for it
            for one in starts:
                _answer(one.row, error)
        finally:
            for one in starts:
                one.row.cancel()
            self._stop_waiting(statement)

    async def _start_all(self, requests: list[StartRequest]) -> bool:
        try:
            return await self._together(requests)
        except EngineError as error:
            # alone each of them gets an error of its own, or none
            logger.debug("%s starts are sent one by one: %s", len(requests), error.message)
            return False


def _log(error: BaseException) -> None:
    logger.error("starts that went together have failed", exc_info=error)


def _answer(row: asyncio.Future[Any], answer: Any) -> None:
    if row.done():
        return
    if isinstance(answer, BaseException):
        row.set_exception(answer)
    else:
        row.set_result(answer)
