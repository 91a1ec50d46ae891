"""Law: spans, instants and errors are short texts that say enough."""

from __future__ import annotations

import pytest

from tests.support.verbs import NEVER, Connection, ask

S, MIN, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOW = 1_800_000_000_000  # Friday 2027-01-15 8:00 UTC

TEXTS: dict[str, str] = {
    "_span(-5)": "0 ms",
    "_span(412)": "412 ms",
    f"_span({12 * S + 900})": "12 s",
    f"_span({3 * MIN + 59 * S})": "3 min",
    f"_span({2 * HOUR + 5 * MIN})": "2 h 5 min",
    f"_span({2 * HOUR})": "2 h",
    f"_span({47 * HOUR})": "47 h",
    f"_span({9 * DAY + HOUR})": "9 d",
    f"_clock_time({NOW + HOUR}, {NOW})": "9:00",
    f"_clock_time({NOW - 12 * S}, {NOW})": "7:59:48",
    f"_clock_time({NOW + DAY}, {NOW})": "tomorrow 8:00",
    f"_clock_time({NOW - DAY + HOUR}, {NOW})": "yesterday 9:00",
    f"_clock_time({NOW + 343 * DAY}, {NOW})": "2027-12-24 8:00",
    f"_clock_time({NEVER}, {NOW})": "never",
    f"_since({NOW - 3 * MIN}, {NOW})": " since 3 min",
    f"_since(null, {NOW})": "",
    f"_until({NOW + 12 * MIN}, {NOW})": ", until 8:12 (in 12 min)",
    f"_until({NOW + DAY + HOUR}, {NOW})": ", until tomorrow 9:00",
    f"_until({NEVER}, {NOW})": "",
    f"_until(null, {NOW})": "",
    f"_then({NOW}, {NOW})": "now",
    f"_then({NOW + 12 * S}, {NOW})": "in 12 s",
    f"_then({NOW + DAY}, {NOW})": "tomorrow 8:00",
    "_times(1)": "once",
    "_times(2)": "twice",
    "_times(3)": "3 times",
    "_counted(1, 'worker')": "1 worker",
    "_counted(0, 'worker')": "0 workers",
    """_error_line('{"type": "Boom", "message": "a\\n  b"}')""": "Boom: a b",
    """_error_line('{"type": "Boom", "message": ""}')""": "Boom",
    """_error_line('{"code": 7}')""": '{"code": 7}',
    """_error_line('"plain"')""": "plain",
    "_error_line(null)": "no reason given",
}


@pytest.mark.parametrize("call", TEXTS)
def test_texts(conn: Connection, call: str) -> None:
    """Each text, in UTC."""
    conn.execute("set local timezone to 'UTC'")
    assert ask(conn, (f"select durable.{call}", ())) == (TEXTS[call],)


def test_the_time_zone_of_the_session(conn: Connection) -> None:
    """Tomorrow begins at midnight where the reader is."""
    conn.execute("set local timezone to 'Pacific/Auckland'")
    assert ask(conn, (f"select durable._clock_time({NOW + 4 * HOUR}, {NOW})", ())) == ("tomorrow 1:00",)
