"""The queries of the command line.

Lives here: its SQL texts, one function each, on the public views and functions of the schema. May not: print,
or decide, or serve workers (``database/statements/procedures.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.rows import class_row, dict_row, scalar_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

T = TypeVar("T")

# Python's years end with 9999: a later instant counts as none, as infinity does
RUN_COLUMNS = """
select r.id, r.workflow, r.version, r.state, r.queue, r.parent, r.key, r.args, r.result, r.error, r.problem,
       r.worker, r.crashes, r.waits_for, r.created_at, r.settled_at, r.age,
       durable._at(durable._now_ms()) - r.created_at as since_start,
       case when r.deadline < '10000-01-01' then r.deadline end as deadline,
       case when r.state in ('queued', 'scheduled') and r.not_before < '10000-01-01' then r.not_before end
         as not_before,
       r.events, r.children, r.tags,
       (select jsonb_build_object('done', g.done, 'total', g.total, 'note', g.note)
        from durable.progress g where g.id = r.id and g.done is not null) as progress,
       (select g.named from durable.progress g where g.id = r.id) as named
"""
_ONE = f"{RUN_COLUMNS} from durable.runs r"

STATES = (
    "scheduled", "queued", "running", "waiting", "paused", "halted", "dead", "cancelling",
    "completed", "failed", "timed_out", "cancelled",
)  # fmt: skip
"""States of a run, as the view ``durable.runs`` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of ``durable.runs``; `since_start` is the time since its start, whether it has ended or not."""

    id: str
    workflow: str
    version: str
    state: str
    queue: str
    parent: str | None
    key: str | None
    args: Any
    result: Any
    error: Any
    problem: Any
    worker: str | None
    crashes: int | None
    waits_for: list[str]
    created_at: datetime
    settled_at: datetime | None
    age: timedelta
    since_start: timedelta
    deadline: datetime | None
    not_before: datetime | None
    events: int
    children: int
    tags: dict[str, str]
    progress: dict[str, Any] | None
    named: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of ``durable.journal_events``."""

    seq: int
    event: str
    at: datetime
    child: int | None
    attempt: int | None
    name: str | None
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row of ``durable.settings``."""

    name: str
    value: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A row of ``durable.would_run``."""

    kind: str
    waiting: int
    due: int
    oldest_due: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A row of ``durable.generations``: one journal of a run."""

    generation: int
    attempt: int
    status: str
    started_at: datetime
    ended_at: datetime | None
    events: int
    error: Any


def _rows(conn: Connection[TupleRow], kind: type[T], text: str, values: Any = ()) -> list[T]:
    """Return the rows of a query as records."""
    with conn.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(text.encode(), values).fetchall()


def _scalars(conn: Connection[TupleRow], text: str, values: Any = ()) -> list[Any]:
    """Return the first column of a query."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(text.encode(), values).fetchall()


def _scalar(conn: Connection[TupleRow], text: str, values: Any = ()) -> Any:
    """Return the one value of a query."""
    return _scalars(conn, text, values)[0]


def run(conn: Connection[TupleRow], id: str) -> Run | None:
    """Return one run."""
    return next(iter(_rows(conn, Run, f"{_ONE} where r.id = %s", (id,))), None)


def family(conn: Connection[TupleRow], id: str) -> list[Run]:
    """Return the child runs of a run and theirs, in the order of their numbers."""
    text = f"{_ONE} where r.id > %(id)s || '.' and r.id < %(id)s || '/' and r.parent is not null"
    below = len(id) + 1
    return sorted(
        _rows(conn, Run, text, {"id": id}),
        key=lambda one: [int(number) for number in one.id[below:].split(".")],
    )


def events(conn: Connection[TupleRow], id: str) -> list[Event]:
    """Return the journal of a run as its logical events."""
    return _rows(
        conn,
        Event,
        """select seq, event, at, child, attempt, name, payload
           from durable.journal_events where id = %s order by seq""",
        (id,),
    )


def generations(conn: Connection[TupleRow], id: str) -> list[Generation]:
    """Return the journals of a run, oldest first."""
    return _rows(
        conn,
        Generation,
        """select generation, attempt, status, started_at, ended_at, events, error
           from durable.generations(%s) order by generation""",
        (id,),
    )


def start(conn: Connection[TupleRow], **options: str | None) -> str:
    """Start a run of any workflow, or find the one that has this id or key; return its id.

    Args:
        conn: the connection.
        options: workflow, args and tags as JSON, id, key, queue and version, as ``durable.start`` takes them;
            without tags there are none.
    """
    text = """select durable.start(workflow => %(workflow)s, args => %(args)s::jsonb, id => %(id)s,
              key => %(key)s, queue => %(queue)s, version => %(version)s, tags => %(tags)s::jsonb,
              any_workflow => true)"""
    return str(_scalar(conn, text, {"tags": "{}"} | options))


