"""Law: install and migrate bring any older database forward, once, whole or not at all, and refuse what
they do not understand.

Most tests use a tiny tree of SQL files made in place, so that each can edit it; the concurrent one uses the
real tree.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from pyengine.core.sources import VERSION, Sources, found
from pyengine.doors.admin import bundle, migrate
from pyengine.errors import EngineError, InvalidRequest, NotFound, SchemaMismatch, Unavailable
from tests.support.catalogue import differences, snapshot

MakeDatabase = Callable[[], str]

STATE = """
create schema durable;
create table durable.settings (name text primary key, value text not null, description text not null);
create table durable.migrations (
  id integer primary key, name text not null, sha256 text not null, applied_at timestamptz not null
);
create table durable._logic (object text primary key, sha256 text not null, signature text);
create table durable._boxes (id text not null);
"""
FIRST = """
create or replace function durable._size(p_id text)
returns integer language sql stable as $$ select length(p_id) $$;
create or replace view durable.boxes as select b.id, durable._size(b.id) as size from durable._boxes b;
"""
SITE = """
create or replace function durable._adopt_idle_copy() returns void language sql volatile as $$ select $$;
"""
SECOND = """
create or replace function durable.pack(id text) returns void language plpgsql volatile as $$
begin insert into durable._boxes (id) values (pack.id); end $$;
"""
GRANTS = """
revoke all on all functions in schema durable from public;
grant usage on schema durable to public;
"""


class Tree:
    """A tree of SQL files that a test can edit, and a database to install it into."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.dsn = dsn
        self.folder = folder
        self.sources = Sources(sql=folder / "sql", migrations=folder / "migrations")
        for name in ("sql/state", "sql/logic/core", "migrations"):
            (folder / name).mkdir(parents=True)
        self.write("sql/state/10_schema.sql", STATE)
        self.write("sql/logic/core/06_site.sql", SITE)
        self.write("sql/logic/core/10_first.sql", FIRST)
        self.write("sql/logic/core/20_second.sql", SECOND)
        self.write("sql/logic/core/98_security.sql", GRANTS)
        bundle.write_initial(self.sources)

    def write(self, name: str, text: str) -> None:
        """Write one file of the tree."""
        (self.folder / name).write_text(text)

    def install(self, *, reapply: bool = False) -> migrate.Report:
        """Install the tree."""
        return migrate.install(self.dsn, sources=self.sources, reapply=reapply)

    def run(self, query: str) -> list[tuple[object, ...]]:
        """Run one statement in the database."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            cursor = conn.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def functions(self) -> set[str]:
        """Signatures of the functions that the database has, but for the one that every tree must have."""
        found = [key for key in snapshot(self.dsn) if key.startswith("function")]
        return {key.removeprefix("function durable.") for key in found if "_adopt_idle_copy" not in key}


@pytest.fixture
def tree(tmp_path: Path, empty_database: MakeDatabase) -> Tree:
    """A small tree and an empty database."""
    return Tree(tmp_path, empty_database())


def test_install_makes_the_schema_and_status_says_so(tree: Tree) -> None:
    """After an install the status is current; before, all steps are pending."""
    before = migrate.status(tree.dsn, sources=tree.sources)
    assert not before.installed
    assert before.pending == ("0001_initial",)
    report = tree.install()
    assert report == migrate.Report(applied=("0001_initial",), logic=True)
    after = migrate.status(tree.dsn, sources=tree.sources)
    assert after.current
    assert (after.applied, after.pending, after.version) == (("0001_initial",), (), VERSION)


def test_install_twice_changes_nothing(tree: Tree) -> None:
    """A second install has nothing to do and leaves every object as it is."""
    tree.install()
    before = snapshot(tree.dsn)
    assert not tree.install().changed
    assert not differences(before, snapshot(tree.dsn))


@pytest.mark.parametrize("installs", [20])
def test_concurrent_installs_are_one(empty_database: MakeDatabase, installs: int) -> None:
    """Of twenty installs at once one does the work, and the others find it done."""
    dsn = empty_database()
    with ThreadPoolExecutor(installs) as pool:
        reports = list(pool.map(lambda _: migrate.install(dsn), range(installs)))
    assert [report.changed for report in reports].count(True) == 1
    assert migrate.status(dsn).current
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("select name from durable.migrations order by id").fetchall()
    assert [name for (name,) in rows] == [step.name for step in found().migration_steps()]


def test_a_new_step_is_applied_once(tree: Tree) -> None:
    """An installed database gets the steps that it lacks, in order, and data stay."""
    tree.install()
    tree.run("select durable.pack('a')")
    tree.write(
        "migrations/0002_expand_boxes_add_colour.sql", "alter table durable._boxes add column colour text;"
    )
    report = migrate.migrate(tree.dsn, sources=tree.sources)
    assert report.applied == ("0002_expand_boxes_add_colour",)
    assert not report.logic
    assert tree.run("select id, colour from durable._boxes") == [("a", None)]
    assert not tree.install().changed


ADDED = "alter type durable.colour add value 'green';"
NAMED = """
create or replace function durable._is_green(p_colour durable.colour)
returns boolean language sql immutable as $$ select p_colour = 'green' $$;
"""


@pytest.mark.parametrize("phase", ["values", "expand"])
def test_a_new_value_is_committed_before_it_is_named(
    tree: Tree, empty_database: MakeDatabase, phase: str
) -> None:
    """A step of the phase `values` adds to an enum what the logic names in the same install; in any other
    phase PostgreSQL refuses the name in a new database, and nothing is made."""
    tree.write("sql/state/20_colours.sql", "create type durable.colour as enum ('red');")
    bundle.write_initial(tree.sources)
    tree.install()
    tree.write("migrations/0002_expand_boxes_add_size.sql", "alter table durable._boxes add column size int;")
    tree.write(f"migrations/0003_{phase}_colour_green.sql", ADDED)
    tree.write("migrations/0004_expand_boxes_add_colour.sql", "alter table durable._boxes add column c text;")
    tree.write("sql/logic/core/15_colours.sql", NAMED)
    if phase == "expand":
        tree.dsn = empty_database()
        with pytest.raises(EngineError, match=r"15_colours\.sql.*unsafe use of new value"):
            tree.install()
        assert not migrate.status(tree.dsn, sources=tree.sources).installed
        return
    assert len(tree.install().applied) == 3
    assert tree.run("select durable._is_green('green')") == [(True,)]
    assert not tree.install().changed


def test_a_new_value_may_come_with_its_type(tree: Tree, empty_database: MakeDatabase) -> None:
    """A database that is made from nothing gets the type, its new value and the logic in one install."""
    tree.write("sql/state/20_colours.sql", "create type durable.colour as enum ('red');")
    bundle.write_initial(tree.sources)
    tree.write("migrations/0002_values_colour_green.sql", ADDED)
    tree.write("sql/logic/core/15_colours.sql", NAMED)
    assert tree.install().applied == ("0001_initial", "0002_values_colour_green")
    assert tree.run("select durable._is_green('green')") == [(True,)]
    bundled = empty_database()
    with psycopg.connect(bundled, autocommit=True) as conn:
        for part in bundle.bundle(tree.sources).split("commit;")[:-1]:
            conn.execute(f"{part}commit;".encode())
    assert not migrate.install(bundled, sources=tree.sources).changed
    assert not differences(snapshot(tree.dsn), snapshot(bundled))


def test_a_failing_logic_keeps_the_new_value(tree: Tree) -> None:
    """The value is committed, the rest is not; the next install goes on from there."""
    tree.write("sql/state/20_colours.sql", "create type durable.colour as enum ('red');")
    bundle.write_initial(tree.sources)
    tree.install()
    tree.write("migrations/0002_values_colour_green.sql", ADDED)
    tree.write("sql/logic/core/15_colours.sql", NAMED.replace("= 'green'", "= 'blue'"))
    with pytest.raises(EngineError, match="blue"):
        tree.install()
    assert migrate.status(tree.dsn, sources=tree.sources).pending == ()
    tree.write("sql/logic/core/15_colours.sql", NAMED)
    assert tree.install() == migrate.Report(logic=True)


def test_an_edited_step_is_refused_by_name(tree: Tree) -> None:
    """A step that was edited after it was applied is an error that names the file and says what to do."""
    tree.install()
    tree.write("migrations/0001_initial.sql", STATE + "-- edited\n")
    with pytest.raises(SchemaMismatch, match=r"0001_initial\.sql.*\n.*never edited"):
        tree.install()


@pytest.mark.parametrize(
    "newer",
    [
        "insert into durable.migrations values (2, '0002_of_tomorrow', repeat('0', 64), now())",
        "update durable.settings set value = '99.0.0' where name = 'engine_version'",
    ],
)
def test_a_newer_database_is_refused(tree: Tree, newer: str) -> None:
    """An older pyengine does not touch a newer database, and says which of the two to upgrade."""
    tree.install()
    tree.run(newer)
    for action in (migrate.install, migrate.migrate, migrate.status):
        with pytest.raises(SchemaMismatch, match=r"newer than this pyengine(.|\n)*upgrade pyengine"):
            action(tree.dsn, sources=tree.sources)


def test_a_stale_function_and_view_are_dropped(tree: Tree) -> None:
    """What the sources no longer define is gone after an install, also with a grant on all functions."""
    tree.install()
    tree.run("create function durable._stray() returns int language sql as 'select 1'")
    tree.write("sql/logic/core/10_first.sql", FIRST[: FIRST.index("create or replace view")])
    tree.write("sql/logic/core/20_second.sql", "")
    report = tree.install()
    assert set(report.dropped) == {
        "function durable._stray()",
        "function durable.pack(text)",
        "view durable.boxes",
    }
    assert tree.functions() == {"_size(text)"}


def test_an_older_signature_is_dropped(tree: Tree) -> None:
    """A verb that grew by a trailing default exists once, so no call is ambiguous."""
    tree.install()
    grown = SECOND.replace("pack(id text)", "pack(id text, label text default '')")
    tree.write("sql/logic/core/20_second.sql", grown)
    report = tree.install()
    assert report.dropped == ("function durable.pack(text)",)
    tree.run("select durable.pack('a')")


def test_a_changed_shape_is_made_anew(tree: Tree) -> None:
    """A function with another result and a view with other columns replace the old ones in one install."""
    tree.install()
    first = FIRST.replace("returns integer", "returns bigint").replace("b.id, durable", "durable")
    tree.write("sql/logic/core/10_first.sql", first)
    tree.install()
    assert tree.run("select pg_typeof(durable._size('ab'))::text") == [("bigint",)]
    assert tree.run("select * from durable.boxes") == []
    assert {"_size(text)", "pack(text)"} == tree.functions()


def test_what_users_built_on_a_view_survives(tree: Tree) -> None:
    """A view of a user's own on one of ours stays, when ours is replaced by one of the same shape."""
    tree.install()
    tree.run("create view public.big as select b.id from durable.boxes b where b.size > 3")
    tree.write("sql/logic/core/10_first.sql", FIRST.replace("length(p_id)", "length(p_id) + 1"))
    tree.install()
    assert tree.run("select * from public.big") == []


