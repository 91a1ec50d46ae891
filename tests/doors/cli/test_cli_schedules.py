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
