"""Law: whatever people may do by the public functions, durable.check() stays empty: extreme values, odd
texts, every function that writes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.laboratory import ClockInside, transaction_of
from tests.support.populace import populate
from tests.support.verbs import Connection, tick

# what people call: no helper, and nothing that processes of ours call
FUNCTIONS = """
select p.proname, p.oid::regprocedure::text, coalesce(p.proargnames[1:p.pronargs], '{}'),
       p.pronargs - p.pronargdefaults, array(select t::regtype::text from unnest(p.proargtypes::oid[]) t)
from pg_proc p
where p.pronamespace = 'durable'::regnamespace and p.provolatile = 'v' and p.proname !~ '^_|_v1$'
  and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
order by 2
"""
CALLS = 120
ODD = (
    *(
        "",
        " ",
        ".",
        "a..b",
        "é",
        "e\u0301",
        "x" * 256,
        "y" * 1024,
        "z" * 1025,
        "😀" * 100,
        "%",
        "'",
        "\\",
        "\t",
    ),
    *("1", "null", "[]", "{}", "poll://any@g", "poll://uni@g/p", "http://h/p", "q-r", "call:" + "ab" * 32),
)
NUMBERS = (
    0,
    1,
    2,
    3,
    -1,
    1000,
    60_000,
    2**31 - 1,
    2**53 - 2,
    2**53 - 1,
    2**63 - 1,
    -(2**63),
    1_800_000_060_000,
)
DOCUMENTS = (
    *(
        "null",
        "{}",
        "[]",
        "[1]",
        "0",
        "1e400",
        '""',
        '"x"',
        "[" * 60 + "]" * 60,
        '"' + "x" * 2000 + '"',
        '{"": ""}',
    ),
    *("123456789012345678901234567890", '"\\u0001"', '"\\ud83d\\ude00"', '{"type": "Boom", "message": "m"}'),
    *(
        '{"codec": "json"}',
        '{"a": "b"}',
        '{"resonate:invoke": "poll://any@g"}',
        '{"resonate:timeout": "true"}',
    ),
    *('{"resonate:target": "poll://any@g"}', '{"resonate:external": "true"}', '{"resonate:timer": "true"}'),
    '{"resonate:delay": "1800000065000", "resonate:target": "g"}',
)
INTERVALS = ("0", "1 ms", "1 us", "-1 day", "1 hour", "10 years", "280000 years", "290000000 years")
INSTANTS = (
    "infinity",
    "-infinity",
    "2027-01-01",
    "294276-12-31",
    "4713-01-01 BC",
    "9999-12-31 23:59:59.999999",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "interval": INTERVALS,
    "timestamp with time zone": INSTANTS,
    "jsonb": DOCUMENTS,
    "double precision": (0, 1, -1, 1e308, float("nan"), float("inf"), 5e-324),
    "uuid": ("00000000-0000-0000-0000-000000000000",),
    "regclass": ("orders",),
    "regprocedure": ("durable._ms(interval)",),
    "integer": tuple(n for n in NUMBERS if abs(n) < 2**31),
    "bigint": NUMBERS,
}
# for parameters that only some texts make sense for
NAMED: dict[str, tuple[str, ...]] = {
    "workflow": ("w",),
    "cron": ("* * * * *", "0 0 29 2 *", "@hourly", "0 0 31 12 *"),
    "timezone": ("UTC", "Europe/Berlin", "Asia/Kathmandu"),
    "function": ("dml+exec://fake/f", "dml+exec://other/g"),
    "state": ("resolved", "rejected", "rejected_canceled"),
    "queue": ("default", "g"),
    "event": ("RandomGenerated", "TimerScheduled", "ExecutionCompleted", "PromiseCreated"),
    "outcome": ("ok", "error"),
    "kind": ("index", "head"),
    "address": ("poll://any@g", "http://h/p"),
    "name": ("go", "later", "free", "s", "t", "u"),
    "scope": ("s", "t", "u"),
    "base": ("s",),
    "run": ("r", "s", "w", "b", "q", "j", "ad"),
    "datum_put.value": ('{"i64": "1"}', '{"list": []}', '{"string": ""}'),
    # not strict: in that profile the laws ask for more of promises that are there already
    "set_setting.value": ("0", "1", "100", "9999999999", "off", "commit", "queue"),
    "pause_schedule.id": ("s", "daily"),
    "resume_schedule.id": ("s", "daily"),
    "unschedule.id": ("s", "daily"),
    "schedule_delete.id": ("s", "daily"),
    "schedule_get.id": ("s", "daily"),
    "next_instants.id": ("s", "daily"),
    "claim_acquire.owner": ("o", "P"),
    "target": ("poll://any@g", "g"),
    "awaiter": ("t", "a", "p", "f", "h", "b"),
    "awaited": ("x", "bare", "early", "done"),
}

IDS = """
select array(select id from durable._promises order by id), array(
  select id from durable._objects union all select execution_key from durable._call_attempts
  union all select execution_key from durable._claims order by 1)
