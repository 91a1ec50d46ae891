"""A worker that is killed in the middle of a memo: another one runs it, and every waiter has the result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from pyengine import Client
from tests.system.crash import processes


def test_kill_in_the_middle_of_a_memo(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease runs out, the attempt goes on elsewhere under the next version, and the run ends."""
    log = tmp_path / "ran"
    monkeypatch.setenv("MEMO_LOG", str(log))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('lease_ttl_ms', '3000')")

    async def main() -> int:
        async with Client(dsn) as client:
            with processes.worker(dsn, job="tests.features.calls.memo_job:app") as first:
                run = await client.start("make", 21)
                while not log.exists():
                    await asyncio.sleep(0.05)
                processes.kill(first)
            with processes.worker(dsn, job="tests.features.calls.memo_job:app"):
                return int(await run.result(timeout=100))

    assert asyncio.run(main()) == 42
    assert log.read_text().split() == ["ran", "ran"]
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            "select a.generation, a.polls, p.version from durable._call_attempts a "
            "join durable._call_polls p on p.execution_key = a.execution_key"
        ).fetchall()
    assert rows == [(0, 1, 2)]
