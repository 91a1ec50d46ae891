"""Runs that are taken away, workers that die, and code that no longer fits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest

from pyengine import App, Worker, ctx
from pyengine.core.protocol.turn import RunReport
from pyengine.core.worker.run_state import LeasedRun, Live
from tests.support.idle import until

Connection = psycopg.Connection[tuple[object, ...]]


def test_a_run_that_is_taken_away_is_dropped(dsn: str, conn: Connection) -> None:
    """When the lease is gone the worker's report counts for nothing, and another attempt's result stands."""
    app = App(dsn)
    attempts: list[int] = []

    @app.step
    async def step() -> int:
        attempts.append(len(attempts))
        mine = attempts[-1]
        if mine == 0:
            # the lease ended and was taken at once: between two commits the heartbeat could renew it
            with conn.transaction():
                conn.execute("update durable._tasks set expires_at = 0")
                # a tick may do a portion of a sweep instead
                while conn.execute("select 1 from durable._tasks where pid is not null").fetchone():
                    conn.execute("select durable.tick_v1(100)")
        return mine

    @app.workflow
    async def go() -> int:
        return await step()

    assert app.run(go) == 1
    ended = conn.execute(
        "select type from durable._journal where type::text like '%step_completed'"
    ).fetchall()
    # the second worker recorded that it begins
    assert ended == [("open_step_completed",)]


def test_the_heartbeat_tells_that_a_run_is_lost(dsn: str, conn: Connection) -> None:
    """A step of a run that was taken away is cancelled, although its run reports nothing."""
    conn.execute("select durable.set_setting('lease_ttl_ms', '200')")
    app = App(dsn)
    events: list[str] = []

    @app.step
    async def long() -> str:
        events.append("began")
        if len(events) > 1:
            return "second"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return "first"

    @app.workflow
    async def go() -> str:
        return await long()

    async def main() -> str:
        async with app.client() as client, app.worker():
            run = await client.start(go)
            while not events:
                await asyncio.sleep(0.005)
            conn.execute(
                "update durable._tasks set state = 'pending', pid = null, ttl = null, expires_at = null, "
                "retry_at = 0"
            )
            return await run.result(timeout=20)

    assert asyncio.run(main()) == "second"
    assert "cancelled" in events


def test_leases_are_renewed_while_steps_run(dsn: str, conn: Connection) -> None:
    """A run whose step takes several leases is not taken away, even while the step blocks the event loop."""
    conn.execute("select durable.set_setting('lease_ttl_ms', '900')")
    app = App(dsn)
    attempts: list[str] = []

    @app.step
    async def blocks() -> None:
        attempts.append("blocks")
        time.sleep(2.0)

    @app.step
    async def waits() -> None:
        attempts.append("waits")
        await asyncio.sleep(2.0)

    @app.workflow
    async def go() -> None:
        await blocks()
        await waits()

    stop = threading.Event()

    def tick() -> None:
        with psycopg.connect(dsn, autocommit=True) as other:
            while not stop.wait(0.05):
                other.execute("select durable.tick_v1(100)")

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        app.run(go)
    finally:
        stop.set()
        ticker.join()
    assert attempts == ["blocks", "waits"]


def test_a_blocked_loop_is_reported_with_its_stack(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Code that blocks the event loop is named in the log."""
    app = App(dsn)

    @app.step
    async def culprit() -> None:
        time.sleep(2.0)

    @app.workflow
    async def go() -> None:
        await culprit()

    app.run(go)
    [message] = [
        record.getMessage() for record in caplog.records if "has been blocked" in record.getMessage()
    ][:1]
    assert "in culprit" in message


@pytest.mark.session("presence")
def test_a_worker_that_dies_is_noticed_by_its_presence(dsn: str, conn: Connection) -> None:
    """When a process vanishes, others take its runs long before the leases run out."""
    app = App(dsn)
    attempts: list[int] = []

    @app.step
    async def step() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            await asyncio.sleep(60)
        return "done"

    @app.workflow
    async def go() -> str:
        return await step()

    async def main() -> str:
        async with app.client() as client:
            run = await client.start(go)
            victim = Worker(app.registry, dsn)
            await victim.start()
            await until(conn, "exists (select from durable._workers where present)")
            while not attempts:
                await asyncio.sleep(0.005)
            async with app.worker():
                await vanish(victim)
                result: str = await run.result(timeout=10)
            return result

    assert asyncio.run(main()) == "done"


async def vanish(worker: Worker) -> None:
    """Do to a worker what kill -9 does: its connections close and nothing is said."""
    await worker.abandon()


