"""Runs that one code began, looked at with another: what fits and what does not, without a trace."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.client.run import Run
from pyengine.core.database.connection import Database
from pyengine.core.definitions import definition
from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.errors import InvalidRequest, NotFound
from pyengine.features.checks.compatibility import Finding
from pyengine.features.checks.replay_check import Report, replay_check
from tests.support.cluster import make_folder

Connection = psycopg.Connection[tuple[object, ...]]
executed: list[str] = []


def shop(dsn: str, *names: str, wait: bool = True, version: str = "1", ends_with: int = 0) -> App:
    """An app whose workflow `order` takes the steps of these names, then waits for a promise."""
    app = App(dsn)

    @app.step
    async def charge(n: int) -> int:
        executed.append("charge")
        return n

    @app.step
    async def reserve(n: int) -> int:
        executed.append("reserve")
        return n + 1

    steps = {"charge": charge, "reserve": reserve}

    @app.workflow(name="order", version=version)
    async def order(n: int) -> list[int]:
        done = [await steps[name](n) for name in names]
        if n < 0:
            raise LookupError(f"order {n}")
        if wait:
            done.append(await ctx.promise(int, name="go"))
        return [*done, ends_with]

    return app


def check(app: App, dsn: str, **options: Any) -> Report:
    """Replay what is there with the code of this app."""
    return asyncio.run(replay_check(Database(dsn), app.registry, **options))


def verdicts(report: Report) -> list[tuple[str, str]]:
    """Ids and verdicts."""
    return [(one.id, one.verdict) for one in report.runs]


async def until(run: Run[Any], *states: str) -> None:
    """Wait until a run is in one of these states."""
    while (await run.get()).state not in states:
        await asyncio.sleep(0.005)


def begin(app: App, ids: Sequence[str], *, state: str = "waiting", **options: Any) -> None:
    """Start runs of `order` and let a worker take them as far as they come."""

    async def main() -> None:
        async with app.client() as client:
            runs = [await client.start("order", 7, id=id, **options) for id in ids]
            async with app.worker():
                await asyncio.gather(*(until(run, state) for run in runs))

    asyncio.run(main())


def test_steps_in_another_order_diverge(dsn: str) -> None:
    """Every live run that took the steps in the old order diverges at its first step, with both names and the
    journal around it; the same code fits.
    """
    begin(shop(dsn, "charge", "reserve"), ["a", "b"])
    report = check(shop(dsn, "reserve", "charge"), dsn)
    assert verdicts(report) == [("a", "diverged"), ("b", "diverged")]
    (found,) = report.breaks()
    assert (found.workflow, found.version, found.runs, found.first.child) == ("order", "1", ("a", "b"), 0)
    assert found.first.expected.startswith("step charge (of its input ")
    assert found.first.got.startswith("step reserve (input ")
    assert [line.split(" (")[0] for line in found.first.neighbours] == ["0: step charge", "1: step reserve"]
    report = check(shop(dsn, "charge", "reserve"), dsn)
    assert verdicts(report) == [("a", "ok"), ("b", "ok")]
    assert [one.ends for one in report.runs] == ["waits", "waits"]


def test_no_step_is_executed_and_nothing_is_written(dsn: str, conn: Connection) -> None:
    """A check executes no step, not even those that the new code adds, and leaves every row as it was."""
    begin(shop(dsn, "charge"), ["a"])
    tables = ("_promises", "_tasks", "_executions", "_journal", "_workers", "_workflows")

    def rows() -> list[Any]:
        return [
            conn.execute(f"select * from durable.{one} order by 1, 2".encode()).fetchall() for one in tables
        ]

    before = rows()
    executed.clear()
    check(shop(dsn, "charge", wait=False), dsn, finished=True)
    check(shop(dsn, "charge", "reserve", wait=False), dsn, finished=True)
    assert executed == []
    assert rows() == before


class Watched(Database):
    """A database that asks each time what kind of transaction it is read in."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.seen: set[tuple[str, str, Any]] = set()

    async def connect(self, role: str) -> Any:
        """Return a connection whose `fetch` looks first."""
        return Looking(await super().connect(role), self.seen)


class Looking:
    """Passes everything on."""

    def __init__(self, conn: Any, seen: set[tuple[str, str, Any]]) -> None:
        self._conn = conn
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def fetch(self, *args: Any) -> Any:
        """Fetch, and note the transaction afterwards."""
        rows = await self._conn.fetch(*args)
        self._seen.add(
            (
                await self._conn.fetchval("show transaction_read_only"),
                await self._conn.fetchval("show transaction_isolation"),
                await self._conn.fetchval("select pg_current_xact_id_if_assigned()::text"),
            )
        )
        return rows


