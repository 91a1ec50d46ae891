"""Law: a request of cancellation meets turns, ends, births of children, sweeps and other requests in every
order; it reaches every live run of the family, and has an effect or is refused. So do pause and redrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.barrier import LIMIT_S, Player, Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    Held,
    Turn,
    ask,
    begin_run,
    cancel,
    cancelled,
    claim,
    complete,
    continue_as_new,
    done,
    promise,
    promise_of,
    report,
    run,
    settle,
    suspend,
    take_turn,
    task_of,
    turn,
    types_of,
)
from tests.system.races.drama import transaction
from tests.system.races.scenes import TICK, Endings, Scene, World, nobody_fails, play_in_every_order


def state(world: World, id_: str) -> str:
    """What people read of a run."""
    return str(ask(world.conn, ("select state from durable.runs where id = %s", (id_,)))[0])


def held_child(world: World, held: Held, child: int) -> Held:
    """A child run that worker K holds."""
    return claim(world.conn, "K", f"{world.id}-{child}")


def child(world: World, number: int) -> dict[str, Any]:
    """A command that starts a child run in a queue of its own."""
    return run(number, queue=f"{world.id}-{number}")


def misled(conn: Connection) -> list[tuple[Any, ...]]:
    """Children that their parent's request of cancellation should have reached and did not, or reached
    though they are its clean-up: what was live when the parent was asked is asked, and nothing later is."""
    return conn.execute(
        "select c.id, c.status, i.seq as born, q.seq as asked"
        " from durable._executions h"
        " join durable._journal q on q.execution = h.execution and q.type = 'cancel_requested'"
        " join durable._journal i on i.execution = h.execution and i.type = 'child_run_scheduled'"
        " join durable._executions c on c.id = h.id || '.' || i.child and not c.abandoned"
        " where exists (select from durable._journal r join durable._executions g using (execution)"
        "               where g.id = c.id and r.type = 'cancel_requested')"
        " <> (i.seq < q.seq and not exists (select from durable._journal d where d.execution = h.execution"
        "     and d.child = i.child and d.type in ('open_child_settled', 'child_settled') and d.seq < q.seq))"
    ).fetchall()


def cancel_against_suspend(world: World) -> Scene:
    """A run that goes to sleep while it is asked to end is ready, or held and replayed."""
    held = world.parent(promise(0))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        verdict = Turn(raw=endings["worker"].answer()).of(held)
        found = task_of(world.conn, world.id)
        if verdict == ("ok", "suspended"):
            assert (found, types_of(world.conn, world.id)) == (
                ("pending", 1, None),
                ["execution_started", "promise_registered", "execution_awaiting", "cancel_requested"],
            )
        else:
            assert verdict == ("stale", "acquired")
            assert (found, types_of(world.conn, world.id)) == (
                ("acquired", 1, "W"),
                ["execution_started", "promise_registered", "cancel_requested"],
            )

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "worker": transaction(turn("W", report(held, end=suspend(0)))),
        },
        judge=judge,
    )


def cancel_against_end(world: World) -> Scene:
    """Of a request and the run's own end the first counts: the request is refused, or the end replayed."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        verdict = Turn(raw=endings["worker"].answer()).of(held)
        if endings["hand"].won:
            assert (verdict, state(world, world.id)) == (("stale", "acquired"), "cancelling")
        else:
            assert endings["hand"].errors == ["WF003"]
            assert (verdict, state(world, world.id)) == (("ok", "done"), "completed")

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "worker": transaction(turn("W", report(held, outcomes=[done(0)], end=complete()))),
        },
        judge=judge,
    )


