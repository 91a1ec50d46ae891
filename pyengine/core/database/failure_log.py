"""Repeated failures of one operation, logged with growing severity.

Lives here: `FailureLog`, for an operation that is done over and over, `OutageLog`, for a database that
cannot be reached, and `CopyLog`, for one in which nothing runs yet. May not: doing the operation. Design: a
single failure is logged for debugging only, since the next try repairs it; two in a row are a warning. After
a minute of failures an error is logged once a minute, with the next command to type. An outage makes every
operation of every connection fail, so it is logged once for all of them.
"""

from __future__ import annotations

import logging
import threading

from pyengine.core.process import clock
from pyengine.errors import EngineError, Unavailable

_ERROR_AFTER_S = 60.0
_NEXT = "pyengine db status"
_ADOPT = "pyengine db adopt"


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
        self._has_warned = False
        self._first_s = self._error_s = 0.0

    @property
    def failures(self) -> int:
        """The number of failures in a row so far."""
        return self._failures

    def failed(self, reason: str | EngineError) -> None:
        """Record one more failure.

        Args:
            reason: why; a database that cannot be reached is left to its `OutageLog`.
        """
        now_s = clock.monotonic()
        # a subclass means a server that answers
        is_outage = type(reason) is Unavailable
        reason = reason if isinstance(reason, str) else reason.message
        self._failures += 1
        if self._failures == 1:
            self._first_s, self._error_s = now_s, now_s + _ERROR_AFTER_S
        if self._failures == 1 or is_outage:
            self._logger.debug("%s: %s", self._operation, reason)
        elif now_s >= self._error_s:
            self._error_s = now_s + _ERROR_AFTER_S
            self._has_warned = True
            self._logger.error(
                "%s has failed for %.0f s, %d times: %s; type: %s",
                self._operation,
                now_s - self._first_s,
                self._failures,
                reason,
                self._type_next,
            )
        elif not self._has_warned:
            self._has_warned = True
            self._logger.warning("%s has failed twice: %s", self._operation, reason)

    def succeeded(self) -> None:
        """Record a success, which ends the row of failures."""
        failures, self._failures = self._failures, 0
        has_warned, self._has_warned = self._has_warned, False
        if has_warned:
            self._logger.warning(
                "%s works again, after %d failures in %.1f s",
                self._operation,
                failures,
                clock.monotonic() - self._first_s,
            )


class _StateLog:
    """The time during which a database is in a bad state, for a whole process, from any thread.

    Args:
        logger: the logger to write to.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._again_s = 0.0

    def _lasts(self) -> float | None:
        """Record the state; return for how long it lasts, 0 at its beginning, if that is to be logged now."""
        now_s = clock.monotonic()
        with self._lock:
            if self._since_s is None:
                self._since_s = now_s
            elif now_s < self._again_s:
                return None
            self._again_s = now_s + _ERROR_AFTER_S
            return now_s - self._since_s

    def _lasted(self) -> float | None:
        """Record the end of the state; return how long it lasted, if it did."""
        with self._lock:
            since_s, self._since_s = self._since_s, None
        return None if since_s is None else clock.monotonic() - since_s


class OutageLog(_StateLog):
    """The time during which a database cannot be reached, for all connections to it."""

    def failed(self, reason: str) -> None:
        """Record that a connection could not be made and will be tried again."""
        if (for_s := self._lasts()) == 0:
            self._logger.warning("%s; waiting for it; type: %s", reason, _NEXT)
        elif for_s is not None:
            self._logger.error("%s, for %.0f s now; type: %s", reason, for_s, _NEXT)

    def ended(self, where: str) -> None:
        """Record that a connection was made.

        Args:
            where: the database's name in messages.
        """
        if (for_s := self._lasted()) is not None:
            self._logger.warning("connected to %s again, after %.1f s", where, for_s)


class CopyLog(_StateLog):
    """The time during which a database is a copy that was not adopted."""

    def found(self, where: str) -> None:
        """Record that the database gives no work.

        Args:
            where: the database's name in messages.
        """
        if self._lasts() is not None:
            self._logger.warning(
                "%s is a copy that was not adopted, so nothing runs in it; waiting for that; type: %s",
                where,
                _ADOPT,
            )

    def ended(self, where: str) -> None:
        """Record that the database gives work.

        Args:
            where: the database's name in messages.
        """
        if (for_s := self._lasted()) is not None:
            self._logger.warning("%s was adopted, after %.1f s", where, for_s)
