"""Workers at rest: what starts hand to them, and what becomes of it when notes get lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker, ctx
from pyengine.connection import Database, Link
from pyengine.errors import RunFailed, RunTimedOut
from pyengine.exchange import Exchange
from pyengine.housekeeping import DatabaseClock
from pyengine.listen import _APART_S, Listener
from pyengine.procedures import RELEASE_UNKNOWN, Procedure
from pyengine.resting import Rest
from pyengine.results import Waiting
from tests.support.turns import Send, carries, intercept

Connection = psycopg.Connection[tuple[object, ...]]
pytestmark = pytest.mark.session("notes")


async def until(conn: Connection, condition: str) -> None:
    """Wait until a condition on the database holds."""
    async with asyncio.timeout(15):
        while conn.execute(f"select {condition}").fetchone() != (True,):  # type: ignore[arg-type]
            await asyncio.sleep(0.005)


async def resting(conn: Connection, workers: int = 1) -> None:
    """Wait until so many workers are believed to rest, and until a start may tell of itself with its
    commit again.
    """
    await asyncio.sleep(_APART_S)
    await until(conn, f"(select count(*) from durable._resting where ends_at is not null) = {workers}")


@asynccontextmanager
async def apart(app: App, dsn: str, **options: Any) -> AsyncIterator[tuple[Worker, Client]]:
    """A worker and a client as in two processes: each hears for itself."""
    async with Worker(app.registry, dsn, **options) as worker, Client(dsn, registry=app.registry) as client:
        yield worker, client


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of runs that workers of this process were handed."""
    ids: list[str] = []
    plain = Exchange._handed

    def noted(self: Exchange, answer: Any) -> None:
        ids.extend(task.id for task in answer.tasks)
        plain(self, answer)

    monkeypatch.setattr(Exchange, "_handed", noted)
    return ids


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has asked the database something."""
    roles: list[str] = []
    use = Link.use

    async def noted(self: Link, action: Any) -> Any:
        roles.append(self._role)
        return await use(self, action)

    monkeypatch.setattr(Link, "use", noted)
    return roles


def test_a_lone_run_takes_two_statements(
    dsn: str, conn: Connection, handed: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start and its end: the worker claims nothing, and the client looks for nothing."""
    monkeypatch.setattr("pyengine.listen._AFTER_HINT_S", (0.0, 30.0, 30.0))
    app = App(dsn)

    @app.workflow
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> list[str]:
        async with apart(app, dsn) as (_, client):
            assert await (await client.start(double, 1)).result(timeout=20) == 2
            for n in range(20):
                await resting(conn)
                await asyncio.sleep(0.1)
                said.clear()
                assert await (await client.start(double, n)).result(timeout=20) == 2 * n
                found = [role for role in said if role in ("client", "turn", "listen")]
                # on a machine that stops for some milliseconds a look may fall due
                if len(found) == 2:
                    break
            return found

    assert asyncio.run(main()) == ["client", "turn"]
    assert handed


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
                await resting(conn)
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


