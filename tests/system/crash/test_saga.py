"""A run that fails is undone to its end, and tried again, however its workers end."""

from __future__ import annotations

import time
from contextlib import ExitStack

import psycopg
import pytest

from tests.system.crash import effects
from tests.system.crash.processes import kill, until, worker

RUNS = 4
DONE_AND_UNDONE = [0, 1, 2, 2, 1, 0]


@pytest.fixture(params=[1, pytest.param(20, marks=pytest.mark.full)])
def kills(request: pytest.FixtureRequest) -> int:
    """How many workers are killed."""
    return int(request.param)


def test_everything_is_undone_in_order(dsn: str, kills: int) -> None:
    """Each of two attempts did three things and undid them in reverse order; no step that was recorded ran
    again.
    """
    effects.prepare(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn, ExitStack() as stack:
        ids = [f"trip-{n}" for n in range(RUNS)]
        conn.execute(
            "select durable.start_many('travel', array_fill('[]'::jsonb, array[%s]), ids => %s)", (RUNS, ids)
        )
        for _ in range(kills):
            victim = stack.enter_context(worker(dsn, job="tests.system.crash.saga_job:app"))
            until(dsn, "select count(*) > 0 from durable._workers")
            time.sleep(0.9)
            kill(victim)
        stack.enter_context(worker(dsn, job="tests.system.crash.saga_job:app"))
        until(dsn, "select bool_and(state = 'failed') from durable.runs")
        journals = conn.execute(
            "select h.id, array_agg(durable._data(j)::integer order by j.seq) from durable._executions h "
            "join durable._journal j using (execution, bucket) where durable._completes_step(j.type) "
            "group by h.id, h.execution"
        ).fetchall()
        assert conn.execute("select count(*) from durable.check()").fetchone() == (0,)
    assert sorted(row[0] for row in journals) == sorted(ids * 2)
    assert all(row[1] == DONE_AND_UNDONE for row in journals), journals
    assert effects.repeated(dsn) == []
