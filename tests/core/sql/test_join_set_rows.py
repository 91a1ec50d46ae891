"""Law: a member of a join set is an invocation, in one set only, submitted before the first result is taken;
what is taken is a member, complete, and taken once. It holds for what workers report and for what the
journal's writer is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.folds import WITH_RESULTS
from tests.support.verbs import (
    Call,
    Connection,
    adopt,
    ask,
    begin_run,
    broken,
    captured,
    claim,
    complete,
    create,
    done,
    intent,
    join_set,
    pick,
    promise,
    receive,
    refusal,
    report,
    run,
    send,
    settle,
    submit,
    suspend,
    take_turn,
    tick,
    timer,
    turn,
    types_of,
)

Row = tuple[str, int | None, int | None]
# what a child may be, the command or outcome that makes it, and its end
MEMBERS: dict[str, tuple[dict[str, Any], Call | None]] = {
    "step": (intent(1), None),
    "promise": (promise(1), settle("r.1")),
    "run": (run(1, queue="kids"), settle("r.1", state="rejected")),
    "foreign": (adopt(1, "x"), settle("x")),
}
STRANGERS: dict[str, dict[str, Any]] = {
    "timer": timer(1, 5),
    "random": captured(1),
    "time": captured(1, "1", kind="time"),
    "set": join_set(1),
    "receive": receive(1),
}


def sets(conn: Connection) -> list[tuple[Any, ...]]:
    """Join sets: child, closed."""
    return conn.execute("select child, closed from durable._join_sets order by 1").fetchall()


def members(conn: Connection) -> list[tuple[Any, ...]]:
    """Members: child, set, taken."""
    return conn.execute("select child, join_set, taken from durable._members order by 1").fetchall()


def append(conn: Connection, execution: int, rows: Sequence[Row]) -> None:
    """Append rows of (type, child, attempt) to one journal, in one call."""
    events = ", ".join(["row(%s, %s, %s, %s, null, null, %s)::durable._event"] * len(rows))
    values = [value for row in rows for value in (execution, *row, "1" if row[0] in WITH_RESULTS else None)]
    conn.execute(f"select durable._append(array[{events}], durable._now_ms())".encode(), values)


@pytest.mark.parametrize("kind", MEMBERS)
def test_every_invocation_can_be_a_member(conn: Connection, kind: str) -> None:
    """A step, a promise, a child run and an adopted promise are submitted while they are open, and taken
    when they are complete, which closes the set."""
    ask(conn, create("x", external="true"))
    command, end = MEMBERS[kind]
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[join_set(0), command, submit(1, 0)]))
    assert (sets(conn), members(conn)) == ([(0, False)], [(1, 0, False)])
    if end is None:
        take_turn(conn, "W", report(held, outcomes=[broken(1)]))
    else:
        ask(conn, end)
    take_turn(conn, "W", report(held, commands=[pick(1, 0)]))
    assert (sets(conn), members(conn)) == ([(0, True)], [(1, 0, True)])
    assert types_of(conn, "r")[-1:] == ["join_set_awaited"]


@pytest.mark.parametrize("kind", MEMBERS)
def test_completed_children_can_be_submitted(conn: Connection, kind: str) -> None:
    """A call that completed before it was submitted is a member like any other."""
    ask(conn, create("x", external="true"))
    command, end = MEMBERS[kind]
    held = begin_run(conn, "r")
    if end is None:
        take_turn(conn, "W", report(held, outcomes=[done(1)]))
    else:
        take_turn(conn, "W", report(held, commands=[command]))
        ask(conn, end)
    take_turn(conn, "W", report(held, commands=[join_set(2), submit(1, 2), pick(1, 2)]))
    assert members(conn) == [(1, 2, True)]


@pytest.mark.parametrize("kind", STRANGERS)
def test_only_invocations_can_be_members(conn: Connection, clock: Clock, kind: str) -> None:
    """Timers, captured values, receives and sets cannot be submitted, neither at once nor when they are
    over."""
    held = begin_run(conn, "r")
    ask(conn, send("r"))
    one = turn("W", report(held, commands=[join_set(0), STRANGERS[kind], submit(1, 0)], seen=2))
    assert refusal(conn, one) == "WF006"
    take_turn(conn, "W", report(held, commands=[join_set(0), STRANGERS[kind]], seen=2))
    clock.advance(5)
    tick(conn)
    assert refusal(conn, turn("W", report(held, commands=[submit(1, 0)], seen=2))) == "WF006"
    assert members(conn) == []


# what a run did before, what is refused then
OPEN: tuple[Row, ...] = (
    ("step_started", 0, 1),
    ("step_started", 1, 1),
    ("join_set_created", 2, None),
    ("join_set_submitted", 0, 2),
)
DONE: tuple[Row, ...] = (*OPEN, ("open_step_completed", 0, 1))
REFUSED: dict[str, tuple[tuple[Row, ...], Row]] = {
    "submit to nothing": ((("step_started", 0, 1),), ("join_set_submitted", 0, 1)),
    "submit to a step": ((("step_started", 0, 1), ("step_started", 1, 1)), ("join_set_submitted", 0, 1)),
    "submit of nothing": ((("join_set_created", 0, None),), ("join_set_submitted", 1, 0)),
    "submit to itself": ((("join_set_created", 0, None),), ("join_set_submitted", 0, 0)),
    "submit of a set": (
        (("join_set_created", 0, None), ("join_set_created", 1, None)),
        ("join_set_submitted", 1, 0),
    ),
    "submit twice": (OPEN, ("join_set_submitted", 0, 2)),
    "submit to a second set": ((*OPEN, ("join_set_created", 3, None)), ("join_set_submitted", 0, 3)),
    "submit to a closed set": ((*DONE, ("join_set_awaited", 0, 2)), ("join_set_submitted", 1, 2)),
    "take of no member": (DONE, ("join_set_awaited", 1, 2)),
    "take from another set": ((*DONE, ("join_set_created", 3, None)), ("join_set_awaited", 0, 3)),
    "take from nothing": ((("step_completed", 0, 1),), ("join_set_awaited", 0, 1)),
    "take of what is open": (OPEN, ("join_set_awaited", 0, 2)),
    "take of what failed once": ((*OPEN, ("open_attempt_failed", 0, 1)), ("join_set_awaited", 0, 2)),
    "take of what was only scheduled": (
        (("join_set_created", 0, None), ("step_scheduled", 1, None), ("join_set_submitted", 1, 0)),
        ("join_set_awaited", 1, 0),
    ),
    "take twice": ((*DONE, ("join_set_awaited", 0, 2)), ("join_set_awaited", 0, 2)),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("at_once", [False, True], ids=["two_calls", "one_call"])
def test_rows_against_a_guard_are_refused(conn: Connection, name: str, at_once: bool) -> None:
    """A row that breaks a guard is WF006, behind its cause or in a call of its own, and nothing of the call
    is written."""
    before, refused = REFUSED[name]
    held = begin_run(conn, "r")
    if not at_once:
        append(conn, held.execution, before)
    state = (types_of(conn, "r"), sets(conn), members(conn))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        append(conn, held.execution, (*(before if at_once else ()), refused))
    assert caught.value.sqlstate == "WF006"
    assert (types_of(conn, "r"), sets(conn), members(conn)) == state


# commands of one turn, those refused in the next; numbers 0 and 1 are steps, 2 is a set with 0 as member
BAD: dict[str, list[dict[str, Any]]] = {
    "no such set": [submit(1, 7)],
    "a step as set": [submit(1, 0)],
    "no such child": [submit(7, 2)],
    "a second time": [submit(0, 2)],
    "in two sets": [join_set(3), submit(0, 3)],
    "taken while open": [pick(0, 2)],
    "taken by no member": [pick(1, 2)],
    "taken from another": [join_set(3), pick(0, 3)],
    "a set made twice": [join_set(2)],
}


# reports that are right but for the order of their rows: commands stand before outcomes, and both as they
# came
DISORDER: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "a promise taken in the call that makes it": (
        [join_set(0), promise(1), submit(1, 0), pick(1, 0)],
        [],
    ),
    "a run taken in the call that makes it": (
        [join_set(0), run(1, queue="kids"), submit(1, 0), pick(1, 0)],
        [],
    ),
    "submitted before the set is made": ([intent(1), submit(1, 0), join_set(0)], []),
    "submitted before it is scheduled": ([join_set(0), submit(1, 0), intent(1)], []),
    "scheduled by its outcome only": ([join_set(0), submit(1, 0)], [done(1)]),
    "all of it before it is scheduled": ([join_set(0), submit(1, 0), pick(1, 0)], [done(1)]),
}


@pytest.mark.parametrize("name", DISORDER)
def test_the_order_within_a_turn_counts(conn: Connection, name: str) -> None:
    """What a later row of the same turn makes or completes is not there for an earlier one: WF006, and
    nothing of the turn is written."""
    commands, outcomes = DISORDER[name]
    held = begin_run(conn, "r")
    assert refusal(conn, turn("W", report(held, commands=commands, outcomes=outcomes))) == "WF006"
    assert (types_of(conn, "r"), sets(conn), members(conn)) == (["execution_started"], [], [])


def test_an_open_member_is_not_taken_with_its_outcome(conn: Connection) -> None:
    """A member that is open when the turn begins cannot be taken in the turn that reports its outcome,
    whose rows come behind."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[intent(1), join_set(0), submit(1, 0)]))
    state = (types_of(conn, "r"), sets(conn), members(conn))
    assert refusal(conn, turn("W", report(held, commands=[pick(1, 0)], outcomes=[done(1)]))) == "WF006"
    assert (types_of(conn, "r"), sets(conn), members(conn)) == state


