"""Law: sql/state and the migrations tell of one and the same database.

Build A is sql/state + sql/logic, what a reader sees; build B is migrations + sql/logic, what an installed
database went through; build C is the one-file bundle, for people with psql alone. Their catalogues must
agree in everything but the order of columns.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pyengine.core.sources import Sources, found
from pyengine.doors.admin import bundle, migrate
from pyengine.errors import InvalidRequest, SchemaMismatch
from tests.support.catalogue import build_from_sources, differences, settings, snapshot

MakeDatabase = Callable[[], str]


def test_state_and_migrations_agree(empty_database: MakeDatabase) -> None:
    """A database from sql/state and one from migrations/ differ in nothing."""
    a, b = empty_database(), empty_database()
    build_from_sources(a, found())
    migrate.install(b)
    different = differences(snapshot(a), snapshot(b))
    assert not different, "\n".join(different)
    assert settings(a) == settings(b)


def test_steps_leave_what_installed_views_depend_on(empty_database: MakeDatabase) -> None:
    """Views of an older version stand on the columns of its tables until new ones replace them, so no step
    before the contract gives a column another type or takes it away."""
    first, *others = found().migration_steps()
    with psycopg.connect(empty_database(), autocommit=True) as conn:
        conn.execute(first.text.encode())
        conn.execute("create schema installed")
        ours = "select c.relname from pg_class c where c.relnamespace = 'durable'::regnamespace"
        tables = conn.execute(f"{ours} and c.relkind = 'r' and not c.relispartition".encode()).fetchall()
        assert len(tables) > 20
        for (table,) in tables:
            conn.execute(f"create view installed.{table} as select * from durable.{table}".encode())
        for step in others:
            if step.phase != "contract":
                conn.execute(step.text.encode())


def test_bundle_and_migrations_agree(empty_database: MakeDatabase) -> None:
    """A database from the one-file bundle is the installer's, and the installer finds nothing to do there."""
    a, b = empty_database(), empty_database()
    with psycopg.connect(a, autocommit=True) as conn:
        conn.execute(bundle.bundle(found()).encode())
    assert not migrate.install(a).changed
    migrate.install(b)
    different = differences(snapshot(a), snapshot(b))
    assert not different, "\n".join(different)


def test_applying_the_logic_twice_changes_nothing(dsn: str) -> None:
    """Functions, views and grants written anew are what they were."""
    before, knobs = snapshot(dsn), settings(dsn)
    report = migrate.install(dsn, reapply=True)
    assert report.logic
    assert report.dropped == ()
    assert not differences(before, snapshot(dsn))
    assert settings(dsn) == knobs


def test_a_changed_setting_survives_an_install(dsn: str) -> None:
    """What an administrator has set, an upgrade leaves alone."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("update durable.settings set value = '777' where name = 'sweep_limit'")
    migrate.install(dsn, reapply=True)
    assert settings(dsn)["sweep_limit"] == "777"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("alter table durable._promises add column colour text", "column _promises.colour"),
        ("alter table durable._promises alter column state drop default", "column _promises.state"),
        (
            "alter domain durable._lawful_promise drop constraint promises_child_not_negative",
            "promises_child_not_negative",
        ),
        ("alter table durable._promises drop constraint promises_are_lawful", "promises_are_lawful"),
        ("create index extra on durable._promises (state)", "relation extra"),
        ("comment on table durable._promises is 'other'", "relation _promises"),
        ("alter function durable._now_ms() parallel safe", "_now_ms"),
        ("grant select on durable._promises to public", "relation _promises"),
        ("create function durable._more() returns int language sql as 'select 1'", "_more"),
    ],
)
def test_the_comparison_can_fail(dsn: str, change: str, what: str) -> None:
    """A column, default, constraint, index, comment, property, grant or function that differs is seen."""
    before = snapshot(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(change.encode())
    different = differences(before, snapshot(dsn))
    assert any(what in each for each in different), different


def test_the_first_migration_follows_the_state() -> None:
    """Until it is released, 0001_initial.sql is what the bundle module writes with --initial."""
    sources = found()
    if "0001_initial" not in sources.released():
        first = (sources.migrations / "0001_initial.sql").read_text(encoding="utf-8")
        assert first == bundle.initial(sources), "run: python -m pyengine.doors.admin.bundle --initial"


def test_released_migrations_are_what_they_were() -> None:
    """Every file that migrations/SHA256SUMS lists has its sum."""
    assert found().edited() == ()


def test_a_release_freezes_the_first_migration(tmp_path: Path) -> None:
    """A copy of this tree is released by one command; then its first migration never follows sql/state again,
    a new step is released beside it, and an edited one is named by every command."""
    shutil.copytree(found().sql, tmp_path / "sql")
    shutil.copytree(found().migrations, tmp_path / "migrations")
    sources = Sources(sql=tmp_path / "sql", migrations=tmp_path / "migrations")
    first, sums = sources.migrations / "0001_initial.sql", sources.migrations / "SHA256SUMS"
    unreleased = tuple(step.name for step in sources.migration_steps() if step.name not in sources.released())
    assert bundle.freeze(sources) == unreleased
    hashed = hashlib.sha256(first.read_bytes()).hexdigest()
    assert sums.read_text().splitlines()[0] == f"{hashed}  0001_initial.sql"
    text = first.read_text()
    (sources.sql / "state/99_more.sql").write_text("create table durable._more (id text);\n")
    with pytest.raises(InvalidRequest, match="released"):
        bundle.write_initial(sources)
    assert first.read_text() == text
    last = len(sources.migration_steps()) + 1
    (sources.migrations / f"{last:04d}_expand_more.sql").write_text("create table durable._more (id text);\n")
    assert bundle.freeze(sources) == (f"{last:04d}_expand_more",)
    assert (bundle.freeze(sources), sources.edited()) == ((), ())
    first.write_text(f"{text}-- edited\n")
    assert sources.edited() == ("0001_initial",)
    with pytest.raises(InvalidRequest, match="0001_initial: released"):
        bundle.freeze(sources)


def test_an_edited_release_is_not_installed(tmp_path: Path, empty_database: MakeDatabase) -> None:
    """A damaged copy of a released step is refused before anything is written, with the file's name."""
    for folder in ("sql/state", "sql/logic/core", "migrations"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sql/state/10_schema.sql").write_text("create schema durable;\n")
    sources = Sources(sql=tmp_path / "sql", migrations=tmp_path / "migrations")
    bundle.write_initial(sources)
    bundle.freeze(sources)
    (sources.migrations / "0001_initial.sql").write_text("create schema durable; -- edited\n")
    with pytest.raises(SchemaMismatch, match=r"0001_initial\.sql.*SHA256SUMS"):
        migrate.install(empty_database(), sources=sources)
