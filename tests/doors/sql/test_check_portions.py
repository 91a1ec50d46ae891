"""Law: durable.check() looks at everything, in portions that fit into memory; durable.check(id) and
durable.check(since) look at what they are asked for and find there what the whole check finds.

The counters of the server and executed plans are the witness.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.doors.sql.test_check_calls import LAWS as CALLS
from tests.doors.sql.test_check_journal import LAWS as JOURNALS
from tests.support.clock import Clock
from tests.support.hands import P, let_go
from tests.support.inhabitants import inhabit, inhabit_journals
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    captured,
    create,
    promise,
    refusal,
    report,
    run,
    take_turn,
)

# every name of the catalogue (journal.md 6 and the audits of 8)
CATALOGUE = (
    [f"S-{n}" for n in range(1, 6)]
    + [f"SE-{n}" for n in range(1, 6)]
    + [f"CF-{n}" for n in range(1, 5)]
    + [f"JS-{n}" for n in range(1, 8)]
    + [f"INV-{n}" for n in range(1, 7)]
    + ["A-1", *(f"X-{n}" for n in range(1, 7)), *(f"C-{n}" for n in range(1, 7))]
)


# runs that all did the same: a step, a join set, a timer, a signal; every second one waits, the others ended
FILL = """
create temporary table lives as
select 1000000 + n as execution, 'r' || n as id, n %% 2 = 0 as asleep, b.bucket, 9007199254740991 as never
from generate_series(1, %(count)s) n, (select min(bucket) as bucket from durable._buckets) b;
insert into durable._executions (execution, id, bucket, workflow, workflow_version, next_seq, next_child,
  status, waiting_on, wait_kind, wait_left) overriding system value
select execution, id, bucket, 'w', '1', 20, 6, 'completed', null::int[], null, null
from lives where not asleep
union all select execution, id, bucket, 'w', '1', 16, 6, 'blocked', '{1}', 'single', 1
from lives where asleep;
insert into durable._promises (id, timeout_at, created_at, state, settled_at, head, external, target,
  task_version, param_headers)
select id, never, 1, 'resolved', 2, execution, true, 'poll://any@q', 1, '{"codec": "json"}'::jsonb
from lives where not asleep
union all select id, never, 1, 'pending', null, execution, true, 'poll://any@q', null, '{"codec": "json"}'
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
select execution, bucket, least(seq + 1, 2), seq, type::durable.row_type, child, attempt, name, data
from lives
cross join (values
  (0, 'execution_started', null, null, null, null),
  (1, 'step_completed', 0, 1, 'a', '1'),
  (4, 'promise_registered', 1, null, 'x', null),
  (5, 'join_set_created', 2, null, null, null),
  (6, 'step_started', 3, 1, 'b', '{"retry": {"max_attempts": 2}}'),
  (8, 'join_set_submitted', 3, 2, null, null),
  (9, 'open_step_completed', 3, 1, null, '1'),
  (10, 'join_set_awaited', 3, 2, null, null),
  (11, 'timer_scheduled', 4, null, null, '{"fire_at": 9007199254740991, "duration": 9007199254740991}'),
  (12, 'timer_fired', 4, null, null, null),
  (13, 'signal_delivered', null, 1, 'go', null),
  (14, 'signal_received', 5, 1, 'go', null),
  (15, 'execution_awaiting', null, null, null, '{"on": [1], "kind": "single"}'),
  (16, 'child_settled', 1, 1, null, null),
  (18, 'execution_resumed', null, null, null, null),
  (19, 'execution_completed', null, null, null, null))
  as x (seq, type, child, attempt, name, data) where seq < 16 or not asleep
