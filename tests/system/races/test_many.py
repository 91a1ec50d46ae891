"""Law: two verbs for many, whatever ids they name and in whatever order, wait for each other in no circle;
nor do they and the turns of a worker. Whatever the order, each run is as if one of them had come first."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement, pairwise

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.stages import states
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    claim,
    complete,
    done,
    promise,
    release,
    report,
    run,
    send,
    start,
    suspend,
    take_turn,
    turn,
)
from tests.system.races.drama import transaction
from tests.system.races.scenes import TICK, Endings, Scene, World, nobody_fails, play_in_every_order

Many = Callable[[list[str]], Call]
VERBS: dict[str, Many] = {
    "signal": lambda ids: ("select id, outcome from durable.signal_many(%s, 'go', '1')", (ids,)),
    "cancel": lambda ids: ("select id, outcome from durable.cancel_many(%s)", (ids,)),
    "force": lambda ids: ("select id, outcome from durable.cancel_many(%s, force => true)", (ids,)),
    "pause": lambda ids: ("select id, outcome from durable.pause_many(%s)", (ids,)),
    "resume": lambda ids: ("select id, outcome from durable.resume_many(%s)", (ids,)),
    "redrive": lambda ids: ("select id, outcome from durable.redrive_many(%s)", (ids,)),
    "settle": lambda ids: ("select id, outcome from durable.settle_many(%s)", (ids,)),
}
# a run is not settled from outside
WORDS = {"done", "already", "ended", "refused"}


def outcomes(endings: Endings, name: str) -> list[str]:
    """What a verb said of its ids."""
    return [outcome for _, outcome in endings[name].answers[-1]]


def crossed(one: str, other: str) -> Callable[[World], Scene]:
    """Two verbs for the same runs, in crossed order, each in a transaction that stays open for a while."""

    def scene(world: World) -> Scene:
        ids = [world.name(part) for part in "abc"]
        for id_ in ids[:2]:
            begin_run(world.conn, id_)
        ask(world.conn, start(ids[2]))

        def judge(endings: Endings) -> None:
            nobody_fails(endings)
            assert set(outcomes(endings, "one") + outcomes(endings, "other")) <= WORDS

        return Scene(
            programs={
                "one": transaction(VERBS[one](ids)),
                "other": transaction(VERBS[other](ids[::-1])),
            },
            judge=judge,
        )

    scene.__name__ = f"{one} and {other}"
    return scene


def beside_turns(verb: str) -> Callable[[World], Scene]:
    """Two verbs beside a worker that ends one of the runs and suspends the other."""

    def scene(world: World) -> Scene:
        first, second = begin_run(world.conn, world.name("a")), begin_run(world.conn, world.name("b"))
        answer = take_turn(world.conn, "W", report(second, commands=[promise(0)]))
        ends = (
            report(second, end=suspend(0), seen=answer.next_of(second)),
            report(first, end=complete()),
        )
        ids = [second.id, first.id]
        if verb == "settle":
            ids = [f"{second.id}.0", first.id]

        def judge(endings: Endings) -> None:
            nobody_fails(endings)
            assert set(outcomes(endings, "hand")) <= WORDS
            assert {len(outcomes(endings, name)) for name in ("hand", "again")} == {2}

        return Scene(
            programs={
                "hand": transaction(VERBS[verb](ids)),
                "worker": transaction(turn("W", *ends)),
                "again": transaction(VERBS[verb](ids[::-1])),
            },
            judge=judge,
        )

    scene.__name__ = f"{verb} beside turns"
    return scene


def beside_a_family(world: World) -> Scene:
    """A child that ends while its parent and it are cancelled as many has ended, or is asked."""
    held = world.parent(run(0, queue=f"q-{world.id}"), promise(1))
    kid = claim(world.conn, "K", f"q-{world.id}")

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert set(outcomes(endings, "hand") + outcomes(endings, "other")) <= WORDS
        assert states(world.conn)[held.id] == "cancelling"

    return Scene(
        programs={
            "hand": transaction(VERBS["cancel"]([kid.id, held.id])),
            "child": transaction(turn("K", report(kid, end=complete()))),
            "other": transaction(VERBS["settle"]([f"{held.id}.1", kid.id])),
        },
        judge=judge,
    )


def past_deadlines(world: World) -> Scene:
    """Runs past their deadline are settled once, by a verb for many, by its like or by the sweep."""
    ids = [world.name(part) for part in "abc"]
    for id_ in ids[:2]:
        begin_run(world.conn, id_, timeout="5 seconds")
    begin_run(world.conn, ids[2])
    world.clock.advance(5_000)

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert outcomes(endings, "one") == ["ended", "ended", "done"]
        assert outcomes(endings, "other")[1:] == ["ended", "ended"]
        found = states(world.conn)
        assert [found[id_] for id_ in ids[:2]] == ["timed_out", "timed_out"]

    return Scene(
        programs={
            "one": transaction(VERBS["signal"](ids)),
            "other": transaction(VERBS["pause"](ids[::-1])),
            "sweep": transaction(TICK),
        },
        judge=judge,
    )


NAMES = list(VERBS)
# each with itself and with the next one; any two with --full
NEXT = {*zip(NAMES, NAMES, strict=True), *pairwise(NAMES)}
CROSSED = [
    pytest.param(crossed(*pair), marks=[] if pair in NEXT else [pytest.mark.full])
    for pair in combinations_with_replacement(NAMES, 2)
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("scene", CROSSED)
def test_crossed(conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]) -> None:
    """Any two verbs for the same runs, in crossed order: one waits, and both are done."""
    play_in_every_order(conn, clock, stage, scene)


@pytest.mark.sample(3)
@pytest.mark.parametrize("scene", [*(beside_turns(verb) for verb in VERBS), beside_a_family, past_deadlines])
def test_three(conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]) -> None:
    """Two verbs in crossed order beside a turn, a family or the sweep."""
    play_in_every_order(conn, clock, stage, scene)


def test_a_single_verb_waits_for_the_transaction_of_another(conn: Connection, stage: Stage) -> None:
    """Who signals two runs one by one holds the first while he waits for the second; so two who cross wait
    for each other, which is what the verbs for many are for."""
    for id_ in ("x", "y"):
        begin_run(conn, id_)
    one, other = stage.player("one"), stage.player("other")
    for player, first in ((one, "x"), (other, "y")):
        player.do("begin")
        player.do(*send(first))
    waiting = one.do(*send("y"))
    assert waiting.blocked
    other.do("rollback")
    assert waiting.value() == 1
    one.do("rollback")


CREW = 12


def storm(dsn: str, seed: int, rounds: int) -> int:
    """One session that calls verbs for many with ids drawn by lot; return how many ids got an outcome."""
    lot, told = random.Random(seed), 0
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set deadlock_timeout = '10ms'")
        for _ in range(rounds):
            ids = [f"r{number}" for number in lot.sample(range(CREW), 6)]
            verb = lot.choice(["signal", "pause", "resume", "signal"])
            told += len(conn.execute(*encoded(VERBS[verb](ids))).fetchall())
    return told


def work(dsn: str, rounds: int) -> int:
    """A worker that takes what it can get and reports a step of each run by one turn; return how many."""
    steps = 0
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set deadlock_timeout = '10ms'")
        for number in range(rounds):
            answer = take_turn(conn, "V", want=CREW, queues=["default"])
            steps += len(answer.tasks)
            take_turn(
                conn, "V", *(report(held, outcomes=[done(number)], end=release()) for held in answer.tasks)
            )
    return steps


def encoded(call: Call) -> tuple[bytes, object]:
    """A call as psycopg takes it."""
    return call[0].encode(), call[1]


def test_a_storm_beside_turns(conn: Connection, dsn: str, seed: int) -> None:
    """Three sessions with ids drawn by lot, and a worker that carries them all in one turn: no deadlock."""
    for number in range(CREW):
        ask(conn, start(f"r{number}"))
    with ThreadPoolExecutor(4) as pool:
        sessions = [pool.submit(storm, dsn, seed + number, 40) for number in range(3)]
        worker = pool.submit(work, dsn, 40)
        assert [session.result() for session in sessions] == [240, 240, 240]
        assert worker.result() > 0
