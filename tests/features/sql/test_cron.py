"""Law: a cron expression is a set of instants, whatever clocks do: no walk stands still, goes back, or
depends on where it began.

The oracle never parses: an expression is made together with its meaning, and looked up minute by minute.
"""

from __future__ import annotations

import calendar
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from pyengine import InvalidRequest
from pyengine.features.schedules.expression import check_expression
from tests.support.verbs import Call, Connection, ask

HOUR = 3_600_000
# cron | zone and a walk: each instant is the next after the one before it; None: there is none
TABLE = """
* * * * * | UTC 2027-01-15T08:00Z 2027-01-15T08:01Z 2027-01-15T08:02Z
* * * * * | UTC 2027-01-15T07:59:59.999Z 2027-01-15T08:00Z
* * * * * | UTC 2027-01-15T08:00:30Z 2027-01-15T08:01Z
* * * * * | UTC 1969-12-31T23:59:59.999Z 1970-01-01T00:00Z
*/5 * * * * | UTC 2027-01-15T08:52Z 2027-01-15T08:55Z 2027-01-15T09:00Z
7/15 * * * * | UTC 2027-01-15T08:00Z 2027-01-15T08:07Z 2027-01-15T08:22Z 2027-01-15T08:37Z 2027-01-15T08:52Z
7/15 * * * * | UTC 2027-01-15T08:52Z 2027-01-15T09:07Z
10-40/10 * * * * | UTC 2027-01-15T08:30Z 2027-01-15T08:40Z 2027-01-15T09:10Z
5,10,5 * * * * | UTC 2027-01-15T08:00Z 2027-01-15T08:05Z 2027-01-15T08:10Z 2027-01-15T09:05Z
*,5 * * * * | UTC 2027-01-15T08:00Z 2027-01-15T08:01Z
*/60 */24 * * * | UTC 2027-01-15T08:00Z 2027-01-16T00:00Z
0,30 9-17 * * MON-FRI | UTC 2027-01-15T17:00Z 2027-01-15T17:30Z 2027-01-18T09:00Z
0 0 * * * | UTC 2027-01-30T00:00Z 2027-01-31T00:00Z 2027-02-01T00:00Z
0 0 31 * * | UTC 2027-01-15T08:00Z 2027-01-31T00:00Z 2027-03-31T00:00Z 2027-05-31T00:00Z
0 0 1-7 * * | UTC 2027-01-06T00:00Z 2027-01-07T00:00Z 2027-02-01T00:00Z
0 0 30 2 * | UTC 2027-01-15T08:00Z None
0 0 31 4,6,9,11 * | UTC 2027-01-15T08:00Z None
0 0 29 2 * | UTC 2027-01-15T08:00Z 2028-02-29T00:00Z 2032-02-29T00:00Z
0 0 29 2 * | UTC 2092-03-01T00:00Z 2096-02-29T00:00Z 2104-02-29T00:00Z
0 0 29 2 */7 | UTC 2027-01-15T08:00Z 2032-02-29T00:00Z None
0 12 1 * * | UTC 2027-11-15T08:00Z 2027-12-01T12:00Z 2028-01-01T12:00Z
0 9 * * 0 | UTC 2027-01-15T08:00Z 2027-01-17T09:00Z 2027-01-24T09:00Z
0 9 * * 7 | UTC 2027-01-15T08:00Z 2027-01-17T09:00Z 2027-01-24T09:00Z
0 9 * * sun | UTC 2027-01-15T08:00Z 2027-01-17T09:00Z 2027-01-24T09:00Z
0 9 * * 5-7 | UTC 2027-01-15T08:00Z 2027-01-15T09:00Z 2027-01-16T09:00Z 2027-01-17T09:00Z 2027-01-22T09:00Z
0 9 * * 6-0 | UTC 2027-01-15T08:00Z 2027-01-16T09:00Z 2027-01-17T09:00Z 2027-01-23T09:00Z
0 9 * * 0-7/7 | UTC 2027-01-15T08:00Z 2027-01-17T09:00Z 2027-01-24T09:00Z
0 9 * * Fri-Mon | UTC 2027-01-15T09:00Z 2027-01-16T09:00Z 2027-01-17T09:00Z 2027-01-18T09:00Z
0 9 * * Fri-Mon | UTC 2027-01-18T09:00Z 2027-01-22T09:00Z
0 9 1 NOV-feb * | UTC 2027-01-15T09:00Z 2027-02-01T09:00Z 2027-11-01T09:00Z 2027-12-01T09:00Z
0 9 1 NOV-feb * | UTC 2027-12-01T09:00Z 2028-01-01T09:00Z
0 22-2 * * * | UTC 2027-01-15T22:00Z 2027-01-15T23:00Z 2027-01-16T00:00Z
0 22-2/2 * * * | UTC 2027-01-15T20:00Z 2027-01-15T22:00Z 2027-01-16T00:00Z 2027-01-16T02:00Z
0 22-2/2 * * * | UTC 2027-01-16T02:00Z 2027-01-16T22:00Z
0 9 * * sunday | UTC 2027-01-15T08:00Z 2027-01-17T09:00Z 2027-01-24T09:00Z
0 9 1 january,December * | UTC 2027-01-15T09:00Z 2027-12-01T09:00Z 2028-01-01T09:00Z
0 0 L * * | UTC 2027-01-31T00:00Z 2027-02-28T00:00Z 2027-03-31T00:00Z
0 0 L 2 * | UTC 2027-02-28T00:00Z 2028-02-29T00:00Z 2029-02-28T00:00Z
0 0 15,L-2 * * | UTC 2027-01-15T00:00Z 2027-01-29T00:00Z 2027-02-15T00:00Z 2027-02-26T00:00Z
0 0 L-30 * * | UTC 2027-01-15T00:00Z 2027-03-01T00:00Z 2027-05-01T00:00Z
0 9 * * FRI#2 | UTC 2027-01-08T09:00Z 2027-02-12T09:00Z 2027-03-12T09:00Z 2027-04-09T09:00Z
0 9 * * 5#5 | UTC 2027-01-08T09:00Z 2027-01-29T09:00Z 2027-04-30T09:00Z
0 9 * * MON#1,friL | UTC 2027-01-15T09:00Z 2027-01-29T09:00Z 2027-02-01T09:00Z 2027-02-26T09:00Z
0 9 * * 7L | UTC 2027-01-15T09:00Z 2027-01-31T09:00Z 2027-02-28T09:00Z
0 0 L * MON#1 | UTC 2027-01-31T00:00Z 2027-02-01T00:00Z 2027-02-28T00:00Z 2027-03-01T00:00Z
every 90 minutes | UTC 1969-12-31T23:59:59.999Z 1970-01-01T00:00Z 1970-01-01T01:30Z
every 6h offset 10m | Europe/Berlin 2027-01-15T08:00Z 2027-01-15T12:10Z 2027-01-15T18:10Z 2027-01-16T00:10Z
EVERY 1 day 2 hours | UTC 1970-01-01T00:00Z 1970-01-02T02:00Z 1970-01-03T04:00Z
at 2027-03-01 09:00 | Europe/Berlin 2027-01-15T08:00Z 2027-03-01T09:00+01:00 None
at 2027-03-01T09:00:30Z | Europe/Berlin 2027-01-15T08:00Z 2027-03-01T09:00:30Z None
at 2027-03-01 09:00 -05:00 | UTC 2027-01-15T08:00Z 2027-03-01T14:00Z None
at 2027-03-28 02:30 | Europe/Berlin 2027-01-15T08:00Z 2027-03-28T03:00+02:00 None
at 2027-10-31 02:30 | Europe/Berlin 2027-01-15T08:00Z 2027-10-31T02:30+02:00 None
0 9 * * mon; 30 17 * * fri | UTC 2027-01-15T08:00Z 2027-01-15T17:30Z 2027-01-18T09:00Z 2027-01-22T17:30Z
0 * * * *; every 1h; at 2027-01-15 08:30 | UTC 2027-01-15T08:00Z 2027-01-15T08:30Z 2027-01-15T09:00Z
0 0 13 * FRI | UTC 2027-02-05T00:00Z 2027-02-12T00:00Z 2027-02-13T00:00Z 2027-02-19T00:00Z
0 0 */2 * MON | UTC 2027-01-15T08:00Z 2027-01-25T00:00Z 2027-02-01T00:00Z
0 0 13 * */7 | UTC 2027-01-15T08:00Z 2027-06-13T00:00Z
0 0 13 * ? | UTC 2027-01-15T08:00Z 2027-02-13T00:00Z
0 0 ? feb mon | UTC 2027-01-15T08:00Z 2027-02-01T00:00Z 2027-02-08T00:00Z
0 0 1 */3 * | UTC 2027-01-15T08:00Z 2027-04-01T00:00Z 2027-07-01T00:00Z
*/10 * * * * * | UTC 2027-01-15T08:00:05Z 2027-01-15T08:00:10Z 2027-01-15T08:00:20Z
30 * * * * * | UTC 2027-01-15T08:00:30Z 2027-01-15T08:01:30Z
* * * * * * | UTC 2027-01-15T08:00:00.500Z 2027-01-15T08:00:01Z
0 0 12 * * MON | UTC 2027-01-15T08:00Z 2027-01-18T12:00Z
59 59 23 31 12 * | UTC 2027-12-31T23:59:58Z 2027-12-31T23:59:59Z 2028-12-31T23:59:59Z
@hourly | UTC 2027-01-15T08:00Z 2027-01-15T09:00Z
@DAILY | UTC 2027-01-15T08:00Z 2027-01-16T00:00Z
@midnight | UTC 2027-01-15T08:00Z 2027-01-16T00:00Z
@weekly | UTC 2027-01-15T08:00Z 2027-01-17T00:00Z
@monthly | UTC 2027-01-15T08:00Z 2027-02-01T00:00Z
@yearly | UTC 2027-01-15T08:00Z 2028-01-01T00:00Z
@annually | UTC 2027-01-15T08:00Z 2028-01-01T00:00Z
30 2 * * * | Europe/Berlin 2027-03-27T02:30+01:00 2027-03-28T03:00+02:00 2027-03-29T02:30+02:00
0 2,3 * * * | Europe/Berlin 2027-03-28T01:00+01:00 2027-03-28T03:00+02:00 2027-03-29T02:00+02:00
15,45 2 * * * | Europe/Berlin 2027-03-27T12:00+01:00 2027-03-28T03:00+02:00 2027-03-29T02:15+02:00
30 1 * * * | Europe/Berlin 2027-03-27T12:00+01:00 2027-03-28T01:30+01:00 2027-03-29T01:30+02:00
*/15 2 * * * | Europe/Berlin 2027-03-28T01:00+01:00 2027-03-29T02:00+02:00
0 * * * * | Europe/Berlin 2027-03-28T00:00+01:00 2027-03-28T01:00+01:00 2027-03-28T03:00+02:00
30 */2 * * * | Europe/Berlin 2027-03-28T00:30+01:00 2027-03-28T04:30+02:00
0 0-23 * * * | Europe/Berlin 2027-10-31T02:00+02:00 2027-10-31T03:00+01:00
30 2 * * * | Europe/Berlin 2027-10-30T12:00+02:00 2027-10-31T02:30+02:00 2027-11-01T02:30+01:00
45 2 * * * | Europe/Berlin 2027-10-31T02:30+01:00 2027-11-01T02:45+01:00
0 * * * * | Europe/Berlin 2027-10-31T01:00+02:00 2027-10-31T02:00+02:00 2027-10-31T02:00+01:00
0 * * * * | Europe/Berlin 2027-10-31T02:00+01:00 2027-10-31T03:00+01:00
*/30 2 * * * | Europe/Berlin 2027-10-31T02:30+02:00 2027-10-31T02:00+01:00 2027-10-31T02:30+01:00
*/30 2 * * * | Europe/Berlin 2027-10-31T02:30+01:00 2027-11-01T02:00+01:00
0 3 * * * | Europe/Berlin 2027-10-30T12:00+02:00 2027-10-31T03:00+01:00 2027-11-01T03:00+01:00
0 0 * * * | Europe/Berlin 2027-10-31T00:00+02:00 2027-11-01T00:00+01:00
30 2 * * * | America/New_York 2027-03-13T12:00-05:00 2027-03-14T03:00-04:00 2027-03-15T02:30-04:00
0 2 14 3 * | America/New_York 2027-01-15T08:00Z 2027-03-14T03:00-04:00 2028-03-14T02:00-04:00
30 1 * * * | America/New_York 2027-11-06T12:00-04:00 2027-11-07T01:30-04:00 2027-11-08T01:30-05:00
*/20 1 * * * | America/New_York 2027-11-07T01:20-04:00 2027-11-07T01:40-04:00 2027-11-07T01:00-05:00
0 9 * * MON-FRI | America/New_York 2027-03-12T09:00-05:00 2027-03-15T09:00-04:00
30 2 * * * | America/St_Johns 2027-03-13T12:00-03:30 2027-03-14T03:00-02:30 2027-03-15T02:30-02:30
0 9 * * * | Asia/Kolkata 2027-01-15T03:30Z 2027-01-16T09:00+05:30
0 * * * * | Asia/Kolkata 2027-01-15T08:00Z 2027-01-15T14:00+05:30 2027-01-15T15:00+05:30
0 0 * * * | Asia/Kathmandu 2027-01-15T08:00Z 2027-01-16T00:00+05:45
15 2 * * * | Australia/Lord_Howe 2027-10-02T12:00+10:30 2027-10-03T02:30+11:00 2027-10-04T02:15+11:00
45 1 * * * | Australia/Lord_Howe 2027-04-03T12:00+11:00 2027-04-04T01:45+11:00 2027-04-05T01:45+10:30
*/15 * * * * | Australia/Lord_Howe 2027-04-04T01:30+11:00 2027-04-04T01:45+11:00 2027-04-04T01:30+10:30
0 0 * * * | America/Sao_Paulo 2018-11-03T00:00-03:00 2018-11-04T01:00-02:00 2018-11-05T00:00-02:00
0 0 * * * | America/Sao_Paulo 2019-02-16T00:00-02:00 2019-02-17T00:00-03:00
30 23 * * * | America/Sao_Paulo 2019-02-16T12:00-02:00 2019-02-16T23:30-02:00 2019-02-17T23:30-03:00
30 * * * * | America/Sao_Paulo 2019-02-16T22:30-02:00 2019-02-16T23:30-02:00 2019-02-16T23:30-03:00
0 0 * * * | America/St_Johns 2010-11-06T12:00-02:30 2010-11-07T00:00-02:30 2010-11-08T00:00-03:30
*/30 * * * * | America/St_Johns 2010-11-06T23:30-02:30 2010-11-07T00:00-02:30 2010-11-06T23:30-03:30
*/30 * * * * | America/St_Johns 2010-11-06T23:30-03:30 2010-11-07T00:00-03:30
0 9 * * * | Pacific/Apia 2011-12-29T09:00-10:00 2011-12-31T00:00+14:00 2011-12-31T09:00+14:00
0 * * * * | Pacific/Apia 2011-12-29T23:00-10:00 2011-12-31T00:00+14:00
"""
ROWS = [row for row in TABLE.split("\n") if row]
# cron -> words of the refusal
UNREADABLE = {
    "every": "'every': '' is no interval",
    "every month": "'every month': 'month' is no interval",
    "every 2 months": "a month has no fixed length",
    "every 10ms": "an interval has 1 second to 366 days",
    "every -1h": "an interval has 1 second to 366 days",
    "every 1h offset 1h": "an offset is shorter than its interval",
    "at noon": "'at noon' is no instant",
    "at 2027-02-29 09:00": "the calendar has no such day",
    "at 2027-02-28 25:00": "the calendar has no such day, or the clock no such time",
    "0 9 * * *;": "One of the expressions in '0 9 * * *;' is empty",
    "0 9 * * *; 61 * * * *": "minute: '61' goes beyond 0 to 59",
    "; ".join(["@daily"] * 17): "16 expressions at most, this one has 17",
    "": "1 to 512 bytes",
    "0 " * 300: "1 to 512 bytes",
    "* * * *": "4 fields",
    "* * * * * * * *": "8 fields",
    "0 0 0 1 1 ? 2027": "year",
    "@reboot": "@hourly",
    "@every 5m": "@hourly",
    "H * * * *": "minute: 'H' is not understood",
    "60 * * * *": "minute: '60' goes beyond 0 to 59",
    "60 * * * * *": "second: '60' goes beyond 0 to 59",
    "* 24 * * *": "hour: '24' goes beyond 0 to 23",
    "* * 0 * *": "day of month: '0' goes beyond 1 to 31",
    "* * 32 * *": "day of month: '32' goes beyond 1 to 31",
    "* * * 13 *": "month: '13' goes beyond 1 to 12",
    "* * * * 8": "day of week: '8' goes beyond 0 to 7",
    "* * * * MONDAYS": "day of week: 'MONDAYS' is not understood",
    "* * * MON *": "month: 'MON' is not understood",
    "1-70 * * * *": "minute: '1-70' goes beyond",
    "*/0 * * * *": "minute: the step in '*/0'",
    "*/90 * * * *": "minute: the step in '*/90' must be between 1 and 60",
    "* */25 * * *": "hour: the step in '*/25'",
    "*-5 * * * *": "minute: '*-5' is not understood",
    "1-2-3 * * * *": "minute: '1-2-3' is not understood",
    "1, * * * *": "minute: '' is not understood",
    "-1 * * * *": "minute: '-1' is not understood",
    "? * * * *": "minute: '?' is not understood",
    "* * ?-3 * *": "day of month: '?-3' is not understood",
    "* * 28-3 * *": "day of month: '28-3' runs backwards",
    "* * L-31 * *": "day of month: 'L-31' is not understood",
    "* * * * MON#6": "day of week: 'MON#6' is not understood",
    "* * * * L": "day of week: 'L' is not understood",
    "* * 2#1 * *": "day of month: '2#1' is not understood",
    "* * 15W * *": "day of month: '15W'",
    "١ * * * *": "minute: '١' is not understood",
}


