"""The HTTP server of a gateway: its socket, its limits, its orderly stop.

Lives here: everything about uvicorn. May not: routes. Design: connections stay open longer than clients keep
them, so that no request meets a connection that is about to close. A connection that sends nothing is closed,
at once where there are too many (connections.py). A stop ends the streams, waits for pushes, takes no further
connections and then waits for requests; one time is for both.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pyengine.core.process import clock
from pyengine.core.process.background import Block
from pyengine.doors.gateway.app import Parts, create_app
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.connections import Connections
from pyengine.doors.gateway.envelope import refusal
from pyengine.errors import EngineError, InvalidRequest

logger = logging.getLogger("pyengine.gateway")

KEEP_ALIVE_S = 90
_HEAD_S = 30.0
_BACKLOG = 2048
_FILES = 65_536
# for requests, if pushes have taken all the time of a stop
_REQUESTS_S = 1
_TOO_MANY = msgspec.json.encode(refusal("unknown", "0", 503, "this gateway takes no further connection"))
_REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_TOO_MANY), _TOO_MANY)
)


# what is used of uvicorn beyond its documented parts
_USED: dict[type, tuple[str, ...]] = {
    H11Protocol: ("conn", "cycle", "transport", "app_state", "send_400_response", "on_response_complete"),
    RequestResponseCycle: ("disconnected", "message_event", "response_complete", "response_started"),
    uvicorn.Server: ("started", "should_exit", "servers", "capture_signals", "shutdown"),
    uvicorn.Config: ("timeout_graceful_shutdown",),
}


class GatewayServer:
    """A gateway that serves.

    Args:
        config: its options.

    Attributes:
        url: where clients on this machine reach it, once `start` has returned.

    Use it as an async context manager, or call `start` and `stop`. A gateway that fails interrupts its block.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._app = create_app(config)
        self.parts: Parts = self._app.state.parts
        self.url = ""
        self._serving: asyncio.Task[None] | None = None
        self._server: _Server | None = None
        self._block: Block | None = None

    async def __aenter__(self) -> GatewayServer:
        self._block = Block()
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._block is not None:
            await self._block.leave(error)

    async def start(self) -> None:
        """Begin to serve; the database may come later.

        Raises:
            InvalidRequest: the address cannot be used.
            EngineError: this uvicorn has not what a gateway uses of it.
        """
        _check_uvicorn()
        connections = Connections(_limit_of_connections(self._config.max_connections), self.parts.metrics)
        # it reports each start, and each line that is no HTTP
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        sockets = [_bind(self._config.host, self._config.port, "--port")]
        self.url = _url(sockets[0])
        if self._config.older_port is not None:
            sockets.append(_bind(self._config.host, self._config.older_port, "--older-port"))
            self.parts.older_port = sockets[1].getsockname()[1]
        options = _Options(
            self._app,
            connections=connections,
            http=_Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = _Server(options, self.parts)
        self.parts.failed = self._fail
        self._serving = asyncio.create_task(self._server.serve(sockets=sockets))
        while not self._server.started and not self._serving.done():
            await clock.sleep(0.005)
        if self._serving.done():
            self._serving.result()

    async def wait(self) -> None:
        """Return when the server has stopped."""
        if self._serving is not None:
            with contextlib.nullcontext() if self._block is None else self._block.waiting():
                await asyncio.shield(self._serving)
        if self.parts.failure is not None:
            raise self.parts.failure

    def _fail(self) -> None:
        """Stop the server, which is useless, and interrupt the block in which it serves."""
        if self._server is not None:
            self._server.should_exit = True
        if self._block is not None and self.parts.failure is not None:
            self._block.fail(self.parts.failure)

    async def stop(self) -> None:
        """Stop in order: no further connections, streams ended, requests answered."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])


class _Options(uvicorn.Config):
    """The options of the server, and the connections that it has."""

    def __init__(self, app: ASGIApp, *, connections: Connections, **options: Any) -> None:
        super().__init__(app, **options)
        self.connections = connections


class _Server(uvicorn.Server):
    """The server, which leaves signals to the process and ends streams when it stops."""

    def __init__(self, config: uvicorn.Config, parts: Parts) -> None:
        super().__init__(config)
        self._parts = parts

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams and pushes, whose receivers still ask this gateway; then finish the requests."""
        ends_s = clock.monotonic() + self._parts.config.stop_s
        await self._parts.stop_messages()
        self.config.timeout_graceful_shutdown = max(_REQUESTS_S, round(ends_s - clock.monotonic()))
        for server in self.servers:
            server.close()
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """A connection: without a request in time it is closed, and what is sent is in the system's hands.

    With no buffer of its own, an `await` of the next write returns only when the bytes before are sent. A
    request finds it in its state. One that is idle gives way where there are too many.
    """

    _head_handle: clock.Timer | None = None

    def __init__(self, config: _Options, **options: Any) -> None:
        super().__init__(config, **options)
        self._others = config.connections
        self.app_state = {**self.app_state, "connection": self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        if not self._others.admit(self):
            transport.write(_REFUSED)
            transport.close()
            return
        transport.set_write_buffer_limits(high=0)
        _keep_alive(transport.get_extra_info("socket"))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._others.closed(self)
        self._head_arrived()
        # it refers to this connection
        self.app_state = {}
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close the connection, which is idle, because there are too many."""
        self.transport.close()

    def abort(self) -> None:
        """End the connection at once, without what is still to be sent."""
        self._disconnect()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; the head of a request may not take for ever."""
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._head_arrived()
            self._others.is_busy(self)
        elif self._head_handle is None and not self.transport.is_closing():
            self._expect_head()

    def on_response_complete(self) -> None:
        """Go on with the next request, whose head may have arrived in part."""
        super().on_response_complete()
        cycle: RequestResponseCycle | None = self.cycle
        is_idle = cycle is None or cycle.response_complete
        if is_idle:
            self._others.is_idle(self)
        if is_idle and self.conn.trailing_data[0] and self._head_handle is None:
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP, perhaps in the middle of a request that is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # its answer would be written after this one
            self._disconnect()
            if cycle.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def _disconnect(self) -> None:
        """Tell the request that is being answered that its client is gone."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()

    def _expect_head(self) -> None:
        self._head_handle = clock.call_later(_HEAD_S, self._head_is_missing)

    def _head_arrived(self) -> None:
        if self._head_handle is not None:
            self._head_handle.cancel()
            self._head_handle = None

    def _head_is_missing(self) -> None:
        self._head_handle = None
        if not self.transport.is_closing():
            self.transport.close()


def _check_uvicorn() -> None:
    """Raise an error if a release of uvicorn has changed the parts that are used here.

    No release is excluded beforehand: most change none of them.
    """
    for cls, names in _USED.items():
        # `servers` is set by another method than __init__
        made = {name for fn in vars(cls).values() if inspect.isfunction(fn) for name in fn.__code__.co_names}
        missing = [name for name in names if not hasattr(cls, name) and name not in made]
        if missing:
            raise EngineError(
                f"uvicorn {uvicorn.__version__} has no {cls.__name__}.{missing[0]}, which a gateway uses",
                hint="pip install 'uvicorn<=0.54', and tell us",
            )


def _limit_of_connections(wanted: int) -> int:
    """Return how many connections there may be: half of the files are for all else."""
    files = _allow_files()
    if wanted > files // 2:
        logger.warning("this process may open %s files, so it takes %s connections", files, files // 2)
    return min(wanted, files // 2)


def _allow_files() -> int:
    """Allow this process as many files as its hard limit does, and return how many it may open now."""
    try:
        import resource
    except ImportError:
        return _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def _keep_alive(sock: socket.socket) -> None:
    """Let the kernel close a connection whose peer is gone, or takes nothing, for a minute."""
    options = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(host: str, port: int, option: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(
            f"cannot listen on {host}, port {port}: {reason}", hint=f"another one: {option}, or 0 for any"
        ) from None
