"""Chains and recursion: ids of detached runs stay short; what is nested too deeply is refused where it is
called."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import psycopg
import pytest

from pyengine import App, RunFailed, ctx
from pyengine.core.database.statements.procedures import Hello
from pyengine.core.protocol.child_ids import detached_id
from tests.system.crash.processes import until

Connection = psycopg.Connection[tuple[Any, ...]]


def test_a_chain_of_detached_runs_has_short_ids(dsn: str, conn: Connection) -> None:
    """Each run starts its successor: however many there were, an id has 60 bytes more than the first at most,
    and begins with it; the handle and the journal tell the id, and the run that has a short one is nobody's
    child."""
    app, told, generations = App(dsn), dict[int, str](), 100

    @app.workflow
    async def poll(n: int) -> str:
        if n < generations:
            told[n + 1] = ctx.start(poll, n + 1, detached=True).id
        return told.get(n + 1, "")

    async def play() -> None:
        async with app.worker(), app.client() as client:
            await client.start(poll, 0, id="poll")
            ended = "select count(*) = %s from durable.runs where state = 'completed'"
            await asyncio.to_thread(until, dsn, ended, generations + 1)

    asyncio.run(play())
    rows = conn.execute("select id, args, parent from durable.runs").fetchall()
    assert {args[0]: id_ for id_, args, _ in rows} == {0: "poll", **told}
    assert max(len(id_) for id_, *_ in rows) <= len("poll") + 60
    assert all(id_.startswith("poll") for id_, *_ in rows)
    free = {id_ for id_, _, parent in rows if parent is None}
    assert 5 < len(free) < 12
    started = "select promise_id from durable.journal_events where event = 'InvokeScheduled'"
    assert {id_ for (id_,) in conn.execute(started).fetchall()} == set(told.values())


def test_runs_of_the_first_rules_keep_their_ids(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began before the short ids goes on without them, so that its journal fits."""
    monkeypatch.setattr("pyengine.core.worker.worker.Hello", partial(Hello, rules=1))
    app = App(dsn)

    @app.workflow
    async def poll(n: int) -> None:
        if n < 40:
            ctx.start(poll, n + 1, detached=True)

    async def play() -> None:
        async with app.worker(), app.client() as client:
            await client.start(poll, 0, id="poll")
            await asyncio.to_thread(
                until, dsn, "select count(*) = 41 from durable.runs where state = 'completed'"
            )

    asyncio.run(play())
    assert conn.execute("select max(length(id)) from durable.runs").fetchone() == (4 + 2 * 40,)


def test_the_schema_makes_the_same_ids(conn: Connection) -> None:
    """Python, which tells the handle, and the schema, which makes the run, agree."""
    hashed = "~" + "0f" * 16
    runs = ["r", "r.1", "r" + ".1" * 40, f"r{hashed}", f"r{hashed}.1", f"r{hashed}" + ".12" * 20, "r.1~ab.2"]
    runs += ["é" * 200, "r\n", "~", "f" * 512, ".1.2", f"{hashed}.1", "r" + ".1" * 28, "r" + ".1" * 29]
    runs += ["r.\u0661", "r.1234567890"]
    for run in runs:
        for child in (0, 999_999_999):
            row = conn.execute("select durable._detached_id(%s, %s)", (run, child)).fetchone()
            assert row == (detached_id(run, child),), run
    assert detached_id("r" + ".1" * 29, 0) == "r" + ".1" * 29 + ".0"
    assert detached_id("r" + ".1" * 30, 0).startswith("r~")


def test_recursion_fails_where_it_is_too_deep(dsn: str, conn: Connection) -> None:
    """The call that is nested too deeply raises in the run that makes it; all runs above it fail by that
    error, and none is halted."""
    app = App(dsn)

    @app.workflow
    async def down(n: int) -> int:
        return await down(n + 1)

    async def play() -> None:
        async with app.client() as client:
            await client.start(down, 0, id="f")
        # as if it were deep already
        for table in ("_tasks", "_executions", "_promises"):
            conn.execute(f"update durable.{table} set id = repeat('f', 990)".encode())
        async with app.worker(), app.client() as client:
            with pytest.raises(RunFailed, match="nested too deeply"):
                await client.run("f" * 990).result()

    asyncio.run(play())
    states = conn.execute("select state, count(*) from durable.runs group by 1").fetchall()
    assert states == [("failed", (1024 - 11 - 990) // 2 + 1)]
