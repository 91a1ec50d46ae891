"""Law: the engine waits for no user. What a report, claim or sweep cannot lock is left out whole and named;
the rest is done as if it had not been asked for. Turns of the engine are waited for, if they are marked
and older.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pyengine.core.worker.blocked_runs import Holder
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.roles import who_works
from tests.support.verbs import (
    NEVER,
    TTL_MS,
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    claim,
    complete,
    create,
    done,
    dump,
    heartbeat,
    promise,
    report,
    run,
    server_pid,
    start,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    turn,
)
from tests.support.why import why

ROWS = {
    "promise": "select 1 from durable._promises where id = %s for no key update",
    "task": "select 1 from durable._tasks where id = %s for no key update",
    "head": "select 1 from durable._executions where id = %s for no key update",
    "fence": "select 1 from durable._tasks where id = %s for key share",
}
WRITTEN = ("_promises", "_executions", "_journal", "_tasks", "_resumes", "_callbacks", "_inboxes")


@contextmanager
def holding(dsn: str, row: str, *ids: str) -> Iterator[Connection]:
    """A user's open transaction over rows of these ids."""
    with psycopg.connect(dsn) as user:
        for id_ in ids:
            assert user.execute(ROWS[row], (id_,)).rowcount == 1  # type: ignore[call-overload]
        yield user


class Family:
    """Run `parent` with its child run, which it waits for; run `other`, which waits for that child too."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        parent = begin_run(conn, "parent")
        answer = take_turn(conn, "W", report(parent, commands=[run(0, queue="kids")]))
        take_turn(conn, "W", report(parent, end=suspend(0), seen=answer.next_of(parent)))
        self.child = claim(conn, "W", "kids")
        other = begin_run(conn, "other")
        answer = take_turn(conn, "W", report(other, commands=[adopt(0, "parent.0")]))
        take_turn(conn, "W", report(other, end=suspend(0), seen=answer.next_of(other)))
        self.free = begin_run(conn, "free")


def verdicts(conn: Connection, *reports: dict[str, Any], of: tuple[Held, ...]) -> list[str]:
    """Verdicts of one turn."""
    answer = take_turn(conn, "W", *reports)
    return [answer.of(held)[0] for held in of]


@pytest.mark.parametrize("owner", ["parent.0", "parent", "other"])
@pytest.mark.parametrize("row", ROWS)
def test_an_end_needs_all_that_it_touches(dsn: str, conn: Connection, row: str, owner: str) -> None:
    """A child ends with its promise, task and head, and the task and head of each who awaits it, or not at
    all; the report beside it is taken. Sent again it is taken too.
    """
    family = Family(conn)
    reports = report(family.child, end=complete()), report(family.free, outcomes=[done(0)])
    # a promise of one who awaits is not touched, and waking him lets a fence pass
    passes = owner != "parent.0" and row in ("promise", "fence")
    before = dump(conn, ["_callbacks"])
    with holding(dsn, row, owner):
        assert verdicts(conn, *reports, of=(family.child, family.free)) == ["ok" if passes else "busy", "ok"]
        if not passes:
            assert task_of(conn, "parent.0") == ("acquired", 1, "W")
            assert dump(conn, ["_callbacks"]) == before
    if not passes:
        assert verdicts(conn, reports[0], of=(family.child,)) == ["ok"]
    assert task_of(conn, "parent") == task_of(conn, "other") == ("pending", 1, None)


@pytest.mark.parametrize(
    ("row", "verdict"), [("promise", "ok"), ("task", "busy"), ("head", "busy"), ("fence", "ok")]
)
def test_a_result_needs_task_and_head(dsn: str, conn: Connection, row: str, verdict: str) -> None:
    """A report that goes on needs no promise, and lets a user's fence pass."""
    held, free = begin_run(conn, "r"), begin_run(conn, "free")
    reports = report(held, outcomes=[done(0)]), report(free, outcomes=[done(0)])
    with holding(dsn, row, "r"):
        assert verdicts(conn, *reports, of=(held, free)) == [verdict, "ok"]
    rows = "select count(*) from durable._journal where type = 'step_completed' and execution = %s"
    assert ask(conn, (rows, (held.execution,))) == (int(verdict == "ok"),)


