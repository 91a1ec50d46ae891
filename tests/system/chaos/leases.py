"""Evidence about leases: when each was renewed, as the database saw it, and when bodies began.

Both are read from clocks of one machine, which no fault moves. A worker counts its lease from the moment in
which it asked for it, so a body that begins later than a lease after the last renewal began without one. A
body begins at the instant at which its worker read the clock to find out whether it may: no program can keep
a process from being stopped between that reading and the first instruction of the body. So `Notes` stands
between the worker and its clock. It keeps the reading that allowed a body of a run, in the thread that asked,
and a body takes it: one for which nobody has asked finds none, and counts as late. Nothing here asserts.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pyengine.core.process import clock
from pyengine.core.process.clock import Clock
from pyengine.core.process.lease_terms import Leased, LeaseTerms
from pyengine.core.worker.run_state import LeasedRun

INSTALL = """
create table leased (run text not null, worker text not null, at double precision not null);
create function note_lease() returns trigger language plpgsql as $$
begin
  insert into public.leased (run, worker, at) values (new.id, new.pid, extract(epoch from clock_timestamp()));
  return null;
end $$;
create trigger note_lease after insert or update on durable._tasks
  for each row when (new.state = 'acquired' and new.execution is not null) execute function note_lease();
-- nobody may take a task that its worker could not renew because somebody has locked it
create function note_unrenewed() returns trigger language plpgsql as $$
begin
  insert into public.leased (run, worker, at)
  select u, new.id, extract(epoch from clock_timestamp()) from unnest(new.unrenewed) u;
  return null;
end $$;
create trigger note_unrenewed after update on durable._workers
  for each row when (new.unrenewed <> '{}') execute function note_unrenewed();
"""
BEGUN = "PYENGINE_CHAOS_BEGUN"


class Notes(Clock):
    """The clock of a worker's process, which notes when bodies were allowed and when they began.

    Args:
        path: the file for the notes, one a line: allowed, begun, process, run, name.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_WRONLY | os.O_CREAT)
        self._own = threading.local()
        self._allowed: dict[tuple[int, str], float] = {}
        real = Clock()
        readings = [(real.elapsed(), time.time(), real.elapsed()) for _ in range(9)]
        before_s, wall_s, _ = min(readings, key=lambda one: one[2] - one[0])
        self._offset_s = wall_s - before_s
        clock.use(self)
        asks = LeaseTerms.may_begin

        def may_begin(terms: LeaseTerms, held: Leased) -> bool:
            may = asks(terms, held)
            if may and isinstance(held, LeasedRun):
                self._allowed[threading.get_ident(), held.info.id] = self._own.read_s
            return may

        LeaseTerms.may_begin = may_begin  # type: ignore[assignment,method-assign]

    def elapsed(self) -> float:
        """Return the time by which leases go, and keep it."""
        self._own.read_s = now_s = super().elapsed()
        return now_s

    def begun(self, run: str, name: str) -> None:
        """Note that a body has begun: in one write, which a kill does not tear."""
        allowed_s = self._allowed.pop((threading.get_ident(), run), float("inf")) + self._offset_s
        os.write(self._file, f"{allowed_s} {time.time()} {os.getpid()} {run} {name}\n".encode())


@dataclass
class Bodies:
    """The bodies that began.

    Attributes:
        number: how many.
        late: those that were allowed after their lease, or by nobody.
        stopped: how many were allowed in time, and stopped before their first instruction.
    """

    number: int = 0
    late: list[str] = field(default_factory=list)
    stopped: int = 0


def bodies(conn: psycopg.Connection[tuple[object, ...]], begun: Path, ttl_s: float) -> Bodies:
    """Return which bodies began.

    Args:
        conn: the database, which has INSTALL.
        begun: the notes.
        ttl_s: length of a lease.
    """
    leased: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for run, worker, at in conn.execute("select run, worker, at from leased order by at").fetchall():
        leased[str(run), str(worker).split("-")[-2]].append(float(str(at)))
    found = Bodies()

    def age_s(of: tuple[str, str], at: str) -> float:
        place = bisect_right(leased[of], float(at))
        return float(at) - leased[of][place - 1] if place else float("inf")

    for line in begun.read_text().splitlines():
        allowed, began, process, run, name = line.split(" ", 4)
        found.number += 1
        age = age_s((run, process), allowed)
        if not age <= ttl_s:
            found.late.append(
                f"{name} of {run} in process {process} at {allowed}, {age} s after its lease began"
            )
        elif age_s((run, process), began) > ttl_s:
            found.stopped += 1
    return found
