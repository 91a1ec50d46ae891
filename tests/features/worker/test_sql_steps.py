"""Steps in SQL: what the function writes, its result and the journal row are one commit, under the fence."""

from __future__ import annotations

import asyncio
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pyengine import App, Client, Retry, SqlError, Worker, ctx
from pyengine.core.worker.dispatcher import Dispatcher
from pyengine.core.worker.events import Event, JournalWritten
from pyengine.core.worker.turn_sender import TurnSender
from pyengine.errors import EncodeError, InvalidRequest, RunFailed, StepTimeout
from pyengine.features.sql.sql_step_runner import SqlStepRunner

Connection = psycopg.Connection[tuple[Any, ...]]
FAST = Retry(max_attempts=3, initial="5ms", jitter=0)


class Refused(SqlError, sqlstate="SH001"):
    """The shop refuses."""


FUNCTIONS = """
create schema shop;
create table shop.entries (
  id bigint generated always as identity, who text, amount numeric check (amount <> 13),
  note text, constraint entries_pk primary key (id) deferrable initially deferred);
create type shop.money as (currency text, amount numeric);
create function shop.pay(who text, amount numeric, note text default 'none') returns numeric
  language sql as $$ insert into entries (who, amount, note) values (who, amount, note);
                     select sum(e.amount) from entries e where e.who = pay.who $$ set search_path = shop;
create function shop.pay_plain(who text) returns bigint language plpgsql as $$
  begin insert into shop.entries (who, amount) values (who, 1); return currval('shop.entries_id_seq'); end $$;
create function shop.describe(d date, n numeric[], m shop.money, u uuid, raw bytea, j jsonb, t interval)
  returns jsonb language sql as $$ select jsonb_build_array(d + 1, n, m, u, length(raw), j, t) $$;
create function shop.money_of(x numeric) returns shop.money language sql as $$ select 'EUR', x $$;
create function shop.numbers(n integer) returns setof integer language sql as
  $$ select generate_series(1, n) $$;
create function shop.people() returns table (who text, total numeric) language sql as
  $$ select e.who, sum(e.amount) from shop.entries e group by 1 order by 1 $$;
create function shop.nothing() returns void language plpgsql as $$ begin null; end $$;
create function shop.refuse(code text) returns void language plpgsql as $$ begin
  insert into shop.entries (who, amount) values ('refused', 1);
  raise exception 'refused' using errcode = code, detail = 'the detail', hint = 'the hint'; end $$;
create function shop.both(a integer) returns text language sql as $$ select 'integer' $$;
create function shop.both(a text) returns text language sql as $$ select 'text' $$;
create function shop.slow(seconds float) returns text language sql as $$
  insert into shop.entries (who, amount) values ('slow', 1); select pg_sleep(seconds)::text $$;
create function shop.twice() returns void language sql as $$
  insert into shop.entries (id, who) overriding system value values (1000, 'twice'), (1000, 'twice') $$;
create procedure shop.proc() language sql as $$ select 1 $$;
create function shop.settings() returns jsonb language sql as $$
  select jsonb_build_object('path', current_setting('search_path'),
                            'hash', current_setting('enable_hashjoin'),
                            'plans', current_setting('plan_cache_mode')) $$;
"""


@pytest.fixture
def shop(dsn: str, conn: Connection) -> App:
    """An app on a database that has user's tables and functions."""
    for statement in FUNCTIONS.split(";\ncreate"):
        text = statement if statement.lstrip().startswith("create") else f"create{statement}"
        conn.execute(text.strip().removesuffix(";").encode())
    return App(dsn)


def entries(conn: Connection, who: str) -> list[Decimal]:
    """What the user's table holds."""
    rows = conn.execute("select amount from shop.entries where who = %s order by id", (who,))
    return [row[0] for row in rows]


def row_types(conn: Connection, child: int = 0) -> list[str]:
    """The types of the journal rows of one child, in order."""
    rows = conn.execute(
        "select type from durable._journal where child = %s order by execution, seq", (child,)
    )
    return [str(row[0]) for row in rows]


def error_of(app: App, function: str, *args: Any, **more: Any) -> BaseException:
    """What the one step of a run ends with."""

    @app.workflow(name=f"only {function} {len(more)}")
    async def only() -> Any:
        return await ctx.sql(function, *args, **more)

    with pytest.raises(RunFailed) as found:
        app.run(only)
    assert found.value.__cause__ is not None
    return found.value.__cause__


