"""Ours: how fast a journal is replayed, without a database and by a worker that never saw the run."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

import asyncpg

from bench.record import Measure
from bench.systems import warm
from bench.workflows import app, long_wait
from bench.workloads import Site
from pyengine import Client
from pyengine.core.database.statements.procedures import JOURNALS
from pyengine.core.values.codec import Codec
from pyengine.features.checks.compatibility import Journal, check_journal

_RUN = "replayed"


def replay(site: Site) -> Iterator[Measure]:
    """A run of 5,000 steps that waits: its journal replayed, then the run resumed by another worker."""
    steps = site.size(5_000, 1_000)
    with site.system.workers(site.dsn):
        asyncio.run(_waiting(site.dsn, steps))
    rates = asyncio.run(replays(site.dsn, _RUN, "long_wait", steps))
    yield Measure("cold replay, steps/s", statistics.median(rates), "/s")
    with site.system.workers(site.dsn):
        spent = asyncio.run(_resumed(site, steps))
    yield Measure(f"resume after {steps:,} steps, by another worker", spent, "ms", "less")


async def _waiting(dsn: str, steps: int) -> None:
    async with Client(dsn) as client:
        run = await client.start(long_wait, steps, id=_RUN)
        while (await run.get()).state != "waiting":
            await asyncio.sleep(0.1)


async def replays(dsn: str, run: str, workflow: str, steps: int) -> list[float]:
    """Steps a second of some replays of the journal of a run, read before."""
    conn = await asyncpg.connect(dsn)
    try:
        number = await conn.fetchval("select execution from durable._executions where id = $1", run)
        journal = Journal(**(await conn.fetchrow(JOURNALS.sql, [number])))
    finally:
        await conn.close()
    (code,) = (one for one in app.registry.workflows() if one.name == workflow)
    rates = []
    for _ in range(7):
        begin = time.perf_counter()
        found = check_journal(journal, code, Codec())
        rates.append(steps / (time.perf_counter() - begin))
        assert found.verdict == "ok", found
    return rates


async def _resumed(site: Site, steps: int) -> float:
    async with site.system.client(site.dsn) as client, Client(site.dsn) as ours:
        await warm(client)
        begin = time.perf_counter()
        run = ours.run(_RUN)
        await run.signal("go", {"number": 1})
        assert await run.result(timeout=60) == steps
        return (time.perf_counter() - begin) * 1000
