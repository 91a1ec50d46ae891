"""Law: a run may wait for a promise that is not its own: its journal takes it in under a number of the run's
own, and tells its end from where it is stored (R13). It holds for workers and for protocol clients."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    Held,
    acquire,
    adopt,
    ask,
    begin_run,
    cancel,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    join_set,
    journal,
    park,
    pick,
    promise,
    promise_of,
    receive,
    refusal,
    report,
    run,
    send,
    settle,
    submit,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
    types_of,
)


def adopted(conn: Connection) -> list[tuple[Any, ...]]:
    """What is waited for: id, awaiter, child."""
    return conn.execute(
        "select awaited_id, awaiter_id, child from durable._callbacks where child >= 0 order by 1, 2, 3"
    ).fetchall()


def ends(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Child, name, value and ok of the completions among journal rows."""
    return [
        (row[2], row[4], row[6], row[7]) for row in rows if row[1] in ("open_child_settled", "child_settled")
    ]


def waiting(conn: Connection, *commands: dict[str, Any], kind: str | None = None) -> Held:
    """A run that waits for all its commands' numbers."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=commands))
    on = [command["child"] for command in commands]
    answer = take_turn(conn, "W", report(held, end=suspend(*on, kind=kind), seen=answer.next_of(held)))
    assert answer.of(held) == ("ok", "suspended")
    return held


@pytest.mark.parametrize(
    ("state", "value", "ok"), [("resolved", '"v"', True), ("rejected", '{"type": "Oops"}', False)]
)
def test_a_free_standing_promise(conn: Connection, state: str, value: str, ok: bool) -> None:
    """A free-standing promise is scheduled under the run's number, and its end wakes the run with its
    value."""
    ask(conn, create("x", external="true"))
    held = waiting(conn, adopt(0, "x"))
    assert (types_of(conn, "r"), adopted(conn)) == (
        ["execution_started", "promise_registered", "execution_awaiting"],
        [("x", "r", 0)],
    )
    ask(conn, settle("x", value, state=state))
    assert (types_of(conn, "r"), adopted(conn)) == (
        [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ],
        [],
    )
    again = claim(conn, "W", "q-r")
    assert again.start == held.next + 2
    assert ends(list(again.rows)) == [(0, "x", value, ok)]
    (told,) = ask(
        conn,
        ("select payload from durable.journal_events where id = 'r' and event = 'InvokeCompleted'", ()),
    )
    assert told == {"result": "v"} if ok else told["error"]["type"] == "Oops"


def test_a_settled_promise(conn: Connection) -> None:
    """One that is settled already is complete in the answer, and the run does not suspend over it."""
    ask(conn, create("x", external="true"))
    ask(conn, settle("x", '"v"'))
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[adopt(0, "x")], end=suspend(0), seen=held.next))
    assert answer.of(held) == ("ok", "acquired")
    assert ends(answer.tail(held)) == [(0, "x", '"v"', True)]
    assert (types_of(conn, "r"), adopted(conn)) == (
        ["execution_started", "promise_registered", "child_settled"],
        [],
    )


def test_the_journal_keeps_no_copy(conn: Connection) -> None:
    """The value stands in the promise alone."""
    ask(conn, create("x", external="true"))
    waiting(conn, adopt(0, "x"))
    ask(conn, settle("x", '"v"'))
    rows = conn.execute("select type::text, name, data from durable._journal where child = 0").fetchall()
    assert rows == [("promise_registered", "x", None), ("child_settled", "x", None)]


def test_the_result_of_another_run(conn: Connection) -> None:
    """A run may wait for the end of any run, of its own child too under a second number."""
    begin_run(conn, "other", "V")
    held = begin_run(conn, "r")
    answer = take_turn(
        conn, "W", report(held, commands=[run(0, queue="kids"), adopt(1, "other"), adopt(2, "r.0")])
    )
    take_turn(conn, "W", report(held, end=suspend(0, 1, 2, kind="all"), seen=answer.next_of(held)))
    kid = claim(conn, "K", "kids")
    take_turn(conn, "K", report(kid, end=complete('"kid"')))
    assert task_of(conn, "r") == ("suspended", 1, None)
    ask(conn, settle("other", '"end"'))
    assert task_of(conn, "r") == ("pending", 1, None)
    assert ends(list(claim(conn, "W", "q-r").rows)) == [
        (0, None, '"kid"', True),
        (2, "r.0", '"kid"', True),
        (1, "other", '"end"', True),
    ]


def test_two_runs_wait_for_one(conn: Connection) -> None:
    """Every run that adopted a promise is told, each in its own journal."""
    ask(conn, create("x", external="true"))
    for name in "ab":
        held = begin_run(conn, name)
        answer = take_turn(conn, "W", report(held, commands=[adopt(0, "x")]))
        take_turn(conn, "W", report(held, end=suspend(0), seen=answer.next_of(held)))
    ask(conn, settle("x"))
    assert [types_of(conn, name) for name in "ab"] == [
        [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ],
        [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ],
    ]


def test_a_promise_adopted_twice(conn: Connection) -> None:
    """Two numbers of one run may stand for one promise; both end with it, and one wait for both is over."""
    ask(conn, create("x", external="true"))
    waiting(conn, adopt(0, "x"), adopt(1, "x"), kind="all")
    ask(conn, settle("x"))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered", "execution_awaiting"),
        *("child_settled", "child_settled", "execution_resumed"),
    ]


@pytest.mark.parametrize("kind", ["any", "all"])
def test_beside_children_and_signals(conn: Connection, kind: str) -> None:
    """Adopted promises, own ones and receives are waited for together."""
    ask(conn, create("x", external="true"))
    waiting(conn, adopt(0, "x"), promise(1), receive(2), kind=kind)
    ask(conn, settle("x"))
    assert (task_of(conn, "r") or ("",))[0] == ("pending" if kind == "any" else "suspended")
    ask(conn, settle("r.1"))
    ask(conn, send("r"))
    assert task_of(conn, "r") == ("pending", 1, None)
    assert (
        types_of(conn, "r")
        == {
            "any": [
                *("execution_started", "promise_registered", "promise_registered"),
                *("execution_awaiting", "child_settled", "execution_resumed", "child_settled"),
                *("signal_delivered", "signal_received"),
            ],
            "all": [
                *("execution_started", "promise_registered", "promise_registered"),
                *("execution_awaiting", "child_settled", "child_settled", "signal_delivered"),
                *("signal_received", "execution_resumed"),
            ],
        }[kind]
    )


def test_it_expires(conn: Connection, clock: Clock) -> None:
    """The deadline of the foreign promise ends the wait, with an error that says so."""
    ask(conn, create("x", clock.now_ms + 100, external="true"))
    waiting(conn, adopt(0, "x"))
    clock.advance(100)
    tick(conn)
    ((child, name, error, ok),) = ends(list(claim(conn, "W", "q-r").rows))
    assert (child, name, ok, json.loads(error)["type"]) == (0, "x", False, "Timeout")


def test_an_internal_promise_is_watched_from_then_on(conn: Connection, clock: Clock) -> None:
    """Nobody's deadline was enforced until somebody waits; then it is."""
    ask(conn, create("x", clock.now_ms + 100))
    waiting(conn, adopt(0, "x"))
    clock.advance(100)
    tick(conn)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]