def test_a_result_that_is_asked_for_later_is_found(dsn: str, conn: Connection, handed: list[str]) -> None:
    """The note came when nobody waited; who asks then, and asks twice, looks."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 7

    async def main() -> None:
        async with apart(app, dsn) as (_, client):
            for _ in range(2):
                await resting(conn)
                run = await client.start(go)
                await until(conn, f"(select state from durable._promises where id = '{run.id}') = 'resolved'")
                await asyncio.sleep(0.02)
                first, second = run.result(timeout=20), run.result(timeout=20)
                assert await asyncio.gather(first, second) == [7, 7]

    asyncio.run(main())
    assert len(handed) == 2


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
            await resting(conn)
            return await (await client.start(go, 1)).result(timeout=20)

    assert asyncio.run(main()) == 40
    assert handed


def test_its_deadline_is_kept(dsn: str, conn: Connection, handed: list[str]) -> None:
    """No turn has told the worker of it, the note has."""
    app = App(dsn)

    @app.step
    async def long() -> None:
        await asyncio.sleep(60)

    @app.workflow
    async def go() -> None:
        await long()

    async def main() -> None:
        async with apart(app, dsn) as (worker, client):
            await resting(conn)
            run = await client.start(go, timeout="300ms")
            await until(conn, f"exists (select from durable._tasks where id = '{run.id}' and version = 1)")
            async with asyncio.timeout(30):
                while len(worker._housekeeper._timers) < 1:
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
    monkeypatch.setattr(Rest, "withdraw", lambda self: None)
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
            await resting(conn)
            conn.execute("select durable.start('go', '[1]', id => 'claimed')")
            await until(conn, "(select state = 'acquired' from durable._tasks where id = 'claimed')")
            await resting(conn)
            conn.execute("listen durable_ready")
            second = await client.start(go, 2, id="handed")
            await until(
                conn,
                "(select state = 'pending' and version = 1 from durable._tasks where id = 'handed')",
            )
            async with asyncio.timeout(15):
                while not list(conn.notifies(timeout=0)):
                    await asyncio.sleep(0.005)
            free.set()
            first = client.run("claimed", go)
            return [await first.result(timeout=20), await second.result(timeout=20)]

    assert asyncio.run(main()) == [1, 2]
    assert handed == ["handed"] and set(most) == {1}
    lost = conn.execute("select count(*) from durable._journal where type in ('r', 'i')").fetchone()
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
            await resting(conn)
            conn.execute("select durable.start('go', id => 'claimed')")
            await until(conn, "(select ends_at <= durable._now_ms() from durable._resting)")
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
                await resting(conn)
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


@pytest.mark.parametrize("late", [False, True])
def test_a_note_of_what_was_given_back_counts_for_nothing(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The note comes while the worker gives back what it does not know, or when it has claimed the run anew:
    its step runs once, under the second lease.
    """
    app = App(dsn)
    began: list[int] = []
    free = asyncio.Event()
    notes: list[Any] = []
    plain_handed, plain_run = Exchange._handed, Link.run

    @app.step
    async def step() -> int:
        began.append(1)
        await free.wait()
        return 5

    @app.workflow
    async def go() -> int:
        return await step()

    def kept(self: Exchange, answer: Any) -> None:
        notes.append(answer)
        if not late:
            plain_handed(self, answer)

    async def main() -> int:
        monkeypatch.setattr(Exchange, "_handed", kept)
        async with apart(app, dsn) as (worker, client):
            await resting(conn)
            runs: list[Any] = []

            async def run(self: Link, procedure: Procedure, *args: Any) -> Any:
                if procedure is RELEASE_UNKNOWN and not runs:
                    runs.append(await client.start(go))
                    async with asyncio.timeout(20):
                        while not notes:
                            await asyncio.sleep(0.001)
                return await plain_run(self, procedure, *args)

            monkeypatch.setattr(Link, "run", run)
            worker._exchange._missed()
            async with asyncio.timeout(20):
                while not began:
                    await asyncio.sleep(0.005)
            if late:
                worker._exchange._given_back.clear()
                plain_handed(worker._exchange, notes[0])
                await asyncio.sleep(0.05)
            free.set()
            return int(await runs[0].result(timeout=20))

    assert asyncio.run(main()) == 5
    assert began == [1]
    assert conn.execute("select task_version from durable._promises").fetchone() == (2,)


