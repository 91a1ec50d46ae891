"""Law: one rule tells who holds a task; a lease is renewed by its holder alone, lost by time or by absence,
and too many losses halt a run."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    acquire,
    ask,
    begin_run,
    begun,
    claim,
    create,
    done,
    events_of,
    heartbeat,
    promise,
    refusal,
    release,
    report,
    run,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    types_of,
)

FENCED: dict[str, Call] = {
    "fence": ("select durable.fence('t', 1)", ()),
    "release": ("select durable.task_release('t', 1)", ()),
    "suspend": ("select durable.task_suspend('t', 1, '{x}')", ()),
    "fulfill": ("select durable.task_fulfill('t', 1, 'resolved')", ()),
    "fence_settle": ("select durable.task_fence_settle('t', 1, 'x', 'resolved')", ()),
    "fence_create": ("select durable.task_fence_create('t', 1, 'n', 9007199254740991)", ()),
}


def without_lease(conn: Connection, clock: Clock, how: str) -> None:
    """Bring task t out of the hands of its holder at version 1."""
    take(conn, "t", clock.now_ms + 10 * TTL_MS)
    if how == "released":
        ask(conn, ("select durable.task_release('t', 1)", ()))
    elif how == "expired":
        clock.advance(TTL_MS)
        tick(conn)
    elif how == "taken over":
        ask(conn, ("select durable.task_release('t', 1)", ()))
        ask(conn, acquire("t", 1, "Q"))
    elif how == "halted":
        ask(conn, ("select durable.task_halt('t')", ()))
    elif how == "settled":
        ask(conn, ("select durable.promise_settle('t', 'resolved')", ()))
    elif how == "past its deadline":
        clock.advance(10 * TTL_MS)


@pytest.mark.parametrize(
    "how", ["released", "expired", "taken over", "halted", "settled", "past its deadline"]
)
@pytest.mark.parametrize("door", FENCED)
def test_the_fence(conn: Connection, clock: Clock, door: str, how: str) -> None:
    """Every door of a holder refuses with WF002 once the lease is gone, however it went, and writes
    nothing."""
    ask(conn, create("x", external="true"))
    without_lease(conn, clock, how)
    before = conn.execute("select * from durable._promises order by id").fetchall()
    assert refusal(conn, FENCED[door]) == "WF002"
    assert conn.execute("select * from durable._promises order by id").fetchall() == before


@pytest.mark.parametrize("door", FENCED)
def test_the_fence_refuses_promises_without_a_task(conn: Connection, door: str) -> None:
    """A task that does not exist is WF001."""
    ask(conn, create("x", external="true"))
    assert refusal(conn, FENCED[door]) == "WF001"


@pytest.mark.parametrize("door", FENCED)
def test_an_overdue_lease_holds_until_it_is_swept(conn: Connection, clock: Clock, door: str) -> None:
    """Lease expiry is an event: until the sweep has taken it, the holder's calls are accepted."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    clock.advance(2 * TTL_MS)
    assert refusal(conn, FENCED[door]) == ""


def test_heartbeat_of_protocol_tasks(conn: Connection, clock: Clock) -> None:
    """Pairs that match pid and version are renewed by their own ttl; everything else is skipped in
    silence."""
    for name, ttl_ms in (("a", 1000), ("b", 2000), ("c", 3000)):
        ask(conn, create(name, target="g"))
        ask(conn, acquire(name, 0, "P" if name != "c" else "Q", ttl_ms))
    clock.advance(500)
    call = ("select durable.task_heartbeat('P', '{a,b,c,none}', '{1,2,1,1}')", ())
    assert ask(conn, call) == (1,)
    rows = conn.execute(
        "select id, expires_at - durable._now_ms() from durable._tasks order by id"
    ).fetchall()
    assert rows == [("a", 1000), ("b", 1500), ("c", 2500)]


def test_heartbeat_of_a_part(conn: Connection, clock: Clock) -> None:
    """With a prefix the tasks whose id begins with it, named or not."""
    for name in ("a:1", "a:2", "b:1"):
        ask(conn, create(name, target="g"))
        ask(conn, acquire(name, 0, "P", 1000))
    for tasks, prefix, count in (
        ("'{}', '{}'", "a:", 2),
        ("'{a:1,b:1}', '{1,1}'", "a:", 1),
        ("'{}', '{}'", "c", 0),
        ("'{}', '{}'", "", 3),
    ):
        clock.advance(10)
        call = (f"select durable.task_heartbeat('P', {tasks}, %s)", (prefix,))
        assert ask(conn, call) == (count,)
        row = conn.execute("select count(*) from durable._tasks where expires_at = durable._now_ms() + 1000")
        assert row.fetchone() == (count,)


