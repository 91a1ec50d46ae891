"""What ``pyengine db ...`` answers, and what is said of databases that are down, empty or too new."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support.cluster import SETTINGS, make_folder

SECRET = "tops3cret"


def test_status_shows_everything(at_database: Any) -> None:
    """Version, migrations, server, settings and counts, as text and as one document."""
    document = at_database("db", "status", "--json").document
    assert document["schema"]["current"] is True
    assert document["schema"]["applied"]
    assert document["database"]["embedded"] is False
    assert {one["name"] for one in document["settings"]} >= {"lease_ttl_ms", "max_crashes"}
    shown = at_database("db", "status").out
    for words in ("PostgreSQL", "up to date", "lease_ttl_ms", "PYENGINE_DATABASE_URL"):
        assert words in shown


def test_status_has_the_url_for_drivers(pyengine: Any) -> None:
    """A driver connects with the URL that status shows for the embedded Postgres; a password is not shown."""
    place = make_folder()
    with EmbeddedPostgres(place, settings=SETTINGS):
        folder = ("--data-dir", str(place))
        url = pyengine("db", "status", "--json", *folder).document["database"]["url"]
        assert url in pyengine("db", "status", *folder).out
        with psycopg.connect(url) as there:
            assert there.info.dbname == "postgres"
        secret = url.replace("postgres@", f"postgres:{SECRET}@", 1)
        hidden = pyengine("db", "status", "--json", "--database-url", secret)
        assert hidden.document["database"]["url"] == url.replace("postgres@", "postgres:***@", 1)
    shutil.rmtree(place)


def test_status_and_check_report_problems_of_health(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """Where all is well both say so and no more; a week without a partition is named, with what to do."""
    well = at_database("db", "status")
    assert "there for this week and the next" in well.out
    assert (well.err, at_database("check").err) == ("", "")
    conn.execute("delete from durable._buckets where bucket = durable._week(durable._now_ms()) + 1")
    document = at_database("db", "status", "--json").document
    assert [one["subject"] for one in document["health"] if not one["ok"]] == ["journal partitions"]
    for command in (("db", "status"), ("check",)):
        told = at_database(*command)
        assert (told.code, "journal partitions: none for week" in told.err) == (0, True)
        assert "select durable._create_partitions()" in told.err


def test_set_prints_the_old_value(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A setting is changed in the database, and its old value answered."""
    answer = at_database("db", "set", "lease_ttl_ms", "5000", "--json")
    assert answer.document == {"name": "lease_ttl_ms", "old": "15000", "value": "5000"}
    assert conn.execute("select durable._setting('lease_ttl_ms')").fetchone() == ("5000",)


