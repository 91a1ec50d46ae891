"""Workers at rest: what starts hand to them, and when they do not rest."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker, ctx
from pyengine.core.client.results import ResultPoller
from pyengine.core.database.connection import ReconnectingConnection
from pyengine.core.worker.handoff import Handoff
from pyengine.core.worker.ticker import Ticker
from pyengine.errors import RunFailed, RunTimedOut
from tests.support.idle import apart, idle, note_handoffs, until
from tests.support.turns import Send, carries, intercept

Connection = psycopg.Connection[tuple[object, ...]]
pytestmark = pytest.mark.session("notes")


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of runs that workers of this process were handed."""
    return note_handoffs(monkeypatch)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has asked the database something."""
    roles: list[str] = []
    use = ReconnectingConnection.use

    async def noted(self: ReconnectingConnection, action: Any) -> Any:
        roles.append(self._role)
        return await use(self, action)

    monkeypatch.setattr(ReconnectingConnection, "use", noted)
    return roles


def test_a_lone_run_takes_two_statements(
    dsn: str, conn: Connection, handed: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start and its end: the worker claims nothing, and the client looks for nothing."""
    monkeypatch.setattr("pyengine.core.database.poll_schedule._AFTER_HINT_S", (0.0, 30.0, 30.0))
    app = App(dsn)

    @app.workflow
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> list[str]:
        async with apart(app, dsn) as (_, client):
            assert await (await client.start(double, 1)).result(timeout=20) == 2
            found = []
            for n in range(20):
                await idle(conn)
                said.clear()
                assert await (await client.start(double, n)).result(timeout=20) == 2 * n
                found.append(" ".join(role for role in said if role in ("client", "turn", "listen")))
            return found

    # on a machine that stops for some milliseconds a look may fall due
    assert asyncio.run(main()).count("client turn") >= 15
    assert len(handed) >= 20


def test_every_lone_run_is_handed_over(dsn: str, conn: Connection, handed: list[str]) -> None:
    """One after the other, each when the worker rests again; with the results that they return and the
    errors that they raise.
    """
    app = App(dsn)

    @app.workflow
    async def go(n: int) -> dict[str, Any]:
        if n % 3 == 0:
            raise ValueError(f"no {n}\n\U0001f600")
        return {"n": [n, None, "\U0001f600"]}

    async def main() -> list[str]:
        ids = []
        async with apart(app, dsn) as (_, client):
            for n in range(12):
                await idle(conn)
                run = await client.start(go, n)
                ids.append(run.id)
                if n % 3:
                    assert await run.result(timeout=20) == {"n": [n, None, "\U0001f600"]}
                    continue
                with pytest.raises(RunFailed) as failed:
                    await run.result(timeout=20)
                assert str(failed.value.__cause__) == f"no {n}\n\U0001f600"
        return ids

    assert asyncio.run(main()) == handed


def test_starts_without_a_pause_are_handed_over_too(dsn: str, handed: list[str], said: list[str]) -> None:
    """Where each waits for the result of the one before: the turn that ends a run lets the worker rest
    again with its commit, so a run takes two statements, however soon the next one comes.
    """
    app = App(dsn)

    @app.workflow
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> list[int]:
        async with apart(app, dsn) as (_, client):
            counts = []
            for _ in range(5):
                said.clear()
                for n in range(40):
                    assert await (await client.start(double, n)).result(timeout=20) == 2 * n
                counts.append(len([role for role in said if role in ("client", "turn", "side")]))
            return counts

    # a start that comes too soon for a machine that stops is claimed, and others after it until one is tried
    assert min(asyncio.run(main())) <= 90
    assert len(handed) >= 120