@pytest.mark.parametrize("row", ["promise", "adoptions"])
def test_an_adoption_never_waits_for_a_lock(dsn: str, conn: Connection, stage: Stage, row: str) -> None:
    """Who wants to wait for a promise that somebody holds, or for a run while another's adoption is not
    committed, is busy.
    """
    held, free = begin_run(conn, "r"), begin_run(conn, "free")
    ask(conn, create("x", target="somewhere"))
    user = stage.player("user")
    user.begin()
    if row == "promise":
        user.do(ROWS["promise"], ("x",)).rows()
    else:
        user.do("select pg_advisory_xact_lock(1685417575, 0)").rows()
    answer = take_turn(conn, "W", report(held, commands=[adopt(0, "x")]), report(free, outcomes=[done(0)]))
    assert (answer.of(held)[0], answer.of(free)[0]) == ("busy", "ok")
    assert answer.raw["locked"] == ["x"]
    user.commit()
    assert take_turn(conn, "W", report(held, commands=[adopt(0, "x")])).of(held) == ("ok", "acquired")


@pytest.mark.parametrize("row", ["promise", "task", "head", "fence"])
def test_a_locked_single_end_answers_as_the_batch_path(dsn: str, conn: Connection, row: str) -> None:
    """The short way for one end tells the same as the long one."""
    held = begin_run(conn, "r")
    with holding(dsn, row, "r"):
        answer = take_turn(conn, "W", report(held, end=complete()))
        assert (answer.raw["busy"], answer.raw["locked"]) == ([held.execution], ["r"])
    assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("ok", "done")


def test_a_busy_report_leaves_the_others_unchanged(dsn: str, conn: Connection, clock: Clock) -> None:
    """A turn with a busy report writes, byte for byte, what the turn without it writes."""
    family = Family(conn)
    more = begin_run(conn, "more")
    rest = (
        report(family.free, outcomes=[done(0)], commands=[timer(1, 100), promise(2)]),
        report(more, outcomes=[done(0)], end=complete()),
    )
    found = []
    with holding(dsn, "head", "other"):
        for reports in ((report(family.child, end=complete()), *rest), rest):
            with conn.transaction(force_rollback=True):
                take_turn(conn, "W", *reports)
                found.append(dump(conn, WRITTEN))
    assert found[0] == found[1]
    assert any("100" in str(row) for row in found[0]["_journal"])


# -- claims


def children_of(conn: Connection, name: str, count: int) -> None:
    """A run with so many ready children, which it waits for."""
    parent = begin_run(conn, name)
    answer = take_turn(conn, "W", report(parent, commands=[run(n, queue="kids") for n in range(count)]))
    take_turn(conn, "W", report(parent, end=suspend(*range(count), kind="all"), seen=answer.next_of(parent)))


def test_a_locked_owner_hides_no_run_from_a_claim(dsn: str, conn: Connection) -> None:
    """The children of a run that somebody holds are left out, and cost nobody behind them his place."""
    children_of(conn, "parent", 12)
    for number in range(3):
        ask(conn, start(f"behind-{number}", queue="kids"))
    with holding(dsn, "head", "parent"):
        answer = take_turn(conn, "W", want=3, queues=["kids"])
        assert sorted(task.id for task in answer.tasks) == ["behind-0", "behind-1", "behind-2"]
        assert answer.raw["locked"] == ["parent"]
    assert len(take_turn(conn, "W", want=50, queues=["kids"]).tasks) == 12


