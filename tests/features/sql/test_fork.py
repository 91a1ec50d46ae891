"""Law: a fork owns copies of what its origin did before a position, and nothing of what came after."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.copies import expected, found
from tests.support.stories import (
    ALL_TYPES,
    Story,
    Wanderer,
    begin_story,
    cancelled,
    everything,
    forced,
    named,
)
from tests.support.verbs import (
    NEVER,
    Call,
    Connection,
    ask,
    begin_run,
    begun,
    broken,
    captured,
    claim,
    complete,
    create,
    done,
    fail,
    halt,
    promise,
    promise_of,
    refusal,
    report,
    run,
    settle,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)

FORK = "select durable.fork(%s, seq => %s, new_id => %s)"
DAY = 86_400_000
Life = Callable[[Story], Iterator[None]]

LIVES: dict[str, Life] = {
    "live": everything,
    "completed": lambda story: everything(story, end=complete()),
    "failed": lambda story: everything(story, end=fail()),
    "halted": lambda story: everything(story, end=halt()),
    "cancelled": cancelled,
    "forced": forced,
}


def live_through(life: Iterator[None]) -> None:
    """Let a run live to the end of its story."""
    for _ in life:
        pass


def compare_all(conn: Connection, clock: Clock, story: Story, first: int = 1) -> None:
    """Fork a run at every position from the first on and compare with the fold."""
    for upto in range(first, story.next_seq + 1):
        born = clock.advance(1)
        name = f"{story.id}@{upto}"
        assert ask(conn, (FORK, (story.id, upto, name))) == (name,)
        assert found(conn, name, born) == expected(conn, story.id, upto), upto


def test_the_stories_have_every_row_type(conn: Connection, clock: Clock) -> None:
    """What the tests fork has rows of all types."""
    seen: set[str] = set()
    for name, life in LIVES.items():
        live_through(life(begin_story(conn, clock, name)))
        seen |= set(types_of(conn, name))
    assert seen == ALL_TYPES


@pytest.mark.parametrize("name", LIVES)
def test_a_fork_at_every_position(conn: Connection, clock: Clock, pytestconfig: Any, name: str) -> None:
    """At every position of journals with every row type, rows, head, inboxes, join sets, promises, tasks and
    callbacks of the fork are those of a fold in Python; where only the end differs, there (or --full)."""
    story = begin_story(conn, clock, name)
    live_through(LIVES[name](story))
    is_known = name in ("completed", "failed", "halted") and not pytestconfig.getoption("--full")
    compare_all(conn, clock, story, first=story.next_seq - 5 if is_known else 1)


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 6))])
def test_forks_of_random_runs(conn: Connection, clock: Clock, seed: int, number: int) -> None:
    """The same for runs that went any legal way."""
    story = Wanderer(conn, clock, "r", random.Random(seed + number))
    live_through(story.wander(40))
    compare_all(conn, clock, story)


def fork(id_: str = "r", new_id: str | None = "f", **more: Any) -> Call:
    """A fork; `more` are named arguments, set_values as an object."""
    if "set_values" in more:
        more["set_values"] = json.dumps(more["set_values"])
    extra = "".join(f", {name} => %s{'::jsonb' * (name == 'set_values')}" for name in more)
    return f"select durable.fork(%s, new_id => %s{extra})", (id_, new_id, *more.values())


def rows(conn: Connection, id_: str, child: int) -> list[tuple[str, int | None, Any, bool | None]]:
    """Rows of a child as a worker gets them: type, attempt, data, ok."""
    query = """select w.rows from durable._executions h join durable._promises p on p.head = h.execution
               cross join lateral durable._rows(h.execution, h.bucket, h.id, 0, h.next_seq) w
               where p.id = %s"""
    mine = [
        row
        for row in ask(conn, (query, (id_,)))[0]
        if row[2] == child and row[1] not in ("join_set_submitted", "join_set_awaited")
    ]
    return [(row[1], row[3], row[6] and json.loads(row[6]), row[7]) for row in mine]


# child of the story -> how its rows end once a value was put in place; all of it lies in the copied part
REPLACED: dict[str, tuple[int, str, int | None, bool | None]] = {
    "0": (0, "last_attempt_completed", 2, None),
    "1": (1, "random_generated", None, None),
    "2": (2, "time_recorded", None, None),
    "4": (4, "child_settled", 1, True),
    "kid": (5, "open_child_settled", 2, True),
    "6": (6, "child_settled", 1, True),
    "8": (8, "signal_received", 1, True),
    "nine": (9, "step_completed", 1, None),
    "ten": (10, "step_completed", 1, None),
    "11": (11, "last_attempt_completed", 5, None),
    "12": (12, "last_attempt_completed", 2, None),
    "13": (13, "open_step_completed", 1, None),
    "14": (14, "child_settled", 1, True),
    "15": (15, "child_settled", 1, True),
    "signal:go:2": (16, "signal_received", 2, True),
    "foreign": (17, "last_attempt_completed", 1, None),
    "19": (19, "child_settled", 1, True),
    "20": (20, "open_child_settled", 1, True),
    "r-nowhere": (21, "child_settled", 1, True),
    "running": (22, "open_step_completed", 1, None),
    "failing": (23, "last_attempt_completed", 2, None),
    "25": (25, "child_settled", 1, True),
}


def test_a_value_is_put_in_place(conn: Connection, clock: Clock) -> None:
    """A recorded result of any kind, by number or name, is replaced in the copy alone, an error by a success;
    what was open is completed with the value instead of being run or awaited."""
    story = begin_story(conn, clock, "r")
    live_through(everything(story))
    for key, (child, kind, attempt, ok) in REPLACED.items():
        before = rows(conn, "r", child)
        id_ = ask(conn, fork(new_id=f"f-{child}", set_values={key: {"new": [1]}}))[0]
        found_rows = rows(conn, id_, child)
        assert found_rows[-1] == (kind, attempt, {"new": [1]}, ok), key
        assert len(found_rows) - len(before) in (0, 1)
        assert rows(conn, "r", child) == before
        target = key if key.startswith("signal:") else "signal:go:1" if key == "8" else str(child)
        replaced = ask(conn, ("select replaced from durable.forks where id = %s", (id_,)))
        assert replaced == ({target: {"new": [1]}},)
        assert task_of(conn, f"{id_}.{child}") is None


def test_all_values_at_once(conn: Connection, clock: Clock) -> None:
    """Values may be set for any number of children, at the same time."""
    story = begin_story(conn, clock, "r")
    live_through(everything(story))
    ask(conn, fork(set_values={key: number for number, key in enumerate(REPLACED)}))
    for number, (child, kind, attempt, ok) in enumerate(REPLACED.values()):
        assert rows(conn, "f", child)[-1] == (kind, attempt, number, ok)


# a journal of steps one after the other: 0 time, 1 first, 2 child run, 3 second, 4 promise, 5 third, 6 second
def in_sequence(conn: Connection, clock: Clock) -> Story:
    """A run that did one thing after the other."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[captured(0, "1", kind="time")])
    story.report(outcomes=[done(1, name="first")])
    story.report(commands=[run(2, queue="kids", name="ship")])
    story.settle(2, '"shipped"')
    story.report(outcomes=[named(broken(3), "second")])
    story.report(commands=[promise(4)])
    story.settle(4, "4")
    story.report(outcomes=[done(5, name="third")])
    story.report(outcomes=[done(6, name="second")], end=fail())
    return story


