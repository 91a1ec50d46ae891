"""Questions of operators: health, readiness, figures.

Lives here: `/health`, `/ready`, `/metrics`. May not: questions of clients. Design: they need no token,
because they show no id and no value.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyengine.gateway.backend import Backend
from pyengine.gateway.metrics import CONTENT_TYPE, Metrics

__all__ = ["Probes"]


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
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})
