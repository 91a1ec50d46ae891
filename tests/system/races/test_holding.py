"""Law: whatever two or three sessions do to get, keep, lose or create a task or a run, in every order, there
is one holder and one run.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Turn,
    acquire,
    ask,
    begun,
    complete,
    create,
    done,
    fail,
    park,
    promise,
    promise_of,
    release,
    report,
    start,
    suspend,
    take_turn,
    task_of,
    turn,
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


def acquire_against_acquire(world: World) -> Scene:
    """One version of a task is given to one holder."""
    task = world.name("t")
    ask(world.conn, create(task, target=f"q-{world.id}"))

    def judge(endings: Endings) -> None:
        one_winner(endings, "WF003")
        assert (task_of(world.conn, task) or ("", 0))[:2] == ("acquired", 1)

    return Scene(programs={pid: transaction(acquire(task, pid=pid)) for pid in "ABC"}, judge=judge)


def claim_against_claim(world: World) -> Scene:
    """A ready run is handed to one worker; the others go away without it and do not wait."""
    ask(world.conn, start(world.id, queue=f"q-{world.id}"))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        got = [name for name, ending in endings.items() if Turn(raw=ending.answer()).tasks]
        assert len(got) == 1
        assert task_of(world.conn, world.id) == ("acquired", 1, got[0])
        assert not any(ending.blocked for ending in endings.values())

    return Scene(
        programs={name: transaction(turn(name, want=1, queues=[f"q-{world.id}"])) for name in "ABC"},
        judge=judge,
    )


def claim_against_acquire(world: World) -> Scene:
    """A worker's claim and a client's acquire do not both get the task."""
    ask(world.conn, start(world.id, queue=f"q-{world.id}"))

    def judge(endings: Endings) -> None:
        claimed = bool(Turn(raw=endings["worker"].answer()).tasks)
        assert claimed != endings["client"].won
        assert task_of(world.conn, world.id) == ("acquired", 1, "W" if claimed else "P")

    return Scene(
        programs={
            "worker": transaction(turn("W", want=1, queues=[f"q-{world.id}"])),
            "client": transaction(acquire(world.id)),
        },
        judge=judge,
    )


def expiry_against(name: str, act: Callable[[str], Call]) -> Callable[[World], Scene]:
    """A holder whose lease is overdue succeeds or loses the task, not both."""

    def scene(world: World) -> Scene:
        task = world.task("t")
        ask(world.conn, create(world.name("x"), external="true"))
        world.clock.advance(TTL_MS)

        def judge(endings: Endings) -> None:
            assert endings["sweep"].won
            state = (task_of(world.conn, task) or ("fulfilled",))[0]
            kept = {
                "fulfill": "fulfilled",
                "heartbeat": "acquired",
                "suspend": "suspended",
                "release": "pending",
            }
            if name == "heartbeat":
                assert state == ("acquired" if endings["holder"].answer() else "pending")
            elif endings["holder"].won:
                assert state == kept[name]
            else:
                assert endings["holder"].errors == ["WF002"]
                assert state == "pending"

        return Scene(programs={"sweep": transaction(TICK), "holder": transaction(act(world.id))}, judge=judge)

    scene.__name__ = f"expiry_against_{name}"
    return scene


def expiry_against_turn(name: str, end: dict[str, object] | None) -> Callable[[World], Scene]:
    """A turn whose lease is overdue writes everything or is told that it lost."""

    def scene(world: World) -> Scene:
        held = world.parent(promise(0))
        take_turn(world.conn, "W", report(held, outcomes=[begun(1)]))
        world.clock.advance(TTL_MS)
        outcomes = [] if name == "suspend" else [done(1)]

        def judge(endings: Endings) -> None:
            nobody_fails(endings)
            verdict, state = Turn(raw=endings["worker"].answer()).of(held)
            found = (task_of(world.conn, held.id) or ("done",))[0]
            if verdict == "ok":
                assert found == {"released": "pending"}.get(state, state)
            else:
                assert (verdict, found) == ("lost", "pending")

        return Scene(
            programs={
                "sweep": transaction(TICK),
                "worker": transaction(turn("W", report(held, outcomes=outcomes, end=end))),
            },
            judge=judge,
        )

    scene.__name__ = f"expiry_against_a_turn_that_ends_with_{name}"
    return scene


def takeover_against_old_holder(world: World) -> Scene:
    """Once the task is handed on, nothing of the old holder's is accepted."""
    held = world.parent()
    world.clock.advance(TTL_MS)

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        verdict = Turn(raw=endings["old"].answer()).of(held)[0]
        taken = [task for task in Turn(raw=endings["new"].answers[-1][0][0]).tasks if task.id == held.id]
        assert (verdict == "lost") or not taken
        assert (promise_of(world.conn, held.id) == ("resolved", '"done"')) == (verdict == "ok")

    return Scene(
        programs={
            "new": [TICK, *transaction(turn("N", want=1, queues=[f"q-{world.id}"]))],
            "old": transaction(turn("W", report(held, outcomes=[done(0)], end=complete()))),
        },
        judge=judge,
    )


