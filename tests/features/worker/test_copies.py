"""Law: a worker in a copy of a database says so and waits; after the adoption it goes on by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.contract import Executed, Failed
from tests.support.verbs import Connection

pytestmark = pytest.mark.unlawful("the copies are checked here")
NEXT = "pyengine db adopt"


def shop(url: str, done: list[str]) -> App:
    """A workflow of two steps with a pause between them."""
    app = App(url)

    @app.step
    async def note(text: str) -> str:
        done.append(text)
        return text

    @app.workflow
    async def work(name: str, pause_s: float) -> str:
        await note(f"{name} begins")
        await ctx.sleep(pause_s)
        return await note(f"{name} ends")

    return app


def begin(url: str) -> None:
    """Leave behind: a run that sleeps and is due soon, one that is queued, a schedule, and a call."""
    done: list[str] = []
    app = shop(url, done)

    async def main() -> None:
        async with app.client() as client:
            async with app.worker():
                await client.start("work", "asleep", 1.0, id="asleep")
                while not done:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
            await client.start("work", "queued", 0.0, id="queued")

    asyncio.run(main())
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("select durable.schedule('each', '* * * * * *')")
        conn.execute("select durable.scope_open('s'), durable.call('dml+exec://fake/f', '[1]', scope => 's')")


def fired(url: str) -> int:
    """How often the schedule has fired."""
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute("select count(*) from durable.promises where id like 'each-%'").fetchone()
    return int(row[0]) if row else 0


def states(url: str) -> dict[str, str]:
    """The runs that were left behind, with their states."""
    with psycopg.connect(url, autocommit=True) as conn:
        rows = conn.execute("select id, state from durable.runs where id in ('asleep', 'queued')").fetchall()
    return {str(id_): str(state) for id_, state in rows}


class Polls:
    """An adapter whose polls are only counted."""

    adapters = ("fake",)

    def __init__(self) -> None:
        self.count = 0

    async def execute(self, adapter: str, request: object, may_begin: object) -> Executed:
        """Count the poll, which fails."""
        self.count += 1
        return Executed(answer=Failed(False, {"code": "counted", "message": "counted"}))

    async def cancel(self, adapter: str, request: object) -> None:
        """There is nothing to cancel."""

    async def close(self) -> None:
        """There is nothing to close."""


# what is in a dump: tests/features/sql/test_site.py
@pytest.mark.parametrize("how", ["template", pytest.param("dump", marks=pytest.mark.full)])
def test_workers_wait_for_the_adoption(
    direct: str, copy_of: Callable[[str], str], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing runs in the copy, though a worker and an adapter worker are there; both say what to type. After
    the adoption all goes on, and the original has done nothing of it."""
    begin(direct)
    copy = copy_of(how)
    done: list[str] = []
    app, polls = shop(copy, done), Polls()

    async def main() -> None:
        adapters, worker = AdapterWorker([polls], copy), app.worker()
        starting = asyncio.gather(worker.__aenter__(), adapters.__aenter__())
        await asyncio.sleep(2.5)
        assert not starting.done() and (done, polls.count, fired(copy)) == ([], 0, 0)
        assert sum(NEXT in record.getMessage() for record in caplog.records) >= 2
        assert states(copy) == {"asleep": "waiting", "queued": "queued"}
        with psycopg.connect(copy, autocommit=True) as conn:
            conn.execute("select from durable.adopt()")
        await starting
        async with app.client() as client:
            for name in ("asleep", "queued"):
                assert await client.run(name).result(timeout=30) == f"{name} ends"
        async with asyncio.timeout(30):
            while not (polls.count and fired(copy)):
                await asyncio.sleep(0.1)
        await worker.__aexit__(None, None, None)
        await adapters.__aexit__(None, None, None)

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        asyncio.run(main())
    assert sum("was adopted, after" in record.getMessage() for record in caplog.records) >= 2
    assert done.count("asleep ends") == done.count("queued begins") == 1 and "asleep begins" not in done
    with psycopg.connect(copy, autocommit=True) as conn:
        assert conn.execute("select * from durable.check()").fetchall() == []
    assert states(direct) == {"asleep": "waiting", "queued": "queued"}


def test_a_worker_whose_connection_leads_to_a_copy(
    direct: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a pooler that was pointed at a restored server: the worker claims nothing, halts no run, and
    says what to type; after the adoption it goes on, and is present again."""
    done: list[str] = []
    app = shop(direct, done)
    present = "select count(*) from durable._workers where present"

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start("work", "a", 1.5, id="a")
            while not done:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            conn.execute("update durable._site set system_identifier = 1")
            await client.start("work", "b", 0.0, id="b")
            await asyncio.sleep(3.0)
            assert "a ends" not in done
            assert any(NEXT in record.getMessage() for record in caplog.records)
            conn.execute("select from durable.adopt()")
            assert await run.result(timeout=30) == "a ends"
            assert await client.run("b").result(timeout=30) == "b ends"
            async with asyncio.timeout(30):
                while conn.execute(present).fetchone() != (1,):
                    await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        asyncio.run(main())
    # b was handed off by a session that had compared before, and its lease was void after the adoption
    assert set(done) == {"a begins", "a ends", "b begins", "b ends"}
    assert (done.count("a begins"), done.count("a ends")) == (1, 1)
    assert conn.execute("select id from durable.runs where problem is not null").fetchall() == []


def test_a_new_timeline_is_logged_once(
    direct: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker goes on."""
    done: list[str] = []
    app = shop(direct, done)

    async def main() -> None:
        async with app.client() as client, app.worker():
            await (await client.start("work", "a", 0.0)).result(timeout=20)
            conn.execute("update durable._site set timeline = 7")
            for name in ("b", "c"):
                await (await client.start("work", name, 0.1)).result(timeout=20)
                await asyncio.sleep(1.5)

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        asyncio.run(main())
    assert sum("after timeline 7" in record.getMessage() for record in caplog.records) == 1
