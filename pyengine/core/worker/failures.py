"""Writing down the errors of attempts.

Lives here: `Failures`, which makes the outcome of an attempt that failed. May not: executing attempts
(step_runner.py), the record of an error (values/error_describing.py). Design: an error of a user may do
anything when it is looked at. If code of its class runs then, or if it is large, it is looked at in a thread,
and not for longer than `LOOK_S`: then it is recorded without a look. So an attempt that has failed always has
an outcome, and the loop of the worker does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf

from pyengine.core.definitions.retry import Randomness, policy_text
from pyengine.core.process import clock
from pyengine.core.process.thread_pool import ThreadPool
from pyengine.core.protocol.commands import StepOutcome
from pyengine.core.values.codec import Codec
from pyengine.core.values.error_access import runs_code
from pyengine.core.values.error_describing import parts_of
from pyengine.core.values.sizes import is_large
from pyengine.core.worker.attempts import Attempt, policy_of, step_outcome
from pyengine.core.worker.events import AttemptEnded, Event

logger = logging.getLogger("pyengine.steps")

LOOK_S = 10.0
"""How long a look at an error may take, in seconds."""
_THREADS = 2


class Failures:
    """Makes the outcomes of attempts that failed.

    Args:
        loop: the worker's loop.
        codec: writes errors.
        randomness: source of the jitter of retries.
        post: takes the events.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        codec: Codec,
        randomness: Randomness,
        post: Callable[[Event], None],
    ) -> None:
        self._codec = codec
        self._randomness = randomness
        self._post = post
        self._threads = ThreadPool(loop, _THREADS, "error")

    def post(self, attempt: Attempt, error: BaseException) -> None:
        """Post that an attempt has ended with an error, at once or as soon as it has been looked at."""
        if not (runs_code(error) or is_large([*parts_of(error)])):
            self._post(AttemptEnded(attempt, self.outcome(attempt, error)))
            return
        attempt.returned_s = clock.monotonic()
        waits, began_s = True, inf
        timer: clock.Timer

        def describe() -> StepOutcome:
            nonlocal began_s
            began_s = clock.monotonic()
            return self.outcome(attempt, error)

        def done(outcome: StepOutcome | None, fault: BaseException | None) -> None:
            nonlocal waits
            if waits:
                waits = False
                timer.cancel()
                if outcome is None:
                    outcome = self._unseen(attempt, error, "an error that raises when it is looked at")
                self._post(AttemptEnded(attempt, outcome))

        def give_up() -> None:
            nonlocal timer
            now_s = clock.monotonic()
            if now_s < (due_s := min(began_s, now_s) + LOOK_S) and not self._threads.exhausted:
                # the time in which it waited for a thread does not count
                timer = clock.call_at(due_s, give_up)
                return
            logger.warning(
                "the error of step %s of run %s is recorded without its text: a look at it does not end",
                attempt.call.name,
                attempt.run_id,
            )
            self._threads.leave_behind(job)
            done(self._unseen(attempt, error, f"an error at which a look takes more than {LOOK_S:g} s"), None)

        job = self._threads.submit(describe, done)
        timer = clock.call_later(LOOK_S, give_up)

    def outcome(self, attempt: Attempt, error: BaseException) -> StepOutcome:
        """Return the outcome of an attempt that failed, now; in any thread."""
        return self._decided(attempt, error, self.text(attempt, error))

    def text(self, attempt: Attempt, error: BaseException) -> str:
        """Return the JSON text of the error of an attempt."""
        call = attempt.call
        origin: dict[str, str | int] = {"run": attempt.run_id, "step": call.name, "attempt": call.attempt}
        return self._codec.encode_error(error, rules=attempt.rules, **origin)

    def _unseen(self, attempt: Attempt, error: BaseException, why: str) -> StepOutcome:
        """Return the outcome of an attempt whose error is not looked at; its policy sees its class alone."""
        call = attempt.call
        text = self._codec.failures.unseen(
            error, why, run=attempt.run_id, step=call.name, attempt=call.attempt
        )
        return self._decided(attempt, error, text, asks=False)

    def _decided(
        self, attempt: Attempt, error: BaseException, text: str, *, asks: bool = True
    ) -> StepOutcome:
        call = attempt.call
        policy = policy_of(call)
        delay_ms = policy.delay_ms(call.failures + 1, error, self._randomness, asks=asks)
        if delay_ms is None and policy.pauses(call.failures + 1) and policy.retries(error, asks=asks):
            # the next attempt is due as soon as the run is resumed
            delay_ms = 0
        if delay_ms is None:
            return step_outcome(call, error=text)
        retry = policy_text(policy) if call.attempt == 1 and not attempt.begun else None
        return step_outcome(call, error=text, retry_in_ms=delay_ms, retry=retry)

    def close(self) -> None:
        """Let the threads end that are not busy."""
        self._threads.close()
