"""Law: the cancellation of a child run that its parent has left meets ends, births and other ticks in every
order: it reaches what is live, once, and nobody waits in a circle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.sql.test_workers_rules import hello
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Held,
    Turn,
    ask,
    begin_run,
    cancel,
    claim,
    complete,
    report,
    run,
    suspend,
    take_turn,
    task_of,
    turn,
    types_of,
)
from tests.system.races.drama import transaction
from tests.system.races.scenes import TICK, Endings, Scene, World, nobody_fails, play_in_every_order

DYING = ("cancelling", "cancelled")


def state(world: World, id_: str) -> str:
    """What people read of a run."""
    return str(ask(world.conn, ("select state from durable.runs where id = %s", (id_,)))[0])


def left_child(world: World) -> tuple[Held, Held]:
    """A suspended parent that has left its child 0, which worker K holds; and the child."""
    hello(world.conn)
    held = world.parent(run(0, queue=f"{world.id}-0"))
    kid = claim(world.conn, "K", f"{world.id}-0")
    answer = take_turn(
        world.conn,
        "W",
        report(held, commands=[{"do": "cancel", "child": 0}], end=suspend(0)),
    )
    assert answer.of(held) == ("ok", "suspended")
    return held, kid


def against_its_end(world: World) -> Scene:
    """A child that ends at that moment has ended, or is asked and replays; its parent is ready, or waits."""
    held, kid = left_child(world)

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        ask(world.conn, TICK)
        verdict = Turn(raw=endings["child"].answer()).of(kid)
        if verdict == ("ok", "done"):
            assert task_of(world.conn, held.id) == ("pending", 1, None)
        else:
            assert (verdict, state(world, kid.id)) == (("stale", "acquired"), "cancelling")
        assert types_of(world.conn, kid.id).count("cancel_requested") == (verdict[0] == "stale")

    return Scene(
        programs={
            "sweep": transaction(TICK),
            "child": transaction(turn("K", report(kid, end=complete()))),
        },
        judge=judge,
    )


def against_births(world: World) -> Scene:
    """A run that the child starts at that moment is asked too, or the report that starts it is refused."""
    _, kid = left_child(world)
    born = run(0, queue=f"{world.id}-00")

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        ask(world.conn, TICK)
        assert state(world, kid.id) == "cancelling"
        if Turn(raw=endings["child"].answer()).of(kid)[0] == "ok":
            assert state(world, f"{kid.id}.0") in DYING
        else:
            assert task_of(world.conn, f"{kid.id}.0") is None

    return Scene(
        programs={
            "sweep": transaction(TICK),
            "child": transaction(turn("K", report(kid, commands=[born]))),
        },
        judge=judge,
    )


def against_others(world: World) -> Scene:
    """Two ticks and a cancellation by hand make one request."""
    held, kid = left_child(world)

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert state(world, held.id) == state(world, kid.id) == "cancelling"
        assert types_of(world.conn, kid.id).count("cancel_requested") == 1

    return Scene(
        programs={
            "sweep": transaction(TICK),
            "again": transaction(TICK),
            "hand": transaction(cancel(held.id)),
        },
        judge=judge,
    )


def against_the_deadline(world: World) -> Scene:
    """A parent that passes its deadline while its child reports leaves none that nobody ends."""
    hello(world.conn)
    held = begin_run(world.conn, world.id, timeout="5 seconds")
    take_turn(world.conn, "W", report(held, commands=[run(0, queue=f"{world.id}-0")]))
    kid = claim(world.conn, "K", f"{world.id}-0")
    born = run(0, queue=f"{world.id}-00")
    due = world.clock.now_ms + 5_000

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        ask(world.conn, TICK)
        assert (state(world, held.id), state(world, kid.id)) == ("timed_out", "cancelling")
        if Turn(raw=endings["child"].answer()).of(kid)[0] == "ok":
            assert state(world, f"{kid.id}.0") in DYING

    return Scene(
        programs={
            "sweep": [lambda: world.clock.set(due), TICK],
            "child": transaction(turn("K", report(kid, commands=[born]))),
        },
        judge=judge,
    )


SCENES: list[Callable[[World], Scene]] = [
    against_its_end,
    against_births,
    against_others,
    against_the_deadline,
]


@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """However their statements and commits interleave."""
    play_in_every_order(conn, clock, stage, scene)


def test_what_is_locked_is_asked_again(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A tick waits for nobody: a run that somebody has locked is named, and asked by the next one."""
    world = World(conn=conn, clock=clock, id="s")
    _, kid = left_child(world)
    take_turn(conn, "K", report(kid, commands=[run(0, queue="q")]))
    user = stage.player("user")
    user.begin()
    user.do("select from durable._tasks where id = 's.0.0' for update").rows()
    assert ask(conn, TICK)[0]["locked"] == ["s.0.0"]
    assert (state(world, "s.0"), state(world, "s.0.0")) == ("cancelling", "queued")
    user.commit().rows()
    ask(conn, TICK)
    assert state(world, "s.0.0") == "cancelled"
