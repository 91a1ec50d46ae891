"""Child runs end with the await that is cancelled, and with their parent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest

from pyengine import App, JoinSet, ctx
from pyengine.errors import RunFailed

Connection = psycopg.Connection[tuple[object, ...]]

CHILDREN = """
    select c.id, c.state, e.settled_at <= f.settled_at
    from durable.runs c join durable.runs p on p.id = c.parent
    join durable._promises e on e.id = c.id join durable._promises f on f.id = p.id
    where p.workflow = %s order by c.id"""


def families(app: App) -> list[Any]:
    """Workflows that leave child runs, each in another way."""

    @app.workflow
    async def long(n: int = 0) -> int:
        await ctx.sleep(0.02 if n else 3600)
        return n

    @app.workflow
    async def nested() -> int:
        return await long()

    @app.step
    async def bad() -> None:
        raise ValueError("bad")

    @app.workflow
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.05):
                await nested()
        except TimeoutError:
            return "given up"
        return "?"

    @app.workflow
    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(long())
            tasks.create_task(bad())

    @app.workflow
    async def by_hand() -> bool:
        task = asyncio.create_task(long())  # type: ignore[arg-type]
        await ctx.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    @app.workflow
    async def returns() -> str:
        ctx.start(nested)
        ctx.start(long)
        return "done"

    @app.workflow
    async def raises() -> str:
        members: JoinSet[int] = ctx.join_set()
        for n in (1, 1, 0, 0, 0):
            members.submit(long(n))
        assert [await members.next(), await members.next()] == [1, 1]
        raise ValueError("enough")

    return [limited, group, by_hand, returns, raises]


def test_no_child_outlives_its_parent(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever cancels an await, and however a run ends: its children have ended before (F3, C091)."""
    app = App(dsn)
    caplog.set_level(logging.WARNING, logger="pyengine.worker")
    flows = families(app)

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            runs = [await client.start(one) for one in flows]
            ends = await asyncio.gather(*(run.result(timeout=20) for run in runs), return_exceptions=True)
            while conn.execute("select 1 from durable._tasks").fetchone():
                await asyncio.sleep(0.01)
            return ends

    ends = asyncio.run(main())
    assert ends[0] == "given up" and ends[2] is True and ends[3] == "done"
    assert all(isinstance(end, RunFailed) for end in (ends[1], ends[4]))
    for flow in flows:
        children = conn.execute(CHILDREN, (flow.name,)).fetchall()
        states = [state for _, state, _ in children if state != "completed"]
        assert states and set(states) == {"cancelled"}, flow.name
        assert all(in_time for _, _, in_time in children), flow.name
    told = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "run_children_left"]
    assert len(told) == 1 and "2 child runs" in told[0]
    assert conn.execute("select count(*) from durable._cancellations").fetchone() == (0,)