def test_everything_is_read_in_one_read_only_snapshot(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages are read in a REPEATABLE READ, READ ONLY transaction that never gets a number, so a standby
    can serve it; runs that are started meanwhile are not of its moment.
    """
    app = shop(dsn, "charge")
    begin(app, ["a", "b", "c"])
    monkeypatch.setattr("pyengine.features.checks.replay_check._PAGE_RUNS", 1)
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute("select durable.start('order', '[7]', id => %s)", (f"later-{done}",))

    database = Watched(dsn)
    report = asyncio.run(replay_check(database, app.registry, progress=progress))
    assert database.seen == {("on", "repeatable read", None)}
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [one.id for one in report.runs] == ["a", "b", "c"]


def test_ended_runs_must_end_the_same_way_again(dsn: str) -> None:
    """With the finished ones: the same value or error fits, another one diverges; without them they are not
    looked at.
    """

    async def main(app: App) -> None:
        async with app.worker(), app.client() as client:
            await (await client.start("order", 7, id="good")).result(timeout=20)
            with pytest.raises(Exception, match="order -1"):
                await (await client.start("order", -1, id="bad")).result(timeout=20)

    same = shop(dsn, "charge", wait=False)
    asyncio.run(main(same))
    assert verdicts(check(same, dsn)) == []
    assert verdicts(check(same, dsn, finished=True)) == [("good", "ok"), ("bad", "ok")]
    report = check(shop(dsn, "charge", wait=False, ends_with=1), dsn, finished=True)
    assert verdicts(report) == [("good", "diverged"), ("bad", "ok")]
    (found,) = report.breaks()
    assert "[7,0]" in found.first.expected.replace(" ", "")
    assert "[7,1]" in found.first.got.replace(" ", "")
    report = check(shop(dsn, "charge", "reserve", wait=False), dsn, finished=True)
    assert [one.divergence is not None and one.divergence.got for one in report.runs] == [
        "the workflow has steps to execute",
        "the workflow has steps to execute",
    ]


def test_a_halted_run_is_checked_like_any_other(dsn: str, conn: Connection) -> None:
    """A run that was halted by wrong code diverges with that code and fits the code that began it, so the
    check says beforehand whether a resume will do.
    """
    old, new = shop(dsn, "charge", "reserve"), shop(dsn, "reserve", "charge")
    begin(old, ["a"])

    async def halted() -> None:
        async with new.client() as client:
            await client.promises.resolve("a.2", 5)
            async with new.worker():
                await until(client.run("a"), "halted")

    asyncio.run(halted())
    (wrong,), (right,) = check(new, dsn).runs, check(old, dsn).runs
    assert (wrong.state, wrong.verdict) == ("halted", "diverged")
    assert (right.state, right.verdict) == ("halted", "ok")
    (problem,) = (
        conn.execute("select problem ->> 'expected' from durable.runs where id = 'a'").fetchone() or ()
    )
    assert wrong.divergence is not None
    assert wrong.divergence.expected == problem


def only(report: Report) -> Finding:
    """The one finding."""
    (one,) = report.runs
    return one


def test_the_python_that_drove_them_is_reported(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many of the runs that break another Python has driven; one that fits is none of them."""
    for python, ids in (("3.10", ["a"]), ("3.9", ["b", "c"])):
        monkeypatch.setattr(definition, "THIS_PYTHON", python)
        begin(shop(dsn, "charge"), ids)
    monkeypatch.undo()
    begin(shop(dsn, "charge"), ["d"])
    report = check(shop(dsn, "reserve"), dsn)
    assert report.other_pythons() == {"3.10": 1, "3.9": 2} and report.count("diverged") == 4
    assert [one.python for one in report.runs] == ["3.10", "3.9", "3.9", report.python]
    assert check(shop(dsn, "charge"), dsn).other_pythons() == {}


def test_a_removed_call_is_reported(dsn: str) -> None:
    """Code that no longer makes a call which the journal holds diverges there."""
    begin(shop(dsn, "charge"), ["a"])
    one = only(check(shop(dsn, "charge", wait=False), dsn))
    assert one.verdict == "diverged"
    assert one.divergence is not None
    assert (one.divergence.child, "promise go" in one.divergence.expected) == (1, True)


def test_arguments_that_do_not_fit_are_reported(dsn: str, conn: Connection) -> None:
    """Code whose workflow has another parameter breaks runs that are still queued."""
    conn.execute("""select durable.start('order', '{"n": 7}', id => 'a')""")
    app = App(dsn)

    @app.workflow
    async def order(number: int) -> int:
        return number

    one = only(check(app, dsn))
    assert one.divergence is not None
    assert (one.verdict, one.divergence.expected) == ("diverged", 'arguments {"n": 7}')
    assert "missing a required argument: 'number'" in one.divergence.got


def test_missing_code_is_unknown(dsn: str, conn: Connection) -> None:
    """Runs of a workflow or a version that the code does not have are unknown, which is no divergence."""
    conn.execute("select durable.start('order', '[7]', id => 'a', version => '1')")
    conn.execute("select durable.start('gone', '[7]', id => 'b')")
    assert verdicts(check(shop(dsn, "charge", version="2"), dsn)) == [("b", "unknown"), ("a", "unknown")]
    with pytest.raises(NotFound, match="'ordre'"):
        check(shop(dsn), dsn, workflow="ordre")


def test_a_sample_is_drawn_of_each_workflow(dsn: str, conn: Connection) -> None:
    """A sample takes at most so many runs of each workflow and version, and the same ones again."""
    for number in range(20):
        conn.execute("select durable.start('order', '[7]', id => %s)", (f"a{number}",))
        conn.execute("select durable.start('order', '[7]', id => %s, version => '2')", (f"b{number}",))
    app = shop(dsn)
    first, second = check(app, dsn, sample=5), check(app, dsn, sample=5)
    assert [one.version for one in first.runs] == ["1"] * 5 + ["2"] * 5
    assert first == second
    assert len(check(app, dsn, workflow="order").runs) == 40
    with pytest.raises(InvalidRequest):
        check(app, dsn, sample=0)


def tour(dsn: str, *, more: int = 0) -> App:
    """An app whose workflow uses a signal, a join set, a shield, and goes on as a second generation."""
    app = App(dsn)

    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def child(n: int) -> int:
        await ctx.sleep(0.01)
        return n + 1

    @app.workflow
    async def tour(n: int, found: int = 0) -> int:
        try:
            found += await ctx.receive("number", type=int)
            members = ctx.join_set()
            for one in (double(n), child(n)):
                members.submit(one)
            found += sum(await members.all())
        except asyncio.CancelledError:
            async with ctx.shield():
                await double(-n)
            raise
        if n > 0:
            ctx.continue_as_new(n - 1, found + more)
        return found + more

    return app


def test_every_kind_of_row_is_replayed(dsn: str) -> None:
    """Signals, join sets, child runs, generations, clean-ups and forks: the code that wrote the journals fits
    all of them, live and ended; code with another sum differs in what it passed on, and at the end.
    """
    app = tour(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start("tour", 1, id="a")
            await run.signal("number", 100)
            await run.signal("number", 1000)
            assert await run.result(timeout=20) == 1105
            await (await client.run("a").fork(id="b")).result(timeout=20)
            gone = await client.start("tour", 0, id="c")
            await until(gone, "waiting")
            await gone.cancel()
            await until(gone, "cancelled")
            await until(await client.start("tour", 0, id="d"), "waiting")

    asyncio.run(main())
    report = check(app, dsn, finished=True)
    assert {one.verdict for one in report.runs} == {"ok"}
    tours = [(one.id, one.state, one.ends) for one in report.runs if one.workflow == "tour"]
    assert tours == [
        ("a", "continued", "continued"),
        ("a", "completed", "completed"),
        ("b", "completed", "completed"),
        ("c", "cancelled", "cancelled"),
        ("d", "waiting", "waits"),
    ]
    wrong = check(tour(dsn, more=1), dsn, finished=True, workflow="tour")
    assert [(one.id, one.verdict) for one in wrong.runs] == [
        ("a", "diverged"),
        ("a", "diverged"),
        ("b", "diverged"),
        ("c", "ok"),
        ("d", "ok"),
    ]
    assert wrong.runs[0].divergence is not None
    assert "continued" in wrong.runs[0].divergence.got


@pytest.mark.full
def test_a_standby_serves_the_check() -> None:
    """A hot standby answers the whole check: nothing in it needs a transaction number, a lock or a write."""
    primary, copy = Path(make_folder()), Path(make_folder())
    app = shop("postgresql://", "charge")
    try:
        with EmbeddedPostgres(primary) as server:
            migrate.install(server.dsn)
            app.use_database(server.dsn)
            begin(app, ["a"])
        shutil.copytree(primary / "data", copy / "data", symlinks=True)
        (copy / "data" / "standby.signal").touch()
        owner = (primary / "data").stat()
        for path in (copy, *copy.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        with EmbeddedPostgres(copy) as standby:
            with psycopg.connect(standby.dsn) as conn:
                assert conn.execute("select pg_is_in_recovery()").fetchone() == (True,)
            assert verdicts(check(app, standby.dsn, finished=True)) == [("a", "ok")]
    finally:
        for folder in (primary, copy):
            shutil.rmtree(folder, ignore_errors=True)
