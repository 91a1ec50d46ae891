"""What the command line asks the database, in SQL.

Lives here: every SQL text of the command line, one function each, on the people's views and functions of the
schema. May not: print, or decide. Workers never come here: what they call stands in
``database/statements/procedures.py``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row, dict_row, scalar_row

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

__all__ = [
    "STATES",
    "Event",
    "Filter",
    "Fork",
    "Moment",
    "Run",
    "Setting",
    "Start",
    "as_of",
    "cancel",
    "change_setting",
    "counts",
    "events",
    "family",
    "fork",
    "ids_like",
    "installed",
    "known_workflows",
    "pause",
    "pooled",
    "purge",
    "redrive",
    "result",
    "resume",
    "run",
    "runs",
    "same_database",
    "server",
    "settings",
    "signal",
    "start",
    "versions",
    "workers",
]

# Python's years end with 9999: what is later, and never, which is infinity, is told as none
_RUN = """
select r.id, r.workflow, r.version, r.state, r.queue, r.parent, r.key, r.args, r.result, r.error, r.problem,
       r.worker, r.crashes, r.waits_for, r.created_at, r.settled_at, r.age,
       case when r.deadline < '10000-01-01' then r.deadline end as deadline,
       case when r.state in ('queued', 'scheduled') and r.not_before < '10000-01-01' then r.not_before end
         as not_before,
       r.events, r.children, r.tags
"""
_ONE = f"{_RUN} from durable.runs r"

STATES = (
    "scheduled", "queued", "running", "waiting", "paused", "halted", "dead", "cancelling",
    "completed", "failed", "timed_out", "cancelled",
)  # fmt: skip
"""States of a run, as the view ``durable.runs`` writes them."""
_FAILED = ("failed", "timed_out", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of ``durable.runs``."""

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
    deadline: datetime | None
    not_before: datetime | None
    events: int
    children: int
    tags: dict[str, str]


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
class Filter:
    """Which runs are listed; None means any."""

    state: str | None = None
    workflow: str | None = None
    roots_only: bool = False
    limit: int = 20


def runs(conn: Connection[TupleRow], wanted: Filter) -> list[Run]:
    """Return the newest runs that pass the filter, newest first, from the view that finds them."""
    view, order = "durable.newest", ""  # in this order by itself
    if wanted.state not in (None, "completed"):
        view = "durable.failed" if wanted.state in _FAILED else "durable.live"
        order = "order by r.execution desc"
    with conn.cursor(row_factory=class_row(Run)) as cursor:
        return cursor.execute(
            f"""{_RUN} from {view} r
            where (%(state)s::text is null or r.state = %(state)s)
              and (%(workflow)s::text is null or r.workflow = %(workflow)s)
              and not (%(roots_only)s and r.parent is not null)
            {order} limit %(limit)s""",
            asdict(wanted),
        ).fetchall()


def run(conn: Connection[TupleRow], id: str) -> Run | None:
    """Return one run."""
    with conn.cursor(row_factory=class_row(Run)) as cursor:
        return cursor.execute(f"{_ONE} where r.id = %s", (id,)).fetchone()


def family(conn: Connection[TupleRow], id: str) -> list[Run]:
    """Return the child runs of a run and theirs, in the order of their numbers."""
    with conn.cursor(row_factory=class_row(Run)) as cursor:
        found = cursor.execute(
            f"{_ONE} where r.id > %(id)s || '.' and r.id < %(id)s || '/' and r.parent is not null", {"id": id}
        ).fetchall()
    below = len(id) + 1
    return sorted(found, key=lambda one: [int(number) for number in one.id[below:].split(".")])


def ids_like(conn: Connection[TupleRow], id: str) -> list[str]:
    """Return the ids of runs that begin with an id (ASCII), as far as people started them."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        found = cursor.execute(
            "select id from durable.runs where id >= %(id)s and id < %(id)s || '~' and parent is null",
            {"id": id},
        ).fetchall()
    return [str(one) for one in found]


def events(conn: Connection[TupleRow], id: str) -> list[Event]:
    """Return the journal of a run as its logical events."""
    with conn.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(
            """select seq, event, at, child, attempt, name, payload
               from durable.journal_events where id = %s order by seq""",
            (id,),
        ).fetchall()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a run is started with; None means the default of ``durable.start``."""

    workflow: str
    args: str
    id: str | None = None
    key: str | None = None
    queue: str = "default"
    version: str = "1"


def start(conn: Connection[TupleRow], wanted: Start) -> str:
    """Start a run under any name, or find the one that has this id or key; return its id."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return str(
            cursor.execute(
                """select durable.start(workflow => %s, args => %s::jsonb, id => %s, key => %s, queue => %s,
                                        version => %s, any_workflow => true)""",
                (wanted.workflow, wanted.args, wanted.id, wanted.key, wanted.queue, wanted.version),
            ).fetchone()
        )


def signal(conn: Connection[TupleRow], id: str, name: str, payload: str, key: str | None) -> int:
    """Send a signal to a run; return its number among those of its name."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        found = cursor.execute(
            "select durable.signal(run => %s, name => %s, payload => %s::jsonb, dedup => %s)",
            (id, name, payload, key),
        ).fetchone()
    return int(str(found))


def cancel(
    conn: Connection[TupleRow], id: str, reason: str | None, grace_ms: int | None, *, force: bool
) -> None:
    """Cancel a run and its child runs; without a grace, with the one of the settings."""
    conn.execute(
        """select durable.cancel(id => %s, reason => to_jsonb(%s::text),
                                 grace => %s::bigint * interval '1 millisecond', force => %s)""",
        (id, reason, grace_ms, force),
    )


def pause(conn: Connection[TupleRow], id: str) -> None:
    """Set a run aside."""
    conn.execute("select durable.pause(%s)", (id,))


