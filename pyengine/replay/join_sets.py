"""Join sets: calls whose results are taken in the order in which they complete.

What lives here: `JoinSet`, what workflow code gets from `ctx.join_set()`. What may not: journal rows (what
was submitted and taken is matched in call_sequence.py), other waits. The theory: a set has a number;
submitting and taking are commands without one. Whose result is taken next is no choice of the code: it is the
member that completed first, and completions have an order in the journal. A result is taken in the moment in
which the code that asked for it gets it, so a wait that is cancelled takes nothing. The first wait closes the
set.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeAlias, TypeVar

from pyengine.errors import InvalidRequest
from pyengine.loop.awaitables import Call, place_in_sets
from pyengine.loop.event_loop import DeterministicFuture
from pyengine.protocol.commands import Intend, Submit, Take
from pyengine.replay.call_sequence import CallSequence

__all__ = ["Intent", "JoinSet"]

T = TypeVar("T")
C = TypeVar("C")
F = TypeVar("F", bound=DeterministicFuture)

Intent: TypeAlias = Callable[[int], Intend | None]
"""From a child number to what must be recorded of it, if it is a step that the journal does not know."""

_KINDS = ("step", "child run", "promise")


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
        ledger: numbers of the run.
        child: number of the set; below 0 if the code is dead.
        intent: returns what has to be recorded of a step before it is submitted, if anything.
        overtaken: the set is not recorded, because a request of cancellation overtook it.
    """

    __slots__ = (
        "_child",
        "_closed",
        "_given_up",
        "_intent",
        "_ledger",
        "_members",
        "_overtaken",
        "_pending",
        "_ready",
        "_waiters",
        "_wholes",
    )

    def __init__(self, ledger: CallSequence, child: int, intent: Intent, *, overtaken: bool) -> None:
        self._ledger = ledger
        self._child = child
        self._intent = intent
        self._overtaken = overtaken
        self._closed = False
        self._given_up = 0
        self._members: dict[int, int] = {}
        """Members by number, with their places in the order of submission."""
        self._pending: dict[int, Call] = {}
        self._ready: list[tuple[int, int, Call]] = []
        """Members that are complete and not taken, by their place among the completions."""
        self._waiters: list[DeterministicFuture] = []
        self._wholes: list[_AllDone] = []

    def __len__(self) -> int:
        """Number of members whose results were not taken yet."""
        return len(self._pending) + len(self._ready)

    def __repr__(self) -> str:
        return f"<join set {self._ledger.run.id}.{self._child}: {len(self)} of {len(self._members)} to come>"

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for a member through this set."""
        return any(not one.done() for one in self._waiters) or any(not one.done() for one in self._wholes)

    # -- what workflow code calls

    def submit(self, call: C) -> C:
        """Make a call a member, and return it.

        Args:
            call: a step call, child run or promise, as the call returned it; it may be complete already.

        Raises:
            InvalidRequest: it is something else, in a set already or given up; or this set is closed.
        """
        ledger = self._ledger
        if ledger.dead or self._child < 0:
            ledger.loop.raise_evicted()
            return call
        self._check_alive()
        member = self._checked(call)
        if not self._overtaken and member.child not in ledger.overtaken:
            submission = Submit(child=member.child, join_set=self._child)
            ledger.mark(submission, before=self._intent(member.child))
        self._members[member.child] = len(self._members)
        member.watch = self
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
        self._check_left()
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
        if not len(self) and not self._ledger.dead:
            self._close()
            raise StopAsyncIteration
        return await self.next()

    # -- members

    def _checked(self, call: object) -> Call:
        if self._closed:
            raise InvalidRequest(
                f"join set {self._child} of run {self._ledger.run.id} is closed: a result was asked for",
                hint="submit everything first, or make another set",
            )
        if not isinstance(call, Call) or call.kind not in _KINDS:
            kind = f"a {call.kind}" if isinstance(call, Call) else repr(call)
            raise InvalidRequest(
                f"a join set cannot hold {kind}",
                hint="submit what calling a step, ctx.start or ctx.promise returned, not a task around it",
            )
        if call.get_loop() is not self._ledger.loop:
            raise InvalidRequest(f"{call.kind} {call.name} belongs to another run")
        if call.cancelled():
            raise InvalidRequest(f"{call.kind} {call.name} ({call.id}) was given up; its result never comes")
        if getattr(call, "watch", None) is not None:
            raise InvalidRequest(f"{call.kind} {call.name} ({call.id}) is in a join set already")
        return call

    def _member_done(self, future: asyncio.Future[Any]) -> None:
        assert isinstance(future, Call)
        del self._pending[future.child]
        if future.cancelled():
            self._given_up += 1
        else:
            self._add_ready(future)
        waiters, self._waiters = self._waiters, []
        if not self._pending:
            waiters, self._wholes = [*waiters, *self._wholes], []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _add_ready(self, member: Call) -> None:
        insort(self._ready, (member.done_at, member.child, member))

    # -- waiting

    def _check_alive(self) -> None:
        self._ledger.bar("step", "")
        if self._overtaken and self._ledger.cancelling:
            # it is in no journal, so it can be neither filled nor emptied
            raise asyncio.CancelledError

    def _close(self) -> Call | None:
        """Close the set for submissions; a dead call if the code is dead."""
        if self._ledger.dead or self._child < 0:
            return self._ledger.dead_call("step", "join set")
        self._check_alive()
        self._closed = True
        return None

    def _check_left(self) -> None:
        if not len(self):
            what = self._exhausted()
            raise InvalidRequest(
                f"join set {self._child} of run {self._ledger.run.id} has nothing to wait for: {what}",
                hint="`async for result in join_set` ends by itself",
            )

    def _exhausted(self) -> str:
        if not self._members:
            return "nothing was submitted"
        if self._given_up == len(self._members):
            return "every member was given up"
        return f"every result was taken{' or given up' * bool(self._given_up)}"

    async def _next(self) -> T:
        while not self._ready:
            # members may have gone because the run was cancelled
            self._check_alive()
            self._check_left()
            waiter = self._waiter(DeterministicFuture)
            await _wait(waiter, self._waiters)
        return self._take().result()  # type: ignore[no-any-return]

    async def _all(self, return_exceptions: bool) -> list[T]:
        while self._pending:
            waiter = self._waiter(_AllDone)
            waiter.members = list(self._pending.values())
            self._ledger.add_whole(waiter)
            await _wait(waiter, self._wholes)
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
        waiter = cls(loop=self._ledger.loop)
        waiter.order = place_in_sets(self._ledger.loop)
        return waiter

    def _take(self) -> Call:
        member = self._ready.pop(0)[2]
        if not self._overtaken and member.child not in self._ledger.overtaken:
            self._ledger.mark(Take(child=member.child, join_set=self._child))
        return member


async def _wait(waiter: F, waiters: list[F]) -> None:
    waiters.append(waiter)
    try:
        await waiter
    finally:
        if waiter in waiters:
            waiters.remove(waiter)
