"""One database for the whole folder; every test, and within the traces every trace, is rolled back.

What lives here: `conn` and `clock` in place of the suite's. A test that needs a second session asks
for `dsn`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest

from tests.sql.conftest import ClockInside
from tests.support.clock import Clock
from tests.support.cluster import Server, installed_database
from tests.support.verbs import Connection


@pytest.fixture(scope="session")
def archive(server: Server) -> Iterator[str]:
    """URL of a database with the schema, into which nothing is ever committed."""
    name = f"archive_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    with installed_database(server, name) as url:
        yield url


@pytest.fixture
def conn(request: pytest.FixtureRequest, archive: str) -> Iterator[Connection]:
    """A connection within a transaction; before it is rolled back, durable.check() must be empty."""
    with psycopg.connect(archive) as connection:
        yield connection
        if request.node.get_closest_marker("unlawful") is None:
            broken = connection.execute("select * from durable.check()").fetchall()
            assert not broken, "durable.check() after the test:\n" + "\n".join(map(str, broken))
        connection.rollback()


@pytest.fixture
def clock(conn: Connection) -> Clock:
    """The database's clock, standing still until the test moves it, for this transaction."""
    return ClockInside(conn)
