"""A steady load for half an hour: does it stay as fast, and do the hot tables stay as small, as they were
after the first minutes: python -m bench.soak [--minutes 30] [--dsn URL] [--out FILE]

One worker process with its defaults has work all the time: a feeder tops the unfinished runs up to a constant
number, with a mix of runs without steps, of ten steps, of steps with naps, with children, and with a signal
that it sends. Some runs are leased for a minute each, so that heartbeats and turns renew their leases beside
the rest; a protocol client leases tasks of its own and counts, in the transaction of each of its heartbeats,
how many of the renewals were HOT. soak_report.py checks the figures.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from bench import server, soak_report
from bench.probe import commits_per_s
from bench.soak_report import Minute
from bench.systems.pyengine import SYSTEM

DATABASE = "bench_soak"
UNFINISHED = 4_000
MIX: list[tuple[str, list[Any], int]] = [
    ("noop", [1], 40),
    ("ten_steps", [1], 40),
    ("napping", [4, 2], 10),
    ("fan_out", [5], 5),
    ("signalled", [1], 5),
]
"""A hundred starts of the feeder: workflow, arguments, number."""
HELD: list[tuple[str, list[Any]]] = [("held", [120, 0.5]), ("held", [1, 60.0])]
"""Runs that last a minute; the leases of the first are renewed by turns, of the second by heartbeats."""
HELD_AT_A_TIME = 16
KEPT = 200
_FEED_S = 0.2
_PROBE_S = 10.0

# counters of the server: tasks are inserted and deleted with their runs, so their rows are the runs
_COUNTED = (
    "select sum(n_tup_ins) filter (where relname = '_tasks')::bigint, "
    "sum(n_tup_del) filter (where relname = '_tasks')::bigint, "
    "coalesce(sum(n_tup_ins) filter (where relname ~ '^_journal_'), 0)::bigint "
    "from pg_stat_user_tables where schemaname = 'durable'"
)
_TABLES = (
    "select regexp_replace(s.relname, '^_journal_[0-9]+$', '_journal'), sum(pg_table_size(s.relid))::bigint, "
    "sum(pg_indexes_size(s.relid))::bigint, sum(s.n_dead_tup)::bigint, sum(s.n_tup_upd)::bigint, "
    "sum(s.n_tup_hot_upd)::bigint, sum(s.autovacuum_count)::bigint, sum(s.autoanalyze_count)::bigint "
    "from pg_stat_user_tables s where s.schemaname = 'durable' group by 1 order by 1"
)
_RENEWED = (
    "select pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) "
    "from (values ('durable._tasks'::regclass)) t (c)"
)
_STEPS = (
    "select (ts - %s) / 60000, count(*) from durable._journal where durable._completes_step(type) group by 1"
)


class Feeder(threading.Thread):
    """Starts runs so that the number of unfinished ones is constant, and sends the signals that some of them
    wait for.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._waiting: list[str] = []
        self._held_until = 0.0
        self.over = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Feed until the end of the soak."""
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                while not self.over.wait(_FEED_S):
                    self._top_up(conn)
        except Exception as error:  # the boundary of the thread: the main one raises it
            self.error = error

    def _top_up(self, conn: psycopg.Connection[Any]) -> None:
        for run in self._waiting:
            conn.execute("select durable.signal(%s, 'go', %s)", (run, Jsonb({"number": 1})))
        self._waiting = []
        if time.monotonic() > self._held_until:
            self._held_until = time.monotonic() + 60
            for workflow, args in HELD:
                self._start(conn, workflow, args, HELD_AT_A_TIME)
        born, died, _ = counted(conn)
        portions = (UNFINISHED - (born - died)) // 100
        for workflow, args, count in MIX:
            if portions > 0:
                begun = self._start(conn, workflow, args, count * portions)
                self._waiting += begun if workflow == "signalled" else []
        conn.execute("select pg_stat_force_next_flush()")

    def _start(self, conn: psycopg.Connection[Any], workflow: str, args: list[Any], count: int) -> list[str]:
        ids = [str(uuid.uuid4()) for _ in range(count)]
        conn.execute(
            "select count(*) from durable.start_many(%s, array_fill(%s::jsonb, array[%s::integer]), "
            "ids => %s, any_workflow => true)",
            (workflow, Jsonb(args), count, ids),
        )
        return ids


class Keeper(threading.Thread):
    """Leases tasks as a protocol client and renews them each second; counts the renewals that were HOT."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self.renewed = self.hot = 0
        self.over = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Renew until the end of the soak."""
        ids = [f"kept-{number}" for number in range(KEPT)]
        try:
            with psycopg.connect(self._dsn) as conn:
                for each in ids:
                    conn.execute(
                        "select durable.task_create(%s, 9007199254740991, 'keeper', 60000, null, null, %s)",
                        (each, Jsonb({"resonate:target": "poll://any@kept"})),
                    )
                conn.commit()
                while not self.over.wait(1):
                    self._renew(conn, ids)
                for each in ids:
                    conn.execute("select durable.task_fulfill(%s, 1, 'resolved')", (each,))
        except Exception as error:  # the boundary of the thread: the main one raises it
            self.error = error

    def _renew(self, conn: psycopg.Connection[Any], ids: list[str]) -> None:
        before = conn.execute(_RENEWED.encode()).fetchone()
        conn.execute("select durable.task_heartbeat('keeper', %s, %s)", (ids, [1] * len(ids)))
        after = conn.execute(_RENEWED.encode()).fetchone()
        conn.commit()
        assert before is not None
        assert after is not None
        self.renewed += after[0] - before[0]
        self.hot += after[1] - before[1]


def counted(conn: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Runs started, runs ended, and journal rows, since the database was created."""
    row = conn.execute(_COUNTED.encode()).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def processor_us(conn: psycopg.Connection[Any], worker: int) -> tuple[float, float] | None:
    """Time on a processor of the worker and of its session for turns; None if the server is elsewhere."""
    row = conn.execute("select pid from pg_stat_activity where application_name = 'pyengine turn'").fetchone()
    if row is None:
        return None
    try:
        spent = [
            sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
            for pid in (worker, row[0])
        ]
    except OSError:
        return None
    return (spent[0] / 1000, spent[1] / 1000) if all(spent) else None


