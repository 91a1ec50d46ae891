"""Law: whatever signals, cancellations, generations and adopted promises do to runs keeps the laws of
transitions; and each of these laws finds the step that breaks it.

The steps that break them are the engine's own with one function that forgets its work, or a hand in the
tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support import history as transitions
from tests.support import run_laws
from tests.support.clock import Clock
from tests.support.laboratory import Laboratory
from tests.support.steps import steps
from tests.support.verbs import (
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    cancel,
    cancelled,
    claim,
    complete,
    continue_as_new,
    create,
    halt,
    journal,
    promise,
    receive,
    refusal,
    release,
    report,
    run,
    send,
    settle,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)

ALL = 99  # a coroutine that has seen whatever there is
NOW = "durable._now_ms()"
HEAD = "(select head from durable._promises where id = '{}')"
H = "update durable._executions set {} where id = '{}'"
APPEND = f"select durable._append(array[row({HEAD}, '{{}}', {{}})::durable._event], {NOW})"
ANEW = (
    f"select durable._begin_generation('{{}}', {HEAD}, array[0], "
    f"row('continue', null, null, '[]', null, null, null, null)::durable._ending, {NOW})"
)
FORGETS = "create or replace function durable.{} returns {} language sql as $$ select {} $$"


@dataclass(frozen=True)
class Forbidden:
    """A step that is not allowed.

    Args:
        step: what breaks the law, in one call.
        first: what is done before anybody watches.
        also: other laws that the same step breaks.
    """

    step: str
    first: str = "select 1"
    also: str = ""


FORBIDDEN: dict[str, Forbidden] = {
    "preserved_journal": Forbidden(
        f"update durable._journal set child = 9 where execution = {HEAD.format('held')}"
    ),
    "consistent_run_status_edge_admissible": Forbidden(
        H.format("status = 'running', cancel_until = null", "asked")
    ),
    "preserved_run_birth_fields_immutable": Forbidden(H.format("abandoned = true", "held")),
    "consistent_request_of_cancellation_is_told_once": Forbidden(H.format("cancel_seq = 1", "held")),
    "consistent_request_of_cancellation_reaches_the_family": Forbidden(
        f"select durable._request_cancel(array['held'], null, 9, {NOW})"
    ),
    "consistent_request_of_cancellation_finds_a_worker": Forbidden(
        f"{H.format('cancel_seq = next_seq', 'asleep')};"
        f"{APPEND.format('asleep', 'cancel_requested', 'null, null, null, null, null')};"
        f"{H.format(f'cancel_until = {NOW}', 'asleep')}"
    ),
    "consistent_grace_is_kept": Forbidden(
        f"select set_config('test.step', 'tick', true);"
        f" select durable._cancel_at_once(array['asked'], null, {NOW})"
    ),
    "preserved_signals": Forbidden("update durable._signals set data = '2' where name = 'lies'"),
    "preserved_no_signal_after_the_end": Forbidden(
        f"insert into durable._signals (execution, name, delivery) values ({HEAD.format('over')}, 'go', 1)",
        also="consistent_signals_are_counted",
    ),
    "consistent_signals_are_counted": Forbidden(
        "update durable._inboxes set delivered = 2 where name = 'lies'"
    ),
    "consistent_signal_ends_a_wait": Forbidden(
        "select durable.signal('held', 'go')",
        FORGETS.format(
            "_receipts(p_executions bigint[], p_name text, p_deliveries integer[], p_children integer[],"
            " p_now bigint)",
            "text[]",
            "'{}'::text[]",
        ),
        also="consistent_receive_is_kept",
    ),
    "consistent_receive_is_kept": Forbidden("update durable._inboxes set receiver = null where receiver = 0"),
    "consistent_resumption_wakes": Forbidden(
        APPEND.format("asleep", "execution_resumed", "null, null, null, null, null")
    ),
    "consistent_generation_follows_an_end": Forbidden(
        f"select durable._next_head({HEAD.format('plain')}, 0, '[]', null, null, {NOW})"
    ),
    "consistent_signals_are_carried": Forbidden(
        ANEW.format("held", "held"),
        FORGETS.format(
            "_carry_signals(p_old bigint, p_new bigint, p_unseen integer[], p_all boolean)",
            "void",
            "",
        ),
    ),
    "consistent_generation_lets_go": Forbidden(
        ANEW.format("held", "held"),
        FORGETS.format("_let_children_go(p_id text, p_execution bigint)", "void", ""),
    ),
    "consistent_adoption_is_in_the_journal": Forbidden(
        "insert into durable._callbacks (awaited_id, awaiter_id, child) values ('plain', 'held', 9)"
    ),
    "consistent_adoption_ends_in_the_journal": Forbidden(
        "select from durable.promise_settle('theirs', 'resolved', '1')",
        FORGETS.format(
            "_adopter_events(p_settled durable._settled[])", "durable._event[]", "'{}'::durable._event[]"
        ),
    ),
}


def inhabit(conn: Connection) -> None:
    """Runs of every kind: held with a receive that waits (child 0), a child run (1), an adopted promise (2)
    and a signal that lies there; asleep on a receive; asked to end; plain; over."""
    ask(conn, create("theirs", external="true"))
    held, asleep = begin_run(conn, "held"), begin_run(conn, "asleep")
    commands = [receive(0), run(1, queue="kids"), adopt(2, "theirs")]
    take_turn(conn, "W", report(held, commands=commands))
    ask(conn, send("held", "lies"))
    take_turn(conn, "W", report(asleep, commands=[receive(0, "wake")], end=suspend(0, kind="signal")))
    begin_run(conn, "asked")
    ask(conn, cancel("asked", grace_ms=1_000))
    begin_run(conn, "plain")
    over = begin_run(conn, "over")
    take_turn(conn, "W", report(over, end=complete()))


@pytest.mark.parametrize("law", FORBIDDEN)
def test_a_forbidden_transition_is_reported(laboratory_at_rest: Laboratory, law: str) -> None:
    """The law is named, and none that the same step does not break."""
    hand = FORBIDDEN[law]
    with laboratory_at_rest.transaction(lawful=False, scene=inhabit) as conn:
        conn.execute(hand.first.encode())
        transitions.install_into(conn)
        assert transitions.broken(conn) == []
        conn.execute(hand.step.encode())
        assert {found for found, _, _ in transitions.broken(conn)} == {law, *hand.also.split()}


def signals(conn: Connection, clock: Clock) -> None:
    """Buffered, waited for, sent twice, taken over by a receive, carried past a cancellation, refused."""
    held = begin_run(conn, "s")
    assert ask(conn, send("s", key="k")) == (1, True, False)
    assert ask(conn, send("s", key="k")) == (1, False, False)
    ask(conn, send("s"))
    take_turn(conn, "W", report(held, commands=[receive(0)]))
    take_turn(conn, "W", report(held, commands=[receive(1), receive(2, "other")]))
    ask(conn, send("s", "other"))
    take_turn(conn, "W", report(held, commands=[receive(3)], end=suspend(3, kind="signal"), seen=ALL))
    assert task_of(conn, "s") == ("suspended", 1, None)
    ask(conn, send("s", "unread"))
    assert task_of(conn, "s") == ("suspended", 1, None)
    assert ask(conn, send("s")) == (3, True, True)
    held = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(held, commands=[receive(4)], end=release(5_000)))
    assert ask(conn, send("s")) == (4, True, True)
    held = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(held, commands=[receive(5)]))
    ask(conn, cancel("s"))
    ask(conn, send("s"))
    take_turn(conn, "W", report(held, end=cancelled(), seen=ALL))
    assert refusal(conn, send("s")) == "WF003"
    assert types_of(conn, "s").count("signal_received") == 5


def cancellations(conn: Connection, clock: Clock) -> None:
    """Of a family with children of every kind, twice, by force, at the end of the grace; of runs that sleep,
    are put off or set aside; of children by themselves."""
    kinds = ("held", "new", "left", "asleep", "late", "halted")
    held = begin_run(conn, "c")
    commands = [run(number, queue=name, abandon=name == "left") for number, name in enumerate(kinds)]
    take_turn(conn, "W", report(held, commands=commands))
    for name, end in (
        ("held", None),
        ("left", None),
        ("asleep", suspend(0)),
        ("late", release(9_000)),
        ("halted", halt()),
    ):
        kid = claim(conn, "K", name)
        take_turn(conn, "K", report(kid, commands=[timer(0, 50_000)], end=end))
    assert ask(conn, cancel("c.3")) == ("cancelling", True)
    assert ask(conn, cancel("c", '"enough"', grace_ms=1_000)) == ("cancelling", True)
    assert ask(conn, cancel("c")) == ("cancelling", False)
    assert [types_of(conn, f"c.{number}").count("cancel_requested") for number in range(6)] == [
        1,
        1,
        0,
        1,
        1,
        1,
    ]
    take_turn(conn, "W", report(held, commands=[run(6, queue="cleanup")], seen=ALL))
    claim(conn, "K", "late")
    clock.advance(1_000)
    tick(conn)
    assert types_of(conn, "c")[-1:] == ["execution_cancelled"]
    other = begin_run(conn, "f")
    take_turn(conn, "W", report(other, commands=[run(0, queue="f")]))
    assert ask(conn, cancel("f", force=True)) == ("cancelled", False)
    parked = begin_run(conn, "p")
    take_turn(conn, "W", report(parked, commands=[receive(0)], end=suspend(0, kind="signal")))
    assert ask(conn, cancel("p")) == ("cancelling", True)
    parked = claim(conn, "W", "q-p")
    take_turn(conn, "W", report(parked, end=complete()))
    assert refusal(conn, cancel("p")) == "WF003"


def generations(conn: Connection, clock: Clock) -> None:
    """Twice anew, with signals that lie there, a receive that waits, children and an adopted promise that go
    on by themselves; the last one is asked to end."""
    ask(conn, create("x", external="true"))
    held = begin_run(conn, "g")
    commands = [run(0, queue="old"), adopt(1, "x"), receive(2, "never"), timer(3, 5_000)]
    take_turn(conn, "W", report(held, commands=commands))
    for payload in ("1", "2"):
        ask(conn, send("g", payload=payload, key=payload))
    take_turn(conn, "W", report(held, end=continue_as_new(on=4), seen=ALL))
    ask(conn, settle("x"))
    ask(conn, settle("g.0"))
    held = claim(conn, "W", "q-g")
    assert held.first_child == 4
    assert ask(conn, send("g", key="1")) == (1, False, False)
    take_turn(conn, "W", report(held, commands=[receive(4)]))
    take_turn(conn, "W", report(held, end=continue_as_new(on=5), seen=ALL))
    clock.advance(5_000)
    tick(conn)
    assert ask(conn, cancel("g")) == ("cancelling", True)
    held = claim(conn, "W", "q-g")
    take_turn(conn, "W", report(held, end=cancelled()))
    assert [row[0] for row in conn.execute("select status from durable.generations('g')")] == [
        "completed",
        "completed",
        "cancelled",
    ]


def adoptions(conn: Connection, clock: Clock) -> None:
    """Pending and settled ones, the same one twice, internal ones, runs of others; ended by a verdict and by
    a deadline, waited for by runs that are held, asleep, set aside and over; copied by a fork."""
    for name in ("a", "b", "settled", "other"):
        ask(conn, create(name, external="true"))
    ask(conn, create("due", clock.now_ms + 1_000))
    ask(conn, settle("settled"))
    begin_run(conn, "theirs")
    held = begin_run(conn, "d")
    names = ("a", "a", "settled", "due", "theirs", "other")
    commands = [*(adopt(number, name) for number, name in enumerate(names)), promise(6)]
    take_turn(conn, "W", report(held, commands=commands))
    ask(conn, settle("d.6"))
    ask(conn, ("select durable.fork('d', new_id => 'fork')", ()))
    ask(conn, settle("a"))
    told = [row[2] for row in read(conn, held) if row[1] == "child_settled"]
    assert told == [2, 6, 0, 1]
    assert take_turn(conn, "W", report(held, end=suspend(3), seen=ALL)).of(held) == ("ok", "suspended")
    clock.advance(1_000)
    tick(conn)
    assert task_of(conn, "d") == ("pending", 1, None)
    ask(conn, ("select durable.pause('d')", ()))
    ask(conn, settle("theirs"))
    ask(conn, ("select durable.resume('d')", ()))
    held = claim(conn, "W", "q-d")
    take_turn(conn, "W", report(held, commands=[promise(8), adopt(7, "b")], end=complete()))
    ask(conn, settle("b"))
    assert types_of(conn, "d").count("child_settled") == 6
    assert types_of(conn, "fork").count("child_settled") == 6


def read(conn: Connection, held: Held) -> list[list[object]]:
    """The journal of a held run."""
    rows: list[list[object]] = ask(conn, journal("W", held))[0]["rows"]
    return rows


@pytest.mark.parametrize(
    ("scene", "rows"),
    [
        (signals, ["signal_delivered", "signal_received", "execution_awaiting", "execution_resumed"]),
        (cancellations, ["cancel_requested", "execution_cancelled"]),
        (generations, ["execution_completed", "execution_started", "signal_delivered", "signal_received"]),
        (adoptions, ["promise_registered", "child_settled", "execution_awaiting"]),
    ],
    ids=["signals", "cancellations", "generations", "adoptions"],
)
def test_what_happens_to_runs_keeps_the_laws(
    conn: Connection, clock: Clock, history: str, scene: Callable[[Connection, Clock], None], rows: list[str]
) -> None:
    """A scene plays to its end, and every step keeps every law; rows of these types are in its record."""
    scene(conn, clock)
    types = {str(row["type"]) for step in steps(conn) for _, row in step.born("_journal")}
    assert types >= set(rows)


def test_no_law_of_runs_is_missed() -> None:
    """Every law has a step that breaks it."""
    assert set(FORBIDDEN) == set(run_laws.LAWS)
