"""Law: a service's function is called once for each run with all its writes, or not at all, in plain SQL."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    ask,
    begin_run,
    events_of,
    promise_of,
    refusal,
    report,
    run,
    start,
    suspend,
    take_turn,
    task_of,
    types_of,
)

FUNCTIONS = """
create schema billing;
create table billing.closed (month text primary key, by text);
create function billing.close(month text, by text default 'nobody') returns text language sql as
  $$ insert into billing.closed values (month, by) returning month $$;
create function billing.refuse(code text, month text default 'refused') returns void language plpgsql as $$
  begin
  insert into billing.closed values (month, 'refuse');
  raise exception 'refused' using errcode = code, hint = 'the hint'; end $$;
create function billing.late(month text) returns void language sql as $$
  insert into billing.closed values (month, 'late'); select pg_sleep(0.05) $$;
"""


@pytest.fixture
def billing(conn: Connection) -> Connection:
    """A database with services."""
    conn.execute(FUNCTIONS)
    for function in ("close(text, text)", "refuse(text, text)"):
        ask(conn, ("select durable.serve(%s::regprocedure, 2, '1 second')", (f"billing.{function}",)))
    return conn


def serve(conn: Connection) -> dict[str, Any]:
    """Let one task be served."""
    row = conn.execute("select durable.serve_v1(n.id) from durable.next_service_v1() n").fetchone()
    return {"served": 0} if row is None else dict(row[0])


def closed(conn: Connection) -> list[str]:
    """What the user's table holds."""
    return [row[0] for row in conn.execute("select month from billing.closed order by month")]


def test_a_run_of_a_service(billing: Connection, clock: Clock) -> None:
    """It is a run in whose journal the function is a step; result, writes and events are there once."""
    ask(billing, start("r", '["2026-11"]', workflow="sql://billing.close"))
    assert task_of(billing, "r") == ("pending", 0, None)
    assert serve(billing) == {"served": 1, "hints": [], "settled": True}
    assert promise_of(billing, "r") == ("resolved", '"2026-11"')
    assert events_of(billing, "r") == [
        "ExecutionStarted",
        *("InvokeScheduled", "InvokeStarted", "InvokeCompleted"),
        "ExecutionCompleted",
    ]
    assert closed(billing) == ["2026-11"]
    row = billing.execute("select workflow, state, queue from durable.runs").fetchone()
    assert row == ("sql://billing.close", "completed", "sql://billing.close")
    assert serve(billing) == {"served": 0}


def test_names_and_arguments(billing: Connection, clock: Clock) -> None:
    """A service is named as SQL names it, in any case; arguments go by name or position."""
    ask(billing, start("a", '{"by": "ann", "month": "2026-10"}', workflow="SQL://Billing.CLOSE"))
    ask(billing, start("b", '["2026-09", "bob"]', workflow='sql://"billing".close'))
    assert [serve(billing)["served"], serve(billing)["served"]] == [1, 1]
    rows = billing.execute("select month, by from billing.closed order by 1").fetchall()
    assert rows == [("2026-09", "bob"), ("2026-10", "ann")]
    # the same key is the same run, however it was written
    first = ask(billing, start(None, '["x"]', workflow="sql://billing.close", key="k"))  # type: ignore[arg-type]
    again = ask(billing, start(None, '["x"]', workflow="sql://Billing.Close", key="k"))  # type: ignore[arg-type]
    assert first == again


def test_only_what_is_served_can_be_started(billing: Connection) -> None:
    """No function is called because somebody named it."""
    assert refusal(billing, start("r", "[]", workflow="sql://pg_catalog.now")) == "WF001"
    assert refusal(billing, start("r", "[]", workflow="sql://nothing")) == "WF004"
    ask(billing, start("r", "[]", workflow="sql://pg_catalog.now", any_workflow=True))
    assert serve(billing) == {"served": 0}
    assert ask(billing, ("select durable.services_due_v1()", ())) == (-1,)
    assert ask(billing, ("select durable.serve('pg_catalog.now()')", ())) == ("sql://pg_catalog.now",)
    assert serve(billing)["served"] == 1
    assert ask(billing, ("select durable.unserve('pg_catalog.now')", ())) == (True,)
    assert ask(billing, ("select durable.unserve('sql://pg_catalog.now')", ())) == (False,)


