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


def change(sql: str) -> Hand:
    """Changes rows by statements."""

    def hand(conn: Connection) -> None:
        for statement in sql.split("; "):
            conn.execute(statement.encode())

    return hand


def wait(on: str, kind: str = "single", more: str = "", seq: int | None = None) -> Hand:
    """Makes a wait of the past be for something else."""
    where = "x.type = 'execution_awaiting'" + ("" if seq is None else f" and x.seq = {seq}")
    return change(J.format(f"""data = '{{"on": {on}, "kind": "{kind}"{more}}}'""", "r", where))


C_1, C_6 = "C-1 settled_iff_resolved_in_owner", "C-6 result_comes_as_its_kind_does"
OVER, R6 = "X-4 resumed_when_its_wait_was_over", "R6 X-5 wait_is_for_what_can_resolve"
VERDICT = "C-2 status_is_the_verdict"
FAILED = H.format("status = 'failed'", "r")
CASES: dict[str, tuple[Callable[[Story], None], Hand, set[str]]] = {
    "1 the end of a child that was waited for is gone": (parent, cut("open_child_settled"), {C_1, OVER}),
    "1 the end of a child is gone": (busy_parent, cut("open_child_settled"), {C_1}),
    "1 the firing of a timer is gone": (sleeper, cut("timer_fired"), {OVER}),
    "1 another result in the place of the child's": (
        parent,
        change(J.format("type = 'open_step_completed', data = '999'", "r", "x.type = 'open_child_settled'")),
        {C_1, C_6},
    ),
    "1 the result of another promise": (
        parent,
        change(J.format("name = 'r'", "r", "x.type = 'open_child_settled'")),
        {"C-6 result_is_that_of_the_promise"},
    ),
    "2 the head waits for something else": (
        waiter,
        change(H.format("waiting_on = '{1}', wait_left = 1", "r")),
        {"INV-4 wait_is_the_last_of_the_journal"},
    ),
    "2 the head waits in another way": (
        waiter,
        change(H.format("wait_kind = 'any', wait_left = 1", "r")),
        {"INV-4 wait_is_the_last_of_the_journal"},
    ),
    "3 completed, but the journal failed": (
        failed,
        change(J.format("type = 'execution_failed'", "r", "x.type = 'execution_completed'")),
        {"INV-4 status_agrees_with_journal"},
    ),
    "3 completed, but journal and head failed": (
        failed,
        change(J.format("type = 'execution_failed'", "r", "x.type = 'execution_completed'") + "; " + FAILED),
        {VERDICT},
    ),
    "3 cancelled, but journal and head failed": (
        cancelled,
        change(J.format("type = 'execution_failed'", "r", "x.type = 'execution_cancelled'") + "; " + FAILED),
        {VERDICT},
    ),
    "4 resumed before the child ended": (parent, swap(5, 6), {OVER}),
    "4 resumed before the timer fired": (sleeper, swap(3, 4), {OVER}),
    "5 a wait for what never was a child": (parent, wait("[7]"), {R6, OVER}),
    "5 a wait for a random value": (parent, wait("[1]"), {R6, OVER}),
    "5 a wait for what is complete": (two, wait("[0]", seq=7), {"X-5 wait_is_for_what_is_open"}),
    "6 a single wait for two": (
        two,
        wait("[0, 1]", seq=3),
        {"X-5 single_wait_is_for_one_child", OVER},
    ),
    "7 a signal wait on another number": (
        receiver,
        wait("[0]", "signal", ', "name": "go"'),
        {"R7 wait_for_a_signal_is_for_its_receipt", R6, OVER},
    ),
    "8 a timer due at another time": (
        sleeper,
        change(J.format("""data = '{"duration": 1000, "fire_at": 5}'""", "r", "x.type = 'timer_scheduled'")),
        {"timer_is_due_when_its_promise_is"},
    ),
    "9 two results taken in another order": (taker, swap(10, 11), {"taken_in_the_order_of_completion"}),
    "10 a timer that fires early": (
        sleeper,
        change(J.format("ts = x.ts - 1", "r", "x.type = 'timer_fired'")),
        {"timer_does_not_fire_early"},
    ),
    "11 time goes back": (
        sleeper,
        change(J.format("ts = x.ts - 1000", "r", "x.type = 'execution_completed'")),
        {
            *("time_does_not_go_back", "head_knows_when_its_journal_grew"),
            "run_settles_when_its_journal_ends",
        },
    ),
    "12 suspended beyond the journal": (
        waiter,
        change(H.format("suspend_seq = next_seq + 1", "r")),
        {"suspended_within_the_journal"},
    ),
    "13 a run that no worker takes": (
        waiter,
        change(T.format("workflow = null, workflow_version = null", "r")),
        {"task_is_of_the_workflow_of_its_run"},
    ),
    "14 another version": (
        waiter,
        change(T.format("workflow_version = '2'", "r")),
        {"task_is_of_the_workflow_of_its_run"},
    ),
    "15 a run of ours that a client writes": (
        waiter,
        change(H.format("written_by_client = true", "r")),
        {"task_is_of_the_workflow_of_its_run"},
    ),
    "16 a tenant of the head": (
        waiter,
        change(H.format("tenant = 'other'", "r")),
        {"promise_tenant_is_that_of_its_run"},
    ),
    "17 a tenant of a child": (
        waiter,
        change(P.format("tenant = 'other'", "r.0")),
        {"promise_tenant_is_that_of_its_run"},
    ),
    "18 a run that settled before its last row": (
        sleeper,
        change(P.format("settled_at = settled_at - 1", "r")),
        {"run_settles_when_its_journal_ends"},
    ),
    "19 a run that is younger than its journal": (
        waiter,
        change(P.format("created_at = created_at + 1", "r")),
        {"run_is_born_with_its_journal"},
    ),
    "20 a name in the journal of the owner": (
        busy_parent,
        change(J.format("name = 'other'", "r", "x.type = 'child_run_scheduled'")),
        {"C-1 child_is_of_its_kind"},
    ),
    "21 a child run that is a promise in the journal": (
        busy_parent,
        change(J.format("type = 'promise_registered'", "r", "x.type = 'child_run_scheduled'")),
        {"C-1 child_is_of_its_kind"},
    ),
    "22 a promise that is a timer": (
        waiter,
        change(P.format("timer = true", "r.0")),
        {"C-1 child_is_of_its_kind"},
    ),
    "23 the duration of a timer": (
        sleeper,
        change(J.format("data = replace(data, '1000,', '1001,')", "r", "x.type = 'timer_scheduled'")),
        {"timer_is_due_when_its_promise_is"},
    ),
    "24 suspended before its wait": (
        waiter,
        change(H.format("suspend_seq = 1", "r")),
        {"INV-4 wait_is_the_last_of_the_journal"},
    ),
    "25 suspended, and never acquired": (
        waiter,
        change(T.format("version = 0, attempt = 0", "r")),
        {"driven_run_was_acquired"},
    ),
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
