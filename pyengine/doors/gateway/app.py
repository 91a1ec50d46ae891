"""The gateway as an application: its routes, its parts, and their life.

Lives here: `create_app` and `Parts`. May not: a server (http_server.py), the work of an endpoint. Design:
whatever is wrong with a request, its answer is JSON, because some clients take another for that of an older
server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyengine.core.database.connection import Database
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process.background import Background
from pyengine.doors.gateway.backend import Backend
from pyengine.doors.gateway.config import GatewayConfig, is_loopback
from pyengine.doors.gateway.courier.courier import Courier, PushLimits
from pyengine.doors.gateway.courier.hosts import Hosts
from pyengine.doors.gateway.courier.http_client import HttpClient, read_token
from pyengine.doors.gateway.courier.outbox import Outbox
from pyengine.doors.gateway.housekeeping import Housekeeping
from pyengine.doors.gateway.memory import Memory
from pyengine.doors.gateway.metrics import Metrics, Probes
from pyengine.doors.gateway.older.api import OlderApi
from pyengine.doors.gateway.outgoing import Outgoing
from pyengine.doors.gateway.poller import Poller
from pyengine.doors.gateway.resources import Resources
from pyengine.doors.gateway.rpc import Rpc
from pyengine.doors.gateway.streams.dialects import OLDER, Dialect, current
from pyengine.doors.gateway.streams.event_streams import EventStreams
from pyengine.doors.gateway.streams.members import Members
from pyengine.doors.gateway.streams.offers import Offers
from pyengine.doors.gateway.streams.unblocks import Unblocks
from pyengine.doors.gateway.tokens import Verifier

logger = logging.getLogger("pyengine.gateway")

_MESSAGE_CONNECTIONS = 4


class Parts:
    """The parts of a gateway; `app.state.parts`.

    Args:
        config: its options.

    Attributes:
        config: its options.
        backend: the database.
        members: its open streams.
        metrics: its figures.
        outgoing: the bytes on their way to clients.
        resources: what its endpoints share.
        rpc: the endpoint of the protocol.
        streams: the endpoint of its streams.
        older: the endpoints of the older API.
        older_members: the open streams of its clients.
        older_streams: the endpoint of these streams.
        older_port: the port on which the older API has its streams, or None.
        courier: what pushes messages, or None: not yet, or not at all.
        failure: what made the gateway useless, or None.
        failed: called when that has happened.
    """

    def __init__(self, config: GatewayConfig) -> None:
        config.check()
        self.config = config
        database = Database(
            config.database_url,
            listen_url=config.listen_url,
            application_name="pyengine gateway",
            start_server=config.start_server,
        )
        self.backend = Backend(database, connections=config.connections, max_waiting=config.max_waiting)
        self.metrics = Metrics()
        self.outgoing = Outgoing(config.max_outgoing_bytes, self.metrics)
        self.members, self.older_members = (
            Members(config.max_streams, self.outgoing.memory, config.max_stream_bytes) for _ in range(2)
        )
        self.metrics.gauge(
            "streams", "Open streams of members.", lambda: len(self.members) + len(self.older_members)
        )
        bodies = Memory(config.max_bodies_bytes)
        self.metrics.gauge("body_bytes", "Bytes of the bodies of requests.", lambda: bodies.held)
        self.metrics.gauge(
            "outgoing_bytes",
            "Bytes of answers and messages that clients have not taken yet.",
            lambda: self.outgoing.memory.held,
        )
        verifier = None
        if config.auth_key is not None:
            verifier = Verifier(config.auth_key, issuer=config.auth_issuer, audience=config.auth_audience)
        self.resources = resources = Resources(
            config=config,
            backend=self.backend,
            metrics=self.metrics,
            verifier=verifier,
            bodies=bodies,
            outgoing=self.outgoing,
        )
        self.rpc = Rpc(resources, self.members)
        self.streams = EventStreams(resources, self.members)
        self.older = OlderApi(resources, self.older_members)
        self.older_streams = EventStreams(resources, self.older_members)
        self.older_port: int | None = None
        self.courier: Courier | None = None
        self._push_token = None if config.push_token is None else read_token(config.push_token)
        self.failure: BaseException | None = None
        self.backend.listener.failed.append(self._fail)
        self.failed: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do what a gateway does by itself, as long as the block lasts."""
        working = Background(self._fail)
        working.start(self._work())
        try:
            yield
        finally:
            await working.cancel()
            await self.backend.close()

    async def stop_messages(self) -> None:
        """End the streams, begin no further push, and wait for those that are open."""
        self.members.close()
        self.older_members.close()
        if self.courier is not None:
            await self.courier.drain(self.config.stop_s)

    async def _work(self) -> None:
        """Wait for the database, then send messages and tick."""
        await self.backend.open()
        link = ConnectionPool(self.backend.database, "messages", _MESSAGE_CONNECTIONS)
        try:
            await self._work_with(link)
        finally:
            await link.close()

    def _fail(self, error: BaseException) -> None:
        """End the process: a gateway that sends no messages, or does not tick, is useless."""
        if self.failure is None:
            logger.error("the gateway cannot go on; it stops", exc_info=error)
            self.failure = error
            self.failed()

    async def _work_with(self, link: ConnectionPool) -> None:
        housekeeping = Housekeeping(link, self.backend.listener)
        self.resources.housekeeping = housekeeping
        dialects = (self.members, current(self.config.public_url)), (self.older_members, OLDER)
        async with asyncio.TaskGroup() as group:
            for members, dialect in dialects:
                for poller in self._messages(link, members, dialect):
                    group.create_task(poller.run())
            if self.config.courier:
                self.courier = self._courier(link)
                group.create_task(self.courier.run())
            group.create_task(housekeeping.run())

    def _messages(self, link: ConnectionPool, members: Members, dialect: Dialect) -> tuple[Poller, Poller]:
        """Return what asks for messages to these members."""
        listener, most = self.backend.listener, self.config.max_unacquired
        offers = Offers(link, members, self.metrics, dialect=dialect, max_unacquired=most).poller
        unblocks = Unblocks(link, members, self.metrics, dialect=dialect).poller
        listener.subscribe("durable_ready", offers.wake)
        listener.subscribe("durable_settled", unblocks.wake)
        members.joined += [offers.wake, unblocks.wake]
        return offers, unblocks

    def _courier(self, link: ConnectionPool) -> Courier:
        """Return what pushes messages to http addresses."""
        config, listener = self.config, self.backend.listener
        client = HttpClient(
            Hosts(config.push_private),
            token=self._push_token,
            connect_s=config.push_connect_s,
            request_s=config.push_request_s,
        )
        limits = PushLimits(per_address=config.push_per_address, in_all=config.push_in_all)
        courier = Courier(Outbox(link, config.public_url), client, self.metrics, limits)
        listener.subscribe("durable_ready", courier.poller.wake)
        listener.subscribe("durable_settled", courier.poller.wake)
        return courier

    async def open_stream(self, request: Request) -> Response:
        """Open the stream of a path without a prefix: of the older API on the port that it has for them."""
        _, port = request.scope["server"]
        return await (self.older_streams if port == self.older_port else self.streams).open(request)


