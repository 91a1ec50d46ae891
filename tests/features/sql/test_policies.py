"""Law: each instant of a schedule is accounted for once, by its run or by a row that says why it has none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.features.sql.test_scheduled_runs import HOUR, plan
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    ask,
    claim,
    complete,
    continue_as_new,
    report,
    take_turn,
    tick,
)

MINUTE = 60_000
EIGHT = 1_800_000_000_000
"""2027-01-15T08:00Z, when the clock of these tests begins."""


def sweep(conn: Connection) -> None:
    """Tick until nothing is due."""
    for _ in range(50):
        if tick(conn)["schedules"] == 0:
            return
    raise AssertionError("schedules fire without end")


def at(hour: str) -> str:
    """The id of the run of an instant of schedule s on that day."""
    return f"s-2027-01-15T{hour}Z"


def end(conn: Connection, id_: str) -> None:
    """End a run at once."""
    ask(conn, ("select durable.cancel(%s, force => true)", (id_,)))


def account(conn: Connection, schedule: str = "s") -> list[tuple[str, str]]:
    """What became of the instants: hour and outcome, in order."""
    rows = conn.execute(
        "select to_char(at at time zone 'UTC', 'HH24:MI'), outcome from durable.schedule_instants i "
        "where schedule = %s order by i.at",
        (schedule,),
    )
    return [(hour, outcome) for hour, outcome in rows.fetchall()]


def test_skip(conn: Connection, clock: Clock) -> None:
    """While the latest run goes on, instants pass, and each is recorded with that run."""
    ask(conn, plan(overlap="skip"))
    clock.advance(3 * HOUR)
    sweep(conn)
    assert account(conn) == [("09:00", "started"), ("10:00", "skipped"), ("11:00", "skipped")]
    (reason,) = ask(conn, ("select reason from durable.schedule_instants where outcome = 'skipped'", ()))
    assert reason == f"run {at('09:00:00')} had not ended"
    end(conn, at("09:00:00"))
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn)[-1] == ("12:00", "started")


def test_buffer_one(conn: Connection, clock: Clock) -> None:
    """The first instant that comes while a run goes on has its run when that one has ended; others pass."""
    ask(conn, plan(overlap="buffer_one"))
    clock.advance(3 * HOUR)
    sweep(conn)
    assert account(conn) == [("09:00", "started"), ("10:00", "buffered"), ("11:00", "skipped")]
    assert ask(conn, ("select next_at = '2027-01-15T12:00Z' from durable.schedules", ())) == (True,)
    end(conn, at("09:00:00"))
    clock.advance(10_000)
    sweep(conn)
    assert account(conn) == [("09:00", "cancelled"), ("10:00", "started"), ("11:00", "skipped")]
    assert ask(conn, ("select poll_at from durable._schedules", ())) == (None,)


def test_buffer_all(conn: Connection, clock: Clock) -> None:
    """All of them, in their order, one after the other."""
    ask(conn, plan(overlap="buffer_all"))
    clock.advance(3 * HOUR)
    sweep(conn)
    for hour in ("09:00", "10:00"):
        end(conn, at(f"{hour}:00"))
        clock.advance(10_000)
        sweep(conn)
    assert account(conn) == [("09:00", "cancelled"), ("10:00", "cancelled"), ("11:00", "started")]


def test_cancel(conn: Connection, clock: Clock) -> None:
    """The latest run is asked to end, and the newest instant waits for that."""
    ask(conn, plan(overlap="cancel"))
    clock.advance(HOUR)
    sweep(conn)
    # a run that has not begun ends at once
    clock.advance(HOUR)
    sweep(conn)
    clock.advance(10_000)
    sweep(conn)
    assert account(conn) == [("09:00", "cancelled"), ("10:00", "started")]
    (why,) = ask(conn, ("select value::text from durable.promises where id = %s", (at("09:00:00"),)))
    assert "the next instant of schedule s has come" in why


def test_a_window(conn: Connection, clock: Clock) -> None:
    """What is older when the schedule fires is recorded as one range, however long it is, and not run."""
    ask(conn, plan(cron="* * * * *", catch_up="90 minutes"))
    clock.advance(7 * 24 * HOUR)
    assert tick(conn)["schedules"] == 1
    query = "select at, upto from durable._schedule_instants where outcome = 'missed'"
    assert conn.execute(query.encode()).fetchall() == [
        (EIGHT + MINUTE, EIGHT + 7 * 24 * HOUR - 90 * MINUTE - 1)
    ]
    (runs,) = ask(conn, ("select count(*) from durable.runs", ()))
    assert runs == 91


def test_begin_end_and_limit(conn: Connection, clock: Clock) -> None:
    """No instant before the begin or after the end, and no run beyond the limit; then it is over."""
    day = "2027-01-15T"
    ask(conn, plan(starts=f"{day}10:00Z", ends=f"{day}12:00Z"))
    ask(conn, plan("few", max_runs=2))
    first = "select next_at = '2027-01-15T10:00Z' from durable.schedules where id = 's'"
    assert ask(conn, (first, ())) == (True,)
    hours = "select array_agg(extract(hour from i at time zone 'UTC')::int) from durable.next_instants('s') i"
    assert ask(conn, (hours, ())) == ([10, 11, 12],)
    clock.advance(9 * HOUR)
    sweep(conn)
    assert account(conn) == [("10:00", "started"), ("11:00", "started"), ("12:00", "started")]
    assert account(conn, "few") == [("09:00", "started"), ("10:00", "started")]
    query = "select id, state, runs_left, next_at from durable.schedules order by id"
    assert conn.execute(query.encode()).fetchall() == [("few", "over", 0, None), ("s", "over", None, None)]


def test_jitter(conn: Connection, clock: Clock) -> None:
    """Runs begin later than their instants, each by its own part, which its id decides."""
    ask(conn, plan(jitter="30 minutes"))
    clock.advance(4 * HOUR)
    sweep(conn)
    query = (
        b"select extract(epoch from substr(t.id, 3)::timestamptz) * 1000, t.retry_at "
        b"from durable._tasks t order by t.id"
    )
    late = [int(retry - instant) for instant, retry in conn.execute(query).fetchall()[-1:]]
    assert len(conn.execute(query).fetchall()) == 4
    assert all(0 <= one <= 30 * MINUTE for one in late)
    parts = conn.execute(
        "select abs(hashtextextended(id, 0) % 1800001) from durable._tasks order by id desc limit 1"
    ).fetchall()
    assert late == [parts[0][0]]


def test_a_pause_says_why_and_ends(conn: Connection, clock: Clock) -> None:
    """Reason, who, and until when; what passes meanwhile is one row, and then it goes on by itself."""
    ask(conn, plan())
    until = datetime.fromtimestamp((EIGHT + 3 * HOUR) / 1000, UTC)
    ask(conn, ("select durable.pause_schedule('s', 'moving house', %s, 'ada')", (until,)))
    shown = "select state, pause_reason, paused_by, paused_until from durable.schedules"
    assert ask(conn, (shown, ())) == ("paused", "moving house", "ada", until)
    (why,) = ask(conn, ("select sentence from durable.why('s')", ()))
    assert "moving house" in why and "ada" in why
    clock.advance(5 * HOUR)
    sweep(conn)
    assert account(conn) == [("08:00", "paused"), ("12:00", "started"), ("13:00", "started")]
    assert ask(conn, (shown, ())) == ("active", None, None, None)
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, ("select durable.pause_schedule('s', until => %s)", (until,)))
    assert caught.value.sqlstate == "WF004"


def test_failures_in_a_row_pause_it(conn: Connection, clock: Clock) -> None:
    """Counted from the last pause: who resumes it gives it as many again."""
    ask(conn, plan(pause_after=2, deadline="5 minutes"))
    for _ in range(4):
        clock.advance(HOUR)
        sweep(conn)
    query = ("select state, pause_reason, paused_by from durable.schedules", ())
    reason = f"2 runs in a row have failed; the latest is {at('10:00:00')}"
    assert ask(conn, query) == ("paused", reason, "pyengine")
    ask(conn, ("select durable.resume_schedule('s')", ()))
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn) == [
        ("09:00", "started"),
        ("10:00", "started"),
        ("10:00", "paused"),
        ("13:00", "started"),
    ]


def test_trigger(conn: Connection, clock: Clock) -> None:
    """A run now, also of a paused schedule; twice in one second it is one run."""
    ask(conn, plan(overlap="skip"))
    clock.advance(20 * MINUTE)
    ask(conn, ("select durable.pause_schedule('s')", ()))
    trigger = ("select run, outcome from durable.trigger_schedule('s', 'allow')", ())
    assert ask(conn, trigger) == (at("08:20:00"), "started")
    clock.advance(200)
    assert ask(conn, trigger) == (at("08:20:00"), "started")
    clock.advance(MINUTE)
    assert ask(conn, ("select outcome from durable.trigger_schedule('s')", ())) == ("skipped",)
    assert account(conn) == [("08:20", "started"), ("08:21", "skipped")]


def test_backfill(conn: Connection, clock: Clock) -> None:
    """It counts first; then each instant of the range without a run gets one, and its row goes."""
    ask(conn, plan(catch_up="30 minutes"))
    clock.advance(5 * HOUR)
    sweep(conn)
    assert account(conn) == [("09:00", "missed"), ("13:00", "started")]
    call = "select instants, started, buffered from durable.backfill_schedule('s', %s, %s, %s, %s)"
    span = ("2027-01-15T09:30Z", "2027-01-15T11:30Z")
    assert ask(conn, (call, (*span, "allow", True))) == (2, 0, 0)
    assert ask(conn, (call, (*span, "allow", False))) == (2, 2, 0)
    assert ask(conn, (call, (*span, "allow", False))) == (0, 0, 0)
    assert account(conn) == [
        ("09:00", "missed"),
        ("10:00", "started"),
        ("11:00", "started"),
        ("13:00", "started"),
    ]
    earlier = ("2027-01-14T22:00Z", "2027-01-15T00:00Z")
    assert ask(conn, (call, (*earlier, "buffer_all", False))) == (3, 0, 3)


def test_a_schedule_of_promises_is_paused_until_an_instant(conn: Connection, clock: Clock) -> None:
    """It goes on by itself, and creates promises."""
    ask(conn, ("select durable.schedule_create('p', '@hourly', '{{.id}}.{{.timestamp}}', 1000)", ()))
    until = datetime.fromtimestamp((EIGHT + 3 * HOUR) / 1000, UTC)
    ask(conn, ("select durable.pause_schedule('p', until => %s)", (until,)))
    clock.advance(5 * HOUR)
    sweep(conn)
    ids = conn.execute("select id from durable._promises order by id").fetchall()
    assert ids == [(f"p.{EIGHT + n * HOUR}",) for n in (4, 5)]


def test_a_change_after_the_end_of_a_pause(conn: Connection, clock: Clock) -> None:
    """Before the instant that would have ended it: the new expression counts, and nothing stops."""
    ask(conn, plan())
    until = datetime.fromtimestamp((EIGHT + 30 * MINUTE) / 1000, UTC)
    ask(conn, ("select durable.pause_schedule('s', until => %s)", (until,)))
    clock.advance(45 * MINUTE)
    ask(conn, plan(cron="*/5 * * * *", replace=True))
    clock.advance(10 * MINUTE)
    sweep(conn)
    assert [outcome for _, outcome in account(conn)].count("started") == 2


@pytest.mark.parametrize("paused", [False, True])
def test_another_expression_loses_no_instant_of_the_old_one(
    conn: Connection, clock: Clock, paused: bool
) -> None:
    """Those that came before the change have a row that says why they have no run."""
    ask(conn, plan(pause_after=9))
    if paused:
        ask(conn, ("select durable.pause_schedule('s')", ()))
    clock.advance(150 * MINUTE)
    ask(conn, plan(cron="15 * * * *", replace=True))
    told = "select outcome, at <= %s, upto >= %s from durable._schedule_instants"
    outcome = "paused" if paused else "missed"
    assert ask(conn, (told, (EIGHT + HOUR, EIGHT + 2 * HOUR))) == (outcome, True, True)
    ask(conn, ("select durable.resume_schedule('s')", ()))
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn)[-1] == ("11:15", "started")


def test_a_run_that_continues_goes_on(conn: Connection, clock: Clock) -> None:
    """As new, under the same id: it is the latest until its last generation has ended."""
    ask(conn, plan(overlap="skip", args=["{{.last_result}}"]))
    clock.advance(HOUR)
    sweep(conn)
    for _ in range(2):
        take_turn(conn, "W", report(claim(conn, "W", "default", workflows=["w"]), end=continue_as_new()))
        clock.advance(HOUR)
        sweep(conn)
    assert [outcome for _, outcome in account(conn)] == ["started", "skipped", "skipped"]
    take_turn(conn, "W", report(claim(conn, "W", "default", workflows=["w"]), end=complete("7")))
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn)[-1] == ("12:00", "started")
    assert ask(conn, ("select args from durable.runs where state = 'queued'", ())) == ([7],)


def test_one_that_fails_stops_no_other(conn: Connection, clock: Clock) -> None:
    """It is put off by an hour."""
    for name in ("bad", "s"):
        ask(conn, plan(name, overlap="buffer_all"))
    clock.advance(2 * HOUR)
    sweep(conn)
    for (run,) in conn.execute("select id from durable.runs").fetchall():
        end(conn, run)
    conn.execute("update durable._schedules set timezone = 'Mars/Olympus' where id = 'bad'")
    clock.advance(10_000)
    sweep(conn)
    assert account(conn) == [("09:00", "cancelled"), ("10:00", "started")]
    late = "select next_run_at - %s from durable._schedules where id = 'bad'"
    assert ask(conn, (late, (clock.now_ms,))) == (HOUR,)
    conn.execute("update durable._schedules set timezone = 'UTC' where id = 'bad'")
    ask(conn, ("select durable.unschedule('bad')", ()))
    assert ask(conn, ("select count(*) from durable._schedule_instants where schedule = 'bad'", ())) == (0,)


def test_a_clock_that_is_set_back_stops_no_schedule(conn: Connection, clock: Clock) -> None:
    """What is buffered is polled after the last instant, and its run starts when the clock has come there."""
    ask(conn, plan(overlap="buffer_one"))
    clock.advance(2 * HOUR)
    sweep(conn)
    clock.set(EIGHT - HOUR)
    ask(conn, ("select outcome from durable.trigger_schedule('s', 'buffer_all')", ()))
    ask(conn, ("select durable.pause_schedule('s')", ()))
    ask(conn, ("select durable.resume_schedule('s')", ()))
    sweep(conn)
    for (run,) in conn.execute("select id from durable.runs").fetchall():
        end(conn, run)
    clock.set(EIGHT + 3 * HOUR)
    sweep(conn)
    assert ("07:00", "started") in account(conn)


def test_a_time_that_was_missed_begins_after_a_row(conn: Connection, clock: Clock) -> None:
    """Its first instant has a row of its own; the others have that of the time."""
    ask(conn, plan(overlap="skip", catch_up="10 minutes"))
    clock.advance(10 * MINUTE)
    ask(conn, ("select durable.trigger_schedule('s')", ()))
    conn.execute(
        "insert into durable._schedule_instants (at, upto, recorded_at, schedule, outcome) "
        "values (%(at)s, %(at)s, %(at)s, 's', 'skipped')",
        {"at": EIGHT + HOUR},
    )
    clock.advance(5 * HOUR)
    sweep(conn)
    ranges = conn.execute("select at from durable._schedule_instants where outcome = 'missed'").fetchall()
    assert ranges == [(EIGHT + HOUR + 1,)]


def test_a_higher_limit_does_not_bring_back_what_is_over(conn: Connection, clock: Clock) -> None:
    """The instants that the old limit left out are over."""
    ask(conn, plan(max_runs=1))
    clock.advance(5 * HOUR)
    sweep(conn)
    ask(conn, plan(max_runs=3, replace=True))
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn) == [("09:00", "started"), ("14:00", "started")]


def test_cancel_reaches_the_run_of_the_last_instant(conn: Connection, clock: Clock) -> None:
    """Also where a run that was triggered meanwhile is the latest, and has ended."""
    ask(conn, plan(overlap="cancel"))
    clock.advance(HOUR)
    sweep(conn)
    clock.advance(20 * MINUTE)
    ask(conn, ("select durable.trigger_schedule('s', 'allow')", ()))
    end(conn, at("09:20:00"))
    clock.advance(HOUR)
    sweep(conn)
    assert ("09:00", "cancelled") in account(conn)


def test_a_policy_knows_the_run_before_it(conn: Connection, clock: Clock) -> None:
    """Also one that began while there was no policy; and a trigger hides no run that goes on."""
    ask(conn, plan())
    clock.advance(HOUR)
    sweep(conn)
    assert ask(conn, ("select outcome from durable.trigger_schedule('s', 'skip')", ())) == ("started",)
    ask(conn, plan(overlap="skip", replace=True))
    clock.advance(20 * MINUTE)
    assert ask(conn, ("select run, outcome from durable.trigger_schedule('s')", ())) == (None, "skipped")
    ask(conn, ("select outcome from durable.trigger_schedule('s', 'allow')", ()))
    end(conn, at("09:20:00"))
    clock.advance(HOUR)
    sweep(conn)
    assert account(conn)[-1] == ("10:00", "skipped")


def test_a_schedule_that_is_over_is_declared_again(conn: Connection, clock: Clock) -> None:
    """By the same call, as a worker does at each start; a new one that never fires is refused."""
    once = plan(cron="at 2027-01-15 09:00", overlap="skip")
    ask(conn, once)
    clock.advance(2 * HOUR)
    sweep(conn)
    assert ask(conn, once) == (None,)
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, plan("other", cron="at 2027-01-15 09:00"))
    assert caught.value.sqlstate == "WF004"


def test_a_backfilled_outage_runs_one_after_the_other(conn: Connection, clock: Clock) -> None:
    """All of it, its first instant too; overlap=cancel cancels none of them for the next."""
    ask(conn, plan(catch_up="30 minutes", overlap="cancel"))
    clock.advance(5 * HOUR)
    sweep(conn)
    end(conn, at("13:00:00"))
    columns, call = "instants, started, buffered", "backfill_schedule('s', %s, %s, 'buffer_all', false)"
    back = f"select {columns} from durable.{call}"
    assert ask(conn, (back, ("2027-01-15T08:30Z", "2027-01-15T11:30Z"))) == (3, 1, 2)
    assert account(conn)[:3] == [("09:00", "started"), ("09:00", "missed"), ("10:00", "buffered")]
    for hour in ("09:00", "10:00", "11:00"):
        clock.advance(5000)
        sweep(conn)
        assert (hour, "started") in account(conn)
        end(conn, at(f"{hour}:00"))


def test_a_backlog_is_worked_off_at_once(conn: Connection, clock: Clock) -> None:
    """However long it has waited, each run begins within seconds of the end of the one before it."""
    ask(conn, plan(overlap="buffer_all"))
    clock.advance(9 * HOUR)
    sweep(conn)
    clock.advance(20 * MINUTE)
    sweep(conn)
    end(conn, at("09:00:00"))
    clock.advance(10_000)
    sweep(conn)
    for hour in range(10, 14):
        end(conn, at(f"{hour:02}:00:00"))
        clock.advance(1000)
        sweep(conn)
    assert ("14:00", "started") in account(conn)


def test_what_is_buffered_starts_at_the_end_of_a_pause(conn: Connection, clock: Clock) -> None:
    """It does not wait for the next instant after it."""
    ask(conn, plan(cron="0 9,10 15 1 *", overlap="buffer_one"))
    clock.advance(2 * HOUR)
    sweep(conn)
    until = datetime.fromtimestamp((EIGHT + 3 * HOUR) / 1000, UTC)
    ask(conn, ("select durable.pause_schedule('s', until => %s)", (until,)))
    end(conn, at("09:00:00"))
    clock.advance(2 * HOUR)
    sweep(conn)
    assert ("10:00", "started") in account(conn)


def test_a_run_that_goes_on_is_not_forgotten(conn: Connection, clock: Clock) -> None:
    """A trigger beside it became the latest and has ended; many instants later it is still the one."""
    ask(conn, plan(overlap="skip"))
    clock.advance(HOUR)
    sweep(conn)
    clock.advance(20 * MINUTE)
    ask(conn, ("select durable.trigger_schedule('s', 'allow')", ()))
    end(conn, at("09:20:00"))
    for _ in range(4):
        clock.advance(HOUR)
        sweep(conn)
    assert [outcome for _, outcome in account(conn)].count("skipped") == 4


def test_failures_of_runs_with_many_children_count(conn: Connection, clock: Clock) -> None:
    """Promises below a run lie between the ids of two runs."""
    ask(conn, plan(pause_after=2, deadline="5 minutes"))
    for hour in ("09", "10"):
        clock.advance(HOUR)
        sweep(conn)
        conn.execute(
            "insert into durable._promises (id, state, timeout_at, created_at, settled_at, external) "
            "select %s || '.' || n, 'resolved', 9007199254740991, 1, 1, true from generate_series(1, 1200) n",
            (at(f"{hour}:00:00"),),
        )
    clock.advance(HOUR)
    sweep(conn)
    assert ask(conn, ("select state, paused_by from durable.schedules", ())) == ("paused", "pyengine")
    conn.execute("delete from durable._promises where id like '%.%'")


def test_a_jitter_fits_the_deadline(conn: Connection) -> None:
    """A run that may begin after its deadline is refused with its schedule."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, plan(jitter="2 hours", deadline="1 hour"))
    assert caught.value.sqlstate == "WF004"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "overlap": ({"overlap": "queue"}, "'queue' is no overlap"),
    "window": ({"catch_up": "-1 hour"}, "the window of catch_up is at least 10 seconds"),
    "jitter": ({"jitter": "2 days"}, "a jitter has 0 to 24 hours"),
    "order": ({"starts": "2027-02-01T00:00Z", "ends": "2027-01-31T00:00Z"}, "ends before it starts"),
    "over": ({"ends": "2020-01-15T08:30Z"}, "stands for no instant before its end"),
    "no runs": ({"max_runs": 0}, "max_runs is at least 1"),
    "no failures": ({"pause_after": 0}, "pause_after is 1 to 1000 failures"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_policy_that_says_nothing_is_refused(conn: Connection, name: str) -> None:
    """With a sentence, and nothing is stored."""
    options, sentence = REFUSED[name]
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, plan(**options))
    assert caught.value.sqlstate == "WF004" and sentence in str(caught.value.diag.message_primary)
    assert ask(conn, ("select count(*) from durable._schedules", ())) == (0,)


WORDS = """
@daily | at 00:00
0 3 * * mon-fri | at 03:00 on Monday to Friday
30 9,17 1 jan,jul * | at 09:30, 17:30 on day 1 of the month in January, July
*/5 * * * * | every 5 minutes
0 */2 * * * | at minute 0 of every 2 hours
0 0 L * * | at 00:00 on the last day of the month
0 9 * * FRI#2 | at 09:00 on the second Friday of the month
0 9 * * 5L | at 09:00 on the last Friday of the month
0 0 13 * 5 | at 00:00 on day 13 of the month or on Friday
*/10 * * * * * | every 10 seconds, every minute
0 9-17 * * 1-5 | at minute 0 of hour 9 to 17 on Monday to Friday
every 90 minutes | every 90 minutes
at 2027-03-01 09:00 | once, at 2027-03-01 09:00
0 9 * * 1; every 6h | at 09:00 on Monday; and every 6h
"""


def test_expressions_description(conn: Connection) -> None:
    """What a person reads in psql, in the zone of the schedule."""
    for row in filter(None, WORDS.splitlines()):
        cron, words = row.split(" | ")
        assert ask(conn, ("select durable._schedule_text(%s, 'UTC')", (cron,))) == (f"{words}, UTC",), cron