def test_what_users_built_is_never_dropped_silently(tree: Tree) -> None:
    """If ours must go while a user's view stands on it, the install names that view and changes nothing."""
    tree.install()
    tree.run("create view public.big as select b.size from durable.boxes b")
    before = snapshot(tree.dsn)
    tree.write("sql/logic/core/10_first.sql", FIRST.replace("returns integer", "returns bigint"))
    with pytest.raises(SchemaMismatch, match=r"(?s)view .*big depends on"):
        tree.install()
    assert not differences(before, snapshot(tree.dsn))


def test_a_failing_file_changes_nothing(tree: Tree) -> None:
    """A statement that fails names file and line, and its part changes nothing; a step before it stays."""
    tree.install()
    tree.write("migrations/0002_expand_more.sql", "create table durable._more (id text);")
    tree.write(
        "sql/logic/core/20_second.sql",
        SECOND + "\ncreate or replace view durable.x as\n  select nothing.here;\n",
    )
    with pytest.raises(EngineError, match=r"core/20_second\.sql:6: .*0002_expand_more remains applied"):
        tree.install()
    before = snapshot(tree.dsn)
    with pytest.raises(EngineError, match=r"core/20_second\.sql:6: .*nothing was changed"):
        tree.install()
    assert not differences(before, snapshot(tree.dsn))
    assert migrate.status(tree.dsn, sources=tree.sources).pending == ()


