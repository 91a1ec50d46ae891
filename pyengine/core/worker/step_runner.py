"""Running the bodies of steps.

Lives here: `StepRunner`, which executes one attempt of a step and posts its outcome. May not: turns, the
journal, the choice of the next attempt (run_driver.py), what steps show while they run (attempts.py), the
record of an error (failures.py).
Design: an attempt ends in exactly one event, or in none if its outcome is not needed any more (the run was
lost, released or has ended, or the step was given up). Then async bodies, which are tasks of the worker's
loop, are cancelled, and sync ones, which run in threads, can see it in their token. A failure that the policy
retries is an outcome too, with its delay. The first of several outcomes of a step states its policy, which
governs the step from then on. A result is written and checked in the thread that its body ran in; that of an
async body in the loop, or in a thread of ours if it is large.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import FrameType
from typing import Any

from pyengine.core.definitions.current_run import StepInfo, current_step
from pyengine.core.definitions.retry import Randomness
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.core.process.lease_terms import LeaseOver, LeaseTerms
from pyengine.core.process.thread_pool import Job, ThreadPool, ValueThreads
from pyengine.core.protocol.commands import StepOutcome
from pyengine.core.protocol.turn import Lease
from pyengine.core.replay.advance import StepCall
from pyengine.core.values.codec import Codec
from pyengine.core.values.sizes import is_large
from pyengine.core.worker.attempts import Attempt, StepProgress, step_outcome
from pyengine.core.worker.capacity import Capacity
from pyengine.core.worker.effects import CancelAttempt, StartAttempt
from pyengine.core.worker.events import AttemptDeferred, AttemptEnded, BodyEnded, Event, StepProgressed
from pyengine.core.worker.failures import Failures
from pyengine.core.worker.run_driver import RunDriver
from pyengine.core.worker.run_state import LeasedRun
from pyengine.errors import EncodeError, EngineError, PayloadTooLarge, StepTimeout

logger = logging.getLogger("pyengine.steps")

_EAGER = sys.version_info >= (3, 12)
LOOK_S = 1.0
"""How long a sync body that was cancelled may take to ask for that for the first time, in seconds."""
UNWIND_S = 5.0
"""How long an async body may take to end after it was cancelled, in seconds."""
WRITING_S = 120.0
"""How long a result may take to be written, in seconds; its classes are the user's, and may hang."""


def too_long(call: StepCall) -> StepTimeout:
    """Return the error of an attempt that has used up its time."""
    timeout_ms = call.step.timeout_ms or 0
    return StepTimeout(
        f"step {call.name} took longer than {timeout_ms / 1000:g} s", step=call.name, timeout_ms=timeout_ms
    )


def renewable(runs: Iterable[LeasedRun]) -> dict[Lease, LeasedRun]:
    """Return the leases to renew: not those of runs whose steps do not end at their timeout, or whose results
    are not written after a time in which the largest is.
    """
    now_s = clock.monotonic()
    leases = {}
    for run in runs:
        if not any(_is_overdue(attempt, now_s) for attempt in run.phase.attempts.copy().values()):
            leases[run.lease] = run
    return leases


def _is_overdue(attempt: Attempt, now_s: float) -> bool:
    if attempt.returned_s:
        return attempt.returned_s < now_s - WRITING_S
    timeout_ms = attempt.call.step.timeout_ms
    late = timeout_ms is not None and attempt.started_s + timeout_ms / 1000 < now_s - 2 * UNWIND_S
    return attempt.started_s > 0 and late


def lease_in(
    frame: FrameType | None, loop: asyncio.AbstractEventLoop, leased: Mapping[int, LeasedRun]
) -> Lease | None:
    """Return the lease of the run whose code the thread of a loop executes, if it is known.

    Args:
        frame: where the thread is.
        loop: its loop.
        leased: all runs of the worker, by execution.
    """
    while frame is not None:
        if frame.f_code in (StepRunner._execute.__code__, RunDriver.drive.__code__):
            run: LeasedRun = frame.f_locals["run"]
            return run.lease
        frame = frame.f_back
    # a task that a step has begun; there is no other way to its context before Python 3.12
    task = asyncio.current_task(loop)
    contexts = [one for one in gc.get_referents(task) if isinstance(one, contextvars.Context)]
    steps = [step for one in contexts if (step := one.get(current_step)) is not None]
    found = leased.get(steps[0].execution) if steps else None
    return None if found is None else found.lease


