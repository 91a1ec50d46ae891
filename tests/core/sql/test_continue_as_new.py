"""Law: a run that continues as new keeps its id, promise, key and child numbers, and begins another journal;
what the generations before it started goes on by itself and disturbs nothing."""

from __future__ import annotations

import json
from typing import Any

from tests.support.clock import Clock
from tests.support.stories import Command, Story, adopt, begin_story, join_set, receive, submit
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    begun,
    complete,
    create,
    done,
    events_of,
    promise,
    promise_of,
    refusal,
    report,
    run,
    settle,
    start,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)


def continued(value: Any, next_child: int) -> Command:
    """An end: begin again with other arguments."""
    return {"do": "continue", "value": json.dumps(value), "on": [next_child]}


def lawful(conn: Connection) -> None:
    """Every law holds at this moment."""
    assert conn.execute("select * from durable.check()").fetchall() == []


def renew(story: Story, value: Any, next_child: int, **more: Any) -> dict[str, Any]:
    """The run continues as new and is taken up again; answers the task as it is handed out."""
    assert story.held is not None
    given = report(story.held, end=continued(value, next_child), seen=story.next_seq, **more)
    answer = take_turn(story.conn, "W", given)
    assert answer.of(story.held) == ("ok", "released")
    lawful(story.conn)
    handed = take_turn(story.conn, "W", want=1, queues=[f"q-{story.id}"])
    story.held, task = handed.tasks[0], handed.handed[0]
    story.execution = story.held.execution
    lawful(story.conn)
    return dict(task)


def journal_of(conn: Connection, execution: int) -> list[str]:
    """The row types of one generation."""
    query = "select array_agg(type::text order by seq) from durable._journal where execution = %s"
    types: list[str] = ask(conn, (query, (execution,)))[0]
    return types


def generations(conn: Connection, id_: str) -> list[tuple[Any, ...]]:
    """Number, status, events, first and next child, arguments."""
    query = "select generation, status, events, first_child, next_child, args from durable.generations(%s)"
    return conn.execute(query, (id_,)).fetchall()


def test_three_generations(conn: Connection, clock: Clock) -> None:
    """Each generation begins with the arguments that the one before passed on, with an empty journal and the
    next child number; the run has one id and one result."""
    story = begin_story(conn, clock, "r", args="[1]")
    began = clock.now_ms
    story.report(outcomes=[done(0), done(1)])
    clock.advance(10)
    first = story.execution
    task = renew(story, [2], 2)
    assert (task["param"], task["first_child"], task["from"], task["next"]) == ("[2]", 2, 0, 1)
    assert (task["started_at"], [row[1] for row in task["rows"]]) == (clock.now_ms, ["execution_started"])
    story.report(outcomes=[done(2)], commands=[run(3, queue="kids")])
    task = renew(story, {"n": 3}, 5)
    assert (task["param"], task["first_child"], task["version"]) == ('{"n": 3}', 5, 3)
    story.report(outcomes=[done(5)])
    assert generations(conn, "r") == [
        (1, "completed", 8, 0, 2, [1]),
        (2, "completed", 6, 2, 4, [2]),
        (
            3,
            "running",
            4,
            5,
            6,
            {"n": 3},
        ),
    ]
    story.report(end=complete('"third"'))
    assert promise_of(conn, "r") == ("resolved", '"third"')
    query = "select extract(epoch from min(started_at)) * 1000, count(ended_at) from durable.generations('r')"
    assert ask(conn, (query, ())) == (began, 3)
    assert journal_of(conn, first) == [
        *("execution_started", "step_completed", "step_completed", "execution_completed"),
    ]
    runs = conn.execute("select id, state, result, execution from durable.runs where id = 'r'").fetchall()
    assert runs == [("r", "completed", "third", story.execution)]


