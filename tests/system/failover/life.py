"""The life of a database that is moved while it has runs of every kind, and its continuation elsewhere.

What lives here: `begin`, which leaves live runs behind, and `go_on`, which brings them to their end in
another place. What may not: how the database gets there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.failover import trail
from tests.system.failover.job import expected_journey
from tests.system.failover.work import until, worker

ORDERS = "create table public.orders (id integer primary key, status text not null)"
WATCH = "select durable.watch('orders', 'paid', key => '{id}', condition => 'status = ''paid''')"
START = "select durable.start(%s, %s::jsonb, id => %s)"
SERVICE = """
create table public.ticks (at timestamptz not null default clock_timestamp());
create function public.tock() returns integer language sql
as 'insert into public.ticks default values returning 1';
select durable.serve('public.tock()')
"""
SCHEDULE = "select durable.schedule('each-second', '* * * * * *', target => 'sql://public.tock')"
KNOWN = "select exists (select from durable._workflows where name = 'journey')"
STATES = "select state, count(*) from durable.runs where parent is null group by state"
WAITING = "select count(*) from durable.runs where state = 'waiting' and parent is null"
DONE = "select bool_and(state = 'completed') from durable.runs where id = any (%s)"
ENDING = [
    *("caller", "collector-0", "collector-1", "buyer-0", "buyer-1", "sleeper-short"),
    *(f"journey-{number}" for number in range(9)),
]
FIRED = "select count(*) from durable._promises where id like 'each-second-%' and state = 'resolved'"
TICKS = "select count(*) from public.ticks"


@dataclass(frozen=True, kw_only=True)
class Life:
    """What was left behind.

    Args:
        results: of the runs that had completed.
        due: when the long timer fires, by the database.
        fired: how often the schedule had fired.
    """

    results: dict[str, Any]
    due: Any
    fired: int


def start(dsn: str, run: str, workflow: str, args: str) -> None:
    """Start a run."""
    trail.ask(dsn, START, workflow, args, run)


def begin(dsn: str, file: Path, log: Path) -> Life:
    """Have a worker live for a while, and leave what is not done: runs that wait for signals, timers, rows,
    one in the middle of a step, some that no worker has claimed, a schedule, large values."""
    trail.ask(dsn, trail.LEDGER)
    trail.ask(dsn, ORDERS)
    trail.ask(dsn, "insert into public.orders select n, 'new' from generate_series(1, 4) n")
    trail.ask(dsn, WATCH)
    trail.ask(dsn, SERVICE)
    with worker(dsn, file, log):
        until(lambda: trail.ask(dsn, KNOWN) == [(True,)])
        trail.ask(dsn, SCHEDULE)
        for number in range(6):
            start(dsn, f"journey-{number}", "journey", f'["journey-{number}"]')
        for number in range(2):
            start(dsn, f"collector-{number}", "collector", "[2]")
            start(dsn, f"buyer-{number}", "buyer", f"[{number + 1}]")
        start(dsn, "caller", "caller", "[21]")
        start(dsn, "sleeper-short", "sleeper", "[5]")
        start(dsn, "sleeper-long", "sleeper", "[7200]")
        start(dsn, "patient", "patient", '["slow", 600]')
        until(lambda: trail.ask(dsn, "select count(*) from public.ledger") == [(6,)])
        until(lambda: trail.ask(dsn, DONE, ["caller"]) == [(True,)])
        until(lambda: int(trail.ask(dsn, WAITING)[0][0]) >= 5)
        until(lambda: "slow" in [each[2] for each in trail.read(file)])
        until(lambda: int(trail.ask(dsn, FIRED)[0][0]) >= 2)
    for number in range(6, 9):
        start(dsn, f"journey-{number}", "journey", f'["journey-{number}"]')
    return Life(
        results=trail.results(dsn),
        due=trail.ask(dsn, "select due_at from durable._promises where id like 'sleeper-long.%'"),
        fired=int(trail.ask(dsn, FIRED)[0][0]),
    )


def go_on(dsn: str, file: Path, log: Path, life: Life) -> None:
    """Have another worker bring everything to its end, and compare it with what was there before."""
    trail.ask(dsn, "select durable.cancel('patient')")
    with worker(dsn, file, log):
        for number in range(2):
            trail.ask(dsn, "select durable.signal(%s, 'go_on', '\"gone on\"')", f"collector-{number}")
        trail.ask(dsn, "update public.orders set status = 'paid'")
        until(lambda: int(trail.ask(dsn, FIRED)[0][0]) > life.fired)
        trail.ask(dsn, "select durable.unschedule('each-second')")
        until(lambda: trail.ask(dsn, DONE, ENDING) == [(True,)])
    ended = trail.results(dsn)
    assert {run: ended.get(run) for run in life.results} == life.results
    assert all(ended[f"journey-{number}"] == expected_journey(f"journey-{number}") for number in range(9))
    assert {ended[f"collector-{number}"] for number in range(2)} == {200}
    assert trail.ask(dsn, "select due_at from durable._promises where id like 'sleeper-long.%'") == life.due
    assert trail.ask(dsn, TICKS) == trail.ask(dsn, FIRED)
    assert trail.repeated(dsn, file) == []
    assert trail.missing(dsn, file) == set()
    assert trail.unbalanced(dsn) == []
    assert trail.broken_laws(dsn) == []


def stands_still(dsn: str, file: Path, log: Path) -> None:
    """Nothing runs in a copy that is not adopted, whatever is due there, with a worker and ticks."""
    before = (trail.read(file), trail.ask(dsn, STATES), trail.ask(dsn, TICKS))
    with worker(dsn, file, log):
        until(lambda: "pyengine db adopt" in log.read_text())
        trail.ask(dsn, "select durable.tick()")
        # some rounds of a worker that polls and ticks
        time.sleep(2.0)
    assert (trail.read(file), trail.ask(dsn, STATES), trail.ask(dsn, TICKS)) == before
    assert trail.broken_laws(dsn) == []


def adopt(dsn: str) -> None:
    """Let a copy run."""
    assert trail.ask(dsn, "select adopted from durable.adopt()") == [(True,)]