def test_adopting_an_expired_promise_before_the_sweep(conn: Connection, clock: Clock) -> None:
    """An expired promise that is adopted before the sweep came is settled by the sweep."""
    ask(conn, create("x", clock.now_ms + 100, external="true"))
    held = begin_run(conn, "r")
    clock.advance(100)
    take_turn(conn, "W", report(held, commands=[adopt(0, "x")]))
    tick(conn)
    assert types_of(conn, "r") == ["execution_started", "promise_registered", "child_settled"]


@pytest.mark.parametrize(
    ("name", "error"), [("nobody", "NotFound"), ("r", "AwaitCycle"), ("other.0", "NotFound")]
)
def test_invalid_adoptions(conn: Connection, name: str, error: str) -> None:
    """What does not exist, the run itself and a local step of another one are scheduled under their number
    and have failed; the rest of the turn is written and the run does not suspend over it."""
    take_turn(conn, "V", report(begin_run(conn, "other", "V"), outcomes=[done(0)]))
    held = begin_run(conn, "r")
    commands = [adopt(0, name), promise(2)]
    answer = take_turn(conn, "W", report(held, outcomes=[done(1)], commands=commands, end=suspend(0, 2)))
    assert answer.of(held) == ("ok", "acquired")
    (row,) = answer.tail(held)
    assert (row[1:5], json.loads(row[6])["type"], row[7]) == (("child_settled", 0, 1, None), error, None)
    assert (types_of(conn, "r"), adopted(conn)) == (
        ["execution_started", "promise_registered", "promise_registered", "step_completed", "child_settled"],
        [],
    )
    told = "select payload from durable.journal_events where id = 'r' and child = 0 order by seq"
    scheduled, _, completed = conn.execute(told).fetchall()
    assert scheduled[0] == {"kind": "External", "function_name": name}
    assert completed[0]["error"]["type"] == error
    (known,) = ask(conn, ("select children -> '0' from durable.as_of('r')", ()))
    assert (known["kind"], known["state"], known["error"]["type"]) == ("promise", "rejected", error)
    ask(conn, create(name, external="true")) if name == "nobody" else None
    again = ask(conn, journal("W", held))[0]["rows"]
    assert again[-1][6:] == list(row[6:])


