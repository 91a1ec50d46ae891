"""The turns of a worker: the time of each, its requests, and the events of its answer.

Lives here: `TurnLoop`, the two loops between the queue of reports and the events that answers are. May not:
the shape of a turn (protocol/turn.py), the meaning of a verdict for a run (run_manager.py). Design: one turn
is on its way at any time, and the next one leaves as soon as it is back and anything has changed; so an idle
worker needs one round trip for a step, and under load hundreds of steps share a commit. While a turn is on
its way the answer before it is worked through, so Python and Postgres work at the same time. For that a turn
never carries more than half of the runs: if all of them were in one, there would be nothing to work on
meanwhile. Slots are taken by runs that are being worked on, not by those that wait. Large reports go beside
(report_queue.py), and their answers come into the same queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from pyengine.core.database.listener import Listener
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import RELEASE_UNKNOWN
from pyengine.core.definitions.services import SERVICE
from pyengine.core.process import clock
from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.core.protocol.commands import Cancelled, Complete, Fail, Refuse
from pyengine.core.protocol.journal import Row
from pyengine.core.protocol.turn import NEVER_MS, Answer, RunReport, decode_handoff
from pyengine.core.worker.blocked_runs import BlockedRuns, pause_s
from pyengine.core.worker.capacity import Capacity
from pyengine.core.worker.dispatcher import Dispatcher
from pyengine.core.worker.events import Event, ReportAnswered, ReportBusy, RunClaimed
from pyengine.core.worker.handoff import Handoff
from pyengine.core.worker.report_queue import REPORTS_MAX, LargeReports, ReportQueue, TurnBatch
from pyengine.core.worker.run_manager import RunManager
from pyengine.core.worker.ticker import DatabaseClock, Ticker
from pyengine.core.worker.turn_sender import Identity, TurnSender
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.turn")

_ANSWERS_MAX = 2
_FEW = 4
_SETTLES = (Complete, Fail, Refuse, Cancelled)
_CLAIM_SHARE = 8
_IN_STEP = 2
_AGAIN_S = 1.0
_UNKNOWN_AGAIN_S = 5.0
_REMEMBERED = 1000
_STOP_WITHIN_S = 1.0
_NO_ROWS: tuple[list[Row], list[Row]] = ([], [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a worker that turns need.

    Args:
        runs: the runs, to count them.
        dispatcher: takes the events.
        turns: sends turns.
        side: connections for everything else.
        listener: hints, from and to others.
        clock: is set by each answer.
        ticker: takes deadlines.
        handoff: registers the worker as idle.
        slots: runs worked on at a time.
        blocked: takes what is left out because somebody has it locked.
        terms: say until when the lease of a hand-off is known to hold.
        poll: when to poll for runs to claim.
        wake: set when there is something to do.
    """

    runs: RunManager
    dispatcher: Dispatcher
    turns: TurnSender
    side: ConnectionPool
    listener: Listener
    clock: DatabaseClock
    ticker: Ticker
    handoff: Handoff
    slots: Capacity
    blocked: BlockedRuns
    terms: LeaseTerms
    poll: PollSchedule
    wake: asyncio.Event


