"""Law: the heads of a database of 0.1.0 keep what they say when a column takes the place of another, the
table is not written anew, and a function of 0.1.0 that waited for the step does what it did.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from pyengine.core.sources import found
from pyengine.doors.admin import migrate
from tests.doors.schema.recorded_runs import load
from tests.support.barrier import Stage

COLUMNS = "id, workflow, workflow_version, bucket, next_seq, status, cancel_until"
HEAD = f"insert into durable._executions ({COLUMNS}) values (%s, 'w', '1', 1, 1, %s, %s)"
HEADS = "select id, status, cancel_until, last_at from durable._executions order by id"
NODE = "select pg_relation_filenode('durable._executions'), xmin from durable._executions where id = 'other'"
GRANT = "update durable._executions set cancel_until = %s where id = 'other'"
SWEEP = "select from durable._executions h where h.cancel_until is not null and h.cancel_until <= 7000"
# what the append of 0.1.0 did to a head, and its request of cancellation
ENDS = """create function durable._ends(p_id text) returns text language plpgsql as $$
declare
  v_head durable._executions;
begin
  select * into v_head from durable._executions h where h.id = p_id for no key update;
  update durable._executions h
  set next_seq = h.next_seq + 1, status = 'cancelled', cancel_until = null where h.id = p_id;
  update durable._executions h set status = 'cancelling', cancel_until = 9000 where h.id = 'other';
  return v_head.status || ' ' || v_head.id;
end $$"""


@pytest.fixture
def older(empty_database: Callable[[], str]) -> str:
    """A database of 0.1.0 with a run that is being cancelled, and another one; a view reads all columns."""
    dsn = empty_database()
    load(dsn, [])
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(HEAD.encode(), ("asked", "cancelling", 7000))
        conn.execute(HEAD.encode(), ("other", "running", None))
        conn.execute("create view durable.live as select * from durable._executions")
    return dsn


def test_a_grace_outlives_the_upgrade(older: str) -> None:
    """A run that is being cancelled has its grace, in an index and under the law; others have none."""
    with psycopg.connect(older, autocommit=True) as conn:
        before = conn.execute(NODE).fetchone()
        migrate.migrate(older)
        heads = [("asked", "cancelling", 7000, None), ("other", "running", None, None)]
        assert conn.execute(HEADS).fetchall() == heads
        assert conn.execute(NODE).fetchone() == before
        for broken in (-1, 5):
            with pytest.raises(errors.CheckViolation):
                conn.execute(GRANT, (broken,))
        conn.execute("set enable_seqscan = off")
        plan = conn.execute(f"explain {SWEEP}".encode()).fetchall()
        assert "executions_by_cancel_until" in str(plan)


def test_an_older_function_goes_on_after_the_step(older: str) -> None:
    """It knows the columns by names, each of which means what it meant; its session has plans from before."""
    step = (found().migrations / "0011_expand_executions_know_more.sql").read_text()
    with Stage(older) as stage:
        administrator, worker = stage.player("administrator"), stage.player("worker")
        worker.do(ENDS).rows()
        for _ in range(6):
            worker.begin()
            worker.do("select durable._ends('asked')").rows()
            worker.do("rollback").rows()
        administrator.begin()
        administrator.do(step).rows()
        waiting = worker.do("select durable._ends('asked')")
        assert waiting.blocked
        administrator.commit().rows()
        assert waiting.value() == "cancelling asked"
        heads = [("asked", "cancelled", None, None), ("other", "cancelling", 9000, None)]
        assert administrator.do(HEADS).rows() == heads