def test_a_member_is_taken_after_its_completion_in_one_call(conn: Connection) -> None:
    """In one call of the journal's writer a member is taken behind the row that completed it."""
    held = begin_run(conn, "r")
    append(
        conn,
        held.execution,
        (
            ("step_completed", 0, 1),
            ("join_set_created", 1, None),
            ("join_set_submitted", 0, 1),
            ("join_set_awaited", 0, 1),
        ),
    )
    append(
        conn,
        held.execution,
        (
            ("join_set_created", 2, None),
            ("step_started", 3, 1),
            ("join_set_submitted", 3, 2),
            ("open_step_completed", 3, 1),
            ("join_set_awaited", 3, 2),
        ),
    )
    assert members(conn) == [(0, 1, True), (3, 2, True)]


@pytest.mark.parametrize("name", BAD)
def test_invalid_join_set_commands(conn: Connection, name: str) -> None:
    """Commands that break a guard are refused as a whole, or not taken; the sets stay as they were."""
    held = begin_run(conn, "r")
    made = take_turn(conn, "W", report(held, commands=[intent(0), intent(1), join_set(2), submit(0, 2)]))
    state = (types_of(conn, "r"), sets(conn), members(conn))
    call = turn("W", report(held, commands=BAD[name], seen=made.next_of(held)))
    if name == "a set made twice":
        assert take_turn(conn, "W", report(held, commands=BAD[name])).of(held)[0] == "stale"
    else:
        assert refusal(conn, call) == "WF006"
    assert (types_of(conn, "r"), sets(conn), members(conn)) == state


