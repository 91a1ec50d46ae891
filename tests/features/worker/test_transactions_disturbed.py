"""Law: a transaction of a workflow that is disturbed (by other transactions, a lost connection, a lost
answer, a request of cancellation, the end of its worker) is committed once in the end, or never was.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, PayloadTooLarge, Retry, RunCancelled, RunFailed, Worker, ctx
from pyengine.core.database.connection import Database
from pyengine.core.worker.turn_sender import TurnSender
from pyengine.features.checks.replay_check import replay_check
from pyengine.features.sql.transaction_runner import Again, TransactionRunner

app = App()
Bank = psycopg.Connection[Any]
ASLEEP = (
    "select pid from pg_stat_activity where datname = current_database() and state = 'active' "
    "and wait_event = 'PgSleep' and query like '%%pg_sleep%%' and pid <> pg_backend_pid()"
)


@pytest.fixture
def bank(dsn: str) -> Bank:
    """A table of the user's own, and a trigger that fails as another transaction would make it, twice."""
    conn = psycopg.connect(dsn, autocommit=True)
    conn.execute("create table entry (run text, leg text)")
    conn.execute("create sequence tries")
    conn.execute(
        "create function meet() returns trigger language plpgsql as $$ begin "
        "if nextval('tries') < 3 then raise exception 'could not serialize' using errcode = '40001'; end if; "
        "return new; end $$"
    )
    return conn


def entries(bank: Bank) -> list[tuple[str, str]]:
    """What was written."""
    return bank.execute("select run, leg from entry order by run, leg").fetchall()


async def asleep(bank: Bank) -> int:
    """Wait until a statement sleeps; answers its server process."""
    while (row := bank.execute(ASLEEP).fetchone()) is None:
        await asyncio.sleep(0.01)
    return int(row[0])


@app.workflow
async def two_legs(pause_s: float = 0.0) -> list[str]:
    """Two transactions, with a random number that must stay the same."""
    number = ctx.random()
    for leg in ("first", "second"):
        async with ctx.transaction(leg) as tx:
            await tx.execute("insert into entry values ($1, $2)", ctx.run_id, leg)
            if leg == "second":
                await tx.execute("select pg_sleep($1)", pause_s)
    return [str(number == ctx.random()), "done"]


BOTH = [("t", "first"), ("t", "second")]


def test_conflicts_are_not_the_codes_business(dsn: str, bank: Bank) -> None:
    """A serialization failure runs the block anew, as often as it takes; the code sees nothing."""
    bank.execute("create trigger meet before insert on entry for each row execute function meet()")

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            return await (await client.start(two_legs, id="t")).result(timeout=30)

    assert asyncio.run(play()) == ["False", "done"]
    assert entries(bank) == BOTH
    assert bank.execute("select last_value from tries").fetchone() == (4,)


def test_a_connection_that_is_lost_is_no_end(dsn: str, bank: Bank) -> None:
    """The server ends the session in the middle: the block runs again, and its rows are there once."""

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(two_legs, 0.4, id="t")
            bank.execute("select pg_terminate_backend(%s)", (await asleep(bank),))
            return await run.result(timeout=30)

    assert asyncio.run(play())[1] == "done"
    assert entries(bank) == BOTH


