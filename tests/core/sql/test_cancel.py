"""Law: a request of cancellation reaches a run in whatever state it is, and its live children; the code gets
a grace for its clean-up, then the run ends. Pause, resume and redrive set runs aside and bring them back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.stages import LIVE, NEVER_RUN, head, seen, state, states
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    broken,
    cancel,
    cancelled,
    captured,
    claim,
    complete,
    create,
    done,
    events_of,
    fail,
    heartbeat,
    promise,
    promise_of,
    refusal,
    release,
    report,
    run,
    settle,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)

GRACE_MS = 30_000


@pytest.mark.parametrize("name", LIVE)
def test_a_live_run_is_asked(conn: Connection, clock: Clock, name: str) -> None:
    """The request is in the journal; a held run stays held, any other is ready at once, whatever it waited
    for; nothing of its wait or problem is left."""
    stage, word = LIVE[name]
    stage(conn, clock)
    assert state(conn) == word
    before = types_of(conn, "r")
    assert ask(conn, cancel("r", '"why"')) == ("cancelling", name != "held")
    assert types_of(conn, "r") == [*before, "cancel_requested"]
    assert state(conn) == "cancelling"
    (task, *_) = task_of(conn, "r") or ("",)
    assert task == ("acquired" if name == "held" else "pending")
    columns = ("cancel_seq", "cancel_until", "waiting_on", "wait_kind", "problem")
    assert head(conn, *columns) == (head(conn, "next_seq")[0] - 1, clock.now_ms + GRACE_MS, None, None, None)
    if name != "held":
        again = take_turn(conn, "V", want=1, queues=["q-r"]).tasks[0]
        assert again.rows[-1][1] == "cancel_requested"
        assert json.loads(again.rows[-1][6]) == {"reason": "why"}


@pytest.mark.parametrize("name", NEVER_RUN)
def test_a_run_that_never_ran_is_cancelled_at_once(conn: Connection, clock: Clock, name: str) -> None:
    """There is nothing to clean up after, so nobody is asked."""
    stage, word = NEVER_RUN[name]
    stage(conn, clock)
    assert state(conn) == word
    assert ask(conn, cancel("r", '"why"')) == ("cancelled", False)
    assert (state(conn), types_of(conn, "r"), task_of(conn, "r")) == (
        "cancelled",
        ["execution_started", "cancel_requested", "execution_cancelled"],
        None,
    )


@pytest.mark.parametrize("name", [*LIVE, *NEVER_RUN])
def test_force_ends_at_once(conn: Connection, clock: Clock, name: str) -> None:
    """A forced cancellation ends the run in any state, and whoever holds it is fenced."""
    stage, _ = {**LIVE, **NEVER_RUN}[name]
    stage(conn, clock)
    assert ask(conn, cancel("r", force=True))[0] == "cancelled"
    assert (state(conn), task_of(conn, "r")) == ("cancelled", None)
    assert types_of(conn, "r")[-2:] == ["cancel_requested", "execution_cancelled"]
    (execution,) = head(conn, "execution")
    late = Held(execution=execution, id="r", version=1, next=1)
    assert take_turn(conn, "W", report(late, end=complete())).of(late) == ("lost", "lost")


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ('"called off"', "called off"),
        ('{"a": null}', '{"a": null}'),
        ("null", "cancelled"),
        (None, "cancelled"),
    ],
)
def test_the_reason_is_in_the_error(conn: Connection, reason: str | None, message: str) -> None:
    """Whatever JSON the reason is, the error of the run has it, and a message for people."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r", reason))
    take_turn(conn, "W", report(seen(held, 2), end=cancelled()))
    (error,) = ask(conn, ("select error from durable.result('r')", ()))
    expected = {"type": "Cancelled", "kind": "Cancelled", "message": message}
    given = json.loads(reason or "null")
    assert error == (expected if given is None else {**expected, "reason": given})