def test_numbers_in_flight_are_not_used_again(conn: Connection, clock: Clock) -> None:
    """Children go on after what the code counted, or after what the journal has, whichever is more."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[promise(4)])
    assert renew(story, [], 0)["first_child"] == 5
    assert renew(story, [], 9)["first_child"] == 9
    story.report(outcomes=[done(9)])


def test_an_open_attempt_is_closed(conn: Connection, clock: Clock) -> None:
    """A step that runs while the run continues as new ends as interrupted; what it reports is not taken."""
    story = begin_story(conn, clock, "r")
    story.report(outcomes=[begun(0)])
    old = story.held
    assert old is not None
    renew(story, [], 1)
    assert journal_of(conn, old.execution) == [
        *("execution_started", "step_started", "open_attempt_failed", "execution_completed"),
    ]
    assert take_turn(conn, "W", report(old, outcomes=[done(0)])).of(old) == ("lost", "lost")


def test_outcomes_and_commands_of_the_last_report_belong_to_the_old_journal(
    conn: Connection, clock: Clock
) -> None:
    """What is reported together with the end is recorded before it."""
    story = begin_story(conn, clock, "r")
    old = story.execution
    renew(story, [], 2, outcomes=[done(0)], commands=[run(1, queue="kids")])
    assert journal_of(conn, old) == [
        *("execution_started", "child_run_scheduled", "step_completed", "execution_completed"),
    ]
    assert task_of(conn, "r.1") == ("pending", 0, None)


def test_unreceived_signals_are_carried_over(conn: Connection, clock: Clock) -> None:
    """Signals that were not received are delivered to the generation that receives them, in the order of
    sending, numbered from 1; through any number of generations."""
    story = begin_story(conn, clock, "r")
    for number in range(4):
        story.signal("a", number)
    story.signal("b", "b")
    story.report(commands=[receive(0, "a")])
    for first in (1, 2):
        renew(story, [], first)
        assert types_of_present(conn) == ["execution_started"]
        story.report(commands=[receive(first, "a")])
        assert types_of_present(conn) == ["execution_started", "signal_delivered", "signal_received"]
    renew(story, [], 3)
    inbox = (
        "select name, delivered, received, backlog_from, backlog_upto from durable._inboxes"
        " where execution = %s"
    )
    assert sorted(conn.execute(inbox, (story.execution,))) == [("a", 0, 0, 2, 3), ("b", 0, 0, 0, 1)]
    story.report(commands=[receive(3, "b"), receive(4, "a")])
    assert received(conn, story) == [("a", 1, "3"), ("b", 1, '"b"')]
    assert ask(conn, ("select count(*) from durable._backlog where number <= 2 and name = 'a'", ())) == (0,)


def received(conn: Connection, story: Story) -> list[tuple[Any, ...]]:
    """The signals that the present generation has received."""
    query = (
        "select j.name, j.attempt, s.data from durable._journal j join durable._signals s"
        " on s.execution = j.execution and s.name = j.name and s.delivery = j.attempt"
        " where j.execution = %s and j.type = 'signal_received' order by j.name, j.seq"
    )
    return conn.execute(query, (story.execution,)).fetchall()


def types_of_present(conn: Connection, id_: str = "r") -> list[str]:
    """The row types of the present generation."""
    return journal_of(conn, ask(conn, ("select head from durable._promises where id = %s", (id_,)))[0])


def test_unconsumed_signals_are_carried_over(conn: Connection, clock: Clock) -> None:
    """A signal that completed a receive which the code had given up is delivered anew, before those that came
    after it; one that was used is not."""
    story = begin_story(conn, clock, "r")
    for number in range(4):
        story.signal("s", number)
    for child in range(3):
        story.report(commands=[receive(child, "s")])
    assert story.held is not None
    take_turn(conn, "W", report(story.held, end={**continued([], 3), "on": [3, 1, 2]}, seen=story.next_seq))
    story.again()
    for child in range(3, 6):
        story.report(commands=[receive(child, "s")])
    assert received(conn, story) == [("s", 1, "1"), ("s", 2, "2"), ("s", 3, "3")]


def test_a_key_is_known_in_all_generations(conn: Connection, clock: Clock) -> None:
    """A signal is delivered once for its key, whether it was received in an earlier generation, carried over
    or still lies there."""
    story = begin_story(conn, clock, "r")
    story.signal("s", 1, "received")
    story.signal("s", 2, "carried")
    story.report(commands=[receive(0, "s")])
    renew(story, [], 1)
    renew(story, [], 1)
    story.signal("s", 9, "new")
    for key in ("received", "carried", "new", "new"):
        story.signal("s", 99, key)
    story.report(commands=[receive(1, "s")])
    story.report(commands=[receive(2, "s")])
    story.report(commands=[receive(3, "s")])
    held = conn.execute(
        "select j.child, s.data from durable._journal j join durable._signals s on s.execution = j.execution "
        "and s.delivery = j.attempt where j.execution = %s and j.type = 'signal_received' order by j.seq",
        (story.execution,),
    ).fetchall()
    assert held == [(1, "2"), (2, "9")]


def test_a_receive_ends_with_its_generation(conn: Connection, clock: Clock) -> None:
    """A receive that waited is no receiver for the next generation: what is sent later lies there until it is
    asked for."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[receive(0, "s")])
    renew(story, [], 1)
    story.signal("s", 1)
    assert types_of_present(conn) == ["execution_started", "signal_delivered"]
    story.report(commands=[receive(1, "s")])
    assert types_of_present(conn) == ["execution_started", "signal_delivered", "signal_received"]


