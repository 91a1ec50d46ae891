"""Law: durable.check() finds every violation of the journal's laws, each of which has a hand here that
breaks it; it reads nothing again for each row, and the folds that it demands are those that Python makes.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.folds import Line, fold, write_rows
from tests.support.hands import Break, H, T, laws_in, laws_of, lay, reported
from tests.support.inhabitants import inhabit, inhabit_journals
from tests.support.verbs import Connection, ask, begin_run

OF_RUN = "durable._executions h where h.execution = x.execution and h.id = '{}' and {}"
J = f"update durable._journal x set {{}} from {OF_RUN}"
CUT = f"delete from durable._journal x using {OF_RUN}"
INBOX = f"update durable._inboxes x set {{}} from {OF_RUN}"
# the later of two generations
NEW = "update durable._executions h set {} where h.id = 'g' and h.previous is not null"
ADOPTED = "awaiter_id = 'ad' and child = 0"
FITS = "row_fits_the_status_before_it"
FUSED = "fused_rows_follow_each_other"
X3 = "X-3 attempts_alternate"
ANY = '{"on": [0], "kind": "any"}'
POLICY = '{"input": [], "retry": {"max_attempts": 2}}'
FAILED = '{"error": {}, "retry_at": 1, "interrupted": false}'
LOST = '{"error": {}, "retry_at": 1, "interrupted": true}'
OPEN: Line = ("l", 0, 1)
SET: tuple[Line, ...] = (OPEN, ("l", 1, 1), ("j", 2), ("u", 0, 2), ("u", 1, 2), ("c", 0, 1))

LAWS: dict[str, Break] = {
    # heads
    "head_has_promise": Break("delete from durable._promises where id = 'e'"),
    "C-2 pending_iff_live": Break(H.format("status = 'completed'", "r"), also="INV-4 status_is_fold"),
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
    "INV-4 status_is_fold": Break(H.format("status = 'cancelling', cancel_until = 1", "r")),
    "X-1 started_once": Break(rows=(("S",),), drop="_journal.journal_starts_with_started", also=FITS),
    "S-2 INV-1 starts_with_started": Break(
        f"{CUT.format('m', 'x.seq = 0')}; {J.format('seq = 0', 'm', 'x.seq = 1')}; "
        + H.format("next_seq = 1", "m"),
        rows=(("n", 0),),
        drop="_journal.journal_starts_with_started",
        also="INV-4 status_is_fold",
    ),
    "S-3 at_most_one_end": Break(rows=(("C",),), run="e", also=f"S-4 INV-3 nothing_after_the_end, {FITS}"),
    "A-1 next_child_follows_journal": Break(
        H.format("next_child = next_child + 1, reserved = reserved || next_child", "q")
    ),
    "A-1 children_carried_once": Break(rows=(("n", 0), ("n", 0))),
    "A-1 gaps_are_reserved": Break(H.format("reserved = '{3}'", "q")),
    "cancel_seq_is_the_request": Break(H.format("cancel_seq = cancel_seq - 1", "c")),
    # rows
    "S-1 INV-2 seq_is_dense": Break(J.format("seq = 2", "m", "x.seq = 1"), rows=(("n", 0),), also=FUSED),
    FUSED: Break(
        f"{J.format('seq = 3', 'm', 'x.seq = 4')}; {J.format('seq = 6', 'm', 'x.seq = 5')}; "
        + J.format("seq = 5", "m", "x.seq = 6"),
        rows=(("L", 0, 1), ("n", 1), ("n", 2)),
    ),
    "S-4 INV-3 nothing_after_the_end": Break(rows=(("g", None, 1, "go"),), run="e", also=FITS),
    "S-5 cancelled_was_requested": Break(
        "select durable.promise_settle('m', 'rejected_canceled'); "
        f"{CUT.format('m', 'x.seq = 1')}; {J.format('seq = 1', 'm', 'x.seq = 2')}; "
        + H.format("next_seq = 2", "m"),
        also=FITS,
    ),
    "X-4 resumed_only_while_blocked": Break(rows=(("W",),), also=FITS),
    FITS: Break(rows=(("Q",), ("o", 0))),
    "journal_row_has_a_head": Break(
        "insert into durable._journal (execution, bucket, ts, seq, type)"
        " select 999999, max(bucket), 1, 0, 'S' from durable._buckets"
    ),
    # invocations
    "SE-1 INV-5 started_was_scheduled": Break(rows=(("s", 0, 1),), also=X3),
    "SE-2 completed_was_started": Break(rows=(("o", 0), ("c", 0, 1)), also=X3),
    "SE-3 retried_attempt_was_started": Break(rows=(OPEN, ("r", 0, 2, None, LOST)), also=X3),
    "SE-4 nothing_after_the_completion": Break(rows=(("L", 0, 1), ("s", 0, 2)), also=X3),
    "SE-5 retries_within_the_policy": Break(
        rows=(
            ("l", 0, 1, "step", POLICY),
            ("r", 0, 1, None, LOST),
            ("t", 0, 2, None, FAILED),
            ("t", 0, 3, None, FAILED),
        )
    ),
    X3: Break(rows=(("o", 0), ("s", 0, 2))),
    # timers
    "CF-1 fired_was_scheduled": Break(rows=(("Z", 0),)),
    "X-2 timer_fired_once": Break(rows=(("T", 0), ("Z", 0), ("Z", 0))),
    # signals
    "CF-2 received_was_delivered": Break(
        rows=(("v", 0, 1, "go"),), drop="_inboxes.inboxes_received_was_delivered"
    ),
    "CF-3 delivery_received_once": Break(
        rows=(("g", None, 1, "go"), ("g", None, 2, "go"), ("v", 0, 1, "go"), ("v", 1, 1, "go")),
        also="receipts_are_in_order",
    ),
    "receipts_are_in_order": Break(
        rows=(("g", None, 1, "go"), ("g", None, 2, "go"), ("v", 0, 2, "go")),
    ),
    "X-6 deliveries_are_dense": Break(rows=(("g", None, 2, "go"),)),
    "CF-4 signal_wait_is_on_its_receipt": Break(
        rows=(("A", None, None, None, '{"on": [0, 1], "kind": "signal", "name": "go"}'), ("W",))
    ),
    "X-5 wait_names_each_child_once": Break(
        rows=(("A", None, None, None, '{"on": [0, 0], "kind": "any"}'), ("W",))
    ),
    "inbox_is_fold": Break(INBOX.format("delivered = delivered + 1", "s", "x.name = 'go'")),
    "signal_is_its_delivery": Break("delete from durable._signals where delivery = 2"),
    "receiver_is_a_number_to_come": Break(INBOX.format("receiver = 0", "s", "x.name = 'later'")),
    "receiver_waits_for_one_signal": Break(
        "insert into durable._inboxes (execution, name, receiver)"
        " select execution, 'too', receiver from durable._inboxes where name = 'later'"
    ),
    # join sets
    "JS-1 submitted_to_what_was_created": Break(rows=(OPEN, ("u", 0, 1))),
    "member_was_scheduled_before": Break(rows=(("j", 0), ("u", 1, 0), ("L", 1, 1))),
    "JS-2 nothing_submitted_once_taken_from": Break(rows=(*SET, ("a", 0, 2), ("l", 3, 1), ("u", 3, 2))),
    "JS-3 taken_was_submitted": Break(rows=(*SET, ("L", 3, 1), ("a", 3, 2))),
    "JS-4 taken_was_completed": Break(rows=(*SET, ("a", 1, 2))),
    "JS-5 taken_once": Break(rows=(*SET, ("a", 0, 2), ("a", 0, 2))),
    "JS-6 not_more_taken_than_submitted": Break(
        rows=(("j", 0), ("L", 1, 1), ("a", 1, 0)), also="JS-3 taken_was_submitted"
    ),
    "JS-7 member_of_one_set_once": Break(rows=(*SET, ("j", 3), ("u", 1, 3))),
    "R10 taken_result_is_that_of_its_completion": Break(rows=(*SET, ("a", 0, 2, None, "7"))),
    "join_set_is_fold": Break("update durable._join_sets set closed = not closed where closed"),
    "member_is_fold": Break("update durable._members set taken = false where taken"),
    # children
    "C-1 settled_iff_resolved_in_owner": Break(rows=(("Z", 4),), run="r"),
    "C-5 open_attempt_of_child_run": Break(T.format("attempt_open = false", "r.3")),
    "C-5 open_steps_of_head": Break(H.format("open_attempts = '{2}'", "r")),
    "C-6 result_is_that_of_the_promise": Break(J.format("data = '1'", "ad", "x.type = 'D'")),
    "R13 adopted_promise_has_its_row": Break(
        "insert into durable._callbacks (awaited_id, awaiter_id, child) values ('x', 'ad', 7)"
    ),
    "R13 adopted_promise_is_awaited": Break(f"delete from durable._callbacks where {ADOPTED}"),
    # generations
    "generation_follows_one_that_ended": Break(J.format("data = null", "g", "x.type = 'C'")),
    "generation_numbers_go_on": Break(
        f"{CUT.format('g', 'h.previous is not null and x.seq > 1')}; "
        + NEW.format("first_child = 1, next_child = 1, reserved = '{}', next_seq = 2")
    ),
    "generation_has_one_successor": Break(
        "update durable._executions set previous = (select execution from durable._executions"
        " where id = 'g' and previous is null) where id = 'b'",
        also="generation_follows_one_that_ended, generation_numbers_go_on",
    ),
    "INV-6 child_has_one_owner": Break(rows=(("n", 1),), run="g", also="A-1 gaps_are_reserved"),
}

# every name of the catalogue (journal.md 6 and the audits of 8)
CATALOGUE = (
    [f"S-{n}" for n in range(1, 6)]
    + [f"SE-{n}" for n in range(1, 6)]
    + [f"CF-{n}" for n in range(1, 5)]
    + [f"JS-{n}" for n in range(1, 8)]
    + [f"INV-{n}" for n in range(1, 7)]
    + ["A-1", *(f"X-{n}" for n in range(1, 7)), *(f"C-{n}" for n in range(1, 7))]
)


def test_a_healthy_database_is_lawful(conn: Connection, clock: Clock) -> None:
    """Runs of every kind, made through the doors, break no law."""
    inhabit(conn, clock)
    inhabit_journals(conn)
    assert laws_of(conn) == set()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.unlawful
def test_a_broken_law_is_reported(conn: Connection, clock: Clock, law: str) -> None:
    """The law is reported by its name, and nothing is that the same hand did not break."""
    inhabit(conn, clock)
    inhabit_journals(conn)
    lay(conn, LAWS[law])
    assert laws_of(conn) == reported(LAWS[law], law)


def test_no_law_is_missed() -> None:
    """Every law of the source has its hand here, and no hand is for a law that is gone."""
    assert laws_in("93_check_journal") == set(LAWS)


def test_the_catalogue_is_complete() -> None:
    """Every invariant and audit of the catalogue has a query that bears its name."""
    named = re.findall(r"\b(?:SE|CF|JS|INV|S|A|X|C)-\d\b", " ".join(LAWS))
    assert set(named) == set(CATALOGUE)


@pytest.mark.parametrize(
    "rows",
    [
        (("l", 0, 1, "step", POLICY), ("r", 0, 1, None, LOST), ("t", 0, 2, None, FAILED), ("k", 0, 3)),
        (
            ("l", 0, 1, "step", '{"input": []}'),
            *(("r" if n == 1 else "t", 0, n, None, FAILED) for n in range(1, 9)),
        ),
        (("f", 0, 1, "step", FAILED), ("t", 0, 2, None, FAILED)),
        (("o", 0, None, "step", '{"kind": "Local", "retry_policy": {"max_attempts": 3}}'), ("s", 0, 1)),
        (*SET, ("a", 0, 2), ("c", 1, 1), ("a", 1, 2)),
        (("A", None, None, None, ANY), ("W",), ("Q",), ("g", None, 1, "go"), ("L", 0, 1)),
    ],
    ids=["interruptions_do_not_count", "no_policy", "none_recorded", "first_attempt", "a_set", "clean_up"],
)
def test_what_the_laws_admit(conn: Connection, rows: tuple[Line, ...]) -> None:
    """Rows that keep the laws are not reported."""
    begin_run(conn, "m")
    write_rows(conn, "m", rows)
    assert laws_of(conn) == set()


def test_heads_are_the_folds_of_python(conn: Connection, clock: Clock) -> None:
    """What the schema keeps of each journal is what Python makes of its rows."""
    inhabit(conn, clock)
    inhabit_journals(conn)
    columns = "next_seq, status, next_child, reserved, open_steps, open_attempts"
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
            list(found.open_steps.values()),
        ], execution
        inboxes = conn.execute(
            "select name, delivered, received from durable._inboxes where execution = %s and delivered > 0",
            (execution,),
        ).fetchall()
        assert {name: (delivered, received) for name, delivered, received in inboxes} == {
            name: (len(numbers), found.receipts.get(name, 0)) for name, numbers in found.signals.items()
        }


# runs that all did the same: a step, a join set, a timer, a signal; every second one waits, the others ended
FILL = """
create temporary table lives as
select 1000000 + n as execution, 'r' || n as id, n % 2 = 0 as asleep, b.bucket, 9007199254740991 as never
from generate_series(1, 10000) n, (select min(bucket) as bucket from durable._buckets) b;
insert into durable._executions (execution, id, bucket, workflow, workflow_version, next_seq, next_child,
  status, waiting_on, wait_kind, wait_left) overriding system value
