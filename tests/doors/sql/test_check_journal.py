"""Law: durable.check() finds every violation of the journal's laws, each of which has a hand here that
breaks it; it reads nothing again for each row, and the folds that it demands are those that Python makes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.folds import Line, fold, write_rows
from tests.support.hands import CUT, FAR, OPEN, SET, Break, H, J, P, T, laws_in, laws_of, lay, reported
from tests.support.inhabitants import everything
from tests.support.laboratory import transaction_of
from tests.support.verbs import Connection, begin_run

FITS = "row_fits_the_status_before_it"
FUSED = "fused_rows_follow_each_other"
X3 = "X-3 attempts_alternate"
ANY = '{"on": [0], "kind": "any"}'
POLICY = '{"input": [], "retry": {"max_attempts": 2}}'
FAILED = '{"error": {}, "retry_at": 1, "interrupted": false}'
LOST = '{"error": {}, "retry_at": 1, "interrupted": true}'
R6 = "R6 X-5 wait_is_for_what_can_resolve"
OVER = "X-4 resumed_when_its_wait_was_over"
WAIT: Line = ("execution_awaiting", None, None, None, ANY)

LAWS: dict[str, Break] = {
    # heads
    "head_has_promise": Break("delete from durable._promises where id = 'e'"),
    "C-2 pending_iff_live": Break(
        H.format("status = 'completed'", "r"), also="INV-4 status_agrees_with_journal"
    ),
    "C-3 suspended_iff_blocked": Break(
        T.format("state = 'suspended', pid = null, ttl = null, expires_at = null", "q")
    ),
    "C-3 acquired_is_not_fresh_blocked": Break(
        T.format("state = 'acquired', pid = 'W', ttl = 5, expires_at = 5", "b")
    ),
    "R2 open_attempts_are_held": Break(
        T.format("state = 'pending', pid = null, ttl = null, expires_at = null, retry_at = 5", "r")
    ),
    "problem_only_while_halted": Break(H.format("problem = '{}'", "r")),
    "cancelling_ends_by_itself": Break(H.format("cancel_until = null", "c")),
    # waits
    "X-5 wait_is_on_pending_children": Break(H.format("wait_left = 1", "b")),
    "blocked_run_has_its_callbacks": Break("delete from durable._callbacks where awaited_id = 'b.0'"),
    # folds
    "C-4 next_seq_is_journal_length": Break(H.format("next_seq = next_seq + 1", "r")),
    "head_knows_when_its_journal_grew": Break(H.format("last_at = last_at + 1", "r")),
    "journal_was_written_in_the_past": Break(
        f"{J.format(f'ts = {FAR}', 'm', 'true')}; {H.format(f'last_at = {FAR}', 'm')}",
        also="run_is_born_with_its_journal",
    ),
    "INV-4 status_agrees_with_journal": Break(H.format("status = 'cancelling', cancel_until = 1", "r")),
    "X-1 started_once": Break(
        rows=(("execution_started",),), drop="_journal.journal_starts_with_started", also=FITS
    ),
    "S-2 INV-1 starts_with_started": Break(
        f"{CUT.format('m', 'x.seq = 0')}; {J.format('seq = 0', 'm', 'x.seq = 1')}; "
        + H.format("next_seq = 1", "m"),
        rows=(("random_generated", 0),),
        drop="_journal.journal_starts_with_started",
        also="INV-4 status_agrees_with_journal",
    ),
    "S-3 at_most_one_end": Break(
        rows=(("execution_completed",),), run="e", also=f"S-4 INV-3 nothing_after_the_end, {FITS}"
    ),
    "A-1 next_child_follows_journal": Break(
        H.format("next_child = next_child + 1, reserved = reserved || next_child", "q")
    ),
    "A-1 children_carried_once": Break(rows=(("random_generated", 0), ("random_generated", 0))),
    "A-1 gaps_are_reserved": Break(H.format("reserved = '{3}'", "q")),
    "cancel_seq_is_the_request": Break(H.format("cancel_seq = cancel_seq - 1", "c")),
    # rows
    "S-1 INV-2 seq_is_dense": Break(
        J.format("seq = 2", "m", "x.seq = 1"), rows=(("random_generated", 0),), also=FUSED
    ),
    FUSED: Break(
        f"{J.format('seq = 3', 'm', 'x.seq = 4')}; {J.format('seq = 6', 'm', 'x.seq = 5')}; "
        + J.format("seq = 5", "m", "x.seq = 6"),
        rows=(("step_completed", 0, 1), ("random_generated", 1), ("random_generated", 2)),
    ),
    "S-4 INV-3 nothing_after_the_end": Break(rows=(("signal_delivered", None, 1, "go"),), run="e", also=FITS),
    "S-5 cancelled_was_requested": Break(
        "select durable._settle_promise('m', 'rejected_canceled', null, null); "
        f"{CUT.format('m', 'x.seq = 1')}; {J.format('seq = 1', 'm', 'x.seq = 2')}; "
        + H.format("next_seq = 2", "m"),
        also=FITS,
    ),
    "X-4 resumed_only_while_blocked": Break(rows=(("execution_resumed",),), also=FITS),
    FITS: Break(rows=(("cancel_requested",), ("step_scheduled", 0))),
    "journal_row_has_a_head": Break(
        "insert into durable._journal (execution, bucket, ts, seq, type)"
        " select 999999, max(bucket), 1, 0, 'execution_started' from durable._buckets"
    ),
    # invocations
    "SE-1 INV-5 started_was_scheduled": Break(rows=(("attempt_started", 0, 1),), also=X3),
    "SE-2 completed_was_started": Break(rows=(("step_scheduled", 0), ("open_step_completed", 0, 1)), also=X3),
    "SE-3 retried_attempt_was_started": Break(
        rows=(OPEN, ("open_attempt_failed", 0, 2, None, LOST)), also=X3
    ),
    "SE-4 nothing_after_the_completion": Break(
        rows=(("step_completed", 0, 1), ("attempt_started", 0, 2)), also=X3
    ),
    "SE-5 retries_within_the_policy": Break(
        rows=(
            ("step_started", 0, 1, "step", POLICY),
            ("open_attempt_failed", 0, 1, None, LOST),
            ("attempt_failed", 0, 2, None, FAILED),
            ("attempt_failed", 0, 3, None, FAILED),
        )
    ),
    "the_last_attempts_are_kept": Break(
        CUT.format("m", "x.attempt = 2"),
        rows=(
            ("first_attempt_failed", 0, 1, None, FAILED),
            ("attempt_failed", 0, 2, None, FAILED),
            ("attempt_failed", 0, 3, None, FAILED),
        ),
        also=FUSED,
    ),
    X3: Break(rows=(("step_scheduled", 0), ("attempt_started", 0, 2))),
    "task_is_of_the_workflow_of_its_run": Break(T.format("workflow = 'leaf'", "r")),
    "problem_is_json": Break(H.format("problem = 'torn'", "r"), also="problem_only_while_halted"),
    "data_of_a_row_is_json": Break(J.format("data = 'torn'", "e", "x.type = 'step_completed'")),
    "captured_value_is_of_its_kind": Break(J.format("data = '\"x\"'", "r", "x.type = 'random_generated'")),
    "row_of_the_run_has_no_child": Break(J.format("child = 1", "c", "x.type = 'cancel_requested'")),
    "result_is_there": Break(J.format("data = null", "e", "x.type = 'step_completed'")),
    "row_of_a_call_has_its_number": Break(
        J.format("child = null", "s", "x.type = 'signal_received'"),
        also="A-1 children_carried_once, A-1 gaps_are_reserved, A-1 next_child_follows_journal",
    ),
    "halted_run_has_a_problem": Break(
        "select durable.pause('b'); update durable._executions set problem = null"
    ),
    "driven_run_was_acquired": Break(T.format("version = 0, attempt = 0", "b")),
    "run_settles_when_its_journal_ends": Break(P.format("settled_at = settled_at + 1", "e")),
    "run_is_born_with_its_journal": Break(P.format("created_at = created_at - 1", "r")),
    "X-3 attempts_are_of_one_step": Break(
        J.format("name = 'other'", "m", "x.type = 'open_step_completed'"),
        rows=((*OPEN[:3], "step"), ("open_step_completed", 0, 1, "step")),
    ),
    "suspended_within_the_journal": Break(H.format("suspend_seq = next_seq + 1", "b")),
    "C-2 status_is_the_verdict": Break(
        P.format("state = 'rejected'", "e"), also="failed_run_says_how_and_when"
    ),
    "INV-4 wait_is_the_last_of_the_journal": Break(H.format("wait_kind = 'any', wait_left = 1", "b")),
    "time_does_not_go_back": Break(J.format("ts = 1", "m", "x.seq = 1"), rows=(("random_generated", 0),)),
    "request_stands_before_what_it_ends": Break(
        "select durable.cancel('r', force => true); "
        "with x as (delete from durable._journal j using durable._executions h"
        " where h.execution = j.execution and h.id = 'r' "
        "and j.type in ('cancel_requested', 'open_child_settled') returning j.*)"
        " insert into durable._journal (execution, ts, bucket, seq, child, attempt, type)"
        " select execution, ts, bucket, seq + case type when 'cancel_requested' then 1 else -1 end, child,"
        " attempt, type from x order by seq"
    ),
    # waits of the past
    R6: Break(rows=(("random_generated", 0), WAIT, ("execution_resumed",)), also=OVER),
    "X-5 wait_is_for_what_is_open": Break(rows=(("step_completed", 0, 1), WAIT, ("execution_resumed",))),
    "R7 wait_for_a_signal_is_for_its_receipt": Break(
        rows=(
            ("random_generated", 0),
            ("execution_awaiting", None, None, None, '{"on": [0], "kind": "signal", "name": "go"}'),
            ("execution_resumed",),
        ),
        also=f"{R6}, {OVER}",
    ),
    OVER: Break(rows=(OPEN, WAIT, ("execution_resumed",))),
    "X-5 single_wait_is_for_one_child": Break(
        rows=(
            *(
                OPEN,
                ("step_started", 1, 1),
                ("execution_awaiting", None, None, None, '{"on": [0, 1], "kind": "single"}'),
            ),
            *(("open_step_completed", 0, 1), ("open_step_completed", 1, 1), ("execution_resumed",)),
        )
    ),
    "CF-4 signal_wait_is_on_its_receipt": Break(
        rows=(
            ("execution_awaiting", None, None, None, '{"on": [0, 1], "kind": "signal", "name": "go"}'),
            ("execution_resumed",),
        ),
        also=f"{R6}, {OVER}",
    ),
    "X-5 wait_names_each_child_once": Break(
        rows=(
            ("execution_awaiting", None, None, None, '{"on": [0, 0], "kind": "any"}'),
            ("execution_resumed",),
        ),
        also=f"{R6}, {OVER}",
    ),
    "INV-6 child_has_one_owner": Break(
        rows=(("random_generated", 1),), run="g", also="A-1 gaps_are_reserved, backlog_is_counted_in_an_inbox"
    ),
}


@pytest.fixture
def inhabited(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A transaction in which there are runs of every kind."""
    with transaction_of(request, everything) as connection:
        yield connection


