"""Services in SQL, served by workers that have none of their code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from datetime import date
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, SqlError, Worker, ctx
from pyengine.core.definitions.registry import Registry
from pyengine.core.worker.extensions import Extensions
from pyengine.errors import InvalidRequest, RunFailed
from pyengine.features.sql.service_runner import Server

Connection = psycopg.Connection[tuple[Any, ...]]
SERVES = Extensions(services=Server)

FUNCTIONS = """
create schema billing;
create table billing.closed (month date, by text default 'sql');
create table billing.gate (n int);
insert into billing.gate values (1);
create function billing.close(month date, by text default 'nobody') returns jsonb language sql as
  $$ insert into billing.closed values (month, by) returning to_jsonb(closed) $$;
create function billing.refuse(code text) returns void language plpgsql as $$ begin
  insert into billing.closed values ('2000-01-01');
  raise exception 'refused' using errcode = code, hint = 'the hint'; end $$;
create function billing.slow(seconds float) returns void language sql as $$
  insert into billing.closed values ('2000-01-02'); select pg_sleep(seconds) $$;
create function billing.gated(month date) returns date language sql as $$
  insert into billing.closed values (month); select from billing.gate for update; select month $$;
select durable.serve('billing.close'::regproc::oid::regprocedure);
select durable.serve('billing.refuse(text)', attempts => 2, backoff => '1 ms');
select durable.serve('billing.slow(float)', attempts => 1, timeout => '200 ms');
select durable.serve('billing.gated(date)');
"""


@pytest.fixture
def billing(dsn: str, conn: Connection) -> App:
    """An app on a database with services."""
    conn.execute(FUNCTIONS)
    return App(dsn)


def closed(conn: Connection) -> list[str]:
    """What the user's table holds."""
    return [row[0].isoformat() for row in conn.execute("select month from billing.closed order by month")]


async def until(conn: Connection, query: str) -> None:
    """Wait until a query has a row."""
    async with asyncio.timeout(30):
        while not conn.execute(query.encode()).fetchall():
            await asyncio.sleep(0.01)


def test_a_workflow_calls_services(billing: App, conn: Connection) -> None:
    """A child run of a service wakes its parent; an error comes with its SQLSTATE."""

    @billing.workflow
    async def year() -> list[Any]:
        months = [ctx.start("sql://billing.close", date(2026, month, 1)) for month in (1, 2, 3)]
        months.append(ctx.start("sql://billing.close", by="ann", month=date(2026, 4, 1)))
        seen: list[Any] = [(await one)["month"] for one in months]
        try:
            await ctx.start("SQL://billing.refuse", "BI001")
        except RunFailed as failed:
            error = failed.__cause__
            assert isinstance(error, SqlError)
            seen.append([error.sqlstate, error.hint])
        return seen

    assert billing.run(year) == [*(f"2026-0{n}-01" for n in range(1, 5)), ["BI001", "the hint"]]
    assert closed(conn) == [f"2026-0{n}-01" for n in range(1, 5)]


def test_a_name_that_is_no_service(billing: App, conn: Connection) -> None:
    """A text that is none, a queue beside it, arguments of both kinds: refused at once."""
    found = []

    @billing.workflow
    async def go() -> None:
        found.clear()  # app.run replays what it has run
        for call in (
            lambda: ctx.start("close"),
            lambda: ctx.start("sql://close"),
            lambda: ctx.start("sql://billing.close(date)"),
            lambda: ctx.start("sql://billing.close", queue="other"),  # type: ignore[call-overload]
            lambda: ctx.start("sql://billing.close", date(2026, 1, 1), by="x"),
        ):
            try:
                call()
            except InvalidRequest:
                found.append(1)

    billing.run(go)
    assert len(found) == 5
    assert closed(conn) == []


def test_a_worker_without_code_serves(billing: App, conn: Connection, dsn: str) -> None:
    """Plain SQL starts runs and waits for them; the worker that serves them knows no workflow. A slow
    function is stopped at its timeout and holds up no timer; one whose session is killed is called again."""

    async def main() -> None:
        async with Client(dsn) as client, Worker(Registry(), dsn, extensions=SERVES):
            conn.execute("select durable.start('sql://billing.slow', '[60]', id => 'slow')")
            conn.execute("select durable.create_promise('timer', timeout => '10 ms')")
            conn.execute(
                """select durable.start('sql://billing.close', '{"month": "2026-05-01"}', id => 'may')"""
            )
            assert (await client.run("may").result())["month"] == "2026-05-01"
            with pytest.raises(RunFailed, match="57014"):
                await client.run("slow").result()
            await until(conn, "select 1 from durable.promises where id = 'timer' and state <> 'pending'")
            with psycopg.connect(dsn) as holder:
                holder.execute("select from billing.gate for update")
                run = await client.start("sql://billing.gated", date(2026, 6, 1))
                waiting = (
                    "select pid from pg_locks join pg_stat_activity using (pid) "
                    "where datname = current_database() and not granted and query like '%serve_v1%'"
                )
                await until(conn, waiting)
                conn.execute(f"select pg_terminate_backend(pid) from ({waiting}) x".encode())
                await until(conn, waiting)
            assert await run.result() == "2026-06-01"
        assert closed(conn) == ["2026-05-01", "2026-06-01"]

    asyncio.run(main())


def test_many_workers_serve_each_run_once(billing: App, conn: Connection, dsn: str) -> None:
    """However many workers and psql sessions serve, each run's function is called once."""

    async def main() -> None:
        async with (
            Client(dsn) as client,
            Worker(Registry(), dsn, extensions=SERVES),
            Worker(Registry(), dsn, extensions=SERVES),
        ):
            runs = [await client.start("sql://billing.close", f"2026-01-{n:02}") for n in range(1, 29)]
            other = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            for _ in range(20):
                await other.execute("select durable.tick()")
            await other.close()
            await asyncio.gather(*(run.result() for run in runs))

    asyncio.run(main())
    assert closed(conn) == [f"2026-01-{n:02}" for n in range(1, 29)]


WORKER = """
import asyncio, sys
from pyengine import App, ctx
app = App(sys.argv[1])

@app.workflow
async def go(month: str) -> str:
    return await ctx.sql("billing.gated", month)

async def main() -> None:
    async with app.worker():
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("frees", [True, False], ids=["its session goes on", "its session ends too"])
@pytest.mark.session("a session is ended under its owner")
def test_a_worker_is_killed_in_a_step(billing: App, conn: Connection, dsn: str, frees: bool) -> None:
    """kill -9 of the worker while its function runs: whether the session commits after it or dies with it,
    the function's row is there once."""

    @billing.workflow
    async def go(month: str) -> str:
        answer: str = await ctx.sql("billing.gated", month)
        return answer

    victim = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORKER), dsn])
    waiting = (
        "select pid from pg_locks join pg_stat_activity using (pid) "
        "where datname = current_database() and not granted and query like '%worker_sql_v1%'"
    )

    async def main() -> None:
        async with Client(dsn) as client:
            with psycopg.connect(dsn) as holder:
                holder.execute("select from billing.gate for update")
                run = await client.start("go", "2026-07-01")
                await until(conn, waiting)
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                if not frees:
                    conn.execute(f"select pg_terminate_backend(pid) from ({waiting}) x".encode())
            async with Worker(billing.registry, dsn):
                assert await run.result() == "2026-07-01"

    try:
        asyncio.run(main())
    finally:
        victim.kill()
        victim.wait()
    assert closed(conn) == ["2026-07-01"]
