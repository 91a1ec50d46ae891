"""Settlements that break a law are reported."""

from __future__ import annotations

from tests.support.verbs import (
    Connection,
    begin_run,
    fail,
    report,
    take_turn,
)


def test_a_failed_run_that_does_not_say_how_is_reported(conn: Connection) -> None:
    """A settlement that leaves both columns out breaks a law."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, end=fail()))
    with conn.transaction(force_rollback=True):
        conn.execute("update durable._promises set failure = null, failed_at = null")
        assert conn.execute("select law from durable.check()").fetchall() == [
            ("failed_run_says_how_and_when",)
        ]
