"""Law: a signal meets suspends, turns, ends, requests of cancellation, generations and other signals in every
order; it is delivered once, received once, and nobody whom it could wake is left asleep. So is the end of a
promise that a run adopts meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Turn,
    adopt,
    ask,
    cancel,
    claim,
    complete,
    continue_as_new,
    create,
    promise,
    promise_of,
    receive,
    release,
    report,
    send,
    settle,
    suspend,
    take_turn,
    task_of,
    timer,
    turn,
    types_of,
)
from tests.system.races.drama import transaction
from tests.system.races.scenes import (
    TICK,
    Endings,
    Scene,
    World,
    nobody_fails,
    one_winner,
    play_in_every_order,
)

READY_OR_HELD = (("pending", 1, None), ("acquired", 1, "W"))


def awake(world: World, endings: Endings) -> None:
    """The run is ready or held, and its worker believes what is true."""
    found = task_of(world.conn, world.id)
    assert found in READY_OR_HELD, found
    if "worker" in endings:
        about = Turn(raw=endings["worker"].answer()).raw["verdicts"]
        assert (about["state"] == ["acquired"]) == (found[0] == "acquired" if found else False)


def signal_against_suspend(world: World) -> Scene:
    """A run that goes to sleep over a receive while the signal comes is woken or does not sleep; the signal
    is received once."""
    held = world.parent(receive(0))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        awake(world, endings)
        assert types_of(world.conn, world.id).count("signal_received") == 1

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "worker": transaction(turn("W", report(held, end=suspend(0, kind="signal")))),
        },
        judge=judge,
    )


def signal_against_receive(world: World) -> Scene:
    """A signal that comes in the turn that begins to receive lies there or finds the receiver."""
    held = world.parent()
    worker = turn("W", report(held, commands=[receive(0)], end=suspend(0, kind="signal")))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        awake(world, endings)
        assert types_of(world.conn, world.id) in (
            ["execution_started", "signal_delivered", "signal_received"],
            [
                *("execution_started", "execution_awaiting", "signal_delivered"),
                *("signal_received", "execution_resumed"),
            ],
        )
        assert endings["sender"].answers[0][0][:2] == (1, True)

    return Scene(programs={"sender": transaction(send(world.id)), "worker": transaction(worker)}, judge=judge)


def signal_against_release(world: World) -> Scene:
    """A run that is put off while its signal comes is not put off."""
    held = world.parent(receive(0))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert task_of(world.conn, world.id) == ("pending", 1, None)
        assert claim(world.conn, "V", f"q-{world.id}").rows[-1][1] == "signal_received"

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "worker": transaction(turn("W", report(held, end=release(60_000)))),
        },
        judge=judge,
    )


def signals_against_each_other(world: World) -> Scene:
    """Signals of one name get numbers one after the other, the same key gets one; the run is woken once."""
    held = world.parent(receive(0))
    take_turn(world.conn, "W", report(held, end=suspend(0, kind="signal")))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        numbers = {name: ending.answers[0][0] for name, ending in endings.items()}
        assert numbers["one"][0] == numbers["same"][0]
        assert numbers["one"][1] is not numbers["same"][1]
        assert {numbers["one"][0], numbers["other"][0]} == {1, 2}
        assert sum(woken for _, _, woken in numbers.values()) == 1
        assert types_of(world.conn, world.id) == [
            *("execution_started", "execution_awaiting", "signal_delivered", "signal_received"),
            *("execution_resumed", "signal_delivered"),
        ]

    return Scene(
        programs={
            "one": transaction(send(world.id, key="k")),
            "same": transaction(send(world.id, key="k")),
            "other": transaction(send(world.id, key="l")),
        },
        judge=judge,
    )


def signal_against_end(world: World) -> Scene:
    """A signal to a run that ends at this moment was delivered before it, or is refused."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        assert endings["worker"].won
        assert endings["sender"].won or endings["sender"].errors == ["WF003"]
        delivered = ["signal_delivered"] if endings["sender"].won else []
        expected = ["execution_started", *delivered, "execution_completed"]
        assert types_of(world.conn, world.id) == expected

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "worker": transaction(turn("W", report(held, end=complete()))),
        },
        judge=judge,
    )


