"""Folders that can be used, folders that cannot, and what people are told about them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import psycopg
import pytest

from pyengine.doors.embedded.binaries import Binaries, find_binaries, server_account
from pyengine.doors.embedded.postmaster import read_postmaster
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.errors import EmbeddedPostgresError

FAST = {"fsync": "off"}
USE = (
    "import sys, subprocess; from pyengine.doors.embedded import EmbeddedPostgres\n"
    "with EmbeddedPostgres(sys.argv[1] if sys.argv[1:] else None, {'fsync': 'off'}) as p:\n"
    "    print(p.data_dir, subprocess.run(p.psql_command() + ' -XAtc \"select 42\"', shell=True,\n"
    "          capture_output=True, text=True).stdout)\n"
)
Run = Callable[..., CompletedProcess[str]]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def mode(folder: Path) -> int:
    """The permissions of a folder."""
    return stat.S_IMODE(folder.stat().st_mode)


@as_root
def test_roots_default_folder_just_works(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, without naming a folder, the server starts, and its folder is not its user's to change."""
    monkeypatch.setattr("pyengine.doors.embedded.server._ROOT_DATA_DIR", fresh_home / "new" / "pyengine")
    os.chmod(fresh_home, 0o755)
    with EmbeddedPostgres(settings=FAST) as postgres, psycopg.connect(postgres.dsn):
        assert postgres.data_dir == fresh_home / "new" / "pyengine"
        assert (postgres.data_dir.owner(), mode(postgres.data_dir)) == ("root", 0o755)
        assert (mode(postgres.data_dir / "data"), mode(postgres.data_dir / "run")) == (0o700, 0o700)
    before = os.umask(0o077)
    monkeypatch.setattr("pyengine.doors.embedded.server._ROOT_DATA_DIR", fresh_home / "narrow")
    try:
        with EmbeddedPostgres(settings=FAST) as postgres, psycopg.connect(postgres.dsn):
            assert mode(postgres.data_dir) == 0o700
    finally:
        os.umask(before)


@as_root
def test_root_gets_an_error_for_a_folder_below_a_closed_one(fresh_home: Path) -> None:
    """A folder below one that the server's user cannot enter is an error; the one above stays closed."""
    account = server_account(fresh_home / "data")
    assert account is not None
    with pytest.raises(EmbeddedPostgresError) as caught:
        EmbeddedPostgres(fresh_home / "below" / "deeper").start()
    for text in (
        f"{fresh_home}/below/deeper cannot",
        f"cannot enter {fresh_home} (mode 700",
        repr(account.name),
    ):
        assert text in str(caught.value)
    for text in ("PYENGINE_DATA_DIR", "PYENGINE_DATABASE_URL"):
        assert text in str(caught.value)
    assert (mode(fresh_home), fresh_home.owner()) == (0o700, "root")


@as_root
def test_root_never_gives_away_a_folder_with_other_things(fresh_home: Path) -> None:
    """A closed folder that holds anything but ours keeps its owner and permissions, and is an error."""
    (fresh_home / "letters").mkdir()
    with pytest.raises(EmbeddedPostgresError, match="cannot enter"):
        EmbeddedPostgres(fresh_home).start()
    assert (mode(fresh_home), fresh_home.owner()) == (0o700, "root")


@as_root
def test_root_shares_the_server_of_a_plain_user(fresh_home: Path, plain_user: Run) -> None:
    """Root serves a plain user's folder as that user, who can go on with it afterwards."""
    os.chown(
        fresh_home, *(getattr(__import__("pwd").getpwnam("nobody"), each) for each in ("pw_uid", "pw_gid"))
    )
    assert plain_user(USE, str(fresh_home)).stdout.split() == [str(fresh_home), "42"]
    with EmbeddedPostgres(fresh_home, FAST) as postgres, psycopg.connect(postgres.dsn):
        assert (fresh_home / "run").owner() == "nobody"
    assert plain_user(USE, str(fresh_home)).stdout.split() == [str(fresh_home), "42"]


def test_a_plain_users_default_folder_just_works(fresh_home: Path, plain_user: Run) -> None:
    """Without naming a folder, a user who is not root has his data below his home, closed to others."""
    if os.geteuid() == 0:
        os.chown(fresh_home, __import__("pwd").getpwnam("nobody").pw_uid, -1)
    said = plain_user(USE, HOME=str(fresh_home))
    folder, answer = said.stdout.split()
    assert answer == "42", said.stderr
    assert fresh_home in Path(folder).parents
    assert mode(Path(folder)) == 0o700