def test_a_function_is_a_step(shop: App, conn: Connection) -> None:
    """Its writes and its completion are there once, its result is typed, its name is the step's."""

    @shop.workflow
    async def go() -> list[Any]:
        first = await ctx.sql("shop.pay", "ann", Decimal("1.50"))
        second = await ctx.sql("shop.pay", who="ann", amount=2, type=Decimal)
        return [first, str(second), await ctx.sql("shop.numbers", 3, type=list[int])]

    assert shop.run(go) == [1.5, "3.50", [1, 2, 3]]
    assert entries(conn, "ann") == [Decimal("1.50"), Decimal(2)]
    assert [row_types(conn, child) for child in range(3)] == [
        ["step_completed"],
        ["step_completed"],
        ["step_completed"],
    ]
    names = conn.execute(
        "select name from durable._journal where type = 'step_completed' order by seq"
    ).fetchall()
    assert names == [("shop.pay",), ("shop.pay",), ("shop.numbers",)]


def test_values_have_the_form_that_postgres_reads(shop: App) -> None:
    """Dates, decimals, uuids, bytes, arrays, composite values and spans come to the declared types."""
    uuid = UUID(int=7)

    @shop.workflow
    async def go() -> list[Any]:
        answer: list[Any] = await ctx.sql(
            "shop.describe",
            date(2026, 11, 30),
            [1, Decimal("2.5")],
            {"currency": "EUR", "amount": Decimal("9.99")},
            uuid,
            b"\x00\xff",
            {"deep": [None, {"x": 1}]},
            "1 day",
        )
        money = await ctx.sql("shop.money_of", 3)
        return [*answer, money, await ctx.sql("shop.people"), await ctx.sql("shop.nothing")]

    assert shop.run(go) == [
        "2026-12-01",
        [1, 2.5],
        {"currency": "EUR", "amount": 9.99},
        str(uuid),
        2,
        {"deep": [None, {"x": 1}]},
        "1 day",
        {"currency": "EUR", "amount": 3},
        [],
        None,
    ]


def test_a_function_runs_under_the_sessions_own_settings(shop: App, conn: Connection) -> None:
    """Neither the search_path nor the planner settings of the engine reach it."""
    expected = conn.execute("select shop.settings()").fetchone()

    @shop.workflow
    async def go() -> Any:
        return await ctx.sql("shop.settings")

    assert expected is not None
    assert shop.run(go) == expected[0]


def test_what_a_function_raises(shop: App, conn: Connection) -> None:
    """Its SQLSTATE, detail and hint reach the code, a class that names the SQLSTATE is raised, and nothing
    of the function is left."""

    caught: list[Any] = []

    @shop.workflow
    async def go() -> str:
        caught.clear()  # the replay of what was run comes here, too
        try:
            await ctx.sql("shop.refuse", "SH001")
        except Refused as error:
            caught.append((error.sqlstate, error.detail, error.hint, error.args))
        try:
            await ctx.sql("shop.pay", "ann", 13)
        except SqlError as error:
            caught.append((error.sqlstate, error.constraint, error.table))
        return "went on"

    assert shop.run(go) == "went on"
    assert caught == [
        ("SH001", "the detail", "the hint", ("refused",)),
        ("23514", "entries_amount_check", "entries"),
    ]
    assert conn.execute("select count(*) from shop.entries").fetchone() == (0,)
    assert [row_types(conn, child) for child in range(2)] == [["step_failed"], ["step_failed"]]


def test_an_error_by_sqlstate_reaches_sql_again(shop: App, conn: Connection) -> None:
    """A run that ends with it tells plain SQL the same SQLSTATE, and its kind."""
    error = error_of(shop, "shop.refuse", "SH002")
    assert isinstance(error, SqlError)
    row = conn.execute("select error -> 'data' ->> 'sqlstate', error ->> 'kind' from durable.runs").fetchone()
    assert row == ("SH002", "UserError")


def test_a_failed_attempt_is_tried_again(shop: App, conn: Connection) -> None:
    """By the step's policy, each attempt with its row, and nothing of the failed ones is left."""
    error = error_of(shop, "shop.refuse", "SH003", retry=FAST)
    assert isinstance(error, SqlError)
    assert row_types(conn) == ["first_attempt_failed", "attempt_failed", "last_attempt_failed"]
    assert entries(conn, "refused") == []


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        ("shop.unknown", (), "There is no function 'shop.unknown'"),
        ("shop.both", (None,), "Several functions shop.both take these arguments"),
        ("shop.proc", (), "is a procedure"),
        ("shop.pay", (), "No function shop.pay takes 0 arguments by position"),
        ("durable.error_codes(integer)", (), "There is no function"),
    ],
)
def test_what_cannot_be_called(
    shop: App, conn: Connection, function: str, args: tuple[Any, ...], said: str
) -> None:
    """An unknown function, an ambiguous one, a procedure, wrong arguments: the step fails at once, whatever
    its policy, says what to do, and nothing else is recorded."""
    error = error_of(shop, function, *args, retry=FAST)
    assert isinstance(error, SqlError)
    assert said in str(error)
    assert error.hint
    assert row_types(conn) == ["step_failed"]