def signal_against_generation(world: World) -> Scene:
    """A signal to a run that continues as new reaches the next generation, numbered from 1, once."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        row = ask(
            world.conn,
            (
                "select i.delivered, i.received, i.backlog_upto, "
                "(select count(*) from durable._signals s where s.execution = p.head), "
                "(select count(*) from durable._backlog b where b.id = p.id) "
                "from durable._promises p join durable._inboxes i on i.execution = p.head where p.id = %s",
                (world.id,),
            ),
        )
        # it lies in the backlog, or was delivered after the generation had begun
        assert row in ((0, 0, 1, 0, 1), (1, 0, None, 1, 0))
        fresh = claim(world.conn, "W", f"q-{world.id}")
        answer = take_turn(world.conn, "W", report(fresh, commands=[receive(0)]))
        assert answer.tail(fresh)[-1][6] == "1"
        assert types_of(world.conn, world.id).count("signal_received") == 1

    return Scene(
        programs={
            "sender": transaction(send(world.id, key="k")),
            "worker": transaction(turn("W", report(held, end=continue_as_new()))),
        },
        judge=judge,
    )


def signal_against_cancel(world: World) -> Scene:
    """A signal and a request of cancellation that meet are both in the journal, and the run is ready."""
    held = world.parent(receive(0))
    take_turn(world.conn, "W", report(held, end=suspend(0, kind="signal")))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert types_of(world.conn, world.id) in (
            [
                *("execution_started", "execution_awaiting", "signal_delivered", "signal_received"),
                *("execution_resumed", "cancel_requested"),
            ],
            ["execution_started", "execution_awaiting", "cancel_requested", "signal_delivered"],
        )
        assert task_of(world.conn, world.id) == ("pending", 1, None)

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "hand": transaction(cancel(world.id)),
        },
        judge=judge,
    )


def signal_against_settle(world: World) -> Scene:
    """A wait for a signal and a promise ends with the second of them, whichever that is."""
    held = world.parent(receive(0), promise(1))
    answer = take_turn(world.conn, "W", report(held, end=suspend(0, 1, kind="all")))
    assert answer.of(held) == ("ok", "suspended")

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert task_of(world.conn, world.id) == ("pending", 1, None)
        assert types_of(world.conn, world.id) in (
            [
                *("execution_started", "promise_registered", "execution_awaiting", "child_settled"),
                *("signal_delivered", "signal_received", "execution_resumed"),
            ],
            [
                *("execution_started", "promise_registered", "execution_awaiting", "signal_delivered"),
                *("signal_received", "child_settled", "execution_resumed"),
            ],
        )

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "settler": transaction(settle(f"{world.id}.1")),
        },
        judge=judge,
    )


def signal_against_timeout(world: World) -> Scene:
    """A receive with a timeout gets the signal or the timer first, and both end in the journal; the run is
    woken once."""
    held = world.parent(receive(0), timer(1, 1_000))
    take_turn(world.conn, "W", report(held, end=suspend(0, 1, kind="any")))
    due = world.clock.now_ms + 1_000

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        world.clock.set(due)
        take_turn(world.conn, "V")
        ask(world.conn, TICK)
        types = types_of(world.conn, world.id)
        assert types in (
            [
                *("execution_started", "timer_scheduled", "execution_awaiting", "signal_delivered"),
                *("signal_received", "execution_resumed", "timer_fired"),
            ],
            [
                *("execution_started", "timer_scheduled", "execution_awaiting", "timer_fired"),
                *("execution_resumed", "signal_delivered", "signal_received"),
            ],
        )
        assert task_of(world.conn, world.id) == ("pending", 1, None)

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "sweep": [lambda: world.clock.set(due), TICK],
        },
        judge=judge,
    )


def adopt_against_settle(world: World) -> Scene:
    """A run that takes in a promise while it settles is told of it, asleep or not."""
    held, foreign = world.parent(), world.name("x")
    ask(world.conn, create(foreign, external="true"))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        awake(world, endings)
        assert types_of(world.conn, world.id) in (
            ["execution_started", "promise_registered", "child_settled"],
            [
                *("execution_started", "promise_registered", "execution_awaiting"),
                *("child_settled", "execution_resumed"),
            ],
        )
        assert promise_of(world.conn, foreign) == ("resolved", "1")

    return Scene(
        programs={
            "settler": transaction(settle(foreign)),
            "worker": transaction(turn("W", report(held, commands=[adopt(0, foreign)], end=suspend(0)))),
        },
        judge=judge,
    )


def park_against_settle(world: World) -> Scene:
    """A protocol client that suspends a run on somebody else's promise while it settles is woken or told to
    go on."""
    world.parent()
    foreign = world.name("x")
    ask(world.conn, create(foreign, external="true"))
    park = ("select durable.task_suspend(%s, 1, array[%s])", (world.id, foreign))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        parked = endings["client"].answer()
        assert task_of(world.conn, world.id) == READY_OR_HELD[0 if parked else 1]
        assert types_of(world.conn, world.id) == (
            [
                *("execution_started", "promise_registered", "execution_awaiting"),
                *("child_settled", "execution_resumed"),
            ]
            if parked
            else ["execution_started"]
        )

    return Scene(programs={"settler": transaction(settle(foreign)), "client": transaction(park)}, judge=judge)


def runs_adopt_in_a_circle(world: World, count: int) -> Scene:
    """Each of so many runs adopts the next one, all at the same instant."""
    held = [World(conn=world.conn, clock=world.clock, id=world.name(str(n))).parent() for n in range(count)]

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        asleep = [one.id for one in held if task_of(world.conn, one.id) == ("suspended", 1, None)]
        journals = [types_of(world.conn, one.id)[1:] for one in held]
        assert journals.count(["promise_registered", "child_settled"]) == 1
        assert journals.count(["promise_registered", "execution_awaiting"]) == count - 1
        (told,) = {one.id for one in held}.difference(asleep)
        first = int(told.rpartition("-")[2])
        circle = [held[(first + n) % count].id for n in range(count + 1)]
        (path,) = ask(
            world.conn,
            (
                "select data::jsonb #> '{data,path}' from durable._journal join durable._executions h "
                "using (execution) where h.id = %s and type = 'child_settled'",
                (told,),
            ),
        )
        assert path == circle

    return Scene(
        programs={
            f"session{n}": transaction(
                turn("W", report(held[n], commands=[adopt(0, held[(n + 1) % count].id)], end=suspend(0)))
            )
            for n in range(count)
        },
        judge=judge,
    )


def two_runs_adopt_each_other(world: World) -> Scene:
    """Of two runs that would wait for each other exactly one is told, and nobody locks in a circle."""
    return runs_adopt_in_a_circle(world, 2)


def three_runs_adopt_each_other(world: World) -> Scene:
    """A circle of three, each closed by another session: exactly one is told, with the whole path."""
    return runs_adopt_in_a_circle(world, 3)


def adopt_against_park(world: World) -> Scene:
    """Of a run that adopts and a client that suspends another one the later is told of the circle."""
    held = world.parent()
    other = World(conn=world.conn, clock=world.clock, id=world.name("o")).parent()

    def judge(endings: Endings) -> None:
        assert endings["worker"].won
        told = types_of(world.conn, held.id) == ["execution_started", "promise_registered", "child_settled"]
        assert endings["client"].errors == ([] if told else ["WF012"])
        assert types_of(world.conn, other.id) == (
            ["execution_started", "promise_registered", "execution_awaiting"]
            if told
            else ["execution_started"]
        )

    return Scene(
        programs={
            "worker": transaction(turn("W", report(held, commands=[adopt(0, other.id)], end=suspend(0)))),
            "client": transaction(
                ("select durable.task_suspend(%s, 1, array[%s])", (other.id, held.id)),
            ),
        },
        judge=judge,
    )


def a_late_sender_loses(world: World) -> Scene:
    """Of a forced cancellation and a signal one comes first; a signal after the end is refused."""
    world.parent()

    def judge(endings: Endings) -> None:
        assert endings["hand"].won
        if not endings["sender"].won:
            one_winner(endings, "WF003")
        assert (promise_of(world.conn, world.id) or ("",))[0] == "rejected_canceled"

    return Scene(
        programs={
            "sender": transaction(send(world.id)),
            "hand": transaction(cancel(world.id, force=True)),
        },
        judge=judge,
    )


SCENES: list[Callable[[World], Scene]] = [
    signal_against_suspend,
    signal_against_receive,
    signal_against_release,
    signals_against_each_other,
    signal_against_end,
    signal_against_generation,
    signal_against_cancel,
    signal_against_settle,
    signal_against_timeout,
    adopt_against_settle,
    park_against_settle,
    two_runs_adopt_each_other,
    three_runs_adopt_each_other,
    adopt_against_park,
    a_late_sender_loses,
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """Every order of the sessions' statements and commits ends well; the scene's docstring is the law."""
    play_in_every_order(conn, clock, stage, scene)
