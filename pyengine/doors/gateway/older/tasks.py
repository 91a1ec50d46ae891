"""Tasks in the older API.

Lives here: the endpoints of tasks. May not: a rule of tasks, which is SQL; the messages that offer them
(gateway/streams/dialects.py).
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from starlette.responses import Response

from pyengine.core.database.statements.procedures import Procedure
from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.older import fields
from pyengine.doors.gateway.older.answers import json_response, reported
from pyengine.doors.gateway.older.call import Call
from pyengine.doors.gateway.older.fields import as_json
from pyengine.doors.gateway.permissions import prefix_of
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.statements import older as statements
from pyengine.doors.gateway.streams.members import Members


class Tasks:
    """The endpoints of tasks.

    Args:
        resources: what it shares with other endpoints.
        members: the open streams of the API's clients, which learn what is claimed.
    """

    def __init__(self, resources: Resources, members: Members) -> None:
        self._config = resources.config
        self._backend = resources.backend
        self._members = members

    async def claim(self, call: Call) -> Response:
        """Claim a task: the answer is its message, with links to its promises."""
        id, counter = fields.text(call.body, "id"), fields.counter(call.body)
        call.check_token("task.acquire", id=id)
        process, ttl = fields.text(call.body, "processId"), fields.instant(call.body, "ttl")
        try:
            row = await self._backend.row(statements.CLAIM, id, counter, process, ttl)
        except Refused as refused:
            if refused.status == 503:
                self._members.refused(id, counter - 1)
            raise
        if row["word"] != "OK":
            return reported(row, "task", None)
        self._members.acquired(id, counter - 1)
        message = msgspec.json.decode(row["message"])
        base = self._config.public_url or str(call.request.base_url)
        for promise in message["promises"].values():
            promise["href"] = f"{base.rstrip('/')}/promises/{quote(promise['id'], safe='')}"
        return json_response(row["status"], as_json(message))

    async def complete(self, call: Call) -> Response:
        """Complete a task."""
        return await self._leave(call, statements.COMPLETE_TASK)

    async def drop(self, call: Call) -> Response:
        """Give a task back."""
        return await self._leave(call, statements.DROP_TASK)

    async def _leave(self, call: Call, procedure: Procedure) -> Response:
        id, counter = fields.text(call.body, "id"), fields.counter(call.body)
        call.check_token("task.release", id=id)
        row = await self._backend.row(procedure, id, counter)
        return reported(row, "task", as_json({"id": id, "counter": counter}))

    async def heartbeat(self, call: Call) -> Response:
        """Keep the tasks of a process."""
        # its tasks are not named: only those that the token covers are renewed
        call.check_token("task.heartbeat", tasks=[])
        process, prefix = fields.text(call.body, "processId"), prefix_of(call.claims)
        count = await self._backend.ask(statements.HEARTBEAT, process, prefix, repeatable=True)
        return json_response(200, as_json({"tasksAffected": count}))
