"""Law: people read every object in one row, in their words, with payloads as JSON and instants as
timestamps."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    begun,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    fail,
    promise,
    report,
    run,
    settle,
    start,
    suspend,
    take,
    take_turn,
    tick,
    timer,
)

STATES = {
    "scheduled",
    "queued",
    "running",
    "waiting",
    "halted",
    "completed",
    "failed",
    "timed_out",
    "cancelled",
}


def test_every_state_of_a_run(conn: Connection, clock: Clock) -> None:
    """A run is in one of nine states, each told by what is stored."""
    ask(conn, start("scheduled", delay="1 h"))
    ask(conn, start("timed_out", timeout="1 ms"))
    for name in ("queued", "completed", "failed", "cancelled"):
        ask(conn, start(name))
    clock.advance(1)
    tick(conn)
    begin_run(conn, "running")
    waiting = begin_run(conn, "waiting")
    answer = take_turn(conn, "W", report(waiting, commands=[promise(0)]))
    take_turn(conn, "W", report(waiting, end=suspend(0), seen=answer.next_of(waiting)))
    begin_run(conn, "halted")
    ask(conn, ("select durable.task_halt('halted')", ()))
    ask(conn, settle("completed"))
    ask(conn, settle("failed", state="rejected"))
    ask(conn, settle("cancelled", state="rejected_canceled"))
    rows = conn.execute("select id, state from durable.runs").fetchall()
    assert {state for _, state in rows} == STATES
    assert all(id_ == state for id_, state in rows), rows
    assert sorted(rows) == sorted(conn.execute("select id, state from durable.newest").fetchall())
    counted = conn.execute("select state, runs from durable.counts").fetchall()
    assert sorted(counted) == sorted((state, 1) for state in STATES)
    ended = {"completed", "failed", "timed_out", "cancelled"}
    live = conn.execute("select state from durable.live").fetchall()
    assert {state for (state,) in live} == STATES - ended
    failed = conn.execute("select state from durable.failed").fetchall()
    assert {state for (state,) in failed} == ended - {"completed"}


def test_newest_has_the_rows_of_runs(conn: Connection, clock: Clock) -> None:
    """Both views say the same of each run, in every column, live or ended, child or parent, also of a run
    that continued as new."""
    held = begin_run(conn, "r", args='["x"]')
    answer = take_turn(conn, "W", report(held, commands=[run(0, param='{"n": 1}'), timer(1, 50)]))
    take_turn(conn, "W", report(held, end=suspend(0, 1), seen=answer.next_of(held)))
    for id_, end in (("c", complete('"v"')), ("f", fail()), ("again", continue_as_new())):
        take_turn(conn, "W", report(begin_run(conn, id_), end=end))
    for id_, state in (("x", "rejected_canceled"), ("y", "resolved")):
        ask(conn, start(id_, key=id_))
        ask(conn, settle(id_, state=state))
    clock.advance(2000)
    order = "order by execution desc"
    newest = conn.execute("select n::text from durable.newest n").fetchall()
    assert len(newest) == 7
    assert newest == conn.execute(f"select r::text from durable.runs r {order}".encode()).fetchall()


def test_a_run_in_one_row(conn: Connection, clock: Clock) -> None:
    """Input, result, error, who runs it, what it waits for, its parent and its age."""
    held = begin_run(conn, "r", args='["x"]')
    answer = take_turn(conn, "W", report(held, commands=[run(0, param='{"n": 1}'), timer(1, 50)]))
    take_turn(conn, "W", report(held, end=suspend(0, 1), seen=answer.next_of(held)))
    clock.advance(2000)
    row = ask(
        conn,
        (
            "select args, waits_for, events, children, queue, extract(epoch from age) from "
            "durable.runs where id = 'r'",
            (),
        ),
    )
    assert row == (["x"], ["child run w [0]", "timer [1]"], 4, 2, "q-r", 2)
    assert ask(conn, ("select parent, args, state from durable.runs where id = 'r.0'", ())) == (
        "r",
        {"n": 1},
        "queued",
    )
    ask(conn, settle("r", '{"type": "Boom"}', state="rejected"))
    row = ask(conn, ("select result, error, worker, waits_for from durable.runs where id = 'r'", ()))
    assert row == (None, {"type": "Boom"}, None, [])


def test_promises_and_steps(conn: Connection) -> None:
    """Every promise is in one view once: runs, timers and external ones in one, in the other steps, whose
    promise is their journal row."""
    held = begin_run(conn, "r")
    take_turn(
        conn, "W", report(held, outcomes=[done(0, '"v"'), begun(1)], commands=[promise(2), timer(3, 9)])
    )
    ask(conn, create("free"))
    ask(conn, create("over"))
    ask(conn, settle("over", '"v"'))
    rows = conn.execute(
        "select id, state, value, owner, child, timer, external from durable.promises order by id"
    ).fetchall()
    assert rows == [
        ("free", "pending", None, None, None, False, False),
        ("over", "resolved", "v", None, None, False, False),
        ("r", "pending", None, None, None, False, True),
        ("r.2", "pending", None, "r", 2, False, True),
        ("r.3", "pending", None, "r", 3, True, True),
    ]
    steps = conn.execute(
        "select run, child, id, name, state, value from durable.steps order by id"
    ).fetchall()
    assert steps == [
        ("r", 0, "r.0", "step", "resolved", "v"),
        ("r", 1, "r.1", "step", "pending", None),
    ]


def test_timers_of_ended_runs_are_left_out(conn: Connection) -> None:
    """Nobody waits for a timer once its run has ended; what somebody may still answer is shown (C083)."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0), timer(1, 9)], end=complete()))
    rows = "select id, state from durable.promises order by id"
    assert conn.execute(rows).fetchall() == [("r", "resolved"), ("r.0", "pending")]
    # the timer is there, and settles in its time
    assert conn.execute("select state from durable._promises where timer").fetchall() == [("pending",)]