"""
# rows that the nodes of a plan may handle together, for each row of the portion
BOUND = 40
GROWING = "relname ~ '^_(promises|callbacks|executions|journal.*|inboxes|signals|join_sets|members)$'"
COUNTERS = f"""
select coalesce(sum(seq_tup_read), 0), coalesce(sum(idx_tup_fetch), 0)
from pg_stat_xact_user_tables where schemaname = 'durable' and {GROWING}
"""
TEMP = "select temp_bytes from pg_stat_database where datname = current_database()"


def test_the_catalogue_is_complete() -> None:
    """Every invariant and audit of the catalogue has a query that bears its name."""
    named = re.findall(r"\b(?:SE|CF|JS|INV|S|A|X|C)-\d\b", " ".join([*JOURNALS, *CALLS]))
    assert set(named) == set(CATALOGUE)


def fill(conn: Connection, count: int) -> None:
    """So many runs that have long been there."""
    # before anything is here that could run: the test's database is a copy of a template
    conn.execute("select durable._adopt_idle_copy()")
    for statement in (*FILL.split(";\n"), "select setval('durable._executions_execution_seq', 2000000)"):
        conn.execute((statement % {"count": count}).encode())


def handled(plan: dict[str, Any]) -> float:
    """Rows that the nodes of a plan looked at, as executed."""
    seen = (
        plan["Actual Rows"]
        + plan.get("Rows Removed by Filter", 0)
        + plan.get("Rows Removed by Join Filter", 0)
    )
    return float(seen * plan["Actual Loops"]) + sum(handled(child) for child in plan.get("Plans", ()))


def laws_of_portions(conn: Connection) -> dict[str, str]:
    """Every function that states laws, with its parameters."""
    bodies = conn.execute(
        "select prosrc from pg_proc where pronamespace = 'durable'::regnamespace"
        " and proname in ('_check_runs', '_check_ids')"
    ).fetchall()
    return {
        query: re.sub(r"\bp_", "v_", given)
        for (body,) in bodies
        for query, given in re.findall(r"durable\.(_check_\w+)\(([^)]*)\)", body)
    }


@pytest.mark.parametrize(
    "analyzed",
    [pytest.param(False, id="fresh"), pytest.param(True, id="analyzed", marks=pytest.mark.full)],
)
@pytest.mark.session("a temporary table")
def test_a_law_is_no_worse_than_linear(dsn: str, analyzed: bool) -> None:
    """Each law handles rows in proportion to its portion, with statistics and without."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        fill(conn, 2000)
        if analyzed:
            conn.execute("analyze")
        for (setting,) in conn.execute(
            "select unnest(proconfig) from pg_proc where oid = 'durable.check_portion(jsonb)'::regprocedure"
        ).fetchall():
            name, value = setting.split("=", 1)
            conn.execute("select set_config(%s, %s, false)", (name, value.strip('"')))
        conn.execute(
            "create temporary table portion as"
            " select r.v_runs, durable._rows_within(r.v_runs) as v_rows, array['r2'] as v_from,"
            " array['r4'] as v_to"
            " from (select '{[1000001,1000601)}'::int8multirange as v_runs) r"
        )
        (rows,) = ask(conn, ("select cardinality(v_rows) from portion", ()))
        queries = laws_of_portions(conn)
        assert rows > 8000 and len(queries) > 20
        for query, given in queries.items():
            call = f"select x.* from portion cross join lateral durable.{query}({given}) x"
            (plan,) = ask(conn, (f"explain (analyze, timing off, format json) {call}", ()))
            assert plan[0]["Plan"]["Actual Rows"] == 0, query
            assert handled(plan[0]["Plan"]) <= BOUND * rows, query


@contextmanager
def reading(conn: Connection) -> Iterator[list[int]]:
    """Adds to a list what happens within one transaction: rows of growing tables read from end to end, and
    those fetched through indexes."""
    read: list[int] = []
    with conn.transaction():
        yield read
        read += [int(count) for count in ask(conn, (COUNTERS, ()))]


ALL = "select law, id from durable.check()"
OF_ID = "select law, id from durable.check(%s)"
SINCE = "select law, id from durable.check(since => '1 hour')"


