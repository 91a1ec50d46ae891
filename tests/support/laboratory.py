"""A database into which nothing is ever committed, and the one session in which tests follow each other.

What lives here: `Laboratory`, and the clock of a test within its transaction. Each test is a transaction that
is rolled back, so the next one finds the schema as it was. The session stays: a new one would read the
catalogue and compile every function again, which is most of what a small test costs. May not: tests that
commit, or that need a second session (`dsn`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.support.clock import SOURCE, Clock
from tests.support.cluster import laws_of
from tests.support.verbs import Connection

# a function that a test calls directly plans its statements once, as below an entry point
AS_ENTRY_POINTS = "-c plan_cache_mode=force_generic_plan"
Scene = Callable[[Connection], None]
# a process whose next test was taken over by another one ends no file, and so no scene, before the end of all
IDLE_S = 2.0


class Laboratory:
    """The session of the tests.

    Args:
        url: the database, which has the schema and which nobody else writes to.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._conn: Connection | None = None
        self._scene: Scene | None = None
        self._idle: threading.Timer | None = None

    @contextmanager
    def transaction(self, *, lawful: bool = True, scene: Scene | None = None) -> Iterator[Connection]:
        """A transaction that is rolled back; if `lawful`, durable.check() must be empty before.

        A scene is made in it, once for all tests of a file with that scene that follow each other.
        """
        self._expect_no_end()
        conn = self._begun(scene)
        try:
            yield conn
            broken = laws_of(conn) if lawful else []
            assert not broken, "durable.check() after the test:\n" + "\n".join(map(str, broken))
        finally:
            if scene is None:
                conn.rollback()
            else:
                conn.execute("rollback to scene")
                self._idle = threading.Timer(IDLE_S, self._roll_back_scene)
                self._idle.start()

    def _begun(self, scene: Scene | None) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn, self._scene = psycopg.connect(self.url, options=AS_ENTRY_POINTS), None
        if self._scene is not scene:
            self._conn.rollback()
            if scene is not None:
                scene(self._conn)
                self._conn.execute("savepoint scene")
            self._scene = scene
        return self._conn

    def end_scene(self) -> None:
        """Roll back: as long as it is there, others on the server wait that ask whether anybody writes."""
        self._expect_no_end()
        self._roll_back_scene()

    def _expect_no_end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle.join()
            self._idle = None

    def _roll_back_scene(self) -> None:
        if self._scene is not None and self._conn is not None and not self._conn.closed:
            self._conn.rollback()
        self._scene = None

    def close(self) -> None:
        """End the session."""
        self._expect_no_end()
        if self._conn is not None:
            self._conn.close()


@contextmanager
def transaction_of(request: pytest.FixtureRequest, scene: Scene | None = None) -> Iterator[Connection]:
    """The transaction of one test, with a clock that stands still if the test asks for `clock` or a scene."""
    is_still = scene is not None or "clock" in request.fixturenames
    name = "laboratory_at_rest" if is_still else "laboratory"
    laboratory: Laboratory = request.getfixturevalue(name)
    if scene is not None:
        file = request.node.getparent(pytest.Module)
        file.addfinalizer(laboratory.end_scene)
    lawful = request.node.get_closest_marker("unlawful") is None
    with laboratory.transaction(lawful=lawful, scene=scene) as conn:
        yield conn


class ClockInside(Clock):
    """The clock that stands still, moved by the session of the test; a laboratory has it already."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        if conn.execute("select to_regclass('test_clock.instant')").fetchone() == (None,):
            conn.execute(SOURCE.read_bytes())
