"""Schedules that code declares, and those of a client: recorded by workers, fired once, steered."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from pyengine import App, Conflict, InvalidRequest, NotFound, SchedulePolicy, Worker, ctx
from pyengine.clients import Client
from pyengine.core.definitions.registry import make_workflow
from pyengine.features.schedules.definition import scheduled_input
from pyengine.sync import Client as SyncClient

Connection = psycopg.Connection[tuple[object, ...]]


def test_a_declared_schedule_starts_runs(dsn: str, conn: Connection) -> None:
    """A worker records it, and the runs get their instants."""
    app = App(dsn)

    @app.schedule("* * * * * *", timezone="Asia/Kolkata", args=("eu",), tags={"kind": "report"})
    @app.workflow
    async def report(region: str, scheduled_at: datetime) -> list[Any]:
        assert scheduled_at.utcoffset() == timedelta(hours=5, minutes=30)
        return [region, ctx.run_id.endswith(f"{scheduled_at.astimezone(UTC):%H:%M:%SZ}")]

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            while len(found := await client.list(tags={"kind": "report"}, state="completed")) < 2:
                await asyncio.sleep(0.05)
            (schedule,) = await client.schedules.list(workflow="report")
            assert schedule.declared and schedule.args == ["eu", "{{.instant}}"]
            await client.schedules.delete("report")
            return [run.result for run in found]

    assert asyncio.run(main())[:2] == [["eu", True]] * 2


def test_workers_agree_on_what_is_declared(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The same again writes nothing, a change replaces, and what is gone is told, not deleted."""
    caplog.set_level(logging.INFO, "pyengine.worker")

    def app_of(*crons: str) -> App:
        app = App(dsn)

        async def report() -> None: ...

        workflow = app.workflow(report)
        for n, cron in enumerate(crons):
            workflow = app.schedule(cron, id=f"report-{n}")(workflow)
        return app

    async def serve(app: App) -> list[str]:
        caplog.clear()
        async with app.worker():
            return [one.getMessage() for one in caplog.records if "schedule" in one.getMessage()]

    first = asyncio.run(serve(app_of("@daily", "@hourly")))
    assert first == [f"schedule report-{n} of workflow report is created" for n in (0, 1)]
    assert asyncio.run(serve(app_of("@daily", "@hourly"))) == []
    changed = asyncio.run(serve(app_of("@weekly")))
    assert changed[0] == "schedule report-0 of workflow report is replaced"
    assert changed[1].startswith("schedule report-1 (@hourly) of workflow report is no longer in the code")
    assert "pyengine schedules delete report-1" in changed[1]
    rows = conn.execute("select id, cron from durable.schedules order by id").fetchall()
    assert rows == [("report-0", "@weekly"), ("report-1", "@hourly")]


def test_a_worker_by_hand_has_what_its_app_adds(dsn: str, conn: Connection) -> None:
    """Made of the registry of an app it declares the schedules as well."""
    app = App(dsn)

    async def report() -> None: ...

    app.schedule("@daily")(app.workflow(report))

    async def main() -> None:
        async with Worker(app.registry, dsn):
            assert conn.execute("select id, cron from durable.schedules").fetchall() == [("report", "@daily")]

    asyncio.run(main())


def test_a_locked_schedule_is_declared_later(dsn: str, conn: Connection) -> None:
    """A worker starts while a user's transaction holds the row, and replaces it afterwards."""
    app = App(dsn)

    @app.workflow
    async def report() -> None: ...

    async def main() -> None:
        async with app.client() as client:
            await client.schedules.create("report", "@daily", report)
            app.schedule("@hourly")(report)
            with psycopg.connect(dsn) as user:
                user.execute("select from durable._schedules for update")
                async with app.worker():
                    assert (await client.schedules.get("report")).cron == "@daily"
                    user.rollback()
                    while (await client.schedules.get("report")).cron != "@hourly":
                        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_wrong_expression_is_refused_where_it_stands(dsn: str) -> None:
    """At the decorator, and at the start of a worker what only the server can tell."""
    app = App(dsn)
    for cron in ("61 * * * *", "never", "0 9 * * *; x"):
        with pytest.raises(InvalidRequest, match="schedule _report: cron"):
            app.schedule(cron)(app.workflow(_report))
    app.schedule("0 0 30 2 *")(app.workflow(_other))

    async def main() -> None:
        async with app.worker():
            pass

    with pytest.raises(InvalidRequest, match="stands for no instant"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"overlap": "queue"}, "'queue' is no overlap"),
        ({"catch_up": "soon"}, "catch_up: 'soon' is not a duration"),
        ({"starts": datetime(2026, 1, 1)}, "starts of a schedule is a datetime with a time zone"),
        ({"max_runs": 0}, "max_runs of a schedule is a number from 1 on"),
    ],
)
def test_a_policy_is_checked_where_it_stands(options: dict[str, Any], sentence: str) -> None:
    """With what to write."""
    with pytest.raises(InvalidRequest, match=sentence):
        SchedulePolicy(**options)


