"""The world around the runs: settles promises, sends signals, cancels, pauses and kills, in its own order.

What a program needs to end is done sooner or later in any case, so a round ends when all runs have. Nothing
here asserts.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress

import psycopg

from tests.chaos.plans import Node, signals
from tests.crash.processes import kill, launch, stop

PROMISES = """
select p.id, j.name from durable._promises p
join durable._executions h on h.execution = p.execution
join durable._journal j on j.execution = p.execution and j.bucket = h.bucket and j.child = p.child
     and j.type = 'X'
where p.state = 'pending' and p.head is null and not p.timer and j.name <> 'never' order by p.id
"""
# a run that never ran ends without its code; these have begun what they clean up after
DOOMED = """
select r.id from durable.runs r
join durable._promises p on p.id = r.id
where r.state not in ('cancelled', 'cancelling', 'completed', 'failed')
  and (r.workflow = 'doomed' or r.id = any (%s))
  and exists (select from durable._journal j
              where j.execution = p.head and j.type in ('L', 'l', 'f') and j.name in ('double', 'arrive'))
order by r.id
"""
LIVE = "select id from durable.runs where state in ('queued', 'scheduled', 'running', 'waiting') order by id"
PAUSED = "select id from durable.runs where state in ('paused', 'dead') order by id"
HALTED = "select id, problem from durable.runs where state = 'halted' limit 5"
LEFT = "select count(*) from durable._tasks"
FREEZE_S = 1.5


class World:
    """Everything that is not the engine.

    Args:
        dsn: the database.
        seed: what chance is made from.
        workers: worker processes at a time.
        faults: whether workers die and runs are disturbed.
    """

    def __init__(self, dsn: str, seed: int, *, workers: int, faults: bool) -> None:
        self._dsn = dsn
        self._random = random.Random(seed)
        self._faults = faults
        self._workers = [self._launch() for _ in range(workers)]
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._mail: list[tuple[str, str, int, list[int]]] = []
        self._leaving: list[str] = []
        self._frozen: dict[int, float] = {}
        self.done: Counter[str] = Counter()

    def close(self) -> None:
        """End the workers, awake or frozen."""
        for place in list(self._frozen):
            self._thaw(place)
        for process in self._workers:
            stop(process)
        self._conn.close()

    def start(self, run: str, program: Node) -> None:
        """Start a run, and remember the signals that it wants, and whether it is to be cancelled."""
        self._conn.execute(
            "select durable.start('play', %s::jsonb, id => %s, any_workflow => true)",
            (json.dumps([program]), run),
        )
        if program[0] == "leave":
            self._leaving.append(run)
        self._mail += [(run, name, 0, numbers) for name, numbers in signals(program)]

    def play(self, limit_s: float) -> None:
        """Do random things until all runs have ended."""
        until_s = time.monotonic() + limit_s
        calm = [self._settle, self._settle, self._send, self._send, self._send, self._cancel]
        faults = [self._pause, self._resume, self._resume, self._kill, self._freeze]
        while self._left():
            if time.monotonic() > until_s:
                raise TimeoutError(self._stuck())
            self._random.choice(calm)()
            if self._faults and self._random.random() < 0.12:
                self._random.choice(faults)()
            self._thaw_due()
            if self._random.random() < 0.1:
                self._resume_all()
                self._look_for_halts()
            time.sleep(self._random.random() * 0.02)

    # -- what is asked

    def _ids(self, query: str) -> list[str]:
        return [row[0] for row in self._conn.execute(query.encode())]

    def _left(self) -> bool:
        return self._conn.execute(LEFT).fetchone() != (0,)

    def _look_for_halts(self) -> None:
        """A run that its code does not fit any more never goes on: there is nothing to wait for."""
        if halted := self._conn.execute(HALTED).fetchall():
            raise RuntimeError(f"halted: {halted}; done: {dict(self.done)}")

    def _stuck(self) -> str:
        rows = self._conn.execute(
            "select id, state, worker, crashes, problem, waits_for from durable.runs where state not in "
            "('completed', 'failed', 'cancelled', 'timed_out') limit 10"
        ).fetchall()
        return f"runs that did not end: {rows}; signals not sent: {self._mail[:5]}; done: {dict(self.done)}"

    # -- what is done

    def _settle(self) -> None:
        """Settle some of the promises that runs wait for, in any order."""
        pending = self._conn.execute(PROMISES).fetchall()
        self._random.shuffle(pending)
        for name, number in pending[: self._random.randint(0, 3)]:
            with suppress(psycopg.DatabaseError):
                self._conn.execute("select durable.resolve(%s, %s::jsonb)", (name, number))
                self.done["settled"] += 1

    def _send(self) -> None:
        """Send the next signal of some name, once or twice with the same key."""
        if not self._mail:
            return
        at = self._random.randrange(len(self._mail))
        run, name, place, numbers = self._mail.pop(at)
        for _ in range(self._random.randint(1, 2)):
            self._conn.execute(
                "select durable.signal(%s, %s, %s::jsonb, dedup => %s)",
                (run, name, str(numbers[place]), str(place)),
            )
        self.done["signalled"] += 1
        if place + 1 < len(numbers):
            self._mail.append((run, name, place + 1, numbers))

    def _cancel(self) -> None:
        for (run,) in self._conn.execute(DOOMED, (self._leaving,)).fetchall():
            if self._random.random() < 0.3:
                with suppress(psycopg.DatabaseError):
                    self._conn.execute("select durable.cancel(%s, '\"chaos\"', grace => '1 hour')", (run,))
                    self.done["cancelled"] += 1

    def _pause(self) -> None:
        runs = self._ids(LIVE)
        for run in self._random.sample(runs, min(2, len(runs))):
            with suppress(psycopg.DatabaseError):
                self._conn.execute("select durable.pause(%s)", (run,))
                self.done["paused"] += 1

    def _resume(self) -> None:
        self._resume_all()

    def _resume_all(self) -> None:
        for run in self._ids(PAUSED):
            with suppress(psycopg.DatabaseError):
                self._conn.execute("select durable.resume(%s)", (run,))

    def _kill(self) -> None:
        """kill -9 a worker; another one takes its place."""
        place = self._random.randrange(len(self._workers))
        self._thaw(place)
        kill(self._workers[place])
        self._workers[place] = self._launch()
        self.done["killed"] += 1

    def _freeze(self) -> None:
        """Stop a worker for longer than its lease; it comes back as a zombie."""
        place = self._random.randrange(len(self._workers))
        if place not in self._frozen:
            self._workers[place].send_signal(signal.SIGSTOP)
            self._frozen[place] = time.monotonic() + FREEZE_S
            self.done["frozen"] += 1

    def _thaw(self, place: int) -> None:
        if self._frozen.pop(place, None) is not None:
            self._workers[place].send_signal(signal.SIGCONT)

    def _thaw_due(self) -> None:
        for place, due in list(self._frozen.items()):
            if due < time.monotonic():
                self._thaw(place)

    def _launch(self) -> subprocess.Popen[bytes]:
        return launch(self._dsn, "-m", "pyengine", "worker", "tests.chaos.job:app")
