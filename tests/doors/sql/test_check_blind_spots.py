"""Law: what a review changed by hand without durable.check() seeing it is seen now. The cases have the
numbers of that review; each is a journal that the engine wrote, with one row changed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.clock import Clock
from tests.support.hands import H, J, P, T, laws_of
from tests.support.stories import KIDS, Story, begin_story, join_set, receive, submit, take_result
from tests.support.verbs import (
    Connection,
    ask,
    begun,
    cancel,
    captured,
    complete,
    done,
    promise,
    run,
    suspend,
    tick,
    timer,
    types_of,
)

Hand = Callable[[Connection], None]


def parent(story: Story) -> None:
    """Waits for its child run, whose result is 4."""
    story.report(commands=[run(0, queue=KIDS), captured(1)])
    kid = story.kid(0)
    story.report(end=suspend(0))
    story.kid_reports(kid, complete("4"))
    story.again()
    story.clock.advance(5)
    story.report(end=complete())
    assert types_of(story.conn, story.id) == [
        *("execution_started", "child_run_scheduled", "random_generated", "child_run_started"),
        *("execution_awaiting", "open_child_settled", "execution_resumed", "execution_completed"),
    ]


def busy_parent(story: Story) -> None:
    """Gets the result while it works."""
    story.report(commands=[run(0, queue=KIDS)])
    story.kid_reports(story.kid(0), complete("4"))
    story.clock.advance(5)
    story.report(end=complete())
    assert types_of(story.conn, story.id) == [
        *("execution_started", "child_run_scheduled", "child_run_started"),
        *("open_child_settled", "execution_completed"),
    ]


def sleeper(story: Story) -> None:
    """Sleeps for a second."""
    story.report(commands=[timer(0, 1000)])
    story.report(end=suspend(0))
    story.clock.advance(1000)
    tick(story.conn)
    story.again()
    story.clock.advance(5)
    story.report(end=complete())
    assert types_of(story.conn, story.id) == [
        *("execution_started", "timer_scheduled", "execution_awaiting", "timer_fired"),
        *("execution_resumed", "execution_completed"),
    ]


def waiter(story: Story) -> None:
    """Waits for two promises, or for either, for ever."""
    story.report(commands=[promise(0), promise(1)])
    story.report(end=suspend(0, 1, kind="all"))


def receiver(story: Story) -> None:
    """Waits for a signal, gets it, and goes on."""
    story.report(commands=[captured(0), receive(1, "go")])
    story.report(end=suspend(1, kind="signal"))
    story.signal("go", 7)
    story.again()
    story.report(end=complete())
    assert types_of(story.conn, story.id) == [
        *("execution_started", "random_generated", "execution_awaiting", "signal_delivered"),
        *("signal_received", "execution_resumed", "execution_completed"),
    ]


def two(story: Story) -> None:
    """Waits for one promise after the other."""
    story.report(commands=[promise(0), promise(1)])
    for child in (0, 1):
        story.report(end=suspend(child))
        story.settle(child)
        story.again()
    assert types_of(story.conn, story.id) == [
        *("execution_started", "promise_registered", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]


def taker(story: Story) -> None:
    """Takes what completed first, then the other one."""
    story.report(commands=[promise(0), promise(1), join_set(2), submit(0, 2), submit(1, 2)])
    for child in (0, 1):
        story.settle(child)
    story.report(commands=[take_result(0, 2), take_result(1, 2)])
    assert types_of(story.conn, story.id) == [
        *("execution_started", "promise_registered", "promise_registered", "join_set_created"),
        *("join_set_submitted", "join_set_submitted", "child_settled", "child_settled"),
        *("join_set_awaited", "join_set_awaited"),
    ]


def cancelled(story: Story) -> None:
    """Is cancelled by force."""
    ask(story.conn, cancel(story.id, force=True))


def stepper(story: Story) -> None:
    """Begins a step, and ends it later."""
    story.report(outcomes=[begun(0)])
    story.report(outcomes=[done(0)])
    assert types_of(story.conn, story.id) == ["execution_started", "step_started", "open_step_completed"]


def failed(story: Story) -> None:
    """Completes."""
    story.report(outcomes=[done(0)], end=complete())


def cut(type_: str) -> Hand:
    """Takes the row of a type out, and closes the gap."""

    def hand(conn: Connection) -> None:
        (execution, seq) = ask(
            conn,
            ("select execution, max(seq) from durable._journal where type = %s group by execution", (type_,)),
        )
        conn.execute("delete from durable._journal where execution = %s and seq = %s", (execution, seq))
        rows = "select seq from durable._journal where execution = %s and seq > %s order by seq"
        for (later,) in conn.execute(rows, (execution, seq)).fetchall():
            move = "update durable._journal set seq = seq - 1 where execution = %s and seq = %s"
            conn.execute(move, (execution, later))
        shorter = "update durable._executions set next_seq = next_seq - 1 where execution = %s"
        conn.execute(shorter, (execution,))

    return hand


def swap(first: int, second: int) -> Hand:
    """Exchanges two rows."""

    def hand(conn: Connection) -> None:
        for old, new in ((first, -1), (second, first), (-1, second)):
            conn.execute("alter table durable._journal drop constraint if exists journal_seq_not_negative")
            conn.execute("update durable._journal set seq = %s where seq = %s", (new, old))

    return hand


def hands(*statements: str) -> Hand:
    """Changes rows by statements."""

    def hand(conn: Connection) -> None:
        for statement in statements:
            conn.execute(statement.encode())

    return hand


def head(to: str) -> Hand:
    """Changes the head."""
    return hands(H.format(to, "r"))


def task(to: str) -> Hand:
    """Changes the task."""
    return hands(T.format(to, "r"))


def promise_of(id_: str, to: str) -> Hand:
    """Changes a promise."""
    return hands(P.format(to, id_))


def row(type_: str, to: str, *more: str) -> Hand:
    """Changes the rows of a type in the journal; and more."""
    return hands(J.format(to, "r", f"x.type = '{type_}'"), *more)


def wait(on: str, kind: str = "single", more: str = "", seq: int | None = None) -> Hand:
    """Makes a wait of the past be for something else."""
    where = "x.type = 'execution_awaiting'" + ("" if seq is None else f" and x.seq = {seq}")
    return hands(J.format(f"""data = '{{"on": {on}, "kind": "{kind}"{more}}}'""", "r", where))


C_1, C_6 = "C-1 settled_iff_resolved_in_owner", "C-6 result_comes_as_its_kind_does"
RESULT = "C-6 result_is_that_of_the_promise"
KIND, INPUT = "C-1 child_is_of_its_kind", "child_run_has_the_input_of_its_call"
OVER, R6 = "X-4 resumed_when_its_wait_was_over", "R6 X-5 wait_is_for_what_can_resolve"
R7 = "R7 wait_for_a_signal_is_for_its_receipt"
SINGLE, OPEN = "X-5 single_wait_is_for_one_child", "X-5 wait_is_for_what_is_open"
VERDICT, STATUS = "C-2 status_is_the_verdict", "INV-4 status_agrees_with_journal"
LAST = "INV-4 wait_is_the_last_of_the_journal"
DUE, EARLY = "timer_is_due_when_its_promise_is", "timer_does_not_fire_early"
BACK, GREW = "time_does_not_go_back", "head_knows_when_its_journal_grew"
BORN, SETTLES = "run_is_born_with_its_journal", "run_settles_when_its_journal_ends"
WORKFLOW, TENANT = "task_is_of_the_workflow_of_its_run", "promise_tenant_is_that_of_its_run"
DRIVEN, STEP = "driven_run_was_acquired", "X-3 attempts_are_of_one_step"
WITHIN, ORDER = "suspended_within_the_journal", "taken_in_the_order_of_completion"
FAILED = H.format("status = 'failed'", "r")
CHILD, SCHEDULED, ENDED = "open_child_settled", "child_run_scheduled", "execution_completed"

# what is broken in the life of which run, by what hand, and the laws that must name it
CASES: dict[str, tuple[Callable[[Story], None], Hand, set[str]]] = {
    "1 the end of a child that was waited for is gone": (parent, cut(CHILD), {C_1, OVER}),
    "1 the end of a child is gone": (busy_parent, cut(CHILD), {C_1}),
    "1 the firing of a timer is gone": (sleeper, cut("timer_fired"), {OVER}),
    "1 another result": (
        parent,
        row(CHILD, "type = 'open_step_completed', data = '9'"),
        {C_1, C_6},
    ),
    "1 the result of another promise": (parent, row(CHILD, "name = 'r'"), {RESULT}),
    "2 the head waits for something else": (waiter, head("waiting_on = '{1}', wait_left = 1"), {LAST}),
    "2 the head waits in another way": (waiter, head("wait_kind = 'any', wait_left = 1"), {LAST}),
    "3 the journal failed": (failed, row(ENDED, "type = 'execution_failed'"), {STATUS}),
    "3 journal and head failed": (
        failed,
        row(ENDED, "type = 'execution_failed'", FAILED),
        {VERDICT},
    ),
    "3 cancelled, and they failed": (
        *(cancelled, row("execution_cancelled", "type = 'execution_failed'", FAILED)),
        {VERDICT},
    ),
    "4 resumed before the child ended": (parent, swap(5, 6), {OVER}),
    "4 resumed before the timer fired": (sleeper, swap(3, 4), {OVER}),
    "5 a wait for what never was a child": (parent, wait("[7]"), {R6, OVER}),
    "5 a wait for a random value": (parent, wait("[1]"), {R6, OVER}),
    "5 a wait for what is complete": (two, wait("[0]", seq=7), {OPEN}),
    "6 a single wait for two": (two, wait("[0, 1]", seq=3), {SINGLE, OVER}),
    "7 a signal wait on another number": (receiver, wait("[0]", "signal", ', "name": "go"'), {R7, R6, OVER}),
    "8 a timer due at another time": (
        *(sleeper, row("timer_scheduled", """data = '{"duration": 1000, "fire_at": 5}'""")),
        {DUE},
    ),
    "9 two results taken in another order": (taker, swap(10, 11), {ORDER}),
    "10 a timer that fires early": (sleeper, row("timer_fired", "ts = x.ts - 1"), {EARLY}),
    "11 time goes back": (sleeper, row(ENDED, "ts = x.ts - 1000"), {BACK, GREW, SETTLES}),
    "12 suspended beyond the journal": (waiter, head("suspend_seq = next_seq + 1"), {WITHIN}),
    "13 a run that no worker takes": (waiter, task("workflow = null, workflow_version = null"), {WORKFLOW}),
    "14 another version": (waiter, task("workflow_version = '2'"), {WORKFLOW}),
    "15 a run of ours that a client writes": (waiter, head("written_by_client = true"), {WORKFLOW}),
    "16 a tenant of the head": (waiter, head("tenant = 'other'"), {TENANT}),
    "17 a tenant of a child": (waiter, promise_of("r.0", "tenant = 'other'"), {TENANT}),
    "18 settled before its last row": (sleeper, promise_of("r", "settled_at = settled_at - 1"), {SETTLES}),
    "19 younger than its journal": (waiter, promise_of("r", "created_at = created_at + 1"), {BORN}),
    "20 a name in the journal of the owner": (busy_parent, row(SCHEDULED, "name = 'other'"), {KIND, INPUT}),
    "21 a child run that is a promise in the journal": (
        *(busy_parent, row(SCHEDULED, "type = 'promise_registered'")),
        {KIND},
    ),
    "22 a promise that is a timer": (waiter, promise_of("r.0", "timer = true"), {KIND}),
    "23 the duration of a timer": (
        *(sleeper, row("timer_scheduled", "data = replace(data, '1000,', '1001,')")),
        {DUE},
    ),
    "24 suspended before its wait": (waiter, head("suspend_seq = 1"), {LAST}),
    "25 suspended, and never acquired": (waiter, task("version = 0, attempt = 0"), {DRIVEN}),
    "26 completed, and never acquired": (sleeper, promise_of("r", "task_version = 0"), {DRIVEN}),
    "27 the input of a child run": (busy_parent, promise_of("r.0", "param_data = '[1]'"), {INPUT}),
    "28 the hash of a child run": (busy_parent, row(SCHEDULED, "input_hash = sha256('x')"), {INPUT}),
    "29 the hash of a step": (
        stepper,
        row("open_step_completed", "input_hash = sha256('x')"),
        {STEP},
    ),
    "30 the name of a step": (stepper, row("open_step_completed", "name = 'other'"), {STEP}),
}


@pytest.mark.unlawful
@pytest.mark.parametrize("case", CASES)
def test_a_blind_spot_is_none_any_more(conn: Connection, clock: Clock, case: str) -> None:
    """The run is lawful as the engine wrote it, and not with that one row changed; a check of that run alone
    says the same."""
    live, hand, laws = CASES[case]
    story = begin_story(conn, clock, "r")
    live(story)
    assert laws_of(conn) == set()
    hand(conn)
    assert laws_of(conn) == laws
    assert {law for (law,) in conn.execute("select law from durable.check('r')").fetchall()} == laws


@pytest.mark.parametrize("seconds", [0, 10])
def test_an_owner_that_had_ended_is_excused(conn: Connection, clock: Clock, seconds: int) -> None:
    """What ends with its owner, after it, or by a deadline that was noticed later, needs no row."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[promise(0), promise(1, 5), timer(2, 5)])
    clock.advance(6)
    story.report(end=complete())
    clock.advance(seconds * 1000)
    tick(conn)
    story.settle(0)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered"),
        *("timer_scheduled", "execution_completed"),
    ]
    assert laws_of(conn) == set()


@pytest.mark.parametrize("force", [False, True])
def test_a_cancelled_family_is_lawful(conn: Connection, clock: Clock, force: bool) -> None:
    """A child that was cancelled before its parent, in one transaction at one instant, is no effect of it."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[run(0, queue="nobody"), run(1, queue="nobody")])
    ask(conn, cancel("r.0"))
    ask(conn, cancel("r", force=force))
    assert types_of(conn, "r")[:6] == [
        *("execution_started", "child_run_scheduled", "child_run_scheduled", "child_settled"),
        *("cancel_requested", "child_settled"),
    ]
    assert laws_of(conn) == set()
