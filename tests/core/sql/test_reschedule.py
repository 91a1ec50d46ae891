"""Law: the start of a run that has not begun can be moved, to now as to later; a run that has begun, is set
aside or has ended keeps its own, and who asks is told which of these it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, ask, begin_run, complete, refusal, report, take_turn

HOUR_MS = 3_600_000


def delayed(conn: Connection, id_: str = "r", timeout: str | None = None) -> None:
    """A run that begins in an hour."""
    ask(conn, ("select durable.start('w', id => %s, delay => '1 hour', timeout => %s)", (id_, timeout)))


def moved(delay: str, id_: str = "r") -> Call:
    """The start of a run, moved."""
    return "select durable.reschedule(%s, delay => %s::interval)", (id_, delay)


def claimed(conn: Connection) -> list[str]:
    """The runs that a worker gets now."""
    return [held.id for held in take_turn(conn, "W", want=5).tasks]


def test_a_start_is_moved(conn: Connection, clock: Clock) -> None:
    """Forward, back, to an instant and to now: a worker gets the run then, and not before."""
    delayed(conn)
    begins = datetime.fromtimestamp((clock.now_ms + 2 * HOUR_MS) / 1000, UTC)
    assert ask(conn, moved("2 hours")) == (begins,)
    clock.advance(HOUR_MS)
    assert claimed(conn) == []
    sooner = begins - timedelta(minutes=30)
    assert ask(conn, ("select durable.reschedule('r', at => %s)", (sooner,))) == (sooner,)
    clock.advance(HOUR_MS // 2)
    assert claimed(conn) == ["r"]


@pytest.mark.parametrize(
    "call", [moved("0"), ("select durable.reschedule('r', at => '2001-01-01 00:00+00')", ())]
)
def test_what_has_passed_is_now(conn: Connection, clock: Clock, call: Call) -> None:
    """No delay, and an instant that has passed, start the run at once."""
    delayed(conn)
    assert ask(conn, call) == (datetime.fromtimestamp(clock.now_ms / 1000, UTC),)
    assert claimed(conn) == ["r"]


def test_a_run_that_waits_for_a_worker_may_be_put_off(conn: Connection) -> None:
    """A run that nobody has begun yet is one that has not begun, whenever it was to."""
    ask(conn, ("select durable.start('w', id => 'r')", ()))
    ask(conn, moved("1 hour"))
    assert ask(conn, ("select state from durable.runs where id = 'r'", ())) == ("scheduled",)


@pytest.mark.parametrize(
    ("state", "code", "word"),
    [
        ("begun", "WF003", "has begun"),
        ("paused", "WF003", "set aside"),
        ("ended", "WF003", "has ended"),
        ("cancelled", "WF003", "has ended"),
        ("late", "WF003", "has ended"),
        ("short", "WF004", "deadline"),
        ("promise", "WF001", "There is no"),
        ("nobody", "WF001", "There is no"),
    ],
)
def test_who_cannot_be_moved(conn: Connection, clock: Clock, state: str, code: str, word: str) -> None:
    """Each refusal says what the run does instead of waiting for its start, and moves nothing."""
    if state in ("begun", "ended"):
        held = begin_run(conn, state)
        if state == "ended":
            take_turn(conn, "W", report(held, end=complete()))
    elif state == "promise":
        ask(conn, ("select durable.create_promise('promise')", ()))
    elif state != "nobody":
        delayed(conn, state, "90 minutes")
    if state in ("paused", "cancelled"):
        ask(conn, (f"select durable.{'pause' if state == 'paused' else 'cancel'}(%s)", (state,)))
    clock.advance(2 * HOUR_MS if state == "late" else 0)
    before = conn.execute("select id, retry_at from durable._tasks where state = 'pending'").fetchall()
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, moved("2 hours", state))
    assert caught.value.sqlstate == code
    assert word in (caught.value.diag.message_primary or "")
    assert caught.value.diag.message_hint
    after = conn.execute("select id, retry_at from durable._tasks where state = 'pending'").fetchall()
    assert after == before or state == "late"


@pytest.mark.parametrize(
    "arguments",
    ["", "delay => '-1 s'", "delay => '1 s', at => now()", "at => 'infinity'", "at => '-infinity'"],
)
def test_refused(conn: Connection, arguments: str) -> None:
    """Neither, both, and what is no instant are refused before anything is looked at."""
    call = f"select durable.reschedule('nobody'{', ' if arguments else ''}{arguments})"
    assert refusal(conn, (call, ())) == "WF004"
