"""A database into which nothing is ever committed, and the one session in which tests follow each other.

What lives here: `Laboratory`, and the clock of a test within its transaction. Each test is a transaction that
is rolled back, so the next one finds the schema as it was. The session stays: a new one would read the
catalogue and compile every function again, which is most of what a small test costs. May not: tests that
commit, or that need a second session (`dsn`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.support.clock import SOURCE, Clock
from tests.support.verbs import Connection


class Laboratory:
    """The session of the tests.

    Args:
        url: the database, which has the schema and which nobody else writes to.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._conn: Connection | None = None

    @contextmanager
    def transaction(self, *, lawful: bool = True) -> Iterator[Connection]:
        """A transaction that is rolled back; if `lawful`, durable.check() must be empty before."""
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self.url)
        conn = self._conn
        try:
            yield conn
            broken = conn.execute("select * from durable.check()").fetchall() if lawful else []
            assert not broken, "durable.check() after the test:\n" + "\n".join(map(str, broken))
        finally:
            conn.rollback()

    def close(self) -> None:
        """End the session."""
        if self._conn is not None:
            self._conn.close()


@contextmanager
def transaction_of(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """The transaction of one test, with a clock that stands still if the test asks for `clock`."""
    name = "laboratory_at_rest" if "clock" in request.fixturenames else "laboratory"
    laboratory: Laboratory = request.getfixturevalue(name)
    lawful = request.node.get_closest_marker("unlawful") is None
    with laboratory.transaction(lawful=lawful) as conn:
        yield conn


class ClockInside(Clock):
    """The clock that stands still, moved by the session of the test; a laboratory has it already."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        if conn.execute("select to_regclass('test_clock.instant')").fetchone() == (None,):
            conn.execute(SOURCE.read_bytes())
