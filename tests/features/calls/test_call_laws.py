"""Law: durable.check() finds every violation of the laws of calls: each has a hand in the tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.doors.sql.test_check import LAWS as TASKS
from tests.doors.sql.test_check_calls import LAWS as JOURNALS
from tests.features.calls.scene import MAKE_PROMISE, Connection, Scene, refusal
from tests.features.calls.test_object_laws import LAWS as OBJECTS
from tests.support.clock import Clock
from tests.support.hands import FAR, LOGIC, Break, laws_in, laws_of, lay, reported
from tests.support.laboratory import ClockInside, transaction_of

A = "update durable._call_attempts set {} where {}"
COMPLETED = "exec_id is not null"
LIVE = "ended_at is null"
GIVEN_UP = "error is not null"
OF_LIVE = "value_key in (select a.value_key from durable._call_attempts a where a.ended_at is null)"
PIN = "update durable._pins set {}"
CLAIM = "update durable._claims set {} where {}"

LAWS: dict[str, Break] = {
    "I2 attempt_exec_is_of_its_outcome": Break(
        A.format("outcome_dag = sha256('x')", COMPLETED), also="attempt_outcome_is_in_its_promise"
    ),
    "attempt_outcome_is_in_its_promise": Break(
        "update durable._promises p set value_data = '{}' from durable._call_attempts a"
        f" where p.id = durable._call_promise(a.execution_key) and a.exec_id is not null and {COMPLETED}"
    ),
    "I3 attempt_records_nothing_while_live": Break(
        A.format("outcome_dag = sha256('x')", LIVE), "_call_attempts.call_attempts_outcome_iff_polled"
    ),
    "I4 attempt_agrees_with_its_promise": Break(
        A.format("ended_at = created_at, error = '{}'", LIVE),
    ),
    "I10 execution_key_is_derived": Break(
        A.format("execution_key = sha256('x')", "step_id is not null")
        + "; update durable._call_waiters w set execution_key = sha256('x') where forced and scope = 'u'"
        + "; update durable._call_steps set execution_key = sha256('x')",
        also="I14 live_promise_has_its_attempt",
    ),
    "I11 attempt_waits_for_time_only": Break(
        "update durable._tasks set state = 'suspended', retry_at = null where id like 'call:%'",
        also="suspended_no_callback, consistent_suspended_task_holds_rung",
    ),
    "I12 attempt_knows_where_to_resume": Break(
        A.format("phase = 'asleep', outcome_dag = sha256('x')", LIVE),
        "_call_attempts.call_attempts_phase_is_known",
    ),
    "I13 attempt_within_budget": Break(
        A.format("failures = budget + 2", LIVE), "_call_attempts.call_attempts_within_budget"
    ),
    "I18 exec_status_agrees_with_the_outcome": Break(
        A.format("phase = 'integrate_error'", f"{COMPLETED} and phase = 'integrate_ok'")
    ),
    "attempt_node_is_here": Break(A.format("node_id = sha256('x')", f"{LIVE} and step_id is not null")),
    "attempt_step_is_recorded": Break(A.format("step_id = 'x'", "step_id is not null")),
    "call_function_is_that_of_its_key": Break(
        f"update durable._calls c set function = 'dml+exec://fake/g' where {OF_LIVE}"
    ),
    "waiter_node_is_here": Break(
        "update durable._call_waiters set node_id = sha256('x') where execution_key in"
        f" (select execution_key from durable._call_attempts where {LIVE})"
    ),
    "poll_is_of_an_attempt": Break(
        "update durable._call_polls set execution_key = sha256('x') where class = 'failed'"
    ),
    "polls_are_counted": Break(A.format("polls = polls + 1", COMPLETED)),
    "poll_ended_in_the_past": Break("update durable._call_polls set started_at = ended_at + 1"),
    "attempt_belongs_to_a_call": Break(f"delete from durable._calls c where {OF_LIVE}"),
    "attempt_deadline_is_that_of_its_promise": Break(A.format("deadline = 1", LIVE)),
    "attempt_is_in_the_queue_of_its_adapter": Break(A.format("adapter = 'other'", LIVE)),
    "attempt_has_an_error_iff_given_up": Break(
        A.format("error = null", GIVEN_UP), "_call_attempts.call_attempts_error_iff_given_up"
    ),
    "attempt_times_are_past": Break(
        A.format("ended_at = ended_at + 90000000", COMPLETED), also="attempt_times_are_those_of_its_promise"
    ),
    "attempt_times_are_those_of_its_promise": Break(A.format("ended_at = ended_at + 60000", COMPLETED)),
    "I9 generations_have_no_gap": Break(
        f"update durable._calls c set generation = generation + 1 where {OF_LIVE}"
    ),
    "I10 value_key_is_derived": Break(f"update durable._calls c set salt = 'x' where {OF_LIVE}"),
    "I8 one_live_attempt_of_a_call": Break(A.format("step_id = null", "step_id is not null")),
    "I14 live_promise_has_its_attempt": Break(
        MAKE_PROMISE % "'call:' || repeat('ab', 32)",
    ),
    "I7 result_is_pinned_for_all_waiters": Break(
        "delete from durable._pins where exec_id in (select exec_id from durable._call_attempts)"
    ),
    "waiter_has_its_attempt": Break(
        "insert into durable._call_waiters (forced, execution_key, scope, node_id)"
        " select false, sha256('x'), scope, node_id from durable._call_waiters limit 1"
    ),
    "running_call_has_its_scope": Break(
        "update durable._call_waiters set scope = 'gone' where execution_key in"
        f" (select execution_key from durable._call_attempts where {LIVE})"
    ),
    "live_attempt_has_a_waiter": Break(
        "delete from durable._call_waiters w using durable._call_attempts a"
        " where a.execution_key = w.execution_key and a.ended_at is null"
    ),
    "step_was_given_something_that_is_there": Break(
        "update durable._call_steps set exec_id = sha256('x'), execution_key = null",
        also="attempt_step_is_recorded",
    ),
    "I5 pin_is_of_its_node": Break(
        PIN.format(
            "node_id = sha256('x') where exec_id in (select exec_id from durable._call_attempts where share)"
        ),
        also="I7 result_is_pinned_for_all_waiters, I16 pin_is_the_last_of_its_history",
    ),
    "I6 pinned_result_is_here": Break(
        PIN.format("exec_id = sha256('x') where version = 1")
        + "; update durable._pin_log set exec_id = sha256('x') where scope <> 's'"
    ),
    "I16 pin_is_the_last_of_its_history": Break(PIN.format("version = version + 1")),
    "pin_belongs_to_a_scope": Break(
        "update durable._refs set kind = 'head' where name in ('s', 't')",
    ),
    "pin_was_set_in_the_past": Break(
        PIN.format(f"pinned_at = {FAR} where version = 2"), also="I16 pin_is_the_last_of_its_history"
    ),
    "I15 pins_are_a_chain": Break(
        "update durable._pin_log set prev_exec = sha256('x') where version = 2",
    ),
    "I19 claim_job_is_recorded_whole": Break(
        CLAIM.format("job_id = 'j'", "outcome is null"), "_claims.claims_job_is_recorded_whole"
    ),
    "I19 claim_has_its_promise": Break(
        "insert into durable._claims (created_at, execution_key, submit_token) values (1, sha256('x'), 'x')"
    ),
    "I20 claim_outcome_is_in_its_promise": Break(CLAIM.format("outcome = 'error'", "outcome = 'ok'")),
    "claim_was_made_in_the_past": Break(CLAIM.format(f"created_at = {FAR}", "outcome is null")),
    "I20 claim_outcome_names_a_dag": Break(
        CLAIM.format("dag_id = null", "outcome is not null"),
        "_claims.claims_outcome_names_a_dag",
        "I20 claim_outcome_is_in_its_promise",
    ),
}


def inhabit(scene: Scene, clock: Clock) -> None:
    """Attempts that are live, completed, failed and given up, a pin that was replaced, two claims."""
    node = bytes.fromhex(scene.begin()["node"])
    scene.run({"message": "no"}, outcome="error")
    scene.begin([4], scope="t")
    scene.run(8)
    scene.begin([2], scope="t")
    scene.failed(scene.lease()[0], "refused", retryable=False)
    clock.advance(10)
    scene.one("select durable.call_retry('s', %s)", node)
    scene.run(7)
    scene.begin([3], scope="u")
    scene.begin([3], scope="u", cache="force", step_id="w.0")
    for number in (1, 2):
        key = number.to_bytes(32, "big")
        scene.one("select durable.claim_acquire(%s, 'o', 60000)", key)
    scene.one("select durable.claim_done(%s, 1, 'ok', sha256('r'))", key)
    clock.advance(10)


def everything(conn: Connection) -> None:
    """The same, as the scene of a laboratory."""
    made = Scene(conn)
    made.scope("s", "t", "u")
    inhabit(made, ClockInside(conn))


@pytest.fixture
def inhabited(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A transaction in which there are calls of every kind."""
    with transaction_of(request, everything) as connection:
        yield connection


