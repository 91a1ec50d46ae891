"""The decorator by which an app declares schedules.

Lives here: `AppSchedules`, the part of `App` about schedules. May not: the instants of a cron expression,
which SQL reads, or recording a schedule, which a worker does at its start (schedules/declarations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from pyengine.core.definitions.registry import Workflow
from pyengine.errors import InvalidRequest
from pyengine.features.schedules.definition import ScheduleDef, checked_schedule_id
from pyengine.features.schedules.policy import SchedulePolicy

P = ParamSpec("P")
R = TypeVar("R")


class AppSchedules:
    """The schedules of an app.

    Attributes:
        schedules: those that its code declares, by id.
    """

    schedules: dict[str, ScheduleDef]

    def schedule(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        id: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        policy: SchedulePolicy | None = None,
    ) -> Callable[[Workflow[P, R]], Workflow[P, R]]:
        """Start a run of a workflow at every instant of a cron expression; stands above `@app.workflow`.

        A worker that starts records it, and replaces it if the code has changed. One that is no longer
        declared goes on, and each worker that starts says so. Parameters named `scheduled_at`, `fired_at`
        and `last_result` get the instant in the schedule's zone, when the run begins, and what the last run
        that has completed returned, or None. Queue, version and deadline are the workflow's.

        Args:
            cron: "0 3 * * mon-fri", "every 90 minutes", "at 2026-03-01 09:00"; several with ";" between.
            timezone: a full name such as "Europe/Berlin".
            id: id of the schedule; the name of the workflow by default.
            args: arguments of the runs.
            kwargs: arguments by name.
            priority: smaller is claimed first.
            tags: tags of the runs.
            policy: overlap, window and limits.

        Raises:
            InvalidRequest: a workflow, id, expression, time zone or argument is wrong, or the id is taken.
        """
        _refuse_others(cron, timezone, args)

        def declare(workflow: Workflow[P, R]) -> Workflow[P, R]:
            if not isinstance(workflow, Workflow):
                raise InvalidRequest(
                    f"{getattr(workflow, '__name__', workflow)} is no workflow",
                    hint="@app.schedule(...) stands above @app.workflow",
                )
            schedule = ScheduleDef(
                id=checked_schedule_id(workflow.name if id is None else id),
                cron=cron,
                timezone=timezone,
                workflow=workflow.definition,
                args=tuple(args),
                kwargs=dict(kwargs or {}),
                priority=priority,
                tags=dict(tags or {}),
                policy=policy or SchedulePolicy(),
            )
            schedule.check()
            self._add_schedule(schedule)
            return workflow

        return declare

    def _add_schedule(self, schedule: ScheduleDef) -> None:
        known, own = self.schedules.get(schedule.id, schedule), schedule.workflow
        # the same name with another function is a cell or a module that was run again
        twice = known.workflow.fn is own.fn and replace(known, workflow=own) != schedule
        if twice or known.workflow.name != own.name:
            raise InvalidRequest(
                f"schedule {schedule.id!r} is declared twice: {known.cron!r} for {known.workflow.name} and "
                f"{schedule.cron!r} for {own.name}",
                hint='give one of them an id of its own: @app.schedule(..., id="...")',
            )
        self.schedules[schedule.id] = schedule


def _refuse_others(cron: object, timezone: object, args: object) -> None:
    if not (isinstance(cron, str) and isinstance(timezone, str)):
        raise InvalidRequest(
            "a schedule has a cron expression and a time zone, both texts",
            hint='@app.schedule("0 3 * * *", timezone="Europe/Berlin")',
        )
    if not isinstance(args, tuple | list):
        raise InvalidRequest(
            f"args={args!r} of a schedule is no tuple of arguments", hint=f"args=({args!r},)"
        )
