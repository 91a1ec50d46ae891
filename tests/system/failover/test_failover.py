"""The primary dies under load, and its standby is promoted.

Where commits wait for the standby, all that was acknowledged is there afterwards: starts that returned are
runs that complete, results that were read stay, no recorded step runs again. Where they do not wait, the end
of the history is lost; the rest of it is whole, and runs go on from there.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pyengine import Client
from pyengine.doors.admin import migrate
from tests.system.crash.processes import kill
from tests.system.failover import trail
from tests.system.failover.cable import Cable
from tests.system.failover.job import expected_journey
from tests.system.failover.nodes import Node, nodes, url
from tests.system.failover.work import Starter, alive, by_sql, by_sync_client, start_by_command, until, worker

COMPLETED = "select count(*) from durable.runs where state = 'completed' and workflow = 'journey'"
ALL_COMPLETED = "select coalesce(bool_and(state = 'completed'), false) from durable.runs"
START = "select durable.start('journey', jsonb_build_array(%s::text), id => %s)"
ROUNDS = 30
KNOWN = "select exists (select from durable._workflows where name = 'journey')"
JOURNEY = "select durable.start('journey', '[\"x\"]', id => %s)"
PATIENT = "select durable.start('patient', jsonb_build_array('p', %s::float8), id => %s)"
PATIENT_RUNS = "select count(*) = 2 from durable.runs where workflow = 'patient' and state = 'running'"
WRITTEN = "select count(*), max(ts) from durable._journal"
CAUGHT_UP = "select bool_and(replay_lsn >= pg_current_wal_lsn()) from pg_stat_replication"
CLOCK = """
create or replace function durable._now_ms() returns bigint language sql volatile as $$
  select floor(extract(epoch from clock_timestamp()) * 1000)::bigint
         + case when current_setting('data_directory') = '{}' then {} else 0 end
