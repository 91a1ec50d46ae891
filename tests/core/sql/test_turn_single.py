"""Law: a result or the end of one run leaves and answers by the single-row path what it would by the batch
path.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Held,
    ask,
    at_end,
    begin_run,
    begun,
    broken,
    captured,
    claim,
    complete,
    done,
    dump,
    fail,
    park,
    promise,
    refusal,
    release,
    report,
    run,
    send,
    settle,
    suspend,
    take,
    take_turn,
    timer,
    turn,
)

TABLES = (
    *("_promises", "_executions", "_journal", "_tasks", "_resumes", "_callbacks", "_listeners", "_unblocks"),
    *("_row_waits", "_inboxes", "_signals", "_workers"),
)
Scene = Callable[[Connection, Clock], Held]


def rows(conn: Connection) -> dict[str, list[Any]]:
    """All columns of all rows."""
    return {
        table: sorted(found, key=lambda row: json.dumps(row, sort_keys=True))
        for table, found in dump(conn, TABLES).items()
    }


def outcome_of(conn: Connection, given: list[dict[str, Any]], worker: str, want: int) -> tuple[Any, Any]:
    """What a turn answers and leaves; everything is as before afterwards."""
    conn.execute("savepoint before")
    answer = ask(conn, turn(worker, *given, want=want))[0]
    left = rows(conn)
    conn.execute("rollback to before")
    return answer, left


def is_single(conn: Connection, given: list[dict[str, Any]], worker: str) -> bool:
    """Whether the single-row path takes it; everything is as before afterwards."""
    conn.execute("savepoint before")
    text = json.dumps(given)
    row = ask(
        conn,
        (
            "select case durable._single_kind(%s::jsonb) "
            "when 'end' then durable._end_single(%s, %s::jsonb -> 0, false, 0) is not null "
            "when 'outcome' then durable._record_single(%s, %s::jsonb -> 0) is not null else false end",
            (text, worker, text, worker, text),
        ),
    )
    conn.execute("rollback to before")
    return bool(row[0])


def compare(
    conn: Connection, given: list[dict[str, Any]], single: bool, worker: str = "W", want: int = -1
) -> None:
    """Both ways give the same; padding that nobody reads keeps a turn from the short one."""
    padded = [{**each, "pad": "x" * 1100} for each in given]
    assert not is_single(conn, padded, worker)
    assert (is_single(conn, given, worker) and want <= 0) is single
    assert outcome_of(conn, given, worker, want) == outcome_of(conn, padded, worker, want)


def stepped(conn: Connection, *outcomes: dict[str, Any]) -> Held:
    """A run that has reported outcomes."""
    held = begin_run(conn, "r")
    return at_end(held, take_turn(conn, "W", report(held, outcomes=outcomes)).next_of(held))


def acted(conn: Connection, *commands: dict[str, Any]) -> Held:
    """A run that has made children."""
    held = begin_run(conn, "r")
    return at_end(held, take_turn(conn, "W", report(held, commands=commands)).next_of(held))


def child(conn: Connection, **options: Any) -> Held:
    """A child run that was claimed."""
    acted(conn, run(0, queue="kids", **options))
    return claim(conn, "W", "kids")


def again(conn: Connection) -> Held:
    """A run that was given back and claimed anew."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, end=release()))
    return claim(conn, "W", "q-r")


def after(held: Held, conn: Connection, *statements: str) -> Held:
    """A run to which others did something meanwhile."""
    for statement in statements:
        conn.execute(statement.encode())
    return held


