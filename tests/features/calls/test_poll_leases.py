"""No poll begins after its lease: neither a program, nor a memo that has waited for values or a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psycopg
import pytest

from pyengine import App
from pyengine.core.database.connection import Database
from pyengine.core.process.lease_terms import LeaseOver, LeaseTerms
from pyengine.features.calls import adapter_process
from pyengine.features.calls.adapter_leases import Leased
from pyengine.features.calls.adapter_process import Adapter
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.contract import Done, Executed, Request
from pyengine.features.calls.functions import Memo
from pyengine.features.calls.memo_runner import MemoRunner
from pyengine.features.calls.program_executor import ProgramExecutor
from tests.features.calls.adapters import wrong
from tests.features.calls.scene import Scene

X = "dml+exec://x/f"


def request(key: str = "0" * 64) -> Request:
    """What an adapter is asked."""
    return Request(
        node=key, execution_key=key, execution_uuid=key, function=X, inputs=[], generation=0, snapshot=None
    )


def test_a_program_is_not_begun(tmp_path: Path) -> None:
    """Its files are made before, which takes its time."""
    path = wrong.write(tmp_path, "x", f"echo run >> {tmp_path}/runs; echo '{wrong.DONE}'")
    with pytest.raises(LeaseOver):
        asyncio.run(adapter_process.poll(Adapter(name="x", path=path), request(), may_begin=lambda: False))
    assert not (tmp_path / "runs").exists()


def test_a_memo_is_not_begun_when_its_thread_is_free_too_late() -> None:
    """An async one is not begun either; what has begun goes on."""
    app = App("postgresql://127.0.0.1:1/none")
    begun: list[str] = []
    free, holds = threading.Event(), threading.Event()

    @app.memo(version="1")
    def hold() -> int:
        holds.set()
        free.wait()
        return 1

    @app.memo(version="1")
    def sync() -> int:
        begun.append("sync")
        return 1

    @app.memo(version="1")
    async def loop() -> int:
        begun.append("loop")
        return 1

    async def rows(*_: object) -> list[tuple[str]]:
        return [("[]",)]

    async def main() -> None:
        runner = MemoRunner(app.memos, Database("postgresql://127.0.0.1:1/none"), threads=1)
        runner._pool = cast("Any", SimpleNamespace(rows=rows, close=lambda: asyncio.sleep(0)))
        may = [True]

        def run(memo: Memo[[], int]) -> asyncio.Task[Executed]:
            asked = msgspec.structs.replace(request(), function=memo.function)
            return asyncio.create_task(runner.execute(memo.served_as, asked, lambda: bool(may)))

        first = run(hold)
        while not holds.is_set():
            await asyncio.sleep(0.01)
        second = run(sync)
        await asyncio.sleep(0.01)
        may.clear()
        free.set()
        assert isinstance((await first).answer, Done)
        for late in (second, run(loop)):
            with pytest.raises(LeaseOver):
                await late
        assert begun == []
        may.append(True)
        assert isinstance((await run(loop)).answer, Done)
        await runner.close()

    asyncio.run(main())


def test_renewals_that_are_not_all_answered_are_sent_one_by_one() -> None:
    """The lease that is lost is not known to hold any more; the others are."""
    lost = "2" * 64
    sent: list[int] = []

    async def renew(leased: Sequence[Leased]) -> int:
        sent.append(len(leased))
        return len([one for one in leased if one.key != lost])

    async def main() -> list[float]:
        worker = AdapterWorker([], "postgresql://127.0.0.1:1/none")
        worker._terms = LeaseTerms(1000)
        worker.use(cast("Any", SimpleNamespace(renew=renew)))
        polls = [
            Leased(request=request(str(n) * 64), adapter="x", version=1, phase="poll_adapter")
            for n in range(4)
        ]
        for one in polls:
            worker._running[asyncio.create_task(asyncio.sleep(0))] = one
        await worker._renew_leases(polls[:2])
        await worker._renew_leases(polls[1:])
        return [one.known_until_s for one in polls]

    known = asyncio.run(main())
    assert [until_s > 0 for until_s in known] == [True, True, False, True]
    assert sent == [2, 3, 1, 1, 1]


def test_what_may_not_begin_is_given_back(
    dsn: str, direct: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as no poll, and is polled as soon as a lease is known to hold."""
    path = wrong.write(tmp_path, "x", f"echo run >> {tmp_path}/runs; echo '{wrong.DONE}'")
    asked: list[bool] = []
    may_begin: Callable[..., bool] = LeaseTerms.may_begin

    def late(terms: LeaseTerms, leased: Leased) -> bool:
        asked.append(may_begin(terms, leased))
        return len(asked) > 1 and asked[-1]

    monkeypatch.setattr(LeaseTerms, "may_begin", late)
    with psycopg.connect(direct, autocommit=True) as conn:
        scene = Scene(conn)
        scene.scope("s", "t")
        answer = scene.begin(function=X)

        async def main() -> None:
            programs = ProgramExecutor([Adapter(name="x", path=path)])
            async with AdapterWorker([programs], dsn):
                while scene.state(answer) != "completed_ok":
                    await asyncio.sleep(0.02)

        asyncio.run(main())
        polls = scene.one("select count(*) from durable._call_polls")
    assert asked == [True, True] and polls == 1
    assert (tmp_path / "runs").read_text() == "run\n"
