"""Law: a run that does not fit the code of its worker is left to the code of its journal, or waits for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    Held,
    ask,
    captured,
    complete,
    done,
    halt,
    promise_of,
    receive,
    refuse,
    release,
    report,
    send,
    start,
    suspend,
    take_turn,
    task_of,
    tick,
)

OLD, NEW, THIRD = "01", "02", "03"
MISFIT = json.dumps({"type": "NondeterminismError", "message": "the journal expects a, the code made b"})
WHY_HALTED = (
    "halted: NondeterminismError: the journal expects a, the code made b; waits for a worker with the code "
    "that wrote its journal (digest 02), and goes on by itself then"
)


def hello(conn: Connection, worker: str, digest: str, *, queue: str = "default") -> None:
    """A worker with this code is there."""
    ask(
        conn,
        (
            "select durable.worker_hello_v1(%s, %s, '{w}', '{1}', null, %s)",
            (worker, [queue], [digest]),
        ),
    )


def bye(conn: Connection, worker: str) -> None:
    """It is not there any more."""
    ask(conn, ("select durable.worker_bye_v1(%s)", (worker,)))


def claims(conn: Connection, worker: str, digest: str) -> list[Held]:
    """What it gets."""
    return take_turn(conn, worker, want=10, digest=digest).tasks


def digests(conn: Connection, id_: str = "r") -> tuple[Any, ...]:
    """Of the head: the last, and the one before."""
    return ask(
        conn,
        (
            "select encode(digest, 'hex'), encode(former_digest, 'hex') "
            "from durable._executions where id = %s",
            (id_,),
        ),
    )


def written_by_new(conn: Connection) -> None:
    """A run whose journal new code wrote waits for a signal, and gets it; all workers are gone."""
    hello(conn, "N", NEW)
    ask(conn, start("r"))
    [held] = claims(conn, "N", NEW)
    made = report(held, commands=[captured(0), receive(1)], end=suspend(1, kind="signal"))
    assert take_turn(conn, "N", made, digest=NEW).of(held) == ("ok", "suspended")
    bye(conn, "N")
    ask(conn, send("r"))


def misfit(conn: Connection, worker: str, digest: str, problem: str = MISFIT) -> str:
    """A worker claims the run and cannot replay it; the state of its task then."""
    [held] = claims(conn, worker, digest)
    return take_turn(conn, worker, report(held, end=halt(problem)), digest=digest).of(held)[1]


def test_the_turn_names_the_queue_for_the_hint(conn: Connection, clock: Clock) -> None:
    """The worker for which it is reserved is told at once."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    hello(conn, "N2", NEW)
    [held] = claims(conn, "O", OLD)
    assert take_turn(conn, "O", report(held, end=halt(MISFIT)), digest=OLD).raw["hints"] == ["default"]


