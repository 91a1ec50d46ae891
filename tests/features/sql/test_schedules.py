"""Law: each instant of a schedule creates its promise once, as of that instant, and no sweep stops at one
that cannot."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import NEVER, Call, Connection, ask, create, refusal, start, take, task_of

HOUR = 3_600_000


def ms(text: str) -> int:
    """An instant, written with its offset, in ms since the epoch."""
    return (datetime.fromisoformat(text) - datetime.fromisoformat("1970-01-01T00:00Z")) // timedelta(
        milliseconds=1
    )


def complaint(conn: Connection, call: Call) -> str:
    """SQLSTATE and detail of a refusal."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, call)
    return f"{caught.value.sqlstate}: {caught.value.diag.message_primary}"


def plan(
    id_: str | None = "s",
    cron: str | None = "@hourly",
    template: str | None = "{{.id}}.{{.timestamp}}",
    *,
    timeout: int | None = HOUR,
    zone: str | None = "UTC",
    data: str | None = None,
    headers: str | None = None,
    tags: str | None = "{}",
) -> Call:
    """schedule.create with every argument free."""
    text = "select (durable.schedule_create(%s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s)).*"
    return text, (id_, cron, template, timeout, data, headers, tags, zone)


def fire(conn: Connection, now_ms: int, limit: int = 500) -> list[str]:
    """One sweep over the schedules; the queues that got ready tasks."""
    queues: list[str] = ask(conn, ("select queues from durable._fire_schedules(%s, %s)", (now_ms, limit)))[0]
    return queues


def clocked(conn: Connection, id_: str = "s") -> tuple[Any, ...]:
    """Last and next instant of a schedule."""
    return ask(conn, ("select last_run_at, next_run_at from durable.schedule_get(%s)", (id_,)))


def born(conn: Connection) -> list[tuple[Any, ...]]:
    """Promises that schedules made: id, state, birth, deadline, settlement."""
    return conn.execute(
        "select id, state, created_at, timeout_at, settled_at from durable._promises "
        "where tags ? 'resonate:schedule' order by created_at, id"
    ).fetchall()


