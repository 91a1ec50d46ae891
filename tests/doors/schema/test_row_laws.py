"""Laws of single rows: who breaks one is refused at once, by its name. They stand in the domains that the
tables ask their rows to be of.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.hands import OBJECT, H, P, T, let_go
from tests.support.laboratory import ClockInside, transaction_of
from tests.support.verbs import Connection, ask, create, settle

LEASED = "state = 'acquired', pid = 'w', retry_at = null, expires_at = 5, "
WAITING = "status = 'blocked', "

LAWS = {
    "promises_id_is_1_to_1024_bytes": P.format("id = repeat('é', 513)", "open"),
    "promises_state_is_known": P.format("state = 'x'", "done"),
    "promises_created_by_timeout": P.format("created_at = 6, timeout_at = 5", "open"),
    "promises_pending_are_born_before_timeout": P.format("created_at = timeout_at", "open"),
    "promises_settled_at_iff_not_pending": P.format("settled_at = created_at", "open"),
    "promises_settled_between_birth_and_timeout": P.format("settled_at = created_at - 1", "done"),
    "promises_pending_have_no_value": P.format("value_headers = '{}'", "open"),
    "promises_timedout_are_settled_at_timeout": P.format("state = 'rejected_timedout'", "done"),
    "promises_deadline_verdict_has_no_value": P.format("value_data = '1'", "late"),
    "promises_deadline_verdict_follows_timer": P.format("state = 'resolved'", "late"),
    "promises_targets_are_not_empty": P.format("target = ''", "run"),
    "promises_targeted_and_timers_are_external": P.format("external = false", "run"),
    "promises_owner_and_child_come_together": P.format("execution = 1", "open"),
    "promises_child_not_negative": P.format("execution = 1, child = -1", "open"),
    "promises_heads_are_targeted": P.format("head = 1", "open"),
    "promises_task_version_iff_targeted_and_settled": P.format("task_version = 1", "run"),
    "promises_tags_are_an_object": P.format("tags = '[]'", "open"),
    "tasks_state_is_known": T.format("state = 'x', retry_at = null", "run"),
    "tasks_version_not_negative": T.format("version = -1", "run"),
    "tasks_acquired_version_positive": T.format(f"{LEASED} ttl = 5", "run"),
    "tasks_pid_iff_acquired": T.format("pid = 'w'", "run"),
    "tasks_ttl_iff_acquired": T.format(f"{LEASED} version = 1", "run"),
    "tasks_ttl_positive": T.format(f"{LEASED} version = 1, ttl = 0", "run"),
    "tasks_lease_iff_acquired": T.format("expires_at = 5", "run"),
    "tasks_retry_at_iff_pending": T.format("retry_at = null", "run"),
    "tasks_queue_not_empty": T.format("queue = ''", "run"),
    "tasks_workflow_and_version_come_together": T.format("workflow = null", "run"),
    "tasks_recv_only_while_pending": T.format("state = 'suspended', retry_at = null, recv = 'x'", "run"),
    "tasks_recv_headers_need_a_recv": T.format("recv_headers = '{}'", "run"),
    "tasks_crashes_not_negative": T.format("crashes = -1", "run"),
    "tasks_attempt_not_negative": T.format("attempt = -1", "run"),
    "executions_status_is_known": H.format("status = 'x'", "run"),
    "executions_next_seq_not_negative": H.format("next_seq = -1", "run"),
    "executions_children_are_counted": H.format("first_child = 1", "run"),
    "executions_wait_iff_blocked": H.format(f"{WAITING} waiting_on = '{{1}}', wait_kind = 'single'", "run"),
    "executions_wait_is_unsatisfied": H.format(
        f"{WAITING} waiting_on = '{{1}}', wait_kind = 'single', wait_left = 0", "run"
    ),
    "executions_wait_is_on_something": H.format(
        f"{WAITING} waiting_on = '{{}}', wait_kind = 'all', wait_left = 1", "run"
    ),
    "executions_wait_kind_is_known": H.format(
        f"{WAITING} waiting_on = '{{1}}', wait_kind = 'x', wait_left = 1", "run"
    ),
    "executions_single_waits_on_one": H.format(
        f"{WAITING} waiting_on = '{{1,2}}', wait_kind = 'signal', wait_left = 1", "run"
    ),
    "executions_open_steps_have_attempts": H.format("open_steps = '{1}'", "run"),
    "executions_only_cancelling_ones_have_grace": H.format("cancel_until = 5", "run"),
    "objects_id_is_a_hash": OBJECT.format("id = '\\x00'", "i64"),
    "objects_kind_is_known": OBJECT.format("kind = 'x'", "i64"),
    "objects_excised_are_empty": OBJECT.format("reason = 'r'", "i64"),
    "objects_scalar_has_the_length_of_its_kind": OBJECT.format("scalar = '\\x00'", "i64"),
    "objects_refs_are_a_list": OBJECT.format("refs = '{null}'", "list"),
    "objects_refs_are_as_many_as_their_kind_has": OBJECT.format("refs = array[id]", "i64"),
    "objects_names_match_refs": OBJECT.format("names = '{a}'", "i64"),
}
TABLES = {"promises": "_promises", "tasks": "_tasks", "executions": "_executions", "objects": "_objects"}


def populate(conn: Connection) -> None:
    """A run, a promise that is open, one with a value, one whose deadline passed, an integer and a list."""
    clock = ClockInside(conn)
    for sub, scalar in (("i64", bytes(8)), ("list", None)):
        ask(conn, ("select durable._put('datum', %s, %s, '{}')", (sub, scalar)))
    ask(conn, ("select durable.start('w', id => 'run')", ()))
    for name in ("open", "done"):
        ask(conn, create(name))
    ask(conn, create("late", timeout_at=clock.now_ms + 5))
    clock.advance(1)
    ask(conn, settle("done"))
    clock.advance(10)
    ask(conn, ("select durable.promise_get('late')", ()))


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction that began with that."""
    with transaction_of(request, populate) as connection:
        yield connection


def refused_by(conn: Connection, hand: str) -> str | None:
    """Name of the law that refuses what a hand does; the hand is taken back."""
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                assert conn.execute(hand.encode()).rowcount == 1
        except psycopg.errors.CheckViolation as error:
            return error.diag.constraint_name
    return None


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_told_by_its_name(rows: Connection, law: str) -> None:
    """Who breaks a law of a row is refused with its name, and it is this law that refuses him."""
    assert refused_by(rows, LAWS[law]) == law
    with rows.transaction(force_rollback=True):
        let_go(rows, f"{TABLES[law.split('_')[0]]}.{law}")
        assert refused_by(rows, LAWS[law]) != law


def test_every_law_of_a_row_is_tried(conn: Connection) -> None:
    """The laws above are those of the four domains, and each table asks for its domain."""
    found = conn.execute(
        "select conname from pg_constraint where contypid::regtype::text like 'durable.\\_lawful\\_%'"
    ).fetchall()
    assert sorted(name for (name,) in found) == sorted(LAWS)
    asked = conn.execute(
        "select conrelid::regclass::text, conname from pg_constraint"
        " where conrelid::regclass::text = any (%s) and contype = 'c' order by 1",
        ([f"durable.{table}" for table in TABLES.values()],),
    ).fetchall()
    assert asked == [
        ("durable._executions", "executions_are_lawful"),
        ("durable._objects", "objects_are_lawful"),
        ("durable._promises", "promises_are_lawful"),
        ("durable._tasks", "tasks_are_lawful"),
    ]