def test_a_result_that_is_asked_for_later_is_found(
    dsn: str, conn: Connection, handed: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note came when nobody waited, also if the worker was about to look for other runs as this one
    ended: who asks then gets it without a look, who asks again looks; and of what nobody ever asks for only
    the last is kept.
    """
    monkeypatch.setattr("pyengine.core.database.poll_schedule._AFTER_HINT_S", (0.0, *[0.005] * 10_000))
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 7

    async def main() -> None:
        async with apart(app, dsn) as (_, client):
            assert await (await client.start(go)).result(timeout=20) == 7
            waiting: ResultPoller = client._transport._results  # type: ignore[attr-defined]
            for _ in range(20):
                await idle(conn)
                run = await client.start(go)
                async with asyncio.timeout(15):
                    while run.id not in waiting._unclaimed:
                        await asyncio.sleep(0.005)
                await asyncio.sleep(0.02)
                said.clear()
                assert await run.result(timeout=20) == 7
                assert "client" not in said
                first, second = run.result(timeout=20), run.result(timeout=20)
                assert await asyncio.gather(first, second) == [7, 7]
                assert "client" in said
            for number in range(1000):
                waiting._on_message(json.dumps([f"x{number}", "resolved", "1", None]))
            assert len(waiting._unclaimed) == 100 and "x999" in waiting._unclaimed

    asyncio.run(main())
    assert len(handed) >= 20


def test_what_is_handed_over_goes_on_as_any_run(dsn: str, conn: Connection, handed: list[str]) -> None:
    """Steps, a child, a nap that lets go of it, a next generation: the end is found, and told by a hint."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def child(n: int) -> int:
        return await step(n)

    @app.workflow
    async def go(n: int) -> int:
        first = await step(n)
        second = await child(n)
        await ctx.sleep(0.05)
        if n:
            ctx.continue_as_new(n - 1)
        return first + second + 40

    async def main() -> int:
        async with apart(app, dsn) as (_, client):
            await client.start(child, 1)
            await idle(conn)
            return await (await client.start(go, 1)).result(timeout=20)

    assert asyncio.run(main()) == 40
    assert handed


def test_its_deadline_is_kept(
    dsn: str, conn: Connection, handed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn has told the worker of it, the note has."""
    app = App(dsn)
    timers: list[float] = []
    plain = Ticker.record_timer

    def noted(self: Ticker, due_s: float) -> None:
        timers.append(due_s)
        plain(self, due_s)

    monkeypatch.setattr(Ticker, "record_timer", noted)

    @app.step
    async def long() -> None:
        await asyncio.sleep(60)

    @app.workflow
    async def go() -> None:
        await long()

    async def main() -> None:
        async with apart(app, dsn) as (_, client):
            await idle(conn)
            run = await client.start(go, timeout="300ms")
            await until(conn, f"exists (select from durable._tasks where id = '{run.id}' and version = 1)")
            async with asyncio.timeout(30):
                while not timers:
                    await asyncio.sleep(0.001)
            with pytest.raises(RunTimedOut):
                await run.result(timeout=20)

    asyncio.run(main())
    assert len(handed) == 1


def test_a_worker_of_one_slot_takes_one_run_at_a_time(
    dsn: str, conn: Connection, handed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is believed to rest when it has claimed a run gives back the one that is handed to it,
    tells others of that, and nothing counts as a crash.
    """
    monkeypatch.setattr(Handoff, "withdraw", lambda self: None)
    app = App(dsn)
    free = asyncio.Event()
    running: list[int] = []
    most: list[int] = []

    @app.step
    async def step(n: int) -> int:
        running.append(n)
        most.append(len(running))
        await free.wait()
        running.remove(n)
        return n

    @app.workflow
    async def go(n: int) -> int:
        return await step(n)

    async def main() -> list[int]:
        async with apart(app, dsn, concurrency=1) as (_, client):
            await idle(conn)
            conn.execute("select durable.start('go', '[1]', id => 'claimed')")
            await until(conn, "(select state = 'acquired' from durable._tasks where id = 'claimed')")
            await idle(conn)
            conn.execute("listen durable_ready")
            second = await client.start(go, 2, id="handed")
            await until(
                conn,
                "(select state = 'pending' and version = 1 from durable._tasks where id = 'handed')",
            )
            async with asyncio.timeout(15):
                # older releases of psycopg look for none without any time
                while not list(conn.notifies(timeout=0.005)):
                    await asyncio.sleep(0.005)
            free.set()
            first = client.run("claimed", go)
            return [await first.result(timeout=20), await second.result(timeout=20)]

    assert asyncio.run(main()) == [1, 2]
    assert handed == ["handed"] and set(most) == {1}
    lost = conn.execute(
        "select count(*) from durable._journal where type in ('open_attempt_failed', 'child_run_interrupted')"
    ).fetchone()
    assert lost == (0,)


def test_who_has_no_slot_left_rests_no_more(dsn: str, conn: Connection, handed: list[str]) -> None:
    """What it has claimed fills it: what is started next is for others."""
    app = App(dsn)
    free = asyncio.Event()

    @app.step
    async def step() -> None:
        await free.wait()

    @app.workflow
    async def go() -> None:
        await step()

    async def main() -> None:
        async with apart(app, dsn, concurrency=1) as (_, client):
            await idle(conn)
            conn.execute("select durable.start('go', id => 'claimed')")
            await until(conn, "(select idle_until <= durable._now_ms() from durable._idle_workers)")
            run = await client.start(go)
            assert handed == []
            free.set()
            await run.result(timeout=20)

    asyncio.run(main())


def test_a_claim_under_way_has_its_slots(
    dsn: str, conn: Connection, handed: list[str], request: pytest.FixtureRequest
) -> None:
    """A note that comes while the only slot is being claimed for waits for the answer: with a run in it, what
    was handed over is given back; without one, it is taken.
    """
    app = App(dsn)
    running: list[str] = []
    most: list[int] = []
    actions: list[Any] = []

    @app.step
    async def step(name: str) -> str:
        running.append(name)
        most.append(len(running))
        await asyncio.sleep(0.02)
        running.remove(name)
        return name

    @app.workflow
    async def go(name: str) -> str:
        return await step(name)

    async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
        if actions and not carries(sent):
            await actions.pop()()
        return await send()

    request.addfinalizer(intercept(watch))

    async def main() -> None:
        async with apart(app, dsn, concurrency=1) as (_, client):
            for rival in (True, False):
                await idle(conn)
                runs = []

                async def start_two(rival: bool = rival, runs: list[Any] = runs) -> None:
                    runs.append(await client.start(go, "handed"))
                    if rival:
                        conn.execute("select durable.start('go', '[\"claimed\"]', id => 'claimed')")
                    await asyncio.sleep(0.05)

                actions.append(start_two)
                conn.execute("select durable.hint_v1(true, false)")
                async with asyncio.timeout(20):
                    while not runs or actions:
                        await asyncio.sleep(0.005)
                assert await runs[0].result(timeout=20) == "handed"
                if rival:
                    assert await client.run("claimed", go).result(timeout=20) == "claimed"

    asyncio.run(main())
    assert len(handed) == 2 and set(most) == {1}
    versions = conn.execute("select task_version from durable._promises where id <> 'claimed' order by 1")
    assert versions.fetchall() == [(1,), (2,)]


def test_nothing_is_handed_to_a_loop_that_is_blocked(dsn: str, conn: Connection) -> None:
    """Its heartbeat, in a thread of its own, says that it does not rest."""
    app = App(dsn)
    seen: list[object] = []

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> None:
        async with apart(app, dsn):
            await idle(conn)
            over = time.monotonic() + 20
            while not seen and time.monotonic() < over:
                time.sleep(0.05)
                seen.extend(
                    conn.execute("select 1 from durable._idle_workers where idle_until <= durable._now_ms()")
                )

    asyncio.run(main())
    assert seen


def test_who_stops_rests_no_more(dsn: str, conn: Connection, handed: list[str]) -> None:
    """While its steps unwind nothing is handed to it; what is started then waits for others."""
    app = App(dsn)
    began, unwind = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> int:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await unwind.wait()
        return 1

    @app.workflow
    async def hangs() -> int:
        return await slow()

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> None:
        worker = Worker(app.registry, dsn)
        async with Client(dsn, registry=app.registry) as client:
            await worker.start()
            await client.start(hangs)
            await began.wait()
            await idle(conn)
            stopping = asyncio.create_task(worker.stop())
            await until(conn, "(select bool_and(idle_until <= durable._now_ms()) from durable._idle_workers)")
            handed.clear()
            await client.start(go, id="later")
            assert conn.execute("select state from durable._tasks where id = 'later'").fetchone() == (
                "pending",
            )
            unwind.set()
            await stopping

    asyncio.run(main())
    assert handed == []
    assert conn.execute("select count(*) from durable._idle_workers").fetchone() == (0,)
    assert conn.execute("select distinct state, crashes from durable._tasks").fetchall() == [("pending", 0)]


def test_two_workers_of_a_process_get_their_own(dsn: str, conn: Connection, handed: list[str]) -> None:
    """They share a listener, and each has an address of its own: of two runs that fill them each gets one."""
    app = App(dsn)
    free = asyncio.Event()

    @app.step
    async def step() -> int:
        await free.wait()
        return 5

    @app.workflow
    async def go() -> int:
        return await step()

    async def main() -> list[int]:
        alone = {"concurrency": 1}
        async with app.client() as client, app.worker(**alone) as one, app.worker(**alone) as other:
            assert one.parts.listener is other.parts.listener
            await idle(conn, 2)
            runs = [await client.start(go)]
            await idle(conn, 1)
            runs.append(await client.start(go))
            async with asyncio.timeout(15):
                while len(handed) < 2:
                    await asyncio.sleep(0.005)
            assert handed == [run.id for run in runs]
            assert conn.execute("select count(distinct pid) from durable._tasks").fetchone() == (2,)
            free.set()
            return [await run.result(timeout=20) for run in runs]

    assert asyncio.run(main()) == [5, 5]
