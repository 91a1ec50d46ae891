"""Starts that do not wait for the disk: who may begin meanwhile, with what, and who is told when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker, ctx
from pyengine.errors import Unavailable
from pyengine.listen import _APART_S
from tests.support.resting import apart, resting, until

Connection = psycopg.Connection[tuple[object, ...]]
pytestmark = pytest.mark.session("notes")

LOCK = 4711
WAITING = (
    f"(select count(*) from pg_locks where objid = {LOCK} and locktype = 'advisory' and not granted "
    "and database = (select oid from pg_database where datname = current_database()))"
)


def replace(conn: Connection, function: str, body: str) -> None:
    """Have a function of the engine do something else."""
    conn.execute(f"create or replace function {function} language plpgsql as $$ begin {body} end $$".encode())


ON_DISK = "durable.on_disk_v1() returns void"
HELD_ON_DISK = (
    "durable.worker_on_disk_v1(p_worker text, p_execution bigint, p_version integer, p_id text) "
    "returns boolean"
)


@pytest.fixture
def slow_disk(dsn: str, conn: Connection) -> Iterator[psycopg.Connection[Any]]:
    """A session without which nothing gets to the disk until it gives its lock back."""
    replace(conn, ON_DISK, f"perform pg_advisory_xact_lock_shared({LOCK});")
    with psycopg.connect(dsn, autocommit=True) as session:
        yield session


@pytest.fixture(autouse=True)
def waits_for_the_disk(dsn: str, conn: Connection) -> None:
    """Commits of sessions that are made from now on: no start need be hasty where none waits."""
    (name,) = conn.execute("select current_database()").fetchone() or ()
    conn.execute(f'alter database "{name}" set synchronous_commit = on'.encode())


@pytest.fixture
def touched() -> list[str]:
    """What has had an effect."""
    return []


@pytest.fixture
def app(dsn: str, touched: list[str]) -> App:
    """Workflows that begin in each way."""
    app = App(dsn)

    @app.step
    async def step() -> str:
        touched.append("step")
        return "step"

    @app.step
    def in_thread() -> str:
        touched.append("in_thread")
        return "in_thread"

    @app.workflow
    async def plain(kind: str) -> str:
        return kind

    @app.workflow
    async def outside(kind: str) -> str:
        touched.append("begun")
        if kind == "transaction":
            async with ctx.transaction() as tx:
                touched.append(kind)
                return str(await tx.fetchval("select 'transaction'"))
        if kind == "step":
            return await step()
        return await in_thread()

    @app.workflow
    async def child_first(kind: str) -> str:
        child = ctx.start(plain, kind)
        return await step() + await child + await step()

    return app


@asynccontextmanager
async def hasty(app: App, dsn: str, conn: Connection, workflow: str) -> AsyncIterator[tuple[Worker, Client]]:
    """A worker that believes that this workflow ends without a step, and a client apart from it."""
    async with apart(app, dsn) as (worker, client):
        assert await (await client.start("plain", "first")).result(timeout=20) == "first"
        worker._rest._hasty.add(workflow)  # type: ignore[attr-defined]
        worker._rest.forgotten()
        rests = f"ends_at > durable._now_ms() and array_to_string(hasty, ' ') ~ '{workflow}'"
        await until(conn, f"exists (select from durable._resting where {rests})")
        await asyncio.sleep(_APART_S)
        yield worker, client


def test_what_ends_without_a_step_is_learnt(dsn: str, conn: Connection, app: App) -> None:
    """From runs that ended so; who has asked for a step is not believed any more, whatever follows."""

    async def main() -> None:
        async with apart(app, dsn) as (_, client):
            for workflow, kind in (("plain", "a"), ("outside", "step"), ("child_first", "b"), ("plain", "c")):
                await (await client.start(workflow, kind)).result(timeout=20)
                await resting(conn)
                await until(conn, "(select hasty = '{5:plain1}' from durable._resting)")

    asyncio.run(main())


def test_it_begins_and_ends_before_anybody_is_told(
    dsn: str, conn: Connection, app: App, slow_disk: psycopg.Connection[Any]
) -> None:
    """Its end is recorded behind its start in the same log; whoever started it hears when that is safe."""

    async def main() -> None:
        async with hasty(app, dsn, conn, "plain") as (_, client):
            slow_disk.execute("select pg_advisory_lock(%s)", (LOCK,))
            starting = asyncio.create_task(client.start("plain", "r"))
            await until(conn, "(select count(*) from durable.runs where state = 'completed') = 2")
            await asyncio.sleep(0.05)
            assert not starting.done()
            slow_disk.close()
            run = await starting
            assert run.created
            assert await run.result(timeout=20) == "r"

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["step", "in_thread", "transaction"])
def test_nothing_with_an_effect_begins_before_its_start_is_on_disk(
    dsn: str, conn: Connection, app: App, slow_disk: psycopg.Connection[Any], touched: list[str], kind: str
) -> None:
    """The code has none, so it has begun; what it asks for waits, and the workflow is remembered."""

    async def main() -> None:
        async with hasty(app, dsn, conn, "outside") as (worker, client):
            slow_disk.execute("select pg_advisory_lock(%s)", (LOCK,))
            starting = asyncio.create_task(client.start("outside", kind))
            await until(conn, f"{WAITING} = 2")
            await asyncio.sleep(0.05)
            assert touched == ["begun"] and not starting.done()
            slow_disk.close()
            assert await (await starting).result(timeout=20) == kind
            assert touched[:2] == ["begun", kind]
            assert worker._rest._hasty == {"plain"}
            await resting(conn)
            await until(conn, "exists (select from durable._resting where hasty = '{5:plain1}')")

    asyncio.run(main())


def test_a_step_behind_a_child_waits_for_the_turn_alone(
    dsn: str, conn: Connection, app: App, slow_disk: psycopg.Connection[Any], touched: list[str]
) -> None:
    """The commit that records the child is behind the start: nobody has to be asked."""

    async def main() -> None:
        async with hasty(app, dsn, conn, "child_first") as (_, client):
            slow_disk.execute("select pg_advisory_lock(%s)", (LOCK,))
            starting = asyncio.create_task(client.start("child_first", "c"))
            await until(conn, "(select count(*) from durable.runs where state = 'completed') = 3")
            assert touched == ["step", "step"] and not starting.done()
            slow_disk.close()
            assert await (await starting).result(timeout=20) == "stepcstep"

    asyncio.run(main())


@pytest.mark.parametrize("says", ["return false;", "raise 'no answer';"])
def test_what_may_have_been_lost_is_given_back(
    dsn: str, conn: Connection, app: App, touched: list[str], says: str
) -> None:
    """And claimed, as it is there after all: its step runs once."""

    async def main() -> None:
        async with hasty(app, dsn, conn, "outside") as (_, client):
            replace(conn, HELD_ON_DISK, says)
            run = await client.start("outside", "step")
            assert await run.result(timeout=20) == "step"
            assert touched == ["begun", "begun", "step"]

    asyncio.run(main())


@pytest.mark.parametrize("fails", ["perform pg_terminate_backend(pg_backend_pid());", "raise 'no answer';"])
def test_a_start_that_is_not_known_to_be_on_disk_is_sent_again(
    dsn: str, conn: Connection, app: App, fails: str
) -> None:
    """It is the same run, and again the disk is waited for."""
    conn.execute("create sequence public.asked")
    replace(conn, ON_DISK, f"if nextval('public.asked') = 1 then {fails} end if;")

    async def main() -> None:
        async with hasty(app, dsn, conn, "plain") as (_, client):
            run = await client.start("plain", "again")
            assert await run.result(timeout=20) == "again"
            assert conn.execute("select last_value from public.asked").fetchone() == (2,)
            assert conn.execute("select count(*) from durable.runs").fetchone() == (2,)

    asyncio.run(main())


def test_nobody_is_told_of_a_start_that_is_not_known_to_be_on_disk(
    dsn: str, conn: Connection, app: App
) -> None:
    """What became of it is unknown, which is another thing than that it was refused."""
    replace(conn, ON_DISK, "raise 'no answer';")

    async def main() -> None:
        async with hasty(app, dsn, conn, "plain") as (_, client):
            with pytest.raises(Unavailable, match="does not tell whether"):
                await client.start("plain", "untold")

    asyncio.run(main())


def test_behind_a_pooler_every_start_waits_for_the_disk(
    dsn: str, conn: Connection, app: App, slow_disk: psycopg.Connection[Any]
) -> None:
    """The second statement could be another session's, of a server that has been restarted between them."""

    async def main() -> None:
        async with hasty(app, dsn, conn, "plain") as (_, client):
            client._asker._database.pooled = True  # type: ignore[attr-defined]
            slow_disk.execute("select pg_advisory_lock(%s)", (LOCK,))
            run = await client.start("plain", "r")
            assert await run.result(timeout=20) == "r"
            slow_disk.close()

    asyncio.run(main())
