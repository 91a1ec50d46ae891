"""Law: a report is judged by itself: what fits is written, what was written before is left out, and a stale
one spoils nobody's turn."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    broken,
    captured,
    claim,
    complete,
    done,
    halt,
    promise,
    promise_of,
    refusal,
    release,
    report,
    run,
    suspend,
    take_turn,
    task_of,
    timer,
    turn,
    types_of,
)

Outcome = dict[str, Any]


def verdict_on(conn: Connection, held: Held, **parts: Any) -> str:
    """Report for a coroutine that has seen everything; returns the verdict."""
    (seen,) = ask(conn, ("select next_seq from durable._executions where execution = %s", (held.execution,)))
    return take_turn(conn, "W", report(held, seen=seen, **parts)).of(held)[0]


def head(conn: Connection, *columns: str) -> tuple[Any, ...]:
    """Columns of the one head."""
    return ask(conn, (f"select {', '.join(columns)} from durable._executions where id = 'r'", ()))


# name -> (outcomes of each turn, row types after ExecutionStarted, open attempts at the end)
STORIES: dict[str, tuple[list[list[Outcome]], list[str], list[tuple[int, bool]]]] = {
    "done at once": ([[done(0)]], ["step_completed"], []),
    "failed for good at once": ([[broken(0)]], ["step_failed"], []),
    "failed, to be tried again": ([[broken(0, retry_in=5)]], ["first_attempt_failed"], [(2, False)]),
    "begun": ([[begun(0)]], ["step_started"], [(1, True)]),
    "begun and done in one turn": ([[begun(0), done(0)]], ["step_started", "open_step_completed"], []),
    "begun, done later": ([[begun(0)], [done(0)]], ["step_started", "open_step_completed"], []),
    "begun, failed for good later": ([[begun(0)], [broken(0)]], ["step_started", "open_step_failed"], []),
    "begun, failed, tried again, done": (
        [[begun(0)], [broken(0, retry_in=5)], [begun(0, attempt=2)], [done(0, attempt=2)]],
        ["step_started", "open_attempt_failed", "attempt_started", "open_step_completed"],
        [],
    ),
    "failed, failed, done": (
        [[broken(0, retry_in=5)], [broken(0, attempt=2, retry_in=5)], [done(0, attempt=3)]],
        ["first_attempt_failed", "attempt_failed", "last_attempt_completed"],
        [],
    ),
    "failed, failed for good": (
        [[broken(0, retry_in=5)], [broken(0, attempt=2)]],
        ["first_attempt_failed", "last_attempt_failed"],
        [],
    ),
    "three attempts in one turn": (
        [[broken(0, retry_in=5), broken(0, attempt=2, retry_in=5), done(0, attempt=3)]],
        ["first_attempt_failed", "attempt_failed", "last_attempt_completed"],
        [],
    ),
    "two steps out of order": ([[done(1), done(0)]], ["step_completed", "step_completed"], []),
    "a later number first": (
        [[done(3)], [done(1), begun(0)], [done(0), done(2)]],
        ["step_completed", "step_completed", "step_started", "open_step_completed", "step_completed"],
        [],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_outcomes_of_every_kind(conn: Connection, story: str) -> None:
    """A step's life is written as fused rows in the order told, and the head knows its open attempt."""
    turns, types, open_attempts = STORIES[story]
    held = begin_run(conn, "r")
    for outcomes in turns:
        assert verdict_on(conn, held, outcomes=outcomes) == "ok"
    assert types_of(conn, "r") == ["execution_started", *types]
    assert list(zip(*head(conn, "open_attempts", "open_running"), strict=True)) == open_attempts


# outcomes of each turn of a step whose policy allows two attempts; all but the last are taken
POLICY = '{"max_attempts": 2}'
BOUND: dict[str, list[list[Outcome]]] = {
    "told with the intent": [
        [{**begun(0), "retry": POLICY}],
        [broken(0, retry_in=5), begun(0, attempt=2)],
        [broken(0, attempt=2, retry_in=5)],
    ],
    "told with the failure": [
        [{**broken(0, retry_in=5), "retry": POLICY}],
        [broken(0, attempt=2, retry_in=5)],
    ],
    "in one turn": [[{**broken(0, retry_in=5), "retry": POLICY}, broken(0, attempt=2, retry_in=5)]],
    "never again": [[{**broken(0, retry_in=5), "retry": '{"max_attempts": 1}'}]],
    "intent and failures in one turn": [
        [{**begun(0), "retry": POLICY}, broken(0, retry_in=5), broken(0, attempt=2, retry_in=5)]
    ],
}


