"""Verbs with `conn=`: in the caller's own transaction, over every driver that is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from pyengine import Client, RunFilter, Steered
from pyengine.core.client.caller_connection import check_values
from pyengine.core.database.statements.procedures import CANCEL, RESULTS, START, Procedure
from pyengine.errors import (
    Conflict,
    EngineError,
    InvalidRequest,
    NotFound,
    RunConflict,
    SchemaMismatch,
    Unavailable,
)
from pyengine.sync import Client as SyncClient
from tests.support.callers import ASYNC, BLOCKING, Awaited, Caller, open_caller

Connection = psycopg.Connection[tuple[Any, ...]]
Play = Callable[[Any, Caller], Awaitable[None]]

KINDS = [*ASYNC, *BLOCKING]
PEER = "poll://any@peers"


class Undone(Exception):
    """Takes a savepoint back."""


def play(kind: str, dsn: str, main: Play) -> None:
    """Run a test with a client and a caller's connection of one kind."""

    async def go() -> None:
        async with open_caller(kind, dsn) as (client, caller):
            await main(client, caller)

    asyncio.run(go())


def contents(conn: Connection) -> dict[str, str]:
    """All rows of all tables of the engine, as one digest a table."""
    tables = conn.execute(
        "select oid::regclass::text from pg_class "
        "where relnamespace = 'durable'::regnamespace and relkind = 'r'"
    ).fetchall()
    return {
        name: conn.execute(
            f"select md5(coalesce(string_agg(t::text, ' ' order by t::text), '')) from {name} t"
        ).fetchall()[0][0]
        for (name,) in tables
    }


def states(conn: Connection) -> dict[str, str]:
    """Runs and other promises with their states."""
    runs = conn.execute("select id, state from durable.runs").fetchall()
    promises = conn.execute("select id, state from durable._promises where head is null").fetchall()
    return dict(promises + runs)


def furnish(conn: Connection) -> None:
    """Runs and promises on which every verb has something to do."""
    for id in ("run", "doomed", "busy", "paused", "dead"):
        conn.execute("select durable.start('price', '[1]', id => %s)", (id,))
    conn.execute("select durable.pause('paused')")
    conn.execute(
        "select durable._halt_runs(array['dead'], array['{\"type\": \"Crashed\"}'], durable._now_ms())"
    )
    for id in ("many-1", "many-2"):
        conn.execute("select durable.start('price', '[1]', id => %s, tags => '{\"lot\": \"many\"}')", (id,))
    for id in ("yes", "no", "never", "slow", "late"):
        conn.execute("select durable.promise_create(%s, 9007199254740991)", (id,))
    conn.execute(
        "select durable.promise_create('root', 9007199254740991, p_tags => %s)",
        ('{"resonate:target": "poll://any@peers"}',),
    )


async def do_everything(client: Any, conn: Any) -> None:
    """Every verb that changes something, on one connection."""
    assert (await client.start("price", 1, id="new", conn=conn)).created
    assert (await client.begin("price", (), {"n": 2}, key="k", delay="1h", conn=conn)).created
    assert await client.signal("run", "ping", {"n": 1}, conn=conn) == 1
    assert await client.cancel("doomed", "too late", grace="1s", conn=conn) == "cancelled"
    await client.pause("busy", conn=conn)
    await client.resume("paused", conn=conn)
    assert await client.redrive("dead", conn=conn) == 1
    assert (await client.fork("run", id="copy", conn=conn)).id == "copy"
    assert (await client.start("price", 1, id="moved", delay="1h", conn=conn)).created
    assert (await client.reschedule("moved", delay=0, conn=conn)).tzinfo is not None
    (forked,) = await client.fork_many(["doomed"], key="again", conn=conn)
    assert (forked.outcome, forked.problem) == ("done", None)
    assert await client.redrive_many(["dead"], conn=conn) == [
        Steered(id="dead", outcome="already", state="queued")
    ]
    assert await client.cancel(forked.fork, conn=conn) == "cancelled"
    assert [await client.delete(forked.fork, conn=conn) for _ in range(2)] == [True, False]
    await do_everything_to_many(client, conn)
    promises = client.promises
    assert (await promises.create("made", {"a": 1}, tags={"t": "x"}, conn=conn)).state == "PENDING"
    assert (await promises.resolve("yes", [1], headers={"h": "x"}, conn=conn)).value == [1]
    assert (await promises.reject("no", "bad", conn=conn)).state == "REJECTED"
    assert (await promises.cancel("never", conn=conn)).state == "REJECTED_CANCELED"
    await promises.callback("cb", "slow", "root", PEER, timeout="1h", conn=conn)
    assert (await promises.subscribe("slow", PEER, conn=conn)).state == "PENDING"


