"""Runner of the storage-shape measurements: interleaved rounds over all variants, then the soak.

Usage: python shapes.py [--quick] [--dsn DSN] [--bin FOLDER] [--only NAME,NAME] [--rounds N] [--no-soak]
[--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import report
import soak
import uvloop
from drive import Metered, Worker, commit_probe, start_runs
from server import private_server, wheel_binaries
from variants import VARIANTS, flags_of, sql_of

STEPS = 10


async def check(conn: asyncpg.Connection, schema: str, flags: frozenset[str], runs: int) -> None:
    """Fail unless every run is complete in promises, heads and journal."""
    done = await conn.fetchval(
        f"select count(*) from {schema}.promises where settled_at is not null and execution is null"
    )
    heads = await conn.fetchval(
        f"select count(*) from {schema}.executions where next_seq = {2 + 3 * STEPS} and next_child = {STEPS}"
    )
    rows = await conn.fetchval(f"select count(*) from {schema}.journal")
    tasks = await conn.fetchval(f"select count(*) from {schema}.tasks")
    assert (done, heads, rows) == (runs, runs, runs * (STEPS + 2)), (schema, done, heads, rows, runs)
    assert tasks == (runs if "task_kept" in flags else 0), (schema, tasks)


async def sizes(conn: asyncpg.Connection, schema: str, runs: int) -> dict[str, float]:
    """Return bytes a run for each table (heap, indexes), partitions under their parent's name."""
    rows = await conn.fetch(
        """select regexp_replace(c.relname, '_[1-5]$', '') as name, sum(pg_table_size(c.oid)) as heap,
                  sum(pg_indexes_size(c.oid)) as indexes
             from pg_class c where c.relnamespace = $1::regnamespace and c.relkind = 'r'
            group by 1 order by 1""",
        schema,
    )
    return {f"{r['name']} {part}": float(r[part]) / runs for r in rows for part in ("heap", "indexes")}


async def one_round(conn: asyncpg.Connection, name: str, in_flight: int, runs: int) -> dict[str, float]:
    """Start `runs` runs, drive them to their end under the meter, vacuum, and return the round's figures."""
    schema = f"s_{name}"
    await start_runs(conn, schema, runs)
    await conn.execute(f"analyze {schema}.tasks, {schema}.promises, {schema}.executions, {schema}.journal")
    probe = await commit_probe(conn)
    worker = Worker(conn, schema, flags_of(name), STEPS)
    async with Metered(conn) as work:
        await worker.run(runs, in_flight)
    async with Metered(conn) as vacuum:
        tables = await conn.fetch(
            "select relname from pg_class where relnamespace = $1::regnamespace and relkind = 'r'", schema
        )
        await conn.execute("vacuum " + ", ".join(f"{schema}.{t['relname']}" for t in tables))
    assert work.meter
    assert vacuum.meter
    steps = runs * STEPS
    return {
        "cpu_us_step": work.meter.backend_cpu_s / steps * 1e6,
        "wal_run": work.meter.wal_bytes / runs,
        "client_us_step": work.meter.client_cpu_s / steps * 1e6,
        "steps_s": steps / work.meter.wall_s,
        "vacuum_wal_run": vacuum.meter.wal_bytes / runs,
        "vacuum_us_step": vacuum.meter.backend_cpu_s / steps * 1e6,
        "probe": probe,
        "others": work.meter.other_cpu_s / work.meter.wall_s,
    }


async def read_journals(conn: asyncpg.Connection, name: str, reads: int) -> float:
    """Return the backend's microseconds for reading the journal of one finished run."""
    runs = await conn.fetch(
        f"select bucket, execution from s_{name}.executions order by random() limit {reads}"
    )
    call = await conn.prepare(f"select s_{name}.journal_of($1, $2)")
    async with Metered(conn) as meter:
        for r in runs:
            await call.fetchval(r["bucket"], r["execution"])
    assert meter.meter
    return meter.meter.backend_cpu_s / max(1, len(runs)) * 1e6


