"""A database in which there is a row of every table that rows of other tables may contradict.

What lives here: the inhabitants of `inhabitants.py` and of the tests of calls together, with what neither
has: runs that failed, were halted or were forked, large values, waits for rows, progress, a late start.
No law is stated here.
"""

from __future__ import annotations

import json

from tests.features.calls.test_call_laws import everything as calls
from tests.support.inhabitants import everything as runs
from tests.support.laboratory import ClockInside
from tests.support.rows import shop, wait_for
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    captured,
    claim,
    complete,
    done,
    fail,
    halt,
    report,
    run,
    start,
    take_turn,
    tick,
    timer,
)

LONG = "a" * 600


def populate(conn: Connection) -> None:
    """All of it, as the scene of a laboratory."""
    runs(conn)
    calls(conn)
    clock = ClockInside(conn)
    shop(conn)
    wait_for(conn, "row")
    ended(conn, clock)
    large(conn)
    hello = "select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')"
    for statement in (
        hello,
        "select durable.fork('e', new_id => 'fork')",
        "select durable.publish('w', 'served')",
        "select durable.schedule('daily', '0 0 * * *', workflow => 'w')",
    ):
        conn.execute(statement.encode())
    ask(conn, start("asleep", "[1]", key="k", delay="1 hour"))


def ended(conn: Connection, clock: ClockInside) -> None:
    """Runs that failed, were halted, or completed after a child run, a timer and captured values."""
    take_turn(conn, "W", report(begin_run(conn, "bad"), end=fail()))
    take_turn(conn, "W", report(begin_run(conn, "stuck"), end=halt()))
    held = begin_run(conn, "par")
    commands = [run(0, queue="nursery"), timer(1, 5), captured(2, "123", kind="time")]
    take_turn(conn, "W", report(held, commands=commands))
    take_turn(conn, "V", report(claim(conn, "V", "nursery"), end=complete("4")))
    clock.advance(10)
    tick(conn)
    query = "select next_seq from durable._executions where execution = %s"
    (seen,) = ask(conn, (query, (held.execution,)))
    take_turn(conn, "W", report(held, end=complete(), seen=seen))


def large(conn: Connection) -> None:
    """A run with large values, one of which begins as another one does, and with progress."""
    conn.execute("select durable.set_setting('large_value_bytes', '1024')")
    held = begin_run(conn, "large")
    texts = (json.dumps([LONG, LONG, "c"]), json.dumps([LONG, LONG, "c", LONG + LONG]))
    take_turn(conn, "W", report(held, outcomes=[done(n, text) for n, text in enumerate(texts)]))
    conn.execute("select durable.set_progress('large', 3, 5, 'note')")