def test_many_locked_runs_hide_no_run_for_long(dsn: str, conn: Connection, clock: Clock) -> None:
    """Who holds more runs than a claim looks at puts these back for a moment, so that the next claim comes to
    those behind them.
    """
    for number in range(20):
        ask(conn, start(f"held-{number:02}", queue="q"))
    clock.advance(1)
    ask(conn, start("behind", queue="q"))
    with holding(dsn, "head", *(f"held-{number:02}" for number in range(20))):
        found: list[str] = []
        for _ in range(20):
            answer = take_turn(conn, "W", want=2, queues=["q"])
            found += [task.id for task in answer.tasks]
            if found:
                break
            assert answer.raw["locked"]
        assert found == ["behind"]
    clock.advance(500)
    assert len(take_turn(conn, "W", want=50, queues=["q"]).tasks) == 20


def test_a_claim_beside_reports_leaves_out_too(dsn: str, conn: Connection) -> None:
    """The reports of such a turn are taken."""
    held = begin_run(conn, "r")
    for name in ("a", "b"):
        ask(conn, start(name, queue="q"))
    with holding(dsn, "head", "a"):
        answer = take_turn(conn, "W", report(held, outcomes=[done(0)]), want=2, queues=["q"])
    assert answer.of(held)[0] == "ok"
    assert ([task.id for task in answer.tasks], answer.raw["locked"]) == (["b"], ["a"])


# -- sweeps


@pytest.mark.parametrize("row", ["task", "head"])
def test_timers_of_others_fire(dsn: str, conn: Connection, clock: Clock, row: str) -> None:
    """Twenty timers are due, the owner of one is held: nineteen fire, the twentieth after the commit. Nothing
    says that there is something to do at once.
    """
    for number in range(20):
        held = begin_run(conn, f"r{number}")
        answer = take_turn(conn, "W", report(held, commands=[timer(0, 10)]))
        take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    ask(conn, create("later", clock.now_ms + 1010, external="true"))
    clock.advance(10)
    with holding(dsn, row, "r7"):
        answer = tick(conn)
        assert (answer["promises"], answer["locked"], answer["more"]) == (19, ["r7"], False)
        assert answer["next_due_ms"] == 1000
    answer = tick(conn)
    assert (answer["promises"], answer["locked"]) == (1, [])


def test_a_locked_owner_hides_no_timer(dsn: str, conn: Connection, clock: Clock) -> None:
    """More timers of one held owner than a round settles are due before those of others."""
    for name, count in (("many", 9), ("one", 1)):
        held = begin_run(conn, name)
        answer = take_turn(conn, "W", report(held, commands=[timer(n, 10) for n in range(count)]))
        end = suspend(*range(count), kind="all" if count > 1 else None)
        take_turn(conn, "W", report(held, end=end, seen=answer.next_of(held)))
        clock.advance(1)
    clock.advance(10)
    with holding(dsn, "head", "many"):
        answer = tick(conn, 3)
        assert (answer["promises"], answer["locked"]) == (1, ["many"])
    assert tick(conn)["promises"] == 9


def test_the_lease_of_a_child_of_a_locked_owner(dsn: str, conn: Connection, clock: Clock) -> None:
    """Is taken after the commit; that of another run at once."""
    family = Family(conn)
    assert family.child.id == "parent.0"
    clock.advance(TTL_MS)
    with holding(dsn, "head", "parent"):
        answer = tick(conn)
        assert (answer["leases"], answer["locked"]) == (1, ["parent"])
    assert tick(conn)["leases"] == 1


@pytest.mark.parametrize("alive", [True, False])
def test_a_lease_that_could_not_be_renewed(dsn: str, conn: Connection, clock: Clock, alive: bool) -> None:
    """Its worker keeps it, as long as it is heard of."""
    held = begin_run(conn, "r")
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')", ()))
    clock.advance(TTL_MS - 1)
    with holding(dsn, "task", "r"):
        assert ask(conn, heartbeat("W", held)) == ([],)
        clock.advance(TTL_MS - 1 if alive else TTL_MS)
    assert tick(conn)["leases"] == int(not alive)
    if alive:
        ask(conn, heartbeat("W", held))
        assert ask(conn, ("select unrenewed from durable._workers", ())) == ([],)
        assert ask(conn, ("select expires_at from durable._tasks", ())) == (clock.now_ms + TTL_MS,)


