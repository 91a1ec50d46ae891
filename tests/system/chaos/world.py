"""The world around the runs: settles promises, sends signals, cancels, pauses and kills, in its own order.

What a program needs to end is done sooner or later in any case. Faults are counted by work and not by time:
the next one waits until the code of the runs has moved on. Else, on a machine that needs longer to start a
worker than the world to kill it, no run would ever end. So a round ends when all runs have. Nothing here
asserts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.system.chaos.leases import BEGUN
from tests.system.chaos.plans import Node, signals
from tests.system.chaos.stuck import told
from tests.system.crash.processes import kill, launch, stop
from tests.system.failover.cable import Cable

PROMISES = """
select p.id, j.name from durable._promises p
join durable._executions h on h.execution = p.execution
join durable._journal j on j.execution = p.execution and j.bucket = h.bucket and j.child = p.child
     and j.type = 'promise_registered'
where p.state = 'pending' and p.head is null and not p.timer and j.name <> 'never' order by p.id
"""
# a run that never ran ends without its code; these have begun what they clean up after
DOOMED = """
select r.id from durable.runs r
join durable._promises p on p.id = r.id
where r.state not in ('cancelled', 'cancelling', 'completed', 'failed')
  and (r.workflow = 'doomed' or r.id = any (%s))
  and exists (select from durable._journal j
              where j.execution = p.head
                and j.type in ('step_completed', 'step_started', 'first_attempt_failed')
                and j.name in ('double', 'arrive'))
