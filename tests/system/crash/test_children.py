"""A run that ends before its child runs, whose worker is killed meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
import pytest

from tests.system.crash.processes import kill, until, worker

JOB = "tests.system.crash.children_job:app"


@pytest.mark.full
def test_the_end_waits_for_the_child_at_another_worker(dsn: str) -> None:
    """The parent's code has ended and its child cleans up, as their worker is killed: another one ends the
    child and then the parent, once each, with what its code returned."""
    with psycopg.connect(dsn, autocommit=True) as conn, ExitStack() as stack:
        victim = stack.enter_context(worker(dsn, job=JOB))
        until(dsn, "select count(*) > 0 from durable._workflows where name = 'parent'")
        conn.execute("select durable.start('parent', id => 'p')")
        until(dsn, "select count(*) > 0 from durable.runs where id = 'p.0' and state = 'waiting'")
        conn.execute("select durable.signal('p', 'end', 'true')")
        until(dsn, "select count(*) > 0 from durable._promises where id = 'p.0.1' and state = 'pending'")
        until(dsn, "select state = 'waiting' from durable.runs where id = 'p'")
        kill(victim)
        conn.execute("select durable.resolve('p.0.1', 'null')")
        stack.enter_context(worker(dsn, job=JOB))
        until(dsn, "select state = 'completed' from durable.runs where id = 'p'")
        ends = conn.execute(
            "select c.state, p.value_data, c.settled_at <= p.settled_at, "
            "(select count(*) from durable._journal j where j.execution = c.head "
            "and j.type = 'cancel_requested') "
            "from durable._promises p join durable._promises c on c.id = 'p.0' where p.id = 'p'"
        ).fetchall()
        assert ends == [("rejected_canceled", '"done"', True, 1)]
        assert conn.execute("select count(*) from durable.check()").fetchone() == (0,)
