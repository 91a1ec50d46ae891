"""Law: a large text beside the reports of a turn is what it would be inside of them, and no statement of
the turn takes it with the reports.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    complete,
    done,
    promise,
    report,
    settle,
    suspend,
    take_turn,
)

SUB = "\x1a"
SIZE = 16 << 20
TURN = "select durable.worker_turn_v1('W', '{}', '{}', '{}', -1, %s::jsonb, %s, p_texts => %s::text[])"
DEEP = "[" * 600 + "]" * 600
VALUES = {
    "a text": json.dumps("x" * 20_000),
    "a list": json.dumps([{"n": n, "text": "y" * 300} for n in range(100)]),
    "a small one": "1",
}


def turn_with(conn: Any, texts: list[str], *reports: Any) -> Any:
    """A turn with these reports and texts."""
    return conn.execute(TURN, (json.dumps(list(reports)), TTL_MS, texts)).fetchone()[0]


def stored(conn: Connection, id: str) -> tuple[Any, ...]:
    """The journal of a run, with its values where they are stored, and the value of its promise."""
    rows = conn.execute(
        "select j.seq, j.type, j.child, j.data, durable._data(j) from durable._journal j "
        "join durable._executions h on (h.execution, h.bucket) = (j.execution, j.bucket) "
        "where h.id = %s order by 1",
        (id,),
    ).fetchall()
    head = conn.execute(
        "select next_seq, next_child, status, open_steps from durable._executions where id = %s", (id,)
    ).fetchone()
    promised = conn.execute("select state, value_data from durable._promises where id = %s", (id,)).fetchone()
    return rows, head, promised


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("shape", ["result", "last result", "end", "results"])
def test_beside_is_as_inside(conn: Connection, name: str, shape: str) -> None:
    """A result, the last one with the end of its run, an end, or several results with a promise: journal,
    values, head and promise are the same, whether the text stands in the report or beside it.
    """
    value = VALUES[name]
    found = []
    for id, inside in (("a", True), ("b", False)):
        held = begin_run(conn, id)
        text = value if inside else f"{SUB}1"
        said: dict[str, Any] = {
            "result": {"outcomes": [done(0, value=text)]},
            "last result": {"outcomes": [done(0, value=text)], "end": complete("2")},
            "end": {"end": complete(text)},
            "results": {
                "outcomes": [
                    done(0, value=text),
                    done(1, value="7" if inside else f"{SUB}2"),
                    done(2, value=text),
                ]
            },
        }[shape]
        answer = turn_with(conn, [] if inside else [value, "7"], report(held, **said))
        assert answer["verdicts"]["verdict"] == ["ok"]
        found.append((stored(conn, id), answer["verdicts"]["next"], answer["verdicts"]["state"]))
    assert found[0] == found[1]


def test_a_missing_or_unlawful_text_is_refused(conn: Connection) -> None:
    """A number that no text has, a text over the limit, and one that is too deep: nothing is written."""
    held = begin_run(conn, "r")
    conn.execute("select durable.set_setting('payload_max_bytes', '100000')")
    for texts, mark, sqlstate in (
        (["1"], f"{SUB}2", "WF004"),
        (["1"], f"{SUB}x", "WF004"),
        ([json.dumps("x" * 100_000)], f"{SUB}1", "WF008"),
        ([DEEP], f"{SUB}1", "WF004"),
    ):
        with pytest.raises(psycopg.Error) as refused, conn.transaction():
            turn_with(conn, texts, report(held, outcomes=[done(0, value=mark)]))
        assert refused.value.sqlstate == sqlstate
    assert stored(conn, "r")[1][0] == 1


def test_a_text_that_only_looks_deep_is_none(conn: Connection) -> None:
    """Brackets within a text are no levels; a list is counted, also after white space."""
    is_deep = "select durable._is_deep(%s::text)"
    found = [
        conn.execute(is_deep, (text,)).fetchone()
        for text in (json.dumps("[" * 2000), DEEP, " \n" * 80 + DEEP, json.dumps(["[" * 2000]), "x" + DEEP)
    ]
    assert found == [(False,), (True,), (True,), (False,), (False,)]


@pytest.mark.parametrize("shape", ["result", "last result", "end"])
def test_the_text_of_a_report_is_read_once(direct: str, shape: str) -> None:
    """A statement that takes reports of 16 MiB writes as much to a temporary file, because that is more than
    its memory. A result beside them is written to none, that of a run once, where its promise is settled.
    """
    with psycopg.connect(direct, autocommit=True) as conn:
        held = begin_run(conn, "r")
        text = json.dumps("x" * SIZE)
        said: dict[str, Any] = {
            "result": {"outcomes": [done(0, value=f"{SUB}1")], "commands": []},
            "last result": {"outcomes": [done(0, value=f"{SUB}1")], "end": complete("1")},
            "end": {"end": complete(f"{SUB}1")},
        }[shape]
        bytes_of = "select temp_bytes from pg_catalog.pg_stat_database where datname = current_database()"
        before = flushed(conn, bytes_of)
        assert turn_with(conn, [text], report(held, **said))["verdicts"]["verdict"] == ["ok"]
        assert flushed(conn, bytes_of) - before < (1.5 if shape == "end" else 0.5) * SIZE


def flushed(conn: Connection, query: str) -> int:
    """A number of the statistics, once what this session did is in it."""
    conn.execute("select pg_stat_force_next_flush()")
    (found,) = conn.execute(query).fetchone() or (0,)
    return int(found)


def test_suspends_and_other_reports_go_beside_them(conn: Connection) -> None:
    """Reports without a large text are taken by the same turn."""
    first, second = begin_run(conn, "r"), begin_run(conn, "s")
    answer = turn_with(
        conn,
        [VALUES["a text"]],
        report(first, outcomes=[done(0, value=f"{SUB}1")]),
        report(second, commands=[promise(0)], end=suspend(0)),
    )
    assert answer["verdicts"]["state"] == ["acquired", "suspended"]
    ask(conn, settle("s.0", "1"))
    assert [task["id"] for task in take_turn(conn, "W", want=1, queues=("q-s",)).handed] == ["s"]
