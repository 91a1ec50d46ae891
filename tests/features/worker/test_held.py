"""Law: a user's open transaction stops nobody but whom it holds. Runs that it has signalled, cancelled,
paused, fenced or locked by hand stand still until it ends; every other run and timer goes on, nobody is
told wrong, and no step runs twice. The log and `durable.blocked` name who holds what.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import psycopg
import pytest

from pyengine import App, Client, Signal, Worker, ctx
from tests.support.verbs import tick

Connection = psycopg.Connection[tuple[object, ...]]

# what a user does in the transaction that he leaves open; r is a run with a step under way, s one that waits
VERBS = {
    "signal": "select durable.signal('r', 'go', '1')",
    "cancel": "select durable.cancel('r')",
    "cancel at once": "select durable.cancel('r', force => true)",
    "pause": "select durable.pause('r')",
    "progress": "select durable.set_progress('r', 1, 2)",
    "value of one that waits": "select durable.set_value('s', 'stage', '1')",
    "fence": "select durable.fence('r', 1)",
    "signal to one that waits": "select durable.signal('s', 'go', '1')",
    "cancel one that waits": "select durable.cancel('s')",
    "resolve what is awaited": "select durable.resolve('s-outside', '1')",
}
HANDS = {
    "promise": "select from durable._promises where id = 'r' for update",
    "task": "select from durable._tasks where id = 'r' for update",
    "head": "select from durable._executions where id = 'r' for update",
    "all heads of one that waits": "select from durable._executions where id = 's' for update",
    "adoptions": "select pg_advisory_xact_lock(1685417575, 0)",
    "workers": "select from durable._workers for update",
    "idle": "select from durable._idle_workers for update",
    "inboxes": "select from durable._inboxes for update",
    "callbacks": "select from durable._callbacks where awaiter_id = 's' for update",
    "callbacks of a timer": "select from durable._callbacks where awaited_id = 't.0' for update",
    "signals": "select from durable._signals for update",
    "shown values": "select from durable._progress for update",
    "listeners": "select from durable._listeners for update",
    "hints": "select from durable._hints for update",
    "settings": "select from durable.settings for update",
    "workflows": "select from durable._workflows for update",
    "buckets": "select from durable._buckets for update",
}
# each by itself with --full; none of these keeps the engine from what another one holds
TOGETHER = {
    "a worker's row and those of a run": (
        *("workers", "hints", "settings", "adoptions", "inboxes", "callbacks", "shown values"),
    ),
    "an idle row and those of a run": ("idle", "workflows", "buckets", "signals", "listeners"),
    "a shown value and a signal": ("value of one that waits", "signal to one that waits"),
}
# "cancel" takes the same locks, and goes further
ALONE = {"cancel at once", *(name for names in TOGETHER.values() for name in names)}
HELD = [
    *(pytest.param(names, id=name) for name, names in TOGETHER.items()),
    *(
        pytest.param((name,), id=name, marks=[pytest.mark.full] if name in ALONE else [])
        for name in (*VERBS, *HANDS)
    ),
]
STEPS = 4
UNSETTLED = "select count(*) from durable.runs where settled_at is null"


class Traffic:
    """An app whose runs count what they do."""

    def __init__(self, dsn: str) -> None:
        self.app = app = App(dsn)
        self.steps: Counter[tuple[str, int]] = Counter()
        self.go_on = asyncio.Event()

        @app.step
        async def work(run: str, number: int) -> int:
            self.steps[run, number] += 1
            return number

        @app.step
        async def wait(run: str, number: int) -> int:
            self.steps[run, number] += 1
            await self.go_on.wait()
            return number

        @app.workflow(any_signal=True)
        async def busy() -> list[int]:
            found = []
            for number in range(STEPS):
                ctx.progress(number, STEPS)
                found.append(await (wait if number == 1 else work)(ctx.run_id, number))
            return found

        @app.workflow
        async def sleeper(seconds: float) -> int:
            await ctx.sleep(seconds)
            return await work(ctx.run_id, 0)

        @app.workflow
        async def simple() -> int:
            return await work(ctx.run_id, 0)

        @app.workflow(any_signal=True)
        async def waiter(name: str) -> int:
            await ctx.promise(id=name)
            return await work(ctx.run_id, 0)

        @app.workflow
        async def listener(go: Signal[int]) -> int:
            with contextlib.suppress(TimeoutError):
                await ctx.receive(go, timeout=3600)
            return await work(ctx.run_id, 0)

        self.busy, self.sleeper, self.simple, self.waiter = busy, sleeper, simple, waiter

    @contextlib.asynccontextmanager
    async def running(self, dsn: str, workers: int = 1) -> AsyncIterator[Client]:
        """Workers and a client."""
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(workers):
                await stack.enter_async_context(Worker(self.app.registry, dsn))
            yield await stack.enter_async_context(self.app.client())

    async def held_runs(self, client: Client, conn: Connection) -> None:
        """Run r, in a step; run s, suspended over a promise of somebody else; run t, asleep for a moment."""
        await client.promises.create("s-outside", timeout=3600)
        await client.start(self.busy, id="r")
        await client.start(self.waiter, "s-outside", id="s")
        await client.start(self.sleeper, 1, id="t")
        suspended = "select 1 from durable._tasks where state = 'suspended' having count(*) = 2"
        await eventually(lambda: self.steps["r", 1] and conn.execute(suspended).fetchone() is not None)
        shown = "select from durable.progress where id = 'r' and done = 1"
        await eventually(lambda: conn.execute(shown).fetchone() is not None)

    async def others_end(self, client: Client, count: int) -> None:
        """Runs and timers that nobody holds come to their end."""
        runs = [await client.start(self.simple, id=f"free-{n}") for n in range(count)]
        runs += [await client.start(self.sleeper, 0.2) for _ in range(count)]
        await asyncio.gather(*(run.result(timeout=25) for run in runs))


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(25):
        while not condition():
            await asyncio.sleep(0.01)


def twice(steps: Counter[tuple[str, int]]) -> list[tuple[str, int]]:
    """Steps that ran more than once."""
    return [step for step, count in steps.items() if count > 1]


@contextlib.contextmanager
def open_transaction(dsn: str, statements: Sequence[str]) -> Iterator[Connection]:
    """A session that has done this, and goes for a coffee."""
    with psycopg.connect(dsn) as user:
        for statement in statements:
            user.execute(statement)
        yield user


@pytest.mark.sample(5)
@pytest.mark.parametrize("names", HELD)
@pytest.mark.session("the user's transaction and presence")
def test_everybody_else_goes_on(dsn: str, conn: Connection, names: tuple[str, ...]) -> None:
    """Runs and timers end while the transaction is open, what it holds goes on after it, and each step runs
    once.
    """

    async def main() -> None:
        traffic = Traffic(dsn)
        async with traffic.running(dsn) as client:
            await traffic.held_runs(client, conn)
            with open_transaction(dsn, [{**VERBS, **HANDS}[name] for name in names]) as user:
                if names == ("callbacks of a timer",):
                    due = "select from durable._promises where id = 't.0' and due_at < durable._now_ms()"
                    await eventually(lambda: conn.execute(due).fetchone() is not None)
                traffic.go_on.set()
                await traffic.others_end(client, 3)
                user.commit()
            conn.execute("select durable.resolve('s-outside', '1')")
            conn.execute("select durable.resume(id) from durable.runs where state = 'paused'")
            await eventually(lambda: conn.execute(UNSETTLED).fetchone() == (0,))
        # who is paused loses the attempt under way
        assert twice(traffic.steps) == ([("r", 1)] if "pause" in names else [])

    asyncio.run(main())


@pytest.mark.session("the user's transaction and presence")
def test_a_held_run_keeps_its_lease(dsn: str, conn: Connection) -> None:
    """A lease that cannot be renewed, because its row is locked, is not lost: not while it is locked, and not
    in the moment after it, when nobody has renewed it yet.
    """
    conn.execute("select durable.set_setting('lease_ttl_ms', '400')")

    async def main() -> None:
        traffic = Traffic(dsn)
        async with traffic.running(dsn) as client:
            await traffic.held_runs(client, conn)
            lapsed = "select from durable._tasks where id = 'r' and expires_at < durable._now_ms() - 800"
            with open_transaction(dsn, [HANDS["task"]]) as user:
                await eventually(lambda: conn.execute(lapsed).fetchone() is not None)
                # a turn may hold another row at the moment of one heartbeat, not of all
                unrenewed = "select unrenewed from durable._workers"
                await eventually(lambda: conn.execute(unrenewed).fetchall() == [(["r"],)])
                user.commit()
            assert tick(conn)["leases"] == 0
            traffic.go_on.set()
            await eventually(
                lambda: (
                    conn.execute("select from durable.runs where id = 'r' and settled_at is null").fetchone()
                    is None
                )
            )
            conn.execute("select durable.resolve('s-outside', '1')")
            await eventually(lambda: conn.execute(UNSETTLED).fetchone() == (0,))
        assert twice(traffic.steps) == []

    asyncio.run(main())


@pytest.mark.session("the user's transaction and presence")
def test_who_holds_what_is_told(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while one warning names the run, who holds it, since when and by which statement; so does the
    view `durable.blocked`, until it is over.
    """
    monkeypatch.setattr("pyengine.core.worker.blocked_runs.WARN_AFTER_S", 0.5)

    async def main() -> None:
        traffic = Traffic(dsn)
        async with traffic.running(dsn, workers=2) as client:
            await traffic.held_runs(client, conn)
            with open_transaction(dsn, [VERBS["signal"], VERBS["signal to one that waits"]]) as user:
                traffic.go_on.set()
                conn.execute("select durable.start('simple', id => 'free')")
                blocked = "select id, pid, state, query from durable.blocked"
                pid = user.info.backend_pid
                await eventually(lambda: conn.execute(blocked).fetchall())
                assert conn.execute(blocked).fetchall() == [
                    ("r", pid, "idle in transaction", VERBS["signal to one that waits"])
                ]
                await eventually(lambda: warnings(caplog))
                await traffic.others_end(client, 3)
                user.rollback()
            await eventually(
                lambda: (
                    conn.execute("select count(*) from durable._workers where blocked <> '{}'").fetchone()
                    == (0,)
                )
            )
            assert conn.execute(blocked).fetchall() == []
            conn.execute("select durable.resolve('s-outside', '1')")
            await eventually(lambda: conn.execute(UNSETTLED).fetchone() == (0,))
            (said,) = warnings(caplog)
            for part in (
                "r: held by",
                f"pid {pid}",
                "idle in transaction",
                "durable.signal",
                f"pg_terminate_backend({pid})",
            ):
                assert part in said

    asyncio.run(main())


