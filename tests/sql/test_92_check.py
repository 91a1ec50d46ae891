"""Law: durable.check() finds every violation that it names: for each law there is a hand in the tables that
breaks it, and a healthy database, however full, reports nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    acquire,
    ask,
    begin_run,
    begun,
    broken,
    bundle,
    captured,
    claim,
    complete,
    create,
    done,
    park,
    promise,
    run,
    settle,
    suspend,
    take,
    take_turn,
    tick,
    timer,
)

SOURCE = Path(__file__).parent.parent.parent / "sql" / "logic" / "92_check.sql"
DAY = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Break:
    """A hand in the tables.

    Args:
        drop: constraints that have to go first, as table.constraint.
        sql: what breaks the law.
        also: other laws that are broken by the same hand.
    """

    sql: str
    drop: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


P = "update durable._promises set {} where id = '{}'"
T = "update durable._tasks set {} where id = '{}'"
H = "update durable._executions set {} where id = '{}'"
JOURNAL = (
    "insert into durable._journal (execution, bucket, ts, seq, type, child, attempt)"
    " select execution, bucket, 1, {}, '{}', {}, {} from durable._executions where id = '{}'"
)
CUT = (
    "delete from durable._journal j using durable._executions h"
    " where h.execution = j.execution and h.id = '{}' and {}"
)

LAWS: dict[str, Break] = {
    # single promises
    "orphan_invokes": Break(sql="delete from durable._tasks where id = 'p'"),
    "settled_promise_has_fulfilled_task": Break(
        sql="insert into durable._tasks (id, deadline, retry_at, queue) "
        "select id, timeout_at, 1, 'g' from durable._promises where id = 'f'",
        also=("settled_task_promise_settled",),
    ),
    "missing_ptimeout": Break(
        sql="alter table durable._promises alter timeout_at drop not null; "
        + P.format("timeout_at = null", "x"),
        drop=("_promises.promises_deadline_verdict_follows_timer",),
    ),
    "timedout_settled_at_mismatch": Break(
        sql=P.format("state = 'rejected_timedout', value_data = null", "done"),
        drop=("_promises.promises_timedout_are_settled_at_timeout",),
    ),
    "promise_created_at_lte_timeout_at": Break(
        sql=P.format("timeout_at = 5, settled_at = 5, created_at = 6", "over"),
        drop=(
            "_promises.promises_created_by_timeout",
            "_promises.promises_settled_between_birth_and_timeout",
        ),
        also=("promise_created_at_lte_settled_at",),
    ),
    "promise_created_at_lte_now": Break(
        sql=P.format("created_at = durable._now_ms() + 5", "x"),
    ),
    "promise_settled_at_lte_now": Break(sql=P.format("settled_at = durable._now_ms() + 5", "done")),
    "promise_pending_created_before_deadline": Break(
        sql=P.format("created_at = 5, timeout_at = 5", "x"),
        drop=("_promises.promises_pending_are_born_before_timeout",),
    ),
    "promise_settled_at_iff_not_pending": Break(
        sql=P.format("settled_at = created_at", "x"), drop=("_promises.promises_settled_at_iff_not_pending",)
    ),
    "promise_settled_at_lte_timeout_at": Break(
        sql=P.format("timeout_at = settled_at - 1, created_at = settled_at - 1", "done"),
        drop=("_promises.promises_settled_between_birth_and_timeout",),
    ),
    "promise_created_at_lte_settled_at": Break(
        sql=P.format("created_at = settled_at + 1", "early"),
        drop=("_promises.promises_settled_between_birth_and_timeout",),
    ),
    "promise_pending_has_no_value": Break(
        sql=P.format("value_data = '1'", "x"), drop=("_promises.promises_pending_have_no_value",)
    ),
    "promise_deadline_verdict_matches_timer_tag": Break(
        sql=P.format("state = 'rejected'", "over"),
        drop=("_promises.promises_deadline_verdict_follows_timer",),
    ),
    "promise_deadline_settlement_has_no_value": Break(
        sql=P.format("value_data = '1'", "over"), drop=("_promises.promises_deadline_verdict_has_no_value",)
    ),
    "promise_timer_not_targeted": Break(
        sql=P.format("timer = true", "p"), drop=("_promises.promises_timers_have_no_target",)
    ),
    "promise_external_if_targeted_or_timer": Break(
        sql=P.format("external = false", "p"), drop=("_promises.promises_targeted_and_timers_are_external",)
    ),
    "promise_target_deliverable": Break(sql=P.format("target = 'g'", "f")),
    "promise_head_is_its_own": Break(
        sql=P.format("head = (select head from durable._promises where id = 'b')", "f"),
    ),
    "promise_owner_exists": Break(
        sql=P.format("child = 9", "r.2"), also=("C-1 settled_iff_resolved_in_owner",)
    ),
    # tasks
    "orphan_tasks": Break(
        sql="insert into durable._tasks (id, deadline, retry_at, queue) values ('z', 5, 5, 'g')",
        also=("task_queue_is_target",),
    ),
    "task_iff_targeted_promise": Break(
        sql="insert into durable._tasks (id, deadline, retry_at, queue) "
        "select id, timeout_at, 1, 'g' from durable._promises where id = 'x'",
        also=("task_queue_is_target",),
    ),
    "settled_task_promise_settled": Break(
        sql="insert into durable._tasks (id, deadline, retry_at, queue) "
        "select id, timeout_at, 1, 'g' from durable._promises where id = 'f'",
        also=("settled_promise_has_fulfilled_task",),
    ),
    "pending_task_no_ttimeout": Break(
        sql=T.format("retry_at = null", "p"), drop=("_tasks.tasks_retry_at_iff_pending",)
    ),
    "acquired_task_no_lease": Break(
        sql=T.format("expires_at = null", "a"), drop=("_tasks.tasks_lease_iff_acquired",)
    ),
    "task_acquired_iff_has_pid": Break(
        sql=T.format("pid = null", "a"), drop=("_tasks.tasks_pid_iff_acquired",)
    ),
    "task_acquired_iff_has_ttl": Break(sql=T.format("ttl = 5", "p"), drop=("_tasks.tasks_ttl_iff_acquired",)),
    "task_acquired_version_positive": Break(
        sql=T.format("version = 0", "a"), drop=("_tasks.tasks_acquired_version_positive",)
    ),
    "suspended_task_has_ttimeout": Break(
        sql=T.format("retry_at = 5", "t"), drop=("_tasks.tasks_retry_at_iff_pending",)
    ),
    "task_halted_is_cleared": Break(
        sql=T.format("expires_at = 5", "h"), drop=("_tasks.tasks_lease_iff_acquired",)
    ),
    "suspended_no_callback": Break(sql="delete from durable._callbacks where awaiter_id = 't'"),
    "suspended_with_consumed_callbacks": Break(
        sql="insert into durable._resumes (task_id, awaited_id) values ('t', 'done')"
    ),
    "task_deadline_is_promise_timeout": Break(sql=T.format("deadline = deadline - 1", "p")),
    "task_queue_is_target": Break(sql=T.format("queue = 'h'", "p")),
    "task_head_is_promise_head": Break(
        sql=T.format("execution = (select head from durable._promises where id = 'b')", "p")
    ),
    "fulfilled_task_has_ttimeout": Break(
        sql="insert into durable._resumes (task_id, awaited_id) values ('f', 'done')"
    ),
    # waiters
    "callback_awaiter_no_target": Break(
        sql="insert into durable._callbacks (awaited_id, awaiter_id) values ('x', 'internal')"
    ),
    "promise_awaiter_is_not_self": Break(
        sql="insert into durable._callbacks (awaited_id, awaiter_id) values ('a', 'a')",
        drop=("_callbacks.callbacks_awaiter_is_not_awaited",),
    ),
    "listener_for_settled_promise": Break(
        sql="insert into durable._listeners (awaited_id, address) values ('done', 'poll://any@g')"
    ),
    "promise_obligations_require_external": Break(
        sql="insert into durable._callbacks (awaited_id, awaiter_id) values ('internal', 'a')"
    ),
    "listener_addresses_deliverable": Break(
        sql="insert into durable._listeners (awaited_id, address) values ('x', 'nowhere://x')"
    ),
    "outbox_unblock_names_settled_promise": Break(
        sql="insert into durable._unblocks (promise_id, address, created_at) values ('x', 'poll://any@g', 1)"
    ),
    "outbox_unblock_address_deliverable": Break(
        sql="insert into durable._unblocks (promise_id, address, created_at) values ('done', "
        "'nowhere://x', 1)"
    ),
    "config_retry_positive": Break(
        sql="update durable.settings set value = '0' where name = 'retry_offer_ms'"
    ),
    # heads
    "head_has_promise": Break(
        sql="delete from durable._promises where id = 'e'",
    ),
    "C-2 pending_iff_live": Break(sql=H.format("status = 'completed'", "r"), also=("INV-4 status_is_fold",)),
    "C-3 suspended_iff_blocked": Break(
        sql=T.format("state = 'suspended', pid = null, ttl = null, expires_at = null", "q"),
    ),
    "C-3 acquired_is_not_fresh_blocked": Break(
        sql=T.format("state = 'acquired', pid = 'W', ttl = 5, expires_at = 5", "b")
    ),
    "X-5 wait_is_on_pending_children": Break(sql=H.format("wait_left = 1", "b")),
    "blocked_run_has_its_callbacks": Break(sql="delete from durable._callbacks where awaited_id = 'b.0'"),
    "R2 open_attempts_are_held": Break(
        sql=T.format("state = 'pending', pid = null, ttl = null, expires_at = null, retry_at = 5", "r")
    ),
    "problem_only_while_halted": Break(sql=H.format("problem = '{}'", "r")),
    # folds
    "C-4 next_seq_is_journal_length": Break(sql=H.format("next_seq = next_seq + 1", "r")),
    "INV-4 status_is_fold": Break(sql=H.format("status = 'cancelling'", "r")),
    "X-1 started_once": Break(
        sql=CUT.format("q", "j.type = 'S'"),
        also=("C-4 next_seq_is_journal_length", "INV-4 status_is_fold", "S-1 seq_is_dense"),
    ),
    "S-3 at_most_one_end": Break(
        sql=JOURNAL.format("next_seq", "C", "null", "null", "e")
        + "; "
        + H.format("next_seq = next_seq + 1", "e"),
        also=("S-4 nothing_after_the_end",),
    ),
    "A-1 next_child_follows_journal": Break(
        sql=H.format("next_child = next_child + 1, reserved = reserved || next_child", "q"),
    ),
    "A-1 children_carried_once": Break(
        sql=JOURNAL.format("next_seq", "n", "5", "null", "r")
        + "; "
        + H.format("next_seq = next_seq + 1", "r")
    ),
    "A-1 gaps_are_reserved": Break(sql=H.format("reserved = '{3}'", "q")),
    # journals
    "S-1 seq_is_dense": Break(
        sql=JOURNAL.format("next_seq + 1", "n", "next_child", "null", "r")
        + "; "
        + H.format("next_seq = next_seq + 1, next_child = next_child + 1", "r")
    ),
    "S-4 nothing_after_the_end": Break(
        sql=JOURNAL.format("next_seq", "Q", "null", "null", "e")
        + "; "
        + H.format("next_seq = next_seq + 1", "e"),
        also=("INV-4 status_is_fold",),
    ),
    "journal_row_has_a_head": Break(
        sql="insert into durable._journal (execution, bucket, ts, seq, type) select 999999, "
        "max(bucket), 1, 0, 'S' from durable._buckets"
    ),
    "SE-1..4 attempts_alternate": Break(
        sql=JOURNAL.format("next_seq", "c", "0", "1", "r") + "; " + H.format("next_seq = next_seq + 1", "r")
    ),
    "CF-1 X-2 timer_fired_once_after_scheduled": Break(
        sql=JOURNAL.format("next_seq", "Z", "6", "null", "r")
        + "; "
        + H.format("next_seq = next_seq + 1", "r"),
        also=("C-1 settled_iff_resolved_in_owner",),
    ),
    # children
    "C-1 settled_iff_resolved_in_owner": Break(
        sql=JOURNAL.format("next_seq", "Z", "4", "null", "r")
        + "; "
        + H.format("next_seq = next_seq + 1", "r")
    ),
    "C-5 open_attempt_of_child_run": Break(sql=T.format("attempt_open = false", "r.3")),
    "C-5 open_steps_of_head": Break(sql=H.format("open_steps = '{}', open_attempts = '{}'", "r")),
}


def inhabit(conn: Connection, clock: Clock) -> None:
    """Objects of every kind in every state."""
    for name in ("x", "done", "early"):
        ask(conn, create(name, clock.now_ms + 100 * DAY, external="true"))
    ask(conn, create("internal"))
    ask(conn, create("over", clock.now_ms + 10, external="true"))
    ask(conn, ("select from durable.promise_register_listener('x', 'g')", ()))
    ask(conn, ("select from durable.promise_register_listener('done', 'g')", ()))
    for name in ("t", "a", "h", "f"):
        take(conn, name, clock.now_ms + 100 * DAY)
    ask(conn, create("p", target="g"))
    ask(conn, park("t", "x"))
    ask(conn, ("select durable.task_halt('h')", ()))
    ask(conn, settle("early"))
    clock.advance(10)
    for name in ("done", "f"):
        ask(conn, settle(name))
    tick(conn)
    for name, worker in (("r", "W"), ("b", "W"), ("q", "W"), ("e", "W")):
        held = begin_run(conn, name, worker)
        if name == "r":
            facts = [done(0), begun(1)]
            acts = [promise(2), run(3, queue="kids"), timer(4, DAY), captured(5), timer(6, 1)]
            take_turn(conn, "W", bundle(held, facts=facts, acts=acts))
            claim(conn, "K", "kids")
        elif name == "b":
            answer = take_turn(conn, "W", bundle(held, acts=[promise(0), promise(1)]))
            end = suspend(0, 1, kind="all")
            take_turn(conn, "W", bundle(held, end=end, seen=answer.next_of(held)))
        elif name == "q":
            take_turn(conn, "W", bundle(held, facts=[done(0), broken(2, retry_in=5)], acts=[captured(4)]))
            ask(conn, ("select from durable.promise_register_callback('x', 'q')", ()))
        else:
            take_turn(conn, "W", bundle(held, facts=[done(0)], end=complete()))
    clock.advance(1)
    tick(conn)


def laws_of(conn: Connection) -> set[str]:
    """Names that durable.check() reports."""
    return {law for (law,) in conn.execute("select law from durable.check()").fetchall()}


def test_a_healthy_database_is_lawful(conn: Connection, clock: Clock) -> None:
    """Objects of every kind, made through the doors, break no law."""
    inhabit(conn, clock)
    assert laws_of(conn) == set()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.unlawful
def test_a_broken_law_is_reported(conn: Connection, clock: Clock, law: str) -> None:
    """The law is reported by its name, and nothing is that the same hand did not break."""
    inhabit(conn, clock)
    hand = LAWS[law]
    for constraint in hand.drop:
        table, name = constraint.split(".")
        conn.execute(f"alter table durable.{table} drop constraint {name}".encode())
    for statement in hand.sql.split("; "):
        conn.execute(statement.encode())
    assert laws_of(conn) == {law, *hand.also}


def test_no_law_is_missed() -> None:
    """Every law of the source has its hand here, and no hand is for a law that is gone."""
    text = SOURCE.read_text(encoding="utf-8")
    found = re.findall(r"^\s+\('([^']+)', ", text, re.M) + re.findall(r"^\s+\('([^']+)',$", text, re.M)
    found += re.findall(r"^\s*select '([^']+)', ", text, re.M)
    assert set(found) == set(LAWS)


def test_a_law_names_the_object(conn: Connection, clock: Clock) -> None:
    """A row tells which object and what was seen of it."""
    inhabit(conn, clock)
    with conn.transaction(force_rollback=True):
        conn.execute("delete from durable._tasks where id = 'p'")
        ((law, id_, detail),) = conn.execute("select * from durable.check()").fetchall()
        assert (law, id_) == ("orphan_invokes", "p")
        assert "pending" in detail
    assert ask(conn, acquire("p"))[1] == "acquired"
