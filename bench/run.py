"""Measure the engine against the commit probe of the same server: python -m bench.run [--quick] [--dsn URL]
[--out FILE]

One worker process serves; starts come through the SQL door in bulk, so that the worker's speed is what is
seen. Every figure stands beside the probe that was taken a moment before it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from bench.probe import commits_per_s, settings, space
from pyengine.admin import migrate
from pyengine.embedded import EmbeddedPostgres

ROOT = Path(__file__).parent.parent
Line = tuple[str, str, str]


@contextmanager
def server(dsn: str | None) -> Iterator[str]:
    """The server that was named, or an embedded one of this run's own with durability on."""
    if dsn is not None:
        yield dsn
        return
    folder = Path(tempfile.mkdtemp(prefix="pyengine-bench-", dir="/tmp"))
    settings_ = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    try:
        with EmbeddedPostgres(folder, settings=settings_) as embedded:
            yield embedded.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fresh_database(dsn: str, name: str) -> str:
    """A new database on that server with the schema installed: no workload finds dead rows of another."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f'drop database if exists "bench_{name}" with (force)'.encode())
        conn.execute(f'create database "bench_{name}"'.encode())
    url = urlsplit(dsn)._replace(path=f"/bench_{name}").geturl()
    migrate.install(url)
    return url


@contextmanager
def worker(dsn: str, app: str = "bench.workloads.basic:app") -> Iterator[None]:
    """One worker process for the bench's workflows."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyengine", "--database-url", dsn, "worker", app],
        cwd=ROOT,
        env={**os.environ, "PYENGINE_DATABASE_URL": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def backlog(dsn: str, workflow: str, count: int) -> None:
    """Start many runs in few commits, with 36-byte ids."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for begin in range(0, count, 500):
            conn.execute(
                "select durable.start(%s, jsonb_build_array(n), id => gen_random_uuid()::text) from "
                "generate_series(%s::integer, %s::integer) n",
                (workflow, begin + 1, min(begin + 500, count)),
            )
        conn.execute("vacuum analyze")


def drain(dsn: str, count: int) -> float:
    """Seconds until the backlog is settled, from the first claim on."""
    with psycopg.connect(dsn, autocommit=True) as conn, worker(dsn):
        while not conn.execute(
            "select count(*) from durable._tasks where version > 0 or (select count(*) from "
            "durable._tasks) = 0"
        ).fetchone()[0]:  # type: ignore[index]
            time.sleep(0.002)
        begin = time.perf_counter()
        while conn.execute("select count(*) from durable._tasks").fetchone() != (0,):
            time.sleep(0.01)
        return time.perf_counter() - begin


def throughput(dsn: str, workflow: str, runs: int, steps: int) -> list[Line]:
    """Runs or steps a second from a backlog, and what each run costs in WAL and bytes."""
    probe = commits_per_s(dsn)
    before = space(dsn)
    backlog(dsn, workflow, runs)
    middle = space(dsn)
    rate = runs * max(steps, 1) / drain(dsn, runs)
    after = space(dsn)
    unit = "steps/s" if steps else "runs/s"
    return [
        (
            f"{workflow}, {runs} runs",
            f"{rate:,.0f} {unit}",
            f"{rate / probe:.2f} x probe ({probe:,.0f} commits/s)",
        ),
        (
            f"{workflow}, WAL a run",
            f"{(after.wal - middle.wal) / runs:,.0f} bytes",
            f"and {(middle.wal - before.wal) / runs:,.0f} at the start",
        ),
        (
            f"{workflow}, bytes left a run",
            f"{(after.bytes - before.bytes) / runs:,.0f} bytes",
            "tables and indexes, before vacuum",
        ),
    ]


async def _latencies(dsn: str, count: int, pause_s: float) -> list[float]:
    os.environ["PYENGINE_DATABASE_URL"] = dsn
    from bench.workloads.basic import noop
    from pyengine import Client

    spent: list[float] = []
    async with Client(dsn) as client:
        for number in range(count):
            await asyncio.sleep(pause_s)
            begin = time.perf_counter()
            run = await client.start(noop, number)
            await run.result(timeout=30)
            spent.append((time.perf_counter() - begin) * 1000)
    return sorted(spent)


def latency(dsn: str, count: int) -> list[Line]:
    """Start to result on an idle system, one run at a time."""
    probe_ms = 1000 / commits_per_s(dsn)
    with worker(dsn):
        time.sleep(2)
        spent = asyncio.run(_latencies(dsn, count, 0.02))
    p50, p99 = statistics.median(spent), spent[int(len(spent) * 0.99)]
    return [
        (
            "start to result, idle, p50",
            f"{p50:.2f} ms",
            f"{p50 / probe_ms:.1f} commits of the probe ({probe_ms:.2f} ms each)",
        ),
        ("start to result, idle, p99", f"{p99:.2f} ms", f"{p99 / probe_ms:.1f} commits of the probe"),
    ]


def fan_out(dsn: str, width: int, rounds: int) -> list[Line]:
    """One parent with many children, from the parent's start to its result."""
    probe_ms = 1000 / commits_per_s(dsn)
    spent = []
    with psycopg.connect(dsn, autocommit=True) as conn, worker(dsn):
        time.sleep(2)
        for number in range(rounds):
            begin = time.perf_counter()
            conn.execute(
                "select durable.start('fan_out', jsonb_build_array(%s::integer), id => %s)",
                (width, f"fan-{time.time_ns()}-{number}"),
            )
            while conn.execute("select count(*) from durable._tasks").fetchone() != (0,):
                time.sleep(0.002)
            spent.append((time.perf_counter() - begin) * 1000)
    middle = statistics.median(spent)
    return [
        (
            f"fan-out and fan-in of {width} children",
            f"{middle:.0f} ms",
            f"{middle / probe_ms:.0f} commits of the probe",
        )
    ]


def report(dsn: str, lines: list[Line], command: str) -> str:
    """The results as Markdown."""
    rows = "\n".join(f"| {what} | {figure} | {against} |" for what, figure, against in lines)
    return (
        f"# First figures\n\n{datetime.now(UTC):%Y-%m-%d}, one worker process, {os.cpu_count()} "
        f"cores, Python {platform.python_version()}, "
        f"{settings(dsn)}.\nRepeat with `{command}`.\n\n| what | figure | against the probe of the "
        f"same run |\n|---|---:|---|\n{rows}\n"
    )


def main() -> None:
    """Run all workloads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--dsn", help="a server that lets us make databases; an embedded one by default")
    parser.add_argument("--out", type=Path, help="file to write the Markdown to")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    lines: list[Line] = []
    jobs: dict[str, Callable[[str], list[Line]]] = {
        "noop": lambda dsn: throughput(dsn, "noop", 20_000 // scale, 0),
        "steps": lambda dsn: throughput(dsn, "ten_steps", 4_000 // scale, 10),
        "latency": lambda dsn: latency(dsn, 500 // scale),
        "fan_out": lambda dsn: fan_out(dsn, 200, 5),
    }
    with server(options.dsn) as dsn:
        for name, job in jobs.items():
            for line in job(fresh_database(dsn, name)):
                lines.append(line)
                print("  ".join(line), flush=True)
        text = report(dsn, lines, "python -m bench.run" + (" --quick" if options.quick else ""))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
