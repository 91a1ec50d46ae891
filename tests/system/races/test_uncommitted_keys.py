"""Law: a key that a user's open transaction has inserted or deleted stops only what needs that very key. No
turn, claim, tick or hello waits for it but for a moment; a verb of another user may wait.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.doors.protocol.v0_calls import callback
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    claim,
    create,
    report,
    start,
    take_turn,
    tick,
    timer,
)

MANY = 1001
"""Ids of a start that does not lock each of them."""


@pytest.fixture
def conn(session: Connection) -> Connection:
    """A session that gives up what it would have to wait for."""
    session.execute("set lock_timeout = '400ms'")
    return session


def hello(conn: Connection, worker: str, *workflows: str, digest: str = "ab") -> Any:
    """A worker comes, with these workflows."""
    many = [list(workflows), ["1"] * len(workflows), "{}", [digest] * len(workflows)]
    return ask(conn, ("select durable.worker_hello_v1(%s, '{q}', %s, %s, %s, %s)", (worker, *many)))[0]


def known(conn: Connection) -> list[tuple[str, str]]:
    """Workflows that workers have announced, with the digests of their code."""
    return conn.execute("select name, encode(digest, 'hex') from durable._workflows order by 1").fetchall()


# -- hellos


@pytest.mark.session("the user's transaction")
def test_a_hello_does_not_wait_for_another(dsn: str, conn: Connection) -> None:
    """A user has called the hello of a worker and not committed. Another worker with the same workflow comes,
    and announces its other workflows; runs of all of them can be started; its hello names the user, and after
    the rollback it announces the rest.
    """
    hello(conn, "first", "old")
    with psycopg.connect(dsn) as user:
        hello(user, "U", "a", "m", "old")
        answer = hello(conn, "W", "a", "b", "m", "old")
        assert (answer["unannounced"], len(answer["codes"])) == (["a", "m"], 4)
        assert [one["pid"] for one in answer["holders"]] == [user.info.backend_pid]
        assert known(conn) == [("b", "ab"), ("old", "ab")]
        for name in ("a", "b", "m"):
            ask(conn, start(f"run-{name}", workflow=name))
        with pytest.raises(psycopg.Error, match="workflow"):
            ask(conn, start("run-x", workflow="x"))
        user.rollback()
    answer = hello(conn, "W", "a", "b", "m", "old")
    assert (answer["unannounced"], answer["holders"]) == ([], [])
    assert [name for name, _ in known(conn)] == ["a", "b", "m", "old"]


@pytest.mark.parametrize("row", ["for update", "deleted"])
@pytest.mark.session("the user's transaction")
def test_a_locked_workflow_is_announced_later(dsn: str, conn: Connection, row: str) -> None:
    """A hello whose workflow somebody has locked or deleted says that its new code is not noted yet."""
    hello(conn, "first", "w")
    with psycopg.connect(dsn) as user:
        user.execute(
            "delete from durable._workflows"
            if row == "deleted"
            else "select from durable._workflows for update"
        )
        answer = hello(conn, "W", "w", digest="cd")
        assert answer["unannounced"] == ["w"]
        assert [one["pid"] for one in answer["holders"]] == [user.info.backend_pid]
        user.commit()
    assert hello(conn, "W", "w", digest="cd")["unannounced"] == []
    assert known(conn) == [("w", "cd")]


@pytest.mark.session("the user's transaction")
def test_the_hello_of_a_worker_that_an_open_tick_forgets(dsn: str, conn: Connection, clock: Clock) -> None:
    """A user's open tick has deleted the row of a worker that was away. The worker comes back and waits for
    nothing; once the tick is committed its next hello writes the row again.
    """
    number = hello(conn, "W", "w")["number"]
    clock.advance(4_000_000)
    with psycopg.connect(dsn) as user:
        tick(user)
        assert ask(user, ("select count(*) from durable._workers", ())) == (0,)
        answer = hello(conn, "W", "w")
        assert (answer["number"], answer["registered"]) == (number, False)
        user.commit()
    answer = hello(conn, "W", "w")
    assert (answer["number"] > number, answer["registered"]) == (True, True)


# -- ids


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_promise_below_a_run_that_begins(dsn: str, conn: Connection, outcome: str) -> None:
    """A user creates g.0 and does not commit; g is started meanwhile. The start waits, as verbs do; other
    starts and turns do not. The run never makes a child with an id that is taken.
    """
    other = begin_run(conn, "other")
    with psycopg.connect(dsn) as user:
        ask(user, create("g.0", external="true"))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ask(conn, start("g", queue="g"))
        many = "select count(*) from durable.start_many('w', array_fill('[]'::jsonb, array[%s]), ids => %s)"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ask(conn, (many, (MANY, ["g", *(f"many-{n}" for n in range(MANY - 1))])))
        ask(conn, start("free"))
        assert take_turn(conn, "W", report(other, commands=[timer(0, 10)])).of(other)[0] == "ok"
        getattr(user, outcome)()
    if outcome == "rollback":
        ask(conn, start("g", queue="g"))
        held = claim(conn, "W", "g")
        assert take_turn(conn, "W", report(held, commands=[timer(0, 10)])).of(held)[0] == "ok"
    else:
        with pytest.raises(psycopg.Error, match="would be descendants"):
            ask(conn, start("g", queue="g"))


# -- callbacks of the older API


@pytest.mark.session("the user's transaction")
@pytest.mark.parametrize("is_known", [False, True])
def test_a_callback_does_not_wait_for_another(
    dsn: str, conn: Connection, clock: Clock, is_known: bool
) -> None:
    """A user has registered a callback and not committed: others are registered, and run out in time."""
    for number in range(4):
        ask(conn, create(f"x{number}"))
        ask(conn, create(f"t{number}", target="poll://any@g"))
    if is_known:
        ask(conn, callback("c0", awaited="x0", root="t0", timeout_at=clock.now_ms + 100_000))
    with psycopg.connect(dsn) as user:
        ask(user, callback("c1", awaited="x1", root="t1", timeout_at=clock.now_ms + 10))
        ask(conn, callback("c2", awaited="x2", root="t2", timeout_at=clock.now_ms + 20))
        user.rollback()
    ask(conn, callback("c3", awaited="x3", root="t3", timeout_at=clock.now_ms + 30))
    clock.advance(60_000)
    tick(conn)
    left = conn.execute("select id from durable._callbacks where id <> ''").fetchall()
    assert left == ([("c0",)] if is_known else [])


@pytest.mark.session("the user's transaction")
def test_a_callback_that_nobody_noted_runs_out(dsn: str, conn: Connection, clock: Clock) -> None:
    """The first of all was in a transaction that was rolled back; the next did not wait for it."""
    for name in ("a", "b"):
        ask(conn, create(f"x{name}"))
        ask(conn, create(name, target="poll://any@g"))
    with psycopg.connect(dsn) as user:
        ask(user, callback("c1", awaited="xa", root="a", timeout_at=clock.now_ms + 10))
        ask(conn, callback("c2", awaited="xb", root="b", timeout_at=clock.now_ms + 10))
        user.rollback()
    for _ in range(3):
        clock.advance(3_600_000)
        tick(conn)
    assert conn.execute("select id from durable._callbacks where id <> ''").fetchall() == []
