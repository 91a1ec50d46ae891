"""Law: a test finds the database that others had before it as the template made it; one in which they did
more than write rows, or which has grown, is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from tests.support.clock import Clock
from tests.support.cluster import Server, of_worker
from tests.support.inhabitants import inhabit, inhabit_journals
from tests.support.laboratory import Laboratory, transaction_of
from tests.support.own_database import OwnDatabase

Connection = psycopg.Connection[TupleRow]
# a database as comparable rows: tables and sequences, and the versions of the catalogue
TABLES = """
select c.relname, case c.relkind when 'r' then 'x' else '(last_value, is_called)' end from pg_class c
where c.relnamespace = 'durable'::regnamespace and c.relkind in ('r', 'S') order by c.oid
"""
CATALOGUE = "select c.oid, c.xmin::text from {} c order by 1"
CATALOGUES = ("pg_class", "pg_proc", "pg_constraint", "pg_trigger", "pg_type", "pg_namespace", "pg_attrdef")
OID = "select oid from pg_database where datname = current_database()"
COUNTED = """
select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) from pg_stat_user_tables
where schemaname = 'durable'
"""
MORE = {
    "a table": "create table mine (id integer)",
    "a table that is undone": "begin; create table mine (id integer); rollback",
    "a table that is not counted": "create table mine (id integer); select pg_stat_reset()",
    "a temporary table": "create temporary table mine (id integer)",
    "another body": (
        "create or replace function durable._after(p_id text) returns text language sql immutable "
        "parallel safe as $$ select p_id $$"
    ),
    "an emptied table": "truncate durable._hints",
    "a right": "grant select on durable._promises to public",
    "a setting of the database": (
        "do $$ begin execute format('alter database %I set work_mem = 65', current_database()); end $$"
    ),
    "statistics": "analyze durable.migrations",
    "a vacuum": "select durable.start('w'); vacuum durable._promises",
    "a large object": "select lo_from_bytea(0, 'x')",
    "many rows": "select durable.start_many('w', array_agg('[1]'::jsonb)) from generate_series(1, 2000)",
}


@pytest.fixture
def own(server: Server, still_template: str, maintenance: Connection) -> Iterator[OwnDatabase]:
    """A database of its own, whose clock stands still."""
    made = OwnDatabase(
        maintenance=maintenance, server=server, name=of_worker("owned"), template=still_template
    )
    yield made
    made.drop()


def everything(own: OwnDatabase) -> list[TupleRow]:
    """What there is in a database, read by a session of its own."""
    with psycopg.connect(own.dsn, autocommit=True) as conn:
        found: list[TupleRow] = []
        for name, row in conn.execute(TABLES).fetchall():
            found += conn.execute(f"select '{name}', {row}::text from durable.{name} x order by 2".encode())
        for name in CATALOGUES:
            found += conn.execute(CATALOGUE.format(name).encode()).fetchall()
        return found


def test_rows_are_removed(own: OwnDatabase) -> None:
    """After a test that wrote rows of every kind the same database is as it was, and nothing is counted."""
    own.begin()
    before = everything(own)
    with own.session() as conn:
        clock = Clock(own.dsn)
        inhabit(conn, clock)
        inhabit_journals(conn)
        conn.execute("select durable.set_setting('hints', 'off')")
        conn.execute("update durable.migrations set applied_at = now()")
        pid = conn.info.backend_pid
        clock.set(1_800_000_000_000)
        clock.close()
    assert everything(own) != before
    assert own.deadlocks() == 0
    own.end()
    own.begin()
    assert everything(own) == before
    with own.session() as conn:
        assert conn.info.backend_pid == pid
        assert conn.execute(COUNTED).fetchone() == (0,)


@pytest.mark.sample(4)
@pytest.mark.parametrize("what", MORE)
def test_more_than_rows_is_never_kept(own: OwnDatabase, what: str) -> None:
    """A change of the catalogue, of the database or of its size is not there for the next test."""
    own.begin()
    before = everything(own)
    with psycopg.connect(own.dsn, autocommit=True) as conn:
        oid = conn.execute(OID).fetchone()
        for statement in MORE[what].split("; ") if "$$" not in MORE[what] else [MORE[what]]:
            conn.execute(statement.encode())
    own.end()
    own.begin()
    with psycopg.connect(own.dsn, autocommit=True) as conn:
        assert (
            conn.execute("select oid from pg_database where datname = current_database()").fetchone() != oid
        )
    assert everything(own) == before


def test_a_session_is_as_new(own: OwnDatabase) -> None:
    """What a test has set, locked, prepared or opened in its session is not there for the next; a session
    that listens, or that was changed by other means, is not used again."""
    own.begin()
    with own.session() as conn:
        pid = conn.info.backend_pid
        conn.execute("set lock_timeout = 7; set role pg_monitor; select pg_advisory_lock(1)")
        conn.execute("prepare mine as select 1; begin; declare c cursor with hold for select 1; commit")
        conn.execute("begin; select set_config('test.word', 'x', false)")
    with own.session() as conn:
        assert conn.info.backend_pid == pid
        asked = """
        select current_setting('lock_timeout'), current_setting('test.word', true),
          current_user = session_user, (select count(*) from pg_prepared_statements),
          (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
          (select count(*) from pg_cursors where is_holdable)
        """
        assert conn.execute(asked).fetchone() == ("0", "", True, 0, 0, 0)
        conn.execute("listen durable_ready")
    with own.session() as conn:
        assert conn.info.backend_pid != pid
        pid = conn.info.backend_pid
        conn.autocommit = False
    with own.session() as conn:
        assert conn.info.backend_pid != pid and conn.autocommit
        conn.close()
    with own.session() as conn:
        assert conn.execute("select 1").fetchone() == (1,)


def test_a_scene_ends_with_its_file(
    request: pytest.FixtureRequest, laboratory_at_rest: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for the next test of the file; behind the last one nobody on the server waits for it."""
    at_end: list[Callable[[], object]] = []
    monkeypatch.setattr(pytest.Module, "addfinalizer", lambda _, end: at_end.append(end))
    for _ in range(2):
        with transaction_of(request, make_scene) as conn:
            assert conn.execute("select count(*) from durable._promises").fetchone() == (1,)
    assert conn.info.transaction_status == TransactionStatus.INTRANS
    for end in at_end:
        end()
    assert conn.info.transaction_status == TransactionStatus.IDLE


def make_scene(conn: Connection) -> None:
    """A promise."""
    conn.execute("select durable.create_promise('p')")