def force_against_end(world: World) -> Scene:
    """Of a forced end and the run's own the first counts, and the other is told."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        verdict = Turn(raw=endings["worker"].answer()).of(held)
        if endings["hand"].won:
            assert (verdict, state(world, world.id)) == (("lost", "lost"), "cancelled")
        else:
            assert endings["hand"].errors == ["WF003"]
            assert (verdict, state(world, world.id)) == (("ok", "done"), "completed")

    return Scene(
        programs={
            "hand": transaction(cancel(world.id, force=True)),
            "worker": transaction(turn("W", report(held, end=complete()))),
        },
        judge=judge,
    )


def grace_against_end(world: World) -> Scene:
    """At the end of the grace the run ends once, by its own clean-up or by the sweep."""
    held = world.parent()
    ask(world.conn, cancel(world.id, grace_ms=10))
    due = world.clock.advance(10)
    assert due

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        verdict = Turn(raw=endings["worker"].answer()).of(held)
        if verdict == ("lost", "lost"):
            assert state(world, world.id) == "cancelled"
        else:
            assert (verdict, state(world, world.id)) == (("ok", "done"), "completed")

    return Scene(
        programs={
            "sweep": transaction(TICK),
            "worker": transaction(turn("W", report(held, end=complete(), seen=held.next + 1))),
        },
        judge=judge,
    )


def cancel_against_births(world: World) -> Scene:
    """Children that are born while their parent is asked to end are asked too, and children of theirs."""
    held = world.parent(child(world, 1))
    kid = held_child(world, held, 1)
    births = turn("W", report(held, commands=[child(world, 2)]))
    more = turn("K", report(kid, commands=[child(world, 3)]))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        found = world.conn.execute(
            "select id, state from durable.runs where id = %s or id like %s", (world.id, f"{world.id}.%")
        ).fetchall()
        assert {word for _, word in found} <= {"cancelling", "cancelled"}, found

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "worker": transaction(births),
            "child": transaction(more),
        },
        judge=judge,
    )


def cancel_against_two_generations(world: World) -> Scene:
    """Children that are born while their parent's family is being cancelled are locked in the one order of
    locks, and either get the request or were born after it as clean-up."""
    held = world.parent(child(world, 1))
    kid = claim(world.conn, "W", f"{world.id}-1")
    births = [report(held, commands=[child(world, 2)]), report(kid, commands=[run(0, queue=f"{world.id}-1")])]
    seen = held.next + 9  # all there is, whatever came first
    clean_up = [
        report(held, commands=[child(world, 3)], seen=seen),
        report(kid, commands=[run(1)], seen=seen),
    ]

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        born = Turn(raw=endings["worker"].answer())
        assert born.of(held)[0] in ("ok", "stale")
        assert born.of(kid)[0] in ("ok", "stale", "lost")
        assert state(world, held.id) == "cancelling"
        cleaned = take_turn(world.conn, "W", *clean_up)
        assert cleaned.of(held)[0] == "ok"
        assert cleaned.of(kid)[0] == "lost"
        ask(world.conn, cancel(world.id))
        assert state(world, f"{held.id}.3") == "queued"
        assert not misled(world.conn)

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "worker": transaction(turn("W", *births)),
            "settler": transaction(settle(kid.id)),
        },
        judge=judge,
    )


def cancel_against_the_end_of_a_child(world: World) -> Scene:
    """A child that ends while its family is asked to end has ended, or is asked; its parent is ready."""
    held = world.parent(child(world, 0))
    kid = held_child(world, held, 0)
    take_turn(world.conn, "W", report(held, end=suspend(0), seen=held.next + 1))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        verdict = Turn(raw=endings["child"].answer()).of(kid)
        assert verdict in (("ok", "done"), ("stale", "acquired"))
        assert state(world, kid.id) == ("completed" if verdict[0] == "ok" else "cancelling")
        assert task_of(world.conn, world.id) == ("pending", 1, None)

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "child": transaction(turn("K", report(kid, end=complete()))),
        },
        judge=judge,
    )


def cancel_against_cancel(world: World) -> Scene:
    """Requests for a parent, its child and the parent again are one request each, and no circle of locks."""
    held = world.parent(child(world, 0))
    kid = held_child(world, held, 0)

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert state(world, world.id) == state(world, kid.id) == "cancelling"
        for id_ in (world.id, kid.id):
            assert types_of(world.conn, id_).count("cancel_requested") == 1

    return Scene(
        programs={
            "parent": transaction(cancel(world.id)),
            "child": transaction(cancel(kid.id)),
            "again": transaction(cancel(world.id, force=False)),
        },
        judge=judge,
    )


def cancel_against_deadline(world: World) -> Scene:
    """At its deadline a run has timed out or was asked before; nobody asks one that has ended."""
    held = begin_run(world.conn, world.id, timeout="5 seconds")
    due = world.clock.now_ms + 5_000

    def judge(endings: Endings) -> None:
        world.clock.set(due)
        ask(world.conn, TICK)
        assert endings["hand"].won or endings["hand"].errors == ["WF003"]
        assert state(world, held.id) == "timed_out"
        assert types_of(world.conn, held.id) == (
            ["execution_started", "cancel_requested", "execution_failed"]
            if endings["hand"].won
            else ["execution_started", "execution_failed"]
        )

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "sweep": [lambda: world.clock.set(due), TICK],
        },
        judge=judge,
    )


def cancel_against_generation(world: World) -> Scene:
    """A run that continues as new while it is asked to end is asked in its next generation, or replayed."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert state(world, world.id) == "cancelling"
        verdict = Turn(raw=endings["worker"].answer()).of(held)
        assert verdict in (("ok", "released"), ("stale", "acquired"))
        fresh = verdict[0] == "ok"
        assert (task_of(world.conn, world.id) or ("",))[0] == ("pending" if fresh else "acquired")

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "worker": transaction(turn("W", report(held, end=continue_as_new()))),
        },
        judge=judge,
    )


