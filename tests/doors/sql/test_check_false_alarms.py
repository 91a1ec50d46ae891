"""Law: durable.check() is empty for what ordinary programs do: a report of it is a bug or a hand in the
tables."""

from __future__ import annotations

import json

import pytest

from tests.support.clock import Clock
from tests.support.hands import laws_of
from tests.support.stories import Command, Story, begin_story, receive
from tests.support.verbs import Connection, ask, begin_run, continue_as_new, suspend, tick, timer

R6 = "R6 X-5 wait_is_for_what_can_resolve"
LONG = "x" * 9000
AGAIN: Command = {**continue_as_new(on=2), "value": "[]", "error": '{"type": "Boom"}', "retry_in": 0}


def gives_up(story: Story) -> None:
    """Waits for a signal or an instant, and the instant comes."""
    story.report(commands=[receive(0, "go"), timer(1, 100)])
    story.report(end=suspend(0, 1, kind="any"))
    story.clock.advance(100)
    tick(story.conn)
    story.again()


@pytest.mark.parametrize("end", [continue_as_new(on=2), AGAIN], ids=["continued", "tried again"])
def test_a_generation_may_have_given_up_a_receive(conn: Connection, clock: Clock, end: Command) -> None:
    """A run that waited for a signal in vain continues as new, or fails and is tried again: its journal is
    lawful, then and after the next generation got the signal."""
    story = begin_story(conn, clock, "r")
    gives_up(story)
    story.report(end=end)
    assert laws_of(conn) == set()
    story.again()
    story.report(commands=[receive(2, "go")])
    story.signal("go", 1)
    assert laws_of(conn) == set()


@pytest.mark.parametrize(
    "end", [continue_as_new(on=1), {**AGAIN, "on": [1]}], ids=["continued", "tried again"]
)
def test_the_receive_may_have_the_last_number(conn: Connection, clock: Clock, end: Command) -> None:
    """The same where no row of that generation has a number above that of the receive."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[timer(0, 100), receive(1, "go")])
    story.report(end=suspend(0, 1, kind="any"))
    story.clock.advance(100)
    tick(story.conn)
    story.again()
    story.report(end={**end, "on": [2]})
    assert laws_of(conn) == set()


@pytest.mark.unlawful
def test_a_wait_of_a_generation_for_nothing_is_found(conn: Connection, clock: Clock) -> None:
    """A wait for a number that no receive of that generation can have had is reported."""
    story = begin_story(conn, clock, "r")
    gives_up(story)
    first = story.execution
    story.report(end=continue_as_new(on=2))
    change = """update durable._journal set data = '{"on": [7, 1], "kind": "any"}'"""
    conn.execute(f"{change} where type = 'execution_awaiting' and execution = {first}".encode())
    assert laws_of(conn) == {R6}


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ({**continue_as_new(on=0), "value": json.dumps([LONG])}, None),
        ({**AGAIN, "on": [0], "error": json.dumps({"type": "Boom", "message": LONG})}, {"type": "Boom"}),
    ],
    ids=["continued", "tried again"],
)
def test_what_a_generation_passes_on_may_be_large(
    conn: Connection, clock: Clock, end: Command, error: dict[str, str] | None
) -> None:
    """Arguments or an error that are stored apart are read as they were passed on: by the laws, by
    replay-check, and by durable.generations()."""
    story = begin_story(conn, clock, "r")
    first = story.execution
    story.report(end=end)
    assert laws_of(conn) == set()
    passed = end["value"] if error is None else end["error"]
    (outcome,) = ask(conn, ("select outcome from durable.journals_v1(array[%s::bigint])", (first,)))
    assert json.loads(outcome) == json.loads(passed)
    query = "select args, error from durable.generations('r') order by generation"
    rows = conn.execute(query).fetchall()
    assert rows[1][0] == json.loads(end["value"])
    assert rows[0][1] == (None if error is None else json.loads(passed))


@pytest.mark.parametrize("days", [90, 0], ids=["remembered", "forgotten"])
def test_the_promise_of_a_schedule_may_be_removed(conn: Connection, clock: Clock, days: int) -> None:
    """A schedule that fires seldom outlives its last promise, and the memory of it."""
    ask(conn, ("select durable.set_setting('removed_ids_days', %s)", (str(days),)))
    tags = '{"resonate:external": "true"}'
    plan = "select from durable.schedule_create('s', '@hourly', 'fired.{{.timestamp}}', 5, null, null, %s)"
    ask(conn, (plan, (tags,)))
    clock.advance(3_600_000)
    tick(conn)
    clock.advance(60_000)
    tick(conn)
    assert ask(conn, ("select promises from durable.purge('0')", ())) == (1,)
    assert laws_of(conn) == set()
    clock.advance(60_000)
    tick(conn)
    assert laws_of(conn) == set()


def test_a_claim_may_be_settled_by_hand(conn: Connection, clock: Clock) -> None:
    """Its promise is one like any other; whoever asks for the claim is told."""
    ask(conn, ("select durable.claim_acquire(sha256('k'), 'o', 60000)", ()))
    ask(conn, ("select durable.resolve((select id from durable._promises), '1')", ()))
    assert laws_of(conn) == set()


def test_a_run_may_be_rejected_without_an_error(conn: Connection, clock: Clock) -> None:
    """Whoever settles it by the protocol says what he likes, or nothing."""
    held = begin_run(conn, "r")
    ask(conn, ("select from durable.task_fulfill('r', %s, 'rejected')", (held.version,)))
    assert laws_of(conn) == set()
