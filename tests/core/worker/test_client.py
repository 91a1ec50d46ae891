"""Starting and waiting from outside."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import asyncpg
import psycopg
import pytest

from pyengine import App, Client
from pyengine.errors import (
    InvalidRequest,
    NotFound,
    RunCancelled,
    RunConflict,
    RunFailed,
    SchemaMismatch,
    Unavailable,
)

Connection = psycopg.Connection[tuple[object, ...]]


def shop(dsn: str) -> App:
    """Two workflows."""
    app = App(dsn)

    @app.workflow
    async def price(n: int) -> Decimal:
        return Decimal(n) / 4

    @app.workflow
    async def fail() -> None:
        raise LookupError("nothing")

    return app


def test_the_same_id_is_the_same_run(dsn: str) -> None:
    """A second start with the same id and input finds the first run; other input is a conflict."""
    app = shop(dsn)

    async def main() -> None:
        async with app.client() as client:
            first = await client.start("price", 1, id="order-1")
            second = await client.start("price", 1, id="order-1")
            assert (first.id, first.created) == ("order-1", True)
            assert (second.id, second.created) == ("order-1", False)
            with pytest.raises(RunConflict, match="order-1"):
                await client.start("price", 2, id="order-1")

    asyncio.run(main())


def test_the_same_key_is_the_same_run(dsn: str) -> None:
    """A key stands for a run of its workflow, also when many start it at once."""
    app = shop(dsn)

    async def main() -> None:
        async with app.client() as client:
            runs = await asyncio.gather(*(client.start("price", 1, key="k") for _ in range(10)))
            assert len({run.id for run in runs}) == 1
            assert sum(run.created is True for run in runs) == 1
            with pytest.raises(RunConflict):
                await client.start("price", 2, key="k")
            other = await client.start("fail", key="k")
            assert other.id != runs[0].id

    asyncio.run(main())


def test_a_start_inside_a_transaction_is_undone_with_it(dsn: str) -> None:
    """With conn= a rollback leaves nothing, and a commit wakes the worker."""
    app = shop(dsn)

    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        async with app.worker(), app.client() as client:
            transaction = conn.transaction()
            await transaction.start()
            undone = await client.start("price", 1, conn=conn)
            await transaction.rollback()
            with pytest.raises(NotFound):
                await undone.get()
            async with conn.transaction():
                kept = await client.start("price", 2, conn=conn)
            assert await kept.result(timeout=20) == Decimal("0.5")
        await conn.close()

    asyncio.run(main())


def test_a_client_without_code_gets_plain_json(dsn: str) -> None:
    """A client that does not know the workflow starts it by name and gets plain JSON values back."""
    app = shop(dsn)

    async def main() -> None:
        async with app.worker(), Client(dsn) as client:
            assert await (await client.start("price", 3)).result(timeout=20) == "0.75"
            assert await (await client.start("price", n=3)) == "0.75"
            with pytest.raises(InvalidRequest):
                await client.start("price", 3, n=3)

    asyncio.run(main())


def test_an_unknown_name_is_refused_and_starts_nothing(dsn: str) -> None:
    """Once a worker has said what it serves, a client that starts by name hears of its slip of the pen."""
    app = shop(dsn)

    async def main() -> None:
        async with app.worker(), Client(dsn) as client:
            await client.start("price", 3)
            with pytest.raises(NotFound) as caught:
                await client.start("prise", 3)
            assert "'prise'" in str(caught.value)
            assert "'price'" in (caught.value.hint or "")
            assert [run.workflow for run in await client.list()] == ["price"]

    asyncio.run(main())


def test_get_and_list_return_the_state_of_runs(dsn: str) -> None:
    """A status record holds state, arguments, result and error; list filters by workflow and state."""
    app = shop(dsn)

    async def main() -> None:
        async with app.client() as client:
            waiting = await client.start("price", 1, id="later", delay="1h", priority=3)
            async with app.worker():
                good = await client.start("price", 2)
                await good
                bad = await client.start("fail")
                with pytest.raises(RunFailed, match="nothing"):
                    await bad
            status = await waiting.get()
            assert (status.state, status.args, status.priority, status.result) == ("scheduled", [1], 3, None)
            status = await good.get()
            assert (status.state, status.result, status.error) == ("completed", "0.5", None)
            status = await bad.get()
            assert (status.state, type(status.error)) == ("failed", LookupError)
            assert [one.id for one in await client.list(workflow="price")] == [good.id, "later"]
            assert [one.id for one in await client.list(state="failed")] == [bad.id]
            with pytest.raises(NotFound):
                await client.get("no such run")
            with pytest.raises(NotFound):
                await client.run("no such run").result(timeout=20)

    asyncio.run(main())


def test_a_deadline_after_the_last_year_of_python(dsn: str, conn: Connection) -> None:
    """A deadline that somebody put into the year 11,000 in SQL reads as none."""
    conn.execute("select durable.start('price', '[1]', id => 'far', timeout => '9000 years')")

    async def main() -> None:
        async with shop(dsn).client() as client:
            assert (await client.get("far")).deadline is None
            assert [one.id for one in await client.list()] == ["far"]

    asyncio.run(main())


def test_waiting_has_an_end_and_the_run_goes_on(dsn: str) -> None:
    """result(timeout=) raises TimeoutError, and a later wait gets the result."""
    app = shop(dsn)

    async def main() -> None:
        async with app.client() as client:
            run = await client.start("price", 1)
            with pytest.raises(TimeoutError, match="it goes on"):
                await run.result(timeout=0.05)
            async with app.worker():
                assert await run.result(timeout=20) == Decimal("0.25")

    asyncio.run(main())


def test_a_run_cancelled_by_its_promise(dsn: str, conn: Connection) -> None:
    """A run whose promise is cancelled from outside raises RunCancelled where somebody waits for it."""
    app = shop(dsn)

    async def main() -> None:
        async with app.client() as client:
            run = await client.start("price", 1)
            waiting = asyncio.create_task(run.result(timeout=20))
            await asyncio.sleep(0)
            conn.execute("select durable._settle_promise(%s, 'rejected_canceled', null, null)", (run.id,))
            conn.execute("select durable.hint_v1(false, true)")
            with pytest.raises(RunCancelled):
                await waiting

    asyncio.run(main())


def test_waiting_for_many_is_one_loop(dsn: str) -> None:
    """Many handles of one client are waited for together."""
    app = shop(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            runs = await asyncio.gather(*(client.start("price", 4 * n) for n in range(200)))
            assert await asyncio.gather(*runs) == [Decimal(n) for n in range(200)]

    asyncio.run(main())


def test_no_database_is_unavailable_and_names_no_password() -> None:
    """A server that is not there is Unavailable, with host and database and without the password."""

    async def main() -> None:
        async with Client("postgresql://me:geheim@127.0.0.1:1/shop"):
            pass

    with pytest.raises(Unavailable, match=r"'shop' on 127\.0\.0\.1:1") as error:
        asyncio.run(main())
    assert "geheim" not in repr(error.value) + str(error.value)


@pytest.mark.parametrize("address", ["geheim@host:notaport", "ge/heim@host", "ge#heim@host", "ge?heim@host"])
def test_a_url_that_cannot_be_read_is_not_repeated(address: str) -> None:
    """A broken URL is an InvalidRequest that shows neither the password nor a part of it."""

    async def main() -> None:
        async with Client(f"postgresql://me:{address}/shop"):
            pass

    with pytest.raises(InvalidRequest) as error:
        asyncio.run(main())
    assert "me:" not in str(error.value)
    assert "heim" not in str(error.value)


@pytest.mark.parametrize("id", ["a\0b", "\ud800", 5])
def test_invalid_ids_are_refused(dsn: str, id: str) -> None:
    """An id that Postgres cannot read is an InvalidRequest and keeps nobody else waiting."""
    app = shop(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            good = asyncio.create_task((await client.start("price", 4)).result(timeout=20))
            for use in (client.run(id).result(timeout=20), client.get(id), client.start("price", 4, id=id)):
                with pytest.raises(InvalidRequest):
                    await use
            assert await good == Decimal(1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": ""}, "'' is not a queue name"),
        ({"queue": "a/b"}, "'a/b' is not a queue name"),
        ({"version": ""}, "a version is not empty"),
        ({"conn": object()}, "builtins.object and no connection"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], words: str) -> None:
    """An empty queue or version, and a conn that is none, are not taken for the default."""
    client = Client("postgresql://127.0.0.1:1/shop")
    with pytest.raises(InvalidRequest, match=words):
        asyncio.run(client.begin("price", (1,), **options))  # type: ignore[arg-type]


def test_a_state_that_does_not_exist_is_refused() -> None:
    """A list of runs in an unknown state is an InvalidRequest that names the states."""
    client = Client("postgresql://127.0.0.1:1/shop")
    with pytest.raises(InvalidRequest, match="scheduled, queued, running"):
        asyncio.run(client.list(state="nope"))  # type: ignore[arg-type]


def test_an_incompatible_schema_is_refused(dsn: str, conn: Connection) -> None:
    """A database that serves other worker protocols is a SchemaMismatch, older or newer."""
    for lowest, highest, word in ((0, 0, "older"), (2, 3, "newer")):
        conn.execute(
            "create or replace function durable.version() returns table (schema_version integer, "
            "lowest_worker_protocol integer, highest_worker_protocol integer) language sql stable as "
            f"$$ select 1, {lowest}, {highest} $$"  # type: ignore[arg-type]
        )

        async def main() -> None:
            async with Client(dsn):
                pass

        with pytest.raises(SchemaMismatch, match=word):
            asyncio.run(main())
