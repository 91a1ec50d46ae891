"""The worker's turn: everything that moved, in one round trip.

What lives here: `TurnSender`, which sends one turn at a time and sees to it that it arrives. What may not:
how a turn is written (protocol/turn.py), what a bundle means for a run (run_manager.py), when to send
(dispatcher.py). The theory: a turn is idempotent. What it recorded cannot be recorded again, so when a
connection is lost and the outcome is unknown the same bundles are sent again: what arrived the first time is
then answered with `stale` or `lost`, and the journal tells. Only tasks that the lost turn claimed are unknown
here; the worker gives those back (`uncertain`). A bundle that the database refuses with an error must not
spoil the others: the batch is halved until it stands alone, and its run is halted with that error as its
problem; what it had to record before its end is kept, unless that is refused too. A batch that does not get
through in time is halved too; but slowness is nobody's fault, so nothing is halted for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pyengine.database.connection import Database, ReconnectingConnection, backoff_s
from pyengine.database.failure_log import FailureLog
from pyengine.database.statements.procedures import TURN
from pyengine.errors import EngineError, Unavailable
from pyengine.protocol.commands import Complete, Fail, Halt, Release
from pyengine.protocol.turn import Answer, RunReport, decode_answer, encode_reports, encode_texts

__all__ = ["Identity", "TurnSender"]

logger = logging.getLogger("pyengine.turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who takes turns, and what it can run.

    Args:
        worker: id of this process, fresh at each start.
        queues: queues it serves.
        names: workflows that it can run, once for each version.
        codes: the same, as the database wrote it at the hello.
        digests: digests of that code, at the same places.
        ttl_ms: length of a lease.
    """

    worker: str
    queues: list[str]
    names: list[str]
    codes: list[str]
    digests: list[str]
    ttl_ms: int

    @property
    def serves(self) -> tuple[str, str, str]:
        """Queues, codes and digests as the database reads arrays: of a list the driver would look twice at
        each element, each time it is said.
        """
        return encode_texts(self.queues), encode_texts(self.codes), encode_texts(self.digests)


# the fault of a bundle: bad data, a broken constraint, a limit, a refusal of ours; all else may pass
_POISON = ("22", "23", "54", "P0", "WF")
_CANCELED = "57014"
_LOCKED = ("55P03", "40P01")
_TIMEOUTS_MAX = 2
_RELEASE_MS = 60_000