def test_heartbeat_of_a_dead_task(conn: Connection, clock: Clock) -> None:
    """A task past its own deadline is not renewed."""
    take(conn, "t", clock.now_ms + 100)
    clock.advance(100)
    assert ask(conn, ("select durable.task_heartbeat('P', '{t}', '{1}')", ())) == (0,)


def test_heartbeat_of_a_worker(conn: Connection, clock: Clock) -> None:
    """The answer names the executions that are lost; the others are renewed; the worker was seen."""
    ask(conn, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()))
    held = [begin_run(conn, name) for name in ("a", "b", "c")]
    ask(conn, ("select durable._settle_promise('b', 'resolved', null, null)", ()))
    clock.advance(9000)
    conn.execute("update durable._workers set missing_at = durable._now_ms()")
    gone = replace(held[0], execution=999_999, id="gone")
    call = heartbeat("W", held[0], held[1], replace(held[2], version=2), gone)
    assert ask(conn, call) == ([held[1].execution, held[2].execution, 999_999],)
    rows = conn.execute(
        "select id, expires_at - durable._now_ms() from durable._tasks order by id"
    ).fetchall()
    assert rows == [("a", TTL_MS), ("c", TTL_MS - 9000)]
    assert ask(conn, ("select seen_at, missing_at from durable._workers", ())) == (clock.now_ms, None)
    assert ask(conn, heartbeat("W")) == ([],)
    assert ask(conn, heartbeat("W", replace(held[0], id="lost"))) == ([held[0].execution],)
    assert ask(conn, heartbeat("W", replace(held[0], id="c"))) == ([held[0].execution],)


VERSION_OF_WORKER = ("select ctid::text from durable._workers", ())


def register(conn: Connection, clock: Clock) -> None:
    """A worker that is present, and has ticked."""
    ask(conn, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()))
    conn.execute("update durable._workers set present = true, ticked_at = %s", (clock.now_ms,))


@pytest.mark.parametrize(
    ("present", "lease_ms", "written"), [(True, 15_000, 2), (False, 15_000, 4), (False, 60_000, 2)]
)
def test_heartbeats_leave_few_versions(
    conn: Connection, clock: Clock, present: bool, lease_ms: int, written: int
) -> None:
    """The row of a worker is written every 20 s, and once in a lease if no presence lock tells that it lives,
    not at each heartbeat: a transaction that stays open keeps each version. Leases are renewed at each."""
    register(conn, clock)
    conn.execute("update durable._workers set present = %s", (present,))
    conn.execute("select durable.set_setting('lease_ttl_ms', %s::text)", (lease_ms,))
    held = begin_run(conn, "a")
    versions = set()
    for _ in range(9):
        clock.advance(5000)
        assert ask(conn, heartbeat("W", held)) == ([],)
        assert ask(conn, ("select expires_at - durable._now_ms() from durable._tasks", ())) == (TTL_MS,)
        versions.add(ask(conn, VERSION_OF_WORKER))
    assert len(versions) == written


@pytest.mark.parametrize(
    "changed",
    ["missing_at = durable._now_ms()", "unrenewed = '{a}'", "seen_at = seen_at + 1"],
)
def test_what_a_heartbeat_writes_at_once(conn: Connection, clock: Clock, changed: str) -> None:
    """A worker that seemed to be gone, one that could not renew a lease, and one that
    was seen at an instant to come are seen at each heartbeat."""
    register(conn, clock)
    conn.execute(f"update durable._workers set {changed}".encode())
    before = ask(conn, VERSION_OF_WORKER)
    assert ask(conn, heartbeat("W")) == ([],)
    assert ask(conn, VERSION_OF_WORKER) != before
    row = ask(conn, ("select seen_at, missing_at, unrenewed from durable._workers", ()))
    assert row == (clock.now_ms, None, [])


