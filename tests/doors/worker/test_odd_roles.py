"""Law: what a role or a database sets for its sessions changes nothing of what workers and clients do, with a
pooler before the database and without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.core.database.statements.sessions import IS_ODD
from pyengine.errors import Unavailable
from pyengine.sync import Client as BlockingClient
from tests.support.cluster import Cluster
from tests.support.odd import ODD as SETTINGS
from tests.support.odd import put_on, singly
from tests.support.pooler import NoPooler, Pooler

Connection = psycopg.Connection[tuple[Any, ...]]
SCENE = """
create schema lab;
create table lab.account (name text primary key, amount integer);
insert into lab.account values ('ann', 1), ('bob', 1);
create function lab.slow(n integer) returns text language plpgsql as $$
begin
  perform pg_sleep(0.15);
  return (select name from lab.account where name = 'bob' for update) || n;
end $$;
create function lab.square(n integer) returns integer language sql as 'select n * n';
select durable.serve('lab.square(integer)');
"""


@pytest.fixture
def fresh(cluster: Cluster, direct: str) -> Iterator[str]:
    """The test's own database through a pooler of its own, for one remembers what sessions began with."""
    try:
        made = Pooler(cluster.server, cluster.folder / "data")
    except NoPooler as reason:
        pytest.skip(f"PgBouncer: {reason}")
    with made:
        yield made.dsn(psycopg.conninfo.conninfo_to_dict(direct)["dbname"])


@pytest.fixture
def odd(request: pytest.FixtureRequest, direct: str) -> Iterator[str]:
    """The test's own database with odd settings; its URL, through a pooler or not."""
    with psycopg.connect(direct, autocommit=True) as conn:
        conn.execute(SCENE)
        name = conn.info.dbname
    way, settings = request.param
    url = request.getfixturevalue(way)
    put_on(direct, settings)
    yield url
    with psycopg.connect(direct, autocommit=True) as conn:
        conn.execute("set default_transaction_read_only = off; set statement_timeout = 0")
        conn.execute(f'alter database "{name}" reset all'.encode())


def begin_anew(direct: str) -> None:
    """Break off the sessions that a pooler has, which began before."""
    with psycopg.connect(direct, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and datname = current_database()"
        )


def each(way: str) -> list[Any]:
    """All odd settings together, and with --full each by itself, on one way to the database."""
    return [
        pytest.param((way, one.values[0]), id=f"{way}-{one.id}", marks=one.marks) for one in singly(SETTINGS)
    ]


@pytest.mark.parametrize("odd", [*each("dsn"), *each("fresh")], indirect=True)
@pytest.mark.session("the ways are its parameters")
def test_a_worker_does_all_that_it_does(odd: str, direct: str) -> None:
    """Steps, children, timers, signals, transactions, functions and services, started and ended by clients
    of both kinds, while somebody holds a row for longer than the role would wait."""
    app = App(odd)

    @app.step
    async def step(words: str) -> str:
        return words.upper()

    @app.workflow
    async def child(n: int) -> int:
        return n * n

    @app.workflow
    async def parent() -> list[Any]:
        said = await step("a\\b 'c'")
        squares = await asyncio.gather(*(child(n) for n in range(5)))
        await ctx.sleep(0.01)
        async with ctx.transaction() as tx:
            left = await tx.fetchval(
                "update lab.account set amount = amount + 1 where name = $1 returning amount", "ann"
            )
            await tx.fetchval("select pg_sleep(0.15)")
        slow = await ctx.sql("lab.slow", 7)
        served = await ctx.start("sql://lab.square", n=12)
        return [said, squares, left, slow, served, await ctx.receive("more", type=int)]

    async def hold(conn: Connection) -> None:
        """Hold both rows for a moment, again and again."""
        while True:
            with conn.transaction():
                await asyncio.to_thread(conn.execute, "select from lab.account for update")
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.02)

    async def main(conn: Connection) -> Any:
        async with app.worker(), app.client() as client:
            holding = asyncio.create_task(hold(conn))
            run = await client.start(parent, id="r")
            await client.run("r").signal("more", 32)
            result = await run.result(timeout=60)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            return result

    with psycopg.connect(direct, autocommit=True, options=PLAIN) as conn:
        result = asyncio.run(main(conn))
    assert result == ["A\\B 'C'", [0, 1, 4, 9, 16], 2, "bob7", 144, 32]
    with BlockingClient(odd) as client:
        assert client.run("r").result() == result
        assert client.start("parent", id="r2").cancel("no") == "cancelled"
        assert [one.id for one in client.list(workflow="parent")] == ["r2", "r"]
    with psycopg.connect(direct, autocommit=True, options=PLAIN) as conn:
        assert conn.execute("select * from durable.check()").fetchall() == []


PLAIN = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "default_transaction_isolation": "read\\ committed",
        "default_transaction_read_only": "off",
        "lock_timeout": "0",
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "search_path": "public",
    }.items()
)


@pytest.mark.session("the ways are its parameters")
def test_only_odd_sessions_of_a_pooler_cost_more(dsn: str, fresh: str, direct: str) -> None:
    """Behind a pooler a statement is a transaction by itself, unless the role would end it otherwise."""

    async def statements() -> bool:
        database = Database(fresh)
        await database.open()
        link = ReconnectingConnection(database, "side")
        await link.run(IS_ODD)
        return await link.use(
            lambda conn: conn.fetchval(
                "select current_setting('idle_in_transaction_session_timeout') = '1min'"
            )
        )

    assert not asyncio.run(statements())
    put_on(direct, {"default_transaction_isolation": "serializable"})
    begin_anew(direct)
    for _ in range(100):
        try:
            assert asyncio.run(statements())
            return
        except Unavailable:  # what it says once of each session that was broken off
            continue
    raise AssertionError("the pooler does not begin anew")
