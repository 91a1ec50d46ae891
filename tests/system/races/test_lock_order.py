"""Law: locks are taken in one order, whatever an operation finds on its way; a user's fence waits for
nobody who keeps his right, and whoever takes the right away waits for the user's commit.

The first part leads sessions into the few places where an operation locks something that its arguments do
not name.
"""

from __future__ import annotations

import json

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Held,
    Turn,
    ask,
    begin_run,
    claim,
    complete,
    create,
    done,
    heartbeat,
    release,
    report,
    run,
    settle,
    suspend,
    take_turn,
    task_of,
    turn,
)

TICK: Call = ("select durable.tick_v1(100)", ())
LOCK_HEAD = "select from durable._executions where execution = %s for update"


def fence(held: Held) -> Call:
    """The fence of a user's transaction."""
    return "select durable.fence(%s, %s)", (held.id, held.version)


def test_goodbye_and_sweep_meet_at_the_workers_row(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A sweep that looks after a worker, and the goodbye of that worker, wait for nobody."""
    first = begin_run(conn, "a", "X")
    parent = begin_run(conn, "p", "W", timeout="1 day")
    take_turn(conn, "W", report(parent, commands=[run(0, queue="kids")]))
    claim(conn, "X", "kids")
    clock.advance(TTL_MS)
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')", ()))
    ask(conn, heartbeat("W", parent))
    conn.execute("update durable._workers set present = true")
    holder, sweep, bye = stage.player("holder"), stage.player("sweep"), stage.player("bye")
    holder.begin()
    holder.do(LOCK_HEAD, (first.execution,)).rows()
    sweep.begin()
    swept = sweep.do(*TICK)
    assert not swept.blocked
    assert (swept.value()["leases"], swept.value()["locked"]) == (1, ["a"])
    gone = bye.do("select durable.worker_bye_v1('W')")
    assert not gone.blocked and gone.value() == 0
    sweep.commit()
    assert bye.do("select durable.worker_bye_v1('W')").value() == 1
    holder.commit().rows()
    assert ask(conn, TICK)[0]["leases"] == 1


def test_a_heartbeat_that_comes_back_meets_the_sweep(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A sweep that takes a worker's tasks and that worker's heartbeat do not wait for each other."""
    first = begin_run(conn, "a", "X")
    clock.advance(1)
    held = begin_run(conn, "b", "W")
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')", ()))
    conn.execute("update durable._workers set present = true")
    ask(conn, TICK)
    clock.advance(TTL_MS - 1)
    holder, sweep, worker = stage.player("holder"), stage.player("sweep"), stage.player("worker")
    holder.begin()
    holder.do(LOCK_HEAD, (first.execution,)).rows()
    sweep.begin()
    swept = sweep.do(*TICK)
    assert not swept.blocked
    assert (swept.value()["leases"], swept.value()["locked"]) == (1, ["a"])
    beat = worker.do(*heartbeat("W", held))
    assert not beat.blocked
    # what the sweep holds it may give away: the worker must not take its lease for renewed
    assert beat.value() == [-held.execution]
    sweep.commit()
    holder.commit().rows()
    assert ask(conn, TICK)[0]["leases"] == 1
    # and told that it is forgotten
    assert ask(conn, heartbeat("W", held)) == ([held.execution, None],)
    assert conn.execute("select id from durable._workers").fetchall() == []


def test_fenced_create_of_an_expired_promise_keeps_the_order(
    conn: Connection, clock: Clock, stage: Stage
) -> None:
    """A fenced create that finds the promise expired locks its awaiters and the fencing task in the order
    of ids; the turn of both passes them by."""
    tasks = {name: begin_run(conn, name, "W") for name in ("t1", "t2")}
    ask(conn, create("x", clock.now_ms + 10, external="true"))
    ask(conn, ("select from durable.promise_register_callback('x', 't2')", ()))
    clock.advance(10)
    holder, fenced, worker = stage.player("holder"), stage.player("fenced"), stage.player("worker")
    holder.begin()
    holder.do(LOCK_HEAD, (tasks["t2"].execution,)).rows()
    created = fenced.do("select state from durable.task_fence_create('t1', 1, 'x', 9007199254740991)")
    assert created.blocked
    turned = worker.do(*turn("W", *(report(held) for held in tasks.values())))
    assert not turned.blocked
    assert [Turn(raw=turned.value()).of(held)[0] for held in tasks.values()] == ["busy", "busy"]
    holder.commit().rows()
    assert created.value() == "rejected_timedout"
    again = take_turn(conn, "W", *(report(held) for held in tasks.values()))
    assert again.of(tasks["t1"]) == ("ok", "acquired")


@pytest.mark.parametrize(
    "renewal",
    [
        lambda held: turn("W", report(held, outcomes=[done(0)])),
        lambda held: heartbeat("W", held),
    ],
    ids=["turn", "heartbeat"],
)
def test_a_fence_does_not_block_its_own_worker(
    conn: Connection, clock: Clock, stage: Stage, renewal: object
) -> None:
    """While a user's transaction stands in the fence, turns and heartbeats of the holder do not wait for
    it."""
    held = begin_run(conn, "r")
    clock.advance(TTL_MS - 1)
    user, worker = stage.player("user"), stage.player("worker")
    user.begin()
    user.do(*fence(held)).rows()
    assert callable(renewal)
    renewed = worker.do(*renewal(held))
    assert not renewed.blocked
    assert not user.commit().blocked
    assert conn.execute("select expires_at from durable._tasks").fetchone() == (clock.now_ms + TTL_MS,)


@pytest.mark.parametrize(
    "taking",
    [
        ("select durable.task_halt('r')", ()),
        ("select state from durable._settle_promise('r', 'rejected_canceled', null, null)", ()),
        ("select durable.task_release('r', 1)", ()),
    ],
    ids=["halt", "cancel", "release"],
)
def test_ending_a_lease_waits_for_the_fence(conn: Connection, stage: Stage, taking: Call) -> None:
    """What ends a lease waits until the user's transaction in the fence has committed."""
    held = begin_run(conn, "r")
    user, taker = stage.player("user"), stage.player("taker")
    user.begin()
    user.do(*fence(held)).rows()
    taken = taker.do(*taking)
    assert taken.blocked
    assert not user.commit().blocked
    taken.rows()
    late = user.do(*fence(held))
    assert getattr(late.error, "sqlstate", "") == "WF002"


@pytest.mark.parametrize("call", ["worker_bye_v1('W')", "worker_release_unknown_v1('W', '{}', '{}')"])
def test_a_worker_releases_leases_without_a_fence(conn: Connection, stage: Stage, call: str) -> None:
    """A goodbye leaves a task that a user's transaction has fenced to its lease, and waits for nobody."""
    held, _ = begin_run(conn, "r"), begin_run(conn, "s")
    user, worker = stage.player("user"), stage.player("worker")
    user.begin()
    user.do(*fence(held)).rows()
    left = worker.do(f"select durable.{call}")
    assert not left.blocked
    assert left.value() == (1 if "bye" in call else ["s"])
    assert task_of(conn, "r") == ("acquired", 1, "W")
    assert task_of(conn, "s") == ("pending", 1, None)
    assert not user.commit().blocked


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_a_request_waits_for_the_fence(conn: Connection, stage: Stage, verb: str) -> None:
    """Who asks a run to end, or sets it aside, waits until the user's transaction in the fence has
    committed."""
    held = begin_run(conn, "r")
    user, person = stage.player("user"), stage.player("person")
    user.begin()
    user.do(*fence(held)).rows()
    asked = person.do(f"select durable.{verb}('r')")
    assert asked.blocked
    assert not user.commit().blocked
    asked.rows()
    assert ask(conn, ("select state from durable.runs", ())) == (
        {"cancel": "cancelling", "pause": "paused"}[verb],
    )


@pytest.mark.parametrize("end", [complete(), release(), suspend(0)], ids=["complete", "release", "suspend"])
def test_an_end_by_its_own_worker_waits_for_the_fence(
    conn: Connection, stage: Stage, end: dict[str, object]
) -> None:
    """A turn that ends the run leaves it alone until the user has committed; what keeps the version
    passes."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids")]))
    user, worker = stage.player("user"), stage.player("worker")
    user.begin()
    user.do(*fence(held)).rows()
    ended = worker.do(*turn("W", report(held, end=end, seen=held.next + 1)))
    assert not ended.blocked
    verdict = Turn(raw=ended.value()).of(held)[0]
    assert verdict == ("busy" if end["do"] == "complete" else "ok")
    assert not user.commit().blocked
    if verdict == "busy":
        assert take_turn(conn, "W", report(held, end=end, seen=held.next + 1)).of(held)[0] == "ok"
    late = user.do(*fence(held))
    assert getattr(late.error, "sqlstate", "") == "WF002"


def test_an_open_transaction_does_not_stop_renewals(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A transaction left open over one task of a worker costs none of the worker's tasks its lease."""
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')", ()))
    held = [begin_run(conn, name) for name in ("a", "b")]
    take_turn(
        conn, "W", report(held[0], commands=[{"do": "promise", "child": 0, "name": "x", "timeout": None}])
    )
    user, worker = stage.player("user"), stage.player("worker")
    user.begin()
    user.do(*settle("a.0")).rows()
    clock.advance(TTL_MS - 1)
    beat = worker.do(*heartbeat("W", *held))
    assert not beat.blocked
    assert beat.value() == []
    clock.advance(1)
    assert ask(conn, TICK)[0]["leases"] == 0
    user.commit().rows()
    assert worker.do(*heartbeat("W", *held)).value() == []
    assert conn.execute("select expires_at from durable._tasks").fetchall() == [(clock.now_ms + TTL_MS,)] * 2


def test_an_expired_lease_is_not_taken_from_a_fence(conn: Connection, clock: Clock, stage: Stage) -> None:
    """The sweep skips a task whose holder stands in the fence and takes it in its next round."""
    held = begin_run(conn, "r")
    clock.advance(TTL_MS)
    user, sweep = stage.player("user"), stage.player("sweep")
    user.begin()
    user.do(*fence(held)).rows()
    first = sweep.do(*TICK)
    assert not first.blocked
    assert first.value()["leases"] == 0
    user.commit().rows()
    assert ask(conn, TICK)[0]["leases"] == 1


def test_a_claim_skips_what_is_locked(conn: Connection, stage: Stage) -> None:
    """A claim takes other ready tasks and does not wait for the one that somebody holds."""
    for name in ("a", "b"):
        ask(conn, ("select durable.start('w', id => %s)", (name,)))
    holder, worker = stage.player("holder"), stage.player("worker")
    holder.begin()
    holder.do("select from durable._tasks where id = 'a' for key share").rows()
    claimed = worker.do(*turn("W", want=5))
    assert not claimed.blocked
    assert [task.id for task in Turn(raw=claimed.value()).tasks] == ["b"]
    holder.commit().rows()


def test_a_settlement_waits_for_a_turn_and_sees_its_callback(conn: Connection, stage: Stage) -> None:
    """A settlement that waits for the parent's turn reads the wait that this turn wrote."""
    held = begin_run(conn, "r")
    worker, settler = stage.player("worker"), stage.player("settler")
    commands = [{"do": "promise", "child": 0, "name": "label", "timeout": None}]
    take_turn(conn, "W", report(held, commands=commands))
    worker.begin()
    worker.do(*turn("W", report(held, end=suspend(0), seen=held.next + 1))).rows()
    settled = settler.do(*settle("r.0"))
    assert settled.blocked
    worker.commit().rows()
    assert settled.value() == "resolved"
    assert task_of(conn, "r") == ("pending", 1, None)


def test_the_next_partition_is_made_beside_a_writer(conn: Connection, clock: Clock, stage: Stage) -> None:
    """Journal partitions ahead are opened while a transaction that has written the journal is still open,
    and block no reader."""
    writer, sweep, reader = stage.player("writer"), stage.player("sweep"), stage.player("reader")
    writer.begin()
    writer.do("select durable.start('w', id => 'open')").rows()
    swept = sweep.do(*TICK)
    assert not swept.blocked
    assert json.dumps(swept.value())
    assert not reader.do("select count(*) from durable._journal").blocked
    writer.commit().rows()
    assert ask(conn, ("select max(bucket) from durable._buckets", ()))[0] > clock.now_ms // 604_800_000
