"""Durable promises from Python: created here, completed there, each once.

What lives here: `Promises`, which a client has as `promises`. What may not: a decision; the table of what is
answered stands in SQL (55_promises_v0), and the records that carry it in promise_records.py. The theory: a
promise is created once and completed once, and idempotency keys tell the one who did it from everybody else.
A request that is sent again under its key is answered as the first time; one that finds the work done by
somebody else raises `PromiseConflict` with the promise as it is. `strict` narrows "done before" to a promise
that is still in the state that the request asks for. A request without a key gets one of its own, so that it
may be sent again after a lost connection; nobody else can match it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias, get_args

import msgspec

from pyengine.client.promise_records import (
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
from pyengine.client.transport import Transport
from pyengine.database.statements.procedures import Procedure
from pyengine.database.statements.promises import (
    PROMISE_CALLBACK,
    PROMISE_CANCEL,
    PROMISE_CREATE,
    PROMISE_READ,
    PROMISE_REJECT,
    PROMISE_RESOLVE,
    PROMISE_SEARCH,
    PROMISE_SUBSCRIBE,
)
from pyengine.definitions.retry import Duration, optional_duration
from pyengine.errors import InvalidRequest, NotFound
from pyengine.values.codec import Codec

__all__ = ["Opaque", "Promises", "Receiver"]

Receiver: TypeAlias = str | Mapping[str, Any]
"""An address ("poll://group:id", "http://host/path", a group), or {"type": "poll", "data": {"group", "id"}},
or {"type": "http", "data": {"url", "headers"}}."""

_CODEC = {"codec": "json"}


class Opaque(str):
    """Text that is stored as it is, for peers that write their payloads in another way than plain JSON."""

    __slots__ = ()


class Promises:
    """Creates promises, completes them, and waits for them by callback.

    Args:
        asker: how to reach the database.
        codec: how values and errors become text.

    `conn` is a connection of the caller's, as `Client.start` takes it: a rollback leaves nothing.
    """

    def __init__(self, asker: Transport, codec: Codec) -> None:
        self._asker = asker
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
            headers: what is said about the parameter.
            tags: e.g. {"resonate:target": "poll://any@workers"} gives it a task.
            conn: a connection of yours, in whose transaction it is created.

        Raises:
            PromiseConflict: it exists, and this key did not make it; or strict, and it is completed.
            InvalidRequest: an argument is malformed.
            Unavailable: the database cannot be reached.
        """
        data, said = self._written(param, headers, f"the parameter of promise {id}")
        instant_ms, span_ms = _deadline(timeout)
        own = secrets.token_hex(16) if idempotency_key is None else None
        row = await self._ask(
            PROMISE_CREATE,
            conn,
            id,
            own or idempotency_key,
            data,
            said,
            instant_ms,
            span_ms,
            strict,
            _json(tags or {}),
        )
        return self._judged(row, id, own)

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
            value: a plain JSON value, or `Opaque` text.
            idempotency_key: the same key finds the completion that it made.
            strict: only if that was a resolve; otherwise any, and a promise that timed out is no conflict.
            headers: what is said about the value.
            conn: a connection of yours, in whose transaction it is completed.

        Raises:
            PromiseConflict: it is completed, and not by this key.
            NotFound: there is no such promise.
            InvalidRequest: an argument is malformed.
            Unavailable: the database cannot be reached.
        """
        data, said = self._written(value, headers, f"the value of promise {id}")
        return await self._complete(PROMISE_RESOLVE, conn, id, data, said, key=idempotency_key, strict=strict)

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
            headers: what is said about the error.
            conn: as in `resolve`.

        Raises:
            EngineError: as `resolve`.
        """
        data, said = self._written(error, headers, f"the error of promise {id}")
        return await self._complete(PROMISE_REJECT, conn, id, data, said, key=idempotency_key, strict=strict)

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
        """Cancel a promise; its creator does not want it any more.

        Args:
            id: promise id.
            error: as in `reject`.
            idempotency_key: as in `resolve`.
            strict: as in `resolve`.
            headers: what is said about the error.
            conn: as in `resolve`.

        Raises:
            EngineError: as `resolve`.
        """
        data, said = self._written(error, headers, f"the error of promise {id}")
        return await self._complete(PROMISE_CANCEL, conn, id, data, said, key=idempotency_key, strict=strict)

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
        """Have the task of a promise resumed when another promise is completed.

        Args:
            id: callback id; the same id is the same callback.
            promise_id: the promise to wait for.
            root_promise_id: the promise whose task waits.
            recv: where the resume goes.
            timeout: from then on the callback is dropped instead.
            conn: a connection of yours, in whose transaction it is registered.

        Raises:
            NotFound: there is no such promise to wait for.
            NotTargeted: who waits has no task.
            NotAwaitable: nobody outside completes that promise.
            InvalidRequest: an argument is malformed.
            Unavailable: the database cannot be reached.
        """
        instant_ms, span_ms = _deadline(timeout)
        row = await self._ask(
            PROMISE_CALLBACK, conn, id, promise_id, root_promise_id, instant_ms, span_ms, _json(recv)
        )
        promise = self._judged(row, promise_id, None)
        made = None if row["callback"] is None else callback_of(msgspec.json.decode(row["callback"]))
        return Registration(callback=made, promise=promise)

    async def subscribe(self, promise_id: str, recv: Receiver, *, conn: Any = None) -> PromiseRecord:
        """Have somebody told when a promise is completed; if it is already, the answer tells.

        Args:
            promise_id: the promise to wait for.
            recv: who is told.
            conn: as in `callback`.

        Raises:
            EngineError: as `callback`.
        """
        row = await self._ask(PROMISE_SUBSCRIBE, conn, promise_id, _json(recv))
        return self._judged(row, promise_id, None)

    # -- looking

    async def get(self, id: str) -> PromiseRecord:
        """Return a promise as it is now.

        Raises:
            NotFound: there is no such promise.
        """
        return self._judged(await self._ask(PROMISE_READ, None, id), id, None)

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
            state: only in this state; REJECTED includes canceled and timed out.
            tags: only with all of these.
            limit: at most so many, up to 1000.
            cursor: what the page before gave.

        Raises:
            InvalidRequest: there is no such state, or an argument is malformed.
        """
        if state is not None and state not in get_args(PromiseState):
            raise InvalidRequest(
                f"there is no state {state!r}", hint=f"the states are {', '.join(get_args(PromiseState))}"
            )
        row = await self._ask(PROMISE_SEARCH, None, id, state, _json(tags or {}), limit, cursor)
        found = msgspec.json.decode(row["promises"])
        return PromisePage(promises=tuple(record_of(each, False) for each in found), cursor=row["cursor"])

    # -- parts

    async def _complete(
        self,
        procedure: Procedure,
        conn: Any,
        id: str,
        data: str | None,
        said: str | None,
        *,
        key: str | None,
        strict: bool,
    ) -> PromiseRecord:
        own = secrets.token_hex(16) if key is None else None
        row = await self._ask(procedure, conn, id, own or key, data, said, strict)
        return self._judged(row, id, own)

    async def _ask(self, procedure: Procedure, conn: Any, *values: Any) -> Any:
        if conn is None:
            return (await self._asker.rows(procedure, *values))[0]
        return await self._asker.within(conn, procedure, *values)

    def _written(
        self, value: Any, headers: Mapping[str, str] | None, where: str
    ) -> tuple[str | None, str | None]:
        """Return the text of a payload and of its headers; ours names how it was written."""
        if value is None or isinstance(value, Opaque):
            return value, None if headers is None else _json(headers)
        if isinstance(value, BaseException):
            text = self._codec.encode_error(value)
        else:
            text = self._codec.encode(value, where=where)
        return text, _json(_CODEC | dict(headers or {}))

    def _judged(self, row: Any, id: str, own: str | None) -> PromiseRecord:
        """Return the promise of an answer, or raise what it says.

        Args:
            row: status, word and promise.
            id: named in the error.
            own: a key that nobody else has: what it did before was this very request.
        """
        if row["promise"] is None:
            raise NotFound(f"there is no promise {id!r}")
        about = msgspec.json.decode(row["promise"])
        keys = (about.get("idempotencyKeyForCreate"), about.get("idempotencyKeyForComplete"))
        record = record_of(about, row["word"] == "deduplicated" and (own is None or own not in keys))
        if row["status"] in (403, 409):
            raise PromiseConflict(
                f"promise {id!r} is {row['word']}",
                promise=record,
                hint="what is there stands in the error's attribute promise; its own key would have found it",
            )
        return record


def _deadline(timeout: Duration | datetime | None) -> tuple[int | None, int | None]:
    """Return an instant or a span, in milliseconds; the database adds the span to its own now."""
    if not isinstance(timeout, datetime):
        return None, optional_duration(timeout, what="timeout")
    if timeout.tzinfo is None:
        raise InvalidRequest("timeout is an instant without a time zone", hint="datetime.now(UTC) has one")
    return (timeout - EPOCH) // MILLISECOND, None


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeError) as error:
        raise InvalidRequest(f"{value!r} cannot be written as JSON: {error}") from error
