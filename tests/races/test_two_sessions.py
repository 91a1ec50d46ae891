"""Law: whatever two or three sessions do to one object at once, in every order, there is one winner, nobody
is stranded, and no lock order closes a circle.

A scene sets up objects of its own, names the programs of its sessions and judges how they ended. Each is
played in every order of the sessions' statements and commits. After each performance durable.check() must
be empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.races.drama import Drama, Ending, Program, orders, transaction
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Held,
    Turn,
    acquire,
    ask,
    begin_run,
    begun,
    bundle,
    claim,
    complete,
    create,
    done,
    fail,
    park,
    promise,
    promise_of,
    release,
    run,
    settle,
    start,
    suspend,
    take_turn,
    task_of,
    timer,
    turn,
)

Endings = dict[str, Ending]
TICK: Call = ("select durable.tick_v1(100)", ())


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Programs by session and the judgement of their endings."""

    programs: dict[str, Program]
    judge: Callable[[Endings], None]


@dataclass(frozen=True, kw_only=True)
class World:
    """What a scene is made of: a session to set up with, the clock, an id that nobody has used."""

    conn: Connection
    clock: Clock
    id: str

    def name(self, part: str) -> str:
        """An id of this performance."""
        return f"{self.id}-{part}"

    def task(self, part: str) -> str:
        """A protocol task, acquired by P at version 1."""
        ask(self.conn, create(self.name(part), target=f"q-{self.id}"))
        ask(self.conn, acquire(self.name(part)))
        return self.name(part)

    def parent(self, *acts: dict[str, object], worker: str = "W") -> Held:
        """A run that worker holds, with children, its coroutine advanced to the end of its journal."""
        held = begin_run(self.conn, self.id, worker)
        answer = take_turn(self.conn, worker, bundle(held, acts=acts))
        return Held(execution=held.execution, id=held.id, version=held.version, next=answer.next_of(held))


def one_winner(endings: Endings, *loser_codes: str) -> None:
    """One session succeeded, the others failed with one of these codes."""
    winners = [name for name, ending in endings.items() if ending.won]
    assert len(winners) == 1, endings
    for name, ending in endings.items():
        assert name in winners or set(ending.errors) <= set(loser_codes), endings


def nobody_fails(endings: Endings) -> None:
    """No session got an error."""
    assert all(ending.won for ending in endings.values()), endings


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
            "worker": transaction(turn("W", bundle(held, end=suspend(0)))),
        },
        judge=judge,
    )


def two_children_against_a_parent(kind: str) -> Callable[[World], Scene]:
    """Children that complete in turns of other workers while the parent suspends wake it when its wait is
    satisfied."""

    def scene(world: World) -> Scene:
        held = world.parent(run(0, queue=f"{world.id}-a"), run(1, queue=f"{world.id}-b"))
        kids = {name: claim(world.conn, name, f"{world.id}-{name.lower()}") for name in ("A", "B")}
        look = take_turn(world.conn, "W", bundle(held))
        seen = look.next_of(held)

        def judge(endings: Endings) -> None:
            nobody_fails(endings)
            assert task_of(world.conn, held.id) in (("pending", 1, None), ("acquired", 1, "W"))
            assert {promise_of(world.conn, kid.id) for kid in kids.values()} == {("resolved", '"done"')}

        return Scene(
            programs={
                "A": transaction(turn("A", bundle(kids["A"], end=complete()))),
                "B": transaction(turn("B", bundle(kids["B"], end=complete()))),
                "W": transaction(turn("W", bundle(held, end=suspend(0, 1, kind=kind), seen=seen))),
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
        take_turn(world.conn, "W", bundle(held, facts=[begun(1)]))
        world.clock.advance(TTL_MS)
        facts = [] if name == "suspend" else [done(1)]

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
                "worker": transaction(turn("W", bundle(held, facts=facts, end=end))),
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
            "old": transaction(turn("W", bundle(held, facts=[done(0)], end=complete()))),
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
            "worker": transaction(turn("W", bundle(held, end=fail()))),
        },
        judge=judge,
    )


def halt_and_continue_against_settle(world: World) -> Scene:
    """A wake that falls into a halt is kept for when the run goes on."""
    held = world.parent(promise(0))
    take_turn(world.conn, "W", bundle(held, end=suspend(0)))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert task_of(world.conn, held.id) == ("pending", 1, None)
        again = claim(world.conn, "V", f"q-{world.id}")
        assert [row[1] for row in again.rows] == ["S", "X", "A", "D", "W"]

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
            "worker": transaction(turn("W", bundle(held, end=release(60_000)))),
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
            "worker": transaction(turn("W", bundle(held, end=suspend(0)))),
            "sweep": transaction(TICK),
            "other": transaction(TICK),
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
            "worker": transaction(turn("W", bundle(held, end=suspend(0)))),
            "bye": transaction(("select durable.worker_bye_v1('W')", ())),
            "sweep": transaction(TICK),
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
            "A": transaction(turn("A", bundle(kid, end=complete()))),
            "hand": transaction(settle(held.id, state="rejected_canceled")),
            "W": transaction(turn("W", bundle(held, end=suspend(0), seen=held.next + 1))),
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
    settle_against_suspend,
    settle_against_suspend_of_a_run,
    *(two_children_against_a_parent(kind) for kind in ("any", "all")),
    settle_against_settle,
    settle_against_deadline,
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
    halt_and_continue_against_settle,
    release_against_settle,
    timer_against_suspend,
    bye_against_turn,
    fence_settle_against_settle,
    parent_settles_against_child,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """Every order of the sessions' statements and commits ends well; the scene's docstring is the law."""
    drama = Drama(stage)
    count = len(orders(scene(World(conn=conn, clock=clock, id="plan")).programs))
    for number in range(count):
        cast = scene(World(conn=conn, clock=clock, id=f"s{number}"))
        order = orders(cast.programs)[number]
        endings = drama.perform(cast.programs, order)
        cast.judge(endings)
        broken = conn.execute("select * from durable.check()").fetchall()
        assert not broken, (order, broken)
