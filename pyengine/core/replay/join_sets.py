"""Join sets: calls whose results are taken in the order in which they complete.

Lives here: `JoinSet`, the result of `ctx.join_set()`. May not: journal rows (submissions and takes are
matched in call_sequence.py), other waits. The theory: a set has a child number; submitting and taking are
commands without one. The code does not choose the next result: it is that of the member that completed first,
and completions have an order in the journal. A result is taken at the moment at which the waiting code gets
it, so a wait that is cancelled takes nothing. The first wait closes the set.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeAlias, TypeVar, overload

from pyengine.core.loop.awaitables import Call, next_order
from pyengine.core.loop.futures import DeterministicFuture, cancelled_now
from pyengine.core.protocol.commands import Intend, Submit, Take
from pyengine.core.replay.call_sequence import CallSequence
from pyengine.errors import InvalidRequest

T = TypeVar("T")
C = TypeVar("C")
V = TypeVar("V")
F = TypeVar("F", bound=DeterministicFuture)

Intent: TypeAlias = Callable[[int], Intend | None]
"""Given a child number, returns the command that announces it, if it is a step without a row."""

_KINDS = ("step", "child run", "promise", "remote call")


class _AllDone(DeterministicFuture):
    """Done when no member is pending."""

    __slots__ = ("members",)
    members: list[asyncio.Future[Any]]


class JoinSet(Generic[T]):
    """Steps, child runs and promises of one run; their results come in the order of completion.

        tasks = ctx.join_set()
        for order in orders:
            tasks.submit(ship(order))
        async for receipt in tasks:
            ...

    Args:
        sequence: numbers and commands of the run.
        child: number of the set; below 0 if the code is dead.
        intent: returns the command to record before a step is submitted, if one is needed.
        discarded: a cancellation request discards the set, so it is not recorded.
    """

    __slots__ = (
        "_all_waits",
        "_cancelled",
        "_child",
        "_closed",
        "_discarded",
        "_intent",
        "_members",
        "_pending",
        "_ready",
        "_sequence",
        "_waiters",
    )

    def __init__(self, sequence: CallSequence, child: int, intent: Intent, *, discarded: bool) -> None:
        self._sequence = sequence
        self._child = child
        self._intent = intent
        self._discarded = discarded
        self._closed = False
        self._cancelled = 0
        self._members: dict[int, int] = {}
        """Position in the order of submission, by child number."""
        self._pending: dict[int, Call] = {}
        self._ready: list[tuple[int, int, Call]] = []
        """Completed members that were not taken, as (position in the journal, child number, call)."""
        self._waiters: list[DeterministicFuture] = []
        self._all_waits: list[_AllDone] = []

    def __len__(self) -> int:
        """Number of members whose results were not taken yet."""
        return len(self._pending) + len(self._ready)

    def __repr__(self) -> str:
        run = self._sequence.run
        return f"<join set {run.id}.{self._child}: {len(self)} of {len(self._members)} to come>"

    @property
    def waiting(self) -> bool:
        """Whether some code waits for a member through this set."""
        return any(not one.done() for one in self._waiters) or any(not one.done() for one in self._all_waits)

    # -- what workflow code calls

    @overload
    def submit(self, call: Coroutine[Any, Any, V]) -> Awaitable[V]: ...  # no type checker asks for an await
    @overload
    def submit(self, call: C) -> C: ...
    def submit(self, call: C) -> Any:
        """Make a call a member, and return it.

        Args:
            call: a step call, child run or promise, as the call returned it; it may be complete already.

        Raises:
            InvalidRequest: it is something else, in a set already or cancelled; or this set is closed.
        """
        sequence = self._sequence
        if sequence.dead or self._child < 0:
            sequence.loop.raise_evicted()
            return call
        self._check_usable()
        member = self._checked(call)
        if not self._discarded and member.child not in sequence.cancellation.calls:
            submission = Submit(child=member.child, join_set=self._child)
            sequence.match_operation(submission, before=self._intent(member.child))
        self._members[member.child] = len(self._members)
        member.collector = self
        if member.done():
            self._add_ready(member)
        else:
            self._pending[member.child] = member
            member.add_done_callback(self._member_done)
        return call

    def next(self) -> Coroutine[None, None, T]:
        """Wait for the result of the member that completes first among those that were not taken.

        Raises:
            InvalidRequest: every result was taken.
            Exception: the error of that member, which is taken with it.
        """
        if (dead := self._close()) is not None:
            return dead
        self._check_not_empty()
        return self._next()

    def all(self, *, return_exceptions: bool = False) -> Coroutine[None, None, list[T]]:
        """Wait for all members and return the results that were not taken yet, in order of submission.

        Args:
            return_exceptions: put errors in the list instead of raising the first in that order.
        """
        return self._all(return_exceptions) if (dead := self._close()) is None else dead

    def __aiter__(self) -> JoinSet[T]:
        return self

    async def __anext__(self) -> T:
        if not len(self) and not self._sequence.dead:
            self._close()
            raise StopAsyncIteration
        return await self.next()

    # -- members

    def _checked(self, call: object) -> Call:
        if self._closed:
            raise InvalidRequest(
                f"join set {self._child} of run {self._sequence.run.id} is closed: a result was asked for",
                hint="submit everything first, or make another set",
            )
        if not isinstance(call, Call) or call.kind not in _KINDS:
            kind = f"a {call.kind}" if isinstance(call, Call) else repr(call)
            raise InvalidRequest(
                f"a join set cannot hold {kind}",
                hint="submit what calling a step, ctx.start or ctx.promise returned, not a task around it",
            )
        if call.get_loop() is not self._sequence.loop:
            raise InvalidRequest(f"{call.kind} {call.name} belongs to another run")
        if call.cancelled():
            raise InvalidRequest(f"{call.kind} {call.name} ({call.id}) was given up; its result never comes")
        if getattr(call, "collector", None) is not None:
            raise InvalidRequest(f"{call.kind} {call.name} ({call.id}) is in a join set already")
        return call

    def _member_done(self, future: asyncio.Future[Any]) -> None:
        assert isinstance(future, Call)
        del self._pending[future.child]
        if future.cancelled():
            self._cancelled += 1
        else:
            self._add_ready(future)
        waiters, self._waiters = self._waiters, []
        if not self._pending:
            waiters, self._all_waits = [*waiters, *self._all_waits], []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _add_ready(self, member: Call) -> None:
        insort(self._ready, (member.done_at, member.child, member))

    # -- waiting

    def _check_usable(self) -> None:
        if self._sequence.admit("step", "") is not None:
            self._sequence.loop.raise_evicted()
        if self._discarded and self._sequence.cancellation.applied:
            # the journal does not hold the set, so its operations cannot be recorded
            raise cancelled_now()

    def _close(self) -> Call | None:
        """Close the set for submissions; returns a dead call if the code is dead."""
        if self._sequence.dead or self._child < 0:
            return self._sequence.dead_call("step", "join set")
        self._check_usable()
        self._closed = True
        return None

    def _check_not_empty(self) -> None:
        if not len(self):
            reason = self._empty_reason()
            raise InvalidRequest(
                f"join set {self._child} of run {self._sequence.run.id} has nothing to wait for: {reason}",
                hint="`async for result in join_set` ends by itself",
            )

    def _empty_reason(self) -> str:
        if not self._members:
            return "nothing was submitted"
        if self._cancelled == len(self._members):
            return "every member was given up"
        return f"every result was taken{' or given up' * bool(self._cancelled)}"

    async def _next(self) -> T:
        while not self._ready:
            # the run may have been cancelled meanwhile, and members with it
            self._check_usable()
            self._check_not_empty()
            await _wait(self._waiter(DeterministicFuture), self._waiters)
        return self._take().result()  # type: ignore[no-any-return]

    async def _all(self, return_exceptions: bool) -> list[T]:
        while self._pending:
            waiter = self._waiter(_AllDone)
            waiter.members = list(self._pending.values())
            self._sequence.add_all_wait(waiter)
            await _wait(waiter, self._all_waits)
        taken = [self._take() for _ in range(len(self._ready))]
        taken.sort(key=lambda member: self._members[member.child])
        results: list[Any] = []
        for member in taken:
            error = member.exception()
            if error is not None and not return_exceptions:
                raise error
            results.append(member.result() if error is None else error)
        return results

    def _waiter(self, cls: type[F]) -> F:
        waiter = cls(loop=self._sequence.loop)
        waiter.order = next_order(self._sequence.loop)
        return waiter

    def _take(self) -> Call:
        member = self._ready.pop(0)[2]
        if not self._discarded and member.child not in self._sequence.cancellation.calls:
            self._sequence.match_operation(Take(child=member.child, join_set=self._child))
        return member


async def _wait(waiter: F, waiters: list[F]) -> None:
    waiters.append(waiter)
    try:
        await waiter
    finally:
        if waiter in waiters:
            waiters.remove(waiter)
