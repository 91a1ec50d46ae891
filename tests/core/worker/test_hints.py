"""When workers and clients look: after hints, without hints, and when there is nothing to see."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, ctx
from pyengine.core.client import asyncpg_transport
from pyengine.core.database import listener, poll_schedule
from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.core.database.listener import Listener
from pyengine.core.database.poll_schedule import NotifyThrottle, PollSchedule
from pyengine.core.worker import handoff, ticker
from pyengine.core.worker.handoff import Handoff
from tests.support.idle import idle, postpone_polls

Connection = psycopg.Connection[tuple[object, ...]]


def pauses(looks: PollSchedule, now: float, count: int) -> list[float]:
    """Look so many times without finding anything, and return the pauses between."""
    found = []
    for _ in range(count):
        at = looks.at
        looks.polled(at, found=False)
        found.append(round(looks.at - at, 3))
    return found


def test_polls_that_follow_to_be_sure_are_told_from_hints() -> None:
    """A turn that ends a run registers its worker as idle although one of them is due; a hint, or rows that
    the last poll left, come first.
    """
    looks = PollSchedule(longest_s=5.0)
    looks.hinted(100.0)
    assert looks.is_hinted(100.0)
    looks.polled(100.0, found=True)
    assert (looks.is_hinted(looks.at), looks.at) == (False, 100.005)
    looks.hinted(100.002)
    assert looks.is_hinted(100.002)


def test_polls_after_a_hint_are_frequent_and_then_slow_down() -> None:
    """At once, after 5, 20, 30, 80, 320 ms and 1 s, then with pauses that grow to the longest one and stay
    there. The fourth look comes soon after SQL may hint again, which is after 50 ms.
    """
    looks = PollSchedule(longest_s=5.0)
    looks.hinted(100.0)
    assert looks.at == 100.0
    assert pauses(looks, 100.0, 6) == [0.005, 0.02, 0.03, 0.08, 0.32, 1.0]
    later = pauses(looks, 100.0, 20)
    assert all(0.8 <= one <= 5.0 for one in later)
    assert min(later[5:]) >= 4.0


def test_a_hint_makes_the_next_poll_earlier_and_never_later() -> None:
    """Hints that come while one is about to look change nothing."""
    looks = PollSchedule(longest_s=5.0)
    looks.hinted(100.0)
    looks.polled(100.0, found=False)
    looks.hinted(100.001)
    assert looks.at == 100.001
    looks.hinted(100.5)
    assert looks.at == 100.001


def test_the_first_poll_for_a_new_run_is_soon() -> None:
    """After 5 ms, not at once, and without putting off what others wait for; a hint comes before that."""
    looks = PollSchedule(longest_s=5.0)
    looks.wait_begun(100.0, alone=True)
    assert looks.at == 100.005
    looks.hinted(100.001)
    assert looks.at == 100.001
    looks.wait_begun(100.0015, alone=False)
    assert looks.at == 100.001
    looks.wait_begun(100.0015, alone=True)
    assert round(looks.at, 4) == 100.0065
    assert pauses(looks, looks.at, 2) == [0.02, 0.03]
    looks.wait_begun(100.2, alone=False)
    assert round(looks.at, 4) == 100.0565
    pauses(looks, looks.at, 20)
    looks.wait_begun(101.0, alone=False)
    assert looks.at == 101.005


def test_only_one_hint_per_interval_is_sent_with_its_commit() -> None:
    """The first of each channel may; one that follows within 10 ms may not, and keeps the next one back."""
    pace = NotifyThrottle()
    assert pace.with_commit("durable_ready", 1.0)
    assert pace.with_commit("durable_settled", 1.0)
    assert not pace.with_commit("durable_ready", 1.009)
    assert not pace.with_commit("durable_ready", 1.018)
    assert pace.with_commit("durable_ready", 1.03)


def test_a_stream_of_hints_is_sent_with_a_commit_now_and_then() -> None:
    """Of starts every 8 ms one goes along after 100 ms, then after spans that double up to a second;
    after one that was handed over the next one does, and no more.
    """
    pace = NotifyThrottle()
    along = [n for n in range(500) if pace.with_commit("durable_ready", 1.0 + n / 128)]
    assert along == [0, 13, 39, 91, 194, 322, 450]
    pace.allow_next("durable_ready")
    assert pace.with_commit("durable_ready", 4.9)
    assert not pace.with_commit("durable_ready", 4.9)
    # begins anew after a pause
    assert pace.with_commit("durable_ready", 6.0)
    assert [n for n in range(1, 14) if pace.with_commit("durable_ready", 6.0 + n / 128)] == [13]


def test_no_commit_carries_a_hint_while_others_send_theirs() -> None:
    """Within 50 ms of a hint of another process; those of another channel do not count."""
    pace = NotifyThrottle()
    assert pace.with_commit("durable_ready", 1.0)
    pace.heard("durable_ready", 1.02)
    assert not pace.with_commit("durable_ready", 1.065)
    assert pace.with_commit("durable_settled", 1.065)
    pace.heard("durable_ready", 1.02)
    assert pace.with_commit("durable_ready", 1.08)


@pytest.mark.session("hints")
@pytest.mark.parametrize(
    ("follows", "by_another"),
    [
        pytest.param(True, True, id="followed"),
        pytest.param(False, True, id="not followed"),
        pytest.param(True, False, id="own"),
    ],
)
def test_a_hint_of_another_process_saves_one(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, follows: bool, by_another: bool
) -> None:
    """A process that follows the hints of others drops the one that it was about to send; its own, which a
    commit on another of its connections sent, do not count."""
    monkeypatch.setattr(listener, "_HINT_PAUSE_S", 20.0)
    monkeypatch.setattr(listener, "_HINT_PAUSE_MAX_S", 20.0)
    heard: list[str] = []

    async def main() -> bool:
        database = Database(dsn)
        await database.open()
        process = Listener(database)
        await process.start()
        try:
            if follows:
                process.follow("durable_ready")
                process.follow("durable_ready")
            process.subscribe("durable_ready", lambda: heard.append("ready"))
            process.subscribe("durable_settled", lambda: heard.append("settled"))
            async with asyncio.timeout(20):
                while process._channels != {"durable_ready", "durable_settled"}:
                    await asyncio.sleep(0.01)
            process.send("durable_ready")
            async with asyncio.timeout(20):
                while process._pending:
                    await asyncio.sleep(0.01)
            heard.clear()
            # waits for the end of the pause
            process.send("durable_ready")
            own = await database.connect("client")
            if by_another:
                conn.execute("select durable.hint_v1(true, true)")
            else:
                await own.execute("select durable.hint_v1(true, true)")
            async with asyncio.timeout(20):
                while len(heard) < 2:
                    await asyncio.sleep(0.01)
            # only now: the hint of a session that is gone is taken for that of another process
            await own.close()
            return "durable_ready" in process._pending
        finally:
            await process.stop()

    assert asyncio.run(main()) is not (follows and by_another)


@pytest.mark.session("hints")
def test_a_single_run_takes_four_statements(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no worker rests: its start, its claim, its end and one look at the result. Hints go along with
    the commits, and nobody looks for a result before it is told of.
    """
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 1

    said: list[str] = []
    use = ReconnectingConnection.use

    async def noted(self: ReconnectingConnection, action: Any) -> Any:
        if self._role in ("client", "turn", "listen"):
            said.append(self._role)
        return await use(self, action)

    async def main() -> list[str]:
        async with app.worker() as worker, app.client() as client:
            assert await (await client.start(go)).result(timeout=20) == 1
            await asyncio.sleep(0.3)
            # so that no look falls due meanwhile
            postpone_polls(worker)
            await asyncio.sleep(0.05)
            said.clear()
            with monkeypatch.context() as patch:
                patch.setattr(ReconnectingConnection, "use", noted)
                assert await (await client.start(go)).result(timeout=20) == 1
            return list(said)

    monkeypatch.setattr(Handoff, "idle", lambda self: None)
    monkeypatch.setattr(Handoff, "may_register", lambda self: 0)
    # on a machine that stops for some milliseconds somebody would look again meanwhile
    monkeypatch.setattr(poll_schedule, "_AFTER_HINT_S", (0.0, 30.0, 30.0))
    for _ in range(20):
        found = asyncio.run(main())
        # the worker hears twice of a start in its process; the second time, if late, it looks in vain
        assert found.count("client") == 2 and found.count("turn") <= 3 and "listen" not in found
        if len(found) == 4:
            break
    assert found == ["client", "turn", "turn", "client"]


