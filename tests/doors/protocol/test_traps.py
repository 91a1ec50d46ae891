"""Law: where an engine of this protocol is easily wrong, ours is right.

One test for each row of the catalogue of traps: conformance (C1 to C12), beliefs that are plausible and
false, and traps of PostgreSQL. Those of tags and doors, and those on which specification and server
disagree, stand in test_traps_doors.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.envelope import acquire, envelope, fence, make, say, send, settle, suspend, tags, take
from tests.support.verbs import NEVER, Connection, refusal, tick

TIMED_OUT = "rejected_timedout"
PROFILES = pytest.mark.parametrize("profile", ["strict", "compatible"])


def play(conn: Connection, profile: str) -> None:
    """Choose the profile."""
    conn.execute("select durable.set_setting('conformance', %s)", (profile,))


def count(conn: Connection, what: str) -> int:
    """Number of rows of `table where ...` in the schema."""
    row = conn.execute(f"select count(*) from durable.{what}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def offered(conn: Connection, queue: str = "g") -> list[tuple[str, int]]:
    """Execute messages of a queue: task and version."""
    rows = conn.execute("select o.id, o.version from durable.task_offer(%s) o order by 1", (queue,))
    return [(name, version) for name, version in rows]


def told(conn: Connection) -> list[tuple[str, str, str]]:
    """Unblock messages: promise, address, state that it carries."""
    rows = conn.execute(
        "select u.promise_id, u.address, (u.promise).state from durable.unblock_claim() u order by 1, 2"
    )
    return [(name, address, state) for name, address, state in rows]


def state(conn: Connection, task: str) -> str:
    """State of a task as the wire tells it."""
    return str(say(conn, "task.get", id=task).task["state"])


def request(kind: str, data: dict[str, Any]) -> tuple[str, tuple[str]]:
    """A request as a statement, for sessions of a stage."""
    return "select durable.rpc(%s::jsonb)", (json.dumps(envelope(kind, data)),)


# conformance: one right answer


@PROFILES
def test_c1_the_deadline_of_what_is_external_is_enforced_and_of_nothing_else(
    conn: Connection, clock: Clock, profile: str
) -> None:
    """The sweep settles external promises, so a workflow that waits wakes; internal ones it leaves alone."""
    play(conn, profile)
    due = clock.now_ms + 10
    make(conn, "x", due, external="true")
    make(conn, "inside", due)
    take(conn, "t")
    suspend(conn, "t", 1, "x")
    clock.advance(10)
    assert tick(conn)["promises"] == 1
    assert state(conn, "t") == "pending"
    assert count(conn, "_promises where id = 'inside' and state = 'pending'") == 1
    assert say(conn, "promise.get", id="inside").promise["state"] == TIMED_OUT


@PROFILES
def test_c2_a_callback_on_an_internal_promise_never_strands(
    conn: Connection, clock: Clock, profile: str
) -> None:
    """Strict: 422 at both doors. Compatible: 200, and from then on its deadline is enforced and wakes."""
    play(conn, profile)
    make(conn, "inside", clock.now_ms + 10)
    take(conn, "t")
    registered = say(conn, "promise.register_callback", awaited="inside", awaiter="t")
    suspended = suspend(conn, "t", 1, "inside")
    if profile == "strict":
        assert (registered.status, suspended.status) == (422, 422)
        assert count(conn, "_callbacks") == 0
        return
    assert (registered.status, suspended.status) == (200, 200)
    clock.advance(10)
    tick(conn)
    assert state(conn, "t") == "pending"


@PROFILES
def test_c3_a_listener_on_an_internal_promise_is_told_of_its_deadline(
    conn: Connection, clock: Clock, profile: str
) -> None:
    """Strict: 422. Compatible: 200, and the unblock comes when the deadline passes."""
    play(conn, profile)
    make(conn, "inside", clock.now_ms + 10)
    said = say(conn, "promise.register_listener", awaited="inside", address="poll://any@g")
    assert said.status == (422 if profile == "strict" else 200)
    clock.advance(10)
    tick(conn)
    assert told(conn) == ([] if profile == "strict" else [("inside", "poll://any@g", TIMED_OUT)])


def test_c4_create_halt_and_continue_judge_the_promise_as_it_is_now(conn: Connection, clock: Clock) -> None:
    """Past its deadline a task is fulfilled for every door, swept or not: no lease, no halt, no continue."""
    due = clock.now_ms + 10
    for name in ("a", "b", "c", "h"):
        make(conn, name, due, target="g")
    say(conn, "task.halt", id="h")
    clock.advance(10)
    created = take(conn, "a", due)
    assert (created.status, created.task["state"], created.promise["state"]) == (200, "fulfilled", TIMED_OUT)
    assert say(conn, "task.halt", id="b").status == 409
    assert say(conn, "task.continue", id="h").status == 409
    assert acquire(conn, "c", 0).status == 409


def test_c5_no_lease_expiry_and_no_retry_of_the_dead(conn: Connection, clock: Clock) -> None:
    """A task whose promise timed out is neither made pending again nor offered, even before it is swept."""
    due = clock.now_ms + 10
    take(conn, "held", due, ttl=5)
    make(conn, "waiting", due, target="g")
    clock.advance(10)
    assert offered(conn) == []
    assert tick(conn)["leases"] == 0
    assert (state(conn, "held"), state(conn, "waiting")) == ("fulfilled", "fulfilled")


def test_c6_a_resume_leaves_an_awaiter_past_its_own_deadline_alone(conn: Connection, clock: Clock) -> None:
    """It does not become pending and nobody is told to execute it: its own deadline decides."""
    make(conn, "x", external="true")
    take(conn, "t", clock.now_ms + 10)
    suspend(conn, "t", 1, "x")
    clock.advance(10)
    settle(conn, "x")
    assert count(conn, "_tasks where id = 't' and state = 'pending'") == 0
    assert offered(conn) == []
    assert (state(conn, "t"), say(conn, "promise.get", id="t").promise["state"]) == ("fulfilled", TIMED_OUT)


def test_c7_a_heartbeat_does_not_keep_the_dead_alive(conn: Connection, clock: Clock) -> None:
    """After the deadline the lease is not extended; the answer is 200 all the same."""
    take(conn, "t", clock.now_ms + 10)
    row = conn.execute("select expires_at from durable._tasks").fetchone()
    clock.advance(10)
    assert say(conn, "task.heartbeat", pid="P", tasks=[{"id": "t", "version": 1}]).status == 200
    assert conn.execute("select expires_at from durable._tasks").fetchone() in (row, None)
    assert state(conn, "t") == "fulfilled"


def test_c8_every_answer_is_projected(conn: Connection, clock: Clock) -> None:
    """At one instant all doors say the same of a promise whose deadline has passed."""
    due = clock.now_ms + 10
    for name in ("get", "make", "end", "call", "listen", "find", "fenced", "nested"):
        make(conn, name, due, external="true")
    take(conn, "t")
    clock.advance(10)
    external = tags(external="true")
    inner = [
        fence(conn, "t", 1, "promise.create", id="fenced", timeoutAt=due).data["action"]["data"],
        fence(conn, "t", 1, "promise.settle", id="nested", state="resolved").data["action"]["data"],
    ]
    states = [
        say(conn, "promise.get", id="get").promise["state"],
        make(conn, "make", due).promise["state"],
        settle(conn, "end").promise["state"],
        say(conn, "promise.register_callback", awaited="call", awaiter="t").promise["state"],
        say(conn, "promise.register_listener", awaited="listen", address="g").promise["state"],
        *(each["promise"]["state"] for each in inner),
        *(each["state"] for each in say(conn, "promise.search", tags=external).data["promises"]),
    ]
    assert set(states) == {TIMED_OUT}


def test_c8_a_preload_is_projected_too(conn: Connection, clock: Clock) -> None:
    """What a claim tells of its branch is what promise.get would say."""
    root = {"id": "t", "timeoutAt": NEVER, "tags": tags(target="g", branch="t")}
    send(conn, "promise.create", root)
    make(conn, "t.1", clock.now_ms + 10, branch="t")
    clock.advance(10)
    (told_of,) = acquire(conn, "t", 0).data["preload"]
    assert told_of == say(conn, "promise.get", id="t.1").promise
    assert told_of["state"] == TIMED_OUT


def test_c9_no_message_carries_a_version_to_come(conn: Connection, clock: Clock) -> None:
    """Every offer bears the version that the task has; nobody acquires at one not yet given out."""
    make(conn, "t", target="g")
    for version in range(3):
        assert offered(conn) == [("t", version)]
        assert acquire(conn, "t", version + 1).status == 409
        assert acquire(conn, "t", version).task["version"] == version + 1
        assert say(conn, "task.release", id="t", version=version + 1).status == 200
        clock.advance(500)


def test_c10_one_claim_is_valid(conn: Connection) -> None:
    """Of two that acquire the same version, or create the same task, one gets it."""
    make(conn, "t", target="g")
    assert [acquire(conn, "t", 0, pid=pid).status for pid in ("P", "Q")] == [200, 409]
    assert [take(conn, "n", pid=pid).status for pid in ("P", "Q")] == [200, 409]


def test_c11_nothing_is_registered_on_what_is_settled(conn: Connection) -> None:
    """The answer is the settled record, which is the wake and the notification."""
    make(conn, "x", external="true")
    take(conn, "t")
    settled = settle(conn, "x", data="1")
    assert say(conn, "promise.register_callback", awaited="x", awaiter="t") == settled
    assert say(conn, "promise.register_listener", awaited="x", address="poll://any@g") == settled
    assert suspend(conn, "t", 1, "x").status == 300
    assert count(conn, "_callbacks") + count(conn, "_listeners") + count(conn, "_unblocks") == 0


@pytest.mark.parametrize("kind", ["start", "stop", "reset", "tick", "snap"])
def test_c12_debug_operations_are_off_by_default(conn: Connection, kind: str) -> None:
    """Nobody wipes a store that was installed in the ordinary way."""
    make(conn, "p")
    assert send(conn, f"debug.{kind}", {"time": 0}).status == 403
    assert say(conn, "promise.get", id="p").status == 200


# plausible and false


def test_false_settled_rows_never_change(conn: Connection, clock: Clock) -> None:
    """The record on the wire never does; what hung on it is taken away."""
    make(conn, "x", external="true")
    take(conn, "t")
    suspend(conn, "t", 1, "x")
    say(conn, "promise.register_listener", awaited="x", address="g")
    settled = settle(conn, "x", data="1").promise
    assert count(conn, "_callbacks") + count(conn, "_listeners") == 0
    clock.advance(10**12)
    for verdict in ("resolved", "rejected", "rejected_canceled"):
        assert settle(conn, "x", verdict, data="2").promise == settled
    assert make(conn, "x", 5).promise == settled


def test_false_a_pending_row_has_its_deadline_ahead(conn: Connection, clock: Clock) -> None:
    """A row may stand as pending past its deadline; nobody is told so."""
    make(conn, "p", clock.now_ms + 10)
    clock.advance(10)
    assert count(conn, "_promises where state = 'pending'") == 1
    assert say(conn, "promise.search", state="pending").data == {"promises": []}


def test_false_settling_twice_or_late_is_an_error(conn: Connection, clock: Clock) -> None:
    """200 with what is there."""
    make(conn, "p")
    make(conn, "late", clock.now_ms + 10)
    assert [settle(conn, "p").status for _ in range(2)] == [200, 200]
    clock.advance(10)
    assert (settle(conn, "late").status, settle(conn, "late").promise["state"]) == (200, TIMED_OUT)


def test_false_a_200_means_that_my_value_was_stored(conn: Connection) -> None:
    """Only if state and value are those that were sent."""
    make(conn, "p")
    first = settle(conn, "p", "rejected", data="first").promise
    second = settle(conn, "p", "resolved", data="second").promise
    assert second == first
    assert (second["state"], second["value"]["data"]) == ("rejected", "first")


def test_false_background_steps_are_invisible(conn: Connection, clock: Clock) -> None:
    """A drained callback and a lost lease show in task.get; a projected deadline and an offer do not."""
    make(conn, "x", clock.now_ms + 10, external="true")
    take(conn, "w")
    suspend(conn, "w", 1, "x")
    take(conn, "held", ttl=10)
    make(conn, "o", target="g")
    clock.advance(10)
    before = {name: say(conn, "task.get", id=name).task for name in ("w", "held", "o")}
    projected = say(conn, "promise.get", id="x")
    offered(conn)
    tick(conn)
    after = {name: say(conn, "task.get", id=name).task for name in ("w", "held", "o")}
    assert (before["held"]["state"], after["held"]["state"]) == ("acquired", "pending")
    assert (after["w"]["state"], after["w"]["resumes"]) == ("pending", 1)
    assert say(conn, "promise.get", id="x") == projected
    assert after["o"] == before["o"]


def test_false_acquire_is_idempotent(conn: Connection) -> None:
    """The same call again by another process is 409; so are release, fulfil and continue by the same."""
    make(conn, "t", target="g")
    assert [acquire(conn, "t", 0, pid=pid).status for pid in ("P", "Q")] == [200, 409]
    assert [say(conn, "task.release", id="t", version=1).status for _ in range(2)] == [200, 409]
    assert [say(conn, "task.halt", id="t").status for _ in range(2)] == [200, 200]
    assert [say(conn, "task.continue", id="t").status for _ in range(2)] == [200, 409]
    acquire(conn, "t", 1)
    action = envelope("promise.settle", {"id": "t", "state": "resolved"})
    assert [say(conn, "task.fulfill", id="t", version=2, action=action).status for _ in range(2)] == [
        200,
        409,
    ]


def test_false_exclusivity_is_per_task(conn: Connection, clock: Clock) -> None:
    """It is per task and version: after a lost lease two believe, and the version tells who is right."""
    take(conn, "t", ttl=10, pid="P")
    clock.advance(10)
    tick(conn)
    assert acquire(conn, "t", 1, pid="Q").task["version"] == 2
    assert fence(conn, "t", 1, "promise.create", id="n", timeoutAt=NEVER).status == 409
    assert fence(conn, "t", 2, "promise.create", id="n", timeoutAt=NEVER).status == 200


def test_false_a_moving_clock_changes_nothing(conn: Connection, clock: Clock) -> None:
    """That is true of what is settled only."""
    make(conn, "live", clock.now_ms + 10)
    make(conn, "done", clock.now_ms + 10)
    settle(conn, "done")
    before = [say(conn, "promise.get", id=name) for name in ("live", "done")]
    clock.advance(10)
    after = [say(conn, "promise.get", id=name) for name in ("live", "done")]
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


def test_false_created_at_is_the_time_of_the_call(conn: Connection, clock: Clock) -> None:
    """What is born dead was created, and settled, at its deadline."""
    born = make(conn, "p", clock.now_ms - 10).promise
    assert (born["createdAt"], born["settledAt"]) == (clock.now_ms - 10, clock.now_ms - 10)
    taken = take(conn, "t", clock.now_ms)
    assert (taken.task["state"], taken.task["version"], taken.promise["createdAt"]) == (
        "fulfilled",
        0,
        clock.now_ms,
    )


def test_false_a_lease_ends_by_itself(conn: Connection, clock: Clock) -> None:
    """Only the sweep ends it: an overdue one is still good at every door, and can be revived."""
    make(conn, "x", external="true")
    for name in ("beaten", "fenced", "parked", "given", "done"):
        take(conn, name, ttl=10)
    clock.advance(11)
    assert fence(conn, "fenced", 1, "promise.create", id="n", timeoutAt=NEVER).status == 200
    assert suspend(conn, "parked", 1, "x").status == 200
    assert say(conn, "task.release", id="given", version=1).status == 200
    action = envelope("promise.settle", {"id": "done", "state": "resolved"})
    assert say(conn, "task.fulfill", id="done", version=1, action=action).status == 200
    say(conn, "task.heartbeat", pid="P", tasks=[{"id": "beaten", "version": 1}])
    tick(conn)
    assert (state(conn, "beaten"), state(conn, "fenced")) == ("acquired", "pending")


def test_false_the_name_of_a_law_says_the_law(conn: Connection) -> None:
    """Some names of the published catalogue say the violation; a healthy world breaks none of them."""
    make(conn, "x", external="true")
    take(conn, "t")
    suspend(conn, "t", 1, "x")
    make(conn, "o", target="g")
    assert conn.execute("select law from durable.check()").fetchall() == []


# of PostgreSQL


def test_a_fulfil_waits_for_whoever_has_the_promise(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A lock that is asked for is taken: a clause that nothing reads would lock nothing."""
    take(conn, "t")
    holder, worker = stage.player("holder"), stage.player("worker")
    holder.begin()
    holder.do("select from durable._promises where id = 't' for no key update").rows()
    action = envelope("promise.settle", {"id": "t", "state": "resolved"})
    ended = worker.do(*request("task.fulfill", {"id": "t", "version": 1, "action": action}))
    assert ended.blocked
    holder.commit()
    assert ended.value()["head"]["status"] == 200


