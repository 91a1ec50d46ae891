"""Does a step cost more the longer its run is: steps in a row, and steps with a suspend between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from bench.record import Measure
from bench.systems import Workflow, warm
from bench.workloads import Site


def long(site: Site) -> Iterator[Measure]:
    """One run of 100, 1,000 and 5,000 steps, alone."""
    tenths = [0.0, 0.0]
    lengths = (100, 500) if site.quick else (100, 1_000, 5_000)
    with site.system.running(site.dsn), site.system.workers(site.dsn):
        for steps in lengths:
            spent, tenths = asyncio.run(_alone(site, "long", steps))
            yield Measure(f"a step of {steps:,}, alone", spent / steps, "ms", "less")
    yield Measure(f"a step in the first tenth of {lengths[-1]:,}", tenths[0], "ms", "less")
    yield Measure(f"a step in the last tenth of {lengths[-1]:,}", tenths[1], "ms", "less")
    yield Measure("last tenth to first, long run", tenths[1] / tenths[0], "x", "less")


def naps(site: Site) -> Iterator[Measure]:
    """One run that suspends for 20 ms after each step, with one worker and with two."""
    count = site.size(800, 25)
    for workers in (1, 2):
        with site.system.running(site.dsn), site.system.workers(site.dsn, workers):
            _, tenths = asyncio.run(_alone(site, "naps", count))
        by = "1 worker" if workers == 1 else f"{workers} workers"
        yield Measure(f"step, nap of 20 ms: first of {count}, {by}", tenths[0], "ms", "less")
        yield Measure(f"step, nap of 20 ms: last of {count}, {by}", tenths[1], "ms", "less")
        yield Measure(f"last tenth to first, naps, {by}", tenths[1] / tenths[0], "x", "less")


async def _alone(site: Site, workflow: Workflow, number: int) -> tuple[float, Any]:
    async with site.system.client(site.dsn) as client:
        await warm(client, workflow, 10)
        begin = time.perf_counter()
        tenths = await client.run(workflow, number)
        return (time.perf_counter() - begin) * 1000, tenths
