"""Law: the facade `resonate` is installed where it is asked for, goes without a trace, and is upgraded with
the engine; nothing of others is touched.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

from pyengine.core.sources import Sources, found
from pyengine.doors.admin import migrate
from pyengine.errors import SchemaMismatch
from tests.support.catalogue import differences, snapshot
from tests.support.roles import who_works

Connection = psycopg.Connection[TupleRow]
WORKER_MAY = {
    "dequeue_execute",
    "dequeue_unblock",
    "get_schema_version",
    "invoke",
    "outbox_channel",
    "process_timeouts",
    "resonate_rpc",
}
EVIL = """
create function pg_temp.evil(anyelement) returns boolean language plpgsql as $$
begin
  if current_user <> session_user then raise exception 'evil runs as %', current_user; end if;
  return true;
end $$
"""
CALLS = (
    "select resonate.resonate_rpc('{}')",
    "select resonate.dequeue_execute('poll://any@g', 1)",
    "select resonate.dequeue_unblock('poll://uni@g/p', 1)",
    "select resonate.process_timeouts()",
    "select resonate.invoke('i', 'f', '[]', 'poll://any@g')",
)
LEFT = """
select 'schema' from pg_namespace where nspname = 'resonate'
union all select tgname::text from pg_trigger where starts_with(tgname, 'resonate')
"""


@pytest.fixture
def facade(dsn: str) -> str:
    """URL of a database that has the facade."""
    migrate.set_facade(dsn, True)
    return dsn


@pytest.fixture
def sdk(facade: str, conn: Connection, direct: str) -> Iterator[Connection]:
    """A session of a role that may do what the facade allows, and nothing else."""
    role = f"sdk_{conn.info.dbname}"
    conn.execute(f"create role {role} login in role resonate_worker".encode())
    try:
        with psycopg.connect(direct, autocommit=True, user=role) as connection:
            yield connection
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}".encode())


def test_installed_and_gone(conn: Connection, dsn: str) -> None:
    """The engine is afterwards what it was; doing either twice changes nothing."""
    before = snapshot(dsn)
    assert migrate.set_facade(dsn, True).changed
    assert not migrate.set_facade(dsn, True).changed
    assert migrate.status(dsn).facade
    assert migrate.set_facade(dsn, False).changed
    assert not migrate.set_facade(dsn, False).changed
    assert not conn.execute(LEFT).fetchall()
    assert not differences(before, snapshot(dsn))


def test_a_debug_installation_stays_one(conn: Connection, dsn: str) -> None:
    """The facade comes and goes without the debug operations, and they without it."""
    migrate.install(dsn, debug=True)
    migrate.set_facade(dsn, True)
    assert (migrate.status(dsn).debug, migrate.status(dsn).facade) == (True, True)
    migrate.migrate(dsn)
    assert (migrate.status(dsn).debug, migrate.status(dsn).facade) == (False, True)


def test_an_upgrade_brings_it_along(facade: str, conn: Connection, tmp_path: Path) -> None:
    """A migration replaces a facade of another version: functions that went are gone, new ones there."""
    here = found()
    shutil.copytree(here.sql, tmp_path / "sql")
    sources = Sources(sql=tmp_path / "sql", migrations=here.migrations)
    path = tmp_path / "sql/facade/resonate.sql"
    path.write_text(
        path.read_text()
        + "create or replace function resonate.more() returns integer language sql as $$ select 1 $$;\n"
    )
    assert not migrate.status(facade, sources=sources).current
    migrate.migrate(facade, sources=sources)
    assert conn.execute("select resonate.more()").fetchone() == (1,)
    assert migrate.status(facade, sources=sources).current
    assert "function resonate.more()" in migrate.migrate(facade).dropped
    assert migrate.status(facade).current


def test_what_is_used_stays_while_it_is_replaced(facade: str, conn: Connection) -> None:
    """Statements that a session has prepared go on after an upgrade."""
    conn.execute("prepare offer as select task_id, version from resonate.dequeue_execute('poll://any@g', 9)")
    assert migrate.migrate(facade, reapply=True).logic
    assert conn.execute("execute offer").fetchall() == []


def test_a_schema_of_others_is_left_alone(dsn: str, conn: Connection) -> None:
    """A server of Resonate that is installed there is neither covered nor removed."""
    conn.execute("create schema resonate create table promises (id text)")
    with pytest.raises(SchemaMismatch, match="did not make"):
        migrate.set_facade(dsn, True)
    migrate.set_facade(dsn, False)
    migrate.install(dsn, reapply=True)
    assert conn.execute("select count(*) from resonate.promises").fetchone() == (0,)


def test_objects_of_a_user_stop_the_removal(facade: str, conn: Connection) -> None:
    """What stands on the facade, or in its schema, is named; nothing is dropped."""
    conn.execute("create table resonate.notes (id text)")
    with pytest.raises(SchemaMismatch, match="objects of yours"):
        migrate.set_facade(facade, False)
    conn.execute("drop table resonate.notes")
    conn.execute("create view channels as select resonate.outbox_channel('a')")
    with pytest.raises(SchemaMismatch, match="objects of yours"):
        migrate.set_facade(facade, False)
    assert migrate.status(facade).current


def test_the_role_may_call_it_and_nothing_else(sdk: Connection, conn: Connection) -> None:
    """The functions of the connectors, none of the engine's, no table."""
    may = sdk.execute(
        "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
        "where n.nspname in ('durable', 'resonate') and has_schema_privilege(n.oid, 'usage') "
        "and has_function_privilege(p.oid, 'execute')"
    ).fetchall()
    assert {name for (name,) in may} == WORKER_MAY
    for call in CALLS:
        assert sdk.execute(call.encode()).rowcount >= 0
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        sdk.execute("select * from durable.promises")