@pytest.mark.parametrize("story", BOUND)
def test_no_more_attempts_than_the_policy_allows(conn: Connection, story: str) -> None:
    """A worker that tries again beyond the recorded policy is refused (SE-5): nothing of the turn is written,
    and the same attempt may still fail for good."""
    *before, last = BOUND[story]
    held = begin_run(conn, "r")
    for outcomes in before:
        assert verdict_on(conn, held, outcomes=outcomes) == "ok"
    types = types_of(conn, "r")
    call = turn("W", report(held, outcomes=last, seen=held.next + 9))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, call)
    assert caught.value.sqlstate == "WF006"
    assert "its retry policy allows" in (caught.value.diag.message_primary or "")
    assert types_of(conn, "r") == types
    final = {key: value for key, value in last[-1].items() if key != "retry_in"}
    assert verdict_on(conn, held, outcomes=[*last[:-1], final]) == "ok"


def test_a_policy_that_pauses_has_no_bound(conn: Connection) -> None:
    """Whenever a run is resumed that paused after the last attempt, the step has as many again; the law that
    bounds attempts knows it."""
    held = begin_run(conn, "r")
    policy = '{"max_attempts": 1, "on_exhausted": "pause"}'
    for attempt in (1, 2, 3):
        outcome = {**broken(0, attempt=attempt, retry_in=0), **({"retry": policy} if attempt == 1 else {})}
        assert verdict_on(conn, held, outcomes=[outcome]) == "ok"
    assert conn.execute("select * from durable.check()").fetchall() == []


@pytest.mark.parametrize("policy", ['{"max_attempts": null}', '{"max_attempts": 1000000}', None])
def test_an_attempt_does_not_read_those_before(conn: Connection, policy: str | None) -> None:
    """What the failure of an attempt reads does not grow with the attempts: a retry may serve as a poll."""
    held = begin_run(conn, "r")
    assert verdict_on(conn, held, outcomes=[done(0)]) == "ok"
    reads = []
    for attempt in range(1, 60):
        before = journal_rows_read(conn)
        outcome = {**broken(1, attempt=attempt, retry_in=0), **({"retry": policy} if attempt == 1 else {})}
        assert verdict_on(conn, held, outcomes=[outcome]) == "ok"
        reads.append(journal_rows_read(conn) - before)
    assert reads[1] == reads[58] <= 5


def journal_rows_read(conn: Connection) -> int:
    """How many rows of journals this transaction has read."""
    counters = (
        "select sum(seq_tup_read + idx_tup_fetch)::integer from pg_stat_xact_user_tables "
        "where schemaname = 'durable' and relname ~ '^_journal'"
    )
    return int(ask(conn, (counters, ()))[0])


def test_interruptions_are_no_failures_of_the_policy(conn: Connection) -> None:
    """An attempt that was cut off does not count: the next one may be tried again as if it were the first."""
    held = begin_run(conn, "r")
    assert verdict_on(conn, held, outcomes=[{**begun(0), "retry": POLICY}]) == "ok"
    take_turn(conn, "W", report(held, end=release()))
    held = claim(conn, "W", "q-r")
    outcomes = [broken(0, attempt=2, retry_in=5), done(0, attempt=3)]
    assert verdict_on(conn, held, outcomes=outcomes) == "ok"
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "open_attempt_failed"),
        *("attempt_failed", "last_attempt_completed"),
    ]


