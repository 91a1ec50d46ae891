"""Law: what does not belong into a journal does not get in, and says why; what a client keeps and what
others settle is one journal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.journal.client_events import (
    BLOCKED,
    CANCEL,
    CANCELLED,
    COMPLETED,
    FAILED,
    RESUMED,
    ClientEvent,
    done,
    external,
    failed,
    fired,
    go,
    join_set,
    member,
    received,
    sent,
    step,
    taken,
    time,
    timer,
    value,
    wait,
    wait_signal,
)
from tests.features.journal.keeper import append, begin, entries, everything, refused, state, types, unsaid
from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    acquire,
    ask,
    begin_run,
    refusal,
    settle,
    start,
    take_turn,
    tick,
)

DAY_MS = 86_400_000


def live(conn: Connection, past: list[ClientEvent]) -> None:
    """A run j with this past."""
    begin(conn)
    for event, payload in past:
        append(conn, "j", event, payload)


# guard -> (past, what is refused, words of the detail)
GUARDS: dict[str, tuple[list[ClientEvent], ClientEvent, str]] = {
    "R11 number of a child": ([], step(1), "next child is 0"),
    "A-1 number taken": ([step(0)], value(0), "next child is 1"),
    "R8 number of a set": ([], join_set(3), "next child is 0"),
    "SE-1 start of nothing": ([], go(0), "InvokeStarted of 'j.0': it was never scheduled"),
    "SE-1 start of a timer": ([timer(0)], go(0), "it is a timer"),
    "R1 first attempt is 1": ([step(0)], go(0, 2), "attempt 2 does not fit: attempt 1 comes next"),
    "X-3 started twice": ([step(0), go(0)], go(0), "attempt 1 is under way"),
    "X-3 next attempt without the end of this": ([step(0), go(0)], go(0, 2), "attempt 2"),
    "SE-2 completion without start": ([step(0)], done(0), "attempt 1 comes next"),
    "R1 completion of another attempt": ([step(0), go(0)], done(0, attempt=2), "attempt 2"),
    "SE-4 start after completion": ([step(0), go(0), done(0)], go(0, 2), "it is complete"),
    "SE-4 completed twice": ([step(0), go(0), done(0)], done(0), "it is complete"),
    "SE-4 retry after completion": ([step(0), go(0), done(0)], failed(0), "it is complete"),
    "SE-3 retry without start": ([step(0)], failed(0), "attempt 1"),
    "SE-3 retry of another attempt": ([step(0), go(0)], failed(0, 2), "attempt 2"),
    "SE-5 bound of retries": (
        [step(0, retry_policy={"max_attempts": 2}), go(0), failed(0), go(0, 2)],
        failed(0, 2),
        "allows 2 attempts",
    ),
    "an external one is not started here": ([external(0)], go(0), "settled with durable.promise_settle"),
    "an external one is not completed here": ([external(0)], done(0), "settled with durable.promise_settle"),
    "a set is not completed": ([join_set(0)], done(0), "InvokeCompleted of 'j.0': it is a join set"),
    "a set does not fail": ([join_set(0)], failed(0), "it is a join set"),
    "a value is not completed": ([value(0)], done(0), "it is a recorded value"),
    "a receipt is not started": ([sent(), received(0)], go(0), "it is the receipt of a signal"),
    "CF-1 timer that is none": ([step(0)], fired(0), "no such timer"),
    "R4 too early": ([timer(0)], fired(0), "fires in 1000 ms"),
    "CF-2 nothing delivered": ([], received(0), "no delivery 1"),
    "CF-2 another payload": ([sent()], received(0, "q"), "another payload"),
    "CF-2 not the oldest": ([sent("p"), sent("q")], received(0, "q"), "another payload"),
    "CF-3 received before": ([sent(), received(0)], received(1), "no delivery 2"),
    "X-6 number of a delivery": ([sent()], sent(delivery_id=3), "next delivery"),
    "X-6 number of a receipt": ([sent(), sent()], received(0, delivery_id=2), "delivery 1 of signal"),
    "R7 receipt while blocked on others": ([*BLOCKED, sent()], received(1), "blocked on something else"),
    "R7 receipt of another name": (
        [wait_signal(0, "t"), sent()],
        received(0),
        "blocked on something else",
    ),
    "R7 second receipt while blocked on one": (
        [wait_signal(0), sent(), sent(), received(0)],
        received(1),
        "blocked on something else",
    ),
    "R6 wait for nothing": ([], wait("Any"), "waits for nothing"),
    "R21 wait for one twice": ([step(0)], wait("All", 0, 0), "a child twice"),
    "R6 Single for two": ([step(0), step(1)], wait("Single", 0, 1), "one child"),
    "R6 wait for a captured value": ([value(0)], wait("Single", 0), "nothing would ever resolve it"),
    "R6 wait for a join set": ([join_set(0)], wait("Single", 0), "nothing would ever resolve it"),
    "R6 wait for what is not there": ([step(0)], wait("Any", 0, 5), "child 5"),
    "R7 wait for a receipt of another number": ([step(0)], wait_signal(0), "will be child 1"),
    "X-4 resume while running": ([], RESUMED, "while running"),
    "X-4 unsatisfied": ([*BLOCKED], RESUMED, "1 of what it waits for"),
    "X-4 All with one open": (
        [step(0), step(1), wait("All", 0, 1), go(0), done(0)],
        RESUMED,
        "1 of what it waits for",
    ),
    "R15 resume while cancelling": ([*BLOCKED, CANCEL], RESUMED, "while cancelling"),
    "JS-1 no such set": ([step(0)], member(0, 0), "0 is no join set"),
    "JS-2 closed": (
        [join_set(0), step(1), step(2), member(0, 1), go(1), done(1), taken(0, 1)],
        member(0, 2),
        "closed",
    ),
    "JS-7 in another set": (
        [join_set(0), join_set(1), step(2), member(0, 2)],
        member(1, 2),
        "in a join set already",
    ),
    "R9 submitted twice": ([join_set(0), step(1), member(0, 1)], member(0, 1), "in a join set already"),
    "R9 a timer as member": ([join_set(0), timer(1)], member(0, 1), "only an invocation"),
    "R9 a value as member": ([join_set(0), value(1)], member(0, 1), "only an invocation"),
    "JS-3 no member": ([join_set(0), step(1), go(1), done(1)], taken(0, 1), "not in that join set"),
    "JS-4 not complete": ([join_set(0), step(1), member(0, 1)], taken(0, 1), "not complete"),
    "JS-4 external not settled": ([join_set(0), external(1), member(0, 1)], taken(0, 1), "not complete"),
    "JS-5 taken before": (
        [join_set(0), step(1), member(0, 1), go(1), done(1), taken(0, 1)],
        taken(0, 1),
        "taken before",
    ),
    "R10 another result": (
        [join_set(0), step(1), member(0, 1), go(1), done(1)],
        taken(0, 1, result="w"),
        "another result",
    ),
    "R10 an error for a result": (
        [join_set(0), step(1), member(0, 1), go(1), done(1)],
        taken(0, 1, error="v"),
        "another result",
    ),
    "S-5 cancelled without request": ([], CANCELLED, "while running"),
    "S-5 cancelled while blocked": ([*BLOCKED], CANCELLED, "while blocked"),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard(conn: Connection, clock: Clock, guard: str) -> None:
    """What does not fit the journal is WF006, says why, and leaves everything as it was."""
    past, (event, payload), words = GUARDS[guard]
    live(conn, past)
    before = everything(conn)
    said = refused(conn, "j", event, payload)
    assert said.startswith("WF006"), said
    assert words in said
    assert f"Run 'j', {event}" in said
    assert everything(conn) == before


STEPS = [step(1), value(1), time(1), timer(1), join_set(1), external(1), wait("Single", 0)]


@pytest.mark.parametrize("past", [BLOCKED, [step(0), CANCEL]], ids=["blocked", "cancelling"])
@pytest.mark.parametrize("event", STEPS, ids=lambda event: event[0])
def test_nothing_new_while_not_running(
    conn: Connection, clock: Clock, past: list[ClientEvent], event: ClientEvent
) -> None:
    """While blocked or cancelling nothing is scheduled, captured, made or awaited."""
    live(conn, past)
    said = refused(conn, "j", *event)
    assert said.startswith("WF006")
    assert "not allowed while" in said


@pytest.mark.parametrize("past", [BLOCKED, [step(0), CANCEL]], ids=["blocked", "cancelling"])
def test_open_work_is_recorded_in_any_status(conn: Connection, clock: Clock, past: list[ClientEvent]) -> None:
    """While blocked or cancelling, attempts and deliveries are taken, and the run may complete or fail."""
    live(conn, past)
    for event, payload in (go(0), failed(0), go(0, 2), done(0, attempt=2), sent()):
        append(conn, "j", event, payload)
    for end, status in ((COMPLETED, "completed"), (FAILED, "failed")):
        with conn.transaction(force_rollback=True):
            assert append(conn, "j", *end).status == status
    before = types(conn, "j")
    assert append(conn, "j", *FAILED).status == "failed"
    assert types(conn, "j") == [*before, "ExecutionFailed"]


# name -> (id, version, event, payload, SQLSTATE, words)
BAD: dict[str, tuple[Any, Any, Any, Any, str, str]] = {
    "no id": ("", 1, "ExecutionResumed", {}, "WF004", "not empty"),
    "null id": (None, 1, "ExecutionResumed", {}, "WF004", "not empty"),
    "no event": ("j", 1, None, {}, "WF004", "no event"),
    "another event": ("j", 1, "ExecutionPaused", {}, "WF004", "no event"),
    "no version": ("j", None, "ExecutionResumed", {}, "WF004", "names that of its lease"),
    "a start with a version": (
        "k",
        1,
        "ExecutionStarted",
        {"component_digest": "d", "input": 1},
        "WF004",
        "version",
    ),
    "payload is a list": ("j", 1, "ExecutionResumed", [], "WF004", "JSON object"),
    "payload is null": ("j", 1, "ExecutionResumed", None, "WF004", "JSON object"),
    "a key is missing": ("j", 1, "InvokeStarted", {"attempt": 1}, "WF004", "no promise_id"),
    "a key is null": ("j", 1, "InvokeStarted", {"promise_id": None, "attempt": 1}, "WF004", "no promise_id"),
    "a key too many": ("j", 1, *time(0)[:1], {**time(0)[1], "x": 1}, "WF004", "no place for x"),
    "result and error": ("j", 1, "InvokeCompleted", {**done(0)[1], "error": 1}, "WF004", "either"),
    "neither of them": ("j", 1, "InvokeCompleted", go(0)[1], "WF004", "either"),
    "attempt is a text": (
        "j",
        1,
        "InvokeStarted",
        {"promise_id": "j.0", "attempt": "1"},
        "WF004",
        "is a number",
    ),
    "attempt is a fraction": ("j", 1, *go(0)[:1], {**go(0)[1], "attempt": 1.5}, "WF004", "whole number"),
    "attempt is zero": ("j", 1, *go(0, 0), "WF004", "whole number"),
    "attempt is huge": ("j", 1, *go(0, 10**30), "WF004", "whole number"),
    "id of a child is a number": ("j", 1, "TimerFired", {"promise_id": 0}, "WF004", "no child of run"),
    "child of another run": ("j", 1, "TimerFired", {"promise_id": "k.0"}, "WF004", "no child of run"),
    "a grandchild": ("j", 1, "TimerFired", {"promise_id": "j.0.0"}, "WF004", "no child of run"),
    "not a canonical number": ("j", 1, "TimerFired", {"promise_id": "j.00"}, "WF004", "no child of run"),
    "the run itself": ("j", 1, "TimerFired", {"promise_id": "j"}, "WF004", "no child of run"),
    "kind of an invocation": ("j", 1, *step(0, kind="Sql"), "WF004", "Function, Http, Local or External"),
    "policy of an external one": ("j", 1, *external(0, retry_policy={}), "WF004", "settled from outside"),
    "timeout of a function": ("j", 1, *step(0, timeout=5), "WF004", "Only an External"),
    "bound of retries": ("j", 1, *step(0, retry_policy={"max_attempts": 0}), "WF004", "max_attempts"),
    "no function name": ("j", 1, *step(0, function_name=""), "WF004", "function_name"),
    "name of a signal": ("j", 1, *sent(name="x" * 257), "WF004", "signal_name"),
    "kind of a wait": ("j", 1, *wait("Some", 0), "WF004", "of kind"),
    "kind of a wait as text": (
        "j",
        1,
        "ExecutionAwaiting",
        {"waiting_on": [], "kind": "Any"},
        "WF004",
        "of kind",
    ),
    "wait is no list": (
        "j",
        1,
        "ExecutionAwaiting",
        {"waiting_on": "j.0", "kind": {"tag": "Any"}},
        "WF004",
        "array",
    ),
    "wait for others": (
        "j",
        1,
        "ExecutionAwaiting",
        {"waiting_on": ["k.0"], "kind": {"tag": "Any"}},
        "WF004",
        "no child",
    ),
    "CF-4 shape of a signal wait": (
        "j",
        1,
        "ExecutionAwaiting",
        {"waiting_on": ["j.0", "j.1"], "kind": {"tag": "Signal", "name": "s", "promise_id": "j.0"}},
        "WF004",
        "for its promise_id alone",
    ),
    "no such run": ("k", 1, "ExecutionResumed", {}, "WF001", "'k'"),
    "a run of workers": ("w", 1, "ExecutionResumed", {}, "WF003", "kept by its workers"),
    "start over a run of workers": (
        "w",
        None,
        "ExecutionStarted",
        {"component_digest": "d", "input": 1},
        "WF009",
        "keeper",
    ),
    "start over a promise": (
        "p",
        None,
        "ExecutionStarted",
        {"component_digest": "d", "input": 1},
        "WF003",
        "no run",
    ),
    "start below a run": (
        "j.7",
        None,
        "ExecutionStarted",
        {"component_digest": "d", "input": 1},
        "WF004",
        "reserved",
    ),
    "a start without input": ("k", None, "ExecutionStarted", {"component_digest": "d"}, "WF004", "no input"),
    "a start without digest": ("k", None, "ExecutionStarted", {"input": 1}, "WF004", "no component_digest"),
    "another version": ("j", 2, "ExecutionResumed", {}, "WF002", "version 2"),
    "version below": ("j", 0, "ExecutionResumed", {}, "WF002", "version 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(conn: Connection, clock: Clock, name: str) -> None:
    """What is malformed, unknown or not the client's is refused with its own SQLSTATE, and nothing
    changes."""
    run, version, event, payload, code, words = BAD[name]
    begin(conn)
    ask(conn, start("w"))
    ask(conn, ("select durable.create_promise('p')", ()))
    before = everything(conn)
    said = unsaid(conn, run, version, event, payload)
    assert said.startswith(code), said
    assert words in said
    assert everything(conn) == before


def test_a_payload_over_the_limit(conn: Connection) -> None:
    """An event that weighs more than the setting allows is WF008."""
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    begin(conn)
    assert refused(conn, "j", *sent("x" * 2000)).startswith("WF008")
    assert refused(conn, "k", "ExecutionStarted", {"component_digest": "d", "input": "x" * 2000}).startswith(
        "WF008"
    )


def test_the_same_start_again(conn: Connection, clock: Clock) -> None:
    """The same id with the same key and input is the same run, told as it stands; another key or input is
    WF009 (R18)."""
    begin(conn, idempotency_key="k", parent_id="somebody")
    append(conn, "j", *step(0))
    append(conn, "j", *wait("Single", 0))
    before = everything(conn)
    again = begin(conn, idempotency_key="k")
    assert (again.seq, again.status, again.next_child) == (0, "blocked", 1)
    said = {"component_digest": "d", "input": "in"}
    assert "idempotency key" in refused(conn, "j", "ExecutionStarted", said)
    said = {"component_digest": "d", "input": "another", "idempotency_key": "k"}
    assert refused(conn, "j", "ExecutionStarted", said).startswith("WF009")
    assert everything(conn) == before
    append(conn, "j", *COMPLETED)
    assert begin(conn, idempotency_key="k").status == "completed"


def test_one_key_and_two_ids(conn: Connection) -> None:
    """A key is part of an id, not an id of its own: two runs may tell the same one."""
    begin(conn, "j", idempotency_key="k")
    begin(conn, "k", idempotency_key="k")
    assert [entries(conn, run)[0]["payload"]["idempotency_key"] for run in "jk"] == ["k", "k"]


def test_repeated_requests_and_firings_are_not_appended(conn: Connection, clock: Clock) -> None:
    """A second request of cancellation and a second firing of a timer are answered with the place of the
    first, and not appended (R3, R4)."""
    live(conn, [timer(0)])
    clock.advance(1000)
    first = append(conn, "j", *fired(0))
    requested = append(conn, "j", *CANCEL)
    before = everything(conn)
    assert append(conn, "j", *fired(0)).seq == first.seq == 2
    assert append(conn, "j", "CancelRequested", {"reason": "another"}) == requested
    assert everything(conn) == before


def test_the_fence(conn: Connection, clock: Clock) -> None:
    """Who lost the lease writes no more; who took it over goes on with the same journal, open attempts
    among it."""
    begin(conn, ttl=5000, pid="A")
    for event in (step(0), go(0)):
        append(conn, "j", *event)
    clock.advance(5000)
    assert tick(conn)["leases"] == 1
    assert refused(conn, "j", *done(0)).startswith("WF002")
    ask(conn, acquire("j", 1, pid="B"))
    assert refused(conn, "j", *done(0)).startswith("WF002")
    append(conn, "j", *done(0), version=2)
    assert types(conn, "j") == ["ExecutionStarted", "InvokeScheduled", "InvokeStarted", "InvokeCompleted"]


def test_no_worker_claims_it(conn: Connection, clock: Clock) -> None:
    """A run whose client is gone waits for a client, whatever workflows and queues workers have."""
    begin(conn, ttl=5, workflow="hello")
    clock.advance(5)
    tick(conn)
    assert take_turn(conn, "W", want=5, queues=["journal", "default"], workflows=["hello"]).tasks == []
    assert ask(conn, ("select state, version from durable.tasks where id = 'j'", ())) == ("pending", 1)


def test_writing_renews_the_lease(conn: Connection, clock: Clock) -> None:
    """An append in the second half of the lease renews it; one in the first half leaves it alone."""
    begin(conn)
    ends = "select expires_at, crashes from durable._tasks where id = 'j'"
    born = clock.now_ms
    assert ask(conn, (ends, ())) == (born + DAY_MS, 0)
    clock.advance(1000)
    append(conn, "j", *value(0))
    assert ask(conn, (ends, ())) == (born + DAY_MS, 0)
    clock.advance(DAY_MS // 2)
    append(conn, "j", *value(1))
    assert ask(conn, (ends, ())) == (clock.now_ms + DAY_MS, 0)


def test_a_deadline_ends_it(conn: Connection, clock: Clock) -> None:
    """A run has the deadline that its start asked for; after it nothing is taken, and the sweep ends the
    journal."""
    begin(conn, timeout=100)
    clock.advance(100)
    assert refused(conn, "j", *COMPLETED).startswith("WF002")
    tick(conn)
    last = entries(conn, "j")[-1]
    assert (last["type"], last["payload"]["error"]["kind"]) == ("ExecutionFailed", "Timeout")


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (COMPLETED, ("resolved", 1, None)),
        (FAILED, ("rejected", None, "e")),
    ],
)
def test_an_end_settles_the_promise(conn: Connection, end: ClientEvent, outcome: tuple[Any, ...]) -> None:
    """The end of the journal is the end of the run for everybody, and nothing follows it."""
    begin(conn)
    append(conn, "j", *end)
    assert ask(conn, ("select * from durable.result('j')", ())) == outcome
    for event in (sent(), CANCEL, value(0), COMPLETED):
        assert refused(conn, "j", *event).startswith("WF002")


def test_cancellation_in_two_phases(conn: Connection, clock: Clock) -> None:
    """A request from outside is in the journal at once; the client ends it, with the reason that it gives
    or that of the request; the grace ends it without the client."""
    for run in "jkl":
        begin(conn, run)
        assert ask(conn, (f"select durable.cancel('{run}', '\"why\"', '1 s')", ())) == ("cancelling",)
    append(conn, "j", "ExecutionCancelled", {"reason": "because"})
    append(conn, "k", "ExecutionCancelled")
    clock.advance(1000)
    tick(conn)
    told = {run: [entry["payload"].get("reason") for entry in entries(conn, run)[1:]] for run in "jkl"}
    assert told == {"j": ["why", "because"], "k": ["why", "why"], "l": ["why", "why"]}
    assert ask(conn, ("select state, error ->> 'reason' from durable.result('j')", ())) == (
        "rejected_canceled",
        "because",
    )


def test_an_external_invocation(conn: Connection, clock: Clock) -> None:
    """Whoever settles its promise writes start and completion into the journal, in the order of settlement;
    the wait is over, and says so only when the client does."""
    live(conn, [external(0), external(1, timeout=50), wait("All", 0, 1)])
    ask(conn, settle("j.0", '{"ok": 1}'))
    assert state(conn, "j") == (
        {"tag": "Blocked", "waiting_on": ["j.0", "j.1"], "kind": {"tag": "All"}},
        2,
        6,
    )
    assert refused(conn, "j", *RESUMED).startswith("WF006")
    clock.advance(50)
    tick(conn)
    completed = [entry["payload"] for entry in entries(conn, "j") if entry["type"] == "InvokeCompleted"]
    assert completed[0] == {"promise_id": "j.0", "attempt": 1, "result": {"ok": 1}}
    assert completed[1]["error"]["kind"] == "Timeout"
    assert ask(conn, ("select status, wait_left from durable._executions where id = 'j'", ())) == (
        "blocked",
        0,
    )
    assert append(conn, "j", *RESUMED).status == "running"
    assert ask(conn, ("select param from durable.promises where id = 'j.0'", ())) == (0,)


def test_a_member_that_failed(conn: Connection) -> None:
    """The error of a member is its result, taken as the journal shows it."""
    live(conn, [join_set(0), external(1), step(2), member(0, 1), member(0, 2), go(2)])
    append(conn, "j", "InvokeCompleted", {"promise_id": "j.2", "attempt": 1, "error": {"type": "Oops"}})
    ask(conn, settle("j.1", '"no"', state="rejected"))
    shown = {
        e["payload"]["promise_id"]: e["payload"]["error"]
        for e in entries(conn, "j")
        if "error" in e["payload"]
    }
    assert shown == {
        "j.1": {"kind": "Uncategorized", "message": "no"},
        "j.2": {"kind": "UserError", "type": "Oops"},
    }
    for child, error in shown.items():
        append(conn, "j", *taken(0, int(child[-1]), error=error))
    assert [e["payload"] for e in entries(conn, "j")[-2:]] == [
        {"join_set_id": "j.0", "promise_id": child, "error": error} for child, error in shown.items()
    ]


def test_a_timer_that_is_swept(conn: Connection, clock: Clock) -> None:
    """A due timer fires by itself, once; through its promise it may also be fired early."""
    live(conn, [timer(0), timer(1, 2000), timer(2, 3000), wait("Any", 0, 1)])
    clock.advance(1000)
    tick(conn)
    assert append(conn, "j", *fired(0)).seq == 5
    assert append(conn, "j", *RESUMED).status == "running"
    ask(conn, settle("j.1", "null"))
    assert refused(conn, "j", *fired(2)).startswith("WF006")
    assert [e["payload"]["promise_id"] for e in entries(conn, "j") if e["type"] == "TimerFired"] == [
        "j.0",
        "j.1",
    ]


def test_a_timer_of_the_past(conn: Connection, clock: Clock) -> None:
    """A timer for an instant that has come is due at once."""
    live(conn, [("TimerScheduled", {"promise_id": "j.0", "duration": 0, "fire_at": 5})])
    assert append(conn, "j", *fired(0)).seq == 2
    assert ask(
        conn, ("select state, timeout_at - created_at from durable._promises where id = 'j.0'", ())
    ) == (
        "resolved",
        1,
    )


@pytest.mark.parametrize("kind", ["Single", "Any", "All"])
def test_a_wait_that_is_satisfied_already(conn: Connection, clock: Clock, kind: str) -> None:
    """A wait for what is there is taken, and can be resumed at once."""
    live(conn, [step(0), go(0), done(0), wait(kind, 0)])
    assert append(conn, "j", *RESUMED).status == "running"


def test_each_kind_counts_what_resolves(conn: Connection, clock: Clock) -> None:
    """Any is satisfied by the first, All by the last of what is waited for, whoever resolves it."""
    past = [step(0), timer(1), external(2), go(0)]
    left = "select wait_left from durable._executions where id = 'j'"
    live(conn, past)
    clock.advance(1000)
    with conn.transaction(force_rollback=True):
        append(conn, "j", *wait("Any", 0, 1, 2))
        append(conn, "j", *done(0))
        assert ask(conn, (left, ())) == (0,)
        append(conn, "j", *fired(1))
        assert ask(conn, (left, ())) == (0,)
    append(conn, "j", *wait("All", 0, 1, 2))
    append(conn, "j", *done(0))
    assert ask(conn, (left, ())) == (2,)
    append(conn, "j", *fired(1))
    assert ask(conn, (left, ())) == (1,)
    ask(conn, settle("j.2"))
    assert ask(conn, (left, ())) == (0,)


def test_a_signal_for_a_client_is_only_delivered(conn: Connection) -> None:
    """A signal from outside is buffered; its receipt is the client's to write, also where it waits for it."""
    live(conn, [wait_signal(0)])
    assert ask(conn, ("select durable.signal('j', 's', '1')", ())) == (1,)
    assert types(conn, "j")[-1] == "SignalDelivered"
    assert refused(conn, "j", *RESUMED).startswith("WF006")
    append(conn, "j", *received(0, 1, delivery_id=1))
    assert append(conn, "j", *RESUMED).next_child == 1


def test_a_wait_that_was_cancelled_leaves_its_number_unused(conn: Connection) -> None:
    """A Signal wait names the next child and does not take it."""
    live(conn, [wait_signal(0), CANCEL])
    assert append(conn, "j", *CANCELLED).next_child == 0


def test_promises_of_a_client_outlive_its_run(conn: Connection, clock: Clock) -> None:
    """What is settled after the end is settled, and the journal stays as it is (R16)."""
    live(conn, [external(0), timer(1), COMPLETED])
    before = types(conn, "j")
    assert ask(conn, settle("j.0"))[0] == "resolved"
    clock.advance(1000)
    tick(conn)
    assert types(conn, "j") == before


def test_payloads_of_a_run_of_workers(conn: Connection) -> None:
    """The journal of a run that workers keep is shown in the same words."""
    begin_run(conn, "r")
    payload = entries(conn, "r")[0]["payload"]
    assert payload.keys() == {"component_digest", "input", "parent_id", "idempotency_key"}
    assert refusal(conn, ("select durable.journal_append('r', 1, 'ExecutionResumed')", ())) == "WF003"
    assert ask(conn, ("select timeout_at from durable._promises where id = 'r'", ())) == (NEVER,)
