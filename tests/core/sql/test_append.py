"""Law: the journal has one writer, a closed grammar, dense numbers, and heads that equal its fold; what
does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.folds import WITH_RESULTS
from tests.support.row_sets import LOCAL
from tests.support.verbs import (
    Connection,
    adopt,
    ask,
    begin_run,
    begun,
    broken,
    captured,
    create,
    done,
    events_of,
    intent,
    join_set,
    journal,
    pick,
    promise,
    receive,
    report,
    run,
    send,
    settle,
    submit,
    suspend,
    take_turn,
    timer,
    types_of,
)

EVENTS = {
    "ExecutionStarted",
    "ExecutionCompleted",
    "ExecutionFailed",
    "CancelRequested",
    "ExecutionCancelled",
    "InvokeScheduled",
    "InvokeStarted",
    "InvokeCompleted",
    "InvokeRetrying",
    "TimerScheduled",
    "TimerFired",
    "RandomGenerated",
    "TimeRecorded",
    "SignalDelivered",
    "SignalReceived",
    "JoinSetCreated",
    "JoinSetSubmitted",
    "JoinSetAwaited",
    "ExecutionAwaiting",
    "ExecutionResumed",
}
STATUSES = ("running", "blocked", "cancelling", "completed", "failed", "cancelled")
# the seven events that change the status
STATUS_AFTER = {
    "ExecutionStarted": "running",
    "ExecutionAwaiting": "blocked",
    "ExecutionResumed": "running",
    "CancelRequested": "cancelling",
    "ExecutionCompleted": "completed",
    "ExecutionFailed": "failed",
    "ExecutionCancelled": "cancelled",
}
# what the fast functions tell of a row type
TOLD = (
    *("_width", "_allocates", "_is_local", "_resolves", "_schedules_invocation", "_completes_invocation"),
    *("_ends_run", "_status_after"),
)
# what each status admits (journal.md 3); terminal ones admit nothing
ALWAYS = {
    *("execution_completed", "execution_failed", "attempt_started", "attempt_failed", "open_attempt_failed"),
    *("open_step_completed", "open_step_failed", "last_attempt_completed", "last_attempt_failed"),
    *("child_run_started", "child_run_interrupted", "open_child_settled", "child_settled", "timer_fired"),
    "signal_delivered",
}
# what a worker may also report of a clean-up
CLEANS = {
    *("step_completed", "step_failed", "first_attempt_failed", "step_started", "child_run_scheduled"),
    *("promise_registered", "timer_scheduled", "random_generated", "time_recorded"),
    *("join_set_created", "join_set_submitted", "join_set_awaited"),
}
ADMITS: dict[str, set[str]] = {
    "running": ALWAYS
    | CLEANS
    | {"cancel_requested", "step_scheduled", "signal_received", "execution_awaiting"},
    "blocked": ALWAYS | {"cancel_requested", "signal_received", "execution_resumed"},
    "cancelling": ALWAYS | {"execution_cancelled"},
}


def append(conn: Connection, execution: int, *events: tuple[str, int | None, int | None]) -> None:
    """Append rows of (type, child, attempt) to one journal."""
    rows = ", ".join(["row(%s, %s, %s, %s, null, null, %s)::durable._event"] * len(events))
    values: list[Any] = []
    for kind, child, attempt in events:
        values += [execution, kind, child, attempt, "1" if kind in WITH_RESULTS else None]
    conn.execute(f"select durable._append(array[{rows}], durable._now_ms())".encode(), values)


def head(conn: Connection, id_: str, *columns: str) -> tuple[Any, ...]:
    """Columns of a head."""
    return ask(conn, (f"select {', '.join(columns)} from durable._executions where id = %s", (id_,)))


def types(conn: Connection) -> dict[str, tuple[list[str], bool, bool]]:
    """The grammar as the schema tells it."""
    rows = conn.execute(
        "select type::text, events, allocates, resolves from durable.journal_types()"
    ).fetchall()
    return {kind: (events, allocates, resolves) for kind, events, allocates, resolves in rows}


def test_the_grammar_is_one(conn: Connection) -> None:
    """Width, allocation, resolution and status of a type are told the same by the fast functions and by the
    list for people; seven events change the status."""
    grammar = types(conn)
    assert {event for events, _, _ in grammar.values() for event in events} == EVENTS
    for kind, (events, allocates, resolves) in grammar.items():
        found = ask(
            conn, (f"select {', '.join(f'durable.{told}(%s)' for told in TOLD)}", (kind,) * len(TOLD))
        )
        assert found == (
            len(events),
            allocates,
            kind in LOCAL,
            resolves,
            events[0] == "InvokeScheduled",
            events[-1] == "InvokeCompleted",
            events[-1] in STATUS_AFTER and STATUS_AFTER[events[-1]] in STATUSES[3:],
            STATUS_AFTER.get(events[-1]),
        ), kind
        assert resolves == (events[-1] in ("InvokeCompleted", "TimerFired", "SignalReceived"))
        assert allocates == (
            events[0].endswith(("Scheduled", "Generated", "Recorded"))
            or events[0] in ("SignalReceived", "JoinSetCreated")
        )


@pytest.mark.parametrize("status", STATUSES)
def test_rows_allowed_by_status(conn: Connection, status: str) -> None:
    """Guard by status: the closed table of journal.md 3; nothing after an end, no second start."""
    for kind in types(conn):
        expected = kind in ADMITS.get(status, ())
        cleaning = expected or (status == "cancelling" and kind in CLEANS)
        assert ask(
            conn,
            ("select durable._may_append(%s, %s), durable._may_append(%s, %s, true)", (status, kind) * 2),
        ) == (expected, cleaning), kind


# (rows before, refused row): type, child, attempt
REFUSED: dict[
    str, tuple[Sequence[tuple[str, int | None, int | None]], tuple[str, int | None, int | None]]
] = {
    "second start": ((), ("execution_started", None, None)),
    "resume while running": ((), ("execution_resumed", None, None)),
    "cancelled without a request": ((), ("execution_cancelled", None, None)),
    "taken number": ((("step_completed", 0, 1),), ("step_completed", 0, 1)),
    "taken number of another kind": ((("random_generated", 0, None),), ("timer_scheduled", 0, None)),
    "first attempt is 2": ((), ("step_completed", 0, 2)),
    "completion without a start": ((), ("open_step_completed", 0, 1)),
    "completion of another attempt": ((("step_started", 0, 1),), ("open_step_completed", 0, 2)),
    "start while one is open": ((("step_started", 0, 1),), ("attempt_started", 0, 2)),
    "retry without a start": ((("first_attempt_failed", 0, 1),), ("open_attempt_failed", 0, 1)),
    "start skips an attempt": ((("first_attempt_failed", 0, 1),), ("attempt_started", 0, 3)),
    "start after completion": (
        (("step_started", 0, 1), ("open_step_completed", 0, 1)),
        ("attempt_started", 0, 2),
    ),
    "second completion": (
        (("step_started", 0, 1), ("open_step_completed", 0, 1)),
        ("open_step_completed", 0, 1),
    ),
    "after the end": (
        (("cancel_requested", None, None), ("execution_cancelled", None, None)),
        ("step_completed", 0, 1),
    ),
    "schedule while cancelling": ((("cancel_requested", None, None),), ("timer_scheduled", 0, None)),
    "second request to cancel": ((("cancel_requested", None, None),), ("cancel_requested", None, None)),
    "second attempt of what was only scheduled": ((("step_scheduled", 0, None),), ("attempt_started", 0, 2)),
    "completion of what was only scheduled": ((("step_scheduled", 0, None),), ("open_step_completed", 0, 1)),
    "scheduled twice": ((("step_scheduled", 0, None),), ("step_completed", 0, 1)),
    "receipt while cancelling": ((("cancel_requested", None, None),), ("signal_received", 0, 1)),
    "join set while cancelling": ((("cancel_requested", None, None),), ("join_set_created", 0, None)),
    "await while cancelling": ((("cancel_requested", None, None),), ("execution_awaiting", None, None)),
    "resume while cancelling": ((("cancel_requested", None, None),), ("execution_resumed", None, None)),
}

# a report that takes one number twice is judged before anything is appended
BY_BUNDLE = {"taken number of another kind"}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("at_once", [False, True], ids=["two_calls", "one_call"])
@pytest.mark.unlawful
def test_rows_against_the_grammar_are_refused(conn: Connection, name: str, at_once: bool) -> None:
    """A row that breaks the grammar is WF006, in a call of its own or behind its cause, and nothing of the
    call is written."""
    before, refused = REFUSED[name]
    at_once = at_once and name not in BY_BUNDLE
    held = begin_run(conn, "r")
    if before and not at_once:
        append(conn, held.execution, *before)
    written = types_of(conn, "r")
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        append(conn, held.execution, *(before if at_once else ()), refused)
    assert caught.value.sqlstate == "WF006"
    assert types_of(conn, "r") == written


def test_attempts_alternate(conn: Connection) -> None:
    """Attempts are 1, 2, 3: a start, then its retry or completion, whatever rows they are fused into."""
    held = begin_run(conn, "r")
    append(
        conn,
        held.execution,
        ("first_attempt_failed", 0, 1),
        ("attempt_failed", 0, 2),
        ("attempt_started", 0, 3),
        ("open_attempt_failed", 0, 3),
        ("last_attempt_completed", 0, 4),
    )
    assert events_of(conn, "r")[1:] == [
        "InvokeScheduled",
        *["InvokeStarted", "InvokeRetrying"] * 3,
        "InvokeStarted",
        "InvokeCompleted",
    ]
    assert head(conn, "r", "open_steps", "open_attempts", "open_running") == ([], [], [])


def test_open_steps_are_the_last_row_of_each(conn: Connection) -> None:
    """The head lists the attempt that runs or comes next, by child; a step that was only scheduled has its
    first attempt before it."""
    held = begin_run(conn, "r")
    append(
        conn,
        held.execution,
        ("first_attempt_failed", 0, 1),
        ("step_started", 1, 1),
        ("step_completed", 2, 1),
        ("step_started", 3, 1),
        ("open_step_completed", 3, 1),
        ("step_scheduled", 4, 1),
    )
    columns = ("open_steps", "open_attempts", "open_running")
    assert head(conn, "r", *columns) == ([0, 1, 4], [2, 1, 1], [False, True, False])
    append(
        conn,
        held.execution,
        ("last_attempt_failed", 0, 2),
        ("open_attempt_failed", 1, 1),
        ("attempt_started", 4, 1),
    )
    assert head(conn, "r", *columns) == ([1, 4], [2, 1], [False, True])
    append(conn, held.execution, ("open_attempt_failed", 4, 1), ("last_attempt_completed", 4, 2))
    assert head(conn, "r", *columns) == ([1], [2], [False])


@pytest.mark.parametrize(
    ("children", "next_child", "reserved"),
    [
        ([[0, 1, 2]], 3, []),
        ([[2]], 3, [0, 1]),
        ([[2], [0]], 3, [1]),
        ([[2], [0], [1]], 3, []),
        ([[1, 3], [4]], 5, [0, 2]),
        ([[0], [5], [2, 1]], 6, [3, 4]),
        ([[3, 0]], 4, [1, 2]),
    ],
)
def test_numbers_that_come_later_are_reserved(
    conn: Connection, children: list[list[int]], next_child: int, reserved: list[int]
) -> None:
    """A number below the next one is carried by a row or reserved (law A-1)."""
    held = begin_run(conn, "r")
    for call in children:
        append(conn, held.execution, *(("step_completed", child, 1) for child in call))
    assert head(conn, "r", "next_child", "reserved") == (next_child, reserved)


def test_journal_events_are_dense(conn: Connection, clock: Clock) -> None:
    """Rows of every kind spread into logical events 0, 1, 2, ... without a gap, and the head knows their
    number."""
    held = begin_run(conn, "r")
    commands = [run(3, queue="kids"), timer(4, 1000), promise(5), captured(6), captured(7, "1", kind="time")]
    commands += [intent(8), join_set(9), submit(8, 9), receive(10)]
    outcomes = [done(0), broken(1), broken(2, retry_in=5)]
    take_turn(conn, "W", report(held, outcomes=outcomes, commands=commands))
    ask(conn, send("r"))
    outcomes = [begun(2, attempt=2), broken(2, attempt=2, retry_in=5), done(2, attempt=3), done(8)]
    answer = take_turn(conn, "W", report(held, outcomes=outcomes))
    take_turn(conn, "W", report(held, commands=[pick(8, 9)], end=suspend(3, 4, 5), seen=answer.next_of(held)))
    clock.advance(1000)
    ask(conn, ("select durable.tick_v1(10)", ()))
    rows = conn.execute(
        "select seq, event, payload from durable.journal_events where id = 'r' order by seq"
    ).fetchall()
    assert [seq for seq, _, _ in rows] == list(range(head(conn, "r", "next_seq")[0]))
    assert {event for _, event, _ in rows} == EVENTS - {
        "ExecutionCompleted",
        "ExecutionFailed",
        "CancelRequested",
        "ExecutionCancelled",
    }
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "timer_scheduled", "promise_registered"),
        *("random_generated", "time_recorded", "step_started", "join_set_created"),
        *("join_set_submitted", "step_completed", "step_failed", "first_attempt_failed"),
        *("signal_delivered", "signal_received", "attempt_started", "open_attempt_failed"),
        *("last_attempt_completed", "open_step_completed", "join_set_awaited", "execution_awaiting"),
        *("timer_fired", "execution_resumed"),
    ]


def test_an_invocation_tells_its_kind_once(conn: Connection) -> None:
    """Each InvokeScheduled has the kind of the call, and no later event of it repeats the kind."""
    ask(conn, create("x", external="true"))
    held = begin_run(conn, "r")
    commands = [run(0, queue="kids"), promise(1), adopt(2, "x"), intent(3)]
    outcomes = [broken(3, retry_in=5), done(3, attempt=2), done(4, name="http")]
    take_turn(conn, "W", report(held, commands=commands))
    take_turn(conn, "W", report(held, outcomes=outcomes))
    for id_ in ("r.0", "r.1", "x"):
        ask(conn, settle(id_))
    rows = conn.execute(
        "select event, child, payload -> 'kind' from durable.journal_events where id = 'r' and child >= 0"
    ).fetchall()
    kinds = {child: kind for event, child, kind in rows if event == "InvokeScheduled"}
    assert kinds == {0: "Function", 1: "External", 2: "External", 3: "Local", 4: "Http"}
    later = [kind for event, _, kind in rows if event != "InvokeScheduled"]
    assert later == [None] * 12


def test_the_first_event_tells_the_start(conn: Connection) -> None:
    """ExecutionStarted has the digest of the code, input and key, and of a child run its owner."""
    held = begin_run(conn, "r", args='["in"]', key="k")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids", param="[7]")]))
    conn.execute("update durable._executions set digest = '\\x0102' where id = 'r'")
    first = "select id, payload from durable.journal_events where event = 'ExecutionStarted' and seq = 0"
    assert dict(conn.execute(first).fetchall()) == {
        "r": {"component_digest": "0102", "input": ["in"], "parent_id": None, "idempotency_key": "k"},
        "r.0": {"component_digest": None, "input": [7], "parent_id": "r", "idempotency_key": None},
    }


def test_payloads_are_handed_on_as_they_came(conn: Connection) -> None:
    """Nothing reads a result, an error or a captured value: a replay gets the text that was reported."""
    held = begin_run(conn, "r")
    result, value = '{"b":1,  "a":[1.50,1e3], "b":2}', "[ 0.10 ]"
    take_turn(
        conn,
        "W",
        report(
            held, outcomes=[done(0, result)], commands=[{**captured(1, value), "name": "any"}, promise(2)]
        ),
    )
    ask(conn, settle("r.2", result))
    (found,) = ask(conn, journal("W", held))
    assert {row[2]: row[6] for row in found["rows"] if row[6]} == {0: result, 1: value, 2: result}


def test_a_replay_knows_no_instants(conn: Connection) -> None:
    """What a replay gets of a journal is the same whenever its rows were written."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0)], commands=[captured(1), promise(2)]))
    ask(conn, settle("r.2"))
    before = ask(conn, journal("W", held))
    conn.execute("update durable._journal set ts = ts - 60000")
    conn.execute("update durable._executions set last_at = last_at - 60000")
    conn.execute("update durable._promises set created_at = created_at - 60000 where id = 'r'")
    assert ask(conn, journal("W", held)) == before


def test_an_await_is_written_as_it_was_asked(conn: Connection) -> None:
    """ExecutionAwaiting names the children and the kind; the head counts how many must still resolve."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0), promise(1)]))
    take_turn(conn, "W", report(held, end=suspend(1, 0, kind="all"), seen=answer.next_of(held)))
    (data,) = ask(conn, ("select data from durable._journal where type = 'execution_awaiting'", ()))
    assert json.loads(data) == {"on": [1, 0], "kind": "all"}
    assert head(conn, "r", "status", "wait_kind", "wait_left") == ("blocked", "all", 2)