def in_words(conn: Connection, id_: str) -> list[str]:
    """The circles that a run was told of."""
    rows = conn.execute(
        "select payload #>> '{error,message}' from durable.journal_events "
        "where id = %s and event = 'InvokeCompleted' and payload #>> '{error,type}' = 'AwaitCycle' "
        "order by seq",
        (id_,),
    )
    return [text for (text,) in rows]


def test_a_circle_of_awaits(conn: Connection) -> None:
    """Whoever closes a circle of any length gets the path; the others wait on, and the end of one is told."""
    held = {name: begin_run(conn, name) for name in "abcd"}
    for one, other in ("ab", "bc", "cd"):
        take_turn(conn, "W", report(held[one], commands=[adopt(0, other)]))
    answer = take_turn(conn, "W", report(held["d"], commands=[adopt(0, "a"), adopt(1, "b")]))
    assert in_words(conn, "d") == [
        "d -> a -> b -> c -> d would wait for itself",
        "d -> b -> c -> d would wait for itself",
    ]
    data = json.loads(answer.tail(held["d"])[0][6])["data"]
    assert data["path"] == ["d", "a", "b", "c", "d"]
    assert adopted(conn) == [("b", "a", 0), ("c", "b", 0), ("d", "c", 0)]


def test_a_circle_through_a_parent(conn: Connection) -> None:
    """A child that would wait for its parent, or for who waits for that, is told; a detached one may."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids"), run(1, queue="free", detached=True)]))
    top = begin_run(conn, "top")
    take_turn(conn, "W", report(top, commands=[adopt(0, "r")]))
    kid, free = claim(conn, "K", "kids"), claim(conn, "K", "free")
    take_turn(conn, "K", report(kid, commands=[adopt(0, "r"), adopt(1, "top")]))
    take_turn(conn, "K", report(free, commands=[adopt(0, "r"), adopt(1, "top")]))
    assert in_words(conn, "r.0") == [
        "r.0 -> r -> r.0 would wait for itself",
        "r.0 -> top -> r -> r.0 would wait for itself",
    ]
    assert in_words(conn, "r.1") == []
    assert [row for row in adopted(conn) if row[1] == "r.1"] == [("r", "r.1", 0), ("top", "r.1", 1)]


def test_a_circle_within_one_turn(conn: Connection) -> None:
    """Reports of one turn are judged one after the other: the last one closes the circle."""
    one, two, three = (begin_run(conn, name) for name in ("one", "three", "two"))
    commands = {one.id: "three", two.id: "two", three.id: "one"}
    take_turn(
        conn, "W", *(report(held, commands=[adopt(0, commands[held.id])]) for held in (two, one, three))
    )
    assert [in_words(conn, held.id) for held in (one, two, three)] == [
        [],
        [],
        ["two -> one -> three -> two would wait for itself"],
    ]


def test_ended_waiters_close_no_cycle(conn: Connection, clock: Clock) -> None:
    """What waited and ended, is past its deadline, or began anew waits for nothing."""
    held = begin_run(conn, "r")
    for name, options in (("gone", {}), ("late", {"timeout": "1 s"}), ("again", {})):
        other = begin_run(conn, name, **options)
        answer = take_turn(conn, "W", report(other, commands=[adopt(0, "r")]))
        if name == "gone":
            take_turn(conn, "W", report(other, end=complete(), seen=answer.next_of(other)))
        if name == "again":
            take_turn(conn, "W", report(other, end=continue_as_new(on=1), seen=answer.next_of(other)))
    clock.advance(1000)
    take_turn(conn, "W", report(held, commands=[adopt(0, "gone"), adopt(1, "late"), adopt(2, "again")]))
    assert in_words(conn, "r") == []
    tick(conn)


def test_the_promise_of_a_run_is_not_the_run(conn: Connection) -> None:
    """A child may wait for a promise that its parent made: nobody says who settles it."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0, queue="kids"), promise(1)]))
    take_turn(conn, "K", report(claim(conn, "K", "kids"), commands=[adopt(0, "r.1")]))
    assert in_words(conn, "r.0") == []


