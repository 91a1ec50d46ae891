"""Tasks that go on beside whoever began them.

Lives here: `Background`, the supervised set in which each of them is, and `Block`, which fails with one. May
not: what an error means, which the owner says; tasks of workflows (`loop`). Design: nobody awaits such a
task, so its death would be unseen, and what waits for its work would wait for ever. So no task is begun
elsewhere unless it is awaited there (`tests/style/test_background.py`), and its error goes to the owner: it
ends the process with a sentence, fails the block of a worker, or fails the futures that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """A set of tasks.

    Args:
        failed: called with the error of a task that has failed.
    """

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, body: Coroutine[Any, Any, T], *, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """Begin a task.

        Args:
            body: what it does.
            context: its variables; None means those of the caller.
        """
        task = asyncio.get_running_loop().create_task(body, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def ended(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        self.stop()
        await self.ended()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


class Block:
    """The `async with` block around something that may fail meanwhile; then the block fails, as one of
    `asyncio.timeout` does. Made by the task that enters the block.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._error: BaseException | None = None
        self._waits = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave the block alone while it waits itself for what may fail."""
        before, self._waits = self._waits, asyncio.current_task() is self._task
        try:
            yield
        finally:
            self._waits = before

    def fail(self, error: BaseException) -> None:
        """Interrupt the block at its `await`."""
        if self._task is not None and self._error is None and not self._waits:
            self._error = error
            self._task.cancel()

    async def leave(self, error: BaseException | None) -> None:
        """End the block, which ended with this error or without one.

        Raises:
            BaseException: what failed meanwhile, unless the block has another error.
        """
        task, self._task = self._task, None
        if task is None or self._error is None:
            return
        if not isinstance(error, asyncio.CancelledError):
            # the interruption may still be on its way
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        is_ours = task.uncancel() <= self._cancelling
        if is_ours and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._error