def test_a_name_that_is_none_is_refused_at_once(shop: App, conn: Connection) -> None:
    """No schema, no such option, arguments of both kinds, a value without a form: nothing is recorded."""

    @shop.workflow
    async def go() -> list[str]:
        found = []
        for call in (
            lambda: ctx.sql("pay"),
            lambda: ctx.sql("shop.pay", 1, amount=1),
            lambda: ctx.sql("shop.pay", retry=3),  # type: ignore[call-overload]
            lambda: ctx.sql("shop.pay", object()),
        ):
            try:
                await call()
            except (InvalidRequest, EncodeError) as error:
                found.append(type(error).__name__)
        return found

    assert shop.run(go) == ["InvalidRequest", "InvalidRequest", "InvalidRequest", "EncodeError"]
    assert row_types(conn) == []


def test_a_right_that_is_missing(shop: App, conn: Connection) -> None:
    """Who may not execute the function is told which grant it takes."""
    conn.execute("revoke execute on function shop.nothing() from public")
    conn.execute("create role shop_stranger")
    try:
        conn.execute("grant usage on schema durable, shop to shop_stranger")
        with conn.transaction():
            conn.execute("set local role shop_stranger")
            with pytest.raises(psycopg.Error) as found, conn.transaction():
                conn.execute("select durable._check_callable('shop.nothing()'::regprocedure)")
        assert "shop_stranger may not execute shop.nothing()" in str(found.value)
        assert "grant execute on function shop.nothing() to shop_stranger" in str(
            found.value.diag.message_hint
        )
    finally:
        conn.execute("drop owned by shop_stranger")
        conn.execute("drop role shop_stranger")


def test_a_deferred_constraint_fails_the_step(shop: App, conn: Connection) -> None:
    """What would fail at the commit fails before, as the step's error."""
    error = error_of(shop, "shop.twice")
    assert isinstance(error, SqlError)
    assert error.sqlstate == "23505"
    assert entries(conn, "twice") == []


def test_a_function_that_takes_too_long(shop: App, conn: Connection) -> None:
    """It is stopped in the database at its timeout, which is the step's error."""
    error = error_of(shop, "shop.slow", 60, timeout="300ms")
    assert isinstance(error, StepTimeout) and isinstance(error, TimeoutError)
    assert entries(conn, "slow") == []
    active = conn.execute(
        "select query, wait_event, application_name, now() - query_start from pg_stat_activity where "
        "datname = current_database() "
        "and query like '%_sql_v1%' and state = 'active' and pid <> pg_backend_pid()"
    )
    assert active.fetchall() == []