def test_a_refused_adoption_may_be_a_join_set_member(conn: Connection) -> None:
    """A refused adoption that was put into a join set in the same turn is handed out as a failure."""
    held = begin_run(conn, "r")
    commands = [join_set(0), adopt(1, "nobody"), submit(1, 0)]
    answer = take_turn(conn, "W", report(held, commands=commands))
    seen = answer.next_of(held)
    take_turn(conn, "W", report(held, commands=[pick(1, 0)], seen=seen))
    assert types_of(conn, "r") == [
        *("execution_started", "join_set_created", "promise_registered", "join_set_submitted"),
        *("child_settled", "join_set_awaited"),
    ]


def test_a_refusal_during_clean_up(conn: Connection) -> None:
    """A run that is being cancelled may adopt in its clean-up, and is told what is wrong with it."""
    held = begin_run(conn, "r")
    ask(conn, cancel("r"))
    take_turn(conn, "W", report(held, commands=[adopt(0, "nobody")], seen=held.next + 1))
    assert types_of(conn, "r") == [
        *("execution_started", "cancel_requested", "promise_registered", "child_settled"),
    ]


def test_a_fork_replaces_a_refusal(conn: Connection) -> None:
    """A fork keeps a refusal as it was, or has the value that it is given instead."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[adopt(0, "nobody")]))
    for name, values in (("kept", {}), ("given", {"0": 7})):
        fork = "select durable.fork('r', set_values => %s::jsonb, new_id => %s, queue => %s)"
        ask(conn, (fork, (json.dumps(values), name, f"q-{name}")))
    ((_, _, error, ok),) = ends(list(claim(conn, "W", "q-kept").rows))
    assert (json.loads(error)["type"], ok) == ("NotFound", None)
    assert ends(list(claim(conn, "W", "q-given").rows)) == [(0, None, "7", True)]


def test_every_cut_of_a_refusal_can_be_forked(conn: Connection) -> None:
    """A fork that begins between the call and its refusal waits for the promise, or is told that there is
    none."""
    one, two = begin_run(conn, "one"), begin_run(conn, "two")
    take_turn(conn, "W", report(one, commands=[adopt(0, "two")]))
    take_turn(conn, "W", report(two, commands=[timer(0, 1000), adopt(1, "one"), adopt(2, "nobody")]))
    assert types_of(conn, "two") == [
        *("execution_started", "timer_scheduled", "promise_registered", "promise_registered"),
        *("child_settled", "child_settled"),
    ]
    ask(conn, ("select durable.fork('two', seq => 3, new_id => 'f')", ()))
    assert ("one", "f", 1) in adopted(conn)
    assert refusal(conn, ("select durable.fork('two', seq => 4, new_id => 'g')", ())) == "WF001"


def test_a_client_closes_a_circle(conn: Connection) -> None:
    """A run that a protocol client serves is judged alike: the suspension is refused with the path."""
    client(conn)
    other = begin_run(conn, "other")
    take_turn(conn, "W", report(other, commands=[adopt(0, "r")]))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, park("r", "other", version=2))
    assert caught.value.sqlstate == "WF012"
    assert "r -> other -> r" in (caught.value.diag.message_primary or "")
    assert (types_of(conn, "r"), adopted(conn)) == (["execution_started"], [("r", "other", 0)])


def test_a_report_that_is_not_taken_adopts_nothing(conn: Connection) -> None:
    """A lost or stale report leaves the foreign promise as it was."""
    ask(conn, create("x"))
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0)]))
    assert take_turn(conn, "W", report(held, commands=[adopt(0, "x")])).of(held)[0] == "stale"
    assert take_turn(conn, "V", report(held, commands=[adopt(1, "x")])).of(held)[0] == "lost"
    assert (types_of(conn, "r"), adopted(conn)) == (["execution_started", "promise_registered"], [])
    assert ask(conn, ("select external from durable._promises where id = 'x'", ())) == (False,)


def test_an_ended_run_gets_no_more_rows(conn: Connection) -> None:
    """The end of a promise after the end of the run that adopted it leaves its journal alone."""
    ask(conn, create("x", external="true"))
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[adopt(0, "x")]))
    take_turn(conn, "W", report(held, end=complete(), seen=answer.next_of(held)))
    ask(conn, settle("x"))
    assert (types_of(conn, "r"), adopted(conn)) == (
        ["execution_started", "promise_registered", "execution_completed"],
        [],
    )


def test_a_run_being_cancelled_gets_the_end_of_its_promise(conn: Connection) -> None:
    """The end of an adopted promise is recorded in the grace time too."""
    ask(conn, create("x", external="true"))
    waiting(conn, adopt(0, "x"))
    ask(conn, cancel("r"))
    ask(conn, settle("x"))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("cancel_requested", "child_settled"),
    ]


def test_the_next_generation_begins_without(conn: Connection) -> None:
    """A run that continues as new waits for nothing that it had adopted."""
    ask(conn, create("x", external="true"))
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[adopt(0, "x")]))
    take_turn(conn, "W", report(held, end=continue_as_new(on=1), seen=answer.next_of(held)))
    assert adopted(conn) == []
    ask(conn, settle("x"))
    assert types_of(conn, "r") == [
        *("execution_started", "execution_started", "promise_registered", "execution_completed"),
    ]  # by seq, of both


def client(conn: Connection, *commands: dict[str, Any]) -> None:
    """A run that a protocol client serves at version 2."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=commands))
    ask(conn, ("select durable.task_release('r', 1)", ()))
    ask(conn, acquire("r", 1))