@pytest.mark.session("presence")
def test_only_the_presence_connection_breaks(dsn: str, conn: Connection) -> None:
    """A worker that loses nothing but its presence session keeps its runs and declares itself again."""
    app = App(dsn)
    attempts: list[int] = []
    release = asyncio.Event()

    @app.step
    async def step() -> int:
        attempts.append(1)
        await release.wait()
        return len(attempts)

    @app.workflow
    async def go() -> int:
        return await step()

    async def main() -> int:
        async with app.client() as client, app.worker():
            run = await client.start(go)
            await until(conn, "exists (select from durable._workers where present)")
            while not attempts:
                await asyncio.sleep(0.005)
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'pyengine heartbeat' and datname = current_database()"
            )
            for _ in range(5):
                conn.execute("select durable.tick_v1(100)")
                await asyncio.sleep(0.3)
            await until(conn, "exists (select from durable._workers where present)")
            release.set()
            return await run.result(timeout=20)

    assert asyncio.run(main()) == 1


def test_changed_code_halts_the_run_and_old_code_continues_it(dsn: str, conn: Connection) -> None:
    """Where code and journal disagree the run is halted, not lost; resume lets it go on with code that
    fits.
    """

    def app_with(first: str) -> App:
        app = App(dsn)

        @app.step(name=first)
        async def step() -> str:
            return first

        @app.workflow
        async def go() -> str:
            result = await step()
            await ctx.sleep(0.05)
            return result

        return app

    async def main() -> str:
        old, new = app_with("one"), app_with("two")
        async with old.client() as client:
            run = await client.start("go")
            async with old.worker():
                while (await run.get()).state != "waiting":
                    await asyncio.sleep(0.005)
            async with new.worker():
                while (await run.get()).state != "halted":
                    await asyncio.sleep(0.005)
            status = await run.get()
            assert "one" in str(status.problem)
            assert "two" in str(status.problem)
            conn.execute("select durable.resume(%s)", (run.id,))
            async with old.worker():
                result: str = await run.result(timeout=20)
                return result

    assert asyncio.run(main()) == "one"


POISON = """
create function public.no_poison() returns trigger language plpgsql as
$$ begin
  if new.data like '%poison%' then raise exception 'poison refused' using errcode = 'CODE'; end if;
  return new;
end $$;
do $$ declare p regclass; begin
  for p in select inhrelid::regclass from pg_inherits where inhparent = 'durable._journal'::regclass loop
    execute format('create trigger no_poison before insert on %s for each row '
                   'execute function public.no_poison()', p);
  end loop;
end $$
"""


def _third_is_poison(dsn: str) -> tuple[App, Any]:
    """An app with a workflow whose run number 3 has a result that a trigger refuses."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> str:
        return "poison" if n == 3 else "good"

    @app.workflow
    async def go(n: int) -> str:
        return await step(n)

    return app, go


def test_what_the_database_refuses_halts_one_run_only(dsn: str, conn: Connection) -> None:
    """A bundle that makes the turn fail is found and its run is halted; the others go on."""
    conn.execute(POISON.replace("CODE", "22023"))
    app, go = _third_is_poison(dsn)

    async def main() -> None:
        async with app.client() as client:
            runs = [await client.start(go, n) for n in range(8)]
            async with app.worker():
                for n, run in enumerate(runs):
                    if n != 3:
                        assert await run.result(timeout=20) == "good"
                while (await runs[3].get()).state != "halted":
                    await asyncio.sleep(0.01)
            assert "poison refused" in str((await runs[3].get()).problem)

    asyncio.run(main())


@pytest.mark.parametrize("code", ["P0001", "38000"])
def test_what_a_trigger_refuses_halts_no_run(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    """A trigger of somebody refuses a row: the log names its run, all others complete, and the run does too
    once the trigger is gone.
    """
    conn.execute(POISON.replace("CODE", code))
    app, go = _third_is_poison(dsn)

    async def main() -> None:
        async with app.client() as client, app.worker():
            runs = [await client.start(go, n) for n in range(8)]
            for n, run in enumerate(runs):
                if n != 3:
                    assert await run.result(timeout=20) == "good"
            while f"run {runs[3].id}: the database refuses" not in caplog.text:
                await asyncio.sleep(0.01)
            assert (await runs[3].get()).state == "running"
            conn.execute("drop function public.no_poison() cascade")
            assert await runs[3].result(timeout=20) == "poison"

    asyncio.run(main())


def test_a_run_that_cannot_move_is_begun_from_its_journal(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is refused again after a replay, while nothing has moved, is given back. Its coroutine is
    ahead of the journal, so the next claim does not go on with it, and nothing of the run is lost."""
    app = App(dsn)
    take_report, spoilt = Live.take_report, []

    def spoil(live: Live, run: LeasedRun) -> RunReport:
        sent = take_report(live, run)
        if sent.commands and len(spoilt) < 2:
            # every number twice: the database refuses that, each time
            sent.commands *= 2  # type: ignore[operator]
            spoilt.append(sent)
        return sent

    monkeypatch.setattr(Live, "take_report", spoil)

    @app.workflow
    async def go() -> str:
        ctx.random()
        await ctx.sleep("10ms")
        return "stale"

    async def play() -> str:
        async with app.worker(), app.client() as client:
            return await (await client.start(go, id="r")).result(timeout=30)

    assert asyncio.run(play()) == "stale"
    assert len(spoilt) == 2
