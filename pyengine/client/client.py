"""Starting runs and waiting for them, from any process.

Lives here: `ClientApi`, which starts and lists runs and has the verbs of run.py and many_runs.py; and
`Client`, for asynchronous programs (sync.py has the one for blocking programs). May not: running workflows;
a workflow's name is enough to start one. Design: a start is idempotent, because every run has an id before
the request is sent; so after a lost connection it is sent again. A verb awaits its transport (transport.py)
and nothing else, so both kinds of programs share the verbs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

import msgspec

from pyengine.client.arguments import arguments_of, input_of, names_of, tags_text, target_of
from pyengine.client.asyncpg_transport import AsyncpgTransport
from pyengine.client.many_runs import ManyRuns
from pyengine.client.promises import Promises
from pyengine.client.run import Run, RunControl, result_codec
from pyengine.client.run_status import RunState, RunStatus, read_status
from pyengine.client.schedules import Schedules
from pyengine.client.starts import Starts
from pyengine.client.transport import Transport
from pyengine.database.connection import Database
from pyengine.database.listener import Listener
from pyengine.database.statements.many_runs import START_MANY
from pyengine.database.statements.procedures import (
    LIST_FAILED,
    LIST_LIVE,
    LIST_RUNS,
    LIST_TAGGED,
    START_WITHIN,
    StartRequest,
)
from pyengine.definitions.bound_workflow import BoundWorkflow
from pyengine.definitions.registry import Registry, Workflow
from pyengine.definitions.retry import Duration, optional_duration
from pyengine.definitions.services import SERVICE, sql_arguments
from pyengine.errors import InvalidRequest
from pyengine.values.codec import Codec

if TYPE_CHECKING:
    # the result of a workflow that is only named is Any, not unknown
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Client", "ClientApi", "Run", "RunState", "RunStatus"]


class ClientApi(RunControl, ManyRuns, Starts):
    """Starts runs, waits for them, and controls them.

    Args:
        transport: the way to the database.
        registry: code known here: types of results by workflow name, and error classes.

    Attributes:
        promises: creates and completes durable promises, and waits for them by callback.
        schedules: creates, lists, pauses and deletes schedules.
    """

    def __init__(self, transport: Transport, registry: Registry | None) -> None:
        self._transport = transport
        self._registry = registry or Registry()
        self._codec = Codec(self._registry.errors)
        self.promises = Promises(transport, self._codec)
        self.schedules = Schedules(transport, self._registry, self._codec)

    async def open(self) -> None:
        """Check the database; the first call of any other method does that too.

        Raises:
            Unavailable: it cannot be reached.
            SchemaMismatch: its schema does not fit.
        """
        await self._transport.open()

    async def close(self) -> None:
        """Close the connections; waits for results raise CancelledError."""
        await self._transport.close()

    # -- starting

    async def begin(
        self,
        workflow: Workflow[..., T] | BoundWorkflow[T] | str,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        *,
        id: str | None = None,
        key: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> Run[T]:
        """Start a run like `start`, with arguments whose names may be names of options too.

        Raises:
            EngineError: as `start`.
        """
        target = target_of(self._registry, workflow, queue=queue, version=version, timeout=timeout)
        if isinstance(workflow, BoundWorkflow):
            args, kwargs = workflow.arguments(args, dict(kwargs))
        if target.name.startswith(SERVICE):
            args, kwargs = sql_arguments(target.name, args, kwargs)
        fresh = id is None and key is None
        if fresh:
            id = _new_id()
        request = StartRequest(
            workflow=target.name,
            args=input_of(self._codec, self._registry, target, args, dict(kwargs)),
            id=id,
            key=key,
            queue=target.queue,
            version=target.version,
            delay_ms=optional_duration(delay, what="delay"),
            timeout_ms=target.timeout_ms,
            priority=priority,
            tags=tags_text(tags),
            any_workflow=target.definition is not None,
            fresh=fresh,
        )
        hint_count = self._transport.hint_count
        if conn is None:
            row = await self._transport.start(request)
        else:
            row = await self._transport.first_row(conn, START_WITHIN, *request)
        codec, created = result_codec(target.definition), row["created"]
        return Run(self, row["id"], codec, created=created, hint_count=hint_count if created else None)

    async def start_many(
        self,
        /,
        workflow: Workflow[..., T] | str,
        args: Iterable[tuple[Any, ...] | Mapping[str, Any] | BoundWorkflow[T]],
        *,
        ids: Iterable[str | None] | None = None,
        keys: Iterable[str | None] | None = None,
        queue: str | None = None,
        version: str | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> list[Run[T]]:
        """Start many runs of a workflow in one statement, all or none; `durable.start_many` in SQL.

        Args:
            workflow: as for `start`.
            args: for each run a tuple of arguments by position, a mapping of arguments by name, or the
                workflow with its arguments, `checkout.bind(order)`, which type checkers check.
            ids: for each run its id; None for one that has none.
            keys: for each run its idempotency key; None for one that has none.
            queue, version, delay, timeout, priority, tags, conn: as for `start`, the same for all.

        Returns:
            The runs, in the order of `args`; a run that existed before has `created` false.

        Raises:
            InvalidRequest, RunConflict: as `start`; the message names the element.
            NotFound: no worker has registered this workflow, while others are known.
            Unavailable: the database cannot be reached.
        """
        target = target_of(self._registry, workflow, queue=queue, version=version, timeout=timeout)
        inputs = [
            input_of(self._codec, self._registry, target, *arguments_of(one, n, target.name))
            for n, one in enumerate(args, 1)
        ]
        # with an id of its own each run is the same one if this is sent again
        named, keyed = names_of(ids, keys, len(inputs), _new_id)
        if not inputs:
            return []
        row = await self._transport.first_row(
            conn,
            START_MANY,
            target.name,
            inputs,
            named,
            keyed,
            target.queue,
            target.version,
            optional_duration(delay, what="delay"),
            target.timeout_ms,
            priority,
            tags_text(tags),
            target.definition is not None,
        )
        codec = result_codec(target.definition)
        return [Run(self, id, codec, created=created) for id, created in msgspec.json.decode(row["runs"])]

    # -- reading

    async def list(
        self,
        *,
        workflow: str | None = None,
        state: RunState | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunStatus]:
        """Return runs, newest first.

        Args:
            workflow: only runs of this workflow.
            state: only runs in this state.
            tags: only runs with all of these tags.
            limit: the largest number of runs.

        Raises:
            InvalidRequest: there is no such state, or the tags are no texts.
        """
        if state is not None and state not in get_args(RunState):
            raise InvalidRequest(
                f"there is no state {state!r}", hint=f"the states are {', '.join(get_args(RunState))}"
            )
        if tags:
            rows = await self._transport.rows(LIST_TAGGED, workflow, state, limit, tags_text(tags))
            return [read_status(row, self._codec) for row in rows]
        if state is None or state == "completed":
            view = LIST_RUNS
        else:
            view = LIST_FAILED if state in ("failed", "timed_out", "cancelled") else LIST_LIVE
        return [
            read_status(row, self._codec) for row in await self._transport.rows(view, workflow, state, limit)
        ]


class Client(ClientApi):
    """Starts runs, waits for them, and controls them.

    Args:
        database: the database or its URL.
        registry: code known here: types of results by workflow name, and error classes.
        listener: shared with the worker of this process.
        connections: the largest number of connections for statements; one more listens for hints.

    Use it as an async context manager, or call `close` at the end.
    """

    def __init__(
        self,
        database: Database | str,
        *,
        registry: Registry | None = None,
        listener: Listener | None = None,
        connections: int = 4,
    ) -> None:
        where = Database(database) if isinstance(database, str) else database
        super().__init__(AsyncpgTransport(where, listener or Listener(where), connections), registry)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _new_id() -> str:
    """Return a new random run id that grows with time; `durable._fresh_id`."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
