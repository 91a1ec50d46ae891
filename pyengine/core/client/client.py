"""Starting runs and waiting for them, from any process.

Lives here: `CoreClient`, which starts and lists runs and has the verbs of run.py. May not: running workflows;
a workflow's name is enough to start one; the verbs of a feature, which the hall adds (pyengine/clients.py).
Design: a start is idempotent, because every run has an id before the request is sent; so after a lost
connection it is sent again. A verb awaits its transport (transport.py) and nothing else, so both kinds of
programs share the verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from pyengine.core.client.arguments import input_of, new_id, tags_text, target_of
from pyengine.core.client.recorded_starts import start_or_find, start_within
from pyengine.core.client.run import Run, RunControl, result_codec
from pyengine.core.client.run_status import RunState, RunStatus, read_status
from pyengine.core.client.starts import Starts
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import (
    LIST_FAILED,
    LIST_LIVE,
    LIST_RUNS,
    LIST_TAGGED,
    StartRequest,
)
from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.definitions.retry import Duration, waiting_time
from pyengine.core.definitions.services import SERVICE, sql_arguments
from pyengine.core.values.codec import Codec
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    # the result of a workflow that is only named is Any, not unknown
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class CoreClient(RunControl, Starts):
    """The part of a client that every program needs.

    Args:
        transport: the way to the database.
        registry: code known here: types of results by workflow name, and error classes.
    """

    def __init__(self, transport: Transport, registry: Registry | None) -> None:
        self._transport = transport
        self._registry = registry or Registry()
        self._codec = Codec(self._registry.errors)
        self._codec.failures.replays = False

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
            id = new_id()
        request = StartRequest(
            workflow=target.name,
            args=input_of(self._codec, self._registry, target, args, dict(kwargs)),
            id=id,
            key=key,
            queue=target.queue,
            version=target.version,
            delay_ms=waiting_time(delay, what="delay"),
            timeout_ms=target.timeout_ms,
            priority=priority,
            tags=tags_text(tags),
            any_workflow=target.definition is not None,
            fresh=fresh,
        )
        hint_count = self._transport.hint_count
        if conn is None:
            row = await start_or_find(
                lambda inputs: self._transport.start(request._replace(args=inputs[0])),
                self._transport,
                target,
                [request.args],
                ([request.id or ""], [request.key or ""]),
            )
        else:
            row = await start_within(self._transport, conn, target, request)
        codec, created = result_codec(target.definition), row["created"]
        return Run(self, row["id"], codec, created=created, hint_count=hint_count if created else None)

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