def test_children_of_earlier_generations_go_on_alone(conn: Connection, clock: Clock) -> None:
    """Children, timers, promises and adopted promises of an earlier generation settle later without waking
    anybody, and without a row in any journal of the run."""
    ask(conn, create("foreign", external="true"))
    story = begin_story(conn, clock, "r")
    children = [
        run(0, queue="kids"),
        run(1, queue="kids", abandon=True),
        timer(2, 500),
        promise(3),
        promise(4, 600),
    ]
    story.report(commands=[*children, adopt(5, "foreign"), join_set(6), submit(0, 6), receive(7, "s")])
    kid = story.kid(0)
    old = story.execution
    renew(story, [], 8)
    story.report(commands=[promise(8)])
    story.report(end=suspend(8))
    journals = (journal_of(conn, old), journal_of(conn, story.execution))
    story.kid_reports(kid, complete())
    story.settle(1)
    story.settle(3)
    ask(conn, settle("foreign"))
    clock.advance(1000)
    tick(conn)
    lawful(conn)
    assert (journal_of(conn, old), journal_of(conn, story.execution)) == journals
    assert task_of(conn, "r") == ("suspended", 2, None)
    states = conn.execute("select state from durable._promises where id like 'r.%' order by child").fetchall()
    assert [state for (state,) in states] == [*["resolved"] * 4, "rejected_timedout", "pending"]
    story.settle(8)
    assert task_of(conn, "r") == ("pending", 2, None)


def test_the_parent_gets_the_last_result(conn: Connection, clock: Clock) -> None:
    """Whoever waits for a child run is woken once, by the result of its last generation."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[run(0, queue="kids")])
    kid = story.kid(0)
    story.report(end=suspend(0))
    for worker in ("V", "U"):
        take_turn(conn, "V", report(kid, end=continued([worker], 0)))
        kid = take_turn(conn, worker, want=1, queues=["kids"]).tasks[0]
        assert task_of(conn, "r") == ("suspended", 1, None)
        lawful(conn)
    take_turn(conn, "U", report(kid, end=complete('"last"')))
    assert task_of(conn, "r") == ("pending", 1, None)
    assert types_of(conn, "r") == [
        *("execution_started", "child_run_scheduled", "child_run_started", "execution_awaiting"),
        *("open_child_settled", "execution_resumed"),
    ]


def test_the_key_of_the_start_finds_the_run(conn: Connection, clock: Clock) -> None:
    """Key and id still name the run, judged by its first input, whatever generation it is in."""
    story = begin_story(conn, clock, "r", key="k", args="[1]", timeout=None)
    renew(story, [2], 0)
    for _ in range(2):
        again = start("r", "[1]", key="k", queue="q-r")
        assert ask(conn, again) == ("r",)
        assert ask(conn, ("select durable.start('w', '[1]', key => 'k')", ())) == ("r",)
        assert refusal(conn, start("r", "[2]", key="k")) == "WF009"
        if story.held is not None:
            story.report(end=complete())
    keys = conn.execute("select key, previous is null from durable._executions order by execution").fetchall()
    assert keys == [(None, True), ("k", False)]


def test_a_cancellation_reaches_the_newest_generation(conn: Connection, clock: Clock) -> None:
    """Cancel asks the present generation and its children; what earlier ones started is not reached."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[run(0, queue="kids")])
    old = story.execution
    story.kid(0)
    renew(story, [], 1)
    story.report(commands=[run(1, queue="kids")])
    story.kid(1)
    assert ask(conn, ("select durable.cancel('r', '\"enough\"')", ())) == ("cancelling",)
    lawful(conn)
    statuses: dict[str, str] = dict(
        conn.execute("select id, status from durable._executions where execution <> %s", (old,)).fetchall()
    )
    assert statuses == {"r": "cancelling", "r.0": "running", "r.1": "cancelling"}
    story.report(end={"do": "cancel"})
    assert promise_of(conn, "r") and promise_of(conn, "r")[0] == "rejected_canceled"  # type: ignore[index]
    assert journal_of(conn, old) == [
        *("execution_started", "child_run_scheduled", "child_run_started", "execution_completed"),
    ]