def sample(
    conn: psycopg.Connection[Any],
    dsn: str,
    last: Minute | None,
    keeper: Keeper,
    *,
    worker: int,
    until: float,
) -> Minute:
    """Wait a minute with some probes, and return its figures."""
    probes = []
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _PROBE_S))
        probes.append(commits_per_s(dsn, 0.3))
    _, died, rows = counted(conn)
    at = time.monotonic()
    before = (last.at, last.ended, last.rows, last.renewed, last.hot) if last else (at, died, rows, 0, 0)
    spent = at - before[0] or 1
    names = ("table", "indexes", "dead", "updates", "hot", "vacuums", "analyzes")
    tables = {
        str(row[0]): dict(zip(names, map(int, row[1:]), strict=True))
        for row in conn.execute(_TABLES.encode())
    }
    renewed, hot = keeper.renewed, keeper.hot
    return Minute(
        at=at,
        ended=died,
        rows=rows,
        runs_per_s=(died - before[1]) / spent,
        rows_per_s=(rows - before[2]) / spent,
        probe=statistics.median(probes) if probes else 0,
        renewed=renewed,
        hot=hot,
        processor_us=processor_us(conn, worker),
        tables=tables,
    )


def soak(dsn: str, minutes: int, out: Path | None, about: dict[str, Any]) -> soak_report.Soak:
    """Run the soak, with a line for each minute."""
    found = soak_report.Soak(about=about, warm_up=min(soak_report.FULL_WARM_UP, max(minutes // 5, 1)))
    feeder, keeper = Feeder(dsn), Keeper(dsn)
    with SYSTEM().workers(dsn) as workers, psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("select durable._now_ms()").fetchone()
        assert row is not None
        for thread in (feeder, keeper):
            thread.start()
        begin = time.monotonic()
        last = sample(conn, dsn, None, keeper, worker=workers[0].pid, until=begin)
        try:
            for number in range(1, minutes + 1):
                last = sample(conn, dsn, last, keeper, worker=workers[0].pid, until=begin + number * 60)
                found.minutes.append(last)
                print(soak_report.line(number, minutes, last), flush=True)
                found.write(out)
                for thread in (feeder, keeper):
                    if thread.error is not None:
                        raise thread.error
        finally:
            for thread in (feeder, keeper):
                thread.over.set()
            for thread in (feeder, keeper):
                thread.join()
        print("counting steps and checking every law, which takes as long as there are runs", flush=True)
        found.tell_steps(conn.execute(_STEPS.encode(), (row[0],)).fetchall())
    with psycopg.connect(dsn, autocommit=True) as conn:
        found.broken = [str(law) for law in conn.execute("select * from durable.check()").fetchall()]
    found.is_over = True
    found.write(out)
    return found


def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--dsn", help="a server that lets us make databases; an embedded one by default")
    parser.add_argument("--out", type=Path, help="file to write the Markdown to; the JSON lies beside it")
    options = parser.parse_args()
    with server.server(options.dsn) as url:
        about = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": f"python -m bench.soak --minutes {options.minutes}",
            "commit": server.commit(),
            "machine": server.machine(),
            "postgres": server.settings(url),
        }
        dsn = server.create(url, DATABASE)
        SYSTEM().install(dsn)
        found = soak(dsn, options.minutes, options.out, about)
        server.drop(url, DATABASE)
    print("\n" + found.markdown())


def _ended(number: int, frame: object) -> None:
    sys.exit(128 + number)  # an exit like any other: the server and the worker are ended on the way


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)
    main()