"""
# ours, or a number, instant or text that PostgreSQL itself does not take
REFUSED = ("WF", "22")


@pytest.fixture
def inhabited(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A transaction in which there is a row of every kind."""
    with transaction_of(request, populate) as connection:
        yield connection


class Player:
    """Somebody who calls functions at random.

    Args:
        conn: the database.
        rng: source of randomness.
    """

    def __init__(self, conn: Connection, rng: random.Random) -> None:
        self.conn, self.rng = conn, rng
        self.functions = conn.execute(FUNCTIONS.encode()).fetchall()
        ((ids, self.keys),) = conn.execute(IDS.encode()).fetchall()
        self.ids = [*ids, *(f"new{n}" for n in range(len(ids) // 3))]
        settings = conn.execute("select array_agg(name order by name) from durable.settings").fetchone()
        self.named = {**NAMED, "set_setting.name": tuple(settings[0])}
        self.turn: list[tuple[Any, ...]] = []
        self.done: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()

    def value(self, function: str, name: str, type_: str) -> Any:
        """An argument."""
        rng, name = self.rng, name.removeprefix("p_")
        if type_.endswith("[]"):
            return [
                self.value(function, name.rstrip("s"), type_[:-2]) for _ in range(rng.choice((0, 1, 1, 2)))
            ]
        if type_ == "bytea":
            return rng.choice((*self.keys, b"", b"x" * 32))
        if type_ in ("integer", "bigint") and ("version" in name or "counter" in name):
            return rng.choice((0, 1, 1, 1, 2, 3))
        if type_ != "text":
            return rng.choice(self.named.get(f"{function}.{name}", VALUES.get(type_)))
        if rng.random() < 0.1:
            return rng.choice(ODD)
        return rng.choice(self.named.get(f"{function}.{name}", NAMED.get(name, self.ids)))

    def call(self) -> tuple[str, list[Any]]:
        """One call; it is undone if it is refused."""
        self.turn = self.turn or self.rng.sample(self.functions, len(self.functions))
        name, signature, names, needed, types = self.turn.pop()
        given = [
            (each, type_, None if self.rng.random() < 0.03 else self.value(name, each, type_))
            for place, (each, type_) in enumerate(zip(names, types, strict=True))
            if place < needed or self.rng.random() < 0.4
        ]
        text = (
            f"select * from durable.{name}({', '.join(f'{each} => %s::{type_}' for each, type_, _ in given)})"
        )
        values = [value for *_, value in given]
        self.conn.execute("savepoint call")
        try:
            self.conn.execute(text.encode(), values)
            self.done[signature] += 1
        except psycopg.Error as error:
            self.refused[signature, error.sqlstate or ""] += 1
            self.conn.execute("rollback to call")
        if name == "fence":
            # nothing may follow it in its transaction
            self.conn.execute("rollback to call")
        self.conn.execute("release call")
        return text, values


def test_no_call_of_anybody_breaks_a_law(
    inhabited: Connection, seed: int, request: pytest.FixtureRequest
) -> None:
    """Calls with extreme values, and time that passes, a day at once or backwards. All functions are called
    equally often; what is refused is refused as an error of the caller."""
    conn, rng = inhabited, random.Random(seed)
    player, clock = Player(conn, rng), ClockInside(conn)
    for _ in range(100 if request.config.getoption("--full") else 10):
        conn.execute("savepoint round")
        played: list[Any] = []
        for _ in range(CALLS):
            played.append(player.call())
            if rng.random() < 0.05:
                clock.advance(rng.choice((1, 1000, 61_000, 86_400_000, -5000)))
                played.append(tick(conn))
        broken = conn.execute("select * from durable.check()").fetchall()
        assert broken == [], played
        conn.execute("rollback to round")
    assert {each for each in player.refused if not each[1].startswith(REFUSED)} == set()
    assert len(player.done) > len(player.functions) // 2
