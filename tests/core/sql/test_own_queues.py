"""Law: a start that names no queue goes to the queue that the workflow declares, as its last worker
registered it; without one, to default."""

from __future__ import annotations

from tests.support.verbs import Connection, ask

SCHEDULE = "select durable.schedule('s', '@daily', workflow => 'report', replace => {})"
V1 = "select durable.start_v1('report', '[]', {}, {}, null, '1', null, null, 0, '{{}}', '', true)"
STARTS = {
    "start": "select durable.start('report'{})",
    "a start that names its run": "select durable.start('report', id => 'i', key => 'k'{})",
    "a start of many": "select durable.start_many('report', array['[1]'::jsonb, '[2]']{})",
    "a start of many, one": "select durable.start_many('report', array['[1]'::jsonb]{})",
}


def hello(conn: Connection, queue: str | None, *, worker: str = "W") -> None:
    """Register a worker of workflow `report`, whose code declares this queue."""
    call = "select durable.worker_hello_v1(%s, '{default}', '{report}', '{1}', '{}', '{ab}', null, %s)"
    ask(conn, (call, (worker, [queue])))


def queue_of(conn: Connection, call: str) -> str:
    """The one queue of the runs that a call starts, which are not kept."""
    new = "select distinct queue from durable.live where execution > %s"
    with conn.transaction(force_rollback=True):
        (before,) = ask(conn, ("select coalesce(max(execution), 0) from durable._executions", ()))
        conn.execute(call.encode())
        ((queue,),) = conn.execute(new, (before,)).fetchall()
    return str(queue)


def test_starts_without_a_queue(conn: Connection) -> None:
    """All of them go where the workflow declares; a queue that is named is the queue."""
    hello(conn, "reports")
    assert {name: queue_of(conn, call.format("")) for name, call in STARTS.items()} == dict.fromkeys(
        STARTS, "reports"
    )
    assert queue_of(conn, V1.format("'r'", "null")) == queue_of(conn, V1.format("null", "'k'")) == "reports"
    for named in ("default", "other"):
        call = f", queue => '{named}'"
        assert {queue_of(conn, start.format(call)) for start in STARTS.values()} == {named}


def test_nothing_is_declared(conn: Connection) -> None:
    """Workflows without a queue, of another version, and unknown ones: queue default, as before."""
    assert queue_of(conn, "select durable.start('report')") == "default"
    hello(conn, None)
    assert {queue_of(conn, call.format("")) for call in STARTS.values()} == {"default"}
    hello(conn, "reports")
    assert queue_of(conn, "select durable.start('report', version => '2')") == "default"
    assert queue_of(conn, "select durable.start('repot', any_workflow => true)") == "default"


def test_the_last_worker_counts(conn: Connection) -> None:
    """Another worker may declare another queue, or none; people see it in the view. A run that exists is
    found again wherever it is."""
    for worker, queue in (("V", "reports"), ("W", "slow"), ("V", None)):
        hello(conn, queue, worker=worker)
        assert ask(conn, ("select queue from durable.workflows", ())) == (queue,)
        assert queue_of(conn, "select durable.start('report')") == (queue or "default")
    ask(conn, ("select durable.start('report', id => 'r')", ()))
    hello(conn, "late")
    # a worker of an older version says nothing of queues
    ask(conn, ("select durable.worker_hello_v1('X', '{default}', '{report}', '{1}', '{}', '{ab}')", ()))
    assert queue_of(conn, "select durable.start('report')") == "late"
    assert ask(conn, ("select durable.start('report', id => 'r')", ())) == ("r",)
    assert ask(conn, ("select queue from durable.runs", ())) == ("default",)
