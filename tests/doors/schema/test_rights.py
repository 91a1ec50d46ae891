"""Law: a worker that owns nothing keeps all going, and no code of others runs with the owner's rights."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import TupleRow

from pyengine.core.database.statements.procedures import HEARTBEAT
from pyengine.doors.admin import migrate
from tests.support.roles import who_works

Connection = psycopg.Connection[TupleRow]
LAST_WEEK_IS_MISSING = """
do $$ declare v_week integer := (select max(b.bucket) from durable._buckets b);
begin
  execute format('drop table durable._journal_%s', v_week);
  delete from durable._buckets where bucket = v_week;
end $$
"""
TYPES = (
    "text",
    "jsonb",
    "json",
    "int4",
    "int8",
    "bool",
    "bytea",
    "name",
    "oid",
    "regclass",
    "record",
    "xid8",
)
EVIL = """
create function pg_temp.evil(anyelement) returns boolean language plpgsql as $$
begin
  if current_user <> session_user then raise exception 'evil runs as %', current_user; end if;
  return true;
end $$
"""


@pytest.fixture
def app(conn: Connection, direct: str) -> Iterator[Connection]:
    """A session of a role that has all rights which a worker needs, and owns nothing."""
    with who_works(conn) as role, psycopg.connect(direct, autocommit=True, user=role) as connection:
        yield connection


def partitions(conn: Connection) -> set[tuple[object, ...]]:
    """Journal partitions with their owners."""
    return set(
        conn.execute(
            "select c.relname, pg_get_userbyid(c.relowner) from pg_inherits i "
            "join pg_class c on c.oid = i.inhrelid where i.inhparent = 'durable._journal'::regclass"
        ).fetchall()
    )


def test_a_tick_of_who_owns_nothing_opens_the_next_week(conn: Connection, app: Connection) -> None:
    """The partition that is missing is made, and belongs to the owner of the schema as the others do."""
    before = partitions(conn)
    conn.execute(LAST_WEEK_IS_MISSING.encode())
    assert len(partitions(conn)) == len(before) - 1
    answer = app.execute("select durable.tick_v1(100)").fetchone()
    assert answer is not None and answer[0]["problem"] is None
    assert partitions(conn) == before


def test_a_heartbeat_of_who_owns_nothing_renews(conn: Connection, app: Connection) -> None:
    """It may draw numbers of runs and not read the sequence, and is told the newest one all the same."""
    beat = (HEARTBEAT.sql, ("nobody", [], [], [], 0))
    asks = psycopg.RawCursor(app)
    assert asks.execute(*beat).fetchone() == ([None], 0)
    conn.execute("select durable.start('w', '[1]')")
    assert asks.execute(*beat).fetchone() == ([None], 1)
    conn.execute("revoke usage on all sequences in schema durable from " + app.info.user)
    assert asks.execute(*beat).fetchone() == ([None], None)


def test_a_partition_that_cannot_be_made_stops_no_timer(
    conn: Connection, direct: str, app: Connection
) -> None:
    """While somebody alters the journal, a tick settles what is due and tells what it could not do."""
    conn.execute(LAST_WEEK_IS_MISSING.encode())
    conn.execute("select durable.start('w', '[1]', timeout => '1 ms')")
    with psycopg.connect(direct) as other:
        other.execute("lock table durable._journal in share update exclusive mode")
        answer = app.execute("select durable.tick_v1(100)").fetchone()
        assert answer is not None
        assert answer[0]["promises"] == 1
        assert "lock timeout" in answer[0]["problem"]
    answer = app.execute("select durable.tick_v1(100)").fetchone()
    assert answer is not None and answer[0]["problem"] is None


def test_a_tick_of_who_owns_nothing_drops_what_is_empty(conn: Connection, app: Connection) -> None:
    """A partition of long ago without a row is dropped, whoever ticks."""
    before = partitions(conn)
    conn.execute("create table durable._journal_1 (like durable._journal including all)")
    conn.execute("alter table durable._journal attach partition durable._journal_1 for values in (1)")
    conn.execute("insert into durable._buckets (bucket) values (1)")
    conn.execute("insert into durable._retention (due_at, subject) values (0, 'runs')")
    app.execute("select durable.tick_v1(100)")
    assert partitions(conn) == before


# every function with the rights of the owner, and what keeps others from them
GUARDS = {
    "durable._row_changed": "no execute",
    "durable._create_partitions": "asks for the role",
    "durable._drop_partition": "asks for the role",
    **dict.fromkeys(
        ("resonate.dequeue_execute", "resonate.dequeue_unblock", "resonate.get_schema_version"), "no execute"
    ),
    **dict.fromkeys(("resonate.process_timeouts", "resonate.invoke", "resonate.resonate_rpc"), "no execute"),
    **dict.fromkeys(("resonate._announce_task", "resonate._announce_unblock"), "no execute"),
}


def test_who_may_use_the_rights_of_the_owner(conn: Connection, dsn: str) -> None:
    """Each function that has them is known, and either nobody is given it or it asks who has called."""
    migrate.set_facade(dsn, True)
    found = conn.execute(
        "select p.pronamespace::regnamespace || '.' || p.proname, p.prosrc,"
        " exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        "         where a.grantee = 0 and a.privilege_type = 'EXECUTE')"
        " from pg_proc p where p.prosecdef"
        " and p.pronamespace in ('durable'::regnamespace, 'resonate'::regnamespace)"
    ).fetchall()
    assert {name for name, *_ in found} == set(GUARDS)
    for name, source, for_all in found:
        if GUARDS[name] == "no execute":
            assert not for_all, name
        else:
            assert "if not durable._may_alter_journal() then" in source, name


OLD_WEEK = """
create table durable._journal_1 (like durable._journal including all);
alter table durable._journal attach partition durable._journal_1 for values in (1);
insert into durable._buckets (bucket) values (1)
"""
LOCKED = "select from pg_locks where relation = 'durable._journal'::regclass and mode = 'AccessExclusiveLock'"


def test_a_role_that_uses_the_schema_only_alters_no_journal(conn: Connection, direct: str) -> None:
    """It drops no partition and makes none, also under a role that it may take, and locks nothing; a session
    that works under SET ROLE does."""
    name = conn.info.dbname
    conn.execute(OLD_WEEK.encode())
    with who_works(conn) as worker:
        conn.execute(
            f"create role guest_{name} login; grant usage on schema durable to guest_{name}".encode()
        )
        conn.execute(f"create role both_{name} login in role {worker}, guest_{name}".encode())
        try:
            for user, role in ((f"guest_{name}", "none"), (f"both_{name}", f"guest_{name}")):
                with psycopg.connect(direct, user=user) as guest:
                    guest.execute(f"set role {role}".encode())
                    assert guest.execute("select durable._drop_partition()").fetchone() == (None,)
                    assert not conn.execute(LOCKED.encode()).fetchall()
                    with pytest.raises(psycopg.Error) as caught:
                        guest.execute("select durable._create_partitions()")
                    assert caught.value.sqlstate == "WF011"
            with psycopg.connect(direct, user=f"both_{name}") as both:
                both.execute(f"set role {worker}".encode())
                assert both.execute("select durable._drop_partition()").fetchone() == (True,)
        finally:
            conn.execute(
                f"drop owned by guest_{name}, both_{name}; drop role guest_{name}, both_{name}".encode()
            )


@pytest.mark.parametrize("path", ["", "pg_temp", "pg_temp, durable, public"])
def test_no_type_of_a_caller_runs_as_the_owner(conn: Connection, app: Connection, path: str) -> None:
    """Domains in the temporary schema, named like the types that the engine uses, are never looked at by what
    has the rights of the owner, also where they were when a session called it first."""
    conn.execute(LAST_WEEK_IS_MISSING.encode())
    conn.execute("create table lab (id bigint primary key, note text); grant insert, update on lab to public")
    conn.execute("select durable.watch('lab', 'noted', key => '{id}', condition => 'note is not null')")
    app.execute(EVIL.encode())
    for name in TYPES:
        base = "text" if name == "record" else name
        app.execute(f"create domain pg_temp.{name} as pg_catalog.{base} check (pg_temp.evil(value))".encode())
    app.execute("select set_config('search_path', %s, false)", (path,))
    app.execute("select durable._create_partitions(), durable._drop_partition()")
    app.execute("insert into public.lab values (1, 'a')")
    app.execute("update public.lab set note = 'b'")
    app.execute("reset search_path")
    conn.execute(LAST_WEEK_IS_MISSING.encode())
    app.execute("select durable._create_partitions(), durable._drop_partition()")


def test_the_attack_is_one(conn: Connection, app: Connection) -> None:
    """Under the empty path the same domains do run as the owner: the test above can fail."""
    conn.execute(
        "create function public.careless() returns pg_catalog.text language plpgsql security definer "
        "set search_path = '' as $$ declare v text := 'x'; begin return v; end $$"
    )
    app.execute(EVIL.encode())
    app.execute("create domain pg_temp.text as pg_catalog.text check (pg_temp.evil(value))")
    with pytest.raises(psycopg.errors.RaiseException, match="evil runs as"):
        app.execute("select public.careless()")