@pytest.mark.parametrize("kind", ["callback", "listener"])
def test_a_settle_waits_for_a_registration_and_then_sees_it(
    conn: Connection, clock: Clock, stage: Stage, kind: str
) -> None:
    """Registering keeps the promise locked, and who waited for that looks again: nobody is left waiting."""
    make(conn, "x", external="true")
    take(conn, "t")
    waiter, settler = stage.player("waiter"), stage.player("settler")
    waiter.begin()
    if kind == "callback":
        action = envelope("promise.register_callback", {"awaited": "x", "awaiter": "t"})
        data = {"id": "t", "version": 1, "actions": [action]}
        waiter.do(*request("task.suspend", data)).rows()
    else:
        waiter.do(*request("promise.register_listener", {"awaited": "x", "address": "g"})).rows()
    settled = settler.do(*request("promise.settle", {"id": "x", "state": "resolved"}))
    assert settled.blocked
    waiter.commit()
    assert settled.value()["head"]["status"] == 200
    assert state(conn, "t") == ("pending" if kind == "callback" else "acquired")
    assert len(told(conn)) == (kind == "listener")


def test_now_is_read_after_the_wait(conn: Connection, clock: Clock, stage: Stage) -> None:
    """Who waited past the deadline writes the deadline's verdict; nobody is told first this, then that."""
    make(conn, "x", clock.now_ms + 10, external="true")
    holder, settler, reader = stage.player("holder"), stage.player("settler"), stage.player("reader")
    holder.begin()
    holder.do("select from durable._promises where id = 'x' for no key update").rows()
    settled = settler.do(*request("promise.settle", {"id": "x", "state": "resolved"}))
    clock.advance(10)
    read = reader.do(*request("promise.get", {"id": "x"}))
    assert (settled.blocked, read.blocked) == (True, True)
    holder.commit()
    answers = {each.value()["data"]["promise"]["state"] for each in (settled, read)}
    assert answers == {TIMED_OUT}


