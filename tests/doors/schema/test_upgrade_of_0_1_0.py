"""Law: a database of 0.1.0 is upgraded while workers and clients of 0.1.0 use its functions, and nothing of
theirs is lost or refused, also if the upgrade ends half way.

Its tables are the frozen first step, its functions stand beside this file as a release of 0.1.0 installed
them, without comments (freeze_functions.py). Sessions here say to them what a worker and a client of 0.1.0
say.
"""

from __future__ import annotations

import json
import lzma
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.doors.admin import migrate
from pyengine.doors.admin.migration_locks import Limits, Waiting
from pyengine.errors import Unavailable
from tests.doors.schema.recorded_runs import load
from tests.support.cluster import broken_laws
from tests.support.verbs import TTL_MS, code

FUNCTIONS = Path(__file__).parent / "functions_of_0_1_0.sql.xz"
RUNS = 60 if os.environ.get("PYENGINE_TEST_FULL") else 4
HELLO = """select durable.worker_hello_v1(%s, '{default}', '{w}', '{1}', '{"pyengine": "0.1.0"}', '{ab}')"""
TURN = "select durable.worker_turn_v1(%s, '{default}', %s, '{ab}', 20, %s::jsonb, %s, false, 0)"
ENDED = "select count(*) from durable._promises where head is not null and state <> 'pending'"
FAILED = (
    "select id, state, settled_at is not null from durable.failed order by id",
    "select p.id, 'failed', true from durable._promises p where p.head > 0 and state = 'rejected' order by 1",
)
TRIES_MAX = 100


