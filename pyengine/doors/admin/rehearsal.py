"""A migration that is rolled back: what would be applied, and the table locks that it takes.

Lives here: ``rehearse`` and its records. May not: commit, print. Design: which locks a statement takes is
known by executing it. So the parts of the plan run in one transaction, which reads its own locks from
``pg_locks`` after each segment, gives up a lock that is not free in a tenth of a second, ends after two
seconds at the latest, and is rolled back. A lock is held from there to the end of its part, and stands with
the first part that takes it. Values
of enums cannot be named before they are committed, so what names one is not rehearsed; nor are backfills,
which lock rows only.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from pyengine.core.process import clock
from pyengine.core.sources import SCHEMA, Sources, found
from pyengine.doors.admin import migrate
from pyengine.doors.admin.migration_parts import LOCKED_SESSION, Part
from pyengine.errors import NotFound

LONGEST_S = 2.0
"""How long a rehearsal may take, so how long others may wait for it."""

_LOCKS = """
select format('%I.%I', n.nspname, c.relname), l.mode from pg_catalog.pg_locks l
join pg_catalog.pg_class c on c.oid = l.relation
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where l.pid = pg_backend_pid() and l.locktype = 'relation' and l.granted and c.relkind in ('r', 'p', 'v', 'm')
  and n.nspname not in ('pg_catalog', 'pg_toast', 'information_schema')
  and l.mode in ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                 'AccessExclusiveLock')
"""
_LOCK_NO_TABLE = {"backfill": "only the rows of a batch", "index": "out nobody who reads or writes the table"}
_MODES = {
    "ShareUpdateExclusiveLock": "SHARE UPDATE EXCLUSIVE",
    "ShareLock": "SHARE",
    "ShareRowExclusiveLock": "SHARE ROW EXCLUSIVE",
    "ExclusiveLock": "EXCLUSIVE",
    "AccessExclusiveLock": "ACCESS EXCLUSIVE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock on a table or view.

    Args:
        relation: the table or view.
        mode: as PostgreSQL's manual writes it.
        held_ms: from the statement that took it to the end of its part.
        taken_by: file and line of that statement, or the kind of part.
    """

    relation: str
    mode: str
    held_ms: float
    taken_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A part of the plan.

    Args:
        phase: install, values, expand, index, logic, drops, backfill or contract.
        steps: names of the steps that it applies.
        logic: it replaces functions and views.
        dropped: functions and views that it drops.
        took_ms: its duration; None if it was not executed.
        locks: strongest first.
        note: why it was not executed, or not to its end.
    """

    phase: str
    steps: tuple[str, ...]
    logic: bool
    dropped: tuple[str, ...]
    took_ms: float | None = None
    locks: tuple[Lock, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal.

    Args:
        parts: in the order in which they would run.
        left: steps that would wait until workers of an older version are gone.
        older: those workers.
    """

    parts: tuple[Rehearsed, ...]
    left: tuple[str, ...]
    older: tuple[str, ...]


def rehearse(dsn: str, *, sources: Sources | None = None) -> Rehearsal:
    """Execute a migration and roll it back.

    Args:
        dsn: connection string of PostgreSQL.
        sources: another tree of SQL files, for tests.

    Raises:
        NotFound: there is no schema to migrate.
        SchemaMismatch: the database is newer than the code, or an applied step was edited.
        Unavailable: no connection.
        EngineError: a statement failed; the message names file and line.
    """
    sources = sources or found()
    if not migrate.status(dsn, sources=sources).installed:
        raise NotFound(f"this database has no schema {SCHEMA}", hint="pyengine db init")
    with migrate.connected(dsn) as conn, conn.transaction(force_rollback=True):
        conn.execute(LOCKED_SESSION.encode())
        plan = migrate.plan(conn, sources)
        until = clock.monotonic() + LONGEST_S
        parts: list[Rehearsed] = []
        for part in plan.parts:
            stopped = any(one.note for one in parts if one.phase not in _LOCK_NO_TABLE)
            parts.append(_planned(part) if stopped else _executed(conn, part, until))
        return Rehearsal(parts=tuple(parts), left=plan.left, older=plan.older)


def _planned(part: Part, note: str = "not rehearsed, because the part before it was not") -> Rehearsed:
    return Rehearsed(
        phase=part.phase,
        steps=tuple(step.name for step in part.steps),
        logic=part.logic,
        dropped=part.dropped,
        note=note,
    )


def _executed(conn: migrate.Connection, part: Part, until: float) -> Rehearsed:
    if part.phase in _LOCK_NO_TABLE:
        return _planned(part, f"not rehearsed: it locks {_LOCK_NO_TABLE[part.phase]}")
    begin, note = clock.monotonic(), None
    taken: dict[tuple[str, str], tuple[float, str]] = {}
    before = set(conn.execute(_LOCKS).fetchall())
    try:
        with conn.transaction():
            for segment in part.segments:
                if part.phase == "drops" and segment is part.segments[0]:
                    continue  # the wait for statements of others
                left_ms = max(1, int((until - clock.monotonic()) * 1000))
                conn.execute(f"set local statement_timeout = {left_ms}".encode())
                at = clock.monotonic()
                conn.execute(segment.text.encode())
                where = f"{segment.path.name}:{segment.line}" if segment.path else part.phase
                if segment.path is not None or part.phase == "drops":
                    for lock in set(conn.execute(_LOCKS).fetchall()) - before:
                        taken.setdefault(lock, (at, where))
    except psycopg.Error as error:
        note = _stopped(error)
        if note is None:
            raise migrate.failed(error, part, ()) from error
    end = clock.monotonic()
    locks = [
        Lock(relation=relation, mode=_MODES[mode], held_ms=round((end - at) * 1000, 1), taken_by=where)
        for (relation, mode), (at, where) in taken.items()
    ]
    order = list(_MODES.values())
    return Rehearsed(
        phase=part.phase,
        steps=tuple(step.name for step in part.steps),
        logic=part.logic,
        dropped=part.dropped,
        took_ms=round((end - begin) * 1000, 1),
        locks=tuple(sorted(locks, key=lambda one: (-order.index(one.mode), one.relation))),
        note=note,
    )


def _stopped(error: psycopg.Error) -> str | None:
    """Return why a rehearsal cannot go on, or None for a failure of the migration itself."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "stopped at a lock that another session holds; the migration itself would try again"
    if isinstance(error, psycopg.errors.QueryCanceled):
        return f"stopped after {LONGEST_S:.0f} s: a statement takes longer than that"
    if isinstance(error, psycopg.errors.UnsafeNewEnumValueUsage):
        return "stopped at a new value of an enum, which has to be committed first"
    return None
