"""Law: signals are numbered within their name and received in that order, each once; a run that waits for one
is woken by it once, and no other run is; what was sent lies there until it is received."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    cancel,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    intent,
    promise,
    receive,
    refusal,
    release,
    report,
    send,
    settle,
    start,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    timer,
    turn,
    types_of,
)

HALT: Call = ("select durable.task_halt('r')", ())
RESUME: Call = ("select durable.resume('r')", ())


def inbox(conn: Connection, name: str = "go") -> tuple[Any, ...]:
    """Delivered, received, receiver."""
    return ask(conn, ("select delivered, received, receiver from durable._inboxes where name = %s", (name,)))


def receipts(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Child, delivery, name, payload and ok of the receipts among journal rows."""
    return [(row[2], row[3], row[4], row[6], row[7]) for row in rows if row[1] == "signal_received"]


def waiting(
    conn: Connection, *commands: dict[str, Any], on: tuple[int, ...] = (0,), kind: str = "signal"
) -> Held:
    """A run suspended on what it called, receives among it."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=commands or [receive(0)]))
    answer = take_turn(conn, "W", report(held, end=suspend(*on, kind=kind), seen=answer.next_of(held)))
    assert answer.of(held) == ("ok", "suspended")
    return held


def test_deliveries_are_numbered_by_name(conn: Connection) -> None:
    """The n-th signal of a name has the number n, whatever others are sent between."""
    begin_run(conn, "r")
    numbers = [ask(conn, send("r", name))[0] for name in ("a", "b", "a", "a", "b")]
    assert numbers == [1, 1, 2, 3, 2]
    rows = conn.execute(
        "select name, attempt, data from durable._journal where type = 'signal_delivered' order by seq"
    )
    assert rows.fetchall() == [("a", 1, None), ("b", 1, None), ("a", 2, None), ("a", 3, None), ("b", 2, None)]


@pytest.mark.parametrize(
    "row",
    [
        ("signal_delivered", None, 1),
        ("signal_delivered", None, 3),
        ("signal_delivered", None, None),
        ("signal_received", 0, 2),
        ("signal_received", 0, 3),
        ("signal_received", 0, None),
    ],
    ids=["again", "too_far", "unnumbered", "received_too_early", "not_delivered", "received_unnumbered"],
)
def test_the_journal_refuses_other_numbers(conn: Connection, row: tuple[Any, ...]) -> None:
    """Whoever writes the journal: a delivery is the next of its name, a receipt takes the next delivery,
    which must be there."""
    held = begin_run(conn, "r")
    ask(conn, send("r"))
    take_turn(conn, "W", report(held, commands=[receive(5)]))
    kind, child, number = row
    event = "row(%s, %s, %s, %s, 'go', null, null)::durable._event"
    call = (f"select durable._append(array[{event}], 1)", (held.execution, kind, child, number))
    assert refusal(conn, call) == "WF006"
    assert types_of(conn, "r") == ["execution_started", "signal_delivered", "signal_received"]


def test_for_people(conn: Connection) -> None:
    """durable.signal answers the number; the payload is JSON, the name comes by name."""
    begin_run(conn, "r")
    call = """select durable.signal('r', name => 'go', payload => '{"ok": true}', dedup => 'k')"""
    assert ask(conn, (call, ())) == (1,)
    assert ask(conn, ("select durable.signal('r', 'go')", ())) == (2,)
    rows = conn.execute("select delivery, key, data from durable._signals order by 1").fetchall()
    assert rows == [(1, "k", '{"ok": true}'), (2, None, None)]


def test_buffered_signals_are_received_at_once(conn: Connection) -> None:
    """A receive of a name that has deliveries gets the first of them in the answer, and the run does not
    suspend."""
    held = begin_run(conn, "r")
    for payload in ('"one"', '"two"'):
        ask(conn, send("r", payload=payload))
    answer = take_turn(conn, "W", report(held, commands=[receive(0)], end=suspend(0), seen=held.next + 2))
    assert answer.of(held) == ("ok", "acquired")
    assert receipts(answer.tail(held)) == [(0, 1, "go", '"one"', True)]
    answer = take_turn(conn, "W", report(held, commands=[receive(1)], seen=held.next + 3))
    assert receipts(answer.tail(held)) == [(1, 2, "go", '"two"', True)]
    assert inbox(conn) == (2, 2, None)
    assert types_of(conn, "r") == [
        *("execution_started", "signal_delivered", "signal_delivered"),
        *("signal_received", "signal_received"),
    ]


def test_receipts_take_deliveries_in_order(conn: Connection) -> None:
    """Whenever they are sent and received, receipt n of a name takes delivery n."""
    held, seen, got = begin_run(conn, "r"), 1, []
    for step, letter in enumerate("srssrrrs"):
        if letter == "s":
            ask(conn, send("r", payload=str(step)))
            commands = []
        else:
            commands = [receive(step)]
        answer = take_turn(conn, "W", report(held, commands=commands, seen=seen))
        got += receipts(answer.tail(held))
        (seen,) = ask(conn, ("select next_seq from durable._executions", ()))
    assert [(delivery, payload) for _, delivery, _, payload, _ in got] == [
        (1, "0"),
        (2, "2"),
        (3, "3"),
        (4, "7"),
    ]
    assert [child for child, *_ in got] == [1, 4, 5, 6]


def test_a_waiting_run_is_woken(conn: Connection) -> None:
    """A delivery to a waiting receive is received and resumes the run in one transaction; the worker that has
    it warm gets just that."""
    held = waiting(conn)
    assert ask(conn, ("select data from durable._journal where type = 'execution_awaiting'", ())) == (
        '{"on": [0], "kind": "signal", "name": "go"}',
    )
    assert ask(conn, send("r", payload='"hello"')) == (1, True, True)
    assert types_of(conn, "r") == [
        *("execution_started", "execution_awaiting", "signal_delivered"),
        *("signal_received", "execution_resumed"),
    ]
    assert task_of(conn, "r") == ("pending", 1, None)
    again = claim(conn, "W", "q-r")
    assert again.start == held.next + 1
    assert receipts(list(again.rows)) == [(0, 1, "go", '"hello"', True)]


def test_a_run_is_woken_once(conn: Connection) -> None:
    """Further deliveries to a woken run lie there, and wake nobody."""
    waiting(conn)
    assert [ask(conn, send("r")) for _ in range(3)] == [(1, True, True), (2, True, False), (3, True, False)]
    assert types_of(conn, "r") == [
        *("execution_started", "execution_awaiting", "signal_delivered", "signal_received"),
        *("execution_resumed", "signal_delivered", "signal_delivered"),
    ]
    assert inbox(conn) == (3, 1, None)
    assert take_turn(conn, "W", want=5, queues=["q-r"]).tasks != []
    assert take_turn(conn, "V", want=5, queues=["q-r"]).tasks == []


def test_names_do_not_mix(conn: Connection) -> None:
    """A run that waits for one name sleeps on while others are sent."""
    waiting(conn, receive(0, "a"))
    assert ask(conn, send("r", "b")) == (1, True, False)
    assert task_of(conn, "r") == ("suspended", 1, None)
    assert ask(conn, send("r", "a")) == (1, True, True)
    assert types_of(conn, "r") == [
        *("execution_started", "execution_awaiting", "signal_delivered", "signal_delivered"),
        *("signal_received", "execution_resumed"),
    ]


@pytest.mark.parametrize(
    ("kind", "names", "wakes"),
    [
        ("single", ["go"], [True]),
        ("any", ["too"], [True]),
        ("any", ["go", "too"], [True, False]),
        ("all", ["go", "too"], [False, True]),
        ("all", ["too", "too", "go"], [False, False, True]),
    ],
)
def test_kinds_of_a_wait(conn: Connection, kind: str, names: list[str], wakes: list[bool]) -> None:
    """Single and any end with the first receipt, all with the last; ExecutionResumed is written once."""
    commands, on = [receive(0), receive(1, "too")], (0, 1)
    if kind == "single":
        commands, on = commands[:1], (0,)
    waiting(conn, *commands, on=on, kind=kind)
    assert [ask(conn, send("r", name))[2] for name in names] == wakes
    assert types_of(conn, "r").count("execution_resumed") == 1
    assert task_of(conn, "r") == ("pending", 1, None)


@pytest.mark.parametrize("last", ["signal", "promise"])
def test_a_wait_for_a_signal_and_a_promise(conn: Connection, last: str) -> None:
    """A wait for all counts receipts and settlements alike, in any order."""
    waiting(conn, promise(0), receive(1), on=(0, 1), kind="all")
    calls = [settle("r.0"), send("r")]
    for call in calls if last == "signal" else calls[::-1]:
        assert (task_of(conn, "r") or ("",))[0] == "suspended"
        ask(conn, call)
    assert task_of(conn, "r") == ("pending", 1, None)
    assert types_of(conn, "r") == (
        [
            *("execution_started", "promise_registered", "execution_awaiting", "child_settled"),
            *("signal_delivered", "signal_received", "execution_resumed"),
        ]
        if last == "signal"
        else [
            *("execution_started", "promise_registered", "execution_awaiting", "signal_delivered"),
            *("signal_received", "child_settled", "execution_resumed"),
        ]
    )


def test_a_receive_with_a_timeout(conn: Connection, clock: Clock) -> None:
    """A receive that was given up stays registered: the next signal is received under its number, without
    disturbing what the run waits for now."""
    held = waiting(conn, receive(0), timer(1, 100), on=(0, 1), kind="any")
    clock.advance(100)
    tick(conn)
    again = claim(conn, "W", "q-r")
    assert types_of(conn, "r") == [
        *("execution_started", "timer_scheduled", "execution_awaiting"),
        *("timer_fired", "execution_resumed"),
    ]
    late = Held(execution=held.execution, id="r", version=2, next=again.next)
    answer = take_turn(conn, "W", report(late, commands=[promise(2)]))
    take_turn(conn, "W", report(late, end=suspend(2), seen=answer.next_of(late)))
    assert ask(conn, send("r", payload='"late"')) == (1, True, False)
    assert task_of(conn, "r") == ("suspended", 2, None)
    assert types_of(conn, "r") == [
        *("execution_started", "timer_scheduled", "execution_awaiting", "timer_fired"),
        *("execution_resumed", "promise_registered", "execution_awaiting"),
        *("signal_delivered", "signal_received"),
    ]
    ask(conn, settle("r.2"))
    third = claim(conn, "W", "q-r")
    assert receipts(list(third.rows)) == [(0, 1, "go", '"late"', True)]


def test_a_receiver_is_taken_over(conn: Connection, clock: Clock) -> None:
    """The run may wait for the registered number again without saying anything, and is woken by it."""
    held = waiting(conn, receive(0), timer(1, 100), on=(0, 1), kind="any")
    clock.advance(100)
    tick(conn)
    again = claim(conn, "W", "q-r")
    late = Held(execution=held.execution, id="r", version=2, next=again.next)
    answer = take_turn(conn, "W", report(late, end=suspend(0, kind="signal")))
    assert answer.of(late) == ("ok", "suspended")
    assert ask(conn, send("r")) == (1, True, True)
    assert types_of(conn, "r") == [
        *("execution_started", "timer_scheduled", "execution_awaiting", "timer_fired"),
        *("execution_resumed", "execution_awaiting", "signal_delivered"),
        *("signal_received", "execution_resumed"),
    ]


@pytest.mark.parametrize(
    "commands", [[receive(0), receive(1)], [receive(1)]], ids=["two_at_once", "another_number"]
)
def test_one_receive_of_a_name(conn: Connection, commands: list[dict[str, Any]]) -> None:
    """A second receive of a name that is received already is refused; the same number again, as after a
    replay, is the same receive."""
    held = begin_run(conn, "r")
    if len(commands) == 1:
        take_turn(conn, "W", report(held, commands=[receive(0)]))
    assert refusal(conn, turn("W", report(held, commands=commands))) == "WF006"
    take_turn(conn, "W", report(held, commands=[receive(0), receive(3, "other")]))
    assert inbox(conn) == (0, 0, 0)


@pytest.mark.unlawful
def test_a_number_that_changed_code_used_otherwise(conn: Connection) -> None:
    """Whoever sends is not refused because the code of the run changed under its receive: the signal lies
    there."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[receive(0), promise(1)]))
    take_turn(conn, "W", report(held, commands=[promise(0)]))
    assert ask(conn, send("r")) == (1, True, False)
    assert inbox(conn) == (1, 0, None)
    assert conn.execute("select law from durable.check()").fetchall() == []


