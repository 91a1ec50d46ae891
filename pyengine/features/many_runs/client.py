"""Batch verbs: signal, cancel, pause, resume, redrive and fork many runs, settle many promises, and ask why
many runs wait.

Lives here: `Steered`, and `ManyRuns`, the batch verbs of a client. May not: SQL text, a
decision; SQL decides the outcome of each id, in one statement that takes its locks in order. Design: ids are
sent in batches, each in a transaction of its own, so that no transaction holds many locks. On a connection of
the caller's all ids are one statement, since two statements of one transaction would take their locks out of
order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, overload

import msgspec

from pyengine.core.client.arguments import replaced_results
from pyengine.core.client.signal_payloads import signal_payload
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import WHY_MANY, Procedure
from pyengine.core.definitions.registry import Registry
from pyengine.core.definitions.retry import Duration, waiting_time
from pyengine.core.definitions.signals import Signal, check_signal_name
from pyengine.core.protocol.causes import Cause, read_causes
from pyengine.core.values.codec import Codec
from pyengine.errors import InvalidRequest
from pyengine.features.many_runs.filters import RunFilter, matching
from pyengine.features.many_runs.statements import (
    BATCH,
    CANCEL_MANY,
    FORK_MANY,
    FORKS,
    PAUSE_MANY,
    REDRIVE_MANY,
    RESUME_MANY,
    SETTLE_MANY,
    SIGNAL_MANY,
)

_BATCH_CHARS_MAX = 8 << 20

T = TypeVar("T")

Outcome: TypeAlias = Literal["done", "already", "ended", "refused", "not_found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """The outcome of a batch verb for one run or promise.

    Args:
        id: its id.
        outcome: "done"; "already", it was in that state before; "ended", it has ended otherwise; "refused",
            it is a step, which only its worker completes, or its workflow does not receive such a signal, or
            it is not dead, or cannot be forked so; "not_found".
        state: the state of the run or promise now; None for a signal, and if it does not exist.
        delivery: number of the signal among those of its name that the run was sent.
        fork: id of its fork, made now or before.
        problem: why it cannot be forked.
    """

    id: str
    outcome: Outcome
    state: str | None = None
    delivery: int | None = None
    fork: str | None = None
    problem: str | None = None


class ManyRuns:
    """The batch verbs of a client, as a mixin; the client has the transport.

    `runs` are ids or a `RunFilter`, which is evaluated once, first. Without `conn` the ids are sent in
    batches of 1000, fewer if their values are large, each in its own transaction; with it they are one
    statement in the caller's transaction. `conn` is a connection as `start` takes it.
    """

    _transport: Transport
    _codec: Codec
    _registry: Registry

    @overload
    async def signal_many(
        self, runs: Mapping[str, T], signal: Signal[T], *, dedup: str | None = None, conn: Any = None
    ) -> list[Steered]: ...
    @overload
    async def signal_many(
        self,
        runs: Iterable[str] | RunFilter,
        signal: Signal[T],
        payload: T,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> list[Steered]: ...
    @overload
    async def signal_many(
        self,
        runs: Iterable[str] | RunFilter,
        signal: Signal[None],
        payload: None = None,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> list[Steered]: ...
    @overload
    async def signal_many(
        self,
        runs: Iterable[str] | Mapping[str, Any] | RunFilter,
        signal: str,
        payload: Any = None,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> list[Steered]: ...
    async def signal_many(
        self,
        runs: Iterable[str] | Mapping[str, Any] | RunFilter,
        signal: Signal[Any] | str,
        payload: Any = None,
        *,
        dedup: str | None = None,
        conn: Any = None,
    ) -> list[Steered]:
        """Send a signal to many runs.

        Args:
            runs: ids, a filter, or payloads by id.
            signal: the signal, or its name.
            payload: its payload, unless `runs` has one for each id.
            dedup: deduplication key: a run receives signals with the same key once.
            conn: a connection of yours, in whose transaction it is sent: a rollback leaves nothing.

        Returns:
            The outcome of each id.

        Raises:
            EncodeError: a payload does not fit the signal's type.
            InvalidRequest, PayloadTooLarge: name, key or a payload is invalid.
        """
        name = signal.name if isinstance(signal, Signal) else check_signal_name(signal)

        def encode(value: Any) -> str:
            return signal_payload(self._codec, self._registry, signal, value, to="many runs")[1]

        # each run has a payload of its own if `runs` is a mapping
        text = "null" if isinstance(runs, Mapping) else encode(payload)
        key = secrets.token_hex(16) if dedup is None and conn is None else dedup
        return await self._run_batches(
            SIGNAL_MANY, runs, conn, name, text, key, encode=encode, fields=("delivery",)
        )

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
            The outcome of each id.

        Raises:
            InvalidRequest: the filter or the grace is invalid.
        """
        text = None if reason is None else self._codec.encode(reason, where="the reason to cancel")
        grace_ms = waiting_time(grace, what="grace")
        return await self._run_batches(CANCEL_MANY, runs, conn, text, grace_ms, force)

    async def pause_many(self, runs: Iterable[str] | RunFilter, *, conn: Any = None) -> list[Steered]:
        """Set many runs aside until they are resumed.

        Args:
            runs: ids, or a filter.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            The outcome of each id.

        Raises:
            InvalidRequest: the filter is invalid.
        """
        return await self._run_batches(PAUSE_MANY, runs, conn)

    async def resume_many(self, runs: Iterable[str] | RunFilter, *, conn: Any = None) -> list[Steered]:
        """Let many runs go on that are paused, halted or dead.

        Args:
            runs: ids, or a filter.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            The outcome of each id.

        Raises:
            InvalidRequest: the filter is invalid.
        """
        return await self._run_batches(RESUME_MANY, runs, conn)

    async def redrive_many(self, runs: Iterable[str] | RunFilter, *, conn: Any = None) -> list[Steered]:
        """Let many dead runs go on, those whose workers were lost too often, in place.

        Args:
            runs: ids, or a filter, which selects the dead ones only.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            The outcome of each id; "refused" for a run that is paused or halted.

        Raises:
            InvalidRequest: the filter is invalid, or names another state.
        """
        if isinstance(runs, RunFilter) and not runs.ended:
            if runs.state not in (None, "dead"):
                raise InvalidRequest("only dead runs are redriven", hint="client.resume_many(filter)")
            runs = replace(runs, state="dead")
        return await self._run_batches(REDRIVE_MANY, runs, conn)

    async def fork_many(
        self,
        runs: Iterable[str] | RunFilter,
        *,
        key: str,
        seq: int | None = None,
        step: str | None = None,
        set: Mapping[str | int, Any] | None = None,
        queue: str | None = None,
        version: str | None = None,
        conn: Any = None,
    ) -> list[Steered]:
        """Try many runs again that have ended, as forks under new ids.

        Without a position each goes on before the last call that failed; one without such a call takes over
        all of its events.

        Args:
            runs: ids, or a filter of runs that have ended. Forks that this call has made are passed over.
            key: names this call: called again with it, after an abort too, it makes no fork twice.
            seq: the number of events to copy; 1 means from the beginning.
            step: copies the events before the first call of this name.
            set: replaces recorded results, as `fork` does.
            queue: their queue; None means the same.
            version: their workflow version; None means the same.
            conn: a connection of yours, in whose transaction it is done, for 1000 ids at most.

        Returns:
            The outcome of each id, with its `fork`; "already" if it was made before, "refused" with the
            `problem`.

        Raises:
            InvalidRequest: the key, the position, a value or the filter is invalid.
            EncodeError: a value does not fit the type of its step.
        """
        if seq is not None and step is not None:
            raise InvalidRequest("a fork has one position", hint="leave out seq or step")
        cut = (key, seq, step, replaced_results(self._codec, self._registry, set), queue, version)
        return await self._run_batches(
            FORK_MANY, runs, conn, *cut, fields=("fork", "problem"), ended=True, most=FORKS
        )

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
            value: the value to resolve with, unless `promises` has one for each id.
            error: rejects them with this instead: an exception, or a plain JSON value.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            The outcome of each id.

        Raises:
            EncodeError, PayloadTooLarge: a value or the error is invalid.
            InvalidRequest: there are values and an error.
        """
        if error is not None and (value is not None or isinstance(promises, Mapping)):
            raise InvalidRequest("promises are settled with values or with an error, not with both")

        def encode(value: Any) -> str:
            if isinstance(value, BaseException):
                return self._codec.encode_error(value)
            return self._codec.encode(value, where="a value of a promise")

        state, text = ("resolved", encode(value)) if error is None else ("rejected", encode(error))
        return await self._run_batches(SETTLE_MANY, promises, conn, state, text, encode=encode)

    async def why_many(self, runs: Iterable[str] | RunFilter, *, limit: int = 100) -> dict[str, list[Cause]]:
        """Return by id why many runs wait, each cause followed by the causes of what it waits for.

        Args:
            runs: ids, of promises and schedules too, or a filter. Of an id that nothing has the cause is
                "unknown".
            limit: the largest number of causes of one run.

        Raises:
            InvalidRequest: the filter is invalid.
        """
        found: dict[str, list[Cause]] = {}
        for ids, _ in _batches(await self._ids(runs, None), None, None, BATCH):
            found |= read_causes(ids, await self._transport.rows(WHY_MANY, ids, limit))
        return found

    async def _run_batches(
        self,
        procedure: Procedure,
        runs: Iterable[str] | Mapping[str, Any] | RunFilter,
        conn: Any,
        *values: Any,
        encode: Callable[[Any], str] | None = None,
        fields: tuple[str, ...] = ("state",),
        ended: bool = False,
        most: int | None = None,
    ) -> list[Steered]:
        """Run a procedure for all ids and return their outcomes.

        Args:
            procedure: takes ids, `values` and, if there is `encode`, an encoded value for each id, or None.
            runs: ids, a filter, or values by id.
            conn: a connection of the caller's, or None.
            values: the parameters that all ids share.
            encode: makes a value a text.
            fields: the fields of `Steered` that the procedure returns.
            ended: whether the verb is about runs that have ended.
            most: the largest number of ids of a batch; None means as many as of any verb.
        """
        outcomes: list[Steered] = []
        text_of: Callable[[str], str] | None = None
        if encode is not None and isinstance(runs, Mapping):
            text_of = partial(_text_of, encode, runs)
        wanted = await self._ids(runs, conn, ended=ended)
        for ids, texts in _batches(wanted, conn, text_of, BATCH if most is None else most):
            own: tuple[Any, ...] = () if encode is None else (texts,)
            row = await self._transport.first_row(conn, procedure, ids, *values, *own)
            outcomes += [
                Steered(id=id, outcome=outcome, **dict(zip(fields, values, strict=True)))
                for id, outcome, *values in msgspec.json.decode(row["outcomes"])
            ]
        return outcomes

    async def _ids(self, runs: Iterable[str] | RunFilter, conn: Any, *, ended: bool = False) -> list[str]:
        """Return the ids, each once."""
        if isinstance(runs, str):
            raise InvalidRequest(f"many are named by a list of ids, not by the text {runs[:60]!r}")
        if not isinstance(runs, RunFilter):
            return list(dict.fromkeys(runs))
        procedure, wanted = matching(runs, ended=ended)
        ids: list[str] = []
        while True:
            last = ids[-1] if ids else ""
            row = await self._transport.first_row(conn, procedure, *wanted, last, BATCH)
            ids += row["ids"]
            if len(row["ids"]) < BATCH:
                return ids


def _text_of(encode: Callable[[Any], str], values: Mapping[str, Any], id: str) -> str:
    return encode(values[id])


def _batches(
    ids: list[str], conn: Any, text_of: Callable[[str], str] | None, most: int
) -> Iterator[tuple[list[str], list[str] | None]]:
    """Yield the ids of each statement, with the text of each if they have any; a batch is bounded by both.
    Inside a transaction of the caller's there is only one.
    """
    batch: list[str] = []
    texts: list[str] = []
    size = 0
    for id in ids:
        text = "" if text_of is None else text_of(id)
        if conn is None and batch and (len(batch) == most or size + len(text) > _BATCH_CHARS_MAX):
            yield batch, None if text_of is None else texts
            batch, texts, size = [], [], 0
        batch.append(id)
        texts.append(text)
        size += len(text)
    if batch:
        yield batch, None if text_of is None else texts
