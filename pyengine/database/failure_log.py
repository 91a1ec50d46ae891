"""Repeated failures of one operation, logged with growing severity.

Lives here: `FailureLog`, for an operation that is done over and over. May not: doing it, or knowing what its
failure means. Design: a single failure is logged for debugging only, since the next try repairs it; two in a
row are a warning. After a minute of failures an error is logged once a minute, with the next command to type.
"""

from __future__ import annotations

import logging
import time

__all__ = ["FailureLog"]

_ERROR_AFTER_S = 60.0
_NEXT = "pyengine db status"


class FailureLog:
    """Failures in a row of one operation.

    Args:
        logger: the logger to write to.
        operation: what fails, as the log calls it.
        type_next: the command to type to find out more.
    """

    def __init__(self, logger: logging.Logger, operation: str, *, type_next: str = _NEXT) -> None:
        self._logger = logger
        self._operation = operation
        self._type_next = type_next
        self._failures = 0
        self._first_s = self._error_s = 0.0

    @property
    def failures(self) -> int:
        """The number of failures in a row so far."""
        return self._failures

    def failed(self, reason: str) -> None:
        """Record one more failure."""
        now_s = time.monotonic()
        self._failures += 1
        if self._failures == 1:
            self._first_s, self._error_s = now_s, now_s + _ERROR_AFTER_S
            self._logger.debug("%s: %s", self._operation, reason)
        elif now_s >= self._error_s:
            self._error_s = now_s + _ERROR_AFTER_S
            self._logger.error(
                "%s has failed for %.0f s, %d times: %s; type: %s",
                self._operation,
                now_s - self._first_s,
                self._failures,
                reason,
                self._type_next,
            )
        elif self._failures == 2:
            self._logger.warning("%s has failed twice: %s", self._operation, reason)

    def succeeded(self) -> None:
        """Record a success, which ends the row of failures."""
        failures, self._failures = self._failures, 0
        if failures > 1:
            self._logger.warning(
                "%s works again, after %d failures in %.1f s",
                self._operation,
                failures,
                time.monotonic() - self._first_s,
            )