def test_a_healthy_database_is_lawful(inhabited: Connection) -> None:
    """Runs of every kind, made through the doors, break no law."""
    assert laws_of(inhabited) == set()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.unlawful
def test_a_broken_law_is_reported(inhabited: Connection, law: str) -> None:
    """The law is reported by its name, and nothing is that the same hand did not break."""
    lay(inhabited, LAWS[law])
    assert laws_of(inhabited) == reported(LAWS[law], law)


def test_no_law_is_missed() -> None:
    """Every law of the source has its hand here, and no hand is for a law that is gone."""
    assert laws_in("check_journal") == set(LAWS)


@pytest.mark.parametrize(
    "rows",
    [
        (
            ("step_started", 0, 1, "step", POLICY),
            ("open_attempt_failed", 0, 1, None, LOST),
            ("attempt_failed", 0, 2, None, FAILED),
            ("last_attempt_completed", 0, 3),
        ),
        (
            ("step_started", 0, 1, "step", '{"input": []}'),
            *(
                ("open_attempt_failed" if n == 1 else "attempt_failed", 0, n, None, FAILED)
                for n in range(1, 9)
            ),
        ),
        (("first_attempt_failed", 0, 1, "step", FAILED), ("attempt_failed", 0, 2, None, FAILED)),
        (
            ("step_scheduled", 0, None, "step", '{"kind": "Local", "retry_policy": {"max_attempts": 3}}'),
            ("attempt_started", 0, 1),
        ),
        (*SET, ("join_set_awaited", 0, 2), ("open_step_completed", 1, 1), ("join_set_awaited", 1, 2)),
        (
            OPEN,
            WAIT,
            ("open_step_completed", 0, 1),
            ("execution_resumed",),
            ("cancel_requested",),
            ("signal_delivered", None, 1, "go"),
            ("step_completed", 1, 1),
        ),
    ],
    ids=["interruptions_do_not_count", "no_policy", "none_recorded", "first_attempt", "a_set", "clean_up"],
)
def test_lawful_rows_are_not_reported(conn: Connection, rows: tuple[Line, ...]) -> None:
    """Rows that keep the laws are not reported."""
    begin_run(conn, "m")
    write_rows(conn, "m", rows)
    assert laws_of(conn) == set()


def test_heads_are_the_folds_of_python(inhabited: Connection) -> None:
    """What the schema keeps of each journal is what Python makes of its rows."""
    conn = inhabited
    columns = "next_seq, status, next_child, reserved, open_steps, open_attempts, open_running"
    heads = conn.execute(
        f"select execution, first_child, {columns} from durable._executions order by 1".encode()
    ).fetchall()
    assert len(heads) > 12
    for execution, first_child, *kept in heads:
        found = fold(conn, execution, first_child)
        assert kept == [
            found.next_seq,
            found.status,
            found.next_child,
            found.reserved(first_child),
            list(found.open_steps),
            [attempt for attempt, _ in found.open_steps.values()],
            [running for _, running in found.open_steps.values()],
        ], execution
        inboxes = conn.execute(
            "select name, delivered, received from durable._inboxes where execution = %s and delivered > 0",
            (execution,),
        ).fetchall()
        assert {name: (delivered, received) for name, delivered, received in inboxes} == {
            name: (len(numbers), found.receipts.get(name, 0)) for name, numbers in found.signals.items()
        }
