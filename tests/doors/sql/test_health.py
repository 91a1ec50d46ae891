"""Law: what goes wrong with time is told before anybody misses it, and what to do; else that all is well."""

from __future__ import annotations

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from pyengine.doors.admin import migrate
from pyengine.doors.cli.database import connect
from pyengine.doors.embedded.server import database_url
from pyengine.errors import SchemaMismatch
from tests.support.clock import Clock
from tests.support.cluster import Server, create_database, drop_database, of_worker
from tests.support.laboratory import Laboratory
from tests.support.roles import who_works
from tests.support.verbs import Connection, ask

ASKED = {
    "site",
    "journal partitions",
    "oldest snapshot",
    "clock",
    "settings",
    "schedules",
    "paused schedules",
    "missed instants",
    "notification queue",
    "live tables",
    "encoding",
    "due work",
    "retention",
    "ticks of workers",
}
DROP = """
with week as (
  delete from durable._buckets where bucket = durable._week(durable._now_ms()) + %s returning bucket)
select set_config('lab.week', bucket::text, true) from week;
do $$ begin execute format('drop table durable._journal_%%s', current_setting('lab.week')); end $$
"""
ENCODING = "select pg_encoding_to_char(encoding) from pg_database where datname = %s"
TEN_MINUTES_ON = """
create or replace function durable._now_ms() returns bigint language sql volatile as
$$ select floor(extract(epoch from clock_timestamp()) * 1000)::bigint + 601000 $$
"""


def troubled(conn: Connection) -> dict[str, str]:
    """What is not as it should be, with its detail; each has a hint."""
    rows = conn.execute("select subject, ok, detail, hint from durable.health").fetchall()
    assert {subject for subject, *_ in rows} == ASKED
    assert len(rows) == len(ASKED)
    assert all(detail and hint for _, _, detail, hint in rows)
    return {subject: detail for subject, ok, detail, _ in rows if not ok}


def hello(conn: Connection, ticked_ms: int | None) -> None:
    """A worker says hello and tells when it ticked."""
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null)", ()))
    ask(conn, ("select durable.worker_heartbeat_v1('W', '{}', '{}', '{}', %s)", (ticked_ms,)))


def test_a_healthy_database_has_no_findings(conn: Connection) -> None:
    """A schema that nobody uses is in order, and so is one with a worker that ticks."""
    assert troubled(conn) == {}
    details: dict[str, str] = dict(conn.execute("select subject, detail from durable.health").fetchall())
    assert details["due work"] == "nothing waits"
    assert details["ticks of workers"] == "no worker is there"
    assert not any("  " in text or text.endswith(" ") or ": tr" in text for text in details.values())
    hello(conn, 1_000)
    assert troubled(conn) == {}


def test_a_week_without_a_partition_is_reported(conn: Connection) -> None:
    """This week or the next without a partition is told; one that is further away will be made."""
    for weeks in (4, 3, 2, 1):
        assert troubled(conn) == {}
        conn.execute((DROP % weeks).encode())
    assert list(troubled(conn)) == ["journal partitions"]
    conn.execute("select durable._create_partitions()")
    assert troubled(conn) == {}


def test_work_overdue_for_a_minute_is_reported(conn: Connection, clock: Clock) -> None:
    """A timer that was due a minute ago is told, until a tick has done it."""
    conn.execute("select durable._create_partitions(), durable.start('w', '[1]', timeout => '1 s')")
    clock.advance(60_000)
    assert troubled(conn) == {}
    clock.advance(2_000)
    assert troubled(conn) == {"due work": "the oldest was due 0:01:01 ago"}
    conn.execute("select durable.tick()")
    assert troubled(conn) == {}


def test_a_schedule_and_a_lease_are_due_too(conn: Connection, clock: Clock) -> None:
    """So are schedules that nobody fires, and leases that nobody takes."""
    conn.execute("select durable._create_partitions(), durable.schedule('often', '* * * * *')")
    clock.advance(130_000)
    assert list(troubled(conn)) == ["due work"]
    conn.execute("select durable.unschedule('often')")
    conn.execute("select durable.start('w', '[1]', id => 'r')")
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null)", ()))
    ask(
        conn,
        ("select durable.worker_turn_v1('W', '{default}', '{1:w1}', '{null}', 1, '[]', 1000, false)", ()),
    )
    assert troubled(conn) == {}
    clock.advance(100_000)
    assert "due work" in troubled(conn)


def test_a_worker_that_does_not_tick_is_reported(conn: Connection, clock: Clock) -> None:
    """One that lives and has not ticked for a minute is told; one that is gone is not."""
    conn.execute("select durable._create_partitions()")
    hello(conn, 59_000)
    assert troubled(conn) == {}
    clock.advance(10_000)
    hello(conn, 69_000)
    assert troubled(conn) == {"ticks of workers": "the last success of W was 0:01:09 ago"}
    clock.advance(200_000)
    assert troubled(conn) == {}


