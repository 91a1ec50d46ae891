"""Law: a pause grows to its ceiling and stays there, however often nothing happened."""

from __future__ import annotations

import pytest

from tests.support.verbs import NEVER, Connection, ask

ROUNDS = 12_000


def test_a_pause_grows_by_its_factor(conn: Connection) -> None:
    """Below the ceiling it is the power."""
    grown = "select array_agg(durable._backoff_ms(5, 5000, n, 4) order by n) from generate_series(0, 6) n"
    assert ask(conn, (grown, ())) == ([5, 20, 80, 320, 1280, 5000, 5000],)


@pytest.mark.parametrize(
    "pause",
    [
        *("durable._backoff_ms(1000, 3600000, n)", "durable._backoff_ms(5, 5000, n, 4)"),
        f"least(durable._backoff_ms({NEVER}, {NEVER}, n, 1000), 3600000)",
        *("durable._backoff_ms(1000, 3600000, n * 9000000000000)", "durable._backoff_ms(0, 5, n)"),
        "durable._pause_after_loss('a', n::integer)",
        "durable._pause_after_loss('a', 2147483647 - n::integer)",
    ],
)
def test_a_pause_is_never_above_its_ceiling(conn: Connection, pause: str) -> None:
    """Twelve thousand rounds, and counters at the end of their type."""
    least, most = ask(
        conn, (f"select min({pause}), max({pause}) from generate_series(0::bigint, {ROUNDS}) n", ())
    )
    assert 0 <= least <= most <= 3_600_000