def test_reapply_restores_what_was_tampered_with(tree: Tree) -> None:
    """Functions and grants that somebody changed by hand are the sources' again after a reapply."""
    tree.install()
    before = snapshot(tree.dsn)
    tree.run("create or replace function durable._size(p_id text) returns integer language sql as 'select 0'")
    tree.run("grant execute on function durable._size(text) to public")
    assert not tree.install().changed
    tree.install(reapply=True)
    assert not differences(before, snapshot(tree.dsn))


def test_names_must_be_qualified(tree: Tree) -> None:
    """Sources run with an empty search_path: an unqualified table of the user's is not found by accident."""
    tree.run("create table public.things (id text)")
    tree.write("sql/logic/core/20_second.sql", "create or replace view durable.t as select id from things;")
    with pytest.raises(EngineError, match="things"):
        tree.install()


def test_migrate_needs_a_schema(tree: Tree) -> None:
    """Migrate on an empty database says that there is nothing to migrate and what makes it."""
    with pytest.raises(NotFound, match=r"(?s)no schema durable.*pyengine db init"):
        migrate.migrate(tree.dsn, sources=tree.sources)


def test_a_foreign_schema_is_left_alone(tree: Tree) -> None:
    """A schema durable that pyengine did not make is refused, not adopted."""
    tree.run("create schema durable")
    with pytest.raises(SchemaMismatch, match="did not make"):
        tree.install()


