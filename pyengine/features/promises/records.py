"""Records of durable promises, and the error of a conflicting request.

Lives here: the conversion of the older API's answers into records. May not: requests (promises/client.py),
SQL. Design: a record is a promise at one instant, and immutable. Payloads are stored texts, because any peer
may have written them; `param` and `value` read them as plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from pyengine.errors import Conflict

PromiseState: TypeAlias = Literal["PENDING", "RESOLVED", "REJECTED", "REJECTED_CANCELED", "REJECTED_TIMEDOUT"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
_YEAR_10000_MS = 253_402_300_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRecord:
    """A promise at the instant of the request.

    Args:
        id: promise id.
        state: its state.
        param_data: the parameter of its creation, as stored.
        param_headers: headers of the parameter.
        value_data: the value of its completion, as stored; an error as JSON text if it was rejected.
        value_headers: headers of the value.
        tags: tags of its creation.
        timeout: the instant at which it times out; None means never.
        created_on: the instant of its creation.
        completed_on: the instant of its completion.
        idempotency_key_for_create: key of its creation.
        idempotency_key_for_complete: key of its completion; none if it timed out.
        deduplicated: an earlier request with the same key had done the work.
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
        """The parameter of its creation: a plain JSON value, or the text itself if it is not JSON."""
        return _json_or_text(self.param_data)

    @property
    def value(self) -> Any:
        """The value of its completion: a plain JSON value, or the text itself if it is not JSON."""
        return _json_or_text(self.value_data)


class PromiseConflict(Conflict):
    """Another request has created or completed the promise already.

    Args:
        promise: the promise as it is.
    """

    promise: PromiseRecord = cast("PromiseRecord", None)  # never raised without it


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
    """A registered callback.

    Args:
        id: callback id.
        promise_id: the awaited promise.
        root_promise_id: the promise whose task is resumed.
        timeout: the instant at which the callback is dropped; None means never.
        recv: address of the resume.
    """

    id: str
    promise_id: str
    root_promise_id: str
    timeout: datetime | None
    recv: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The result of registering a callback.

    Args:
        callback: the callback, also if it was registered before; None if its id belongs to another one, or
            one of the two promises is completed.
        promise: the awaited promise; if it is completed, its awaiter continues at once.
    """

    callback: Callback | None
    promise: PromiseRecord


def record_of(promise: dict[str, Any], deduplicated: bool) -> PromiseRecord:
    """Return the record of a promise in the form of the older API."""
    return PromiseRecord(
        id=promise["id"],
        state=promise["state"],
        param_data=promise["param"].get("data"),
        param_headers=promise["param"].get("headers", {}),
        value_data=promise["value"].get("data"),
        value_headers=promise["value"].get("headers", {}),
        tags=promise["tags"],
        timeout=_instant(promise["timeout"]),
        created_on=EPOCH + promise["createdOn"] * MILLISECOND,
        completed_on=_instant(promise.get("completedOn")),
        idempotency_key_for_create=promise.get("idempotencyKeyForCreate"),
        idempotency_key_for_complete=promise.get("idempotencyKeyForComplete"),
        deduplicated=deduplicated,
    )


def callback_of(callback: dict[str, Any]) -> Callback:
    """Return the callback in the form of the older API."""
    return Callback(
        id=callback["id"],
        promise_id=callback["promiseId"],
        root_promise_id=callback["rootPromiseId"],
        timeout=_instant(callback["timeout"]),
        recv=callback["recv"],
    )


def _instant(ms: int | None) -> datetime | None:
    """Return an instant; Python's years end with 9999, and a later one counts as never."""
    return None if ms is None or ms >= _YEAR_10000_MS else EPOCH + ms * MILLISECOND


def _json_or_text(data: str | None) -> Any:
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data