def test_a_lease_in_a_locked_table_is_kept(dsn: str, conn: Connection, clock: Clock) -> None:
    """A user has locked the whole table of tasks. The heartbeat gives up after its lock_timeout, and records
    that it could not renew; a tick right after the commit takes no lease.
    """
    held = begin_run(conn, "r")
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')", ()))
    clock.advance(TTL_MS - 1)
    conn.execute("set lock_timeout = '100ms'")
    with psycopg.connect(dsn) as user:
        user.execute("lock table durable._tasks in access exclusive mode")
        assert ask(conn, heartbeat("W", held)) == ([],)
        clock.advance(TTL_MS - 1)
    assert tick(conn)["leases"] == 0
    assert ask(conn, heartbeat("W", held)) == ([],)
    assert ask(conn, ("select unrenewed from durable._workers", ())) == ([],)
    clock.advance(TTL_MS)
    assert tick(conn)["leases"] == 1


def test_a_heartbeat_that_can_write_nothing_says_so(dsn: str, conn: Connection, clock: Clock) -> None:
    """Lease and worker are held: the worker is told that the lease is as it was, for a sweep that holds both
    may give it away; of what it has renewed it is told nothing.
    """
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')", ()))
    held, free = begin_run(conn, "h"), begin_run(conn, "f")
    with psycopg.connect(dsn) as sweep:
        sweep.execute("select from durable._workers where id = 'W' for update")
        sweep.execute("select from durable._tasks where id = 'h' for update")
        assert ask(conn, heartbeat("W", held, free)) == ([-held.execution],)
    assert ask(conn, heartbeat("W", held, free)) == ([],)


# -- turns of the engine


