"""Law: what a workflow writes in `ctx.transaction()` and its journal row are committed together, once, or
neither is; a replay finds what the statements answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest

from pyengine import App, Client, Conflict, InvalidRequest, NotFound, RunFailed, Signal, Worker, ctx
from pyengine.core.database.connection import Database
from pyengine.errors import EncodeError, NotAwaitable
from pyengine.features.checks.replay_check import replay_check

app = App()
seen: list[Any] = []
go = Signal[str]("go")


@pytest.fixture
def accounts(dsn: str) -> psycopg.Connection[Any]:
    """A table of the user's own."""
    seen.clear()
    conn = psycopg.connect(dsn, autocommit=True)
    conn.execute("create table account (name text primary key, amount integer not null check (amount >= 0))")
    conn.execute("create table entry (id integer generated always as identity, account text, amount integer)")
    conn.execute("insert into account values ('ann', 100), ('bob', 0)")
    return conn


@app.step
async def note(text: str) -> str:
    """A step beside."""
    return text


async def play(
    dsn: str,
    workflow: Any,
    *args: Any,
    id: str = "t",
    between: Callable[[Client], Awaitable[None]] | None = None,
) -> Any:
    """Run a workflow to its end; in the middle, if asked, while it waits for the signal, the worker is
    replaced by another one, so that the rest is a replay."""
    async with Client(dsn, registry=app.registry) as client:
        async with Worker(app.registry, dsn):
            run = await client.start(workflow, *args, id=id)
            if between is None:
                return await run.result(timeout=30)
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.01)
        await between(client)
        async with Worker(app.registry, dsn):
            return await run.result(timeout=30)


async def wake(client: Client) -> None:
    """Let the run go on."""
    await client.run("t").signal(go, "on")


def clean(dsn: str) -> None:
    """Every journal replays with the code that made it."""
    report = asyncio.run(replay_check(Database(dsn), app.registry, finished=True))
    assert report.count("diverged") == report.count("unknown") == 0, report.breaks()


@app.workflow
async def transfer(amount: int) -> list[Any]:
    """Moves money, waits, and tells what it saw."""
    before = await note("before")
    async with ctx.transaction("transfer") as tx:
        left = await tx.fetchval(
            "update account set amount = amount - $1 where name = 'ann' returning amount", amount
        )
        tag = await tx.execute("update account set amount = amount + $1 where name = 'bob'", amount)
        await tx.executemany(
            "insert into entry (account, amount) values ($1, $2)", [("ann", -amount), ("bob", amount)]
        )
        rows = await tx.fetch("select account, amount from entry order by id")
        none = await tx.fetchrow("select 1 where false")
    seen.append(left)  # durable: ok
    word = await ctx.receive(go)
    return [before, left, tag, [list(row) for row in rows], none, word, await note("after")]


