"""Law: `durable.why` walks to the last cause, names the sessions that hold a run, says nothing of what it
cannot know, and writes nothing.
"""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.stages import suspended
from tests.support.verbs import (
    Connection,
    adopt,
    ask,
    begin_run,
    create,
    promise,
    receive,
    refusal,
    report,
    run,
    start,
    suspend,
    take_turn,
    timer,
)
from tests.support.why import hello, why


@pytest.fixture
def committed(session: Connection) -> Connection:
    """A session whose statements are committed one by one."""
    return session


def test_the_session_that_holds_a_run(committed: Connection, stage: Stage) -> None:
    """A user's open transaction that has signalled a run is named, with its process, state and application;
    so is one that has settled a promise that the run waits for.
    """
    held = begin_run(committed, "r")
    commands = [promise(0), promise(1)]
    take_turn(committed, "W", report(held, commands=commands, end=suspend(0, 1), seen=held.next))
    user = stage.player("user")
    user.do("set application_name to 'console'").rows()
    (pid,) = user.do("select pg_backend_pid()").rows()[0]
    user.begin()
    user.do("select durable.resolve('r.1', '1')").rows()
    found = [row for row in why(committed) if row[2] == "locked"]
    assert {row[1] for row in found} == {"r", "r.1"}
    held_by = rf"is held by pid {pid} \(idle in transaction, console, \d+ (ms|s)\)"
    assert re.fullmatch(held_by, found[0][3]), found
    user.rollback().rows()
    assert [row[2] for row in why(committed)] == ["promise", "unsettled"] * 2


def test_a_copy_that_was_not_adopted(conn: Connection, clock: Clock) -> None:
    """The first cause of all that waits in a copy; what has ended is not delayed by it."""
    ask(conn, start("r"))
    ask(conn, create("over", external="true"))
    ask(conn, ("select durable.resolve('over', '1')", ()))
    conn.execute("set local durable.site = 'copy'")
    assert [row[2] for row in why(conn)] == ["not_adopted", "no_worker"]
    assert why(conn)[0][3].endswith("type: pyengine db adopt")
    assert [row[2] for row in why(conn, "over")] == ["resolved"]


def test_a_worker_is_gone_when_nobody_has_its_lock(committed: Connection, direct: str) -> None:
    """Without waiting for a tick; the lock that a tick takes for a moment is not that of the worker."""
    ask(committed, hello())
    begin_run(committed, "r")
    (number,) = ask(committed, ("update durable._workers set present = true returning number", ()))
    with psycopg.connect(direct, autocommit=True) as presence:
        for take, give, cause in (
            ("pg_advisory_lock", "pg_advisory_unlock", "running"),
            ("pg_advisory_lock_shared", "pg_advisory_unlock_shared", "worker_gone"),
        ):
            presence.execute(f"select {take}(1685417570, {number})".encode())
            assert [row[2] for row in why(committed)] == [cause]
            presence.execute(f"select {give}(1685417570, {number})".encode())
    assert [row[2] for row in why(committed)] == ["worker_gone"]


def test_two_waits_for_one_promise(conn: Connection, clock: Clock) -> None:
    """The cause of a promise stands below each run that waits for it."""
    ask(conn, create("p", external="true"))
    child = begin_run(conn, "child")
    answer = take_turn(conn, "W", report(child, commands=[adopt(0, "p")]))
    take_turn(conn, "W", report(child, end=suspend(0), seen=answer.next_of(child)))
    suspended(conn, adopt(0, "p"), adopt(1, "child"), kind="all")
    assert [row[:3] for row in why(conn)] == [
        (0, "r", "promise"),
        (1, "p", "unsettled"),
        (0, "r", "run"),
        (1, "child", "promise"),
        (2, "p", "unsettled"),
    ]


def test_the_groups_of_all_runs(conn: Connection, clock: Clock) -> None:
    """Runs by cause and name, the most frequent first, each with the run that has waited longest."""
    for id_ in ("a", "b"):
        held = begin_run(conn, id_)
        answer = take_turn(conn, "W", report(held, commands=[receive(0, "approve")]))
        end = suspend(0, kind="signal")
        take_turn(conn, "W", report(held, end=end, seen=answer.next_of(held)))
        clock.advance(1000)
    ask(conn, start("c"))
    clock.advance(2000)
    rows = conn.execute("select cause, name, runs, example, sentence from durable.why_all()").fetchall()
    assert rows == [
        ("signal", "approve", 2, "a", "waits for signal approve since 4 s"),
        ("no_worker", "default", 1, "c", "no worker runs; w is queued in default since 2 s"),
    ]
    assert conn.execute("select sum(runs) from durable.why_all(at_most => 1)").fetchone() == (1,)


@pytest.mark.parametrize(
    "call", ["why('')", "why(null)", "why('r', 0)", "why('r', null)", "why_all(0)", "why_all(null)"]
)
def test_refused_arguments(conn: Connection, call: str) -> None:
    """An empty id and a limit that is none are refused."""
    assert refusal(conn, (f"select * from durable.{call}", ())) == "WF004"


def test_it_writes_nothing(committed: Connection) -> None:
    """A transaction that only reads may ask, and draws no transaction number."""
    suspended(committed, run(0, queue="kids"), timer(1, 5000), promise(2))
    with committed.transaction():
        committed.execute("set transaction read only")
        assert [row[2] for row in why(committed)] == ["promise", "unsettled", "child", "no_worker"]
        assert committed.execute("select sum(runs) from durable.why_all()").fetchone() == (2,)
        assert committed.execute("select pg_current_xact_id_if_assigned()").fetchone() == (None,)