def test_purge_removes_and_reports(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """What ended is removed, what is needed is counted with its reason, and what is no age is refused."""
    conn.execute("create table orders (run text references durable._promises (id))")
    for name in ("kept", "goes"):
        conn.execute(
            "select durable.start('w', id => %s), durable._settle_promise(%s, 'resolved', '1', null)",
            (name, name),
        )
    conn.execute("insert into orders values ('kept')")
    conn.execute("update durable._promises set created_at = 1, settled_at = 2")
    conn.execute("update durable._executions set last_at = 2")
    conn.execute("update durable._journal set ts = 1 + seq")
    assert at_database("db", "purge", "--older-than", "1 month").code == 2
    assert at_database("db", "purge", "--older-than", "36500d", "--json").document["runs"] == 0
    shown = at_database("db", "purge", "--older-than", "1d").out
    assert "removed 1 runs" in shown
    assert "foreign key" in shown
    answer = at_database("db", "purge", "--older-than", "1d", "--json").document
    assert answer == {"runs": 0, "promises": 0, "generations": 0, "kept": {"row": 1}, "calls": 0}


def test_records_of_the_installer_are_no_settings(at_database: Any) -> None:
    """Checksum and version are not to be set by hand."""
    assert at_database("db", "set", "logic_sha256", "0").code == 3


def test_init_twice_is_as_good_as_once(pyengine: Any, empty_database: Callable[[], str]) -> None:
    """The first init installs, the second changes nothing; until then the schema is missed."""
    url = empty_database()
    missed = pyengine("--database-url", url, "ps")
    assert (missed.code, f"pyengine db init --database-url '{url}'" in missed.err) == (5, True)
    assert pyengine("db", "migrate", "--database-url", url).code == 3
    assert pyengine("db", "status", "--database-url", url).code == 5
    assert pyengine("db", "init", "--database-url", url, "--json").document["applied"]
    assert pyengine("db", "init", "--database-url", url, "--json").document["changed"] is False
    assert pyengine("--database-url", url, "ps", "--json").document == []


def test_a_newer_schema_is_reported(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A database of a later version says: upgrade, not: broken. What does not install works on beside it,
    unless it does not serve this version's protocol any more."""
    conn.execute(
        "insert into durable.migrations (id, name, sha256) values (9999, '9999_later', repeat('0', 64))"
    )
    for words in (["db", "migrate"], ["db", "status"], ["db", "init"]):
        answer = at_database(*words)
        assert answer.code == 5
        assert "newer" in answer.err
        assert "pgrade" in answer.err
    assert at_database("ps").code == 0
    conn.execute(
        "create or replace function durable.version() returns table (schema_version integer, "
        "lowest_worker_protocol integer, highest_worker_protocol integer) language sql as 'select 9999, 9, 9'"
    )
    answer = at_database("ps")
    assert (answer.code, "too new" in answer.err, "pgrade" in answer.err) == (5, True, True)


def test_a_migration_is_shown_before_it_is_done(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """--dry-run names what would be replaced and the locks, --sql prints a script; nothing is changed."""
    assert at_database("db", "migrate", "--dry-run").out.strip() == "nothing to do"
    assert "begin;" not in at_database("db", "migrate", "--sql").out
    conn.execute("update durable._logic set sha256 = repeat('0', 64) where object = 'view durable.workers'")
    conn.execute("update durable.settings set value = repeat('0', 64) where name = 'logic_sha256'")
    (part,) = at_database("db", "migrate", "--dry-run", "--json").document["parts"]
    assert (part["phase"], part["logic"], part["note"]) == ("logic", True, None)
    assert ("durable.workers", "ACCESS EXCLUSIVE") in {
        (one["relation"], one["mode"]) for one in part["locks"]
    }
    assert "ACCESS EXCLUSIVE on durable.workers" in at_database("db", "migrate", "--dry-run").out
    script = at_database("db", "migrate", "--sql", "--json").document["sql"]
    assert script == at_database("db", "migrate", "--sql").out
    assert script.count("create or replace") == 1
    assert at_database("db", "status").code == 5
    assert at_database("db", "migrate", "--sql", "--dry-run").code == 2
    assert at_database("db", "migrate").code == 0
    assert at_database("db", "status").code == 0


def test_an_older_schema_is_reported(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A database of an earlier version says: migrate."""
    conn.execute("delete from durable.migrations")
    answer = at_database("ps")
    assert (answer.code, "pyengine db migrate" in answer.err) == (5, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "empty"),
        ("nonsense", "postgresql://"),
        (f"mysql://me:{SECRET}@h/db", "postgresql://"),
        (f"postgresql://me:{SECRET}@127.0.0.1:70000/db", "port"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", "127.0.0.1:1/db"),
        (f"postgresql://me:p@{SECRET}@127.0.0.1:1/db", "not escaped"),
        (f"postgresql://127.0.0.1:1/db?user=me&password={SECRET}", "127.0.0.1:1/db"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db?nosuchoption=1", ""),
    ],
)
@pytest.mark.parametrize("named_by", ["argument", "environment"])
def test_a_database_that_is_not_there_is_one_message(
    pyengine: Any, monkeypatch: pytest.MonkeyPatch, url: str, said: str, named_by: str
) -> None:
    """A URL that is wrong or whose server is down exits 4, is never replaced, and shows no password."""
    words = ["ps"]
    if named_by == "argument":
        words += ["--database-url", url]
    else:
        monkeypatch.setenv("PYENGINE_DATABASE_URL", url)
    for answer in (pyengine(*words), pyengine("db", "psql", *words[1:]), pyengine(*words, "--json")):
        assert answer.code == 4
        assert said in answer.err + answer.out
        assert SECRET not in answer.err + answer.out
        assert len(answer.err.splitlines()) <= 2


def test_a_url_and_a_folder_together_are_refused(pyengine: Any, tmp_path: Path) -> None:
    """--data-dir with a URL is a contradiction that is told."""
    answer = pyengine("ps", "--database-url", "postgresql://h/db", "--data-dir", str(tmp_path))
    assert answer.code == 2
    assert "--data-dir" in answer.err


def test_reading_commands_make_no_server(pyengine: Any, tmp_path: Path) -> None:
    """Where the embedded Postgres was never started, looking does not start it."""
    answer = pyengine("ps", "--data-dir", str(tmp_path / "none"))
    assert (answer.code, "pyengine db init" in answer.err) == (3, True)
    assert not (tmp_path / "none").exists()


def test_psql_gets_the_right_database(at_database: Any, dsn: str) -> None:
    """psql is started on the database that is meant, with what is given to it, and its exit code is ours."""
    command = at_database("db", "psql", "--json").document["command"]
    assert psycopg.conninfo.conninfo_to_dict(dsn)["dbname"] in command[1]
    assert SECRET not in " ".join(command)
    assert at_database("db", "psql", "-c", "select 1").code == 0
    assert at_database("db", "psql", "-v", "ON_ERROR_STOP=1", "-c", "select nonsense").code != 0


def test_version_and_help_need_no_database(pyengine: Any) -> None:
    """--version and --help answer at once."""
    assert pyengine("--version").out.startswith("pyengine ")
    assert "demo" in pyengine("--help").out


def test_help_says_where_a_password_belongs(pyengine: Any) -> None:
    """Into the environment: other users of the machine see options (F13)."""
    words = " ".join(re.sub(r"[^\w.:]", " ", pyengine("ps", "--help").out).split())
    assert "A password belongs into the environment" in words


def test_adopt_shows_what_would_run_and_asks(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A copy is named by status, with the command to type. That refuses to adopt without a question answered
    or --yes; a second call does nothing."""
    conn.execute("select durable.start('w', id => 'r')")
    conn.execute("update durable._site set system_identifier = 1")
    told = at_database("db", "status")
    assert "this database is a copy" in told.out and "pyengine db adopt" in told.err
    assert at_database("db", "status", "--json").document["site"]["state"] == "copy"
    refused = at_database("db", "adopt")
    assert refused.code == 2 and "runs: 1, 1 of them due, the oldest since" in refused.err
    assert "--yes" in refused.err
    answer = at_database("db", "adopt", "--yes", "--json").document
    assert (answer["adopted"], answer["leases"], answer["site"]["state"]) == (True, 0, "adopted")
    assert [(one["kind"], one["waiting"]) for one in answer["would_run"]] == [("runs", 1)]
    assert "no copy: nothing was done" in at_database("db", "adopt").out