def test_an_idle_worker_asks_less_than_once_a_second() -> None:
    """Looks, ticks and heartbeats of a worker that has nothing to do: the sum of their rates, once it is
    idle.
    """
    looks = PollSchedule(longest_s=5.0)
    pauses(looks, 0.0, 20)
    look_rate = 10 / sum(pauses(looks, 0.0, 10))
    tick_rate = 1 / (0.9 * ticker.IDLE_EVERY_S)
    heartbeat_rate = 1 / 7.5
    rest_rate = 1 / handoff._AGAIN_S
    assert look_rate + tick_rate + heartbeat_rate + rest_rate < 0.7


def test_behind_a_pooler_polling_does_all(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no session is one's own there are no hints, no presence and no named statements, and every run
    ends.
    """
    plain = Database.open

    async def pooled(self: Database) -> None:
        await plain(self)
        self.pooled = True

    monkeypatch.setattr(Database, "open", pooled)
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def child(n: int) -> int:
        return await step(n)

    @app.workflow
    async def parent() -> int:
        total = sum(await asyncio.gather(*(child(n) for n in range(5))))
        await ctx.sleep(0.05)
        return total + await step(1)

    async def main() -> int:
        async with app.worker(), app.client() as client:
            result = await (await client.start(parent)).result(timeout=30)
            listening = conn.execute(
                "select count(*) from pg_stat_activity where query ilike 'listen%' "
                "and datname = current_database()"
            ).fetchone()
            assert listening == (0,)
            assert conn.execute("select bool_or(present) from durable._workers").fetchone() == (False,)
            named = conn.execute("select count(*) from pg_prepared_statements").fetchone()
            assert named == (0,)
            return result

    assert asyncio.run(main()) == 11


@pytest.mark.session("hints")
def test_a_hint_wakes_a_worker_of_another_process(dsn: str, conn: Connection) -> None:
    """What plain SQL starts is found although the worker has stopped looking for a while."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return 1

    async def main() -> int:
        async with app.worker() as worker, app.client() as client:
            await idle(conn)
            # as if it had been idle for an hour
            postpone_polls(worker)
            await asyncio.sleep(0.05)
            conn.execute("select durable.start('go', id => 'from-sql')")
            return await client.run("from-sql", go).result(timeout=20)

    assert asyncio.run(main()) == 1


@pytest.mark.session("hints")
def test_a_process_receives_only_hints_that_it_subscribed_to(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is woken by what settles and not by what starts, until a worker begins to serve in its
    process.
    """
    app = App(dsn)
    heard: list[str] = []

    @app.workflow
    async def go() -> int:
        return 1

    plain = Listener._on_hint

    def noted(self: Listener, session: Any, pid: int, channel: Any, payload: str) -> None:
        heard.append(channel)
        plain(self, session, pid, channel, payload)

    async def main() -> list[str]:
        monkeypatch.setattr(Listener, "_on_hint", noted)
        async with app.client() as client:
            run = await client.start(go, id="first")
            with pytest.raises(TimeoutError):
                await run.result(timeout=0.05)
            conn.execute("select durable.hint_v1(true, false)")
            conn.execute("select durable.hint_v1(false, true)")
            async with asyncio.timeout(20):
                while "durable_settled" not in heard:
                    await asyncio.sleep(0.01)
            alone = list(heard)
            async with app.worker():
                assert await run.result(timeout=20) == 1
                heard.clear()
                conn.execute("select durable.hint_v1(true, false)")
                async with asyncio.timeout(20):
                    while "durable_ready" not in heard:
                        await asyncio.sleep(0.01)
            return alone

    assert asyncio.run(main()) == ["durable_settled"]


@pytest.mark.session("hints")
def test_a_client_that_starts_run_after_run_hears_the_starts_of_others(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that all of them together send about as many hints as one; a client that starts a run now and then
    is not woken."""
    monkeypatch.setattr(asyncpg_transport, "_FOLLOW_GAP_S", 60.0)
    conn.execute("insert into durable._workflows (name, version, seen_at) values ('go', '1', 0)")

    async def main() -> list[set[str]]:
        found = []
        async with Client(dsn) as client:
            for count in (7, 1):
                for _ in range(count):
                    await client.start("go")
                transport = client._transport
                assert isinstance(transport, asyncpg_transport.AsyncpgTransport)
                found.append(set(transport._listener._followed))
            async with asyncio.timeout(20):
                while "durable_ready" not in transport._listener._channels:
                    await asyncio.sleep(0.01)
        return found

    assert asyncio.run(main()) == [set(), {"durable_ready"}]


@pytest.mark.session("hints")
def test_a_late_subscriber_polls_once(dsn: str, conn: Connection) -> None:
    """A hint may have come before: a subscriber of a channel that was not listened to yet is called, also
    where the first attempt to listen was broken off.
    """

    async def main() -> list[str]:
        calls: list[str] = []
        listener = Listener(Database(dsn))
        await listener._database.open()
        await listener.start()
        await listener.start()
        try:
            plain = listener._adjust_channels

            async def broken(session: Any) -> Any:
                listener._adjust_channels = plain  # type: ignore[method-assign]
                await session.execute("select 1/0")

            listener._adjust_channels = broken  # type: ignore[method-assign]
            listener.subscribe("durable_ready", lambda: calls.append("ready"))
            async with asyncio.timeout(20):
                while not calls:
                    await asyncio.sleep(0.01)
            listener.subscribe("durable_settled", lambda: calls.append("settled"))
            async with asyncio.timeout(20):
                while "settled" not in calls:
                    await asyncio.sleep(0.01)
            await listener.stop()
            calls.clear()
            conn.execute("select durable.hint_v1(true, true)")
            async with asyncio.timeout(20):
                while len(calls) < 2:
                    await asyncio.sleep(0.01)
        finally:
            await listener.stop()
        assert not listener._background and not listener._connection.alive
        return sorted(calls)

    assert asyncio.run(main()) == ["ready", "settled"]
