"""The part that all workers have in common: their block, their failure, who waits for them.

Lives here: `Process`, from which workers of runs and of adapters are made. May not: what they do, how they
stop. Design: a part that nothing works without must not fail unseen. Its error is logged once, stops the
worker, fails the block in which it runs, and is raised to whoever waits; so `pyengine worker` ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pyengine.core.process.background import Background, Block

logger = logging.getLogger("pyengine.worker")


class Process(ABC):
    """A worker.

    Attributes:
        id: its id.
        stalled: called, in another thread, when its loop has stood still for too long; None fails it as soon
            as the loop turns again.
        stop_asked: to be called, in any thread, when a stop is on its way.
    """

    stalled: Callable[[BaseException], None] | None = None
    stop_asked: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        # what has started: without one of them nothing works
        self._tasks: list[asyncio.Task[None]] = []
        self._background = Background(self.fail)
        self._ending = Background(self._end_failed)
        self._block: Block | None = None
        self._failed: BaseException | None = None
        self._stopping = False

    async def __aenter__(self) -> Self:
        await self.start()
        self._block = Block()
        if self._failed is not None:
            self._block.fail(self._failed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
            await self._ending.ended()
        finally:
            if self._block is not None:
                await self._block.leave(error)

    @abstractmethod
    async def start(self) -> None:
        """Say hello and begin to work."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop in an orderly way."""

    async def wait(self) -> None:
        """Return when the worker has stopped.

        Raises:
            BaseException: what ended one of its parts, if it did not stop in an orderly way.
        """
        if self._tasks:
            with self._block.waiting() if self._block is not None else contextlib.nullcontext():
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._failed is not None:
            raise self._failed

    def fail(self, error: BaseException) -> None:
        """Stop because of an error: log it, let whoever waits see it, and fail the block of this worker."""
        if self._stopping or self._failed is not None:
            logger.error("one more error while worker %s stops", self.id, exc_info=error)
            return
        logger.error("worker %s cannot go on; it stops", self.id, exc_info=error)
        self._failed = error
        self._ending.start(self.stop())
        if self._block is not None:
            self._block.fail(error)

    def _end_failed(self, error: BaseException) -> None:
        logger.error("worker %s did not stop in an orderly way", self.id, exc_info=error)
