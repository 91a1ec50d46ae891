"""Law: a test installation moves time by hand, empties and shows everything, and is undone without a trace by
the next ordinary one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pyengine.doors.admin import migrate
from pyengine.doors.cli.root import run
from tests.support.catalogue import differences, settings, snapshot
from tests.support.cluster import Server, installed_database, of_worker
from tests.support.envelope import Json, Said, make, say, send, settle, suspend, take
from tests.support.laboratory import Laboratory
from tests.support.verbs import NEVER, Connection, begin_run, refusal, report, take_turn, timer
from tests.support.verbs import run as child

SCHEDULE = {"id": "s", "cron": "* * * * *", "promiseId": "{{.id}}.{{.timestamp}}", "promiseTimeout": 1000}
# functions of an ordinary installation that a test installation replaces
REPLACED = {
    "function durable._now_ms()",
    "function durable._paused()",
    "function durable._debug(jsonb)",
    "function durable._debug_time(jsonb)",
}
KEPT = {
    "settings",
    "migrations",
    "_logic",
    "_workers",
    "_idle_workers",
    "_workflows",
    "_published",
    "_buckets",
    "_watches",
    "_services",
    "_adapters",
    "_routes",
    "_site",
}


@pytest.fixture(scope="module")
def playground(server: Server) -> Iterator[Laboratory]:
    """A database with the debug operations, into which nothing is ever committed."""
    with installed_database(server, of_worker("playground")) as url:
        migrate.install(url, debug=True)
        made = Laboratory(url)
        yield made
        made.close()


@pytest.fixture
def conn(playground: Laboratory) -> Iterator[Connection]:
    """A connection within a transaction; before it is rolled back, durable.check() must be empty."""
    with playground.transaction() as connection:
        yield connection
        now(connection, NEVER)


def now(conn: Connection, ms: int | None = None) -> int:
    """The instant of this transaction, set by hand if one is given."""
    if ms is not None:
        conn.execute("select set_config('durable.now_ms', %s, true)", (str(ms),))
    row = conn.execute("select durable._now_ms()").fetchone()
    assert row is not None
    return int(row[0])


def at(conn: Connection, ms: object, kind: str, **data: Any) -> Said:
    """A request that asks to be judged at an instant."""
    return send(conn, kind, data, **{"resonate:debug_time": ms})


def tick(conn: Connection, ms: int) -> Any:
    """debug.tick; returns what it did."""
    said = say(conn, "debug.tick", time=ms)
    assert said.status == 200
    return said.data


def snap(conn: Connection) -> Json:
    """debug.snap."""
    found: Json = say(conn, "debug.snap").data
    return found


def tables(conn: Connection) -> list[str]:
    """All tables of the schema, without partitions."""
    rows = conn.execute(
        "select c.relname from pg_class c where c.relnamespace = 'durable'::regnamespace "
        "and c.relkind in ('r', 'p') and not c.relispartition"
    )
    return [name for (name,) in rows]


def test_a_request_sets_its_own_instant(conn: Connection) -> None:
    """resonate:debug_time holds for that request and for nothing after it, whether it succeeds or not."""
    before = now(conn)
    made = at(conn, 1000, "promise.create", id="p", timeoutAt=2000)
    assert made.promise["createdAt"] == 1000
    assert now(conn) >= before
    assert at(conn, 1000, "promise.get", id="none").status == 404
    assert now(conn) >= before
    assert at(conn, 1999, "promise.get", id="p").promise["state"] == "pending"
    assert at(conn, 2000, "promise.get", id="p").promise["state"] == "rejected_timedout"
    now(conn, 77)
    assert at(conn, 3000, "promise.create", id="q", timeoutAt=NEVER).promise["createdAt"] == 3000
    assert now(conn) == 77


@pytest.mark.parametrize("time", ["1000", -1, 1.5, NEVER + 1, {}])
def test_an_instant_that_is_none(conn: Connection, time: object) -> None:
    """A debug_time that is no whole number of milliseconds is 400."""
    assert at(conn, time, "promise.get", id="p").status == 400


def test_a_transaction_sets_its_instant(conn: Connection) -> None:
    """durable.now_ms holds for every function of the engine until the transaction ends."""
    now(conn, 5000)
    make(conn, "p", 6000, external="true")
    assert conn.execute("select (durable.promise_get('p')).created_at").fetchone() == (5000,)
    now(conn, 6000)
    assert conn.execute("select (durable.promise_get('p')).state").fetchone() == ("rejected_timedout",)
    conn.execute("select set_config('durable.now_ms', '', true)")
    assert now(conn) > 1_700_000_000_000


def test_tick_does_and_reports_due_work(conn: Connection) -> None:
    """Deadlines, leases and tasks that may be offered, in this order; what is not due stays."""
    now(conn, 1000)
    make(conn, "a", 2000, external="true")
    make(conn, "b", 2000, timer="true")
    make(conn, "inside", 2000)
    make(conn, "later", 2001, external="true")
    take(conn, "t", ttl=900)
    take(conn, "dead", 1500, ttl=100)
    take(conn, "held", ttl=1001)
    make(conn, "o", target="g")
    make(conn, "delayed", target="g", delay="2001")
    assert tick(conn, 2000) == [
        {"kind": "promise.settle", "data": {"id": "a", "state": "rejected_timedout"}},
        {"kind": "promise.settle", "data": {"id": "b", "state": "resolved"}},
        {"kind": "promise.settle", "data": {"id": "dead", "state": "rejected_timedout"}},
        {"kind": "task.release", "data": {"id": "t", "version": 1}},
        {"kind": "task.retry", "data": {"id": "o", "version": 0}},
    ]
    assert now(conn) == 1000
    stored = {each["id"]: each["state"] for each in snap(conn)["promises"]}
    assert [stored[name] for name in ("a", "b", "inside", "later")] == [
        "rejected_timedout",
        "resolved",
        "pending",
        "pending",
    ]
    states = {each["id"]: each["state"] for each in snap(conn)["tasks"]}
    assert (states["t"], states["dead"], states["held"]) == ("pending", "fulfilled", "acquired")


def test_tick_goes_on_until_nothing_is_due(conn: Connection) -> None:
    """One tick does all that is due, however small the sweeps are."""
    conn.execute("select durable.set_setting('sweep_limit', '2')")
    now(conn, 1000)
    for n in range(7):
        make(conn, f"p{n}", 2000, external="true")
    assert len(tick(conn, 2000)) == 7
    assert {each["state"] for each in snap(conn)["promises"]} == {"rejected_timedout"}
    assert tick(conn, 2000) == []


def test_tick_fires_schedules(conn: Connection) -> None:
    """All instants of a schedule up to the time of the tick, each as of its own instant."""
    now(conn, 60_001)
    send(conn, "schedule.create", SCHEDULE)
    tick(conn, 180_000)
    assert [(each["id"], each["createdAt"]) for each in snap(conn)["promises"]] == [
        ("s.120000", 120_000),
        ("s.180000", 180_000),
    ]


@pytest.mark.parametrize("time", [..., None, "5", -1, 0.5, NEVER + 1])
def test_tick_takes_an_instant(conn: Connection, time: object) -> None:
    """The time is a whole number of milliseconds, and that of the head where the head has one."""
    data = {} if time is ... else {"time": time}
    assert send(conn, "debug.tick", data).status == 400
    assert refusal(conn, ("select durable.debug_tick(%s)", (-1,))) == "WF004"
    assert at(conn, 5, "debug.tick", time=6).status == 400
    assert at(conn, 5, "debug.tick", time=5) == Said(status=200, data=[])


def test_start_and_stop(conn: Connection) -> None:
    """Between debug.start and debug.stop (C) time starts nothing by itself, but by hand."""
    due = 1_700_000_000_000
    now(conn, due - 1000)
    for name in ("a", "b"):
        make(conn, name, due, external="true")
    conn.execute("select set_config('durable.now_ms', '', true)")
    assert [say(conn, "debug.start"), say(conn, "debug.start")] == [Said(status=200, data={})] * 2
    swept = "select (durable.tick_v1(1) ->> 'promises')::integer"
    assert conn.execute(swept).fetchone() == (0,)
    assert say(conn, "debug.stop") == Said(status=200, data={})
    assert conn.execute(swept).fetchone() == (1,)
    say(conn, "debug.start")
    assert len(tick(conn, due)) == 1
    assert conn.execute("select count(*) from durable._promises where state = 'pending'").fetchone() == (0,)


def test_snap_shows_what_is_stored(conn: Connection) -> None:
    """Records as on the wire, unprojected; waiters, timeouts and messages beside them, each list in order."""
    now(conn, 60_001)
    take(conn, "t", ttl=100)
    take(conn, "w", ttl=100)
    make(conn, "x", 90_000, external="true")
    make(conn, "y", external="true")
    make(conn, "z")
    say(conn, "promise.register_listener", awaited="x", address="g")
    say(conn, "promise.register_listener", awaited="y", address="http://h/p")
    suspend(conn, "w", 1, "x")
    settle(conn, "y", data="1")
    make(conn, "o", target="poll://any@g/w1")
    make(conn, "later", target="g", delay="60002")
    send(conn, "schedule.create", SCHEDULE)
    shown = snap(conn)
    now(conn, 100_000)
    assert snap(conn)["promises"] == shown["promises"]
    assert [each["id"] for each in shown["promises"]] == ["later", "o", "t", "w", "x", "y", "z"]
    assert shown["promises"][5] == say(conn, "promise.get", id="y").promise
    assert [(each["id"], each["state"]) for each in shown["tasks"]] == [
        ("later", "pending"),
        ("o", "pending"),
        ("t", "acquired"),
        ("w", "suspended"),
    ]
    never = [{"id": name, "timeout": NEVER} for name in ("later", "o", "t", "w")]
    assert shown["promiseTimeouts"] == [*never, {"id": "x", "timeout": 90_000}]
    assert shown["taskTimeouts"] == [
        {"id": "later", "type": 0, "timeout": 60_002},
        {"id": "o", "type": 0, "timeout": 60_001},
        {"id": "t", "type": 1, "timeout": 60_101},
    ]
    assert shown["callbacks"] == [{"awaited": "x", "awaiter": "w"}]
    assert shown["listeners"] == [{"id": "x", "address": "poll://any@g"}]
    assert shown["schedules"] == [say(conn, "schedule.get", id="s").data["schedule"]]
    assert shown["scheduleTimeouts"] == [{"id": "s", "timeout": 120_000}]
    execute = {"kind": "execute", "head": {}, "data": {"task": {"id": "o", "version": 0}}}
    unblock = {"kind": "unblock", "head": {}, "data": {"promise": shown["promises"][5]}}
    assert shown["messages"] == [
        {"address": "poll://any@g/w1", "message": execute},
        {"address": "http://h/p", "message": unblock},
    ]


def test_snap_shows_settled_tasks(conn: Connection) -> None:
    """A task outlives its row: fulfilled, at its last version."""
    take(conn, "t")
    settle(conn, "t")
    assert snap(conn)["tasks"] == [{"id": "t", "state": "fulfilled", "version": 1, "resumes": 0}]


def test_snap_is_one_statement(conn: Connection) -> None:
    """Everything it is made of is stable: PostgreSQL gives it the snapshot of the statement that asks."""
    made_of = "select count(*), bool_and(p.provolatile <> 'v') from pg_proc p where p.proname = any (%s)"
    names = ["debug_snap", "_debug_waiting", "_debug_timeouts", "_debug_messages"]
    assert conn.execute(made_of, (names,)).fetchone() == (4, True)


def test_reset_forgets_everything(conn: Connection) -> None:
    """No table keeps a row, but for settings, migrations, workers, what those registered, partitions."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[child(0), timer(1, 5)]))
    make(conn, "x", external="true")
    take(conn, "t")
    suspend(conn, "t", 1, "x")
    make(conn, "y", external="true")
    say(conn, "promise.register_listener", awaited="y", address="g")
    settle(conn, "y")
    send(conn, "schedule.create", SCHEDULE)
    conn.execute("select durable.call('dml+exec://fake/f', '[1]', scope => 's')")
    conn.execute("select durable.set_setting('lease_ttl_ms', '7')")
    assert say(conn, "debug.reset") == Said(status=200, data={})
    full = {name for name in tables(conn) if conn.execute(f'select from durable."{name}"'.encode()).rowcount}
    assert full <= KEPT
    assert conn.execute("select durable._setting('lease_ttl_ms')").fetchone() == ("7",)
    assert not any(snap(conn).values())
    assert begin_run(conn, "r").execution == 1


