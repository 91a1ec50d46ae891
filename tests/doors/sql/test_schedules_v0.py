"""Law: schedules of the older API are those of the newer protocol, in their older form."""

from __future__ import annotations

from typing import Any

from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, ask


def schedule(**changed: Any) -> Call:
    """Create a schedule."""
    values = {
        "id": "s",
        "cron": "* * * * *",
        "promise": "{{.id}}.{{.timestamp}}",
        "timeout": 60_000,
    } | changed
    text = "select * from durable.schedule_create_v0(%s, %s, %s, %s, 'data', null, %s)"
    return text, (*values.values(), '{"resonate:invoke": "g"}')


def test_schedules(conn: Connection, clock: Clock) -> None:
    """Created, read and deleted; the same again is no error, another one of that id is."""
    status, word, record = ask(conn, schedule())
    assert (status, word) == (201, "OK")
    assert record["promiseParam"] == {"data": "data"}
    assert (record["cron"], record["promiseTimeout"], record["createdOn"]) == (
        "* * * * *",
        60_000,
        clock.now_ms,
    )
    assert record["nextRunTime"] > clock.now_ms
    assert ask(conn, schedule()) == (200, "deduplicated", record)
    assert ask(conn, schedule(timeout=1))[:2] == (409, "already exists")
    assert ask(conn, ("select * from durable.schedule_read_v0('s')", ())) == (200, "OK", record)
    clock.advance(60_000)
    ask(conn, ("select durable.tick()", ()))
    ((message,),) = conn.execute("select durable.messages_v0('g')").fetchall()
    assert message["task"]["id"] == f"s.{record['nextRunTime']}"
    assert ask(conn, ("select * from durable.schedule_delete_v0('s')", ())) == (204, "OK")
    for verb in ("read", "delete"):
        assert ask(conn, (f"select * from durable.schedule_{verb}_v0('s')", ()))[:2] == (404, "not found")
