"""Law: durable.check() finds every violation of the protocol's laws: for each there is a hand in the tables
that breaks it, and a healthy database, however full, reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hands import AGAIN, CALLBACK, FAR, Break, P, T, laws_in, laws_of, lay, reported
from tests.support.inhabitants import promises_and_runs
from tests.support.laboratory import transaction_of
from tests.support.verbs import Connection, acquire, ask

S = "update durable._schedules set {} where id = 's'"
FULFILLED = (
    "insert into durable._tasks (id, deadline, queue, state, retry_at)"
    " select id, timeout_at, 'g', {} from durable._promises where id = 'f'"
)
NAMED = "update durable._callbacks set {} where id = 'c'"
LISTENER = "insert into durable._listeners (awaited_id, address) values ('{}', '{}')"
RESUME = "insert into durable._resumes (task_id, awaited_id) values ('{}', '{}')"
REMOVED = """insert into durable._removed (id, state, ended_at, removed_at, workflow, key)
select '{}', 'resolved', 1, 2, coalesce((select workflow from durable._executions where key = 'k'), ''), {}"""
PROGRESS = """with r as (select head from durable._promises where id = 'r')
insert into durable._progress (id, named, changed_at)
select '{}', jsonb_build_object('k', jsonb_build_array({}, {}, '1')), 1"""
FORKED = "select durable.fork('e', new_id => 'fork')"
UNBLOCK = "update durable._unblocks set {} where promise_id = 'done'"
STRICT = "select durable.set_setting('conformance', 'strict')"
BOTH = """promise_tags = '{"resonate:timer": "true", "resonate:target": "g"}'"""
NO_SIGN = "alter domain durable.epoch_ms drop constraint epoch_ms_not_negative"

LAWS: dict[str, Break] = {
    # single promises
    "missing_ptimeout": Break(
        f"alter table durable._promises alter timeout_at drop not null; {P.format('timeout_at = null', 'x')}",
        "_promises.promises_deadline_verdict_follows_timer",
    ),
    "P02 promise_timeout_at_not_negative": Break(
        f"{NO_SIGN}; {P.format('timeout_at = -1, created_at = -2', 'x')}",
        also="P03 promise_created_at_not_negative",
    ),
    "P03 promise_created_at_not_negative": Break(f"{NO_SIGN}; {P.format('created_at = -2', 'x')}"),
    "well_formed_promise_created_at_lte_timeout_at": Break(
        P.format("timeout_at = 5, settled_at = 5, created_at = 6", "over"),
        "_promises.promises_created_by_timeout _promises.promises_settled_between_birth_and_timeout",
        "well_formed_promise_created_at_lte_settled_at",
    ),
    "well_formed_promise_created_at_lte_now": Break(
        P.format("created_at = durable._now_ms() + 86400001", "x")
    ),
    "well_formed_promise_settled_at_lte_now": Break(
        P.format("settled_at = durable._now_ms() + 86400001", "early")
    ),
    "well_formed_promise_pending_created_before_deadline": Break(
        P.format("created_at = 5, timeout_at = 5", "x"), "_promises.promises_pending_are_born_before_timeout"
    ),
    "well_formed_promise_settled_at_iff_not_pending": Break(
        P.format("settled_at = created_at", "x"), "_promises.promises_settled_at_iff_not_pending"
    ),
    "well_formed_promise_settled_at_lte_timeout_at": Break(
        P.format("timeout_at = settled_at - 1, created_at = settled_at - 1", "early"),
        "_promises.promises_settled_between_birth_and_timeout",
    ),
    "well_formed_promise_created_at_lte_settled_at": Break(
        P.format("created_at = settled_at + 1", "early"),
        "_promises.promises_settled_between_birth_and_timeout",
    ),
    "well_formed_promise_pending_has_no_value": Break(
        P.format('value_headers = \'{"a": "b"}\'', "x"), "_promises.promises_pending_have_no_value"
    ),
    "timedout_settled_at_mismatch": Break(
        P.format("state = 'rejected_timedout', value_data = null", "done"),
        "_promises.promises_timedout_are_settled_at_timeout",
        "well_formed_promise_timedout_is_server_owned",
    ),
    "well_formed_promise_timedout_is_server_owned": Break(
        P.format("settled_at = settled_at - 1", "over"),
        "_promises.promises_timedout_are_settled_at_timeout",
        "timedout_settled_at_mismatch",
    ),
    "well_formed_promise_deadline_verdict_matches_timer_tag": Break(
        P.format("state = 'rejected'", "over"), "_promises.promises_deadline_verdict_follows_timer"
    ),
    "well_formed_promise_deadline_settlement_has_no_value": Break(
        P.format("value_data = '1'", "over"), "_promises.promises_deadline_verdict_has_no_value"
    ),
    "ikey_complete_is_of_a_client_verdict": Break(P.format("ikey_complete = 'k'", "over")),
    "well_formed_promise_timer_not_targeted": Break(STRICT),
    "well_formed_promise_target_is_nonempty": Break(
        P.format("target = ''", "f"),
        "_promises.promises_targets_are_not_empty",
        "promise_target_deliverable, promise_target_agrees_with_tags",
    ),
    "promise_target_deliverable": Break(
        P.format("target = 'g'", "f"), also="promise_target_agrees_with_tags"
    ),
    "failed_run_says_how_and_when": Break(P.format("failure = 'failed'", "done")),
    "promise_external_if_targeted_or_timer": Break(
        P.format("external = false", "p"), "_promises.promises_targeted_and_timers_are_external"
    ),
    # tags
    "promise_timer_agrees_with_tags": Break(P.format("timer = true", "p")),
    "promise_external_agrees_with_tags": Break(
        P.format("external = false", "early"),
    ),
    "promise_target_agrees_with_tags": Break(P.format("target = 'poll://any@other'", "f")),
    "P22 promise_delay_needs_a_target": Break(P.format('tags = \'{"resonate:delay": "5"}\'', "internal")),
    "P23 promise_delay_is_an_instant": Break(
        P.format('tags = tags || \'{"resonate:delay": "soon"}\'', "p"),
    ),
    "well_formed_promise_delay_before_deadline": Break(
        P.format("tags = tags || jsonb_build_object('resonate:delay', timeout_at::text)", "t")
    ),
    "P29 P30 P31 promise_is_in_the_tree_of_its_tags": Break(
        P.format('tags = \'{"resonate:branch": "inter"}\'', "internal")
    ),
    # ties
    "orphan_invokes": Break(
        "delete from durable._tasks where id = 'p'", also="consistent_task_iff_targeted_promise"
    ),
    "consistent_task_iff_targeted_promise": Break(
        P.format("task_version = null", "f"), "_promises.promises_task_version_iff_targeted_and_settled"
    ),
    "consistent_settled_promise_has_fulfilled_task": Break(FULFILLED.format("'suspended', null")),
    "consistent_settled_task_promise_settled": Break(
        P.format("task_version = 1", "p"), "_promises.promises_task_version_iff_targeted_and_settled"
    ),
    "T02 task_version_not_negative": Break(
        T.format("version = -1", "p"), "_tasks.tasks_version_not_negative"
    ),
    "promise_tenant_is_that_of_its_run": Break(P.format("tenant = 'other'", "b")),
    "task_attempts_are_acquires": Break(T.format("attempt = 5", "r")),
    "promise_head_is_its_own": Break(
        P.format("head = (select head from durable._promises where id = 'b')", "f"),
        also="run_of_a_client_is_a_call",
    ),
    "run_of_a_client_is_a_call": Break(P.format("param_headers = null", "b")),
    "promise_owner_exists": Break(P.format("child = 9", "r.2"), also="C-1 child_is_counted_by_its_owner"),
    "C-1 child_is_counted_by_its_owner": Break(
        "insert into durable._promises (id, timeout_at, created_at, execution, child)"
        " select 'r.9', timeout_at, created_at, execution, 9 from durable._promises where id = 'r.2'"
    ),
    # tasks
    "orphan_tasks": Break(
        "insert into durable._tasks (id, deadline, retry_at, queue) values ('z', 5, 5, 'g')"
    ),
    "pending_task_no_ttimeout": Break(
        T.format("retry_at = null", "p"),
        "_tasks.tasks_retry_at_iff_pending",
        "well_formed_task_pending_iff_has_retry_at",
    ),
    "well_formed_task_pending_iff_has_retry_at": Break(
        T.format("retry_at = 5", "a"), "_tasks.tasks_retry_at_iff_pending"
    ),
    "acquired_task_no_lease": Break(
        T.format("expires_at = null", "a"),
        "_tasks.tasks_lease_iff_acquired",
        "well_formed_task_acquired_iff_has_expires_at",
    ),
    "well_formed_task_acquired_iff_has_expires_at": Break(
        T.format("expires_at = 5", "p"), "_tasks.tasks_lease_iff_acquired"
    ),
    "well_formed_task_acquired_iff_has_pid": Break(
        T.format("pid = null", "a"), "_tasks.tasks_pid_iff_acquired"
    ),
    "well_formed_task_acquired_iff_has_ttl": Break(T.format("ttl = 5", "p"), "_tasks.tasks_ttl_iff_acquired"),
    "well_formed_task_ttl_positive": Break(T.format("ttl = 0", "a"), "_tasks.tasks_ttl_positive"),
    "well_formed_task_acquired_version_positive": Break(
        T.format("version = 0", "a"), "_tasks.tasks_acquired_version_positive", "task_attempts_are_acquires"
    ),
    "suspended_task_has_ttimeout": Break(
        T.format("retry_at = 5", "t"),
        "_tasks.tasks_retry_at_iff_pending",
        "well_formed_task_suspended_is_cleared, well_formed_task_pending_iff_has_retry_at",
    ),
    "well_formed_task_suspended_is_cleared": Break(
        T.format("pid = 'P'", "t"), "_tasks.tasks_pid_iff_acquired", "well_formed_task_acquired_iff_has_pid"
    ),
    "well_formed_task_halted_is_cleared": Break(
        T.format("ttl = 5", "h"), "_tasks.tasks_ttl_iff_acquired", "well_formed_task_acquired_iff_has_ttl"
    ),
    "fulfilled_task_has_ttimeout": Break(
        FULFILLED.format("'pending', 1"),
        also="well_formed_task_fulfilled_is_cleared, consistent_settled_promise_has_fulfilled_task",
    ),
    "well_formed_task_fulfilled_is_cleared": Break(RESUME.format("f", "done")),
    "suspended_no_callback": Break(
        "delete from durable._callbacks where awaiter_id = 't'", also="consistent_suspended_task_holds_rung"
    ),
    "consistent_suspended_task_holds_rung": Break(
        "update durable._callbacks set awaiter_id = 'a' where awaiter_id = 't' and id = ''",
        also="suspended_no_callback",
    ),
    "well_formed_task_suspended_has_no_resumes": Break(
        RESUME.format("t", "done"), also="suspended_with_consumed_callbacks"
    ),
    "resume_names_a_settled_promise": Break(RESUME.format("a", "x")),
    "task_deadline_is_promise_timeout": Break(T.format("deadline = deadline - 1", "p")),
    "task_rules_are_head_rules": Break("update durable._tasks set rules = 9 where execution > 0"),
    "task_owner_is_promise_owner": Break(
        T.format("owner = (select head from durable._promises where id = 'b')", "p")
    ),
    "task_head_is_promise_head": Break(
        T.format("execution = (select head from durable._promises where id = 'b')", "p")
    ),
    "task_releases_belong_together": Break(T.format("releases = 1", "p")),
    "consistent_outbox_execute_address_is_target_tag": Break(T.format("queue = 'h'", "p")),
    "task_recv_only_while_pending": Break(
        T.format("recv = 'poll://any@g'", "a"), "_tasks.tasks_recv_only_while_pending"
    ),
    "task_recv_deliverable": Break(T.format("recv = 'poll://g', queue = 'poll://g'", "p")),
    "task_recv_headers_need_a_recv": Break(
        T.format("recv_headers = '{}'", "p"), "_tasks.tasks_recv_headers_need_a_recv"
    ),
    # waiters
    "P13 callback_for_settled_promise": Break(CALLBACK.format("done", "a")),
    "suspended_with_consumed_callbacks": Break(
        CALLBACK.format("done", "t"), also="P13 callback_for_settled_promise"
    ),
    "callback_awaiter_no_target": Break(
        CALLBACK.format("x", "internal"), also="consistent_callback_awaiter_is_targeted"
    ),
    "consistent_callback_awaiter_is_targeted": Break(
        CALLBACK.format("x", "nobody"), also="callback_awaiter_no_target"
    ),
    "well_formed_promise_awaiter_is_not_self": Break(
        CALLBACK.format("a", "a"), "_callbacks.callbacks_awaiter_is_not_awaited"
    ),
    "well_formed_promise_obligations_require_external": Break(CALLBACK.format("internal", "a")),
    "adopting_awaiter_is_a_run": Break(
        "insert into durable._callbacks (awaited_id, awaiter_id, child) values ('x', 'a', 0)"
    ),
    "callback_id_iff_recv": Break(NAMED.format("recv = null"), "_callbacks.callbacks_id_iff_recv"),
    "callback_id_iff_timeout": Break(
        NAMED.format("timeout_at = null"), "_callbacks.callbacks_id_iff_timeout"
    ),
    "callback_recv_deliverable": Break(NAMED.format("recv = 'nowhere://x'")),
    "callback_recv_headers_need_a_recv": Break(
        "update durable._callbacks set recv_headers = '{}' where awaiter_id = 't' and id = ''",
        "_callbacks.callbacks_recv_headers_need_a_recv",
    ),
    "listener_for_settled_promise": Break(LISTENER.format("done", "poll://any@g")),
    "consistent_listener_addresses_deliverable": Break(LISTENER.format("x", "nowhere://x")),
    # messages
    "consistent_outbox_unblock_names_settled_promise": Break(UNBLOCK.format("promise_id = 'x'")),
    "consistent_outbox_unblock_address_deliverable": Break(UNBLOCK.format("address = 'nowhere://x'")),
    "unblock_not_older_than_its_settlement": Break(UNBLOCK.format("created_at = created_at - 1")),
    "unblock_claims_are_counted": Break(UNBLOCK.format("claimed_until = 5")),
    "well_formed_config_retry_positive": Break(
        "update durable.settings set value = '0' where name = 'retry_offer_ms'"
    ),
    # schedules
    "S04 schedule_promise_timeout_not_negative": Break(
        S.format("promise_timeout = -1"), "_schedules.schedules_promise_timeout_not_negative"
    ),
    "well_formed_schedule_created_at_lte_next_run_at": Break(
        S.format("created_at = next_run_at + 1, last_run_at = null"),
        "_schedules.schedules_created_before_next_run",
        "S07 S08 schedule_next_run_follows_cron",
    ),
    "well_formed_schedule_created_at_lte_last_run_at": Break(
        S.format("created_at = last_run_at + 1"), "_schedules.schedules_created_before_last_run"
    ),
    "well_formed_schedule_last_run_at_lt_next_run_at": Break(
        S.format("next_run_at = last_run_at"),
        "_schedules.schedules_last_run_before_next_run",
        "S07 S08 schedule_next_run_follows_cron",
    ),
    "well_formed_schedule_promise_tags_not_timer_targeted": Break(
        f"{STRICT}; {S.format(BOTH)}",
        also="well_formed_promise_timer_not_targeted",
    ),
    "S06 schedule_last_run_has_its_promise": Break(S.format("promise_id = 'fire.{{.timestamp}}'")),
    "S07 S08 schedule_next_run_follows_cron": Break(S.format("cron = '*/5 * * * *'")),
    # keys
    "store_promise_ids_unique": Break(
        "alter table durable._promises alter column due_at drop expression; "
        + AGAIN.format("_promises", "id = 'internal'"),
        "_promises.promises_pk",
    ),
    "store_task_ids_unique": Break(AGAIN.format("_tasks", "id = 'h'"), "_tasks.tasks_pk"),
    "store_schedule_ids_unique": Break(AGAIN.format("_schedules", "id = 's'"), "_schedules.schedules_pk"),
    "store_outbox_keys_unique": Break(AGAIN.format("_unblocks", "true"), "_unblocks.unblocks_pk"),
    "well_formed_promise_callbacks_unique": Break(
        AGAIN.format("_callbacks", "id = ''"), "_callbacks.callbacks_pk"
    ),
    "callback_ids_unique": Break(
        "drop index durable.callbacks_by_id; insert into durable._callbacks (awaited_id, awaiter_id, id,"
        " timeout_at, recv) select 'x', 'h', id, timeout_at, recv from durable._callbacks where id = 'c'"
    ),
    "well_formed_promise_listeners_unique": Break(
        AGAIN.format("_listeners", "true"), "_listeners.listeners_pk"
    ),
    # instants that cannot be
    "task_was_acquired_in_the_past": Break(T.format(f"acquired_at = {FAR}", "r")),
    "lease_ends_within_its_length": Break(T.format(f"expires_at = {FAR}", "r")),
    "preference_ends_within_its_length": Break(T.format(f"prefer_until = {FAR}", "r")),
    "unblock_was_made_in_the_past": Break(UNBLOCK.format(f"created_at = {FAR}")),
    "unblock_is_claimed_for_a_while": Break(UNBLOCK.format(f"claimed_until = {FAR}, attempts = 1")),
    "schedule_was_made_in_the_past": Break(
        S.format(f"paused_at = {FAR}, next_run_at = durable._never()"),
    ),
    "removed_in_the_past": Break(
        f"{REMOVED.format('gone', 'null')}; update durable._removed set removed_at = {FAR}"
    ),
    "fork_was_made_in_the_past": Break(f"{FORKED}; update durable._forks set at = {FAR}"),
    "progress_was_made_in_the_past": Break(
        f"{PROGRESS.format('r', '(select head from r)', 0)}; update durable._progress set changed_at = {FAR}"
    ),
    "site_was_adopted_in_the_past": Break(f"update durable._site set adopted_at = {FAR}"),
    "site_has_its_row": Break("delete from durable._site"),
    "worker_was_there_in_the_past": Break(
        "select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}'); "
        f"update durable._workers set started_at = {FAR}"
    ),
    "removed_id_has_no_promise": Break(REMOVED.format("x", "null")),
    "removed_key_has_no_run": Break(
        "update durable._executions set key = 'k' where id = 'r'; " + REMOVED.format("gone", "'k'")
    ),
    "removed_signals_are_of_a_run": Break(
        "insert into durable._removed_signals (removed_at, delivery, id, name, key)"
        " values (1, 1, 'x', 'go', 'k')"
    ),
    "backlog_is_counted_in_an_inbox": Break(
        "insert into durable._backlog (id, name, number) values ('r', 'go', 1)"
    ),
    "backlog_came_to_its_run": Break(
        "insert into durable._backlog (id, name, number, execution, seq)"
        " select 'r', 'go', 1, h.execution, 1 from durable._executions h where h.id <> 'r' limit 1",
        also="backlog_is_counted_in_an_inbox",
    ),
    "schedule_can_create": Break(S.format("""promise_tags = '{"resonate:target": "a b"}'""")),
    "input_of_a_run_is_json": Break(P.format("param_data = 'torn'", "e")),
    "progress_value_is_json": Break(PROGRESS.format("r", "(select head from r)", 0).replace("'1'", "'torn'")),
    "fork_names_its_origin": Break(f"{FORKED}; update durable._forks set origin_id = 'b'"),
    "fork_begins_within_its_origin": Break(f"{FORKED}; update durable._forks set seq = 1000"),
    "fork_copies_its_origin": Break(
        f"{FORKED}; update durable._journal j set name = 'other' from durable._executions h"
        " where h.execution = j.execution and h.id = 'fork' and j.type = 'step_completed'; "
        "update durable._forks set at = at + 1"
    ),
    "setting_is_of_its_kind": Break("update durable.settings set value = 'soon' where name = 'max_crashes'"),
    "schedule_can_be_evaluated": Break(S.format("timezone = 'Mars'")),
    "schedule_polls_while_an_instant_is_buffered": Break(S.format("poll_at = next_run_at")),
    "no_child_outlives_its_parent": Break(
        "update durable._executions set rules = 4 where id = 'e'; "
        + T.format("owner = (select head from durable._promises where id = 'e')", "r.3"),
        also="task_owner_is_promise_owner",
    ),
    "fork_has_its_run": Break(
        "insert into durable._forks (at, id, origin_id, origin, seq, by) values (1, 'gone', 'r', 1, 1, 'me')"
    ),
    "progress_is_of_a_task": Break(PROGRESS.format("x", "0", 0)),
    "progress_is_of_its_own_journal": Break(PROGRESS.format("h", "1", 0)),
    "progress_is_within_the_journal": Break(PROGRESS.format("r", "(select head from r)", 10**6)),
    "well_formed_task_resumes_unique": Break(AGAIN.format("_resumes", "true"), "_resumes.resumes_pk"),
}

# the catalogue of the protocol (6.1, 6.2 and what 6.4 says of states)
PUBLISHED = """
orphan_invokes missing_ptimeout stale_ptimeout timedout_settled_at_mismatch listener_for_settled_promise
orphan_tasks pending_task_no_ttimeout acquired_task_no_lease suspended_no_callback
suspended_with_consumed_callbacks suspended_task_has_ttimeout fulfilled_task_has_ttimeout
callback_awaiter_no_target
well_formed_promise_created_at_lte_timeout_at well_formed_promise_pending_created_before_deadline
well_formed_promise_settled_at_lte_timeout_at well_formed_promise_created_at_lte_settled_at
well_formed_promise_settled_at_iff_not_pending well_formed_promise_pending_has_no_value
well_formed_promise_deadline_verdict_matches_timer_tag well_formed_promise_deadline_settlement_has_no_value
well_formed_promise_timer_not_targeted well_formed_promise_timedout_is_server_owned
well_formed_promise_callbacks_unique well_formed_promise_listeners_unique
well_formed_promise_obligations_require_external well_formed_promise_awaiter_is_not_self
well_formed_promise_created_at_lte_now well_formed_promise_settled_at_lte_now
well_formed_task_acquired_iff_has_pid well_formed_task_acquired_iff_has_ttl
well_formed_task_acquired_iff_has_expires_at well_formed_task_pending_iff_has_retry_at
well_formed_task_fulfilled_is_cleared well_formed_task_suspended_is_cleared
well_formed_task_halted_is_cleared well_formed_task_suspended_has_no_resumes
well_formed_task_resumes_unique well_formed_task_acquired_version_positive
well_formed_schedule_promise_tags_not_timer_targeted well_formed_schedule_created_at_lte_next_run_at
well_formed_schedule_created_at_lte_last_run_at well_formed_schedule_last_run_at_lt_next_run_at
store_promise_ids_unique store_task_ids_unique store_schedule_ids_unique store_outbox_keys_unique
consistent_task_iff_targeted_promise consistent_settled_promise_has_fulfilled_task
consistent_callback_awaiter_is_targeted consistent_listener_addresses_deliverable
consistent_outbox_execute_names_existing_task consistent_outbox_never_ahead
consistent_outbox_execute_address_is_target_tag consistent_outbox_unblock_names_settled_promise
consistent_outbox_unblock_address_deliverable consistent_settled_task_promise_settled
consistent_suspended_task_holds_rung
well_formed_task_ttl_positive well_formed_promise_target_is_nonempty well_formed_promise_delay_before_deadline
well_formed_config_retry_positive
"""
# what no row can break here
BY_CONSTRUCTION = {
    "stale_ptimeout": "the sweep reads a partial index over pending promises; there is no timer table",
    "consistent_outbox_execute_names_existing_task": "an execute message is the pending task itself",
    "consistent_outbox_never_ahead": "an execute message is read from the task, with its version",
}


@pytest.fixture
def inhabited(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A transaction in which there are objects of every kind."""
    with transaction_of(request, promises_and_runs) as connection:
        yield connection


