"""A worker whose row is gone registers again: deleted by hand, by a sweep, or with the whole schema."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from pyengine import App
from pyengine.doors.admin import migrate
from pyengine.features.calls.adapter_process import Adapter
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.program_executor import ProgramExecutor

Connection = psycopg.Connection[tuple[object, ...]]

_PRESENT = """
    select w.id from durable._workers w
    join pg_locks l on l.locktype = 'advisory' and l.classid = 1685417570 and l.objid = w.number and l.granted
    where w.present and l.mode = 'ExclusiveLock'
      and l.database = (select oid from pg_database where datname = current_database())
    order by w.id"""


def nightly_app(dsn: str) -> App:
    """A workflow with a schedule."""
    app = App(dsn)

    @app.schedule("0 3 * * *", id="every-night")
    @app.workflow
    async def nightly() -> int:
        return 1

    return app


def fast_leases(conn: Connection) -> None:
    """Heartbeats twice a second."""
    conn.execute("select durable.set_setting('lease_ttl_ms', '1000')")


async def until(conn: Connection, query: str, answer: list[tuple[object, ...]]) -> None:
    """Wait until a query answers this; a declaration that has been in vain ten times is made each 30 s."""
    async with asyncio.timeout(100):
        while conn.execute(query).fetchall() != answer:
            await asyncio.sleep(0.02)


@pytest.mark.session("presence")
def test_a_deleted_worker_registers_again(dsn: str, conn: Connection) -> None:
    """Its heartbeat is told, and it declares its presence under its new number."""
    fast_leases(conn)

    async def main() -> None:
        async with nightly_app(dsn).worker() as worker:
            await until(conn, _PRESENT, [(worker.id,)])
            conn.execute("select durable.unschedule('every-night')")
            conn.execute("delete from durable._workers")
            await until(conn, _PRESENT, [(worker.id,)])

    asyncio.run(main())
    # what a user has deleted since the worker began is not made again
    assert conn.execute("select count(*) from durable._schedules").fetchone() == (0,)


@pytest.mark.session("presence")
def test_workers_survive_a_new_schema(empty_database: Callable[[], str]) -> None:
    """Both register and are present, although the new numbers are those of each other's old locks; their
    workflows and schedules are known again.
    """
    dsn = empty_database()
    migrate.install(dsn)

    async def main(conn: Connection) -> None:
        fast_leases(conn)
        async with nightly_app(dsn).worker() as one, nightly_app(dsn).worker() as other:
            both: list[tuple[object, ...]] = sorted([(one.id,), (other.id,)])
            for _ in range(3):
                await until(conn, _PRESENT, both)
                conn.execute("drop schema durable cascade")
                migrate.install(dsn)
            await until(conn, _PRESENT, both)
            await until(conn, "select id from durable._schedules", [("every-night",)])
            await until(conn, "select name from durable._workflows", [("nightly",)])

    with psycopg.connect(dsn, autocommit=True) as conn:
        asyncio.run(main(conn))


def test_a_deleted_adapter_worker_registers_again(dsn: str, conn: Connection) -> None:
    """It has no presence, and is seen."""
    fast_leases(conn)

    async def main() -> None:
        executor = ProgramExecutor([Adapter(name="x", path="/bin/true")])
        async with AdapterWorker([executor], dsn) as worker:
            conn.execute("delete from durable._workers")
            await until(conn, "select id from durable._workers", [(worker.id,)])

    asyncio.run(main())
