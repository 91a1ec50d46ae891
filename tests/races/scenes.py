"""Scenes: objects of their own, a program for each session, and a judgement of how they ended.

What lives here: the frame and the judgements that scenes share, and how a scene is played in every order. The
scenes stand with the tests that play them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.races.drama import Drama, Ending, Program, orders
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, Held, acquire, ask, begin_run, create, report, take_turn

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

    def parent(self, *commands: dict[str, object], worker: str = "W") -> Held:
        """A run that worker holds, with children, its coroutine advanced to the end of its journal."""
        held = begin_run(self.conn, self.id, worker)
        answer = take_turn(self.conn, worker, report(held, commands=commands))
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


def play_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """Perform a scene once for each order of its sessions' statements and commits.

    No performance may leave a broken law.
    """
    drama = Drama(stage)
    count = len(orders(scene(World(conn=conn, clock=clock, id="plan")).programs))
    for number in range(count):
        cast = scene(World(conn=conn, clock=clock, id=f"s{number}"))
        order = orders(cast.programs)[number]
        endings = drama.perform(cast.programs, order)
        cast.judge(endings)
        broken = conn.execute("select * from durable.check()").fetchall()
        assert not broken, (order, broken)