def test_an_instant_has_a_time_zone(dsn: str) -> None:
    """A pause and a backfill refuse one without, as all other verbs do."""
    day = datetime(2026, 1, 1)
    with SyncClient(dsn) as client:
        with pytest.raises(InvalidRequest, match="until is an instant, so it has a time zone"):
            client.schedules.pause("s", until=day)
        with pytest.raises(InvalidRequest, match="since is an instant"):
            client.schedules.backfill("s", day, datetime.now(UTC))


def test_a_policy_of_code_and_its_steering(dsn: str, conn: Connection) -> None:
    """Declared, paused with a reason, triggered, backfilled, and told; the same verbs without async."""
    app = App(dsn)
    ends = datetime(2100, 1, 1, tzinfo=UTC)
    policy = SchedulePolicy(overlap="skip", catch_up="1h", jitter="1s", ends=ends, max_runs=5, pause_after=3)

    @app.schedule("every 90 minutes; 0 3 * * *", policy=policy)
    @app.workflow
    async def report() -> str:
        await ctx.receive("go")
        return "done"

    async def main() -> None:
        async with app.worker(), app.client() as client:
            one = await client.schedules.get("report")
            assert (one.overlap, one.catch_up, one.ends_at) == ("skip", timedelta(hours=1), ends)
            assert (one.runs_left, one.pause_after, one.jitter) == (5, 3, timedelta(seconds=1))
            assert one.description == "every 90 minutes; and at 03:00, UTC"
            run = await client.schedules.trigger("report")
            assert run is not None and await client.schedules.trigger("report", overlap="skip") in (run, None)
            (told,) = [each for each in await client.schedules.instants("report") if each.run == run]
            assert told.outcome == "started" and told.at == told.upto
            await client.schedules.pause("report", "moving house", by="ada")

    asyncio.run(main())
    with SyncClient(dsn) as blocking:
        one = blocking.schedules.get("report")
        assert (one.state, one.paused_by, one.pause_reason) == ("paused", "ada", "moving house")
        day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
        counted = blocking.schedules.backfill("report", day, day + timedelta(hours=6), dry_run=True)
        assert (counted.instants, counted.started) == (4, 0)  # the limit is five, and one has run
        done = blocking.schedules.backfill("report", day, day + timedelta(hours=3))
        assert done.instants == 3 and done.started + done.buffered == 3


async def _report() -> None: ...


def test_declarations_are_checked() -> None:
    """What is no workflow, another schedule of the id, and arguments that do not fit."""
    app = App()
    with pytest.raises(InvalidRequest, match="no workflow"):
        app.schedule("@daily")(_report)  # type: ignore[arg-type]
    for cron in ("61 * * * *", "never"):
        with pytest.raises(InvalidRequest, match="cron '"):
            app.schedule(cron)(app.workflow(_report))
    with pytest.raises(InvalidRequest, match="both texts"):
        app.schedule(5)  # type: ignore[arg-type]
    app.schedule("@daily", id="x")(app.workflow(_report))
    twice = "declared twice: '@daily' for _report and "
    with pytest.raises(InvalidRequest, match=f"{twice}'@daily' for other"):
        app.schedule("@daily", id="x")(app.workflow(name="other")(_other))
    with pytest.raises(InvalidRequest, match=f"{twice}'@weekly' for _report"):
        app.schedule("@weekly", id="x")(app.workflow(_report))
    app.schedule("@daily", id="x")(app.workflow(_report))  # a module that is imported again
    with pytest.raises(InvalidRequest, match="args='eu' of a schedule is no tuple"):
        app.schedule("@daily", id="y", args="eu")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="schedule y: workflow _of_region, argument 'region'"):
        app.schedule("@daily", id="y", args=(7,))(app.workflow(_of_region))
    with pytest.raises(InvalidRequest, match="schedule y: workflow _of_region, argument 'scheduled_at'"):
        app.schedule("@daily", id="y", args=("eu", 7))(app.workflow(_of_region))
    with pytest.raises(InvalidRequest, match="schedule y: workflow _report: too many positional arguments"):
        app.schedule("@daily", id="y", args=(1,))(app.workflow(_report))
    assert list(app.schedules) == ["x"]


async def _other() -> None: ...


async def _of_region(region: str, scheduled_at: datetime) -> None: ...


_DAY = datetime(2026, 1, 2, tzinfo=UTC)


