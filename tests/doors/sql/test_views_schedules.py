"""Law: looking at a schedule reads as much after a million instants as after some hundred."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.sql.test_scheduled_runs import plan
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask

LOOKS = (
    "select * from durable.schedule_instants where schedule = 's' order by at desc limit 20",
    "select * from durable.schedules where id = 's'",
    "select * from durable.schedules order by id limit 50",
    "select * from durable.next_instants('s', 5)",
    "select * from durable.why('s')",
    "select * from durable.health where subject in ('paused schedules', 'missed instants', 'schedules')",
    "select durable._last_result(s, 1800000000000) from durable._schedules s where id = 's'",
    "select durable._failures_in_row(s) from durable._schedules s where id = 's'",
)
# so many instants before p_from, every other one with a run, which has a child; the last runs have a hundred
FILL = """
with at (at, n) as (
  select 1800000000000 - 60000 * n, n from generate_series(%(from)s::bigint, %(to)s::bigint) n),
told as (
  insert into durable._schedule_instants (schedule, at, upto, outcome, recorded_at)
  select 's', at, at, case when n %% 10 = 0 then 'missed' else 'skipped' end, at from at where n %% 2 = 0)
insert into durable._promises (id, state, timeout_at, created_at, settled_at, external, value_data, tags)
select r.id || c.suffix, case when n %% 3 = 0 then 'rejected' else 'resolved' end, 9007199254740991,
       at, at, true, '1', case when c.suffix = '' then '{"resonate:schedule": "s"}' else '{}' end::jsonb
from at cross join lateral (
  select 's-' || to_char(timezone('UTC', durable._at(at)), 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as id) r
cross join lateral (select '' as suffix union all
                    select '.' || g from generate_series(1, case when n < 40 then 100 else 1 end) g) c
where n %% 2 = 1
"""


def pages(conn: Connection) -> list[int]:
    """How many pages each look reads."""
    found = []
    for text in LOOKS:
        conn.execute(text.encode())
        explained: Any = ask(
            conn, (f"explain (analyze, buffers, format json) {text.replace('%', '%%')}", ())
        )[0]
        plan_ = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
        found.append(plan_["Shared Hit Blocks"] + plan_["Shared Read Blocks"])
    return found


@pytest.mark.unlawful("promises without runs")
def test_looks_do_not_grow(conn: Connection, clock: Clock, request: pytest.FixtureRequest) -> None:
    """Ten times as many instants (a thousand times with --full): an index is higher by a page or two, which
    each of a hundred descents reads."""
    few, many = (1000, 1_000_000) if request.config.getoption("--full") else (600, 6000)
    ask(conn, plan(cron="* * * * *", overlap="skip", pause_after=5))
    conn.execute(FILL.encode(), {"from": 1, "to": few})
    conn.execute("analyze durable._schedule_instants, durable._promises")
    before = pages(conn)
    conn.execute(FILL.encode(), {"from": few + 1, "to": many})
    conn.execute("analyze durable._schedule_instants, durable._promises")
    after = pages(conn)
    grown = {
        text: pair for text, *pair in zip(LOOKS, before, after, strict=True) if pair[1] > pair[0] * 2.5 + 30
    }
    assert grown == {}
    assert max(after) < 1500, dict(zip(LOOKS, after, strict=True))