def test_now_is_not_the_start_of_the_transaction(conn: Connection) -> None:
    """Two operations of one transaction have instants of their own."""
    with conn.transaction():
        first = make(conn, "a").promise["createdAt"]
        conn.execute("select pg_sleep(0.005)")
        assert make(conn, "b").promise["createdAt"] > first


def test_no_deadlock_is_caught_and_tried_again_inside(conn: Connection) -> None:
    """Locks are ordered, so no function handles a deadlock; who tries again makes the whole call again."""
    named = conn.execute(
        "select proname from pg_proc where pronamespace = 'durable'::regnamespace "
        "and prosrc ~* '(deadlock_detected|serialization_failure|40P01|40001)'"
    ).fetchall()
    assert named == []


def test_a_claim_that_looks_at_its_branch_waits_in_no_circle(
    conn: Connection, clock: Clock, stage: Stage
) -> None:
    """Who holds a task waits for no promise: a preload settles what is due only where it need not wait."""
    root = {"id": "t", "timeoutAt": NEVER, "tags": tags(target="g", branch="t")}
    send(conn, "promise.create", root)
    make(conn, "t.1", clock.now_ms + 10, external="true", branch="t")
    say(conn, "promise.register_callback", awaited="t.1", awaiter="t")
    clock.advance(10)
    holder, worker, settler = stage.player("holder"), stage.player("worker"), stage.player("settler")
    holder.begin()
    holder.do("select from durable._tasks where id = 't' for update").rows()
    taken = worker.do(*request("task.acquire", {"id": "t", "version": 0, "pid": "P", "ttl": 9}))
    settled = settler.do(*request("promise.settle", {"id": "t.1", "state": "resolved"}))
    assert (taken.blocked, settled.blocked) == (True, True)
    holder.commit()
    assert [each.value()["head"]["status"] for each in (taken, settled)] == [200, 200]


