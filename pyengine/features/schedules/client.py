"""Schedules: runs that begin by the clock.

Lives here: `Schedules`, the attribute `schedules` of a client, and what it answers: `Schedule`, one of them
as it is now, `ScheduleInstant` and `ScheduleBackfill`. May not: a decision, or reading cron expressions; SQL
does both (sql/logic/features/75_schedules). Design: the run of an instant has an id made from the schedule's
id and the instant, so it begins once, whichever worker starts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from pyengine.core.client.arguments import check_instant, named_input, tags_text, target_of
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.definitions.retry import Duration
from pyengine.core.definitions.services import SERVICE, sql_arguments
from pyengine.core.values.codec import Codec
from pyengine.errors import NotFound
from pyengine.features.schedules.definition import checked_schedule_id, scheduled_input
from pyengine.features.schedules.policy import Overlap, SchedulePolicy
from pyengine.features.schedules.statements import (
    BACKFILL_SCHEDULE,
    LIST_SCHEDULES,
    NEXT_INSTANTS,
    PAUSE_SCHEDULE,
    READ_SCHEDULE,
    RESUME_SCHEDULE,
    SCHEDULE,
    SCHEDULE_INSTANTS,
    TRIGGER_SCHEDULE,
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
        description: when it fires, in words and in its time zone.
        overlap: what becomes of an instant while the latest run goes on; see `SchedulePolicy`.
        catch_up: the window of instants that it makes up for; None means all.
        jitter: a run begins up to this much later than its instant.
        starts_at: no instant is before it.
        ends_at: no instant is after it.
        max_runs: its limit of runs.
        runs_left: how many of them are left.
        pause_after: so many failures in a row pause it.
        paused_until: when its pause ends by itself.
        paused_by: who paused it; "pyengine" after failures in a row.
        pause_reason: why it is paused.
        latest_run: the run that it started last under a policy.
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
    description: str
    overlap: Overlap
    catch_up: timedelta | None
    jitter: timedelta
    starts_at: datetime | None
    ends_at: datetime | None
    max_runs: int | None
    runs_left: int | None
    pause_after: int | None
    paused_until: datetime | None
    paused_by: str | None
    pause_reason: str | None
    latest_run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInstant:
    """The outcome of an instant of a schedule.

    Args:
        at: the instant; of several without a run of their own the begin of their time.
        upto: the same, or the end of their time.
        outcome: "started", "completed", "failed", "cancelled" or "timed_out", of its run; "skipped",
            "missed", "paused" or "buffered", if it has none.
        run: its run.
        reason: why it has none.
    """

    at: datetime
    upto: datetime
    outcome: str
    run: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBackfill:
    """The instants and runs of a backfill.

    Args:
        instants: how many instants of the range have no run.
        started: how many runs it has started.
        buffered: how many wait for the one before them.
    """

    instants: int
    started: int
    buffered: int


class Schedules:
    """Creates, lists, steers and deletes schedules.

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
        policy: SchedulePolicy | None = None,
        replace: bool = False,
        conn: Any = None,
        **kwargs: Any,
    ) -> Schedule:
        """Start a run of a workflow at every instant of a cron expression; `durable.schedule` in SQL.

        Parameters named `scheduled_at`, `fired_at` and `last_result` get what `@app.schedule` gives them.

        Args:
            id: id of the schedule, up to 480 bytes; the same call again finds the schedule.
            cron: when it fires, as `@app.schedule` takes it.
            workflow: the workflow, its name, or a service in SQL like "sql://billing.close_month".
            args: its arguments, and those by name.
            timezone: such as "Europe/Berlin".
            queue, version, deadline: of the runs; None means the workflow's own.
            priority, tags: of the runs; a smaller priority is claimed first.
            policy: overlap, window and limits.
            replace: replace a schedule of runs that has this id and says something else.
            conn: a connection of yours, in whose transaction it is created.

        Raises:
            Conflict: a schedule with this id says something else.
            NotFound: no worker has registered this workflow, while others are known.
            InvalidRequest: an expression, argument or option is wrong.
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
            *(policy or SchedulePolicy()).columns().values(),
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

    async def pause(
        self,
        id: str,
        reason: str | None = None,
        *,
        until: datetime | None = None,
        by: str | None = None,
        conn: Any = None,
    ) -> None:
        """Pause a schedule: instants that pass until `resume` are left out. Its runs go on.

        Args:
            id: its id.
            reason: why, for those who look at it.
            until: it goes on by itself then; None means `resume` lets it go on.
            by: who; None means the database's user.
            conn: a connection of yours, in whose transaction it is paused.

        Raises:
            NotFound: there is no such schedule.
            InvalidRequest: `until` is over.
        """
        check_instant("until", until)
        await self._request(PAUSE_SCHEDULE, conn, id, reason, until, by)

    async def resume(self, id: str, *, conn: Any = None) -> datetime | None:
        """Let a paused schedule go on, and return its next instant.

        Raises:
            NotFound: there is no such schedule.
        """
        return cast("datetime | None", (await self._request(RESUME_SCHEDULE, conn, id))["next_at"])

    async def trigger(self, id: str, *, overlap: Overlap | None = None, conn: Any = None) -> str | None:
        """Start a run of a schedule now, paused or not, and return its id; `durable.trigger_schedule` in SQL.

        Its instant is the current second. A run that waits for the latest one has its id already.

        Args:
            id: its id.
            overlap: instead of the schedule's own.
            conn: a connection of yours, in whose transaction it starts.

        Returns:
            The id of the run; None if the latest one goes on and the overlap leaves this one out.

        Raises:
            NotFound: there is no such schedule.
            Conflict: its limit of runs is reached.
        """
        return cast("str | None", (await self._request(TRIGGER_SCHEDULE, conn, id, overlap))["run"])

    async def backfill(
        self,
        id: str,
        since: datetime,
        until: datetime,
        *,
        overlap: Literal["allow", "buffer_all"] = "buffer_all",
        dry_run: bool = False,
        conn: Any = None,
    ) -> ScheduleBackfill:
        """Start runs of the instants of a range that is over, those that have none.

        Args:
            id: its id.
            since: the begin of the range.
            until: its end, which is not ahead; 10000 instants at most.
            overlap: "buffer_all" runs one after the other, "allow" all at once.
            dry_run: only count them.
            conn: a connection of yours, in whose transaction they start.

        Raises:
            NotFound: there is no such schedule.
            InvalidRequest: the range is not over, or has too many instants.
        """
        check_instant("since", since)
        check_instant("until", until)
        answer = await self._request(BACKFILL_SCHEDULE, conn, id, since, until, overlap, dry_run)
        return ScheduleBackfill(**{name: answer[name] for name in ("instants", "started", "buffered")})

    async def instants(self, id: str, limit: int = 20) -> list[ScheduleInstant]:
        """Return what became of the latest instants of a schedule, the latest first.

        Args:
            id: its id.
            limit: at most so many.
        """
        names = ScheduleInstant.__dataclass_fields__
        rows = await self._transport.rows(SCHEDULE_INSTANTS, id, limit)
        return [ScheduleInstant(**{name: row[name] for name in names}) for row in rows]

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
