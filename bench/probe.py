"""The capacity of a server, and the storage that a workload used. Reads counters and writes one table of its
own; runs no workflow."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Counters of a database.

    Args:
        wal: WAL position, bytes.
        bytes: tables and indexes of the schema, bytes.
    """

    wal: int
    bytes: int


def commits_per_s(dsn: str, seconds: float = 0.5) -> float:
    """Single-row INSERT commits a second of one connection: the capacity of the machine and its disk at this
    moment.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "create table if not exists public.bench_probe (id bigint generated always as identity, "
            "at timestamptz)"
        )
        begin = time.perf_counter()
        count = 0
        while (spent := time.perf_counter() - begin) < seconds:
            conn.execute("insert into public.bench_probe (at) values (now())", prepare=True)
            count += 1
    return count / spent


def space(dsn: str, schema: str = "durable") -> Space:
    """Counters as they are now, of the tables of one schema."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "select (pg_current_wal_insert_lsn() - '0/0')::bigint, (select "
            "sum(pg_total_relation_size(c.oid))::bigint"
            " from pg_class c where c.relnamespace = to_regnamespace(%s) and c.relkind in ('r', 'p') "
            "and c.relname <> 'bench_probe')",
            (schema,),
        ).fetchone()
    assert row is not None
    return Space(wal=row[0], bytes=row[1])
