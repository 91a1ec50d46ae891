"""Law: a settlement races suspends, deadlines, other verdicts and its own parent, in every order; there is
one verdict, which everybody is told, and nobody is left asleep.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Turn,
    ask,
    claim,
    complete,
    create,
    park,
    promise,
    promise_of,
    release,
    report,
    run,
    settle,
    suspend,
    take_turn,
    task_of,
    timer,
    turn,
)
from tests.system.races.drama import transaction
from tests.system.races.scenes import TICK, Endings, Scene, World, nobody_fails, play_in_every_order


def settle_against_suspend(world: World) -> Scene:
    """A task that suspends while its promise settles is woken or told to go on."""
    task, awaited = world.task("t"), world.name("x")
    ask(world.conn, create(awaited, external="true"))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        parked = endings["waiter"].answer()
        assert task_of(world.conn, task) == (("pending", 1, None) if parked else ("acquired", 1, "P"))

    return Scene(
        programs={"settler": transaction(settle(awaited)), "waiter": transaction(park(task, awaited))},
        judge=judge,
    )


def settle_against_suspend_of_a_run(world: World) -> Scene:
    """A turn that suspends a run while its child settles leaves it ready or held, never asleep."""
    held = world.parent(promise(0))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        state = Turn(raw=endings["worker"].answer()).of(held)[1]
        found = task_of(world.conn, held.id)
        assert found in (("pending", 1, None), ("acquired", 1, "W")), found
        assert (state == "acquired") == (found[0] == "acquired")

    return Scene(
        programs={
            "settler": transaction(settle(f"{held.id}.0")),
            "worker": transaction(turn("W", report(held, end=suspend(0)))),
        },
        judge=judge,
    )


def two_children_against_a_parent(kind: str) -> Callable[[World], Scene]:
    """Children that complete in turns of other workers while the parent suspends wake it when its wait is
    satisfied."""

    def scene(world: World) -> Scene:
        held = world.parent(run(0, queue=f"{world.id}-a"), run(1, queue=f"{world.id}-b"))
        kids = {name: claim(world.conn, name, f"{world.id}-{name.lower()}") for name in ("A", "B")}
        look = take_turn(world.conn, "W", report(held))
        seen = look.next_of(held)

        def judge(endings: Endings) -> None:
            nobody_fails(endings)
            assert task_of(world.conn, held.id) in (("pending", 1, None), ("acquired", 1, "W"))
            assert {promise_of(world.conn, kid.id) for kid in kids.values()} == {("resolved", '"done"')}

        return Scene(
            programs={
                "A": transaction(turn("A", report(kids["A"], end=complete()))),
                "B": transaction(turn("B", report(kids["B"], end=complete()))),
                "W": transaction(turn("W", report(held, end=suspend(0, 1, kind=kind), seen=seen))),
            },
            judge=judge,
        )

    scene.__name__ = f"two_children_against_a_parent_that_waits_for_{kind}"
    return scene


def settle_against_settle(world: World) -> Scene:
    """The first verdict stays, and both are told it."""
    awaited = world.name("x")
    ask(world.conn, create(awaited, external="true"))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert {ending.answers[0][0] for ending in endings.values()} == {promise_of(world.conn, awaited)}

    return Scene(
        programs={
            "yes": transaction(settle(awaited, '"yes"')),
            "no": transaction(settle(awaited, '"no"', state="rejected")),
            "cancel": transaction(settle(awaited, '"off"', state="rejected_canceled")),
        },
        judge=judge,
    )


def settle_against_deadline(world: World) -> Scene:
    """Nobody is told "timed out" of a promise that then resolves, or the other way round."""
    awaited = world.name("x")
    ask(world.conn, create(awaited, world.clock.now_ms + 1000, external="true"))
    task = world.task("t")
    ask(world.conn, park(task, awaited))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        state, value = promise_of(world.conn, awaited) or ("", "")
        assert (state, value) in (("resolved", "1"), ("rejected_timedout", None))
        assert endings["settler"].answers[0][0][0] == state
        seen = endings["reader"].answers[0][0][0]
        assert seen == state or seen == "pending"
        take_turn(world.conn, "S")
        ask(world.conn, TICK)
        assert task_of(world.conn, task) == ("pending", 1, None)

    return Scene(
        programs={
            "settler": transaction(settle(awaited)),
            "time": [lambda: world.clock.advance(1000)],
            "reader": transaction(("select state from durable.promise_get(%s)", (awaited,))),
            "sweep": [TICK],
        },
        judge=judge,
    )


def results_against_settle_at_the_deadline(world: World) -> Scene:
    """A client that asks for results at the deadline, while a settle is under way, is told what is stored."""
    awaited = world.name("x")
    ask(world.conn, create(awaited, world.clock.now_ms + 1000, external="true"))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        state = (promise_of(world.conn, awaited) or ("",))[0]
        assert endings["settler"].answers[0][0][0] == state
        told = [rows[0][0] for rows in endings["reader"].answers]
        assert told in ([], [state])

    return Scene(
        programs={
            "settler": transaction(settle(awaited)),
            "time": [lambda: world.clock.advance(1000)],
            "reader": transaction(("select state from durable.results_v1(%s)", ([awaited],))),
        },
        judge=judge,
    )


def halt_and_continue_against_settle(world: World) -> Scene:
    """A wake that falls into a halt is kept for when the run goes on."""
    held = world.parent(promise(0))
    take_turn(world.conn, "W", report(held, end=suspend(0)))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert task_of(world.conn, held.id) == ("pending", 1, None)
        again = claim(world.conn, "V", f"q-{world.id}")
        assert [row[1] for row in again.rows] == [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ]

    return Scene(
        programs={
            "hand": [
                *transaction(("select durable.task_halt(%s)", (held.id,))),
                *transaction(("select durable.task_continue(%s)", (held.id,))),
            ],
            "settler": transaction(settle(f"{held.id}.0")),
        },
        judge=judge,
    )


def release_against_settle(world: World) -> Scene:
    """A run that goes back until later is woken at once by a child that settles meanwhile."""
    held = world.parent(promise(0))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert claim(world.conn, "V", f"q-{world.id}").id == held.id

    return Scene(
        programs={
            "worker": transaction(turn("W", report(held, end=release(60_000)))),
            "settler": transaction(settle(f"{held.id}.0")),
        },
        judge=judge,
    )


def timer_against_suspend(world: World) -> Scene:
    """A timer that fires while its run suspends wakes it, whoever sweeps."""
    held = world.parent(timer(0, 1000))
    world.clock.advance(1000)

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        ask(world.conn, TICK)
        assert (task_of(world.conn, held.id) or ("",))[0] in ("pending", "acquired")

    return Scene(
        programs={
            "worker": transaction(turn("W", report(held, end=suspend(0)))),
            "sweep": transaction(TICK),
            "other": transaction(TICK),
        },
        judge=judge,
    )


def fence_settle_against_settle(world: World) -> Scene:
    """A fenced settle and a plain one of the same promise do not block each other for ever, and one verdict
    stays."""
    task, awaited = world.task("t"), world.name("x")
    other = world.task("o")
    ask(world.conn, create(awaited, external="true"))
    ask(world.conn, park(other, awaited))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert task_of(world.conn, other) == ("pending", 1, None)
        assert {ending.answers[0][0] for name, ending in endings.items() if name != "sweep"} == {
            promise_of(world.conn, awaited)
        }

    return Scene(
        programs={
            "fenced": transaction(
                (
                    "select state, value_data from durable.task_fence_settle(%s, 1, %s, 'rejected', '2')",
                    (task, awaited),
                )
            ),
            "plain": transaction(settle(awaited)),
            "sweep": transaction(TICK),
        },
        judge=judge,
    )


def parent_settles_against_child(world: World) -> Scene:
    """A child that completes while somebody cancels its parent is done, whether the parent's journal still
    tells it or not."""
    held = world.parent(run(0, queue=f"{world.id}-a"))
    kid = claim(world.conn, "A", f"{world.id}-a")

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert promise_of(world.conn, kid.id) == ("resolved", '"done"')
        assert (promise_of(world.conn, held.id) or ("",))[0] == "rejected_canceled"

    return Scene(
        programs={
            "A": transaction(turn("A", report(kid, end=complete()))),
            "hand": transaction(settle(held.id, state="rejected_canceled")),
            "W": transaction(turn("W", report(held, end=suspend(0), seen=held.next + 1))),
        },
        judge=judge,
    )


SCENES: list[Callable[[World], Scene]] = [
    settle_against_suspend,
    settle_against_suspend_of_a_run,
    *(two_children_against_a_parent(kind) for kind in ("any", "all")),
    settle_against_settle,
    settle_against_deadline,
    results_against_settle_at_the_deadline,
    halt_and_continue_against_settle,
    release_against_settle,
    timer_against_suspend,
    fence_settle_against_settle,
    parent_settles_against_child,
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """Every order of the sessions' statements and commits ends well; the scene's docstring is the law."""
    play_in_every_order(conn, clock, stage, scene)