$$"""
"""A clock that is ahead on one server."""
# with them the log would know that the lost numbers were given
NO_NUMBERS_AHEAD = (
    "select setval('durable._executions_execution_seq', max(execution)) from durable._executions"
)


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


def until_more(dsn: str, count: int) -> None:
    """Wait until so many journeys are completed."""
    until(lambda: completed(dsn) >= count)


async def waits_for(dsn: str, run: str) -> str:
    """The result of a run, by a client that waits for it all the time."""
    async with Client(dsn) as client:
        return str(await client.run(run).result(timeout=120))


@pytest.mark.parametrize("ahead_ms", [pytest.param(0, marks=pytest.mark.full), 15_000])
def test_with_synchronous_replication_nothing_acknowledged_is_lost(
    pair: tuple[Node, Node], tmp_path: Path, ahead_ms: int
) -> None:
    """Starts by every door, results that were read, and steps that were recorded survive the primary. While
    there is none, workers keep what they have done, and go on when there is one. So it is where the clock of
    the standby is behind that of the primary."""
    primary, standby = pair
    with psycopg.connect(primary.dsn(), autocommit=True) as conn:
        conn.execute(CLOCK.format(primary.data, ahead_ms).encode())
    standby.follow(primary)
    primary.waits_for_standby(True)
    dsn, file, log = url(primary, standby), tmp_path / "trail", tmp_path / "log"
    starters = [Starter(door.__name__, door(dsn)) for door in (by_sql, by_sync_client)]
    with worker(dsn, file, log) as first, worker(dsn, file, log) as second:
        until(lambda: trail.ask(dsn, KNOWN) == [(True,)])
        for starter in starters:
            starter.start()
        until(lambda: completed(dsn) >= 10)
        # on a busy machine a worker comes back late, and its steps would be run again by the other one
        trail.ask(
            dsn, "update durable.settings set value = '30000' where name = 'presence_grace_ms' returning 1"
        )
        for number in range(2):
            trail.ask(dsn, PATIENT, 1.5, f"patient-{number}")
        until(lambda: trail.ask(dsn, PATIENT_RUNS) == [(True,)])
        # their presence locks are the primary's
        until(
            lambda: standby.ask("select count(*) from durable.workers where presence = 'present'") == [(2,)]
        )
        read = trail.results(dsn)
        primary.kill()
        # the slow steps end while there is no server
        time.sleep(1.7)
        assert alive(first) and alive(second)
        before = len(read)
        standby.promote()
        until(lambda: completed(dsn) >= before + 10)
        assert asyncio.run(waits_for(dsn, "patient-0")) == "p"
        start_by_command(dsn, "typed")
        for starter in starters:
            starter.finish()
        until(lambda: trail.ask(dsn, ALL_COMPLETED) == [(True,)])
        # a new timeline is noted, and stops nothing
        until(lambda: trail.ask(dsn, "select timeline, previous_timeline from durable.site") == [(2, 1)])
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


@pytest.mark.full
def test_with_asynchronous_replication_the_rest_of_the_history_is_whole(
    pair: tuple[Node, Node], tmp_path: Path, figures: Callable[[str, str], None]
) -> None:
    """What the standby had not received is lost, and its execution numbers are given again. All laws hold,
    runs that are there complete, and a worker that still holds a lost run takes no other one for it. Lost
    starts are made again with their ids."""
    primary, standby = pair
    with Cable(primary) as cable:
        standby.follow(primary, through=cable.place)
        dsn, file, log = url(primary, standby), tmp_path / "trail", tmp_path / "log"
        kept, starter = Starter("kept", by_sql(dsn)), Starter("run", by_sql(dsn))
        with worker(dsn, file, log), worker(dsn, file, log):
            until(lambda: trail.ask(dsn, KNOWN) == [(True,)])
            kept.start()
            until(lambda: completed(dsn) >= 20)
            kept.finish()
            until(lambda: trail.ask(dsn, ALL_COMPLETED) == [(True,)])
            read = trail.results(dsn)
            primary.ask(NO_NUMBERS_AHEAD)
            primary.until(CAUGHT_UP)
            cable.cut()
            starter.start()
            for number in range(2):
                trail.ask(dsn, PATIENT, 60.0, f"patient-{number}")
            until(lambda: trail.ask(dsn, PATIENT_RUNS) == [(True,)])
            until(lambda: completed(dsn) >= len(read) + 20)
            primary.kill()
            standby.promote()
            known = {run for (run,) in trail.ask(dsn, "select id from durable.runs")}
            lost = [run for run in starter.acknowledged if run not in known]
            until(lambda: completed(dsn) >= len(read) + 20)
            starter.finish()
            for run in lost:
                trail.ask(dsn, START, run, run)
            until(lambda: trail.ask(dsn, ALL_COMPLETED) == [(True,)])
    ended = trail.results(dsn)
    assert lost
    assert "patient-0" not in ended
    assert set(kept.acknowledged) == set(read)
    assert set(starter.acknowledged) <= set(ended)
    assert {run: ended.get(run) for run in read} == read
    assert all(ended[run] == expected_journey(run) for run in starter.acknowledged)
    assert trail.repeated(dsn, file) == []
    assert trail.missing(dsn, file) == set()
    assert trail.unbalanced(dsn) == []
    assert trail.broken_laws(dsn) == []
    figures(
        "failover-asynchronous",
        f"{len(starter.acknowledged)} starts, {len(lost)} of them lost and made again",
    )


@pytest.mark.full
def test_a_worker_of_the_fenced_primary_cannot_write(pair: tuple[Node, Node], tmp_path: Path) -> None:
    """The standby was promoted, and the primary still runs, cut off from it. Commits there wait for a standby
    that does not come back, so no report and no start takes effect. The runs go on at the new primary, and
    the worker that held them is refused there."""
    primary, standby = pair
    primary.ask("select durable.set_setting('lease_ttl_ms', '1500')")
    with Cable(primary) as replication, Cable(primary) as address:
        standby.follow(primary, through=replication.place)
        primary.waits_for_standby(True)
        file, log, old = tmp_path / "trail", tmp_path / "log", tmp_path / "old"
        with worker(address.dsn, file, old) as isolated:
            until(lambda: primary.ask(KNOWN) == [(True,)])
            for number in range(2):
                primary.ask(PATIENT, 2.0, f"patient-{number}")
            until(lambda: primary.ask(PATIENT_RUNS) == [(True,)])
            replication.cut()
            before = primary.ask(WRITTEN)
            hopeless = threading.Thread(target=fails_to_start, args=(primary,), daemon=True)
            hopeless.start()
            standby.promote()
            with worker(standby.dsn(), file, log):
                until(lambda: standby.ask(ALL_COMPLETED) == [(True,)])
                assert alive(isolated)
                assert hopeless.is_alive()
                assert primary.ask(WRITTEN) == before
                primary.kill()
                hopeless.join()
                address.node = standby
                until(lambda: "event=run_lost run=patient-" in old.read_text())
        with worker(address.dsn, file, log):
            trail.ask(standby.dsn(), JOURNEY, "afterwards")
            until(lambda: standby.ask(ALL_COMPLETED) == [(True,)])
    assert standby.ask("select count(*) from durable.runs where id = 'hopeless'") == [(0,)]
    assert trail.repeated(standby.dsn(), file) == []
    assert trail.broken_laws(standby.dsn()) == []


def fails_to_start(node: Node) -> None:
    """A start that is not acknowledged, and cannot be."""
    with pytest.raises(psycopg.OperationalError):
        node.ask(JOURNEY, "hopeless")


def test_a_caller_that_gives_up_has_no_start_that_only_the_primary_knows(pair: tuple[Node, Node]) -> None:
    """The standby is away, so a commit waits. A server that is asked to cancel such a commit ends the wait,
    and the row is there, on one server. So a client that gives up cancels nothing: it only disconnects."""
    primary, standby = pair
    with Cable(primary) as replication:
        standby.follow(primary, through=replication.place)
        primary.waits_for_standby(True)
        replication.cut()

        async def main() -> None:
            async with Client(primary.dsn()) as client:
                for _ in range(2):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await client.promises.create("given up", timeout="1h")

        asyncio.run(main())
        time.sleep(0.3)
        assert primary.ask("select id from durable._promises") == []
        primary.waits_for_standby(False)
        primary.until("select exists (select from durable._promises where id = 'given up')")


@pytest.mark.full
def test_many_failovers(
    pair: tuple[Node, Node], tmp_path: Path, seed: int, figures: Callable[[str, str], None]
) -> None:
    """To and fro: each primary dies at a random moment under load, together with a worker in every second
    round, and comes back as the standby, made anew or rewound."""
    draw = random.Random(seed)
    primary, standby = pair
    standby.follow(primary)
    primary.waits_for_standby(True)
    dsn, file, log = url(*pair), tmp_path / "trail", tmp_path / "log"
    starters = [Starter(door.__name__, door(dsn)) for door in (by_sql, by_sync_client)]
    away: list[float] = []
    killed = 0
    with worker(dsn, file, log):
        until(lambda: trail.ask(dsn, KNOWN) == [(True,)])
        for starter in starters:
            starter.start()
        for round_ in range(ROUNDS):
            with worker(dsn, file, log) as other:
                until_more(dsn, completed(dsn) + 20)
                time.sleep(draw.random())
                if round_ % 2:
                    kill(other)
                    killed += 1
                primary.kill()
                time.sleep(draw.random())
                begun_s = time.monotonic()
                standby.promote()
                until_more(dsn, completed(dsn) + 1)
                away.append(time.monotonic() - begun_s)
                primary, standby = standby, primary
                if round_ % 3 == 2:
                    standby.rewind(primary)
                standby.follow(primary, anew=round_ % 3 != 2)
                primary.waits_for_standby(True)
                primary.until(CAUGHT_UP)
        for starter in starters:
            starter.finish()
        until(lambda: trail.ask(dsn, ALL_COMPLETED) == [(True,)])
    ended = trail.results(dsn)
    acknowledged = {run for starter in starters for run in starter.acknowledged}
    assert acknowledged <= set(ended)
    assert all(ended[run] == expected_journey(run) for run in acknowledged)
    assert trail.repeated(dsn, file) == []
    assert trail.missing(dsn, file) == set()
    assert trail.unbalanced(dsn) == []
    assert trail.broken_laws(dsn) == []
    figures(
        "failover",
        f"Synchronous replication, seed {seed}: {ROUNDS} primaries and {killed} workers killed under load, "
        f"{len(acknowledged)} acknowledged starts, all completed like undisturbed ones; 0 recorded steps ran "
        f"again, 0 rows were written twice, {trail.extra(dsn, file)} bodies ran before their record and once "
        "more after it. "
        f"From the promotion until a run completed: median {statistics.median(away):.2f} s, "
        f"longest {max(away):.2f} s.",
    )
