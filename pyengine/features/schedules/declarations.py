"""The schedules that the code of a worker declares, recorded at its start.

Lives here: `ScheduleDeclarations`. May not: reading cron expressions, or firing
(sql/logic/features/75_schedules). Design: a schedule that says the same is left alone, so a start writes
nothing then. One that another session has locked is sent again later, because a worker waits for no
transaction of a user.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.definitions.registry import Registry
from pyengine.errors import EngineError
from pyengine.features.schedules.definition import ScheduleDef
from pyengine.features.schedules.statements import DECLARE_SCHEDULES

logger = logging.getLogger("pyengine.worker")


class ScheduleDeclarations:
    """Records the schedules of an app.

    Args:
        link: connections for statements.
        registry: the workflows of the app.
        schedules: what it declares.
    """

    def __init__(self, link: ConnectionPool, registry: Registry, schedules: Iterable[ScheduleDef]) -> None:
        self._link = link
        self._workflows = sorted({one.name for one in registry.workflows()})
        self._all = [one.record() for one in schedules]
        self._ids = {one["id"] for one in self._all}
        self._unrecorded = self._all
        self._again = False
        self._trouble = FailureLog(logger, "the declaration of schedules")

    def reinstalled(self) -> None:
        """Have all sent again, because the database has lost them; callable from any thread."""
        self._again = True

    async def retry(self) -> None:
        """Send what another session had locked, if anything; an error is logged, and it is sent again."""
        if self._again:
            self._again, self._unrecorded = False, self._all
        if not self._unrecorded:
            return
        try:
            await self._send()
        except EngineError as error:
            self._trouble.failed(error)
            return
        if self._unrecorded:
            self._trouble.failed(f"another session has locked schedule {self._unrecorded[0]['id']}")
        else:
            self._trouble.succeeded()

    async def record(self) -> None:
        """Send the schedules, and log those that are no longer declared.

        Raises:
            InvalidRequest: a cron expression, a time zone or an option is wrong.
            Conflict: a schedule of promises has the id of one of them.
            Unavailable: the database cannot be reached.
        """
        for one in await self._send():
            if one["id"] not in self._ids:
                sentence = f"schedule {one['id']} ({one['cron']}) of workflow {one['workflow']} "
                sentence += "is no longer in the code, and goes on; "
                sentence += f"end it by: pyengine schedules delete {one['id']}"
                logger.warning(sentence, extra=_fields(one, "schedule_left"))

    async def _send(self) -> list[dict[str, str]]:
        """Send what is not recorded, and return the schedules that only older code declared."""
        sent = msgspec.json.encode(self._unrecorded).decode()
        answer: dict[str, Any] = msgspec.json.decode(
            await self._link.run(DECLARE_SCHEDULES, self._workflows, sent)
        )
        outcomes: dict[str, str] = answer["outcomes"]
        for one in self._unrecorded:
            outcome = outcomes[one["id"]]
            if outcome in ("created", "replaced"):
                sentence = f"schedule {one['id']} of workflow {one['workflow']} is {outcome}"
                logger.info(sentence, extra=_fields(one, f"schedule_{outcome}"))
        self._unrecorded = [one for one in self._unrecorded if outcomes[one["id"]] == "locked"]
        left: list[dict[str, str]] = answer["left"]
        return left


def _fields(schedule: Mapping[str, Any], event: str) -> dict[str, Any]:
    return {"event": event, "schedule": schedule["id"], "workflow": schedule["workflow"]}
