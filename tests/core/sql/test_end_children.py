"""Law: a child run that its parent has left is cancelled by the next tick, with all that is below it."""

from __future__ import annotations

from tests.core.sql.test_workers_rules import hello
from tests.support.clock import Clock
from tests.support.stages import head, state
from tests.support.verbs import (
    Connection,
    Held,
    ask,
    begin_run,
    cancel,
    claim,
    report,
    run,
    suspend,
    take_turn,
    tick,
    types_of,
)

GRACE_MS = 30_000
CANCEL = {"do": "cancel"}


def family(conn: Connection, **options: object) -> tuple[Held, Held]:
    """A parent that waits for child 0, which runs and has a child that runs; and child 0."""
    hello(conn)
    parent = begin_run(conn, "r", **options)
    commands = [run(0, queue="q-0"), run(1, queue="q-1"), run(2, queue="q-2", abandon=True)]
    answer = take_turn(conn, "W", report(parent, commands=commands))
    child = claim(conn, "W", "q-0")
    answer = take_turn(
        conn,
        "W",
        report(parent, end=suspend(0, 1, 2, kind="any"), seen=answer.next_of(parent)),
        report(child, commands=[run(0, queue="q-00")]),
    )
    assert answer.of(parent) == ("ok", "suspended")
    claim(conn, "W", "q-00")
    return parent, child


def asked(conn: Connection) -> list[str]:
    """The runs that are to be cancelled."""
    return [id_ for (id_,) in conn.execute("select id from durable._cancellations order by number")]


def left_at(conn: Connection, id_: str, clock: Clock) -> int:
    """How much of its grace a run has."""
    return int(head(conn, "cancel_until", id_=id_)[0]) - clock.now_ms


def test_a_parent_cancels_a_child(conn: Connection, clock: Clock) -> None:
    """The request is recorded with the parent's report. A tick cancels what runs, with less grace below, and
    ends what never ran; the parent hears of the end as of any. A second request changes nothing."""
    hello(conn)
    parent = begin_run(conn, "r")
    take_turn(conn, "W", report(parent, commands=[run(0, queue="q-0"), run(1, queue="q-1")]))
    child = claim(conn, "W", "q-0")
    take_turn(conn, "W", report(child, commands=[run(0, queue="q-00")]))
    claim(conn, "W", "q-00")
    before = types_of(conn, "r")
    answer = take_turn(
        conn, "W", report(parent, commands=[CANCEL | {"child": 0}, CANCEL | {"child": 1}], seen=3)
    )
    assert (answer.of(parent), types_of(conn, "r")) == (("ok", "acquired"), before)
    assert asked(conn) == ["r.0", "r.1"] and state(conn, "r.0") == "running"
    assert tick(conn)["promises"] == 3 and asked(conn) == []
    assert [state(conn, id_) for id_ in ("r", "r.0", "r.0.0", "r.1")] == [
        *("running", "cancelling", "cancelling", "cancelled")
    ]
    assert (left_at(conn, "r.0", clock), left_at(conn, "r.0.0", clock)) == (GRACE_MS, GRACE_MS * 3 // 4)
    assert types_of(conn, "r") == [*before, "child_settled"]
    take_turn(conn, "W", report(parent, commands=[CANCEL | {"child": 0}, CANCEL | {"child": 1}], seen=4))
    clock.advance(10)
    assert tick(conn)["promises"] == 1 and asked(conn) == []
    assert left_at(conn, "r.0", clock) == GRACE_MS - 10
    assert types_of(conn, "r.0").count("cancel_requested") == 1


def test_a_family_shares_the_grace(conn: Connection, clock: Clock) -> None:
    """Who cancels a run gives its children three quarters of the grace, and cleans up after them."""
    family(conn)
    ask(conn, cancel("r", grace_ms=1000))
    assert [left_at(conn, id_, clock) for id_ in ("r", "r.0", "r.0.0")] == [1000, 750, 667]