SINGLE: dict[str, Scene] = {
    "fresh": lambda conn, clock: begin_run(conn, "r"),
    "with steps": lambda conn, clock: stepped(conn, done(0), broken(1)),
    "with a step that runs": lambda conn, clock: stepped(conn, begun(0)),
    "with a step to be tried again": lambda conn, clock: stepped(conn, broken(0, retry_in=5)),
    "with a timer and a promise": lambda conn, clock: acted(conn, timer(0, 50), promise(1), captured(2)),
    "with a child that runs": lambda conn, clock: acted(conn, run(0)),
    "claimed again": lambda conn, clock: again(conn),
    "with a deadline": lambda conn, clock: begin_run(conn, "r", timeout="1 second"),
    "with a signal": lambda conn, clock: after(
        begin_run(conn, "r"), conn, "select durable.signal('r', 'go', '1')"
    ),
    "that cleaned up": lambda conn, clock: cleaned(conn),
    "that has not seen a signal": lambda conn, clock: after(
        stepped(conn, done(0)), conn, "select durable.signal('r', 'go', '1')"
    ),
}
OTHERS: dict[str, Scene] = {
    "a child": lambda conn, clock: child(conn),
    "a child that is awaited by nobody": lambda conn, clock: child(conn, detached=True),
    "with a listener": lambda conn, clock: after(
        begin_run(conn, "r"), conn, "select durable.promise_register_listener('r', 'poll://any@g')"
    ),
    "awaited by a client's task": lambda conn, clock: awaited(conn),
    "cancelling": lambda conn, clock: after(begin_run(conn, "r"), conn, "select durable.cancel('r')"),
    "paused": lambda conn, clock: after(begin_run(conn, "r"), conn, "select durable.pause('r')"),
    "suspended": lambda conn, clock: suspended(conn),
    "past its deadline": lambda conn, clock: late(conn, clock),
    "settled by somebody else": lambda conn, clock: settled(conn),
}


def awaited(conn: Connection) -> Held:
    """A run that a task of a protocol client waits for."""
    held = begin_run(conn, "r")
    take(conn, "t")
    ask(conn, park("t", "r"))
    return held


def cleaned(conn: Connection) -> Held:
    """A run that has seen a request of cancellation, and ends nevertheless by its code."""
    held = after(begin_run(conn, "r"), conn, "select durable.cancel('r')")
    return at_end(held, held.next + 1)


def suspended(conn: Connection) -> Held:
    """A run that waits, of which its last worker tells an end."""
    held = acted(conn, promise(0))
    take_turn(conn, "W", report(held, end=suspend(0)))
    return held


def late(conn: Connection, clock: Clock) -> Held:
    """A run whose deadline has come."""
    held = begin_run(conn, "r", timeout="1 second")
    clock.advance(1000)
    return held


def settled(conn: Connection) -> Held:
    """A run that a client has settled."""
    held = begin_run(conn, "r")
    ask(conn, settle("r", "1"))
    return held


@pytest.mark.parametrize("end", [complete(), complete('{"a": [1, null]}'), fail()])
@pytest.mark.parametrize("name", SINGLE)
def test_both_paths_write_the_same(conn: Connection, clock: Clock, name: str, end: dict[str, Any]) -> None:
    """Whatever a run has behind it, its end is the same row by row; and the single-row path takes it."""
    held = SINGLE[name](conn, clock)
    clock.advance(7)
    compare(conn, [report(held, end=end)], single=True)
    compare(conn, [report(held, end=end)], single=True, want=0)
    compare(conn, [report(held, end=end)], single=False, want=1)


def next_child(conn: Connection, id: str = "r") -> int:
    """The number that the next call of a run takes."""
    row = conn.execute("select next_child from durable._executions where id = %s", (id,)).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.sample(15)
@pytest.mark.parametrize("end", [complete(), fail()])
@pytest.mark.parametrize("outcome", [done, broken])
@pytest.mark.parametrize("name", SINGLE)
def test_a_last_result_comes_along(
    conn: Connection, clock: Clock, name: str, outcome: Callable[[int], dict[str, Any]], end: dict[str, Any]
) -> None:
    """The result after which the code ended is recorded with the end, whatever came before; in a run that
    cleans up by the batch path.
    """
    held = SINGLE[name](conn, clock)
    clock.advance(7)
    number = next_child(conn)
    for child in (number, number + 2):
        given = report(held, outcomes=[outcome(child)], end=end)
        compare(conn, [given], single=name != "that cleaned up")
        compare(conn, [given], single=False, want=1)


@pytest.mark.parametrize("outcome", [done, broken])
def test_a_last_result_of_a_step_that_is_known(
    conn: Connection, clock: Clock, outcome: Callable[..., dict[str, Any]]
) -> None:
    """The step had begun, or was tried before."""
    held = stepped(conn, begun(0))
    compare(conn, [report(held, outcomes=[outcome(0)], end=complete())], single=True)
    held = at_end(held, take_turn(conn, "W", report(held, outcomes=[broken(0, retry_in=5)])).next_of(held))
    clock.advance(5)
    compare(conn, [report(held, outcomes=[outcome(0, attempt=2)], end=complete())], single=True)
    answer = take_turn(conn, "W", report(held, outcomes=[outcome(0, attempt=2)], end=complete()))
    assert answer.next_of(held) == held.next + 2
    types = [kind for (kind,) in conn.execute("select type::text from durable._journal order by seq")]
    last = "last_attempt_completed" if outcome is done else "last_attempt_failed"
    assert types == ["execution_started", "step_started", "open_attempt_failed", last, "execution_completed"]


