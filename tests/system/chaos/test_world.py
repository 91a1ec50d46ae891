"""The world of the random workflows can be believed: what it does ends, and what stands still is told."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.verbs import ask, begin_run, heartbeat
from tests.system.chaos.leases import bodies
from tests.system.chaos.test_programs import prepare
from tests.system.chaos.world import CLOCK_MS, World
from tests.system.crash.processes import launch, until

ASLEEP = "import time; time.sleep(3600)"
ENDED = "raise SystemExit('tired')"
# commits only when it is woken
HOLDER = """
import os, signal, psycopg
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
with psycopg.connect(os.environ["PYENGINE_DATABASE_URL"], application_name="holder") as conn:
    conn.execute("select from durable._tasks for update")
    conn.execute("select 'held'")
    signal.sigwait([signal.SIGCONT])
"""


def world(dsn: str, code: str, *, workers: int = 2) -> World:
    """A world with a run, the workers of which are processes that do something else."""

    class Other(World):
        def _launch(self, place: int) -> subprocess.Popen[bytes]:
            return launch(self._dsn, "-c", code, log=self._log)

    made = Other(dsn, 0, workers=workers, faults=True)
    made.start("r", ["step", 1])
    return made


def test_faults_wait_for_work(another_database: Callable[[], str]) -> None:
    """While no code moves on nothing is killed, frozen or paused: workers that need long to start are not
    killed before they have begun, again and again. Who gives up waiting says what is left."""
    dsn = another_database()
    prepare(dsn)
    idle = world(dsn, ASLEEP)
    try:
        with pytest.raises(TimeoutError) as told:
            idle.play(1)
    finally:
        idle.close()
    assert set(idle.done) <= {"settled", "signalled", "cancelled"}
    said = str(told.value).splitlines()
    assert any(line.startswith("  ('r', 'queued', None, 0") for line in said), said
    assert "  ('r', '0 ExecutionStarted')" in said


def test_a_frozen_worker_is_woken_while_the_world_waits(another_database: Callable[[], str]) -> None:
    """A worker that was frozen with locks is woken in time by a world that itself waits for them."""
    dsn = another_database()
    prepare(dsn)
    waiting = world(dsn, HOLDER, workers=1)
    try:
        until(dsn, "select exists (select from pg_stat_activity where query = 'select ''held''')")
        waiting._freeze()
        waiting._conn.execute("set statement_timeout = '60 s'")
        waiting._pause()
    finally:
        waiting.close()
    assert waiting.done == {"frozen": 1, "paused": 1}


def test_a_worker_that_ends_by_itself_is_told(another_database: Callable[[], str]) -> None:
    """Nobody waits for a worker that has ended without being killed; its last words are told."""
    dsn = another_database()
    prepare(dsn)
    left = world(dsn, ENDED)
    try:
        with pytest.raises(RuntimeError, match=r"ended with 1(?s:.*)tired"):
            left.play(60)
    finally:
        left.close()


def test_a_worker_may_log_as_much_as_it_likes(another_database: Callable[[], str]) -> None:
    """A process of ours does not stand still because nobody reads what it writes."""
    process = launch(another_database(), "-c", "import sys; sys.stderr.write('x' * 1_000_000)")
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_lost_connection_is_never_served_again(another_database: Callable[[], str]) -> None:
    """Nobody is told: the statement has no answer, while a new connection works."""
    dsn = another_database()
    prepare(dsn)
    lossy = world(dsn, ASLEEP, workers=1)
    try:
        (through,) = [lossy._through(cable) for cable in lossy._cables]
        with psycopg.connect(through, autocommit=True) as lost:
            assert lost.execute("select 1").fetchone() == (1,)
            lossy._lose()
            lost.pgconn.send_query(b"select 2")
            assert select.select([lost.fileno()], [], [], 0.5)[0] == []
            with psycopg.connect(through, autocommit=True) as new:
                assert new.execute("select 3").fetchone() == (3,)
            assert select.select([lost.fileno()], [], [], 0)[0] == []
            lost.pgconn.finish()
    finally:
        lossy.close()
    assert lossy.done == {"lost": 1}


def test_the_clock_of_the_database_moves(another_database: Callable[[], str]) -> None:
    """What asks the engine for the time gets another one; the server's own clock stays, and so it ends."""
    dsn = another_database()
    prepare(dsn)
    moving = world(dsn, ASLEEP, workers=1)
    apart = "select round(durable._now_ms() / 1000.0 - extract(epoch from clock_timestamp()))"
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            moving._set_clock(-CLOCK_MS)
            assert conn.execute(apart).fetchone() == (-60,)
            moving._move_clock()
            assert moving.done == {"moved": 1}
        finally:
            moving.close()
        assert conn.execute(apart).fetchone() == (0,)


def test_a_body_that_begins_after_its_lease_is_found(
    another_database: Callable[[], str], tmp_path: Path
) -> None:
    """Renewals count for the process that has the lease, and each for as long as a lease is."""
    dsn = another_database()
    prepare(dsn)
    begun = tmp_path / "begun"
    # allowed, begun, process, run, name: nobody allowed f, and g was stopped between the two
    notes = ("10.5 10.5 7 r a", "11.5 11.5 7 r b", "12.9 12.9 7 r c", "10.5 10.5 8 r d", "9.9 9.9 7 r e")
    begun.write_text("\n".join([*notes, "inf 10.6 7 r f", "10.6 11.1 7 r g"]) + "\n")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("insert into leased values ('r', 'host-7-ab', 10), ('r', 'host-7-ab', 11.2)")
        found = bodies(conn, begun, 1.0)
    assert (found.number, found.stopped) == (7, 1)
    assert [one.split()[0] for one in found.late] == ["c", "d", "e", "f"]


def test_leases_are_noted_as_they_are_renewed(another_database: Callable[[], str]) -> None:
    """At the claim, at a heartbeat, and while somebody else has the task locked."""
    dsn = another_database()
    prepare(dsn)
    noted = "select worker from leased order by at"
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn) as user:
        ask(conn, ("select durable.worker_hello_v1('host-7-ab', '{q-r}', '{w}', '{1}', null)", ()))
        held = begin_run(conn, "r", "host-7-ab")
        assert conn.execute(noted).fetchall() == [("host-7-ab",)]
        ask(conn, heartbeat("host-7-ab", held))
        user.execute("select from durable._tasks for update")
        ask(conn, heartbeat("host-7-ab", held))
        assert conn.execute(noted).fetchall() == [("host-7-ab",)] * 3