SHIPPING = ["execution_started", "time_recorded", "step_completed", "child_run_scheduled"]
AT_THE_POSITION: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"step": "first"}, {}, ["execution_started", "time_recorded"]),
    ({"step": "first"}, {"first": 0}, ["execution_started", "time_recorded", "step_completed"]),
    (
        {"step": "ship"},
        {"ship": 0},
        [*SHIPPING, "child_settled"],
    ),
    (
        {"step": "ship"},
        {"ship": 0, "3": 0},
        [*SHIPPING, "child_settled", "step_completed"],
    ),
    (
        {"step": "second"},
        {"second": 0},
        [*SHIPPING, "child_settled", "step_completed"],
    ),
    (
        {"step": "second"},
        {"label": 0, "second": 0},
        [
            *SHIPPING,
            *("child_settled", "step_completed", "promise_registered", "child_settled"),
        ],
    ),
    (
        {"step": "first"},
        {"1": 1, "2": 2, "3": 3, "label": 4, "third": 5, "6": 6},
        [
            *SHIPPING,
            *("child_settled", "step_completed", "promise_registered", "child_settled"),
            *("step_completed", "step_completed"),
        ],
    ),
    ({"seq": 1}, {"time": 7}, ["execution_started", "time_recorded"]),
    ({"seq": 4}, {"first": 7}, ["execution_started", "time_recorded", "step_completed"]),
    (
        {},
        {"third": 7, "6": 8},
        [
            *SHIPPING,
            *("child_settled", "step_failed", "promise_registered", "child_settled"),
            *("step_completed", "step_completed"),
        ],
    ),
]


