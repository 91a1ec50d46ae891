"""A run whose steps each return the conversation so far takes the space of its messages, and survives."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from tests.system.crash import effects
from tests.system.crash.job import message
from tests.system.crash.processes import launch, start, stop

SIZES = [
    pytest.param(40, 15, id="40-turns"),
    pytest.param(400, 20, id="400-turns", marks=pytest.mark.full),
]
BYTES = """
select (select sum(pg_column_size(j)) from durable._journal j where j.execution = h.execution)
     + (select coalesce(sum(pg_column_size(v)), 0) from durable._journal_values v
        where v.execution = h.execution)
from durable._executions h where h.id = %s"""


def bytes_of(conn: psycopg.Connection, run: str) -> int:
    """The bytes that the journal of a run takes, with its large values."""
    row = conn.execute(BYTES.encode(), (run,)).fetchone()
    assert row is not None
    return int(row[0])


def is_over(conn: psycopg.Connection) -> bool:
    """Whether all runs have ended."""
    return conn.execute("select count(*) from durable.live").fetchone() == (0,)


@pytest.mark.parametrize(("turns", "deadly"), SIZES)
def test_a_conversation_takes_the_space_of_its_messages(
    dsn: str, turns: int, deadly: int, figures: Callable[[str, str], None]
) -> None:
    """Twice the turns leave at most 2.3 times the bytes. With a worker killed in every nth turn the
    answers are the same. People see every value, and a purge leaves nothing."""
    effects.prepare(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('max_crashes', '1000')")
        start(dsn, "half", "converse", f"[{turns // 2}, 0]")
        start(dsn, "whole", "converse", f"[{turns}, 0]")
        start(dsn, "killed", "converse", f"[{turns}, {deadly}]")
        lives = 0
        while not is_over(conn) and lives <= turns:
            lives += 1
            process = launch(dsn, "-m", "pyengine", "worker", "tests.system.crash.job:app")
            try:
                while process.poll() is None and not is_over(conn):
                    time.sleep(0.05)
            finally:
                stop(process)
        assert lives == turns // deadly + 1
        results = dict(conn.execute("select id, result from durable.runs").fetchall())
        assert results == {"half": 500 * turns, "whole": 1000 * turns, "killed": 1000 * turns}
        said = [message(turn) for turn in range(turns)]
        for run in ("whole", "killed"):
            values = conn.execute("select value from durable.steps where run = %s order by child", (run,))
            for number, (value,) in enumerate(values, 1):
                assert value == said[:number]
        half, whole = bytes_of(conn, "half"), bytes_of(conn, "whole")
        assert whole <= 2.3 * half
        conn.execute("select * from durable.purge('0 s')")
        assert conn.execute("select count(*) from durable._journal_values").fetchone() == (0,)
        assert conn.execute("select count(*) from durable._journal").fetchone() == (0,)
    figures(
        f"conversation-{turns}",
        f"{turns} turns that each return the conversation so far, 1 kB a message: {whole:,} bytes, half of "
        f"the turns {half:,}; {lives - 1} workers killed, the same answers",
    )