def test_the_role_reads_every_promise_by_the_protocol(sdk: Connection, conn: Connection) -> None:
    """Those of runs too, with their arguments, as the page says (F13)."""
    conn.execute("select durable.start('w', '[\"s3cret\"]', id => 'run')")
    request = {"kind": "promise.get", "head": {"corrId": "1", "version": "2026-04-01"}, "data": {"id": "run"}}
    (answer,) = sdk.execute("select resonate.resonate_rpc(%s)", (json.dumps(request),)).fetchone() or ()
    assert base64.b64decode(answer["data"]["promise"]["param"]["data"]) == b'["s3cret"]'


def test_everybody_else_may_not(facade: str, conn: Connection, direct: str) -> None:
    """A worker of the engine without that role gets no right by the facade, and its writes still wake."""
    with who_works(conn) as role, psycopg.connect(direct, autocommit=True, user=role) as worker:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("select resonate.process_timeouts()")
        worker.execute(
            """select durable.promise_create('p', 9e15::bigint, p_tags => '{"resonate:target": "g"}')"""
        )
        assert conn.execute("select * from resonate.dequeue_execute('poll://any@g')").fetchall() == [("p", 0)]


@pytest.mark.session("temporary types")
def test_no_type_of_a_caller_runs_as_the_owner(sdk: Connection) -> None:
    """A session with types of its own in the temporary schema is refused at every function with rights."""
    sdk.execute(EVIL.encode())
    sdk.execute("create domain pg_temp.text as pg_catalog.text check (pg_temp.evil(value))")
    sdk.execute("alter domain pg_temp.text rename to harmless")
    for call in CALLS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="temporary schema"):
            sdk.execute(call.encode())
    sdk.execute("drop domain pg_temp.harmless")
    for call in CALLS:
        sdk.execute(call.encode())


def test_every_object_has_a_comment_and_a_path(facade: str, conn: Connection) -> None:
    """Comments for psql; a pinned path where the rights are the owner's."""
    bare = conn.execute(
        "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'resonate'::regnamespace "
        "and (obj_description(p.oid, 'pg_proc') is null "
        "or p.prosecdef and not coalesce(p.proconfig @> '{\"search_path=pg_catalog, pg_temp\"}', false))"
    ).fetchall()
    assert bare == []


def test_a_tick_of_an_sdk_alters_the_journal(conn: Connection, sdk: Connection) -> None:
    """Where only SDKs work, their ticks make the partition of the next week and drop that of long ago."""
    conn.execute(
        "do $$ declare v_week integer := (select max(b.bucket) from durable._buckets b);"
        " begin execute format('drop table durable._journal_%s', v_week);"
        " delete from durable._buckets where bucket = v_week; end $$"
    )
    conn.execute("create table durable._journal_1 (like durable._journal including all)")
    conn.execute("alter table durable._journal attach partition durable._journal_1 for values in (1)")
    conn.execute("insert into durable._buckets (bucket) values (1)")
    conn.execute("insert into durable._retention (due_at, subject) values (0, 'runs')")
    weeks = "select bucket = 1, count(*) from durable._buckets group by 1 order by 1"
    assert conn.execute(weeks.encode()).fetchall() == [(False, 4), (True, 1)]
    for _ in range(20):
        sdk.execute("select resonate.process_timeouts()")
        conn.execute("update resonate._ticks set next_at = 0")
        if conn.execute(weeks.encode()).fetchall() == [(False, 5)]:
            return
    raise AssertionError(conn.execute(weeks.encode()).fetchall())
