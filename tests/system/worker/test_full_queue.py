"""Law: a notification is a hint. A server whose queue of notifications is full commits all the same: starts,
signals and turns go on, nothing is halted, and health tells of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from collections.abc import Iterator

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support.cluster import SETTINGS, Connection, make_folder
from tests.support.verbs import ask

SMALL = {"max_notify_queue_pages": "64", "max_connections": "60"}
FILL = "select pg_notify('other', repeat('x', %s) || g::text) from generate_series(1, %s) g"


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """URL of a server that has room for few notifications."""
    folder = make_folder()
    try:
        with EmbeddedPostgres(folder, settings=SETTINGS | SMALL) as postgres:
            migrate.install(postgres.dsn)
            yield postgres.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def full(dsn: str) -> Iterator[None]:
    """The queue is full to its last page, because of a session that listens and does not end."""
    with psycopg.connect(dsn, autocommit=True) as holder, psycopg.connect(dsn, autocommit=True) as conn:
        holder.execute("listen other")
        holder.execute("begin")
        holder.execute("select 1")
        for size, count in ((7000, 3), (10, 1)):
            with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
                while True:
                    conn.execute(FILL, (size, count))
        yield


def _is_well(conn: Connection) -> bool:
    (ok,) = ask(conn, ("select ok from durable.health where subject = 'notification queue'", ()))
    return bool(ok)


@pytest.mark.parametrize("held_s", [0, pytest.param(60, marks=pytest.mark.full)])
def test_a_full_queue_costs_hints_and_no_commit(small: str, held_s: float) -> None:
    """Runs that are under way, starts from Python and SQL, and signals go on while the queue is full, for as
    long as it is.
    """
    app = App(small)

    @app.step
    async def one(n: int) -> int:
        return n

    @app.workflow
    async def child(n: int) -> int:
        return await one(n)

    @app.workflow(any_signal=True)
    async def parent(n: int) -> int:
        got = await ctx.receive("go")
        await ctx.sleep(0.01)
        return await child(n) + await one(got)

    async def main(conn: Connection) -> None:
        async with app.worker(), app.client() as client:
            early = [await client.start(parent, n) for n in range(3)]
            with full(small):
                until_s = time.monotonic() + held_s
                for round in itertools.count():
                    late = [await client.start(parent, n) for n in range(3)]
                    conn.execute("select durable.start('child', '[7]', id => %s)", (f"in-sql-{round}",))
                    for run in early + late:
                        await run.signal("go", 1)
                    for n, run in enumerate(early + late):
                        assert await run.result(timeout=60) == n % 3 + 1
                    assert await client.run(f"in-sql-{round}").result(timeout=60) == 7
                    assert not _is_well(conn)
                    if time.monotonic() >= until_s:
                        break
                    early = []
            while not _is_well(conn):
                await asyncio.sleep(0.01)
        assert conn.execute("select count(*) from durable.runs where state <> 'completed'").fetchone() == (0,)

    with psycopg.connect(small, autocommit=True) as conn:
        asyncio.run(main(conn))


def test_a_queue_that_fills_between_look_and_commit(small: str) -> None:
    """The look at the queue is no lock: a turn whose commit fails with its hint is sent without one."""
    app = App(small)

    @app.step
    async def one(n: int) -> int:
        return n

    @app.workflow
    async def go(n: int) -> int:
        return await one(n)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            with full(small):
                runs = [await client.start(go, n) for n in range(3)]
                for n, run in enumerate(runs):
                    assert await run.result(timeout=60) == n

    with psycopg.connect(small, autocommit=True) as conn:
        look = conn.execute("select pg_get_functiondef('durable._has_room_for_hints'::regproc)").fetchone()
        conn.execute(
            "create or replace function durable._has_room_for_hints() returns boolean language sql volatile "
            "as $$ select coalesce(current_setting('application_name') = 'pyengine turn', false) $$"
        )
        try:
            asyncio.run(main())
        finally:
            assert look is not None
            conn.execute(look[0])
