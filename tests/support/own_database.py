"""The database that a test has to itself: a clone of the template that serves one test after the other.

What lives here: `OwnDatabase`. A clone and a session that compiles every law cost a sixth of a second of CPU.
So after a test its rows are removed, and the session that checks the laws stays. The next test cannot tell
the difference: a database in which a test has done more than write rows is dropped, and so is one that has
grown, because plans depend on the sizes of tables. Changes of the catalogue, as the server counts them, and
settings of the database are more than rows. May not: a sign of the sessions that stay; they are idle, outside
transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import TupleRow, tuple_row

from tests.support.cluster import Server, create_database, deadlocks, drop_database, end_sessions

Connection = psycopg.Connection[TupleRow]

# a table below ten pages is planned like an empty one
_LARGE = 9 * 8192
_MOST_TESTS = 50
_TABLES = """
select c.relname from pg_class c
where c.relnamespace = 'durable'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by 1
"""
_SEQUENCES = (
    "select c.relname from pg_class c where c.relnamespace = 'durable'::regnamespace and c.relkind = 'S'"
)
_WRITES = """
pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid) + pg_stat_get_tuples_deleted(c.oid)
"""
# changes of the catalogue since the counters were reset, those that were rolled back too; what a vacuum has
# left; large tables; what belongs to the database as a whole; and when the counters were reset
_SHAPE = f"""
select
  (select sum({_WRITES}) from pg_class c
   where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r' and not c.relisshared),
  x.reltuples, x.relpages, x.large, d.datdba, d.datacl::text, d.datconnlimit, d.datallowconn,
  array(select s::text from pg_db_role_setting s where s.setdatabase = d.oid order by 1),
  pg_stat_get_db_stat_reset_time(d.oid)
from pg_database d, (
  select sum(c.reltuples) as reltuples, sum(c.relpages) as relpages,
         count(*) filter (where pg_relation_size(c.oid) > {_LARGE}) as large
  from pg_class c where c.relnamespace = 'durable'::regnamespace and c.relkind = 'r') x
where d.datname = current_database()
"""
_WRITTEN = f"""
select c.relname from pg_class c
where c.relnamespace = 'durable'::regnamespace and c.relname = any (%s) and {_WRITES} > 0
"""
# as `discard all`, but for the plans; the last has the server know at once what the session has changed
_RENEW = """
close all; set session authorization default; reset all; deallocate all;
select pg_advisory_unlock_all(); discard temp; discard sequences; select pg_stat_force_next_flush()
"""


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the template has rows of.

    Args:
        filled: query of the other tables that have rows now.
        rows: each table that has some, as COPY writes it.
        rewind: statement that sets the sequences to their beginning.
        shape: what is not rows.
    """

    filled: bytes
    rows: dict[str, bytes]
    rewind: bytes
    shape: TupleRow


@dataclass(kw_only=True)
class OwnDatabase:
    """One database, for one test at a time.

    Args:
        maintenance: a session in another database.
        server: where it is made.
        name: how it is called.
        template: what it is a clone of.
    """

    maintenance: Connection
    server: Server
    name: str
    template: str
    _laws: Connection | None = field(default=None, init=False)
    _conn: Connection | None = field(default=None, init=False)
    _content: Content | None = field(default=None, init=False)
    _is_ready: bool = field(default=False, init=False)
    _counted_since: datetime | None = field(default=None, init=False)
    _tests: int = field(default=0, init=False)

    @property
    def dsn(self) -> str:
        """Its URL, with a session of one's own."""
        return self.server.dsn(self.name)

    def begin(self, *, new: bool = False) -> None:
        """Make it ready for a test; a `new` one was of no other test before, and no session is in it."""
        if self._is_ready and not new:
            return
        self.drop()
        create_database(self.maintenance, self.name, self.template)
        if self._content is None and not new:
            self._content = _content(self._watch())
        self._is_ready = not new

    def leave(self) -> None:
        """End every session, also those that stay, and wait until they are gone.

        The server looks for a session that it has ended ten times a second only.
        """
        for each in (self._laws, self._conn):
            if each is not None:
                each.close()
        self._laws = self._conn = None
        end_sessions(self.maintenance, self.name)

    def drop(self) -> None:
        """Have no database, until the next test begins."""
        self.leave()
        self._is_ready, self._tests, self._counted_since = False, 0, None
        drop_database(self.maintenance, self.name)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """An autocommit connection for a test; functions that other tests have called are compiled in it."""
        if self._conn is None or not _is_alive(self._conn):
            # without names, because a name that one test gave to a statement would be there in the next
            self._conn = psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)
        conn = self._conn
        yield conn
        if not _is_as_new(conn):
            conn.close()

    def broken_laws(self) -> list[tuple[Any, ...]]:
        """Rows of durable.check(): one for each violated law; none where the test dropped the schema."""
        conn = self._watch()
        if conn.execute("select to_regproc('durable.check')").fetchone() == (None,):
            return []
        return conn.execute("select * from durable.check()").fetchall()

    def deadlocks(self) -> int:
        """Deadlocks that PostgreSQL has counted here; ends the sessions of the test."""
        return deadlocks(self.maintenance, self.name, but=self._staying())

    def end(self) -> None:
        """After a test: leave no row of it, or no database."""
        self._tests += 1
        end_sessions(self.maintenance, self.name, but=self._staying())
        try:
            is_ready = self._is_ready and self._tests < _MOST_TESTS and self._is_emptied()
        except psycopg.Error:
            is_ready = False
        if not is_ready:
            self.drop()

    def _is_emptied(self) -> bool:
        """Remove the rows; answer whether that was all there was to do."""
        conn, content = self._watch(), self._content
        if content is None or _shape(conn) != (*content.shape[:-1], self._counted_since):
            return False
        with conn.transaction():
            for (table,) in conn.execute(content.filled).fetchall():
                conn.execute(f"delete from durable.{table}".encode())
            for (table,) in conn.execute(_WRITTEN, (list(content.rows),)).fetchall():
                conn.execute(f"delete from durable.{table}".encode())
                with conn.cursor().copy(f"copy durable.{table} from stdin".encode()) as copy:
                    copy.write(content.rows[table])
            conn.execute(content.rewind)
        self._counted_since = _reset_counters(conn)
        return True

    def _watch(self) -> Connection:
        """The session that checks the laws, or another one, if it was ended."""
        if self._laws is None or not _is_alive(self._laws):
            self._laws = psycopg.connect(self.dsn, autocommit=True, application_name="laws of the tests")
            # no trigger sees how rows are removed
            self._laws.execute("set session_replication_role = replica")
        return self._laws

    def _staying(self) -> list[int]:
        kept = [each for each in (self._laws, self._conn) if each is not None and not each.closed]
        return [each.info.backend_pid for each in kept]