def test_an_old_snapshot_is_reported(conn: Connection, laboratory: Laboratory) -> None:
    """Who reads the database as it was ten minutes ago is told, by process, name and state."""
    with psycopg.connect(laboratory.url, application_name="report") as other:
        other.execute("set transaction isolation level repeatable read; select 1 from pg_class")
        assert troubled(conn) == {}
        conn.execute(TEN_MINUTES_ON)
        told = troubled(conn)["oldest snapshot"]
        assert f"report, process {other.info.backend_pid}," in told
        assert told.endswith("idle in transaction")
        assert ", from 0:10:0" in told
    conn.execute("select pg_stat_clear_snapshot()")
    assert troubled(conn) == {}


def test_a_snapshot_of_another_database_is_none_of_ours(
    conn: Connection, server: Server, template: NoopExecutor, maintenance: Connection
) -> None:
    """Also if that database is gone since this transaction looked at the sessions of the server first."""
    name = of_worker("elsewhere")
    create_database(maintenance, name, template.template_dbname)
    try:
        with psycopg.connect(server.dsn(name)) as other:
            other.execute("set transaction isolation level repeatable read; select 1 from pg_class")
            assert troubled(conn) == {}
    finally:
        drop_database(maintenance, name)
    conn.execute(TEN_MINUTES_ON)
    assert troubled(conn) == {}


def test_a_table_that_a_backlog_has_left_large_is_reported(conn: Connection) -> None:
    """A live table of 64 MB with hardly a row is told, with the command; one whose rows are there is not."""
    bloated = "select name, rows, bytes > 4000000 from durable._bloated(%s)"
    fill = (
        "insert into durable._tasks (deadline, id, state, queue, retry_at) "
        "select 0, 't' || n || repeat('x', 400), 'pending', 'q', 0 from generate_series(1, 5000) n"
    )
    conn.execute("set session_replication_role = replica")
    conn.execute(fill.encode())
    conn.execute("analyze durable._tasks")
    assert conn.execute(bloated.encode(), (4_000_000,)).fetchall() == []
    conn.execute("delete from durable._tasks")
    conn.execute("analyze durable._tasks")
    assert conn.execute(bloated.encode(), (4_000_000,)).fetchall() == [("_tasks", 0, True)]
    assert troubled(conn) == {}
    conn.execute(
        "create or replace function durable._bloated(p_bytes bigint)"
        " returns table (name text, bytes bigint, rows bigint) language sql stable"
        " as $$ select '_tasks', 2 * p_bytes, 57::bigint $$"
    )
    assert troubled(conn) == {"live tables": "_tasks has 128 MB for 57 rows"}
    (hint,) = ask(conn, ("select hint from durable.health where subject = 'live tables'", ()))
    assert "vacuum (truncate) durable._tasks" in hint


def test_a_clock_that_was_set_back_is_reported(conn: Connection, clock: Clock) -> None:
    """What was written by a clock that was ahead is told until the clock has caught up."""
    conn.execute("select durable._create_partitions(), durable.start('w', '[1]')")
    clock.advance(-61_000)
    assert troubled(conn) == {"clock": "set back: something was written 0:01:01 ahead of it"}
    clock.advance(60_000)
    assert troubled(conn) == {}


@pytest.mark.unlawful
@pytest.mark.parametrize(
    ("name", "value"), [("lease_ttl_ms", "soon"), ("max_crashes", "-1"), ("hints", "x"), ("conformance", "")]
)
def test_a_setting_that_cannot_be_read_is_reported(conn: Connection, name: str, value: str) -> None:
    """By its name and its value, and durable.check() goes on and reports it too."""
    conn.execute("update durable.settings set value = %s where name = %s", (value, name))
    assert troubled(conn) == {"settings": f"unreadable: {name} = '{value}'"}
    laws = conn.execute("select law, id from durable.check()").fetchall()
    assert ("setting_is_of_its_kind", name) in laws


@pytest.mark.unlawful
@pytest.mark.parametrize("damage", ["cron = 'nonsense'", "timezone = 'Mars'"])
def test_a_schedule_that_cannot_be_evaluated_is_reported(conn: Connection, clock: Clock, damage: str) -> None:
    """By health, by durable.check(), and by the tick that puts it off."""
    conn.execute("select durable._create_partitions(), durable.schedule('often', '* * * * *')")
    conn.execute(f"update durable._schedules set {damage}".encode())
    clock.advance(60_000)
    (answer,) = ask(conn, ("select durable.tick_v1(10)", ()))
    assert answer["warning"].startswith("schedules whose cron expression")
    laws = conn.execute("select law from durable.check()").fetchall()
    assert ("schedule_can_be_evaluated",) in laws
    assert "schedules" in troubled(conn)


