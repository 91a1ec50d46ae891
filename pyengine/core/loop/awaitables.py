"""The futures that workflow code awaits.

Lives here: `Call`, the pending side of one durable call; `TimedReceive`, a receive with a limit. May not:
journal rows, commands, waits for several calls (several.py). A `Call` is a future and a coroutine at once, so
that a step reads like the async function it wraps: it can be awaited, gathered, or given to `create_task`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import CodeType, TracebackType
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, cast

from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.loop.futures import DeterministicFuture
from pyengine.core.values.codec import TypeCodec

_SPELLINGS: Final = {
    "step": "{}(...)",
    "child run": "{}(...)",
    "timer": "ctx.{}(...)",
    "receive": "ctx.receive(...)",
}

CallKind: TypeAlias = Literal[
    "step", "child run", "detached run", "promise", "remote call", "timer", "receive"
]


class AllWait(Protocol):
    """A wait that ends when every member is done."""

    @property
    def members(self) -> Sequence[asyncio.Future[Any]]: ...

    def done(self) -> bool: ...


class CallCollector(Protocol):
    """Keeps a callback on its member calls, even while no code waits through it: a join set."""

    @property
    def waiting(self) -> bool: ...


class Awaited(DeterministicFuture):
    """A future that code awaits: it has no truth value before.

    Attributes:
        made_at: where the code made it, as code object and instruction; of new steps, child runs, timers,
            receives and waits for several. None as soon as it is known that code has waited for it.
    """

    __slots__ = ("made_at",)
    made_at: tuple[CodeType, int] | None

    def set_place(self, depth: int) -> None:
        """Keep the place of the code that made it, so many frames up."""
        frame = sys._getframe(depth)
        self.made_at = (frame.f_code, frame.f_lasti)

    @property
    def mistake(self) -> str:
        """The sentence for code that used it without awaiting it."""
        return "a call was made and not awaited: write await before it"

    def __bool__(self) -> bool:
        # else `if ctx.receive(approve):` would go on without the signal
        if not self.done():
            raise TypeError(self.mistake)
        return True


class Waitable(Awaited):
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
        """Do nothing: the call stays even if no code waits for it."""

    def __iter__(self) -> NoReturn:
        # a future yields itself, so `for page in pages(n):` would begin with the call in place of a page
        raise TypeError(self.mistake)

    def __aiter__(self) -> NoReturn:
        raise TypeError(self.mistake)

    def fail(self, error: BaseException) -> None:
        """Complete with an error; asyncio logs no warning if no code reads it, since the journal holds it."""
        self.set_exception(error)
        self._log_traceback = False


Coroutine.register(Waitable)


class Call(Waitable):
    """The pending side of one durable call.

    Attributes:
        child: child number.
        kind: kind of the call.
        name: step, workflow, promise or signal name.
        codec: decodes the recorded result.
        on_cancel: for a step: called with the child number when the call is cancelled.
        ask: for a child run that is cancelled with its call: asks it to end; false if that has no effect.
        asked: it was asked, with this message.
        adopted_id: id of the promise, if the run adopted it.
        collector: the join set that it was submitted to, if any.
        done_at: its position among the completions of the run, once it is complete.
    """

    __slots__ = (
        "adopted_id",
        "ask",
        "asked",
        "child",
        "codec",
        "collector",
        "done_at",
        "kind",
        "name",
        "on_cancel",
    )
    child: int
    codec: TypeCodec
    kind: CallKind
    name: str
    on_cancel: Callable[[int], object]
    ask: Callable[[int], bool]
    asked: tuple[Any]
    adopted_id: str
    collector: CallCollector
    done_at: int

    @property
    def spelling(self) -> str:
        """The call as code spells it; empty for a promise, which code may keep for later."""
        return _SPELLINGS.get(self.kind, "").format(self.name)

    @property
    def mistake(self) -> str:
        """The sentence for code that used the call without awaiting it."""
        instead = f"write `await {self.spelling}`" if self.spelling else "write await before it"
        return f"{self.kind} {self.name}".rstrip() + f" was called and not awaited: {instead}"

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Remove a callback: code that gives up waiting, such as `ctx.first`, has waited."""
        self.made_at = None
        return super().remove_done_callback(fn)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the call: its completion will be ignored. That of a child run comes when that has ended."""
        ask = getattr(self, "ask", None)
        if ask is not None and not self.done() and ask(self.child):
            self.asked = (msg,)
            return True
        cancelled = super().cancel(msg)
        if cancelled and self.kind == "step":
            self.on_cancel(self.child)
        return cancelled

    def end_asked(self) -> bool:
        """Be cancelled, if the child run was asked to end; else return false."""
        asked = getattr(self, "asked", None)
        return asked is not None and super().cancel(*asked)

    @property
    def id(self) -> str:
        """Id of the promise behind the call: run id, dot, child number; an adopted promise has its own."""
        own = f"{cast('DeterministicLoop', self.get_loop()).run_id}.{self.child}"
        return getattr(self, "adopted_id", own)

    @property
    def awaited(self) -> bool:
        """Whether some code waits for it: a task, a gather, a callback, or through a join set."""
        callbacks = self._callbacks
        if not callbacks:
            return False
        collector: CallCollector | None = getattr(self, "collector", None)
        return collector is None or len(callbacks) > 1 or collector.waiting

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "done" if self.done() else "pending"
        return f"<{self.kind} {self.name}, {state}>"

    def __str__(self) -> str:
        if self.kind == "step" and not self.done():
            # else the text of a call would be recorded in place of its result
            raise TypeError(self.mistake)
        return repr(self)


class _Consumable(Waitable):
    """A future that notices when code reads its result."""

    __slots__ = ()

    def consume(self) -> None:
        """Called when code reads the result."""

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            result = yield from super().__await__()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.consume()
            raise
        self.consume()
        return result

    def result(self) -> Any:
        """Return the result, and mark it consumed."""
        self.consume()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return the error, if it is one, and mark it consumed."""
        self.consume()
        return super().exception()


