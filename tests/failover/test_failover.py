"""The primary dies under load, and its standby is promoted.

Where commits wait for the standby, all that was acknowledged is there afterwards: starts that returned are
runs that complete, results that were read stay, no recorded step runs again. Where they do not wait, the end
of the history is lost; the rest of it is whole, and runs go on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyengine import Client
from pyengine.admin import migrate
from tests.failover import trail
from tests.failover.job import expected_journey
from tests.failover.nodes import Node, nodes, url
from tests.failover.work import Starter, alive, by_sql, by_sync_client, start_by_command, until, worker

COMPLETED = "select count(*) from durable.runs where state = 'completed' and workflow = 'journey'"
ALL_COMPLETED = "select coalesce(bool_and(state = 'completed'), false) from durable.runs"
KNOWN = "select exists (select from durable._workflows where name = 'journey')"
PATIENT_RUNS = "select count(*) = 2 from durable.runs where workflow = 'patient' and state = 'running'"


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    """A primary with the schema, and a node that can become its standby."""
    with nodes(2) as (primary, other):
        primary.start()
        migrate.install(primary.dsn())
        primary.ask(trail.LEDGER)
        yield primary, other


def completed(dsn: str) -> int:
    """How many journeys are completed."""
    return int(trail.ask(dsn, COMPLETED)[0][0])


async def waits_for(dsn: str, run: str) -> str:
    """The result of a run, by a client that waits for it all the time."""
    async with Client(dsn) as client:
        return str(await client.run(run).result(timeout=120))


def test_with_synchronous_replication_nothing_acknowledged_is_lost(
    pair: tuple[Node, Node], tmp_path: Path, figures: Callable[[str, str], None]
) -> None:
    """Starts by every door, results that were read, and steps that were recorded survive the primary. While
    there is none, workers keep what they have done, and go on when there is one."""
    primary, standby = pair
    standby.follow(primary)
    primary.waits_for_standby(True)
    dsn, file, log = url(primary, standby), tmp_path / "trail", tmp_path / "log"
    starters = [Starter(door.__name__, door(dsn)) for door in (by_sql, by_sync_client)]
    with worker(dsn, file, log) as first, worker(dsn, file, log) as second:
        until(lambda: trail.ask(dsn, KNOWN) == [(True,)])
        for starter in starters:
            starter.start()
        until(lambda: completed(dsn) >= 30)
        for number in range(2):
            trail.ask(dsn, f"select durable.start('patient', '[\"p\", 2.0]', id => 'patient-{number}')")
        until(lambda: trail.ask(dsn, PATIENT_RUNS) == [(True,)])
        read = trail.results(dsn)
        primary.kill()
        # the slow steps end while there is no server
        time.sleep(2.5)
        assert alive(first) and alive(second)
        before = len(read)
        standby.promote()
        away_s = until(lambda: completed(dsn) > before)
        until(lambda: completed(dsn) >= before + 30)
        assert asyncio.run(waits_for(dsn, "patient-0")) == "p"
        start_by_command(dsn, "typed")
        for starter in starters:
            starter.finish()
        until(lambda: trail.ask(dsn, ALL_COMPLETED) == [(True,)])
    assert (first.returncode, second.returncode) == (0, 0)
    ended = trail.results(dsn)
    acknowledged = {"typed"} | {run for starter in starters for run in starter.acknowledged}
    assert acknowledged <= set(ended)
    assert {run: ended.get(run) for run in read} == read
    assert all(ended[run] == expected_journey(run) for run in acknowledged)
    assert trail.repeated(dsn, file) == []
    assert trail.missing(dsn, file) == set()
    assert trail.unbalanced(dsn) == []
    assert trail.broken_laws(dsn) == []
    assert [each[2] for each in trail.read(file)].count("p") == 2, "no slow step ran again"
    assert all(starter.acknowledged for starter in starters)
    figures(
        "failover",
        f"{len(acknowledged)} starts, {len(read)} results read, {away_s:.2f} s until work went on",
    )