def test_the_journal_tells_what_became_of_a_commit(
    dsn: str, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit whose answer got lost the block does not run again."""
    commit, lost = TransactionRunner.commit, []

    async def lose(self: TransactionRunner, *args: Any) -> Any:
        answer = await commit(self, *args)
        if len(lost) < 2:
            lost.append(answer)
            raise Again
        return answer

    monkeypatch.setattr(TransactionRunner, "commit", lose)

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            return await (await client.start(two_legs, id="t")).result(timeout=30)

    assert asyncio.run(play())[1] == "done"
    assert len(lost) == 2
    assert entries(bank) == BOTH


def test_a_worker_that_stops_rolls_back_at_once(dsn: str, bank: Bank) -> None:
    """Its run goes to the next worker, which runs the block; meanwhile the journal replays clean."""

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client:
            async with Worker(app.registry, dsn):
                run = await client.start(two_legs, 0.5, id="t")
                await asleep(bank)
            assert entries(bank) == BOTH[:1]
            report = await replay_check(Database(dsn), app.registry)
            assert report.count("diverged") == 0, report.breaks()
            async with Worker(app.registry, dsn):
                return await run.result(timeout=30)

    assert asyncio.run(play())[1] == "done"
    assert entries(bank) == BOTH


@app.workflow
async def cleaned() -> str:
    """Cleans up with a transaction of its own when it is asked to end."""
    try:
        async with ctx.transaction("work") as tx:
            await tx.execute("insert into entry values ($1, 'work')", ctx.run_id)
            await tx.execute("select pg_sleep(0.5)")
        await ctx.sleep("1h")
    except asyncio.CancelledError:
        async with ctx.shield(), ctx.transaction("undo") as tx:
            left = await tx.fetchval("select count(*) from entry where run = $1", ctx.run_id)
            await tx.execute("insert into entry values ($1, $2)", ctx.run_id, f"undo {left}")
        raise
    return "never"


def test_a_request_of_cancellation_meets_a_transaction(dsn: str, bank: Bank) -> None:
    """It waits for its end. Then the transaction is committed and known to the clean-up, or it never was; the
    clean-up may use one of its own."""

    async def play() -> None:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(cleaned, id="t")
            await asleep(bank)
            await run.cancel(grace="1m")
            with pytest.raises(RunCancelled):
                await run.result(timeout=30)

    asyncio.run(play())
    assert entries(bank) in ([("t", "undo 0")], [("t", "undo 1"), ("t", "work")])
    report = asyncio.run(replay_check(Database(dsn), app.registry, finished=True))
    assert report.count("diverged") == 0, report.breaks()


@app.workflow
async def beside(number: int) -> list[Any]:
    """A promise that is settled while a transaction is open, with a branch that waits for it."""
    order: list[Any] = []

    async def listen() -> None:
        order.append(await ctx.promise(str, name="bell"))
        async with ctx.transaction("rung") as tx:
            order.append(await tx.fetchval("select $1::text", f"rung {number}"))

    async def write() -> None:
        async with ctx.transaction("long") as tx:
            await tx.execute("insert into entry values ($1, 'long')", ctx.run_id)
            await tx.execute("select pg_sleep(0.3)")
            order.append("written")
        order.append("committed")

    await ctx.gather(listen(), write())
    await ctx.sleep("50ms")
    return order


def test_what_comes_meanwhile_waits_for_the_end_of_the_transaction(dsn: str, bank: Bank) -> None:
    """A completion that arrives while the block is open is seen after it, live and in a replay."""

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(beside, 7, id="t")
            await asleep(bank)
            bank.execute("select durable.resolve('t.0', '\"ding\"')")
            return await run.result(timeout=30)

    assert asyncio.run(play()) == ["written", "committed", "ding", "rung 7"]
    assert entries(bank) == [("t", "long")]
    report = asyncio.run(replay_check(Database(dsn), app.registry, finished=True))
    assert report.count("diverged") == 0, report.breaks()


def test_more_transactions_than_connections(dsn: str, bank: Bank) -> None:
    """They wait for each other, and none is lost."""

    async def play() -> int:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            runs = [await client.start(two_legs, id=f"m{number}") for number in range(40)]
            answers = [await run.result(timeout=60) for run in runs]
            return len(answers)

    assert asyncio.run(play()) == 40
    assert len(entries(bank)) == 80


def test_a_fork_does_not_write_again(dsn: str, bank: Bank) -> None:
    """A run forked after its first transaction takes what that answered over, and runs the second one."""

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(two_legs, id="t")
            await run.result(timeout=30)
            (seq,) = bank.execute(
                "select max(seq) + 1 from durable.journal_events where id = 't' and child = 2"
            ).fetchone() or (0,)
            fork = await run.fork(seq=seq, id="f")
            return await fork.result(timeout=30)

    assert asyncio.run(play())[1] == "done"
    assert entries(bank) == [("f", "second"), *BOTH]


@app.workflow
async def slow_begin() -> str:
    """Something to be recorded before the transaction, and inside it before its commit."""
    ctx.random()
    async with ctx.transaction("slow") as tx:
        await tx.execute("insert into entry values ($1, 'slow')", ctx.run_id)
        ctx.random()
    return "done"


@pytest.mark.parametrize("kind", ["begin", "commit"])
def test_a_connection_that_is_lost_while_the_transaction_waits(
    dsn: str, bank: Bank, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Before its begin and before its commit the transaction waits for a turn; a session that ends meanwhile
    is no end of its time."""
    execute, lost = TransactionRunner.execute_in_time, []

    async def lose(self: TransactionRunner, conn: Any, run: Any, session: Any, effect: Any) -> Any:
        if effect.ask.kind == kind and not lost:
            lost.append(kind)
            bank.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                "where datname = current_database() and application_name = 'pyengine work'"
            )
            await asyncio.sleep(0.1)
        return await execute(self, conn, run, session, effect)

    monkeypatch.setattr(TransactionRunner, "execute_in_time", lose)

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            return await (await client.start(slow_begin, id="t")).result(timeout=30)

    assert asyncio.run(play()) == "done"
    assert lost == [kind]
    assert entries(bank) == [("t", "slow")]


