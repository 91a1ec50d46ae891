"""Ours: the queries of an idle worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg

from bench.record import Measure
from bench.server import named
from bench.workloads import Site
from bench.workloads.speed import warmed


def idle(site: Site) -> Iterator[Measure]:
    """Queries a second of a worker that has been idle for a minute; each is a transaction, and those are
    counted by the server."""
    wait_s, seconds = (3, 8) if site.quick else (60, 60)
    database = urlsplit(site.dsn).path.removeprefix("/")
    with (
        site.system.workers(site.dsn),
        psycopg.connect(named(site.dsn, "postgres"), autocommit=True) as conn,
    ):
        asyncio.run(warmed(site, "noop"))
        time.sleep(wait_s)
        before = _transactions(conn, database)
        time.sleep(seconds)
        spent = _transactions(conn, database) - before
    yield Measure("idle worker, queries/s", spent / seconds, "/s", "less")


def _transactions(conn: psycopg.Connection[tuple[int]], database: str) -> int:
    # asked from another database, so that the question is not among them
    row = conn.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = %s", (database,)
    ).fetchone()
    assert row is not None
    return row[0]
