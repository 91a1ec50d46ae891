"""Two or three sessions, step by step: every interleaving of small programs, without a single sleep that
decides anything.

A `Stage` holds `Player` sessions, each a thread with its own connection, and an observer. A step is done as
soon as its statement has returned **or** its backend waits for a lock that another backend holds;
pg_blocking_pids() tells. So a test says "A locks, B is blocked by A, A commits, B goes on" and neither
speed of the machine nor order of threads matters.

    with Stage(dsn) as stage:
        a, b = stage.player("a"), stage.player("b")
        a.begin()
        a.do("select durable.resolve('p')")
        waiting = b.do("select durable.reject('p')")
        assert waiting.blocked
        a.commit()
        assert waiting.value() is ...
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg

T = TypeVar("T")
LIMIT_S = 30.0
POLL_S = 0.002


class Step:
    """One statement of a player: done, failed, or waiting for somebody's lock."""

    def __init__(self, future: Future[list[tuple[Any, ...]]], *, blocked: bool) -> None:
        self._future = future
        self.blocked = blocked

    @property
    def done(self) -> bool:
        """Whether the statement has returned by now, with rows or with an error."""
        return self._future.done()

    @property
    def error(self) -> BaseException | None:
        """The statement's error, or None; waits for its end."""
        return self._future.exception(LIMIT_S)

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows; waits for the end and raises the statement's error."""
        return self._future.result(LIMIT_S)

    def value(self) -> Any:
        """First column of the first row, or None."""
        rows = self.rows()
        return rows[0][0] if rows else None


class Player:
    """A session of its own. Steps follow each other: the next may be given when the last has returned."""

    def __init__(self, stage: Stage, name: str, dsn: str) -> None:
        self.name = name
        self._stage = stage
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"player-{name}")
        self._conn = psycopg.connect(dsn, autocommit=True, application_name=f"player {name}")
        self.pid = self._conn.info.backend_pid
        self._last: Future[list[tuple[Any, ...]]] | None = None

    def do(self, query: str, parameters: Sequence[Any] = ()) -> Step:
        """Start a statement; come back when it has returned or waits for a lock."""
        assert self._last is None or self._last.done(), f"{self.name} is still in its last step"
        future = self._last = self._thread.submit(self._run, query, parameters)
        return Step(future, blocked=self._stage.settles_blocked(self.pid, future))

    def begin(self) -> None:
        """Open a transaction (read committed, like every caller of the engine)."""
        self.do("begin").rows()

    def commit(self) -> Step:
        """Commit; also ends a step of this player that was blocked when its turn comes."""
        return self.do("commit")

    def rollback(self) -> Step:
        """Undo the open transaction."""
        return self.do("rollback")

    def close(self) -> None:
        """End the session, whatever it is doing."""
        if self._last is not None and not self._last.done():
            self._conn.cancel_safe(timeout=LIMIT_S)
            wait([self._last], timeout=LIMIT_S)
        self._thread.shutdown()
        self._conn.close()

    def _run(self, query: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        cursor = self._conn.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


class Stage:
    """All players of one test and the observer who sees which of them wait."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._observer = psycopg.connect(dsn, autocommit=True, application_name="observer")
        self._players: list[Player] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for player in self._players:
            player.close()
        self._observer.close()

    def player(self, name: str) -> Player:
        """A new session."""
        player = Player(self, name, self._dsn)
        self._players.append(player)
        return player

    def blockers(self, pid: int) -> list[int]:
        """Backends for which this one waits; empty if it does not wait."""
        row = self._observer.execute("select pg_blocking_pids(%s)", (pid,)).fetchone()
        assert row is not None
        return list(row[0])

    def settles_blocked(self, pid: int, future: Future[Any]) -> bool:
        """Wait until the statement has returned (False) or is blocked by another backend (True)."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if wait([future], timeout=POLL_S).done:
                return False
            if self.blockers(pid):
                return True
        raise TimeoutError(f"backend {pid} neither returned nor waits for a lock after {LIMIT_S} s")


def interleavings(*programs: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Every order in which the steps of the programs can follow each other, each program in its own order."""
    if not any(programs):
        yield ()
        return
    for index, program in enumerate(programs):
        if program:
            rest = [other[1:] if place == index else other for place, other in enumerate(programs)]
            for tail in interleavings(*rest):
                yield (program[0], *tail)
