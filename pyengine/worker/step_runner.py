"""Running the bodies of steps.

What lives here: `StepRunner`, which makes one attempt of a step and turns its outcome into a `StepOutcome`.
What may not: turns, the journal. The theory: an attempt ends in exactly one outcome, or in none if nobody
wants it any more (its run was lost, given back or has ended, or the step was given up): then async bodies,
tasks of the worker's loop, are cancelled, and sync ones, which run in threads, can see it in their token. A
failure that the policy wants tried again is an outcome too, and the next attempt waits for it to be recorded.
The first outcome of a step that has more than one tells its policy, which governs the step from then on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from pyengine.definitions.current_run import StepInfo, current_step
from pyengine.definitions.retry import NO_RETRY, Randomness, Retry, policy_text, recorded_policy
from pyengine.definitions.sql_steps import SqlStep
from pyengine.errors import EncodeError, EngineError, PayloadTooLarge, StepInterrupted, StepTimeout
from pyengine.protocol.commands import StepOutcome
from pyengine.replay.advance import StepCall
from pyengine.values.codec import Codec
from pyengine.worker.run_state import LeasedRun, StepAttempt
from pyengine.worker.thread_pool import ThreadPool

__all__ = ["StepRunner", "next_attempt", "too_long"]

logger = logging.getLogger("pyengine.steps")

_EAGER = sys.version_info >= (3, 12)
UNWIND_S = 5.0
"""How long an async body may take to end after it was cancelled, in seconds."""


def too_long(call: StepCall) -> StepTimeout:
    """Return the error of an attempt that has used up its time."""
    timeout_ms = call.step.timeout_ms or 0
    return StepTimeout(
        f"step {call.name} took longer than {timeout_ms / 1000:g} s", step=call.name, timeout_ms=timeout_ms
    )


def next_attempt(call: StepCall) -> StepCall:
    """Return the attempt that follows one that failed."""
    return replace(
        call,
        attempt=call.attempt + 1,
        failures=call.failures + 1,
        begun=False,
        interrupted=False,
        retry_at_ms=None,
    )


def policy_of(call: StepCall) -> Retry:
    """Return the policy that governs a step: the recorded one, if any; else that of the code."""
    if call.recorded_retry is None:
        return call.step.retry
    return recorded_policy(call.recorded_retry) if call.recorded_retry else NO_RETRY


class StepRunner:
    """Makes attempts.

    Args:
        loop: the worker's loop.
        codec: writes results and errors.
        randomness: source of the jitter of retries.
        concurrency: async bodies at a time; more wait.
        threads: sync bodies at a time; more wait.
        news: called when a run got an outcome to report.
        in_sql: makes an attempt of a step in SQL, which records itself; returns what is to be done then.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        codec: Codec,
        randomness: Randomness,
        concurrency: int,
        threads: int,
        news: Callable[[LeasedRun], None],
        in_sql: Callable[[StepAttempt], Awaitable[Callable[[], object]]],
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._randomness = randomness
        self._concurrency = concurrency
        self._pool = ThreadPool(loop, threads)
        self._news = news
        self._in_sql = in_sql
        self._active = 0
        self._waiting: deque[StepAttempt] = deque()
        self._unwinding: set[asyncio.Task[None]] = set()
        self._refusing = False

    def refuse(self) -> None:
        """Start nothing any more."""
        self._refusing = True

    def start(self, held: LeasedRun, call: StepCall) -> None:
        """Make an attempt of a step, or refuse to, according to its definition."""
        if self._refusing:
            return
        step = call.step
        if call.interrupted and step.on_interrupt == "fail":
            error = StepInterrupted(
                f"step {call.name} of run {held.info.id} was cut off in attempt {call.attempt - 1}; "
                "it must not run twice",
                step=call.name,
                hint="find out what it did, and go on from there in the workflow",
            )
            self._report(held, call, error=self._codec.encode_error(error))
        elif step.intent and not call.begun:
            held.next_calls[call.child] = replace(call, begun=True)
            self._report_begun(held, call)
        else:
            run = StepAttempt(held, call)
            held.steps[call.child] = run
            if not step.is_async:
                self._start_in_thread(run)
            elif self._active < self._concurrency:
                self._start_task(run)
            else:
                self._waiting.append(run)

    def note_begun(self, run: StepAttempt) -> None:
        """Report that an attempt that takes long has begun."""
        if run.begun or not run.started_s:
            return
        run.begun = True
        self._report_begun(run.held, run.call)

    def cancel(self, held: LeasedRun, child: int) -> None:
        """Stop an attempt whose outcome nobody wants."""
        held.parked.pop(child, None)
        held.next_calls.pop(child, None)
        run = held.steps.pop(child, None)
        if run is not None:
            self._abandon(run)

    def cancel_all(self, held: LeasedRun) -> None:
        """Stop all attempts of a run."""
        held.parked.clear()
        held.next_calls.clear()
        for run in held.steps.values():
            self._abandon(run)
        held.steps.clear()

    async def unwound(self) -> None:
        """Wait until cancelled bodies have ended, within bounds."""
        pending = {task for task in self._unwinding if not task.done()}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=UNWIND_S)
        for task in pending:
            logger.warning("a cancelled step does not end: %s", task.get_coro())

    def close(self) -> None:
        """Let the threads end that are not busy."""
        self._pool.close()

    # -- bodies

    def _start_task(self, run: StepAttempt) -> None:
        self._active += 1
        if run.call.step.timeout_ms is not None:
            self._set_timer(run)
        if _EAGER:
            run.task = asyncio.Task(self._execute(run), loop=self._loop, eager_start=True)  # type: ignore[call-arg]
        else:
            run.task = self._loop.create_task(self._execute(run))

    async def _execute(self, run: StepAttempt) -> None:
        call = run.call
        if not run.wanted:
            self._leave()
            return
        in_sql = isinstance(call.step, SqlStep)
        # a step in SQL begins when it has a connection
        run.started_s = 0.0 if in_sql else self._loop.time()
        current_step.set(_info(run))
        value: Any = None
        failed: BaseException | None = None
        try:
            value = await (self._in_sql(run) if in_sql else call.step.fn(*call.args, **call.kwargs))
        except asyncio.CancelledError:
            words = f"step {call.name} cancelled itself (asyncio.CancelledError)"
            failed = too_long(call) if run.timed_out else EngineError(words)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # boundary to user code: whatever a step raises is its outcome
            failed = error
        # no error is being handled any more, which the next one of the run's code would refer to
        self._leave()
        if failed is not None:
            try:
                self._fail(run, failed)
            finally:
                failed = None  # it refers to this frame
        elif not in_sql:
            self._succeed(run, value)
        elif self._ended(run):
            value()

    def _leave(self) -> None:
        self._active -= 1
        while self._waiting and self._active < self._concurrency:
            run = self._waiting.popleft()
            if run.wanted:
                self._start_task(run)

    def _start_in_thread(self, run: StepAttempt) -> None:
        run.job = self._pool.submit(partial(self._thread_body, run), partial(self._thread_done, run))

    def _thread_body(self, run: StepAttempt) -> Any:
        call = run.call
        run.started_s = self._loop.time()
        if call.step.timeout_ms is not None:
            self._loop.call_soon_threadsafe(self._set_timer, run)
        current_step.set(_info(run))
        return call.step.fn(*call.args, **call.kwargs)

    def _thread_done(self, run: StepAttempt, value: Any, error: BaseException | None) -> None:
        if error is None:
            self._succeed(run, value)
        else:
            self._fail(run, error)

    # -- time

    def _set_timer(self, run: StepAttempt) -> None:
        timeout_ms = run.call.step.timeout_ms
        if isinstance(run.call.step, SqlStep):
            return  # the database is asked to stop
        if timeout_ms is not None and run.wanted and run.held.steps.get(run.call.child) is run:
            run.timer = self._loop.call_later(timeout_ms / 1000, self._time_out, run)

    def _time_out(self, run: StepAttempt) -> None:
        if not run.wanted:
            return
        if run.task is None or run.timed_out:
            # a thread cannot be stopped, and a body that does not give way is left behind
            logger.warning(
                "step %s of run %s does not end at its timeout; it is left behind",
                run.call.name,
                run.held.info.id,
            )
            self._fail(run, too_long(run.call))
            run.wanted = False
            run.token.cancelled = True
            return
        run.timed_out = run.token.cancelled = True
        run.timer = self._loop.call_later(UNWIND_S, self._time_out, run)
        run.task.cancel()

    def _abandon(self, run: StepAttempt) -> None:
        run.wanted = False
        run.token.cancelled = True
        if run.timer is not None:
            run.timer.cancel()
        if run.job is not None:
            run.job.cancelled = True
        task = run.task
        # a task that has not begun finds out by itself
        if task is not None and run.started_s and not task.done():
            self._unwinding.add(task)
            task.add_done_callback(self._unwinding.discard)
            task.cancel()

    # -- outcomes

    def _succeed(self, run: StepAttempt, value: Any) -> None:
        if not self._ended(run):
            return
        call = run.call
        text = problem = None
        try:
            where = f"the result of step {call.name} of run {run.held.info.id}"
            text = self._codec.write(call.step.signature.result, value, where)
        except (EncodeError, PayloadTooLarge) as error:
            # the body would give the same again
            problem = self._codec.encode_error(error)
        self._report(run.held, call, value=text, error=problem)

    def _fail(self, run: StepAttempt, error: BaseException) -> None:
        if not self._ended(run):
            return
        call, held = run.call, run.held
        policy = policy_of(call)
        delay_ms = policy.delay_ms(call.failures + 1, error, self._randomness)
        text = self._codec.encode_error(error)
        if delay_ms is None:
            self._report(held, call, error=text)
        else:
            held.next_calls[call.child] = next_attempt(call)
            retry = policy_text(policy) if call.attempt == 1 and not run.begun else None
            self._report(held, call, error=text, retry_in_ms=delay_ms, retry=retry)

    def _ended(self, run: StepAttempt) -> bool:
        """Take an attempt off the books; false if nobody wants its outcome."""
        if run.timer is not None:
            run.timer.cancel()
        if not run.wanted:
            return False
        run.held.steps.pop(run.call.child, None)
        return True

    def _report_begun(self, held: LeasedRun, call: StepCall) -> None:
        retry = policy_text(policy_of(call)) if call.attempt == 1 else None
        self._report(held, call, begun=True, param=call.param, retry=retry)

    def _report(
        self,
        held: LeasedRun,
        call: StepCall,
        *,
        value: str | None = None,
        error: str | None = None,
        retry_in_ms: int | None = None,
        begun: bool = False,
        param: str | None = None,
        retry: str | None = None,
    ) -> None:
        held.outcomes.append(
            StepOutcome(
                child=call.child,
                name=call.name,
                hash=call.hash,
                attempt=call.attempt,
                value=value,
                error=error,
                retry_in_ms=retry_in_ms,
                begun=begun,
                param=param,
                retry=retry,
            )
        )
        self._news(held)


def _info(run: StepAttempt) -> StepInfo:
    call = run.call
    return StepInfo(
        run_id=run.held.info.id, child=call.child, attempt=call.attempt, name=call.name, token=run.token
    )