def test_a_healthy_database_is_lawful(inhabited: Connection) -> None:
    """Objects of every kind, made through the doors, break no law."""
    assert laws_of(inhabited) == set()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.unlawful
def test_a_broken_law_is_reported(inhabited: Connection, law: str) -> None:
    """The law is reported by its name, and nothing is that the same hand did not break."""
    lay(inhabited, LAWS[law])
    assert laws_of(inhabited) == reported(LAWS[law], law)


def test_no_law_is_missed() -> None:
    """Every law of the source has its hand here, and no hand is for a law that is gone."""
    assert laws_in("check") == set(LAWS)


def test_the_published_catalogue_is_complete() -> None:
    """Every law of states that the protocol publishes has a query, unless no row could break it."""
    published = PUBLISHED.split()
    assert len(published) == len(set(published)) == 13 + 45 + 4
    assert set(published) - set(LAWS) == set(BY_CONSTRUCTION)


@pytest.mark.unlawful
def test_no_setting_keeps_the_laws_from_being_checked(inhabited: Connection) -> None:
    """Settings that cannot be read are reported, and all else is checked nevertheless."""
    inhabited.execute("update durable.settings set value = 'soon' where value ~ '^[0-9]+$'")
    inhabited.execute(P.format("created_at = durable._now_ms() + 86400001", "x").encode())
    assert laws_of(inhabited) == {"setting_is_of_its_kind", "well_formed_promise_created_at_lte_now"}


def test_a_law_names_the_object(inhabited: Connection) -> None:
    """A row tells which object and what was seen of it."""
    conn = inhabited
    with conn.transaction(force_rollback=True):
        conn.execute(LISTENER.format("done", "poll://any@g").encode())
        ((law, id_, detail),) = conn.execute("select * from durable.check()").fetchall()
        assert (law, id_) == ("listener_for_settled_promise", "done")
        assert "resolved" in detail and "poll://any@g" in detail
    assert ask(conn, acquire("p"))[1] == "acquired"