def test_a_full_scene_is_lawful(inhabited: Connection) -> None:
    """Calls of every kind, made through the entry points, break no law."""
    assert laws_of(inhabited) == set()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.unlawful
def test_a_broken_law_is_reported(inhabited: Connection, law: str) -> None:
    """The law is reported by its name, and nothing is that the same hand did not break."""
    lay(inhabited, LAWS[law])
    assert laws_of(inhabited) == reported(LAWS[law], law)


def test_no_law_is_missed() -> None:
    """Every law of the source has its hand here, and no hand is for a law that is gone."""
    assert laws_in("call_laws") == set(LAWS)


def test_every_invariant_has_its_law() -> None:
    """The table at the top of the source names each but I25 once, with laws that some hand breaks."""
    (source,) = LOGIC.rglob("90_call_laws.sql")
    table = re.findall(r"^--   (I\d+) +([^(\n]+)", source.read_text(encoding="utf-8"), re.M)
    assert [number for number, _ in table] == [f"I{number}" for number in range(1, 25)]
    laws = {law.strip() for _, names in table for law in names.split(",")}
    assert laws <= {*LAWS, *OBJECTS, *TASKS, *JOURNALS}


def lost_rows(conn: Connection) -> None:
    """Rows that belong to nothing, enough for three portions of each kind."""
    for statement in LOST.split(";\n"):
        conn.execute(statement.encode())