def test_reserved_for_the_length_of_a_lease(conn: Connection, clock: Clock) -> None:
    """A worker that does not take it does not keep it; other code gets it once in the length of a lease."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    hello(conn, "N2", NEW)
    for _ in range(3):
        assert misfit(conn, "O", OLD) == "released"
        clock.advance(TTL_MS - 1)
        hello(conn, "N2", NEW)
        assert claims(conn, "O", OLD) == []
        clock.advance(1)
    assert [held.id for held in claims(conn, "N2", NEW)] == ["r"]


@pytest.mark.parametrize("stands", ["in a queue that nobody with its code serves", "cancelled", "resumed"])
def test_the_first_of_many_does_not_hold_up_the_others(conn: Connection, clock: Clock, stands: str) -> None:
    """What cannot be offered takes no place among those that a tick offers."""
    hello(conn, "N", NEW)
    for id_ in ("a", "b"):
        queue = "lonely" if id_ == "a" and stands.startswith("in") else "default"
        ask(conn, start(id_, queue=queue))
        [held] = take_turn(conn, "N", want=10, digest=NEW, queues=[queue]).tasks
        take_turn(conn, "N", report(held, commands=[captured(0)], end=release()), digest=NEW)
        [held] = take_turn(conn, "O", want=10, digest=OLD, queues=[queue]).tasks
        bye(conn, "N")
        assert take_turn(conn, "O", report(held, end=halt(MISFIT)), digest=OLD).of(held)[1] == "halted"
        hello(conn, "N", NEW)
    if stands == "cancelled":
        ask(conn, ("select durable._settle_promise('a', 'resolved', null, '1')", ()))
    elif stands == "resumed":
        conn.execute("create table kept as select * from durable._code_waits where id = 'a'")
        ask(conn, ("select durable.resume('a')", ()))
        conn.execute("insert into durable._code_waits select * from kept")
    for _ in range(2):
        tick(conn, limit=1)
    assert task_of(conn, "b")[0] == "pending"
    left = [] if stands in ("cancelled", "resumed") else [("a",)]
    assert conn.execute("select id from durable._code_waits").fetchall() == left


def test_waits_for_the_code_that_wrote_last(conn: Connection, clock: Clock) -> None:
    """A row that is left of an earlier wait does not say for which code the run waits now."""
    written_by_new(conn)
    conn.execute("insert into durable._code_waits values ('r', 'w', '1', decode(%s, 'hex'))", (THIRD,))
    hello(conn, "O", OLD)
    assert misfit(conn, "O", OLD) == "halted"
    hello(conn, "N2", NEW)
    assert tick(conn)["hints"] == ["default"]


@pytest.mark.parametrize("why_not", ["gone", "silent", "other queue", "other version"])
def test_a_worker_that_cannot_take_it_is_none(conn: Connection, clock: Clock, why_not: str) -> None:
    """Only a worker that is there, serves the queue and has that version counts."""
    written_by_new(conn)
    if why_not == "other version":
        hello_2 = "select durable.worker_hello_v1('N2', '{default}', '{w}', '{2}', null, %s)"
        ask(conn, (hello_2, ([NEW],)))
    else:
        hello(conn, "N2", NEW, queue="elsewhere" if why_not == "other queue" else "default")
    if why_not == "gone":
        conn.execute("update durable._workers set missing_at = 1 where id = 'N2'")
    clock.advance(2 * TTL_MS if why_not == "silent" else 0)
    hello(conn, "O", OLD)
    assert misfit(conn, "O", OLD) == "halted"


def test_a_worker_that_was_lost_has_written_nothing(conn: Connection, clock: Clock) -> None:
    """The code of the journal is known although another worker claimed the run, died, and signals came."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    assert len(claims(conn, "O", OLD)) == 1
    ask(conn, send("r"))
    clock.advance(TTL_MS)
    assert tick(conn)["leases"] == 1
    hello(conn, "T", THIRD)
    assert misfit(conn, "T", THIRD) == "halted"
    assert digests(conn) == (NEW, None)


def test_a_run_set_aside_for_another_reason_stays_so(conn: Connection, clock: Clock) -> None:
    """A pause after a failure, or a transaction that cannot go on, is no question of code."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    hello(conn, "N2", NEW)
    assert misfit(conn, "O", OLD, '{"type": "Paused", "message": "x"}') == "halted"
    assert tick(conn)["hints"] == []
    assert task_of(conn, "r") == ("halted", 2, None)


def test_resumed_by_hand_it_waits_no_more(conn: Connection, clock: Clock) -> None:
    """A person's word counts: the next worker gets it, and the row that says what it waits for is removed."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    assert misfit(conn, "O", OLD) == "halted"
    ask(conn, ("select durable.resume('r')", ()))
    assert ask(conn, ("select count(*) from durable._code_waits", ())) == (0,)
    assert misfit(conn, "O", OLD) == "halted"
    ask(conn, ("select durable._settle_promise('r', 'resolved', null, '1')", ()))
    hello(conn, "N2", NEW)
    assert tick(conn)["hints"] == []