def cancel_against_claim(world: World) -> Scene:
    """A run that is claimed for the first time while it is asked to end is asked, or ended at once."""
    ask(world.conn, ("select durable.start('w', id => %s, queue => %s)", (world.id, f"q-{world.id}")))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        tasks = Turn(raw=endings["worker"].answer()).tasks
        assert state(world, world.id) == ("cancelling" if tasks else "cancelled")

    return Scene(
        programs={
            "hand": transaction(cancel(world.id)),
            "worker": transaction(turn("W", want=1, queues=[f"q-{world.id}"])),
        },
        judge=judge,
    )


def pause_against_turn(world: World) -> Scene:
    """A paused run has what its worker reported before, and nothing after."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        reported = Turn(raw=endings["worker"].answer()).of(held)[0] == "ok"
        assert types_of(world.conn, world.id) == (
            ["execution_started", "step_completed"] if reported else ["execution_started"]
        )
        assert state(world, world.id) == "paused"

    return Scene(
        programs={
            "hand": transaction(("select durable.pause(%s)", (world.id,))),
            "worker": transaction(turn("W", report(held, outcomes=[done(0)]))),
        },
        judge=judge,
    )


def pause_against_end(world: World) -> Scene:
    """A run that ends while it is paused has ended or is paused, and the loser is told."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        verdict = Turn(raw=endings["worker"].answer()).of(held)
        if endings["hand"].won:
            assert (verdict, state(world, world.id)) == (("lost", "lost"), "paused")
        else:
            assert endings["hand"].errors == ["WF003"]
            assert (verdict, state(world, world.id)) == (("ok", "done"), "completed")

    return Scene(
        programs={
            "hand": transaction(("select durable.pause(%s)", (world.id,))),
            "worker": transaction(turn("W", report(held, end=complete()))),
        },
        judge=judge,
    )


def redrive_against_settle(world: World) -> Scene:
    """Dead runs of one tree are revived while somebody settles one of them, without a circle of locks."""
    held = world.parent(run(0, queue=f"{world.id}-0", detached=True))
    kid = held_child(world, held, 0)
    crashed = '{"type": "Crashed"}'
    take_turn(world.conn, "W", report(held, end={"do": "halt", "problem": crashed}))
    take_turn(world.conn, "K", report(kid, end={"do": "halt", "problem": crashed}))
    redrive: Call = ("select durable.redrive()", ())

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert task_of(world.conn, held.id) == ("pending", 1, None)
        assert promise_of(world.conn, kid.id) == ("resolved", "1")

    return Scene(
        programs={
            "hand": transaction(redrive),
            "settler": transaction(settle(kid.id)),
            "again": transaction(redrive),
        },
        judge=judge,
    )


def clean_ups_against_each_other(world: World) -> Scene:
    """A parent and its child that both give in end both, whoever comes first."""
    held = world.parent(child(world, 0))
    kid = held_child(world, held, 0)
    ask(world.conn, cancel(world.id))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert state(world, held.id) == state(world, kid.id) == "cancelled"

    return Scene(
        programs={
            "worker": transaction(turn("W", report(held, end=cancelled(), seen=held.next + 9))),
            "child": transaction(turn("K", report(kid, end=cancelled(), seen=kid.next + 1))),
        },
        judge=judge,
    )