order by r.id
"""
LIVE = "select id from durable.runs where state in ('queued', 'scheduled', 'running', 'waiting') order by id"
PAUSED = "select id from durable.runs where state in ('paused', 'dead') order by id"
HALTED = "select id, problem from durable.runs where state = 'halted' limit 5"
LEFT = "select count(*) from durable._tasks"
# what the code of the runs has begun so far; neither faults nor what the world sends count
MOVED = "select coalesce(sum(h.next_child), 0) from durable._executions h"
# what an idle transaction of a user may hold of a run; rolled back, so that nothing of it is left
HOLDS = (
    "select from durable._promises where id = %s for update",
    "select from durable._tasks where id = %s for update",
    "select from durable._tasks where id = %s for key share",
    "select from durable._executions where id = %s for update",
    "select durable.signal(%s, 'nobody-hears', '1')",
    "select durable.pause(%s)",
    "select durable.cancel(%s)",
)
FREEZE_S = 1.5
HOLD_S = 1.5
FAULT_EVERY = 12
CLOCK_MS = 60_000
STILL_S = 3.0
MOVABLE_CLOCK = """
create table moved (ms bigint not null);
insert into moved values (0);
create or replace function durable._now_ms() returns bigint language sql volatile parallel unsafe as
$$ select floor(extract(epoch from clock_timestamp()) * 1000)::bigint + (select m.ms from public.moved m) $$;
"""


@dataclass(frozen=True)
class Socket:
    """Where the server of a URL listens: folder and port."""

    place: tuple[str, str]


class World:
    """Everything that is not the engine.

    Args:
        dsn: the database.
        seed: what chance is made from.
        workers: worker processes at a time.
        faults: whether workers die and runs are disturbed.
        begun: file for the notes of bodies that begin.
    """

    def __init__(self, dsn: str, seed: int, *, workers: int, faults: bool, begun: Path | None = None) -> None:
        self._dsn = dsn
        self._begun = begun
        self._random = random.Random(seed)
        self._faults = faults
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115  `close` closes it
        known = conninfo_to_dict(dsn)
        server = Socket((str(known["host"]), str(known.get("port", 5432))))
        # each worker has its own way to the database
        self._cables = [Cable(server) for _ in range(workers)] if faults else []
        self._workers = [self._launch(place) for place in range(workers)]
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._mail: list[tuple[str, str, int, list[int]]] = []
        self._leaving: list[str] = []
        self._thaws: dict[int, threading.Timer] = {}
        self._idle: list[threading.Timer] = []
        self._fault_at = 0
        self._moved: tuple[int, float] = (0, time.monotonic())
        self.done: Counter[str] = Counter()

    def close(self) -> None:
        """End the workers, awake or frozen, and the users' transactions."""
        for idle in self._idle:
            idle.join()
        for thaw in self._thaws.values():
            thaw.cancel()
        for process in self._workers:
            process.send_signal(signal.SIGCONT)
            stop(process)
        for cable in self._cables:
            cable.close()
        if self._faults:
            self._set_clock(0)
        self._conn.close()
        self._log.close()

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
        faults = [self._pause, self._kill, self._freeze, self._hold, self._move_clock, self._lose]
        while self._left():
            if time.monotonic() > until_s:
                raise TimeoutError(self._stuck())
            self._random.choice(calm)()
            if self._faults and self._fault_is_due():
                # now and then two at once: what one of them began is struck before it has moved on
                for fault in self._random.choices(faults, k=self._random.choice((1, 1, 1, 2))):
                    fault()
            if self._random.random() < 0.1:
                self._resume_all()
                self._look_for_ends()
                self._go_forth()
            time.sleep(self._random.random() * 0.02)
        self._look_for_ends()

    # -- what is asked

    def _ids(self, query: str) -> list[str]:
        return [row[0] for row in self._conn.execute(query.encode())]

    def _left(self) -> bool:
        return self._conn.execute(LEFT).fetchone() != (0,)

    def _fault_is_due(self) -> bool:
        """Whether the code has moved on far enough since the fault before; draws the place of the next."""
        (moved,) = self._conn.execute(MOVED).fetchone() or (0,)
        due = int(moved) > self._fault_at
        if due:
            self._fault_at = int(moved) + self._random.randrange(FAULT_EVERY)
        return due

    def _look_for_ends(self) -> None:
        """A run that its code does not fit any more never goes on, nor does a worker that has ended by
        itself: there is nothing to wait for. Nor does a run whose turns are refused for no reason, though
        another fault may hide that."""
        if halted := self._conn.execute(HALTED).fetchall():
            raise RuntimeError(f"halted: {halted}; done: {dict(self.done)}")
        if any(process.poll() is not None for process in self._workers):
            raise RuntimeError(f"a worker has ended by itself: {self._stuck()}")
        if b"event=run_stuck" in os.pread(self._log.fileno(), 1 << 24, 0):
            raise RuntimeError(f"a turn was refused again after a replay: {self._stuck()}")

    def _stuck(self) -> str:
        return (
            f"runs do not end; signals not sent: {self._mail[:5]}; done: {dict(self.done)}\n"
            f"{told(self._dsn, self._workers, self._log)}"
        )

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

    def _resume_all(self) -> None:
        for run in self._ids(PAUSED):
            with suppress(psycopg.DatabaseError):
                self._conn.execute("select durable.resume(%s)", (run,))

    def _kill(self) -> None:
        """kill -9 a worker; another one takes its place."""
        place = self._random.randrange(len(self._workers))
        if place in self._thaws:
            self._thaws.pop(place).cancel()
        kill(self._workers[place])
        self._workers[place] = self._launch(place)
        self.done["killed"] += 1

    def _freeze(self) -> None:
        """Stop a worker for longer than its lease; it comes back as a zombie, also while we wait for a lock
        that it holds."""
        place = self._random.randrange(len(self._workers))
        if place in self._thaws and self._thaws[place].is_alive():
            return
        process = self._workers[place]
        process.send_signal(signal.SIGSTOP)
        self._thaws[place] = threading.Timer(FREEZE_S, process.send_signal, [signal.SIGCONT])
        self._thaws[place].start()
        self.done["frozen"] += 1

    def _hold(self) -> None:
        """A user touches some runs and leaves the transaction open, for longer than a lease."""
        runs = self._ids(LIVE)
        user = psycopg.connect(self._dsn)
        # begins the transaction; without it the first block below would be one, and commit
        user.execute("select")
        for run in self._random.sample(runs, min(3, len(runs))):
            with suppress(psycopg.DatabaseError), user.transaction():
                user.execute(self._random.choice(HOLDS).encode(), (run,))
        self._idle.append(threading.Timer(HOLD_S, user.close))
        self._idle[-1].start()
        self.done["held"] += 1

    def _set_clock(self, ms: int) -> None:
        self._conn.execute("update moved set ms = %s", (ms,))

    def _move_clock(self) -> None:
        """Move the clock of the database, back or forth."""
        self._set_clock(self._random.randint(-CLOCK_MS, CLOCK_MS))
        self.done["moved"] += 1

    def _go_forth(self) -> None:
        """If nothing moves on, timers may wait for an instant that the clock has been set back from."""
        (moved,) = self._conn.execute(MOVED).fetchone() or (0,)
        before, since_s = self._moved
        if int(moved) != before:
            self._moved = (int(moved), time.monotonic())
        elif self.done["moved"] and time.monotonic() > since_s + STILL_S:
            self._set_clock(CLOCK_MS)

    def _lose(self) -> None:
        """The connections of a worker are never served again, and it is not told; new ones work."""
        self._random.choice(self._cables).lose()
        self.done["lost"] += 1

    def _through(self, cable: Cable) -> str:
        """Return the URL of the database through a cable."""
        known, (host, port) = conninfo_to_dict(self._dsn), cable.place
        return f"postgresql://{known['user']}@{host}:{port}/{known['dbname']}"

    def _launch(self, place: int) -> subprocess.Popen[bytes]:
        dsn = self._through(self._cables[place]) if self._cables else self._dsn
        variables = {} if self._begun is None else {BEGUN: str(self._begun)}
        command = ("-m", "pyengine", "worker", "tests.system.chaos.job:app")
        return launch(dsn, *command, log=self._log, variables=variables)