def test_for_people(conn: Connection) -> None:
    """durable.cancel answers the state, and asking again is no error, also when it has ended so."""
    held = begin_run(conn, "r")
    call: Call = ("select durable.cancel('r', reason => '\"x\"', grace => '1 minute')", ())
    assert ask(conn, call) == ("cancelling",)
    assert ask(conn, call) == ("cancelling",)
    take_turn(conn, "W", report(seen(held, 2), end=cancelled()))
    assert ask(conn, call) == ("cancelled",)
    assert types_of(conn, "r") == ["execution_started", "cancel_requested", "execution_cancelled"]


def test_the_code_gives_in(conn: Connection) -> None:
    """A run whose code let the cancellation out ends as cancelled."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    answer = take_turn(conn, "W", report(seen(held, 2), end=cancelled()))
    assert answer.of(held) == ("ok", "done")
    assert (promise_of(conn, "r") or ("",))[0] == "rejected_canceled"
    assert events_of(conn, "r") == ["ExecutionStarted", "CancelRequested", "ExecutionCancelled"]


def test_cancelling_oneself_without_a_request_is_a_failure(conn: Connection) -> None:
    """Code that cancels itself without a request has failed."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, end=cancelled()))
    assert (state(conn), types_of(conn, "r")) == ("failed", ["execution_started", "execution_failed"])


@pytest.mark.parametrize(
    ("end", "word", "types"),
    [
        (complete(), "completed", ["execution_started", "cancel_requested", "execution_completed"]),
        (fail(), "failed", ["execution_started", "cancel_requested", "execution_failed"]),
    ],
)
def test_the_code_may_still_win(conn: Connection, end: dict[str, Any], word: str, types: str) -> None:
    """A run that has seen the request and ends otherwise has ended otherwise."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    assert take_turn(conn, "W", report(seen(held, 2), end=end)).of(held) == ("ok", "done")
    assert (state(conn), types_of(conn, "r")) == (word, types)
    assert refusal(conn, cancel("r")) == "WF003"


@pytest.mark.parametrize(
    "more",
    [
        {"end": complete()},
        {"end": fail()},
        {"end": release()},
        {"end": suspend(0)},
        {"commands": [promise(0)]},
        {"commands": [captured(0)], "end": complete()},
    ],
    ids=["complete", "fail", "release", "suspend", "command", "command_and_complete"],
)
def test_a_report_made_before_the_request_is_stale(conn: Connection, more: dict[str, Any]) -> None:
    """What code did without having seen the request does not count: it is replayed with it."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    assert take_turn(conn, "W", report(held, **more)).of(held) == ("stale", "acquired")
    assert types_of(conn, "r") == ["execution_started", "cancel_requested"]


def test_step_results_before_the_request_are_recorded(conn: Connection) -> None:
    """Steps that ran are recorded, though their run has not seen the request: what happened, happened."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    ask(conn, cancel("r"))
    answer = take_turn(conn, "W", report(held, outcomes=[done(0), done(1), broken(2, retry_in=5)]))
    assert answer.of(held) == ("stale", "acquired")
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "cancel_requested", "open_step_completed"),
        *("step_completed", "first_attempt_failed"),
    ]


def test_an_empty_report_returns_the_request(conn: Connection) -> None:
    """A held run hears of the request in its next turn."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r", '{"why": 1}'))
    answer = take_turn(conn, "W", report(held))
    ((_, kind, *_, data, _),) = answer.tail(held)
    assert (answer.of(held), kind, json.loads(data)) == (
        ("ok", "acquired"),
        "cancel_requested",
        {"reason": {"why": 1}},
    )


def test_a_clean_up_takes_durable_steps(conn: Connection) -> None:
    """Having seen the request, a run may run steps, start timers, promises and runs, and capture values."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    commands = [promise(1), run(2, queue="kids"), timer(3, 10), captured(4)]
    answer = take_turn(conn, "W", report(seen(held, 2), outcomes=[done(0)], commands=commands))
    assert answer.of(held) == ("ok", "acquired")
    assert types_of(conn, "r") == [
        *("execution_started", "cancel_requested", "promise_registered", "child_run_scheduled"),
        *("timer_scheduled", "random_generated", "step_completed"),
    ]
    assert state(conn, "r.2") == "queued"
    assert take_turn(conn, "W", report(seen(held, 9), end=cancelled())).of(held) == ("ok", "done")


def test_a_clean_up_keeps_its_lease_while_it_waits(conn: Connection, clock: Clock) -> None:
    """A run that is being cancelled does not suspend: it stays with its worker, which is told what
    resolves."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    take_turn(conn, "W", report(seen(held, 2), commands=[timer(0, 10)]))
    answer = take_turn(conn, "W", report(seen(held, 3), end=suspend(0)))
    assert answer.of(held) == ("ok", "acquired")
    clock.advance(10)
    tick(conn)
    assert [row[1] for row in take_turn(conn, "W", report(seen(held, 3))).tail(held)] == ["timer_fired"]
    assert types_of(conn, "r") == ["execution_started", "cancel_requested", "timer_scheduled", "timer_fired"]


