"""Sending a turn until it has arrived.

Lives here: `TurnSender`, which sends one turn at a time. May not: how a turn is written
(protocol/turn.py), what a report means for a run (run_manager.py), when to send (turn_loop.py). Design: a
turn is idempotent. A row cannot be recorded twice, so when a connection is lost and the outcome is unknown
the same reports are sent again: those that arrived the first time get the verdict `stale` or `lost`, and the
journal shows the outcome. Only tasks that the lost turn claimed are unknown here; the worker releases those
(`uncertain`). A report that the database refuses with an error must not spoil the others: the batch is halved
until the report stands alone. Then the table of faults decides (database/faults.py): if the run is at fault,
it is halted with that error as its problem; the outcomes before its end are recorded, unless they are refused
too. If it is not, as where the report waits for a lock or a trigger of somebody refuses it, the report is
sent alone from then on, until it arrives. A batch that times out is halved as well, but a timeout does not
identify a bad report, so no run is halted for it. A hint is not worth a commit: a turn that is refused
together with its hints is sent without them. A claim that fails for a reason of one run is made run by run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from pyengine.core.database.connection import Database, ReconnectingConnection, backoff_s
from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.faults import TOO_LARGE, Fault, fault_of, sqlstate_of
from pyengine.core.database.statements.claims import CLAIM_APART, LARGE_TURN
from pyengine.core.database.statements.procedures import TURN, Procedure
from pyengine.core.process import clock
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.protocol.commands import Complete, Fail, Halt, Release
from pyengine.core.protocol.turn import (
    Answer,
    RunReport,
    decode_answer,
    encode_large_reports,
    encode_reports,
    encode_texts,
    weight_of,
)
from pyengine.core.replay import run_log
from pyengine.core.rules import RULES
from pyengine.core.values.sizes import LARGE_BYTES
from pyengine.core.worker.events import Event, ReportRejected
from pyengine.core.worker.lease_heartbeat import ADOPTION_RETRY_S
from pyengine.errors import EngineError, NotAdopted, Unavailable

logger = logging.getLogger("pyengine.turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The worker that takes turns, and what it can run.

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
        """Queues, codes and digests as array literals: the driver would inspect each element of a list twice
        in every turn.
        """
        return encode_texts(self.queues), encode_texts(self.codes), encode_texts(self.digests)


_CANCELED = "57014"
_NOT_OF_THE_RUN = (Fault.REPORT, Fault.OPERATOR, Fault.SESSION)
_SESSIONS_MAX = 2
_PASSING_MAX = 4
_TIMEOUTS_MAX = 2
_RELEASE_MS = 60_000


class TurnSender:
    """Sends turns, one at a time, until each has arrived.

    Args:
        database: the database.
        identity: the worker, and what it can run.
        known_until_s: until when a lease is known to hold that is asked for now.
        post: takes `ReportRejected`.
        values: write large reports and read large answers.

    Attributes:
        uncertain: a connection was lost during a turn, so there may be leases that this worker does not know.
        asked_s: since when a turn has had no answer, by the clock; None if none is on its way.
    """

    def __init__(
        self,
        database: Database,
        identity: Identity,
        known_until_s: Callable[[], float],
        post: Callable[[Event], None],
        values: ValueThreads,
    ) -> None:
        self._known_until_s = known_until_s
        self._link = ReconnectingConnection(database, "turn")
        self._database, self._identity = database, identity
        self._serves = identity.serves
        self._worker, self._ttl_ms = identity.worker, identity.ttl_ms
        self._where, self._copy = database.where, database.copy
        self._trouble = FailureLog(logger, "turn")
        self._suspects: set[int] = set()
        self.uncertain = False
        self.asked_s: float | None = None
        self._post = post
        self._values = values

    def another(self) -> TurnSender:
        """Return another one for the same worker, with a connection of its own."""
        return TurnSender(self._database, self._identity, self._known_until_s, self._post, self._values)

    async def open(self) -> None:
        """Connect.

        Raises:
            EngineError: it cannot.
        """
        await self._link.connected()

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def send(
        self,
        reports: list[RunReport],
        want: int,
        *,
        text: str | None = None,
        hints: bool = False,
        idle_ms: int = 0,
    ) -> list[Answer]:
        """Send a turn, again and again if need be, and return its answer, or the answers of its parts.

        Args:
            reports: what runs report.
            want: how many tasks to claim; 0 only those that this turn wakes, less than 0 none.
            text: the reports, if they are written already.
            hints: it sends the hint that something settled, with its commit.
            idle_ms: if it ends one run and does nothing else, it registers the worker as idle for so long.
        """
        if self._suspects and len(reports) > 1 and any(one.execution in self._suspects for one in reports):
            return await self._suspects_alone(reports, want, hints)
        if not reports:
            return [await self._claim(want)]
        failures = unknown = timeouts = claims = 0
        while True:
            try:
                answer = await self.send_once(reports, want, text=text, hints=hints, idle_ms=idle_ms)
            except Unavailable as error:
                unknown += 1
                timeouts += _timed_out(error)
                await self._lost(error, f"{len(reports)} reports")
            except NotAdopted:
                await self._found_copy()
                continue
            except EngineError as error:
                if hints and sqlstate_of(error) == TOO_LARGE:
                    # the server's queue of notifications may be full
                    hints = False
                    continue
                failures += 1
                timeouts += _timed_out(error)
                if (answers := await self._in_parts(reports, want, error, failures, hints)) is not None:
                    return answers
                # the tasks to claim, or those that it wakes, may be the reason
                want, claims = -1, max(want, claims)
                self._trouble.failed(f"refused by {self._where}: {error}")
            else:
                self._arrived(reports)
                return [answer] if claims <= 0 else [answer, await self._claim(claims)]
            if timeouts >= _TIMEOUTS_MAX:
                if len(reports) > 1:
                    return await self._halves(reports, hints)
                # the claim may be what takes so long
                want = -1
            # at once after the first loss
            if pause := failures + max(0, unknown - 1):
                await clock.sleep(backoff_s(pause))

    async def _claim(self, want: int) -> Answer:
        """Send a claim without reports until it has arrived.

        One that fails for a reason of a run is made run by run: the run that cannot be handed out is set
        aside, and the others come. A run whose claim has no answer in time, alone, is put off.
        """
        failures = unknown = timeouts = 0
        apart = puts_off = False
        while True:
            try:
                answer = await (self.claim_apart(want, puts_off) if apart else self.send_once([], want))
            except Unavailable as error:
                unknown += 1
                timeouts += _timed_out(error)
                await self._lost(error, "a claim")
            except NotAdopted:
                await self._found_copy()
                continue
            except EngineError as error:
                failures += 1
                timeouts += _timed_out(error)
                fault = fault_of(error)
                if fault is Fault.SESSION:
                    self._link.drop()
                # a server that cannot make one answer may make others
                enough = failures > (_PASSING_MAX if fault is Fault.SERVER else 1)
                apart = apart or fault is Fault.RUN or enough
                self._trouble.failed(f"refused by {self._where}: {error}")
            else:
                self._arrived([])
                for id, code, message in zip(*[iter(answer.aside)] * 3, strict=True):
                    run_log.run_set_aside(id, code, message)
                return answer
            if timeouts >= _TIMEOUTS_MAX:
                apart = puts_off = want == 1
                want, timeouts = 1, 0
            if pause := failures + max(0, unknown - 1):
                await clock.sleep(backoff_s(pause))

    async def claim_apart(self, want: int, puts_off: bool) -> Answer:
        """Claim run by run, once; arguments as for `CLAIM_APART`.

        Raises:
            EngineError: it failed, or its outcome is unknown.
        """
        return await self._ask(CLAIM_APART, self._worker, *self._serves, RULES, want, self._ttl_ms, puts_off)

    async def _lost(self, error: Unavailable, what: str) -> None:
        self.uncertain = True
        self._trouble.failed(f"outcome unknown ({what}): {error.message}")
        await self._link.connected_eventually(purpose="turn")

    async def _found_copy(self) -> None:
        # not the fault of a report: the connection leads to a copy, perhaps only this time
        self._copy.found(self._where)
        await clock.sleep(ADOPTION_RETRY_S)

    def _arrived(self, reports: list[RunReport]) -> None:
        self._trouble.succeeded()
        self._copy.ended(self._where)
        if self._is_suspect(reports):
            self._suspects.discard(reports[0].execution)

    async def send_once(
        self,
        reports: list[RunReport],
        want: int,
        *,
        text: str | None = None,
        hints: bool = False,
        idle_ms: int = 0,
    ) -> Answer:
        """Send a turn once; arguments as for `send`.

        Raises:
            EngineError: it failed, or its outcome is unknown.
        """
        procedure, beside = TURN, list[list[str]]()
        if text is None and weight_of(reports) >= LARGE_BYTES:
            text, texts = await self._values.call(partial(encode_large_reports, reports))
            procedure, beside = LARGE_TURN, [texts]
        text = text or encode_reports(reports)
        given = (self._worker, *self._serves, want, text, self._ttl_ms, hints, idle_ms, RULES)
        return await self._ask(procedure, *given, *beside)

    async def _ask(self, procedure: Procedure, *given: Any) -> Answer:
        """Run a turn or a claim, and note for how long there is no answer."""
        self.asked_s = self.asked_s or clock.monotonic()
        known_until_s = self._known_until_s()
        try:
            found: Any = await self._link.run(procedure, *given)
        except Unavailable:
            raise  # no answer: it is asked still
        except EngineError:
            self.asked_s = None
            raise
        self.asked_s = None
        answer = await self._read(found)
        answer.known_until_s = known_until_s
        return answer

    async def _read(self, text: str) -> Answer:
        if len(text) < LARGE_BYTES:
            return decode_answer(text)
        return await self._values.call(partial(decode_answer, text))

    async def _in_parts(
        self, reports: list[RunReport], want: int, error: EngineError, failures: int, hints: bool
    ) -> list[Answer] | None:
        """Send the reports in parts if the fault is that of one of them; None: all are to be sent again."""
        fault = fault_of(error)
        if fault is Fault.SESSION:
            # what it has cached goes with it
            self._link.drop()
        enough = failures > (_SESSIONS_MAX if fault is Fault.SESSION else 1)
        if fault in _NOT_OF_THE_RUN and reports and (enough or self._is_suspect(reports)):
            return await self._around(reports, error, hints)
        if fault is Fault.RUN and (len(reports) > 1 or (reports and want < 0)):
            return await self._apart(reports, error, hints)
        return None

    async def _apart(self, reports: list[RunReport], error: EngineError, hints: bool) -> list[Answer]:
        """Find the report that the database refuses, and halt its run."""
        if len(reports) > 1:
            return await self._halves(reports, hints)
        bad = reports[0]
        bad.progress = None
        refused = bad.end
        if isinstance(refused, Halt) and (bad.outcomes or bad.commands):
            # the outcomes and commands are wrong, not the end
            bad.outcomes, bad.commands = (), ()
            return await self.send([bad], -1)
        self._post(ReportRejected(bad, error))
        if isinstance(refused, Release) and not (bad.outcomes or bad.commands):
            # not even that: the lease is not renewed any more, so it expires
            return []
        # the report in the run's slot is changed, so that the answer finds what was really sent
        if not isinstance(refused, Complete | Fail):
            bad.outcomes, bad.commands = (), ()
        if isinstance(refused, Halt | Release):
            bad.end = Release(retry_in_ms=_RELEASE_MS)
        else:
            problem = {"type": type(error).__name__, "message": error.message, "detail": error.detail}
            bad.end = Halt(problem=msgspec.json.encode(problem).decode())
        return await self.send([bad], -1)

    async def _around(self, reports: list[RunReport], error: EngineError, hints: bool) -> list[Answer]:
        """Find the report that is refused without a fault of its run, and leave it out for now.

        A turn leaves out by itself what a transaction of a user locks. This is for other locks, such as a
        table that is being altered or a row of a side table that somebody locked by hand; and for what an
        operator has to mend, such as a trigger that refuses a row.
        """
        if len(reports) > 1:
            return await self._halves(reports, hints)
        (report,) = reports
        is_locked = fault_of(error) is Fault.REPORT
        if not is_locked and report.execution not in self._suspects:
            what = "what it reports; it is sent again until it arrives"
            run_log.report_refused(report.id, what, error.message)
        self._suspects.add(report.execution)
        locked = [report.id] if is_locked else []
        return [Answer(0, None, [], [], [], False, None, [report.execution], locked)]

    def _is_suspect(self, reports: list[RunReport]) -> bool:
        return len(reports) == 1 and reports[0].execution in self._suspects

    async def _suspects_alone(self, reports: list[RunReport], want: int, hints: bool) -> list[Answer]:
        """Send the reports that waited for a lock the last time after all others, each alone."""
        others = [report for report in reports if report.execution not in self._suspects]
        answers = await self.send(others, want, hints=hints) if others or want > 0 else []
        for report in reports:
            if report.execution in self._suspects:
                answers += await self.send([report], -1, hints=hints)
        return answers

    async def _halves(self, reports: list[RunReport], hints: bool) -> list[Answer]:
        half = len(reports) // 2
        first = await self.send(reports[:half], -1, hints=hints)
        return [*first, *await self.send(reports[half:], -1, hints=hints)]


def _timed_out(error: EngineError) -> bool:
    """Whether the statement took too long, by our clock or the server's, on a connection that works."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        # with a number it is an error of the system: a dead connection
        return cause.errno is None
    return getattr(cause, "sqlstate", None) == _CANCELED