async def _at(scheduled_at: datetime) -> None: ...
async def _text(region: str, scheduled_at: str = "") -> None: ...
async def _named(region: str, *, scheduled_at: datetime | None = None) -> None: ...
async def _any(scheduled_at: Any, region: Any = "eu") -> None:
    pass


async def _last(last_result: int | None = None, *, fired_at: str, scheduled_at: datetime) -> None: ...
async def _first(last_result: int) -> None: ...
async def _none(region: str) -> None: ...


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "text"),
    [
        (_at, (), {}, '["{{.instant}}"]'),
        (_text, ("eu",), {}, '["eu","{{.instant}}"]'),
        (_text, ("eu", "mine"), {}, '["eu","mine"]'),
        (_named, ("eu",), {}, '{"region":"eu","scheduled_at":"{{.instant}}"}'),
        (_any, (), {"region": "us"}, '["{{.instant}}","us"]'),
        (
            _last,
            (),
            {},
            '{"last_result":"{{.last_result}}","fired_at":"{{.fired_at}}","scheduled_at":"{{.instant}}"}',
        ),
        (
            _last,
            (4,),
            {"fired_at": "", "scheduled_at": _DAY},
            '{"last_result":4,"fired_at":"","scheduled_at":"2026-01-02T00:00:00Z"}',
        ),
        (_none, ("eu",), {}, '["eu"]'),
    ],
)
def test_the_instant_has_its_place(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    """A parameter of such a name gets the placeholder, unless an argument is given for it."""
    assert scheduled_input(make_workflow(fn).definition.signature, args, kwargs) == text


def test_a_first_run_has_no_last_result() -> None:
    """A parameter that takes no None is refused, with what to write."""
    with pytest.raises(InvalidRequest, match="a first run has no result before it") as caught:
        scheduled_input(make_workflow(_first).definition.signature, (), {})
    assert caught.value.hint == "annotate it: last_result: ... | None"


def test_schedules_of_a_client(dsn: str, conn: Connection) -> None:
    """Created, found, listed, paused, resumed, deleted; each refusal has its class."""
    app = App(dsn)

    @app.workflow(queue="reports", version="2", deadline="1h")
    async def report(day: date, scheduled_at: datetime) -> None: ...

    async def main() -> None:
        async with app.client() as client:
            await steer(client)

    async def steer(client: Client) -> None:
        made = await client.schedules.create(
            "nightly", "0 3 * * *", report, date(2026, 1, 2), timezone="Europe/Paris", priority=-5
        )
        assert (made.queue, made.version, made.deadline) == ("reports", "2", timedelta(hours=1))
        assert (made.state, made.declared, made.priority) == ("active", False, -5)
        assert made.args == ["2026-01-02", "{{.instant}}"]
        instants = await client.schedules.next("nightly", 3)
        assert instants[0] == made.next_at and len(instants) == 3
        assert {one.astimezone(ZoneInfo("Europe/Paris")).hour for one in instants} == {3}
        again = await client.schedules.create(
            "nightly", "0 3 * * *", report, date(2026, 1, 2), timezone="Europe/Paris", priority=-5
        )
        assert again == made == await client.schedules.get("nightly")
        with pytest.raises(Conflict, match="says something else"):
            await client.schedules.create("nightly", "0 4 * * *", report, date(2026, 1, 2))
        other = await client.schedules.create("nightly", "0 4 * * *", report, date(2026, 1, 2), replace=True)
        assert (other.cron, other.timezone) == ("0 4 * * *", "UTC")
        await client.schedules.pause("nightly")
        assert (await client.schedules.get("nightly")).next_at is None
        assert await client.schedules.resume("nightly") == other.next_at
        assert [one.id for one in await client.schedules.list()] == ["nightly"]
        await client.schedules.delete("nightly")
        with pytest.raises(NotFound):
            await client.schedules.get("nightly")
        with pytest.raises(InvalidRequest, match="missing a required argument"):
            await client.schedules.create("nightly", "@daily", report)
        with pytest.raises(InvalidRequest, match="no id of a schedule"):
            await client.schedules.create("", "@daily", "report")

    asyncio.run(main())


def test_a_schedule_in_the_transaction_of_the_caller(dsn: str, conn: Connection) -> None:
    """A rollback leaves nothing; the blocking client has the same verbs."""
    with SyncClient(dsn) as client, psycopg.connect(dsn) as mine:
        made = client.schedules.create("s", "@daily", "report", region="eu", conn=mine)
        assert made.args == {"region": "eu"} and client.schedules.list() == []
        mine.rollback()
        assert client.schedules.list() == []
        client.schedules.create("s", "@daily", "report", conn=mine)
        mine.commit()
        client.schedules.pause("s")
        assert client.schedules.get("s").state == "paused"
        assert client.schedules.resume("s") == client.schedules.next("s", 1)[0]
        client.schedules.delete("s")