def ms(text: str) -> int:
    """An instant, written with its offset, in ms since the epoch."""
    return (datetime.fromisoformat(text) - datetime.fromisoformat("1970-01-01T00:00Z")) // timedelta(
        milliseconds=1
    )


def following(cron: str, zone: str, after_ms: int) -> Call:
    """The next instant of a cron expression."""
    return "select durable._schedule_next(%s, %s, %s)", (cron, zone, after_ms)


def instants(conn: Connection, cron: str, zone: str, after_ms: int, until_ms: int) -> list[Any]:
    """The walk of a sweep: up to 60 instants until until_ms, and the one after them."""
    call = ("select durable._cron_instants(%s, %s, %s, %s, 60)", (cron, zone, after_ms, until_ms))
    found: list[Any] = ask(conn, call)[0]
    return found


def complaint(conn: Connection, call: Call) -> str:
    """SQLSTATE and detail of a refusal."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, call)
    return f"{caught.value.sqlstate}: {caught.value.diag.message_primary}"


@pytest.mark.parametrize("row", ROWS)
def test_the_next_instant(conn: Connection, row: str) -> None:
    """Instants computed by hand: calendars, names, and clocks that are changed."""
    cron, walk = row.split(" | ")
    zone, *steps = walk.split()
    for before, after in pairwise(steps):
        expected = None if after == "None" else ms(after)
        assert ask(conn, following(cron, zone, ms(before))) == (expected,), f"after {before}"


@pytest.mark.parametrize("cron", UNREADABLE)
def test_cron_that_cannot_be_read(conn: Connection, cron: str) -> None:
    """WF004 says which field, and what in it."""
    found = complaint(conn, following(cron, "UTC", 0))
    assert found.startswith("WF004")
    assert UNREADABLE[cron] in found


# what a decorator leaves to the server: intervals, calendars, ranges and steps
LEFT = ("every", "at ", "@daily;", "*/", "* */25", "* * 28-3", "*-5", "? ", "* * ?-3")


def test_code_refuses_what_the_server_refuses() -> None:
    """A decorator takes every expression that can be read, and names what is wrong with most others."""
    for row in ROWS:
        check_expression(row.split(" | ")[0])
    for cron in UNREADABLE:
        if not cron.startswith(LEFT):
            with pytest.raises(InvalidRequest):
                check_expression(cron)


@pytest.mark.parametrize(
    ("cron", "item", "hint"),
    [
        ("0 9 15W * *", "day of month '15W'", "W, the nearest workday"),
        ("0 9 LW * *", "day of month 'LW'", "W, the nearest workday"),
        ("H(0-29) * * * *", "minute 'H(0-29)'", "H is a word of Jenkins"),
        ("h/15 * * * *", "minute 'h/15'", "H is a word of Jenkins"),
        ("0 9 * * FRI#6", "day of week 'FRI#6'", "FRI#2 the second"),
        ("0 9 * JULY,JUNI *", "month 'JUNI'", "numbers from 1 to 12"),
        ("0 9 * * *;", "one of the expressions is empty", ""),
        ("@reboot", "'@reboot' is none of @hourly, @daily", "every 90 minutes"),
        ("0 0 9 * * * 2027", "has a year", "the begin and the end"),
    ],
)
def test_code_says_what_to_write(cron: str, item: str, hint: str) -> None:
    """As the server does, with the part as it is written."""
    with pytest.raises(InvalidRequest) as caught:
        check_expression(cron)
    assert item in caught.value.message and hint in (caught.value.hint or "")


def test_the_session_does_not_matter(conn: Connection) -> None:
    """Time zone and date style of whoever asks change nothing."""
    for zone, style in (("America/Los_Angeles", "German"), ("Pacific/Apia", "SQL, DMY"), ("UTC", "ISO")):
        conn.execute(f"set local timezone = '{zone}'; set local datestyle = '{style}'".encode())
        found = ask(conn, following("30 2 * 3 *", "Europe/Berlin", ms("2027-03-27T02:30+01:00")))
        assert found == (ms("2027-03-28T03:00+02:00"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field as written, and what it means."""

    text: str
    values: frozenset[int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A random expression together with its meaning; the text is never parsed here."""

    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    six: bool

    @property
    def text(self) -> str:
        """The expression."""
        five = (self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join(each.text for each in ((self.second, *five) if self.six else five))

    @property
    def wild(self) -> bool:
        """Whether it runs by real time."""
        return self.minute.text.startswith("*") or self.hour.text.startswith("*")

    def matches(self, local: datetime) -> bool:
        """Whether a local time is one of it."""
        if local.minute not in self.minute.values or local.hour not in self.hour.values:
            return False
        length = calendar.monthrange(local.year, local.month)[1]
        last = local.day > length - 7
        weekday_number = local.isoweekday() % 7
        day = bool({local.day, f"L-{length - local.day}"} & self.day.values)
        weekday = bool(
            {weekday_number, f"{weekday_number}#{(local.day + 6) // 7}", f"{weekday_number}L" if last else -1}
            & self.weekday.values
        )
        both = self.day.text[0] in "*?" or self.weekday.text[0] in "*?"
        fits = (day and weekday) if both else (day or weekday)
        return fits and local.month in self.month.values and local.second in self.second.values

    def walk(self, zone: str, after_ms: int, until_ms: int) -> Iterator[int]:
        """Its instants after one and up to another, by looking at every minute or second there is."""
        step = 1 if self.six else 60
        tz = ZoneInfo(zone)
        at = (after_ms // 1000 // step) * step
        before = datetime.fromtimestamp(at, tz)
        while (at := at + step) * 1000 <= until_ms:
            local = datetime.fromtimestamp(at, tz)
            hit = self.matches(local) and (self.wild or not local.fold)
            if not self.wild and local.utcoffset() != before.utcoffset():
                skipped = before.replace(tzinfo=None) + timedelta(seconds=step)
                while not hit and skipped < local.replace(tzinfo=None):
                    hit = self.matches(skipped)
                    skipped += timedelta(seconds=step)
            if hit:
                yield at * 1000
            before = local


def some_field(dice: random.Random, low: int, high: int, *, often_any: float) -> Field:
    """A field in one of the ways to write it."""
    first, last = sorted((dice.randint(low, high), dice.randint(low, high)))
    step = dice.randint(1, high - low + 1)
    if dice.random() < often_any:
        return Field(text="*", values=frozenset(range(low, high + 1)))
    form = dice.randrange(6)
    if form == 0:
        return Field(text=f"*/{step}", values=frozenset(range(low, high + 1, step)))
    if form == 1:
        return Field(text=f"{first}-{last}", values=frozenset(range(first, last + 1)))
    if form == 2:
        return Field(text=f"{first}-{last}/{step}", values=frozenset(range(first, last + 1, step)))
    if form == 3:
        return Field(text=f"{first}/{step}", values=frozenset(range(first, high + 1, step)))
    values = [dice.randint(low, high) for _ in range(dice.randint(1, 4))]
    return Field(text=",".join(map(str, values)), values=frozenset(values))


def some_days(dice: random.Random, plain: Field, *, weekdays: bool) -> Field:
    """A field of days, now and then with one that depends on the length of the month."""
    if dice.random() < 0.7 or plain.text == "*":
        return plain
    if not weekdays:
        more = f"L-{dice.randint(0, 30)}"
    else:
        more = f"{dice.randint(0, 6)}" + dice.choice(["L", f"#{dice.randint(1, 5)}"])
    return Field(text=f"{plain.text},{'L' if more == 'L-0' else more}", values=plain.values | {more})


def some_cron(dice: random.Random, *, six: bool) -> Cron:
    """An expression, dense enough to have instants within days."""
    return Cron(
        second=some_field(dice, 0, 59, often_any=0.2) if six else Field(text="0", values=frozenset({0})),
        minute=some_field(dice, 0, 59, often_any=0.2),
        hour=some_field(dice, 0, 23, often_any=0.3),
        day=some_days(dice, some_field(dice, 1, 31, often_any=0.6), weekdays=False),
        month=some_field(dice, 1, 12, often_any=0.9),
        weekday=some_days(dice, some_field(dice, 0, 6, often_any=0.6), weekdays=True),
        six=six,
    )


ZONES = {
    "Europe/Berlin": ("2027-03-28T01:00Z", "2027-10-31T01:00Z"),
    "America/New_York": ("2027-03-14T07:00Z", "2027-11-07T06:00Z"),
    "Australia/Lord_Howe": ("2027-04-03T15:00Z", "2027-10-02T15:30Z"),
    "America/Sao_Paulo": ("2018-11-04T03:00Z", "2019-02-17T02:00Z"),
    "America/St_Johns": ("2010-11-07T02:31Z", "2027-03-14T05:30Z"),
    "Pacific/Apia": ("2011-12-30T10:00Z",),
    "Asia/Kathmandu": ("2027-01-15T08:00Z",),
    "UTC": ("2028-02-29T00:00Z",),
}


@pytest.mark.parametrize("six", [False, True])
def test_cron_agrees_with_a_slow_walk(
    conn: Connection, seed: int, six: bool, request: pytest.FixtureRequest
) -> None:
    """Near changes of clocks, looking at every minute (or second) finds the same instants."""
    dice = random.Random(seed)
    for _ in range(3000 if request.config.getoption("--full") else 40):
        cron, zone = some_cron(dice, six=six), dice.choice(list(ZONES))
        span = (2 * HOUR) if six else dice.choice([24 * HOUR, 72 * HOUR])
        after = ms(dice.choice(ZONES[zone])) - dice.randrange(span)
        slow = list(cron.walk(zone, after, after + span))
        found = instants(conn, cron.text, zone, after, after + span)
        assert found[:-1] == slow[:60], f"{cron.text} in {zone} after {after} (seed {seed})"
        assert found[-1] in slow[60:61] if len(slow) > 60 else found[-1] is None or found[-1] > after + span
        for one, two in zip([after, *found], found[:3], strict=False):
            middle = one if two is None else dice.randrange(one, two)
            assert ask(conn, following(cron.text, zone, middle)) == (two,), f"{cron.text} in {zone} {middle}"


def test_cron_agrees_with_a_slow_walk_over_months(conn: Connection, seed: int) -> None:
    """Sparse expressions find the same day weeks later."""
    dice = random.Random(seed)
    for _ in range(15):
        cron, zone = some_cron(dice, six=False), dice.choice(list(ZONES))
        after = ms(dice.choice(ZONES[zone])) - dice.randrange(40 * 24 * HOUR)
        slow = next(cron.walk(zone, after, after + 50 * 24 * HOUR), None)
        (found,) = ask(conn, following(cron.text, zone, after))
        if slow is None:
            assert found is None or found > after + 50 * 24 * HOUR
        else:
            assert found == slow, f"{cron.text} in {zone} after {after} (seed {seed})"