@pytest.mark.parametrize(
    "parts",
    [
        {"commands": [{"do": "teleport", "child": 0}]},
        {"commands": [{"child": 0}]},
        {"commands": [promise(0), {"do": "Promise", "child": 1}]},
        {"end": {"do": "explode"}},
        {"end": {"on": [0], "kind": "any"}},
    ],
    ids=["command", "command of no kind", "command among others", "ending", "ending of no kind"],
)
def test_unknown_kinds_are_refused(conn: Connection, parts: dict[str, Any]) -> None:
    """A command or an ending of an unknown kind is WF004, and nothing of the turn is written: a newer worker
    loses nothing silently."""
    held, other = begin_run(conn, "r"), begin_run(conn, "s")
    call = turn("W", report(held, **parts), report(other, outcomes=[done(0)]))
    assert refusal(conn, call) == "WF004"
    assert (types_of(conn, "r"), types_of(conn, "s")) == (["execution_started"], ["execution_started"])
    assert (task_of(conn, "r") or ())[0] == "acquired"


@pytest.mark.parametrize(
    ("parts", "taken"),
    [
        ({"outcomes": [done(5_000_000)]}, False),
        ({"commands": [promise(5_000_000)]}, False),
        ({"outcomes": [done(1_000_001)]}, False),
        ({"outcomes": [done(1000)]}, True),
    ],
    ids=["outcome", "command", "one too far", "a gap"],
)
def test_a_gap_has_bounds(conn: Connection, parts: dict[str, Any], taken: bool) -> None:
    """Numbers may be leapt over, each of which the head remembers; not millions of them."""
    held = begin_run(conn, "r")
    assert refusal(conn, turn("W", report(held, **parts))) == ("" if taken else "WF006")
    assert head(conn, "cardinality(reserved)") == ((1000 if taken else 0),)


# commands that no start would be given, and the words of the problem
MISSHAPEN: dict[str, tuple[Outcome, str]] = {
    "slash": (run(1, queue="a/b"), "'a/b' is not a queue name"),
    "blank": (run(1, queue="a b"), "'a b' is not a queue name"),
    "address": (run(1, queue="any@z"), "'any@z' is not a queue name"),
    "long": (run(1, queue="x" * 400), "is not a queue name"),
    "empty": (run(1, queue=""), "'' is not a queue name"),
    "nameless": (run(1, name=""), "a workflow name has 1 to 256 bytes"),
    "no version": (run(1, version=""), "a workflow version is not empty"),
    "a child without time": (run(1, timeout=0), "a timeout is more than 0"),
    "a promise without time": (promise(1, timeout=0), "a timeout is more than 0"),
    "less than no time": (promise(1, timeout=-1), "a timeout is more than 0"),
}


@pytest.mark.parametrize("name", MISSHAPEN)
def test_a_child_that_no_start_would_be_given(conn: Connection, name: str) -> None:
    """A run whose code asks for such a child is set aside and says why; nothing of its report is written, and
    the others of the turn are not disturbed."""
    command, words = MISSHAPEN[name]
    held, other = begin_run(conn, "r"), begin_run(conn, "s")
    answer = take_turn(
        conn,
        "W",
        report(held, commands=[promise(0), command], outcomes=[done(2)]),
        report(other, commands=[run(0)]),
    )
    assert (answer.of(held), answer.of(other)) == (("ok", "halted"), ("ok", "acquired"))
    assert (types_of(conn, "r"), types_of(conn, "s")) == (
        ["execution_started"],
        ["execution_started", "child_run_scheduled"],
    )
    (problem,) = ask(conn, ("select problem ->> 'message' from durable.runs where id = 'r'", ()))
    assert problem.startswith("child 1: ") and words in problem


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seen", ["old", "new"])
def test_a_turn_sent_again_writes_nothing_twice(conn: Connection, story: str, seen: str) -> None:
    """After a lost answer the same report, with the old or the new seq, leaves the journal as it is."""
    turns, types, open_attempts = STORIES[story]
    held = begin_run(conn, "r")
    for outcomes in turns:
        (before,) = head(conn, "next_seq")
        verdict_on(conn, held, outcomes=outcomes)
        again = report(held, outcomes=outcomes, seen=before if seen == "old" else head(conn, "next_seq")[0])
        assert take_turn(conn, "W", again).of(held)[0] in ("ok", "stale")
    assert types_of(conn, "r") == ["execution_started", *types]
    assert list(zip(*head(conn, "open_attempts", "open_running"), strict=True)) == open_attempts


