"""Law: a run that ends without its code leaves no child run behind but those that it has detached."""

from __future__ import annotations

import pytest

from tests.core.sql.test_end_children import asked, family
from tests.core.sql.test_workers_rules import hello
from tests.support.clock import Clock
from tests.support.stages import state
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    cancel,
    claim,
    complete,
    continue_as_new,
    promise_of,
    refuse,
    report,
    run,
    take_turn,
    task_of,
    tick,
)


@pytest.mark.parametrize("how", ["deadline", "force", "grace", "refused"])
def test_what_ends_without_its_code(conn: Connection, clock: Clock, how: str) -> None:
    """A run that passes its deadline or its grace, or that no code can go on with, leaves no child behind but
    those that it has detached."""
    family(conn, timeout="5 seconds")
    if how == "deadline":
        clock.advance(5000)
    elif how == "force":
        ask(conn, cancel("r", force=True))
    elif how == "grace":
        ask(conn, cancel("r", grace_ms=100))
        clean = claim(conn, "W", "q-r")
        take_turn(conn, "W", report(clean, commands=[run(3, queue="q-3")], seen=99))
        claim(conn, "W", "q-3")
        clock.advance(100)
    else:
        take_turn(conn, "W", report(claim(conn, "W", "q-1"), end=complete()))
        take_turn(conn, "W", report(claim(conn, "W", "q-r"), end=refuse(), seen=99))
    tick(conn)
    tick(conn)
    states = {id_: state(conn, id_) for id_ in ("r", "r.0", "r.0.0", "r.1", "r.2")}
    assert states.pop("r") in ("timed_out", "cancelled", "failed")
    assert states.pop("r.2") == "queued"
    assert states.pop("r.1") == ("completed" if how == "refused" else "cancelled")
    assert set(states.values()) <= {"cancelled", "cancelling"}, states
    if how == "grace":
        assert state(conn, "r.3") == "cancelling"
    assert asked(conn) == []


def test_a_run_that_goes_on_keeps_its_children(conn: Connection) -> None:
    """Its journal ends in the turn in which no code can go on with another run; it lives in the next one."""
    hello(conn)
    goes_on, refused = begin_run(conn, "g"), begin_run(conn, "r")
    take_turn(conn, "W", report(goes_on, commands=[run(0, queue="q-0")]))
    reports = [report(goes_on, end=continue_as_new(), seen=99), report(refused, end=refuse(), seen=99)]
    take_turn(conn, "W", *reports)
    assert (state(conn, "r"), asked(conn)) == ("failed", [])
    tick(conn)
    assert (state(conn, "g"), state(conn, "g.0")) == ("queued", "queued")


def test_older_runs_leave_their_children(conn: Connection, clock: Clock) -> None:
    """A run that was born under older rules keeps to them."""
    parent = begin_run(conn, "r", timeout="5 seconds")
    take_turn(conn, "W", report(parent, commands=[run(0, queue="q-0")]))
    clock.advance(5000)
    tick(conn)
    assert (state(conn), state(conn, "r.0"), asked(conn)) == ("timed_out", "queued", [])


@pytest.mark.unlawful
def test_the_law_finds_a_child_that_was_left(conn: Connection) -> None:
    """A run that ends with a live child breaks the law, unless the child is to be cancelled."""
    hello(conn)
    parent = begin_run(conn, "r")
    take_turn(conn, "W", report(parent, commands=[run(0, queue="q-0"), run(1, queue="q-1", abandon=True)]))
    take_turn(conn, "W", report(parent, end=complete(), seen=3))
    assert promise_of(conn, "r") is not None and task_of(conn, "r.0") is not None
    broken = conn.execute("select law, id from durable.check()").fetchall()
    assert broken == [("no_child_outlives_its_parent", "r.0")]
    conn.execute("insert into durable._cancellations (id, reason) values ('r.0', '1')")
    assert conn.execute("select law, id from durable.check()").fetchall() == []
