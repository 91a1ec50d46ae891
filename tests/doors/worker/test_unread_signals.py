"""Law: `why` tells of signals that a run left unread, as its worker does (core/worker/test_signals.py)."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.unread_signals import leave_unread


@pytest.mark.parametrize("how", ["returns", "fails", "begins again"])
def test_why_tells_of_signals_that_nobody_received(
    dsn: str, conn: psycopg.Connection[tuple[object, ...]], how: str
) -> None:
    """However the run ended."""
    _, said = leave_unread(dsn, conn, how)
    causes = conn.execute("select cause, sentence from durable.why('r')").fetchall()
    assert causes[1:] == [("unread", said)]