class Session(threading.Thread):
    """A session that repeats something until it is told to end."""

    def __init__(self, dsn: str, name: str, told: threading.Event) -> None:
        super().__init__(daemon=True)
        self.dsn, self.label, self.told = dsn, name, told
        self.started: list[str] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Repeat."""
        with psycopg.connect(self.dsn, autocommit=True, application_name=self.label) as conn:
            while not self.told.is_set() and not self.errors:
                try:
                    self.once(conn, f"{self.label}-{len(self.started)}")
                except psycopg.Error as error:
                    self.errors.append(f"{error.sqlstate} {error}")
                time.sleep(0.01)

    def once(self, conn: psycopg.Connection[Any], run: str) -> None:
        """Start a run and send it a signal at once; make a promise and settle it; look at the run."""
        with conn.transaction():
            conn.execute("select durable.start('w', '[]', id => %s)", (run,))
            conn.execute("select durable.signal(%s, 'go', '1')", (run,))
        self.started.append(run)
        conn.execute("select durable.create_promise(%s)", (f"{run} asks",))
        conn.execute("select durable.resolve(%s, '1')", (f"{run} asks",))
        conn.execute("select state from durable.runs where id = %s", (run,))


class Slow(Session):
    """A client with transactions that stay open, and have the locks of all that they have touched."""

    def once(self, conn: psycopg.Connection[Any], run: str) -> None:
        """Start a run, look at it and wait a while before the commit."""
        with conn.transaction():
            conn.execute("select durable.start('w', '[]', id => %s)", (run,))
            conn.execute("select state from durable.runs where id = %s", (run,))
            time.sleep(0.3 if RUNS > 50 else 0.1)
        self.started.append(run)


class Worker(Session):
    """A worker that ends each run that it gets; every fourth one fails. What is refused is sent again."""

    def run(self) -> None:
        """Take turns until it is told to end and has nothing to say."""
        reports: list[dict[str, Any]] = []
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(HELLO, (self.label,))
            while reports or not self.told.is_set():
                sent = (self.label, [code("w")], json.dumps(reports), TTL_MS)
                try:
                    row = conn.execute(TURN, sent).fetchone()
                except psycopg.Error as error:
                    self.errors.append(f"{error.sqlstate} {error}")
                    continue
                assert row is not None
                busy = [one for one in reports if one["execution"] in row[0]["busy"]]
                reports = busy + [self.report(task) for task in row[0]["tasks"]]
                time.sleep(0 if reports else 0.01)

    def report(self, task: list[Any]) -> dict[str, Any]:
        """What it says about a run that was handed out."""
        execution, run, version, seen = task[0], task[1], task[2], task[7]
        self.started.append(run)
        fails = len(self.started) % 4 == 0
        end = {"do": "fail", "error": '{"type": "Boom"}'} if fails else {"do": "complete", "value": "1"}
        about = {"execution": execution, "id": run, "version": version, "seen": seen}
        return {**about, "outcomes": [], "commands": [], "end": end}


class Ticker(Session):
    """A session of 0.1.0 that fires a schedule of each second."""

    def once(self, conn: psycopg.Connection[Any], run: str) -> None:
        """One tick; one that is refused comes again."""
        with suppress(psycopg.Error):
            conn.execute("select durable.tick_v1(100)")


def beats(dsn: str) -> list[tuple[Any, ...]]:
    """How many seconds of the schedule have a promise, and how many there are from the first to the last."""
    ids = "select (split_part(id, '-', 2))::bigint / 1000 as at from durable._promises where id like 'beat-%'"
    return ask(dsn, f"select count(*), max(at) - min(at) + 1 from ({ids}) x")


@contextmanager
def older_sessions(dsn: str) -> Iterator[list[Session]]:
    """Workers and clients of 0.1.0; at the end the clients stop, and the workers end what there is."""
    stops = threading.Event(), threading.Event()
    many = 2 if RUNS > 50 else 1
    clients: list[Session] = [Session(dsn, f"client{number}", stops[0]) for number in range(many)]
    clients += [Slow(dsn, f"slow{number}", stops[0]) for number in range(many)]
    workers: list[Session] = [Worker(dsn, f"worker{number}", stops[1]) for number in range(many)]
    workers += [Ticker(dsn, f"ticker{number}", stops[1]) for number in range(2)]
    for one in (*workers, *clients):
        one.start()
    try:
        yield clients
    finally:
        stops[0].set()
        for one in clients:
            one.join()
        if not any(one.errors for one in clients):
            until(dsn, f"select ({ENDED}) = %s", sum(len(one.started) for one in clients))
        stops[1].set()
        for one in workers:
            one.join()


def ask(dsn: str, question: str, *args: object) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(question.encode(), args or None).fetchall()


def until(dsn: str, question: str, *args: object) -> None:
    """Wait until a query answers true."""
    end = time.monotonic() + 60
    while ask(dsn, question, *args) != [(True,)]:
        assert time.monotonic() < end, question
        time.sleep(0.02)


def go_on(dsn: str) -> None:
    """Wait until more runs have ended."""
    ((before,),) = ask(dsn, ENDED)
    until(dsn, f"select ({ENDED}) >= %s", before + RUNS)


def stopped_at(dsn: str, table: str) -> str:
    """Migrate without patience, again and again, until a table is in the way that stays locked."""
    while True:
        try:
            migrate.migrate(dsn, limits=Limits(wait_s=0))
        except Unavailable as error:
            if f"others kept {table} locked" in str(error):
                return str(error)


@pytest.fixture
def older(empty_database: Callable[[], str]) -> str:
    """A database as a release of 0.1.0 installed it."""
    dsn = empty_database()
    load(dsn, [])
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set search_path = ''")
        conn.execute(lzma.decompress(FUNCTIONS.read_bytes()))
        conn.execute("select durable._adopt_idle_copy()")
    return dsn


def test_an_upgrade_under_load(older: str) -> None:
    """A first attempt ends at a table that somebody keeps locked: the older sessions go on with the tables as
    they are then, their failures are listed, and the database is sound. The next attempt ends the upgrade.
    Each second of a schedule has its promise once."""
    told: list[Waiting] = []
    limits = Limits(wait_s=120)
    ask(older, "select durable.schedule('beat', '* * * * * *')")
    with older_sessions(older) as clients:
        go_on(older)
        with psycopg.connect(older, application_name="keeper") as keeper:
            keeper.execute("lock table durable._idle_workers in access share mode")
            said = stopped_at(older, "durable._idle_workers")
            assert "durable._idle_workers was held by pid" in said
            assert "(keeper, idle in transaction for " in said
            go_on(older)
        assert "0015" in str(migrate.status(older).pending)
        assert broken_laws(older) == []
        migrate.migrate(older, limits=limits, tell=told.append)
        assert migrate.status(older).current
        go_on(older)
    assert [error for one in clients for error in one.errors] == []
    started = {run for one in clients for run in one.started}
    assert {run for (run,) in ask(older, "select id from durable.runs")} == started
    assert broken_laws(older) == []
    ((beaten, seconds),) = beats(older)
    assert beaten == seconds > 0
    listed, right = (ask(older, question) for question in FAILED)
    assert listed == right != []
    assert max((waiting.tries for waiting in told), default=0) <= TRIES_MAX
    assert ask(older, "select max(crashes) from durable._tasks") in ([(0,)], [(None,)])


def test_an_older_settlement_says_how_it_failed(older: str) -> None:
    """A function of 0.1.0 leaves it to the table, also after the step that takes that away from the table."""
    with psycopg.connect(older, autocommit=True) as conn:
        for step in sorted(Path(migrate.found().migrations).glob("0007_*")):
            conn.execute(step.read_bytes())
        conn.execute("select durable.start('w', '[]', id => 'r', any_workflow => true)")
        conn.execute("select durable.cancel('r', force => true)")
        written = conn.execute(
            "select failure, failed_at = to_timestamp(settled_at / 1000.0) from durable._promises"
        )
        assert written.fetchall() == [("cancelled", True)]
