"""One run that exists: its handle, and all that a client does to it.

What lives here: `Run`, which holds an id and no state, so any number of them may stand for one run, in any
process; and `RunControl`, the verbs behind it: look, wait, signal, cancel, pause, resume, redrive, fork. What
may not: a connection, SQL text, a decision; whether a run can be cancelled or forked is decided in SQL, and a
refusal comes back by class. The theory: every verb is one statement, in a transaction of its own or in the
caller's (`conn`). One that is sent again after a lost connection does no harm: a signal carries a key, a fork
the id of its copy, and the rest ask for a state.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, cast

import msgspec

from pyengine.client.run_status import RunMoment, RunStatus
from pyengine.client.transport import Transport
from pyengine.database.statements.procedures import (
    AS_OF,
    CANCEL,
    FORK,
    PAUSE,
    REDRIVE,
    RESUME,
    RUN,
    SIGNAL,
    SIGNAL_WITHIN,
    Procedure,
)
from pyengine.definitions.definition import WorkflowDef
from pyengine.definitions.registry import Registry, Workflow
from pyengine.definitions.retry import Duration, optional_duration, parse_duration
from pyengine.definitions.signals import Signal
from pyengine.errors import Conflict, InvalidRequest, NotFound, RunCancelled, RunFailed, RunTimedOut
from pyengine.values.codec import Codec, TypeCodec, type_codec

if TYPE_CHECKING:
    # a workflow that is only named says nothing of its result: that is Any and not unknown
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

V = TypeVar("V")

__all__ = ["Run", "RunControl", "result_codec"]

_ENDED: dict[str, tuple[type[RunFailed], str]] = {
    "rejected": (RunFailed, "failed"),
    "rejected_timedout": (RunTimedOut, "did not end before its deadline"),
    "rejected_canceled": (RunCancelled, "was cancelled"),
}


class Run(Generic[T]):
    """A handle of one run; awaiting it is `result()`.

    Attributes:
        id: run id.
        created: whether this start made it; None if the handle was made for a run that exists.
    """

    def __init__(
        self,
        client: RunControl,
        id: str,
        codec: TypeCodec,
        *,
        created: bool | None = None,
        since: int | None = None,
    ) -> None:
        self._client = client
        self._since = since
        self._codec = codec
        self.id = id
        self.created = created

    async def result(self, *, timeout: Duration | None = None) -> T:
        """Wait for the end of the run and return what its workflow returned.

        Args:
            timeout: how long to wait; the run goes on when the wait is over.

        Raises:
            RunFailed: it failed; its error is the cause. RunTimedOut, RunCancelled: it ended so.
            TimeoutError: it has not ended yet.
            NotFound: there is no such run.
            DecodeError: its result does not fit the annotation.
        """
        return cast("T", await self._client._result(self.id, self._codec, timeout, self._since))

    async def get(self) -> RunStatus:
        """Return the run as it is now.

        Raises:
            NotFound: there is no such run.
        """
        return await self._client.get(self.id)

    async def signal(
        self, signal: Signal[V] | str, payload: V | Any = None, *, dedup: str | None = None, conn: Any = None
    ) -> int:
        """Send it a signal and return its number; as `Client.signal`."""
        return await self._client.signal(self.id, signal, payload, dedup=dedup, conn=conn)

    async def cancel(
        self, reason: Any = None, *, grace: Duration | None = None, force: bool = False, conn: Any = None
    ) -> str:
        """Cancel it and its child runs; as `Client.cancel`."""
        return await self._client.cancel(self.id, reason, grace=grace, force=force, conn=conn)

    async def pause(self, *, conn: Any = None) -> None:
        """Set it aside until `resume`; as `Client.pause`."""
        await self._client.pause(self.id, conn=conn)

    async def resume(self, *, conn: Any = None) -> None:
        """Let it go on after a pause or a halt; as `Client.resume`."""
        await self._client.resume(self.id, conn=conn)

    async def redrive(self, *, conn: Any = None) -> None:
        """Revive it from the dead; as `Client.redrive`."""
        await self._client.redrive(self.id, conn=conn)

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
        """Begin a new run that takes over what this one did up to a position; as `Client.fork`."""
        made = await self._client.fork(
            self.id, seq=seq, step=step, set=set, id=id, queue=queue, version=version, conn=conn
        )
        return Run(self._client, made.id, self._codec)

    async def as_of(
        self, *, seq: int | None = None, at: datetime | None = None, generation: int | None = None
    ) -> RunMoment:
        """Return what was known of it at an earlier moment; as `Client.as_of`."""
        return await self._client.as_of(self.id, seq=seq, at=at, generation=generation)

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class RunControl:
    """The verbs of a client; it is mixed into one, which says how statements and hints leave.

    `conn` is a connection of the caller's, as `start` takes it.
    """

    _asker: Transport
    _codec: Codec
    _registry: Registry

    def run(self, id: str, workflow: Workflow[..., T] | None = None) -> Run[T]:
        """Return a handle for a run that exists.

        Args:
            id: run id.
            workflow: gives the type of the result; without it that is plain JSON.
        """
        return Run(self, id, result_codec(None if workflow is None else workflow.definition))

    async def get(self, id: str) -> RunStatus:
        """Return a run as it is now.

        Raises:
            NotFound: there is no such run.
        """
        rows = await self._asker.rows(RUN, id)
        if not rows:
            raise NotFound(f"there is no run {id!r}")
        return self._status(rows[0])

    async def _ask(self, procedure: Procedure, conn: Any, *values: Any) -> Any:
        """Run a statement and return its first row, in the caller's transaction if `conn` is given."""
        if conn is None:
            return (await self._asker.rows(procedure, *values))[0]
        return await self._asker.within(conn, procedure, *values)

    async def signal(
        self,
        run_id: str,
        signal: Signal[T] | str,
        payload: T | Any = None,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> int:
        """Send a signal to a run; it waits there until the code receives it, in the order of sending.

        Args:
            run_id: run id.
            signal: the signal, or its name.
            payload: what it carries: of the signal's type, or plain JSON if only its name is given.
            dedup: the same key again is the same signal.
            conn: a connection of yours, in whose transaction it is sent: a rollback leaves nothing.

        Returns:
            Its number among the signals of this name that the run was sent, from 1.

        Raises:
            NotFound: there is no such run.
            Conflict: it has ended.
            EncodeError: the payload does not fit the signal's type.
            InvalidRequest, PayloadTooLarge: name, key or payload cannot be taken.
        """
        if not isinstance(signal, Signal):
            signal = Signal(signal)
        name, annotation = signal.name, signal.annotation
        text = self._codec.encode(payload, annotation, where=f"the payload of signal {name} to run {run_id}")
        if conn is not None:
            return int((await self._ask(SIGNAL_WITHIN, conn, run_id, name, text, dedup))["delivery"])
        key = secrets.token_hex(16) if dedup is None else dedup
        sent = self._asker.along("durable_ready")
        row = await self._ask(SIGNAL, None, run_id, name, text, key, sent)
        if row["created"]:
            await self._asker.hint("durable_ready" if row["woken"] else "durable_settled", sent=sent)
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
        """Cancel a run and its child runs: their code sees a CancelledError and may clean up.

        Args:
            run_id: run id.
            reason: why: a text, or any plain JSON value.
            grace: for how long they may; None means the setting cancel_grace_ms of the database.
            force: end all of them now, without any clean-up.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            "cancelling", or "cancelled" if it has ended so; asking again is no error.

        Raises:
            NotFound: there is no such run.
            Conflict: it has ended otherwise.
        """
        text = None if reason is None else self._codec.encode(reason, where=f"the reason to cancel {run_id}")
        grace_ms = optional_duration(grace, what="grace")
        row = await self._ask(CANCEL, conn, run_id, text, grace_ms, force)
        return str(row["state"])

    async def pause(self, run_id: str, *, conn: Any = None) -> None:
        """Set a run aside until `resume`; steps under way are made again then, signals go on arriving.

        Args:
            run_id: run id.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it has ended.
        """
        await self._ask(PAUSE, conn, run_id)

    async def resume(self, run_id: str, *, conn: Any = None) -> None:
        """Let a run go on that is paused, halted or dead, with the code that workers have now.

        Args:
            run_id: run id.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it is not set aside.
        """
        await self._ask(RESUME, conn, run_id)

    async def redrive(self, run_id: str | None = None, *, conn: Any = None) -> int:
        """Revive dead runs, those whose workers were lost too often, and return how many.

        Args:
            run_id: run id; None means all that are dead.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it is not dead.
        """
        return int((await self._ask(REDRIVE, conn, run_id))["number"])

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
        """Begin a new run that takes over what another one did up to a position, and goes on by itself.

        Args:
            run_id: the run to take over from; it stays as it is.
            seq: so many events of its journal are taken over.
            step: what was before the first step, child run or promise of this name; without either, all.
            set: results to put in place of recorded ones: by name or child number of a call, or payloads by
                "signal:<name>:<number>".
            id: id of the new run.
            queue: its queue; None means the same.
            version: its workflow version; None means the same.
            conn: a connection of yours, in whose transaction it is begun: a rollback leaves nothing.

        Raises:
            NotFound: there is no such run, or no such step in it.
            Conflict: the new id is taken.
            InvalidRequest: the position is none, or a value belongs to nothing there.
            EncodeError: a value does not fit the type of its step.
        """
        new_id = secrets.token_hex(16) if id is None else id
        values = msgspec.json.encode({str(key): self._placed(key, one) for key, one in (set or {}).items()})
        try:
            await self._ask(FORK, conn, run_id, seq, step, values.decode(), new_id, queue, version)
        except Conflict:
            # an id of our own is taken only by ourselves: the answer got lost and the request was sent again
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
        """Return what was known of a run at an earlier moment; now if none is given.

        Args:
            run_id: run id.
            seq: when its journal had so many events.
            at: at this instant, with a time zone.
            generation: of a run that continued as new, one before the present; an instant finds its own.

        Raises:
            NotFound: there is no such run.
            InvalidRequest: that is no moment of this run.
        """
        if at is not None and at.tzinfo is None:
            raise InvalidRequest("at is an instant, so it has a time zone", hint="datetime.now(timezone.utc)")
        row = await self._ask(AS_OF, None, run_id, seq, at, generation)
        told = {name: msgspec.json.decode(row[name]) for name in ("running", "children", "signals")}
        return RunMoment(
            generation=row["generation"],
            seq=row["seq"],
            at=row["at"],
            status=row["status"],
            next_child=row["next_child"],
            waits_for=tuple(row["waiting_on"]),
            running=tuple(told["running"]),
            children={int(child): one for child, one in told["children"].items()},
            signals=told["signals"],
        )

    def _placed(self, key: str | int, value: Any) -> msgspec.Raw:
        """Return a value as the result of what it is set for: of its type, if that is a step known here."""
        steps = {one.name: one.signature.result.annotation for one in self._registry.steps()}
        return msgspec.Raw(
            self._codec.encode(value, steps.get(str(key), Any), where=f"the value for {key}").encode()
        )

    def _status(self, row: Any) -> RunStatus:
        def value(name: str) -> Any:
            return None if row[name] is None else msgspec.json.decode(row[name])

        fields = dict(row) | {name: value(name) for name in ("args", "result", "problem")}
        fields["error"] = None if row["error"] is None else self._codec.decode_error(row["error"])
        fields["waits_for"] = tuple(row["waits_for"] or ())
        return RunStatus(**fields)

    async def _result(self, id: str, codec: TypeCodec, timeout: Duration | None, since: int | None) -> Any:
        timeout_s = None if timeout is None else parse_duration(timeout, what="timeout") / 1000
        row = await self._asker.ended(id, timeout_s, since)
        state = row["state"]
        if state is None:
            raise NotFound(f"there is no run {id!r}")
        if state == "resolved":
            return self._codec.decode(
                row["value"] or "null", codec.annotation, where=f"the result of run {id}"
            )
        cls, words = _ENDED[state]
        cause = self._codec.decode_error(row["error"])
        if cls is RunFailed:
            raise cls(f"run {id} failed: {cause}", run_id=id) from cause
        raise cls(f"run {id} {words}", run_id=id)


def result_codec(definition: WorkflowDef | None) -> TypeCodec:
    """Return what reads the result of a workflow; of one that is not known here, plain JSON."""
    return type_codec(Any) if definition is None else definition.signature.result
