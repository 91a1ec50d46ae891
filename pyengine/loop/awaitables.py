"""The futures that workflow code awaits.

What lives here: `Call`, the pending side of one durable call, `Received`, a receive with a limit, and the two
waits that tell the database more than asyncio could: `Gathering` (all of these) and `First` (any of these).
What may not: journal rows, commands. A `Call` is a future and a coroutine at once, so that a step reads like
the async function it wraps: it can be awaited, gathered, or given to `create_task`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, cast

from pyengine.loop.event_loop import DeterministicFuture, DeterministicLoop
from pyengine.values.codec import TypeCodec

__all__ = ["Call", "CallKind", "Completed", "First", "Gathering", "ReceiveCall", "Received", "Whole"]

CallKind: TypeAlias = Literal["step", "child run", "detached run", "promise", "timer", "receive"]


class Whole(Protocol):
    """A wait that ends when every member is done."""

    @property
    def members(self) -> Sequence[asyncio.Future[Any]]: ...

    def done(self) -> bool: ...


class Watch(Protocol):
    """Who keeps a callback on calls also while nobody waits there."""

    @property
    def waiting(self) -> bool: ...


class Waitable(DeterministicFuture):
    """A future that is a coroutine as well."""

    __slots__ = ("_steps",)
    _steps: Generator[Any, Any, Any]

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

    def fail(self, error: BaseException) -> None:
        """Complete with an error; nobody is blamed for not looking at it, the journal holds it."""
        self.set_exception(error)
        self._log_traceback = False


Coroutine.register(Waitable)


class Call(Waitable):
    """The pending side of one durable call.

    Attributes:
        child: child number.
        kind: what was called.
        name: step, workflow, promise or signal name.
        codec: reads the recorded result.
        noted: for a step: called with the child number when the call is given up.
        alias: id of the promise that it stands for, if that is not the run's own.
        watch: the join set that it was submitted to, if any.
        done_at: its place among the completions of the run, once it is complete.
    """

    __slots__ = ("alias", "child", "codec", "done_at", "kind", "name", "noted", "watch")
    child: int
    codec: TypeCodec
    kind: CallKind
    name: str
    noted: Callable[[int], object]
    alias: str
    watch: Watch
    done_at: int

    def cancel(self, msg: Any = None) -> bool:
        """Give the call up: its completion will be ignored."""
        given_up = super().cancel(msg)
        if given_up and self.kind == "step":
            self.noted(self.child)
        return given_up

    @property
    def id(self) -> str:
        """Id of what is waited for: run id, dot, child number; an adopted promise keeps its own."""
        own = f"{cast('DeterministicLoop', self.get_loop()).origin_name}.{self.child}"
        return getattr(self, "alias", own)

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for it: a task, a gather, a callback, a join set that is asked."""
        callbacks = self._callbacks
        if not callbacks:
            return False
        watch: Watch | None = getattr(self, "watch", None)
        return watch is None or len(callbacks) > 1 or watch.waiting


class _Looked(Waitable):
    """A future that knows whether anybody has looked at what came of it."""

    __slots__ = ()

    def look(self) -> None:
        """Note that somebody has."""

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            result = yield from super().__await__()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.look()
            raise
        self.look()
        return result

    def result(self) -> Any:
        """Return what came."""
        self.look()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the error that came, if it was one."""
        self.look()
        return super().exception()


class ReceiveCall(_Looked, Call):
    """A receive.

    Attributes:
        looked: somebody has looked at the signal that came.
    """

    __slots__ = ("looked",)
    looked: bool

    def look(self) -> None:
        """Note that somebody has looked; at a receive that was given up there is nothing to see."""
        self.looked = self.done() and not self.cancelled()


class Received(_Looked):
    """A receive with a limit: done with the signal, or with TimeoutError, which gives the receive up.

    Args:
        call: the receive.
        timer: its limit.
    """

    __slots__ = ("_call", "_timer")

    def __init__(self, loop: DeterministicLoop, call: ReceiveCall, timer: Call) -> None:
        super().__init__(loop=loop)
        self.order = place_in_sets(loop)
        self._call, self._timer = call, timer
        call.add_done_callback(self._call_done)
        timer.add_done_callback(self._timer_done)

    def _call_done(self, call: asyncio.Future[Any]) -> None:
        self._leave()
        if self.done():
            return
        if call.cancelled():
            super().cancel()
            return
        # not by the methods of the receive, for nobody has looked yet
        error = asyncio.Future.exception(call)
        if error is not None:
            self.fail(error)
        else:
            self.set_result(asyncio.Future.result(call))

    def look(self) -> None:
        """Note that somebody has looked at the signal."""
        self._call.look()

    def _timer_done(self, timer: asyncio.Future[Any]) -> None:
        self._leave()
        self._call.cancel()
        if not self.done():
            if timer.cancelled():
                super().cancel()
            else:
                self.fail(TimeoutError(f"no signal {self._call.name!r} came in time"))

    def _leave(self) -> None:
        self._call.remove_done_callback(self._call_done)
        self._timer.remove_done_callback(self._timer_done)

    def cancel(self, msg: Any = None) -> bool:
        """Give the receive up; the signal waits for the next one."""
        self._leave()
        self._call.cancel()
        return super().cancel(msg)


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
