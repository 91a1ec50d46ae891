"""The goodbye of a worker is its last word: nothing of it stays registered or leased."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.database import registered as registered_module
from pyengine.core.worker.turn_loop import TurnLoop
from tests.support.broken_parts import Fault

Connection = psycopg.Connection[tuple[object, ...]]
# the first hello inserts the row of a worker; what comes later, in whatever session, writes it again
SLOW = """
create function public.slow() returns trigger language plpgsql as
$$ begin perform pg_sleep(0.4); return new; end $$;
create trigger slow before {} on durable._workers for each row execute function public.slow();
"""


def left(conn: Connection) -> list[tuple[object, ...]]:
    """What is registered or leased, once the server has ended all that it was asked for."""
    ours = (
        "select count(*) = 0 from pg_stat_activity "
        "where datname = current_database() and application_name like 'pyengine%'"
    )
    ends_s = time.monotonic() + 60
    while conn.execute(ours).fetchone() != (True,):
        assert time.monotonic() < ends_s
        time.sleep(0.02)
    return [
        *conn.execute("select 'worker', id from durable._workers"),
        *conn.execute("select 'task', id from durable._tasks where pid is not null"),
    ]


@pytest.mark.session("sessions are counted")
def test_a_hello_under_way_is_no_last_word(dsn: str, conn: Connection) -> None:
    """A worker that stops while it says hello, or shows that it is there, is not registered after it."""
    conn.execute(SLOW.format("update"))
    app = App(dsn)

    @app.workflow
    async def go() -> None:
        pass

    async def main() -> None:
        async with app.worker():
            await writes(conn)

    asyncio.run(main())
    assert left(conn) == []


async def writes(conn: Connection) -> None:
    """Wait until a session writes the row of a worker again."""
    asked = "select count(*) > 0 from pg_stat_activity where wait_event = 'PgSleep'"
    async with asyncio.timeout(60):
        while conn.execute(asked).fetchone() != (True,):
            await asyncio.sleep(0.01)


@pytest.mark.session("sessions are counted")
def test_a_start_that_is_given_up_leaves_nothing(dsn: str, conn: Connection) -> None:
    """It was cancelled while its hello was on its way."""
    conn.execute(SLOW.format("insert"))
    app = App(dsn)

    @app.workflow
    async def go() -> None:
        pass

    async def main() -> None:
        async def work() -> None:
            async with app.worker():
                await asyncio.sleep(600)

        working = asyncio.create_task(work())
        await writes(conn)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    registered_module._HELLO_ENDS_S, before = 30.0, registered_module._HELLO_ENDS_S
    try:
        asyncio.run(main())
    finally:
        registered_module._HELLO_ENDS_S = before
    assert left(conn) == []


@pytest.mark.session("sessions are counted")
def test_a_part_that_failed_keeps_nothing_back(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What works through answers has died with one at hand: its runs are given back all the same."""
    app = App(dsn)
    begun: list[int] = []

    async def apply(self: TurnLoop) -> None:
        while not self._answers:
            await self._returned.wait()
            self._returned.clear()
        begun.append(len(self._answers))
        raise Fault("a fault")

    monkeypatch.setattr(TurnLoop, "apply", apply)

    @app.workflow
    async def go() -> None:
        await ctx.sleep("1h")

    async def main() -> None:
        async with app.client() as client:
            await client.start(go)
            async with app.worker():
                await asyncio.sleep(600)

    with pytest.raises(Fault):
        asyncio.run(main())
    assert begun
    assert left(conn) == []