def test_steps_in_sql_beside_others(shop: App, conn: Connection) -> None:
    """Rows that come past the turns reach the code once and in journal order, among rows of turns: a replay
    of the whole gives the same."""

    @shop.step
    async def local(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        return number

    @shop.workflow
    async def branch(number: int) -> list[Any]:
        seen: list[Any] = []
        for turn in range(5):
            seen.append(await ctx.sql("shop.pay_plain", f"b{number}"))
            seen.append(await local(turn))
        return seen

    @shop.workflow
    async def go() -> int:
        order: list[int] = []

        async def play(number: int) -> None:
            for turn in range(6):
                if (number + turn) % 2:
                    await ctx.sql("shop.pay_plain", f"p{number}")
                else:
                    await local(turn)
                order.append(number)

        child = ctx.start(branch, 0)
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(play(number))
        await child
        return len(order)

    assert shop.run(go) == 48
    for number in range(8):
        assert entries(conn, f"p{number}") == [Decimal(1)] * 3
    assert entries(conn, "b0") == [Decimal(1)] * 5


def test_who_lost_the_lease_commits_nothing(shop: App, conn: Connection, dsn: str) -> None:
    """A worker whose lease is lost while the function runs leaves no row of it; the next one's is there."""
    conn.execute("create table shop.gate (n int)")
    conn.execute("insert into shop.gate values (1)")
    conn.execute(
        "create function shop.gated(who text) returns bigint language plpgsql as $$ begin "
        "insert into shop.entries (who, amount) values (who, 1); "
        "perform from shop.gate for update; return 1; end $$"
    )

    @shop.workflow
    async def go() -> int:
        answer: int = await ctx.sql("shop.gated", "zombie")
        return answer

    async def main() -> None:
        async with Client(dsn) as client:
            with psycopg.connect(dsn) as holder:
                holder.execute("select from shop.gate for update")
                run = await client.start(go, id="z")
                async with Worker(shop.registry, dsn):
                    while not conn.execute(
                        "select 1 from pg_locks l join pg_stat_activity a using (pid) "
                        "where a.datname = current_database() "
                        "and not l.granted and a.query like '%worker_sql_v1%'"
                    ).fetchone():
                        await asyncio.sleep(0.01)
                    # another worker takes it: the first one's version is void
                    conn.execute("select durable.task_halt('z')")
                    conn.execute("select durable.task_continue('z')")
                    holder.rollback()
                    assert await run.result() == 1
        assert entries(conn, "zombie") == [Decimal(1)]

    asyncio.run(main())


def test_an_answer_that_got_lost(
    shop: App, conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function was committed and its answer never came: asked again, it is not called again."""

    @shop.workflow
    async def go() -> int:
        answer: int = await ctx.sql("shop.pay_plain", "lost")
        return answer

    async def main() -> None:
        async with Client(dsn) as client:
            worker = Worker(shop.registry, dsn)
            async with worker:
                real, broken = SqlStepRunner.execute, []

                async def lose(self: SqlStepRunner, *args: Any) -> str:
                    text = await real(self, *args)
                    if not broken:
                        broken.append(text)
                        from pyengine.errors import Unavailable

                        raise Unavailable("the answer got lost") from OSError("gone")
                    return text

                monkeypatch.setattr(SqlStepRunner, "execute", lose)
                run = await client.start(go)
                assert await run.result() == 1
                assert broken
        assert entries(conn, "lost") == [Decimal(1)]
        assert row_types(conn) == ["step_completed"]

    asyncio.run(main())


def test_another_worker_replays_it(shop: App, conn: Connection, dsn: str) -> None:
    """A run that another worker takes up from its journal finds its steps in SQL there, failed attempts and
    errors too, and calls none of them again."""

    @shop.workflow
    async def go() -> list[Any]:
        seen: list[Any] = [await ctx.sql("shop.pay_plain", "cold")]
        try:
            await ctx.sql("shop.refuse", "SH001", retry=FAST)
        except Refused as error:
            seen.append(error.sqlstate)
        seen.append(await ctx.promise(int, name="gate"))
        seen.append(await ctx.sql("shop.pay_plain", "cold"))
        return seen

    async def main() -> None:
        async with Client(dsn) as client:
            run = await client.start(go, id="cold")
            async with Worker(shop.registry, dsn):
                while (await run.get()).state != "waiting":
                    await asyncio.sleep(0.01)
            conn.execute("select durable.resolve('cold.2', '7')")
            async with Worker(shop.registry, dsn):
                # three attempts that were taken back have drawn numbers
                assert await run.result() == [1, "SH001", 7, 5]
        assert entries(conn, "cold") == [Decimal(1)] * 2
        assert [row_types(conn, child) for child in (0, 1, 3)] == [
            ["step_completed"],
            ["first_attempt_failed", "attempt_failed", "last_attempt_failed"],
            ["step_completed"],
        ]

    asyncio.run(main())


def test_a_conflict_is_no_failure_of_the_step(shop: App, conn: Connection) -> None:
    """A serialization failure and a deadlock are tried again, without a policy and without a row."""
    conn.execute("create sequence shop.tries")
    conn.execute(
        "create function shop.conflicts() returns bigint language plpgsql as $$ begin "
        "if nextval('shop.tries') = 1 then raise exception 'x' using errcode = '40001'; "
        "elsif currval('shop.tries') = 2 then raise exception 'x' using errcode = '40P01'; end if; "
        "insert into shop.entries (who, amount) values ('conflict', 1); return currval('shop.tries'); end $$"
    )

    @shop.workflow
    async def go() -> int:
        answer: int = await ctx.sql("shop.conflicts")
        return answer

    assert shop.run(go) == 3
    assert row_types(conn) == ["step_completed"]
    assert entries(conn, "conflict") == [Decimal(1)]


def test_functions_that_use_verbs_never_deadlock(shop: App, conn: Connection, dsn: str) -> None:
    """Steps in SQL whose functions signal other runs, settle promises that runs wait for, or start runs,
    while turns of several workers carry all of them: everything ends, once."""
    conn.execute(
        "create function shop.poke(id text) returns integer language plpgsql as $$ begin "
        "insert into shop.entries (who, amount) values ('poke', 1); "
        "perform durable.signal(id, 'poke', '1'); return 1; end $$"
    )
    conn.execute(
        "create function shop.answer(id text) returns text language sql as "
        "$$ select durable.resolve(id, '1') $$"
    )
    count, rounds = 6, 2

    @shop.workflow
    async def leaf(number: int) -> int:
        return number

    @shop.workflow
    async def go(number: int) -> int:
        pokes = 0
        for turn in range(rounds):
            promise = ctx.promise(int, name=f"p{turn}")
            child = ctx.start(leaf, turn)
            others = [f"g{(number + step) % count}" for step in range(1, count)]
            async with asyncio.TaskGroup() as group:
                for other in others:
                    group.create_task(ctx.sql("shop.poke", other))
                group.create_task(ctx.sql("shop.answer", promise.id))
            for _ in others:
                await ctx.receive("poke")
                pokes += 1
            assert await promise == 1
            await child
        return pokes

    async def main() -> None:
        async with Client(dsn) as client:
            # all are there before the first one pokes the others
            runs = [await client.start(go, number, id=f"g{number}") for number in range(count)]
            async with asyncio.timeout(60), Worker(shop.registry, dsn), Worker(shop.registry, dsn):
                pokes = await asyncio.gather(*(run.result() for run in runs))
            assert pokes == [(count - 1) * rounds] * count
        assert len(entries(conn, "poke")) == count * (count - 1) * rounds

    asyncio.run(main())


def test_rows_wait_for_the_bundle_on_its_way(
    shop: App, conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a turn's answer is on its way, rows that came past it change nothing: what the code did before
    is taken first, and then all of it goes on in journal order."""

    @shop.step
    async def local(number: int) -> int:
        return number

    @shop.workflow
    async def go() -> list[int]:
        order: list[int] = []

        async def first() -> None:
            await local(0)
            ctx.now()
            order.append(await local(1))

        async def second() -> None:
            await ctx.sql("shop.slow", 0.2)
            ctx.now()
            order.append(await local(2))

        async with asyncio.TaskGroup() as group:
            group.create_task(first())
            group.create_task(second())
        return sorted(order)

    async def main() -> None:
        worker = Worker(shop.registry, dsn)
        came, held_back, advanced = asyncio.Event(), [], []
        send, post = TurnSender.send, Dispatcher.post

        async def send_slowly(turns: TurnSender, reports: Any, want: int, **more: Any) -> Any:
            answers = await send(turns, reports, want, **more)
            if any(report.commands for report in reports) and not came.is_set():
                held_back.append(len(reports))
                await came.wait()
            return answers

        def note(dispatcher: Dispatcher, event: Event) -> None:
            if not isinstance(event, JournalWritten):
                post(dispatcher, event)
                return
            (run,) = worker.parts.runs.leased.values()
            seen = run.replay.next_seq
            post(dispatcher, event)
            came.set()
            advanced.append(run.replay.next_seq - seen)

        monkeypatch.setattr(TurnSender, "send", send_slowly)
        monkeypatch.setattr(Dispatcher, "post", note)
        async with Client(dsn) as client, worker, asyncio.timeout(20):
            assert await (await client.start(go)).result() == [1, 2]
        assert (held_back, advanced) == ([1], [0])

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["on", "off"])
def test_whose_error_it_is_is_read_from_no_text(shop: App, conn: Connection, setting: str) -> None:
    """A setting that changes the texts of the server changes nothing: an error of the function is a SqlError
    with its SQLSTATE, also one that the engine's own statements could raise.
    """
    database = conn.info.dbname
    conn.execute(f'alter database "{database}" set quote_all_identifiers = {setting}'.encode())
    states = ["SH001", "23505", "55P03", "57014", "WF002", "WF006", "P0004"]

    @shop.workflow
    async def go(state: str) -> str:
        try:
            await ctx.sql("shop.refuse", state, retry=Retry(max_attempts=1))
        except SqlError as error:
            return f"{type(error).__name__} {error.sqlstate} {error.hint}"
        return "nothing"

    async def main() -> list[str]:
        async with shop.worker(), shop.client() as client:
            runs = [await client.start(go, state) for state in states]
            return [await run.result(timeout=30) for run in runs]

    try:
        said = asyncio.run(main())
    finally:
        conn.execute(f'alter database "{database}" reset quote_all_identifiers'.encode())
    assert said == ["Refused SH001 the hint", *[f"SqlError {state} the hint" for state in states[1:]]]
