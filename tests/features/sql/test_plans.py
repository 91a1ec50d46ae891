"""Law: what a program calls reads as many rows as it handles, however many there are, and never a table
that grows from end to end; also with plans that were made while the tables were empty, and after a vacuum
that found them so.

The counters of the server are the witness: sequential scans and rows read through indexes, by table, for
each call on full tables.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pyengine.core.database.statements.procedures import SIGNAL, START, Procedure
from tests.support.cluster import Server, create_database, drop_database
from tests.support.full_calls import FILL_CALLS, VIEWS, call_calls
from tests.support.verbs import (
    NEVER,
    TTL_MS,
    Call,
    Connection,
    Held,
    acquire,
    adopt,
    ask,
    begin_run,
    begun,
    cancel,
    cancelled,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    heartbeat,
    intent,
    join_set,
    journal,
    park,
    pick,
    progress,
    promise,
    receive,
    release,
    release_unknown,
    report,
    run,
    send,
    start,
    submit,
    suspend,
    take_turn,
    timer,
    turn,
)

# what one call may read through the indexes of all tables together; each table has twenty times as many rows
BOUND = 250
# a sweep looks at every lease that is held: as many as workers may hold, not as there are tasks
SWEEPS = {"tick": 1, "tick_for_people": 1, "sweep_of_the_cancelled": 1}
# a portion of a purge looks at a thousand heads and their promises, or at a thousand promises
WALKS = {
    "purge_among_runs": 2000,
    "ended_among_heads": 2000,
    "purge_among_promises": 1000,
    "unblock_expire": 1000,
}
GROWING = (
    "relname ~ '^_(promises|tasks|callbacks|listeners|resumes|executions|journal.*|unblocks|schedules"
    "|inboxes|signals|join_sets|members|progress|row_waits|row_events|removed|objects|object_uses|closures"
    "|refs|pins|pin_log|calls|call_attempts|call_waiters|call_steps|call_polls|claims)$'"
)
COUNTERS = f"""
select relname, true, seq_tup_read from pg_stat_user_tables where schemaname = 'durable' and {GROWING}
union all
select indexrelname, false, idx_tup_read from pg_stat_user_indexes where schemaname = 'durable' and {GROWING}
"""
FILL = """
insert into durable._promises (id, timeout_at, created_at, head, state, settled_at, external, target,
task_version, failure, failed_at)
select kind || n, case when x.ended then 3 else 9007199254740991 end, 1,
1000000 + row_number() over (),
       case kind when 'over' then 'resolved' when 'lost' then 'rejected' else 'pending' end,
       case when x.ended then 2 end, true, 'poll://any@' || kind, case when x.ended then 1 end,
       case kind when 'lost' then 'failed' end, case kind when 'lost' then to_timestamp(n) end
from generate_series(1, %(count)s) n, unnest(array['over', 'lost', 'ready', 'held', 'asleep']) kind,
     lateral (select kind in ('over', 'lost') as ended) x;
