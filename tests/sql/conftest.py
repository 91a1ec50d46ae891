"""One database for the whole folder: every test runs in a transaction that is rolled back.

What lives here: `conn` and `clock` for tests of one session, in place of those of the suite, which make a
database for each test.
A test that needs commits or a second session asks for `dsn` and connects by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.cluster import Server, installed_database
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