def test_tasks_show_the_fulfilled(conn: Connection, clock: Clock) -> None:
    """Tasks of settled promises, whose rows are gone, are shown as fulfilled at their last version."""
    for name in ("live", "over"):
        take(conn, name)
    ask(conn, create("x", external="true"))
    ask(conn, ("select durable.promise_register_callback('x', 'live')", ()))
    ask(conn, settle("x"))
    ask(conn, settle("over"))
    rows = conn.execute(
        "select id, state, version, queue, pid, ttl, resumes from durable.tasks order by id"
    ).fetchall()
    assert rows == [
        ("live", "acquired", 1, "g", "P", TTL_MS, 1),
        ("over", "fulfilled", 1, "g", None, None, 0),
    ]


def test_payloads_that_are_no_json_stay_visible(conn: Connection) -> None:
    """Base64 of another codec is shown as a string, and no view fails over it."""
    ask(conn, ("select durable.promise_create('p', 9007199254740991, 'aGVsbG8=')", ()))
    ask(conn, settle("p", "not json"))
    assert ask(conn, ("select param, value from durable.promises", ())) == ("aGVsbG8=", "not json")
    begin_run(conn, "r")
    ask(conn, settle("r", "not json either"))
    assert ask(conn, ("select result from durable.runs", ())) == ("not json either",)
    events = conn.execute("select payload from durable.journal_events where id = 'r' order by seq").fetchall()
    assert events[-1] == ({"result": "not json either"},)
    deep = "[" * 200_000
    ask(conn, ("select durable.promise_create('deep', 9007199254740991, '1')", ()))
    # no door takes it any more, but it may have come in before
    conn.execute("update durable._promises set param_data = %s where id = 'deep'", (deep,))
    assert ask(conn, ("select param from durable.promises where id = 'deep'", ())) == (deep,)


@pytest.mark.parametrize(
    "view", ["runs", "newest", "live", "failed", "counts", "promises", "steps", "tasks", "journal_events"]
)
def test_views_of_nothing(conn: Connection, view: str) -> None:
    """An empty installation has empty views."""
    assert conn.execute(f"select * from durable.{view}".encode()).fetchall() == []


def test_a_child_claimed_twice_in_the_journal(conn: Connection, clock: Clock) -> None:
    """Attempts of a child run are numbered in its parent's journal, with what ended the first."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[run(0, queue="kids")]))
    take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    claim(conn, "A", "kids")
    clock.advance(TTL_MS)
    tick(conn)
    claim(conn, "B", "kids")
    rows = conn.execute(
        "select event, attempt from durable.journal_events where id = 'r' and promise_id = 'r.0' order by seq"
    ).fetchall()
    assert rows == [
        ("InvokeScheduled", None),
        ("InvokeStarted", 1),
        ("InvokeRetrying", 1),
        ("InvokeStarted", 2),
    ]