class TurnLoop:
    """Sends turns and turns their answers into events.

    Args:
        parts: the parts that it needs.
        identity: the worker, and what it can run.
    """

    def __init__(self, parts: Parts, identity: Identity) -> None:
        self._parts = parts
        self._worker = identity.worker
        self._queues = frozenset(identity.queues)
        self._large = LargeReports(parts.turns.another(), self._large_came_back)
        self._reports = ReportQueue(parts.runs.dirty, self._large.came)
        self._slots = parts.slots
        self._share = max(1, min(parts.slots.most // _IN_STEP, REPORTS_MAX))
        self._poll = parts.poll
        self._answers: deque[tuple[Answer, dict[int, RunReport]]] = deque()
        self._returned = asyncio.Event()
        self._worked_through = asyncio.Event()
        self._unknown_at_s: float | None = None
        self._unknown_left = 0
        self._unknown_timer: clock.Timer | None = None
        self._stopping = self._draining = False
        self._hints = 0
        self._wanted = 0
        self._is_away = False
        self._giving_back = False
        self._given_back: deque[str] = deque(maxlen=_REMEMBERED)
        self._vain_claims = 0
        self._handed: list[Answer] = []

    def hinted(self) -> None:
        """Poll for runs to claim at once, and soon again."""
        self._hints += 1
        self._poll.hinted(clock.monotonic())
        self._parts.wake.set()

    # -- sending

    async def send(self) -> None:
        """Send turns until `stop`."""
        parts, reports, poll = self._parts, self._reports, self._poll
        parts.listener.add_receiver(parts.handoff.address, self.message_came, self.messages_lost)
        while not self._stopping:
            if len(self._answers) >= _ANSWERS_MAX:
                # not woken by each run that has something to report
                self._worked_through.clear()
                await self._worked_through.wait()
                continue
            now_s = clock.monotonic()
            if self._unknown_at_s is not None and self._unknown_at_s <= now_s and not self._answers:
                await self.give_back_unknown()
            free = self._free()
            # a claim for a few slots is worth a turn of its own only if nothing else is going on
            enough = free >= self._slots.now // _CLAIM_SHARE or not (reports or self._answers)
            due = poll.at <= now_s
            if not (reports or (due and free > 0 and enough)):
                waits_for_poll = free > 0 and not due
                if waits_for_poll and not self._answers:
                    parts.handoff.idle()
                await self._woken(poll.at if waits_for_poll else None)
                continue
            batch = reports.collect(now_s, self._share)
            free = max(0, self._free()) if due else 0
            want = free if free >= self._slots.now // _CLAIM_SHARE or not batch.reports else 0
            want = 0 if _is_awaited(batch.reports) else min(want, self._share)
            if batch.reports or want:
                await self._turn(batch, -1 if self._draining else want)

    async def send_large(self) -> None:
        """Send the turns of large reports until `stop`."""
        await self._large.send(self._reports)

    async def _woken(self, at_s: float | None = None) -> None:
        """Wait until there may be something to do, or until that time."""
        wake = self._parts.wake
        wake.clear()
        handle = None if at_s is None else clock.call_at(at_s, wake.set)
        try:
            await wake.wait()
        finally:
            if handle is not None:
                handle.cancel()
        self._parts.handoff.busy()

    @property
    def coming(self) -> int:
        """How many claimed runs stand in answers that have yet to be worked through."""
        return sum(len(answer.tasks) for answer, _ in self._answers)

    def _free(self) -> int:
        """Slots that no run is in, or about to come into."""
        return 0 if self._draining else self._slots.free(packed_ends=self._reports.ends) - self.coming

    async def _turn(self, batch: TurnBatch, want: int) -> None:
        """Send one turn; a small one that settles something sends the hint with its commit."""
        reports = batch.reports
        hints = 0 < len(reports) <= _FEW and any(isinstance(one.end, _SETTLES) for one in reports)
        # hand-offs come one by one, and somebody waits for their end
        hints = hints and (self._parts.listener.with_commit("durable_settled") or _is_awaited(reports))
        hints_before, self._wanted = self._hints, want
        sent_s = clock.monotonic()
        self._is_away = True
        idle_ms = self._idle_ms(reports, want, sent_s)
        answers = await self._parts.turns.send(reports, want, text=batch.text, hints=hints, idle_ms=idle_ms)
        self._is_away = False
        if idle_ms:
            self._parts.handoff.idle_with_turn(registered=any(answer.idle for answer in answers))
        self._wanted = 0
        self._came_back(answers, reports, want, sent_s, hinted=hints, turns=self._parts.turns)
        if self._hints != hints_before:
            # a hint came while the turn was on its way, perhaps too late for it
            self._poll.hinted(clock.monotonic())

    def _idle_ms(self, reports: list[RunReport], want: int, now_s: float) -> int:
        """For how long this turn registers the worker as idle: only if it ends the one run here."""
        alone = want < 1 and len(reports) == 1 and reports[0].end is not None
        # one answer is still being worked through: the one that brought the run
        idle = not (self._poll.is_hinted(now_s) or self._reports) and len(self._answers) < 2
        return self._parts.handoff.may_register() if alone and idle and self._free() > 0 else 0

    async def finish(self) -> None:
        """Stop sending; once the last answer is worked through, send all that is left.

        Raises:
            EngineError: a turn failed.
        """
        self.stop()
        await self._large.stop()
        while self._answers:
            await clock.sleep(0.001)
        until_s = clock.monotonic() + _STOP_WITHIN_S
        sent: set[int] = set()
        busy: list[RunReport] = []
        while reports := self._reports.collect(clock.monotonic(), REPORTS_MAX).reports:
            sent.update([report.execution for report in reports])
            busy += await self._send_last(reports)
        while reports := self._reports.take_large():
            sent.update([report.execution for report in reports])
            busy += await self._send_last(reports)
        others = [
            run for run in self._parts.runs.leased.values() if run.resends and run.execution not in sent
        ]
        busy += await self._send_last([run.report for run in others if run.report is not None])
        while busy and clock.monotonic() <= until_s:
            await clock.sleep(pause_s(3))
            busy = await self._send_last(busy)

    async def _send_last(self, reports: list[RunReport]) -> list[RunReport]:
        """Send reports whose answers change nothing here any more, and return those that met a lock."""
        busy: list[RunReport] = []
        settled = False
        for first in range(0, len(reports), REPORTS_MAX):
            portion = reports[first : first + REPORTS_MAX]
            answer = await self._parts.turns.send_once(portion, -1)
            busy += [report for report in portion if report.execution in answer.busy]
            settled = settled or answer.settled
        if settled:
            self._parts.listener.wake("durable_settled")
            await self._parts.listener.send_now("durable_settled")
        return busy

    def drain(self) -> None:
        """Claim nothing more."""
        self._draining = True
        self._parts.wake.set()

    def give_back_others(self) -> None:
        """Release the runs that are leased to this worker and not kept here any more."""
        self._unknown_at_s, self._unknown_left = clock.monotonic(), 1
        self._parts.wake.set()

    def stop(self) -> None:
        """Send no further turn."""
        self._stopping = True
        self._worked_through.set()
        self._parts.wake.set()

    async def close(self) -> None:
        """Take no direct messages any more, and close the connection."""
        if self._unknown_timer is not None:
            self._unknown_timer.cancel()
        self._parts.listener.remove_receiver(self._parts.handoff.address)
        await self._large.close()
        await self._parts.turns.close()

    # -- answers

    def _large_came_back(self, answers: list[Answer], reports: list[RunReport], turns: TurnSender) -> None:
        """Take the answers to large reports; what they say of the time is old."""
        for answer in answers:
            answer.due_in = None
        self._came_back(answers, reports, -1, clock.monotonic(), hinted=False, turns=turns)

    def _came_back(
        self,
        answers: list[Answer],
        reports: list[RunReport],
        want: int,
        sent_s: float,
        *,
        hinted: bool,
        turns: TurnSender,
    ) -> None:
        now_s, parts = clock.monotonic(), self._parts
        sent = {report.execution: report for report in reports}
        if turns is parts.turns:
            parts.clock.set(answers[-1].now if answers else 0)
        if turns.uncertain:
            turns.uncertain = False
            self._release_unknown_soon()
            # the lost turn may have settled something, or made runs ready
            parts.listener.send("durable_settled")
            parts.listener.send("durable_ready")
        claimed = sum(len(answer.tasks) for answer in answers)
        if want > 0:
            self._poll.polled(now_s, found=claimed > 0)
            if claimed >= want:
                self._poll.hinted(now_s)
        for answer in answers:
            self._record_locked(answer, sent, now_s)
            if answer.due_in is not None:
                due_in_ms = None if answer.due_in >= NEVER_MS else answer.due_in
                parts.ticker.record_due(sent_s, now_s, due_in_ms)
            if answer.hints:
                self._pass_on(answer.hints)
            if answer.settled:
                parts.listener.announce("durable_settled", with_commit=hinted)
        if claimed:
            parts.ticker.record_activity(now_s)
        self._answers.extend([(answer, sent) for answer in answers])
        self._returned.set()
        self._accept_handed()
        if claimed and parts.handoff.registered and self._free() < 1:
            parts.handoff.withdraw()

    def _record_locked(self, answer: Answer, sent: dict[int, RunReport], now_s: float) -> None:
        """Send again, after a pause, the reports that met what somebody has locked, and claim again."""
        for execution in answer.busy:
            self._parts.dispatcher.post(ReportBusy(sent[execution]))
        if answer.locked:
            self._parts.blocked.record(answer.locked, now_s)
        if answer.locked and not answer.busy:
            self._vain_claims += 1
            self._poll.poll_within(now_s, pause_s(self._vain_claims))
        elif not answer.locked:
            self._vain_claims = 0

    def _pass_on(self, queues: list[str]) -> None:
        """Poll if runs became ready in queues of ours, and send the hint if others may have to serve them."""
        mine = self._queues.intersection(queues)
        if mine:
            self._poll.hinted(clock.monotonic())
        if self._parts.ticker.others or len(mine) < len(queues):
            self._parts.listener.send("durable_ready")
        if any(queue.startswith(SERVICE) for queue in queues):
            self._parts.listener.wake("durable_ready")

    async def apply(self) -> None:
        """Have answers worked through, one after the other, for ever."""
        parts = self._parts
        while True:
            await self._returned.wait()
            self._returned.clear()
            while self._answers:
                answer, sent = self._answers[0]
                await parts.dispatcher.post_all(_events(answer, sent))
                self._answers.popleft()
                self._worked_through.set()
                parts.wake.set()
            # steps that have begun, and end at once, belong in the next turn
            await asyncio.sleep(0)
            if self._is_away and not self._answers:
                self._reports.pack(clock.monotonic(), self._share)

    # -- hand-offs and unknown leases

    def message_came(self, text: str) -> None:
        """Take a run that was leased to this worker by the very start of it."""
        self._parts.handoff.used()
        try:
            answer = decode_handoff(text).answer()
        except msgspec.DecodeError:
            # of another release, perhaps; other workers can claim the run
            logger.exception("a note cannot be read; what came with it is given back")
            self._release_unknown_soon()
        else:
            self.handed_off(answer)

    def handed_off(self, answer: Answer) -> None:
        """Take a run that was handed off, once there is room for it."""
        answer.known_until_s = self._parts.terms.handed(answer.tasks[0].execution)
        self._handed.append(answer)
        self._accept_handed()

    def messages_lost(self) -> None:
        """The connection for direct messages was lost, or is a new one."""
        self._parts.handoff.connection_changed()
        self._release_unknown_soon()

    def _accept_handed(self) -> None:
        """Accept handed-off runs while unreserved slots remain."""
        if self._giving_back:
            return
        now_s, ticker = clock.monotonic(), self._parts.ticker
        handed, self._handed = self._handed, []
        for answer in handed:
            if answer.tasks[0].id in self._given_back:
                continue
            free = self._free()
            if free < 1:
                self._release_unknown_soon()
            elif free <= self._wanted:
                # the answer that is on its way may need them
                self._handed.append(answer)
            else:
                if answer.due_in is not None:
                    ticker.record_timer(now_s + answer.due_in / 1000)
                ticker.record_activity(now_s)
                self._answers.append((answer, {}))
                self._returned.set()

    def _release_unknown_soon(self) -> None:
        """A lost message may have leased runs to this worker that it never saw: release them soon."""
        self._unknown_at_s, self._unknown_left = clock.monotonic(), 2
        self._parts.wake.set()

    async def give_back_unknown(self) -> None:
        """Release runs that a lost turn may have claimed and that lost messages handed over; twice, because
        the turn may still be executing.
        """
        known = [(one.execution, one.info.id) for one in self._parts.runs.leased.values()]
        self._giving_back = True
        try:
            released = await self._parts.side.run(
                RELEASE_UNKNOWN, self._worker, [number for number, _ in known], [id for _, id in known]
            )
        except EngineError as error:
            logger.debug("unknown leases: %s", error.message)
            # they may have been released; if not, the next time does it
            self._handed.clear()
            self._unknown_at_s = clock.monotonic() + _AGAIN_S
        else:
            self._unknown_left -= 1
            self._unknown_at_s = clock.monotonic() + _UNKNOWN_AGAIN_S if self._unknown_left else None
            self._given_back.extend(released)
            if released:
                self.hinted()
                self._parts.listener.send("durable_ready")
        finally:
            self._giving_back = False
        self._accept_handed()
        if self._unknown_at_s is not None:
            self._unknown_timer = clock.call_at(self._unknown_at_s, self._parts.wake.set)


def _events(answer: Answer, sent: dict[int, RunReport]) -> Iterator[Event]:
    """Return the events of an answer to these reports. The tasks left in it have yet to come into slots."""
    verdicts = answer.verdicts
    if verdicts is not None:
        others = {execution: (before, after) for execution, before, after in answer.tails}
        for execution, verdict, state, next_seq in verdicts.each():
            before, after = others.get(execution, _NO_ROWS)
            yield ReportAnswered(sent[execution], verdict, state, next_seq or 0, before, after, answer.now)
    answer.tasks.reverse()
    while answer.tasks:
        yield RunClaimed(answer.tasks.pop(), answer.known_until_s)


def _is_awaited(reports: Sequence[RunReport]) -> bool:
    """Whether that is the end of one run, of which the process that started it gets a direct message: a turn
    that claims besides sends none, and that process would have to poll.
    """
    return len(reports) == 1 and reports[0].reply is not None and isinstance(reports[0].end, _SETTLES)