@pytest.mark.parametrize(
    "outcomes",
    [
        [done(1), done(2)],
        [begun(1)],
        [broken(1, retry_in=5)],
        [done(0)],
        [done(1, attempt=2)],
        [broken(0, attempt=2)],
    ],
)
def test_other_results_take_the_batch_path(
    conn: Connection, clock: Clock, outcomes: list[dict[str, Any]]
) -> None:
    """More than one, no result, or one that does not fit: the single-row path writes nothing and leaves
    it.
    """
    compare(conn, [report(stepped(conn, done(0)), outcomes=outcomes, end=complete())], single=False)


@pytest.mark.parametrize("end", [complete(), fail()])
@pytest.mark.parametrize("name", OTHERS)
def test_unusual_cases_take_the_batch_path(
    conn: Connection, clock: Clock, name: str, end: dict[str, Any]
) -> None:
    """the single-row path writes nothing and leaves it, whatever it has locked."""
    held = OTHERS[name](conn, clock)
    compare(conn, [report(held, end=end)], single=False)
    compare(conn, [report(held, outcomes=[done(held.next)], end=end)], single=False)


BATCH = {
    "with a signal": "its worker has rows to see",
    "that has not seen a signal": "its worker has rows to see",
    "cancelling": "its worker has rows to see",
    "that cleaned up": "its status is not running",
    "paused": "its lease is lost",
    "suspended": "its lease is lost",
    "past its deadline": "its lease is lost",
    "settled by somebody else": "its lease is lost",
}


@pytest.mark.sample(13)
@pytest.mark.parametrize("outcome", [done, broken])
@pytest.mark.parametrize("name", SINGLE | OTHERS)
def test_a_result_alone(
    conn: Connection, clock: Clock, name: str, outcome: Callable[[int], dict[str, Any]]
) -> None:
    """The result of a step of a run that goes on, whoever waits for the run."""
    held = (SINGLE | OTHERS)[name](conn, clock)
    number = next_child(conn, held.id)
    for child in (number, number + 2):
        given = report(held, outcomes=[outcome(child)])
        compare(conn, [given], single=name not in BATCH)
        compare(conn, [given], single=name not in BATCH, want=0)
        compare(conn, [given], single=False, want=1)


@pytest.mark.parametrize("crashes", [0, 2])
@pytest.mark.parametrize(
    ("passed_ms", "left_ms"), [(0, 15_000), (7_500, 7_500), (7_501, 15_000), (20_000, 15_000)]
)
def test_a_result_renews_the_lease(
    conn: Connection, clock: Clock, passed_ms: int, left_ms: int, crashes: int
) -> None:
    """In its second half or later, as long as nobody has taken it; at once if it has crashes to forget."""
    held = begin_run(conn, "r")
    conn.execute("update durable._tasks set crashes = %s", (crashes,))
    clock.advance(passed_ms)
    given = report(held, outcomes=[done(0)])
    compare(conn, [given], single=True)
    take_turn(conn, "W", given)
    left = conn.execute("select expires_at - durable._now_ms(), crashes from durable._tasks").fetchone()
    assert left == (15_000 if crashes else left_ms, 0)


@pytest.mark.parametrize("outcome", [done, broken])
def test_a_result_alone_of_a_step_that_is_known(
    conn: Connection, clock: Clock, outcome: Callable[..., dict[str, Any]]
) -> None:
    """The step had begun, or was tried before."""
    held = stepped(conn, begun(0))
    compare(conn, [report(held, outcomes=[outcome(0)])], single=True)
    held = at_end(held, take_turn(conn, "W", report(held, outcomes=[broken(0, retry_in=5)])).next_of(held))
    clock.advance(5)
    compare(conn, [report(held, outcomes=[outcome(0, attempt=2)])], single=True)


