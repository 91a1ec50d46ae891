"""Law: durable.check() finds every violation of the laws of what runs call: signals, join sets, children,
promises of others, generations. Each law has a hand here that breaks it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hands import CUT, INBOX, OPEN, SET, Break, H, J, P, T, laws_in, laws_of, lay, reported
from tests.support.inhabitants import everything
from tests.support.laboratory import transaction_of
from tests.support.verbs import Connection

# the later of two generations
NEW = "update durable._executions h set {} where h.id = 'g' and h.previous is not null"
ADOPTED = "awaiter_id = 'ad' and child = 0"

LAWS: dict[str, Break] = {
    # timers
    "CF-1 fired_was_scheduled": Break(rows=(("timer_fired", 0),)),
    "X-2 timer_fired_once": Break(
        rows=(("timer_scheduled", 0), ("timer_fired", 0), ("timer_fired", 0)),
        also="C-1 child_has_its_promise",
    ),
    # content-addressed calls
    "I22 recorded_call_names_its_exec": Break(
        "select durable.datum_put('{\"i64\": 1}'); "
        + J.format(
            "data = (select jsonb_build_object('exec', o.hex, 'node', o.hex, 'dag', o.hex)::text"
            " from (select encode(id, 'hex') as hex from durable._objects limit 1) o)",
            "m",
            "name = 'durable.call_v1'",
        ),
        rows=(("step_completed", 0, 1, "durable.call_v1"),),
    ),
    # signals
    "CF-2 received_was_delivered": Break(
        rows=(("signal_received", 0, 1, "go"),), drop="_inboxes.inboxes_received_was_delivered"
    ),
    "CF-3 delivery_received_once": Break(
        rows=(
            ("signal_delivered", None, 1, "go"),
            ("signal_delivered", None, 2, "go"),
            ("signal_received", 0, 1, "go"),
            ("signal_received", 1, 1, "go"),
        ),
        also="receipts_are_in_order",
    ),
    "receipts_are_in_order": Break(
        rows=(
            ("signal_delivered", None, 1, "go"),
            ("signal_delivered", None, 2, "go"),
            ("signal_received", 0, 2, "go"),
        ),
    ),
    "X-6 deliveries_are_dense": Break(rows=(("signal_delivered", None, 2, "go"),)),
    "inbox_agrees_with_journal": Break(INBOX.format("delivered = delivered + 1", "s", "x.name = 'go'")),
    "signal_is_its_delivery": Break("delete from durable._signals where delivery = 2"),
    "backlog_has_what_its_inbox_counts": Break("delete from durable._backlog where number = 2"),
    "backlog_was_delivered_as_it_is": Break("update durable._backlog set data = '9' where number = 1"),
    "receiver_is_a_number_to_come": Break(INBOX.format("receiver = 0", "s", "x.name = 'later'")),
    "receiver_waits_for_one_signal": Break(
        "insert into durable._inboxes (execution, name, receiver)"
        " select execution, 'too', receiver from durable._inboxes where name = 'later'"
    ),
    # join sets
    "JS-1 submitted_to_what_was_created": Break(rows=(OPEN, ("join_set_submitted", 0, 1))),
    "member_was_scheduled_before": Break(
        rows=(("join_set_created", 0), ("join_set_submitted", 1, 0), ("step_completed", 1, 1))
    ),
    "JS-2 nothing_submitted_once_taken_from": Break(
        rows=(*SET, ("join_set_awaited", 0, 2), ("step_started", 3, 1), ("join_set_submitted", 3, 2))
    ),
    "JS-3 taken_was_submitted": Break(rows=(*SET, ("step_completed", 3, 1), ("join_set_awaited", 3, 2))),
    "JS-4 taken_was_completed": Break(rows=(*SET, ("join_set_awaited", 1, 2))),
    "JS-5 taken_once": Break(rows=(*SET, ("join_set_awaited", 0, 2), ("join_set_awaited", 0, 2))),
    "JS-6 not_more_taken_than_submitted": Break(
        rows=(("join_set_created", 0), ("step_completed", 1, 1), ("join_set_awaited", 1, 0)),
        also="JS-3 taken_was_submitted",
    ),
    "JS-7 member_of_one_set_once": Break(rows=(*SET, ("join_set_created", 3), ("join_set_submitted", 1, 3))),
    "R10 taken_result_is_that_of_its_completion": Break(rows=(*SET, ("join_set_awaited", 0, 2, None, "7"))),
    "join_set_agrees_with_journal": Break("update durable._join_sets set closed = not closed where closed"),
    "member_agrees_with_journal": Break("update durable._members set taken = false where taken"),
    # children
    "C-1 settled_iff_resolved_in_owner": Break(rows=(("timer_fired", 4),), run="r"),
    "C-5 open_attempt_of_child_run": Break(T.format("attempt_open = false", "r.3")),
    "C-5 open_steps_of_head": Break(H.format("open_attempts = '{2}'", "r")),
    "C-6 result_is_that_of_the_promise": Break(J.format("data = '1'", "ad", "x.type = 'child_settled'")),
    "R13 adopted_promise_has_its_row": Break(
        "insert into durable._callbacks (awaited_id, awaiter_id, child) values ('x', 'ad', 7)"
    ),
    "R13 adopted_promise_is_awaited": Break(f"delete from durable._callbacks where {ADOPTED}"),
    "C-1 child_has_its_promise": Break(rows=(("child_run_scheduled", 0),)),
    "C-6 result_comes_as_its_kind_does": Break(rows=(("open_step_completed", 3, 1, None, "7"),), run="r"),
    "timer_is_due_when_its_promise_is": Break(
        J.format("data = '{\"fire_at\": 5}'", "r", "x.child = 4 and x.type = 'timer_scheduled'")
    ),
    "payload_of_a_signal_is_json": Break("update durable._signals set data = 'torn' where delivery = 3"),
    "C-1 child_is_of_its_kind": Break(
        "update durable._executions set workflow = 'leaf' where id = 'r.3'; "
        + T.format("workflow = 'leaf'", "r.3")
    ),
    "child_run_has_the_input_of_its_call": Break(P.format("param_data = '[1]'", "r.3")),
    "timer_does_not_fire_early": Break(
        J.format("ts = x.ts - 1", "r", "x.type = 'timer_fired'"), also="head_knows_when_its_journal_grew"
    ),
    "taken_in_the_order_of_completion": Break(
        rows=(*SET, ("open_step_completed", 1, 1), ("join_set_awaited", 1, 2), ("join_set_awaited", 0, 2))
    ),
    # generations
    "generation_follows_one_that_ended": Break(
        J.format("data = null", "g", "x.type = 'execution_completed'"),
        also="head_has_promise, C-2 pending_iff_live",
    ),
    "generation_is_of_the_same_workflow": Break(
        NEW.format("workflow = 'other'") + "; " + T.format("workflow = 'other'", "g")
    ),
    "generation_numbers_go_on": Break(
        f"{CUT.format('g', 'h.previous is not null and x.seq > 0')}; "
        + NEW.format("first_child = 1, next_child = 1, reserved = '{}', next_seq = 1")
    ),
    "generation_has_one_successor": Break(
        "update durable._executions set previous = (select execution from durable._executions"
        " where id = 'g' and previous is null) where id = 'b'",
        also="generation_follows_one_that_ended, generation_numbers_go_on, INV-6 child_has_one_owner",
    ),
    "removed_generations_are_gone": Break(
        "update durable._executions set generations_removed = 1 where id = 'g' and previous is not null"
    ),
    "removed_generations_are_counted": Break(
        "update durable._executions set generations_removed = 1 where id = 'g' and previous is null"
    ),
    "what_a_run_left_has_its_head": Break(
        "insert into durable._members (execution, child, join_set) values (999999, 1, 0)",
        also="member_agrees_with_journal",
    ),
}


@pytest.fixture
def inhabited(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A transaction in which there are runs of every kind."""
    with transaction_of(request, everything) as connection:
        yield connection


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.unlawful
def test_a_broken_law_is_reported(inhabited: Connection, law: str) -> None:
    """The law is reported by its name, and nothing is that the same hand did not break."""
    lay(inhabited, LAWS[law])
    assert laws_of(inhabited) == reported(LAWS[law], law)


def test_no_law_is_missed() -> None:
    """Every law of the source has its hand here, and no hand is for a law that is gone."""
    assert laws_in("check_calls") == set(LAWS)