def test_the_first_tick_of_a_worker_is_written_at_once(conn: Connection, clock: Clock) -> None:
    """When a worker ticked first is known at its next heartbeat."""
    register(conn, clock)
    conn.execute("update durable._workers set ticked_at = null")
    assert ask(conn, ("select durable.worker_heartbeat_v1('W', '{}', '{}', '{}', 7)", ())) == ([],)
    assert ask(conn, ("select ticked_at from durable._workers", ())) == (clock.now_ms - 7,)


def test_expiry(conn: Connection, clock: Clock) -> None:
    """At its instant a lease is taken: pending now, version and wake reasons kept, everything of the holder
    cleared."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    ask(conn, ("select durable.promise_register_callback('x', 't')", ()))
    ask(conn, ("select durable.promise_settle('x', 'resolved')", ()))
    clock.advance(TTL_MS - 1)
    assert tick(conn)["leases"] == 0
    clock.advance(1)
    found = tick(conn)
    assert (found["leases"], found["hints"]) == (1, ["g"])
    row = ask(
        conn, ("select state, version, pid, ttl, expires_at, retry_at, preference from durable._tasks", ())
    )
    assert row == ("pending", 1, None, None, None, clock.now_ms, None)
    assert conn.execute("select task_id, awaited_id from durable._resumes").fetchall() == [("t", "x")]
    assert tick(conn)["leases"] == 0


def test_a_lost_lease_is_recorded_in_both_journals(conn: Connection, clock: Clock) -> None:
    """A lost lease closes the open steps of the run and its open attempt in the owner's journal (R2); the
    next acquire opens another."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids")], outcomes=[begun(1)]), ttl_ms=1)
    kid = claim(conn, "K", "kids")
    take_turn(conn, "K", report(kid, outcomes=[begun(0)]))
    clock.advance(TTL_MS)
    assert tick(conn)["leases"] == 2
    assert types_of(conn, "r.0") == ["execution_started", "step_started", "open_attempt_failed"]
    assert types_of(conn, "r") in (
        [
            *("execution_started", "child_run_scheduled", "step_started", "child_run_started"),
            *("open_attempt_failed", "child_run_interrupted"),
        ],
        [
            *("execution_started", "child_run_scheduled", "step_started", "child_run_started"),
            *("child_run_interrupted", "open_attempt_failed"),
        ],
    )
    rows = conn.execute(
        "select data::jsonb -> 'interrupted', data::jsonb #>> '{error,message}' from "
        "durable._journal where type = 'open_attempt_failed'"
    )
    assert rows.fetchall() == [(True, "lease lost")] * 2
    claim(conn, "K2", "kids")
    assert events_of(conn, "r")[-1] == "InvokeStarted"
    assert ask(conn, ("select attempt, attempt_open from durable._tasks where id = 'r.0'", ())) == (2, True)


def crash(conn: Connection, clock: Clock, queue: str) -> None:
    """Claim, begin a step and die."""
    claim(conn, "W", queue)
    clock.advance(TTL_MS)
    tick(conn)


def test_too_many_crashes_halt_a_run(conn: Connection, clock: Clock) -> None:
    """A run that loses more leases in a row than max_crashes is halted with a problem; resume gives it as
    many again."""
    ask(conn, ("select durable.set_setting('max_crashes', '2')", ()))
    ask(conn, ("select durable.start('w', id => 'r', queue => 'g')", ()))
    for _ in range(2):
        crash(conn, clock, "g")
        assert task_of(conn, "r") == ("pending", _ + 1, None)
    crash(conn, clock, "g")
    assert task_of(conn, "r") == ("halted", 3, None)
    (problem,) = ask(conn, ("select problem ->> 'type' from durable.runs where id = 'r'", ()))
    assert problem == "Crashed"
    ask(conn, ("select durable.resume('r')", ()))
    crash(conn, clock, "g")
    assert task_of(conn, "r") == ("pending", 4, None)


@pytest.mark.parametrize("progress", ["outcome", "suspend", "release"])
def test_progress_forgives_crashes(conn: Connection, clock: Clock, progress: str) -> None:
    """A result, a suspend or a release starts the count anew."""
    ask(conn, ("select durable.start('w', id => 'r', queue => 'g')", ()))
    crash(conn, clock, "g")
    crash(conn, clock, "g")
    held = claim(conn, "W", "g")
    assert held.crashes == 2
    if progress == "outcome":
        take_turn(conn, "W", report(held, outcomes=[done(0)]))
    else:
        answer = take_turn(conn, "W", report(held, commands=[promise(0)]))
        end = suspend(0) if progress == "suspend" else release()
        take_turn(conn, "W", report(held, end=end, seen=answer.next_of(held)))
    assert ask(conn, ("select crashes from durable._tasks", ())) == (0,)


