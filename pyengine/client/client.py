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
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

from pyengine.client.asyncpg_transport import AsyncpgTransport
from pyengine.client.many_runs import ManyRuns
from pyengine.client.promises import Promises
from pyengine.client.run import Run, RunControl, result_codec
from pyengine.client.run_status import RunState, RunStatus
from pyengine.client.transport import Transport
from pyengine.database.connection import Database
from pyengine.database.listener import Listener
from pyengine.database.statements.procedures import (
    LIST_FAILED,
    LIST_LIVE,
    LIST_RUNS,
    START_WITHIN,
    StartRequest,
)
from pyengine.definitions.definition import WorkflowDef
from pyengine.definitions.queues import check_queue
from pyengine.definitions.registry import Registry, Workflow
from pyengine.definitions.retry import Duration, optional_duration
from pyengine.definitions.sql_steps import SERVICE, sql_arguments
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


class ClientApi(RunControl, ManyRuns):
    """Starts runs, waits for them, and controls them.

    Args:
        transport: the way to the database.
        registry: code known here: types of results by workflow name, and error classes.

    Attributes:
        promises: creates and completes durable promises, and waits for them by callback.
    """

    def __init__(self, transport: Transport, registry: Registry | None) -> None:
        self._transport = transport
        self._registry = registry or Registry()
        self._codec = Codec(self._registry.errors)
        self.promises = Promises(transport, self._codec)

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

    async def start(
        self,
        /,
        workflow: Workflow[..., T] | str,
        *args: Any,
        id: str | None = None,
        key: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        conn: Any = None,
        **kwargs: Any,
    ) -> Run[T]:
        """Start a run, or find the one that has this id or key; `durable.start` in SQL.

        Args:
            workflow: the workflow, or its name, or a service in SQL like "sql://billing.close_month".
            args: its arguments.
            id: id of the run, up to 512 bytes; a second start with it finds the run.
            key: idempotency key, unique for the workflow.
            queue: None means the workflow's own queue, or "default".
            version: None means the workflow's own version, or "1".
            delay: the run does not start before this duration is over.
            timeout: the run times out after this duration; None means the workflow's deadline, or none.
            priority: smaller is claimed first.
            conn: a connection of yours, in whose transaction the run is started: a rollback leaves nothing.
                It is of asyncpg or psycopg, or an SQLAlchemy session or connection over one of them.
            kwargs: its arguments by name.

        Raises:
            InvalidRequest: the arguments do not fit the workflow, or an option is wrong.
            NotFound: no worker has registered this workflow, while others are known.
            RunConflict: a run with this id or key exists and has other input.
            Unavailable: the database cannot be reached.
        """
        return await self.begin(
            workflow,
            args,
            kwargs,
            id=id,
            key=key,
            queue=queue,
            version=version,
            delay=delay,
            timeout=timeout,
            priority=priority,
            conn=conn,
        )

    async def begin(
        self,
        workflow: Workflow[..., T] | str,
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
        conn: Any = None,
    ) -> Run[T]:
        """Start a run like `start`, with arguments whose names may be names of options too.

        Raises:
            EngineError: as `start`.
        """
        if version == "":
            raise InvalidRequest("a version is not empty", hint="leave it out for the default")
        if queue is not None:
            check_queue(queue, what="start")
        definition = self._definition(workflow, version)
        name = workflow if isinstance(workflow, str) else workflow.name
        if name.startswith(SERVICE):
            args, kwargs = sql_arguments(name, args, kwargs)
        deadline_ms = optional_duration(timeout, what="timeout")
        if definition is not None:
            queue = definition.queue if queue is None else queue
            version = definition.version if version is None else version
            deadline_ms = definition.deadline_ms if timeout is None else deadline_ms
        fresh = id is None and key is None
        if fresh:
            id = _new_id()
        request = StartRequest(
            workflow=name,
            args=self._input(definition, args, dict(kwargs)),
            id=id,
            key=key,
            queue=queue or "default",
            version=version or "1",
            delay_ms=optional_duration(delay, what="delay"),
            timeout_ms=deadline_ms,
            priority=priority,
            any_workflow=definition is not None,
            fresh=fresh,
        )
        hint_count = self._transport.hint_count
        if conn is None:
            row = await self._transport.start(request)
        else:
            row = await self._transport.first_row(conn, START_WITHIN, *request)
        codec, created = result_codec(definition), row["created"]
        return Run(self, row["id"], codec, created=created, hint_count=hint_count if created else None)

    def _definition(self, workflow: Workflow[..., Any] | str, version: str | None) -> WorkflowDef | None:
        if isinstance(workflow, Workflow):
            return workflow.definition
        if not isinstance(workflow, str):
            raise InvalidRequest(
                f"{workflow!r} is no workflow", hint="decorate the function with @app.workflow"
            )
        return self._registry.find(workflow, version)

    def _input(self, definition: WorkflowDef | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if definition is not None:
            return definition.signature.encode(args, kwargs)
        if args and kwargs:
            raise InvalidRequest(
                "arguments of a workflow that is known by name only are all by position, or all by name"
            )
        return self._codec.encode(list(args) if args or not kwargs else kwargs, where="the arguments")

    # -- reading

    async def list(
        self, *, workflow: str | None = None, state: RunState | None = None, limit: int = 100
    ) -> list[RunStatus]:
        """Return runs, newest first.

        Args:
            workflow: only runs of this workflow.
            state: only runs in this state.
            limit: the largest number of runs.

        Raises:
            InvalidRequest: there is no such state.
        """
        if state is not None and state not in get_args(RunState):
            raise InvalidRequest(
                f"there is no state {state!r}", hint=f"the states are {', '.join(get_args(RunState))}"
            )
        if state is None or state == "completed":
            view = LIST_RUNS
        else:
            view = LIST_FAILED if state in ("failed", "timed_out", "cancelled") else LIST_LIVE
        return [self._status(row) for row in await self._transport.rows(view, workflow, state, limit)]


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