SCENES: list[Callable[[World], Scene]] = [
    cancel_against_suspend,
    cancel_against_end,
    force_against_end,
    grace_against_end,
    cancel_against_births,
    cancel_against_two_generations,
    cancel_against_the_end_of_a_child,
    cancel_against_cancel,
    cancel_against_deadline,
    cancel_against_generation,
    cancel_against_claim,
    pause_against_turn,
    pause_against_end,
    redrive_against_settle,
    clean_ups_against_each_other,
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """Every order of the sessions' statements and commits ends well; the scene's docstring is the law."""
    play_in_every_order(conn, clock, stage, scene)


def test_a_child_that_the_first_look_missed(conn: Connection, stage: Stage) -> None:
    """A request that waits for the parent's turn looks again and asks the children of that turn."""
    held = begin_run(conn, "r")
    worker, hand = stage.player("worker"), stage.player("hand")
    worker.begin()
    worker.do(*turn("W", report(held, commands=[run(0, queue="kids")]))).rows()
    asked = hand.do(*cancel("r"))
    assert asked.blocked
    worker.commit().rows()
    assert asked.rows() == [("cancelling", False)]
    assert ask(conn, ("select state from durable.runs where id = 'r.0'", ())) == ("cancelled",)


def waits_for(stage: Stage, player: Player, other: Player) -> None:
    """Come back when one player waits for the other: whom a commit sets free goes on in its own time, and
    rows do not keep the order of those who wait."""
    end = time.monotonic() + LIMIT_S
    while stage.blockers(player.pid) != [other.pid]:
        assert time.monotonic() < end, f"{player.name} does not wait for {other.name}"


def test_a_family_that_grew_is_locked_again_in_order(conn: Connection, stage: Stage) -> None:
    """A child that the second look finds is locked together with the others and in their order: who settles
    it at this moment and a request that has the parent's locks do not wait for each other in a circle."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids")]))
    kid = claim(conn, "K", "kids")
    worker, hand, gate, settler = (stage.player(name) for name in ("worker", "hand", "gate", "settler"))
    gate.begin()
    gate.do("select from durable._executions where execution = %s for update", (kid.execution,)).rows()
    worker.begin()
    worker.do(*turn("W", report(held, commands=[run(1, queue="kids")], seen=held.next + 1))).rows()
    asked = hand.do(*cancel("r"))
    assert asked.blocked
    worker.commit().rows()
    waits_for(stage, hand, gate)
    settled = settler.do(*settle("r.1"))
    waits_for(stage, settler, hand)
    gate.commit().rows()
    assert settled.value() == "resolved"
    assert asked.rows() == [("cancelling", False)]
    assert types_of(conn, kid.id) == ["execution_started", "cancel_requested"]
    assert types_of(conn, "r.1") == ["execution_started", "execution_completed"]
    assert not misled(conn)


def test_every_look_finds_another_generation(conn: Connection, stage: Stage) -> None:
    """A request that starts over keeps no lock of the try before: runs of the family go on and have children,
    however often, and all of them are asked in the end."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="first")]))
    hand, worker = stage.player("hand"), stage.player("worker")
    gates = [stage.player(f"gate {number}") for number in range(3)]
    shut = "select from durable._promises where id = %s for no key update"
    family, parent, seen = [held], claim(conn, "W", "first"), held.next + 1
    gates[0].begin()
    gates[0].do(shut, (parent.id,)).rows()
    asked = hand.do(*cancel("r"))
    for number, gate in enumerate(gates):
        waits_for(stage, hand, gate)
        births = worker.do(
            *turn(
                "W",
                report(held, commands=[run(number + 1, queue="others")], seen=seen),
                report(parent, commands=[run(0, queue=f"next-{number}")]),
            )
        )
        answer = Turn(raw=births.value())
        assert [answer.of(each)[0] for each in (held, parent)] == ["ok", "ok"]
        family.append(parent)
        seen, parent = seen + 1, claim(conn, "W", f"next-{number}")
        for following in gates[number + 1 : number + 2]:
            following.begin()
            following.do(shut, (parent.id,)).rows()
        gate.commit().rows()
    assert asked.rows() == [("cancelling", False)]
    for each in (*family, parent):
        assert types_of(conn, each.id).count("cancel_requested") == 1
    assert not misled(conn)


def test_a_generation_that_the_first_look_missed(conn: Connection, stage: Stage) -> None:
    """A request that waits for a run which continues as new asks the next generation and its children; those
    of the generation before go on by themselves."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="old")]))
    worker, hand = stage.player("worker"), stage.player("hand")
    worker.begin()
    worker.do(*turn("W", report(held, end=continue_as_new(on=1), seen=held.next + 1))).rows()
    fresh = Turn(raw=worker.do(*turn("W", want=1, queues=["q-r"])).value()).tasks[0]
    worker.do(*turn("W", report(fresh, commands=[run(1, queue="new")]))).rows()
    asked = hand.do(*cancel("r"))
    assert asked.blocked
    worker.commit().rows()
    assert asked.rows() == [("cancelling", False)]
    found = conn.execute("select id, state from durable.runs order by id").fetchall()
    assert found == [("r", "cancelling"), ("r.0", "queued"), ("r.1", "cancelled")]
    assert not misled(conn)


def test_a_parent_asks_in_the_order_of_locks(conn: Connection, stage: Stage) -> None:
    """A request for a family and a turn that ends a child of it and has its parent in another report do not
    wait for each other in a circle."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids"), run(1, queue="kids")]))
    kids = take_turn(conn, "W", want=2, queues=["kids"]).tasks
    worker, hand = stage.player("worker"), stage.player("hand")
    hand.begin()
    hand.do(*cancel("r")).rows()
    ended = worker.do(*turn("W", *(report(kid, end=complete()) for kid in kids), report(held)))
    assert not ended.blocked
    answer = Turn(raw=ended.value())
    assert [answer.of(one)[0] for one in (*kids, held)] == ["busy", "busy", "busy"]
    hand.commit().rows()
    answer = take_turn(conn, "W", *(report(kid, end=complete()) for kid in kids), report(held))
    assert [answer.of(kid)[0] for kid in kids] == ["stale", "stale"]
    assert answer.of(held) == ("ok", "acquired")
