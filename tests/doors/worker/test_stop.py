"""How a worker ends: in order, by signal, with work in its hands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import psycopg
import pytest

from pyengine import App, RunFailed, ctx
from pyengine.core.worker import step_runner
from pyengine.core.worker.effects import CancelAttempt
from pyengine.core.worker.step_runner import StepRunner

Connection = psycopg.Connection[tuple[object, ...]]


def test_work_is_given_back_at_once(dsn: str, conn: Connection) -> None:
    """A worker that stops releases what it holds: no lease must run out, nothing counts as a crash, steps
    are cancelled.
    """
    app = App(dsn)
    begun: list[int] = []
    cancelled: list[int] = []

    @app.step
    async def slow(n: int) -> None:
        begun.append(n)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(n)
            raise

    @app.workflow
    async def go(n: int) -> None:
        await slow(n)

    async def main() -> None:
        async with app.client() as client:
            for n in range(3):
                await client.start(go, n)
            async with app.worker():
                while len(begun) < 3:
                    await asyncio.sleep(0.005)

    asyncio.run(main())
    assert sorted(cancelled) == [0, 1, 2]
    assert conn.execute("select distinct state, crashes, pid from durable._tasks").fetchall() == [
        ("pending", 0, None)
    ]
    assert conn.execute("select count(*) from durable._workers").fetchone() == (0,)


def test_what_was_done_is_reported_before_the_end(dsn: str, conn: Connection) -> None:
    """A step that ended before the stop is not run again."""
    app = App(dsn)
    ran: list[str] = []

    @app.step
    async def first() -> int:
        ran.append("first")
        return 1

    @app.step
    async def second() -> int:
        ran.append("second")
        if len(ran) == 2:
            await asyncio.sleep(60)
        return 2

    @app.workflow
    async def go() -> int:
        return await first() + await second()

    async def main() -> int:
        async with app.client() as client:
            run = await client.start(go)
            async with app.worker():
                while len(ran) < 2:
                    await asyncio.sleep(0.001)
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 3
    assert ran == ["first", "second", "second"]


def test_a_report_that_met_a_lock_leaves_once(dsn: str, conn: Connection) -> None:
    """A report that waits to be sent again leaves with the last turn, once: twice would be refused, and the
    worker would give nothing back.
    """
    app = App(dsn)
    locked, ran = asyncio.Event(), asyncio.Event()

    @app.step
    async def quick() -> int:
        ran.set()
        await locked.wait()
        return 1

    @app.step
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            conn.rollback()
            # longer than the pause before a report is sent again
            await asyncio.sleep(0.6)

    @app.workflow
    async def first() -> int:
        return await quick()

    @app.workflow
    async def second() -> None:
        await slow()

    async def main() -> None:
        async with app.client() as client:
            await client.start(second, id="slow")
            await client.start(first, id="quick")
            async with app.worker():
                await ran.wait()
                with conn.cursor() as cursor:
                    cursor.execute("begin; select from durable._tasks where id = 'quick' for update")
                locked.set()
                await asyncio.sleep(0.1)

    asyncio.run(main())
    assert conn.execute("select count(*) from durable._workers").fetchone() == (0,)
    # each run has one step, and that of the other was cancelled
    rows = conn.execute("select count(*) from durable._journal where type = 'step_completed'")
    assert rows.fetchone() == (1,)


def test_sync_steps_are_abandoned(dsn: str) -> None:
    """A thread that hangs does not keep a worker from stopping, and what it says later is ignored."""
    app = App(dsn)
    release = threading.Event()
    began = threading.Event()

    @app.step
    def hang() -> int:
        began.set()
        release.wait(30)
        return 1

    @app.workflow
    async def go() -> int:
        return await hang()

    async def main() -> None:
        async with app.client() as client:
            await client.start(go)
            async with app.worker():
                while not began.is_set():
                    await asyncio.sleep(0.005)

    try:
        asyncio.run(main())
        assert not release.is_set()
    finally:
        release.set()


SERVED = """
import sys
from pyengine import App, ctx
app = App()

