"""The exchange of turns: when one leaves, what it asks for, and what follows from its answer.

What lives here: `Dispatcher`, the two loops between the queue of runs with news and the holdings. What may
not: the shape of a turn (turn_sender.py), what a verdict means for a run (run_manager.py). The theory: one
turn is on its way at any time, and the next one leaves as soon as it is back and anything has moved; so at
rest a step costs one round trip, and under load hundreds of steps share a commit. While a turn is on its way
the answer before it is worked through, so Python and Postgres work at the same time. For that a turn never
carries more than half of the runs: if all of them were in one, there would be nothing to work on meanwhile.
Slots are taken by runs that are being worked on, not by those that wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.database.listener import Listener
from pyengine.database.poll_schedule import PollSchedule
from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.procedures import JOURNAL, RELEASE_UNKNOWN
from pyengine.definitions.sql_steps import SERVICE
from pyengine.errors import EngineError
from pyengine.protocol.commands import Cancelled, Complete, Fail, Halt, Release
from pyengine.protocol.turn import NEVER_MS, Answer, RunReport, decode_journal
from pyengine.worker.blocked_runs import BlockedRuns, pause_s
from pyengine.worker.capacity import Capacity
from pyengine.worker.handoff import Handoff
from pyengine.worker.report_queue import BUNDLES_MAX, ReportQueue, TurnBatch
from pyengine.worker.run_manager import RunManager
from pyengine.worker.run_state import LeasedRun
from pyengine.worker.ticker import Ticker
from pyengine.worker.turn_sender import Identity, TurnSender

__all__ = ["Dispatcher", "Parts"]

logger = logging.getLogger("pyengine.exchange")

_ANSWERS_MAX = 2
_FEW = 4
_SETTLES = (Complete, Fail, Cancelled)
_CLAIM_SHARE = 8
_IN_STEP = 2
_AGAIN_S = 1.0
_ADRIFT_AGAIN_S = 5.0
_REMEMBERED = 1000
_WAITING_ENDS_MAX = 1000
_STOP_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an exchange works with.

    Args:
        turns: sends turns.
        side: connections for everything else.
        listener: hints, from and to others.
        housekeeper: is told of deadlines.
        queue: runs with something to report.
        rest: how runs are handed over at their start.
        blocked: is told of what is left out because somebody has it locked.
        wake: set when there is something to do.
    """

    turns: TurnSender
    side: ConnectionPool
    listener: Listener
    housekeeper: Ticker
    queue: ReportQueue
    rest: Handoff
    blocked: BlockedRuns
    wake: asyncio.Event