def _is_alive(conn: Connection) -> bool:
    if not conn.closed:
        try:
            conn.execute("select")
        except psycopg.Error:
            conn.close()
    return not conn.closed


def _is_as_new(conn: Connection) -> bool:
    """Whether a session of a test could be made as it was, and reports what it has counted."""
    own = (conn.autocommit, conn.row_factory, conn.prepare_threshold, conn.isolation_level, conn.read_only)
    if conn.closed or own != (True, tuple_row, None, None, None):
        return False
    if conn._notice_handlers or conn._notify_handlers:
        return False
    try:
        # what it has not committed is committed, as when it is closed
        conn.commit()
        if conn.execute("select from pg_listening_channels()").rowcount:
            # notifications may be on their way
            return False
        conn.execute(_RENEW)
    except psycopg.Error:
        return False
    return True


def _content(conn: Connection) -> Content:
    tables = [str(name) for (name,) in conn.execute(_TABLES).fetchall()]
    rows = {}
    for name in tables:
        with conn.cursor().copy(f"copy (select * from durable.{name} limit 1) to stdout".encode()) as copy:
            is_empty = not list(copy)
        if not is_empty:
            with conn.cursor().copy(f"copy durable.{name} to stdout".encode()) as copy:
                rows[name] = b"".join(map(bytes, copy))
    filled = [
        f"select '{each}' where exists (select from durable.{each})" for each in tables if each not in rows
    ]
    rewind = []
    for (name,) in conn.execute(_SEQUENCES).fetchall():
        at = conn.execute(f"select last_value, is_called from durable.{name}".encode()).fetchone() or ()
        rewind.append("setval('durable.{}', {}, {})".format(name, *at))
    return Content(
        filled=" union all ".join(filled).encode(),
        rows=rows,
        rewind=f"select {', '.join(rewind)}".encode(),
        shape=_shape(conn),
    )


def _shape(conn: Connection) -> TupleRow:
    return conn.execute(_SHAPE).fetchone() or ()


def _reset_counters(conn: Connection) -> Any:
    """Have the server count from zero, and nothing of this session; answer since when."""
    conn.execute("select pg_stat_force_next_flush()")
    conn.execute("select pg_stat_reset()")
    return _shape(conn)[-1]
