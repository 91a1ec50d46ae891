"""Folders, processes and users for the tests of the embedded Postgres: everything here is real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import psycopg
import pytest

from pyengine.doors.embedded.postmaster import read_postmaster
from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support.cluster import BASE

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0
USER = """
import sys
from pyengine.doors.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(sys.argv[1])
print(postgres.start(), flush=True)
for line in sys.stdin:
    print(postgres.stop(), flush=True)
"""


class UserProcess:
    """A Python process of its own that uses the server of a folder."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def read(self) -> str:
        """Wait for its next answer: the URL first, then what `stop` returned."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def stop(self) -> str:
        """Let it stop using the server; ``True`` if it was the last."""
        assert self.process.stdin is not None
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        """Let it end in an orderly way, without a word about the server."""
        self.process.communicate(timeout=LIMIT_S)

    def kill(self) -> None:
        """End it with kill -9."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person who runs the tests counts."""
    for name in ("PYENGINE_DATABASE_URL", "DATABASE_URL", "PYENGINE_DATA_DIR", "PYENGINE_PG_USER"):
        monkeypatch.delenv(name, raising=False)


def end_servers(folder: Path) -> None:
    """End the servers that a failed test left in a folder or a little below it."""
    for data in (*folder.glob("data"), *folder.glob("*/data"), *folder.glob("*/*/data")):
        if server := read_postmaster(data):
            os.kill(server.pid, signal.SIGQUIT)
            while read_postmaster(data) is not None:
                time.sleep(0.005)


@pytest.fixture(scope="session")
def spare() -> Iterator[Path]:
    """Where a data directory that was made once rests between the tests that use it."""
    folder = Path(tempfile.mkdtemp(prefix="pye-", dir=BASE))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def fresh_home() -> Iterator[Path]:
    """An empty folder, in which no server is left behind."""
    folder = Path(tempfile.mkdtemp(prefix="pye-", dir=BASE))
    yield folder
    end_servers(folder)
    shutil.rmtree(folder)


@pytest.fixture
def home(fresh_home: Path, spare: Path) -> Iterator[Path]:
    """A folder with data, in which is a table ``notes``, and without a server."""
    if not (spare / "data").exists():
        with EmbeddedPostgres(spare) as postgres, psycopg.connect(postgres.dsn) as connection:
            connection.execute("create table notes (word text)")
    (spare / "data").rename(fresh_home / "data")
    version = (fresh_home / "data" / "PG_VERSION").read_text()
    yield fresh_home
    end_servers(fresh_home)
    used = fresh_home / "data" / "PG_VERSION"
    if used.exists() and used.read_text() == version:
        used.parent.rename(spare / "data")


@pytest.fixture
def move_below(home: Path) -> Iterator[Callable[[str], Path]]:
    """Move the data of ``home`` to a folder below it, until the test is over."""
    moved = home

    def move(name: str) -> Path:
        nonlocal moved
        moved = home / name
        moved.mkdir(parents=True)
        os.chmod(home, 0o711)
        (home / "data").rename(moved / "data")
        return moved

    yield move
    end_servers(moved)
    (moved / "data").rename(home / "data")


@pytest.fixture
def user_process(home: Path) -> Iterator[Callable[[], UserProcess]]:
    """Start processes that use the server of ``home``."""
    started: list[UserProcess] = []

    def start() -> UserProcess:
        started.append(UserProcess(home))
        assert started[-1].read().startswith("postgresql://")
        return started[-1]

    yield start
    for each in started:
        each.kill()


def gone_soon(condition: Callable[[], bool]) -> bool:
    """Wait for something that happens by itself."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Wait, within a generous limit, for something that happens by itself."""
    return gone_soon


@pytest.fixture(scope="session")
def plain_user() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code as a user who is not root, with arguments and environment of its own."""
    packages = {str(ROOT), str(Path(platformdirs.__file__).parents[1])}
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ}
    switch = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}

    def run(code: str, *args: str, python: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        said: subprocess.CompletedProcess[str] = subprocess.run(
            [python or chosen, "-c", code, *args],
            env=env | more,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            **switch,  # type: ignore[call-overload]
        )
        return said

    for chosen in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}", "/usr/bin/python3"):
        try:
            if run("import pyengine.doors.embedded", python=chosen).returncode == 0:
                return run
        except OSError:
            continue
    pytest.skip("no interpreter that a plain user can run")