def test_a_key_is_one_delivery(conn: Connection) -> None:
    """The same key again is the same delivery, whoever sends it with whatever payload; keys are by name."""
    waiting(conn)
    assert ask(conn, send("r", key="k")) == (1, True, True)
    assert ask(conn, send("r", payload="2", key="k")) == (1, False, False)
    assert ask(conn, send("r", "other", key="k")) == (1, True, False)
    assert ask(conn, send("r", key="l")) == (2, True, False)
    assert types_of(conn, "r") == [
        *("execution_started", "execution_awaiting", "signal_delivered", "signal_received"),
        *("execution_resumed", "signal_delivered", "signal_delivered"),
    ]


def test_a_key_outlives_the_run(conn: Connection) -> None:
    """Who repeats a signal after the run has ended with it is told that it was delivered."""
    held = begin_run(conn, "r")
    ask(conn, send("r", key="k"))
    take_turn(conn, "W", report(held, end=complete()))
    assert ask(conn, send("r", key="k")) == (1, False, False)
    assert refusal(conn, send("r", key="new")) == "WF003"


def test_a_key_outlives_a_generation(conn: Connection) -> None:
    """A signal that was received before the run continued as new is not delivered again."""
    held = begin_run(conn, "r")
    ask(conn, send("r", key="k"))
    ask(conn, send("r", key="l"))
    answer = take_turn(conn, "W", report(held, commands=[receive(0)], seen=held.next + 2))
    assert receipts(answer.tail(held))
    take_turn(conn, "W", report(held, end=continue_as_new(on=1), seen=held.next + 3))
    assert ask(conn, send("r", key="k"))[1:] == (False, False)
    assert ask(conn, send("r", key="l"))[1:] == (False, False)
    assert ask(conn, send("r", key="m")) == (2, True, False)