def test_a_result_after_a_repeated_intent_is_recorded(conn: Connection) -> None:
    """A result that comes in the same report as an intent which is recorded already is not lost."""
    held = begin_run(conn, "r")
    verdict_on(conn, held, outcomes=[begun(0), broken(1, retry_in=5), broken(2, retry_in=5)])
    verdict_on(conn, held, outcomes=[broken(2, attempt=2, retry_in=5)])
    outcomes = [
        *[begun(0), done(0)],
        *[broken(1, retry_in=5), begun(1, attempt=2)],
        *[broken(2, retry_in=5), broken(2, attempt=2, retry_in=5), done(2, attempt=3)],
    ]
    assert verdict_on(conn, held, outcomes=outcomes) == "ok"
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "first_attempt_failed", "first_attempt_failed"),
        *("attempt_failed", "open_step_completed", "attempt_started", "last_attempt_completed"),
    ]
    assert head(conn, "open_steps", "open_attempts", "open_running") == ([1], [2], [True])


def test_commands_sent_again_are_stale(conn: Connection) -> None:
    """Commands whose numbers are taken by the same report's first arrival are refused as stale, and nobody is
    born twice."""
    held = begin_run(conn, "r")
    commands = [run(0), timer(1, 5), promise(2), captured(3)]
    assert verdict_on(conn, held, commands=commands) == "ok"
    assert verdict_on(conn, held, commands=commands) == "stale"
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "timer_scheduled"),
        *("promise_registered", "random_generated"),
    ]
    assert len(conn.execute("select from durable._promises where execution is not null").fetchall()) == 3


@pytest.mark.parametrize(
    ("outcomes", "commands"),
    [
        ([done(0)], []),
        ([done(2)], [timer(2, 5)]),
        ([], [timer(2, 5), promise(2)]),
        ([], [timer(1, 5)]),
        ([done(0)], [timer(2, 5)]),
    ],
    ids=[
        "outcome taken",
        "outcome and command",
        "two commands",
        "command taken",
        "outcome taken, command free",
    ],
)
def test_a_number_is_taken_once(conn: Connection, outcomes: list[Outcome], commands: list[Outcome]) -> None:
    """A report that takes a number twice, or one that is taken, is stale; its commands are not written."""
    held = begin_run(conn, "r")
    verdict_on(conn, held, outcomes=[done(0)], commands=[captured(1)])
    assert verdict_on(conn, held, outcomes=outcomes, commands=commands) == "stale"
    left = types_of(conn, "r")
    left.remove("step_completed")
    left.remove("random_generated")
    assert left in (["execution_started"], ["execution_started", "step_completed"])
    assert conn.execute("select from durable._promises where execution is not null").fetchall() == []


def test_outcomes_of_a_stale_report_are_taken(conn: Connection) -> None:
    """Work that was done is not lost because the coroutine's next commands do not fit."""
    held = begin_run(conn, "r")
    verdict_on(conn, held, outcomes=[begun(0)], commands=[captured(1)])
    assert verdict_on(conn, held, outcomes=[done(0)], commands=[timer(1, 5)]) == "stale"
    assert types_of(conn, "r") == [
        *("execution_started", "random_generated", "step_started", "open_step_completed"),
    ]


def test_reserved_numbers(conn: Connection) -> None:
    """Steps in flight keep their numbers: later commands take later ones, and the results fit in whenever
    they come."""
    held = begin_run(conn, "r")
    verdict_on(conn, held, commands=[timer(3, 5)])
    assert head(conn, "next_child", "reserved") == (4, [0, 1, 2])
    verdict_on(conn, held, outcomes=[done(1)], commands=[captured(5)])
    assert head(conn, "next_child", "reserved") == (6, [0, 2, 4])
    assert verdict_on(conn, held, outcomes=[broken(0), begun(2)], commands=[promise(4)]) == "ok"
    assert head(conn, "next_child", "reserved") == (6, [])