@app.step
def hang(path: str) -> None:
    open(path, "w").close()
    import time
    time.sleep(600)

@app.workflow
async def go(path: str) -> None:
    await hang(path)

if __name__ == "__main__":
    app.serve()
"""


def test_a_signal_stops_a_worker_in_order(dsn: str, conn: Connection, tmp_path: os.PathLike[str]) -> None:
    """SIGTERM: the process ends with code 0 although a thread hangs, and its run is pending again at once."""
    script, mark = os.path.join(tmp_path, "served.py"), os.path.join(tmp_path, "mark")
    with open(script, "w", encoding="utf-8") as file:
        file.write(SERVED)
    conn.execute("select durable.start('go', jsonb_build_array(%s::text))", (mark,))
    process = subprocess.Popen(
        [sys.executable, script], env={**os.environ, "PYENGINE_DATABASE_URL": dsn, "PYTHONPATH": os.getcwd()}
    )
    try:
        while not os.path.exists(mark):
            assert process.poll() is None
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
    assert conn.execute("select state, crashes from durable._tasks").fetchall() == [("pending", 0)]
    assert conn.execute("select count(*) from durable._workers").fetchone() == (0,)


STUBBORN = """
import asyncio, sys
from pyengine import App
app = App()

@app.step
async def stubborn(path: str) -> None:
    open(path, "w").close()
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            open(path + ".cancelled", "w").close()

@app.workflow
async def go(path: str) -> None:
    await stubborn(path)

if __name__ == "__main__":
    app.serve()
"""


def test_a_second_signal_ends_the_process_at_once(
    dsn: str, conn: Connection, tmp_path: os.PathLike[str]
) -> None:
    """A step that does not give way does not keep whoever sends a second signal waiting."""
    script, mark = os.path.join(tmp_path, "stubborn.py"), os.path.join(tmp_path, "mark")
    with open(script, "w", encoding="utf-8") as file:
        file.write(STUBBORN)
    conn.execute("select durable.start('go', jsonb_build_array(%s::text))", (mark,))
    process = subprocess.Popen(
        [sys.executable, script], env={**os.environ, "PYENGINE_DATABASE_URL": dsn, "PYTHONPATH": os.getcwd()}
    )
    try:
        for number, awaited in ((signal.SIGINT, mark), (signal.SIGTERM, f"{mark}.cancelled")):
            while not os.path.exists(awaited):
                assert process.poll() is None
                threading.Event().wait(0.02)
            process.send_signal(number)
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()


def test_suspended_coroutines_are_closed_at_the_end(dsn: str) -> None:
    """A warm coroutine's finally blocks run when its worker stops, and nothing of them is recorded."""
    app = App(dsn)
    said: list[str] = []

    @app.workflow
    async def nap() -> int:
        try:
            await ctx.sleep(0.2)
        finally:
            said.append("finally")
        return 1

    async def main() -> int:
        async with app.client() as client:
            run = await client.start(nap)
            async with app.worker():
                while (await run.get()).state != "waiting":
                    await asyncio.sleep(0.005)
            assert said == ["finally"]
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 1
    assert said == ["finally", "finally"]


def test_app_run_twice_in_one_process(dsn: str) -> None:
    """Nothing of a run stays behind that the next one would stumble over."""
    app = App(dsn)

    @app.workflow
    async def go(n: int) -> int:
        return n

    threads = threading.active_count()
    assert [app.run(go, n) for n in range(3)] == [0, 1, 2]
    assert threading.active_count() <= threads + 1