@pytest.mark.parametrize(
    "change",
    [
        {"outcomes": [done(1), done(2)]},
        {"outcomes": [begun(1)]},
        {"outcomes": [broken(1, retry_in=5)]},
        {"outcomes": [done(0)]},
        {"outcomes": [done(1, attempt=2)]},
        {"outcomes": [broken(0, attempt=2)]},
        {"outcomes": []},
        {"outcomes": None},
        {"outcomes": [None]},
        {"outcomes": [{}]},
        {"outcomes": [[done(1)]]},
        {"outcomes": [{"attempt": 1, "value": "1"}]},
        {"outcomes": [done(1) | {"child": None}]},
        {"commands": [captured(2)]},
        {"end": release()},
        {"end": suspend(0)},
        {"version": 2},
        {"version": None},
        {"execution": 10**9},
        {"id": "other"},
        {"seen": None},
        {"seen": 1},
        {"seen": 5},
        {"progress": {"seq": 4, "done": 0.5}},
    ],
)
def test_other_reports_of_a_result(conn: Connection, clock: Clock, change: dict[str, Any]) -> None:
    """More or less than one result, one that does not fit, and reports that are stale or do more: the
    single-row path writes nothing and leaves them.
    """
    held = stepped(conn, done(0))
    assert held.next == 4
    given = report(held, outcomes=[done(1)])
    compare(conn, [given], single=True)
    compare(conn, [given | change], single=False)


@pytest.mark.parametrize("end", [None, complete()])
def test_outcomes_are_a_list(conn: Connection, clock: Clock, end: dict[str, Any] | None) -> None:
    """An object with a key "0" is none, by neither path."""
    given = report(begin_run(conn, "r"), end=end) | {"outcomes": {"0": done(0)}}
    assert not is_single(conn, [given], "W")
    assert refusal(conn, turn("W", given)) == "22P02"


@pytest.mark.parametrize("outcome", [None, {}, [], {"attempt": 1, "value": "1"}])
def test_an_end_with_an_odd_outcome(conn: Connection, clock: Clock, outcome: Any) -> None:
    """The batch path decides."""
    held = stepped(conn, done(2))
    compare(conn, [report(held, outcomes=[outcome], end=complete())], single=False)


@pytest.mark.parametrize("pad", ["", "x" * 1100])
def test_a_result_without_an_attempt(conn: Connection, pad: str) -> None:
    """It fits no journal, by neither path."""
    given = report(begin_run(conn, "r"), outcomes=[done(0) | {"attempt": None}]) | {"pad": pad}
    assert refusal(conn, turn("W", given)) == "WF006"


def free(dsn: str, table: str) -> list[str]:
    """Ids of the rows of a table that no session has locked."""
    with psycopg.connect(dsn) as user:
        found = user.execute(f"select id from {table} order by id for update skip locked".encode())
        return [id for (id,) in found]


def test_nothing_is_locked_before_what_comes_first(dsn: str) -> None:
    """Without its task, a run keeps its head free, because the batch path may wait for the task; a report
    whose number is of another run locks no task.
    """
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn) as user:
        held, other = begin_run(conn, "r"), begin_run(conn, "s")
        record = "select durable._record_single('W', %s::jsonb)"
        user.execute("select from durable._tasks where id = 'r' for update")
        for given in (report(held), report(other) | {"execution": held.execution}):
            text = json.dumps(given | {"outcomes": [done(0)]})
            with conn.transaction():
                assert conn.execute(record.encode(), (text,)).fetchone() == (None,)
                assert free(dsn, "durable._executions") == ["r", "s"]
                assert free(dsn, "durable._tasks") == ["s"]


# a worker of ours writes none
NO_JSON = pytest.param("", marks=pytest.mark.unlawful)


@pytest.mark.parametrize(
    "value", ['"x"', "1", "null", '"\\u001a"', "\x1a", "\x1at1", "\x1af", '"é"', NO_JSON]
)
def test_a_value_comes_through_as_it_is(conn: Connection, clock: Clock, value: str) -> None:
    """Also one that begins with the mark of references."""
    held = begin_run(conn, "r")
    given = report(held, outcomes=[done(0, value)])
    compare(conn, [given], single=True)
    take_turn(conn, "W", given)
    found = conn.execute("select durable._data(j) from durable._journal j where j.child = 0").fetchone()
    assert found == (value,)


