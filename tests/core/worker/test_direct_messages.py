"""Notes that come late, are lost, forged or unreadable, and who listens for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker
from pyengine.core.client.results import ResultPoller
from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.core.database.listener import Listener
from pyengine.core.database.statements.procedures import IDLE, RELEASE_UNKNOWN, TURN, Procedure
from pyengine.core.worker.ticker import DatabaseClock
from pyengine.core.worker.turn_loop import TurnLoop
from tests.support.idle import apart, five, idle, note_handoffs, until

Connection = psycopg.Connection[tuple[object, ...]]
pytestmark = pytest.mark.session("notes")


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of runs that workers of this process were handed."""
    return note_handoffs(monkeypatch)


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
    plain_handed, plain_run = TurnLoop.handed_off, ReconnectingConnection.run

    @app.step
    async def step() -> int:
        began.append(1)
        await free.wait()
        return 5

    @app.workflow
    async def go() -> int:
        return await step()

    def kept(self: TurnLoop, answer: Any) -> None:
        notes.append(answer)
        if not late:
            plain_handed(self, answer)

    async def main() -> int:
        monkeypatch.setattr(TurnLoop, "handed_off", kept)
        if late:
            # nobody remembers what was given back
            monkeypatch.setattr("pyengine.core.worker.turn_loop._REMEMBERED", 0)
        async with apart(app, dsn) as (worker, client):
            await idle(conn)
            runs: list[Any] = []

            async def run(self: ReconnectingConnection, procedure: Procedure, *args: Any) -> Any:
                if procedure is RELEASE_UNKNOWN and not runs:
                    runs.append(await client.start(go))
                    async with asyncio.timeout(20):
                        while not notes:
                            await asyncio.sleep(0.001)
                return await plain_run(self, procedure, *args)

            monkeypatch.setattr(ReconnectingConnection, "run", run)
            worker.turn_loop.messages_lost()
            async with asyncio.timeout(20):
                while not began:
                    await asyncio.sleep(0.005)
            if late:
                plain_handed(worker.turn_loop, notes[0])
                await asyncio.sleep(0.05)
            free.set()
            return int(await runs[0].result(timeout=20))

    assert asyncio.run(main()) == 5
    assert began == [1]
    assert conn.execute("select task_version from durable._promises").fetchone() == (2,)


def test_an_old_note_does_not_set_the_clock_back(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says when the run began, which may be long ago."""
    app, _ = five(dsn)
    told: list[int] = []
    plain = DatabaseClock.set

    def spied(self: DatabaseClock, now_ms: int) -> None:
        plain(self, now_ms)
        told.append(self.now_ms())

    async def main() -> int:
        async with apart(app, dsn) as (worker, _):
            before_ms = worker.parts.clock.now_ms()
            monkeypatch.setattr(DatabaseClock, "set", spied)
            task = [1, "r", 1, "go", "1", "[]", 0, 1, [], 0, before_ms - 60_000, "default", 0]
            worker.turn_loop.message_came(json.dumps([task, None, None]))
            async with asyncio.timeout(15):
                while len(told) < 2:
                    await asyncio.sleep(0.005)
            return before_ms

    assert asyncio.run(main()) <= min(told)


def test_a_forged_note_is_passed_over(
    dsn: str, conn: Connection, handed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Who knows the channel does not know the word; no statement that others can read shows the word, nor the
    channel once its owner listens to it."""
    app, go = five(dsn)

    async def main() -> None:
        async with apart(app, dsn) as (_, client):
            await client.start(go)
            await idle(conn)
            row = conn.execute("select address from durable._idle_workers").fetchone()
            channel, word = str(row[0]).split(":") if row else ("", "")
            task = json.dumps([[9, "x", 1, "go", "1", "[]", 0, 1, [], 0, 1, "default", 0], None, None])
            for words in ("", task, word[:-1] + task, "0" * 32 + task, f" {word}{task}"):
                conn.execute("select pg_notify(%s, %s)", (channel, words))
            # a note that is right comes after them
            run = await client.start(go)
            await run.result(timeout=20)
            assert "x" not in handed
            shown = (
                "select from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and query ~ '{}'"
            )
            assert word and conn.execute(shown.format(word).encode()).fetchall() == []
            # the channel can be seen for as long as a session begins to listen to it
            await until(conn, f"not exists ({shown.format('durable_to_[0-9a-f]')})")

    asyncio.run(main())
    assert caplog.text.count("a note cannot be read") == 0


def test_who_is_gone_is_listened_for_no_more(dsn: str, conn: Connection) -> None:
    """Clients and workers that come and go with one listener leave no channel behind."""
    app, go = five(dsn)

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
                while len(listener._channels) > 3:
                    await asyncio.sleep(0.01)
            heard = await listener._connection.use(
                lambda each: each.fetch("select pg_listening_channels() as name")
            )
            return {row["name"] for row in heard}

    channels = asyncio.run(main())
    assert {"durable_ready", "durable_settled"} < channels and len(channels) == 3


def test_a_note_that_gets_lost_is_made_good(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's connection for hints breaks with a note under way: the run is given back as soon as there
    is a new one, long before its lease ends.
    """
    app = App(dsn)
    lost: list[str] = []
    plain = Listener._on_message

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
        monkeypatch.setattr(Listener, "_on_message", loses)
        async with apart(app, dsn) as (_, client):
            await idle(conn)
            return await (await client.start(go, id="r")).result(timeout=12)

    assert asyncio.run(main()) == 5
    assert len(lost) == 1
    assert conn.execute("select task_version from durable._promises where id = 'r'").fetchone() == (2,)


def test_words_that_nobody_can_read_are_passed_over(
    dsn: str, conn: Connection, handed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of another release, say, to a worker and to a client: both log it and go on."""
    app, go = five(dsn)

    async def main() -> int:
        async with apart(app, dsn) as (_, client):
            await (await client.start(go)).result(timeout=20)
            await idle(conn)
            waiting: ResultPoller = client._transport._results  # type: ignore[attr-defined]
            async with asyncio.timeout(15):
                while waiting.address is None:
                    await asyncio.sleep(0.005)
            conn.execute("select durable._send_message(i.address, '[1]') from durable._idle_workers i")
            conn.execute("select durable._send_message(%s, '{')", (waiting.address,))
            async with asyncio.timeout(15):
                while caplog.text.count("cannot be read") < 2:
                    await asyncio.sleep(0.005)
            await idle(conn)
            return await (await client.start(go)).result(timeout=20)

    assert asyncio.run(main()) == 5


def test_behind_a_pooler_nobody_rests(
    dsn: str, conn: Connection, handed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes come by LISTEN, for which there is no session: no worker says that it rests, no client that it
    would hear.
    """
    app = App(dsn)
    asked: list[str] = []
    monkeypatch.setattr("pyengine.core.database.connection.Database.hints", property(lambda self: False))
    plain = ReconnectingConnection.run

    async def noted(self: ReconnectingConnection, procedure: Procedure, *args: Any) -> Any:
        asked.append(procedure.verb)
        return await plain(self, procedure, *args)

    monkeypatch.setattr(ReconnectingConnection, "run", noted)

    @app.workflow
    async def go() -> int:
        return 5

    async def main() -> int:
        async with apart(app, dsn) as (_, client):
            found = await (await client.start(go)).result(timeout=20)
            assert client._transport._results.address is None
            await asyncio.sleep(0.1)
            return found

    assert asyncio.run(main()) == 5
    assert TURN.verb in asked and IDLE.verb not in asked and handed == []
