"""A clock that stands still until a test moves it."""

from __future__ import annotations

from pathlib import Path

import psycopg

SOURCE = Path(__file__).parent / "clock.sql"
START_MS = 1_800_000_000_000


class Clock:
    """The instant of the test's database, in milliseconds since the epoch; starts at 1,800,000,000,000."""

    def __init__(self, dsn: str) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        if self._conn.execute("select to_regclass('test_clock.instant')").fetchone() == (None,):
            self._conn.execute(SOURCE.read_bytes())
        self.set(START_MS)

    def close(self) -> None:
        """Close the connection; the clock stays replaced, the database is dropped anyway."""
        self._conn.close()

    @property
    def now_ms(self) -> int:
        """What durable._now_ms() answers."""
        row = self._conn.execute("select now_ms from test_clock.instant").fetchone()
        assert row is not None
        return int(row[0])

    def set(self, now_ms: int) -> int:
        """Jump to an instant, also backwards; returns it."""
        self._conn.execute("update test_clock.instant set now_ms = %s", (now_ms,))
        return now_ms

    def advance(self, ms: int) -> int:
        """Move by so many milliseconds; returns the new instant."""
        return self.set(self.now_ms + ms)
