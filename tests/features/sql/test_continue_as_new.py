"""Forks of runs that continue as new."""

from __future__ import annotations

from tests.core.sql.test_continue_as_new import generations, renew
from tests.support.clock import Clock
from tests.support.stories import begin_story
from tests.support.verbs import (
    Connection,
    Turn,
    ask,
    done,
    take_turn,
)


def test_a_fork_of_a_later_generation(conn: Connection, clock: Clock) -> None:
    """A fork begins with the input and the child numbers of the generation that it copies, and has no
    generation before it."""
    story = begin_story(conn, clock, "r", args="[1]")
    story.report(outcomes=[done(0)])
    renew(story, [2], 1)
    story.signal("s", 1)
    story.report(outcomes=[done(1, '"x"')])
    ask(conn, ("select durable.fork('r', new_id => 'f')", ()))
    assert generations(conn, "f") == [
        (
            1,
            "running",
            5,
            1,
            2,
            [2],
        )
    ]
    answer = Turn(raw=take_turn(conn, "W", want=1, queues=["q-r"]).raw)
    (task,) = answer.handed
    assert (task["param"], task["first_child"], [row[1] for row in task["rows"]]) == (
        "[2]",
        1,
        ["execution_started", "signal_delivered", "step_completed"],
    )
