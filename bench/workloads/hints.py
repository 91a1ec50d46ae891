"""Ours: starts by plain SQL clients, with and without notifications for workers. The
clients are pgbench's, so that they cost little themselves, and the bare INSERT beside them is by the same."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import mean
from typing import Any

import psycopg

from bench.record import Measure
from bench.workloads import Site
from bench.workloads.speed import warmed
from pyengine.doors.embedded.binaries import find_binaries

_CLIENTS = 16
_LISTENERS = 40
_BARE = "insert into public.bench_bare (note) values ('a note');"
_START = "select durable.start('noop', '[1]', any_workflow => true);"
# the rows of such a start, by one statement without a function: what is left of a bare INSERT when it is four
_ROWS = """
with start as materialized (
  select nextval('durable._executions_execution_seq') as execution, gen_random_uuid()::text as id,
         (extract(epoch from clock_timestamp()) * 1000)::bigint as now,
         (select max(bucket) from durable._buckets) as bucket),
promise as (
  insert into durable._promises
    (id, head, timeout_at, created_at, external, target, param_headers, param_data)
  select id, execution, 9007199254740991, now, true, 'poll://any@default', '{"codec": "json"}', '[1]'
  from start),
head as (
  insert into durable._executions (execution, id, workflow, workflow_version, bucket, next_seq)
  select execution, id, 'noop', '1', bucket, 1 from start),
journal as (
  insert into durable._journal (bucket, execution, seq, ts, type)
  select bucket, execution, 0, now, 'execution_started' from start),
task as (
  insert into durable._tasks (id, execution, deadline, retry_at, queue, workflow, workflow_version)
  select id, execution, 9007199254740991, now, 'default', 'noop', '1' from start)
select id from start;
"""
_ONE_LINE = " ".join(_ROWS.split())
# the run itself tells how long ago its start was asked for, by the clock of the one machine
_ASKED = (
    "select durable.start('arrived', jsonb_build_array(extract(epoch from clock_timestamp())::float8), "
    "any_workflow => true);"
)


def hints(site: Site) -> Iterator[Measure]:
    """Rates without a worker, then the way from a start to its run with one."""
    seconds = 1 if site.quick else 4
    dsn = site.dsn
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table public.bench_bare (id bigint generated always as identity primary key, note text)"
        )
        yield Measure("bare inserts/s, 16 clients", _rate(dsn, _BARE, seconds), "/s")
        conn.execute(_START)  # for the first bucket of the journal
        conn.execute("select durable.set_setting('hints', 'off')")
        yield Measure("starts/s, 16 SQL clients, hints off", _rate(dsn, _START, seconds), "/s")
        conn.execute("select durable.set_setting('hints', 'coalesce')")
        yield Measure("starts/s, 16 SQL clients, hints on", _rate(dsn, _START, seconds), "/s")
        with ExitStack() as stack:
            for _ in range(_LISTENERS):
                listener = stack.enter_context(psycopg.connect(dsn, autocommit=True))
                listener.execute("listen durable_ready")
                listener.execute("listen durable_settled")
            # in turns, because one is compared with the other and the machine changes its speed
            turns = [(_rate(dsn, _ONE_LINE, seconds), _rate(dsn, _START, seconds)) for _ in range(2)]
            rows, on = (mean(rates) for rates in zip(*turns, strict=True))
            yield Measure("the four rows of a start by one statement/s, 16 clients", rows, "/s")
            yield Measure("starts/s, 16 SQL clients, hints on, 40 listeners", on, "/s")
            conn.execute("select durable.set_setting('hints', 'commit')")
            every = _rate(dsn, _START, seconds)
            yield Measure("starts/s, 16 SQL clients, a notification each, 40 listeners", every, "/s")
            conn.execute("select durable.set_setting('hints', 'coalesce')")
            with site.system.workers(dsn):
                asyncio.run(warmed(site, "noop"))
                _until_none(conn, "select exists (select from durable._tasks)")
                limit: float | None = None
                for pace in ("at full speed", "at half of full speed"):
                    # in their first second sixteen new sessions make their plans, all at once
                    since = time.time_ns() // 1_000_000 + 1_000
                    reached = _rate(dsn, _ASKED, 1 + seconds, limit)
                    _until_none(conn, "select exists (select from durable._tasks)")
                    yield Measure(f"starts/s beside a worker, 16 SQL clients {pace}", reached, "/s")
                    yield from _waits(conn, pace, since)
                    limit = reached / 2


def _waits(conn: psycopg.Connection[Any], pace: str, since: int) -> Iterator[Measure]:
    row = conn.execute(
        "select percentile_disc(0.5) within group (order by value::float8), "
        "percentile_disc(0.99) within group (order by value::float8) from "
        "(select p.value_data as value from durable._promises p join durable._executions h on h.id = p.id "
        "where h.workflow = 'arrived' and p.created_at > %s) v",
        (since,),
    ).fetchone()
    assert row is not None
    yield Measure(f"start to claim, 16 clients {pace}, p50", row[0], "ms", "less")
    yield Measure(f"start to claim, 16 clients {pace}, p99", row[1], "ms", "less")


def _rate(dsn: str, statement: str, seconds: int, limit: float | None = None) -> float:
    own = find_binaries().bin_dir / "pgbench"
    pgbench = str(own) if own.exists() else shutil.which("pgbench")
    if pgbench is None:
        raise RuntimeError("there is no pgbench beside postgres nor in PATH")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(statement + "\n")
        script.flush()
        options = ["-n", "-M", "prepared", "-c", str(_CLIENTS), "-j", "2", "-T", str(seconds)]
        options += [] if limit is None else ["-R", str(round(limit))]
        done = subprocess.run(
            [pgbench, *options, "-f", script.name, dsn],
            capture_output=True,
            text=True,
            timeout=60 + seconds,
            check=False,
        )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"pgbench: {done.stderr[-500:]}")
    return float(found[1])


def _until_none(conn: psycopg.Connection[tuple[bool]], question: str) -> None:
    while conn.execute(question.encode()).fetchone() != (False,):
        time.sleep(0.02)