def resume(conn: Connection, version: int) -> None:
    """The client takes the run again."""
    ask(conn, acquire("r", version))


def test_a_client_suspends_on_foreign_promises(conn: Connection) -> None:
    """task_suspend adopts what is not the run's own, under the next numbers, in the order of ids; its own
    children keep theirs."""
    for name in ("y", "x"):
        ask(conn, create(name, external="true"))
    client(conn, promise(0))
    assert ask(conn, park("r", "y", "r.0", "x", version=2)) == (True,)
    assert (types_of(conn, "r"), adopted(conn)) == (
        [
            *("execution_started", "promise_registered", "promise_registered"),
            *("promise_registered", "execution_awaiting"),
        ],
        [("x", "r", 1), ("y", "r", 2)],
    )
    assert ask(conn, ("select waiting_on, wait_kind from durable._executions", ())) == ([0, 1, 2], "any")
    ask(conn, settle("y"))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered", "promise_registered"),
        *("execution_awaiting", "child_settled", "execution_resumed"),
    ]
    assert task_of(conn, "r") == ("pending", 2, None)


def test_a_client_suspends_again(conn: Connection) -> None:
    """What was adopted keeps its number: waiting for it again takes no other."""
    for name in ("x", "y"):
        ask(conn, create(name, external="true"))
    client(conn)
    ask(conn, park("r", "x", "y", version=2))
    ask(conn, settle("x"))
    resume(conn, 2)
    assert ask(conn, park("r", "y", version=3)) == (True,)
    assert (types_of(conn, "r"), adopted(conn)) == (
        [
            *("execution_started", "promise_registered", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed", "execution_awaiting"),
        ],
        [("y", "r", 1)],
    )
    ask(conn, settle("y"))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]