def test_a_clean_up_survives_its_worker(conn: Connection, clock: Clock) -> None:
    """A lost lease in the grace time hands the run, the request in its journal, to another worker."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    ask(conn, cancel("r", grace_ms=10 * TTL_MS))
    clock.advance(TTL_MS)
    tick(conn)
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "cancel_requested", "open_attempt_failed"),
    ]
    again = claim(conn, "V", "q-r")
    assert [row[1] for row in again.rows] == [
        *("execution_started", "step_started", "cancel_requested", "open_attempt_failed"),
    ]
    assert take_turn(conn, "V", report(again, end=cancelled())).of(again) == ("ok", "done")


@pytest.mark.parametrize(("grace_ms", "lasts_ms"), [(None, GRACE_MS), (5_000, 5_000), (0, 1)])
def test_the_grace_ends(conn: Connection, clock: Clock, grace_ms: int | None, lasts_ms: int) -> None:
    """A run that did not end within the grace is ended by the sweep, not before; whoever holds it is
    fenced."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r", '"slow"', grace_ms=grace_ms))
    clock.advance(lasts_ms - 1)
    assert tick(conn)["promises"] == 0
    assert tick(conn)["next_due_ms"] == 1
    clock.advance(1)
    ask(conn, heartbeat("W", held))
    assert tick(conn)["promises"] == 1
    assert types_of(conn, "r") == ["execution_started", "cancel_requested", "execution_cancelled"]
    assert ask(conn, ("select error ->> 'reason' from durable.result('r')", ())) == ("slow",)
    assert take_turn(conn, "W", report(seen(held, 2), end=complete())).of(held) == ("lost", "lost")


def test_the_grace_of_many(conn: Connection, clock: Clock) -> None:
    """One sweep ends as many as it is asked for, and says that there are more."""
    for number in range(5):
        begin_run(conn, f"r{number}")
        ask(conn, cancel(f"r{number}", grace_ms=number + 1))
    clock.advance(10)
    answers = [tick(conn, 2) for _ in range(3)]
    assert [(answer["promises"], answer["more"]) for answer in answers] == [(2, True), (2, True), (1, False)]
    assert {state(conn, f"r{number}") for number in range(5)} == {"cancelled"}


def test_the_grace_is_a_setting(conn: Connection, clock: Clock) -> None:
    """Who says nothing gives what the setting says."""
    ask(conn, ("select durable.set_setting('cancel_grace_ms', '777')", ()))
    begin_run(conn, "r")
    ask(conn, ("select durable.cancel('r')", ()))
    assert head(conn, "cancel_until") == (clock.now_ms + 777,)


def test_a_deadline_within_the_grace(conn: Connection, clock: Clock) -> None:
    """A run whose deadline comes before the end of the grace has timed out."""
    begin_run(conn, "r", timeout="5 seconds")
    ask(conn, cancel("r"))
    clock.advance(5_000)
    tick(conn)
    assert (state(conn), types_of(conn, "r"), head(conn, "cancel_until")) == (
        "timed_out",
        ["execution_started", "cancel_requested", "execution_failed"],
        (None,),
    )