def test_an_attempt_that_began_forgives_nothing(conn: Connection, clock: Clock) -> None:
    """A step that runs long enough to be recorded as begun, and then kills its worker, halts its run too."""
    ask(conn, ("select durable.set_setting('max_crashes', '1')", ()))
    ask(conn, ("select durable.start('w', id => 'r', queue => 'g')", ()))
    for attempt in (1, 2):
        held = claim(conn, "W", "g")
        take_turn(conn, "W", report(held, outcomes=[begun(0, attempt=attempt)]))
        clock.advance(TTL_MS)
        tick(conn)
    assert task_of(conn, "r") == ("halted", 2, None)


def test_a_protocol_task_is_never_halted_by_crashes(conn: Connection, clock: Clock) -> None:
    """A sweep may never halt a protocol task, however often its lease is lost: it is offered again."""
    take(conn, "t")
    for version in range(1, 9):
        clock.advance(TTL_MS)
        tick(conn)
        assert task_of(conn, "t") == ("pending", version, None)
        ask(conn, acquire("t", version))


def hold_presence(dsn: str, number: int) -> psycopg.Connection[tuple[object, ...]]:
    """A session that holds the presence lock of a worker."""
    session = psycopg.connect(dsn, autocommit=True)
    session.execute("select pg_advisory_lock(1685417570, %s)", (number,))
    return session


def present(conn: Connection, worker: str, dsn: str) -> psycopg.Connection[tuple[object, ...]]:
    """A worker that has said hello and is believed to be present."""
    (hello,) = ask(conn, ("select durable.worker_hello_v1(%s, '{g}', '{w}', '{1}', null)", (worker,)))
    session = hold_presence(dsn, hello["number"])
    assert ask(conn, ("select durable.worker_present_v1(%s, true)", (worker,))) == (True,)
    return session


@pytest.fixture
def own(dsn: str) -> psycopg.Connection[tuple[object, ...]]:
    """A session that commits, in a database of this test: presence locks live in other sessions."""
    return psycopg.connect(dsn, autocommit=True)


@pytest.mark.session("presence locks")
def test_presence_needs_the_lock_of_another_session(own: Connection, dsn: str) -> None:
    """A worker that holds no lock, or asks from the session that holds it, is not present."""
    (hello,) = ask(own, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()))
    claim_ = ("select durable.worker_present_v1('W', true)", ())
    assert ask(own, claim_) == (False,)
    with hold_presence(dsn, hello["number"]) as session:
        assert ask(session, claim_) == (False,)
        assert ask(own, claim_) == (True,)
        assert ask(own, ("select durable.worker_present_v1('W', false)", ())) == (False,)
        assert ask(own, ("select durable.worker_present_v1('nobody', true)", ())) == (False,)
    own.close()


def wait_until_gone(conn: Connection) -> None:
    """Wait until the server has ended the session that held a presence lock: it takes its own time."""
    held = (
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
        " where d.datname = current_database() and l.locktype = 'advisory' and l.classid = 1685417570"
    )
    while ask(conn, (held, ())) != (0,):
        pass


@pytest.mark.session("presence locks")
def test_two_looks_take_the_tasks_of_an_absent_worker(own: Connection, dsn: str) -> None:
    """A presence lock found free twice, presence_grace_ms apart, ends the worker's leases long before their
    time. Until then each tick says how long; not afterwards, even while a user holds the task."""
    clock = Clock(dsn)
    with present(own, "W", dsn):
        begin_run(own, "r")
        clock.advance(5000)
        assert tick(own)["leases"] == 0
        assert tick(own)["gone_in_ms"] is None
    wait_until_gone(own)
    for passed_ms, left_ms in ((0, 1000), (400, 600), (599, 1)):
        clock.advance(passed_ms)
        answer = tick(own)
        assert (answer["leases"], answer["gone_in_ms"]) == (0, left_ms)
    clock.advance(1)
    with psycopg.connect(dsn) as user:
        user.execute("select from durable._tasks for update")
        answer = tick(own)
        assert (answer["leases"], answer["gone_in_ms"]) == (0, None)
    answer = tick(own)
    assert (answer["leases"], answer["gone_in_ms"]) == (1, None)
    assert task_of(own, "r") == ("pending", 1, None)
    assert own.execute("select id from durable._workers").fetchall() == []
    own.close()


