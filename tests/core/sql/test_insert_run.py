"""Law: one statement inserts a whole run or nothing (sql/logic/core/50_runs/21_insert_run.sql)."""

from __future__ import annotations

from tests.support.verbs import Connection, ask, begin_run, create, dump

TABLES = ("_promises", "_executions", "_journal", "_tasks")
IDLE = "(null::durable._idle_workers)"
W = "(select i from durable._idle_workers i)"


INSERT = """
    select durable._insert_run(
      row('w', '[1]', '[1]', null, %s, 'q', '1', null, 1000, 5, '{}', '', true)::durable._start_request,
      %s, durable._next_execution(), <worker>, durable._now_ms())
"""


def insert(conn: Connection, run: str, key: str | None = None, worker: str = IDLE) -> bool:
    """Whether the run was inserted."""
    return bool(ask(conn, (INSERT.replace("<worker>", worker), (key, run)))[0])


def test_a_run_is_four_rows(conn: Connection) -> None:
    """Promise, head, first journal row and task belong together."""
    assert insert(conn, "new", key="k")
    rows = dump(conn, TABLES)
    (promise,), (head,), (event,), (task,) = (rows[table] for table in TABLES)
    assert promise["head"] == head["execution"] == event["execution"] == task["execution"]
    assert (promise["id"], head["id"], task["id"], head["key"]) == ("new", "new", "new", "k")
    assert (task["state"], task["version"], task["pid"], task["attempt_open"]) == ("pending", 0, None, False)


def test_a_run_may_be_claimed_from_its_birth(conn: Connection) -> None:
    """With an idle worker the task is acquired, as a claim leaves it."""
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', null, '{ab}')", ()))
    conn.execute(
        "insert into durable._idle_workers"
        " (worker, number, address, queues, digests, ttl, idle_until, synchronous_commit)"
        " select w.id, w.number, 'durable_to_' || repeat('a', 32) || ':' || repeat('b', 32), '{q}', '{}',"
        " 500, 1, 'on'"
        " from durable._workers w"
    )
    assert insert(conn, "new", worker=W)
    ((task,),) = dump(conn, ("_tasks",)).values()
    assert (task["state"], task["version"], task["pid"], task["ttl"]) == ("acquired", 1, "W", 500)
    assert (task["attempt"], task["attempt_open"], task["retry_at"]) == (1, True, None)
    conn.execute("delete from durable._idle_workers")


def test_nothing_is_written_beside_what_exists(conn: Connection) -> None:
    """An id that is a promise's, or a key that is a run's: false, and all rows are as they were."""
    ask(conn, create("p"))
    begin_run(conn, "run", key="k")
    before = dump(conn, TABLES)
    workflow = ask(conn, ("select workflow from durable._executions", ()))[0]
    conn.execute("update durable._executions set workflow = 'w'")
    for run, key in (("p", None), ("run", None), ("p", "k"), ("new", "k")):
        assert not insert(conn, run, key=key), (run, key)
    conn.execute("update durable._executions set workflow = %s", (workflow,))
    assert dump(conn, TABLES) == before
