"""Ours: content-addressed calls by plain SQL, one session, no adapter: what the database does for a hit, for
a start, and for an attempt from its lease to its pin."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from bench.record import Measure
from bench.workloads import Site

_FUNCTION = "dml+exec://bench/f"
_TTL_MS = 60_000
_BATCH = 100
_BEGIN = "select durable.call_begin(%s, %s, array[durable.literal(%s)])"
_LEASE = "select * from durable.call_lease_v1('bench', '{bench}', %s, %s)"
_REPORT = "select * from durable.call_reports_v1(%s)"


def calls(site: Site) -> Iterator[Measure]:
    """Rates of starts, attempts, pinned and shared hits, in this order: each needs what came before."""
    count = site.size(5_000, 200)
    with psycopg.connect(site.dsn, autocommit=True, prepare_threshold=1) as conn:
        _open(conn, "one")
        yield Measure("call starts/s", count / _begin(conn, "one", count, "started"), "/s")
        yield Measure("attempts leased and reported/s", count / _serve(conn, count), "/s")
        yield Measure("pinned hits/s", count / _begin(conn, "one", count, "pinned_hit"), "/s")
        _open(conn, "two")
        yield Measure("shared hits/s", count / _begin(conn, "two", count, "shared_hit"), "/s")


def _open(conn: psycopg.Connection[Any], scope: str) -> None:
    conn.execute("select from durable.scope_open(%s)", [scope])


def _begin(conn: psycopg.Connection[Any], scope: str, count: int, expected: str) -> float:
    """Begin calls one after the other; return the seconds."""
    begin = time.perf_counter()
    for number in range(count):
        row = conn.execute(_BEGIN, (scope, _FUNCTION, str(number))).fetchone()
        assert row is not None and row[0]["at"] == expected, row
    return time.perf_counter() - begin


def _serve(conn: psycopg.Connection[Any], count: int) -> float:
    """Lease and complete all attempts; return the seconds."""
    begin, done = time.perf_counter(), 0
    while done < count:
        leased = [row[0] for row in conn.execute(_LEASE, (_TTL_MS, _BATCH)).fetchall()]
        reports = [
            {
                "execution_key": one["execution_key"],
                "version": one["version"],
                "class": "done",
                "outcome": "ok",
                "value": {"i64": "1"},
            }
            for one in leased
        ]
        states = conn.execute(_REPORT, [json.dumps(reports)]).fetchall()
        assert all(row[0].get("state") == "completed_ok" for row in states), states[:3]
        done += len(leased)
    return time.perf_counter() - begin
