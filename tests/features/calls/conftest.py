"""One database for the tests of one session in this folder, as in tests/core/sql: each is rolled back."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.features.calls.scene import Scene
from tests.support.clock import Clock
from tests.support.laboratory import ClockInside, transaction_of
from tests.support.verbs import Connection


@pytest.fixture
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction; before it is rolled back, durable.check() must be empty. A test that
    commits or has other sessions asks for `dsn` and connects by itself."""
    with transaction_of(request) as connection:
        # begun, so that a block of the test is a savepoint and commits nothing
        connection.execute("select")
        yield connection


@pytest.fixture
def clock(conn: Connection) -> Clock:
    """The database's clock, standing still until the test moves it, for this transaction."""
    return ClockInside(conn)


@pytest.fixture
def scene(conn: Connection, clock: Clock) -> Scene:
    """Three scopes and no call, for one session; time stands still."""
    made = Scene(conn)
    made.scope("s", "t", "u")
    return made


@pytest.fixture
def open_scene(session: Connection) -> Scene:
    """Three scopes and no call, in a database for several sessions; time passes."""
    made = Scene(session)
    made.scope("s", "t", "u")
    return made


@pytest.fixture
def race_s(request: pytest.FixtureRequest) -> float:
    """How long sessions race at least."""
    return 6.0 if request.config.getoption("--full") else 1.0


@pytest.fixture
def ends_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends what adapters have left when the test ends, however it does: all of it runs below its folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    for folder in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if os.readlink(folder).startswith(f"{tmp_path}/"):
                os.kill(int(folder.parent.name), signal.SIGKILL)
