"""Law: an upgrade runs in parts, in the order of their phases, replaces only what changed, and the script for
psql does what the command does.

The trees are those of test_migrations.py: a few lines, edited by each test.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from pyengine.core.process import clock
from pyengine.doors.admin import logic, migrate, rehearsal
from pyengine.doors.admin.bundle import write_initial
from pyengine.doors.admin.migration_locks import Limits, Waiting
from pyengine.doors.cli.database import _psql_of_url
from pyengine.errors import EngineError, SchemaMismatch, Unavailable
from tests.doors.schema.test_migrations import ADDED, FIRST, NAMED, SECOND, Tree
from tests.support.catalogue import differences, snapshot

MakeDatabase = Callable[[], str]
WORKERS = """
create table durable._workers (id text, present boolean not null, missing_at bigint, seen_at bigint not null,
  about jsonb not null default '{}');
"""
BOOKS = "select id, name, sha256 from durable.migrations order by id"
LOGIC = "select object, sha256, signature from durable._logic order by object"
SETTINGS = "select name, value from durable.settings order by name"
ROWS = "select id, colour from durable._boxes order by id"
BACKFILL = """
-- Why: rows of old code have no colour. Locks: the rows of a batch.
with batch as (select b.id from durable._boxes b where b.colour is null order by b.id limit 10)
update durable._boxes b set colour = 'red' from batch where b.id = batch.id;
"""


@pytest.fixture
def tree(tmp_path: Path, empty_database: MakeDatabase) -> Tree:
    """A small tree, installed, with rows of the old code."""
    made = Tree(tmp_path, empty_database())
    made.write("sql/state/20_colours.sql", "create type durable.colour as enum ('red');")
    made.write("sql/state/30_workers.sql", WORKERS)
    write_initial(made.sources)
    made.install()
    made.run("insert into durable._boxes select 'box ' || n from generate_series(1, 25) n")
    return made


def next_version(tree: Tree) -> None:
    """Edit the tree into one with a step of each phase, a grown function, a view of another shape, a new
    function that names a new value, and without an old function."""
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    tree.write("migrations/0003_values_colour_green.sql", ADDED)
    tree.write("migrations/0004_backfill_boxes_colour.sql", BACKFILL)
    tree.write(
        "migrations/0005_contract_boxes_colour.sql", "alter table durable._boxes alter colour set not null;"
    )
    tree.write(
        "migrations/0006_expand_boxes_add_size.sql", "alter table durable._boxes add column size bigint;"
    )
    first = FIRST.replace("returns integer", "returns bigint").replace("b.id, durable", "b.colour, durable")
    tree.write("sql/logic/core/10_first.sql", first)
    tree.write("sql/logic/core/15_colours.sql", NAMED)
    grown = SECOND.replace("pack(id text)", "pack(id text, colour text default 'red')")
    grown = grown.replace("(id) values (pack.id)", "(id, colour) values (pack.id, pack.colour)")
    tree.write("sql/logic/core/20_second.sql", grown)


def content(tree: Tree) -> tuple[object, ...]:
    """Catalogue, bookkeeping and rows of a database."""
    return (snapshot(tree.dsn), *(tree.run(question) for question in (BOOKS, LOGIC, SETTINGS, ROWS)))


def psql(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as people do."""
    program, database = _psql_of_url(dsn)
    return subprocess.run(
        [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", database],
        input=script,
        capture_output=True,
        text=True,
        env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"},
        check=False,
    )


def test_the_phases_have_one_order(tree: Tree) -> None:
    """Steps that expand come before the functions, each by itself, backfills after them, contracts last."""
    next_version(tree)
    tree.run("create function durable._stray() returns int language sql as 'select 1'")
    with migrate.connected(tree.dsn) as conn, conn.transaction(force_rollback=True):
        conn.execute(migrate.LOCKED_SESSION.encode())
        parts = migrate.plan(conn, tree.sources).parts
    assert [(part.phase, [step.id for step in part.steps]) for part in parts] == [
        ("expand", [2]),
        ("values", [3]),
        ("expand", [6]),
        ("logic", []),
        ("drops", []),
        ("backfill", [4]),
        ("contract", [5]),
    ]
    report = tree.install()
    assert [name[:4] for name in report.applied] == ["0002", "0003", "0006", "0004", "0005"]
    assert report.dropped == ("function durable._stray()", "function durable.pack(text)")
    assert tree.run("select count(*), count(colour) from durable._boxes") == [(25, 25)]
    assert tree.run("select durable.pack('a'), durable._is_green('green')") == [("", True)]
    assert migrate.status(tree.dsn, sources=tree.sources).current


def test_the_script_does_what_the_command_does(
    tmp_path: Path, tree: Tree, empty_database: MakeDatabase
) -> None:
    """psql, fed the script, leaves the catalogue, the bookkeeping and the rows that migrate leaves."""
    other = Tree(tmp_path / "other", empty_database())
    for old in (other, tree):
        old.write("sql/state/20_colours.sql", "create type durable.colour as enum ('red');")
        old.write("sql/state/30_workers.sql", WORKERS)
        write_initial(old.sources)
    other.install()
    other.run("insert into durable._boxes select 'box ' || n from generate_series(1, 25) n")
    for old in (other, tree):
        next_version(old)
        old.run("create function durable._stray() returns int language sql as 'select 1'")
    script = migrate.as_script(tree.dsn, sources=tree.sources)
    assert migrate.as_script(tree.dsn, sources=tree.sources) == script
    done = psql(tree.dsn, script)
    assert (done.returncode, done.stderr) == (0, "")
    migrate.migrate(other.dsn, sources=other.sources)
    one, two = content(tree), content(other)
    assert not differences(one[0], two[0])  # type: ignore[arg-type]
    assert one[1:] == two[1:]
    assert not migrate.migrate(tree.dsn, sources=tree.sources).changed
    again = psql(tree.dsn, script)
    assert again.returncode != 0
    assert "not as it was when the script was written" in again.stderr
    assert content(tree) == one


def test_what_has_not_changed_is_left_alone(tree: Tree) -> None:
    """An upgrade rewrites the catalogue rows of changed functions only."""
    rows = "select proname::text, xmin::text from pg_proc where pronamespace = 'durable'::regnamespace"
    tree.write("sql/logic/core/98_security.sql", "")
    tree.install()
    before = dict(tree.run(rows))
    tree.write(
        "sql/logic/core/20_second.sql", "-- a comment\n" + SECOND.replace("(pack.id)", "(upper(pack.id))")
    )
    assert tree.install() == migrate.Report(logic=True)
    after = dict(tree.run(rows))
    assert {name for name in after if after[name] != before[name]} == {"pack"}


def test_what_stands_on_a_grown_function_is_made_again(tree: Tree) -> None:
    """A view that calls it and a function that returns rows of that view are dropped before it and come back;
    a view of a user on them is named instead."""
    rows = "create or replace function durable.all_boxes() returns setof durable.boxes language sql stable"
    tree.write("sql/logic/core/30_third.sql", f"{rows} as $$ select * from durable.boxes $$;")
    tree.install()
    grown = FIRST.replace("_size(p_id text)", "_size(p_id text, p_more text default '')")
    tree.write("sql/logic/core/10_first.sql", grown)
    tree.run("create view public.mine as select b.id from durable.all_boxes() b")
    with pytest.raises(SchemaMismatch, match="mine depends on"):
        tree.install()
    tree.run("drop view public.mine")
    assert tree.install().dropped == ("function durable._size(text)",)
    assert tree.run("select count(*), min(size) from durable.all_boxes()") == [(25, 5)]


def test_a_view_that_takes_writes_takes_them_after_an_upgrade(tree: Tree) -> None:
    """Where its columns change it is made again, and what an INSERT does with it too."""
    takes = """
create or replace function durable._take() returns trigger language plpgsql volatile as $$
begin insert into durable._boxes (id) values (new.id); return new; end $$;
create or replace trigger take instead of insert on durable.boxes
  for each row execute function durable._take();
"""
    tree.write("sql/logic/core/30_third.sql", takes)
    tree.install()
    tree.write("sql/logic/core/10_first.sql", FIRST.replace("select b.id, ", "select 1 as one, b.id, "))
    tree.install()
    tree.run("insert into durable.boxes (id) values ('taken')")
    assert tree.run("select count(*) from durable._boxes where id = 'taken'") == [(1,)]


def test_functions_come_before_the_locks(tree: Tree) -> None:
    """A changed function is created before views are locked; in a script, one that needs a step after it."""
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    tree.write("sql/logic/core/20_second.sql", SECOND.replace("(pack.id)", "(upper(pack.id))"))
    needs = "create or replace function durable._colours() returns bigint language sql stable as $$ {} $$;"
    tree.write("sql/logic/core/05_needs.sql", needs.format("select count(b.colour) from durable._boxes b"))
    script = migrate.as_script(tree.dsn, sources=tree.sources)
    places = [
        script.index(text)
        for text in (
            "alter table",
            "create or replace function durable.pack",
            "alter view durable.boxes reset",
            "create or replace function durable._colours",
            "create or replace view durable.boxes",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("connected", ["0.0.9", None])
def test_a_contract_waits_for_older_workers(tree: Tree, connected: str | None) -> None:
    """While a worker of an older or unknown version is connected, steps that contract are left, and said."""
    next_version(tree)
    about = "{}" if connected is None else f'{{"pyengine": "{connected}"}}'
    tree.run(f"insert into durable._workers values ('W', true, null, 0, '{about}')")
    report = tree.install()
    assert report.left == ("0005_contract_boxes_colour",)
    assert report.older == (f"W ({connected or 'unknown'})",)
    assert migrate.status(tree.dsn, sources=tree.sources).pending == report.left
    assert "left out: 0005" in migrate.as_script(tree.dsn, sources=tree.sources)
    tree.run("update durable._workers set present = false")
    script = migrate.as_script(tree.dsn, sources=tree.sources)
    tree.run("update durable._workers set present = true")
    assert "workers older than" in psql(tree.dsn, script).stderr
    tree.run("""update durable._workers set about = '{"pyengine": "99.0.0"}'""")
    assert tree.install().applied == ("0005_contract_boxes_colour",)


@pytest.fixture
def locked(tree: Tree) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session with an open transaction that has written to the table."""
    with psycopg.connect(tree.dsn) as conn:
        conn.execute("insert into durable._boxes (id) values ('locked')")
        yield conn


def test_a_lock_that_is_not_free_is_tried_again(
    tree: Tree, locked: psycopg.Connection[tuple[object, ...]]
) -> None:
    """A step gives up its place in the queue again and again, so those behind it go on, and lands at last;
    each try tells which table it waits for, and who holds it."""
    told: list[Waiting] = []
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(migrate.migrate, tree.dsn, sources=tree.sources, tell=told.append)
        tree.run("set lock_timeout = '5s'; insert into durable._boxes (id) values ('behind')")
        while len(told) < 3:
            time.sleep(0.01)
        locked.commit()
        assert running.result().applied == ("0002_expand_boxes_add_colour",)
    (holder,) = {one.partition(" (")[0] for waiting in told for one in waiting.holders}
    assert holder == f"pid {locked.info.backend_pid}"
    assert [(one.part, one.relation, one.tries) for one in told[:3]] == [
        ("0002_expand_boxes_add_colour", "durable._boxes", tries) for tries in (1, 2, 3)
    ]


def test_a_drop_waits_for_statements_that_run(tree: Tree) -> None:
    """A call that is inside the old body when the new one is committed still finds what that body calls."""
    helper = "create or replace function durable._helper() returns integer language sql as $$ select 1 $$;\n"
    slow = (
        "create or replace function durable.slow() returns integer language plpgsql volatile as $$ {} $$;\n"
    )
    body = "begin perform pg_advisory_xact_lock(77); return durable._helper(); end"
    tree.write("sql/logic/core/30_slow.sql", helper + slow.format(body))
    tree.install()
    tree.write("sql/logic/core/30_slow.sql", slow.format("begin return 2; end"))
    with ThreadPoolExecutor(2) as pool, psycopg.connect(tree.dsn) as holder:
        holder.execute("select pg_advisory_xact_lock(77)")
        inside = pool.submit(tree.run, "select durable.slow()")
        while tree.run("select count(*) from pg_locks where locktype = 'advisory' and not granted") == [(0,)]:
            time.sleep(0.01)
        upgrade = pool.submit(tree.install)
        waits = (
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and application_name = 'pyengine admin' and wait_event = 'PgSleep'"
        )
        while not upgrade.done() and tree.run(waits) == [(0,)]:
            time.sleep(0.01)
        assert tree.run("select count(*) from pg_proc where proname = 'slow' and prosrc like '%2%'") == [(1,)]
        holder.commit()
        assert inside.result() == [(1,)]
        assert upgrade.result().dropped == ("function durable._helper()",)


def test_patience_ends(tree: Tree, locked: psycopg.Connection[tuple[object, ...]]) -> None:
    """After the time that was asked for, the error names step, table, holder and the next command; what was
    done before stays, nothing else is changed, and a later migration goes on from there."""
    tree.write("migrations/0002_expand_more.sql", "create table durable._more (id text);")
    tree.write(
        "migrations/0003_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    with pytest.raises(
        Unavailable, match=r"0003_expand_boxes_add_colour: others kept durable\._boxes"
    ) as error:
        migrate.migrate(tree.dsn, sources=tree.sources, limits=Limits(wait_s=0.0))
    assert f"pid {locked.info.backend_pid} " in str(error.value)
    assert "pyengine db migrate --wait" in str(error.value)
    assert migrate.status(tree.dsn, sources=tree.sources).pending == ("0003_expand_boxes_add_colour",)
    tree.run("select durable.pack('meanwhile')")
    locked.commit()
    assert tree.install().applied == ("0003_expand_boxes_add_colour",)


def test_every_install_adopts_an_idle_copy(tree: Tree) -> None:
    """One that has something to do, and one that has not; so a new installation is where it was made."""
    tree.write(
        "sql/logic/core/06_site.sql",
        "create or replace function durable._adopt_idle_copy() returns void language sql volatile\n"
        "as $$ insert into durable._boxes (id) select 'adopted ' || count(*) from durable._boxes $$;\n",
    )
    adopted = "select count(*) from durable._boxes where id like 'adopted%'"
    for times in (1, 2):
        tree.install()
        assert tree.run(adopted) == [(times,)]


def test_each_part_has_its_own_patience(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that waited for nearly all of the time leaves as much to the next one."""
    passed_s, true = [0.0], clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: true() + passed_s[0])
    monkeypatch.setattr(clock, "pause", lambda seconds: passed_s.append(passed_s.pop() + 700))
    tree.run("create table durable._bags (id text)")
    for number, table in ((2, "boxes"), (3, "bags")):
        tree.write(
            f"migrations/{number:04d}_expand_{table}_add_colour.sql",
            f"alter table durable._{table} add column colour text;",
        )
    holders = {f"durable._{table}": psycopg.connect(tree.dsn) for table in ("boxes", "bags")}
    for table, holder in holders.items():
        holder.execute(f"lock table {table} in access share mode".encode())
    with holders["durable._boxes"], holders["durable._bags"]:
        report = migrate.migrate(
            tree.dsn,
            sources=tree.sources,
            limits=Limits(wait_s=600),
            tell=lambda waiting: holders[waiting.relation].commit(),
        )
    assert report.applied == ("0002_expand_boxes_add_colour", "0003_expand_bags_add_colour")


def test_a_prepared_transaction_is_named(tree: Tree, locked: psycopg.Connection[tuple[object, ...]]) -> None:
    """It has no session any more, so it is named by what ends it."""
    gid = f"it's {locked.info.dbname}"
    quoted = gid.replace("'", "''")
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    locked.execute(f"prepare transaction '{quoted}'".encode())
    try:
        with pytest.raises(Unavailable) as error:
            migrate.migrate(tree.dsn, sources=tree.sources, limits=Limits(wait_s=0.0))
        assert f"held by the prepared transaction {gid} (" in str(error.value)
        assert f"rollback prepared '{quoted}'" in str(error.value)
    finally:
        tree.run(f"rollback prepared '{quoted}'")


def test_a_session_that_ends_while_an_index_is_made(
    tree: Tree, locked: psycopg.Connection[tuple[object, ...]]
) -> None:
    """The error says what ended it, not that its settings could not be reset."""
    tree.write(
        "migrations/0002_index_boxes_by_id.sql",
        "create index boxes_by_id on durable._boxes (id);\n"
        "comment on index durable.boxes_by_id is 'Serves.';",
    )
    end = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where wait_event_type = 'Lock' "
        "and datname = current_database() and query like 'create index%'"
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(tree.install)
        while tree.run(end) == [(0,)]:
            time.sleep(0.01)
        with pytest.raises(Exception, match="administrator command"):
            running.result()


def test_an_index_is_made_beside_writers(tree: Tree, locked: psycopg.Connection[tuple[object, ...]]) -> None:
    """A step of the phase index waits for open transactions and blocks nobody; one that was left unfinished
    is made again, and a new database has it too."""
    tree.write(
        "migrations/0002_index_boxes_by_id.sql",
        "create index boxes_by_id on durable._boxes (id);\n"
        "comment on index durable.boxes_by_id is 'Serves.';",
    )
    with pytest.raises(Unavailable, match="0002_index_boxes_by_id"):
        migrate.migrate(tree.dsn, sources=tree.sources, limits=Limits(wait_s=0.1))
    valid = "select i.indisvalid from pg_index i where i.indexrelid = 'durable.boxes_by_id'::regclass"
    assert tree.run(valid) == [(False,)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(tree.install)
        tree.run("set lock_timeout = '5s'; insert into durable._boxes (id) values ('behind')")
        locked.commit()
        assert running.result().applied == ("0002_index_boxes_by_id",)
    assert tree.run(valid) == [(True,)]
    assert tree.run("select obj_description('durable.boxes_by_id'::regclass)") == [("Serves.",)]


def test_types_change_with_the_functions(tree: Tree) -> None:
    """A function that makes a value from all attributes of a type serves calls until both change at once."""
    tree.write(
        "migrations/0002_expand_pair.sql",
        "create type durable._pair as (one integer, two integer);",
    )
    head = "create or replace function durable._made() returns durable._pair language plpgsql stable"
    made = f"{head} as $$ {{}} $$;"
    tree.write("sql/logic/core/30_made.sql", made.format("begin return row(1, 2)::durable._pair; end"))
    tree.install()
    tree.write("migrations/0003_types_pair.sql", "alter type durable._pair add attribute three integer;")
    tree.write("sql/logic/core/30_made.sql", made.format("begin return row(1, 2, 4)::durable._pair; end"))
    with migrate.connected(tree.dsn) as conn, conn.transaction(force_rollback=True):
        conn.execute(migrate.LOCKED_SESSION.encode())
        parts = migrate.plan(conn, tree.sources).parts
    assert [(part.phase, [step.id for step in part.steps]) for part in parts] == [("logic", [3])]
    assert tree.install().applied == ("0003_types_pair",)
    assert tree.run("select (durable._made()).three") == [(4,)]


def test_an_older_overload_serves_calls_that_run(tree: Tree) -> None:
    """What a running call may need goes after it has ended, unless a call of the new code could mean it."""
    helper = (
        "create or replace function durable._helper({}) returns integer language sql as $$ select 1 $$;\n"
    )
    tree.write("sql/logic/core/30_helper.sql", helper.format("p_one text"))
    tree.install()
    for grown, phases in (
        ("p_one text, p_two text", ["logic", "drops"]),
        ("p_one text, p_two text, p_three text default ''", ["logic"]),
    ):
        tree.write("sql/logic/core/30_helper.sql", helper.format(grown))
        with migrate.connected(tree.dsn) as conn, conn.transaction(force_rollback=True):
            conn.execute(migrate.LOCKED_SESSION.encode())
            assert [part.phase for part in migrate.plan(conn, tree.sources).parts] == phases
        assert len(tree.install().dropped) == 1


@pytest.mark.parametrize("times", [2, 99])
def test_an_internal_error_may_pass(tree: Tree, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Rows of the catalogue that another session has changed too are met again some times, whatever the
    server says of them; what stays is raised as it is.
    """
    monkeypatch.setattr("pyengine.core.process.clock.pause", lambda seconds: None)
    tree.run("create sequence public.tries")
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql",
        f"do $$ begin if nextval('public.tries') <= {times} then "
        "raise exception 'ein Tupel' using errcode = 'XX000'; end if; end $$;",
    )
    if times == 2:
        assert tree.install().applied == ("0002_expand_boxes_add_colour",)
    else:
        with pytest.raises(EngineError, match=r"ein Tupel .*XX000"):
            tree.install()


def test_a_backfill_waits_for_a_row_and_goes_on(
    tree: Tree, locked: psycopg.Connection[tuple[object, ...]]
) -> None:
    """A locked row stops its batch only; batches that are done stay, and the rest follows."""
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    locked.rollback()
    tree.install()
    tree.write("migrations/0003_backfill_boxes_colour.sql", BACKFILL)
    last = "select id from durable._boxes order by id desc limit 1 for update"
    locked.execute(last.encode())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(tree.install)
        while tree.run("select count(colour) from durable._boxes") != [(20,)]:
            time.sleep(0.02)
        locked.rollback()
        assert running.result().applied == ("0003_backfill_boxes_colour",)
    assert tree.run("select count(*) from durable._boxes where colour is null") == [(0,)]


def test_a_backfill_is_one_statement(tree: Tree) -> None:
    """Two statements in a backfill are refused, because a count of rows says when it is done."""
    tree.write("migrations/0002_backfill_boxes.sql", "select 1; select 2;")
    with pytest.raises(ValueError, match="one statement"):
        tree.install()


def test_a_rehearsal_names_the_locks_and_changes_nothing(tree: Tree) -> None:
    """Each part is named with the locks that it takes, and those that cannot be rehearsed with the reason."""
    next_version(tree)
    before = content_of(tree)
    parts = rehearsal.rehearse(tree.dsn, sources=tree.sources).parts
    phases = ["expand", "values", "expand", "logic", "backfill", "contract"]
    assert [part.phase for part in parts] == phases
    locks = {(lock.relation, lock.mode, lock.taken_by) for lock in parts[0].locks}
    assert locks == {("durable._boxes", "ACCESS EXCLUSIVE", "0002_expand_boxes_add_colour.sql:1")}
    assert parts[0].locks[0].held_ms <= (parts[0].took_ms or 0)
    assert "new value of an enum" in (parts[3].note or "")
    assert parts[5].note is not None
    assert content_of(tree) == before


def test_a_rehearsal_gives_up_a_lock(tree: Tree, locked: psycopg.Connection[tuple[object, ...]]) -> None:
    """Where another session has the lock, the rehearsal stops there and says so."""
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    part, views = rehearsal.rehearse(tree.dsn, sources=tree.sources).parts
    assert views.note == "not rehearsed, because the part before it was not"
    assert "lock that another session holds" in (part.note or "")


def content_of(tree: Tree) -> tuple[object, ...]:
    """Catalogue and bookkeeping of a database without colours."""
    return (snapshot(tree.dsn), *(tree.run(question) for question in (BOOKS, LOGIC, SETTINGS)))


def test_definitions_are_read_from_the_outline(tmp_path: Path) -> None:
    """Keys have the types of inputs only; quotes, comments and dollar quotes hide what is in them."""
    path = tmp_path / "10_x.sql"
    path.write_text("""-- create or replace function durable.no();
create or replace function durable.f(p_a text default ')', out x int, variadic p_b integer[] default '{}')
returns int language sql as $a$ select ';' || $$;$$ $a$;
comment on function durable.f(text, integer[]) is 'a; ''b''';
insert into durable.settings values (E'\\';');
create or replace view durable."user" as select 1 as one /* ; */;
""")
    items = logic.read([path])
    keys = [item.key for item in items if isinstance(item, logic.Definition)]
    assert keys == ["function durable.f(text,integer[])", "view durable.user"]
    assert [item.line for item in items] == [2, 5, 6]
    assert [item.text for item in items if isinstance(item, logic.Loose)] == [
        "insert into durable.settings values (E'\\';')"
    ]
    path.write_text("create trigger t before insert on durable._boxes execute function durable._f();")
    with pytest.raises(ValueError, match="functions and views"):
        logic.read([path])
