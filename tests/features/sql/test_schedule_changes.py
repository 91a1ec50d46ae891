"""Law: an UPDATE of durable.schedules does what the verbs do, with their checks, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest

from tests.features.sql.test_policies import EIGHT, MINUTE, account, at, end, sweep
from tests.features.sql.test_scheduled_runs import HOUR, plan, runs
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask


def change(conn: Connection, what: str, where: str = "id = 's'") -> int:
    """An UPDATE; how many rows it says it has changed."""
    return conn.execute(f"update durable.schedules set {what} where {where}".encode()).rowcount


def test_policy_and_arguments_are_changed_in_place(conn: Connection, clock: Clock) -> None:
    """What happened stays, what is not named stays, and RETURNING shows the row as it is."""
    ask(conn, plan(args=[1], priority=2, deadline="5 hours", max_runs=9))
    clock.advance(HOUR)
    sweep(conn)
    text = (
        "update durable.schedules set overlap = 'skip', catch_up = '90 min', args = '[2]', tags = '{}' "
        "where id = 's' returning overlap, catch_up::text, args, last_id, deadline::text, runs_left, priority"
    )
    assert ask(conn, (text, ())) == ("skip", "01:30:00", [2], at("09:00:00"), "05:00:00", 8, 2)
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn) == [("09:00", "started"), ("10:00", "skipped")]
    end(conn, at("09:00:00"))
    clock.advance(HOUR)
    sweep(conn)
    assert runs(conn)[-1] == (at("11:00:00"), [2])


def test_another_expression_begins_now(conn: Connection, clock: Clock) -> None:
    """As with replace; and another limit does not bring back what is over."""
    ask(conn, plan())
    clock.advance(30 * MINUTE)
    assert change(conn, "cron = '45 * * * *', max_runs = 1") == 1
    clock.advance(2 * HOUR)
    sweep(conn)
    assert account(conn) == [("08:45", "started")]
    assert ask(conn, ("select state, next_at from durable.schedules", ())) == ("over", None)
    change(conn, "max_runs = max_runs + 1")
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn) == [("08:45", "started"), ("10:45", "started")]


def test_a_state_pauses_and_resumes(conn: Connection, clock: Clock) -> None:
    """With reason, end and who, as durable.pause_schedule; also schedules of promises."""
    ask(conn, plan())
    ask(conn, ("select durable.schedule_create('p', '@hourly', '{{.id}}.{{.timestamp}}', 1000)", ()))
    assert change(conn, "state = 'paused', pause_reason = 'moving'", "true") == 2
    shown = "select pause_reason, paused_by = session_user, paused_until from durable.schedules order by id"
    assert conn.execute(shown.encode()).fetchall() == [("moving", True, None)] * 2
    change(conn, "paused_until = '2027-01-15T10:30Z', paused_by = 'ada'")
    until = datetime.fromtimestamp((EIGHT + 150 * MINUTE) / 1000, UTC)
    where = "select paused_by, pause_reason, paused_until from durable.schedules where id = 's'"
    assert ask(conn, (where, ())) == ("ada", "moving", until)
    clock.advance(4 * HOUR)
    sweep(conn)
    assert account(conn) == [("08:00", "paused"), ("11:00", "started"), ("12:00", "started")]
    assert change(conn, "state = 'active'", "id = 'p'") == 1
    assert ask(conn, ("select state, pause_reason from durable.schedules where id = 'p'", ())) == (
        "active",
        None,
    )


def test_only_what_the_update_names_is_written(conn: Connection) -> None:
    """A column that another session has changed meanwhile keeps that change."""
    ask(conn, plan(args=[1]))
    # the trigger sees the row of its statement, and what it locks is newer
    text = (
        "update durable.schedules s set overlap = 'skip' from (select durable.schedule("
        "'s', '@hourly', workflow => 'w', args => '[5]', any_workflow => true, replace => true)) x "
        "where s.id = 's'"
    )
    conn.execute(text.encode())
    assert ask(conn, ("select overlap, args from durable.schedules", ())) == ("skip", [5])


def test_delete_ends_a_schedule(conn: Connection, clock: Clock) -> None:
    """As durable.unschedule; its rows go too, and its runs stay."""
    ask(conn, plan(overlap="skip"))
    clock.advance(2 * HOUR)
    sweep(conn)
    assert conn.execute("delete from durable.schedules where workflow = 'w'").rowcount == 1
    counts = (
        "select (select count(*) from durable._schedules), (select count(*) from durable._schedule_instants)"
    )
    assert ask(conn, (counts, ())) == (0, 0)
    assert [id_ for id_, _ in runs(conn)] == [at("09:00:00")]


REFUSED = {
    "next": ("next_at = now()", "next_at", "What can be changed"),
    "id": ("id = 't'", "id cannot be changed", "What can be changed"),
    "workflow": ("workflow = 'v'", "workflow", "replace => true"),
    "overlap": ("overlap = 'queue'", "'queue' is no overlap", "allow, skip"),
    "window": ("catch_up = '1 second'", "at least 10 seconds", "tick"),
    "cron": ("cron = '61 * * * *'", "minute", ""),
    "zone": ("timezone = 'Mars/Olympus'", "not known to this server", "pg_timezone_names"),
    "never": ("cron = '0 0 30 2 *'", "no instant of the next eight years", ""),
    "jitter": ("jitter = '2 hours', deadline = '1 hour'", "between 0 and the timeout", ""),
    "tags": ("tags = '{\"a\": 1}'", "object of strings", ""),
    "arguments": ("args = null", "", ""),
    "arguments are a number": ("args = '5'", "", ""),
    "over by hand": ("state = 'over'", "'over' is no state", "ends_at"),
    "no pause": ("pause_reason = 'moving'", "is not paused", "state = 'paused'"),
    "a pause that is over": ("state = 'paused', paused_until = '2020-01-01T00:00Z'", "lies ahead", ""),
    "queue": ("queue = 'a/b'", "queue", ""),
    "no cron": ("cron = null", "", ""),
    "no zone": ("timezone = null", "", ""),
    "no version": ("version = null", "", ""),
    "no queue": ("queue = null", "", ""),
    "no priority": ("priority = null", "", ""),
    "no tags": ("tags = null", "", ""),
    "no state": ("state = null", "", ""),
}


@pytest.mark.usefixtures("clock")
def test_what_cannot_be_is_refused(conn: Connection) -> None:
    """With the sentences of the verbs, and nothing is stored; an INSERT says what to write."""
    ask(conn, plan())
    ask(conn, ("select durable.schedule_create('p', '@hourly', '{{.id}}.{{.timestamp}}', 1000)", ()))
    before = conn.execute("select s::text from durable._schedules s order by id").fetchall()
    for name, (what, sentence, hint) in REFUSED.items():
        said = ("", "not refused", "")
        try:
            with conn.transaction():
                change(conn, what)
        except psycopg.Error as error:
            said = (error.sqlstate, error.diag.message_primary, error.diag.message_hint or "")
        assert said[0] == "WF004" and sentence in said[1] and hint in said[2], (name, said)
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        change(conn, "overlap = 'skip'", "id = 'p'")
    assert "creates promises" in str(caught.value.diag.message_primary)
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute("insert into durable.schedules (id, cron) values ('x', '@daily')")
    assert "durable.schedule(" in str(caught.value.diag.message_hint)
    assert change(conn, "overlap = overlap", "true") == 2
    assert conn.execute("select s::text from durable._schedules s order by id").fetchall() == before
