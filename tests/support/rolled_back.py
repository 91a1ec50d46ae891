"""Fixtures of folders whose tests need no commit: every test runs in a transaction that is rolled back.

What lives here: `conn` and `clock` for tests of one session, in place of those of the suite, which make a
database for each test; the `conftest.py` of such a folder imports them. A test that needs commits or a second
session asks for `dsn` and connects by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clock import Clock
from tests.support.laboratory import ClockInside, transaction_of
from tests.support.verbs import Connection

__all__ = ["clock", "conn"]


@pytest.fixture
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction; before it is rolled back, durable.check() must be empty."""
    with transaction_of(request) as connection:
        yield connection


@pytest.fixture
def clock(conn: Connection) -> Clock:
    """The database's clock, standing still until the test moves it, for this transaction."""
    return ClockInside(conn)
