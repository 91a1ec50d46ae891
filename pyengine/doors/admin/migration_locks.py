"""A part of a migration against the locks of others: its tries, their bounds, and who is in the way.

Lives here: ``Patience``, which runs a part, and ``Waiting``. May not: begin or end the part's transaction,
decide what a part contains (``migration_plan``).

Design: whoever comes after a statement that waits for a lock waits behind it. So the statements of a part
wait for one bounded time in all, however many locks they take. When it is over, a savepoint gives back the
locks that the part has, and it is tried again after a pause. Statements that lock no table run once, before.
The bound grows, because a wait that is shorter than the transactions of others succeeds by chance only. While
a part has other locks it ends before the server looks for a deadlock, which could end a session of users.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.process import clock
from pyengine.core.process.backoff import backoff_pause
from pyengine.core.sources import SCHEMA
from pyengine.doors.admin.logic import split
from pyengine.doors.admin.migration_parts import LOCK_TIMEOUT_MS, Part, Segment
from pyengine.errors import Unavailable

WAIT_S = 60.0
BLOCK_S = 0.25

_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_INTERNAL_MAX = 10
_LEAST_MS = 10
_GROWTH = 1.2
_NAMED = re.compile(rf"\b{SCHEMA}\.(\w+)")

Connection = psycopg.Connection[TupleRow]

_HOLDERS = """
select a.pid, coalesce(nullif(a.application_name, ''), a.backend_type), coalesce(a.state, 'active'),
       extract(epoch from clock_timestamp() - a.xact_start)::float8
from pg_catalog.pg_stat_activity a
where a.pid <> pg_catalog.pg_backend_pid() and a.xact_start is not null and exists (
  select from pg_catalog.pg_locks l join pg_catalog.pg_class c on c.oid = l.relation
  where l.pid = a.pid and l.granted and c.relnamespace = pg_catalog.to_regnamespace(%s) and c.relname = %s)
order by a.xact_start limit 3
"""
# locks of prepared transactions have no process: what they have in common is a number of their own
_PREPARED = """
select x.gid, extract(epoch from clock_timestamp() - x.prepared)::float8, pg_catalog.quote_literal(x.gid)
from pg_catalog.pg_prepared_xacts x
where x.database = pg_catalog.current_database() and exists (
  select from pg_catalog.pg_locks t
  join pg_catalog.pg_locks l on l.pid is null and l.virtualtransaction = t.virtualtransaction
  join pg_catalog.pg_class c on c.oid = l.relation
  where t.pid is null and t.locktype = 'transactionid' and t.transactionid = x.transaction
    and c.relnamespace = pg_catalog.to_regnamespace(%s) and c.relname = %s)
