"""Each instant of a schedule has one run, however many workers there are and however they end."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from datetime import timedelta

import psycopg
import pytest

from tests.system.crash import effects
from tests.system.crash.processes import kill, until, worker

# of each schedule with a policy: its instants, their runs and rows, and the seconds from first to last
ACCOUNT = """
select s.id, count(distinct i.at), count(*),
       extract(epoch from max(i.at) - min(i.at))::integer + 1
from durable.schedules s
cross join lateral (
  select substr(p.id, length(s.id) + 2)::timestamptz as at from durable._promises p
  where p.tags ->> 'resonate:schedule' = s.id
  union all
  select durable._at(x.at) from durable._schedule_instants x where x.schedule = s.id and x.at = x.upto) i
where s.overlap <> 'allow' group by s.id order by s.id
"""


@pytest.fixture(params=[2, pytest.param(20, marks=pytest.mark.full)])
def kills(request: pytest.FixtureRequest) -> int:
    """How many workers are killed."""
    return int(request.param)


def test_each_instant_has_one_run(dsn: str, kills: int) -> None:
    """Four workers, one of which is killed and replaced again and again: no instant is missed, none has two
    runs, and each run did its work. Under a policy each has one run, or one row that says why not.
    """
    effects.prepare(dsn)
    with ExitStack() as stack:

        def another() -> subprocess.Popen[bytes]:
            return stack.enter_context(worker(dsn, job="tests.system.crash.schedule_job:app"))

        alive = [another() for _ in range(4)]
        until(dsn, "select count(*) >= 1 from durable.runs where state = 'completed'")
        for number in range(kills):
            kill(alive.pop(0))
            alive.append(another())
            until(dsn, "select count(*) > %s from durable.runs where workflow = 'beat'", number + 1)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("update durable.schedules set state = 'paused'")
        until(dsn, "select bool_and(state in ('completed', 'cancelled')) from durable.runs")
    with psycopg.connect(dsn) as conn:
        found = conn.execute(
            "select (args ->> 0)::timestamptz, id, count(e.*) from durable.runs r "
            "left join public.effects e on e.run = r.id where workflow = 'beat' group by 1, 2 order by 1"
        ).fetchall()
        told = conn.execute(ACCOUNT).fetchall()
        assert conn.execute("select count(*) from durable.check()").fetchone() == (0,)
    instants = [row[0] for row in found]
    assert len(instants) > kills
    assert instants == [instants[0] + timedelta(seconds=n) for n in range(len(instants))]
    assert all(row[1] == f"beat-{row[0]:%Y-%m-%dT%H:%M:%SZ}" and row[2] >= 1 for row in found)
    assert [row[0] for row in told] == ["buffer_all", "buffer_one", "cancel", "skip"]
    # as many runs and rows as seconds, and as many different ones
    assert all(different == each == seconds > 1 for _, different, each, seconds in told), told
