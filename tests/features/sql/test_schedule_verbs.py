"""Law: schedules of workflows are made, changed, paused and declared, and what cannot be is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.features.sql.test_scheduled_runs import HOUR, plan, runs
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, refusal, tick


def declare(conn: Connection, *schedules: dict[str, Any], workflows: str = "{w}") -> Any:
    """What a worker's code declares."""
    full = [
        {"cron": "@hourly", "timezone": "UTC", "workflow": "w", "version": "1", "queue": "default"}
        | {"input": "[]", "deadline": None, "priority": 0, "tags": {}}
        | one
        for one in schedules
    ]
    call = ("select durable.worker_schedules_v1(%s, %s::jsonb)", (workflows, json.dumps(full)))
    return ask(conn, call)[0]


REFUSED = {
    "no id": plan(id_=None),  # type: ignore[arg-type]
    "long id": plan(id_="x" * 481),
    "no cron": plan(cron="61 * * * *"),
    "a day that never comes": plan(cron="0 0 30 2 *"),
    "unknown zone": plan(timezone="Mars/Olympus"),
    "empty version": plan(version=""),
    "no queue name": plan(queue="a/b"),
    "arguments are a number": plan(args=5),
    "no arguments": plan(args=None),
    "tag is no string": plan(tags={"a": 1}),
    "tag of the protocol": plan(tags={"resonate:target": "g"}),
    "priority": plan(priority=40_000),
    "negative deadline": plan(deadline="-1 s"),
    "target too": plan(target="g"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_malformed_is_refused(conn: Connection, name: str) -> None:
    """WF004, and nothing is written."""
    assert refusal(conn, REFUSED[name]) == "WF004"
    assert ask(conn, ("select count(*) from durable._schedules", ())) == (0,)


def test_a_target_that_nothing_serves_is_refused(conn: Connection) -> None:
    """As a start is: an unknown workflow, a service that is not served, and a workflow named as a queue."""
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{report}', '{1}', '{}', '{ab}')", ()))
    assert refusal(conn, plan(workflow="nightly", any_workflow=False)) == "WF001"
    assert refusal(conn, plan(workflow="report", any_workflow=False)) == ""
    by_target = "select durable.schedule('t', '@daily', target => %s)"
    assert refusal(conn, (by_target, ("sql://public.nothing",))) == "WF001"
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (by_target, ("report",)))
    assert (caught.value.sqlstate, caught.value.diag.message_hint) == ("WF004", "Write workflow => 'report'.")
    assert refusal(conn, (by_target, ("reports",))) == ""


def test_the_same_call_is_the_same_schedule(conn: Connection, clock: Clock) -> None:
    """Another one of that id is a conflict, unless it replaces: the expression then begins now."""
    first = ask(conn, plan(args=[1]))
    assert ask(conn, plan(args=[1])) == first
    assert refusal(conn, plan(args=[2])) == "WF003"
    assert refusal(conn, plan(cron="@daily")) == "WF003"
    assert ask(conn, plan(args=[2], replace=True)) == first
    clock.advance(HOUR)
    tick(conn)
    assert runs(conn) == [("s-2027-01-15T09:00:00Z", [2])]
    clock.advance(HOUR // 2)
    (next_at,) = ask(conn, plan(cron="15 * * * *", args=[3], replace=True))
    assert next_at == datetime.fromisoformat("2027-01-15T10:15Z")
    clock.advance(HOUR)
    tick(conn)
    assert runs(conn)[1:] == [("s-2027-01-15T10:15:00Z", [3])]


def test_a_schedule_of_promises_is_not_replaced(conn: Connection) -> None:
    """Nor does a declaration of code take its place."""
    ask(conn, ("select durable.schedule('s', '@hourly')", ()))
    assert refusal(conn, plan(replace=True)) == "WF003"
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        declare(conn, {"id": "s"})
    assert caught.value.sqlstate == "WF003"


@pytest.mark.parametrize("of_runs", [True, False])
def test_pause_and_resume(conn: Connection, clock: Clock, of_runs: bool) -> None:
    """Instants that pass while it is paused are left out; pausing or resuming twice changes nothing."""
    ask(conn, plan() if of_runs else ("select durable.schedule('s', '@hourly')", ()))
    clock.advance(HOUR)
    tick(conn)
    for _ in range(2):
        ask(conn, ("select durable.pause_schedule('s')", ()))
    assert ask(conn, ("select state, next_at from durable.schedules", ())) == ("paused", None)
    clock.advance(3 * HOUR)
    assert tick(conn)["schedules"] == 0
    nine = datetime.fromisoformat("2027-01-15T13:00Z")
    assert ask(conn, ("select min(i) from durable.next_instants('s', 2) i", ())) == (nine,)
    for _ in range(2):
        assert ask(conn, ("select durable.resume_schedule('s')", ())) == (nine,)
    clock.advance(HOUR)
    tick(conn)
    made = "select count(*) from durable._promises where tags ? 'resonate:schedule'"
    assert ask(conn, (made, ())) == (2,)


def test_unknown_schedules(conn: Connection) -> None:
    """WF001 for every verb."""
    for verb in ("pause_schedule", "resume_schedule", "unschedule", "next_instants"):
        assert refusal(conn, (f"select durable.{verb}('nothing')", ())) == "WF001"
    assert refusal(conn, ("select durable.next_instants('nothing', 0)", ())) == "WF004"


def test_next_instants(conn: Connection) -> None:
    """As many as are asked for, across a change of clocks; fewer if none is left."""
    ask(conn, plan("spring", "30 2 28 3 *", timezone="Europe/Berlin"))
    found = conn.execute("select i::text from durable.next_instants('spring', 3) i").fetchall()
    assert [row[0][:13] for row in found] == ["2027-03-28 01", "2028-03-28 00", "2029-03-28 00"]


def test_declarations_of_code(conn: Connection, clock: Clock) -> None:
    """Recorded once; the same again writes nothing; a change replaces; one that is gone is answered."""
    assert declare(conn, {"id": "a"}, {"id": "b"}) == {
        "outcomes": {"a": "created", "b": "created"},
        "left": [],
    }
    before = conn.execute("select xmin, ctid from durable._schedules order by id").fetchall()
    assert declare(conn, {"id": "a"}, {"id": "b"})["outcomes"] == {"a": "same", "b": "same"}
    assert conn.execute("select xmin, ctid from durable._schedules order by id").fetchall() == before
    clock.advance(HOUR)
    tick(conn)
    answer = declare(conn, {"id": "a", "cron": "@daily"})
    assert answer["outcomes"] == {"a": "replaced"}
    assert answer["left"] == [{"id": "b", "workflow": "w", "cron": "@hourly"}]
    assert declare(conn, workflows="{other}") == {"outcomes": {}, "left": []}
    row = ask(conn, ("select cron, declared, next_at::text from durable.schedules where id = 'a'", ()))
    assert row == ("@daily", True, "2027-01-16 00:00:00+00")


def test_a_declaration_keeps_a_pause(conn: Connection, clock: Clock) -> None:
    """A paused schedule stays paused when the code changes, and one made by hand becomes the code's."""
    ask(conn, plan("a"))
    ask(conn, ("select durable.pause_schedule('a')", ()))
    assert declare(conn, {"id": "a", "cron": "@daily"})["outcomes"] == {"a": "replaced"}
    row = "select state, cron, declared from durable.schedules"
    assert ask(conn, (row, ())) == ("paused", "@daily", True)


def test_a_declaration_waits_for_no_user(dsn: str) -> None:
    """A row that a session has locked, or has inserted and not committed, is answered as locked."""
    with psycopg.connect(dsn) as user, psycopg.connect(dsn, autocommit=True) as conn:
        declare(conn, {"id": "a"})
        user.execute("select from durable._schedules for update")
        assert declare(conn, {"id": "a", "cron": "@daily"})["outcomes"] == {"a": "locked"}
        assert declare(conn, {"id": "a"})["outcomes"] == {"a": "same"}
        user.rollback()
        ask(user, plan("b"))
        assert declare(conn, {"id": "b"})["outcomes"] == {"b": "locked"}
        user.rollback()
        assert declare(conn, {"id": "b"})["outcomes"] == {"b": "created"}


def test_a_paused_schedule_is_lawful(conn: Connection) -> None:
    """durable.check() knows pauses, and sees a paused schedule that would fire."""
    ask(conn, plan())
    ask(conn, ("select durable.pause_schedule('s')", ()))
    conn.execute("savepoint before")
    conn.execute("update durable._schedules set next_run_at = created_at + 5")
    assert ask(conn, ("select array_agg(law) from durable.check()", ())) == (
        ["S07 S08 schedule_next_run_follows_cron"],
    )
    conn.execute("rollback to savepoint before")


NAMED = {
    "a field": (plan("nightly", "61 * * * *"), "cron, minute: '61' goes beyond 0 to 59."),
    "an expression": (plan("nightly", "* * *"), "cron '* * *' has 3 fields."),
    "a day that never comes": (
        plan("nightly", "0 0 30 2 *"),
        "'0 0 30 2 *' stands for no instant of the next eight years.",
    ),
    "a zone": (
        plan("nightly", timezone="Mars/Olympus"),
        "time zone 'Mars/Olympus' is not known to this server.",
    ),
    "of promises": (
        ("select durable.schedule('nightly', '@often')", ()),
        "cron: '@often' is none of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually.",
    ),
    "of promises, a zone": (
        ("select durable.schedule('nightly', '@daily', timezone => 'CET3')", ()),
        "time zone 'CET3' is not known to this server.",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_error_names_its_schedule(conn: Connection, name: str) -> None:
    """Whoever deploys ten schedules reads which one is wrong, and how to mend it."""
    call, sentence = NAMED[name]
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, call)
    assert caught.value.diag.message_primary == f"Schedule 'nightly': {sentence}"
    assert caught.value.diag.message_hint


def test_a_declaration_that_is_wrong_is_named(conn: Connection) -> None:
    """So it is if the code of a worker declares it, among others."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        declare(conn, {"id": "a"}, {"id": "b", "cron": "x * * * *"}, {"id": "c"})
    assert caught.value.diag.message_primary == "Schedule 'b': cron, minute: 'x' is not understood."
