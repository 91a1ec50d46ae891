"""The older API of durable promises over HTTP, for the clients that speak it.

Lives here: its paths, headers and errors. May not: a rule of it, which is SQL (sql/logic/80_v0). Design: the
database answers a status and a word; the status is that of the answer, and the word becomes the code that
clients know. Names and forms are those of published clients: a key and the strictness in headers, a token as
the password of Basic authorization, deadlines beyond the range of ours, answers without a body as 204.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pyengine.database.statements import older
from pyengine.database.statements.procedures import Procedure
from pyengine.gateway.backend import Backend
from pyengine.gateway.config import GatewayConfig
from pyengine.gateway.envelope import Refused
from pyengine.gateway.housekeeping import Housekeeping
from pyengine.gateway.members import Members
from pyengine.gateway.memory import Memory, Share
from pyengine.gateway.metrics import Metrics
from pyengine.gateway.outgoing import Outgoing
from pyengine.gateway.permissions import Forbidden, check, prefix_of
from pyengine.gateway.poll import bearer
from pyengine.gateway.request_body import read_body
from pyengine.gateway.tokens import Claims, TokenRefused, Verifier

__all__ = ["Legacy"]

Body: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Request, Body, Claims | None], Awaitable[Response]]

NEVER_MS = 2**53 - 1
_CODES = {
    "already resolved": 40301,
    "already rejected": 40302,
    "already canceled": 40303,
    "already timedout": 40304,
    "already claimed": 40306,
    "already completed": 40307,
    "invalid counter": 40308,
    "invalid state": 40309,
    "already exists": 40901,
}
_NOT_FOUND = {"promise": 40400, "schedule": 40401, "task": 40403}
_STATES = {"PENDING", "RESOLVED", "REJECTED", "REJECTED_CANCELED", "REJECTED_TIMEDOUT"}


class Legacy:
    """The endpoints of the older API.

    Args:
        config: the gateway's options.
        backend: the database.
        members: the open streams of its clients, which learn what is claimed.
        metrics: counts the answers.
        verifier: the check of tokens, or None if none are needed.
        bodies: bytes of bodies.
        outgoing: bytes of answers.

    Attributes:
        housekeeping: learns of deadlines, once the gateway ticks.
    """

    def __init__(
        self,
        config: GatewayConfig,
        backend: Backend,
        members: Members,
        metrics: Metrics,
        verifier: Verifier | None,
        *,
        bodies: Memory,
        outgoing: Outgoing,
    ) -> None:
        self._config = config
        self._backend = backend
        self._members = members
        self._bodies = bodies
        self._outgoing = outgoing
        self._metrics = metrics
        self._verifier = verifier
        self.housekeeping: Housekeeping | None = None

    def routes(self) -> list[BaseRoute]:
        """Return the paths; ids may contain slashes."""
        return [
            self._route("POST", "/promises", self._create),
            self._route("GET", "/promises", self._search),
            self._route("POST", "/promises/task", self._create_with_task),
            self._route("POST", "/promises/callback", self._create_with_callback),
            self._route("POST", "/promises/callback/{id:path}", self._callback),
            self._route("POST", "/promises/subscribe/{id:path}", self._subscribe),
            self._route("POST", "/callbacks", self._callback),
            self._route("POST", "/subscriptions", self._subscribe),
            self._route("GET", "/promises/{id:path}", self._read),
            self._route("PATCH", "/promises/{id:path}", self._settle),
            self._route("POST", "/tasks/claim", self._claim),
            self._route("POST", "/tasks/complete", self._complete),
            self._route("POST", "/tasks/drop", self._drop),
            self._route("POST", "/tasks/heartbeat", self._heartbeat),
            self._route("POST", "/schedules", self._create_schedule),
            self._route("GET", "/schedules/{id:path}", self._read_schedule),
            self._route("DELETE", "/schedules/{id:path}", self._delete_schedule),
        ]

    def _route(self, method: str, path: str, work: Work) -> Route:
        kind = f"{method} {path.replace('/{id:path}', '')}"

        async def answer(request: Request) -> Response:
            begun_s = asyncio.get_running_loop().time()
            try:
                with self._bodies.share() as share:
                    response = await self._answer(request, share, work)
            except ClientDisconnect:
                return Response(status_code=400)
            self._metrics.answered(kind, response.status_code, asyncio.get_running_loop().time() - begun_s)
            return response

        return Route(path, answer, methods=[method])

    async def _answer(self, request: Request, share: Share, work: Work) -> Response:
        try:
            claims = self._verifier.verify(bearer(request)) if self._verifier is not None else None
            body = await self._body(request, share) if request.method in ("POST", "PATCH") else {}
            return self._outgoing.counted(await work(request, body, claims))
        except TokenRefused as refused:
            return _error(401, 40100, str(refused), {"www-authenticate": "Basic"})
        except Forbidden as forbidden:
            return _error(403, 40300, str(forbidden))
        except Refused as refused:
            return _error(refused.status, refused.status * 100, refused.reason, refused.headers)

    async def _body(self, request: Request, share: Share) -> Body:
        text = await read_body(request, share, self._config.max_body_bytes, self._config.body_idle_s)
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refused(400, "the body is no JSON object")
        return found

    # promises

    async def _create(self, request: Request, body: Body, claims: Claims | None) -> Response:
        values = _promise(request, body)
        _allow(claims, "promise.create", id=values[0], tags=_targets(body))
        row = await self._row(older.CREATE, *values)
        self._record_deadline(row["promise"])
        return _reported(row, "promise", row["promise"])

    async def _create_with_task(self, request: Request, body: Body, claims: Claims | None) -> Response:
        promise, task = _object(body, "promise"), _object(body, "task")
        values = _promise(request, promise)
        _allow(claims, "promise.create", id=values[0], tags=_targets(promise))
        row = await self._row(
            older.CREATE_WITH_TASK, *values, _text(task, "processId"), _integer(task, "ttl")
        )
        self._record_deadline(row["promise"])
        return _reported(row, "promise", _joined(promise=row["promise"], task=row["task"]))

    async def _create_with_callback(self, request: Request, body: Body, claims: Claims | None) -> Response:
        promise, callback = _object(body, "promise"), _object(body, "callback")
        values = _promise(request, promise)
        id, root = values[0], _text(callback, "rootPromiseId")
        _allow(claims, "promise.create", id=id, tags=_targets(promise))
        _allow(claims, "promise.register_callback", awaited=id, awaiter=root, address=_place(callback))
        row = await self._row(
            older.CREATE_WITH_CALLBACK,
            *values,
            _resume_id(callback, id, root),
            root,
            _timeout(callback),
            _recv(callback),
        )
        self._record_deadline(row["promise"])
        return _reported(row, "promise", _joined(promise=row["promise"], callback=row["callback"]))

    async def _settle(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, state = request.path_params["id"], _text(body, "state").upper()
        if state not in older.SETTLE:
            raise Refused(400, f"state must be one of {', '.join(older.SETTLE)}")
        _allow(claims, "promise.settle", id=id)
        value = _object(body, "value", {})
        key, strict = _key(request), _strict(request)
        row = await self._row(older.SETTLE[state], id, key, _data(value), _headers(value), strict)
        return _reported(row, "promise", row["promise"])

    async def _read(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id = request.path_params["id"]
        _allow(claims, "promise.get", id=id)
        row = await self._row(older.READ, id)
        return _reported(row, "promise", row["promise"])

    async def _search(self, request: Request, body: Body, claims: Claims | None) -> Response:
        _allow(claims, "promise.search")
        query = request.query_params
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
        row = await self._row(
            older.SEARCH,
            query.get("id") or "*",
            state and state.upper(),
            _json(tags),
            int(limit),
            query.get("cursor") or None,
        )
        return _json_response(200, _joined(promises=row["promises"], cursor=_json(row["cursor"])))

    async def _callback(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, root = _awaited(request, body), _text(body, "rootPromiseId")
        _allow(claims, "promise.register_callback", awaited=id, awaiter=root, address=_place(body))
        callback = _resume_id(body, id, root)
        row = await self._row(older.CALLBACK, callback, id, root, _timeout(body), _recv(body))
        return _reported(row, "promise", _joined(promise=row["promise"], callback=row["callback"]))

    async def _subscribe(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, name = _awaited(request, body), _text(body, "id")
        _allow(claims, "promise.register_listener", awaited=id, awaiter=id, address=_place(body))
        row = await self._row(older.SUBSCRIBE, f"__notify:{id}:{name}", id, _timeout(body), _recv(body))
        return _reported(row, "promise", _joined(promise=row["promise"], callback=row["callback"]))

    # tasks

    async def _claim(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, counter = _text(body, "id"), _counter(body)
        _allow(claims, "task.acquire", id=id)
        process, ttl = _text(body, "processId"), _integer(body, "ttl")
        try:
            row = await self._row(older.CLAIM, id, counter, process, ttl)
        except Refused as refused:
            if refused.status == 503:
                self._members.refused(id, counter - 1)
            raise
        if row["word"] != "OK":
            return _reported(row, "task", None)
        self._members.acquired(id, counter - 1)
        message = msgspec.json.decode(row["message"])
        base = self._config.public_url or str(request.base_url)
        for promise in message["promises"].values():
            promise["href"] = f"{base.rstrip('/')}/promises/{quote(promise['id'], safe='')}"
        return _json_response(row["status"], _json(message))

    async def _complete(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, counter = _text(body, "id"), _counter(body)
        _allow(claims, "task.release", id=id)
        row = await self._row(older.COMPLETE_TASK, id, counter)
        return _reported(row, "task", _json({"id": id, "counter": counter}))

    async def _drop(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, counter = _text(body, "id"), _counter(body)
        _allow(claims, "task.release", id=id)
        row = await self._row(older.DROP_TASK, id, counter)
        return _reported(row, "task", _json({"id": id, "counter": counter}))

    async def _heartbeat(self, request: Request, body: Body, claims: Claims | None) -> Response:
        # its tasks are not named: only those that the token covers are renewed
        _allow(claims, "task.heartbeat", tasks=[])
        process, prefix = _text(body, "processId"), prefix_of(claims)
        count = await self._backend.ask(older.HEARTBEAT, process, prefix, repeatable=True)
        return _json_response(200, _json({"tasksAffected": count}))

    # schedules

    async def _create_schedule(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id, promise = _text(body, "id"), _text(body, "promiseId")
        tags, param = _object(body, "promiseTags", {}), _object(body, "promiseParam", {})
        _allow(claims, "schedule.create", id=id, promiseId=promise, promiseTags=_targets({"tags": tags}))
        row = await self._row(
            older.CREATE_SCHEDULE,
            id,
            _text(body, "cron"),
            promise,
            _integer(body, "promiseTimeout"),
            _data(param),
            _headers(param),
            _json(tags),
        )
        return _reported(row, "schedule", row["schedule"])

    async def _read_schedule(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id = request.path_params["id"]
        _allow(claims, "schedule.get", id=id)
        row = await self._row(older.READ_SCHEDULE, id)
        return _reported(row, "schedule", row["schedule"])

    async def _delete_schedule(self, request: Request, body: Body, claims: Claims | None) -> Response:
        id = request.path_params["id"]
        _allow(claims, "schedule.delete", id=id)
        return _reported(await self._row(older.DELETE_SCHEDULE, id), "schedule", None)

    async def _row(self, procedure: Procedure, *values: Any) -> Any:
        rows = await self._backend.rows(procedure, *values)
        return rows[0]

    def _record_deadline(self, promise: str | None) -> None:
        if self.housekeeping is None or promise is None:
            return
        found = msgspec.json.decode(promise)
        now = {
            "state": found["state"].lower(),
            "timeoutAt": found["timeout"],
            "createdAt": found["createdOn"],
        }
        self.housekeeping.answered("promise.create", {"data": {"promise": now}})


def _allow(claims: Claims | None, kind: str, **data: Any) -> None:
    if claims is not None:
        check(claims, kind, data)


def _promise(request: Request, body: Body) -> tuple[Any, ...]:
    """Return what a creation says of a promise, in the order of the statement."""
    param = _object(body, "param", {})
    tags = _json(_object(body, "tags", {}))
    id, key, strict = _text(body, "id"), _key(request), _strict(request)
    return id, key, _data(param), _headers(param), _timeout(body), strict, tags


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key") or None


def _strict(request: Request) -> bool:
    return request.headers.get("strict", "").lower() == "true"


def _text(body: Body, name: str) -> str:
    found = body.get(name)
    if not isinstance(found, str) or not found:
        raise Refused(400, f"{name} must be a string that is not empty")
    return found


def _integer(body: Body, name: str) -> int:
    found = body.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not -(2**63) <= found < 2**63:
        raise Refused(400, f"{name} must be a whole number")
    return found


def _counter(body: Body) -> int:
    """Return a counter; a number that no task can have is kept, so that it matches none."""
    return min(max(_integer(body, "counter"), -1), 2**31 - 1)


def _timeout(body: Body) -> int:
    """Return a deadline; one beyond the range of deadlines means never."""
    return min(_integer(body, "timeout"), NEVER_MS)


def _object(body: Body, name: str, default: Body | None = None) -> Body:
    found = body.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, dict):
        raise Refused(400, f"{name} must be an object")
    return found


def _data(payload: Body) -> str | None:
    found = payload.get("data")
    if found is not None and not isinstance(found, str):
        raise Refused(400, "data must be a string")
    return found


def _headers(payload: Body) -> str | None:
    return None if payload.get("headers") is None else _json(payload["headers"])


def _recv(body: Body) -> str:
    if "recv" not in body:
        raise Refused(400, "recv must be an address")
    return _json(body["recv"])


def _place(body: Body) -> Any:
    """Return the receiver as an address, for the comparison with the groups of a token."""
    recv = body.get("recv")
    if isinstance(recv, dict) and recv.get("type") == "poll" and isinstance(recv.get("data"), dict):
        return f"poll://any@{recv['data'].get('group')}"
    return recv


def _resume_id(body: Body, awaited: str, root: str) -> str:
    """Return the id of a callback; some clients leave that to the server."""
    return _text(body, "id") if "id" in body else f"__resume:{root}:{awaited}"


def _awaited(request: Request, body: Body) -> str:
    return request.path_params["id"] if "id" in request.path_params else _text(body, "promiseId")


def _targets(body: Body) -> Body:
    """Return the tags of a promise with its target under its present name."""
    tags = _object(body, "tags", {})
    return {"resonate:target": tags["resonate:invoke"], **tags} if "resonate:invoke" in tags else tags


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _joined(**parts: str | None) -> str:
    """Return an object of parts that are JSON texts."""
    return "{" + ", ".join(f'"{name}": {text or "null"}' for name, text in parts.items()) + "}"


def _reported(row: Any, noun: str, body: str | None) -> Response:
    """Return the answer of the database: the body where it is content, else the error."""
    status, word = row["status"], row["word"]
    if status >= 400:
        code = _NOT_FOUND[noun] if status == 404 else _CODES.get(word, status * 100)
        if status == 409 and noun == "promise":
            code = 40900
        return _error(status, code, f"{noun}: {word}")
    return Response(status_code=204) if status == 204 or body is None else _json_response(status, body)


def _json_response(status: int, body: str) -> Response:
    return Response(body, status, media_type="application/json")


def _error(status: int, code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    error = {"code": code, "message": message, "details": []}
    return Response(_json({"error": error}), status, headers, media_type="application/json")