def test_steps_that_must_not_be_cut_off_are_drained(dsn: str, conn: Connection) -> None:
    """A stop waits for a step with on_interrupt="fail", whose run keeps its lease, and records its result;
    all else is given back meanwhile. So a deploy fails no run (C054).
    """
    app = App(dsn)
    paying, cancelled, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.step(on_interrupt="fail")
    async def pay() -> str:
        paying.set()
        await goes_on.wait()
        return "paid"

    @app.step
    async def plain() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @app.workflow
    async def buy() -> str:
        return await pay()

    @app.workflow
    async def other() -> None:
        await plain()

    def states() -> dict[object, object]:
        return dict(conn.execute("select id, state from durable._tasks").fetchall())

    async def main() -> str:
        async with app.client() as client:
            await client.start(other, id="other")
            run = await client.start(buy, id="pay")
            worker = app.worker()
            await worker.__aenter__()
            await paying.wait()
            stopping = asyncio.create_task(worker.__aexit__(None, None, None))
            await cancelled.wait()
            while states() != {"other": "pending", "pay": "acquired"}:
                await asyncio.sleep(0.02)
            assert not stopping.done()
            goes_on.set()
            await stopping
            assert states() == {"other": "pending"}
            return await run.result(timeout=20)

    assert asyncio.run(main()) == "paid"
    rows = conn.execute("select type, attempt from durable._journal where attempt is not null").fetchall()
    assert rows == [("step_started", 1), ("open_step_completed", 1)]


@pytest.mark.parametrize("grace", [0, 0.2])
def test_the_grace_has_an_end(dsn: str, conn: Connection, grace: float) -> None:
    """A step that must not be cut off is, after the grace; its run fails with the next worker."""
    app = App(dsn)
    began = asyncio.Event()

    @app.step(on_interrupt="fail")
    async def pay() -> None:
        began.set()
        await asyncio.sleep(60)

    @app.workflow
    async def buy() -> None:
        await pay()

    async def main() -> None:
        async with app.client() as client:
            run = await client.start(buy)
            async with app.worker(grace=grace):
                await began.wait()
            assert conn.execute("select state, pid from durable._tasks").fetchall() == [("pending", None)]
            async with app.worker():
                await run.result(timeout=20)

    with pytest.raises(RunFailed, match="it must not run twice"):
        asyncio.run(main())


def test_a_thread_that_looks_has_time_to_clean_up(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `def` step that asks whether it is cancelled ends in its own way before its run is given back (D025),
    also if it asks for the first time when it is; one that never asks is not waited for.
    """
    app = App(dsn)
    looking, deaf, stopping, release = (threading.Event() for _ in range(4))
    states: list[object] = []

    @app.step
    def looks() -> None:
        looking.set()
        stopping.wait(60)
        while not ctx.step.cancelled:
            release.wait(0.02)
        with psycopg.connect(dsn) as own:
            until_s = 400
            while until_s and "pending" not in states:
                states[:] = [row[0] for row in own.execute("select state from durable._tasks order by id")]
                own.rollback()
                until_s -= not release.wait(0.05)

    @app.step
    def hangs() -> None:
        deaf.set()
        release.wait(60)

    @app.workflow
    async def go(asks: bool) -> None:
        await (looks() if asks else hangs())

    async def main() -> None:
        async with app.client() as client:
            await client.start(go, True, id="looks")
            await client.start(go, False, id="hangs")
            async with app.worker():
                while not (looking.is_set() and deaf.is_set()):
                    await asyncio.sleep(0.01)

    def cancelled(self: StepRunner, effect: CancelAttempt) -> None:
        cancel(self, effect)
        if effect.attempt.call.name == "looks":
            stopping.set()

    cancel = StepRunner.cancel
    monkeypatch.setattr(StepRunner, "cancel", cancelled)
    monkeypatch.setattr(step_runner, "LOOK_S", 2.0)
    try:
        asyncio.run(main())
    finally:
        release.set()
    # it saw the run of the other one given back, while it had its own still
    assert states == ["pending", "acquired"]
    assert conn.execute("select distinct state from durable._tasks").fetchall() == [("pending",)]