@pytest.mark.parametrize(
    ("marked", "older", "waits"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_only_older_marked_turns_are_waited_for(
    conn: Connection, stage: Stage, marked: bool, older: bool, waits: bool
) -> None:
    """A marked turn that is older is waited for until it ends; nobody else is."""
    conn.execute("alter function durable._await_engine_xact(xid) set lock_timeout = '20s'")
    held = begin_run(conn, "r")
    other, worker = stage.player("other"), stage.player("worker")
    other.begin()
    if older:
        other.do("select pg_current_xact_id()").rows()
    worker.begin()
    worker.do("select pg_current_xact_id()").rows()
    other.do("select pg_current_xact_id()").rows()
    if marked:
        other.do("select pg_advisory_xact_lock(durable._engine_xact_key(pg_current_xact_id()::xid))").rows()
    other.do(ROWS["head"], ("r",)).rows()
    answer = worker.do(*turn("W", report(held, outcomes=[done(0)])))
    assert answer.blocked == waits
    other.commit()
    assert answer.value()["busy"] == ([] if waits else [held.execution])
    worker.commit()


def test_a_turn_marks_itself_only_alone(conn: Connection) -> None:
    """In a transaction block, which a user may leave open, nothing is marked."""
    marks = (
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
        "where l.locktype = 'advisory' and l.classid = 1685417580 and d.datname = current_database()"
    )
    # the lock ends with the statement, so it is seen from within
    alone = f"select ({marks}) from (select durable._mark_engine_xact() offset 0) m where m is not null"
    assert conn.execute(alone.encode()).fetchone() == (1,)
    with conn.transaction():
        conn.execute("select durable._mark_engine_xact()")
        assert conn.execute(marks).fetchone() == (0,)


def test_a_wait_for_a_stopped_turn_ends(conn: Connection, stage: Stage) -> None:
    """A turn whose process was stopped in the middle of it is waited for as long as a turn takes, then left
    out.
    """
    held = begin_run(conn, "r")
    other = stage.player("other")
    other.begin()
    other.do("select pg_advisory_xact_lock(durable._engine_xact_key(pg_current_xact_id()::xid))").rows()
    other.do(ROWS["head"], ("r",)).rows()
    assert take_turn(conn, "W", report(held, outcomes=[done(0)])).of(held)[0] == "busy"
    other.commit()


def test_a_schedule_whose_promise_somebody_creates(dsn: str, conn: Connection, clock: Clock) -> None:
    """It stays due until the other transaction ends; other schedules and timers go on."""
    for name in ("held", "free"):
        plan = "select durable.schedule_create(%s, '@hourly', %s, 3600000, null, null, '{}', 'UTC')"
        conn.execute(plan, (name, f"{name}-{{{{.timestamp}}}}"))
    ask(conn, create("due", clock.now_ms + 3_600_000, external="true"))
    instant = ask(conn, ("select next_run_at from durable._schedules where id = 'held'", ()))[0]
    clock.advance(3_600_000)
    with psycopg.connect(dsn) as user:
        user.execute("select durable.promise_create(%s, %s)", (f"held-{instant}", NEVER))
        assert tick(conn)["schedules"] == 1
        assert tick(conn)["promises"] == 1
        user.rollback()
    assert tick(conn)["schedules"] == 1
    made = "select count(*) from durable._promises where starts_with(id, 'held-') or starts_with(id, 'free-')"
    assert ask(conn, (made, ())) == (2,)


def test_engine_sessions_are_not_reported_as_blockers(dsn: str, conn: Connection) -> None:
    """Who holds a run is told, unless it is a turn or tick of the engine: that is over in a moment. What a
    worker reports again is not written again."""
    begin_run(conn, "r")
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    reported = ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ()))
    assert reported == ([],)
    version = ("select ctid::text from durable._workers", ())
    before = ask(conn, version)
    blocked = "select id, pid from durable.blocked"
    for row in ROWS:
        with holding(dsn, row, "r") as user:
            pid = server_pid(user)
            assert conn.execute(blocked).fetchall() == [("r", pid)]
            (told,) = ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ()))
            assert [one["pid"] for one in told] == [pid]
            user.execute("select pg_advisory_xact_lock(durable._engine_xact_key(pg_current_xact_id()::xid))")
            assert conn.execute(blocked).fetchall() == []
            assert ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ())) == ([],)
    # a transaction that stays open keeps each version of the row
    assert ask(conn, version) == before
    ask(conn, ("select durable.worker_blocked_v1('W', '{}')", ()))
    assert ask(conn, ("select blocked from durable._workers", ())) == ([],)


@pytest.mark.session("logs in with a role of its own")
def test_what_a_role_may_not_see_is_said_to_be_hidden(dsn: str, conn: Connection) -> None:
    """The session of another role that holds a run or a row of workflows is told to a plain role without its
    age, which is -1 and not 0: a worker takes it for one that may have held them for long.
    """
    begin_run(conn, "r")
    hello = ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ())
    ask(conn, hello)
    with who_works(conn) as role, holding(dsn, "task", "r") as user:
        user.execute("update durable._workflows set seen_at = seen_at")
        hidden = {"pid": user.info.backend_pid, "user": "postgres", "state": "", "age_ms": -1, "query": ""}
        with psycopg.connect(dsn, user=role, autocommit=True) as plain:
            (told,) = ask(plain, ("select durable.worker_blocked_v1('W', '{r}')", ()))
            (writers,) = ask(plain, ("select durable._writers_of_workflows()", ()))
            assert "not to be seen by this role" in why(plain, "r")[0][3]
        assert (told, writers) == ([{"id": "r", **hidden}], [hidden])
        holder = Holder(**told[0])
        assert holder.may_block(10_000) and "since when is not shown" in str(holder)
        ((seen,),) = ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ()))
        assert seen["age_ms"] >= 0 and seen["query"].startswith("update durable._workflows")
        assert not Holder(**seen).may_block(10_000)


