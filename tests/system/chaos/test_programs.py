"""Random workflows under random faults return what they return without faults, and leave the same behind;
those that are cancelled clean up, all of it, once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pyengine.core.database.connection import Database
from pyengine.features.checks.replay_check import Report, replay_check
from tests.system.chaos.folds import cleaned, fold, lively
from tests.system.chaos.job import app
from tests.system.chaos.leases import INSTALL, bodies
from tests.system.chaos.plans import Maker, Node, clean_ups, value
from tests.system.chaos.world import MOVABLE_CLOCK, World

ROUND = 100
TTL_MS = 1000


def prepare(dsn: str) -> None:
    """Short leases, so that a frozen worker loses its work, and no limit to crashes."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name, setting in (("lease_ttl_ms", str(TTL_MS)), ("max_crashes", "10000")):
            conn.execute("select durable.set_setting(%s, %s)", (name, setting))
        conn.execute("create table mark (run text not null, chance double precision not null)")
        conn.execute(MOVABLE_CLOCK)
        conn.execute(INSTALL)


def play(
    dsn: str, prefix: str, programs: list[Node], seed: int, *, faults: bool, begun: Path | None = None
) -> Counter[str]:
    """Play programs to their ends; answers what the world did."""
    world = World(dsn, seed, workers=2, faults=faults, begun=begun)
    try:
        for number, program in enumerate(programs):
            world.start(f"{prefix}-{number}", program)
        world.play(180 + 4 * len(programs))
    finally:
        world.close()
    return world.done


def checked(dsn: str) -> Report:
    """Replay the journal of every run with the code that made it."""
    return asyncio.run(replay_check(Database(dsn), app.registry, finished=True))


def compare(dsn: str, programs: list[Node], seed: int) -> int:
    """Compare the runs under faults with the calm ones and with what they must return; answers how many were
    lively."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        roots = conn.execute(
            "select id, state, result, error from durable.runs where parent is null"
        ).fetchall()
        ends = {run: end for run, *end in roots}
        for number, program in enumerate(programs):
            hard, calm = f"hard-{number}", f"calm-{number}"
            where = f"seed {seed}, program {number}: {program}"
            due = ["completed", value(program), None]
            if clean_ups(program):
                due = ["cancelled", None, ends[calm][2]]
            assert ends[calm] == ends[hard] == due, f"{ends[calm]}, {ends[hard]}, not {due}: {where}"
            assert fold(conn, hard) == fold(conn, calm), where
            for run in (calm, hard):
                assert cleaned(conn, run) == sorted(clean_ups(program)), f"{run}, {where}"
        return lively(conn, [f"hard-{number}" for number in range(len(programs))])


MISWRITTEN = """
with told as (
  select h.id as run, count(*) as number from durable._journal j
  join durable._executions h on h.execution = j.execution
  where j.name = 'write' and j.type = 'step_completed' and (j.data::jsonb ->> 'committed')::boolean
  group by h.id
)
select run, count(m.run), max(t.number) from mark m full join told t using (run)
group by run having count(m.run) is distinct from max(t.number) or min(m.chance) < 0
"""
"""Runs whose rows are not those of their committed transactions."""


@pytest.mark.parametrize(
    "size", [pytest.param(2, id="2"), pytest.param(1000, id="1000", marks=pytest.mark.full)]
)
def test_random_workflows_under_faults(
    another_database: Callable[[], str],
    tmp_path: Path,
    seed: int,
    size: int,
    figures: Callable[[str, str], None],
) -> None:
    """Results and folds under kills, freezes, pauses, idle transactions of users, moves of the clock, lost
    connections, delays and reorderings equal those of a calm run; every journal replays clean; what
    transactions wrote is there once; no body begins after its lease."""
    done: Counter[str] = Counter()
    runs = alive = written = began = stopped = 0
    begin = time.monotonic()
    for first in range(0, size, ROUND):
        dsn = another_database()
        prepare(dsn)
        programs = [Maker(seed + first + n).program() for n in range(min(ROUND, size - first))]
        begun = tmp_path / f"begun-{first}"
        done += play(dsn, "hard", programs, seed + first, faults=True, begun=begun)
        play(dsn, "calm", programs, seed + first, faults=False)
        alive += compare(dsn, programs, seed + first)
        report = checked(dsn)
        assert report.count("diverged") == report.count("unknown") == 0, report.breaks()
        runs += len(report.runs)
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert conn.execute("select * from durable.check()").fetchall() == []
            assert conn.execute(MISWRITTEN).fetchall() == []
            (marks,) = conn.execute("select count(*) from mark").fetchone() or (0,)
            written += marks
            found = bodies(conn, begun, TTL_MS / 1000)
            assert found.late == [], f"seed {seed + first}"
            began, stopped = began + found.number, stopped + found.stopped
    assert alive >= (0.3 * size if size > 10 else 1)
    assert done["killed"] + done["frozen"] + done["paused"] >= size / 10, done
    assert size < ROUND or done["held"] >= size / 40, done
    figures(
        "random-workflows",
        f"{size} programs, seed {seed}, in {time.monotonic() - begin:.0f} s: results and folds under "
        f"faults equal those without; {alive} had a foreign completion while two or more branches were "
        f"open; the journals of all {runs} runs replay clean; the {written} rows of their transactions are "
        f"there once; none of {began} bodies began after its lease, {stopped} were stopped as they began; "
        f"the world did {dict(done)}",
    )