@pytest.mark.session("counters of the session")
def test_a_check_reads_what_it_is_asked_for(dsn: str, clock: Clock) -> None:
    """Among 3,000 runs a check of one of them, ended or asleep, reads a hundred rows. One of what began in
    the last hour reads that, and two thousand heads with their first rows, to see that nothing older is
    younger. The whole check sorts nothing on disk."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        fill(conn, 3000)
        for name in ("a", "b"):
            take_turn(conn, "W", report(begin_run(conn, name), commands=[promise(0), captured(1)]))
        for id_ in ("r501", "r502"):
            with reading(conn) as read:
                assert conn.execute(OF_ID, (id_,)).fetchall() == []
            assert read[0] == 0 and 20 < read[1] < 200, id_
        with reading(conn) as read:
            assert conn.execute(SINCE).fetchall() == []
        # each of the 1,500 that sleep is asked for its last row
        assert read[0] == 0 and 4000 + 3000 < read[1] < 4000 + 3000 + 500
        temp = ask(conn, (TEMP, ()))
        assert conn.execute(ALL).fetchall() == []
        conn.execute("select pg_stat_force_next_flush()")
        assert ask(conn, (TEMP, ())) == temp


LOST = (
    "update durable._promises set task_version = null where id = 'r1'; "
    "update durable._promises set external = false where id = 'r2499'; "
    "insert into durable._journal (execution, bucket, ts, seq, type)"
    " select 9000000, min(bucket), 1, 0, 'execution_started' from durable._buckets; "
    "insert into durable._journal (execution, bucket, ts, seq, type)"
    " select 5, min(bucket), 1, 0, 'execution_started' from durable._buckets; "
    "insert into durable._tasks (id, deadline, retry_at, queue) values ('zzz', 5, 5, 'g'); "
    "insert into durable._tasks (id, deadline, retry_at, queue) values ('a', 5, 5, 'g'); "
    "update durable._executions set next_seq = next_seq + 1 where id = 'r1250'; "
    "update durable._executions set next_seq = next_seq + 1 where id = 'r2500'"
)


@pytest.mark.unlawful
@pytest.mark.session("a temporary table")
def test_portions_are_everything(dsn: str) -> None:
    """What is broken in the first portion, in the last and between, and what belongs to nobody before,
    between and behind all that there is, is found by one portion; portions have all of it once."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        fill(conn, 2500)
        for constraint in (
            "promises_task_version_iff_targeted_and_settled",
            "promises_targeted_and_timers_are_external",
        ):
            let_go(conn, f"_promises.{constraint}")
        for statement in LOST.split("; "):
            conn.execute(statement.encode())
        found: list[tuple[str, str]] = []
        runs, promises, count, after = 0, 0, 0, None
        while count == 0 or after is not None:
            query = "select broken, runs, promises, more::text from durable.check_portion(%s::jsonb)"
            broken, some, others, after = ask(conn, (query, (after,)))
            found += [
                (law, id_)
                for law, id_, _ in conn.execute("select * from unnest(%s::durable.check_record[])", (broken,))
            ]
            runs, promises, count = runs + some, promises + others, count + 1
        assert (runs, promises) == (2500, 7500) and count > 6
        assert sorted(found) == sorted(conn.execute(ALL).fetchall())
        assert {id_ for _, id_ in found} == {"r1", "r2499", "9000000", "5", "zzz", "a", "r1250", "r2500"}


@pytest.mark.unlawful
def test_one_run_is_checked_with_what_lies_below(conn: Connection, clock: Clock) -> None:
    """A broken law of the run, of its children and generations is found by its id; others, and what its
    parent's journal says, are not."""
    inhabit(conn, clock)
    inhabit_journals(conn)
    for statement in (
        P.format("external = false", "early"),
        "update durable._tasks set attempt_open = false where id = 'r.3'",
        "update durable._executions set cancel_seq = 0 where id in ('r.3', 'g', 'b')",
        "update durable._promises set tags = '{\"resonate:delay\": \"5\"}' where id = 'r.2'",
    ):
        conn.execute(statement.encode())
    parent, request = ("C-5 open_attempt_of_child_run", "r.3"), "cancel_seq_is_the_request"
    delay = ("P22 promise_delay_needs_a_target", "r.2")
    for id_, laws in {
        "r": {parent, (request, "r.3"), delay},
        "r.3": {(request, "r.3")},
        "r.2": {delay},
        "g": {(request, "g")},
        "q": set(),
        "early": {("promise_external_agrees_with_tags", "early")},
    }.items():
        assert set(conn.execute(OF_ID, (id_,)).fetchall()) == laws, id_
    generations = conn.execute("select count(*) from durable.check('g')").fetchone()
    assert generations == (2,)


@pytest.mark.unlawful
def test_changes_since_the_last_check_are_checked(conn: Connection, clock: Clock) -> None:
    """Runs that began since and what lies below them, live runs whose journal has grown, and promises that
    were made since; not a run or promise that stood still, nor one that ended since but began before."""
    held = {name: begin_run(conn, name) for name in ("still", "grown", "ended")}
    ask(conn, create("old", external="true"))
    clock.advance(7_200_000)
    take_turn(conn, "W", report(held["grown"], commands=[captured(0)]))
    ask(conn, ("select durable._settle_promise('ended', 'resolved', '1', null)", ()))
    take_turn(conn, "W", report(begin_run(conn, "young"), commands=[run(0, queue="kids")]))
    ask(conn, create("new", external="true"))
    conn.execute("update durable._executions set next_seq = next_seq + 1")
    conn.execute("update durable._promises set external = false where id in ('old', 'new')")
    ids = {id_ for _, id_ in conn.execute(SINCE).fetchall()}
    assert ids == {"grown", "young", "young.0", "new"}
    assert {id_ for _, id_ in conn.execute(ALL).fetchall()} == ids | {"still", "ended", "old"}


def test_invalid_questions_to_the_check(conn: Connection) -> None:
    """One question at a time, about what there is."""
    assert refusal(conn, ("select durable.check('nobody')", ())) == "WF001"
    assert refusal(conn, ("select durable.check('a', '1 hour')", ())) == "WF004"