def warnings(caplog: pytest.LogCaptureFixture, logger: str = "pyengine.blocked") -> list[str]:
    """What was said of who holds what."""
    return [record.getMessage() for record in caplog.records if record.name == logger]


@pytest.mark.session("the user's transaction and presence")
def test_a_workflow_that_another_session_announces(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user has called the hello of a worker with the same workflow and not committed. A worker starts and
    runs what it is given; one warning names the user; after the rollback the workflow is announced.
    """
    monkeypatch.setattr("pyengine.core.worker.lease_heartbeat.WARN_AFTER_S", 0.1)
    conn.execute("select durable.set_setting('lease_ttl_ms', '400')")
    hello = "select durable.worker_hello_v1('U', '{default}', '{simple, other}', '{1, 1}', '{}', '{ab, ab}')"
    announced = "select count(*) from durable._workflows where name = 'simple'"

    async def main() -> None:
        traffic = Traffic(dsn)
        with open_transaction(dsn, [hello]) as user:
            async with traffic.running(dsn) as client:
                await eventually(lambda: warnings(caplog, "pyengine.heartbeat"))
                await traffic.others_end(client, 3)
                assert conn.execute(announced).fetchone() == (0,)
                user.rollback()
                await eventually(lambda: conn.execute(announced).fetchone() == (1,))
                present = "select from durable._workers where present"
                await eventually(lambda: conn.execute(present).fetchone() is not None)
            (said,) = warnings(caplog, "pyengine.heartbeat")
            for part in (
                "workflow simple",
                f"pid {user.info.backend_pid}",
                "idle in transaction",
                "worker_hello_v1",
            ):
                assert part in said

    asyncio.run(main())


@pytest.mark.session("the user's transaction and presence")
def test_a_worker_whose_row_is_locked_declares_presence_later(dsn: str, conn: Connection) -> None:
    """A user locks the rows of all workers while a worker comes back. The worker works, and is present after
    the commit.
    """

    async def main() -> None:
        traffic = Traffic(dsn)
        present = "select from durable._workers where present"
        async with traffic.running(dsn) as client:
            await eventually(lambda: conn.execute(present).fetchone() is not None)
            with open_transaction(dsn, [HANDS["workers"]]) as user:
                conn.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and application_name like 'pyengine %heartbeat%'"
                )
                await traffic.others_end(client, 3)
                conn.execute("select pg_sleep(0.5)")
                user.execute("update durable._workers set present = false")
                user.commit()
            await eventually(lambda: conn.execute(present).fetchone() is not None)

    asyncio.run(main())


# -- locks of whole tables

EXCLUSIVELY = "lock table durable.{} in access exclusive mode"
WIDE = {
    **{
        table: EXCLUSIVELY.format(table)
        for table in ("_promises", "_tasks", "_executions", "_journal", "_workers")
    },
    "alter table": "alter table durable._executions add column by_hand integer;"
    "alter table durable._executions drop column by_hand",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "hold_s"),
    [
        *((name, 2) for name in ("_tasks", "_workers", "alter table")),
        *(pytest.param(name, 6, marks=pytest.mark.full) for name in WIDE),
    ],
)
@pytest.mark.session("the user's transaction and presence")
def test_a_locked_table_costs_a_lock_timeout_a_try(
    dsn: str, conn: Connection, name: str, hold_s: int
) -> None:
    """A user locks a whole table for longer than a lease. No session of a worker waits for longer than its
    lock_timeout, no run is halted or loses its lease, and all go on after the commit.
    """
    conn.execute("select durable.set_setting('lease_ttl_ms', '1500')")
    waiting = (
        "select a.application_name, clock_timestamp() - a.query_start > '1500 ms' from pg_stat_activity a "
        "where a.datname = current_database() and a.wait_event_type = 'Lock' "
        "and a.application_name ~ '^pyengine (turn|side|heartbeat)'"
    )
    seen: set[tuple[object, ...]] = set()

    async def main() -> None:
        traffic = Traffic(dsn)
        async with traffic.running(dsn, workers=2) as client:
            await traffic.held_runs(client, conn)
            with open_transaction(dsn, [WIDE[name]]) as user:
                traffic.go_on.set()
                until_s = time.monotonic() + hold_s
                while time.monotonic() < until_s:
                    seen.update(conn.execute(waiting).fetchall())
                    await asyncio.sleep(0.05)
                user.commit()
            async with asyncio.timeout(5):
                await traffic.others_end(client, 5)
            conn.execute("select durable.resolve('s-outside', '1')")
            await eventually(lambda: conn.execute(UNSETTLED).fetchone() == (0,))
        assert twice(traffic.steps) == []

    asyncio.run(main())
    assert seen and not any(too_long for _, too_long in seen), seen
    states = "select distinct state from durable.runs"
    assert conn.execute(states).fetchall() == [("completed",)]


# -- the table of the review: half a minute each, against the undisturbed count


async def ended_in(client: Client, traffic: Traffic, seconds: float) -> Counter[str]:
    """Runs of one step, and timers, that end in so many seconds of four starts a second of each."""
    ended: Counter[str] = Counter()
    followers: list[asyncio.Task[None]] = []

    async def follow(kind: str) -> None:
        run = (
            await client.start(traffic.simple) if kind == "runs" else await client.start(traffic.sleeper, 0.2)
        )
        await run.result()
        ended[kind] += 1

    until_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_s:
        followers += [asyncio.create_task(follow(kind)) for kind in ("runs", "timers")]
        await asyncio.sleep(0.25)
    found = ended.copy()
    async with asyncio.timeout(60):
        await asyncio.gather(*followers)
    return found


@pytest.mark.full
@pytest.mark.session("the user's transaction and presence")
@pytest.mark.parametrize(
    ("statement", "workers", "runs"),
    [
        ("select durable.signal(%s, 'go', '1')", 1, 1),
        ("select durable.signal(%s, 'go', '1')", 2, 4),
        ("select durable.cancel(%s)", 1, 1),
        ("select 1 from durable._executions where id = %s for update", 1, 1),
        ("select 1 from durable._tasks where id = %s for update", 2, 4),
        ("select durable.signal('s', 'go', %s::text::jsonb)", 1, 1),
    ],
    ids=[
        "signal",
        "signal to four",
        "cancel",
        "head by hand",
        "four tasks by hand",
        "signal to one that waits",
    ],
)
def test_the_count_of_everybody_else(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, statement: str, workers: int, runs: int
) -> None:
    """Everybody else ends at least 0.8 of the undisturbed count, runs and timers; one warning; no step of a
    held run runs twice, though it is held for longer than a lease; it ends after the commit.
    """
    conn.execute("select durable.set_setting('lease_ttl_ms', '2000')")

    async def main() -> None:
        traffic = Traffic(dsn)
        async with traffic.running(dsn, workers) as client:
            before = await ended_in(client, traffic, 15)
            await traffic.held_runs(client, conn)
            names = ["r", *(f"r{number}" for number in range(1, runs))]
            for name in names[1:]:
                await client.start(traffic.busy, id=name)
            await eventually(lambda: all(traffic.steps[name, 1] for name in names))
            with psycopg.connect(dsn) as user:
                for name in names:
                    user.execute(statement.encode(), ('"1"' if "'s'" in statement else name,))
                traffic.go_on.set()
                during = await ended_in(client, traffic, 30)
                if "'s'" not in statement:
                    assert {
                        row[0] for row in conn.execute("select id from durable.blocked").fetchall()
                    } == set(names)
                user.commit()
            assert all(2 * before[kind] * 0.8 <= during[kind] for kind in ("runs", "timers")), (
                before,
                during,
            )
            conn.execute("select durable.resolve('s-outside', '1')")
            await eventually(lambda: conn.execute(UNSETTLED).fetchone() == (0,))
        assert twice(traffic.steps) == []
        # one of each worker that has some of them
        assert len(warnings(caplog)) in ([0] if "'s'" in statement else range(1, workers + 1))

    asyncio.run(main())


def listen_to_turns() -> tuple[list[str], logging.Handler]:
    """What is said of turns that did not get through, and what listens to it."""
    refused: list[str] = []

    class Refused(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "refused" in record.getMessage() or "unknown" in record.getMessage():
                refused.append(record.getMessage())

    handler = Refused()
    logging.getLogger("pyengine.turn").addHandler(handler)
    return refused, handler


def signal_both(dsn: str, order: Sequence[str], until_s: float, lost: Counter[str]) -> None:
    """Signal two runs in one transaction, again and again."""
    with psycopg.connect(dsn) as user:
        while time.monotonic() < until_s or lost["through"] <= 5:
            try:
                for name in order:
                    user.execute("select durable.signal(%s, 'go', '1')", (name,))
                    time.sleep(0.01)
                user.commit()
                lost["through"] += 1
            except psycopg.errors.DeadlockDetected:
                user.rollback()
                lost["deadlocks"] += 1


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.session("the users' transactions")
@pytest.mark.circles
def test_users_who_signal_in_crossed_order(dsn: str, conn: Connection, seconds: float) -> None:
    """Two users who signal each other's runs beside a worker under load: a circle is theirs, and one of them
    pays; no turn of the worker is refused.
    """
    refused, handler = listen_to_turns()
    lost: Counter[str] = Counter()

    async def main() -> None:
        app = App(dsn)

        @app.step
        async def tiny(number: int) -> int:
            await asyncio.sleep(0.005)
            return number

        @app.workflow(any_signal=True)
        async def many() -> int:
            return sum([await tiny(number) for number in range(int(seconds * 25))])

        async with app.worker(), app.client() as client:
            runs = [await client.start(many, id=f"run-{n:02}") for n in range(20)]
            await eventually(
                lambda: (
                    conn.execute(
                        "select count(*) > 20 from durable._journal where type = 'step_completed'"
                    ).fetchone()
                    == (True,)
                )
            )
            until_s = time.monotonic() + seconds
            users = [
                asyncio.to_thread(signal_both, dsn, order, until_s, lost)
                for order in (("run-00", "run-19"), ("run-19", "run-00"))
            ]
            await asyncio.gather(*users)
            await asyncio.gather(*(run.result(timeout=120) for run in runs))

    try:
        asyncio.run(main())
    finally:
        logging.getLogger("pyengine.turn").removeHandler(handler)
    assert refused == []
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert conn.execute(deadlocks).fetchone() == (lost["deadlocks"],)
    assert lost["through"] > 5, lost