def test_no_server_is_unavailable() -> None:
    """No connection is an error of its own, which says so."""
    with pytest.raises(Unavailable, match="cannot connect"):
        migrate.install("postgresql://127.0.0.1:1/nowhere?connect_timeout=2")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        migrate.install("nonsense")


@pytest.mark.parametrize("password", ["gehe%zim", "gehe im", "gehe@im"])
def test_a_url_that_cannot_be_read_is_not_repeated(password: str) -> None:
    """libpq quotes what it cannot read, which may be the password; the error shows no part of it."""
    with pytest.raises(EngineError) as error:
        migrate.status(f"postgresql://me:{password}@127.0.0.1:1/shop")
    assert "gehe" not in str(error.value)
    assert "im@" not in str(error.value)


@pytest.mark.parametrize("name", ["0003_gap.sql", "0001_twice.sql", "2_short.sql", "0002-dash.sql"])
def test_misnamed_migrations_are_refused(tree: Tree, name: str) -> None:
    """Numbers are consecutive and unique, names are NNNN_words.sql."""
    tree.write(f"migrations/{name}", "select 1;")
    with pytest.raises(ValueError, match=r"migration|number"):
        tree.install()


def test_the_checksum_of_the_logic_sees_every_edit(tree: Tree) -> None:
    """A changed text, a new file and a renamed file are another logic; line ends are not."""
    first = tree.sources.logic_sha256()
    (tree.folder / "sql/logic/core/20_second.sql").write_bytes(SECOND.replace("\n", "\r\n").encode())
    assert tree.sources.logic_sha256() == first
    (tree.folder / "sql/logic/core/20_second.sql").rename(tree.folder / "sql/logic/core/21_second.sql")
    second = tree.sources.logic_sha256()
    tree.write("sql/logic/core/30_third.sql", "")
    assert len({first, second, tree.sources.logic_sha256()}) == 3
