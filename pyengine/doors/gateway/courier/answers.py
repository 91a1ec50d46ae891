"""Answers of receivers, and their meaning for a message and its address.

Lives here: `Answer`. May not: requests, time. Design: receivers run the work within the request and answer
500 for any failure of it, also for an offer that came twice. So only an answer that no receiver gives by
itself speaks against the address: none at all, or that of an overloaded server or proxy.
"""

from __future__ import annotations

from dataclasses import dataclass

_OVERLOADED = frozenset({429, 502, 503, 504})
_NEVER = frozenset({400, 404, 405, 410})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a receiver, or why there is none.

    Args:
        status: the HTTP status, or None.
        problem: why there is none: `unreachable`, `timeout`, or `forbidden` for an address that may not be
            sent to.
        detail: more about that, for the log.
        retry_after_s: the pause that the receiver asks for, in seconds.
    """

    status: int | None
    problem: str = ""
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def outcome(self) -> str:
        """Its class, as the figures name it: `2xx`, ..., or the problem."""
        return self.problem if self.status is None else f"{self.status // 100}xx"

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver has taken the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_failure(self) -> bool:
        """Whether it speaks against the address, and not only against this message."""
        return self.status is None or self.status in _OVERLOADED

    @property
    def is_final(self) -> bool:
        """Whether the receiver takes no unblock messages, now or later."""
        return self.status in _NEVER

    def __str__(self) -> str:
        """Say it as the log does."""
        if self.status is not None:
            return f"status {self.status}"
        return f"{self.problem}: {self.detail}" if self.detail else self.problem