def test_a_failure_is_taken_back_recorded_and_tried_again(billing: Connection, clock: Clock) -> None:
    """Nothing of a failed attempt is left; after its attempts the run is rejected with the SQLSTATE."""
    ask(billing, start("r", '["BI001"]', workflow="sql://billing.refuse"))
    assert serve(billing) == {"served": 1, "hints": [], "settled": False}
    assert closed(billing) == []
    assert (promise_of(billing, "r"), task_of(billing, "r")) == (("pending", None), ("pending", 1, None))
    assert ask(billing, ("select durable.services_due_v1()", ())) == (1000,)
    assert serve(billing) == {"served": 0}
    clock.advance(1000)
    assert serve(billing) == {"served": 1, "hints": [], "settled": True}
    state, error = promise_of(billing, "r") or ("", "")
    said = json.loads(error)
    assert (state, said["type"], said["message"], said["kind"]) == (
        "rejected",
        "SqlError",
        "refused",
        "UserError",
    )
    assert (said["data"]["sqlstate"], said["data"]["hint"]) == ("BI001", "the hint")
    assert types_of(billing, "r") == [
        *("execution_started", "first_attempt_failed", "last_attempt_failed", "execution_failed"),
    ]
    assert closed(billing) == []


@pytest.mark.parametrize(
    ("args", "sqlstate"),
    [("[1, 2, 3]", "WF004"), ('{"nobody": 1}', "WF004"), ("[]", "WF004")],
)
def test_a_call_that_is_wrong_is_not_tried_again(
    billing: Connection, clock: Clock, args: str, sqlstate: str
) -> None:
    """Wrong arguments fail the run at once, with what the function takes."""
    ask(billing, start("r", args, workflow="sql://billing.close"))
    assert serve(billing)["settled"] is True
    said = json.loads((promise_of(billing, "r") or ("", ""))[1])
    assert said["data"]["sqlstate"] == sqlstate
    assert "billing.close(month text, by text DEFAULT 'nobody'::text)" in said["data"]["hint"]
    assert said["retryable"] is False


def test_a_dropped_function(billing: Connection, clock: Clock) -> None:
    """Its runs fail and say so; one that is made again is found."""
    billing.execute("drop function billing.close(text, text)")
    assert ask(billing, ("select is_there from durable.services where name = 'sql://billing.close'", ())) == (
        False,
    )
    ask(billing, start("r", '["m"]', workflow="sql://billing.close"))
    assert serve(billing)["settled"] is True
    said = json.loads((promise_of(billing, "r") or ("", ""))[1])
    assert (said["data"]["sqlstate"], said["message"]) == (
        "WF001",
        "There is no function 'billing.close(text,text)'.",
    )
    billing.execute(
        "create function billing.close(m text, n text default '') returns text language sql as 'select m'"
    )
    ask(billing, start("r2", '["m"]', workflow="sql://billing.close"))
    assert serve(billing)["settled"] is True
    assert promise_of(billing, "r2") == ("resolved", '"m"')


def test_a_promise_of_the_protocol(billing: Connection, clock: Clock) -> None:
    """A targeted promise is served too: its parameter is the arguments, its value the result; it has no
    journal, and its attempts are counted by its task's version."""
    text = "select state from durable.promise_create(%s, %s, %s, p_tags => %s::jsonb)"
    tags = json.dumps({"resonate:target": "sql://Billing.close"})
    ask(billing, (text, ("p", NEVER, '{"month": "2026-08"}', tags)))
    assert serve(billing)["settled"] is True
    assert promise_of(billing, "p") == ("resolved", '"2026-08"')
    tags = json.dumps({"resonate:target": "sql://billing.refuse"})
    ask(billing, (text, ("q", NEVER, '["BI001"]', tags)))
    assert serve(billing)["settled"] is False
    clock.advance(1000)
    assert serve(billing)["settled"] is True
    assert (promise_of(billing, "q") or ("",))[0] == "rejected"
    ask(billing, (text, ("none", NEVER, None, tags)))
    assert serve(billing)["settled"] is True
    assert "takes 0 arguments" in (promise_of(billing, "none") or ("", ""))[1]