class _Written:
    """An outcome that was written in the thread of its body, or the fault of ours that it met."""

    def __init__(self, write: Callable[[], StepOutcome]) -> None:
        self._outcome: StepOutcome | None = None
        self._fault: Exception | None = None
        try:
            self._outcome = write()
        except Exception as fault:  # boundary: it is no error of the body
            self._fault = fault

    def outcome(self) -> StepOutcome:
        """Return it.

        Raises:
            Exception: the fault.
        """
        if self._outcome is None:
            raise self._fault or EngineError("nothing was written")
        return self._outcome


class StepRunner:
    """Executes attempts.

    Args:
        loop: the worker's loop.
        codec: writes results and errors.
        randomness: source of the jitter of retries.
        concurrency: async bodies at a time; more wait.
        threads: sync bodies at a time; more wait.
        post: takes the events.
        failed: called with an error of our own.
        in_sql: executes an attempt of a step in SQL, which records itself, and returns the event.
        slots: reduced when no thread is left.
        terms: every body asks them before it begins.
        values: write large results of async bodies.
        around: makes the block in which a sync body is called.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        codec: Codec,
        randomness: Randomness,
        concurrency: int,
        threads: int,
        post: Callable[[Event], None],
        failed: Callable[[BaseException], None],
        in_sql: Callable[[LeasedRun, Attempt], Awaitable[Event | None]],
        slots: Capacity,
        terms: LeaseTerms,
        values: ValueThreads,
        around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._failures = Failures(loop, codec, randomness, post)
        self._concurrency = concurrency
        self._pool = ThreadPool(loop, threads, around=around)
        self._failed = failed
        self._post = post
        self._progress = StepProgress(loop, codec, lambda *given: post(StepProgressed(*given)))
        self._in_sql = in_sql
        self._slots = slots
        self._terms = terms
        self._values = values
        self._put_off = Background(failed)
        self._active = 0
        self._filling = False
        self._waiting: deque[StartAttempt] = deque()
        # in threads: those that wait and run, and those that are cancelled and run
        self._jobs: dict[Attempt, tuple[LeasedRun, Job]] = {}
        self._unwinding: dict[Attempt, Job | asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def start(self, effect: StartAttempt) -> None:
        """Execute an attempt, at once or as soon as there is room."""
        attempt = effect.attempt
        if not attempt.call.step.is_async and attempt.unawaited is None:
            body = partial(self._thread_body, effect.run, attempt)
            job = self._pool.submit(body, partial(self._thread_done, attempt))
            self._jobs[attempt] = effect.run, job
            self._defer_if_exhausted()
        elif self._active < self._concurrency:
            self.start_task(effect)
        else:
            self._waiting.append(effect)

    def cancel(self, effect: CancelAttempt) -> None:
        """Stop an attempt whose outcome is not wanted any more."""
        attempt = effect.attempt
        attempt.wanted = False
        attempt.token.cancelled = True
        if attempt.timer is not None:
            attempt.timer.cancel()
        if not attempt.started_s:
            self._terms.wake()
        task = attempt.task
        # a task that has not begun finds out by itself, and the database whether a step in SQL counts
        if task is not None and attempt.started_s and not task.done():
            self._unwinding[attempt] = task
            task.add_done_callback(lambda _: self._unwound(attempt))
            task.cancel()
        elif task is not None and attempt.call.step.records_itself and not task.done():
            task.add_done_callback(lambda _: self._post(BodyEnded(attempt)))
        elif task is None and attempt in self._jobs and self._jobs[attempt][1].running:
            self._unwinding[attempt] = self._jobs[attempt][1]
            attempt.asks_until_s = clock.monotonic() + LOOK_S
            clock.call_later(UNWIND_S, self._still_runs, attempt)
        else:
            self._post(BodyEnded(attempt))

    def unwinding(self) -> set[int]:
        """Return the runs of which cancelled bodies run, and know of it or may soon: they may clean up."""
        now_s = clock.monotonic()
        return {
            attempt.execution
            for attempt, work in self._unwinding.items()
            if isinstance(work, asyncio.Task)
            or (work.running and (attempt.token.looked or now_s < attempt.asks_until_s))
        }

    async def changed(self, within_s: float) -> None:
        """Wait until a body has ended, or for so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(within_s):
                await self._changed.wait()

    def _unwound(self, attempt: Attempt) -> None:
        if self._unwinding.pop(attempt, None) is not None or attempt.left_behind:
            attempt.left_behind = False
            self._post(BodyEnded(attempt))
        self._changed.set()

    def close(self) -> None:
        """Let the threads end that are not busy."""
        self._put_off.stop()
        self._pool.close()
        self._failures.close()

    # -- bodies

    def start_task(self, effect: StartAttempt) -> None:
        """Execute an attempt of an async step, for which there is room."""
        self._active += 1
        attempt = effect.attempt
        body = self._execute(effect.run, attempt)
        if _EAGER:
            attempt.task = asyncio.Task(body, loop=self._loop, eager_start=True)  # type: ignore[call-arg]
        else:
            attempt.task = self._loop.create_task(body)

    async def _execute(self, run: LeasedRun, attempt: Attempt) -> None:
        call = attempt.call
        if not attempt.wanted:
            attempt.drop()
            self._leave()
            return
        in_sql, unawaited = call.step.records_itself, attempt.unawaited
        if unawaited is None:
            if not (in_sql or self._terms.may_begin(run)):
                await self._terms.holds(run, lambda: attempt.wanted)
                if attempt.token.cancelled:
                    self._leave()
                    return
            if call.step.timeout_ms is not None:
                self._set_timer(attempt)
            # a step in SQL begins when it has a connection, and the database looks at its lease
            attempt.started_s = 0.0 if in_sql else clock.monotonic()
        self._enter(attempt)
        value: Any = None
        failed: BaseException | None = None
        try:
            if unawaited is not None:
                value = await unawaited
            else:
                value = await (
                    self._in_sql(run, attempt) if in_sql else call.step.fn(*call.args, **call.kwargs)
                )
        except asyncio.CancelledError:
            words = f"step {call.name} cancelled itself (asyncio.CancelledError)"
            failed = too_long(call) if attempt.timed_out else EngineError(words)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # boundary to user code: whatever a step raises is its outcome
            failed = error
        # outside of the except block, so that a later exception does not get this one as its __context__
        self._leave()
        try:
            if failed is not None:
                self._fail(attempt, failed)
            elif not in_sql:
                self._returned(attempt, value)
            elif value is not None and self._counts(attempt):
                self._post(value)
        except Exception as error:  # boundary: a fault of ours must not leave the run waiting for ever
            self._failed(error)
        finally:
            failed = None  # it refers to this frame

    def _enter(self, attempt: Attempt) -> None:
        """Let the body that is about to begin know what it is."""
        call = attempt.call
        current_step.set(
            StepInfo(
                attempt.run_id,
                call.child,
                call.attempt,
                call.name,
                attempt.execution,
                attempt.token,
                self._progress,
                attempt.exact,
            )
        )

    def _leave(self) -> None:
        self._active -= 1
        if self._filling or not self._waiting:
            # filling: a body that ended as soon as it was started below would stand on the one before it
            return
        self._filling = True
        try:
            while self._waiting and self._active < self._concurrency:
                effect = self._waiting.popleft()
                if effect.attempt.wanted:
                    self.start_task(effect)
                else:
                    effect.attempt.drop()
        finally:
            self._filling = False

    def _thread_body(self, run: LeasedRun, attempt: Attempt) -> Any:
        call = attempt.call
        if not attempt.wanted:
            return None
        if not self._terms.may_begin(run):
            raise LeaseOver
        attempt.started_s = clock.monotonic()
        if call.step.timeout_ms is not None:
            self._loop.call_soon_threadsafe(self._set_timer, attempt)
        self._enter(attempt)
        value = call.step.fn(*call.args, **call.kwargs)
        if inspect.isawaitable(value):
            attempt.unawaited = value
            return None
        # from here on it is we who take the time
        attempt.returned_s = clock.monotonic()
        return _Written(partial(self._written, attempt, value))

    def _thread_done(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        run, _ = self._jobs.pop(attempt)
        self._unwound(attempt)
        if attempt.unawaited is not None:
            # a plain function around an async one
            self.start(StartAttempt(run, attempt))
            return
        if type(error) is LeaseOver:
            self._put_off.start(self._start_again(StartAttempt(run, attempt)))
            return
        try:
            if error is not None:
                self._fail(attempt, error)
            elif self._counts(attempt):
                self._post(AttemptEnded(attempt, value.outcome()))
        except Exception as ours:  # boundary: a fault of ours must not leave the run waiting for ever
            self._failed(ours)

    async def _start_again(self, effect: StartAttempt) -> None:
        """Execute an attempt in a thread once the lease of its run holds."""
        attempt = effect.attempt
        await self._terms.holds(effect.run, lambda: attempt.wanted)
        if attempt.wanted:
            self.start(effect)

    def _still_runs(self, attempt: Attempt) -> None:
        """Say of a thread that it goes on though its step was given up."""
        if attempt in self._jobs:
            logger.warning(
                "step %s of run %s was given up %g s ago and still runs in its thread",
                attempt.call.name,
                attempt.run_id,
                UNWIND_S,
            )
            self._leave_behind(attempt)

    def _leave_behind(self, attempt: Attempt) -> None:
        """A thread does not come back when it should: it is not counted on any more."""
        if attempt in self._jobs:
            self._pool.leave_behind(self._jobs[attempt][1])
            self._defer_if_exhausted()

    def _defer_if_exhausted(self) -> None:
        """Give back the runs whose attempts no thread will ever begin here; other workers may have some."""
        if not self._pool.exhausted:
            return
        for attempt, (run, job) in tuple(self._jobs.items()):
            if not job.running and attempt.wanted and run.waits_only_for(attempt):
                attempt.wanted = False
                self._slots.too_many("all threads of steps are left behind by steps that do not end")
                self._post(AttemptDeferred(attempt))

    # -- time

    def _set_timer(self, attempt: Attempt) -> None:
        timeout_ms = attempt.call.step.timeout_ms
        if attempt.call.step.records_itself:
            return  # the database is asked to stop
        if timeout_ms is not None and attempt.wanted:
            attempt.timer = clock.call_later(timeout_ms / 1000, self._time_out, attempt)

    def _time_out(self, attempt: Attempt) -> None:
        if not attempt.wanted or attempt.returned_s:
            return
        if attempt.task is None or attempt.timed_out:
            # a thread cannot be stopped, and a body that does not give way is left behind
            logger.warning(
                "step %s of run %s does not end at its timeout; it is left behind",
                attempt.call.name,
                attempt.run_id,
            )
            attempt.token.cancelled = attempt.left_behind = True
            self._leave_behind(attempt)
            if attempt.task is not None:
                attempt.task.add_done_callback(lambda _: self._unwound(attempt))
            self._fail(attempt, too_long(attempt.call))
            return
        attempt.timed_out = attempt.token.cancelled = True
        attempt.timer = clock.call_later(UNWIND_S, self._time_out, attempt)
        attempt.task.cancel()

    # -- outcomes

    def _returned(self, attempt: Attempt, value: Any) -> None:
        if not self._counts(attempt):
            return
        if is_large(value):
            attempt.returned_s = clock.monotonic()
            self._values.submit(partial(self._written, attempt, value), partial(self._post_written, attempt))
        else:
            self._post(AttemptEnded(attempt, self._written(attempt, value)))

    def _post_written(self, attempt: Attempt, outcome: StepOutcome, error: BaseException | None) -> None:
        if error is None:
            self._post(AttemptEnded(attempt, outcome))
        else:
            self._failed(error)

    def _written(self, attempt: Attempt, value: Any) -> StepOutcome:
        """Return the outcome of a body that returned; in any thread."""
        call = attempt.call
        try:
            where = f"the result of step {call.name} of run {attempt.run_id}"
            text = self._codec.write(call.step.signature.result, value, where, exact=attempt.exact)
        except (EncodeError, PayloadTooLarge) as error:
            # the body would give the same again
            return step_outcome(call, error=self._failures.text(attempt, error))
        except MemoryError as error:
            # another attempt may find more memory; that of this worker belongs to its other runs too
            return self._failures.outcome(attempt, error)
        return StepOutcome(child=call.child, name=call.name, hash=call.hash, attempt=call.attempt, value=text)

    def _fail(self, attempt: Attempt, error: BaseException) -> None:
        if self._counts(attempt):
            self._failures.post(attempt, error)

    def _counts(self, attempt: Attempt) -> bool:
        """Whether the outcome is wanted; it is asked once, when the attempt has ended."""
        wanted, attempt.wanted = attempt.wanted, False
        if self._progress.collected:
            self._progress.flush()
        if attempt.timer is not None:
            attempt.timer.cancel()
        return wanted