def test_schedules_that_are_paused_or_late(conn: Connection, clock: Clock) -> None:
    """A pause that a person wanted is well; one after failures is not, nor what was missed within a day."""
    conn.execute("select durable._create_partitions()")
    hourly = "@hourly', workflow => 'w', any_workflow => true"
    conn.execute(
        f"select durable.schedule('a', '{hourly}), durable.schedule('b', '{hourly}, catch_up => '1 min'), "
        f"durable.schedule('c', '{hourly}, pause_after => 1, deadline => '1 min'), "
        "durable.pause_schedule('a', 'moving', paused_by => 'ada')".encode()
    )
    clock.advance(2 * 3_600_000)
    ask(conn, ("select durable.tick()", ()))
    paused = "select ok, detail from durable.health where subject = 'paused schedules'"
    assert ask(conn, (paused, ())) == (True, "a (ada, for 2:00:00, moving)")
    clock.advance(3_600_000)
    for _ in range(3):
        ask(conn, ("select durable.tick()", ()))
    of_failures = "1 runs in a row have failed; the latest is c-2027-01-15T10:00:00Z"
    found = troubled(conn)
    assert found["paused schedules"].startswith(f"c (pyengine, for 0:00:00, {of_failures}), a (ada")
    assert found["missed instants"] == "left out since yesterday: b"
    clock.advance(25 * 3_600_000)
    assert "missed instants" not in troubled(conn)


def test_of_many_schedules_those_that_are_due_next_are_evaluated(conn: Connection, clock: Clock) -> None:
    """Two hundred of them, and it says so; one that cannot be evaluated is among them once it was put off."""
    conn.execute("select durable._create_partitions()")
    conn.execute(
        "select durable.schedule(i::text, '0 * * * *') from generate_series(1, 300) i; "
        "select durable.schedule('seldom', '30 0 * * *'); "
        "update durable._schedules set timezone = 'Mars' where id = 'seldom'"
    )
    count = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = '_is_evaluable'"
    of_schedules = "select ok, detail from durable.health where subject = 'schedules'"
    conn.execute("set track_functions = 'all'")
    with conn.transaction():
        (before,) = ask(conn, (count, ()))
        assert ask(conn, (of_schedules, ())) == (True, "the 200 that are due next can be evaluated")
        assert ask(conn, (count, ())) == (before + 200,)
    conn.execute("reset track_functions")
    conn.execute("update durable._schedules set next_run_at = durable._now_ms() + 1 where id = 'seldom'")
    assert ask(conn, (of_schedules, ())) == (False, "not to be evaluated: seldom")
    conn.execute("delete from durable._schedules where id = 'seldom'")


def test_a_plain_role_knows_that_it_is_blind(direct: str) -> None:
    """A session of another role that holds a snapshot is told, without what only that role may see."""
    query = "select ok, detail from durable.health where subject = 'oldest snapshot'"
    with (
        psycopg.connect(direct, autocommit=True) as owner,
        who_works(owner) as role,
        psycopg.connect(direct, application_name="report") as other,
    ):
        other.execute("set transaction isolation level repeatable read; select 1 from pg_class")
        with psycopg.connect(direct, user=role, autocommit=True) as plain:
            ok, detail = ask(plain, (query, ()))
        assert ok
        assert detail.startswith(f"report, process {other.info.backend_pid}, role postgres: ")
        assert detail.endswith("blind: its state and since when are not to be seen")


@pytest.mark.parametrize("encoding", ["LATIN1", pytest.param("SQL_ASCII", marks=pytest.mark.full)])
def test_an_encoding_that_lacks_letters(
    server: Server, maintenance: Connection, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """A new database that is not UTF8 is refused, with what to type, and nothing is written; one that has the
    schema already is served, health tells, and commands read it (C065)."""
    name = of_worker(f"encoding_{encoding.lower()}")
    new = f"create database {name} encoding '{encoding}' locale 'C' template template0"
    maintenance.execute(new.encode())
    dsn = server.dsn(name)
    try:
        with pytest.raises(SchemaMismatch) as caught:
            migrate.install(dsn)
        assert encoding in caught.value.message
        hint = caught.value.hint or ""
        maintenance.execute(hint.partition(";")[0].encode())
        assert migrate.install(server.dsn(f"{name}_utf8")).changed
        with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as conn:
            assert ask(conn, ("select count(*) from pg_namespace where nspname = 'durable'", ())) == (0,)
            # as a version installed it that did not look
            monkeypatch.setattr("pyengine.doors.admin.migration_parts._ONLY_UTF8", "")
            migrate.install(dsn)
            assert set(troubled(conn)) == {"encoding"}
            ask(conn, ("select durable.start('w', '[\"\u00fc\"]', id => 'r')", ()))
        assert not migrate.install(dsn).changed
        with connect(dsn, database_url(dsn)) as db:
            assert ask(db, ("select args from durable.runs where id = 'r'", ())) == (["\u00fc"],)
            assert ask(db, ("select count(*) from durable.check()", ())) == (0,)
    finally:
        for each in (name, f"{name}_utf8"):
            drop_database(maintenance, each)
