"""The handle of a run, and the verbs of a client for one run.

Lives here: `Run`, which has an id and no state, so there can be several for one run, in any process; and
`RunControl`, its verbs: get, wait, signal, cancel, pause, resume, redrive, fork, and those of run_watch.py
and run_start.py.
May not: a connection, SQL text, a decision; SQL decides whether a run can be cancelled or forked, and each
refusal has its class of error. Design: every verb is one statement, in a transaction of its own or in the
caller's (`conn`). A verb can be repeated after a lost connection: a signal has a key, a fork has the id of
the new run, and the others request a state.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Generator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypedDict, Unpack, cast, overload

from pyengine.core.client.arguments import check_instant, replaced_results
from pyengine.core.client.run_start import RunStart
from pyengine.core.client.run_status import RunMoment, RunStatus, read_moment, read_status
from pyengine.core.client.run_watch import RunWatch
from pyengine.core.client.signal_payloads import signal_payload
from pyengine.core.client.transport import Transport
from pyengine.core.database.poll_schedule import Channel
from pyengine.core.database.statements.procedures import (
    AS_OF,
    CANCEL,
    FORK,
    PAUSE,
    REDRIVE,
    RESUME,
    RUN,
    SIGNAL,
    SIGNAL_WITHIN,
)
from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.definitions.retry import Duration, waiting_time
from pyengine.core.definitions.signals import Signal
from pyengine.core.protocol.causes import Cause
from pyengine.core.values.codec import Codec, TypeCodec, type_codec
from pyengine.core.values.error_records import describe_error, origin_lines, read_record, traceback_of
from pyengine.errors import Conflict, NotFound, RunCancelled, RunFailed, RunTimedOut

if TYPE_CHECKING:
    # the result of a workflow that is only named is Any, not unknown
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

V = TypeVar("V")

_ENDED: dict[str, tuple[type[RunFailed], str]] = {
    "rejected": (RunFailed, "failed"),
    "rejected_timedout": (RunTimedOut, "did not end before its deadline"),
    "rejected_canceled": (RunCancelled, "was cancelled"),
}


class SignalOptions(TypedDict, total=False):
    """The options of a signal; `RunControl.signal` says what they are."""

    dedup: str | None
    conn: Any


class Run(Generic[T]):
    """A handle of one run; awaiting it is `result()`.

    Attributes:
        id: run id.
        created: whether this start created the run; None for a handle of an existing run.
    """

    def __init__(
        self,
        client: RunControl,
        id: str,
        codec: TypeCodec,
        *,
        created: bool | None = None,
        hint_count: int | None = None,
    ) -> None:
        self._client = client
        self._codec = codec
        self._hint_count = hint_count
        self.id = id
        self.created = created

    async def result(self, *, timeout: Duration | None = None) -> T:
        """Wait for the end of the run and return its result.

        Args:
            timeout: how long to wait; the run continues when the wait is over.

        Raises:
            RunFailed: it failed; its error is the cause.
            RunTimedOut, RunCancelled: it timed out, or was cancelled.
            TimeoutError: it has not ended yet.
            NotFound: there is no such run.
            DecodeError: its result does not fit the annotation.
        """
        return cast("T", await self._client._result(self.id, self._codec, timeout, self._hint_count))

    @overload
    async def get(self) -> RunStatus: ...
    @overload
    async def get(self, name: str, type: type[V]) -> V | None: ...
    @overload
    async def get(self, name: str, type: Any = ...) -> Any: ...
    async def get(self, name: str | None = None, type: Any = Any) -> Any:
        """Return the run as it is now, or, given a name, the last value that it has set under it.

        Args:
            name: a name of `ctx.set`; None for the status of the run.
            type: type of the value; plain JSON by default.

        Returns:
            The status, or the value: None if the run has set none.

        Raises:
            NotFound: there is no such run.
            DecodeError: the value does not fit the type.
        """
        if name is None:
            return await self._client.get(self.id)
        return await self._client.get_value(self.id, name, type)

    async def why(self) -> list[Cause]:
        """Return why it waits, down to the last cause; as `Client.why`."""
        return await self._client.why(self.id)

    def watch(self) -> AsyncIterator[RunStatus]:
        """Iterate over its states, from the present one to its end; as `Client.watch`."""
        return self._client.watch(self.id)

    @overload
    async def signal(self, signal: Signal[V], payload: V, **options: Unpack[SignalOptions]) -> int: ...
    @overload
    async def signal(
        self, signal: Signal[None], payload: None = None, **options: Unpack[SignalOptions]
    ) -> int: ...
    @overload
    async def signal(self, signal: str, payload: Any = None, **options: Unpack[SignalOptions]) -> int: ...
    async def signal(
        self, signal: Signal[Any] | str, payload: Any = None, *, dedup: str | None = None, conn: Any = None
    ) -> int:
        """Send it a signal and return its number; as `Client.signal`."""
        return await self._client.signal(self.id, signal, payload, dedup=dedup, conn=conn)

    async def cancel(
        self, reason: Any = None, *, grace: Duration | None = None, force: bool = False, conn: Any = None
    ) -> str:
        """Cancel it and its child runs; as `Client.cancel`."""
        return await self._client.cancel(self.id, reason, grace=grace, force=force, conn=conn)

    async def pause(self, *, conn: Any = None) -> None:
        """Pause it until `resume`; as `Client.pause`."""
        await self._client.pause(self.id, conn=conn)

    async def resume(self, *, conn: Any = None) -> None:
        """Continue it after a pause or a halt; as `Client.resume`."""
        await self._client.resume(self.id, conn=conn)

    async def redrive(self, *, conn: Any = None) -> None:
        """Continue it after it was dead; as `Client.redrive`."""
        await self._client.redrive(self.id, conn=conn)

    async def reschedule(
        self, *, at: datetime | None = None, delay: Duration | None = None, conn: Any = None
    ) -> datetime:
        """Move its start before it has begun; as `Client.reschedule`."""
        return await self._client.reschedule(self.id, at=at, delay=delay, conn=conn)

    async def fork(
        self,
        *,
        seq: int | None = None,
        step: str | None = None,
        set: Mapping[str | int, Any] | None = None,
        id: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        conn: Any = None,
    ) -> Run[T]:
        """Start a new run with a copy of this run's journal up to a position; as `Client.fork`."""
        made = await self._client.fork(
            self.id, seq=seq, step=step, set=set, id=id, queue=queue, version=version, conn=conn
        )
        return Run(self._client, made.id, self._codec)

    async def as_of(
        self, *, seq: int | None = None, at: datetime | None = None, generation: int | None = None
    ) -> RunMoment:
        """Return its state at an earlier moment; as `Client.as_of`."""
        return await self._client.as_of(self.id, seq=seq, at=at, generation=generation)

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class RunControl(RunWatch, RunStart):
    """The verbs of a client for one run, as a mixin; the client has the transport.

    `conn` is a connection of the caller's, as `start` takes it.
    """

    _transport: Transport
    _codec: Codec
    _registry: Registry

    def run(self, id: str, workflow: Workflow[..., T] | None = None) -> Run[T]:
        """Return a handle of an existing run.

        Args:
            id: run id.
            workflow: gives the type of the result; without it the result is plain JSON.
        """
        return Run(self, id, result_codec(None if workflow is None else workflow.definition))

    async def get(self, id: str) -> RunStatus:
        """Return a run as it is now.

        Raises:
            NotFound: there is no such run.
        """
        rows = await self._transport.rows(RUN, id)
        if not rows:
            raise NotFound(f"there is no run {id!r}")
        return read_status(rows[0], self._codec)

    @overload
    async def signal(
        self, run_id: str, signal: Signal[V], payload: V, **options: Unpack[SignalOptions]
    ) -> int: ...
    @overload
    async def signal(
        self, run_id: str, signal: Signal[None], payload: None = None, **options: Unpack[SignalOptions]
    ) -> int: ...
    @overload
    async def signal(
        self, run_id: str, signal: str, payload: Any = None, **options: Unpack[SignalOptions]
    ) -> int: ...
    async def signal(
        self,
        run_id: str,
        signal: Signal[Any] | str,
        payload: Any = None,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> int:
        """Send a signal to a run, which receives its signals in the order of sending; `durable.signal` in
        SQL.

        Args:
            run_id: run id.
            signal: the signal, or its name.
            payload: its payload: of the signal's type, or plain JSON if only its name is given.
            dedup: deduplication key: a run receives signals with the same key once.
            conn: a connection of yours, in whose transaction it is sent: a rollback leaves nothing.

        Returns:
            Its number among the signals of this name that were sent to the run, from 1.

        Raises:
            NotFound: there is no such run, or its workflow receives no signal of this name.
            Conflict: it has ended.
            EncodeError: the payload does not fit the signal's type.
            InvalidRequest, PayloadTooLarge: name, key or payload is invalid, or the workflow of the run
                declares another type.
        """
        name, text = signal_payload(self._codec, self._registry, signal, payload, to=f"run {run_id}")
        if conn is not None:
            row = await self._transport.first_row(conn, SIGNAL_WITHIN, run_id, name, text, dedup)
            return int(row["delivery"])
        key = secrets.token_hex(16) if dedup is None else dedup
        with_commit = self._transport.with_commit("durable_ready")
        (row,) = await self._transport.rows(SIGNAL, run_id, name, text, key, with_commit)
        if row["created"]:
            channel: Channel = "durable_ready" if row["woken"] else "durable_settled"
            await self._transport.announce(channel, with_commit=with_commit)
        return int(row["delivery"])

    async def cancel(
        self,
        run_id: str,
        reason: Any = None,
        *,
        grace: Duration | None = None,
        force: bool = False,
        conn: Any = None,
    ) -> str:
        """Cancel a run and its child runs: their code gets a CancelledError and may clean up.

        Args:
            run_id: run id.
            reason: why: a text, or any plain JSON value.
            grace: how long they may clean up; None means the setting cancel_grace_ms of the database.
            force: end all of them now, without any clean-up.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            "cancelling", or "cancelled" if it was cancelled before; repeating the request is no error.

        Raises:
            NotFound: there is no such run.
            Conflict: it has ended otherwise.
        """
        text = None if reason is None else self._codec.encode(reason, where=f"the reason to cancel {run_id}")
        grace_ms = waiting_time(grace, what="grace")
        row = await self._transport.first_row(conn, CANCEL, run_id, text, grace_ms, force)
        return str(row["state"])

    async def pause(self, run_id: str, *, conn: Any = None) -> None:
        """Pause a run until `resume`; steps under way are repeated then, signals are still accepted.

        Args:
            run_id: run id.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it has ended.
        """
        await self._transport.first_row(conn, PAUSE, run_id)

    async def resume(self, run_id: str, *, conn: Any = None) -> None:
        """Continue a run that is paused, halted or dead, with the code that workers have now.

        Args:
            run_id: run id.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it is neither paused nor halted nor dead.
        """
        await self._transport.first_row(conn, RESUME, run_id)

    async def redrive(self, run_id: str | None = None, *, conn: Any = None) -> int:
        """Continue dead runs, those whose workers were lost too often, and return their number.

        Args:
            run_id: run id; None means all that are dead.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it is not dead.
        """
        return int((await self._transport.first_row(conn, REDRIVE, run_id))["number"])

    async def fork(
        self,
        run_id: str,
        *,
        seq: int | None = None,
        step: str | None = None,
        set: Mapping[str | int, Any] | None = None,
        id: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        conn: Any = None,
    ) -> Run[Any]:
        """Start a new run with a copy of another run's journal up to a position.

        Args:
            run_id: the run to copy; it does not change.
            seq: the number of events to copy.
            step: copies the events before the first step, child run or promise of this name; without `seq`
                and `step` all are copied.
            set: replaces recorded results: by name or child number of a call, or payloads by
                "signal:<name>:<number>".
            id: id of the new run.
            queue: its queue; None means the same.
            version: its workflow version; None means the same.
            conn: a connection of yours, in whose transaction it is started: a rollback leaves nothing.

        Raises:
            NotFound: there is no such run, or no such step in it.
            Conflict: the new id is taken.
            InvalidRequest: there is no such position, or a value matches nothing in the copy.
            EncodeError: a value does not fit the type of its step.
        """
        new_id = secrets.token_hex(16) if id is None else id
        cut = (seq, step, replaced_results(self._codec, self._registry, set))
        try:
            await self._transport.first_row(conn, FORK, run_id, *cut, new_id, queue, version)
        except Conflict:
            # a random id can only be taken by this request, which was repeated after a lost answer
            if id is not None or conn is not None:
                raise
            await self.get(new_id)
        return self.run(new_id)

    async def as_of(
        self,
        run_id: str,
        *,
        seq: int | None = None,
        at: datetime | None = None,
        generation: int | None = None,
    ) -> RunMoment:
        """Return the state of a run at an earlier moment, or now if none is given; `durable.as_of` in SQL.

        Args:
            run_id: run id.
            seq: the moment when its journal had so many events.
            at: this instant, with a time zone.
            generation: an earlier journal of a run that continued as new; `at` finds its generation itself.

        Raises:
            NotFound: there is no such run.
            InvalidRequest: the run has no such moment.
        """
        check_instant("at", at)
        (row,) = await self._transport.rows(AS_OF, run_id, seq, at, generation)
        return read_moment(row)

    async def _result(
        self, id: str, codec: TypeCodec, timeout: Duration | None, hint_count: int | None
    ) -> Any:
        timeout_ms = waiting_time(timeout, what="timeout")
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        row = await self._transport.ended(id, timeout_s, hint_count)
        state = row["state"]
        if state is None:
            raise NotFound(f"there is no run {id!r}")
        if state == "resolved":
            return self._codec.decode(
                row["value"] or "null", codec.annotation, where=f"the result of run {id}"
            )
        cls, ending = _ENDED[state]
        if cls is RunFailed:
            cause = self._codec.decode_error(row["error"])
            raise _failure(id, cause, row["error"]) from cause
        raise cls(f"run {id} {ending}", run_id=id)


def _failure(id: str, cause: BaseException, text: str | None) -> RunFailed:
    """Return the error of a run that failed, with the place and the traceback of its cause as notes.

    Args:
        id: run id.
        cause: the error of its workflow.
        text: the same as JSON text.
    """
    failed = RunFailed(f"run {id} failed: {describe_error(cause)}", run_id=id)
    record = read_record(text)
    for line in (*origin_lines(record), traceback_of(record).rstrip()):
        if line:
            failed.add_note(line)
    return failed


def result_codec(definition: WorkflowDef | None) -> TypeCodec:
    """Return the codec of a workflow's result: plain JSON if the workflow is not known here."""
    return type_codec(Any) if definition is None else definition.signature.result
