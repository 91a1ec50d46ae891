"""The schedules on the command line."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

Connection = psycopg.Connection[Any]


@pytest.fixture
def nightly(conn: Connection) -> str:
    """A schedule of runs, beside one of promises."""
    conn.execute(
        "select durable.schedule('nightly', '0 3 * * *', workflow => 'report', timezone => 'Europe/Paris')"
    )
    conn.execute("select durable.schedule('ping', '@hourly', target => 'pings')")
    return "nightly"


def test_the_list(at_database: Any, nightly: str) -> None:
    """All of them, those that come next first, with instants in the time zone of each."""
    shown = at_database("schedules")
    lines = shown.out.splitlines()
    assert lines[0].split() == ["ID", "STATE", "CRON", "STARTS", "NEXT"]
    assert lines[1].startswith("ping") and "promises for pings" in lines[1]
    assert "0 3 * * * Europe/Paris" in lines[2] and " 03:00 CE" in lines[2]
    assert at_database("--json", "schedules").document[1]["id"] == nightly
    (one,) = at_database("schedules", "ls", "--workflow", "report", "--next", "3", "--json").document
    assert (one["id"], one["state"], len(one["next"])) == (nightly, "active", 3)
    assert at_database("schedules", "ls", "-w", "nothing").out.strip() == "no schedules"


def test_pause_resume_delete(at_database: Any, nightly: str) -> None:
    """Each answers what it did; an unknown id is not found, and says where to look."""
    paused = at_database("schedules", "pause", nightly)
    assert (paused.code, paused.out.strip()) == (0, "nightly  paused")
    assert "schedules resume nightly" in paused.err
    assert at_database("schedules", "--json").document[1]["next"] == []
    assert at_database("schedules", "resume", nightly, "--json").document["state"] == "active"
    assert at_database("schedules", "delete", nightly).out.strip() == "nightly  deleted"
    for verb in ("pause", "resume", "delete"):
        refused = at_database("schedules", verb, nightly)
        assert refused.code == 3 and "pyengine schedules" in refused.err
