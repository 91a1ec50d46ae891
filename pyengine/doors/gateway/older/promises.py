"""Promises in the older API, and what waits for them.

Lives here: the endpoints of promises, callbacks and subscriptions. May not: a rule of promises, which is SQL.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.older import fields
from pyengine.doors.gateway.older.answers import joined, json_response, reported
from pyengine.doors.gateway.older.call import Call
from pyengine.doors.gateway.older.fields import Body, as_json
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.statements import older as statements

_STATES = {"PENDING", "RESOLVED", "REJECTED", "REJECTED_CANCELED", "REJECTED_TIMEDOUT"}


class Promises:
    """The endpoints of promises.

    Args:
        resources: what it shares with other endpoints.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._backend = resources.backend

    async def create(self, call: Call) -> Response:
        """Create a promise."""
        values = _creation(call, call.body)
        call.check_token("promise.create", id=values[0], tags=fields.tags_with_target(call.body))
        row = await self._backend.row(statements.CREATE, *values)
        self._record_deadline(row["promise"])
        return reported(row, "promise", row["promise"])

    async def create_with_task(self, call: Call) -> Response:
        """Create a promise whose task is claimed from birth."""
        promise, task = fields.object_of(call.body, "promise"), fields.object_of(call.body, "task")
        values = _creation(call, promise)
        call.check_token("promise.create", id=values[0], tags=fields.tags_with_target(promise))
        process, ttl = fields.text(task, "processId"), fields.instant(task, "ttl")
        row = await self._backend.row(statements.CREATE_WITH_TASK, *values, process, ttl)
        self._record_deadline(row["promise"])
        return reported(row, "promise", joined(promise=row["promise"], task=row["task"]))

    async def create_with_callback(self, call: Call) -> Response:
        """Create a promise and wait for it as a task."""
        promise, callback = fields.object_of(call.body, "promise"), fields.object_of(call.body, "callback")
        values = _creation(call, promise)
        id, root = values[0], fields.text(callback, "rootPromiseId")
        call.check_token("promise.create", id=id, tags=fields.tags_with_target(promise))
        _check_callback(call, callback, id, root)
        row = await self._backend.row(
            statements.CREATE_WITH_CALLBACK,
            *values,
            _callback_id(callback, id, root),
            root,
            fields.instant(callback, "timeout"),
            fields.receiver(callback),
        )
        self._record_deadline(row["promise"])
        return reported(row, "promise", joined(promise=row["promise"], callback=row["callback"]))

    async def settle(self, call: Call) -> Response:
        """Complete a promise."""
        id, state = call.path_id, fields.text(call.body, "state").upper()
        if state not in statements.SETTLE:
            raise Refused(400, f"state must be one of {', '.join(statements.SETTLE)}")
        call.check_token("promise.settle", id=id)
        value = fields.object_of(call.body, "value", {})
        payload = fields.data(value), fields.headers(value)
        row = await self._backend.row(
            statements.SETTLE[state], id, call.idempotency_key, *payload, call.is_strict
        )
        return reported(row, "promise", row["promise"])

    async def read(self, call: Call) -> Response:
        """Read a promise."""
        call.check_token("promise.get", id=call.path_id)
        row = await self._backend.row(statements.READ, call.path_id)
        return reported(row, "promise", row["promise"])

    async def search(self, call: Call) -> Response:
        """Search promises by pattern of ids, state and tags."""
        call.check_token("promise.search")
        query = call.request.query_params
        tags = {
            name[5:-1]: value
            for name, value in query.multi_items()
            if name.startswith("tags[") and name.endswith("]")
        }
        state, limit = query.get("state") or None, query.get("limit") or "100"
        if state is not None and state.upper() not in _STATES:
            raise Refused(400, "state is no state of a promise")
        if not limit.isdecimal() or len(limit) > 6:
            raise Refused(400, "limit must be a number")
        row = await self._backend.row(
            statements.SEARCH,
            query.get("id") or "*",
            state and state.upper(),
            as_json(tags),
            int(limit),
            query.get("cursor") or None,
        )
        return json_response(200, joined(promises=row["promises"], cursor=as_json(row["cursor"])))

    async def add_callback(self, call: Call) -> Response:
        """Wait for a promise as a task."""
        id, root = _awaited(call), fields.text(call.body, "rootPromiseId")
        _check_callback(call, call.body, id, root)
        callback = _callback_id(call.body, id, root)
        place = fields.instant(call.body, "timeout"), fields.receiver(call.body)
        row = await self._backend.row(statements.CALLBACK, callback, id, root, *place)
        return reported(row, "promise", joined(promise=row["promise"], callback=row["callback"]))

    async def subscribe(self, call: Call) -> Response:
        """Wait for a promise as a process."""
        id, name = _awaited(call), fields.text(call.body, "id")
        address = fields.receiver_address(call.body)
        call.check_token("promise.register_listener", awaited=id, awaiter=id, address=address)
        place = fields.instant(call.body, "timeout"), fields.receiver(call.body)
        row = await self._backend.row(statements.SUBSCRIBE, f"__notify:{id}:{name}", id, *place)
        return reported(row, "promise", joined(promise=row["promise"], callback=row["callback"]))

    def _record_deadline(self, promise: str | None) -> None:
        housekeeping = self._resources.housekeeping
        if housekeeping is None or promise is None:
            return
        found = msgspec.json.decode(promise)
        now = {
            "state": found["state"].lower(),
            "timeoutAt": found["timeout"],
            "createdAt": found["createdOn"],
        }
        housekeeping.answered("promise.create", {"data": {"promise": now}})


def _creation(call: Call, body: Body) -> tuple[Any, ...]:
    """Return what a creation says of a promise, in the order of the statement."""
    param = fields.object_of(body, "param", {})
    tags = as_json(fields.object_of(body, "tags", {}))
    id, key, strict = fields.text(body, "id"), call.idempotency_key, call.is_strict
    return id, key, fields.data(param), fields.headers(param), fields.instant(body, "timeout"), strict, tags


def _check_callback(call: Call, callback: Body, id: str, root: str) -> None:
    address = fields.receiver_address(callback)
    call.check_token("promise.register_callback", awaited=id, awaiter=root, address=address)


def _callback_id(body: Body, awaited: str, root: str) -> str:
    """Return the id of a callback; some clients leave that to the server."""
    return fields.text(body, "id") if "id" in body else f"__resume:{root}:{awaited}"


def _awaited(call: Call) -> str:
    """Return the id of the promise that is waited for; some clients have it in the body."""
    return call.path_id if "id" in call.request.path_params else fields.text(call.body, "promiseId")