def test_a_refused_report_says_why(conn: Connection) -> None:
    """The refusal names the run, the event, the child and the reason; its hint is a query of the journal."""
    held = begin_run(conn, "r")
    call = turn("W", report(held, commands=[join_set(0), intent(1), submit(1, 0), submit(1, 0)]))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, call)
    detail, hint = caught.value.diag.message_primary, caught.value.diag.message_hint
    assert detail == "Run 'r', JoinSetSubmitted of 'r.1': it is in a join set already."
    assert conn.execute((hint or "").encode()).fetchall()


def test_a_set_is_closed_by_the_first_result(conn: Connection) -> None:
    """After the first result nothing is submitted any more, not even in the same turn; the others are still
    taken."""
    held = begin_run(conn, "r")
    commands = [intent(0), intent(1), join_set(2), submit(0, 2), submit(1, 2), intent(3)]
    take_turn(conn, "W", report(held, commands=commands))
    take_turn(conn, "W", report(held, outcomes=[done(0), done(1)]))
    assert refusal(conn, turn("W", report(held, commands=[pick(0, 2), submit(3, 2)]))) == "WF006"
    take_turn(conn, "W", report(held, commands=[pick(0, 2), pick(1, 2)]))
    assert members(conn) == [(0, 2, True), (1, 2, True)]
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "step_started", "join_set_created"),
        *("join_set_submitted", "join_set_submitted", "step_started", "open_step_completed"),
        *("open_step_completed", "join_set_awaited", "join_set_awaited"),
    ]