def test_a_request_comes_before_an_unseen_continue(conn: Connection, clock: Clock) -> None:
    """A run that was asked to cancel does not continue as new before its code has seen that."""
    story = begin_story(conn, clock, "r")
    assert story.held is not None
    seen = story.next_seq
    ask(conn, ("select durable.cancel('r')", ()))
    answer = take_turn(conn, "W", report(story.held, end=continued([], 0), seen=seen))
    assert answer.of(story.held) == ("stale", "acquired")
    assert len(generations(conn, "r")) == 1


def test_the_deadline_is_that_of_the_run(conn: Connection, clock: Clock) -> None:
    """To continue as new gives no new time."""
    story = begin_story(conn, clock, "r", timeout="1 second")
    clock.advance(900)
    renew(story, [], 0)
    clock.advance(100)
    tick(conn)
    assert promise_of(conn, "r") == ("rejected_timedout", None)
    assert types_of_present(conn) == ["execution_started", "execution_failed"]


def test_set_aside_and_resumed(conn: Connection, clock: Clock) -> None:
    """Pause and resume act on the present generation; one that halts shows its problem once."""
    story = begin_story(conn, clock, "r")
    renew(story, [], 0)
    ask(conn, ("select durable.pause('r')", ()))
    lawful(conn)
    query = "select state, problem ->> 'type' from durable.runs where id = 'r'"
    assert ask(conn, (query, ())) == ("paused", "Paused")
    ask(conn, ("select durable.resume('r')", ()))
    assert ask(conn, (query, ())) == ("queued", None)


def test_events_are_those_of_the_present_generation(conn: Connection, clock: Clock) -> None:
    """The view of events shows one generation, numbered from 0, with its own input."""
    story = begin_story(conn, clock, "r", args="[1]")
    story.report(outcomes=[done(0)])
    renew(story, [2], 1)
    story.report(outcomes=[done(1)])
    assert events_of(conn, "r") == ["ExecutionStarted", "InvokeScheduled", "InvokeStarted", "InvokeCompleted"]
    query = "select payload -> 'input' from durable.journal_events where id = 'r' and seq = 0"
    assert ask(conn, (query, ())) == ([2],)
    query = "select seq, event, payload from durable.generation_events('r', 1) where seq in (0, 4)"
    (first, last) = conn.execute(query).fetchall()
    assert (first[1], first[2]["input"]) == ("ExecutionStarted", [1])
    assert last == (4, "ExecutionCompleted", {"continued_as": story.execution})
    both = (
        "select count(*) from (select * from durable.generation_events('r', 2) intersect "
        "select * from durable.journal_events) x"
    )
    assert ask(conn, (both, ())) == (4,)


def test_generations_of_what_is_no_run(conn: Connection) -> None:
    """Generations are those of a run."""
    ask(conn, create("p", external="true"))
    assert refusal(conn, ("select durable.generations('p')", ())) == "WF001"
    begin_run(conn, "r")
    assert generations(conn, "r") == [
        (
            1,
            "running",
            1,
            0,
            0,
            [],
        )
    ]
