"""Law: workers that serve each other's child runs, turn by turn, neither lock in a circle nor leave a
parent waiting for a child that is done.

Each worker serves one queue and starts its children in the other one, so that every settlement wakes a
parent whose task and head the other worker may be writing at that moment.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import psycopg
import pytest

from tests.support.verbs import Connection, Turn, ask, complete, run, start, suspend, take_turn
from tests.system.races.shadow import Shadow

QUEUES = ("left", "right")
DEPTH, BREADTH, ROOTS = 2, 2, 4


class Worker:
    """A worker of one queue."""

    def __init__(self, conn: Connection, number: int) -> None:
        self.conn = conn
        self.name = f"W{number}"
        self.queue, self.other = QUEUES[number], QUEUES[1 - number]
        self.held: dict[int, Shadow] = {}
        self.warm: dict[int, Shadow] = {}
        self.turns = 0
        self.woken_in_turn = 0
        self.ends: Counter[str] = Counter()

    def move(self, shadow: Shadow) -> dict[str, object]:
        """Start children once, wait for all or any of them, then complete."""
        if shadow.busy:
            return shadow.sent
        commands = []
        if shadow.next_child == 0 and shadow.id.count(".") < DEPTH:
            commands = [run(child, queue=self.other) for child in range(BREADTH)]
        waiting = sorted(shadow.open | {command["child"] for command in commands})
        end = suspend(*waiting, kind=self.kind(shadow, waiting)) if waiting else complete()
        shadow.next_child += len(commands)
        shadow.sent = {
            "execution": shadow.execution,
            "id": shadow.id,
            "version": shadow.version,
            "seen": shadow.next,
            "outcomes": [],
            "commands": commands,
            "end": end,
        }
        return shadow.sent

    @staticmethod
    def kind(shadow: Shadow, waiting: list[int]) -> str:
        """All for runs with an even number, any for the others."""
        return "single" if len(waiting) == 1 else "any" if shadow.execution % 2 else "all"

    def turn(self, want: int) -> None:
        """Report everything held, take what is ready."""
        moving = list(self.held.values())
        answer = take_turn(self.conn, self.name, *map(self.move, moving), want=want, queues=[self.queue])
        self.turns += 1
        for shadow in moving:
            state = shadow.take_answer(answer)
            self.ends[state] += 1
            if state != "acquired":
                del self.held[shadow.execution]
            if state == "suspended":
                self.warm[shadow.execution] = shadow
        self.take_on(answer)

    def take_on(self, answer: Turn) -> None:
        """Hold what was handed out; a woken parent continues where it stopped."""
        for held in answer.tasks:
            shadow = Shadow.of(held, self.warm.pop(held.execution, None))
            assert shadow is not None
            self.held[held.execution] = shadow
            self.woken_in_turn += held.start > 0

    def sail(self, turns: int, together: Barrier, stop: Event) -> None:
        """So many turns, with a few roots in flight."""
        together.wait()
        while self.turns < turns and not stop.is_set():
            if len(self.held) < ROOTS:
                ask(self.conn, start(f"{self.name}-{self.turns}", queue=self.queue))
            self.turn(want=4)


def sail_together(workers: list[Worker], turns: int) -> None:
    """Both workers at once; an error of one stops the other."""
    together, stop = Barrier(len(workers)), Event()
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(worker.sail, turns, together, stop) for worker in workers]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()


@pytest.mark.parametrize(
    "turns", [pytest.param(300, id="300"), pytest.param(10_000, id="10k", marks=pytest.mark.full)]
)
def test_two_workers_serve_each_others_children(dsn: str, conn: Connection, turns: int) -> None:
    """After so many turns every run that was started comes to its end, each parent after its children."""
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        workers = [Worker(one, 0), Worker(two, 1)]
        sail_together(workers, turns // 2)
        for _ in range(10_000):
            for worker in workers:
                worker.turn(want=100)
            if conn.execute("select from durable._tasks where state <> 'suspended'").fetchone() is None:
                break
    stranded = conn.execute("select id, state from durable._tasks").fetchall()
    assert not stranded
    assert conn.execute("select count(*) from durable._promises where state <> 'resolved'").fetchone() == (0,)
    assert sum(worker.woken_in_turn for worker in workers) > turns // 20
    assert not {"stale"} & (set(workers[0].ends) | set(workers[1].ends))
