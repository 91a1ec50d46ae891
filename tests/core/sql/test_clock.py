"""Law: instants are whole milliseconds of the database clock, and one number means never."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.clock import Clock
from tests.support.verbs import NEVER, Connection, ask


def test_now_is_the_database_clock(conn: Connection) -> None:
    """The engine's instant lies between two readings of the server's clock."""
    before, now, after = ask(
        conn,
        (
            "select floor(extract(epoch from clock_timestamp()) * 1000), durable._now_ms(), "
            "ceil(extract(epoch from clock_timestamp()) * 1000)",
            (),
        ),
    )
    assert before <= now <= after


def test_tests_can_stop_it(conn: Connection, clock: Clock) -> None:
    """A test that replaces the one function that reads a clock has stopped time."""
    assert ask(conn, ("select durable._now_ms()", ())) == (clock.now_ms,)
    later = clock.advance(5)
    assert ask(conn, ("select durable._now_ms()", ())) == (later,)


@pytest.mark.parametrize(
    ("span", "instant"),
    [
        (None, NEVER),
        (0, 1_001),
        (-5, 1_001),
        (1, 1_001),
        (500, 1_500),
        (NEVER, NEVER),
        (2**63 - 1, NEVER),
    ],
)
def test_later(conn: Connection, span: int | None, instant: int) -> None:
    """A deadline lies at least a millisecond ahead and at most at never, whatever span was asked for."""
    assert ask(conn, ("select durable._later(1000, %s)", (span,))) == (instant,)


def test_people_read_timestamps(conn: Connection) -> None:
    """Milliseconds become timestamptz; never becomes null."""
    assert ask(conn, ("select durable._at(1500)", ()))[0] == datetime(
        1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC
    )
    assert ask(conn, ("select durable._at(%s)::text", (NEVER,))) == (None,)


@pytest.mark.parametrize(("span", "ms"), [("1.5 s", 1500), ("2 days", 172_800_000), ("1 mon", 2_592_000_000)])
def test_spans(conn: Connection, span: str, ms: int) -> None:
    """Intervals are milliseconds; a month counts 30 days."""
    assert ask(conn, ("select durable._ms(%s)", (span,))) == (ms,)


def test_weeks(conn: Connection) -> None:
    """A journal bucket is a week since the epoch."""
    assert ask(conn, ("select durable._week(604799999), durable._week(604800000)", ())) == (0, 1)