class Dispatcher:
    """Sends turns and has their answers worked through.

    Args:
        parts: what it works with.
        identity: who takes turns.
        slots: runs worked on at a time.
        looks: when to look for runs to claim.
    """

    def __init__(self, parts: Parts, identity: Identity, *, slots: Capacity, looks: PollSchedule) -> None:
        self._parts = parts
        self._turns = parts.turns
        self._turns.refused = self._refused
        self._worker = identity.worker
        self._queues = frozenset(identity.queues)
        self._slots = slots
        self._share = max(1, min(slots.most // _IN_STEP, BUNDLES_MAX))
        self._looks = looks
        self._loop = asyncio.get_running_loop()
        self._answers: deque[Answer] = deque()
        self._returned = asyncio.Event()
        self._aside: set[asyncio.Task[None]] = set()
        self._adrift_at_s: float | None = None
        self._adrift_left = 0
        self._stopping = False
        self._asked = 0
        self._wanted = 0
        self._is_away = False
        self._giving_back = False
        self._given_back: deque[str] = deque(maxlen=_REMEMBERED)
        self._vain_claims = 0
        self._notes: list[Answer] = []
        self.holdings: RunManager
        parts.rest.handed, parts.rest.missed = self._handed, self._missed

    def look(self) -> None:
        """Look for runs to claim at once, and soon again."""
        self._asked += 1
        self._looks.hinted(self._loop.time())
        self._parts.wake.set()

    # -- sending

    async def send(self) -> None:
        """Send turns until `stop`."""
        queue, looks, loop, wake = self._parts.queue, self._looks, self._loop, self._parts.wake
        rest = self._parts.rest
        rest.begin()
        while not self._stopping:
            now_s = loop.time()
            if self._adrift_at_s is not None and self._adrift_at_s <= now_s and not self._answers:
                await self._give_back_unknown()
            free = self._free()
            # a claim for a few slots is worth a turn of its own only if nothing else is going on
            enough = free >= self._slots.now // _CLAIM_SHARE or not (queue or self._answers)
            due = looks.at <= now_s
            full = len(self._answers) >= _ANSWERS_MAX
            if full or not (queue or (due and free > 0 and enough)):
                wake.clear()
                handle = None
                if free > 0 and not (due or full):
                    handle = loop.call_at(looks.at, wake.set)
                    if not self._answers:
                        rest.quiet()
                await wake.wait()
                rest.stirred()
                if handle is not None:
                    handle.cancel()
                continue
            load = queue.collect(now_s, self._share)
            free = max(0, self._free()) if due else 0
            want = free if free >= self._slots.now // _CLAIM_SHARE or not load.bundles else 0
            want = 0 if _is_noted(load.bundles) else min(want, self._share)
            if load.bundles or want:
                await self._turn(load, want)

    def _free(self) -> int:
        """Slots that nothing is in or about to come into; a run that its bundle ends is out, even while
        somebody has locked what the bundle needs, unless too many are.
        """
        held = self.holdings.held.values()
        ending = [one for one in held if one.flight is not None and one.flight.end is not None]
        leaving = len(ending) - self._parts.queue.ends
        leaving -= max(0, sum([one.busy > 0 for one in ending]) - _WAITING_ENDS_MAX)
        coming = sum(len(answer.tasks) for answer in self._answers)
        return self._slots.now - len(held) + leaving - coming

    async def _turn(self, load: TurnBatch, want: int) -> None:
        """Send one turn; a small one that settles something tells so itself."""
        bundles = load.bundles
        tells = 0 < len(bundles) <= _FEW and any(isinstance(one.end, _SETTLES) for one in bundles)
        # what was handed over comes one by one, and its end is waited for
        tells = tells and (self._parts.listener.with_commit("durable_settled") or _is_noted(bundles))
        asked, self._wanted = self._asked, want
        sent_s = self._loop.time()
        self._is_away = True
        idle_ms = self._rests_ms(bundles, want, sent_s)
        answers = await self._turns.send(bundles, want, text=load.text, tells=tells, idle_ms=idle_ms)
        self._is_away = False
        if idle_ms:
            self._parts.rest.resumed(believed=any(answer.idle for answer in answers))
        self._wanted = 0
        self._came_back(answers, want, sent_s, told=tells)
        if self._asked != asked:
            # the hint came while it was on its way: what it tells of may have been too late for it
            self._looks.hinted(self._loop.time())

    def _rests_ms(self, bundles: list[RunReport], want: int, now_s: float) -> int:
        """How long this worker rests again, if this turn ends the one run that it works on."""
        alone = want < 1 and len(bundles) == 1 and bundles[0].end is not None
        # one answer is still being worked through: the one that brought the run
        idle = self._looks.at > now_s and not self._parts.queue and len(self._answers) < 2
        return self._parts.rest.resume() if alone and idle and self._free() > 0 else 0

    async def finish(self) -> None:
        """Stop sending; send what has moved once more when the last answer is worked through.

        Raises:
            EngineError: the last turn failed.
        """
        self.stop()
        while self._answers:
            await asyncio.sleep(0.001)
        bundles = self._parts.queue.collect(self._loop.time()).bundles
        bundles += [held.flight for held in self.holdings.held.values() if held.busy and held.flight]
        until_s = self._loop.time() + _STOP_WITHIN_S
        while bundles:
            answer = await self._turns.send_once(bundles, -1)
            bundles = [bundle for bundle in bundles if bundle.execution in answer.busy]
            if self._loop.time() > until_s:
                break
            if bundles:
                await asyncio.sleep(pause_s(3))

    def stop(self) -> None:
        """Send no further turn."""
        self._stopping = True
        self._parts.wake.set()

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)
        await self._turns.close()

    # -- answers

    def _came_back(self, answers: list[Answer], want: int, sent_s: float, *, told: bool) -> None:
        now_s, parts = self._loop.time(), self._parts
        if self._turns.uncertain:
            self._turns.uncertain = False
            self._missed()
            # nobody knows what the lost turn did
            parts.listener.send("durable_settled")
            parts.listener.send("durable_ready")
        claimed = sum(len(answer.tasks) for answer in answers)
        if want > 0:
            self._looks.polled(now_s, found=claimed > 0)
            if claimed >= want:
                self._looks.hinted(now_s)
        for answer in answers:
            self._left_out(answer, now_s)
            if answer.due_in is not None:
                due_in_ms = None if answer.due_in >= NEVER_MS else answer.due_in
                parts.housekeeper.note_due(sent_s, now_s, due_in_ms)
            if answer.hints:
                self._pass_on(answer.hints)
            if answer.settled:
                parts.listener.announce("durable_settled", with_commit=told)
        if claimed:
            parts.housekeeper.note_activity(now_s)
        self._answers.extend(answers)
        self._returned.set()
        self._take_notes()
        if claimed and parts.rest.offered and self._free() < 1:
            parts.rest.withdraw()

    def _left_out(self, answer: Answer, now_s: float) -> None:
        """Send again, after a pause, the bundles that met what somebody has locked, and claim again."""
        for execution in answer.busy:
            held = self.holdings.held.get(execution)
            if held is not None and held.flight is not None:
                held.busy += 1
                pause = pause_s(held.busy) * (0.75 + 0.5 * random.random())
                self._loop.call_later(pause, self._parts.queue.again, held)
        if answer.held:
            self._parts.blocked.seen(answer.held, now_s)
        if answer.held and not answer.busy:
            self._vain_claims += 1
            self._looks.poll_within(now_s, pause_s(self._vain_claims))
        elif not answer.held:
            self._vain_claims = 0

    # -- what starts hand over

    def _handed(self, answer: Answer) -> None:
        """Take a run that the very start of it made ours."""
        self._notes.append(answer)
        self._take_notes()

    def _take_notes(self) -> None:
        """Take what was handed over, as far as there are slots that nothing else is coming into."""
        if self._giving_back:
            return
        now_s, housekeeper = self._loop.time(), self._parts.housekeeper
        notes, self._notes = self._notes, []
        for answer in notes:
            if answer.tasks[0].id in self._given_back:
                continue
            free = self._free()
            if free < 1:
                self._missed()
            elif free <= self._wanted:
                # the answer that is on its way may need them
                self._notes.append(answer)
            else:
                if answer.due_in is not None:
                    housekeeper.note_timer(now_s + answer.due_in / 1000)
                housekeeper.note_activity(now_s)
                self._answers.append(answer)
                self._returned.set()

    def _missed(self) -> None:
        """There may be runs that are ours and that nobody here knows: give them back."""
        self._adrift_at_s, self._adrift_left = self._loop.time(), 2
        self._parts.wake.set()

    def _pass_on(self, queues: list[str]) -> None:
        """Runs became ready in these queues: look, and tell others if they may have to serve them."""
        mine = self._queues.intersection(queues)
        if mine:
            self._looks.hinted(self._loop.time())
        if self._parts.housekeeper.others or len(mine) < len(queues):
            self._parts.listener.send("durable_ready")
        if any(queue.startswith(SERVICE) for queue in queues):
            self._parts.listener.wake("durable_ready")

    async def apply(self) -> None:
        """Have answers worked through, one after the other, for ever."""
        while True:
            await self._returned.wait()
            self._returned.clear()
            while self._answers:
                await self.holdings.apply(self._answers[0])
                self._answers.popleft()
                self._parts.wake.set()
            # steps that have begun, and end at once, belong in the next turn
            await asyncio.sleep(0)
            if self._is_away and not self._answers:
                self._parts.queue.pack(self._loop.time(), self._share)

    def _refused(self, bundle: RunReport, error: EngineError) -> None:
        held = self.holdings.held.get(bundle.execution)
        run_id = held.info.id if held is not None else bundle.execution
        if not isinstance(bundle.end, Halt | Release):
            logger.error("run %s: the database refuses what it reports; it is halted: %s", run_id, error)
            return
        logger.error("run %s: the database refuses to set it aside; it is given back: %s", run_id, error)
        if held is not None:
            # its lease must not be renewed, and its coroutine is ahead of the journal
            self.holdings.drop(held)

    async def _give_back_unknown(self) -> None:
        """Give back what a turn whose answer was lost may have claimed, and what notes that were lost handed
        over; twice, because it may still be under way.
        """
        known = [(one.execution, one.info.id) for one in self.holdings.held.values()]
        self._giving_back = True
        try:
            released = await self._parts.side.run(
                RELEASE_UNKNOWN, self._worker, [number for number, _ in known], [id for _, id in known]
            )
        except EngineError as error:
            logger.debug("adrift: %s", error.message)
            # they may have been given back; if not, the next time does it
            self._notes.clear()
            self._adrift_at_s = self._loop.time() + _AGAIN_S
        else:
            self._adrift_left -= 1
            self._adrift_at_s = self._loop.time() + _ADRIFT_AGAIN_S if self._adrift_left else None
            self._given_back.extend(released)
            if released:
                self.look()
                self._parts.listener.send("durable_ready")
        finally:
            self._giving_back = False
        self._take_notes()
        if self._adrift_at_s is not None:
            self._loop.call_at(self._adrift_at_s, self._parts.wake.set)

    # -- journals

    def fetch(self, held: LeasedRun) -> None:
        """Get the journal of a run and hand it to the holdings."""
        task = self._loop.create_task(self._fetch(held))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _fetch(self, held: LeasedRun) -> None:
        while not held.dropped:
            try:
                text = await self._parts.side.run(JOURNAL, self._worker, *held.lease)
            except EngineError as error:
                logger.warning("journal of run %s: %s", held.info.id, error.message)
                await asyncio.sleep(_AGAIN_S)
                continue
            if text is None:
                self.holdings.journal_came(held, None)
            else:
                journal = decode_journal(text)
                self.holdings.journal_came(held, journal.rows, journal.next)
            self._parts.wake.set()
            return


def _is_noted(bundles: Sequence[RunReport]) -> bool:
    """Whether that is the end of one run, to be noted to the process that started it: a turn that claims
    besides notes nothing, and that process would have to look.
    """
    return len(bundles) == 1 and bundles[0].reply is not None and isinstance(bundles[0].end, _SETTLES)