class UnreadCall(_Consumable, Call):
    """A call that was complete before any code waited for it; a call becomes one by its class."""

    __slots__ = ()

    def consume(self) -> None:
        """Note that code has waited for it after all."""
        self.made_at = None


class ReceiveCall(_Consumable, Call):
    """A receive.

    Attributes:
        consumed: code has read the signal that came.
        left: code has given up waiting for it, as `ctx.first` does with those that lose.
    """

    __slots__ = ("consumed", "left")
    consumed: bool
    left: bool

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Remove a callback: code gives up waiting."""
        self.left = True
        return super().remove_done_callback(fn)

    def consume(self) -> None:
        """Mark the signal consumed; a pending or cancelled receive has none."""
        self.made_at = None
        self.consumed = self.done() and not self.cancelled()

    def __bool__(self) -> bool:
        # a signal that came early does not make a forgotten await right
        if not (self.consumed or self.cancelled()):
            raise TypeError(self.mistake)
        return True


class TimedReceive(_Consumable):
    """A receive with a limit: done with the signal, or with TimeoutError, which cancels the receive.

    Args:
        call: the receive.
        timer: its limit.
    """

    __slots__ = ("_call", "_timer")

    def __init__(self, loop: DeterministicLoop, call: ReceiveCall, timer: Call) -> None:
        super().__init__(loop=loop)
        self.order = next_order(loop)
        self._call, self._timer = call, timer
        call.collector = timer.collector = self
        call.add_done_callback(self._call_done)
        timer.add_done_callback(self._timer_done)

    @property
    def waiting(self) -> bool:
        """Whether some code waits for it."""
        return bool(self._callbacks)

    @property
    def mistake(self) -> str:
        """The sentence for code that used it without awaiting it."""
        return self._call.mistake

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Remove a callback: code that gives up waiting has waited."""
        self._call.made_at = None
        self._call.left = True
        return super().remove_done_callback(fn)

    def _call_done(self, call: asyncio.Future[Any]) -> None:
        self._leave()
        if self.done():
            return
        if call.cancelled():
            super().cancel()
            return
        # the base methods: those of the receive would mark the signal consumed
        error = asyncio.Future.exception(call)
        if error is not None:
            self.fail(error)
        else:
            self.set_result(asyncio.Future.result(call))

    def consume(self) -> None:
        """Mark the signal consumed."""
        self._call.consume()

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
        """Cancel the receive; the signal is kept for the next receive."""
        self._leave()
        self._call.cancel()
        return super().cancel(msg)


def next_order(loop: DeterministicLoop) -> int:
    """Return the next number by which futures are ordered in a set, the same at every replay."""
    return hash(loop.create_future())