LOST = """
insert into durable._claims (created_at, execution_key, submit_token)
select 1, sha256(n::text::bytea), 'x' from generate_series(1, 4500) n;
insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id, prev_exec)
select 1, version, case when n % 2 = 0 then 'lost' else 'lost ' || n end, sha256(n::text::bytea), sha256('x'),
       case when version > 1 then sha256('y') end
from generate_series(1, 2250) n cross join generate_series(1, 3, 2) version order by n, version;
insert into durable._call_steps (created_at, step_id, scope, node_id, execution_key)
select 1, 'lost ' || n, 'lost', sha256('x'), sha256('x') from generate_series(1, 4500) n
"""
PORTION = "select to_jsonb(broken), more from durable.check_portion(%s::jsonb)"


@pytest.mark.unlawful
def test_portions_are_everything(scene: Scene, clock: Clock) -> None:
    """Keys, pins and steps are checked in spans that have every row of their tables once."""
    inhabit(scene, clock)
    lost_rows(scene.conn)
    stages: list[str] = []
    found: list[tuple[str, str, str]] = []
    after: dict[str, str] | None = {"key": ""}
    while after is not None:
        stages += {"key", "scope", "step"} & after.keys()
        broken, after = scene.all(PORTION, json.dumps(after))[0]
        found += [(each["law"], each["id"], each["detail"]) for each in broken]
    assert Counter(stages) == {"key": 3, "scope": 3, "step": 3}
    laws = Counter(law for law, *_ in set(found))
    assert Counter(law for law, *_ in found) == laws
    assert laws == {
        "I19 claim_has_its_promise": 4500,
        "I15 pins_are_a_chain": 2250,
        "step_was_given_something_that_is_there": 4500,
    }


