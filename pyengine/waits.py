"""The futures that workflow code awaits.

What lives here: `Call`, the pending side of one durable call, and the two waits that tell the database more
than asyncio could: `Gathering` (all of these) and `First` (any of these). What may not: journal rows, acts. A
`Call` is a future and a coroutine at once, so that a step reads like the async function it wraps: it can be
awaited, gathered, or given to `create_task`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, TypeAlias, cast

from pyengine.codec import TypeCodec
from pyengine.loop import DeterministicFuture, DeterministicLoop

__all__ = ["Call", "CallKind", "Completed", "First", "Gathering"]

CallKind: TypeAlias = Literal["step", "child run", "promise", "timer"]


class Call(DeterministicFuture):
    """The pending side of one durable call.

    Attributes:
        child: child number.
        kind: what was called.
        name: step, workflow or promise name.
        codec: reads the recorded result.
        noted: for a step: called with the child number when the call is given up.
    """

    __slots__ = ("_steps", "child", "codec", "kind", "name", "noted")
    child: int
    codec: TypeCodec
    kind: CallKind
    name: str
    noted: Callable[[int], object]
    _steps: Generator[Any, Any, Any]

    # the coroutine side, for create_task and TaskGroup
    def send(self, value: Any, /) -> Any:
        """Advance, as a coroutine does."""
        try:
            steps = self._steps
        except AttributeError:
            steps = self._steps = self.__await__()
        return steps.send(value)

    def throw(
        self,
        kind: Any,
        value: Any = None,
        trace: TracebackType | None = None,
        /,
    ) -> Any:
        """Raise at the point of waiting, as a coroutine does."""
        try:
            steps = self._steps
        except AttributeError:
            steps = self._steps = self.__await__()
        return steps.throw(kind if value is None else value)

    def close(self) -> None:
        """Do nothing: a call is not undone by not waiting for it."""

    def cancel(self, msg: Any = None) -> bool:
        """Give the call up: its completion will be ignored."""
        given_up = super().cancel(msg)
        if given_up and self.kind == "step":
            self.noted(self.child)
        return given_up

    @property
    def id(self) -> str:
        """Id of what is waited for: run id, dot, child number."""
        return f"{cast('DeterministicLoop', self.get_loop()).origin_name}.{self.child}"

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for it: a task, a gather, a callback."""
        return bool(self._callbacks)

    def fail(self, error: BaseException) -> None:
        """Complete with an error; nobody is blamed for not looking at it, the journal holds it."""
        self.set_exception(error)
        self._log_traceback = False


Coroutine.register(Call)


class Gathering(DeterministicFuture):
    """Done when every member is done; the database wakes the run once for all of them."""

    __slots__ = ("_cancelling", "_left", "_return_exceptions", "members")

    def __init__(
        self, loop: DeterministicLoop, awaitables: Iterable[Awaitable[Any]], *, return_exceptions: bool
    ) -> None:
        super().__init__(loop=loop)
        self.order = place_in_sets(loop)
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
        outcomes = [_outcome(member) for member in self.members]
        errors = [] if self._return_exceptions else [one for failed, one in outcomes if failed]
        if errors:
            self.set_exception(errors[0])
        else:
            self.set_result([one for _, one in outcomes])

    def cancel(self, msg: Any = None) -> bool:
        """Give up every member; cancelled when they are all done."""
        if self.done():
            return False
        asked = [member.cancel(msg) for member in self.members]
        self._cancelling = self._cancelling or any(asked)
        return self._cancelling


class First(DeterministicFuture):
    """Done with (index, value) when one member is done; the others go on."""

    __slots__ = ("_members",)

    def __init__(self, loop: DeterministicLoop, awaitables: Iterable[Awaitable[Any]]) -> None:
        super().__init__(loop=loop)
        self.order = place_in_sets(loop)
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

    def _leave(self) -> None:
        for member in self._members:
            member.remove_done_callback(self._member_done)

    def cancel(self, msg: Any = None) -> bool:
        """Stop waiting; the members go on."""
        self._leave()
        return super().cancel(msg)


class Completed:
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


def place_in_sets(loop: DeterministicLoop) -> int:
    """Return a number for the place in a set, the same at every replay."""
    return hash(loop.create_future())


def _futures(loop: DeterministicLoop, awaitables: Iterable[Awaitable[Any]]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(one, loop=loop) for one in awaitables]


def _outcome(future: asyncio.Future[Any]) -> tuple[bool, Any]:
    """Return whether it failed, and its error or value."""
    if future.cancelled():
        return True, asyncio.CancelledError()
    error = future.exception()
    return (False, future.result()) if error is None else (True, error)
