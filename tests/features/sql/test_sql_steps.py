"""Law: a step in SQL leaves the function's writes and its completion row, or neither; and it leaves them
once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    HASH,
    TTL_MS,
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    broken,
    refusal,
    report,
    take_turn,
    types_of,
)

FUNCTIONS = """
create schema shop;
create table shop.entries (who text);
create function shop.add(who text) returns bigint language sql as
  $$ insert into shop.entries values (who) returning (select count(*) + 1 from shop.entries) $$;
create function shop.big(n integer) returns text language sql as $$ select repeat('x', n) $$;
create function shop.signals(id text) returns bigint language sql as
  $$ select durable.signal(id, 'go', '1') $$;
"""


@pytest.fixture
def shop(conn: Connection, clock: Clock) -> Connection:
    """A database with functions and a table of the user's."""
    conn.execute(FUNCTIONS)
    return conn


def step(
    held: Held,
    child: int = 0,
    attempt: int = 1,
    *,
    function: str = "shop.add",
    args: str = '["ann"]',
    seen: int = 1,
    worker: str = "W",
    version: int | None = None,
) -> tuple[str, tuple[Any, ...]]:
    """A step in SQL."""
    version = held.version if version is None else version
    given = (worker, held.execution, held.id, version, seen, child, attempt)
    return "select durable.worker_sql_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)", (
        *given,
        function,
        HASH,
        args,
    )


def entries(conn: Connection) -> int:
    """How many rows the user's table holds."""
    count: int = ask(conn, ("select count(*)::integer from shop.entries", ()))[0]
    return count


def test_a_step(shop: Connection) -> None:
    """The answer is the journal from what was seen on; asked again, it is the same and nothing is called."""
    held = begin_run(shop, "r")
    (answer,) = ask(shop, step(held))
    assert answer == {"next": 4, "rows": [[1, "step_completed", 0, 1, "shop.add", HASH, "1", None]]}
    assert (types_of(shop, "r"), entries(shop)) == (["execution_started", "step_completed"], 1)
    assert ask(shop, step(held)) == (answer,)
    assert ask(shop, step(held, args='["other"]')) == (answer,)
    assert entries(shop) == 1
    row = ask(shop, ("select next_seq, next_child, open_steps from durable._executions where id = 'r'", ()))
    assert row == (4, 1, [])


def test_the_rows_of_others_come_with_it(shop: Connection) -> None:
    """What was recorded since stands in the answer in journal order."""
    held = begin_run(shop, "r")
    take_turn(shop, "W", report(held, outcomes=[begun(0, name="shop.add")], seen=1))
    ask(shop, ("select durable.signal('r', 'go', '1')", ()))
    (answer,) = ask(shop, step(held))
    assert [row[1] for row in answer["rows"]] == ["step_started", "signal_delivered", "open_step_completed"]
    assert answer["next"] == 5


@pytest.mark.parametrize(
    ("outcomes", "attempt", "types"),
    [
        ([], 1, ["execution_started", "step_completed"]),
        ([begun(0, name="shop.add")], 1, ["execution_started", "step_started", "open_step_completed"]),
        (
            [broken(0, retry_in=0, name="shop.add")],
            2,
            ["execution_started", "first_attempt_failed", "last_attempt_completed"],
        ),
        (
            [broken(0, retry_in=0, name="shop.add"), begun(0, attempt=2, name="shop.add")],
            2,
            ["execution_started", "first_attempt_failed", "attempt_started", "open_step_completed"],
        ),
    ],
)
def test_the_row_fits_what_is_open(
    shop: Connection, outcomes: list[dict[str, Any]], attempt: int, types: list[str]
) -> None:
    """The completion has the form that the attempts before it ask for."""
    held = begin_run(shop, "r")
    if outcomes:
        take_turn(shop, "W", report(held, outcomes=outcomes, seen=1))
    assert refusal(shop, step(held, attempt=attempt + 1)) == "WF006"
    assert entries(shop) == 0
    ask(shop, step(held, attempt=attempt))
    assert (types_of(shop, "r"), entries(shop)) == (types, 1)