@pytest.mark.parametrize("worker", ["V", ""])
def test_another_worker_records_nothing(conn: Connection, clock: Clock, worker: str) -> None:
    """Who does not hold the lease has lost the run, by both ways."""
    compare(conn, [report(begin_run(conn, "r"), outcomes=[done(0)])], single=False, worker=worker)


def test_a_number_of_another_run_records_nothing(conn: Connection, clock: Clock) -> None:
    """Both runs are leased to the worker, but the number and the id do not belong together."""
    held, other = begin_run(conn, "r"), begin_run(conn, "s")
    given = report(held, outcomes=[done(0)]) | {"execution": other.execution}
    compare(conn, [given], single=False)
    assert take_turn(conn, "W", given).raw["verdicts"]["verdict"] == ["lost"]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"execution": 10**9},
        {"seen": None},
        {"seen": 0},
        {"outcomes": [done(0)]},
        {"commands": [captured(0)]},
        {"end": {"do": "complete"}},
        {"end": {"do": "fail", "value": "1"}},
        {"end": {"do": "complete", "value": 7, "error": None}},
        {"end": release()},
        {"end": {"do": "halt", "problem": "{}"}},
        {"end": None},
        {"outcomes": None},
        {"outcomes": None, "commands": None},
    ],
)
def test_other_reports(conn: Connection, clock: Clock, change: dict[str, Any]) -> None:
    """Stale ones, such as do more, such as end otherwise, and such as say less: the same either way."""
    given = report(begin_run(conn, "r"), end=complete()) | change
    single = change.keys() <= {"seen", "end", "outcomes"} and (change.get("end") or {"do": ""})["do"] in (
        "complete",
        "fail",
        "",
    )
    single = single and given["end"] is not None
    compare(conn, [given], single=single)


def test_another_worker_has_lost_it(conn: Connection, clock: Clock) -> None:
    """Who does not hold the lease ends nothing, by neither way."""
    compare(conn, [report(begin_run(conn, "r"), end=complete())], single=False, worker="V")


def test_two_ends_go_together(conn: Connection, clock: Clock) -> None:
    """Two reports take the batch path."""
    held = [begin_run(conn, "r"), begin_run(conn, "s")]
    compare(conn, [report(each, end=complete()) for each in held], single=False)


def test_resumes_go_with_the_task(conn: Connection, clock: Clock) -> None:
    """What a task was told and has not asked for does not outlive it; that is left to the batch path."""
    held = begin_run(conn, "r")
    conn.execute("insert into durable._resumes values ('r', 'x')")
    compare(conn, [report(held, end=complete())], single=False)
    take_turn(conn, "W", report(held, end=complete()))
    assert conn.execute("select count(*) from durable._resumes").fetchone() == (0,)


@pytest.mark.parametrize("present", [True, False])
def test_its_worker_is_idle_again_with_it(conn: Connection, clock: Clock, present: bool) -> None:
    """If the turn asks for it, if the worker is present and was idle before; the answer says whether it
    is.
    """
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    conn.execute("update durable._workers set present = %s where id = 'W'", (present,))
    conn.execute(
        "insert into durable._idle_workers "
        "(worker, number, address, queues, digests, ttl, idle_until, synchronous_commit) "
        "select id, number, %s, '{default}', '{}', 1000, null, 'remote_write' from durable._workers "
        "where id = 'W'",
        (f"durable_to_{'0a' * 16}:{'5e' * 16}",),
    )
    for asked in (0, 5000):
        held = begin_run(conn, f"r{asked}")
        raw = ask(conn, turn("W", report(held, end=complete()), idle_ms=asked))[0]
        assert raw["idle"] is (asked > 0 and present)
    found = conn.execute(
        "select idle_until - durable._now_ms(), synchronous_commit = current_setting('synchronous_commit') "
        "from durable._idle_workers"
    ).fetchone()
    assert found == ((5000, True) if present else (None, False))
    two = [begin_run(conn, "a"), begin_run(conn, "b")]
    raw = ask(conn, turn("W", *[report(each, end=complete()) for each in two], idle_ms=9000))[0]
    assert raw["idle"] is False


def test_signals_stay_after_the_end(conn: Connection) -> None:
    """The end takes nothing of what was sent."""
    held = begin_run(conn, "r")
    ask(conn, send("r"))
    take_turn(conn, "W", report(held, end=complete()))
    assert conn.execute("select count(*) from durable._signals").fetchone() == (1,)
