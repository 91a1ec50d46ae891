"""Law: locks that users take by hand, in any order and mode, cost no turn a deadlock and hide no settlement.
A turn that meets one is busy or, where the lock came between its look and its write, fails once and is sent
again.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    complete,
    create,
    done,
    promise_of,
    report,
    server_pid,
    settle,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    turn,
)
from tests.system.races.test_try_locks import holding

GATE = 7041
CALLBACK = "select from durable._callbacks where awaited_id = 'r' for update"
HEAD = "select from durable._executions where id = 'r' for update"


def awaited(conn: Connection) -> Held:
    """Run r, which run `other` awaits."""
    held, other = begin_run(conn, "r"), begin_run(conn, "other")
    answer = take_turn(conn, "W", report(other, commands=[adopt(0, "r")]))
    take_turn(conn, "W", report(other, end=suspend(0), seen=answer.next_of(other)))
    return held


def closed_gate(conn: Connection, stage: Stage) -> Callable[[], object]:
    """Close a gate between the locks of a settlement and its writes; answers what opens it."""
    conn.execute(
        f"""
        create function public.pass() returns trigger language plpgsql as $$
        begin
          perform pg_advisory_lock_shared({GATE}), pg_advisory_unlock_shared({GATE});
          return new;
        end $$ set lock_timeout = 0;
        create trigger gate before update on durable._promises
          for each statement execute function public.pass()
        """.encode()
    )
    keeper = stage.player("gate")
    keeper.do(f"select pg_advisory_lock({GATE})").rows()
    return lambda: keeper.do(f"select pg_advisory_unlock({GATE})").rows()


# -- the order of locks


def test_side_row_first_then_the_head(dsn: str, conn: Connection, stage: Stage) -> None:
    """A user locks a callback and then the head that the turn holds: the turn does not wait for the
    callback, so the user gets the head.
    """
    held = awaited(conn)
    user, worker = stage.player("user"), stage.player("worker")
    user.begin()
    user.do(CALLBACK).rows()
    worker.begin()
    assert worker.do(*turn("W", report(held, end=complete()))).value()["busy"] == [held.execution]
    waits = user.do(HEAD)
    assert waits.blocked
    worker.commit().rows()
    assert waits.error is None
    user.commit().rows()
    assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("ok", "done")


def test_a_side_row_that_is_locked_after_the_look(conn: Connection, stage: Stage) -> None:
    """The turn gives up after its lock_timeout, nothing of it is written, and the next one sees the lock."""
    held = awaited(conn)
    user, worker = stage.player("user"), stage.player("worker")
    worker.do("set lock_timeout = '300ms'").rows()
    gate = closed_gate(conn, stage)
    turned = worker.do(*turn("W", report(held, end=complete())))
    assert turned.blocked
    user.begin()
    user.do(CALLBACK).rows()
    gate()
    assert isinstance(turned.error, psycopg.errors.LockNotAvailable)
    assert promise_of(conn, "r") == ("pending", None)
    answer = take_turn(conn, "W", report(held, end=complete()))
    assert (answer.of(held)[0], answer.raw["locked"]) == ("busy", ["r"])
    user.commit().rows()
    assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("ok", "done")
    assert task_of(conn, "other") == ("pending", 1, None)


@pytest.mark.circles
def test_a_circle_with_a_turn_costs_the_user(conn: Connection, stage: Stage) -> None:
    """A user locks a side row after the look of a turn, and then waits for a row that the turn has.
    PostgreSQL ends the transaction that began to wait first, and that is the user's: a turn takes less than
    deadlock_timeout.
    """
    held = awaited(conn)
    user, worker = stage.player("user"), stage.player("worker")
    worker.do("set lock_timeout = '1s'; set deadlock_timeout = '1s'").rows()
    # the user's session looks for the circle after the gate is open, and before the turn gives up
    user.do("set deadlock_timeout = '500ms'").rows()
    gate = closed_gate(conn, stage)
    turned = worker.do(*turn("W", report(held, end=complete())))
    assert turned.blocked
    user.begin()
    user.do(CALLBACK).rows()
    waits = user.do(HEAD)
    assert waits.blocked
    gate()
    assert isinstance(waits.error, psycopg.errors.DeadlockDetected)
    assert turned.error is None
    assert promise_of(conn, "r") is not None and task_of(conn, "r") is None
    user.rollback().rows()


# -- locks that several sessions share


@pytest.mark.parametrize("mode", ["share", "key share"])
@pytest.mark.parametrize(("table", "key"), [("_tasks", "id"), ("_executions", "id"), ("_promises", "id")])
def test_a_lock_that_two_sessions_share(dsn: str, conn: Connection, table: str, key: str, mode: str) -> None:
    """Two users share the lock of a row, so the row names both. A shared lock makes the run busy, as one of a
    user alone does, and both are named. What only keeps the key holds up nothing but the end of a task.
    """
    held, free = begin_run(conn, "r"), begin_run(conn, "free")
    locked = f"select from durable.{table} where {key} = 'r' for {mode}"
    busy = mode == "share" or table == "_tasks"
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        for user in (one, two):
            assert user.execute(locked.encode()).rowcount == 1
        answer = take_turn(conn, "W", report(held, end=complete()), report(free, outcomes=[done(0)]))
        assert (answer.of(held)[0], answer.of(free)[0]) == ("busy" if busy else "ok", "ok")
        if busy:
            pids = {pid for (pid,) in conn.execute("select pid from durable._holders('{r}')").fetchall()}
            assert pids == {server_pid(one), server_pid(two)}
    if busy:
        assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("ok", "done")


def test_rows_of_users_that_refer_to_a_run(dsn: str, conn: Connection) -> None:
    """Two users have inserted rows that refer to a run, and not committed. The run ends all the same."""
    conn.execute("create table invoices (run text references durable._promises (id))")
    held = begin_run(conn, "r")
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        for user in (one, two):
            user.execute("insert into invoices values ('r')")
        assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("ok", "done")


# -- a settlement beside a registration


def ended_by_a_turn(conn: Connection, clock: Clock) -> Callable[[], str]:
    """Promise x is that of a run, which ends."""
    held = begin_run(conn, "x")
    return lambda: take_turn(conn, "W", report(held, end=complete())).of(held)[0]


def ended_by_a_tick(conn: Connection, clock: Clock) -> Callable[[], str]:
    """Promise x reaches its deadline."""
    ask(conn, create("x", clock.now_ms + 1000, external="true"))

    def act() -> str:
        if clock.now_ms < 10**15 and promise_of(conn, "x") == ("pending", None):
            clock.advance(1000)
        return "busy" if tick(conn)["locked"] == ["x"] else "ok"

    return act


@pytest.mark.parametrize("ending", [ended_by_a_turn, ended_by_a_tick])
@pytest.mark.parametrize("kind", ["callback", "listener"])
def test_a_registration_that_is_not_committed(
    dsn: str,
    conn: Connection,
    clock: Clock,
    ending: Callable[[Connection, Clock], Callable[[], str]],
    kind: str,
) -> None:
    """A user registers for a promise and has not committed when the engine settles it. The settlement is left
    out, and after the commit it tells the user, once.
    """
    act = ending(conn, clock)
    waiter = begin_run(conn, "waiter")
    with psycopg.connect(dsn) as user:
        call = "callback('x', 'waiter')" if kind == "callback" else "listener('x', 'poll://any@g')"
        user.execute(f"select durable.promise_register_{call}".encode())
        assert act() == "busy"
        assert promise_of(conn, "x") == ("pending", None)
        user.commit()
    assert act() == "ok"
    if kind == "callback":
        assert conn.execute(
            "select awaited_id from durable._resumes where task_id = 'waiter'"
        ).fetchall() == [("x",)]
    else:
        assert conn.execute("select promise_id from durable._unblocks").fetchall() == [("x",)]
    assert waiter.id == "waiter"


@pytest.mark.parametrize("kind", ["callback", "listener"])
def test_a_registration_beside_a_settlement_that_is_not_committed(
    conn: Connection, stage: Stage, kind: str
) -> None:
    """Who registers for a promise that another user is settling waits, and is answered how it ended."""
    ask(conn, create("x", external="true"))
    begin_run(conn, "waiter")
    settler, waiter = stage.player("settler"), stage.player("waiter")
    settler.begin()
    settler.do(*settle("x")).rows()
    call = "callback('x', 'waiter')" if kind == "callback" else "listener('x', 'poll://any@g')"
    registered = waiter.do(f"select state from durable.promise_register_{call}")
    assert registered.blocked
    settler.commit().rows()
    assert registered.value() == "resolved"


# -- schedules


def test_a_locked_schedule_does_not_make_the_tick_spin(dsn: str, conn: Connection, clock: Clock) -> None:
    """A user has locked a schedule that is due. The others fire; the tick names that one and who holds it,
    asks for no call at once, and says when the next timer is due.
    """
    for name in ("h", "f"):
        plan = "select durable.schedule_create(%s, '@hourly', %s, 3600000, null, null, '{}', 'UTC')"
        conn.execute(plan, (name, f"{name}-{{{{.timestamp}}}}"))
    clock.advance(3_600_000)
    ask(conn, create("later", clock.now_ms + 1000, external="true"))
    with psycopg.connect(dsn) as user:
        user.execute("select from durable._schedules where id = 'h' for update")
        assert tick(conn)["schedules"] == 1
        answer = tick(conn)
        assert (answer["schedules"], answer["more"], answer["locked"]) == (0, False, ["h"])
        assert answer["next_due_ms"] == 1000
        holders = conn.execute("select id, pid from durable._holders('{h}')").fetchall()
        assert holders == [("h", server_pid(user))]
        user.commit()
    assert tick(conn)["schedules"] == 1
    assert tick(conn)["locked"] == []


@pytest.mark.parametrize("row", ["promise", "task", "head"])
def test_a_held_timer_beside_a_locked_schedule(dsn: str, conn: Connection, clock: Clock, row: str) -> None:
    """Both are named, and the rest is done."""
    for number in range(2):
        held = begin_run(conn, f"r{number}")
        answer = take_turn(conn, "W", report(held, commands=[timer(0, 3_600_000)]))
        take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    plan = (
        "select durable.schedule_create('h', '@hourly', 'h-{{.timestamp}}', 3600000, null, null, '{}', 'UTC')"
    )
    conn.execute(plan.encode())
    clock.advance(3_600_000)
    with psycopg.connect(dsn) as user, holding(dsn, row, "r0.0" if row == "promise" else "r0"):
        user.execute("select from durable._schedules for update")
        answer = tick(conn)
        assert (answer["promises"], answer["more"]) == (1, False)
        assert sorted(answer["locked"]) == ["h", "r0.0" if row == "promise" else "r0"]