def test_a_stale_report_does_not_affect_others(conn: Connection) -> None:
    """Lost and stale reports in one turn with good ones: each gets its own verdict, the good ones are
    written."""
    good, stale, lost, gone = (begin_run(conn, name) for name in ("good", "stale", "lost", "gone"))
    other = begin_run(conn, "other", "V")
    take_turn(conn, "W", report(stale, commands=[captured(0)]))
    ask(conn, ("select durable.task_release('lost', 1)", ()))
    ask(conn, ("select durable._settle_promise('gone', 'resolved', null, null)", ()))
    nowhere = Held(execution=10**9, id="?", version=1, next=1)
    answer = take_turn(
        conn,
        "W",
        report(good, outcomes=[done(0)], commands=[promise(1)]),
        report(stale, commands=[timer(0, 5)], end=complete()),
        *(
            report(each, outcomes=[done(0)], commands=[promise(1)], end=complete())
            for each in (lost, gone, other, nowhere)
        ),
    )
    assert answer.of(good) == ("ok", "acquired")
    assert answer.of(stale) == ("stale", "acquired")
    assert [answer.of(each) for each in (lost, gone, other, nowhere)] == [("lost", "lost")] * 4
    assert [types_of(conn, name) for name in ("good", "stale", "lost", "gone", "other")] == [
        ["execution_started", "promise_registered", "step_completed"],
        ["execution_started", "random_generated"],
        ["execution_started"],
        ["execution_started", "execution_completed"],
        ["execution_started"],
    ]
    assert promise_of(conn, "stale") == ("pending", None)


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_is_lost(conn: Connection, version: int) -> None:
    """A report counts at the version of the lease alone."""
    held = begin_run(conn, "r")
    wrong = Held(execution=held.execution, id="r", version=version, next=1)
    assert take_turn(conn, "W", report(wrong, outcomes=[done(0)])).of(held) == ("lost", "lost")
    assert types_of(conn, "r") == ["execution_started"]


def test_a_report_past_the_deadline_is_lost(conn: Connection, clock: Clock) -> None:
    """A run whose deadline has passed takes nothing more, swept or not."""
    held = begin_run(conn, "r", timeout="1 s")
    clock.advance(1000)
    assert take_turn(conn, "W", report(held, outcomes=[done(0)], end=complete())).of(held) == ("lost", "lost")


def test_children_are_made_as_asked(conn: Connection, clock: Clock) -> None:
    """A child run, a timer and an external promise get promises of the run, with deadline, queue, priority,
    tenant and callback."""
    ask(conn, ("select durable.start('w', id => 'r', queue => 'g', priority => 3, tenant => 'acme')", ()))
    held = claim(conn, "W", "g")
    commands = [
        run(0, name="v", version="2", param='["x"]'),
        run(1, queue="h", timeout=500, detached=True),
        timer(2, 300),
        promise(3),
        promise(4, 400),
    ]
    verdict_on(conn, held, commands=commands)
    rows = conn.execute(
        "select p.id, p.timeout_at, p.timer, p.target, p.tenant, exists (select from durable._callbacks c "
        "where c.awaited_id = p.id and c.awaiter_id = 'r') from durable._promises p where "
        "p.execution = %s order by child",
        (held.execution,),
    ).fetchall()
    now = clock.now_ms
    assert rows == [
        ("r.0", NEVER, False, "poll://any@g", "acme", True),
        ("r.1", now + 500, False, "poll://any@h", "acme", False),
        ("r.2", now + 300, True, None, "acme", True),
        ("r.3", NEVER, False, None, "acme", True),
        ("r.4", now + 400, False, None, "acme", True),
    ]
    tasks = conn.execute(
        "select id, queue, priority, workflow, workflow_version from durable._tasks order by id"
    ).fetchall()
    assert tasks[1:] == [("r.0", "g", 3, "v", "2"), ("r.1", "h", 3, "w", "1")]
    assert ask(conn, ("select param_data from durable._promises where id = 'r.0'", ())) == ('["x"]',)


@pytest.mark.parametrize(
    "command", [timer(0, 0), timer(0, -5), timer(0, 2**62), promise(0, 2**62), run(0, timeout=2**62)]
)
def test_spans_beyond_reason(conn: Connection, clock: Clock, command: Outcome) -> None:
    """A sleep of nothing, until the past, or for ever does not break the turn: at least a millisecond, at
    most never."""
    held = begin_run(conn, "r")
    other = begin_run(conn, "s")
    answer = take_turn(conn, "W", report(held, commands=[command]), report(other, outcomes=[done(0)]))
    assert (answer.of(held)[0], answer.of(other)[0]) == ("ok", "ok")
    (until,) = ask(conn, ("select timeout_at from durable._promises where id = 'r.0'", ()))
    assert until == (NEVER if command.get("duration", 2**62) > 10 else clock.now_ms + 1)