select execution, id, bucket, 'w', '1', 20, 6, 'completed', null::int[], null, null
from lives where not asleep
union all select execution, id, bucket, 'w', '1', 16, 6, 'blocked', '{1}', 'single', 1
from lives where asleep;
insert into durable._promises (id, timeout_at, created_at, state, settled_at, head, external, target,
  task_version)
select id, never, 1, 'resolved', 2, execution, true, 'poll://any@q', 1 from lives where not asleep
union all select id, never, 1, 'pending', null, execution, true, 'poll://any@q', null
from lives where asleep;
insert into durable._promises (id, timeout_at, created_at, state, settled_at, execution, child, external,
  timer)
select id || '.4', never, 1, 'resolved', 2, execution, 4, true, true from lives
union all select id || '.1', never, 1, 'resolved', 2, execution, 1, true, false from lives where not asleep
union all select id || '.1', never, 1, 'pending', null, execution, 1, true, false from lives where asleep;
insert into durable._callbacks (awaited_id, awaiter_id) select id || '.1', id from lives where asleep;
insert into durable._tasks (id, deadline, execution, queue, workflow, workflow_version, state, version)
select id, never, execution, 'q', 'w', '1', 'suspended', 1 from lives where asleep;
insert into durable._inboxes (execution, name, delivered, received) select execution, 'go', 1, 1 from lives;
insert into durable._signals (execution, name, delivery) select execution, 'go', 1 from lives;
insert into durable._join_sets (execution, child, closed) select execution, 2, true from lives;
insert into durable._members (execution, child, join_set, taken) select execution, 3, 2, true from lives;
insert into durable._journal (execution, bucket, ts, seq, type, child, attempt, name, data)
select execution, bucket, 1, seq, type::"char", child, attempt, name, data from lives
cross join (values (0, 'S', null, null, null, null), (1, 'L', 0, 1, 'a', '1'), (4, 'X', 1, null, 'x', null),
  (5, 'j', 2, null, null, null), (6, 'l', 3, 1, 'b', '{"retry": {"max_attempts": 2}}'),
  (8, 'u', 3, 2, null, null), (9, 'c', 3, 1, null, '1'), (10, 'a', 3, 2, null, null),
  (11, 'T', 4, null, null, '{}'), (12, 'Z', 4, null, null, null), (13, 'g', null, 1, 'go', null),
  (14, 'v', 5, 1, 'go', null), (15, 'A', null, null, null, '{"on": [1], "kind": "single"}'),
  (16, 'D', 1, 1, null, null), (18, 'W', null, null, null, null), (19, 'C', null, null, null, null))
  as x (seq, type, child, attempt, name, data) where seq < 16 or not asleep
