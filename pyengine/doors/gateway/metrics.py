"""Figures of a gateway, for Prometheus, and the other questions of operators.

Lives here: what is counted and timed, and `/health`, `/ready`, `/metrics`. May not: where it is counted,
questions of clients. Design: labels have few values: kinds of the protocol, statuses, kinds of messages;
never an id, a group or a process. So operators need no token: no id and no value is shown.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyengine.doors.gateway.backend import Backend

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_KINDS = frozenset(
    [f"promise.{verb}" for verb in ("get", "create", "settle", "search", "register_callback")]
    + ["promise.register_listener"]
    + [f"task.{verb}" for verb in ("get", "create", "acquire", "release", "suspend", "fulfill", "fence")]
    + [f"task.{verb}" for verb in ("heartbeat", "halt", "continue", "search")]
    + [f"schedule.{verb}" for verb in ("get", "create", "delete", "search")]
    + [f"debug.{verb}" for verb in ("start", "stop", "reset", "tick", "snap")]
)


class Metrics:
    """The figures.

    Attributes:
        messages: messages that were sent on streams, by kind.
        messages_put_off: messages that found no room beside what clients have not taken yet, by kind.
        slow_clients: connections that were cut off because their clients read too slowly, by what they read.
        connections_closed: connections that were closed because there were too many: idle ones, and new ones.
        pushes_given_up: unblock messages that their receivers will not get.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "pyengine_gateway_request_seconds",
            "Requests with the protocol's envelope, and how long their answers took.",
            ["kind", "status"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.messages = Counter(
            "pyengine_gateway_messages",
            "Messages that were sent on streams.",
            ["kind"],
            registry=self._registry,
        )
        self.messages_put_off = Counter(
            "pyengine_gateway_messages_put_off",
            "Messages that come again later, because too many bytes were on their way.",
            ["kind"],
            registry=self._registry,
        )
        self.slow_clients = Counter(
            "pyengine_gateway_slow_clients",
            "Connections that were cut off because their clients read too slowly.",
            ["what"],
            registry=self._registry,
        )
        self.connections_closed = Counter(
            "pyengine_gateway_connections_closed",
            "Connections that were closed because there were too many: idle ones, or new ones.",
            ["state"],
            registry=self._registry,
        )
        self._push_seconds = Histogram(
            "pyengine_gateway_push_seconds",
            "Messages that were pushed to http addresses, and how long their answers took.",
            ["kind", "outcome"],
            buckets=(*_BUCKETS, 60.0, 180.0),
            registry=self._registry,
        )
        self.pushes_given_up = Counter(
            "pyengine_gateway_pushes_given_up",
            "Reports of settled promises that their receivers will not get.",
            registry=self._registry,
        )

    def pushed(self, kind: str, outcome: str, seconds: float) -> None:
        """Record the answer to a message that was pushed, or its failure."""
        self._push_seconds.labels(kind, outcome).observe(seconds)

    def answered(self, kind: str, status: int, seconds: float) -> None:
        """Record an answer to a request."""
        self._seconds.labels(kind if kind in _KINDS else "unknown", str(status)).observe(seconds)

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Show a figure that is read when it is asked for."""
        Gauge(f"pyengine_gateway_{name}", meaning, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self._registry)


class Probes:
    """The endpoints of operators.

    Args:
        backend: the database.
        metrics: the figures.
    """

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics

    async def health(self, request: Request) -> Response:
        """Answer that the process is there."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Answer whether requests can be served: the database answers."""
        if await self._backend.is_ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "the database is not available"}, 503, {"retry-after": "1"})

    async def metrics(self, request: Request) -> Response:
        """Answer the figures."""
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})
