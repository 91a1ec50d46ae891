"""Law: recording the result of a step logs a row and what it changes of two others, in a database that was
installed: the columns that an append writes stand side by side, because PostgreSQL logs all that lies
between the first and the last byte that an update changes.
"""

from __future__ import annotations

import psycopg

from tests.support.verbs import (
    Call,
    Connection,
    Held,
    ask,
    at_end,
    begin_run,
    done,
    report,
    start,
    take_turn,
    turn,
)

NAMED = "a-name-as-long-as-those-of-users"


def logged(conn: Connection, call: Call) -> int:
    """Bytes of WAL of a call, but for images of whole pages; the call has its effect."""
    explained = conn.execute(f"explain (analyze, wal, format json) {call[0]}".encode(), call[1]).fetchone()
    assert explained is not None
    plan = explained[0][0]["Plan"]
    return -1 if plan["WAL FPI"] else int(plan["WAL Bytes"])


def least(conn: Connection, held: list[Held]) -> int:
    """Bytes of WAL of a turn with a result of each run: the least of twenty, of which some split a page or
    prune one."""
    before = 1
    sizes = []
    for child in range(20):
        reports = [report(at_end(one, before), outcomes=[done(child)]) for one in held]
        sizes.append(logged(conn, turn("W", *reports)))
        before += 3
    return min(size for size in sizes if size > 0)


def test_a_result_logs_what_it_changes(alone: str) -> None:
    """One result alone: two locks 108 bytes, the row and its key some 180, the head below 100."""
    with psycopg.connect(alone, autocommit=True) as conn:
        assert least(conn, [begin_run(conn, NAMED)]) < 400


def test_results_of_many_runs_log_what_they_change(alone: str) -> None:
    """Of a hundred runs in a turn."""
    runs = 100
    with psycopg.connect(alone, autocommit=True) as conn:
        for number in range(runs):
            ask(conn, start(f"{NAMED}-{number}", queue="q"))
        held = take_turn(conn, "W", want=runs, queues=["q"]).tasks
        assert len(held) == runs
        assert least(conn, held) < 400 * runs