async def start_cost(conn: asyncpg.Connection, name: str, runs: int) -> float:
    """Return the WAL bytes of starting one run in bulk; the runs are then thrown away with their schema."""
    async with Metered(conn) as meter:
        await start_runs(conn, f"s_{name}", runs)
    assert meter.meter
    return meter.meter.wal_bytes / runs


Figures = dict[str, dict[int, list[dict[str, float]]]]


async def compare(
    conn: asyncpg.Connection, names: list[str], rounds: int, runs: dict[int, int]
) -> dict[str, Any]:
    """Run the interleaved rounds; return {figures, sizes, reads, starts} by variant."""
    for name in names:
        await conn.execute(sql_of(name, f"s_{name}"))
        await one_round(conn, name, 100, 200)  # warms caches and plans; not counted
    await conn.execute("checkpoint")
    figures: Figures = {n: defaultdict(list) for n in names}
    for number in range(rounds):
        cut = number * 7 % len(names)  # another order in every round
        for name in names[cut:] + names[:cut]:
            for in_flight, count in runs.items():
                figures[name][in_flight].append(await one_round(conn, name, in_flight, count))
        print(f"round {number + 1} of {rounds} at {time.monotonic():.0f} s", file=sys.stderr, flush=True)
    total = 200 + rounds * sum(runs.values())
    out: dict[str, Any] = {"figures": figures, "sizes": {}, "reads": defaultdict(list), "starts": {}}
    for name in names:
        await check(conn, f"s_{name}", flags_of(name), total)
        out["sizes"][name] = await sizes(conn, f"s_{name}", total)
    for _ in range(3):
        for name in names:
            out["reads"][name].append(await read_journals(conn, name, 1000))
    for name in names:
        out["starts"][name] = await start_cost(conn, name, 1000)
    return out


def save(path: Path, found: dict[str, Any]) -> None:
    """Write the raw figures of every round."""
    path.write_text(json.dumps(found, default=str))


async def main(args: argparse.Namespace, dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    about = await conn.fetchrow(
        "select version() as v, current_setting('shared_buffers') as b, current_setting('fsync') as f,"
        " current_setting('synchronous_commit') as s, current_setting('max_wal_size') as w"
    )
    await conn.execute("create table if not exists public.probe (data text)")
    names = ["base", *(n for n in args.only.split(",") if n != "base")] if args.only else list(VARIANTS)
    rounds = args.rounds or (1 if args.quick else 4)
    runs = {400: 400, 20: 40} if args.quick else {400: 1200, 20: 250}
    began = time.monotonic()
    found = await compare(conn, names, rounds, runs)
    if args.json:
        save(Path(args.json), found)
    found["about"] = dict(about) | {"load": os.getloadavg(), "runs": runs, "rounds": rounds}
    if args.soak:
        found["soak"] = await soak.soak(dsn, args.churn or (5_000 if args.quick else 40_000))
    print(report.markdown(found))
    print(f"\nTook {time.monotonic() - began:.0f} s.")
    if args.json:
        save(Path(args.json), found)
    await conn.close()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--dsn", help="a server to use instead of a private one; schemas s_* are created in it")
    p.add_argument("--bin", help="folder of the Postgres binaries for the private server")
    p.add_argument("--only", default="", help="variants to compare with the base, separated by commas")
    p.add_argument("--rounds", type=int, default=0)
    p.add_argument("--churn", type=int, default=0, help="finished runs in each of the soak's two churns")
    p.add_argument("--soak", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--json", help="file for the raw figures")
    return p.parse_args()


@contextlib.contextmanager
def server(args: argparse.Namespace) -> Iterator[str]:
    """Yield the given DSN, or that of a private server."""
    if args.dsn:
        yield args.dsn
    else:
        with private_server(Path(args.bin) if args.bin else wheel_binaries()) as dsn:
            yield dsn


if __name__ == "__main__":
    given = arguments()
    with server(given) as address:
        uvloop.run(main(given, address))