@pytest.mark.parametrize("receiver", [False, True], ids=["buffered", "received"])
def test_a_signal_to_a_leased_run(conn: Connection, receiver: bool) -> None:
    """A run that a worker holds keeps its lease and hears of it in its next turn."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[receive(0)] if receiver else []))
    assert ask(conn, send("r")) == (1, True, False)
    assert task_of(conn, "r") == ("acquired", 1, "W")
    tail = take_turn(conn, "W", report(held)).tail(held)
    assert [row[1] for row in tail] == (
        ["signal_delivered", "signal_received"] if receiver else ["signal_delivered"]
    )


@pytest.mark.parametrize("receiver", [False, True], ids=["buffered", "received"])
def test_to_a_run_that_comes_later(conn: Connection, clock: Clock, receiver: bool) -> None:
    """A run that waits before a retry is brought back by what it receives, and by nothing else."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[receive(0)] if receiver else []))
    take_turn(conn, "W", report(held, end=release(60_000)))
    assert ask(conn, send("r")) == (1, True, receiver)
    wait_ms = 0 if receiver else 60_000
    assert ask(conn, ("select retry_at from durable._tasks", ())) == (clock.now_ms + wait_ms,)
    assert bool(take_turn(conn, "W", want=1, queues=["q-r"]).tasks) == receiver