def test_a_second_request_changes_nothing(conn: Connection, clock: Clock) -> None:
    """Neither reason nor grace nor journal: the first request stands (R3)."""
    begin_run(conn, "r")
    ask(conn, cancel("r", '"first"', grace_ms=100))
    before = conn.execute("select * from durable._executions").fetchall()
    clock.advance(50)
    assert ask(conn, cancel("r", '"second"', grace_ms=900)) == ("cancelling", False)
    assert conn.execute("select * from durable._executions").fetchall() == before
    assert types_of(conn, "r") == ["execution_started", "cancel_requested"]


def test_force_after_a_request(conn: Connection) -> None:
    """Who does not want to wait for the grace ends it; the first request stays the only one."""
    begin_run(conn, "r")
    ask(conn, cancel("r"))
    assert ask(conn, cancel("r", force=True)) == ("cancelled", False)
    assert types_of(conn, "r") == ["execution_started", "cancel_requested", "execution_cancelled"]


def family(conn: Connection) -> dict[str, Held]:
    """r has a child of each kind: 0 held, 1 queued, 2 detached, 3 abandoned, 4 that waits for its own child
    4.0, which is held; all of the others have no children."""
    held = {"r": begin_run(conn, "r")}
    commands = [
        run(0, queue="k0"),
        run(1, queue="k1"),
        run(2, queue="k2", detached=True),
        run(3, queue="k3", abandon=True),
        run(4, queue="k4"),
    ]
    answer = take_turn(conn, "W", report(held["r"], commands=commands))
    take_turn(
        conn, "W", report(held["r"], end=suspend(0, 1, 3, 4, kind="all"), seen=answer.next_of(held["r"]))
    )
    for number in (0, 2, 3, 4):
        held[f"r.{number}"] = claim(conn, "K", f"k{number}")
    four = held["r.4"]
    answer = take_turn(conn, "K", report(four, commands=[run(0, queue="k40")]))
    take_turn(conn, "K", report(four, end=suspend(0), seen=answer.next_of(four)))
    held["r.4.0"] = claim(conn, "K", "k40")
    return held


def test_children_are_asked_too(conn: Connection) -> None:
    """The request reaches children and their children, but neither detached nor abandoned ones; one that
    never ran ends at once, and its parent's journal tells."""
    family(conn)
    assert ask(conn, cancel("r", '"all of you"')) == ("cancelling", True)
    assert states(conn) == {
        "r": "cancelling",
        "r.0": "cancelling",
        "r.1": "cancelled",
        "r.2": "running",
        "r.3": "running",
        "r.4": "cancelling",
        "r.4.0": "cancelling",
    }
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_scheduled", "child_run_scheduled"),
        *("child_run_scheduled", "child_run_scheduled", "execution_awaiting", "child_run_started"),
        *("child_run_started", "child_run_started", "child_run_started"),
        *("cancel_requested", "child_settled"),
    ]
    assert types_of(conn, "r.4") == [
        *("execution_started", "child_run_scheduled", "execution_awaiting"),
        *("child_run_started", "cancel_requested"),
    ]
    assert ask(conn, ("select error ->> 'reason' from durable.result('r.1')", ())) == ("all of you",)


def test_force_reaches_children_too(conn: Connection) -> None:
    """All that a request would reach ends at once; parents hear of children between their own request, which
    is the cause, and their own end."""
    family(conn)
    assert ask(conn, cancel("r", force=True))[0] == "cancelled"
    assert {id_ for id_, word in states(conn).items() if word == "cancelled"} == {
        "r",
        "r.0",
        "r.1",
        "r.4",
        "r.4.0",
    }
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_scheduled", "child_run_scheduled"),
        *("child_run_scheduled", "child_run_scheduled", "execution_awaiting", "child_run_started"),
        *("child_run_started", "child_run_started", "child_run_started", "cancel_requested"),
        *("open_child_settled", "child_settled", "open_child_settled", "execution_cancelled"),
    ]
    assert types_of(conn, "r.4") == [
        *("execution_started", "child_run_scheduled", "execution_awaiting", "child_run_started"),
        *("cancel_requested", "open_child_settled", "execution_cancelled"),
    ]
    assert states(conn)["r.2"] == states(conn)["r.3"] == "running"


