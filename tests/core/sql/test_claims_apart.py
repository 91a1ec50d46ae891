"""Law: a run that cannot be handed out is set aside, and named; the others are claimed."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from pyengine.core.database.faults import FAULTS, Fault
from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    code,
    done,
    release,
    report,
    start,
    take_turn,
    task_of,
)

APART = "select durable.worker_claim_apart_v1('V', %s, array[%s], '{ab}', 1, %s, %s, %s)"
QUEUES = ["q-big", "default"]


def apart(conn: Connection, want: int = 10, *, puts_off: bool = False) -> dict[str, Any]:
    """The answer to a claim run by run."""
    answer: dict[str, Any] = ask(conn, (APART, (QUEUES, code("w"), want, TTL_MS, puts_off)))[0]
    return answer


def big(conn: Connection, steps: int = 2, size: int = 20_000) -> None:
    """A released run with large results in its journal, and two new runs behind it."""
    held = begin_run(conn, "big")
    value = json.dumps("x" * size)
    take_turn(conn, "W", report(held, outcomes=[done(n, value) for n in range(steps)], end=release()))
    for id_ in ("s1", "s2"):
        ask(conn, start(id_))


def problem(conn: Connection) -> dict[str, Any]:
    """Why the big run is halted."""
    found: dict[str, Any] = ask(conn, ("select problem from durable.runs where id = 'big'", ()))[0]
    return found


def test_a_claim_run_by_run_claims_as_any_other(conn: Connection) -> None:
    """Where nothing is wrong it answers what a turn answers."""
    big(conn)
    conn.execute("savepoint before")
    turn = take_turn(conn, "V", want=10, queues=QUEUES)
    conn.execute("rollback to before")
    answer = apart(conn)
    assert sorted(answer["tasks"]) == sorted(turn.raw["tasks"])
    assert answer["aside"] == [] and answer["verdicts"] is None


@pytest.mark.unlawful
def test_a_value_that_is_missing_sets_its_run_aside(conn: Connection) -> None:
    """A turn that claims fails as a whole; run by run, the damaged one is halted with the error."""
    big(conn)
    conn.execute("delete from durable._journal_values")
    conn.execute("savepoint before")
    with pytest.raises(psycopg.errors.DataCorrupted):
        take_turn(conn, "V", want=10, queues=QUEUES)
    conn.execute("rollback to before")
    answer = apart(conn)
    assert sorted(task[1] for task in answer["tasks"]) == ["s1", "s2"]
    assert answer["aside"][:2] == ["big", "XX001"]
    assert task_of(conn, "big") == ("halted", 1, None)
    assert problem(conn)["type"] == "HandOutProblem" and problem(conn)["code"] == "XX001"


@pytest.mark.unlawful
def test_a_journal_above_what_an_answer_holds(conn: Connection) -> None:
    """Rows that share a value count each: the run is refused by its size, before a text of it is made."""
    big(conn, steps=20)
    conn.execute("update durable._journal_values set data = '\"' || repeat('x', 60000000) || '\"'")
    conn.execute("savepoint before")
    with pytest.raises(psycopg.errors.Error, match="the limit is") as refused:
        take_turn(conn, "V", want=10, queues=QUEUES)
    assert refused.value.sqlstate == "WF008"
    conn.execute("rollback to before")
    answer = apart(conn)
    assert sorted(task[1] for task in answer["tasks"]) == ["s1", "s2"]
    assert answer["aside"][:2] == ["big", "WF008"]
    assert "120000" in problem(conn)["message"]


def test_lists_that_share_their_beginnings_are_measured(conn: Connection) -> None:
    """The size is that of the text, within a little, however a value is taken apart."""
    held = begin_run(conn, "r")
    values = [json.dumps([{"text": "x" * 300, "n": n} for n in range(count)]) for count in (40, 41, 80)]
    take_turn(conn, "W", report(held, outcomes=[done(n, value) for n, value in enumerate(values)]))
    sizes = conn.execute(
        "select durable._data_size(j), octet_length(durable._data(j)) from durable._journal j "
        "where type = 'step_completed'"
    ).fetchall()
    assert len(sizes) == 3
    for size, real in sizes:
        assert real <= size <= 2 * real


def test_a_run_is_at_fault_by_one_table(conn: Connection) -> None:
    """What halts a run that is handed out halts one that reports, and nothing else does."""
    codes = [code if len(code) == 5 else f"{code}000" for code in FAULTS]
    found = conn.execute(
        "select c, durable._is_fault_of_run(c) from unnest(%s::text[]) c", (codes,)
    ).fetchall()
    assert dict(found) == {code: (FAULTS.get(code) or FAULTS[code[:2]]) is Fault.RUN for code in codes}


def test_what_may_be_the_fault_of_others_is_put_off(conn: Connection, clock: Clock) -> None:
    """An error of somebody's code, or no answer in time, halts no run: it is ready again after a minute."""
    big(conn, steps=20)
    answer = apart(conn, want=1, puts_off=True)
    assert (answer["tasks"], answer["aside"][:2]) == ([], ["big", "57014"])
    assert task_of(conn, "big") == ("pending", 1, None)
    assert [task[1] for task in apart(conn)["tasks"]] == ["s1", "s2"]
    clock.advance(60_000)
    conn.execute(
        "create or replace function durable._checked_from(p_bucket integer, p_execution bigint, "
        "p_from integer, p_upto integer) returns integer language plpgsql as "
        "$$ begin raise exception 'no'; end $$"
    )
    assert apart(conn)["aside"] == ["big", "P0001", "no"]
    assert task_of(conn, "big") == ("pending", 1, None)
