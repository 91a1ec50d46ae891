"""The engine behind a real PgBouncer in transaction mode: with polling alone, and with a way past it.

Every transaction gets another session than the one before, so nothing can be left in one and found again.
`pytest --pooled` sends the other tests the same way; here stands what is only true behind a pooler.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App, InvalidRequest, RunCancelled, Worker, ctx
from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.doors.cli.root import run as command
from tests.support.idle import postpone_polls
from tests.support.pooler import SETTINGS, SIZE, WARM, Pooler
from tests.system.crash import processes
from tests.system.crash.job import EFFECTS, expected_journey

Connection = psycopg.Connection[tuple[object, ...]]
ROOT = Path(__file__).parents[3]
PAST = {"pyengine listen", "pyengine heartbeat"}
OF_A_SESSION = """
select array(select pg_listening_channels()), (select count(*) from pg_prepared_statements),
       (select count(*) from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory'),
       current_setting('search_path'), current_setting('idle_in_transaction_session_timeout'),
       (select count(*) from pg_class c where c.relpersistence = 't'), pg_backend_pid()
"""


def left_in_sessions(pooled: str, pooler: Pooler, dbname: str) -> set[tuple[object, ...]]:
    """What is found in the sessions of a pooler, in each of them, when nobody does anything."""
    found: dict[object, tuple[object, ...]] = {}
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as conn:
        for _ in range(10_000):
            *things, pid = conn.execute(OF_A_SESSION).fetchone() or ()
            found[pid] = tuple(str(one) for one in things)
            if set(pooler.sessions(dbname)) <= set(found):
                return set(found.values())
    raise AssertionError("the pooler does not give out all its sessions")


def untouched(direct: str) -> set[tuple[object, ...]]:
    """What a fresh session has."""
    with psycopg.connect(direct, autocommit=True) as conn:
        *things, _ = conn.execute(OF_A_SESSION).fetchone() or ()
    return {tuple(str(one) for one in things)}


def by_hand(dsn: str, *words: str) -> Any:
    """A command in a process of its own, through the pooler."""
    done = subprocess.run(
        [sys.executable, "-m", "pyengine", *words, "--json"],
        env=processes.environment(dsn),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_pooler_gives_every_transaction_another_session(dsn: str, pooled: str) -> None:
    """Two transactions of one client that follow each other are served by different sessions, in
    transaction mode: otherwise these tests would prove nothing."""
    assert "pool_mode = transaction" in SETTINGS
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as conn:
        found = [conn.execute("select pg_backend_pid()").fetchone() for _ in range(2 * WARM)]
    assert all(one != after for one, after in pairwise(found))
    assert len(set(found)) == WARM


def test_all_work_goes_through_and_leaves_nothing_in_a_session(
    dsn: str, pooled: str, direct: str, pooler: Pooler
) -> None:
    """Steps, children, timers, signals, a cancellation and the commands do their work by polling alone, and
    no session has a listener, a named statement, a lock, a setting or a table of anybody afterwards."""
    app = App(pooled)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def child(n: int) -> int:
        return await step(n)

    @app.workflow
    async def parent() -> int:
        total = sum(await asyncio.gather(*(child(n) for n in range(5))))
        await ctx.sleep(0.01)
        return total + await ctx.receive("more", type=int)

    async def main() -> tuple[int, str]:
        async with app.worker() as worker, app.client() as client:
            assert not worker.database.hints
            run = await client.start(parent, id="r")
            assert await asyncio.to_thread(by_hand, pooled, "signal", "r", "more", "32")
            total = await run.result(timeout=60)
            stuck = await client.start(parent, id="late")
            listed = await asyncio.to_thread(by_hand, pooled, "ps")
            assert {"r", "late"} <= {one["id"] for one in listed}
            await asyncio.to_thread(by_hand, pooled, "cancel", "late", "--reason", '"late"')
            with pytest.raises(RunCancelled) as cancelled:
                await stuck.result(timeout=60)
            return total, cancelled.value.message

    total, message = asyncio.run(main())
    assert total == 42
    assert "was cancelled" in message
    shown = by_hand(pooled, "show", "r")
    assert shown["run"]["state"] == "completed"
    dbname = psycopg.conninfo.conninfo_to_dict(direct)["dbname"]
    assert left_in_sessions(pooled, pooler, str(dbname)) == untouched(direct)


def test_a_worker_that_is_killed_is_survived_by_its_lease(dsn: str, pooled: str, conn: Connection) -> None:
    """Without presence the lease tells that a worker is dead: another one goes on at the last recorded step,
    and nothing that was recorded runs again."""
    conn.execute("select durable.set_setting('lease_ttl_ms', '2000')")
    conn.execute(EFFECTS)
    processes.start(pooled, "slow", "patient", '["slow", 600]')
    processes.start(pooled, "j", "journey", '["trip"]')
    with processes.worker(pooled) as victim:
        processes.until(pooled, "select count(*) = 1 from public.effects where run = 'slow'")
        processes.until(pooled, "select (durable.promise_get('j')).state = 'resolved'")
        assert conn.execute("select bool_or(present) from durable._workers").fetchone() == (False,)
        conn.execute("select durable.signal('slow', 'nobody', 'true')")
        processes.kill(victim)
    with processes.worker(pooled):
        processes.until(pooled, "select count(*) = 2 from public.effects where run = 'slow'")
        conn.execute("select durable.cancel('slow')")
    assert conn.execute("select value from durable.result('j')").fetchone() == (expected_journey("trip"),)
    twice = conn.execute(
        "select step from public.effects where run <> 'slow' and step <> 'shaky' group by run, step "
        "having count(*) > 1"
    ).fetchall()
    assert twice == []


def past(conn: Connection, pooler: Pooler) -> set[str]:
    """What sessions of the engine in this database are for that are not the pooler's."""
    rows = conn.execute(
        "select a.application_name, a.pid, a.datname from pg_stat_activity a "
        "where a.datname = current_database() and a.application_name like 'pyengine %'"
    ).fetchall()
    return {str(name) for name, pid, dbname in rows if pid not in pooler.sessions(str(dbname))}


def wakes(app: App, conn: Connection, pooler: Pooler) -> tuple[int, set[str], bool]:
    """Let a worker sleep, for an hour if it hears hints, and start a run from SQL: its result, which sessions
    are not the pooler's, and whether the worker is present."""

    @app.workflow
    async def go() -> int:
        return 7

    async def main() -> tuple[int, set[str], bool]:
        async with app.worker() as worker, app.client() as client:
            if worker.database.hints:
                while conn.execute("select bool_or(present) from durable._workers").fetchone() != (True,):
                    await asyncio.sleep(0.005)
                # as if it had been idle for an hour: only a hint wakes it
                postpone_polls(worker)
            conn.execute("select durable.start('go', id => 'from-sql')")
            result = await client.run("from-sql", go).result(timeout=60)
            present = conn.execute("select bool_or(present) from durable._workers").fetchone() == (True,)
            return result, past(conn, pooler), present

    return asyncio.run(main())


def test_with_a_direct_url_hints_and_presence_work(
    dsn: str, pooled: str, direct: str, conn: Connection, pooler: Pooler
) -> None:
    """Past the pooler one session listens and one holds presence: a hint wakes a worker that would not look
    for an hour, and everything else goes through the pooler."""
    assert wakes(App(pooled, listen_url=direct), conn, pooler) == (7, PAST, True)


def test_the_direct_url_may_stand_in_the_environment(
    dsn: str, pooled: str, direct: str, conn: Connection, pooler: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYENGINE_LISTEN_URL is what listen_url is where the code says nothing."""
    monkeypatch.setenv("PYENGINE_LISTEN_URL", direct)
    assert wakes(App(pooled), conn, pooler) == (7, PAST, True)


def test_without_a_direct_url_polling_does_it(
    dsn: str, pooled: str, conn: Connection, pooler: Pooler
) -> None:
    """Behind a pooler nobody listens and nobody is present, and what SQL started is found all the same."""
    assert wakes(App(pooled), conn, pooler) == (7, set(), False)


def test_a_direct_url_that_has_a_pooler_too_is_not_trusted(
    dsn: str, pooled: str, conn: Connection, pooler: Pooler, caplog: pytest.LogCaptureFixture
) -> None:
    """A second URL behind a pooler is told of in the log, and polling does all."""
    assert wakes(App(pooled, listen_url=pooled), conn, pooler) == (7, set(), False)
    assert "no hints, no presence" in caplog.text


def test_a_pooler_on_the_second_url_alone_does_no_harm(
    dsn: str, pooled: str, direct: str, conn: Connection, pooler: Pooler
) -> None:
    """Where the first URL has no pooler before it, hints and presence go there."""
    result, _, present = wakes(App(direct, listen_url=pooled), conn, pooler)
    assert (result, present) == (7, True)


def test_a_direct_url_of_another_database_is_refused(
    dsn: str, pooled: str, another_database: Callable[[], str]
) -> None:
    """Hints of another database would be waited for in vain: that is said at once, and names both."""
    other = another_database()

    async def opened() -> None:
        await Database(pooled, listen_url=other).open()

    with pytest.raises(InvalidRequest, match="another database than"):
        asyncio.run(opened())


def test_a_blocked_loop_does_not_keep_locks(dsn: str, pooled: str, direct: str) -> None:
    """A statement of a link is a transaction that ends with it: user code that blocks the event loop right
    after it does not keep its locks, because no commit has to be sent."""

    async def blocks(conn: Any) -> None:
        await conn.fetchval("select pg_advisory_xact_lock($1)", 7)
        with psycopg.connect(direct, autocommit=True) as other:
            other.execute("set statement_timeout = '10s'")
            # never, if the session on the other side of this loop waited for a commit
            other.execute("select pg_advisory_xact_lock(7)")

    async def main() -> None:
        database = Database(pooled)
        await database.open()
        link = ReconnectingConnection(database, "test")
        await link.use(blocks)
        await link.close()

    asyncio.run(main())


def test_a_refused_argument_gives_its_session_back(dsn: str, pooled: str, pooler: Pooler) -> None:
    """A statement whose arguments the driver refuses after it was parsed keeps no session of the pooler."""

    async def main() -> list[dict[str, Any]]:
        database = Database(pooled)
        await database.open()
        link = ReconnectingConnection(database, "test")
        with pytest.raises(InvalidRequest):
            await link.use(lambda conn: conn.fetchval("select $1::integer", 2**40))
        held = [row for row in pooler.ask("show servers") if row["state"] == "active"]
        assert await link.use(lambda conn: conn.fetchval("select $1::integer", 2)) == 2
        await link.close()
        return held

    assert asyncio.run(main()) == []


def test_all_sessions_are_shared_by_more_workers_than_there_are(
    dsn: str, pooled: str, pooler: Pooler
) -> None:
    """Four workers and a client with their two dozen connections do their work on the few sessions that the
    pooler has."""
    app = App(pooled)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def go(n: int) -> int:
        return await step(n)

    async def main() -> list[int]:
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(Worker(app.registry, pooled))
            client = await stack.enter_async_context(app.client())
            began = [await client.start(go, n) for n in range(40)]
            results = await asyncio.gather(*(run.result(timeout=60) for run in began))
            clients = [row for row in pooler.ask("show clients") if row["database"] != "pgbouncer"]
            servers = [row for row in pooler.ask("show servers") if row["database"] != "pgbouncer"]
            assert len(clients) > len(servers)
            assert len(servers) <= SIZE
            return results

    assert asyncio.run(main()) == list(range(40))


def test_status_tells_of_the_pooler_and_of_the_way_past_it(
    dsn: str,
    pooled: str,
    direct: str,
    empty_database: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`pyengine db status` says whether a pooler stands before the database and whether hints are heard; a
    direct URL that is of no use is told with the reason."""

    def told(url: str, *more: str) -> dict[str, Any]:
        monkeypatch.setenv("PYENGINE_DATABASE_URL", url)
        assert command(["db", "status", *more, "--json"]) == 0
        pooler: dict[str, Any] = json.loads(capsys.readouterr().out)["database"]["pooler"]
        pooler["direct"] = pooler["direct"] is not None
        return pooler

    plain = {"pooled": False, "direct": False, "problem": None, "hints": True}
    assert told(direct) == plain
    assert told(pooled) == plain | {"pooled": True, "hints": False}
    assert told(pooled, "--listen-url", direct) == plain | {"pooled": True, "direct": True}
    both = told(pooled, "--listen-url", pooled)
    assert both["hints"] is False
    assert "pooler before it too" in both["problem"]
    assert "another database" in told(pooled, "--listen-url", empty_database())["problem"]
    gone = told(pooled, "--listen-url", "postgresql://nobody@127.0.0.1:1/none")["problem"]
    assert "no connection" in gone


def test_the_worker_command_takes_the_direct_url(
    dsn: str, pooled: str, direct: str, conn: Connection
) -> None:
    """`pyengine worker --listen-url` is present and listens; the app's own code need not know."""
    conn.execute(EFFECTS)
    with processes.worker(pooled, "--listen-url", direct):
        processes.until(pooled, "select bool_or(present) from durable._workers")
        processes.start(pooled, "j", "journey", '["trip"]')
        processes.until(pooled, "select (durable.promise_get('j')).state = 'resolved'")


def test_a_malformed_direct_url_is_named(pooled: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYENGINE_LISTEN_URL that is no URL is refused by name, before anything is connected."""
    monkeypatch.setenv("PYENGINE_LISTEN_URL", "localhost:5432")

    async def main() -> None:
        async with App(pooled).client():
            pass

    with pytest.raises(Exception, match="PYENGINE_LISTEN_URL"):
        asyncio.run(main())