@pytest.mark.session("the other database")
def test_sessions_of_other_databases_are_not_reported_as_blockers(dsn: str, conn: Connection) -> None:
    """All databases of a server share one list of locks, and an engine in another database takes the same
    advisory locks.
    """
    begin_run(conn, "r")
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    adoption = "select pg_advisory_xact_lock(1685417575, 0)"
    with psycopg.connect(dsn, dbname="postgres") as elsewhere:
        elsewhere.execute(adoption)
        assert ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ())) == ([],)
        assert conn.execute("select id, pid from durable.blocked").fetchall() == []
    with psycopg.connect(dsn) as user:
        user.execute(adoption)
        blocked = conn.execute("select id, pid from durable.blocked").fetchall()
        assert blocked == [("r", server_pid(user))]


@pytest.mark.parametrize("row", ROWS)
def test_a_lock_of_a_savepoint_is_reported(dsn: str, conn: Connection, row: str) -> None:
    """A user locks a row in a subtransaction that is over, as Django's atomic blocks and functions with an
    exception handler do. The row names the subtransaction, and the list of locks only the transaction.
    """
    begin_run(conn, "r")
    with psycopg.connect(dsn) as user, psycopg.connect(dsn) as other, psycopg.connect(dsn) as older:
        older.execute("select pg_current_xact_id()")
        with user.transaction():
            user.execute("select 1")
            with user.transaction():
                user.execute(ROWS[row], ("r",))  # type: ignore[call-overload]
            other.execute("select from durable._executions where id = 'nobody' for update")
            found = conn.execute("select id, pid from durable._holders('{r}')").fetchall()
            assert found == [("r", server_pid(user))]


@pytest.mark.parametrize("mode", ["share", "access exclusive"])
def test_a_lock_of_a_table_is_reported(dsn: str, conn: Connection, mode: str) -> None:
    """A session that keeps all others from writing a table of the engine holds every run."""
    begin_run(conn, "r")
    with psycopg.connect(dsn) as user:
        user.execute(f"lock table durable._executions in {mode} mode".encode())
        conn.execute("set lock_timeout = '100ms'")
        found = conn.execute("select id, pid from durable._holders('{r}')").fetchall()
        assert found == [("r", server_pid(user))]
        (told,) = ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ()))
        assert [one["pid"] for one in told] == [server_pid(user)]
    assert conn.execute("select id, pid from durable._holders('{r}')").fetchall() == []


@pytest.mark.session("prepares a transaction")
@pytest.mark.parametrize("what", [*ROWS, "savepoint", "table"])
def test_a_prepared_transaction_is_reported(dsn: str, conn: Connection, what: str) -> None:
    """It has no session any more: its name is told, with what ends it, and no session is blamed for it."""
    begin_run(conn, "r")
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    gid = f"it's {conn.info.dbname}"
    with psycopg.connect(dsn) as bystander, psycopg.connect(dsn) as user:
        if what != "savepoint":
            # an older one that writes, which is named for the lock of a savepoint alone
            bystander.execute("select pg_current_xact_id()")
            bystander.execute("select from durable._executions where id = 'nobody' for update")
        user.execute("select pg_current_xact_id()")
        if what == "savepoint":
            user.execute("savepoint s")
        if what == "table":
            user.execute("lock table durable._executions in share mode")
        else:
            user.execute(ROWS.get(what, ROWS["task"]), ("r",))  # type: ignore[call-overload]
        user.execute(f"prepare transaction {sql.Literal(gid).as_string()}".encode())
        try:
            ((holder,),) = ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ()))
            blocked = conn.execute("select id, pid, state, application from durable.blocked").fetchall()
            assert blocked == [("r", None, "prepared", f"the prepared transaction {gid}")]
            assert (holder["id"], holder["pid"], holder["prepared"]) == ("r", 0, gid)
            assert "rollback prepared 'it''s " in str(Holder(**holder))
            (_, _, cause, sentence), *_ = why(conn, "r")
            assert cause == "locked" and sentence.startswith(f"is held by the prepared transaction {gid} (")
        finally:
            conn.execute(f"rollback prepared {sql.Literal(gid).as_string()}".encode())
    assert ask(conn, ("select durable.worker_blocked_v1('W', '{r}')", ())) == ([],)
