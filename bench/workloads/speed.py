"""Throughput: starts, no-ops from a backlog, steps from a backlog, and what a run of ten steps leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg

from bench.probe import Space, space
from bench.record import Measure
from bench.systems import Client, System, Workflow, warm
from bench.workloads import Site

_MANY = 5_000


def start(site: Site) -> Iterator[Measure]:
    """Starts a second: one client, sixteen, sixteen callers of one, and the API for many, if there is one. No
    worker runs."""
    seconds = 0.5 if site.quick else 3
    with site.system.running(site.dsn):
        for clients in (1, 16):
            rate = asyncio.run(starts(site, clients, seconds))
            yield Measure(f"starts/s, {clients} client{'s' if clients > 1 else ''}", rate, "/s")
        rate = asyncio.run(starts(site, 1, seconds, callers=16))
        yield Measure("starts/s, 16 callers of one client", rate, "/s")
        if "bulk" in site.system.abilities:
            rates = [_bulk(site) for _ in range(site.size(5, 1))]
            yield Measure(f"starts/s, {_MANY:,} at once", max(rates), "/s")


async def starts(site: Site, clients: int, seconds: float, callers: int = 1) -> float:
    """Starts a second of so many clients at once, with so many callers each."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(site.system.client(site.dsn)) for _ in range(clients)]
        for client in opened:
            await client.leave(0)
        begin = time.perf_counter()

        async def alone(client: Client) -> int:
            count = 0
            while time.perf_counter() - begin < seconds:
                await client.leave(count)
                count += 1
            return count

        counts = await asyncio.gather(*map(alone, opened * callers))
        return sum(counts) / (time.perf_counter() - begin)


def _bulk(site: Site) -> float:
    begin = time.perf_counter()
    with site.system.fill(site.dsn, "noop", _MANY, analyze=False) as gate:
        gate()
    return _MANY / (time.perf_counter() - begin)


def noop(site: Site) -> Iterator[Measure]:
    """Runs without steps a second, from a backlog."""
    count = site.size(site.system.backlog)
    spent, _ = drained(site, "noop", count)
    yield Measure("no-op runs/s", count / spent, "/s")


def ten_steps(site: Site) -> Iterator[Measure]:
    """Steps a second of runs of ten, from a backlog; bytes and WAL of each run."""
    count = site.size(site.system.backlog // 5)
    spent, used = drained(site, "ten_steps", count)
    yield Measure("steps/s, runs of 10", count * 10 / spent, "/s")
    if used is not None:
        yield Measure("bytes left, run of 10 steps", used.bytes / count, "bytes", "less")
        yield Measure("WAL, run of 10 steps", used.wal / count, "bytes", "less")


def drained(site: Site, workflow: Workflow, count: int) -> tuple[float, Space | None]:
    """Seconds from the opening of the gate to the last end, by one worker that is warm, and what was used."""
    system, dsn = site.system, site.dsn
    with (
        system.running(dsn),
        system.workers(dsn),
        psycopg.connect(dsn, autocommit=True) as conn,
    ):
        asyncio.run(warmed(site, workflow))
        # a few at once too: the plans of a worker that takes one are not those of one that takes many
        few = max(count // 50, 10)
        settle(system, conn, dsn, workflow, few)
        before = _space(site)
        spent = settle(system, conn, dsn, workflow, count)
        after = _space(site)
    if before is None or after is None:
        return spent, None
    return spent, Space(wal=after.wal - before.wal, bytes=after.bytes - before.bytes)


async def warmed(site: Site, workflow: Workflow) -> None:
    """Execute a few runs."""
    async with site.system.client(site.dsn) as client:
        await warm(client, workflow)


def _space(site: Site) -> Space | None:
    return space(site.dsn, site.system.schema) if "space" in site.system.abilities else None


def settle(system: System, conn: psycopg.Connection[Any], dsn: str, workflow: Workflow, count: int) -> float:
    """Fill a backlog, open the gate, and return after how many seconds all of it was settled."""
    already = system.settled(conn)
    with system.fill(dsn, workflow, count) as gate:
        begin = gate()
        wait(lambda: system.settled(conn) - already, count)
        return system.last_end(conn) - begin


def wait(done: Callable[[], int], count: int) -> None:
    """Wait until so many are done. Counting costs the server, so it is done some twenty times, and says
    nothing of when the last one was done.
    """
    begin = time.perf_counter()
    while done() < count:
        time.sleep(min(max((time.perf_counter() - begin) / 4, 0.01), 1))
