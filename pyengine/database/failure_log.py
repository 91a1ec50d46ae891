"""What fails again and again, told once and then louder.

What lives here: `FailureLog`, one thing that is done over and over. What may not: doing it, or what its
failure means. The theory: one failure is nothing, since the next try mends it; two running are a warning;
what has not worked for a minute is an error, said once a minute with the next thing to type, until it works
again. Nobody looks at a log that says nothing, and nobody reads one that says the same each second.
"""

from __future__ import annotations

import logging
import time

__all__ = ["FailureLog"]

_ERROR_AFTER_S = 60.0
_NEXT = "pyengine db status"


class FailureLog:
    """Failures in a row of one thing.

    Args:
        logger: where it is told.
        what: what fails, as the log calls it.
        type_next: what to type to find out more.
    """

    def __init__(self, logger: logging.Logger, what: str, *, type_next: str = _NEXT) -> None:
        self._logger = logger
        self._what = what
        self._type_next = type_next
        self._failures = 0
        self._since_s = self._error_s = 0.0

    @property
    def failures(self) -> int:
        """How often running it has failed by now."""
        return self._failures

    def failed(self, reason: str) -> None:
        """It has failed once more."""
        now_s = time.monotonic()
        self._failures += 1
        if self._failures == 1:
            self._since_s, self._error_s = now_s, now_s + _ERROR_AFTER_S
            self._logger.debug("%s: %s", self._what, reason)
        elif now_s >= self._error_s:
            self._error_s = now_s + _ERROR_AFTER_S
            self._logger.error(
                "%s has failed for %.0f s, %d times: %s; type: %s",
                self._what,
                now_s - self._since_s,
                self._failures,
                reason,
                self._type_next,
            )
        elif self._failures == 2:
            self._logger.warning("%s has failed twice: %s", self._what, reason)

    def over(self) -> None:
        """It has worked."""
        failures, self._failures = self._failures, 0
        if failures > 1:
            self._logger.warning(
                "%s works again, after %d failures in %.1f s",
                self._what,
                failures,
                time.monotonic() - self._since_s,
            )