def resume(conn: Connection[TupleRow], id: str) -> None:
    """Let a run that is set aside go on."""
    conn.execute("select durable.resume(%s)", (id,))


def redrive(conn: Connection[TupleRow], id: str | None) -> int:
    """Revive one dead run, or all; return how many."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return int(str(cursor.execute("select durable.redrive(%s)", (id,)).fetchone()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """From where a fork is made, and with what; None means the default of ``durable.fork``."""

    id: str
    seq: int | None
    step: str | None
    values: str
    new_id: str | None
    queue: str | None
    version: str | None


def fork(conn: Connection[TupleRow], wanted: Fork) -> str:
    """Begin a new run with what another one did; return its id."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return str(
            cursor.execute(
                """select durable.fork(id => %s, seq => %s::integer, step => %s, set_values => %s::jsonb,
                                       new_id => %s, queue => %s, version => %s)""",
                (
                    wanted.id,
                    wanted.seq,
                    wanted.step,
                    wanted.values,
                    wanted.new_id,
                    wanted.queue,
                    wanted.version,
                ),
            ).fetchone()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A row of ``durable.as_of``."""

    generation: int
    seq: int
    at: datetime
    status: str
    next_child: int
    waiting_on: list[str]
    running: list[dict[str, Any]]
    children: dict[str, dict[str, Any]]
    signals: dict[str, dict[str, int]]


def as_of(
    conn: Connection[TupleRow], id: str, seq: int | None, at: str | None, generation: int | None
) -> Moment:
    """Return what was known of a run at a moment; `at` is any text that Postgres takes for an instant."""
    with conn.cursor(row_factory=class_row(Moment)) as cursor:
        cursor.execute(
            """select generation, seq, at, status, next_child, waiting_on, running, children, signals
               from durable.as_of(id => %s, seq => %s::integer, at => %s::timestamptz,
                                  generation => %s::integer)""",
            (id, seq, at, generation),
        )
        (found,) = cursor.fetchall()
    return found


def result(conn: Connection[TupleRow], id: str) -> tuple[str, Any, Any]:
    """Return state of the promise, value and error of a run as they are now."""
    row = conn.execute("select state, value, error from durable.result(%s)", (id,)).fetchone()
    return row if row is not None else ("pending", None, None)


def workers(conn: Connection[TupleRow]) -> list[dict[str, Any]]:
    """Return the workers that said hello and were heard of within two minutes, or hold their presence."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            """select w.id, w.present, durable._at(w.seen_at) as seen_at,
                      durable._at(w.started_at) as started_at, w.queues, w.workflows, w.versions, w.about
               from durable._workers w
               where (w.present and w.missing_at is null) or w.seen_at > durable._now_ms() - 120000
               order by w.started_at"""
        ).fetchall()


def known_workflows(conn: Connection[TupleRow]) -> list[str]:
    """Return the names of workflows that some worker ever registered."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        found = cursor.execute("select distinct name from durable.workflows order by name").fetchall()
    return [str(name) for name in found]


def settings(conn: Connection[TupleRow]) -> list[Setting]:
    """Return the knobs, without what the installer notes for itself."""
    with conn.cursor(row_factory=class_row(Setting)) as cursor:
        return cursor.execute(
            """select name, value, description from durable.settings
               where name not in ('logic_sha256', 'engine_version') order by name"""
        ).fetchall()


def change_setting(conn: Connection[TupleRow], name: str, value: str) -> str:
    """Change a knob; return its old value."""
    row = conn.execute("select durable.set_setting(%s, %s)", (name, value)).fetchone()
    return str(row[0]) if row else ""


def purge(conn: Connection[TupleRow], older_than: str, after: str | None) -> dict[str, Any]:
    """Remove up to 1000 runs that ended that long ago; say what went, what stayed, behind what to go on."""
    text = "select runs, promises, kept, more::text from durable.purge(%s::interval, after => %s::jsonb)"
    return conn.cursor(row_factory=dict_row).execute(text, (older_than, after)).fetchall()[0]


def counts(conn: Connection[TupleRow]) -> dict[str, int]:
    """Return how many runs there are in each state."""
    rows = conn.execute("select state, runs from durable.counts order by state").fetchall()
    return {str(state): int(number) for state, number in rows}


def installed(conn: Connection[TupleRow]) -> bool:
    """Return whether the schema is there at all."""
    return conn.execute("select to_regprocedure('durable.version()') is not null").fetchone() == (True,)


def versions(conn: Connection[TupleRow]) -> tuple[int, int, int]:
    """Return the schema's version, and the lowest and highest worker protocol that it serves."""
    row = conn.execute(
        "select schema_version, lowest_worker_protocol, highest_worker_protocol from durable.version()"
    ).fetchone()
    return row if row is not None else (0, 0, 0)


def pooled(conn: Connection[TupleRow]) -> bool:
    """Return whether a pooler stands in between: another backend answers than was announced."""
    return conn.execute("select pg_backend_pid()").fetchone() != (conn.info.backend_pid,)


def same_database(conn: Connection[TupleRow], other: Connection[TupleRow], mark: int) -> bool:
    """Return whether a mark that the other connection's session leaves is seen by this one."""
    other.execute("select pg_advisory_lock(1685417571, %s)", (mark,))
    row = conn.execute("select not pg_try_advisory_xact_lock_shared(1685417571, %s)", (mark,)).fetchone()
    return row == (True,)


def server(conn: Connection[TupleRow]) -> tuple[str, int]:
    """Return the server's version as text, and the bytes of this database."""
    asked = "select current_setting('server_version'), pg_database_size(current_database())"
    return conn.execute(asked).fetchone() or ("", 0)