async def do_everything_to_many(client: Any, conn: Any) -> None:
    """Every verb for many; a run that is named twice is steered once."""
    many = RunFilter(workflow="price", state="paused", tags={"lot": "many"})
    assert [each.outcome for each in await client.pause_many(["many-1", "none"], conn=conn)] == [
        "done",
        "not_found",
    ]
    found = await client.signal_many(["many-1", "many-2", "many-1"], "ping", {"n": 1}, conn=conn)
    assert found == [Steered(id=f"many-{n}", outcome="done", delivery=1) for n in (1, 2)]
    assert await client.resume_many(many, conn=conn) == [Steered(id="many-1", outcome="done", state="queued")]
    assert [each.state for each in await client.cancel_many(["many-2"], "why", conn=conn)] == ["cancelled"]
    assert [each.state for each in await client.settle_many({"late": 1}, conn=conn)] == ["resolved"]


DONE = {
    "many-1": "queued",
    "many-2": "cancelled",
    "late": "resolved",
    "new": "queued",
    "run": "queued",
    "doomed": "cancelled",
    "busy": "paused",
    "paused": "queued",
    "dead": "queued",
    "copy": "queued",
    "moved": "queued",
    "made": "pending",
    "yes": "resolved",
    "no": "rejected",
    "never": "rejected_canceled",
    "slow": "pending",
    "root": "pending",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_leaves_nothing_and_a_commit_everything(kind: str, dsn: str, conn: Connection) -> None:
    """After a rollback every table of the engine is as it was; after a commit every verb has worked."""
    furnish(conn)
    before = contents(conn)

    async def main(client: Any, caller: Caller) -> None:
        await caller.begin()
        await do_everything(client, caller.conn)
        assert contents(conn) == before
        await caller.rollback()
        assert contents(conn) == before
        await caller.begin()
        await do_everything(client, caller.conn)
        await caller.commit()

    play(kind, dsn, main)
    found = states(conn)
    hashed = [id for id in found if id not in DONE]
    assert [found.pop(id) for id in hashed] == ["scheduled"]
    assert found == DONE


@pytest.mark.parametrize("kind", KINDS)
def test_a_savepoint_is_undone_alone(kind: str, dsn: str, conn: Connection) -> None:
    """What was done after a savepoint that is rolled back is gone, what came before it and after it stays."""

    async def main(client: Any, caller: Caller) -> None:
        await caller.begin()
        await client.start("price", 1, id="before", conn=caller.conn)
        with suppress(Undone):
            async with caller.savepoint():
                await client.start("price", 1, id="inside", conn=caller.conn)
                await client.signal("before", "ping", conn=caller.conn)
                raise Undone
        await client.start("price", 1, id="after", conn=caller.conn)
        await caller.commit()

    play(kind, dsn, main)
    assert states(conn) == {"before": "queued", "after": "queued"}
    assert conn.execute("select count(*) from durable._signals").fetchone() == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_a_savepoint_leaves_the_rest(kind: str, dsn: str, conn: Connection) -> None:
    """A refusal of the database ends the transaction, but not what stands before a savepoint; who goes on
    without one hears that it has ended.
    """

    async def main(client: Any, caller: Caller) -> None:
        await caller.begin()
        await client.start("price", 1, id="a", conn=caller.conn)
        with pytest.raises(NotFound, match="'nobody'"):
            async with caller.savepoint():
                await client.signal("nobody", "ping", conn=caller.conn)
        with pytest.raises(RunConflict):
            async with caller.savepoint():
                await client.start("price", 2, id="a", conn=caller.conn)
        await client.start("price", 1, id="b", conn=caller.conn)
        await caller.commit()
        await caller.begin()
        with pytest.raises(Conflict):
            await client.resume("a", conn=caller.conn)
        with pytest.raises(EngineError, match="25P02") as caught:
            await client.start("price", 1, id="c", conn=caller.conn)
        assert "roll back first" in (caught.value.hint or "")
        await caller.rollback()

    play(kind, dsn, main)
    assert states(conn) == {"a": "queued", "b": "queued"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_value_does_not_end_the_transaction(kind: str, dsn: str, conn: Connection) -> None:
    """What can be no id, number or payload is refused before it is sent: the caller's transaction goes on."""

    async def main(client: Any, caller: Caller) -> None:
        await caller.begin()
        for wrong in (
            client.start("price", 1, id=5, conn=caller.conn),
            client.start("price", 1, id="a\0b", conn=caller.conn),
            client.start("price", 1, key="\ud800", conn=caller.conn),
            client.start("price", 1, priority=1 << 31, conn=caller.conn),
            client.start("price", 1, priority=True, conn=caller.conn),
            client.cancel("a", force="yes", conn=caller.conn),
        ):
            with pytest.raises(InvalidRequest, match="does not take"):
                await wrong
        await client.start("price", 1, id="a", conn=caller.conn)
        await caller.commit()

    play(kind, dsn, main)
    assert states(conn) == {"a": "queued"}


@pytest.mark.parametrize(
    "kind", ["asyncpg", "AsyncSession asyncpg", "AsyncSession psycopg", "psycopg", "Session"]
)
@pytest.mark.session("a hint is heard in a session of one's own")
def test_a_hint_comes_with_the_commit(kind: str, dsn: str, conn: Connection) -> None:
    """Nobody is told of a start before it can be seen, nor of one that was undone: hints and marks of another
    session arrive in the order of the commits.
    """
    conn.execute("listen durable_ready")

    async def main(client: Any, caller: Caller) -> None:
        with psycopg.connect(dsn, autocommit=True) as marks:
            await caller.begin()
            await client.start("price", 1, id="undone", conn=caller.conn)
            marks.execute("notify durable_ready, 'one is undone'")
            await caller.rollback()
            await caller.begin()
            await client.start("price", 1, id="kept", conn=caller.conn)
            marks.execute("notify durable_ready, 'one is started'")
            await caller.commit()

    play(kind, dsn, main)
    heard = [one.payload for one in conn.notifies(timeout=30, stop_after=3)]
    assert heard == ["one is undone", "one is started", ""]


def test_without_a_transaction_it_is_one_of_its_own(dsn: str, conn: Connection) -> None:
    """On a connection in autocommit mode, or of asyncpg outside a transaction, a verb is done when it
    returns; a psycopg connection that is not in that mode begins a transaction, as with any statement.
    """

    async def main() -> None:
        async with Client(dsn) as client:
            bare = await asyncpg.connect(dsn)
            await client.start("price", 1, id="asyncpg", conn=bare)
            await bare.close()
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as automatic:
                await client.start("price", 1, id="psycopg", conn=automatic)
                assert automatic.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            for driver in ("asyncpg", "psycopg"):
                url = make_url(dsn).set(drivername=f"postgresql+{driver}")
                engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
                async with AsyncSession(engine) as session:
                    await client.start("price", 1, id=f"sqlalchemy {driver}", conn=session)
                await engine.dispose()
            async with await psycopg.AsyncConnection.connect(dsn) as plain:
                await client.start("price", 1, id="begun", conn=plain)
                assert plain.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
                await plain.rollback()

    asyncio.run(main())
    assert sorted(states(conn)) == ["asyncpg", "psycopg", "sqlalchemy asyncpg", "sqlalchemy psycopg"]


def test_above_read_committed_verbs_that_lock_are_refused(dsn: str, conn: Connection) -> None:
    """In a transaction that reads one snapshot, what would have to wait is refused at once, with the level to
    use; nothing waits and nothing goes round.
    """
    furnish(conn)

    async def main() -> None:
        async with Client(dsn) as client:
            own = await asyncpg.connect(dsn, command_timeout=20)
            for isolation in ("repeatable_read", "serializable"):
                for verb in (
                    lambda: client.start("price", 1, id="new", conn=own),
                    lambda: client.start("price", 1, key="k", conn=own),
                    lambda: client.signal("run", "ping", conn=own),
                    lambda: client.cancel("run", conn=own),
                    lambda: client.pause("run", conn=own),
                    lambda: client.resume("paused", conn=own),
                    lambda: client.redrive(conn=own),
                    lambda: client.promises.resolve("yes", conn=own),
                ):
                    with pytest.raises(Conflict) as caught:
                        async with own.transaction(isolation=isolation):
                            await verb()
                    assert "READ COMMITTED" in (caught.value.hint or "")
            await own.close()

    asyncio.run(main())


def test_settings_of_the_caller_are_unchanged_and_harmless(dsn: str, conn: Connection) -> None:
    """Codecs, row factories and settings of a connection are the caller's: they are as before, and whatever
    they do to rows and JSON, the verbs work.
    """
    furnish(conn)
    # those of plpgsql are there once it was used
    settings = "select name, setting from pg_settings where name not like 'plpgsql.%' order by name"

    async def main() -> None:
        async with Client(dsn) as client:
            own = await asyncpg.connect(dsn)
            for kind in ("json", "jsonb"):
                await own.set_type_codec(
                    kind, schema="pg_catalog", encoder=lambda value: f"[{value}]", decoder=len
                )
            before = await own.fetch(settings)
            async with own.transaction():
                await do_everything(client, own)
                assert await own.fetch(settings) == before
                assert await own.fetchval("select '[1, 2]'::jsonb") == 6
                raise Undone

    with suppress(Undone):
        asyncio.run(main())
    with SyncClient(dsn) as client, psycopg.connect(dsn, row_factory=psycopg.rows.scalar_row) as own:
        psycopg.types.json.set_json_loads(lambda text: len(text), own)
        psycopg.types.json.set_json_dumps(lambda value: f"[{value}]", own)
        before = own.execute(settings).fetchall()
        run = client.start("price", 1, id="one", conn=own)
        run.signal("ping", {"n": 1}, conn=own)
        assert client.promises.resolve("yes", {"n": 1}, conn=own).value == {"n": 1}
        assert own.row_factory is psycopg.rows.scalar_row
        assert own.execute(settings).fetchall() == before
        assert own.execute("select '[1, 2]'::jsonb").fetchone() == 6


def test_sessions_that_are_awaited_are_taken_where_they_block(dsn: str, conn: Connection) -> None:
    """Inside `run_sync` of an AsyncSession its session is one that blocks, over asyncpg too."""

    async def main() -> None:
        for driver in ("asyncpg", "psycopg"):
            engine = create_async_engine(make_url(dsn).set(drivername=f"postgresql+{driver}"))
            with SyncClient(dsn) as client:
                async with AsyncSession(engine) as session:
                    await session.run_sync(
                        lambda inner, id: client.start("price", 1, id=id, conn=inner), driver
                    )
                    await session.commit()
                async with AsyncSession(engine) as session:
                    await session.run_sync(lambda inner: client.start("price", 1, id="lost", conn=inner))
            await engine.dispose()

    asyncio.run(main())
    assert sorted(states(conn)) == ["asyncpg", "psycopg"]


def refused(conn: Any, *, blocking: bool) -> InvalidRequest:
    """What a verb says to a connection; the database is not asked."""
    nowhere = "postgresql://127.0.0.1:1/shop"

    async def main() -> None:
        client = Awaited(SyncClient(nowhere)) if blocking else Client(nowhere)
        await client.signal("run", "ping", conn=conn)

    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(main())
    return caught.value


def test_connections_of_the_other_kind_are_refused(dsn: str) -> None:
    """A verb that awaits takes no connection that blocks, and the other way round: the hint names the client
    that does.
    """

    async def main(kind: str) -> None:
        async with (ASYNC | BLOCKING)[kind](dsn) as caller:
            error = await asyncio.to_thread(refused, caller.conn, blocking=kind in ASYNC)
            assert ("pyengine.Client" if kind in ASYNC else "pyengine.sync") in (error.hint or "")

    for kind in KINDS:
        asyncio.run(main(kind))


@pytest.mark.parametrize("blocking", [True, False])
def test_anything_but_a_connection_is_refused(blocking: bool, dsn: str) -> None:
    """psycopg2, engines, cursors and other things are refused by name, with what to use instead."""
    with psycopg2.connect(dsn) as old:
        error = refused(old, blocking=blocking)
        assert "psycopg2" in error.message and "version 3" in (error.hint or "")
    old.close()
    engine = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"))
    with psycopg.connect(dsn) as own:
        for thing in (object(), engine, own.cursor(), dsn):
            error = refused(thing, blocking=blocking)
            assert type(thing).__qualname__ in error.message
            assert "durable.signal in SQL" in (error.hint or "")


def test_sqlalchemy_over_another_driver_is_refused(dsn: str) -> None:
    """A session over psycopg2 or another database is refused, with the URL to make the engine with."""
    for url in (make_url(dsn).set(drivername="postgresql+psycopg2"), make_url("sqlite://")):
        with create_engine(url).connect() as own:
            error = refused(own, blocking=True)
            assert url.drivername.replace("sqlite", "sqlite+pysqlite") in error.message
            assert "postgresql+psycopg://" in (error.hint or "")


def test_a_connection_that_is_gone_is_unavailable(dsn: str) -> None:
    """Closed or broken off, a caller's connection is Unavailable; in use by somebody else it is a mistake."""

    async def main() -> None:
        async with Client(dsn) as client:
            own = await asyncpg.connect(dsn)
            busy = asyncio.create_task(own.execute("select pg_sleep(0.2)"))
            await asyncio.sleep(0)
            with pytest.raises(InvalidRequest, match="another operation"):
                await client.pause("a", conn=own)
            await busy
            await own.close()
            with pytest.raises(Unavailable, match="your connection"):
                await client.pause("a", conn=own)
            theirs = await psycopg.AsyncConnection.connect(dsn)
            await theirs.close()
            with pytest.raises(Unavailable, match="your connection"):
                await client.pause("a", conn=theirs)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_without_the_schema(kind: str, empty_database: Callable[[], str], dsn: str) -> None:
    """A connection to a database that has no schema of ours is a SchemaMismatch that says how to make it."""
    strange = empty_database()

    async def main() -> None:
        async with (ASYNC | BLOCKING)[kind](strange) as caller:
            client = Client(dsn) if kind in ASYNC else Awaited(SyncClient(dsn))
            with pytest.raises(SchemaMismatch) as caught:
                await client.start("price", 1, conn=caller.conn)
            assert "pyengine db init" in (caught.value.hint or "")

    asyncio.run(main())


def clients_procedures() -> list[Procedure]:
    """All that clients ask."""
    from pyengine.core.client import client, psycopg_transport, transport
    from pyengine.core.client import run as steering
    from pyengine.features.promises import client as promises

    homes = (psycopg_transport, transport, client, promises, steering)
    return [value for home in homes for value in vars(home).values() if isinstance(value, Procedure)]


def test_procedures_declare_the_types_of_the_server(dsn: str) -> None:
    """What a client asks declares its types, and they are those by which the server reads its parameters."""

    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        for procedure in clients_procedures():
            # several statements take no parameters
            if not procedure.sql.startswith("listen") and ";" not in procedure.sql:
                told = (await conn.prepare(procedure.sql)).get_parameters()
                names = [
                    {"int4": "integer", "int8": "bigint", "bool": "boolean"}.get(one.name, one.name)
                    for one in told
                ]
                assert [*procedure.takes] == names, procedure.verb
        await conn.close()

    asyncio.run(main())
    assert len(clients_procedures()) >= 20


@pytest.mark.parametrize(
    ("procedure", "values", "words"),
    [
        (RESULTS, (["a", 5],), "its ids: a text is expected, not int"),
        (CANCEL, ("a", None, 1.5, False), "its grace_ms: a whole number is expected, not float"),
        (CANCEL, ("a", None, 1 << 63, False), "its grace_ms: it is out of range for bigint"),
        (CANCEL, ("a", None, None, 1), "its force: a bool is expected"),
        (START, ("w" * 100, 7, *[None] * 10), "does not take 7 as its args: a text is expected"),
    ],
)
def test_values_are_checked_by_type(procedure: Procedure, values: tuple[Any, ...], words: str) -> None:
    """A value of another type than the parameter's is refused with its name and what is expected."""
    with pytest.raises(InvalidRequest, match=words):
        check_values(procedure, values)
