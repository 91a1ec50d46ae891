"""Law: a part of an upgrade waits for locks within bounds, and is tried again only for what passes."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, cast

import psycopg
import pytest

from pyengine.core.process import clock
from pyengine.doors.admin import migration_batches
from pyengine.doors.admin.migration_locks import Limits, Patience, _holders
from pyengine.doors.admin.migration_parts import Part, Segment

DEADLOCK_S = 0.2
BLOCK_S = 0.25
STATEMENT_S = 0.004
"""How long each statement takes."""


class Server:
    """A server on which nothing happens but that time passes; the first tries meet a lock.

    Args:
        monkeypatch: for the clock.
        refuses: how many tries.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: int = 0) -> None:
        self.now_s, self.refuses = 0.0, refuses
        self.ran: list[str] = []
        self.waits_ms: list[list[int]] = []
        self.pauses_s: list[float] = []
        monkeypatch.setattr(clock, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(clock, "pause", self.pauses_s.append)

    def transaction(self) -> Self:
        """Begin a try."""
        self.waits_ms.append([])
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def execute(self, text: bytes | str, given: object = None) -> Self:
        """Run a statement."""
        words = text.decode() if isinstance(text, bytes) else text
        if words.startswith("set local lock_timeout = "):
            self.waits_ms[-1].append(int(words.rpartition(" ")[2]))
        elif words.startswith("alter"):
            self.now_s += STATEMENT_S
            if len(self.waits_ms) <= self.refuses:
                raise psycopg.errors.LockNotAvailable
        self.ran.append(words)
        return self

    def fetchone(self) -> tuple[float]:
        """Answer the deadlock timeout."""
        return (DEADLOCK_S,)

    def fetchall(self) -> list[tuple[object, ...]]:
        """Answer that nobody is in the way."""
        return []


def part(phase: str, texts: list[str], ahead: int = 0) -> Part:
    """A part of these statements."""
    return Part(phase=cast("Any", phase), segments=tuple(Segment(text=one) for one in texts), ahead=ahead)


def run(server: Server, part: Part) -> None:
    """Run a part with all the patience that it needs."""
    Patience(Limits(wait_s=1e9, block_s=BLOCK_S)).run(cast("Any", server), part)


def test_the_statements_of_a_try_wait_for_one_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has used up the next ones do not have: others are behind all that is locked already."""
    server = Server(monkeypatch)
    run(server, part("expand", [f"alter table durable.t{n} set (fillfactor = 90);" for n in range(4)]))
    (waits,) = server.waits_ms
    assert [waits[0] - one for one in waits] == [n * STATEMENT_S * 1000 for n in range(4)]


@pytest.mark.parametrize(("phase", "most_s"), [("expand", BLOCK_S), ("logic", 0.8 * DEADLOCK_S)])
def test_a_try_blocks_others_within_bounds(
    monkeypatch: pytest.MonkeyPatch, phase: str, most_s: float
) -> None:
    """The bound grows up to what was asked for. A part with many locks ends its tries before the server looks
    for a deadlock. After each try there is a pause, and what locks nothing ran once.
    """
    server = Server(monkeypatch, refuses=30)
    ahead = "create function durable.f() returns integer language sql as 'select 1';"
    run(server, part(phase, [ahead, "alter table durable.t set (fillfactor = 90);"], ahead=1))
    bounds_ms = [waits[0] for waits in server.waits_ms]
    assert len(bounds_ms) == 31
    assert bounds_ms == sorted(bounds_ms) and bounds_ms[0] < bounds_ms[-1] == int(most_s * 1000)
    assert len(server.pauses_s) == 30 and 0 < min(server.pauses_s) <= max(server.pauses_s) <= 1
    assert sum(one.startswith("create function") for one in server.ran) == 1


class Backfill(Server):
    """A server on which each batch of a backfill meets a lock once, and takes a while then."""

    BATCHES, TAKES_S = 5, 0.5

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.batches = 0
        self.rowcount = 0
        monkeypatch.setattr(clock, "pause", self.pause)

    def pause(self, seconds: float) -> None:
        """Let a pause pass."""
        self.pauses_s.append(seconds)
        self.now_s += 0.6

    def execute(self, text: bytes | str, given: object = None) -> Self:
        """Run a statement."""
        if b"update" in (text if isinstance(text, bytes) else text.encode()):
            if len(self.waits_ms) % 2 == 1:
                raise psycopg.errors.LockNotAvailable
            self.now_s += self.TAKES_S
            self.batches += 1
            self.rowcount = self.BATCHES - self.batches
        return self


def test_each_batch_has_its_own_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill that goes on is not given up, however often it met a lock; it rests as long as it works."""
    server = Backfill(monkeypatch)
    filling = part("backfill", ["update durable.t set a = 1;", "select 1;"])
    migration_batches.fill(cast("Any", server), filling, Limits(wait_s=1.0), None)
    assert server.batches == Backfill.BATCHES
    assert server.pauses_s[1::2] == pytest.approx([Backfill.TAKES_S] * (Backfill.BATCHES - 1))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (psycopg.errors.LockNotAvailable, True),
        (psycopg.errors.DeadlockDetected, True),
        (psycopg.errors.QueryCanceled, False),
        (psycopg.errors.UniqueViolation, False),
        (psycopg.OperationalError, False),
    ],
)
def test_what_is_tried_again(error: type[psycopg.Error], passes: bool) -> None:
    """A lock of others passes, and so does a deadlock with them."""
    assert Patience(Limits()).covers(error()) is passes


def test_the_holder_of_now_is_named(dsn: str) -> None:
    """Each try looks anew, though it is in the same transaction as those before."""
    with psycopg.connect(dsn) as upgrade, psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        for holder in (first, second):
            holder.execute("lock table durable._schedules in share mode")
            named = _holders(upgrade, "_schedules")
            assert [one.partition(" (")[0] for one in named] == [f"pid {holder.info.backend_pid}"]
            holder.rollback()


def test_an_index_leaves_the_session_as_it_was(direct: str) -> None:
    """The limits of the session are its own again, those of its role among them."""
    index = part("index", ["create index boxes on durable._schedules (id);", "select 1;"])
    options = "-c lock_timeout=7s -c statement_timeout=8s"
    shown = "select current_setting('lock_timeout'), current_setting('statement_timeout')"
    with psycopg.connect(direct, autocommit=True, options=options) as conn:
        migration_batches.index(conn, index, Limits(wait_s=1.0))
        assert conn.execute(shown).fetchone() == ("7s", "8s")
