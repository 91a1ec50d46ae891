"""Law: a wait for a row meets writers of that row in every order of their statements and commits; a row that
is committed as it was waited for ends the wait, once; a row that never was so does not; and nobody's open
transaction keeps the engine waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.rows import arm, events, settle_rows, shop, until, waits
from tests.support.verbs import (
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    cancel,
    promise_of,
    report,
    settle,
    suspend,
    turn,
    types_of,
)
from tests.system.races.drama import Action, transaction
from tests.system.races.scenes import TICK, Endings, Scene, World, nobody_fails, play_in_every_order

Judge = Callable[[World, str | None], None]
PAID = "update orders set status = 'paid' where id = %s"
REFUNDED = "update orders set status = 'refunded' where id = %s"
NEW = "insert into orders (id, status) values (%s, 'paid')"


def number(world: World) -> int:
    """The order that this performance is about."""
    return sum(ord(letter) * 131**place for place, letter in enumerate(world.id)) % 10**9


def change(world: World, text: str) -> Call:
    """A statement about that order."""
    return text, (number(world),)


def repeatable(*actions: Call) -> list[Action]:
    """A transaction that keeps its first snapshot, which it takes at once."""
    return ["begin isolation level repeatable read; select 1", *actions, "commit"]


def order(world: World, status: str = "new") -> Held:
    """An order, and a run that does not wait for it yet."""
    ask(world.conn, ("insert into orders values (%s, %s) returning id", (number(world), status)))
    return begin_run(world.conn, world.id)


def registers(world: World, held: Held) -> Call:
    """The turn that begins to wait."""
    return turn("W", report(held, commands=[until(0, {"id": number(world)})], end=suspend(0), seen=held.next))


def outcome(world: World) -> str | None:
    """What became of the wait, once there is nothing to do at once any more; the state of its promise. The
    waits that are tested with pauses get their time."""
    for _ in range(3):
        settle_rows(world.conn)
        world.clock.advance(6_000)
    arm(world.conn)
    found = promise_of(world.conn, f"{world.id}.0")
    assert found is not None
    assert types_of(world.conn, world.id).count("child_settled") == (found[0] != "pending")
    assert events(world.conn) == 0
    assert [armed for _, armed in waits(world.conn)] == [True] * (found[0] == "pending")
    assert world.broken() == []
    settle_now(world)
    return str(found[0])


def settle_now(world: World) -> None:
    """Leave nothing for the next performance."""
    ask(world.conn, settle(f"{world.id}.0"))


def scene(
    writer: Callable[[World], Sequence[Action]],
    expected: Callable[[World], set[str]],
    *,
    status: str | None = "new",
    armed: bool = False,
    ticks: Sequence[Action] = (TICK, TICK),
    at_once: bool = False,
) -> Callable[[World], Scene]:
    """A run begins to wait, or waits already, while a writer is at work and the housekeeping goes round."""

    def play(world: World) -> Scene:
        if world.id == "plan":
            return Scene(programs=programs(world, turn("W")), judge=lambda endings: None)
        held = order(world, status) if status else begin_run(world.conn, world.id)
        call = registers(world, held)
        if armed:
            ask(world.conn, call)
            arm(world.conn)
        return Scene(programs=programs(world, call), judge=lambda endings: judge(world, endings))

    def programs(world: World, call: Call) -> dict[str, Sequence[Action]]:
        return {
            **({} if armed else {"worker": [call] if at_once else transaction(call)}),
            "writer": list(writer(world)),
            **({"tick": ticks} if ticks else {}),
        }

    def judge(world: World, endings: Endings) -> None:
        nobody_fails(endings)
        assert not any(ending.blocked for ending in endings.values()), endings
        assert outcome(world) in expected(world)

    return play


def woken(world: World) -> set[str]:
    """The wait is over."""
    return {"resolved"}


def asleep(world: World) -> set[str]:
    """It goes on."""
    return {"pending"}


def either(world: World) -> set[str]:
    """Whichever came first."""
    return {"pending", "resolved"}


def cancelled_while_it_is_tested(world: World) -> Scene:
    """A run that is ended while two rounds of housekeeping test its wait: whoever waits for the other, no two
    wait for each other, and the wait ends with the run."""
    held = order(world)
    ask(world.conn, registers(world, held))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        settle_rows(world.conn)
        assert promise_of(world.conn, f"{world.id}.0") == ("rejected_canceled", None)
        assert f"{world.id}.0" not in dict(waits(world.conn))
        assert events(world.conn) == 0

    return Scene(
        programs={
            "canceller": transaction(cancel(world.id, force=True)),
            "tick": transaction(TICK),
            "another": transaction(TICK),
        },
        judge=judge,
    )


def settled_by_three(world: World) -> Scene:
    """News that two rounds of housekeeping find while somebody settles the promise by hand: one verdict, one
    row in the journal, nothing left."""
    held = order(world)
    ask(world.conn, registers(world, held))
    settle_rows(world.conn)
    ask(world.conn, (f"{PAID} returning id", (number(world),)))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        settle_rows(world.conn)
        assert promise_of(world.conn, f"{world.id}.0") in (
            ("resolved", "1"),
            ("resolved", f'{{"id": {number(world)}, "total": null, "status": "paid"}}'),
        )
        assert types_of(world.conn, world.id) == [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ]
        assert (waits(world.conn), events(world.conn)) == ([], 0)

    return Scene(
        programs={
            "hand": transaction(settle(f"{world.id}.0")),
            "tick": transaction(TICK),
            "another": transaction(TICK),
        },
        judge=judge,
    )


SCENES: dict[str, Callable[[World], Scene]] = {
    "paid_while_it_registers": scene(lambda w: transaction(change(w, PAID)), woken),
    "inserted_while_it_registers": scene(lambda w: transaction(change(w, NEW)), woken, status=None),
    "housekeeping_in_an_older_transaction": scene(
        lambda w: transaction(change(w, PAID)),
        woken,
        ticks=["begin; select pg_current_xact_id()", TICK, "commit"],
        at_once=True,
    ),
    "paid_by_a_repeatable_reader": scene(lambda w: repeatable(change(w, PAID)), woken, at_once=True),
    "cancelled_while_it_is_tested": cancelled_while_it_is_tested,
    "settled_by_three": settled_by_three,
    "paid_and_undone": scene(lambda w: ["begin", change(w, PAID), ("rollback", ())], asleep),
    "there_and_back_in_one": scene(
        lambda w: transaction(change(w, PAID), change(w, REFUNDED)), asleep, ticks=()
    ),
    "refunded_while_it_registers": scene(lambda w: transaction(change(w, REFUNDED)), either, status="paid"),
    "paid_when_armed": scene(lambda w: transaction(change(w, PAID)), woken, armed=True),
    "there_and_back_in_two_when_armed": scene(
        lambda w: [*transaction(change(w, PAID)), *transaction(change(w, REFUNDED))], woken, armed=True
    ),
    "repeatable_reader_when_armed": scene(lambda w: repeatable(change(w, PAID)), woken, armed=True),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SCENES)
def test_writers_meet_a_wait(conn: Connection, clock: Clock, stage: Stage, name: str) -> None:
    """Every interleaving of a registering run, a writer and rounds of housekeeping."""
    shop(conn)
    play_in_every_order(conn, clock, stage, SCENES[name])