def test_a_step_may_complete_in_the_turn_that_submits_it(conn: Connection) -> None:
    """A step that runs already may be submitted and reported in one report, and taken in the next."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[intent(0), join_set(1)]))
    assert take_turn(conn, "W", report(held, commands=[submit(0, 1)], outcomes=[done(0)])).of(held)[0] == "ok"
    take_turn(conn, "W", report(held, commands=[pick(0, 1)]))
    assert types_of(conn, "r") == [
        *("execution_started", "step_started", "join_set_created", "join_set_submitted"),
        *("open_step_completed", "join_set_awaited"),
    ]


def test_two_sets_do_not_mix(conn: Connection) -> None:
    """Each set has its own members, and is closed by itself."""
    held = begin_run(conn, "r")
    commands = [join_set(0), join_set(1), intent(2), submit(2, 0), intent(3), submit(3, 1), intent(4)]
    take_turn(conn, "W", report(held, commands=commands))
    take_turn(conn, "W", report(held, outcomes=[done(2)]))
    take_turn(conn, "W", report(held, commands=[pick(2, 0), submit(4, 1)]))
    assert sets(conn) == [(0, True), (1, False)]
    assert members(conn) == [(2, 0, True), (3, 1, False), (4, 1, False)]


def test_a_run_may_end_with_untaken_members(conn: Connection) -> None:
    """A run may end with members that are open, or complete and not taken."""
    held = begin_run(conn, "r")
    commands = [join_set(0), promise(1), submit(1, 0), promise(2), submit(2, 0)]
    take_turn(conn, "W", report(held, commands=commands))
    ask(conn, settle("r.1"))
    take_turn(conn, "W", report(held, end=complete(), seen=held.next + 7))
    assert types_of(conn, "r") == [
        *("execution_started", "join_set_created", "promise_registered", "join_set_submitted"),
        *("promise_registered", "join_set_submitted", "child_settled", "execution_completed"),
    ]


def test_a_run_waits_for_the_members_of_a_set(conn: Connection) -> None:
    """A set is waited for by its open members; the set itself is nothing to wait for."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[join_set(0), promise(1), submit(1, 0)]))
    answer = take_turn(conn, "W", report(held, end=suspend(1), seen=answer.next_of(held)))
    assert answer.of(held) == ("ok", "suspended")
    ask(conn, settle("r.1"))
    again = claim(conn, "W", "q-r")
    late = type(held)(execution=held.execution, id="r", version=2, next=again.next)
    answer = take_turn(conn, "W", report(late, commands=[pick(1, 0)]))
    answer = take_turn(conn, "W", report(late, end=suspend(0), seen=answer.next_of(late)))
    assert answer.of(late) == ("ok", "halted")


@pytest.mark.parametrize("what", ["submit", "take"])
def test_a_report_that_comes_again_is_stale(conn: Connection, what: str) -> None:
    """As when its answer was lost: a member is not submitted, or taken, a second time, and nobody is halted;
    the coroutine that has seen those rows is refused.
    """
    held = begin_run(conn, "r")
    seen = take_turn(conn, "W", report(held, outcomes=[done(0)], commands=[join_set(1)])).next_of(held)
    if what == "take":
        submitted = report(held, commands=[submit(0, 1)], seen=seen)
        seen = take_turn(conn, "W", submitted).next_of(held)
    again = report(held, commands=[submit(0, 1) if what == "submit" else pick(0, 1)], seen=seen)
    answer = take_turn(conn, "W", again)
    assert answer.of(held) == ("ok", "acquired")
    assert take_turn(conn, "W", again).of(held) == ("stale", "acquired")
    assert types_of(conn, "r").count(f"join_set_{'submitted' if what == 'submit' else 'awaited'}") == 1
    after = report(held, commands=again["commands"], seen=answer.next_of(held))
    assert refusal(conn, turn("W", after)) == "WF006"
