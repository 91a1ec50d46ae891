"""Which database is meant, and in which folder the embedded one keeps its data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyengine.doors.embedded.server import database_url, default_data_dir
from pyengine.errors import EmbeddedPostgresError

ONE, TWO, THREE = (f"postgresql://someone:secret@db{n}.example:5432/engine" for n in (1, 2, 3))


def test_the_order_is_argument_then_our_variable_then_the_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument counts more than PYENGINE_DATABASE_URL, and that more than DATABASE_URL."""
    monkeypatch.setenv("DATABASE_URL", THREE)
    assert (database_url().url, database_url().source) == (THREE, "DATABASE_URL")
    monkeypatch.setenv("PYENGINE_DATABASE_URL", TWO)
    assert (database_url().url, database_url().source) == (TWO, "PYENGINE_DATABASE_URL")
    assert (database_url(ONE).url, database_url(ONE).source) == (ONE, "argument")


def test_without_any_url_the_embedded_server_is_chosen(tmp_path: Path) -> None:
    """Nothing set means the embedded server, in the named folder or the usual one."""
    target = database_url(data_dir=tmp_path)
    assert (target.embedded, target.url, target.source, target.data_dir) == (True, None, "embedded", tmp_path)
    assert database_url().data_dir == default_data_dir()


def test_a_url_counts_more_than_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A URL that is set counts even if a folder is named."""
    monkeypatch.setenv("DATABASE_URL", ONE)
    target = database_url(data_dir=tmp_path)
    assert not target.embedded
    assert target.data_dir is None


@pytest.mark.parametrize("name", ["PYENGINE_DATABASE_URL", "DATABASE_URL"])
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("postgresql://db/engine\n", "white space"),
        ("host=db dbname=engine", "white space"),
        ("db.example:5432/engine", "postgresql://"),
        ("mysql://db/engine", "postgresql://"),
        ("postgresql+asyncpg://db/engine", "postgresql://"),
        ("postgresql:/db/engine", "postgresql://"),
        ("postgresql://db:port/engine", "host or port"),
        ("postgresql://db:99999/engine", "host or port"),
        ("postgresql://::1/engine", "host or port"),
    ],
)
def test_a_wrong_url_is_an_error_and_not_the_embedded_server(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str, reason: str
) -> None:
    """A URL that is set but wrong is named, explained, and never replaced."""
    monkeypatch.setenv(name, url)
    with pytest.raises(EmbeddedPostgresError, match=reason) as caught:
        database_url()
    assert name in str(caught.value)
    assert "postgresql://user:password@host:5432/database" in str(caught.value)


def test_a_wrong_argument_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a good URL in the environment takes the place of a wrong argument."""
    monkeypatch.setenv("DATABASE_URL", ONE)
    with pytest.raises(EmbeddedPostgresError, match="is empty"):
        database_url("")


def test_an_error_never_repeats_the_url() -> None:
    """A password does not get into logs by way of an error."""
    with pytest.raises(EmbeddedPostgresError) as caught:
        database_url("postgresql://someone:secret@db:port/engine")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgres:///engine",
        "postgresql://postgres@/postgres?host=/tmp/some%20where&port=5432",
        "postgresql://one:5432,two:5433/engine?target_session_attrs=primary",
        "postgresql://[::1]:5432/engine",
        "postgresql://user%40corp:p%40ss@db/engine",
        "postgresql://db:/engine",
    ],
)
def test_every_form_that_the_drivers_take_is_taken(url: str) -> None:
    """Socket folders, several hosts, IPv6 and missing parts are no errors."""
    assert database_url(url).url == url


def test_the_usual_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PYENGINE_DATA_DIR names the folder; set but empty it is an error."""
    monkeypatch.setenv("PYENGINE_DATA_DIR", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.setenv("PYENGINE_DATA_DIR", "")
    with pytest.raises(EmbeddedPostgresError, match="PYENGINE_DATA_DIR is set but empty"):
        default_data_dir()


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uid that has no entry, as in containers, and no HOME: the folder would be called ~ (C097)."""
    for name in ("HOME", "XDG_DATA_HOME", "PYENGINE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(EmbeddedPostgresError, match=r"54321 has no home folder .* Set HOME or PYENGINE_"):
        database_url()
    assert database_url(ONE).url == ONE


def test_a_python_without_pwd_and_fcntl_takes_a_url() -> None:
    """Both are for the embedded server; some builds of Python have none (C097)."""
    code = (
        "import sys; sys.modules['fcntl'] = sys.modules['pwd'] = None\n"
        "from pyengine.doors.embedded.binaries import server_account, user_name\n"
        "from pyengine.doors.embedded import database_url\n"
        f"assert database_url({ONE!r}).url and user_name(7) == '7'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_folder_of_root_does_not_depend_on_his_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root's default is the same folder whatever HOME says; others have it in theirs."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    before = default_data_dir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == before == Path("/var/lib/pyengine")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert tmp_path in default_data_dir().parents