insert into durable._executions (execution, id, bucket, workflow, workflow_version, next_seq)
overriding system value
select p.head, p.id, (select min(bucket) from durable._buckets), 'w', '1', 1 from durable._promises p where
p.head >= 1000000;
update durable._executions set status = 'cancelling', cancel_until = durable._now_ms() + 1000000000
where id like 'held%%';
insert into durable._journal (execution, bucket, seq, ts, type)
select h.execution, h.bucket, 0, 1, 'execution_started' from durable._executions h
where h.execution >= 1000000;
insert into durable._inboxes (execution, name, delivered)
select h.execution, 'go', 1 from durable._executions h where h.id like 'ready%%';
insert into durable._signals (execution, name, delivery, key)
select h.execution, 'go', 1, 'k' from durable._executions h where h.id like 'ready%%';
insert into durable._join_sets (execution, child)
select h.execution, 0 from durable._executions h where h.id like 'ready%%';
insert into durable._members (execution, child, join_set)
select h.execution, 1, 0 from durable._executions h where h.id like 'ready%%';
insert into durable._progress (id, changed_at, execution, seq, done)
select h.id, 1, h.execution, 1, 5 from durable._executions h where h.execution >= 1000000;
insert into durable._promises (id, timeout_at, created_at, external, tags)
select 'x' || n, durable._now_ms() + 1000000000 + n, 1, true,
jsonb_build_object('number', n::text, 'resonate:branch', 'b' || n) from generate_series(1, %(count)s) n;
insert into durable._tasks (id, deadline, execution, queue, workflow, workflow_version, state, version,
retry_at, pid, ttl, expires_at)
select p.id, p.timeout_at, p.head, durable._queue_of(p.target), 'w', '1',
       case when p.id like 'ready%%' then 'pending' when p.id like 'held%%' then 'acquired' else 'suspended'
       end, 1,
       case when p.id like 'ready%%' then 1 end, case when p.id like 'held%%' then 'BULK' end,
       case when p.id like 'held%%' then 9007199254740991 end,
       case when p.id like 'held%%' then 9007199254740991 end
