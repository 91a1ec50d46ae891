"""The load of 5,000 readings: its worker is killed in the middle, and each row is there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from tests.examples.etl.app import BATCH
from tests.system.crash.processes import environment, kill, until, worker

ITEMS = 5_000
APP = "tests.examples.etl.app:app"
Connection = psycopg.Connection[tuple[Any, ...]]


def test_every_item_is_loaded_once_with_live_progress(dsn: str, conn: Connection, tmp_path: Path) -> None:
    """A worker dies after some batches; the next one loads the rest. The program beside them shows numbers
    that grow, up to the last.
    """
    conn.execute("create table raw_reading (id bigint primary key, celsius text not null)")
    conn.execute("create table reading (id bigint primary key, kelvin float8 not null)")
    conn.execute(
        "insert into raw_reading select n, case when n %% 100 = 0 then 'broken' else (n %% 40)::text end "
        "from generate_series(1, %s) n",
        (ITEMS,),
    )
    shown = tmp_path / "shown"
    with worker(dsn, job=APP) as first, shown.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.examples.etl.load", str(ITEMS)],
            env=environment(dsn),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            until(dsn, "select count(*) >= %s from reading", 2 * BATCH)
            kill(first)
            (left,) = conn.execute("select %s - count(*) from reading", (ITEMS,)).fetchone() or (0,)
            with worker(dsn, job=APP):
                assert program.wait(120) == 0, shown.read_text()
        finally:
            program.kill()
            program.wait()
    assert left > 0
    *progress, report = shown.read_text().splitlines()
    counts = [int(line.split()[0]) for line in progress]
    assert counts == sorted(counts) and counts[0] < counts[-1] == ITEMS
    assert report == f"Report(loaded={ITEMS - ITEMS // 100}, rejected={ITEMS // 100})"
    assert conn.execute("select count(*), sum(kelvin::numeric) from reading").fetchone() == (
        conn.execute(
            "select count(*), sum(round(celsius::numeric + 273.15, 2)) from raw_reading "
            "where celsius <> 'broken'"
        ).fetchone()
    )
