"""Law: whatever runs for a week runs on. Worker, gateway, adapter worker and clients go through long spans of
idling, of an unreachable database, of a run that is held, of a report that is refused: each is alive at the
end, tasks, sessions and memory are flat, and the next run completes.

Time passes by tests/support/fast_clock.py: a little more than 1,100 rounds each, with --full a week. Without
it no pause is longer than a second, so that the rounds fit into a third of an hour; with it whoever looks for
work or results does so every 5 s, not up to four times a second. A transaction that holds a row is open for a
day (decisions/0121).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import httpx
import psycopg
import pytest

from pyengine import App, Client, Run, Worker, ctx
from pyengine import sync as blocking
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.http_server import GatewayServer
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.contract import Done, Executed
from tests.doors.gateway.http_client import VERSION
from tests.features.calls.scene import Scene
from tests.support.clock import START_MS
from tests.support.fast_clock import FastClock, install

Connection = psycopg.Connection[tuple[Any, ...]]
ROUNDS = 1_110
DAY_S = 24 * 3600.0
FULL = bool(os.environ.get("PYENGINE_TEST_FULL"))
# the longest pause between two rounds, and those that are longer or many times shorter than one of the two
LONGEST_S = 5.0 if FULL else 1.0
PAUSES = (
    "pyengine.core.client.psycopg_transport._POLL_LONGEST_S",
    "pyengine.core.client.results.POLL_LONGEST_S",
    "pyengine.core.database.connection._BACKOFF_MAX_S",
    "pyengine.core.worker.worker._POLL_LONGEST_S",
    "pyengine.doors.gateway.courier.courier._LONGEST_S",
    "pyengine.features.calls.adapter_worker._POLL_LONGEST_S",
)
pytestmark = [
    pytest.mark.new_database("a clock that is set"),
    pytest.mark.session("notes, and sessions are counted"),
]


@pytest.fixture
def time(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastClock]:
    """The time of process and database."""
    made = FastClock(dsn)
    install(made, monkeypatch)
    # the two that look at each other four times a second would be most of what happens
    monkeypatch.setattr("pyengine.core.worker.worker._LOOP_TICK_S", 5.0)
    monkeypatch.setattr("pyengine.core.worker.worker.BLOCKED_AFTER_S", 20.0)
    monkeypatch.setattr("pyengine.core.worker.lease_heartbeat.WATCH_EVERY_S", 5.0)
    monkeypatch.setattr("pyengine.core.worker.lease_heartbeat.BLOCKED_AFTER_S", 20.0)
    if FULL:
        monkeypatch.setattr("pyengine.core.worker.blocked_runs._PAUSE_MAX_S", 5.0)
        # what is locked is still known when it is tried again
        monkeypatch.setattr("pyengine.core.worker.blocked_runs._FORGET_AFTER_S", 25.0)
    for name in PAUSES:
        monkeypatch.setattr(name, LONGEST_S)
    # pytest keeps every record
    logging.disable()
    yield made
    logging.disable(logging.NOTSET)
    made.close()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Counter[PollSchedule]:
    """How often each schedule was polled in vain."""
    counts: Counter[PollSchedule] = Counter()
    polled = PollSchedule.polled

    def counted(self: PollSchedule, now: float, *, found: bool) -> None:
        counts[self] += not found
        polled(self, now, found=found)

    monkeypatch.setattr(PollSchedule, "polled", counted)
    return counts


def sessions(conn: Connection) -> int:
    """How many sessions the process has."""
    query = "select count(*) from pg_stat_activity where application_name like 'pyengine%' and datname = "
    row = conn.execute(f"{query} current_database()".encode()).fetchone()
    assert row is not None
    return int(row[0])


def size(conn: Connection, time: FastClock) -> tuple[dict[str, int], int]:
    """What must be the same before and after, and how many pieces of memory Python's objects take."""
    gc.collect()
    counts = {
        "tasks": len(asyncio.all_tasks()),
        "threads": len(set(threading.enumerate()) - time.others),
        "sessions": sessions(conn),
    }
    return counts, sys.getallocatedblocks()


def terminate(conn: Connection) -> None:
    """End all sessions of the process."""
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name like 'pyengine%' and datname = current_database()"
    )


