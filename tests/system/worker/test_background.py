"""Law: no background task dies unseen. Its error ends the worker and the block around it with a sentence, or
fails what waits for it; and nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pyengine import App, EngineError, Worker, ctx
from pyengine.core.client.concurrent_starts import ConcurrentStarts
from pyengine.core.client.results import ResultPoller
from pyengine.core.database.connection import ReconnectingConnection
from pyengine.core.database.listener import Listener
from pyengine.core.process.background import Background, Block
from pyengine.core.worker.blocked_runs import BlockedRuns
from pyengine.core.worker.handoff import Handoff
from pyengine.core.worker.journal_poller import JournalFetcher
from pyengine.core.worker.lease_heartbeat import Heartbeat
from pyengine.core.worker.step_runner import StepRunner
from pyengine.core.worker.ticker import Ticker
from pyengine.core.worker.turn_loop import TurnLoop
from pyengine.features.checks import development as development_module
from pyengine.features.schedules.declarations import ScheduleDeclarations
from pyengine.features.sql.service_runner import Server
from pyengine.features.sql.transaction_runner import TransactionRunner
from tests.support.broken_parts import Fault, break_part

# what a worker does beside its runs, and the method in which it fails
PARTS: dict[str, tuple[type, str]] = {
    "turns": (TurnLoop, "send"),
    "answers": (TurnLoop, "apply"),
    "ticks": (Ticker, "_tick"),
    "services": (Server, "run"),
    "reports of locks": (BlockedRuns, "report"),
    "declarations": (ScheduleDeclarations, "retry"),
    "hand-off": (Handoff, "_send"),
    "leases": (Heartbeat, "_beat"),
    "presence": (Heartbeat, "_keep_presence"),
    "the watch of the loop": (Heartbeat, "_watch"),
    "the connection of hints": (Listener, "_reconnect"),
    "channels": (Listener, "_change_channels"),
    "hints": (Listener, "_send_hints"),
}
# what it does for a run
WORK: dict[str, tuple[type, str]] = {
    "steps": (StepRunner, "_written"),
    "transactions": (TransactionRunner, "_run"),
}


async def fault(*_: object, **__: object) -> NoReturn:
    """Fail."""
    raise Fault("a fault")


def fault_at_once(*_: object, **__: object) -> NoReturn:
    """Fail."""
    raise Fault("a fault")


def threads() -> set[str]:
    """Names of the threads of this process that are ours."""
    return {one.name for one in threading.enumerate() if one.name == "pyengine-heartbeat"}


def make(dsn: str) -> App:
    """An app with a workflow of each kind of work."""
    app = App(dsn)

    @app.step
    async def awaited() -> int:
        return 1

    @app.step
    def threaded() -> int:
        return 2

    @app.workflow
    async def waits() -> int:
        return await awaited()

    @app.workflow
    async def blocks() -> int:
        return await threaded()

    @app.workflow
    async def writes() -> int:
        async with ctx.transaction() as tx:
            return cast("int", await tx.fetchval("select 3"))

    return app


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The errors in the log, without those of shutting down."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.session("listens")
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_ends_the_worker(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """The block of the worker fails with its error, which is logged once; the worker stops."""
    break_part(monkeypatch, *PARTS[part])
    app = make(dsn)

    async def main() -> None:
        async with asyncio.timeout(30), app.worker():
            await asyncio.Event().wait()

    with pytest.raises((Fault, EngineError), match="a fault"):
        asyncio.run(main())
    assert len([one for one in said(caplog) if "cannot go on" in one]) == 1
    assert "did not stop in an orderly way" not in caplog.text and not threads()


@pytest.mark.parametrize(
    ("work", "workflow"), [("steps", "waits"), ("steps", "blocks"), ("transactions", "writes")]
)
def test_work_that_fails_by_a_fault_of_ours_ends_the_worker(
    dsn: str, monkeypatch: pytest.MonkeyPatch, work: str, workflow: str
) -> None:
    """No run is left waiting under a lease that is renewed: the next worker ends it."""
    app = make(dsn)

    async def main() -> None:
        async with app.client() as client:
            run = await client.start(workflow, id="r")
            with monkeypatch.context() as broken:
                broken.setattr(*WORK[work], fault if work == "transactions" else fault_at_once)
                with pytest.raises(Fault):
                    async with asyncio.timeout(30), app.worker():
                        await asyncio.Event().wait()
            async with app.worker():
                assert await run.result(timeout=30) in (1, 2, 3)

    asyncio.run(main())


def test_a_journal_that_cannot_be_fetched_ends_the_worker(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would wait for its journal for ever."""
    monkeypatch.setattr(JournalFetcher, "_fetch", fault)

    async def main() -> None:
        async with asyncio.timeout(30), make(dsn).worker() as worker:
            worker._fetcher.fetch(cast("Any", type("Effect", (), {"run": None})))
            await asyncio.Event().wait()

    with pytest.raises(Fault):
        asyncio.run(main())


