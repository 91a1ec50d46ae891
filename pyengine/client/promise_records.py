"""What is told about durable promises: records, and the error of who came second.

What lives here: how the older API's answers become records. What may not: requests (promises.py), SQL. The
theory: a record is what the database answered at one instant; it never changes. Payloads are kept as stored,
because any peer may have written them; `param` and `value` read them as plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from pyengine.errors import Conflict

__all__ = [
    "EPOCH",
    "MILLISECOND",
    "Callback",
    "PromiseConflict",
    "PromisePage",
    "PromiseRecord",
    "PromiseState",
    "Registration",
    "callback_of",
    "record_of",
]

PromiseState: TypeAlias = Literal["PENDING", "RESOLVED", "REJECTED", "REJECTED_CANCELED", "REJECTED_TIMEDOUT"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
_YEAR_10000_MS = 253_402_300_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRecord:
    """A promise as it was answered.

    Args:
        id: promise id.
        state: where it stands.
        param_data: what it was created with, as stored.
        param_headers: what was said about it.
        value_data: what it was completed with, as stored; an error as JSON text if it was rejected.
        value_headers: what was said about it.
        tags: tags of its creation.
        timeout: when it times out; None means never.
        created_on: when it was created.
        completed_on: when it was completed.
        idempotency_key_for_create: key of its creation.
        idempotency_key_for_complete: key of its completion; none if it timed out.
        deduplicated: the request that was answered with this had been done before.
    """

    id: str
    state: PromiseState
    param_data: str | None
    param_headers: Mapping[str, str]
    value_data: str | None
    value_headers: Mapping[str, str]
    tags: Mapping[str, str]
    timeout: datetime | None
    created_on: datetime
    completed_on: datetime | None
    idempotency_key_for_create: str | None
    idempotency_key_for_complete: str | None
    deduplicated: bool = False

    @property
    def pending(self) -> bool:
        """Whether it is not completed yet."""
        return self.state == "PENDING"

    @property
    def param(self) -> Any:
        """What it was created with: a plain JSON value, or the text itself where that is no JSON."""
        return _plain(self.param_data)

    @property
    def value(self) -> Any:
        """What it was completed with: a plain JSON value, or the text itself where that is no JSON."""
        return _plain(self.value_data)


class PromiseConflict(Conflict):
    """The promise is there already, or is completed already, by somebody else.

    Args:
        promise: the promise as it is.
    """

    def __init__(
        self,
        message: str = "",
        *,
        promise: PromiseRecord | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.promise = promise


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisePage:
    """One page of a search.

    Args:
        promises: in the order of their ids.
        cursor: for the next page; None at the end.
    """

    promises: tuple[PromiseRecord, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback that was registered.

    Args:
        id: callback id.
        promise_id: the promise that it waits for.
        root_promise_id: the promise whose task is resumed.
        timeout: from then on it is dropped instead; None means never.
        recv: address of the resume.
    """

    id: str
    promise_id: str
    root_promise_id: str
    timeout: datetime | None
    recv: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What came of a callback.

    Args:
        callback: the callback; None if nothing was registered: its id is known, or one of the two promises
            is completed.
        promise: the awaited promise; if it is completed, its awaiter goes on at once.
    """

    callback: Callback | None
    promise: PromiseRecord


def record_of(about: dict[str, Any], deduplicated: bool) -> PromiseRecord:
    """Return the record of an answer.

    Args:
        about: the promise in its older shape.
        deduplicated: the request had been done before.
    """
    return PromiseRecord(
        id=about["id"],
        state=about["state"],
        param_data=about["param"].get("data"),
        param_headers=about["param"].get("headers", {}),
        value_data=about["value"].get("data"),
        value_headers=about["value"].get("headers", {}),
        tags=about["tags"],
        timeout=_instant(about["timeout"]),
        created_on=EPOCH + about["createdOn"] * MILLISECOND,
        completed_on=_instant(about.get("completedOn")),
        idempotency_key_for_create=about.get("idempotencyKeyForCreate"),
        idempotency_key_for_complete=about.get("idempotencyKeyForComplete"),
        deduplicated=deduplicated,
    )


def callback_of(about: dict[str, Any]) -> Callback:
    """Return the callback of an answer."""
    return Callback(
        id=about["id"],
        promise_id=about["promiseId"],
        root_promise_id=about["rootPromiseId"],
        timeout=_instant(about["timeout"]),
        recv=about["recv"],
    )


def _instant(ms: int | None) -> datetime | None:
    """Return an instant; Python's years end with 9999, and what is later counts as never."""
    return None if ms is None or ms >= _YEAR_10000_MS else EPOCH + ms * MILLISECOND


def _plain(data: str | None) -> Any:
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data