from durable._promises p where p.head >= 1000000 and p.state = 'pending';
insert into durable._callbacks (awaited_id, awaiter_id) select 'x' || n, 'asleep' || n from
generate_series(1, %(count)s) n;
insert into durable._row_waits (execution, watch, promise_id, key, since)
select 1000000 + n, 1, 'x' || n, jsonb_build_object('id', n), '1' from generate_series(1, %(count)s) n;
insert into durable._listeners (awaited_id, address) select 'x' || n, 'poll://any@g' from generate_series(1,
%(count)s) n;
insert into durable._resumes (task_id, awaited_id) select 'held' || n, 'over' || n from generate_series(1,
%(count)s) n;
insert into durable._unblocks (promise_id, address, created_at) select 'over' || n, 'poll://any@g', 1 from
generate_series(1, %(count)s) n;
insert into durable._schedules (id, cron, promise_id, promise_timeout, created_at, next_run_at)
select 'often' || n, '* * * * *', 'x', 1, 1, durable._now_ms() + 1000000000 + n
from generate_series(1, %(count)s) n;
"""


def prepare(conn: Connection, tag: str) -> dict[str, Held]:
    """Objects for every call, and their calls made once, which is when a session makes its plans."""
    for name in ("e", "f", "g", "i"):
        ask(conn, create(f"{tag}{name}", external="true"))
    for name in ("t1", "t2", "t3", "t4"):
        ask(conn, create(f"{tag}{name}", target=f"p{tag}"))
    runs = {}
    for name in ("r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9"):
        ask(conn, start(f"{tag}{name}", queue=f"{tag}{name}", key=f"{tag}{name}"))
        if name != "r5":
            runs[name] = claim(conn, tag, f"{tag}{name}")
    return runs


def searches(tag: str) -> Iterator[tuple[str, Call]]:
    """Doors that answer pages, and the delivery of messages."""
    yield "search_by_prefix", ("select count(*) from durable.promise_search(p_prefix => %s)", (f"{tag}r",))
    yield (
        "search_by_tag",
        ("""select count(*) from durable.promise_search(p_tags => '{"number": "77"}')""", ()),
    )
    yield (
        "search_page",
        ("select count(*) from durable.promise_search(p_limit => 50, p_cursor => 'over5')", ()),
    )
    yield (
        "search_state",
        ("select count(*) from durable.promise_search('pending', p_limit => 50, p_cursor => 'ready5')", ()),
    )
    yield "search_tasks", ("select count(*) from durable.task_search(p_limit => 10, p_cursor => 'held5')", ())
    yield "search_pending_tasks", ("select count(*) from durable.task_search('pending', 10, 'ready5')", ())
    yield "search_fulfilled_tasks", ("select count(*) from durable.task_search('fulfilled', 10, 'over5')", ())
    yield "preload", ("select count(*) from durable.promise_preload('x7')", ())
    yield "unblock_claim", ("select count(*) from durable.unblock_claim(p_limit => 10)", ())
    yield "unblock_claim_for", ("select count(*) from durable.unblock_claim('poll://any@g', 10)", ())
    each = ("select count(*) from durable.unblock_claim_each('{poll://any@g}', '{10}')", ())
    yield "unblock_claim_each", each
    yield (
        "unblock_defer",
        ("select durable.unblock_defer_many('{over8,x1}', '{poll://any@g,poll://any@g}', '{1,1}')", ()),
    )
    yield "unblock_expire", ("select durable.unblock_expire('poll://any@g', 9007199254740991)", ())
    each = ("select count(*) from durable.unblock_acknowledge_each('{over7,x1}', '{poll://any@g,x}')", ())
    yield "unblock_acknowledge_each", each
    yield "unblock_acknowledge", ("select durable.unblock_acknowledge('over9', 'poll://any@g')", ())


def settle(id_: str) -> Call:
    """Settle a promise by the entry point, which has the settings of plans."""
    return "select state from durable.promise_settle(%s, 'resolved')", (id_,)


def protocol_calls(tag: str) -> Iterator[tuple[str, Call]]:
    """Doors of the protocol."""
    yield "create", create(f"{tag}new", external="true")
    yield "create_task", create(f"{tag}task", target="g")
    yield (
        "create_with_task",
        (
            "select durable.task_create(%s, 9007199254740991, 'P', 9, null, null, %s)",
            (f"{tag}made", '{"resonate:target": "g"}'),
        ),
    )
    yield "get", ("select durable.promise_get(%s)", (f"{tag}e",))
    yield "register_callback", ("select durable.promise_register_callback(%s, %s)", (f"{tag}e", f"{tag}t1"))
    yield "register_listener", ("select durable.promise_register_listener(%s, 'g')", (f"{tag}e",))
    yield "acquire", acquire(f"{tag}t1")
    yield "acquire_2", acquire(f"{tag}t2")
    yield "acquire_3", acquire(f"{tag}t3")
    yield "task_get", ("select durable.task_get(%s)", (f"{tag}t1",))
    yield "task_heartbeat", ("select durable.task_heartbeat('P', %s, '{1,1}')", ([f"{tag}t1", f"{tag}t2"],))
    yield "fence", ("select durable.fence(%s, 1)", (f"{tag}t1",))
    yield "suspend", park(f"{tag}t1", f"{tag}e", f"{tag}f")
    yield "settle", settle(f"{tag}e")
    fence = (f"{tag}t2", f"{tag}f")
    yield "fence_settle", ("select durable.task_fence_settle(%s, 1, %s, 'resolved')", fence)
    yield (
        "fence_create",
        ("select durable.task_fence_create(%s, 1, %s, 9007199254740991)", (f"{tag}t2", f"{tag}fresh")),
    )
    yield "release", ("select durable.task_release(%s, 1)", (f"{tag}t2",))
    yield "fulfill", ("select durable.task_fulfill(%s, 1, 'resolved')", (f"{tag}t3",))
    yield "halt", ("select durable.task_halt(%s)", (f"{tag}t4",))
    yield "continue", ("select durable.task_continue(%s)", (f"{tag}t4",))
    yield "offer", ("select durable.task_offer(%s, 10)", (f"p{tag}",))
    yield (
        "offer_defer",
        ("select durable.task_offer_defer_many(%s, '{0,1}', '{1,1}')", ([f"{tag}t1", f"{tag}t4"],)),
    )


KEPT: list[tuple[str, dict[str, Any]]] = [
    ("InvokeScheduled", {"promise_id": "j.0", "kind": "Local", "function_name": "f", "input": 1}),
    ("InvokeScheduled", {"promise_id": "j.1", "kind": "External", "function_name": "f", "input": 1}),
    ("TimerScheduled", {"promise_id": "j.2", "duration": 1, "fire_at": 1}),
    ("JoinSetCreated", {"join_set_id": "j.3"}),
    ("JoinSetSubmitted", {"join_set_id": "j.3", "promise_id": "j.0"}),
    ("InvokeStarted", {"promise_id": "j.0", "attempt": 1}),
    ("InvokeRetrying", {"promise_id": "j.0", "failed_attempt": 1, "error": "e", "retry_at": 1}),
    ("InvokeStarted", {"promise_id": "j.0", "attempt": 2}),
    ("ExecutionAwaiting", {"waiting_on": ["j.0", "j.1", "j.2"], "kind": {"tag": "Any"}}),
    ("InvokeCompleted", {"promise_id": "j.0", "attempt": 2, "result": 1}),
    ("TimerFired", {"promise_id": "j.2"}),
    ("ExecutionResumed", {}),
    ("JoinSetAwaited", {"join_set_id": "j.3", "promise_id": "j.0", "result": 1}),
    ("SignalDelivered", {"signal_name": "s"}),
    ("SignalReceived", {"promise_id": "j.4", "signal_name": "s"}),
    ("CancelRequested", {}),
    ("ExecutionCancelled", {}),
]


def kept_calls(tag: str) -> Iterator[tuple[str, Call]]:
    """The life of a journal that its client keeps."""
    say = "select durable.journal_append(%s, %s, %s, %s::jsonb)"
    begun = (f"{tag}j", None, "ExecutionStarted", '{"component_digest": "d", "input": 1}')
    yield "append ExecutionStarted", (say, begun)
    for number, (event, payload) in enumerate(KEPT):
        told = json.dumps(payload).replace('"j.', f'"{tag}j.')
        yield f"append {number} {event}", (say, (f"{tag}j", 1, event, told))


def steering_calls(tag: str, runs: dict[str, Held]) -> Iterator[tuple[str, Call]]:
    """Signals, join sets, adopted promises, requests of cancellation, generations."""
    r6, r7, r8 = (runs[f"r{number}"] for number in (6, 7, 8))
    yield "signal", send(f"{tag}r6", key="k")
    yield "signal_again", send(f"{tag}r6", key="k")
    commands = [receive(0), receive(1, "too"), adopt(2, f"{tag}g"), intent(3), join_set(4), submit(3, 4)]
    yield "turn_that_receives", turn(tag, report(r6, commands=commands))
    yield "turn_that_waits_for_a_signal", turn(tag, report(r6, end=suspend(1, 2), seen=r6.next + 8))
    yield "signal_that_wakes", send(f"{tag}r6", "too")
    yield "turn_with_a_member", turn(tag, report(r7, commands=commands[3:]))
    yield "turn_that_completes_it", turn(tag, report(r7, outcomes=[done(3)]))
    yield "turn_that_takes_it", turn(tag, report(r7, commands=[pick(3, 4), join_set(5), promise(6)]))
    yield "turn_with_a_late_member", turn(tag, report(r7, commands=[submit(6, 5)]))
    yield "settle_what_was_adopted", settle(f"{tag}g")
    yield "turn_that_adopts_a_run", turn(tag, report(r7, commands=[adopt(7, f"{tag}r8"), adopt(8, "nobody")]))
    commands = [run(number, queue=f"{tag}r8-{number}") for number in range(3)]
    yield "turn_with_a_family", turn(tag, report(r8, commands=commands))
    yield "turn_that_closes_a_circle", turn(tag, report(r8, commands=[adopt(3, f"{tag}r7")]))
    yield "cancel_a_family", cancel(f"{tag}r8", '"why"', grace_ms=0)
    yield "cancel_again", cancel(f"{tag}r8")
    yield "turn_that_hears_of_it", turn(tag, report(r8))
    yield "cancel_by_force", cancel(f"{tag}r7", force=True)
    yield "turn_that_gives_in", turn(tag, report(r8, end=cancelled(), seen=r8.next + 7))
    yield "suspend_on_what_is_not_its_own", park(f"{tag}r9", f"{tag}i")
    yield "settle_what_it_waits_for", settle(f"{tag}i")
    yield "cancel_for_the_sweep", cancel(f"{tag}r9", grace_ms=0)
    yield "pause", ("select durable.pause(%s)", (f"{tag}r9",))
    yield "resume", ("select durable.resume(%s)", (f"{tag}r9",))
    several = ([f"{tag}r9", f"{tag}r8", f"{tag}nothing"],)
    yield "pause_many", ("select count(*) from durable.pause_many(%s)", several)
    yield "resume_many", ("select count(*) from durable.resume_many(%s)", several)
    yield "signal_many", ("select count(*) from durable.signal_many(%s, 'many')", several)
    yield "cancel_many", ("select count(*) from durable.cancel_many(%s, grace => '0')", (several[0][:1],))
    yield "settle_many", ("select count(*) from durable.settle_many(%s)", (several[0][2:],))
    yield "redrive_many", ("select count(*) from durable.redrive_many(%s)", several)
    yield "fork_many", ("select count(*) from durable.fork_many(%s, %s)", (several[0][:1], tag))
    yield "start_later", ("select durable.start('w', id => %s, delay => '1 hour')", (f"{tag}later",))
    yield "reschedule", ("select durable.reschedule(%s, delay => '2 hours')", (f"{tag}later",))
    yield "cancel_what_has_not_begun", cancel(f"{tag}later")
    yield "delete", ("select durable.delete(%s)", (f"{tag}later",))
    yield "matching_runs", ("select durable.matching_runs(at_most => 3)", ())
    yield from filters()
    yield "sweep_of_the_cancelled", ("select durable.tick_v1(500)", ())
    yield "turn_that_goes_on_as_new", turn(tag, report(runs["r4"], end=continue_as_new()))


def filters() -> Iterator[tuple[str, Call]]:
    """Portions of runs that have ended, among many that ended in other ways and at other times."""
    ended = "select durable.matching_ended_runs({}, at_most => 3)"
    span = "ended_after => to_timestamp(1000), ended_before => to_timestamp(1020)"
    for named in (f"state => 'failed', {span}", f"state => 'failed', {span}, error => 'Boom'"):
        yield f"ended: {named}", (ended.format(named), ())
    recent = "state => 'completed', workflow => 'none', started_after => now() - interval '1 hour'"
    yield "ended_among_heads", (ended.format(recent), ())


def waiting_calls(tag: str) -> Iterator[tuple[str, Call]]:
    """What comes due, what tells of it, and what is asked about it."""
    when = (f"{tag}when", f"{tag}{{{{.timestamp}}}}")
    yield "schedule", ("select durable.schedule_create(%s, '* * * * *', %s, 1)", when)
    yield "schedule_get", ("select durable.schedule_get(%s)", when[:1])
    yield "schedule_search", ("select count(*) from durable.schedule_search()", ())
    yield "schedule_delete", ("select durable.schedule_delete(%s)", when[:1])
    yield "serve", ("select durable.serve('pg_catalog.jsonb_typeof(jsonb)')", ())
    target = "sql://pg_catalog.jsonb_typeof"
    yield "start_of_a_service", ("select durable.start(%s, '[]', id => %s)", (target, f"{tag}v"))
    yield "services_due", ("select durable.services_due_v1()", ())
    yield "next_service", ("select count(*) from durable.next_service_v1()", ())
    yield "hint", ("select durable.hint_v1(true, true)", ())
    yield "promise_that_expires", create(f"{tag}soon", NEVER - 1, external="true")
    yield "settle_what_would_expire", settle(f"{tag}soon")


def purges() -> Iterator[tuple[str, Call]]:
    """Portions of a purge: of what ended, among runs that are alive, among promises of nobody."""
    portion = "select runs from durable._purge(%s, %s::text::jsonb, 2)"
    yield "purge", (portion, (NEVER, None))
    yield "purge_among_runs", (portion, (2, None))
    yield "purge_among_promises", (portion, (NEVER, '{"created_at": 0, "id": ""}'))


def calls(conn: Connection, tag: str, runs: dict[str, Held]) -> Iterator[tuple[str, Call]]:
    """Every door, with a call that has something to do."""
    yield from searches(tag)
    yield from protocol_calls(tag)
    yield "start", start(f"{tag}s1", queue=f"{tag}s")
    yield "start_by_key", ("select durable.start('w', key => %s, queue => %s)", (f"{tag}k", f"{tag}s"))
    yield (
        "start_many",
        ("select count(*) from durable.start_many('w', %s::jsonb[], queue => %s)", (["[]"] * 5, tag)),
    )
    yield "signal_from_sql", ("select durable.signal(%s, 'go', '1')", (f"{tag}r9",))
    yield "start_again", ("select durable.start('w', key => %s, queue => %s)", (f"{tag}k", f"{tag}s"))
    yield "result", ("select durable.result(%s)", (f"{tag}r1",))
    yield "why_it_runs", ("select count(*) from durable.why(%s)", (f"{tag}r1",))
    yield "why_it_is_queued", ("select count(*) from durable.why('ready77')", ())
    yield "why_it_sleeps", ("select count(*) from durable.why('asleep77')", ())
    yield "why_it_is_unknown", ("select count(*) from durable.why('nobody')", ())
    yield "why_all", ("select count(*) from durable.why_all(3)", ())
    yield "results", ("select durable.results_v1(%s)", ([f"{tag}r1", "over1", "nobody"],))
    yield "hello", ("select durable.worker_hello_v1(%s, '{q}', '{w}', '{1}', null)", (tag,))
    yield "worker_heartbeat", heartbeat(tag, runs["r1"])
    yield "claim", turn(tag, want=5, queues=[f"{tag}s"])
    commands = [run(0, queue=f"{tag}kids"), timer(1, 1), promise(2)]
    yield (
        "turn_with_children",
        turn(tag, report(runs["r1"], commands=commands), report(runs["r2"], outcomes=[done(0), begun(1)])),
    )
    yield "turn_that_suspends", turn(tag, report(runs["r1"], end=suspend(0, 1, 2), seen=runs["r1"].next + 3))
    yield "why_it_waits", ("select count(*) from durable.why(%s)", (f"{tag}r1",))
    yield "journal", journal(tag, runs["r2"])
    yield "turn_that_ends", turn(tag, report(runs["r2"], end=complete()), report(runs["r3"], end=release(5)))
    shown = progress(runs["r6"], 1, 1, stage="x")
    yield "turn_with_progress", turn(tag, report(runs["r6"], progress=shown))
    yield "set_progress", ("select durable.set_progress(%s, 1, 2)", (f"{tag}r6",))
    yield "set_value", ("select durable.set_value(%s, 'stage', '1')", (f"{tag}r6",))
    yield "get_value", ("select durable.get_value(%s, 'stage')", (f"{tag}r6",))
    yield "child_counts", ("select running from durable.child_counts(%s)", (f"{tag}r1",))
    yield "progress", ("select done from durable.progress where id = %s", (f"{tag}r6",))
    yield "settle_child", settle(f"{tag}r1.2")
    yield "turn_that_wakes", turn(tag, want=3, queues=[f"{tag}r1", f"{tag}kids"])
    yield from waiting_calls(tag)
    yield from steering_calls(tag, runs)
    yield "tick", ("select durable.tick_v1(500)", ())
    yield "watch", ("select durable.worker_watch_v1(%s)", (tag,))
    yield "tick_for_people", ("select durable.tick()", ())
    yield "release unknown", release_unknown(tag, *runs.values())
    yield "bye", ("select durable.worker_bye_v1(%s)", (tag,))
    yield "cancel", ("select durable.cancel(%s, force => true)", (f"{tag}r4",))
    yield from kept_calls(tag)
    yield "run_by_id", ("select state from durable.runs where id = %s", (f"{tag}r1",))
    yield "events_by_id", ("select count(*) from durable.journal_events where id = %s", (f"{tag}r1",))
    yield from purges()
    yield from call_calls(conn, tag)
    yield "create_of_what_was_removed", ("select durable._check_removed('{x}', 'w', '', '{y}')", ())


def flush_counters(session: Connection) -> None:
    """Adds what this session has read to the counters of the server."""
    session.execute("select pg_stat_force_next_flush()")
    session.execute("select 1")


class Witness:
    """Reads the server's counters around a call."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def counters(self) -> tuple[Counter[str], Counter[str]]:
        """Rows read from end to end, by table, and those read through indexes, by index."""
        rows = self._conn.execute(COUNTERS.encode()).fetchall()
        return (
            Counter({name: count for name, is_table, count in rows if is_table}),
            Counter({name: count for name, is_table, count in rows if not is_table}),
        )

    @contextmanager
    def watching(self, session: Connection) -> Iterator[list[Counter[str]]]:
        """Fills the list with what the session read meanwhile: of which tables, through which indexes."""
        seen: list[Counter[str]] = []
        # what the own session read before would otherwise be added to the counters at some later time
        flush_counters(self._conn)
        flush_counters(session)
        before = self.counters()
        yield seen
        flush_counters(session)
        seen += [now - then for now, then in zip(self.counters(), before, strict=True)]