def test_a_replay_that_fails_ends_the_worker_of_development(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block fails, because nothing more would be replayed."""
    monkeypatch.setattr(development_module, "check_run", fault)
    app = make(dsn)

    async def main() -> None:
        async with asyncio.timeout(30), app.worker(dev=True), app.client() as client:
            await client.start("waits")
            await asyncio.Event().wait()

    with pytest.raises(Fault):
        asyncio.run(main())


PROGRAM = """
from pyengine import App
from pyengine.core.worker.lease_heartbeat import Heartbeat

async def fault(*_):
    raise ZeroDivisionError("a fault")

Heartbeat._beat = fault
app = App()

@app.workflow
async def nothing():
    pass
"""


def test_the_process_ends_with_a_sentence(dsn: str, tmp_path: Path) -> None:
    """`pyengine worker` whose heartbeat has ended exits with 1, and says why."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pyengine", "--database-url", dsn, "worker", "program:app"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "the heartbeat of worker" in ended.stderr and "its leases run out" in ended.stderr


def test_the_waits_of_a_client_fail_with_its_poller(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait raises; the next one begins anew, and gets the result."""
    app = make(dsn)

    async def main() -> None:
        async with app.client() as client:
            run = await client.start("waits")
            with monkeypatch.context() as broken:
                broken.setattr(ResultPoller, "_poll", fault)
                waits = await asyncio.gather(*(run.result() for _ in range(3)), return_exceptions=True)
            assert [type(one) for one in waits] == [EngineError] * 3 and "a fault" in str(waits[0])
            async with app.worker():
                assert await run.result(timeout=30) == 1

    asyncio.run(main())


@pytest.mark.session("listens")
@pytest.mark.parametrize("part", ["the connection of hints", "channels", "hints"])
def test_a_client_without_hints_polls(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """That hints are not received is an ERROR in the log, and the result comes all the same."""
    app = make(dsn)

    async def main() -> None:
        async with app.client() as client:
            with monkeypatch.context() as broken:
                break_part(broken, *PARTS[part])
                run = await client.start("waits")
                waiting = asyncio.ensure_future(run.result(timeout=30))
                while not said(caplog):
                    await asyncio.sleep(0.01)
                assert client._transport.address is None
            async with Worker(app.registry, dsn):
                assert await waiting == 1
        assert said(caplog) == ["hints and direct messages are no longer received"]

    asyncio.run(main())


def test_starts_that_wait_get_the_error(caplog: pytest.LogCaptureFixture) -> None:
    """A start that waited for others is told what failed; it is not cancelled."""

    async def main() -> None:
        free = asyncio.Event()

        async def alone(_: object) -> str:
            await free.wait()
            return "alone"

        starts = ConcurrentStarts(alone, fault)

        class Request:
            workflow, args = "w", ""

            def _replace(self, **_: object) -> str:
                return "common"

        each = [asyncio.ensure_future(starts.start(cast("Any", Request()))) for _ in range(3)]
        await asyncio.sleep(0)
        free.set()
        found = await asyncio.gather(*each, return_exceptions=True)
        assert found[0] == "alone" and [type(one) for one in found[1:]] == [Fault, Fault]

    asyncio.run(main())


def test_a_connection_that_cannot_be_cleaned_is_given_up(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its slot is free again, and the log says it."""
    app = make(dsn)

    async def main() -> None:
        with monkeypatch.context() as broken:
            broken.setattr(ReconnectingConnection, "clean", fault)
            async with app.client() as client, app.worker():
                runs = [await client.start("writes") for _ in range(9)]
                assert [await run.result(timeout=30) for run in runs] == [3] * 9

    asyncio.run(main())
    assert set(said(caplog)) == {"a connection for work was given up"}


def test_a_block_keeps_its_own_error() -> None:
    """What the block raises itself counts; a block that has ended is not interrupted."""

    async def main() -> None:
        own = Block()
        own.fail(Fault())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        await own.leave(ValueError())
        ended = Block()
        ended.fail(Fault("late"))
        with pytest.raises(Fault, match="late"):
            await ended.leave(None)
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
        await ended.leave(None)
        ended.fail(Fault())
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_block_that_is_cancelled_from_outside_stays_cancelled() -> None:
    """A cancellation by somebody else is not turned into the error."""

    async def main() -> None:
        entered = asyncio.Event()

        async def enter() -> None:
            block = Block()
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                block.fail(Fault())
                await block.leave(error)
                raise

        task = asyncio.ensure_future(enter())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_the_set_tells_each_error_once() -> None:
    """Of many tasks some fail, some end, some are cancelled: the owner hears of the failed ones alone."""

    async def main() -> None:
        heard: list[BaseException] = []
        tasks = Background(heard.append)
        for one in (fault(), asyncio.sleep(0), asyncio.Event().wait(), fault()):
            tasks.start(one)
        assert len(tasks) == 4
        await asyncio.sleep(0.01)
        assert [type(one) for one in heard] == [Fault, Fault] and len(tasks) == 1
        await tasks.cancel()
        assert len(heard) == 2 and not tasks

    asyncio.run(main())