def test_a_receipt_shortens_a_release(conn: Connection, clock: Clock) -> None:
    """A run that gives itself back until later, and is answered at once what it asked to receive, is not
    later."""
    held = begin_run(conn, "r")
    ask(conn, send("r"))
    seen = held.next + 1
    answer = take_turn(conn, "W", report(held, commands=[receive(0)], end=release(60_000), seen=seen))
    assert answer.of(held) == ("ok", "released")
    assert answer.raw["hints"] == ["q-r"]
    again = claim(conn, "W", "q-r")
    assert (again.start, receipts(list(again.rows))) == (seen, [(0, 1, "go", "1", True)])


def test_an_unseen_receipt_shortens_a_release(conn: Connection, clock: Clock) -> None:
    """A run is not put off over a receipt that its coroutine has not seen."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[receive(0)]))
    ask(conn, send("r"))
    assert take_turn(conn, "W", report(held, end=release(60_000))).of(held) == ("ok", "released")
    assert receipts(list(claim(conn, "W", "q-r").rows)) == [(0, 1, "go", "1", True)]


def test_to_a_run_that_was_never_claimed(conn: Connection, clock: Clock) -> None:
    """A signal may come before the first worker, and does not start a delayed run."""
    ask(conn, start("r", delay="1 minute"))
    assert ask(conn, send("r")) == (1, True, False)
    assert ask(conn, ("select retry_at from durable._tasks", ())) == (clock.now_ms + 60_000,)
    assert types_of(conn, "r") == ["execution_started", "signal_delivered"]


def test_to_a_halted_run(conn: Connection) -> None:
    """A halted run receives, stops being blocked, and stays set aside until somebody lets it go on."""
    waiting(conn)
    ask(conn, HALT)
    assert ask(conn, send("r")) == (1, True, False)
    assert task_of(conn, "r") == ("halted", 1, None)
    assert types_of(conn, "r") == [
        *("execution_started", "execution_awaiting", "signal_delivered"),
        *("signal_received", "execution_resumed"),
    ]
    ask(conn, RESUME)
    assert receipts(list(claim(conn, "W", "q-r").rows)) == [(0, 1, "go", "1", True)]


def test_to_a_blocked_run_that_was_offered_again(conn: Connection) -> None:
    """A run that was resumed while its journal is blocked is not disturbed: whoever holds it finds the
    receipt."""
    held = waiting(conn)
    ask(conn, HALT)
    ask(conn, RESUME)
    again = claim(conn, "W", "q-r")
    assert ask(conn, send("r")) == (1, True, False)
    late = Held(execution=held.execution, id="r", version=2, next=again.next)
    answer = take_turn(conn, "W", report(late, end=suspend(0, kind="signal")))
    assert answer.of(late) == ("ok", "acquired")
    assert receipts(answer.tail(late)) == [(0, 1, "go", "1", True)]


@pytest.mark.parametrize("receiver", [False, True], ids=["buffered", "registered"])
def test_to_a_run_that_is_cancelled(conn: Connection, receiver: bool) -> None:
    """A run that is being cancelled keeps what is sent, and receives nothing any more (R14)."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[receive(0)] if receiver else []))
    ask(conn, cancel("r"))
    assert ask(conn, send("r")) == (1, True, False)
    assert types_of(conn, "r") == ["execution_started", "cancel_requested", "signal_delivered"]
    assert inbox(conn) == (1, 0, None)
    answer = take_turn(conn, "W", report(held, commands=[receive(1), intent(2)], seen=held.next + 2))
    assert answer.of(held) == ("ok", "acquired")
    assert types_of(conn, "r") == [
        *("execution_started", "cancel_requested", "signal_delivered", "step_started"),
    ]
    assert ask(conn, send("r")) == (2, True, False)