@pytest.fixture
def alone(quiet: Server, quiet_template: str) -> Iterator[str]:
    """In the place of the folder's: what fills the tables here is no history that keeps the laws."""
    with psycopg.connect(quiet.dsn(quiet.maintenance_dbname), autocommit=True) as connection:
        create_database(connection, "alone", quiet_template)
        with psycopg.connect(quiet.dsn("alone"), autocommit=True) as first:
            # once it is full, a copy of the template would be a copy of somebody's runs
            take_turn(first, "W")
        yield quiet.dsn("alone")
        drop_database(connection, "alone")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> int:
    """Rows of each kind; there are five kinds of promises."""
    return 200_000 if request.config.getoption("--full") else 5_000


def act_all(session: Connection, tag: str) -> None:
    """Make every call once."""
    for _, call in calls(session, tag, prepare(session, tag)):
        ask(session, call)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "plans",
    [
        "of_empty_tables",
        pytest.param("after_vacuum_of_empty_tables", marks=pytest.mark.full),
        pytest.param("after_vacuum_beside_a_writer", marks=pytest.mark.full),
        pytest.param("fresh", marks=pytest.mark.full),
        "analyzed",
    ],
)
def test_no_call_reads_a_growing_table(alone: str, full: int, plans: str) -> None:
    """Each call on full tables: no sequential scan, and rows read through indexes in proportion to what it
    handles. While a writer is not done, what was removed is read with the rest."""
    bound = BOUND
    with (
        psycopg.connect(alone, autocommit=True) as own,
        psycopg.connect(alone, autocommit=True) as session,
        psycopg.connect(alone) as writer,
    ):
        if plans == "after_vacuum_beside_a_writer":
            writer.execute("select pg_current_xact_id()")
            bound *= 2
        if plans.startswith("after_vacuum"):
            own.execute("vacuum analyze")
        if plans == "of_empty_tables" or plans.startswith("after_vacuum"):
            for turn_ in range(6):
                act_all(session, f"before{turn_}")
        filler = (FILL + FILL_CALLS).replace("%(count)s", str(full)).replace("%%", "%")
        own.execute(filler.encode())
        if plans == "analyzed":
            own.execute("analyze")
        witness, slow = Witness(own), {}
        runs = prepare(session, "after")
        for name, call in calls(session, "after", runs):
            with witness.watching(session) as seen:
                ask(session, call)
            scanned, fetched = (each.total() for each in seen)
            if scanned > bound or fetched > bound + WALKS.get(name, 0) + SWEEPS.get(name, 0) * full:
                slow[name] = seen
    assert not slow, "rows read in sequence and through indexes: " + json.dumps(slow)