def test_a_client_of_a_blocked_run(conn: Connection) -> None:
    """A run that was continued while its journal is blocked waits for the same again, and takes in nothing
    new (R20)."""
    for name in ("x", "y"):
        ask(conn, create(name, external="true"))
    client(conn)
    ask(conn, park("r", "x", version=2))
    ask(conn, ("select durable.task_halt('r')", ()))
    ask(conn, ("select durable.task_continue('r')", ()))
    resume(conn, 2)
    assert refusal(conn, park("r", "y", version=3)) == "WF003"
    assert ask(conn, park("r", "x", version=3)) == (True,)
    assert types_of(conn, "r") == ["execution_started", "promise_registered", "execution_awaiting"]


@pytest.mark.parametrize("awaited", ["x", "r.0"])
def test_a_client_of_a_run_that_is_cancelled(conn: Connection, awaited: str) -> None:
    """A run that is being cancelled does not suspend any more, on its own children neither."""
    ask(conn, create("x", external="true"))
    client(conn, promise(0))
    ask(conn, cancel("r"))
    assert refusal(conn, park("r", awaited, version=2)) == "WF003"
    assert types_of(conn, "r") == ["execution_started", "promise_registered", "cancel_requested"]


def test_a_client_is_answered_to_go_on(conn: Connection) -> None:
    """If one of the promises is settled nothing is adopted (the protocol's 300)."""
    for name in ("x", "y"):
        ask(conn, create(name, external="true"))
    ask(conn, settle("x"))
    client(conn)
    assert ask(conn, park("r", "x", "y", version=2)) == (False,)
    assert (types_of(conn, "r"), adopted(conn)) == (["execution_started"], [])
    assert task_of(conn, "r") == ("acquired", 2, "P")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (park("r", "nobody", version=2), "WF005"),
        (park("r", "x", "nobody", version=2), "WF005"),
        (park("r", "r", version=2), "WF004"),
        (park("r", "x", version=1), "WF002"),
    ],
)
def test_invalid_suspensions_of_clients(conn: Connection, call: Call, code: str) -> None:
    """What is missing, the run itself, and a lease that is lost are refused; nothing is adopted."""
    ask(conn, create("x", external="true"))
    client(conn)
    assert refusal(conn, call) == code
    assert (types_of(conn, "r"), adopted(conn)) == (["execution_started"], [])


def test_a_client_leaves_the_numbers_of_receives(conn: Connection) -> None:
    """The number of a receive that a worker registered is not given to an adopted promise."""
    ask(conn, create("x", external="true"))
    client(conn, receive(0))
    ask(conn, park("r", "x", version=2))
    assert adopted(conn) == [("x", "r", 1)]
    ask(conn, send("r"))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("signal_delivered", "signal_received"),
    ]
    assert task_of(conn, "r") == ("suspended", 2, None)


def test_a_client_completes(conn: Connection) -> None:
    """A run that a client served on foreign promises ends like any other."""
    ask(conn, create("x", external="true"))
    client(conn)
    ask(conn, park("r", "x", version=2))
    ask(conn, settle("x"))
    resume(conn, 2)
    ask(conn, ("select state from durable.task_fulfill('r', 3, 'resolved', '1')", ()))
    assert promise_of(conn, "r") == ("resolved", "1")
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting", "child_settled"),
        *("execution_resumed", "execution_completed"),
    ]