@pytest.mark.parametrize("sign", ["heartbeat", "hello", "present", "lock"])
@pytest.mark.session("presence locks")
def test_a_sign_of_life_between_the_looks(own: Connection, dsn: str, sign: str) -> None:
    """A worker that is heard of, or whose lock is held again, starts the two looks anew."""
    clock = Clock(dsn)
    session = present(own, "W", dsn)
    held = begin_run(own, "r", timeout="1 day")
    session.close()
    wait_until_gone(own)
    tick(own)
    clock.advance(900)
    number = ask(own, ("select number from durable._workers", ()))[0]
    if sign == "lock":
        with hold_presence(dsn, number):
            tick(own)
    else:
        calls: dict[str, Call] = {
            "heartbeat": heartbeat("W", held),
            "hello": ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()),
            "present": ("select durable.worker_present_v1('W', false)", ()),
        }
        ask(own, calls[sign])
    clock.advance(200)
    assert tick(own)["leases"] == 0
    assert task_of(own, "r") == ("acquired", 1, "W")
    own.close()


def test_an_absent_worker_that_was_never_present_keeps_its_leases(conn: Connection, clock: Clock) -> None:
    """Behind a pooler nobody is present, and only leases tell."""
    ask(conn, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()))
    begin_run(conn, "r")
    for _ in range(3):
        clock.advance(2000)
        assert tick(conn)["leases"] == 0
    assert task_of(conn, "r") == ("acquired", 1, "W")


def test_idle_worker_rows_are_removed_after_an_hour(conn: Connection, clock: Clock) -> None:
    """A worker row that is an hour old and holds nothing goes; one that still holds a task stays."""
    for worker in ("old", "busy"):
        ask(conn, ("select durable.worker_hello_v1(%s, '{g}', '{w}', '{1}', null)", (worker,)))
    ask(conn, ("select durable.start('w', id => 'r', queue => 'g')", ()))
    take_turn(conn, "busy", want=1, queues=["g"], ttl_ms=10_000_000)
    clock.advance(3_600_001)
    tick(conn)
    assert conn.execute("select id from durable._workers").fetchall() == [("busy",)]


def test_a_fence_outside_a_transaction_is_refused(dsn: str) -> None:
    """Alone in its statement it would guard nothing; in a block, first or last, and in a function that wrote
    before, it does."""
    fence = "select durable.fence('r', 1)"
    with psycopg.connect(dsn, autocommit=True) as conn:
        begin_run(conn, "r")
        assert refusal_alone(conn, fence) == "WF003"
        with conn.transaction():
            conn.execute(fence)
        conn.execute("create table mine (n integer)")
        conn.execute(
            "create function write() returns void language plpgsql as $$ begin insert into mine values (1); "
            "perform durable.fence('r', 1); end $$"
        )
        conn.execute("select write()")
        conn.execute("begin; insert into mine values (2); select durable.fence('r', 1); commit")
        assert conn.execute("select count(*) from mine").fetchone() == (2,)


def refusal_alone(conn: Connection, statement: str) -> str:
    """SQLSTATE of a statement that is its own transaction."""
    try:
        conn.execute(statement.encode())
    except psycopg.Error as error:
        return error.sqlstate or "?"
    return ""


def test_hello(conn: Connection, clock: Clock) -> None:
    """A worker is told its number, the settings and the instant; a second hello keeps the number."""
    call = ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ())
    (first,) = ask(conn, call)
    (second,) = ask(conn, call)
    assert first["number"] == second["number"]
    assert first["now"] == clock.now_ms
    assert first["settings"]["lease_ttl_ms"] == "15000"


def test_watch(conn: Connection) -> None:
    """The watch over leases is shared by those who are present; it matters while others hold tasks."""
    watch = ("select durable.worker_watch_v1('W')", ())
    ask(conn, ("select durable.worker_hello_v1('W', '{g}', '{w}', '{1}', null)", ()))
    begin_run(conn, "r")
    assert ask(conn, watch) == (-1,)
    begin_run(conn, "s", "V")
    assert ask(conn, watch) == (1,)