"""
# rows that the nodes of a plan may handle together, for each row of the tables
BOUND = 40


def handled(plan: dict[str, Any]) -> float:
    """Rows that the nodes of a plan looked at, as executed."""
    seen = (
        plan["Actual Rows"]
        + plan.get("Rows Removed by Filter", 0)
        + plan.get("Rows Removed by Join Filter", 0)
    )
    return float(seen * plan["Actual Loops"]) + sum(handled(child) for child in plan.get("Plans", ()))


@pytest.mark.parametrize(
    "analyzed",
    [pytest.param(False, id="fresh"), pytest.param(True, id="analyzed", marks=pytest.mark.full)],
)
@pytest.mark.session("a temporary table")
def test_a_check_is_no_worse_than_linear(dsn: str, analyzed: bool) -> None:
    """With 10,000 runs each query handles rows in proportion to what the tables hold, with statistics and
    without; and the database is found healthy."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in FILL.split(";\n"):
            conn.execute(statement.encode())
        if analyzed:
            conn.execute("analyze")
        (rows,) = ask(conn, ("select count(*) from durable._journal", ()))
        (body,) = ask(conn, ("select prosrc from pg_proc where oid = 'durable.check()'::regprocedure", ()))
        queries = re.findall(r"durable\.(_check_\w+)\(\)", body)
        assert len(queries) > 20
        for query in queries:
            (plan,) = ask(
                conn, (f"explain (analyze, timing off, format json) select * from durable.{query}()", ())
            )
            assert plan[0]["Plan"]["Actual Rows"] == 0, query
            assert handled(plan[0]["Plan"]) <= BOUND * rows, query