def create_app(config: GatewayConfig) -> Starlette:
    """Return the application of a gateway.

    Args:
        config: its options.

    Raises:
        InvalidRequest: it would serve other machines without tokens, or its key or its token for receivers
            cannot be used.
    """
    parts = Parts(config)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with parts.running():
            yield

    app = Starlette(
        routes=routes(parts),
        lifespan=lifespan,
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.state.parts = parts
    app.router.redirect_slashes = False
    app.add_middleware(_OneSlash)
    app.add_middleware(_OneMessage)
    if parts.resources.verifier is None:
        app.add_middleware(_NoPages, names=_names(config))
    return app


def routes(parts: Parts) -> list[BaseRoute]:
    """Return the routes of a gateway; the first that fits has the request."""
    probes = Probes(parts.backend, parts.metrics)
    return [
        Route("/", parts.rpc.answer, methods=["POST"]),
        Route("/poll/{group}/{pid}", parts.streams.open, methods=["GET"]),
        Route("/health", probes.health, methods=["GET"]),
        Route("/ready", probes.ready, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        *parts.older.routes(),
        Route("/{group}/{pid}", parts.open_stream, methods=["GET"]),
    ]


def _names(config: GatewayConfig) -> frozenset[str] | None:
    """Return the hosts as which clients know a gateway; None if it serves other machines, as any host."""
    if not is_loopback(config.host):
        return None
    public = urlsplit(config.public_url or "").hostname
    return frozenset({"localhost", config.host.lower(), *([public] if public else [])})


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer a request that broke the gateway; the server logs the error."""
    return JSONResponse({"error": "internal error"}, 500)


class _OneSlash:
    """Takes a path that begins with several slashes for one that begins with one.

    A client whose URL of the gateway ends with a slash asks for such paths.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"].startswith("//"):
            scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
        await self._app(scope, receive, send)


class _OneMessage:
    """Closes a connection on which two readers may see different messages.

    A request that has both a length and a transfer encoding is read by the encoding, as RFC 9112 says, and by
    another one before us perhaps by the length: what follows is of nobody. A version that is none is refused.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and close its connection behind the answer if need be."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["http_version"] not in ("1.0", "1.1"):
            answer = JSONResponse({"error": "HTTP/1.1 is spoken here"}, 505, {"connection": "close"})
            await answer(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        closes = {b"content-length", b"transfer-encoding"} <= names
        await self._app(scope, receive, _closing(send) if closes else send)


def _closing(send: Send) -> Send:
    """Return a `send` that closes the connection behind the answer."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", []) if pair[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return closing


class _NoPages:
    """Refuses requests of web pages, where no token is needed.

    A browser on this machine sends them for any page that it shows. It names the page as their origin, or its
    relation to the page's site. If the page's own name was made to lead to this machine, that name is their
    host. No client of the protocol does any of these.

    Args:
        app: the application.
        names: hosts that requests may name beside the addresses of this machine; None means any.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless a page has sent it."""
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is not None:
            await JSONResponse({"error": problem}, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _problem(self, headers: Headers) -> str | None:
        # a request for what a person has typed is of no site
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return "requests of web pages need a token"
        # a browser always names the host
        if not self._is_named(headers.get("host", "localhost")):
            return "the host is not this gateway's: --public-url names it, or requests need a token"
        return None

    def _is_named(self, host: str) -> bool:
        name = re.sub(r":[0-9]*$", "", host).strip("[]").lower()
        if self._names is None or name in self._names:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False
