"""Durable promises from Python: created and completed once each.

Lives here: `Promises`, the attribute `promises` of a client. May not: a decision; SQL decides every outcome
(80_v0/10_promises_v0.sql), and promises/records.py has the records of the answers. Design: a promise is
created once and completed once, and idempotency keys identify the requests that did it. A request repeated
with its key gets the first answer; if another request has done the work, it raises `PromiseConflict` with the
promise. `strict` accepts the first answer only while the promise is in the requested state. A request without
a key gets a random one, so that it can be sent again after a lost connection. An answer after the deadline
would be lost, which the protocol calls done (200), and this raises as `durable.resolve` does.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias, get_args

import msgspec

from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.definitions.retry import Duration, waiting_time
from pyengine.core.values.codec import Codec
from pyengine.errors import InvalidRequest, NotFound
from pyengine.features.promises.records import (
    EPOCH,
    MILLISECOND,
    PromiseConflict,
    PromisePage,
    PromiseRecord,
    PromiseState,
    Registration,
    callback_of,
    record_of,
)
from pyengine.features.promises.statements import (
    PROMISE_CALLBACK,
    PROMISE_CANCEL,
    PROMISE_CREATE,
    PROMISE_READ,
    PROMISE_REJECT,
    PROMISE_RESOLVE,
    PROMISE_SEARCH,
    PROMISE_SUBSCRIBE,
)

Receiver: TypeAlias = str | Mapping[str, Any]
"""An address ("poll://group:id", "http://host/path", a group), or {"type": "poll", "data": {"group", "id"}},
or {"type": "http", "data": {"url", "headers"}}."""

_CODEC = {"codec": "json"}


class Opaque(str):
    """Text that is stored as it is, for peers whose payloads are not plain JSON."""

    __slots__ = ()


class Promises:
    """Creates promises, completes them, and waits for them by callback.

    Args:
        transport: the way to the database.
        codec: encodes values and errors.

    `conn` is a connection of the caller's, as `Client.start` takes it: a rollback leaves nothing.
    """

    def __init__(self, transport: Transport, codec: Codec) -> None:
        self._transport = transport
        self._codec = codec

    # -- downstream and upstream

    async def create(
        self,
        id: str,
        param: Any = None,
        *,
        timeout: Duration | datetime | None = None,
        idempotency_key: str | None = None,
        strict: bool = False,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> PromiseRecord:
        """Create a promise.

        Args:
            id: promise id, up to 512 bytes.
            param: a plain JSON value, or `Opaque` text.
            timeout: when it times out: a duration from now, an instant with a time zone, or None for never.
            idempotency_key: the same key finds the promise that it made.
            strict: only while that promise is pending.
            headers: headers of the parameter.
            tags: e.g. {"resonate:target": "poll://any@workers"} gives it a task.
            conn: a connection of yours, in whose transaction it is created.

        Raises:
            PromiseConflict: it exists, and this key did not make it; or strict, and it is completed.
            InvalidRequest: an argument is malformed.
            Unavailable: the database cannot be reached.
        """
        payload = self._payload(param, headers, f"the parameter of promise {id}")
        options = (*_deadline(timeout), strict, _json(tags or {}))
        return await self._request(PROMISE_CREATE, conn, id, idempotency_key, *payload, *options)

    async def resolve(
        self,
        id: str,
        value: Any = None,
        *,
        idempotency_key: str | None = None,
        strict: bool = False,
        headers: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> PromiseRecord:
        """Complete a promise with success.

        Args:
            id: promise id.
            value: a plain JSON value, an object of the type that waits, or `Opaque` text.
            idempotency_key: the same key finds the completion that it made.
            strict: the same key must have resolved it; otherwise it may have completed it in any way.
            headers: headers of the value.
            conn: a connection of yours, in whose transaction it is completed.

        Raises:
            PromiseConflict: it is completed, and not by this key; or its deadline has passed.
            NotFound: there is no such promise.
            InvalidRequest: an argument is malformed.
            Unavailable: the database cannot be reached.
        """
        payload = self._payload(value, headers, f"the value of promise {id}")
        return _in_time(await self._request(PROMISE_RESOLVE, conn, id, idempotency_key, *payload, strict))

    async def reject(
        self,
        id: str,
        error: Any = None,
        *,
        idempotency_key: str | None = None,
        strict: bool = False,
        headers: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> PromiseRecord:
        """Complete a promise with failure.

        Args:
            id: promise id.
            error: an exception, a plain JSON value, or `Opaque` text.
            idempotency_key: as in `resolve`.
            strict: as in `resolve`.
            headers: headers of the error.
            conn: as in `resolve`.

        Raises:
            EngineError: as `resolve`.
        """
        payload = self._payload(error, headers, f"the error of promise {id}")
        return _in_time(await self._request(PROMISE_REJECT, conn, id, idempotency_key, *payload, strict))

    async def cancel(
        self,
        id: str,
        error: Any = None,
        *,
        idempotency_key: str | None = None,
        strict: bool = False,
        headers: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> PromiseRecord:
        """Cancel a promise that its creator does not need any more.

        Args:
            id: promise id.
            error: as in `reject`.
            idempotency_key: as in `resolve`.
            strict: as in `resolve`.
            headers: headers of the error.
            conn: as in `resolve`.

        Raises:
            EngineError: as `resolve`.
        """
        payload = self._payload(error, headers, f"the error of promise {id}")
        return await self._request(PROMISE_CANCEL, conn, id, idempotency_key, *payload, strict)

    # -- waiting

    async def callback(
        self,
        id: str,
        promise_id: str,
        root_promise_id: str,
        recv: Receiver,
        *,
        timeout: Duration | datetime | None = None,
        conn: Any = None,
    ) -> Registration:
        """Resume the task of a promise when another promise is completed.

        Args:
            id: callback id; the same id is the same callback.
            promise_id: the promise to wait for.
            root_promise_id: the promise whose task waits.
            recv: address of the resume.
            timeout: drops the callback afterwards.
            conn: a connection of yours, in whose transaction it is registered.

        Raises:
            NotFound: there is no such promise to wait for.
            NotTargeted: the promise that waits has no task.
            NotAwaitable: the awaited promise can only be completed by its worker.
            InvalidRequest: an argument is malformed.
            Unavailable: the database cannot be reached.
        """
        ids, deadline = (id, promise_id, root_promise_id), _deadline(timeout)
        row = await self._transport.first_row(conn, PROMISE_CALLBACK, *ids, *deadline, _json(recv))
        promise = self._record(row, promise_id)
        made = None if row["callback"] is None else callback_of(msgspec.json.decode(row["callback"]))
        return Registration(callback=made, promise=promise)

    async def subscribe(self, promise_id: str, recv: Receiver, *, conn: Any = None) -> PromiseRecord:
        """Notify an address when a promise is completed, unless it is completed already.

        Args:
            promise_id: the promise to wait for.
            recv: the address.
            conn: as in `callback`.

        Returns:
            The promise; if it is completed, no notification follows.

        Raises:
            EngineError: as `callback`.
        """
        row = await self._transport.first_row(conn, PROMISE_SUBSCRIBE, promise_id, _json(recv))
        return self._record(row, promise_id)

    # -- reading

    async def get(self, id: str) -> PromiseRecord:
        """Return a promise as it is now.

        Raises:
            NotFound: there is no such promise.
        """
        return self._record((await self._transport.rows(PROMISE_READ, id))[0], id)

    async def search(
        self,
        id: str = "*",
        *,
        state: PromiseState | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PromisePage:
        """Return promises in the order of their ids.

        Args:
            id: pattern in which * stands for any characters.
            state: only promises in this state; REJECTED includes canceled and timed out.
            tags: only promises with all of these tags.
            limit: the largest number of promises, up to 1000.
            cursor: the cursor of the page before.

        Raises:
            InvalidRequest: there is no such state, or an argument is malformed.
        """
        if state is not None and state not in get_args(PromiseState):
            raise InvalidRequest(
                f"there is no state {state!r}", hint=f"the states are {', '.join(get_args(PromiseState))}"
            )
        (row,) = await self._transport.rows(PROMISE_SEARCH, id, state, _json(tags or {}), limit, cursor)
        found = msgspec.json.decode(row["promises"])
        return PromisePage(promises=tuple(record_of(each, False) for each in found), cursor=row["cursor"])

    # -- parts

    async def _request(
        self, procedure: Procedure, conn: Any, id: str, key: str | None, *values: Any
    ) -> PromiseRecord:
        random_key = secrets.token_hex(16) if key is None else None
        row = await self._transport.first_row(conn, procedure, id, random_key or key, *values)
        return self._record(row, id, random_key)

    def _payload(
        self, value: Any, headers: Mapping[str, str] | None, where: str
    ) -> tuple[str | None, str | None]:
        """Return the texts of a payload and of its headers, which name our codec unless it is opaque."""
        if value is None or isinstance(value, Opaque):
            return value, None if headers is None else _json(headers)
        if isinstance(value, BaseException):
            text = self._codec.encode_error(value)
        else:
            text = self._codec.encode_undeclared(value, where=where)
        return text, _json(_CODEC | dict(headers or {}))

    def _record(self, row: Any, id: str, random_key: str | None = None) -> PromiseRecord:
        """Return the promise of an answer, or raise its error.

        Args:
            row: status, word and promise.
            id: promise id, for the error.
            random_key: the key of this request, if it is random: then only this request can have done the
                work, and it is not reported as deduplicated.
        """
        if row["promise"] is None:
            raise NotFound(f"there is no promise {id!r}")
        promise = msgspec.json.decode(row["promise"])
        keys = (promise.get("idempotencyKeyForCreate"), promise.get("idempotencyKeyForComplete"))
        is_own = random_key is not None and random_key in keys
        record = record_of(promise, row["word"] == "deduplicated" and not is_own)
        if row["status"] in (403, 409):
            raise PromiseConflict(
                f"promise {id!r} is {row['word']}",
                promise=record,
                hint="what is there stands in the error's attribute promise; its own key would have found it",
            )
        return record


def _in_time(record: PromiseRecord) -> PromiseRecord:
    """Return a promise that was settled, unless by its deadline."""
    if record.state == "REJECTED_TIMEDOUT":
        raise PromiseConflict(
            f"promise {record.id!r} has timed out: this answer is too late",
            promise=record,
            hint="whoever waited for it has gone on without it",
        )
    return record


def _deadline(timeout: Duration | datetime | None) -> tuple[int | None, int | None]:
    """Return an instant or a span, in milliseconds; the database adds the span to its clock."""
    if not isinstance(timeout, datetime):
        return None, waiting_time(timeout, what="timeout")
    if timeout.tzinfo is None:
        raise InvalidRequest("timeout is an instant without a time zone", hint="datetime.now(UTC) has one")
    return (timeout - EPOCH) // MILLISECOND, None


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeError) as error:
        raise InvalidRequest(f"{value!r} cannot be written as JSON: {error}") from error
