"""Ours: start to result of a run without steps, by what its start is given, and back to back. The same pauses
as in `latency`, whose row is the one to compare with."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bench.record import Measure
from bench.workflows import echo, noop
from bench.workloads import Site
from pyengine import Client

_PAUSE_S = (0.01, 0.03)
_SEED = 20
_KILOBYTES = "x" * 2_000

Start = Callable[[Client], Awaitable[Any]]

_STARTS: dict[str, Start] = {
    "with an id": lambda client: client.start(noop, 1, id=str(uuid.uuid4())),
    "with a key": lambda client: client.start(noop, 1, key=str(uuid.uuid4())),
    "with 2 kB": lambda client: client.start(echo, _KILOBYTES),
}


def start_options(site: Site) -> Iterator[Measure]:
    """The median of each way to start, and of starts without a pause between them."""
    with site.system.workers(site.dsn):
        for what, spent in asyncio.run(_all(site.dsn, site.size(200, 30))):
            yield Measure(f"start to result, idle, {what}, p50", statistics.median(spent), "ms", "less")


async def _all(dsn: str, count: int) -> list[tuple[str, list[float]]]:
    async with Client(dsn) as client:
        found = [(what, await _latencies(client, start, count, _PAUSE_S)) for what, start in _STARTS.items()]
        back_to_back = await _latencies(client, lambda client: client.start(noop, 1), count, (0, 0))
        return [*found, ("back to back", back_to_back)]


async def _latencies(client: Client, start: Start, count: int, pause_s: tuple[float, float]) -> list[float]:
    pauses, spent = random.Random(_SEED), []
    for _ in range(count + 10):
        await asyncio.sleep(pauses.uniform(*pause_s))
        begin = time.perf_counter()
        run = await start(client)
        await run.result(timeout=60)
        spent.append((time.perf_counter() - begin) * 1000)
    return spent[10:]
