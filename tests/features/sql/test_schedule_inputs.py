"""Law: a wrong input of a schedule gets a sentence and a hint, and nothing is stored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from pyengine import InvalidRequest, SchedulePolicy
from tests.features.sql.test_cron import UNREADABLE
from tests.features.sql.test_policies import REFUSED
from tests.features.sql.test_scheduled_runs import plan
from tests.support.verbs import Connection, ask

STEERED = {
    "pause that is over": "durable.pause_schedule('s', until => '2020-01-01T00:00Z')",
    "no schedule": "durable.pause_schedule('t')",
    "no overlap": "durable.trigger_schedule('s', 'queue')",
    "no backfill": "durable.backfill_schedule('s', '2026-01-01', '2026-01-02', 'skip')",
    "backwards": "durable.backfill_schedule('s', '2026-01-02', '2026-01-01')",
    "ahead": "durable.backfill_schedule('s', '2027-01-01', '2028-01-01')",
    "too many": "durable.backfill_schedule('s', '1990-01-01', '2020-01-01')",
    "promises": "durable.trigger_schedule('p')",
    "no count": "durable.next_instants('s', 0)",
    "policy of promises": "durable.schedule('q', '@daily', overlap => 'skip')",
    "target and workflow": "durable.schedule('q', '@daily', target => 'g', workflow => 'w')",
}


@pytest.mark.usefixtures("clock")
def test_sql_says_what_to_write(conn: Connection) -> None:
    """Each expression, policy and verb that is refused."""
    ask(conn, plan("s"))
    ask(conn, ("select durable.schedule_create('p', '@hourly', '{{.id}}.{{.timestamp}}', 1000)", ()))
    calls: dict[str, Any] = {f"cron {cron!r}": plan("x", cron=cron) for cron in UNREADABLE}
    calls |= {name: plan("x", **options) for name, (options, _) in REFUSED.items()}
    calls |= {name: (f"select count(*) from {text}", ()) for name, text in STEERED.items()}
    calls["zone"] = plan("x", timezone="Mars/Olympus")
    bare = {}
    for name, call in calls.items():
        try:
            with conn.transaction():
                ask(conn, call)
            bare[name] = "not refused"
        except psycopg.Error as error:
            if not error.diag.message_hint or error.sqlstate not in ("WF001", "WF003", "WF004"):
                bare[name] = f"{error.sqlstate} {error.diag.message_primary}"
    assert bare == {}
    assert ask(conn, ("select count(*) from durable._schedules", ())) == (2,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"overlap": "queue"},
        {"catch_up": "soon"},
        {"catch_up": "1s"},
        {"jitter": "2d"},
        {"starts": datetime(2026, 1, 1)},
        {"ends": "tomorrow"},
        {"starts": datetime(2026, 1, 2, tzinfo=UTC), "ends": datetime(2026, 1, 1, tzinfo=UTC)},
        {"max_runs": 0},
        {"pause_after": True},
        {"pause_after": 1001},
    ],
)
def test_code_says_what_to_write(wrong: dict[str, Any]) -> None:
    """A policy is checked where it stands: at the decorator and at the client's call."""
    with pytest.raises(InvalidRequest) as caught:
        SchedulePolicy(**wrong)
    assert caught.value.hint
