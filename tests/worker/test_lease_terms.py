"""A lease is known on both sides: nothing begins under one that may be over, none is renewed for nothing."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path

import psycopg
import pytest

from pyengine import App, Worker, clock
from pyengine.database.statements.limits import LIMIT_S, limit_s
from pyengine.database.statements.procedures import HEARTBEAT, JOURNAL, START, START_FRESH, TICK, TURN
from pyengine.worker.lease_heartbeat import LeaseTerm
from tests.crash.processes import launch, stop, until

Connection = psycopg.Connection[tuple[object, ...]]


def test_no_body_begins_after_the_leases(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of both kinds are put off until a renewal has answered; those that run go on."""
    app = App(dsn)
    begun: list[str] = []
    free = asyncio.Event()

    @app.step
    async def holds() -> None:
        begun.append("holds")
        await free.wait()

    @app.step
    async def in_loop(kind: str) -> None:
        begun.append(kind)

    @app.step
    def in_thread(kind: str) -> None:
        begun.append(kind)

    @app.workflow
    async def go(kind: str) -> None:
        await holds()
        await (in_loop if kind == "loop" else in_thread)(kind)

    async def main(worker: Worker) -> None:
        # the heartbeat would renew the leases at any time
        renewed = worker._term.renewed
        monkeypatch.setattr(worker._term, "renewed", lambda until_s: None)
        worker._term.until_s = float("inf")
        async with app.client() as client:
            runs = [await client.start(go, kind) for kind in ("loop", "thread")]
            while begun != ["holds", "holds"]:
                await asyncio.sleep(0.01)
            worker._term.until_s = float("-inf")
            free.set()
            attempts = [run.phase.attempts for run in worker.parts.runs.leased.values()]
            while {call.call.name for each in attempts for call in each.values()} != {"in_loop", "in_thread"}:
                attempts = [run.phase.attempts for run in worker.parts.runs.leased.values()]
                await asyncio.sleep(0.01)
            while not worker._steps._put_off:
                await asyncio.sleep(0.01)
            assert begun == ["holds", "holds"]
            renewed(float("inf"))
            for run in runs:
                await run.result(timeout=20)

    async def served() -> None:
        async with app.worker() as worker:
            await main(worker)

    asyncio.run(served())
    assert sorted(begun) == ["holds", "holds", "loop", "thread"]


FROZEN = """
import os, time
from pyengine import App

app = App()

@app.step
def note(name: str) -> None:
    with open("notes", "a") as file:
        file.write(f"{os.getpid()} {name}\\n")
    time.sleep(0.1)

@app.workflow
async def go(name: str) -> None:
    await note(name)
"""


def test_a_worker_that_was_frozen_begins_nothing_of_others(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """It has twenty steps that wait for its one thread, and is stopped for longer than its leases."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    conn.execute("update durable.settings set value = '1500' where name = 'lease_ttl_ms'")
    conn.execute(
        "select durable.start('go', jsonb_build_array(n::text), id => 'r' || n, any_workflow => true) "
        "from generate_series(1, 20) n"
    )

    def notes() -> list[str]:
        path = tmp_path / "notes"
        return path.read_text().splitlines() if path.exists() else []

    command = ("-m", "pyengine", "worker", "frozen:app", "--threads", "1")
    first = launch(dsn, *command, folder=tmp_path)
    try:
        ends_s = time.monotonic() + 60
        while not notes() and time.monotonic() < ends_s:
            time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)
        before = notes()
        second = launch(dsn, *command, folder=tmp_path)
        try:
            until(dsn, "select count(*) = 20 from durable.runs where state = 'completed'")
        finally:
            stop(second)
        first.send_signal(signal.SIGCONT)
        # its one thread comes to this one after all that were there before
        conn.execute("select durable.start('go', '[\"probe\"]', id => 'probe', any_workflow => true)")
        until(dsn, "select count(*) = 1 from durable.runs where id = 'probe' and state = 'completed'")
    finally:
        first.send_signal(signal.SIGCONT)
        stop(first)
    own = [line for line in notes() if line.startswith(f"{first.pid} ")]
    assert own[: len(before)] == before and own[-1] == f"{first.pid} probe"
    # a body may have begun before the stop, and write after it
    assert len(own) - len(before) <= 2


def test_a_turn_without_an_answer_renews_nothing(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat has a connection of its own; while the turn has none it leaves the runs to others."""
    conn.execute("update durable.settings set value = '1000' where name = 'lease_ttl_ms'")
    app = App(dsn)
    began, free = asyncio.Event(), asyncio.Event()

    @app.step
    async def hold() -> None:
        began.set()
        await free.wait()

    @app.workflow
    async def go() -> None:
        await hold()

    async def main() -> None:
        async with app.worker() as worker, app.client() as client:
            run = await client.start(go)
            await began.wait()
            answered = asyncio.Event()
            send_once = worker.parts.turns.send_once

            async def unanswered(*args: object, **options: object) -> object:
                worker.parts.turns.asked_s = float("-inf")
                await answered.wait()
                worker.parts.turns.asked_s = None
                return await send_once(*args, **options)  # type: ignore[arg-type]

            monkeypatch.setattr(worker.parts.turns, "send_once", unanswered)
            while conn.execute("select crashes from durable._tasks").fetchone() == (0,):
                await asyncio.sleep(0.05)
            answered.set()
            free.set()
            await run.result(timeout=30)

    asyncio.run(main())


def test_statements_are_given_up_by_their_purpose() -> None:
    """A turn, a tick, a heartbeat and a start that waits for nobody take milliseconds."""
    limits = [limit_s(one) for one in (HEARTBEAT, TURN, START_FRESH, TICK, START, JOURNAL)]
    assert limits == [10, 20, 20, 30, LIMIT_S, LIMIT_S]


def test_a_renewal_is_known_after_the_loss_that_it_came_with() -> None:
    """Both come from the heartbeat's thread; bodies that are ready must not begin in between."""
    seen: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        term = LeaseTerm(0.0)

        def heartbeat() -> None:
            loop.call_soon_threadsafe(lambda: seen.append(term.until_s > clock.monotonic()))
            term.renewed(clock.monotonic() + 1000)

        thread = threading.Thread(target=heartbeat)
        thread.start()
        thread.join()
        await term.holds()

    asyncio.run(main())
    assert seen == [False]
