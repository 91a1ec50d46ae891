"""Evidence about leases: when each was renewed, as the database saw it, and when bodies of steps began.

Both are read from one clock of the machine, which no fault moves. A worker counts its lease from the moment
in which it asked for it, so a body that begins later than a lease after the last renewal began without one.
Nothing here asserts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

import psycopg

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


def begun_late(
    conn: psycopg.Connection[tuple[object, ...]], begun: Path, ttl_s: float
) -> tuple[int, list[str]]:
    """Return how many bodies began, and those that began after their lease.

    Args:
        conn: the database, which has INSTALL.
        begun: a line for each body: instant, process, run, name.
        ttl_s: length of a lease.
    """
    leased: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for run, worker, at in conn.execute("select run, worker, at from leased order by at").fetchall():
        leased[str(run), str(worker).split("-")[-2]].append(float(str(at)))
    lines = begun.read_text().splitlines()
    late = []
    for line in lines:
        at, process, run, name = line.split(" ", 3)
        renewals = leased[run, process]
        place = bisect_right(renewals, float(at))
        age_s = float(at) - renewals[place - 1] if place else None
        if age_s is None or age_s > ttl_s:
            late.append(f"{name} of {run} in process {process} at {at}: last lease {age_s} s before")
    return len(lines), late