@pytest.mark.parametrize("kind", ["not his", "read only", "a file"])
def test_a_plain_user_gets_an_error_for_an_unusable_folder(
    kind: str, fresh_home: Path, plain_user: Run
) -> None:
    """A folder that cannot be made or written is an error that names it, the user, and two ways out."""
    os.chmod(fresh_home, 0o755)
    folder = fresh_home / "pyengine"
    if kind == "a file":
        folder.write_text("")
    elif kind == "read only":
        folder.mkdir(mode=0o555)
    elif os.geteuid() != 0:
        folder = Path("/pyengine")
    said = plain_user(USE, str(folder))
    assert said.returncode == 1
    last = said.stderr.splitlines()[-1]
    for text in ("EmbeddedPostgresError", f"The data folder {folder} cannot be used", "this process runs as"):
        assert text in last
    for text in ("PYENGINE_DATA_DIR", "PYENGINE_DATABASE_URL"):
        assert text in last


@as_root
def test_a_plain_user_is_shown_the_owner_of_the_folder(home: Path, plain_user: Run) -> None:
    """A folder that root already uses is no folder for others, and they are told so."""
    with EmbeddedPostgres(home, FAST):
        os.chmod(home, 0o755)
        owner = home.owner()
        if owner == "nobody":
            pytest.skip("needs a third user")
        assert f"the folder belongs to '{owner}'" in plain_user(USE, str(home)).stderr


def test_data_of_another_version_are_an_error_and_stay(home: Path) -> None:
    """The error names both versions and where fitting programs are; nothing is changed."""
    ours = find_binaries()
    (home / "data" / "PG_VERSION").write_text("17\n")
    before = {str(each): each.stat().st_mtime_ns for each in (home / "data").rglob("*")}
    with pytest.raises(EmbeddedPostgresError) as caught:
        EmbeddedPostgres(home).start()
    for text in (
        "were made by Postgres 17",
        f"are Postgres {ours.version}",
        "PYENGINE_PG_BIN=",
        "Nothing was changed",
    ):
        assert text in str(caught.value)
    assert {str(each): each.stat().st_mtime_ns for each in (home / "data").rglob("*")} == before
    (home / "data" / "PG_VERSION").write_text(f"{ours.major}\n")
    with EmbeddedPostgres(home, FAST) as postgres, psycopg.connect(postgres.dsn):
        pass


def test_a_folder_named_data_that_is_no_data_stays(fresh_home: Path) -> None:
    """Somebody else's folder in the place of the data is an error, never overwritten."""
    (fresh_home / "data").mkdir()
    (fresh_home / "data" / "letter").write_text("dear")
    with pytest.raises(EmbeddedPostgresError, match="is no data directory of Postgres"):
        EmbeddedPostgres(fresh_home).start()
    assert (fresh_home / "data" / "letter").read_text() == "dear"


def test_a_server_that_does_not_start_shows_its_log(home: Path) -> None:
    """The last lines of the log are in the error, not those of earlier servers; then a good start works."""
    with EmbeddedPostgres(home, FAST):
        pass
    with pytest.raises(EmbeddedPostgresError) as caught:
        EmbeddedPostgres(home, {"shared_buffers": "nonsense"}).start()
    assert 'invalid value for parameter "shared_buffers": "nonsense"' in str(caught.value)
    assert "shut down" not in str(caught.value)
    assert str(home / "postgres.log") in str(caught.value)
    assert read_postmaster(home / "data") is None
    with EmbeddedPostgres(home, FAST) as postgres, psycopg.connect(postgres.dsn):
        pass


def test_an_initdb_that_fails_shows_its_log(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What initdb said is in the error, and the next start is not hindered by what it left."""
    real = EmbeddedPostgres(fresh_home, FAST)
    version = find_binaries().version
    failing = Binaries(bin_dir=fresh_home / "bin", source="test", version=version)
    monkeypatch.setattr(
        "pyengine.doors.embedded.postmaster.reachable_binaries", lambda found, path, account: failing
    )
    os.chmod(fresh_home, 0o755)
    failing.bin_dir.mkdir()
    (failing.bin_dir / "initdb").write_text("#!/bin/sh\necho the disk is full >&2; exit 1\n")
    (failing.bin_dir / "initdb").chmod(0o755)
    with pytest.raises(EmbeddedPostgresError, match="the disk is full"):
        real.start()
    monkeypatch.undo()
    with EmbeddedPostgres(fresh_home, FAST) as postgres, psycopg.connect(postgres.dsn):
        pass
