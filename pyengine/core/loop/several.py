"""The waits for several calls.

Lives here: `Gathering` (all of them), `First` (any), `CompletionIterator` (one after the other). May not:
journal rows, commands, a single call (awaitables.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import Context
from typing import Any, TypeAlias

from pyengine.core.loop.awaitables import Awaited, next_order
from pyengine.core.loop.event_loop import DeterministicLoop

Outcomes: TypeAlias = list[tuple[bool, Any]]
"""Of each call whether it failed, and its error or value."""


class WaitForSeveral(Awaited):
    """A wait for several calls."""

    __slots__ = ()
    kind = "wait"
    name: str = ""

    @property
    def references(self) -> int:
        """How many references the engine holds to it, beside the list of waits: one for each open member."""
        return 0

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Add a callback: code waits for it."""
        self.made_at = None
        super().add_done_callback(fn, context=context)

    @property
    def spelling(self) -> str:
        """The call as code spells it."""
        return f"ctx.{self.name}(...)"

    @property
    def mistake(self) -> str:
        """The sentence for code that used it without awaiting it."""
        return f"ctx.{self.name} was called and not awaited: write `await {self.spelling}`"


class Gathering(WaitForSeveral):
    """Done when every member is done; the database wakes the run once for all of them.

    Args:
        awaitables: the members.
        return_exceptions: errors are results.
        mapped: for `ctx.map`: the outcomes, where the members are lanes that make the calls; empty where they
            are the calls.
    """

    __slots__ = ("_cancelling", "_left", "_mapped", "_return_exceptions", "members", "name")

    def __init__(
        self,
        loop: DeterministicLoop,
        awaitables: Iterable[Awaitable[Any]],
        *,
        return_exceptions: bool,
        mapped: Outcomes | None = None,
    ) -> None:
        super().__init__(loop=loop)
        self.order = next_order(loop)
        self.name = "gather" if mapped is None else "map"
        self._mapped = mapped
        self._return_exceptions = return_exceptions
        self._cancelling = False
        self.members = _futures(loop, awaitables)
        self._left = len(self.members)
        for member in self.members:
            member.add_done_callback(self._member_done)
        if not self.members:
            self.set_result([])

    def _member_done(self, _: asyncio.Future[Any]) -> None:
        self._left -= 1
        if self._left or self.done():
            return
        if self._cancelling:
            super().cancel()
            return
        outcomes = self._mapped or [_outcome(member) for member in self.members]
        errors = [] if self._return_exceptions else [one for failed, one in outcomes if failed]
        if errors:
            self.set_exception(errors[0])
        else:
            self.set_result([one for _, one in outcomes])

    @property
    def references(self) -> int:
        """One for each open member, and that of the waits for all of several."""
        return 1 + self._left

    def cancel(self, msg: Any = None) -> bool:
        """Cancel every member; this future is cancelled when all of them are done."""
        if self.done():
            return False
        cancelled = [member.cancel(msg) for member in self.members]
        self._cancelling = self._cancelling or any(cancelled)
        return self._cancelling


class First(WaitForSeveral):
    """Done with (index, value) when one member is done; the others go on."""

    __slots__ = ("_members",)
    name = "first"

    def __init__(self, loop: DeterministicLoop, awaitables: Iterable[Awaitable[Any]]) -> None:
        super().__init__(loop=loop)
        self.order = next_order(loop)
        self._members = _futures(loop, awaitables)
        for member in self._members:
            member.add_done_callback(self._member_done)

    def _member_done(self, winner: asyncio.Future[Any]) -> None:
        self._leave()
        if self.done():
            return
        failed, outcome = _outcome(winner)
        if failed:
            self.set_exception(outcome)
        else:
            self.set_result((next(n for n, one in enumerate(self._members) if one is winner), outcome))

    @property
    def references(self) -> int:
        """One for each member."""
        return len(self._members)

    def _leave(self) -> None:
        for member in self._members:
            member.remove_done_callback(self._member_done)

    def cancel(self, msg: Any = None) -> bool:
        """Stop waiting; the members go on."""
        self._leave()
        return super().cancel(msg)


class CompletionIterator:
    """Iterates over awaitables of results, in the order in which they complete."""

    def __init__(self, loop: DeterministicLoop, awaitables: Iterable[Awaitable[Any]]) -> None:
        self._done: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        members = _futures(loop, awaitables)
        self._left = len(members)
        for member in members:
            member.add_done_callback(self._done.put_nowait)

    def __iter__(self) -> Iterator[Coroutine[Any, Any, Any]]:
        return self

    def __next__(self) -> Coroutine[Any, Any, Any]:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._next_result()

    async def _next_result(self) -> Any:
        return (await self._done.get()).result()


def _futures(loop: DeterministicLoop, awaitables: Iterable[Awaitable[Any]]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(one, loop=loop) for one in awaitables]


def _outcome(future: asyncio.Future[Any]) -> tuple[bool, Any]:
    """Return whether it failed, and its error or value."""
    if future.cancelled():
        return True, asyncio.CancelledError()
    error = future.exception()
    return (False, future.result()) if error is None else (True, error)
