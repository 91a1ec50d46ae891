"""What people do to many runs or promises at once: signal, cancel, pause, resume, settle.

What lives here: `RunFilter`, `Steered`, and `ManyRuns`, these verbs of a client. What may not: SQL
text, a decision; what becomes of each id is decided in SQL, in one statement that takes its locks in order.
The theory: without a connection of the caller's, what is named goes in portions, each in a transaction of its
own, so that no transaction holds more than a portion of what others want. With one, all of it goes in one
statement, since two statements of one transaction would take their locks one after the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from pyengine.client.run_status import RunState
from pyengine.client.transport import Transport
from pyengine.database.statements.many_runs import (
    CANCEL_MANY,
    MATCHING_RUNS,
    PAUSE_MANY,
    RESUME_MANY,
    SETTLE_MANY,
    SIGNAL_MANY,
)
from pyengine.database.statements.procedures import Procedure
from pyengine.definitions.retry import Duration, optional_duration
from pyengine.definitions.signals import Signal
from pyengine.errors import InvalidRequest
from pyengine.values.codec import Codec

__all__ = ["ManyRuns", "Outcome", "RunFilter", "Steered"]

T = TypeVar("T")
PORTION = 1000
"""Runs of one transaction."""

Outcome: TypeAlias = Literal["done", "already", "ended", "refused", "not_found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which of the runs that have not ended are meant, child runs too; None means any.

    Args:
        workflow: of this workflow.
        state: in this state.
        tags: with all of these tags.
        started_after: started at this instant or later; it has a time zone.
        started_before: started before this instant; it has a time zone.
    """

    workflow: str | None = None
    state: RunState | None = None
    tags: Mapping[str, str] | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """What a verb for many did to one run or promise.

    Args:
        id: its id.
        outcome: "done"; "already", it was so before; "ended", it has ended otherwise; "refused", it is a step
            that its worker completes; "not_found".
        state: where the run or promise stands now; None for a signal, and if there is none.
        delivery: number of the signal among those of its name that the run was sent.
    """

    id: str
    outcome: Outcome
    state: str | None = None
    delivery: int | None = None


