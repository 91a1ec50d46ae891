"""One database for the whole folder: every test runs in a transaction that is rolled back.

What lives here: `conn` and `clock` for tests of one session, in place of those of the suite, which make a
database for each test; and for tests that count rows a `quiet` server, and a database that is `alone` there.
A test that needs commits or a second session asks for `dsn` and connects by itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.cluster import Cluster, Server, broken_laws, installed_database, make_folder
from tests.support.verbs import Connection

CLOCK = Path(__file__).parent.parent / "support" / "clock.sql"


class ClockInside(Clock):
    """The same clock within the test's own transaction."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        conn.execute(CLOCK.read_bytes())


@pytest.fixture(scope="session")
def laboratory(server: Server) -> Iterator[str]:
    """URL of a database with the schema, into which nothing is ever committed."""
    name = f"laboratory_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    with installed_database(server, name) as url:
        yield url


@pytest.fixture(scope="module")
def quiet() -> Iterator[Server]:
    """A server with nobody else on it, not even autovacuum: a writer in whatever database keeps rows in their
    pages that were removed elsewhere."""
    folder = make_folder()
    with Cluster(folder) as running:
        yield running.server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def alone(quiet: Server) -> Iterator[str]:
    """URL of the test's own database there, with the schema."""
    with installed_database(quiet, "alone") as url:
        yield url
        assert broken_laws(url) == []


@pytest.fixture
def conn(request: pytest.FixtureRequest, laboratory: str) -> Iterator[Connection]:
    """A connection within a transaction; before it is rolled back, durable.check() must be empty."""
    with psycopg.connect(laboratory) as connection:
        yield connection
        if request.node.get_closest_marker("unlawful") is None:
            broken = connection.execute("select * from durable.check()").fetchall()
            assert not broken, "durable.check() after the test:\n" + "\n".join(map(str, broken))
        connection.rollback()


@pytest.fixture
def clock(conn: Connection) -> Clock:
    """The database's clock, standing still until the test moves it, for this transaction."""
    return ClockInside(conn)
