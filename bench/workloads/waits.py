"""Waiting times: from start to result, from signal to result, from a fan-out to its fan-in. The
system is idle but for that.

The pause before each is drawn, from the same seed for every system: after a fixed one a system that polls is
asked at the same point of its period again and again, and its median is one of two values, by chance.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator

from bench.record import Measure
from bench.systems import Client, Workflow, warm
from bench.workloads import Site

_PAUSE_S = (0.01, 0.03)
_SEED = 20


def latency(site: Site) -> Iterator[Measure]:
    """Start to result, one run at a time."""
    with site.system.running(site.dsn), site.system.workers(site.dsn):
        spent = asyncio.run(_latencies(site, site.size(500, 30)))
    yield Measure("start to result, idle, p50", statistics.median(spent), "ms", "less")
    yield Measure("start to result, idle, p99", percentile(spent, 0.99), "ms", "less")


def few_steps(site: Site) -> Iterator[Measure]:
    """Start to result of runs with a step, and with three."""
    with site.system.running(site.dsn), site.system.workers(site.dsn):
        for steps, name in ((1, "1 step"), (3, "3 steps")):
            spent = asyncio.run(_latencies(site, site.size(200, 30), "few_steps", steps))
            yield Measure(f"start to result, idle, {name}, p50", statistics.median(spent), "ms", "less")


async def _latencies(
    site: Site, count: int, workflow: Workflow = "noop", number: int | None = None
) -> list[float]:
    async with site.system.client(site.dsn) as client:
        await warm(client, workflow, number or 1, times=10)
        pauses = random.Random(_SEED)
        return [
            await _one(client, workflow, each if number is None else number, pauses.uniform(*_PAUSE_S))
            for each in range(count)
        ]


async def _one(client: Client, workflow: Workflow, number: int, pause_s: float) -> float:
    await asyncio.sleep(pause_s)
    begin = time.perf_counter()
    await client.run(workflow, number)
    return (time.perf_counter() - begin) * 1000


def signal(site: Site) -> Iterator[Measure]:
    """Signal to result, for runs that have waited for a while."""
    with site.system.running(site.dsn), site.system.workers(site.dsn):
        spent = asyncio.run(_signals(site, site.size(200, 30)))
    yield Measure("signal to result, p50", statistics.median(spent), "ms", "less")
    yield Measure("signal to result, p99", percentile(spent, 0.99), "ms", "less")


async def _signals(site: Site, count: int) -> list[float]:
    spent = []
    async with site.system.client(site.dsn) as client:
        await warm(client)
        few = 5
        waiting = [await client.start("signalled", number) for number in range(count + few)]
        await asyncio.sleep(1)  # until each of them waits
        pauses = random.Random(_SEED)
        for handle in waiting:
            await asyncio.sleep(pauses.uniform(*_PAUSE_S))
            begin = time.perf_counter()
            await client.signal(handle)
            await client.result(handle)
            spent.append((time.perf_counter() - begin) * 1000)
    return spent[few:]


def fan_out(site: Site) -> Iterator[Measure]:
    """A parent with many children, from its start to its result."""
    with site.system.running(site.dsn), site.system.workers(site.dsn):
        for width, times in ((200, 2),) if site.quick else ((200, 5), (2_000, 3)):
            spent = asyncio.run(_fan_outs(site, width, times))
            yield Measure(f"fan-out and fan-in of {width:,}", statistics.median(spent), "ms", "less")


async def _fan_outs(site: Site, width: int, times: int) -> list[float]:
    async with site.system.client(site.dsn) as client:
        await warm(client, "fan_out", 20)
        return [await _one(client, "fan_out", width, 0.2) for _ in range(times)]


def percentile(values: list[float], part: float) -> float:
    """The value below which that part of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]
