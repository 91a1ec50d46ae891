"""The effects of the demo's steps, in a table that the steps write themselves.

Lives here: the schema ``pyengine_demo``, and its queries. May not: write to the schema ``durable``. Each step
body inserts a row on a connection of its own, outside every transaction of the engine, before it returns. So
the table shows how often bodies ran, independently of the journal.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from psycopg.rows import class_row

from pyengine.servers import libpq_url

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

__all__ = [
    "Progress",
    "Repeated",
    "Takeover",
    "Writer",
    "install",
    "leased_runs",
    "now",
    "progress",
    "repeated",
    "takeovers",
]

INSTALL_LOCK = 1685417599

_INSTALL = """
create schema if not exists pyengine_demo;
comment on schema pyengine_demo is 'Written by the steps of pyengine demo while they ran; may be dropped.';
create table if not exists pyengine_demo.effects (
  run_id text collate "C" not null,
  child integer not null,
  step text not null,
  worker text not null,
  files integer not null,
  at timestamptz not null default clock_timestamp()
);
comment on table pyengine_demo.effects is
  'One row for each body of a step that ran to its end, written on a connection of its own.';
create table if not exists pyengine_demo.workers (
  id text not null primary key,
  label text not null,
  process integer not null
);
comment on table pyengine_demo.workers is 'The labels of worker processes.';
create index if not exists effects_by_step on pyengine_demo.effects (run_id, child);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an audit: steps whose bodies ran and files that were read, each counted once."""

    steps: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Bodies that ran more than once: after their result was recorded, and before."""

    after_recorded: int
    before_recorded: int
    bodies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """An interrupted attempt of a child run, from its parent's journal, and the worker that continued it.

    Args:
        run_id: the child run.
        attempt: the interrupted attempt.
        at: the instant at which the worker lost its lease.
        resumed_at: the start of the next attempt; None if there is none yet.
        worker: the worker of the first step after that, from the effects; None if no step was left to do.
    """

    run_id: str
    attempt: int
    at: datetime
    resumed_at: datetime | None
    worker: str | None


class Writer:
    """Writes effects of this process, from any thread."""

    def __init__(self, url: str, worker: str) -> None:
        self._url = url
        self._worker = worker
        self._lock = threading.Lock()
        self._conn: Connection[TupleRow] | None = None

    def write(self, run_id: str, child: int, step: str, files: int = 0) -> None:
        """Insert the effect of one body."""
        self._execute(
            "insert into pyengine_demo.effects (run_id, child, step, worker, files) "
            "values (%s, %s, %s, %s, %s)",
            (run_id, child, step, self._worker, files),
        )

    def present(self, id: str, process: int) -> None:
        """Insert the worker id and label of this process."""
        self._execute(
            "insert into pyengine_demo.workers (id, label, process) values (%s, %s, %s)",
            (id, self._worker, process),
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        import psycopg

        with self._lock:
            if self._conn is None or self._conn.closed:
                self._conn = psycopg.connect(
                    libpq_url(self._url),
                    autocommit=True,
                    application_name="pyengine demo effects",
                    prepare_threshold=None,
                )
            self._conn.execute(statement.encode(), values)


def install(conn: Connection[TupleRow]) -> None:
    """Create schema and tables, if they do not exist."""
    with conn.transaction():
        conn.execute("select pg_advisory_xact_lock(%s)", (INSTALL_LOCK,))
        conn.execute("set local client_min_messages = warning")
        conn.execute(_INSTALL.encode())


def progress(conn: Connection[TupleRow], root: str) -> Progress:
    """Count the finished steps and files of an audit, each step once."""
    row = conn.execute(
        """select count(*), coalesce(sum(files), 0) from (
             select max(files) as files from pyengine_demo.effects
             where run_id = %(root)s or (run_id > %(root)s || '.' and run_id < %(root)s || '/')
             group by run_id, child) done""",
        {"root": root},
    ).fetchone()
    return Progress(steps=int(row[0]), files=int(row[1])) if row else Progress(steps=0, files=0)


def now(conn: Connection[TupleRow]) -> datetime:
    """Return the time by the database's clock."""
    row = conn.execute("select clock_timestamp()").fetchone()
    assert row is not None
    return cast("datetime", row[0])


def leased_runs(conn: Connection[TupleRow], root: str) -> dict[int, list[str]]:
    """Return the leased runs of an audit, by process id of the worker.

    It waits for turns that are under way: the server completes the last turn of a killed process, which may
    end its runs.
    """
    rows = conn.execute(
        """select w.process, t.id
           from durable._tasks t join pyengine_demo.workers w on w.id = t.pid
           where t.state = 'acquired'
             and (t.id = %(root)s or (t.id > %(root)s || '.' and t.id < %(root)s || '/'))
           order by t.id for share of t""",
        {"root": root},
    ).fetchall()
    runs: dict[int, list[str]] = {}
    for process, run_id in rows:
        runs.setdefault(int(process), []).append(run_id)
    return runs


def repeated(conn: Connection[TupleRow], root: str) -> Repeated:
    """Count the repeated bodies: after the journal had their result, which must be 0, and before.

    The journal has milliseconds, so the times of effects are truncated to milliseconds too.
    """
    row = conn.execute(
        """with effect as (
             select e.run_id, e.child, date_trunc('milliseconds', e.at) as at,
                    row_number() over (partition by e.run_id, e.child order by e.at) as number
             from pyengine_demo.effects e
             where e.run_id = %(root)s or (e.run_id > %(root)s || '.' and e.run_id < %(root)s || '/')
           ), recorded as (
             select j.id, j.child, min(j.at) as at from durable.journal_events j
             where j.event = 'InvokeCompleted'
               and (j.id = %(root)s or (j.id > %(root)s || '.' and j.id < %(root)s || '/'))
             group by j.id, j.child
           )
           select count(*) filter (where e.at > r.at),
                  count(*) filter (where e.number > 1 and (r.at is null or e.at <= r.at)),
                  count(*)
           from effect e left join recorded r on r.id = e.run_id and r.child = e.child""",
        {"root": root},
    ).fetchone()
    after, before, bodies = row if row else (0, 0, 0)
    return Repeated(after_recorded=after, before_recorded=before, bodies=bodies)


def takeovers(conn: Connection[TupleRow], root: str) -> list[Takeover]:
    """Return the interrupted attempts, from the journal of the root run."""
    with conn.cursor(row_factory=class_row(Takeover)) as cursor:
        return cursor.execute(
            """with attempt as (
                 select j.promise_id as run_id, j.event, j.attempt, j.at, j.payload, j.seq
                 from durable.journal_events j
                 where j.id = %(root)s and j.event in ('InvokeStarted', 'InvokeRetrying')
               )
               select i.run_id, i.attempt, i.at, n.at as resumed_at, w.worker
               from attempt i
               left join lateral (select a.at from attempt a
                                  where a.run_id = i.run_id and a.event = 'InvokeStarted'
                                    and a.attempt > i.attempt order by a.attempt limit 1) n on true
               left join lateral (select e.worker from pyengine_demo.effects e
                                  where e.run_id = i.run_id and e.at >= n.at order by e.at limit 1) w on true
               where i.event = 'InvokeRetrying' and (i.payload ->> 'interrupted')::boolean
               order by i.seq""",
            {"root": root},
        ).fetchall()