def create_against_create(world: World) -> Scene:
    """One promise is created, everybody gets that one."""
    calls = [
        create(world.name("x"), external="true"),
        create(world.name("x"), target="g"),
        create(world.name("x")),
    ]

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        rows = world.conn.execute(
            "select id from durable._promises where id = %s", (world.name("x"),)
        ).fetchall()
        assert len(rows) == 1

    return Scene(programs={str(n): transaction(call) for n, call in enumerate(calls)}, judge=judge)


def start_against_start_by_id(world: World) -> Scene:
    """Two starts with one id are one run; a third with other input is refused, or is the one and refuses
    the two."""

    def judge(endings: Endings) -> None:
        args = (
            world.conn.execute("select args from durable.runs where id = %s", (world.id,)).fetchone() or ("",)
        )[0]
        assert endings["first"].won == endings["second"].won == (args == ["a"])
        assert endings["other"].won == (args == ["b"])
        assert all(set(ending.errors) <= {"WF009"} for ending in endings.values())

    return Scene(
        programs={
            "first": transaction(start(world.id, '["a"]')),
            "second": transaction(start(world.id, '["a"]')),
            "other": transaction(start(world.id, '["b"]')),
        },
        judge=judge,
    )


def start_against_start_by_key(world: World) -> Scene:
    """Two starts with one key are one run, whether it has been given an id or not."""

    def judge(endings: Endings) -> None:
        rows = world.conn.execute("select id from durable.runs where key = %s", (world.id,)).fetchall()
        assert len(rows) == 1
        assert endings["plain"].won
        assert endings["plain"].answer() == rows[0][0]
        assert endings["again"].answer() == rows[0][0]
        assert endings["named"].won == (rows[0][0] == world.id)

    nameless: Call = ("select durable.start('w', key => %s)", (world.id,))
    return Scene(
        programs={
            "plain": transaction(nameless),
            "again": transaction(nameless),
            "named": transaction(start(world.id, key=world.id)),
        },
        judge=judge,
    )


def start_against_a_child_id(world: World) -> Scene:
    """A run and a foreign promise in the place of its child do not both come to be."""

    def judge(endings: Endings) -> None:
        one_winner(endings, "WF004")

    return Scene(
        programs={
            "run": transaction(start(world.id)),
            "child": transaction(create(f"{world.id}.0.3", external="true")),
        },
        judge=judge,
    )


def halt_against_turn(world: World) -> Scene:
    """A run that is halted while it completes is halted or done."""
    held = world.parent()

    def judge(endings: Endings) -> None:
        verdict = Turn(raw=endings["worker"].answer()).of(held)[0]
        assert (verdict == "lost") == endings["hand"].won
        assert task_of(world.conn, held.id) == (("halted", 1, None) if endings["hand"].won else None)

    return Scene(
        programs={
            "hand": transaction(("select durable.task_halt(%s)", (held.id,))),
            "worker": transaction(turn("W", report(held, end=fail()))),
        },
        judge=judge,
    )


def bye_against_turn(world: World) -> Scene:
    """A worker that says goodbye while its turn is under way leaves nothing held."""
    held = world.parent(promise(0))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert (task_of(world.conn, held.id) or ("done",))[0] in ("suspended", "pending")

    return Scene(
        programs={
            "worker": transaction(turn("W", report(held, end=suspend(0)))),
            "bye": transaction(("select durable.worker_bye_v1('W')", ())),
            "sweep": transaction(TICK),
        },
        judge=judge,
    )


HOLDERS: dict[str, Callable[[str], Call]] = {
    "fulfill": lambda id_: ("select state from durable.task_fulfill(%s, 1, 'resolved', '1')", (f"{id_}-t",)),
    "heartbeat": lambda id_: ("select durable.task_heartbeat('P', %s, '{1}')", ([f"{id_}-t"],)),
    "release": lambda id_: ("select durable.task_release(%s, 1)", (f"{id_}-t",)),
    "suspend": lambda id_: park(f"{id_}-t", f"{id_}-x"),
}
SCENES: list[Callable[[World], Scene]] = [
    acquire_against_acquire,
    claim_against_claim,
    claim_against_acquire,
    *(expiry_against(name, act) for name, act in HOLDERS.items()),
    *(
        expiry_against_turn(name, end)
        for name, end in {
            "suspend": suspend(0),
            "complete": complete(),
            "release": release(),
            "nothing": None,
        }.items()
    ),
    takeover_against_old_holder,
    create_against_create,
    start_against_start_by_id,
    start_against_start_by_key,
    start_against_a_child_id,
    halt_against_turn,
    bye_against_turn,
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """Every order of the sessions' statements and commits ends well; the scene's docstring is the law."""
    play_in_every_order(conn, clock, stage, scene)
