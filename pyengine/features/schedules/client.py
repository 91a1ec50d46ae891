"""Schedules: runs that begin at the instants of a cron expression.

Lives here: `Schedules`, the attribute `schedules` of a client, and `Schedule`, one of them as it is now. May
not: a decision, or reading cron expressions; SQL does both (sql/logic/features/75_schedules). Design: the run
of an instant has an id made from the schedule's id and the instant, so it begins once, whichever worker
starts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from pyengine.core.client.arguments import named_input, tags_text, target_of
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.definitions.retry import Duration
from pyengine.core.definitions.services import SERVICE, sql_arguments
from pyengine.core.values.codec import Codec
from pyengine.errors import NotFound
from pyengine.features.schedules.definition import checked_schedule_id, scheduled_input
from pyengine.features.schedules.statements import (
    LIST_SCHEDULES,
    NEXT_INSTANTS,
    PAUSE_SCHEDULE,
    READ_SCHEDULE,
    RESUME_SCHEDULE,
    SCHEDULE,
    UNSCHEDULE,
)

ScheduleState: TypeAlias = Literal["active", "paused", "over"]

_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as it is now.

    Args:
        id: its id.
        state: "active", "paused", or "over" if no instant is left.
        cron: its cron expression.
        timezone: the time zone in which it is read.
        workflow: the workflow whose runs it starts; None if it creates promises.
        version: version of the workflow.
        queue: queue of the runs.
        target: the target of its promises, if it creates any.
        args: arguments of the runs as plain JSON values, with placeholders.
        deadline: a run times out after it; None means never.
        priority: priority of the runs.
        tags: tags of the runs.
        declared: whether the code of a worker declares it.
        next_at: its next instant; None if it is paused or over.
        last_at: its last instant.
        last_id: id of the run of that instant.
        paused_at: since when it is paused.
        created_at: the instant of its creation.
    """

    id: str
    state: ScheduleState
    cron: str
    timezone: str
    workflow: str | None
    version: str | None
    queue: str | None
    target: str | None
    args: Any
    deadline: timedelta | None
    priority: int
    tags: Mapping[str, str]
    declared: bool
    next_at: datetime | None
    last_at: datetime | None
    last_id: str | None
    paused_at: datetime | None
    created_at: datetime


class Schedules:
    """Creates, lists, pauses and deletes schedules.

    Args:
        transport: the way to the database.
        registry: workflows known here.
        codec: encodes arguments.

    `conn` is a connection of the caller's, as `Client.start` takes it: a rollback leaves nothing.
    """

    def __init__(self, transport: Transport, registry: Registry, codec: Codec) -> None:
        self._transport = transport
        self._registry = registry
        self._codec = codec

    async def create(
        self,
        /,
        id: str,
        cron: str,
        workflow: Workflow[..., Any] | str,
        *args: Any,
        timezone: str = "UTC",
        queue: str | None = None,
        version: str | None = None,
        deadline: Duration | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        replace: bool = False,
        conn: Any = None,
        **kwargs: Any,
    ) -> Schedule:
        """Start a run of a workflow at every instant of a cron expression; `durable.schedule` in SQL.

        A parameter of the workflow named `scheduled_at` gets the instant, in the time zone of the schedule.

        Args:
            id: id of the schedule, up to 480 bytes; the same call again finds the schedule.
            cron: five fields (minute, hour, day, month, weekday), or six with seconds first.
            workflow: the workflow, its name, or a service in SQL like "sql://billing.close_month".
            args: its arguments, and those by name.
            timezone: a full name such as "Europe/Berlin".
            queue: None means the queue that the workflow declares, or "default".
            version: None means the workflow's own version, or "1".
            deadline: a run that takes longer times out; None means the workflow's own, or never.
            priority: smaller is claimed first.
            tags: tags of the runs.
            replace: replace a schedule of runs that has this id and says something else.
            conn: a connection of yours, in whose transaction it is created.

        Raises:
            Conflict: a schedule with this id says something else.
            NotFound: no worker has registered this workflow, while others are known.
            InvalidRequest: the expression, the time zone, an argument or an option is wrong.
        """
        target = target_of(self._registry, workflow, queue=queue, version=version, timeout=deadline)
        if target.name.startswith(SERVICE):
            args, kwargs = sql_arguments(target.name, args, kwargs)
        await self._transport.first_row(
            conn,
            SCHEDULE,
            checked_schedule_id(id),
            cron,
            target.name,
            self._input(target.definition, args, kwargs),
            timezone,
            target.queue,
            target.version,
            target.timeout_ms,
            priority,
            tags_text(tags),
            target.definition is not None,
            replace,
        )
        return _schedule(await self._transport.first_row(conn, READ_SCHEDULE, id))

    def _input(self, definition: WorkflowDef | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if definition is not None:
            return scheduled_input(definition.signature, args, kwargs)
        return named_input(self._codec, args, kwargs)

    async def get(self, id: str) -> Schedule:
        """Return a schedule.

        Raises:
            NotFound: there is none.
        """
        rows = await self._transport.rows(READ_SCHEDULE, id)
        if not rows:
            raise NotFound(f"there is no schedule {id!r}", hint="pyengine schedules")
        return _schedule(rows[0])

    async def next(self, id: str, count: int = 5) -> list[datetime]:
        """Return the next instants of a schedule; of a paused one, as if it were resumed now.

        Args:
            id: its id.
            count: the largest number of instants.

        Raises:
            NotFound: there is no such schedule.
        """
        return list((await self._request(NEXT_INSTANTS, None, id, count))["instants"])

    async def pause(self, id: str, *, conn: Any = None) -> None:
        """Pause a schedule: instants that pass until `resume` are left out. Its runs go on.

        Raises:
            NotFound: there is no such schedule.
        """
        await self._request(PAUSE_SCHEDULE, conn, id)

    async def resume(self, id: str, *, conn: Any = None) -> datetime | None:
        """Let a paused schedule go on, and return its next instant.

        Raises:
            NotFound: there is no such schedule.
        """
        return cast("datetime | None", (await self._request(RESUME_SCHEDULE, conn, id))["next_at"])

    async def delete(self, id: str, *, conn: Any = None) -> None:
        """Delete a schedule; its runs go on. One that code declares comes back when a worker starts.

        Raises:
            NotFound: there is no such schedule.
        """
        await self._request(UNSCHEDULE, conn, id)

    async def _request(self, procedure: Procedure, conn: Any, id: str, *values: Any) -> Any:
        return await self._transport.first_row(conn, procedure, id, *values)

    async def list(self, *, workflow: str | None = None) -> list[Schedule]:
        """Return all schedules, by id.

        Args:
            workflow: only schedules of this workflow.
        """
        found: list[Schedule] = []
        after = ""
        while True:
            page = await self._transport.rows(LIST_SCHEDULES, workflow, after, _PAGE)
            found += map(_schedule, page)
            if len(page) < _PAGE:
                return found
            after = found[-1].id


def _schedule(row: Any) -> Schedule:
    fields = {name: row[name] for name in Schedule.__dataclass_fields__}
    fields["args"] = None if row["args"] is None else msgspec.json.decode(row["args"])
    fields["tags"] = msgspec.json.decode(row["tags"])
    return Schedule(**fields)
