"""One run that ends every process that takes it."""

from __future__ import annotations

import psycopg
import pytest

from tests.system.crash.processes import launch, stop, until

SIZES = [
    pytest.param(40, 1, id="40-neighbours"),
    pytest.param(200, 5, id="200-neighbours", marks=pytest.mark.full),
]
WATCH = """
create table public.crashed (id text);
create function public.note_crash() returns trigger language plpgsql as
$$ begin insert into public.crashed values (new.id); return null; end $$;
create trigger note_crash after update of crashes on durable._tasks for each row
when (new.crashes > old.crashes) execute function public.note_crash();
"""


@pytest.mark.parametrize(("neighbours", "max_crashes"), SIZES)
def test_a_run_that_aborts_its_workers_dies_alone(dsn: str, neighbours: int, max_crashes: int) -> None:
    """It is dead after max_crashes; the runs that were claimed with it complete, and count no crash."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('max_crashes', %s)", (str(max_crashes),))
        conn.execute(WATCH)
        conn.execute(
            "select durable.start('neighbour', jsonb_build_array(n), id => 'n' || n, any_workflow => true) "
            "from generate_series(1, %s) n",
            (neighbours // 2,),
        )
        conn.execute("select durable.start('ends_it', id => 'abort', any_workflow => true)")
        conn.execute(
            "select durable.start('neighbour', jsonb_build_array(n), id => 'm' || n, any_workflow => true) "
            "from generate_series(1, %s) n",
            (neighbours - neighbours // 2,),
        )
        worker = launch(dsn, "-m", "pyengine", "worker", "tests.system.crash.abort_job:app")
        lost = 0
        try:
            while conn.execute("select state from durable.runs where id = 'abort'").fetchone() != ("dead",):
                if worker.poll() is not None:
                    lost += 1
                    assert lost <= 2 * (max_crashes + 2), "it ends its workers for ever"
                    worker = launch(dsn, "-m", "pyengine", "worker", "tests.system.crash.abort_job:app")
                conn.execute("select pg_sleep(0.05)")
            until(dsn, "select count(*) = %s from durable.runs where state = 'completed'", neighbours)
        finally:
            stop(worker)
        crashed = conn.execute("select id, count(*) from public.crashed group by 1").fetchall()
    assert crashed == [("abort", max_crashes + 1)]