def test_a_branch_is_cancelled_alone(conn: Connection) -> None:
    """The request goes down, not up."""
    held = family(conn)
    assert ask(conn, cancel("r.4"))[0] == "cancelling"
    assert {id_ for id_, word in states(conn).items() if word == "cancelling"} == {"r.4", "r.4.0"}
    take_turn(conn, "K", report(seen(held["r.4.0"], 2), end=cancelled()))
    assert states(conn)["r.4.0"] == "cancelled"
    assert types_of(conn, "r.4") == [
        *("execution_started", "child_run_scheduled", "execution_awaiting", "child_run_started"),
        *("cancel_requested", "open_child_settled"),
    ]
    assert states(conn)["r"] == "waiting"


def test_an_abandoned_child_can_be_cancelled_itself(conn: Connection) -> None:
    """What keeps a child from its parent's cancellation does not keep it from its own."""
    family(conn)
    assert ask(conn, cancel("r.3"))[0] == "cancelling"
    assert ask(conn, cancel("r.2"))[0] == "cancelling"


def test_a_second_request_spares_the_clean_up(conn: Connection) -> None:
    """Runs that a clean-up started are not asked by a second request; force ends them."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    take_turn(conn, "W", report(seen(held, 2), commands=[run(0, queue="kids")]))
    claim(conn, "K", "kids")
    assert ask(conn, cancel("r")) == ("cancelling", False)
    assert state(conn, "r.0") == "running"
    ask(conn, cancel("r", force=True))
    assert state(conn, "r.0") == "cancelled"


def test_an_ended_child_stays_as_it_is(conn: Connection) -> None:
    """What has ended is not cancelled."""
    held = family(conn)
    take_turn(conn, "K", report(held["r.0"], end=complete()))
    ask(conn, cancel("r", force=True))
    assert states(conn)["r.0"] == "completed"


def test_completions_during_a_cancellation_are_recorded(conn: Connection, clock: Clock) -> None:
    """Promises, timers and steps that end while a run is being cancelled are in its journal; nothing resumes
    it."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)], commands=[promise(1), timer(2, 10)]))
    ask(conn, cancel("r"))
    ask(conn, settle("r.1"))
    clock.advance(10)
    tick(conn)
    take_turn(conn, "W", report(seen(held, 9), outcomes=[done(0)]))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "timer_scheduled", "step_started"),
        *("cancel_requested", "child_settled", "timer_fired", "open_step_completed"),
    ]


def test_invalid_cancellations(conn: Connection) -> None:
    """There must be such a run, and it must not have ended otherwise; a malformed request is refused
    first."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0)], commands=[promise(1)]))
    ask(conn, create("x", external="true"))
    take(conn, "t")
    for name in ("nobody", "x", "t", "r.0", "r.1"):
        assert refusal(conn, cancel(name)) == "WF001", name
    assert refusal(conn, cancel("nobody", grace_ms=-1)) == "WF004"
    assert refusal(conn, cancel("r", reason="no json")) == "WF004"
    assert refusal(conn, ("select durable.cancel('r', grace => '-1 second')", ())) == "WF004"
    ask(conn, ("select durable.set_setting('payload_max_bytes', '1500')", ()))
    assert refusal(conn, cancel("r", json.dumps("x" * 2000))) == "WF008"
    ask(conn, settle("r"))
    assert refusal(conn, cancel("r")) == "WF003"
    assert refusal(conn, cancel("r", force=True)) == "WF003"
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "step_completed", "execution_completed"),
    ]


def test_past_its_deadline(conn: Connection, clock: Clock) -> None:
    """A run past its deadline has timed out, swept or not."""
    begin_run(conn, "r", timeout="1 minute")
    clock.advance(60_000)
    assert refusal(conn, cancel("r")) == "WF003"


def test_a_canceled_promise_of_the_older_api_ends_its_run(conn: Connection) -> None:
    """A promise that is settled as canceled from outside ends its run as a forced cancellation does."""
    begin_run(conn, "r")
    ask(conn, settle("r", '"v"', state="rejected_canceled"))
    assert (state(conn), types_of(conn, "r")) == (
        "cancelled",
        ["execution_started", "cancel_requested", "execution_cancelled"],
    )
    assert ask(conn, cancel("r")) == ("cancelled", False)