class TurnSender:
    """Sends turns, one at a time, until each has arrived.

    Args:
        database: where to.
        identity: who sends, and what it can run.

    Attributes:
        uncertain: a connection was lost under a turn: tasks may be held here that nobody here knows.
        refused: called with a bundle that the database refuses, before its run is halted instead; or, if
            the bundle was to set the run aside already, before it is given back: it must be forgotten then.
    """

    def __init__(self, database: Database, identity: Identity) -> None:
        self._link = ReconnectingConnection(database, "turn")
        self._serves = identity.serves
        self._worker, self._ttl_ms = identity.worker, identity.ttl_ms
        self._where = database.where
        self._trouble = FailureLog(logger, "turn")
        self.uncertain = False
        self.refused: Callable[[RunReport, EngineError], None] = lambda bundle, error: None

    async def open(self) -> None:
        """Connect.

        Raises:
            EngineError: it cannot.
        """
        await self._link.connected()

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    def drop(self) -> None:
        """Break the connection off."""
        self._link.drop()

    async def send(
        self,
        bundles: list[RunReport],
        want: int,
        *,
        text: str | None = None,
        tells: bool = False,
        idle_ms: int = 0,
    ) -> list[Answer]:
        """Send a turn, again and again if need be, and return its answer, or the answers of its parts.

        Args:
            bundles: what moved.
            want: how many tasks to claim; 0 only what this turn wakes, less than 0 none.
            text: the bundles, if they are written already.
            tells: it sends the hint that something settled, with its commit.
            idle_ms: if it ends one run and does nothing else, the worker rests again for so long.
        """
        failures = unknown = timeouts = 0
        while True:
            try:
                answer = await self._once(bundles, want, tells, text, idle_ms)
            except Unavailable as error:
                self.uncertain = True
                unknown += 1
                timeouts += _timed_out(error)
                self._trouble.failed(f"outcome unknown ({len(bundles)} bundles): {error.message}")
                await self._link.connected_eventually(purpose="turn")
            except EngineError as error:
                failures += 1
                timeouts += _timed_out(error)
                if _locked(error) and failures > 1:
                    return await self._around(bundles, tells)
                if _poisoned(error) and (len(bundles) > 1 or (bundles and want < 0)):
                    return await self._apart(bundles, error, tells)
                if want >= 0:
                    # what it was to claim, if only what it woke, may be more than an answer holds
                    want = -1 if bundles else -(-want // 2)
                self._trouble.failed(f"refused by {self._where}: {error}")
            else:
                self._trouble.succeeded()
                return [answer]
            if timeouts >= _TIMEOUTS_MAX:
                if len(bundles) > 1:
                    return await self._halves(bundles, tells)
                # what it was to claim may be what takes so long
                want = min(want, -1 if bundles else want)
            # after the first loss at once
            if pause := failures + max(0, unknown - 1):
                await asyncio.sleep(backoff_s(pause))

    async def send_once(self, bundles: list[RunReport], want: int) -> Answer:
        """Send a turn once, without patience.

        Raises:
            EngineError: it failed, or its outcome is unknown.
        """
        return await self._once(bundles, want, False)

    async def _once(
        self, bundles: list[RunReport], want: int, tells: bool, text: str | None = None, idle_ms: int = 0
    ) -> Answer:
        text = text or encode_reports(bundles)
        answer: Any = await self._link.run(
            TURN, self._worker, *self._serves, want, text, self._ttl_ms, tells, idle_ms
        )
        return decode_answer(answer)

    async def _apart(self, bundles: list[RunReport], error: EngineError, tells: bool) -> list[Answer]:
        """Find the bundle that the database refuses, and halt its run."""
        if len(bundles) > 1:
            return await self._halves(bundles, tells)
        bad = bundles[0]
        refused = bad.end
        if isinstance(refused, Halt) and (bad.outcomes or bad.commands):
            # not its end, but what it records is what is wrong
            bad.outcomes, bad.commands = (), ()
            return await self.send([bad], -1)
        self.refused(bad, error)
        if isinstance(refused, Release) and not (bad.outcomes or bad.commands):
            # not even that: nobody renews the lease any more, so it runs out
            return []
        # the run's own record is changed, so that the answer finds what was really sent
        if not isinstance(refused, Complete | Fail):
            bad.outcomes, bad.commands = (), ()
        if isinstance(refused, Halt | Release):
            bad.end = Release(retry_in_ms=_RELEASE_MS)
        else:
            problem = {"type": type(error).__name__, "message": error.message, "detail": error.detail}
            bad.end = Halt(problem=msgspec.json.encode(problem).decode())
        return await self.send([bad], -1)

    async def _around(self, bundles: list[RunReport], tells: bool) -> list[Answer]:
        """Find the bundle that waited too long for a lock, and leave it out for now.

        What a transaction of a user locks, a turn leaves out by itself. This is for the rest: a table that is
        being altered, a row of a side table that somebody locked by hand.
        """
        if len(bundles) > 1:
            return await self._halves(bundles, tells)
        executions = [bundle.execution for bundle in bundles]
        return [Answer(0, None, [], [], [], False, None, executions, [])]

    async def _halves(self, bundles: list[RunReport], tells: bool) -> list[Answer]:
        half = len(bundles) // 2
        first = await self.send(bundles[:half], -1, tells=tells)
        return [*first, *await self.send(bundles[half:], -1, tells=tells)]


def _poisoned(error: EngineError) -> bool:
    code = getattr(error.__cause__, "sqlstate", None) or ""
    return code[:2] in _POISON


def _locked(error: EngineError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in _LOCKED


def _timed_out(error: EngineError) -> bool:
    """Whether the statement took too long, by our clock or the server's; the connection was in order."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        # with a number it is the system's: a dead connection
        return cause.errno is None
    return getattr(cause, "sqlstate", None) == _CANCELED