def test_an_old_note_does_not_set_the_clock_back(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says when the run began, which may be long ago."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 5

    told: list[int] = []
    plain = DatabaseClock.set

    def spied(self: DatabaseClock, now_ms: int) -> None:
        plain(self, now_ms)
        told.append(self.now_ms())

    async def main() -> int:
        async with apart(app, dsn) as (worker, _):
            before_ms = worker._clock.now_ms()
            monkeypatch.setattr(DatabaseClock, "set", spied)
            task = [1, "r", 1, "go", "1", "[]", 0, 1, [], 0, before_ms - 60_000, "default", 0]
            worker._rest._noted(json.dumps([task, None, None]))
            async with asyncio.timeout(15):
                while len(told) < 2:
                    await asyncio.sleep(0.005)
            return before_ms

    assert asyncio.run(main()) <= min(told)


def test_a_forged_note_is_passed_over(
    dsn: str, conn: Connection, handed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Who knows the channel does not know the word; and no statement that others can read shows either."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> None:
        async with apart(app, dsn) as (_, client):
            await client.start(go)
            await resting(conn)
            row = conn.execute("select address from durable._resting").fetchone()
            channel, word = str(row[0]).split(":") if row else ("", "")
            task = json.dumps([[9, "x", 1, "go", "1", "[]", 0, 1, [], 0, 1, "default", 0], None, None])
            for words in ("", task, word[:-1] + task, "0" * 32 + task, f" {word}{task}"):
                conn.execute("select pg_notify(%s, %s)", (channel, words))
            await asyncio.sleep(0.1)
            assert "x" not in handed
            shown = (
                "select count(*) from pg_stat_activity "
                "where query ~ 'durable_to_[0-9a-f]' and pid <> pg_backend_pid()"
            )
            assert conn.execute(shown).fetchone() == (0,)

    asyncio.run(main())
    assert caplog.text.count("a note cannot be read") == 0


def test_who_is_gone_is_listened_for_no_more(dsn: str, conn: Connection) -> None:
    """Clients and workers that come and go with one listener leave no channel behind."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> set[str]:
        database = Database(dsn)
        listener = Listener(database)
        async with Client(database, registry=app.registry, listener=listener) as stays:
            async with Worker(app.registry, database, listener=listener):
                for _ in range(5):
                    async with Client(database, registry=app.registry, listener=listener) as goes:
                        assert await (await goes.start(go)).result(timeout=20) == 5
                assert await (await stays.start(go)).result(timeout=20) == 5
            async with asyncio.timeout(20):
                while len(listener._heard_on) > 3:
                    await asyncio.sleep(0.01)
            heard = await listener._link.use(
                lambda each: each.fetch("select pg_listening_channels() as name")
            )
            return {row["name"] for row in heard}

    channels = asyncio.run(main())
    assert {"durable_ready", "durable_settled"} < channels and len(channels) == 3


def test_nothing_is_handed_to_a_loop_that_is_blocked(dsn: str, conn: Connection) -> None:
    """Its heartbeat, in a thread of its own, says that it does not rest."""
    app = App(dsn)
    seen: list[object] = []

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> None:
        async with apart(app, dsn):
            await resting(conn)
            over = time.monotonic() + 20
            while not seen and time.monotonic() < over:
                time.sleep(0.05)
                seen.extend(conn.execute("select 1 from durable._resting where ends_at <= durable._now_ms()"))

    asyncio.run(main())
    assert seen


def test_a_note_that_gets_lost_is_made_good(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's connection for hints breaks with a note under way: the run is given back as soon as there
    is a new one, long before its lease ends.
    """
    app = App(dsn)
    lost: list[str] = []
    plain = Listener._received

    @app.workflow
    async def go() -> int:
        return 5

    def loses(self: Listener, session: Any, pid: int, channel: str, words: str) -> None:
        if lost:
            plain(self, session, pid, channel, words)
            return
        lost.append(words)
        session.terminate()

    async def main() -> int:
        monkeypatch.setattr(Listener, "_received", loses)
        async with apart(app, dsn) as (_, client):
            await resting(conn)
            return await (await client.start(go, id="r")).result(timeout=12)

    assert asyncio.run(main()) == 5
    assert len(lost) == 1
    assert conn.execute("select task_version from durable._promises where id = 'r'").fetchone() == (2,)


def test_words_that_nobody_can_read_are_passed_over(
    dsn: str, conn: Connection, handed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of another release, say, to a worker and to a client: both log it and go on."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> int:
        async with apart(app, dsn) as (_, client):
            await (await client.start(go)).result(timeout=20)
            await resting(conn)
            waiting: Waiting = client._asker._waiting  # type: ignore[attr-defined]
            async with asyncio.timeout(15):
                while waiting.reply is None:
                    await asyncio.sleep(0.005)
            conn.execute("select durable._note(r.address, '[1]') from durable._resting r")
            conn.execute("select durable._note(%s, '{')", (waiting.reply,))
            async with asyncio.timeout(15):
                while caplog.text.count("a note cannot be read") < 2:
                    await asyncio.sleep(0.005)
            await resting(conn)
            return await (await client.start(go)).result(timeout=20)

    assert asyncio.run(main()) == 5


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
            await resting(conn)
            stopping = asyncio.create_task(worker.stop())
            await until(conn, "(select bool_and(ends_at <= durable._now_ms()) from durable._resting)")
            handed.clear()
            await client.start(go, id="later")
            assert conn.execute("select state from durable._tasks where id = 'later'").fetchone() == (
                "pending",
            )
            unwind.set()
            await stopping

    asyncio.run(main())
    assert handed == []
    assert conn.execute("select count(*) from durable._resting").fetchone() == (0,)
    assert conn.execute("select distinct state, crashes from durable._tasks").fetchall() == [("pending", 0)]


def test_two_workers_of_a_process_get_their_own(dsn: str, conn: Connection, handed: list[str]) -> None:
    """They share a listener, and each has a channel of its own."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> list[int]:
        async with app.client() as client, app.worker() as one, app.worker() as other:
            assert one._listener is other._listener
            await resting(conn, 2)
            runs = [await client.start(go) for _ in range(30)]
            return [await run.result(timeout=20) for run in runs]

    assert asyncio.run(main()) == [5] * 30
    assert handed


def test_behind_a_pooler_nobody_rests(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes come by LISTEN, for which there is no session."""
    app = App(dsn)
    monkeypatch.setattr("pyengine.connection.Database.hints", property(lambda self: False))

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> int:
        async with apart(app, dsn) as (_, client):
            found = await (await client.start(go)).result(timeout=20)
            await asyncio.sleep(0.1)
            return found

    assert asyncio.run(main()) == 5
    assert conn.execute("select count(*) from durable._resting").fetchone() == (0,)