@pytest.mark.parametrize("with_outcome", [False, True])
def test_arguments_that_other_code_was_started_with(
    conn: Connection, clock: Clock, with_outcome: bool
) -> None:
    """Code that cannot read them leaves the run to the code that was announced when it began."""
    hello(conn, "N", NEW)
    ask(conn, start("r", '{"subject": "Hi"}'))
    bye(conn, "N")
    hello(conn, "O", OLD)
    [held] = claims(conn, "O", OLD)
    outcomes = [done(0)] if with_outcome else []
    answer = take_turn(conn, "O", report(held, outcomes=outcomes, end=refuse()), digest=OLD)
    # a step that it has made counts as written by it
    assert answer.of(held) == ("ok", "done" if with_outcome else "halted")
    if with_outcome:
        assert promise_of(conn, "r") == ("rejected", '{"type": "Boom"}')
        return
    hello(conn, "N2", NEW)
    assert tick(conn)["hints"] == ["default"]
    assert [one.id for one in claims(conn, "N2", NEW)] == ["r"]


def test_arguments_that_its_own_code_cannot_read(conn: Connection, clock: Clock) -> None:
    """They are wrong: the run fails."""
    hello(conn, "N", NEW)
    ask(conn, start("r", '{"subject": "Hi"}'))
    [held] = claims(conn, "N", NEW)
    assert take_turn(conn, "N", report(held, end=refuse()), digest=NEW).of(held) == ("ok", "done")
    assert promise_of(conn, "r") == ("rejected", '{"type": "Boom"}')


def test_a_refusal_is_judged_in_a_turn_with_others(conn: Connection, clock: Clock) -> None:
    """One left, one failed, one completed, in one turn."""
    hello(conn, "N", NEW)
    ask(conn, start("a"))
    bye(conn, "N")
    hello(conn, "O", OLD)
    ask(conn, start("b"))
    ask(conn, start("c"))
    a, b, c = claims(conn, "O", OLD)
    answer = take_turn(
        conn,
        "O",
        report(a, end=refuse()),
        report(b, end=refuse()),
        report(c, outcomes=[done(0)], end=complete()),
        digest=OLD,
    )
    assert [answer.of(one) for one in (a, b, c)] == [("ok", "halted"), ("ok", "done"), ("ok", "done")]


def named(code: str, python: str = "") -> bytes:
    """A digest of this code; of a worker that names its Python, unless there is none."""
    return (code * 32).encode() if not python else (code * 28 + "py").encode() + bytes([3, int(python[2:])])


@pytest.mark.parametrize(
    ("before", "now", "message", "hint"),
    [
        (
            named("a", "3.11"),
            named("a", "3.14"),
            "Python 3.14 does not do what Python 3.11 did with the same source of the workflow: m",
            "a worker with Python 3.11 can end this run",
        ),
        (
            named("a", "3.11"),
            named("b", "3.14"),
            "this run was driven by Python 3.11, and this worker is Python 3.14: m",
            "h",
        ),
        (named("a", "3.14"), named("b", "3.14"), "m", "h"),
        (named("a"), named("b", "3.14"), "m", "h"),
        (named("a"), named("b"), "m", "h"),
    ],
)
def test_the_python_is_named_first(
    conn: Connection, before: bytes, now: bytes, message: str, hint: str
) -> None:
    """If it is known and another one: before the code, and in its place where the source is the same."""
    problem = json.dumps({"type": "NondeterminismError", "message": "m", "child": 3, "data": {"hint": "h"}})
    (found,) = ask(
        conn,
        (
            "select durable._with_python(h, %s) from jsonb_populate_record(null::durable._executions, "
            "jsonb_build_object('former_digest', %s::bytea, 'digest', %s::bytea)) h",
            (problem, before, now),
        ),
    )
    assert json.loads(found) == {**json.loads(problem), "message": message, "data": {"hint": hint}}