def test_reset_names_every_table(conn: Connection) -> None:
    """A table that is new is emptied too, or is named here as one that stays."""
    row = conn.execute("select prosrc from pg_proc where proname = 'debug_reset'").fetchone()
    assert row is not None
    emptied = set(re.findall(r"durable\.(\w+)", row[0]))
    assert set(tables(conn)) - emptied == KEPT


def test_the_next_ordinary_install_undoes_it(empty_database: Callable[[], str]) -> None:
    """Clock, operations and settings are those of a database that never had debug operations."""
    plain, dsn = empty_database(), empty_database()
    migrate.install(plain)
    migrate.install(dsn, debug=True)
    with psycopg.connect(dsn, autocommit=True) as conn:
        say(conn, "debug.start")
    assert migrate.install(dsn).dropped
    assert not differences(snapshot(plain), snapshot(dsn))
    assert settings(plain) == settings(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert say(conn, "debug.reset").status == 403
        conn.execute("set durable.now_ms = '1'")
        assert now(conn) > 1_700_000_000_000


def test_changes_of_a_test_installation(laboratory: Laboratory, playground: Laboratory) -> None:
    """It replaces the clock and what is switched off, adds functions of its own, and touches nothing else."""
    plain, debug = snapshot(laboratory.url), snapshot(playground.url)
    assert {name for name in plain if plain[name] != debug.get(name)} <= REPLACED
    added = debug.keys() - plain.keys() - REPLACED
    assert added
    assert all(name.startswith(("function durable.debug_", "function durable._debug_")) for name in added)


def test_status_names_the_kind_of_installation(empty_database: Callable[[], str]) -> None:
    """Each kind is up to date by itself; an install of the same kind does nothing, one of the other does."""
    dsn = empty_database()
    assert migrate.install(dsn, debug=True).logic
    assert not migrate.install(dsn, debug=True).changed
    assert (migrate.status(dsn).current, migrate.status(dsn).debug) == (True, True)
    assert migrate.migrate(dsn).logic
    assert (migrate.status(dsn).current, migrate.status(dsn).debug) == (True, False)
    assert not migrate.install(dsn).changed


def test_the_command_that_installs_it(
    empty_database: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """pyengine db init --debug installs it, db status tells of it, and db init takes it away."""
    dsn = empty_database()

    def document(*words: str) -> Json:
        capsys.readouterr()
        assert run(["db", *words, "--database-url", dsn, "--json"]) == 0
        found: Json = json.loads(capsys.readouterr().out)
        return found

    assert document("init", "--debug")["changed"]
    assert document("status")["schema"]["debug"] is True
    assert run(["db", "status", "--database-url", dsn]) == 0
    assert "with debug operations" in capsys.readouterr().out
    assert "function durable.debug_reset()" in document("init")["dropped"]
    assert document("status")["schema"]["debug"] is False


def test_an_unknown_debug_operation(conn: Connection) -> None:
    """It is 400 here as anywhere."""
    assert send(conn, "debug.travel", {}).status == 400
