"""The schedules on the command line."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

Connection = psycopg.Connection[Any]


@pytest.fixture
def yearly(conn: Connection) -> str:
    """A schedule of runs, beside one of promises."""
    conn.execute(
        "select durable.schedule('yearly', '0 3 1 1 *', workflow => 'report', timezone => 'Europe/Paris')"
    )
    conn.execute("select durable.schedule('ping', '* * * * *', target => 'pings')")
    return "yearly"


def test_the_list(at_database: Any, yearly: str) -> None:
    """All of them, those that come next first, with instants in the time zone of each."""
    shown = at_database("schedules")
    lines = shown.out.splitlines()
    assert lines[0].split() == ["ID", "STATE", "CRON", "STARTS", "NEXT"]
    assert lines[1].startswith("ping") and "promises for pings" in lines[1]
    assert "0 3 1 1 * Europe/Paris" in lines[2] and " 03:00 CE" in lines[2]
    assert at_database("--json", "schedules").document[1]["id"] == yearly
    (one,) = at_database("schedules", "ls", "--workflow", "report", "--next", "3", "--json").document
    assert (one["id"], one["state"], len(one["next"])) == (yearly, "active", 3)
    assert at_database("schedules", "ls", "-w", "nothing").out.strip() == "no schedules"


def test_pause_resume_delete(at_database: Any, yearly: str) -> None:
    """Each answers what it did; an unknown id is not found, and says where to look."""
    paused = at_database("schedules", "pause", yearly)
    assert (paused.code, paused.out.strip()) == (0, "yearly  paused")
    assert "schedules resume yearly" in paused.err
    assert at_database("schedules", "--json").document[1]["next"] == []
    assert at_database("schedules", "resume", yearly, "--json").document["state"] == "active"
    assert at_database("schedules", "delete", yearly).out.strip() == "yearly  deleted"
    for verb in ("pause", "resume", "delete"):
        refused = at_database("schedules", verb, yearly)
        assert refused.code == 3 and "pyengine schedules" in refused.err


def test_steering(at_database: Any, conn: Connection) -> None:
    """A run now, a count and a start of what is over, a pause with its reason, and what became of each."""
    conn.execute(
        "select durable.schedule('hourly', '@hourly', workflow => 'report', any_workflow => true, "
        "overlap => 'skip')"
    )
    triggered = at_database("schedules", "trigger", "hourly", "--json").document
    assert triggered["outcome"] == "started"
    span = ("2026-01-01T00:00Z", "2026-01-01T02:00Z")
    counted = at_database("schedules", "backfill", "hourly", *span, "--dry-run")
    assert "3 instants without a run, 0 started, 0 buffered" in counted.out
    unconfirmed = at_database("schedules", "backfill", "hourly", *span)
    assert unconfirmed.code == 2 and "backfill: 3 runs of hourly" in unconfirmed.err
    assert "--yes" in unconfirmed.err
    assert at_database("schedules", "backfill", "hourly", *span, "--yes", "--json").document["buffered"] == 3
    at_database("schedules", "pause", "hourly", "--reason", "moving house", "--until", "2100-01-01T00:00Z")
    shown = at_database("schedules", "show", "hourly").out
    assert "at minute 0 of every hour, UTC" in shown and "moving house" in shown and "overlap: skip" in shown
    assert triggered["run"] in shown and "buffered" in shown
    assert at_database("schedules", "show", "hourly", "--json").document["paused_until"].startswith("2100")
    refused = at_database("schedules", "backfill", "hourly", "yesterday", "2026-01-01T00:00Z")
    assert refused.code == 2 and "is no instant" in refused.err
    assert at_database("schedules", "show", "nothing").code == 3
    for words in (("pause", "hourly", "--reason", "a\0b"), ("trigger", "hourly", "--overlap", "a\0b")):
        wrong = at_database("schedules", *words)
        assert wrong.code == 2 and ("the reason" in wrong.err or "an overlap" in wrong.err)


def test_a_trigger_that_is_skipped_names_no_run(at_database: Any, conn: Connection, yearly: str) -> None:
    """The latest run goes on, so there is none; a schedule of promises has no arguments to show."""
    at_database("schedules", "backfill", yearly, "2026-01-01T00:00Z", "2026-01-02T00:00Z", "--at-once", "-y")
    skipped = at_database("schedules", "trigger", yearly, "--overlap", "skip")
    assert (skipped.code, skipped.out.strip()) == (0, "yearly  skipped: the latest run goes on")
    told = at_database("schedules", "trigger", yearly, "--overlap", "skip", "--json").document
    assert (told["outcome"], told["run"]) == ("skipped", None)
    conn.execute("update durable._schedules set promise_param_data = null where id = 'ping'")
    assert at_database("schedules", "show", "ping", "--json").document["args"] is None
