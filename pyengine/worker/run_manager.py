"""From answers of turns to moves of runs, and from moves to bundles.

What lives here: `RunManager`: the runs that the worker holds, those it keeps warm, and what each verdict
means for them. What may not: SQL, connections, when a turn is sent (dispatcher.py), how a step is run
(step_runner.py). The theory: a claimed run is replayed from its journal or, if its coroutine is still warm,
continued with what came after its suspend. `ok`: the bundle's rows and those around it are loaded and the
coroutine goes on. `stale`: the journal holds what the coroutine has not seen, so it is thrown away and
replayed; attempts under way go on if the replay asks for them again. `lost`: the run is somebody else's
now, so everything of it stops here and nothing of it is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from pyengine.definitions.current_run import RunInfo
from pyengine.definitions.registry import Registry
from pyengine.definitions.retry import Randomness
from pyengine.protocol.commands import (
    Cancelled,
    Complete,
    ContinueAsNew,
    Fail,
    Halt,
    Release,
    StepOutcome,
    deadlines_ms,
)
from pyengine.protocol.journal import Row
from pyengine.protocol.turn import Answer, ClaimedRun, Lease, Verdict
from pyengine.replay.advance import Advance, StepCall
from pyengine.replay.machine import Replay
from pyengine.values.codec import Codec
from pyengine.worker.journal_poller import JournalPoller
from pyengine.worker.run_state import Hooks, LeasedRun, evict, run_info
from pyengine.worker.step_runner import StepRunner, next_attempt
from pyengine.worker.ticker import DatabaseClock

__all__ = ["RELEASE_AFTER_MS", "DatabaseClock", "RunManager"]

logger = logging.getLogger("pyengine.worker")

RELEASE_AFTER_MS = 5_000
"""An attempt that is further away than this does not keep its run here, in milliseconds."""

_SLICE_S = 0.0002
_OUTSIDE = frozenset("IXTjgvAQ")
_LAST = (Complete, Fail, Halt, Cancelled)
_NOTHING: tuple[list[Row], list[Row]] = ([], [])


class RunManager:
    """All runs of this worker.

    Args:
        registry: the code.
        codec: values and errors.
        clock: the database's time.
        randomness: what `ctx.random` draws from.
        steps: runs their steps.
        news: called with a run that has something to report.
        hooks: the worker.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        codec: Codec,
        clock: DatabaseClock,
        randomness: Randomness,
        steps: StepRunner,
        news: Callable[[LeasedRun], None],
        hooks: Hooks,
    ) -> None:
        self._registry = registry
        self._codec = codec
        self._clock = clock
        self._randomness = randomness
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._steps = steps
        self.held: dict[int, LeasedRun] = {}
        self.warm: OrderedDict[int, LeasedRun] = OrderedDict()
        self.news = news
        self.keeper = JournalPoller(self._loop, self.held, news)

    # -- what was answered

    async def apply(self, answer: Answer) -> None:
        """Do what an answer says, letting others run: who sends turns is what the database waits for."""
        loop = self._loop
        self._clock.set(answer.now)
        tails = {execution: (before, after) for execution, before, after in answer.tails}
        until_s = loop.time() + _SLICE_S
        verdicts = answer.verdicts
        if verdicts is not None and verdicts.execution:
            for verdict in verdicts.each():
                held = self.held.get(verdict.execution)
                if held is not None and held.flight is not None:
                    self._judged(held, verdict, tails.get(verdict.execution, _NOTHING), answer.now)
                if loop.time() > until_s:
                    await asyncio.sleep(0)
                    until_s = loop.time() + _SLICE_S
        answer.tasks.reverse()  # what is left in it has yet to come into slots
        while answer.tasks:
            self._claimed(answer.tasks.pop())
            if loop.time() > until_s:
                await asyncio.sleep(0)
                until_s = loop.time() + _SLICE_S

    def _judged(
        self, held: LeasedRun, verdict: Verdict, tail: tuple[list[Row], list[Row]], now_ms: int
    ) -> None:
        held.busy = 0
        if verdict.verdict == "ok":
            self._taken(held, verdict, tail, now_ms)
        elif verdict.verdict == "stale":
            self.replay_anew(held)
        else:
            logger.info("run.lost", extra={"run_id": held.info.id, "version": held.version})
            self.drop(held)

    def _taken(
        self, held: LeasedRun, verdict: Verdict, tail: tuple[list[Row], list[Row]], now_ms: int
    ) -> None:
        """The bundle is in the journal."""
        flight, held.flight = held.flight, None
        assert flight is not None
        end = flight.end
        if end is not None and (
            isinstance(end, _LAST) or (isinstance(end, ContinueAsNew) and verdict.state != "acquired")
        ):
            if isinstance(end, Halt):
                logger.error("run.halted", extra={"run_id": held.info.id, "problem": end.problem})
            self.drop(held)
            return
        before, after = tail
        if not held.accept(flight, before, after, verdict.next, now_ms):
            self.replay_anew(held)
            return
        others = bool(before or after)
        if others and not held.outside:
            held.outside = any(row.type in _OUTSIDE for row in (*before, *after))
        if flight.commands:
            for deadline_ms in deadlines_ms(flight.commands):
                self._hooks.timer(self._loop.time() + deadline_ms / 1000)
        if verdict.state != "acquired":
            self._left(held, verdict.state)
            return
        calls = held.ready_calls(flight, now_ms)
        if flight.outcomes or others or end is not None:
            # what came may give up some of the calls before they begin
            held.parked.update({call.child: call for call in calls})
            self.advance(held)
            calls = calls and [call for call in calls if held.parked.get(call.child) is call]
        elif held.has_news:
            self.news(held)
        if calls and not held.replay.finished:
            for call in calls:
                held.parked.pop(call.child, None)
                self._start_call(held, call)
        if held.in_transaction:
            self._hooks.transaction(held)

    def _left(self, held: LeasedRun, state: str) -> None:
        """The run is suspended or released, with its coroutine warm; or set aside, or ended by others."""
        if state in ("suspended", "released") and not held.ahead:
            del self.held[held.execution]
            for child in tuple(held.steps):
                self._steps.cancel(held, child)
            self.warm[held.execution] = held
            while len(self.warm) > self._hooks.max_warm:
                self.drop(self.warm.popitem(last=False)[1])
        else:
            if state == "halted":
                logger.error("run.halted", extra={"run_id": held.info.id})
            self.drop(held)

    # -- coroutines

    def advance(self, held: LeasedRun) -> None:
        """Let the coroutine of a run go on with what came, unless it has, and that is not recorded yet."""
        if held.seen is None:
            moves, held.kept = held.kept or self.drive(held), None
            self._take(held, moves)

    def drive(self, held: LeasedRun) -> Advance:
        """Advance the coroutine of a run; whatever goes wrong sets the run aside."""
        try:
            return held.replay.advance()
        except Exception as error:  # boundary to user code and to the machine that drives it
            logger.exception("run.replay_failed", extra={"run_id": held.info.id})
            problem = {"type": type(error).__name__, "message": str(error)}
            return Advance(end=Halt(problem=msgspec.json.encode(problem).decode()))

    def _take(self, held: LeasedRun, moves: Advance) -> None:
        for child in moves.given_up:
            self._steps.cancel(held, child)
        held.take(moves)
        if moves.steps and not held.commands:
            for call in moves.steps:
                self._start_call(held, call)
        if held.has_news:
            self.news(held)
        elif held.parked:
            self._release_if_idle(held)
        if held.in_transaction:
            self._hooks.transaction(held)

    def _start_call(self, held: LeasedRun, call: StepCall) -> None:
        if call.retry_at_ms is not None:
            delay_ms = call.retry_at_ms - self._clock.now_ms()
            if delay_ms > 0:
                held.parked[call.child] = call
                self._loop.call_later(delay_ms / 1000, self._unpark, held, call)
                self._release_if_idle(held)
                return
        self._steps.start(held, call)

    def _unpark(self, held: LeasedRun, call: StepCall) -> None:
        if held.parked.get(call.child) is call and self.held.get(held.execution) is held:
            del held.parked[call.child]
            self._steps.start(held, call)

    def _release_if_idle(self, held: LeasedRun) -> None:
        """Give a run back that only waits for an attempt which is far away."""
        if held.parked and held.idle:
            soonest_ms = min(call.retry_at_ms or 0 for call in held.parked.values()) - self._clock.now_ms()
            if soonest_ms > RELEASE_AFTER_MS:
                held.end = Release(retry_in_ms=soonest_ms)
                self.news(held)

    # -- claims

    def _claimed(self, task: ClaimedRun) -> None:
        known = self.held.get(task.execution) or self.warm.get(task.execution)
        if known is not None:
            if known.info.id == task.id and known.version >= task.version:
                return  # a note came late: the run was given back, and claimed since
            warm = self.warm.pop(task.execution, None) is not None
            if warm and task.from_seq and task.version == known.version + 1:
                self._continue(known, task)
                return
            self.drop(known)
        info = run_info(task)
        held = LeasedRun(info, self._replay(info), task.reply)
        self.held[task.execution] = held
        if task.from_seq == 0:
            self._loaded(held, task.rows, task.next)
        else:
            held.loading = True
            self._hooks.fetch(held)

    def _continue(self, held: LeasedRun, task: ClaimedRun) -> None:
        held.version = task.version
        self.held[task.execution] = held
        self._load(held, task.rows)
        parked, held.parked = held.parked, {}
        for call in parked.values():
            self._start_call(held, call)
        self.advance(held)

    def _loaded(self, held: LeasedRun, rows: list[Row], next_seq: int = 0) -> None:
        self._load(held, rows, next_seq)
        self.advance(held)

    def _load(self, held: LeasedRun, rows: list[Row], next_seq: int = 0) -> None:
        held.replay.load(rows, next_seq)
        if rows and not held.outside:
            held.outside = any(row.type in _OUTSIDE for row in rows)

    def _replay(self, info: RunInfo) -> Replay:
        workflow = self._registry.workflow(info.workflow, info.workflow_version)
        return Replay(workflow, info, self._clock.now_ms, self._randomness, self._codec)

    def recorded_outside(self, held: LeasedRun, rows: list[Row], next_seq: int) -> bool:
        """Take what a transaction of its own, not a turn, has written for a run; true if it was advanced.

        Args:
            held: the run; the attempt in question is no longer among its steps.
            rows: its journal from where the coroutine was when the transaction began, or later, to its end.
            next_seq: the logical number after them.
        """
        if held.loading or held.flight is not None or held.commands or held.end or held.seen is not None:
            # an answer is on its way or must come first; the next one brings these rows in their order
            held.keep = True
            self.news(held)
        elif not held.dropped and next_seq > (seen := held.replay.next_seq):
            self._loaded(held, [row for row in rows if row.seq >= seen])
            return True
        return False

    # -- starting over

    def replay_anew(self, held: LeasedRun) -> None:
        """Have the journal of a run fetched, and the run replayed from it."""
        held.loading = True
        held.stop_transaction()
        self._hooks.fetch(held)

    def journal_came(self, held: LeasedRun, rows: list[Row] | None, next_seq: int = 0) -> None:
        """Replay a run from its journal.

        Args:
            held: a run that was marked `loading`.
            rows: its whole journal; None if it is lost.
            next_seq: the logical number after them.
        """
        if held.dropped or self.held.get(held.execution) is not held:
            return
        if rows is None:
            self.drop(held)
            return
        held.loading = False
        if held.flight is not None and held.moved_at == next_seq:
            # it moved, and nothing had: the next holder may know better
            logger.warning("run.stuck", extra={"run_id": held.info.id})
            self._steps.cancel_all(held)
            held.forget(Release(retry_in_ms=1000))
            self.news(held)
            return
        if held.flight is not None:
            held.moved_at = next_seq
        old = held.replay
        unsent = held.start_over(self._replay(held.info))
        evict(old)
        self._load(held, rows)
        self._take(held, self._adopt(held, self.drive(held), unsent))

    def _adopt(self, held: LeasedRun, moves: Advance, unsent: dict[tuple[int, int], StepOutcome]) -> Advance:
        """Go on with the attempts under way, and report the outcomes not taken yet, that the replay asks
        for again.
        """
        new: list[StepCall] = []
        kept: set[int] = set()
        for call in moves.steps:
            run = held.steps.get(call.child)
            outcome = unsent.get((call.child, call.attempt))
            if run is not None and run.call.hash == call.hash and run.call.attempt == call.attempt:
                run.begun = call.begun
                kept.add(call.child)
            elif outcome is not None and outcome.hash == call.hash:
                held.outcomes.append(outcome)
                if outcome.retry_in_ms is not None:
                    held.next_calls[call.child] = next_attempt(call)
            else:
                new.append(call)
        for child in tuple(held.steps):
            if child not in kept:
                self._steps.cancel(held, child)
        return replace(moves, steps=tuple(new))

    # -- the end

    def drop(self, held: LeasedRun) -> None:
        """Forget a run: its steps are cancelled and its coroutine is thrown away."""
        held.dropped = True
        held.stop_transaction()
        self._steps.cancel_all(held)
        if self.held.get(held.execution) is held:
            del self.held[held.execution]
        evict(held.replay)

    def lose(self, leases: list[Lease]) -> None:
        """Drop runs whose lease is lost.

        Args:
            leases: what is lost; a run that was claimed anew since is meant no more, and one whose bundle is
                on its way gets its verdict from there.
        """
        for lease in leases:
            held = self.held.get(lease.execution)
            if held is not None and held.lease == lease and held.flight is None:
                logger.info("run.lost", extra={"run_id": lease.id, "version": lease.version})
                self.drop(held)

    def close(self) -> None:
        """Drop everything."""
        self.keeper.close()
        for held in (*self.held.values(), *self.warm.values()):
            self.drop(held)
        self.warm.clear()