def test_a_sweep_is_bounded(conn: Connection, clock: Clock) -> None:
    """One transaction settles as much as it was told to, and says that there is more."""
    for n in range(5):
        make(conn, f"p{n}", clock.now_ms + 10, external="true")
    clock.advance(10)
    rounds = [tick(conn, 2) for _ in range(3)]
    assert [each["promises"] for each in rounds] == [2, 2, 1]
    assert [each["more"] for each in rounds] == [True, True, False]


def test_nothing_is_sent_by_a_trigger(conn: Connection) -> None:
    """No table has a trigger, so nothing leaves the database before its transaction commits. Those of views
    are how their rows are written."""
    triggers = (
        "pg_trigger t join pg_class c on c.oid = t.tgrelid where not t.tgisinternal and c.relkind <> 'v'"
    )
    assert conn.execute(f"select t.tgname from {triggers}".encode()).fetchall() == []


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_caller_that_reads_one_snapshot_is_refused(conn: Connection, level: str) -> None:
    """Above READ COMMITTED what was waited for is not seen, so what locks is refused and writes nothing."""
    make(conn, "x", external="true")
    with conn.transaction():
        conn.execute(f"set transaction isolation level {level}".encode())
        assert settle(conn, "x").status == 409
        assert refusal(conn, ("select durable.promise_settle('x', 'resolved')", ())) == "WF003"
    assert say(conn, "promise.get", id="x").promise["state"] == "pending"


@pytest.mark.parametrize("kind", ["promise", "task"])
def test_a_search_past_the_end_does_not_start_again(conn: Connection, kind: str) -> None:
    """A cursor behind the last id finds nothing."""
    make(conn, "a", target="g")
    assert say(conn, f"{kind}.search", cursor="b").data == {f"{kind}s": []}
