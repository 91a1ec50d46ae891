"""Scenes: objects of their own, a program for each session, and a judgement of how they ended.

What lives here: the frame and the judgements that scenes share, and how a scene is played in every order. The
scenes stand with the tests that play them.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, Held, acquire, ask, begin_run, create, report, take_turn
from tests.system.races.drama import Drama, Ending, Program, orders

Endings = dict[str, Ending]
# set by conftest.py
SEED, FULL = "PYENGINE_TEST_SEED", "PYENGINE_TEST_FULL"
# orders that a scene is performed in without --full
SAMPLE = 6
TICK: Call = ("select durable.tick_v1(100)", ())
NEXT = "select coalesce(max(execution), 0) + 1 from durable._executions"
BROKEN = """
select b.* from unnest(%s::text[]) place cross join lateral durable.check_portion(place::jsonb) p
cross join lateral unnest(p.broken) b
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Programs by session and the judgement of their endings."""

    programs: dict[str, Program]
    judge: Callable[[Endings], None]


@dataclass(frozen=True, kw_only=True)
class World:
    """What a scene is made of: a session to set up with, the clock, an id behind all that are used in the
    database, and the number from which its runs begin."""

    conn: Connection
    clock: Clock
    id: str
    since: int = 0

    def name(self, part: str) -> str:
        """An id of this performance."""
        return f"{self.id}-{part}"

    def broken(self) -> list[tuple[object, ...]]:
        """What is broken in this performance; what former ones have left is not read again."""
        places = [json.dumps({"run": self.since}), json.dumps({"id": self.id})]
        return self.conn.execute(BROKEN, (places,)).fetchall()

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
    """Perform a scene once for each order of its sessions' statements and commits; without --full, for the
    first, the last and some between, drawn with the seed.

    No performance may leave a broken law. What it does to former ones, the check after the test sees.
    """
    drama = Drama(stage)
    count = len(orders(scene(World(conn=conn, clock=clock, id="plan")).programs))
    for number in _chosen(count):
        (since,) = ask(conn, (NEXT, ()))
        world = World(conn=conn, clock=clock, id=f"s{number:05}", since=since)
        cast = scene(world)
        order = orders(cast.programs)[number]
        endings = drama.perform(cast.programs, order)
        cast.judge(endings)
        broken = world.broken()
        assert not broken, (order, broken)


def _chosen(count: int) -> list[int]:
    """The numbers of the orders to perform."""
    if count <= SAMPLE or os.environ.get(FULL):
        return list(range(count))
    between = random.Random(os.environ[SEED]).sample(range(1, count - 1), SAMPLE - 2)
    return [0, *sorted(between), count - 1]
