"""Law: a run whose start is moved while it begins has begun, or begins later: it never does both."""

from __future__ import annotations

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.stages import states
from tests.support.verbs import Connection, ask, turn
from tests.system.races.drama import transaction
from tests.system.races.scenes import Endings, Scene, World, play_in_every_order


def at_its_instant(world: World) -> Scene:
    """A claim and two moves at the instant of a start."""
    id_ = world.name("a")
    queue = f"q-{world.id}"
    ask(world.conn, ("select durable.start('w', id => %s, queue => %s, delay => '1 s')", (id_, queue)))
    world.clock.advance(1_000)
    moves = [
        ("select durable.reschedule(%s, delay => %s::interval)", (id_, delay)) for delay in ("1 hour", "0")
    ]

    def judge(endings: Endings) -> None:
        refused = [error for name in ("later", "now") for error in endings[name].errors]
        assert set(refused) <= {"WF003"}
        assert endings["worker"].won
        state = states(world.conn)[id_]
        assert state in (("running",) if refused else ("running", "scheduled", "queued"))

    return Scene(
        programs={
            "later": transaction(moves[0]),
            "now": transaction(moves[1]),
            "worker": transaction(turn("W", want=5, queues=[queue])),
        },
        judge=judge,
    )


def test_it_begins_at_that_moment(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A claim passes over a run whose start is being moved; who moves a run that is being claimed waits, and
    is told that it has begun."""
    play_in_every_order(conn, clock, stage, at_its_instant)