def test_a_step_at_the_position_gets_its_value(conn: Connection, clock: Clock) -> None:
    """What comes right at the position is completed with its value, in the order in which it came; the rows
    are those that the original had, without errors."""
    in_sequence(conn, clock)
    for number, (place, values, types) in enumerate(AT_THE_POSITION):
        ask(conn, fork(new_id=f"f{number}", set_values=values, **place))
        assert types_of(conn, f"f{number}") == types, (place, values)


TOO_LATE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"step": "first"}, {"third": 1}),
    ({"seq": 1}, {"first": 1}),
    ({"step": "ship"}, {"label": 1}),
)
REFUSED: dict[str, tuple[Call, str, str]] = {
    "nothing of that name": (fork(set_values={"nobody": 1}), "WF004", "1 (first), 2 (ship), 3 (second)"),
    "no such number": (fork(set_values={"77": 1}), "WF004", "77"),
    "an ambiguous name": (fork(set_values={"second": 1}), "WF004", "by its number"),
    "the same twice": (fork(set_values={"first": 1, "1": 1}), "WF004", "two keys"),
    "no such signal": (fork(set_values={"signal:x:1": 1}), "WF004", "signal:x:1"),
    "values are no object": (fork(set_values=[1]), "WF004", "JSON object"),
    "two positions": (fork(seq=3, step="first"), "WF004", "not both"),
    "position 0": (fork(seq=0), "WF004", "21 events"),
    "position below": (fork(seq=-1), "WF004", "21 events"),
    "position beyond": (fork(seq=22), "WF004", "21 events"),
    "no such step": (fork(step="frist"), "WF001", "'first', 'label', 'second', 'ship', 'third'"),
    "no such run": (fork("nobody"), "WF001", "nobody"),
    "not a run": (fork("r.4"), "WF001", "r.4"),
    "reserved": (fork(new_id="r.2"), "WF004", "reserved"),
    "taken": (fork(new_id="r"), "WF003", "taken"),
    "empty id": (fork(new_id=""), "WF004", "1 to 512"),
    "no queue": (fork(queue="a/b"), "WF004", "queue"),
    "no version": (fork(version=""), "WF004", "version"),
    "a timer": (fork("all", set_values={"3": 1}), "WF004", "timer"),
    "a join set": (fork("all", set_values={"7": 1}), "WF004", "join set"),
    "a later signal": (fork("all", seq=60, set_values={"16": 1}), "WF004", "send it to the fork"),
    "a step of a clean-up": (fork("c", set_values={"refund": 1}), "WF004", "called later"),
}
REFUSED |= {
    f"called later {n}": (fork(**where, set_values=values), "WF004", "called later")
    for n, (where, values) in enumerate(TOO_LATE)
}


