"""Workers that rest, and clients apart from them: what tests of hand-overs and notes share. No law stands
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker
from pyengine.core.database.poll_schedule import _MIN_GAP_S
from pyengine.core.definitions.registry import Workflow
from pyengine.core.worker.turn_loop import TurnLoop

Connection = psycopg.Connection[tuple[object, ...]]


async def until(conn: Connection, condition: str) -> None:
    """Wait until a condition on the database holds."""
    async with asyncio.timeout(15):
        while conn.execute(f"select {condition}").fetchone() != (True,):  # type: ignore[arg-type]
            await asyncio.sleep(0.005)


async def idle(conn: Connection, workers: int = 1) -> None:
    """Wait until so many workers are believed to rest, and until a start may tell of itself with its
    commit again.
    """
    await asyncio.sleep(_MIN_GAP_S)
    await until(
        conn, f"(select count(*) from durable._idle_workers where idle_until > durable._now_ms()) = {workers}"
    )


def five(dsn: str) -> tuple[App, Workflow[[], int]]:
    """A workflow that answers 5 at once, and its app."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 5

    return app, go


@asynccontextmanager
async def apart(app: App, dsn: str, **options: Any) -> AsyncIterator[tuple[Worker, Client]]:
    """A worker and a client as in two processes: each hears for itself."""
    async with Worker(app.registry, dsn, **options) as worker, Client(dsn, registry=app.registry) as client:
        yield worker, client


def note_handoffs(patch: pytest.MonkeyPatch) -> list[str]:
    """Ids of runs that workers of this process are handed from now on."""
    ids: list[str] = []
    plain = TurnLoop.handed_off

    def noted(self: TurnLoop, answer: Any) -> None:
        ids.extend(task.id for task in answer.tasks)
        plain(self, answer)

    patch.setattr(TurnLoop, "handed_off", noted)
    return ids


def postpone_polls(worker: Worker) -> None:
    """Let no poll for runs fall due within the hour, unless a hint comes."""
    worker.parts.poll.at = asyncio.get_running_loop().time() + 3600
    worker.parts.wake.set()