def test_a_claim_skips_scheduled_runs(alone: str, full: int) -> None:
    """Runs that are due later do not make a claim slower, neither one that finds work nor one that finds
    none."""
    with psycopg.connect(alone, autocommit=True) as own, psycopg.connect(alone, autocommit=True) as session:
        own.execute(FILL.replace("%(count)s", str(full)).replace("%%", "%").encode())
        own.execute(
            "update durable._tasks set queue = 'default', retry_at = %s, priority = 0 where state = "
            "'pending'",
            (NEVER - 1,),
        )
        own.execute("analyze")
        witness = Witness(own)
        for number in range(2):
            if number:
                ask(session, start("now", queue="default"))
            with witness.watching(session) as seen:
                found = take_turn(session, "W", want=5, ttl_ms=TTL_MS)
            assert len(found.tasks) == number
            assert seen[0].total() <= BOUND, seen[0]
            assert seen[1].total() <= BOUND, f"{seen[1]} for {number} task(s)"


def test_sweeps_are_small_however_much_is_due(alone: str, full: int) -> None:
    """Among many promises more than two sweeps settle are due at once: each sweep settles at most 500,
    whatever it is asked for, reads in proportion to that, and together they settle every one."""
    full *= 2
    due = full // 9
    with psycopg.connect(alone, autocommit=True) as own, psycopg.connect(alone, autocommit=True) as session:
        own.execute(FILL.replace("%(count)s", str(full)).replace("%%", "%").encode())
        own.execute(
            "update durable._promises set timeout_at = 2 where id ~ '^x' and substr(id, 2)::int <= %s", (due,)
        )
        own.execute("analyze")
        witness, settled = Witness(own), []
        while not settled or settled[-1]:
            with witness.watching(session) as seen:
                (answer,) = ask(session, ("select durable.tick_v1(1000000)", ()))
            settled.append(int(answer["promises"]))
            assert answer["more"] is (settled[-1] == 500)
            assert seen[0].total() <= BOUND, seen[0]
            # one awaiter and one listener each; the leases that are held are looked at as well
            assert seen[1].total() <= 500 * 50 + full, seen[1]
        assert max(settled) == 500
        assert sum(settled) == due
        (left,) = ask(
            own, ("select count(*) from durable._promises where state = 'pending' and timeout_at = 2", ())
        )
        assert left == 0