def test_rows_and_journal_are_of_one_commit(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """The user's rows and the journal row have one transaction id, and a replay on another worker answers the
    same without writing again."""
    answer = asyncio.run(play(dsn, transfer, 30, between=wake))
    assert answer == ["before", 70, "UPDATE 1", [["ann", -30], ["bob", 30]], None, "on", "after"]
    assert accounts.execute("select name, amount from account order by name").fetchall() == [
        ("ann", 70),
        ("bob", 30),
    ]
    ids = accounts.execute(
        "select xmin from entry union select xmin from account union "
        "select xmin from durable._journal where name = 'transfer'"
    ).fetchall()
    assert len(ids) == 1
    assert seen == [70, 70]
    clean(dsn)


@app.workflow
async def overdraw() -> list[Any]:
    """Fails inside, and goes on."""
    told: list[Any] = []
    try:
        async with ctx.transaction() as tx:
            await tx.execute("insert into entry (account, amount) values ('ann', -500)")
            await tx.execute("update account set amount = amount - 500 where name = 'ann'")
    except asyncpg.CheckViolationError as error:
        told += [error.constraint_name, error.sqlstate]
    async with ctx.transaction() as tx:
        try:
            async with tx.savepoint():
                await tx.execute("insert into account values ('ann', 1)")
        except asyncpg.UniqueViolationError as error:
            told.append(error.table_name)
        told.append(await tx.fetchval("select count(*) from entry"))
    try:
        async with ctx.transaction() as tx:
            await tx.execute("delete from account")
            raise ValueError("no")
    except ValueError as error:
        told.append(str(error))
    told.append(await ctx.receive(go))
    return told


def test_an_error_rolls_back_and_is_found_again(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """What leaves the block undoes it; the database's error has its class and its fields, also in a replay;
    a savepoint keeps the rest."""
    answer = asyncio.run(play(dsn, overdraw, between=wake))
    assert answer == ["account_amount_check", "23514", "account", 0, "no", "on"]
    assert accounts.execute("select count(*) from entry").fetchone() == (0,)
    assert accounts.execute("select count(*) from account").fetchone() == (2,)
    clean(dsn)


@app.workflow
async def types() -> list[str]:
    """Values of many types, live and again."""
    async with ctx.transaction() as tx:
        row = await tx.fetchrow(
            "select 1::int8 as a, 1.50::numeric as b, 'x'::text as c, true as d, "
            "null as e, 'nan'::float8 as f,"
            "'2026-01-02 03:04:05.678901+00'::timestamptz as g, '2026-01-02'::date as h, '03:04'::time as i, "
            "'1 day 2 seconds'::interval as j, '\\xdeadbeef'::bytea as k, array[1.5, 2]::numeric[] as l, "
            "'00000000-0000-0000-0000-000000000001'::uuid as m, '{\"a\": 1}'::jsonb as n, "
            "int4range(1, 5) as o, '10.0.0.1'::inet as p, row(1, 'y'::text) as q, b'101' as r"
        )
        assert row is not None
    seen.append(dict(row))  # durable: ok
    await ctx.receive(go)
    return [type(one).__name__ for one in row]


def test_values_keep_their_types(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """What a statement returned is the same, type by type, when it runs and when it is replayed."""
    asyncio.run(play(dsn, types, between=wake))
    first, again = seen
    assert {name: repr(value) for name, value in first.items()} == {
        name: repr(value) for name, value in again.items()
    }
    assert [first[name] for name in "abcde"] == [1, Decimal("1.50"), "x", True, None]
    assert first["g"] == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert [first["h"], first["i"], first["j"]] == [
        date(2026, 1, 2),
        time(3, 4),
        timedelta(days=1, seconds=2),
    ]
    assert [first["k"], first["l"], first["m"]] == [
        b"\xde\xad\xbe\xef",
        [Decimal("1.5"), Decimal(2)],
        UUID(int=1),
    ]
    assert [first["n"], first["o"], tuple(first["q"])] == ['{"a": 1}', asyncpg.Range(1, 5), (1, "y")]


@app.workflow
async def child_run(word: str) -> str:
    """Started by a transaction."""
    return f"child {word}"


@app.workflow
async def effects(fail: bool, target: str, promise: str) -> Any:
    """Asks the engine for everything, and fails after it if it is to."""
    try:
        async with ctx.transaction() as tx:
            await tx.execute("insert into entry (account, amount) values ('effects', 1)")
            started = await tx.start(child_run, "one")
            await tx.start("child_run", "two", id="named")
            await tx.signal(target, go, "signalled")
            await tx.resolve(promise, {"paid": True})
            if fail:
                raise ValueError("no")
    except ValueError:
        return None
    return [started, await ctx.promise(str, id=started), await ctx.promise(str, id="named")]


@app.workflow
async def listener() -> str:
    """Waits for a signal."""
    return await ctx.receive(go)


async def everything(dsn: str, fail: bool) -> tuple[Any, Any]:
    """A run that starts, signals and settles in a transaction, and what became of the others."""
    async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
        await client.start(listener, id="target")
        await client.promises.create("invoice", timeout="1h")
        run = await client.start(effects, fail, "target", "invoice", id="t")
        answer = await run.result(timeout=30)
        others = (await client.run("target").get()).state, (await client.promises.get("invoice")).state
        if not fail:
            others = (
                await client.run("target").result(timeout=30),
                (await client.promises.get("invoice")).value,
            )
        return answer, others


def test_starts_signals_and_settlements_are_of_the_commit(
    dsn: str, accounts: psycopg.Connection[Any]
) -> None:
    """What the block asked of the engine happens with its commit."""
    answer, others = asyncio.run(everything(dsn, False))
    assert answer == ["t:0-0", "child one", "child two"]
    assert others == ("signalled", {"paid": True})
    clean(dsn)


def test_nothing_is_left_of_a_block_that_failed(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """No run, no signal, no settlement, no row."""
    answer, others = asyncio.run(everything(dsn, True))
    assert answer is None
    assert others in (("waiting", "PENDING"), ("running", "PENDING"), ("queued", "PENDING"))
    assert accounts.execute("select count(*) from entry").fetchone() == (0,)
    assert accounts.execute("select count(*) from durable.runs").fetchone() == (2,)
    accounts.execute("select durable.cancel('target', force => true)")


@app.workflow
async def wrong(what: str) -> str:
    """Does something that a transaction refuses, and tells what it was told."""
    try:
        async with ctx.transaction() as tx:
            await tx.execute("insert into entry (account, amount) values ('wrong', 1)")
            match what:
                case "step":
                    await note("inside")
                case "sleep":
                    await asyncio.sleep(1)
                case "receive":
                    await ctx.receive(go)
                case "nested":
                    async with ctx.transaction():
                        pass
                case "commit":
                    await tx.execute("/* so */ COMMIT")
                case "rollback":
                    await tx.execute("rollback")
                case "two":
                    await tx.execute("select 1; select 2")
                case "unknown run":
                    await tx.signal("nobody", go, "x")
                case "unknown promise":
                    await tx.resolve("nothing")
                case "settled":
                    await tx.resolve("settled", 2)
                case "point":
                    await tx.fetchval("select point(1, 2)")
                case "arguments":
                    await tx.execute("select $1::int", "x", "y")
                case "swallowed":
                    with contextlib.suppress(asyncpg.DivisionByZeroError):
                        await tx.execute("select 1 / 0")
                case "slow":
                    await tx.execute("select pg_sleep(20)")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


REFUSED = {
    "step": (InvalidRequest, "step note inside the transaction"),
    "sleep": (InvalidRequest, "timer inside the transaction"),
    "receive": (InvalidRequest, "receive go inside the transaction"),
    "nested": (InvalidRequest, "inside the transaction"),
    "commit": (InvalidRequest, "would end it"),
    "rollback": (InvalidRequest, "would end it"),
    "two": (asyncpg.PostgresSyntaxError, "multiple commands"),
    "unknown run": (NotFound, ""),
    "unknown promise": (NotFound, ""),
    "settled": (Conflict, ""),
    "point": (EncodeError, "cast it"),
    "arguments": (InvalidRequest, "refused"),
    "swallowed": (asyncpg.InFailedSQLTransactionError, ""),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_belong_inside_is_refused(
    what: str, dsn: str, accounts: psycopg.Connection[Any]
) -> None:
    """An error of its class says so, nothing is committed, the run goes on, and a replay is told the same."""
    accounts.execute("select durable.create_promise('settled'), durable.resolve('settled', '1')")
    told = asyncio.run(play(dsn, wrong, what))
    kind, words = REFUSED[what]
    assert told.startswith(f"{kind.__name__}: "), told
    assert words in told
    assert accounts.execute("select count(*) from entry").fetchone() == (0,)
    clean(dsn)


@app.workflow
async def hurried() -> str:
    """Takes longer than it may."""
    try:
        async with ctx.transaction(timeout="300ms") as tx:
            await tx.execute("insert into entry (account, amount) values ('late', 1)")
            await tx.execute("select pg_sleep(20)")
    except TimeoutError:
        return "late"
    return "in time"


@app.workflow
async def limited() -> list[str]:
    """Has limits of asyncio around it, which it exceeds, and goes on."""
    told = []

    async def lasts() -> None:
        async with ctx.transaction() as tx:
            await tx.execute("insert into entry (account, amount) values ('late', 1)")
            await tx.execute("select pg_sleep(20)")

    try:
        async with asyncio.timeout(0.1):
            await lasts()
    except TimeoutError:
        told.append("timeout")
    try:
        await asyncio.wait_for(lasts(), 0.1)
    except TimeoutError:
        told.append("wait_for")
    async with asyncio.timeout(60), ctx.transaction() as tx:
        told.append(await tx.fetchval("select 'in time'"))
    return told


def test_a_transaction_ends_with_the_limit_around_it(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """It is rolled back, and the code gets a TimeoutError and goes on."""
    assert asyncio.run(play(dsn, limited)) == ["timeout", "wait_for", "in time"]
    assert accounts.execute("select count(*) from entry").fetchone() == (0,)
    clean(dsn)


def test_a_transaction_ends_with_its_time(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """It is rolled back, and the code is told."""
    assert asyncio.run(play(dsn, hurried)) == "late"
    assert accounts.execute("select count(*) from entry").fetchone() == (0,)
    clean(dsn)


@app.workflow
async def branches() -> list[Any]:
    """Two transactions at once, steps and a captured value beside them."""

    async def move(name: str) -> Any:
        await note(name)
        async with ctx.transaction(name) as tx:
            at = ctx.now()
            await tx.execute("insert into entry (account, amount) values ($1, $2)", name, at.microsecond)
            count = await tx.fetchval("select count(*) from entry")
        return [count, at.microsecond, await note(f"{name} again")]

    answer = await ctx.gather(*(move(name) for name in "abcd"))
    seen.append(answer)  # durable: ok
    await ctx.receive(go)
    return answer


def test_transactions_of_branches_follow_each_other(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """They do not overlap, and live and replayed the branches go on in the same order."""
    answer = asyncio.run(play(dsn, branches, between=wake))
    assert sorted(count for count, _, _ in answer) == [1, 2, 3, 4]
    assert seen == [answer, answer]
    written = accounts.execute("select account, amount from entry order by account").fetchall()
    assert [amount for _, amount in written] == [at for _, at, _ in answer]
    clean(dsn)


@app.workflow
async def stray() -> None:
    """Waits inside for what cannot come."""
    async with ctx.transaction() as tx:
        await tx.execute("insert into entry (account, amount) values ('stray', 1)")
        await asyncio.Event().wait()


def test_a_wait_that_cannot_end_fails_the_run(dsn: str, accounts: psycopg.Connection[Any]) -> None:
    """A transaction is not held open for something else."""
    with pytest.raises(RunFailed) as failed:
        asyncio.run(play(dsn, stray))
    assert isinstance(failed.value.__cause__, NotAwaitable)
    assert accounts.execute("select count(*) from entry").fetchone() == (0,)
