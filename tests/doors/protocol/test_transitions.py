"""Law: whatever the operations of the protocol do, in every outcome, keeps the laws of transitions; and each
of these laws finds the step that breaks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.doors.protocol.program import SCENES, Say
from tests.support import history as transitions
from tests.support import run_laws
from tests.support.clock import Clock
from tests.support.hands import let_go
from tests.support.history import EDGES
from tests.support.laboratory import Laboratory
from tests.support.steps import steps, task_edges
from tests.support.verbs import Connection, ask, create, park, settle, take

CHECK = Path(__file__).parents[3] / "sql/logic/doors/95_check/10_check.sql"
NOW = 1_800_000_000_000
DAY = 86_400_000
G = "poll://any@g"
P = "update durable._promises set {} where id = '{}'"
T = "update durable._tasks set {} where id = '{}'"
S = "update durable._schedules set {} where id = 's'"
CALLBACK = "insert into durable._callbacks (awaited_id, awaiter_id) values ('{}', '{}')"
LISTENER = "insert into durable._listeners (awaited_id, address) values ('{}', 'poll://any@g')"
RESUME = "insert into durable._resumes (task_id, awaited_id) values ('{}', '{}')"
UNBLOCK = "insert into durable._unblocks (promise_id, address, created_at) values ('{}', 'poll://any@g', {})"
LET_GO = "delete from durable._callbacks where awaited_id = '{}' and awaiter_id = '{}'"
UNHEARD = "delete from durable._listeners where awaited_id = '{}'"
PROMISE = (
    "insert into durable._promises (id, timeout_at, created_at, external, target)"
    " values ('new', 9007199254740991, {}, true, {})"
)
TASK = "insert into durable._tasks (id, deadline, queue, retry_at) values ('{}', 9007199254740991, 'g', {})"
DONE = "state = 'resolved', settled_at = durable._now_ms(), task_version = {}"
FREE = "pid = null, ttl = null, expires_at = null"
LEASED = f"retry_at = null, pid = 'P', ttl = 5, expires_at = {NOW + 5}"
TICK = "select set_config('test.step', 'tick', true)"
STATES = "_tasks.tasks_state_is_known"
ITS_RETRY = "_tasks.tasks_retry_at_iff_pending"
RECORD = "preserved_settled_promise_record"
FROZEN = "preserved_promise_state_frozen_once_settled"
VERSION = "monotone_task_version_increases_only_on_acquisition"
EDGE = "consistent_task_state_edge_admissible"
WHOLE = "consistent_task_acquisition_is_atomic"
DISCHARGE = "consistent_obligation_discharge_requires_settled"


@dataclass(frozen=True)
class Forbidden:
    """A step that is not allowed, by a hand in the tables.

    Args:
        step: what breaks the law, in one call.
        drop: constraints that have to go first, as table.constraint.
        also: other laws that the same step breaks.
        first: what is done before anybody watches.
    """

    step: str
    drop: str = ""
    also: str = ""
    first: str = ""


FORBIDDEN: dict[str, Forbidden] = {
    # promises
    "preserved_promise_birth_fields_immutable": Forbidden(P.format("timeout_at = timeout_at - 1", "x")),
    "preserved_settled_promise_record": Forbidden(P.format("value_data = '2'", "done")),
    "monotone_promise_set_grows": Forbidden("delete from durable._promises where id = 'internal'"),
    "preserved_promise_state_frozen_once_settled": Forbidden(
        P.format("state = 'rejected'", "done"),
        also=f"{RECORD} consistent_promise_settled_at_moves_with_state"
        " consistent_promise_state_edge_admissible",
    ),
    "preserved_promise_settlement_is_one_way": Forbidden(
        P.format("state = 'pending', settled_at = null, value_data = null", "done"),
        also=f"{RECORD} {FROZEN} consistent_promise_state_edge_admissible"
        " preserved_promise_value_until_settlement",
    ),
    "consistent_promise_settled_at_moves_with_state": Forbidden(
        P.format("settled_at = created_at", "x"), "_promises.promises_settled_at_iff_not_pending"
    ),
    "preserved_promise_value_until_settlement": Forbidden(
        P.format("value_data = '1'", "x"), "_promises.promises_pending_have_no_value"
    ),
    "preserved_promise_no_duplicate_ids": Forbidden(
        "alter table durable._promises alter column due_at drop expression; "
        "insert into durable._promises select * from durable._promises where id = 'internal'",
        "_promises.promises_pk",
    ),
    "consistent_promise_state_edge_admissible": Forbidden(
        P.format("state = 'lost', settled_at = durable._now_ms()", "internal"),
        "_promises.promises_state_is_known",
    ),
    "consistent_promise_settlement_stamp": Forbidden(
        P.format("state = 'resolved', settled_at = created_at", "internal")
    ),
    "preserved_timedout_is_server_owned": Forbidden(
        P.format("state = 'rejected_timedout', settled_at = timeout_at", "x"),
        also="consistent_promise_settlement_stamp",
    ),
    "consistent_new_promise_born_clean": Forbidden(PROMISE.format(NOW + 5, "null")),
    "consistent_head_is_that_of_the_last_generation": Forbidden(P.format("head = 7", "p")),
    "consistent_settlement_fulfils_task": Forbidden(P.format(DONE.format(0), "p")),
    # who waits
    "monotone_promise_callbacks_grow_while_pending": Forbidden(
        f"{LET_GO.format('x', 'a')}; {RESUME.format('a', 'x')}", also=DISCHARGE
    ),
    "monotone_promise_callbacks_shrink_once_settled": Forbidden(CALLBACK.format("done", "a")),
    "monotone_promise_listeners_grow_while_pending": Forbidden(
        UNHEARD.format("x"), also=f"{DISCHARGE} consistent_listener_consumption_enqueues_unblock"
    ),
    "monotone_promise_listeners_shrink_once_settled": Forbidden(LISTENER.format("done")),
    "consistent_obligation_discharge_requires_settled": Forbidden(
        f"{LET_GO.format('ghost', 'a')}; {RESUME.format('a', 'ghost')}", first=CALLBACK.format("ghost", "a")
    ),
    "consistent_callback_consumption_resumes_awaiter": Forbidden(
        LET_GO.format("done", "a"), first=CALLBACK.format("done", "a")
    ),
    "consistent_listener_consumption_enqueues_unblock": Forbidden(
        UNHEARD.format("early"), first=LISTENER.format("early")
    ),
    # tasks
    "monotone_task_set_grows": Forbidden("delete from durable._tasks where id = 'p'"),
    "monotone_task_version_increases_only_on_acquisition": Forbidden(T.format("version = 9", "p")),
    "preserved_fulfilled_task": Forbidden(P.format("task_version = 9", "f"), also=VERSION),
    "consistent_task_state_edge_admissible": Forbidden(
        T.format("state = 'lost', retry_at = null", "p"), STATES
    ),
    "preserved_task_acquisition_only_from_pending": Forbidden(
        T.format(f"state = 'acquired', {LEASED}", "h"),
        also=f"{EDGE} {WHOLE} preserved_task_halted_only_reenters_via_pending",
    ),
    "preserved_task_suspension_only_from_acquired": Forbidden(
        T.format("state = 'suspended', retry_at = null", "p"), also=EDGE
    ),
    "preserved_task_halted_only_reenters_via_pending": Forbidden(
        T.format("state = 'lost'", "h"), STATES, also=EDGE
    ),
    "consistent_task_fulfilment_needs_settlement": Forbidden(
        "delete from durable._tasks where id = 'p'", first=P.format(DONE.format(0), "p")
    ),
    "consistent_wake_follows_callback_consumption": Forbidden(
        f"{T.format('state = $$pending$$, retry_at = durable._now_ms()', 't')}; {RESUME.format('t', 'done')}"
    ),
    "consistent_suspension_registers_callback": Forbidden(T.format(f"state = 'suspended', {FREE}", "w")),
    "consistent_task_birth_couples_promise_birth": Forbidden(
        TASK.format("p", NOW), first="delete from durable._tasks where id = 'p'"
    ),
    "consistent_task_birth_state": Forbidden(
        f"{PROMISE.format(NOW, repr(G))}; {TASK.format('new', 'null')}", ITS_RETRY
    ),
    "consistent_task_lease_released_atomically": Forbidden(
        T.format(f"state = 'pending', retry_at = {NOW}", "a"),
        "_tasks.tasks_pid_iff_acquired _tasks.tasks_ttl_iff_acquired _tasks.tasks_lease_iff_acquired",
    ),
    "preserved_task_lease_holder_stable": Forbidden(
        T.format("pid = 'Q'", "a"), also="consistent_task_lease_fields_move_together"
    ),
    "consistent_task_lease_fields_move_together": Forbidden(
        T.format("pid = 'Q'", "p"), "_tasks.tasks_pid_iff_acquired"
    ),
    "consistent_task_lease_deadline_is_now_plus_ttl": Forbidden(T.format("expires_at = expires_at + 1", "a")),
    "consistent_task_acquisition_is_atomic": Forbidden(
        f"{T.format(f'state = $$acquired$$, version = version + 1, {LEASED}', 'p')};"
        f" {RESUME.format('p', 'done')}"
    ),
    "consistent_task_pending_entry_arms_retry": Forbidden(
        T.format(f"state = 'pending', retry_at = {NOW + 7}, {FREE}", "a")
    ),
    "consistent_task_retry_rearm_only_when_due": Forbidden(T.format(f"retry_at = {NOW + 9}", "delayed")),
    "monotone_task_retry_rearm_advances": Forbidden(T.format("retry_at = retry_at - 1", "p")),
    "consistent_task_wake_records_resume": Forbidden(
        f"{T.format(f'state = $$pending$$, retry_at = {NOW + 1}', 't')};"
        f" {LET_GO.format('done', 't')}; {RESUME.format('t', 'done')}",
        first=CALLBACK.format("done", "t"),
        also="consistent_task_pending_entry_arms_retry",
    ),
    "monotone_task_resumes_grow_or_clear": Forbidden(
        "delete from durable._resumes where task_id = 'w' and awaited_id = 'early'"
    ),
    "consistent_task_resumes_cleared_only_on_dispatch_or_park": Forbidden(
        "delete from durable._resumes where task_id = 'h'"
    ),
    "preserved_no_dead_dispatch": Forbidden(T.format(f"state = 'pending', retry_at = {NOW}", "late")),
    "preserved_execute_only_for_live_task": Forbidden(T.format(f"retry_at = {NOW + 9}", "past")),
    # messages
    "consistent_new_execute_matches_task_and_target": Forbidden(T.format("queue = 'other'", "p")),
    "monotone_outbox_keys_never_disappear": Forbidden(
        f"delete from durable._unblocks; {CALLBACK.format('x', 'w')}"
    ),
    "consistent_new_unblock_carries_stored_record": Forbidden(
        f"{UNHEARD.format('early')}; {UNBLOCK.format('early', 1)}", first=LISTENER.format("early")
    ),
    "consistent_new_unblock_discharges_its_listener": Forbidden(UNBLOCK.format("early", NOW)),
    # schedules
    "preserved_schedule_birth_fields_immutable": Forbidden(S.format("promise_timeout = 6")),
    "S17 schedule_fires_what_was_due": Forbidden(
        S.format("last_run_at = next_run_at - 1, next_run_at = next_run_at + 60000")
    ),
    "S18 S19 schedule_runs_advance": Forbidden(
        S.format("last_run_at = next_run_at"), "_schedules.schedules_last_run_before_next_run"
    ),
    "S20 S21 S22 schedule_firing_creates_its_promise": Forbidden(
        S.format("last_run_at = next_run_at, next_run_at = next_run_at + 60000"),
        first="update durable._schedules set promise_id = 'fired.{{.timestamp}}'",
    ),
    # what time does by itself
    "consistent_promise_state_edge_internal_admissible": Forbidden(
        f"{TICK}; {P.format('state = $$resolved$$, settled_at = durable._now_ms()', 'internal')}"
    ),
    "consistent_task_state_edge_internal_admissible": Forbidden(
        f"{TICK}; {T.format('state = $$halted$$, retry_at = null', 'p')}"
    ),
}

# numbers of the protocol's list that a law of another name asserts; own names carry theirs
NUMBERS = {
    "store_promise_ids_unique": "P01",
    "well_formed_promise_created_at_lte_timeout_at": "P04",
    "well_formed_promise_settled_at_iff_not_pending": "P05 P06",
    "well_formed_promise_created_at_lte_settled_at": "P07",
    "well_formed_promise_settled_at_lte_timeout_at": "P08",
    "consistent_task_iff_targeted_promise": "P09 P10",
    "listener_for_settled_promise": "P14",
    "consistent_settled_promise_has_fulfilled_task": "P15 T04 M04",
    "consistent_settled_task_promise_settled": "P16 T05",
    "timedout_settled_at_mismatch": "P17",
    "well_formed_promise_deadline_verdict_matches_timer_tag": "P18 P19 P20 P21",
    "well_formed_promise_delay_before_deadline": "P24",
    "well_formed_promise_awaiter_is_not_self": "P25",
    "callback_awaiter_no_target": "P26",
    "monotone_promise_set_grows": "P41",
    "preserved_promise_birth_fields_immutable": "P42 P43 P44 P45",
    "preserved_settled_promise_record": "P46",
    "preserved_timedout_is_server_owned": "P47",
    "store_task_ids_unique": "T01",
    "orphan_tasks": "T03",
    "well_formed_task_pending_iff_has_retry_at": "T06 T07 T08",
    "well_formed_task_acquired_iff_has_expires_at": "T09 T10",
    "well_formed_task_acquired_iff_has_ttl": "T11",
    "well_formed_task_acquired_iff_has_pid": "T12",
    "well_formed_task_ttl_positive": "T13",
    "suspended_no_callback": "T14",
    "suspended_with_consumed_callbacks": "T15",
    "well_formed_task_suspended_has_no_resumes": "T17",
    "well_formed_task_fulfilled_is_cleared": "T18",
    "monotone_task_set_grows": "T20",
    "consistent_task_birth_couples_promise_birth": "T21",
    "monotone_task_version_increases_only_on_acquisition": "T22 T24 T25",
    "preserved_fulfilled_task": "T23",
    "consistent_task_acquisition_is_atomic": "T26",
    "store_schedule_ids_unique": "S01",
    "well_formed_schedule_last_run_at_lt_next_run_at": "S05",
    "preserved_schedule_birth_fields_immutable": "S11 S12 S13 S14 S15 S16",
    "S20 S21 S22 schedule_firing_creates_its_promise": "P37 P38 P39 P40",
    "consistent_new_promise_born_clean": "S23",
    "store_outbox_keys_unique": "M01 M02",
    "consistent_outbox_unblock_names_settled_promise": "M05",
}
NOT_ASSERTED = {
    "P11 P12 P48 P49 P50 P51": "the deadline is a column of the promise: there is no timer of it",
    "T27 T28 T29 S24 S25 S26": "the instant is a column of the task or schedule: there is no timer of it",
    "P27": "a callback whose awaiter is over is inert, and stays until its promise settles",
    "P28 T16 T19": "an awaiter and what it awaits may have different origins",
    "P32 P33": "an origin and a prefix may have dots: older clients detach under such ids",
    "P34 P35": "follows: what an id begins with shares its first segment",
    "P36 S03": "a schedule may create promises without a target",
    "S02 S10": "ids and templates of schedules may have dots: no tree is read out of them",
    "S09": "a text holds no NUL",
    "M03": "an execute message is the pending task itself",
}


@pytest.fixture
def bench(laboratory_at_rest: Laboratory) -> Iterator[Connection]:
    """A transaction in which there are objects in every state; it is rolled back."""
    with laboratory_at_rest.transaction(lawful=False, scene=inhabit_since_a_minute) as conn:
        yield conn


def inhabit_since_a_minute(conn: Connection) -> None:
    """All of them, a while ago."""
    conn.execute("update test_clock.instant set now_ms = %s", (NOW - 70_000,))
    inhabit(conn)
    conn.execute("update test_clock.instant set now_ms = %s", (NOW,))


def inhabit(conn: Connection) -> None:
    """Promises and tasks of every kind: x and internal pending, done and early settled; of the tasks a and w
    acquired, t suspended, h halted, f fulfilled, p pending, delayed not yet due, late and past over but
    nobody looked; w and h were told that others settled."""
    for name in ("x", "done", "early"):
        ask(conn, create(name, NOW + DAY, external="true"))
    ask(conn, create("internal"))
    for name in ("a", "w", "t", "h", "f"):
        take(conn, name)
    take(conn, "late", NOW - 1)
    ask(conn, create("past", NOW - 1, target="g"))
    ask(conn, create("p", target="g"))
    ask(conn, create("delayed", target="g", delay=str(NOW + 5)))
    ask(conn, ("select from durable.promise_register_listener('x', 'g')", ()))
    ask(conn, ("select from durable.promise_register_listener('done', 'g')", ()))
    for awaited, awaiter in (
        ("x", "a"),
        ("x", "p"),
        ("x", "h"),
        ("done", "w"),
        ("early", "w"),
        ("early", "h"),
    ):
        ask(conn, ("select from durable.promise_register_callback(%s, %s)", (awaited, awaiter)))
    ask(conn, park("t", "x"))
    for name in ("h", "late"):
        ask(conn, ("select durable.task_halt(%s)", (name,)))
    for name in ("done", "early", "f"):
        ask(conn, settle(name))
    ask(conn, ("select from durable.schedule_create('s', '* * * * *', 'x', 5)", ()))


@pytest.mark.parametrize("law", FORBIDDEN)
def test_a_forbidden_transition_is_reported(bench: Connection, law: str) -> None:
    """The law is named, and none that the same step does not break."""
    hand = FORBIDDEN[law]
    for constraint in hand.drop.split():
        let_go(bench, constraint)
    bench.execute((hand.first or "select 1").encode())
    transitions.install_into(bench)
    assert transitions.broken(bench) == []
    bench.execute(hand.step.encode())
    assert {found for found, _, _ in transitions.broken(bench)} == {law, *hand.also.split()}


def test_the_whole_protocol_keeps_the_laws(conn: Connection, clock: Clock, history: str) -> None:
    """Every operation, with every outcome that it announces, over every edge of a task, breaks no law. When
    time goes on then and somebody sweeps, every deadline is kept, every task of it is over, and whoever
    waited was told."""
    say = Say(conn, clock)
    for scene in SCENES:
        scene(say)
    announced = conn.execute(
        "select distinct p.proname::text, w.code[1] from pg_proc p,"
        " regexp_matches(obj_description(p.oid), 'WF...', 'g') as w (code)"
        " where p.pronamespace = 'durable'::regnamespace and p.proname ~ '^(promise|task|schedule|unblock)_'"
    ).fetchall()
    # WF016 needs a copy of a database: tests/features/sql/test_site.py
    assert {each for each in announced if each[1] != "WF016"} - say.said == set()
    seen = {(e.old["state"], e.new["state"]) for step in steps(conn) for e in task_edges(step)}
    wanted = {(a, b) for a, others in EDGES.items() for b in others if a != b}
    assert wanted - seen == set()
    say.wait(10_000 * DAY)
    say.sweep()
    overdue = "select id from durable._promises where state = 'pending' and external and timeout_at <= %s"
    assert conn.execute(overdue.encode(), (say.now,)).fetchall() == []
    assert conn.execute("select id from durable._tasks where deadline <= %s", (say.now,)).fetchall() == []
    for waiting in ("_callbacks", "_listeners"):
        text = f"select w.* from durable.{waiting} w join durable._promises p on p.id = w.awaited_id"
        assert conn.execute(f"{text} where p.state <> 'pending'".encode()).fetchall() == []


def test_records_show_what_is_public(conn: Connection) -> None:
    """A record on the wire holds no ledger, no lease deadline and no instant of dispatch; wake reasons are a
    number."""
    columns = conn.execute(
        "select c.relname, a.attname, a.atttypid::regtype::text from pg_class c"
        " join pg_attribute a on a.attrelid = c.oid where c.relnamespace = 'durable'::regnamespace"
        " and c.relname in ('promise_record', 'task_record')"
    ).fetchall()
    task = {name: kind for record, name, kind in columns if record == "task_record"}
    assert set(task) == {"id", "state", "version", "resumes", "ttl", "pid"}
    assert task["resumes"] == "integer"
    promise = {name for record, name, _ in columns if record == "promise_record"}
    instants = {"timeout_at", "created_at", "settled_at"}
    payloads = {"param_headers", "param_data", "value_headers", "value_data"}
    assert promise == {"id", "state", "tags"} | instants | payloads


def test_the_published_list_is_complete() -> None:
    """Every number of the protocol's list is a law of states or of transitions, or is not asserted for a
    reason."""
    states = re.findall(r"^\s+(?:\(|select )'([^']+)',", CHECK.read_text(encoding="utf-8"), re.M)
    laws = {*states, *transitions.LAWS}
    assert set(NUMBERS) <= laws
    named = re.findall(r"\b[PTSM]\d\d\b", " ".join((*laws, *NUMBERS.values(), *NOT_ASSERTED)))
    wanted = {"P": 51, "T": 29, "S": 26, "M": 5}
    assert sorted(set(named)) == sorted(
        f"{p}{n:02}" for p, last in wanted.items() for n in range(1, last + 1)
    )


def test_no_law_of_transitions_is_missed() -> None:
    """Every law has a step that breaks it; those of runs have theirs in test_run_transitions.py."""
    assert set(FORBIDDEN) == set(transitions.LAWS) - set(run_laws.LAWS)