ROWS_READ = """
select sum(seq_tup_read)::integer, sum(idx_tup_fetch)::integer from pg_stat_xact_user_tables
where schemaname = 'durable' and relname ~ '^_(calls|call_.*|pin.*|claims|objects|refs|promises)$'
"""
SINCE = "select law, id from durable.check(since => '1 hour')"
OF_ID = "select law, id from durable.check(%s)"


@pytest.mark.unlawful
def test_a_check_of_one_reads_little(scene: Scene, clock: Clock) -> None:
    """Among thousands of rows one attempt or scope, or the last hour, is looked up."""
    inhabit(scene, clock)
    lost_rows(scene.conn)
    promise = scene.one("select promise from durable.call_attempts limit 1")
    for query, *given in ((OF_ID, promise), (OF_ID, "s"), (SINCE,)):
        before = scene.all(ROWS_READ)[0]
        assert scene.all(query, *given) == []
        walked, fetched = (new - old for new, old in zip(scene.all(ROWS_READ)[0], before, strict=True))
        assert walked == 0 and 5 < fetched < 2000, (query, given)


@pytest.mark.unlawful
def test_one_attempt_and_one_scope_are_checked(scene: Scene, clock: Clock) -> None:
    """By the id of the promise, and by the name; what is broken elsewhere is not reported."""
    inhabit(scene, clock)
    promises = [row[0] for row in scene.all("select promise from durable.call_attempts")]
    scene.conn.execute("update durable._call_attempts set created_at = created_at + 1000000")
    for promise in promises:
        assert ("attempt_times_are_those_of_its_promise", promise) in scene.all(OF_ID, promise)
    scene.conn.execute("update durable._call_attempts set created_at = created_at - 1000000")
    scene.conn.execute("update durable._pins set version = version + 1 where scope = 't'")
    assert [law for law, _ in scene.all(OF_ID, "t")] == ["I16 pin_is_the_last_of_its_history"]
    assert scene.all(OF_ID, "s") == []
    assert refusal(scene.conn, scene.all, OF_ID, "call:" + "ab" * 32).startswith("WF001")


@pytest.mark.unlawful
def test_changes_of_calls_since_the_last_check(scene: Scene, clock: Clock) -> None:
    """Attempts, pins and objects that were made since are checked, and older ones are not."""
    inhabit(scene, clock)
    clock.advance(7_200_000)
    scene.begin([44], scope="t")
    scene.run("new")
    scene.conn.execute("update durable._call_attempts set adapter = 'other' where exec_id is null")
    scene.conn.execute("update durable._pins set version = version + 1")
    scene.conn.execute("update durable._objects set scalar = 'x' where kind = 'datum' and sub = 'string'")
    assert {law for law, _ in scene.all(SINCE)} == {
        "I16 pin_is_the_last_of_its_history",
        "I1 object_id_is_the_hash_of_its_content",
    }
    scene.begin([45], scope="t")
    scene.conn.execute("update durable._call_attempts set adapter = 'another' where ended_at is null")
    assert [law for law, _ in scene.all(SINCE)].count("attempt_is_in_the_queue_of_its_adapter") == 1
    # those of the two calls that ended within the hour
    assert len([law for law, _ in scene.all(SINCE) if law.startswith("I16")]) == 2