async def flat(conn: Connection, time: FastClock, kind: str, seconds: float) -> str:
    """Let a span pass, or those of --full; after its first minutes nothing may grow. Answers how it went."""
    await time.span(100.0)
    (before, blocks) = size(conn, time)
    fired, begin_s = time.fired, monotonic()
    if FULL:
        seconds = DAY_S if kind == "held" else 7 * DAY_S
    await time.span(seconds)
    took_s = monotonic() - begin_s
    (after, more) = size(conn, time)
    assert after == before
    assert more < blocks + ROUNDS
    return (
        f"{seconds:,.0f} s passed in {took_s:.0f} s, {time.fired - fired:,} timers; {before} before and "
        f"after, {blocks:,} and {more:,} blocks of memory"
    )


def make(dsn: str, free: asyncio.Event) -> App:
    """An app whose workflows wait for a signal, or for the test."""
    app = App(dsn)

    @app.step
    async def until_free() -> str:
        await free.wait()
        return "held"

    @app.workflow
    async def waits() -> str:
        return await ctx.receive("go", str)

    @app.workflow
    async def holds() -> str:
        return await until_free()

    @app.workflow
    async def next_one() -> str:
        return "next"

    return app


class Waits:
    """Clients of both kinds, which wait for a run until it is told to end."""

    def __init__(self, app: App, client: Client, time: FastClock, dsn: str) -> None:
        self.client = client
        self._registry, self._time, self._dsn = app.registry, time, dsn
        self._found: list[str] = []
        self._thread = threading.Thread(target=self._block, name="blocking client", daemon=True)

    async def begin(self) -> None:
        """Begin to wait."""
        self._run: Run[str] = await self.client.start("waits", id="waits")
        self._waiting = asyncio.ensure_future(self._run.result())
        self._time.begin()
        self._thread.start()

    def _block(self) -> None:
        try:
            with blocking.Client(self._dsn) as own:
                self._found.append(own.run("waits").result())
        finally:
            self._time.done()

    async def next_completes(self, number: int) -> None:
        """The next run completes."""
        run: Run[str] = await self.client.start("next_one", id=f"next-{number}")
        async with asyncio.timeout(60):
            assert await run.result() == "next"

    async def end(self) -> None:
        """Both get the result of the run for which they have waited."""
        await self._run.signal("go", "gone")
        async with asyncio.timeout(60):
            assert await self._waiting == "gone"
            await asyncio.to_thread(self._thread.join, 60)
        assert self._found == ["gone"]


class Hindrance:
    """What keeps the worker from going on: nothing, or what its name says.

    Args:
        kind: `idle`, `unreachable`, `held` or `refused`.
        time: the clock.
        conn: a session of another user.
        free: lets the step of a run end.
    """

    def __init__(self, kind: str, time: FastClock, conn: Connection, free: asyncio.Event) -> None:
        self.kind, self._time, self._conn, self._free = kind, time, conn, free
        # seconds between two rounds, at most
        self.longest_s = {"held": 0.5}.get(kind, LONGEST_S)

    async def begin(self, client: Client, worker: Worker) -> Run[str] | None:
        """Let it begin; return the run that it concerns."""
        run: Run[str] | None = None
        if self.kind in ("held", "refused"):
            run = await client.start("holds", id="holds")
            while not any(one.info.id == "holds" for one in worker.parts.runs.leased.values()):
                await asyncio.sleep(0.01)
        if self.kind == "held":
            self._conn.execute("begin")
            self._conn.execute("select from durable._executions where id = 'holds' for update")
            self._conn.execute("select from durable._tasks where id = 'holds' for update")
        elif self.kind == "refused":
            self._conn.execute(REFUSING)
        elif self.kind == "unreachable":
            self._time.unreachable = True
            terminate(self._conn)
        self._free.set()
        return run

    def rounds(self, counts: Counter[PollSchedule], client: Client, worker: Worker) -> int:
        """How many rounds there were in vain."""
        if self.kind == "idle":
            results = client._transport._results  # type: ignore[attr-defined]
            return min(counts[worker.parts.poll], counts[results._schedule])
        if self.kind == "unreachable":
            return self._time.refused
        if self.kind == "refused":
            row = self._conn.execute("select last_value from lab.tries").fetchone()
            assert row is not None
            return int(row[0])
        return max(one.resends for one in worker.parts.runs.leased.values())

    def end(self) -> None:
        """Let it end."""
        self._time.unreachable = False
        if self.kind == "held":
            self._conn.execute("rollback")
        elif self.kind == "refused":
            self._conn.execute("drop trigger refuses on durable._journal")