def test_refusals(conn: Connection, clock: Clock) -> None:
    """A refusal says what there is, and comes before anything is written: not even a number is drawn."""
    in_sequence(conn, clock)
    for id_, life in (("all", everything), ("c", cancelled)):
        live_through(life(begin_story(conn, clock, id_)))
    drawn = ask(conn, ("select last_value from durable._executions_execution_seq", ()))
    for name, (call, state, words) in REFUSED.items():
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, call)
        told = f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
        assert (caught.value.sqlstate, words in told) == (state, True), (name, told)
    assert ask(conn, ("select last_value from durable._executions_execution_seq", ())) == drawn


def row_of(conn: Connection, table: str, id_: str) -> dict[str, Any]:
    """A row as a dictionary."""
    row: dict[str, Any] = ask(conn, (f"select to_jsonb(x) from durable.{table} x where id = %s", (id_,)))[0]
    return row


def test_properties_of_a_fork(conn: Connection, clock: Clock) -> None:
    """A fork is a run of its own: input, workflow, tags, tenant and priority of the original, as much time
    as it had, no key, no owner, ready in the same queue, of the same version."""
    options: dict[str, Any] = {
        "timeout": "1 day",
        "tags": '{"customer": "7"}',
        "tenant": "acme",
        "priority": 4,
    }
    held = begin_run(conn, "r", key="k", **options, args='{"a": 1}')
    clock.advance(DAY // 2)
    ask(conn, fork())
    one, other = row_of(conn, "_promises", "r"), row_of(conn, "_promises", "f")
    same = ("param_data", "param_headers", "tags", "tenant", "target", "external", "execution", "child")
    assert {name: one[name] for name in same} == {name: other[name] for name in same}
    assert (other["created_at"], other["timeout_at"]) == (clock.now_ms, clock.now_ms + DAY)
    head, task = row_of(conn, "_executions", "f"), row_of(conn, "_tasks", "f")
    assert (head["key"], head["workflow"], head["workflow_version"]) == (None, "w", "1")
    assert (task["state"], task["version"], task["queue"], task["priority"]) == ("pending", 0, "q-r", 4)
    assert (task["deadline"], task["retry_at"]) == (clock.now_ms + DAY, clock.now_ms)
    # its first row is older than its promise, so it is told; that of its origin is not
    assert ([row[1] for row in claim(conn, "V", "q-r").rows], held.rows) == (["execution_started"], ())


def test_queue_and_version_of_a_fork(conn: Connection, clock: Clock) -> None:
    """Queue and version may be given; a child that was on its parent's queue goes with it, others stay."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[run(0), run(1, queue="far")])
    ask(conn, fork(queue="debug", version="2"))
    found_tasks = conn.execute(
        "select id, queue, workflow_version from durable._tasks where starts_with(id, 'f') order by id"
    ).fetchall()
    assert found_tasks == [("f", "debug", "2"), ("f.0", "debug", "1"), ("f.1", "far", "1")]


def test_a_fork_without_a_name(conn: Connection, clock: Clock) -> None:
    """A fork that is given no id gets a fresh one at each call, and one without a limit of time has none."""
    begin_run(conn, "r")
    ids = {ask(conn, fork(new_id=None))[0] for _ in range(3)}
    assert len(ids) == 3
    for id_ in ids:
        assert row_of(conn, "_promises", id_)["timeout_at"] == NEVER


def test_times_of_children(conn: Connection, clock: Clock) -> None:
    """A child run and a promise that begin anew have as much time as they had; a timer fires at the instant
    for which it was made, at once if that is over."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[run(0, timeout=5000), promise(1, 700), promise(2), timer(3, 600), timer(4, 9000)])
    began = clock.now_ms
    clock.advance(650)
    ask(conn, fork())
    times = [row_of(conn, "_promises", f"f.{n}")["timeout_at"] for n in range(5)]
    assert times == [clock.now_ms + 5000, clock.now_ms + 700, NEVER, began + 600, began + 9000]
    tick(conn)
    assert row_of(conn, "_promises", "f.3")["state"] == "resolved"
    assert types_of(conn, "f")[-1:] == ["timer_fired"]


def test_a_promise_of_somebody_else_is_awaited_again(conn: Connection, clock: Clock) -> None:
    """What the original had adopted wakes the fork too; if it is settled by now, the fork has it at once."""
    for name in ("early", "late"):
        ask(conn, create(name, external="true"))
    story = begin_story(conn, clock, "r")
    story.report(
        commands=[{"do": "adopt", "child": n, "name": name} for n, name in enumerate(("early", "late"))]
    )
    upto = story.next_seq
    ask(conn, settle("early", '"e"'))
    ask(conn, fork(seq=upto))
    assert rows(conn, "f", 0)[-1] == ("child_settled", 1, "e", True)
    held = claim(conn, "V", "q-r")
    take_turn(conn, "V", report(held, end=suspend(1)))
    ask(conn, settle("late", '"l"'))
    assert rows(conn, "f", 1)[-1] == ("child_settled", 1, "l", True)
    assert task_of(conn, "f") == ("pending", 1, None)


def test_a_purged_promise(conn: Connection, clock: Clock) -> None:
    """A fork that would wait for a promise that does not exist any more is refused, unless a value is set."""
    ask(conn, create("gone", external="true"))
    story = begin_story(conn, clock, "r")
    story.report(commands=[{"do": "adopt", "child": 0, "name": "gone"}])
    conn.execute("update durable._promises set id = 'away' where id = 'gone'")
    assert refusal(conn, fork()) == "WF001"
    ask(conn, fork(set_values={"gone": 1}))
    assert rows(conn, "f", 0)[-1] == ("child_settled", 1, 1, True)
    conn.execute("update durable._promises set id = 'gone' where id = 'away'")


def test_the_origin_may_go(conn: Connection, clock: Clock) -> None:
    """A fork refers to nothing of its origin: with all of that deleted, it reads the same."""
    story = begin_story(conn, clock, "r")
    live_through(everything(story, end=complete()))
    ask(conn, fork(set_values={"4": 1}))
    what = "select durable._rows(execution, bucket, id, 0, next_seq) from durable._executions where id = 'f'"
    before = ask(conn, (what, ()))
    for table in ("_journal", "_signals", "_inboxes", "_join_sets", "_members"):
        conn.execute(
            f"delete from durable.{table} x using durable._executions h "
            "where x.execution = h.execution and starts_with(h.id, 'r')".encode()
        )
    for column, table in (("id", "_tasks"), ("awaiter_id", "_callbacks"), ("id", "_executions")):
        conn.execute(f"delete from durable.{table} where starts_with({column}, 'r')".encode())
    conn.execute("delete from durable._promises where id ~ '^r(\\.|$)'")
    assert ask(conn, (what, ())) == before
    assert ask(conn, fork("f", "g")) == ("g",)
    assert types_of(conn, "g") == types_of(conn, "f")


def test_a_value_for_a_run_that_did_nothing(conn: Connection, clock: Clock) -> None:
    """Where there is no value to set, the refusal says so."""
    begin_story(conn, clock, "r")
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, fork(set_values={"charge": 1}))
    assert caught.value.sqlstate == "WF004"
    assert (
        caught.value.diag.message_hint
        == "Before that position the run called nothing: there is no value to set."
    )


