"""A process that the database knows: it says hello at its start, and goodbye at its end.

Lives here: `Registered`, from which workers of runs and of adapters are made, and the order of the two. May
not: the signs of life in between (worker/lease_heartbeat.py). Design: the server goes on with a statement
whose client is gone. A hello that is cut off would register the process again behind its goodbye, so it is
waited for, in bounded time. At the end each part has its own time: one that fails, or gets no answer, does
not keep the goodbye back, which alone gives back all that is leased.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import BYE
from pyengine.core.process import clock
from pyengine.core.process.process import Process
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.worker")

T = TypeVar("T")

# a statement that is under way when its process stops; the server may go on with one that is cut off
STATEMENT_ENDS_S = 0.8
_HELLO_ENDS_S = 0.3
_START_GIVEN_UP_S = 0.5
_LAST_S = 2.0


class Registered(Process):
    """A worker that has a row in the database."""

    async def _register(self, link: ConnectionPool, hello: Coroutine[Any, Any, T]) -> T:
        """Say hello, and return the answer; a start that is given up meanwhile takes it back.

        Raises:
            EngineError: it failed; the connections are closed.
        """
        registering = asyncio.ensure_future(hello)
        try:
            return await asyncio.shield(registering)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                await clock.wait((registering,), _HELLO_ENDS_S)
                registering.cancel()
                with contextlib.suppress(EngineError, TimeoutError):
                    async with clock.timeout(_START_GIVEN_UP_S):
                        await link.run(BYE, self.id)
            await link.close()
            raise

    async def _at_last(self, part: Awaitable[object]) -> None:
        """Do a part of the end, if the database is available."""
        try:
            async with clock.timeout(_LAST_S):
                await part
        except (EngineError, TimeoutError) as error:
            reason = str(error) or "no answer"
            logger.warning("worker %s may leave work behind, whose leases run out: %s", self.id, reason)
