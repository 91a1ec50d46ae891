"""Law: people read by name what a run waits for, in every view of runs alike."""

from __future__ import annotations

from typing import Any

from tests.features.sql.test_remote_calls import rpc
from tests.support.clock import Clock
from tests.support.rows import shop, until
from tests.support.stages import suspended
from tests.support.verbs import (
    Connection,
    adopt,
    ask,
    begin_run,
    begun,
    create,
    done,
    promise,
    receive,
    report,
    send,
    settle,
    suspend,
    take_turn,
    timer,
)


def test_a_role_that_may_read_runs(conn: Connection, clock: Clock) -> None:
    """A role with a right to the view alone reads the names."""
    suspended(conn, receive(0, "approve"), promise(1), timer(2, 50), kind="all")
    role = "reader_of_runs"
    conn.execute(f"create role {role}".encode())
    conn.execute(f"grant usage on schema durable to {role}; grant select on durable.runs to {role}".encode())
    conn.execute(f"set local role {role}".encode())
    found = conn.execute("select waits_for from durable.runs").fetchall()
    conn.execute("reset role")
    assert found == [(["signal approve", "promise label [1]", "timer [2]"],)]


def waits_for(conn: Connection, id_: str = "r") -> Any:
    """The column, which is the same in both views that have live runs."""
    (live,) = ask(conn, ("select waits_for from durable.live where id = %s", (id_,)))
    assert ask(conn, ("select waits_for from durable.newest where id = %s", (id_,))) == (live,)
    return live


def test_waits_have_names(conn: Connection, clock: Clock) -> None:
    """Signals, rows, promises, runs of others, remote calls and open steps are named; waits that are over are
    left out, and a run that ended waits for nothing."""
    shop(conn)
    ask(conn, create("p", external="true"))
    begin_run(conn, "other")
    held = begin_run(conn, "r")
    assert waits_for(conn) == []
    take_turn(conn, "W", report(held, outcomes=[begun(0, name="charge")]))
    assert waits_for(conn) == ["step charge"]
    commands = [receive(1, "approve"), until(2), promise(3), adopt(4, "other"), adopt(5, "p"), rpc(6)]
    answer = take_turn(conn, "W", report(held, outcomes=[done(0, name="charge")], commands=commands))
    end = suspend(*range(1, 7), kind="all")
    take_turn(conn, "W", report(held, end=end, seen=answer.next_of(held)))
    names = ['row orders.paid {"id": 1}', "promise label [3]", "run other (w)"]
    assert waits_for(conn) == ["signal approve", *names, "promise p", "remote call f [6]"]
    ask(conn, send("r", "approve"))
    ask(conn, settle("p"))
    assert waits_for(conn) == [*names, "remote call f [6]"]
    ask(conn, settle("r"))
    assert ask(conn, ("select waits_for from durable.newest where id = 'r'", ())) == ([],)