def test_the_view_of_forks(conn: Connection, clock: Clock) -> None:
    """The view of forks tells origin, position, user and the values put in place."""
    in_sequence(conn, clock)
    ask(conn, fork(step="second", set_values={"second": {"ok": True}, "first": None}))
    query = "select origin, seq, by = session_user, replaced, state, at = durable._at(%s) from durable.forks"
    told = ask(conn, (query, (clock.now_ms,)))
    assert told == ("r", 8, True, {"3": {"ok": True}, "1": None}, "queued", True)


@pytest.mark.parametrize(
    ("asked", "told"), [(1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (6, 5), (8, 8), (None, 8)]
)
def test_the_reported_position_is_the_end_of_the_copy(
    conn: Connection, clock: Clock, asked: int | None, told: int
) -> None:
    """Of a step that was written as a whole a fork takes over all or nothing, and tells where it really
    begins."""
    story = begin_story(conn, clock, "r")
    story.report(outcomes=[done(0)])
    story.report(commands=[captured(1)])
    story.report(outcomes=[done(2)])
    ask(conn, fork(seq=asked))
    assert ask(conn, ("select seq from durable.forks where id = 'f'", ())) == (told,)
    assert ask(conn, ("select next_seq from durable._executions where id = 'f'", ())) == (told,)


def test_a_fork_of_a_live_run_changes_nothing_of_it(conn: Connection, clock: Clock) -> None:
    """The worker of the original keeps its lease and goes on; what it waits for wakes it alone."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[promise(0)])
    ask(conn, fork())
    story.report(end=suspend(0))
    ask(conn, settle("r.0"))
    assert task_of(conn, "r") == ("pending", 1, None)
    assert row_of(conn, "_promises", "f.0")["state"] == "pending"
    ask(conn, settle("f.0", "2"))
    assert rows(conn, "f", 0)[-1] == ("child_settled", 1, 2, True)


def test_a_signal_key_is_known_to_the_fork(conn: Connection, clock: Clock) -> None:
    """What was delivered before the position is known by its key; what came after may be sent again."""
    story = begin_story(conn, clock, "r")
    story.signal("s", 1, "one")
    upto = story.next_seq
    story.signal("s", 2, "two")
    ask(conn, fork(seq=upto))
    send = "select durable.signal('f', 's', %s::jsonb, %s)"
    assert [ask(conn, (send, ("9", key)))[0] for key in ("one", "two", "two", "three")] == [1, 2, 2, 3]
    held = claim(conn, "V", "q-r")
    commands = [{"do": "receive", "child": n, "name": "s"} for n in range(2)]
    for command in commands:
        take_turn(conn, "V", report(held, commands=[command]))
    assert [rows(conn, "f", n)[-1][2] for n in range(2)] == [1, 9]


CALLS = """
select coalesce(sum(s.calls), 0)::bigint from pg_stat_xact_user_functions s
join pg_proc p on p.oid = s.funcid join pg_language l on l.oid = p.prolang
where s.schemaname = 'durable' and l.lanname = 'plpgsql'
"""


def long_run(conn: Connection, clock: Clock, id_: str, size: int) -> Story:
    """A run with as many children of each kind."""
    story = begin_story(conn, clock, id_)
    commands: list[dict[str, Any]] = []
    for n in range(0, 4 * size, 4):
        commands += [promise(n), run(n + 1, queue="kids"), captured(n + 2), timer(n + 3, 10**6)]
    story.report(commands=commands)
    story.report(outcomes=[done(4 * size + n) for n in range(size)])
    story.report(outcomes=[begun(5 * size + n) for n in range(size)])
    for child in range(0, size, 2):
        story.settle(4 * child)
        story.signal("s", child)
    return story


def test_a_long_journal_is_copied_at_once(conn: Connection, clock: Clock) -> None:
    """However long the journal, a fork makes the same number of calls: nothing goes row by row."""
    calls = []
    for size in (2, 150):
        story = long_run(conn, clock, f"r{size}", size)
        before = ask(conn, (CALLS, ()))[0]
        born = clock.advance(1)
        ask(conn, fork(story.id, f"f{size}", set_values={"0": 1, "2": 2}))
        calls.append(ask(conn, (CALLS, ()))[0] - before)
        if size > 100:
            assert story.next_seq > 1500
            copy, origin = found(conn, f"f{size}", born), expected(conn, story.id, story.next_seq)
            assert (copy.head, len(copy.rows)) == (origin.head, len(origin.rows))
    assert 10 < calls[0] == calls[1]


def test_a_journal_that_a_client_keeps(conn: Connection, clock: Clock) -> None:
    """A fork of a journal that a client writes by itself is the client's too: it takes the task and goes on
    with its own attempts."""
    write = "select * from durable.journal_append(%s, %s, %s, %s::jsonb)"
    events: list[tuple[str, dict[str, Any]]] = [
        ("InvokeScheduled", {"promise_id": "k.0", "kind": "Function", "function_name": "a", "input": [1]}),
        ("InvokeStarted", {"promise_id": "k.0", "attempt": 1}),
        ("InvokeScheduled", {"promise_id": "k.1", "kind": "External", "function_name": "b", "input": 2}),
        ("SignalDelivered", {"signal_name": "s", "payload": 3}),
        ("ExecutionAwaiting", {"waiting_on": ["k.0", "k.1"], "kind": {"tag": "Any"}}),
    ]
    ask(conn, (write, ("k", None, "ExecutionStarted", '{"component_digest": "d", "input": 1}')))
    for event, payload in events:
        ask(conn, (write, ("k", 1, event, json.dumps(payload))))
    for upto in range(1, 7):
        ask(conn, fork("k", f"k{upto}", seq=upto))
    kept = [
        *("execution_started", "step_scheduled", "attempt_started"),
        *("promise_registered", "signal_delivered"),
    ]
    types = [types_of(conn, f"k{upto}") for upto in range(1, 7)]
    assert types == [kept[:count] for count in (1, 2, 3, 4, 5, 5)]
    ask(conn, ("select * from durable.task_acquire('k6', 0, 'client', 60000)", ()))
    done_now = json.dumps({"promise_id": "k6.0", "attempt": 1, "result": "x"})
    ask(conn, (write, ("k6", 1, "InvokeCompleted", done_now)))
    assert ask(conn, (write, ("k6", 1, "ExecutionCompleted", '{"result": 1}')))[1] == "completed"


def test_a_fork_begins_detached_children_too(conn: Connection) -> None:
    """Also where none of its children is awaited."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="c", detached=True)]))
    ask(conn, fork())
    assert ask(conn, ("select count(*) from durable._executions where id = 'f.0'", ())) == (1,)


@pytest.mark.parametrize("place", [{}, {"seq": 12}, {"seq": 13}, {"seq": 15}, {"seq": 16}], ids=str)
def test_children_ended_by_a_cancellation_begin_again(
    conn: Connection, clock: Clock, place: dict[str, Any]
) -> None:
    """A run that was cancelled by force ended its children; a fork of it, at its end as before the request,
    has them begin anew. A child that was cancelled by itself before is a result."""
    story = begin_story(conn, clock, "r")
    live_through(forced(story))
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_scheduled", "child_run_scheduled"),
        *("promise_registered", "step_completed", "child_run_started", "child_settled"),
        *("execution_awaiting", "cancel_requested", "child_settled"),
        *("open_child_settled", "execution_cancelled"),
    ]
    ask(conn, fork(**place))
    tasks = [f"f.{child}" for child in range(5) if task_of(conn, f"f.{child}")]
    assert tasks == ["f.1", "f.2"]
    assert promise_of(conn, "f.3")[0] == "rejected_canceled"


@pytest.mark.parametrize("force", [False, True], ids=["asked", "forced"])
def test_a_fork_of_a_cancelled_run_is_not_cancelled(conn: Connection, clock: Clock, force: bool) -> None:
    """The cancellation of a parent reaches its children; its fork, anywhere, has none of their ends."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[run(0, queue="kids"), run(1, queue="kids")]))
    claim(conn, "K", "kids")
    take_turn(conn, "W", report(held, end=suspend(0, 1, kind="all"), seen=answer.next_of(held)))
    ask(conn, ("select durable.cancel('r', force => %s)", (force,)))
    events = ask(conn, ("select events from durable.runs where id = 'r'", ()))[0]
    for upto in (*range(4, events + 1), None):
        name = ask(conn, fork(new_id=f"f{upto}", **({} if upto is None else {"seq": upto})))[0]
        states = [
            ask(conn, ("select state from durable._promises where id = %s", (f"{name}.{n}",))) for n in (0, 1)
        ]
        assert states == [("pending",), ("pending",)], upto