def test_a_child_run_wakes_its_parent(billing: Connection, clock: Clock) -> None:
    """A workflow that calls a service is woken by its result, also after failed attempts."""
    held = begin_run(billing, "r")
    child = run(0, name="sql://Billing.close", param='["2026-07"]')
    answer = take_turn(billing, "W", report(held, commands=[child]))
    assert answer.raw["hints"] == ["sql://billing.close"]
    take_turn(billing, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    assert task_of(billing, "r") == ("suspended", 1, None)
    assert serve(billing) == {"served": 1, "hints": ["q-r"], "settled": True}
    assert (task_of(billing, "r") or ("",))[0] == "pending"
    assert types_of(billing, "r") == [
        *("execution_started", "child_run_scheduled", "execution_awaiting", "child_run_started"),
        *("open_child_settled", "execution_resumed"),
    ]
    assert closed(billing) == ["2026-07"]


def test_a_child_that_is_no_service(billing: Connection, clock: Clock) -> None:
    """A name that cannot be a function's sets the run aside and says so."""
    held = begin_run(billing, "r")
    answer = take_turn(billing, "W", report(held, commands=[run(0, name="sql://a.b.c")]))
    assert answer.of(held) == ("ok", "halted")
    (problem,) = ask(billing, ("select problem ->> 'message' from durable.runs where id = 'r'", ()))
    assert problem == "child 0: 'sql://a.b.c' is no service"


def test_cancel_pause_and_deadline(billing: Connection, clock: Clock) -> None:
    """They do with a service's run what they do with any: what never ran ends at once, a paused one is not
    called, and nothing is called after the deadline."""
    ask(billing, start("c", '["c"]', workflow="sql://billing.close"))
    assert ask(billing, ("select durable.cancel('c')", ())) == ("cancelled",)
    ask(billing, start("p", '["p"]', workflow="sql://billing.close"))
    ask(billing, ("select durable.pause('p')", ()))
    ask(billing, start("d", '["d"]', workflow="sql://billing.close", timeout="1 second", delay="500 ms"))
    assert serve(billing) == {"served": 0}
    clock.advance(1000)
    assert serve(billing) == {"served": 0}
    assert closed(billing) == []
    ask(billing, ("select durable.resume('p')", ()))
    assert serve(billing)["served"] == 1
    assert closed(billing) == ["p"]


def test_a_cancelled_one_between_attempts(billing: Connection, clock: Clock) -> None:
    """One that failed once and is cancelled ends as cancelled at the next call, and is not called again."""
    ask(billing, start("r", '["BI001"]', workflow="sql://billing.refuse"))
    serve(billing)
    assert ask(billing, ("select durable.cancel('r', '\"enough\"')", ())) == ("cancelling",)
    assert serve(billing)["settled"] is True
    state, error = promise_of(billing, "r") or ("", "")
    assert (state, json.loads(error)["message"]) == ("rejected_canceled", "enough")
    assert types_of(billing, "r") == [
        *("execution_started", "first_attempt_failed", "cancel_requested", "execution_cancelled"),
    ]


def test_functions_that_cannot_be_served(billing: Connection) -> None:
    """Procedures, triggers' functions, records without columns and wrong options are refused."""
    billing.execute("create procedure billing.p() language sql as 'select 1'")
    billing.execute(
        "create function billing.t() returns trigger language plpgsql as 'begin return null; end'"
    )
    billing.execute("create function billing.r() returns record language sql as 'select 1, 2'")
    billing.execute("create function billing.e(a anyelement) returns int language sql as 'select 1'")
    for function in ("p()", "t()", "r()", "e(anyelement)"):
        assert (
            refusal(billing, ("select durable.serve(%s::regprocedure)", (f"billing.{function}",))) == "WF004"
        )
    for options in ("attempts => 0", "backoff => '-1 s'", "timeout => '0'"):
        call = f"select durable.serve('billing.close(text,text)', {options})"
        assert refusal(billing, (call, ())) == "WF004"


def test_a_backlog_costs_nothing(billing: Connection, clock: Clock) -> None:
    """Asking what is due, picking a task and serving it read a few tasks, however many are queued or wait for
    their moment."""
    many = "array(select jsonb_build_array(g || %s) from generate_series(1, 3000) g)"
    start_many = f"select count(*) from durable.start_many('sql://billing.close', {many}, priority => %s{{}})"
    billing.execute(start_many.format("").encode(), ("a", 1))
    billing.execute(start_many.format(", delay => '1 hour'").encode(), ("b", 2))
    reads = "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = '_tasks'"
    for call in (
        "select durable.services_due_v1()",
        "select * from durable.next_service_v1()",
        "select durable.serve_v1(n.id) from durable.next_service_v1() n",
    ):
        (before,) = ask(billing, (reads, ()))
        billing.execute(call.encode())
        (after,) = ask(billing, (reads, ()))
        assert after - before < 250, call


def test_a_cancellation_wins_over_a_running_function(dsn: str) -> None:
    """Nobody waits for a function that runs: a cancellation that comes meanwhile ends the run, and what the
    function wrote is taken back. Two sessions do not call it at once."""
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as other:
        conn.execute(FUNCTIONS)
        conn.execute("create table billing.gate (n int)")
        conn.execute("insert into billing.gate values (1)")
        conn.execute(
            "create function billing.gated(month text) returns void language sql as $$ "
            "insert into billing.closed values (month, 'gated'); select null from billing.gate for update $$"
        )
        conn.execute("select durable.serve('billing.gated(text)')")
        ask(conn, start("r", '["r"]', workflow="sql://billing.gated"))
        answers: list[Any] = []
        with psycopg.connect(dsn) as holder:
            holder.execute("select from billing.gate for update")
            thread = threading.Thread(target=lambda: answers.append(serve(conn)))
            thread.start()
            waiting, end = "select count(*) from pg_locks where not granted", time.monotonic() + 20
            while other.execute(waiting).fetchone() == (0,):
                assert time.monotonic() < end
            other.execute("set statement_timeout = '10s'")
            assert serve(other) == {"served": 0}
            assert ask(other, ("select durable.cancel('r')", ())) == ("cancelled",)
            holder.rollback()
            thread.join()
        assert answers == [{"served": 0, "hints": [], "settled": False}]
        assert closed(other) == []
        assert promise_of(other, "r") == ("rejected_canceled", promise_of(other, "r")[1])  # type: ignore[index]


def test_psql_alone(dsn: str) -> None:
    """With nothing but psql and durable.tick(): functions are served, runs start, fail, are signalled and
    waited for, and their results are read."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(FUNCTIONS)
        conn.execute("select durable.serve('billing.close(text,text)')")
        conn.execute("select durable.serve('billing.refuse(text,text)', attempts => 2, backoff => '0')")
        conn.execute(
            "select durable.start('sql://billing.close', jsonb_build_array(g), id => 'r' || g) "
            "from generate_series(1, 5) g"
        )
        ask(conn, start("bad", '["BI001"]', workflow="sql://billing.refuse"))
        conn.execute("select durable.create_promise('timer', timeout => '1 millisecond')")
        rounds, more = 0, True
        while more or promise_of(conn, "timer") == ("pending", None):
            more = ask(conn, ("select (durable.tick() ->> 'more')::boolean", ()))[0]
            rounds += 1
            assert rounds < 200
        assert closed(conn) == ["1", "2", "3", "4", "5"]
        states = conn.execute("select id, state from durable.runs order by id").fetchall()
        assert states == [("bad", "failed"), *((f"r{n}", "completed") for n in range(1, 6))]
        assert ask(conn, ("select value from durable.result('r3')", ())) == ("3",)


def test_among_others(dsn: str) -> None:
    """Several sessions serve while others cancel, pause, resume and settle the same runs: a run is completed
    if and only if its function's row is there, once; nobody deadlocks."""
    count = 60
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(FUNCTIONS)
        conn.execute("select durable.serve('billing.late(text)')")
        many = "array(select jsonb_build_array('r' || g) from generate_series(1, %s) g)"
        ids = "array(select 'r' || g from generate_series(1, %s) g)"
        start_many = f"select count(*) from durable.start_many('sql://billing.late', {many}, {ids})"
        conn.execute(start_many.encode(), (count, count))
        errors: list[BaseException] = []

        def play(statement: str, step: int) -> None:
            try:
                with psycopg.connect(dsn, autocommit=True) as own:
                    for n in range(1, count + 1, step):
                        try:
                            own.execute(statement.replace("{}", f"'r{n}'").encode())
                        except psycopg.Error as error:
                            if error.sqlstate != "WF003":
                                raise
            except BaseException as error:  # told to the test
                errors.append(error)

        def serve_all() -> None:
            try:
                with psycopg.connect(dsn, autocommit=True) as own:
                    end = time.monotonic() + 60
                    live = "select count(*) from durable._tasks where state = 'pending'"
                    while own.execute(live).fetchone() != (0,) and time.monotonic() < end:
                        own.execute("select durable.tick()")
            except BaseException as error:  # told to the test
                errors.append(error)

        threads = [threading.Thread(target=serve_all) for _ in range(3)]
        for statement, step in (
            ("select durable.cancel({})", 5),
            ("select durable.pause({})", 3),
            ("select durable.resolve({}, '0')", 7),
        ):
            threads.append(threading.Thread(target=play, args=(statement, step)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        play("select durable.resume({})", 3)
        serve_all()
        assert errors == []
        rows = conn.execute(
            "select r.state, (select count(*) from billing.closed c where c.month = r.id), r.result "
            "from durable.runs r"
        ).fetchall()
        assert len(rows) == count
        assert {(state, there, result) for state, there, result in rows} <= {
            ("completed", 1, None),
            ("completed", 0, 0),
            ("cancelled", 0, None),
        }