def test_to_a_run_that_ended(conn: Connection) -> None:
    """An ended run is told of, and nothing is written."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, end=complete()))
    assert refusal(conn, send("r")) == "WF003"
    assert types_of(conn, "r") == ["execution_started", "execution_completed"]
    assert conn.execute("select from durable._signals").fetchall() == []


def test_to_a_run_past_its_deadline(conn: Connection, clock: Clock) -> None:
    """A run past its deadline has ended, swept or not."""
    ask(conn, start("r", timeout="1 minute"))
    clock.advance(60_000)
    assert refusal(conn, send("r")) == "WF003"
    tick(conn)
    assert refusal(conn, send("r")) == "WF003"


def test_to_what_is_no_run(conn: Connection) -> None:
    """Only runs receive: neither nothing, nor a promise, nor a task without journal, nor a step of a run."""
    ask(conn, create("x", external="true"))
    take(conn, "t", NEVER)
    take_turn(conn, "W", report(begin_run(conn, "r"), outcomes=[done(0), begun(1)], commands=[promise(2)]))
    for name in ("nobody", "x", "t", "r.0", "r.1", "r.2"):
        assert refusal(conn, send(name)) == "WF001", name


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (send(""), "WF004"),
        (send(None), "WF004"),  # type: ignore[arg-type]
        (send("r", ""), "WF004"),
        (send("r", None), "WF004"),  # type: ignore[arg-type]
        (send("r", "n" * 257), "WF004"),
        (send("r", payload="{no json"), "WF004"),
        (send("r", payload=""), "WF004"),
        (send("r", key=""), "WF004"),
        (send("r", key="k" * 513), "WF004"),
        (send("r", payload='"' + "x" * 2000 + '"'), "WF008"),
        (send("nobody", ""), "WF004"),
    ],
)
def test_invalid_signals_are_refused_first(conn: Connection, call: Call, code: str) -> None:
    """A malformed or too large signal is refused before anything is looked at, and nothing is written."""
    begin_run(conn, "r")
    ask(conn, ("select durable.set_setting('payload_max_bytes', '1500')", ()))
    assert refusal(conn, call) == code
    assert types_of(conn, "r") == ["execution_started"]


def test_the_limits_are_taken(conn: Connection) -> None:
    """Names of 256 bytes and keys of 512 bytes are good; both may hold any characters."""
    begin_run(conn, "r")
    assert ask(conn, send("r", "ü" * 128, key="k" * 512)) == (1, True, False)
    assert ask(conn, send("r", "a b.c'\"", key="'")) == (1, True, False)


def test_a_receive_that_never_comes_leaves_its_number(conn: Connection) -> None:
    """The number of a receive is reserved while it waits, and stays unused when the run ends before it."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[receive(0), promise(1)]))
    assert ask(conn, ("select next_child, reserved from durable._executions", ())) == (2, [0])
    take_turn(conn, "W", report(held, end=complete(), seen=answer.next_of(held)))
    assert types_of(conn, "r") == ["execution_started", "promise_registered", "execution_completed"]
