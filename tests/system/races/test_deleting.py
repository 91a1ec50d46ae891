"""Law: who deletes a run waits for nobody; of two who delete it one does, beside a fork too."""

from __future__ import annotations

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, begin_run, complete, report, take_turn
from tests.system.races.drama import transaction
from tests.system.races.scenes import Endings, Scene, World, play_in_every_order


def beside_others(world: World) -> Scene:
    """Two deletions of a run that has ended, beside a fork of it."""
    id_ = world.name("a")
    take_turn(world.conn, "W", report(begin_run(world.conn, id_), end=complete()))

    def judge(endings: Endings) -> None:
        told = [error for name in ("one", "other") for error in endings[name].errors]
        assert set(told) <= {"55P03", "WF001", "WF003"}
        assert set(endings["fork"].errors) <= {"WF001", "WF003"}
        there = ask(world.conn, ("select count(*) from durable._promises where id = %s", (id_,)))[0]
        gone = ask(world.conn, ("select count(*) from durable._removed where id = %s", (id_,)))[0]
        assert there + gone == 1
        assert gone == 1 or told

    return Scene(
        programs={
            "one": transaction(("select durable.delete(%s)", (id_,))),
            "other": transaction(("select durable.delete(%s)", (id_,))),
            "fork": transaction(("select outcome from durable.fork_many(%s, 'k')", ([id_],))),
        },
        judge=judge,
    )


def test_beside_others(conn: Connection, clock: Clock, stage: Stage) -> None:
    """Whatever the order, the run is there or gone, whole, and who was refused is told."""
    play_in_every_order(conn, clock, stage, beside_others)


def test_an_open_transaction_stops_nobody(conn: Connection, stage: Stage) -> None:
    """While somebody has a part of the run locked, it is refused at once as busy."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=complete()))
    user = stage.player("user")
    user.begin()
    user.do("select from durable._promises where id = 'r' for update")
    deleting = stage.player("hand").do("select durable.delete('r')")
    assert not deleting.blocked
    assert getattr(deleting.error, "sqlstate", None) == "55P03"
    user.do("rollback")
    assert ask(conn, ("select durable.delete('r')", ())) == (True,)
