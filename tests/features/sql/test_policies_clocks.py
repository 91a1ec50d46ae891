"""Law: clocks that are changed, set forth or back, and outages leave no instant of a schedule untold.

The instants come from a walk minute by minute, which never parses an expression (test_cron.py).
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from tests.features.sql.test_cron import Cron, Field, ms
from tests.features.sql.test_policies import EIGHT, sweep
from tests.features.sql.test_policies_model import OVERLAPS
from tests.features.sql.test_scheduled_runs import HOUR, plan
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask

WEEK = 7 * 24 * HOUR
ZONES = (
    *("Europe/Berlin", "America/New_York", "America/St_Johns"),
    *("Australia/Lord_Howe", "America/Santiago"),
)
_ANY = Field(text="*", values=frozenset(range(60)))
NIGHTS = Cron(  # local times of the hours in which clocks change
    second=Field(text="0", values=frozenset({0})),
    minute=Field(text="15,45", values=frozenset({15, 45})),
    hour=Field(text="0-3,23", values=frozenset({0, 1, 2, 3, 23})),
    **dict.fromkeys(("day", "month", "weekday"), _ANY),
    six=False,
)
HALVES = Cron(  # real time
    second=NIGHTS.second,
    minute=Field(text="*/30", values=frozenset({0, 30})),
    **dict.fromkeys(("hour", "day", "month", "weekday"), _ANY),
    six=False,
)


def moments() -> list[int]:
    """The changes of clocks of 2027 in all zones, the year's end, and the leap day after it."""
    hours = [datetime(2027, 1, 16, tzinfo=UTC) + timedelta(hours=n) for n in range(8300)]
    found = {
        int(hour.timestamp()) * 1000
        for zone in map(ZoneInfo, ZONES)
        for hour in hours
        if hour.astimezone(zone).utcoffset() != (hour + timedelta(hours=1)).astimezone(zone).utcoffset()
    }
    return sorted({*found, ms("2027-12-31T22:00Z"), ms("2028-02-29T12:00Z")})


def end_some(conn: Connection, dice: random.Random) -> None:
    """Half of the runs end."""
    ids = [id_ for (id_,) in conn.execute("select id from durable.live").fetchall() if dice.random() < 0.5]
    conn.execute("select durable.cancel(i, force => true) from unnest(%s::text[]) i", (ids,))


def account(conn: Connection, schedule: str) -> tuple[Counter[int], list[tuple[int, int]]]:
    """How often each instant is told of by itself, and the times that are told of together."""
    runs = conn.execute(
        "select extract(epoch from substr(id, length(%(s)s) + 2)::timestamptz) * 1000 from durable.runs "
        "where tags ->> 'resonate:schedule' = %(s)s "
        "union all select at from durable._schedule_instants where schedule = %(s)s and at = upto",
        {"s": schedule},
    )
    spans = conn.execute(
        "select at, upto from durable._schedule_instants where schedule = %s and at < upto order by at",
        (schedule,),
    )
    return Counter(int(at) for (at,) in runs.fetchall()), spans.fetchall()


def walk(zone: str, after: int, upto: int) -> list[int]:
    """The instants of both expressions."""
    return sorted({at for cron in (NIGHTS, HALVES) for at in cron.walk(zone, after, upto)})


def test_changes_of_clocks(conn: Connection, clock: Clock, seed: int) -> None:
    """In five zones, two with a half hour and two in the south, at the year's end and on a leap day: each
    instant near them has one run or one row, and the months between have one row for their time."""
    dice = random.Random(seed)
    for zone, overlap in zip(ZONES, OVERLAPS, strict=True):
        text = f"{NIGHTS.text}; {HALVES.text}"
        ask(conn, plan(zone, text, timezone=zone, overlap=overlap, catch_up="2 hours"))
    near: list[tuple[int, int]] = []
    for moment in moments():
        begin = max(moment - HOUR, clock.now_ms)
        for hours in (-1, 0, 1, 3):
            clock.set(max(begin, moment + hours * HOUR))
            sweep(conn)
            end_some(conn, dice)
        near.append((begin - 2 * HOUR - 1, clock.now_ms))
    for zone in ZONES:
        told, spans = account(conn, zone)
        expected = [at for begin, upto in near for at in walk(zone, begin, upto)]
        assert set(told) <= set(expected), (zone, seed)
        # nothing lies between what was fired and what was missed
        expected += [
            at for one, other in pairwise(near) for at in walk(zone, one[1], min(other[0], one[1] + 5 * HOUR))
        ]
        odd = [at for at in set(expected) if told[at] + sum(a <= at <= b for a, b in spans) != 1]
        assert odd == [], (zone, seed)


# of the 168 instants of a week, and one before them whose run has not ended: by overlap and window
OUTAGE = {
    "allow": {
        None: {"run": 169},
        "3 days": {"run": 74, "missed": 95},
        "10 seconds": {"run": 2, "missed": 167},
    },
    "skip": {
        None: {"run": 1, "skipped": 168},
        "3 days": {"run": 1, "skipped": 73, "missed": 95},
        "10 seconds": {"run": 1, "skipped": 1, "missed": 167},
    },
    "buffer_one": {
        None: {"run": 1, "buffered": 1, "skipped": 167},
        "3 days": {"run": 1, "buffered": 1, "skipped": 72, "missed": 95},
        "10 seconds": {"run": 1, "buffered": 1, "missed": 167},
    },
    "buffer_all": {
        None: {"run": 1, "buffered": 168},
        "3 days": {"run": 1, "buffered": 73, "missed": 95},
        "10 seconds": {"run": 1, "buffered": 1, "missed": 167},
    },
    "cancel": {
        None: {"run": 1, "buffered": 1, "skipped": 167},
        "3 days": {"run": 1, "buffered": 1, "skipped": 72, "missed": 95},
        "10 seconds": {"run": 1, "buffered": 1, "missed": 167},
    },
}


def test_an_outage_of_a_week(conn: Connection, clock: Clock) -> None:
    """The table above; then clocks go back by two weeks and forth by three: still each instant once."""
    plans = {f"{overlap} {window}": (overlap, window) for overlap in OUTAGE for window in OUTAGE[overlap]}
    for name, (overlap, window) in plans.items():
        ask(conn, plan(name, overlap=overlap, **({"catch_up": window} if window else {})))
    clock.advance(HOUR)
    sweep(conn)
    clock.advance(WEEK)
    sweep(conn)
    own = "select outcome from durable._schedule_instants where schedule = %s and at = upto"
    for name, (overlap, window) in plans.items():
        told, spans = account(conn, name)
        found = Counter(outcome for (outcome,) in conn.execute(own, (name,)).fetchall())
        found["run"] = told.total() - found.total()
        if overlap == "cancel":  # a tick fires 100 at most, and a run may begin between two ticks
            found["run"], found["skipped"] = 1, found["skipped"] + found["run"] - 1
        found["missed"] = sum(upto // HOUR - (at - 1) // HOUR for at, upto in spans)
        assert +found == Counter(OUTAGE[overlap][window]), name
    upto = clock.now_ms
    for jump in (-2 * WEEK, 3 * WEEK):
        clock.advance(jump)
        sweep(conn)
        clock.advance(HOUR)
        sweep(conn)
    assert clock.now_ms > upto
    for name in plans:
        told, spans = account(conn, name)
        instants = range(EIGHT // HOUR * HOUR + HOUR, clock.now_ms + 1, HOUR)
        assert [at for at in instants if told[at] + sum(a <= at <= b for a, b in spans) != 1] == [], name
