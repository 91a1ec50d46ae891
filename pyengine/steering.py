"""What people do to a run that exists: signal, cancel, pause, resume, redrive, fork, and look back.

What lives here: `Steering`, these verbs of a client. What may not: a connection, SQL text, a decision;
whether a run can be cancelled or forked is decided in SQL, and a refusal comes back by class. The theory:
every verb is one statement, in a transaction of its own or in the caller's (`conn`). One that is sent again
after a lost connection does no harm: a signal carries a key, a fork the id of its copy, and the rest ask for
a state.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from pyengine.asking import Asker
from pyengine.codec import Codec
from pyengine.errors import Conflict, InvalidRequest
from pyengine.handle import Run
from pyengine.procedures import AS_OF, CANCEL, FORK, PAUSE, REDRIVE, RESUME, SIGNAL, SIGNAL_WITHIN, Procedure
from pyengine.registry import Registry
from pyengine.results import RunMoment, RunStatus
from pyengine.retry import Duration, optional_duration
from pyengine.signals import Signal

__all__ = ["Steering"]

T = TypeVar("T")


class Steering:
    """The verbs of a client; it is mixed into one, which says how statements and hints leave.

    `conn` is a connection of the caller's, as `start` takes it.
    """

    _asker: Asker
    _codec: Codec
    _registry: Registry

    def run(self, id: str) -> Run[Any]:
        """Return a handle for a run that exists."""
        raise NotImplementedError

    async def get(self, id: str) -> RunStatus:
        """Return a run as it is now."""
        raise NotImplementedError

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