order by x.prepared limit 3
"""
_DEADLOCK = "select setting::float8 / 1000 from pg_catalog.pg_settings where name = 'deadlock_timeout'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a migration waits for the locks of others.

    Args:
        wait_s: how long a part is tried again that does not get its locks.
        block_s: how long a try waits for locks at the most, and others behind it.
    """

    wait_s: float = WAIT_S
    block_s: float = BLOCK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A try that did not get a lock.

    Args:
        part: names of its steps, or functions and views.
        relation: the table or view.
        holders: sessions that hold a lock on it: process id, name, state and the age of their transaction;
            and prepared transactions, which have no session.
        tries: how many there were.
    """

    part: str
    relation: str
    holders: tuple[str, ...]
    tries: int

    def __str__(self) -> str:
        held = f", held by {'; '.join(self.holders)}" if self.holders else ""
        return f"{self.part}: waits for a lock on {self.relation}{held} (try {self.tries})"


Tell = Callable[[Waiting], None]


class Patience:
    """The tries of a part."""

    def __init__(self, limits: Limits, tell: Tell | None = None) -> None:
        self._limits = limits
        self._tell = tell
        self._until = clock.monotonic() + limits.wait_s
        self._failures = 0
        self.at: Part | None = None
        """The statements that are running, or were the last; for the place of an error."""

    def run(self, conn: Connection, part: Part) -> None:
        """Execute a part in a transaction that has begun, until it has its locks.

        Raises:
            Unavailable: the time is over.
        """
        self.at = replace(part, segments=part.segments[: part.ahead])
        if self.at.text:
            conn.execute(self.at.text.encode())
        longest_s = min(self._limits.block_s, _deadlock_s(conn) * 0.8 if _takes_many(part) else math.inf)
        while True:
            try:
                with conn.transaction():
                    self._take_locks(conn, part, longest_s)
                return
            except psycopg.Error as error:
                if not self.covers(error):
                    raise
                self.pause(conn, error, part)

    def covers(self, error: psycopg.Error) -> bool:
        """Whether others caused an error, so that the next try may succeed."""
        if isinstance(error, psycopg.errors.InternalError_):
            # of rows of the catalogue that another session changes too; what is really broken stays so
            return self._failures < _INTERNAL_MAX
        return isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected)

    def pause(self, conn: Connection, error: psycopg.Error, part: Part | None) -> None:
        """Tell of a try that failed, and wait before the next.

        Raises:
            Unavailable: the time is over.
        """
        self._failures += 1
        named = _NAMED.search(self.at.text) if self.at and self.at.text else None
        steps = ", ".join(step.name for step in part.steps) if part else ""
        waiting = Waiting(
            part=steps or "functions and views",
            relation=f"{SCHEMA}.{named[1]}" if named else f"a table or view of {SCHEMA}",
            holders=_holders(conn, named[1]) if named else (),
            tries=self._failures,
        )
        if clock.monotonic() > self._until:
            raise self._over(waiting) from error
        if self._tell is not None:
            self._tell(waiting)
        longest = backoff_pause(_PAUSE_S, _PAUSE_MAX_S, self._failures)
        clock.pause(random.uniform(longest / 2, longest))

    def _take_locks(self, conn: Connection, part: Part, longest_s: float) -> None:
        """Execute what takes locks, statement by statement; each may wait for what is left of the time."""
        first_s = min(LOCK_TIMEOUT_MS / 1000, longest_s)
        until = clock.monotonic() + backoff_pause(first_s, longest_s, self._failures, _GROWTH)
        for segment in part.segments[part.ahead :]:
            for text, line in split(segment.text):
                left_ms = max(_LEAST_MS, int((until - clock.monotonic()) * 1000))
                self.at = replace(part, segments=(_statement(segment, text, line),), ahead=0)
                conn.execute(f"set local lock_timeout = {left_ms}".encode())
                conn.execute(text.encode())

    def _over(self, waiting: Waiting) -> Unavailable:
        held = f"; {waiting.relation} was held by {'; '.join(waiting.holders)}" if waiting.holders else ""
        return Unavailable(
            f"{waiting.part}: others kept {waiting.relation} locked for {self._limits.wait_s:.0f} s, "
            f"{waiting.tries} tries; nothing of it was changed, and both versions go on{held}",
            hint="end those transactions, or wait longer, and let others wait longer: "
            f"pyengine db migrate --wait {max(60, self._limits.wait_s) * 10:.0f} --block 2",
        )


def _statement(segment: Segment, text: str, line: int) -> Segment:
    return Segment(text=text, path=segment.path, line=segment.line + line - 1)


def _takes_many(part: Part) -> bool:
    """Whether a part has the lock of one table or view while it waits for that of another."""
    return part.phase in ("logic", "drops")


def _deadlock_s(conn: Connection) -> float:
    """After how long the server looks for a deadlock, of which a session of users could be the victim."""
    row = conn.execute(_DEADLOCK).fetchone()
    return float(row[0]) if row else math.inf


def _holders(conn: Connection, relation: str) -> tuple[str, ...]:
    # what a transaction has seen of the sessions once does not change otherwise
    conn.execute("select pg_catalog.pg_stat_clear_snapshot()")
    rows = conn.execute(_HOLDERS, (SCHEMA, relation)).fetchall()
    sessions = [f"pid {pid} ({name}, {state} for {age:.1f} s)" for pid, name, state, age in rows]
    rows = conn.execute(_PREPARED, (SCHEMA, relation)).fetchall()
    prepared = [
        f"the prepared transaction {gid} (for {age:.1f} s; to end it: rollback prepared {quoted})"
        for gid, age, quoted in rows
    ]
    return (*prepared, *sessions)