def test_views_find_an_id_by_its_text(alone: str, full: int) -> None:
    """Of objects, executions, pins, calls and attempts: a view whose ids are texts reads no table for one."""
    with psycopg.connect(alone, autocommit=True) as own, psycopg.connect(alone, autocommit=True) as session:
        own.execute(FILL_CALLS.replace("%(count)s", str(full)).encode())
        own.execute("analyze")
        witness = Witness(own)
        for text, name in VIEWS.items():
            (id_,) = ask(own, ("select encode(sha256(%s), 'hex')", (name.encode(),)))
            with witness.watching(session) as seen:
                (count,) = ask(session, (text, (id_,)))
            assert count in (1, 2), text
            assert seen[0].total() <= 10 and seen[1].total() <= 50, f"{text}: {seen}"


@pytest.mark.parametrize("procedure", [START, SIGNAL], ids=lambda one: one.verb)
def test_client_statements_are_planned_once(conn: Connection, procedure: Procedure) -> None:
    """Calls that send no hint come first and look cheap; still the plan for all is used from the sixth on."""
    conn.execute("set local plan_cache_mode = auto")
    begin_run(conn, "r")
    with psycopg.RawCursor(conn) as cursor:
        for number in range(20):
            tells = number > 8
            words: tuple[Any, ...] = ("r", "go", "1", None, tells)
            if procedure is START:
                usual = (None, "default", "1", None, None, 0, "{}", "", True, False)
                words = ("w", "[]", f"s{number}", *usual, tells, None, tells)
            cursor.execute(procedure.sql.encode(), words, prepare=True)
    plans = (
        "select custom_plans, generic_plans from pg_prepared_statements where statement = %s",
        (procedure.sql,),
    )
    assert ask(conn, plans) == (5, 15)