@app.workflow
async def goes_on() -> None:
    """Takes a transaction back, and goes on with calls that a journal holds in the order of the code."""
    bell = ctx.promise(str, name="bell")
    try:
        async with ctx.transaction("undo") as tx:
            await tx.execute("select pg_sleep(0.5)")
            raise LookupError
    except LookupError:
        made = ctx.join_set()
        made.submit(ctx.promise(str, name="never"))
        await made.all()
    await bell


@pytest.mark.session("it takes a hint to tell of the request while the transaction is open")
def test_a_request_that_comes_into_sight_late(dsn: str, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code did between two turns, before the worker saw a request of cancellation that stands in the
    journal, does not count: the journal replays clean."""
    send, waited = TurnSender.send, []

    async def play() -> None:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn) as worker:

            async def late(self: TurnSender, bundles: list[Any], want: int, **more: Any) -> Any:
                answers = await send(self, bundles, want, **more)
                known = "select exists (select from durable.runs where id = 't' and state = 'cancelling')"
                while bundles and not waited and bank.execute(known).fetchone() == (True,):
                    # its answer tells of the request; meanwhile the transaction ends
                    await asyncio.sleep(0.005)
                    leased = worker.parts.runs.leased.values()
                    waited.extend(one for one in leased if getattr(one.phase, "commands", ()))
                return answers

            monkeypatch.setattr(TurnSender, "send", late)
            run = await client.start(goes_on, id="t")
            await asleep(bank)
            await run.cancel(grace="1m")
            with pytest.raises(RunCancelled):
                await run.result(timeout=30)

    asyncio.run(play())
    assert len(waited) == 1
    report = asyncio.run(replay_check(Database(dsn), app.registry, finished=True))
    assert report.count("diverged") == 0, report.breaks()


noted: list[str] = []


@app.step(retry=Retry(max_attempts=2, initial="1ms"))
async def note() -> str:
    """Has more than one row, so that it is complete in the journal without being at its beginning."""
    noted.append("")
    if len(noted) == 1:
        raise ConnectionError
    return "noted"


@app.workflow
async def beside_a_step() -> list[str]:
    """A step that is recorded while a transaction is open, which is rolled back in the end."""

    async def undo() -> str:
        try:
            async with ctx.transaction("undo") as tx:
                await tx.execute("insert into entry values ($1, 'undone')", ctx.run_id)
                # until it is cut off; the next time it does not sleep
                await tx.execute("select pg_sleep(case when nextval('tries') = 1 then 60 else 0 end)")
                raise LookupError("undone")
        except LookupError as error:
            return str(error)

    return list(await asyncio.gather(note(), undo()))


def test_a_block_that_begins_anew_lets_steps_be(dsn: str, bank: Bank) -> None:
    """A step that was recorded beside an open transaction does not run again when that begins anew, and the
    run comes to its end."""
    noted.clear()
    done = "select exists (select from durable.journal_events where id = 't' and event = 'InvokeCompleted')"

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(beside_a_step, id="t")
            first = await asleep(bank)
            while bank.execute(done).fetchone() != (True,):
                await asyncio.sleep(0.001)
            bank.execute("select pg_terminate_backend(%s)", (first,))
            return await run.result(timeout=30)

    assert asyncio.run(play()) == ["noted", "undone"]
    assert len(noted) == 2
    assert entries(bank) == []


@app.workflow
async def leave_traces() -> str:
    """Changes everything of the session that can be changed."""
    async with ctx.transaction() as tx:
        await tx.execute("set search_path to nowhere")
        await tx.execute("set role other_tenant")
        await tx.execute("reset role")
        await tx.execute("select set_config('app.tenant', 'a', false), pg_advisory_lock(77)")
        await tx.execute("create temp table left_behind (n int)")
    return "left"


@app.workflow
async def find_traces() -> list[str]:
    """Looks for what another run left."""
    async with ctx.transaction() as tx:
        row = await tx.fetchrow(
            "select current_setting('search_path'), coalesce(current_setting('app.tenant', true), ''), "
            "current_user::text, (select count(*)::text from pg_locks where locktype = 'advisory' and "
            "objid = 77), coalesce(to_regclass('left_behind')::text, ''), pg_backend_pid()::text"
        )
        assert row is not None
        return list(row)


@pytest.mark.session("what a transaction leaves in a pooler's session is the pooler's business")
def test_a_session_is_clean_for_the_next_transaction(dsn: str, bank: Bank) -> None:
    """Settings, role, locks and temporary tables of one transaction are not those of the next one, in the
    same session."""
    bank.execute("drop role if exists other_tenant; create role other_tenant")

    async def play() -> list[str]:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            await (await client.start(leave_traces)).result(timeout=30)
            return await (await client.start(find_traces)).result(timeout=30)

    found = asyncio.run(play())
    bank.execute("drop role other_tenant")
    assert found[:2] == ['"$user", public', ""]
    assert found[3:5] == ["0", ""]


@app.workflow
async def end_it(statement: str) -> str:
    """Ends its transaction in the middle."""
    async with ctx.transaction() as tx:
        await tx.execute("insert into entry values ($1, 'ended')", ctx.run_id)
        await tx.execute(statement)
    return "done"


@pytest.mark.parametrize(
    "statement", ["; commit", "-- x\rcommit", "/* a */ ; -- b\n end", "ROLLBACK AND CHAIN"]
)
def test_a_disguised_end_is_refused(dsn: str, bank: Bank, statement: str) -> None:
    """However it is written, what ends the transaction is not sent."""

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            return await (await client.start(end_it, statement, id="t")).result(timeout=30)

    with pytest.raises(RunFailed, match="would end it"):
        asyncio.run(play())
    assert entries(bank) == []


@app.workflow
async def too_much() -> str:
    """Reads more than a journal row holds, and is told so."""
    try:
        async with ctx.transaction() as tx:
            await tx.fetchval("select repeat('x', 60000)")
            await tx.fetchval("select repeat('y', 60000)")
    except PayloadTooLarge:
        return "too much"
    return "enough"


def test_answers_have_room_in_the_journal_or_are_refused(dsn: str, bank: Bank) -> None:
    """The statement that would be too much raises, in the block; the run goes on."""
    bank.execute("select durable.set_setting('payload_max_bytes', '100000')")

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            return await (await client.start(too_much, id="t")).result(timeout=30)

    assert asyncio.run(play()) == "too much"


@app.workflow
async def hopeless() -> None:
    """Its session ends each time."""
    async with ctx.transaction() as tx:
        await tx.execute("select pg_terminate_backend(pg_backend_pid())")


def test_what_never_comes_to_its_end_is_set_aside(dsn: str, bank: Bank) -> None:
    """A transaction that ends its session again and again halts the run, which says why."""

    async def play() -> Any:
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn):
            run = await client.start(hopeless, id="t")
            while (status := await run.get()).state not in ("halted", "failed"):
                await asyncio.sleep(0.05)
            return status

    status = asyncio.run(play())
    assert status.state == "halted"
    assert "never came to its end" in status.problem["message"]
    bank.execute("select durable.cancel('t', force => true)")