def test_the_fence(shop: Connection, clock: Clock) -> None:
    """Another worker, another version, a lost lease, a number that is taken: nothing is left."""
    held = begin_run(shop, "r")
    assert refusal(shop, step(held, worker="X")) == "WF002"
    assert refusal(shop, step(held, version=held.version + 1)) == "WF002"
    assert refusal(shop, step(replace(held, id="lost"))) == "WF002"
    assert refusal(shop, step(replace(held, id=begin_run(shop, "other").id))) == "WF002"
    take_turn(shop, "W", report(held, commands=[{"do": "timer", "child": 0, "duration": 1000000}], seen=1))
    assert refusal(shop, step(held)) == "WF006"
    clock.advance(TTL_MS + 1)
    ask(shop, ("select durable.tick_v1(100)", ()))
    assert refusal(shop, step(held, child=1)) == "WF002"
    assert (types_of(shop, "r"), entries(shop)) == (["execution_started", "timer_scheduled"], 0)


def test_an_unseen_cancellation_makes_the_step_stale(shop: Connection) -> None:
    """The worker must look first; what is done after it looked is clean-up."""
    held = begin_run(shop, "r")
    ask(shop, ("select durable.cancel('r')", ()))
    assert refusal(shop, step(held, seen=1)) == "WF006"
    assert entries(shop) == 0
    ask(shop, step(held, seen=2))
    assert (types_of(shop, "r"), entries(shop)) == (
        ["execution_started", "cancel_requested", "step_completed"],
        1,
    )


def test_a_result_that_is_too_large(shop: Connection) -> None:
    """It is refused as any payload is."""
    held = begin_run(shop, "r")
    ask(shop, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    assert refusal(shop, step(held, function="shop.big", args="[3000]")) == "WF008"
    assert types_of(shop, "r") == ["execution_started"]


def test_a_function_that_uses_verbs(shop: Connection) -> None:
    """What it starts and signals commits with it, for its own run too."""
    held = begin_run(shop, "r")
    (answer,) = ask(shop, step(held, function="shop.signals", args='["r"]'))
    assert [row[1] for row in answer["rows"]] == ["signal_delivered", "step_completed"]


WAITING = "select count(*) from pg_locks where not granted and locktype = 'transactionid'"
TAKEN_AWAY = {
    "halted": ("select durable.task_halt('r')",),
    "another worker": ("select durable.task_halt('r')", "select durable.task_continue('r')"),
    "cancelled by force": ("select durable.cancel('r', force => true)",),
    "settled from outside": ("select durable._settle_promise('r', 'resolved', '1', null)",),
}


@pytest.mark.parametrize("how", TAKEN_AWAY)
def test_taking_the_lease_away_does_not_wait(dsn: str, how: str) -> None:
    """Between the begin of the function and its end the run is taken away, by whatever it may be, without
    waiting; then nothing of the function is left."""
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as other:
        conn.execute(FUNCTIONS)
        conn.execute("create table shop.gate as select 1 as n")
        conn.execute(
            "create function shop.gated(who text) returns integer language sql as "
            "$$ insert into shop.entries values (who); select n from shop.gate for update $$"
        )
        held = begin_run(conn, "r")
        codes: list[str] = []
        with psycopg.connect(dsn) as holder:
            holder.execute("select from shop.gate for update")
            thread = threading.Thread(
                target=lambda: codes.append(refusal(conn, step(held, function="shop.gated")))
            )
            thread.start()
            end = time.monotonic() + 20
            while ask(other, (WAITING, ())) == (0,):
                assert time.monotonic() < end
            for statement in TAKEN_AWAY[how]:
                other.execute(statement.encode())
            if how == "another worker":
                take_turn(other, "V", want=1, queues=["q-r"])
            holder.rollback()
            thread.join()
        assert codes == ["WF002"]
        assert entries(other) == 0
        assert "step_completed" not in types_of(other, "r")