def test_a_blocked_run_that_goes_on_is_halted(conn: Connection) -> None:
    """A run that is blocked in its journal and whose code does something else is nondeterministic (R20)."""
    held = begin_run(conn, "r")
    verdict_on(conn, held, commands=[promise(0)])
    verdict_on(conn, held, end=suspend(0))
    ask(conn, ("select durable.task_halt('r')", ()))
    ask(conn, ("select durable.resume('r')", ()))
    again = claim(conn, "W", "q-r")
    answer = take_turn(conn, "W", report(again, commands=[timer(1, 5)], end=suspend(0, 1)))
    assert answer.of(again)[1] == "halted"
    (problem,) = ask(conn, ("select problem ->> 'type' from durable.runs", ()))
    assert problem == "Nondeterminism"
    assert types_of(conn, "r") == ["execution_started", "promise_registered", "execution_awaiting"]


@pytest.mark.parametrize(
    ("end", "state", "stored"),
    [
        (None, "acquired", "acquired"),
        (release(), "released", "pending"),
        (halt(), "halted", "halted"),
        (complete(), "done", None),
        ({"do": "fail", "error": "{}"}, "done", None),
    ],
    ids=["keep", "release", "halt", "complete", "fail"],
)
def test_endings(conn: Connection, end: Outcome | None, state: str, stored: str | None) -> None:
    """Each ending leaves the task in its state, and the answer says so."""
    held = begin_run(conn, "r")
    assert take_turn(conn, "W", report(held, end=end)).of(held) == ("ok", state)
    assert (task_of(conn, "r") or (None,))[0] == stored


@pytest.mark.parametrize(
    "parts",
    [
        {"outcomes": [done(0, '"' + "x" * 3000 + '"')]},
        {"commands": [{**captured(0, '"' + "x" * 3000 + '"'), "name": "any"}]},
        {"end": complete('"' + "x" * 3000 + '"')},
    ],
    ids=["outcome", "command", "ending"],
)
def test_a_payload_over_the_limit_is_refused(conn: Connection, parts: dict[str, Any]) -> None:
    """No payload of a turn may be larger than the setting; the same parts pass under a larger limit."""
    held = begin_run(conn, "big")
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    assert refusal(conn, turn("W", report(held, **parts))) == "WF008"
    ask(conn, ("select durable.set_setting('payload_max_bytes', '4000')", ()))
    assert verdict_on(conn, held, **parts) == "ok"


def test_two_reports_of_one_run_are_refused(conn: Connection) -> None:
    """Each would be judged by what the other has not written yet."""
    held = begin_run(conn, "r")
    both = json.dumps([report(held, outcomes=[done(0)]), report(held, outcomes=[done(1)])])
    turn = ("select durable.worker_turn_v1('W', '{}', '{}', '{}', 0, %s::jsonb, 500)", (both,))
    assert refusal(conn, turn) == "WF004"


@pytest.mark.parametrize("end", [None, complete()])
def test_a_report_names_its_run(conn: Connection, end: dict[str, Any] | None) -> None:
    """Its number alone could be that of another run after a crash of the server."""
    held = begin_run(conn, "r")
    nameless = {key: value for key, value in report(held, end=end).items() if key != "id"}
    assert refusal(conn, turn("W", nameless)) == refusal(conn, turn("W", nameless | {"id": None})) == "WF004"
    assert take_turn(conn, "W", report(held, end=end)).of(held)[0] == "ok"


def test_each_verdict_stands_at_the_place_of_its_run(conn: Connection) -> None:
    """Whatever the order of the request: one verdict, state and number for each report, at one place."""
    held = [begin_run(conn, name) for name in ("b", "a", "c")]
    given = [report(held[2]), report(held[0], outcomes=[done(0)]), {**report(held[1]), "version": 7}]
    answer = take_turn(conn, "W", *given)
    assert sorted(answer.raw["verdicts"]["execution"]) == [each.execution for each in held]
    assert [answer.of(each) for each in held] == [("ok", "acquired"), ("lost", "lost"), ("ok", "acquired")]
    assert [answer.next_of(each) for each in (held[0], held[2])] == [4, 1]