class ManyRuns:
    """The verbs for many of a client; it is mixed into one, which says how statements leave.

    `runs` are ids or a `RunFilter`. What matches is asked for first, so what a filter finds is as of then.
    Without `conn` 1000 at a time are steered in a transaction of their own; with it all of them are steered
    in the caller's, by one statement. `conn` is a connection as `start` takes it.
    """

    _asker: Transport
    _codec: Codec

    async def signal_many(
        self,
        runs: Iterable[str] | Mapping[str, T | Any] | RunFilter,
        signal: Signal[T] | str,
        payload: T | Any = None,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> list[Steered]:
        """Send a signal to many runs.

        Args:
            runs: ids, a filter, or payloads by id.
            signal: the signal, or its name.
            payload: what it carries, where it has none of its own.
            dedup: the same key again is the same signal of a run.
            conn: a connection of yours, in whose transaction it is sent: a rollback leaves nothing.

        Returns:
            What became of each id.

        Raises:
            EncodeError: a payload does not fit the signal's type.
            InvalidRequest, PayloadTooLarge: name, key or a payload cannot be taken.
        """
        if not isinstance(signal, Signal):
            signal = Signal(signal)
        said, where = signal, f"a payload of signal {signal.name}"
        text = self._codec.encode(payload, said.annotation, where=where)
        key = secrets.token_hex(16) if dedup is None and conn is None else dedup
        told: list[Steered] = []
        for ids in _portions(await self._ids(runs, conn), conn):
            texts = None
            if isinstance(runs, Mapping):
                texts = [self._codec.encode(runs[id], said.annotation, where=where) for id in ids]
            rows = await self._told(SIGNAL_MANY, conn, ids, said.name, text, key, texts)
            told += [Steered(id=id, outcome=outcome, delivery=number) for id, outcome, number in rows]
        return told

    async def cancel_many(
        self,
        runs: Iterable[str] | RunFilter,
        reason: Any = None,
        *,
        grace: Duration | None = None,
        force: bool = False,
        conn: Any = None,
    ) -> list[Steered]:
        """Cancel many runs and their child runs.

        Args:
            runs: ids, or a filter.
            reason: why: a text, or any plain JSON value.
            grace: for how long they may clean up; None means the setting cancel_grace_ms of the database.
            force: end all of them now, without any clean-up.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            What became of each id.

        Raises:
            InvalidRequest: the filter or the grace cannot be taken.
        """
        text = None if reason is None else self._codec.encode(reason, where="the reason to cancel")
        grace_ms = optional_duration(grace, what="grace")
        return await self._steer(CANCEL_MANY, runs, conn, text, grace_ms, force)

    async def pause_many(self, runs: Iterable[str] | RunFilter, *, conn: Any = None) -> list[Steered]:
        """Set many runs aside until they are resumed.

        Args:
            runs: ids, or a filter.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            What became of each id.

        Raises:
            InvalidRequest: the filter cannot be taken.
        """
        return await self._steer(PAUSE_MANY, runs, conn)

    async def resume_many(self, runs: Iterable[str] | RunFilter, *, conn: Any = None) -> list[Steered]:
        """Let many runs go on that are paused, halted or dead.

        Args:
            runs: ids, or a filter.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            What became of each id.

        Raises:
            InvalidRequest: the filter cannot be taken.
        """
        return await self._steer(RESUME_MANY, runs, conn)

    async def settle_many(
        self,
        promises: Iterable[str] | Mapping[str, Any],
        value: Any = None,
        *,
        error: Any = None,
        conn: Any = None,
    ) -> list[Steered]:
        """Resolve many promises, or reject them.

        Args:
            promises: ids, or values by id.
            value: what they are resolved with, where they have no value of their own.
            error: what they are rejected with instead: an exception, or a plain JSON value.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            What became of each id.

        Raises:
            EncodeError, PayloadTooLarge: a value or the error cannot be taken.
            InvalidRequest: there are values and an error.
        """
        if error is not None and (value is not None or isinstance(promises, Mapping)):
            raise InvalidRequest("promises are settled with values or with an error, not with both")
        what, verdict = (value, "resolved") if error is None else (error, "rejected")
        text = self._value(what)
        told: list[Steered] = []
        for ids in _portions(await self._ids(promises, conn), conn):
            texts = [self._value(promises[id]) for id in ids] if isinstance(promises, Mapping) else None
            rows = await self._told(SETTLE_MANY, conn, ids, verdict, text, texts)
            told += [Steered(id=id, outcome=outcome, state=state) for id, outcome, state in rows]
        return told

    async def _steer(
        self, procedure: Procedure, runs: Iterable[str] | RunFilter, conn: Any, *values: Any
    ) -> list[Steered]:
        told: list[Steered] = []
        for ids in _portions(await self._ids(runs, conn), conn):
            rows = await self._told(procedure, conn, ids, *values)
            told += [Steered(id=id, outcome=outcome, state=state) for id, outcome, state in rows]
        return told

    async def _ids(self, named: Iterable[str] | RunFilter, conn: Any) -> list[str]:
        """Return the ids that are meant, each once."""
        if isinstance(named, str):
            raise InvalidRequest(f"many are named by a list of ids, not by the text {named[:60]!r}")
        if not isinstance(named, RunFilter):
            return list(dict.fromkeys(named))
        for instant in (named.started_after, named.started_before):
            if instant is not None and instant.tzinfo is None:
                raise InvalidRequest(
                    "a filter's instant has a time zone",
                    hint="datetime.now(timezone.utc)",
                )
        tags = None if named.tags is None else msgspec.json.encode(dict(named.tags)).decode()
        wanted = (named.workflow, named.state, tags, named.started_after, named.started_before)
        found: list[str] = []
        while True:
            page = (await self._row(MATCHING_RUNS, conn, *wanted, found[-1] if found else "", PORTION))["ids"]
            found += page
            if len(page) < PORTION:
                return found

    async def _told(self, procedure: Procedure, conn: Any, *values: Any) -> list[Any]:
        told: list[Any] = msgspec.json.decode((await self._row(procedure, conn, *values))["told"])
        return told

    async def _row(self, procedure: Procedure, conn: Any, *values: Any) -> Any:
        if conn is None:
            return (await self._asker.rows(procedure, *values))[0]
        return await self._asker.within(conn, procedure, *values)

    def _value(self, value: Any) -> str:
        if isinstance(value, BaseException):
            return self._codec.encode_error(value)
        return self._codec.encode(value, where="a value of a promise")


def _portions(ids: list[str], conn: Any) -> Iterator[list[str]]:
    """Yield what one statement takes: all of it inside a transaction of the caller's."""
    size = PORTION if conn is None else max(len(ids), 1)
    for first in range(0, len(ids), size):
        yield ids[first : first + size]
