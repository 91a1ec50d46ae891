"""Law: old attempts of a step whose rows somebody has locked stop no turn, and are removed later."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.support.verbs import Connection, ask, begin_run, broken, report, take_turn


@pytest.mark.parametrize("table", ["_journal", "_journal_values"])
def test_old_attempts_that_somebody_has_locked_are_removed_later(
    conn: Connection, dsn: str, table: str
) -> None:
    """A turn leaves all old attempts of a step where one row is locked, and they go with the next ones."""
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', null, '{ab}', null, null, 3)", ()))
    held = begin_run(conn, "r")

    def fail(first: int, last: int) -> None:
        for attempt in range(first, last + 1):
            error = json.dumps({"type": "Oops", "own": [str(attempt) * 9_000, attempt]})
            outcome = {**broken(0, attempt=attempt, retry_in=0), "error": error}
            (seen,) = ask(conn, ("select next_seq from durable._executions", ()))
            if attempt == 1:
                outcome["retry"] = '{"max_attempts": null}'
            assert take_turn(conn, "W", report(held, seen=seen, outcomes=[outcome])).of(held)[0] == "ok"

    attempts = "select count(distinct attempt) from durable._journal where child = 0"
    fail(1, 19)
    with psycopg.connect(dsn) as user:
        user.execute(f"select from durable.{table} for update".encode())
        conn.execute("set statement_timeout = '20s'")
        fail(20, 20)
        conn.execute("reset statement_timeout")
    assert ask(conn, (attempts, ())) == (20,)
    fail(21, 30)
    assert ask(conn, (attempts, ())) == (11,)