def signal(conn: Connection[TupleRow], id: str, name: str, payload: str, key: str | None) -> int:
    """Send a signal to a run; return its number among those of its name."""
    text = "select durable.signal(run => %s, name => %s, payload => %s::jsonb, dedup => %s)"
    return int(_scalar(conn, text, (id, name, payload, key)))


def workers(conn: Connection[TupleRow]) -> list[dict[str, Any]]:
    """Return the workers that are present or sent a heartbeat within two minutes."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            """select w.id, w.present, durable._at(w.seen_at) as seen_at,
                      durable._at(w.started_at) as started_at, w.queues, w.workflows, w.versions, w.about
               from durable._workers w
               where (w.present and w.missing_at is null) or w.seen_at > durable._now_ms() - 120000
               order by w.started_at"""
        ).fetchall()


def known_workflows(conn: Connection[TupleRow]) -> list[str]:
    """Return the names of all workflows that a worker has registered."""
    return _scalars(conn, "select distinct name from durable.workflows order by name")


def settings(conn: Connection[TupleRow]) -> list[Setting]:
    """Return the settings, without those of the installer."""
    text = """select name, value, description from durable.settings
              where name not in ('logic_sha256', 'engine_version') order by name"""
    return _rows(conn, Setting, text)


def change_setting(conn: Connection[TupleRow], name: str, value: str) -> str:
    """Change a setting; return its old value."""
    return str(_scalar(conn, "select durable.set_setting(%s, %s)", (name, value)))


def purge(conn: Connection[TupleRow], older_than: str, after: str | None) -> dict[str, Any]:
    """Remove up to 1000 runs that ended that long ago.

    Args:
        conn: the connection.
        older_than: an interval.
        after: ``more`` of the batch before, or None.

    Returns:
        The numbers of removed runs, promises and earlier generations of runs that live, those left by reason,
        and the position of the next batch.
    """
    text = (
        "select runs, promises, generations, kept, more::text "
        "from durable.purge(%s::interval, after => %s::jsonb)"
    )
    return conn.cursor(row_factory=dict_row).execute(text, (older_than, after)).fetchall()[0]


def purge_calls(conn: Connection[TupleRow], older_than: str, after: str | None) -> dict[str, Any]:
    """Remove up to 1000 rows that calls which ended that long ago have left.

    Args:
        conn: the connection.
        older_than: an interval.
        after: ``more`` of the batch before, or None.

    Returns:
        The number of removed rows, and the position of the next batch.
    """
    text = "select removed, more::text from durable.calls_purge(%s::interval, after => %s::jsonb)"
    return conn.cursor(row_factory=dict_row).execute(text, (older_than, after)).fetchall()[0]


def counts(conn: Connection[TupleRow]) -> dict[str, int]:
    """Return the number of runs in each state."""
    rows = conn.execute("select state, runs from durable.counts order by state").fetchall()
    return {str(state): int(number) for state, number in rows}


def installed(conn: Connection[TupleRow]) -> bool:
    """Return whether the schema is installed, in any version."""
    return bool(_scalar(conn, "select to_regprocedure('durable.version()') is not null"))


def versions(conn: Connection[TupleRow]) -> tuple[int, int, int]:
    """Return the schema's version, and the lowest and highest worker protocol that it serves."""
    row = conn.execute(
        "select schema_version, lowest_worker_protocol, highest_worker_protocol from durable.version()"
    ).fetchone()
    return row if row is not None else (0, 0, 0)


def pooled(conn: Connection[TupleRow]) -> bool:
    """Return whether a pooler is in between, which reports a process id of its own."""
    return bool(_scalar(conn, "select pg_backend_pid()") != conn.info.backend_pid)


def same_database(conn: Connection[TupleRow], other: Connection[TupleRow], mark: int) -> bool:
    """Return whether a lock that the other connection takes is visible to this one."""
    other.execute("select pg_advisory_lock(1685417571, %s)", (mark,))
    return bool(_scalar(conn, "select not pg_try_advisory_xact_lock_shared(1685417571, %s)", (mark,)))


def server(conn: Connection[TupleRow]) -> tuple[str, int]:
    """Return the server's version as text, and the size of this database in bytes."""
    text = "select current_setting('server_version'), pg_database_size(current_database())"
    return conn.execute(text).fetchone() or ("", 0)


def site(conn: Connection[TupleRow]) -> dict[str, Any]:
    """Return the row of ``durable.site``: where the database was adopted, and whether it is a copy."""
    return conn.cursor(row_factory=dict_row).execute("select * from durable.site").fetchall()[0]


def would_run(conn: Connection[TupleRow]) -> list[Waiting]:
    """Return everything unfinished, by kind."""
    return _rows(conn, Waiting, "select kind, waiting, due, oldest_due from durable.would_run order by kind")


def adopt(conn: Connection[TupleRow]) -> tuple[bool, int]:
    """Adopt the database; return whether it was a copy, and how many leases were given back."""
    row = conn.execute("select adopted, leases from durable.adopt()").fetchone()
    return row if row is not None else (False, 0)