TARGET = '{"resonate:target": "poll://any@g/w1"}'
REFUSED = {
    "no id": plan(id_=None),
    "empty id": plan(id_=""),
    "long id": plan(id_="x" * 513),
    "no cron": plan(cron=None),
    "unreadable cron": plan(cron="61 * * * *"),
    "a day that never comes": plan(cron="0 0 30 2 *"),
    "no template": plan(template=None),
    "empty template": plan(template=""),
    "long template": plan(template="x" * 500 + "{{.timestamp}}"),
    "no timeout": plan(timeout=None),
    "negative timeout": plan(timeout=-1),
    "timeout beyond never": plan(timeout=NEVER + 1),
    "no zone": plan(zone=None),
    "unknown zone": plan(zone="Mars/Olympus"),
    "zone by abbreviation": plan(zone="CEST"),
    "zone by offset": plan(zone="UTC+3"),
    "zone in small letters": plan(zone="europe/berlin"),
    "no tags": plan(tags=None),
    "tags are an array": plan(tags="[]"),
    "tag is no string": plan(tags='{"a": 1}'),
    "headers are an array": plan(headers="[]"),
    "header is no string": plan(headers='{"a": null}'),
    "target is empty": plan(tags='{"resonate:target": ""}'),
    "target cannot be routed": plan(tags='{"resonate:target": "ftp://x"}'),
    "delay without target": plan(tags='{"resonate:delay": "5"}'),
    "delay is no number": plan(tags='{"resonate:target": "g", "resonate:delay": "soon"}'),
    "delay for ever": plan(tags=f'{{"resonate:target": "g", "resonate:delay": "{NEVER}"}}'),
    "origin of others": plan(tags='{"resonate:origin": "other"}'),
    "branch of others": plan("ab", tags='{"resonate:branch": "a"}'),
    "parent of others": plan(template="{{.id}}{{.timestamp}}", tags='{"resonate:parent": "s"}'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_create_refuses_what_is_malformed(conn: Connection, name: str) -> None:
    """WF004, the same when the id exists, and nothing is written."""
    assert refusal(conn, REFUSED[name]) == "WF004"
    ask(conn, plan())
    assert refusal(conn, REFUSED[name]) == "WF004"
    assert ask(conn, ("select count(*) from durable._schedules", ())) == (1,)


def test_refusals_name_the_cause(conn: Connection) -> None:
    """The zone, the day that never comes, and a parameter that is too large."""
    assert "'Mars/Olympus'" in complaint(conn, plan(zone="Mars/Olympus"))
    there = "select durable._schedule_next('@daily', 'Mars/Olympus', 0)"
    assert "'Mars/Olympus'" in complaint(conn, (there, ()))
    assert "'0 0 30 2 *'" in complaint(conn, plan(cron="0 0 30 2 *"))
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    assert complaint(conn, plan(data="x" * 2001)).startswith("WF008: Parameter of schedule 's'")


def test_a_timer_with_a_target(conn: Connection) -> None:
    """Refused in the strict profile; in the compatible one its promise resolves at the deadline."""
    both = plan(tags='{"resonate:target": "g", "resonate:timer": "true"}')
    ask(conn, ("select durable.set_setting('conformance', 'strict')", ()))
    assert refusal(conn, both) == "WF004"
    ask(conn, ("select durable.set_setting('conformance', 'compatible')", ()))
    assert refusal(conn, both) == ""


def test_create_get_delete(conn: Connection, clock: Clock) -> None:
    """Created once, answered unchanged ever after, deleted once; dots are free in id and template."""
    first = plan("a.b", "0 9 * * *", "x.{{.id}}", headers='{"h": "1"}', data="d", zone="Europe/Berlin")
    about: tuple[Any, ...] = ("a.b", "0 9 * * *", "Europe/Berlin", "x.{{.id}}", HOUR, {"h": "1"}, "d", {})
    expected = (*about, clock.now_ms, ms("2027-01-16T09:00+01:00"), None)
    assert ask(conn, first) == expected
    clock.advance(5)
    assert ask(conn, plan("a.b", "@daily", "other", timeout=0, tags=TARGET)) == expected
    assert ask(conn, ("select * from durable.schedule_get('a.b')", ())) == expected
    assert ask(conn, ("select * from durable.schedule_delete('a.b')", ())) == expected
    for call in ("get", "delete"):
        assert refusal(conn, (f"select durable.schedule_{call}('a.b')", ())) == "WF001"


def test_search(conn: Connection, clock: Clock) -> None:
    """By id, a page after its cursor, those whose tags contain what is asked."""
    for name in ("b", "B", "a", "c"):
        ask(conn, plan(name, tags=json.dumps({"team": name, "kind": "x" if name in "ab" else "y"})))
    found = "select array_agg(id) from durable.schedule_search(%s::jsonb, %s, %s)"
    for tags, limit, cursor, expected in (
        *((None, 10, None, ["B", "a", "b", "c"]), ("{}", 2, None, ["B", "a"]), ("{}", 2, "a", ["b", "c"])),
        *(('{"kind": "x"}', 10, None, ["a", "b"]), ('{"kind": "x"}', 10, "a", ["b"]), (None, 1, "c", None)),
        ('{"kind": "y", "team": "c"}', 10, None, ["c"]),
    ):
        assert ask(conn, (found, (tags, limit, cursor))) == (expected,)
    for wrong in (
        ("[]", 10, None),
        ('"a"', 10, None),
        (None, 0, None),
        (None, 1001, None),
        (None, None, None),
    ):
        assert refusal(conn, (found, wrong)) == "WF004"


def test_an_instant_fires_once(conn: Connection, clock: Clock) -> None:
    """Not a millisecond early; the promise is born as of its instant, and the next one is awaited."""
    ask(conn, plan(data="d", headers='{"h": "1"}', tags='{"team": "x"}'))
    now = clock.now_ms
    assert ask(conn, ("select durable._due_in(%s)", (now + 1,))) == (HOUR - 1,)
    clock.set(now + HOUR - 1)
    assert fire(conn, clock.now_ms) == []
    assert clocked(conn) == (None, now + HOUR)
    clock.set(now + HOUR + 7)
    assert fire(conn, clock.now_ms) == []
    assert fire(conn, clock.now_ms) == []
    assert clocked(conn) == (now + HOUR, now + 2 * HOUR)
    assert born(conn) == [(f"s.{now + HOUR}", "pending", now + HOUR, now + 2 * HOUR, None)]
    row = ask(conn, ("select param_data, param_headers, tags, external from durable._promises", ()))
    assert row == ("d", {"h": "1"}, {"team": "x", "resonate:schedule": "s"}, False)
    ask(conn, ("select durable.schedule_delete('s')", ()))
    assert len(born(conn)) == 1


def test_a_targeted_instant_has_a_task(conn: Connection, clock: Clock) -> None:
    """The task is ready in its queue, prefers who the address names, and is an origin of its own."""
    ask(conn, ("select durable.worker_hello_v1('w1', '{g}', '{w}', '{1}', null)", ()))
    conn.execute("update durable._workers set present = true")
    ask(conn, plan(tags=TARGET))
    now = clock.advance(HOUR + 7)
    assert fire(conn, now) == ["g"]
    id_ = f"s.{now - 7}"
    found = ask(
        conn,
        (
            "select id, state, version, deadline, retry_at, queue, preference, prefer_until "
            "from durable._tasks",
            (),
        ),
    )
    assert found == (id_, "pending", 0, now - 7 + HOUR, now, "g", "w1", now + 200)
    (tags,) = ask(conn, ("select tags from durable._promises", ()))
    tree = dict.fromkeys((f"resonate:{name}" for name in ("origin", "prefix", "branch", "parent")), id_)
    assert tags == {"resonate:target": "poll://any@g/w1", "resonate:schedule": "s", **tree}


def test_catching_up_is_bounded(conn: Connection, clock: Clock) -> None:
    """A call makes up for so many instants, in order; the rest stays due, and none is lost."""
    ask(conn, ("select durable.set_setting('schedule_catch_up', '3')", ()))
    ask(conn, plan(timeout=100 * HOUR))
    start_ms = clock.now_ms
    now = clock.advance(8 * HOUR)
    for last in (3, 6, 8, 8):
        fire(conn, now)
        assert clocked(conn) == (start_ms + last * HOUR, start_ms + (last + 1) * HOUR)
        assert [row[2] for row in born(conn)] == [start_ms + n * HOUR for n in range(1, last + 1)]


def test_the_longest_overdue_come_first(conn: Connection, clock: Clock) -> None:
    """At most so many schedules in a call; many that are far behind share what one may make up for."""
    for name, minute in (("c", 30), ("a", 10), ("b", 20)):
        ask(conn, plan(name, f"{minute} * * * *", timeout=NEVER))
    ask(conn, ("select durable.set_setting('schedule_catch_up', '4')", ()))
    now = clock.advance(10 * HOUR)
    fire(conn, now, 2)
    made = [row[0][0] for row in born(conn)]
    assert (made.count("a"), made.count("b"), made.count("c")) == (4, 2, 0)
    while len(born(conn)) < 30:
        before = len(born(conn))
        fire(conn, now)
        assert before < len(born(conn)) <= before + 12


@pytest.mark.parametrize("kind", ["plain", "target", "timer"])
def test_an_instant_past_its_deadline_is_born_settled(conn: Connection, clock: Clock, kind: str) -> None:
    """The verdict of the deadline, at the deadline, born at the instant; there is no task to dispatch."""
    tags = {"plain": "{}", "target": TARGET, "timer": '{"resonate:timer": "true"}'}[kind]
    ask(conn, plan(timeout=HOUR // 2, tags=tags))
    at = clock.now_ms + HOUR
    clock.set(at + HOUR // 2)
    assert fire(conn, clock.now_ms) == []
    state = "resolved" if kind == "timer" else "rejected_timedout"
    assert born(conn) == [(f"s.{at}", state, at, at + HOUR // 2, at + HOUR // 2)]
    assert ask(conn, ("select task_version from durable._promises", ())) == (
        (0 if kind == "target" else None),
    )
    assert task_of(conn, f"s.{at}") is None


def test_a_timeout_of_nothing_and_of_ever(conn: Connection, clock: Clock) -> None:
    """A promise may end where it begins, or never."""
    ask(conn, plan("dead", timeout=0))
    ask(conn, plan("never", timeout=NEVER))
    at = clock.advance(HOUR)
    fire(conn, at)
    assert born(conn) == [
        (f"dead.{at}", "rejected_timedout", at, at, at),
        (f"never.{at}", "pending", at, NEVER, None),
    ]


def test_an_id_that_is_taken_is_adopted(conn: Connection, clock: Clock) -> None:
    """A promise of that id stays as it is; without a timestamp in the template only the first instant makes
    one, and of two schedules with one template the first to come."""
    at = clock.now_ms + HOUR
    ask(conn, create(f"s.{at}", external="true"))
    ask(conn, plan(tags=TARGET))
    ask(conn, plan("once", template="only-{{.id}}", timeout=NEVER))
    ask(conn, plan("twice", template="only-once", timeout=NEVER))
    now = clock.advance(2 * HOUR)
    assert fire(conn, now) == ["g"]
    assert [row[:3] for row in born(conn)] == [("only-once", "pending", at), (f"s.{now}", "pending", now)]
    assert task_of(conn, f"s.{at}") is None
    assert {clocked(conn, name) for name in ("s", "once", "twice")} == {(now, now + HOUR)}


def test_the_schedules_id_is_no_template(conn: Connection, clock: Clock) -> None:
    """Expansion is injective in the instant and in the id, whatever the id looks like."""
    ask(conn, plan("{{.timestamp}}\\1", template="{{.timestamp}}/{{.id}}/{{.id}}"))
    at = clock.advance(HOUR)
    fire(conn, at)
    assert born(conn)[0][0] == f"{at}/{{{{.timestamp}}}}\\1/{{{{.timestamp}}}}\\1"


def test_a_delay_is_an_instant(conn: Connection, clock: Clock) -> None:
    """No dispatch before it; an instant whose deadline is not after it creates nothing and is passed over."""
    at = clock.now_ms + HOUR
    tags = json.dumps({"resonate:target": "g", "resonate:delay": str(at + HOUR + 5)})
    ask(conn, plan(tags=tags))
    assert fire(conn, clock.set(at)) == []
    assert (born(conn), clocked(conn)) == ([], (at, at + HOUR))
    assert fire(conn, clock.set(at + HOUR)) == []
    assert ask(conn, ("select retry_at from durable._tasks", ())) == (at + HOUR + 5,)
    assert fire(conn, clock.set(at + 2 * HOUR)) == ["g"]


def test_the_tree_of_a_schedule_without_a_target(conn: Connection, clock: Clock) -> None:
    """Its tags of the tree are its own and must fit all its ids, not only the first."""
    at = clock.now_ms + HOUR
    assert refusal(conn, plan("a", tags=f'{{"resonate:branch": "a.{at}"}}')) == "WF004"
    ask(conn, plan("b", tags='{"resonate:branch": "b", "resonate:origin": "b", "resonate:prefix": "x"}'))
    fire(conn, clock.set(at + HOUR))
    assert [row[0] for row in born(conn)] == [f"b.{at}", f"b.{at + HOUR}"]


def test_an_id_that_belongs_to_a_run_is_passed_over(conn: Connection, clock: Clock) -> None:
    """What promise_create would refuse stops neither its schedule nor the others."""
    ask(conn, start("r"))
    ask(conn, plan("a", template="r.5"))
    ask(conn, plan("b"))
    at = clock.advance(HOUR)
    assert refusal(conn, create("r.5")) == "WF004"
    fire(conn, at)
    assert [row[0] for row in born(conn)] == [f"b.{at}"]
    assert clocked(conn, "a") == (at, at + HOUR)


def test_a_schedule_that_cannot_be_read_any_more(conn: Connection, clock: Clock) -> None:
    """A zone that left the server, cron of another version: looked at again in an hour, the others fire."""
    for name in ("a", "b", "c"):
        ask(conn, plan(name))
    conn.execute("update durable._schedules set timezone = 'Mars/Olympus' where id = 'a'")
    conn.execute("update durable._schedules set cron = '* * * * * * 2027' where id = 'b'")
    at = clock.advance(HOUR)
    fire(conn, at)
    assert [row[0] for row in born(conn)] == [f"c.{at}"]
    assert clocked(conn, "a") == clocked(conn, "b") == (None, at + HOUR)
    conn.execute("update durable._schedules set timezone = 'UTC', cron = '@hourly'")
    fire(conn, clock.advance(HOUR))
    assert clocked(conn, "a") == clocked(conn, "b") == (at + HOUR, at + 2 * HOUR)


def test_a_schedule_without_instants_stops(conn: Connection, clock: Clock) -> None:
    """29 February on a Sunday is in 2032 and then not for 28 years."""
    ask(conn, plan(cron="0 0 29 2 */7"))
    at = clock.set(ms("2032-02-29T00:00Z"))
    fire(conn, at)
    assert clocked(conn) == (at, NEVER)
    assert ask(conn, ("select durable._due_in(%s)", (at,))) == (None,)


def test_two_sweeps(dsn: str) -> None:
    """Both at once make each promise once, and neither waits for the other."""
    clock = Clock(dsn)
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        for name in "abcd":
            ask(one, plan(name))
        one.commit()
        two.execute("set lock_timeout = '10s'")
        now = clock.advance(HOUR)
        for each in (one, two):
            assert ask(each, ("select fired from durable._fire_schedules(%s, 2)", (now,))) == (2,)
        assert (len(born(one)), len(born(two))) == (2, 2)
        one.commit()
        two.commit()
        fire(one, now)
        assert [row[0] for row in born(one)] == [f"{name}.{now}" for name in "abcd"]
        one.commit()
    clock.close()


def test_a_run_that_is_being_started(dsn: str) -> None:
    """A sweep does not wait for the start of a run that the id would belong to: it stays due."""
    clock = Clock(dsn)
    with psycopg.connect(dsn) as one, psycopg.connect(dsn, autocommit=True) as two:
        ask(two, plan(template="r.5"))
        now = clock.advance(HOUR)
        ask(one, start("r"))
        assert ask(two, ("select fired from durable._fire_schedules(%s, 5)", (now,))) == (0,)
        assert clocked(two) == (None, now)
        one.rollback()
        fire(two, now)
        assert [row[0] for row in born(two)] == ["r.5"]
    clock.close()


def test_a_creator_of_the_same_promise(dsn: str, stage: Stage) -> None:
    """A sweep waits for who is creating the promise of that id, and adopts what it made."""
    clock = Clock(dsn)
    a, b = stage.player("a"), stage.player("b")
    a.do(*plan()).rows()
    at = clock.now_ms + HOUR
    a.begin()
    a.do(*create(f"s.{at}", external="true")).rows()
    fired = b.do("select queues from durable._fire_schedules(%s, 1)", (clock.set(at),))
    assert fired.blocked
    a.commit()
    assert fired.value() == []
    (tags, next_run_at) = b.do(
        "select p.tags, s.next_run_at from durable._promises p, durable._schedules s"
    ).rows()[0]
    assert (tags, next_run_at) == ({"resonate:external": "true"}, at + HOUR)
    clock.close()


def test_after_a_fence(conn: Connection, clock: Clock) -> None:
    """A transaction that holds a task's fence may not wait for schedules, which come first in the order."""
    take(conn, "t")
    ask(conn, plan())
    ask(conn, ("select durable.fence('t', 1)", ()))
    assert refusal(conn, plan("other")) == "WF003"
    assert refusal(conn, ("select durable.schedule_delete('s')", ())) == "WF003"


def test_schedules_are_created_and_deleted_in_turn(dsn: str, stage: Stage) -> None:
    """A second creator waits and gets the first one's schedule; a deletion waits for a sweep's commit."""
    clock = Clock(dsn)
    a, b = stage.player("a"), stage.player("b")
    a.begin()
    a.do(*plan(cron="@hourly")).rows()
    second = b.do(*plan(cron="@daily"))
    assert second.blocked
    a.commit()
    assert second.rows()[0][1] == "@hourly"
    a.begin()
    a.do("select queues from durable._fire_schedules(%s, 1)", (clock.advance(HOUR),)).rows()
    gone = b.do("select last_run_at from durable.schedule_delete('s')")
    assert gone.blocked
    a.commit()
    assert gone.value() == clock.now_ms
    clock.close()


@pytest.mark.unlawful
def test_a_sweep_reads_what_is_due(dsn: str) -> None:
    """Through the index on next_run_at, with plans of an empty table too, however many there are."""
    counters = (
        "select (select seq_tup_read from pg_stat_user_tables where relid = 'durable._schedules'::regclass), "
        "(select sum(idx_tup_read) from pg_stat_user_indexes where relid = 'durable._schedules'::regclass)"
    )
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
            conn.execute(f"set {name} = off".encode())
        conn.execute("set plan_cache_mode = force_generic_plan")
        fire(conn, 1)
        conn.execute(
            "insert into durable._schedules (id, cron, promise_id, promise_timeout, created_at, next_run_at) "
            "select 's' || n, '@hourly', '{{.id}}', 1, 0, n * 3600000::bigint from generate_series(1, 5000) n"
        )
        for _ in range(2):
            conn.execute("select pg_stat_force_next_flush()")
            before = ask(conn, (counters, ()))
            fire(conn, 10 * HOUR, 3)
            conn.execute("select pg_stat_force_next_flush()")
            after = ask(conn, (counters, ()))
            assert after[0] == before[0]
            assert after[1] - before[1] < 40
            conn.execute("analyze durable._schedules")
