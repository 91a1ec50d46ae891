"""The older API as routes.

Lives here: its paths, and the way of a request through token, body and refusals, the same for all of them.
May not: the work of an endpoint (promises.py, tasks.py, schedules.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pyengine.core.process import clock
from pyengine.doors.gateway.envelope import Refused
from pyengine.doors.gateway.json_object import read_object
from pyengine.doors.gateway.memory import Share
from pyengine.doors.gateway.older.answers import error
from pyengine.doors.gateway.older.call import Call
from pyengine.doors.gateway.older.fields import Body
from pyengine.doors.gateway.older.promises import Promises
from pyengine.doors.gateway.older.schedules import Schedules
from pyengine.doors.gateway.older.tasks import Tasks
from pyengine.doors.gateway.permissions import Forbidden
from pyengine.doors.gateway.request_body import read_body
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.streams.members import Members
from pyengine.doors.gateway.tokens import TokenRefused, bearer

Work: TypeAlias = Callable[[Call], Awaitable[Response]]


class OlderApi:
    """The endpoints of the older API.

    Args:
        resources: what they share with other endpoints.
        members: the open streams of its clients.
    """

    def __init__(self, resources: Resources, members: Members) -> None:
        self._resources = resources
        self._promises = Promises(resources)
        self._tasks = Tasks(resources, members)
        self._schedules = Schedules(resources)

    def routes(self) -> list[BaseRoute]:
        """Return the paths; ids may contain slashes."""
        promises, tasks, schedules = self._promises, self._tasks, self._schedules
        return [
            self._route("POST", "/promises", promises.create),
            self._route("GET", "/promises", promises.search),
            self._route("POST", "/promises/task", promises.create_with_task),
            self._route("POST", "/promises/callback", promises.create_with_callback),
            self._route("POST", "/promises/callback/{id:path}", promises.add_callback),
            self._route("POST", "/promises/subscribe/{id:path}", promises.subscribe),
            self._route("POST", "/callbacks", promises.add_callback),
            self._route("POST", "/subscriptions", promises.subscribe),
            self._route("GET", "/promises/{id:path}", promises.read),
            self._route("PATCH", "/promises/{id:path}", promises.settle),
            self._route("POST", "/tasks/claim", tasks.claim),
            self._route("POST", "/tasks/complete", tasks.complete),
            self._route("POST", "/tasks/drop", tasks.drop),
            self._route("POST", "/tasks/heartbeat", tasks.heartbeat),
            self._route("POST", "/schedules", schedules.create),
            self._route("GET", "/schedules/{id:path}", schedules.read),
            self._route("DELETE", "/schedules/{id:path}", schedules.delete),
        ]

    def _route(self, method: str, path: str, work: Work) -> Route:
        kind = f"{method} {path.replace('/{id:path}', '')}"
        bodies, metrics = self._resources.bodies, self._resources.metrics

        async def answer(request: Request) -> Response:
            begun_s = clock.monotonic()
            try:
                with bodies.share() as share:
                    response = await self._answer(request, share, work)
            except ClientDisconnect:
                return Response(status_code=400)
            metrics.answered(kind, response.status_code, clock.monotonic() - begun_s)
            return response

        return Route(path, answer, methods=[method])

    async def _answer(self, request: Request, share: Share, work: Work) -> Response:
        verifier = self._resources.verifier
        try:
            claims = None if verifier is None else verifier.verify(bearer(request.headers))
            body = await self._body(request, share) if request.method in ("POST", "PATCH") else {}
            return self._resources.outgoing.counted(await work(Call(request, body, claims)))
        except TokenRefused as refused:
            return error(401, 40100, str(refused), {"www-authenticate": "Basic"})
        except Forbidden as forbidden:
            return error(403, 40300, str(forbidden))
        except Refused as refused:
            return error(refused.status, refused.status * 100, refused.reason, refused.headers)

    async def _body(self, request: Request, share: Share) -> Body:
        config = self._resources.config
        text = await read_body(request, share, config.max_body_bytes, config.body_idle_s)
        body = read_object(text)
        if body is None:
            raise Refused(400, "the body is no JSON object")
        return body
