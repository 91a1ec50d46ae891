"""Law: each instant of a schedule of a workflow starts one run, whose id and arguments name the instant."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, create, refusal, settle, start, tick

HOUR = 3_600_000


def plan(id_: str = "s", cron: str = "@hourly", workflow: str = "w", **more: Any) -> tuple[str, Any]:
    """durable.schedule of a workflow that need not be known."""
    options = {"any_workflow": True} | more
    if "args" in options:
        options["args"] = json.dumps(options["args"])
    if "tags" in options:
        options["tags"] = json.dumps(options["tags"])
    casts = {"args": "::jsonb", "tags": "::jsonb", "deadline": "::interval"}
    named = "".join(f", {name} => %s{casts.get(name, '')}" for name in options)
    text = f"select durable.schedule(%s, %s, workflow => %s{named})"
    return text, (id_, cron, workflow, *options.values())


def runs(conn: Connection) -> list[Any]:
    """Runs of schedules: id and arguments."""
    return conn.execute(
        "select id, args from durable.runs where tags ? 'resonate:schedule' order by id"
    ).fetchall()


def test_an_instant_starts_a_run_once(conn: Connection, clock: Clock) -> None:
    """The run has the id of its instant, the options of the schedule, and begins when the tick comes."""
    ask(conn, plan("nightly", queue="q", version="2", priority=3, deadline="5 min", tags={"team": "a"}))
    now = clock.advance(HOUR + 1500)
    assert tick(conn)["schedules"] == 1
    assert tick(conn)["schedules"] == 0
    row = conn.execute(
        "select id, workflow, version, queue, priority, state, tags, "
        "extract(epoch from created_at) * 1000, extract(epoch from deadline) * 1000 from durable.runs"
    ).fetchall()
    tags = {"team": "a", "resonate:schedule": "nightly"}
    assert row == [("nightly-2027-01-15T09:00:00Z", "w", "2", "q", 3, "queued", tags, now, now + 300_000)]
    (last,) = ask(conn, ("select (last_id, next_at)::text from durable.schedules", ()))
    assert "nightly-2027-01-15T09:00:00Z" in last and "10:00:00" in last


def test_arguments_name_the_instant(conn: Connection, clock: Clock) -> None:
    """The instant as the clocks of the time zone show it, so its date is the date there; and its ms."""
    args = {"scheduled_at": "{{.instant}}", "ms": "{{.timestamp}}", "region": "eu"}
    ask(conn, plan(cron="30 0 * * *", timezone="Europe/Berlin", args=args))
    clock.advance(24 * HOUR)
    tick(conn)
    at = datetime.fromisoformat("2027-01-15T23:30Z")
    ((id_, found),) = runs(conn)
    assert id_ == "s-2027-01-15T23:30:00Z"
    assert found == {
        "scheduled_at": "2027-01-16T00:30:00+01:00",
        "ms": str(int(at.timestamp() * 1000)),
        "region": "eu",
    }


def test_arguments_have_the_last_result(conn: Connection, clock: Clock) -> None:
    """That of the run of the latest instant before it that has completed, whatever ran in between or below
    it; and the time at which the run begins. A result is no template."""
    args = ["{{.last_result}}", "{{.fired_at}}", "x {{.last_result}}"]
    ask(conn, plan(args=args, timezone="Europe/Paris", catch_up="10 minutes"))

    def step(state: str, value: str) -> list[Any]:
        """The next instant, 90 seconds late; its run ends so."""
        clock.advance(HOUR)
        tick(conn)
        id_, found = runs(conn)[-1]
        if state != "pending":
            ask(conn, settle(id_, value, state=state))
        return list(found)

    clock.advance(90_000)
    result = '{"a": "{{.instant}}", "n": 12345678901234567890}'
    first = step("resolved", result)
    assert first == [None, "2027-01-15T10:01:30+01:00", "x {{.last_result}}"]
    for ended in ("rejected", "pending", "resolved"):
        found = step(ended, '"new"')
        assert found[0] == json.loads(result)
    assert step("resolved", "1")[0] == "new"
    # a backfilled one has what came before its own instant
    back = "select started from durable.backfill_schedule('s', %s, %s, 'allow', false)"
    ask(conn, (back, ("2027-01-15T07:30Z", "2027-01-15T08:00Z")))
    assert runs(conn)[0] == ("s-2027-01-15T08:00:00Z", [None, "2027-01-15T14:01:30+01:00", args[2]])


@pytest.mark.parametrize(
    ("zone", "at", "text"),
    [
        ("UTC", "2027-01-15T08:00Z", "2027-01-15T08:00:00+00:00"),
        ("Asia/Kathmandu", "2027-01-15T08:00Z", "2027-01-15T13:45:00+05:45"),
        ("America/St_Johns", "2027-01-15T08:00Z", "2027-01-15T04:30:00-03:30"),
        ("Europe/Berlin", "2027-03-28T00:59:59Z", "2027-03-28T01:59:59+01:00"),
        ("Europe/Berlin", "2027-03-28T01:00Z", "2027-03-28T03:00:00+02:00"),
    ],
)
def test_instants_in_time_zones(conn: Connection, zone: str, at: str, text: str) -> None:
    """An instant has the offset that holds there then, and is read back as the same instant."""
    ms = int(datetime.fromisoformat(at).timestamp() * 1000)
    (shown,) = ask(conn, ("select durable._instant_text(%s, %s)", (ms, zone)))
    assert shown == text and datetime.fromisoformat(shown) == datetime.fromisoformat(at)


def test_missed_instants_are_made_up_for(conn: Connection, clock: Clock) -> None:
    """As those of promises: in order, at most schedule_catch_up in one tick."""
    ask(conn, ("select durable.set_setting('schedule_catch_up', '3')", ()))
    ask(conn, plan())
    clock.advance(5 * HOUR)
    tick(conn)
    assert [id_[-9:] for id_, _ in runs(conn)] == ["09:00:00Z", "10:00:00Z", "11:00:00Z"]
    tick(conn)
    assert len(runs(conn)) == 5


def test_an_id_that_is_taken_passes(conn: Connection, clock: Clock) -> None:
    """A run of that id, and promises that would be its children, are left as they are."""
    ask(conn, plan())
    ask(conn, start("s-2027-01-15T09:00:00Z"))
    ask(conn, create("s-2027-01-15T10:00:00Z.1", external="true"))
    clock.advance(3 * HOUR)
    tick(conn)
    assert [id_ for id_, _ in runs(conn)] == ["s-2027-01-15T11:00:00Z"]


def test_a_removed_run_is_not_started_again(conn: Connection, clock: Clock) -> None:
    """An instant whose run was purged passes."""
    ask(conn, plan())
    conn.execute(
        "insert into durable._removed (ended_at, removed_at, id, state, workflow) "
        "values (0, 0, 's-2027-01-15T09:00:00Z', 'resolved', 'w')"
    )
    clock.advance(HOUR)
    tick(conn)
    assert runs(conn) == []


def test_a_start_of_the_same_id_is_not_waited_for(dsn: str) -> None:
    """While a session starts a run of that id, the instant stays due; then it finds that run."""
    clock = Clock(dsn)
    with psycopg.connect(dsn) as one, psycopg.connect(dsn, autocommit=True) as two:
        ask(two, plan())
        clock.advance(HOUR)
        ask(one, start("s-2027-01-15T09:00:00Z"))
        assert tick(two)["schedules"] == 0
        one.rollback()
        assert tick(two)["schedules"] == 1
        assert [id_ for id_, _ in runs(two)] == ["s-2027-01-15T09:00:00Z"]
    clock.close()


def test_two_sweeps_start_each_run_once(dsn: str) -> None:
    """Both at once, and neither waits for the other."""
    clock = Clock(dsn)
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        for name in "abcd":
            ask(one, plan(name))
        one.commit()
        two.execute("set lock_timeout = '10s'")
        now = clock.advance(2 * HOUR)
        for each in (one, two):
            assert ask(each, ("select fired from durable._fire_schedules(%s, 2)", (now,))) == (2,)
        one.commit()
        two.commit()
        assert len(runs(one)) == 8
    clock.close()


def test_a_service_is_its_own_queue(conn: Connection, clock: Clock) -> None:
    """A function of the database may be the workflow, once it is served."""
    close = plan(workflow="sql://public.close", any_workflow=False)
    assert refusal(conn, close) == "WF001"
    conn.execute("create function public.close() returns integer language sql as 'select 1'")
    conn.execute("select durable.serve('public.close()')")
    ask(conn, close)
    clock.advance(HOUR)
    tick(conn)
    assert ask(conn, ("select workflow, queue from durable.runs", ())) == ("sql://public.close",) * 2
