"""Schedules in the older API.

Lives here: the endpoints of schedules. May not: a rule of schedules, which is SQL.
"""

from __future__ import annotations

from starlette.responses import Response

from pyengine.doors.gateway.older import fields
from pyengine.doors.gateway.older.answers import reported
from pyengine.doors.gateway.older.call import Call
from pyengine.doors.gateway.older.fields import as_json
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.statements import older as statements


class Schedules:
    """The endpoints of schedules.

    Args:
        resources: what it shares with other endpoints.
    """

    def __init__(self, resources: Resources) -> None:
        self._backend = resources.backend

    async def create(self, call: Call) -> Response:
        """Create a schedule."""
        body = call.body
        id, promise = fields.text(body, "id"), fields.text(body, "promiseId")
        tags = fields.object_of(body, "promiseTags", {})
        param = fields.object_of(body, "promiseParam", {})
        targets = fields.tags_with_target({"tags": tags})
        call.check_token("schedule.create", id=id, promiseId=promise, promiseTags=targets)
        row = await self._backend.row(
            statements.CREATE_SCHEDULE,
            id,
            fields.text(body, "cron"),
            promise,
            fields.instant(body, "promiseTimeout"),
            fields.data(param),
            fields.headers(param),
            as_json(tags),
        )
        return reported(row, "schedule", row["schedule"])

    async def read(self, call: Call) -> Response:
        """Read a schedule."""
        call.check_token("schedule.get", id=call.path_id)
        row = await self._backend.row(statements.READ_SCHEDULE, call.path_id)
        return reported(row, "schedule", row["schedule"])

    async def delete(self, call: Call) -> Response:
        """Delete a schedule."""
        call.check_token("schedule.delete", id=call.path_id)
        row = await self._backend.row(statements.DELETE_SCHEDULE, call.path_id)
        return reported(row, "schedule", None)