REFUSING = """
create schema lab;
create sequence lab.tries;
create function lab.refuse() returns trigger language plpgsql as $$
begin
  perform nextval('lab.tries');
  raise exception 'no room' using errcode = '53100';
end $$;
create trigger refuses before insert on durable._journal for each row execute function lab.refuse();
"""


@pytest.mark.parametrize("kind", ["idle", "unreachable", "held", "refused"])
def test_a_worker_and_clients(
    dsn: str,
    conn: Connection,
    time: FastClock,
    rounds: Counter[PollSchedule],
    kind: str,
    figures: Callable[[str, str], None],
) -> None:
    """Worker and clients have tried more often than an exponent of two has room, and go on."""

    async def main() -> None:
        free = asyncio.Event()
        app, hindrance = make(dsn, free), Hindrance(kind, time, conn, free)
        async with Client(dsn, registry=app.registry) as client, Worker(app.registry, dsn) as worker:
            waits = Waits(app, client, time, dsn)
            await waits.begin()
            await waits.next_completes(1)
            run = await hindrance.begin(client, worker)
            passed = await flat(conn, time, kind, ROUNDS * hindrance.longest_s)
            in_vain = hindrance.rounds(rounds, client, worker)
            assert in_vain > ROUNDS
            figures(f"week-{kind}", f"{passed}; {in_vain:,} rounds in vain")
            hindrance.end()
            await waits.next_completes(2)
            if run is not None:
                async with asyncio.timeout(60):
                    assert await run.result() == "held"
            await waits.end()

    asyncio.run(main())


class Played:
    """An adapter within this process: each attempt ends at once, or waits for the test first."""

    adapters = ("fake",)

    def __init__(self) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def execute(self, adapter: str, request: Any, may_begin: object) -> Executed:
        """End the attempt."""
        self.begun.set()
        await self.free.wait()
        return Executed(answer=Done(outcome="ok", value={"i64": 7}))

    async def cancel(self, adapter: str, request: Any) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


async def ended(scene: Scene, answer: dict[str, Any]) -> None:
    """The attempt of a call ends with a result."""
    async with asyncio.timeout(60):
        while scene.promise(answer)[0] == "pending":
            await asyncio.sleep(0.02)
    assert scene.promise(answer)[0] == "resolved"


@pytest.mark.parametrize("kind", ["idle", "unreachable", "held"])
def test_a_gateway_and_an_adapter_worker(
    dsn: str,
    conn: Connection,
    time: FastClock,
    rounds: Counter[PollSchedule],
    kind: str,
    figures: Callable[[str, str], None],
) -> None:
    """Both have polled, tried to connect or reported more often than that, and go on."""

    async def main() -> None:
        played, scene = Played(), Scene(conn)
        scene.scope("s")
        config = GatewayConfig(database_url=dsn, port=0)
        async with GatewayServer(config) as gateway, AdapterWorker([played], dsn) as worker:
            await answers(gateway.url, 1)
            await ended(scene, scene.begin([1]))
            pending = None
            if kind == "held":
                played.begun.clear()
                played.free.clear()
                pending = scene.begin([2])
                await played.begun.wait()
                conn.execute("begin")
                conn.execute("select from durable._tasks where id like 'call:%' for update")
                played.free.set()
            elif kind == "unreachable":
                time.unreachable = True
                terminate(conn)
            passed = await flat(conn, time, kind, ROUNDS * (LONGEST_S if kind == "unreachable" else 1.0))
            courier = gateway.parts.courier
            assert courier is not None
            in_vain = time.refused
            if kind != "unreachable":
                in_vain = min(rounds[worker._schedule], rounds[courier.poller._schedule])
            assert in_vain > ROUNDS
            figures(f"week-gateway-{kind}", f"{passed}; {in_vain:,} rounds in vain")
            if kind == "held":
                conn.execute("rollback")
            time.unreachable = False
            await answers(gateway.url, 2)
            await ended(scene, scene.begin([3]))
            if pending is not None:
                await ended(scene, pending)

    asyncio.run(main())


async def answers(url: str, number: int) -> None:
    """The gateway makes a promise."""
    document = {
        "kind": "promise.create",
        "head": {"corrId": "c", "version": VERSION},
        "data": {"id": f"p-{number}", "timeoutAt": START_MS * 2, "param": {}, "tags": {}},
    }
    async with httpx.AsyncClient(timeout=60) as http, asyncio.timeout(60):
        while (answer := await http.post(url, json=document)).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, answer.text
