"""Law: starts under random ids that are sent together leave what a start for each leaves, or nothing."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from tests.core.sql.test_start_single import OPTIONS, TABLES, choices
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, dump

IDS = ["0a" * 16, "0b" * 16, "0c" * 16]
TOGETHER = "select durable.start_fresh_v1(%s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, false)"
ALONE = (
    "select id, created from durable.start_v1(%s, %s, %s, null, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, true)"
)
COMMON = ("queue", "version", "delay", "timeout", "priority", "tags", "tenant", "any_workflow")
ORDINARY = {name: values[0] for name, values in OPTIONS.items()}


def left(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """All rows; heads in the order in which they were drawn."""
    found = dump(conn, TABLES)
    heads = sorted({row["head"] for row in found["_promises"]})
    for row in (row for table in found.values() for row in table):
        for column in ("head", "execution"):
            if row.get(column) is not None:
                row[column] = heads.index(row[column])
    return {table: sorted(of, key=str) for table, of in found.items()}


def together(conn: Connection, args: list[Any], ids: list[Any], options: dict[str, Any] = ORDINARY) -> bool:
    """Send starts together; return whether they were started."""
    common = [options[name] for name in COMMON]
    return bool(ask(conn, (TOGETHER, (options["workflow"], *common, args, ids)))[0])


def outcome(conn: Connection, options: dict[str, Any], *, at_once: bool) -> tuple[Any, Any]:
    """What such starts answer, or how they are refused, and what they leave; then it is undone."""
    args = [options["args"], "[]", '{"b": [2]}']
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                if at_once:
                    return together(conn, args, IDS, options), left(conn)
                for one, id in zip(args, IDS, strict=True):
                    common = [options[name] for name in COMMON]
                    assert ask(conn, (ALONE, (options["workflow"], one, id, *common))) == (id, True)
                return True, left(conn)
        except psycopg.Error as error:
            return error.sqlstate, left(conn)


@pytest.mark.parametrize("count", [30, pytest.param(150, marks=pytest.mark.full)])
def test_starts_sent_together_equal_starts_alone(
    conn: Connection, clock: Clock, seed: int, count: int
) -> None:
    """Options one by one and at random, at the borders of what is allowed: they leave the rows that a start
    for each leaves, in all columns; or nothing, and a start for each explains."""
    hello = "select durable.worker_hello_v1('W', '{default}', '{known}', '{1}', null, '{ab}', null, '{own}')"
    ask(conn, (hello, ()))
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    untouched = left(conn)
    sent = refused = 0
    for options in choices(random.Random(seed), count):
        found, alone = outcome(conn, options, at_once=True), outcome(conn, options, at_once=False)
        if found[0] is True:
            assert found == alone, (seed, options)
            sent += 1
        else:
            assert found[1] == untouched, (seed, options)
            refused += isinstance(alone[0], str)
    assert sent > 60, seed
    assert refused > 60, seed


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([IDS[0], "chosen"], id="chosen by a person"),
        pytest.param([IDS[0], None], id="none"),
        pytest.param([IDS[0], IDS[1] + ".1"], id="below another run"),
        pytest.param([IDS[0]], id="too few"),
        pytest.param([], id="none at all"),
    ],
)
def test_only_random_ids_are_sent_together(conn: Connection, ids: list[Any]) -> None:
    """Others would have to be locked, so nothing is written."""
    before = dump(conn, TABLES)
    assert together(conn, ["[]", "[]"], ids) is False
    assert dump(conn, TABLES) == before


def test_sent_twice_nothing_is_added(conn: Connection) -> None:
    """A client that does not know whether its call was carried out repeats it, and finds each run alone."""
    assert together(conn, ["[1]", "[2]"], IDS[:2])
    before = dump(conn, TABLES)
    with pytest.raises(psycopg.errors.UniqueViolation), conn.transaction():
        together(conn, ["[2]", "[3]"], IDS[1:])
    assert dump(conn, TABLES) == before
    again = (ALONE, ("known", "[2]", IDS[1], *(ORDINARY[name] for name in COMMON)))
    assert ask(conn, again) == (IDS[1], False)


def test_the_statements_do_not_grow_with_the_runs(conn: Connection) -> None:
    """Ten runs take as many calls of functions as two, but for the numbers of their heads."""
    conn.execute("set track_functions = 'all'")
    calls = (
        "select p.proname, pg_stat_get_xact_function_calls(p.oid) from pg_proc p "
        "where p.pronamespace = 'durable'::regnamespace and p.provolatile = 'v' "
        "and p.proname <> '_next_execution'"
    )

    def calls_of(count: int) -> dict[str, int]:
        before = dict(conn.execute(calls).fetchall())
        assert together(conn, ["[]"] * count, [f"{count:02x}{n:030x}" for n in range(count)])
        return {name: (n or 0) - (before[name] or 0) for name, n in conn.execute(calls)}

    # the first ones of a transaction look at the site
    calls_of(1)
    calls_of(3)
    assert calls_of(2) == calls_of(10)
