"""Law: while a worker that keeps its runs is there, no other one gets them, however they become ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    Held,
    ask,
    broken,
    continue_as_new,
    promise,
    receive,
    release,
    release_unknown,
    report,
    run,
    send,
    settle,
    start,
    suspend,
    take_turn,
    tick,
)
from tests.support.why import why

KEEPER = "select durable.worker_hello_v1('K', '{default}', '{w}', '{1}', '{\"keeps\": true}', '{ab}')"
OTHER = "select durable.worker_hello_v1('O', '{default}', '{w}', '{1}', '{}', '{ab}')"
KEPT_MS = TTL_MS


def claims(conn: Connection, worker: str) -> list[str]:
    """The runs that a worker gets."""
    return [one.id for one in take_turn(conn, worker, want=10).tasks]


@pytest.fixture
def held(conn: Connection, clock: Clock) -> Held:
    """A run that its worker keeps, beside another worker."""
    ask(conn, (KEEPER, ()))
    ask(conn, (OTHER, ()))
    ask(conn, start("r", delay="1 minute"))
    assert claims(conn, "O") == []
    assert ask(conn, ("select durable.worker_keep_v1('K', 'r')", ())) == (True,)
    assert claims(conn, "O") == []
    [held] = take_turn(conn, "K", want=10).tasks
    return held


@pytest.mark.parametrize("how", ["signal", "promise", "retry", "continue", "unknown", "child"])
def test_it_gets_its_runs_back(conn: Connection, clock: Clock, held: Held, how: str) -> None:
    """The other one gets none, until the length of a lease is over in which the keeper did not take it."""
    id_ = "r"
    if how == "signal":
        take_turn(conn, "K", report(held, commands=[receive(0)], end=suspend(0, kind="signal")))
        ask(conn, send("r"))
    elif how == "promise":
        take_turn(conn, "K", report(held, commands=[promise(0)], end=suspend(0)))
        ask(conn, settle("r.0"))
    elif how == "retry":
        take_turn(conn, "K", report(held, outcomes=[broken(0, retry_in=9_000)], end=release(9_000)))
        clock.advance(9_000)
    elif how == "continue":
        take_turn(conn, "K", report(held, end=continue_as_new()))
    elif how == "unknown":
        ask(conn, release_unknown("K"))
    else:
        id_ = "r.0"
        take_turn(conn, "K", report(held, commands=[run(0)], end=suspend(0)))
    assert claims(conn, "O") == []
    assert [cause for _, _, cause, _ in why(conn, id_)] == ["reserved"]
    clock.advance(KEPT_MS - 1)
    assert claims(conn, "O") == []
    clock.advance(1)
    assert claims(conn, "O") == [id_]


def test_it_gets_what_one_answer_had_no_room_for(conn: Connection, clock: Clock, held: Held) -> None:
    """Child runs with large inputs, of which a claim takes as many as an answer holds."""
    large = [run(child, param=json.dumps("x" * 5_000_000)) for child in range(3)]
    take_turn(conn, "K", report(held, commands=large, end=suspend(0, 1, 2)))
    assert claims(conn, "K") == ["r.0", "r.1"]
    assert claims(conn, "O") == []
    assert claims(conn, "K") == ["r.2"]


def test_a_keeper_that_is_lost_keeps_nothing(conn: Connection, clock: Clock, held: Held) -> None:
    """Its lease ends, and anybody goes on."""
    clock.advance(TTL_MS)
    assert tick(conn)["leases"] == 1
    assert claims(conn, "O") == ["r"]


def test_a_keeper_that_says_goodbye_keeps_nothing(conn: Connection, clock: Clock, held: Held) -> None:
    """What it gives back is for anybody."""
    ask(conn, ("select durable.worker_bye_v1('K')", ()))
    assert claims(conn, "O") == ["r"]


def test_only_a_keeper_keeps(conn: Connection, clock: Clock) -> None:
    """A run of anybody that has not begun is not given to an ordinary worker, nor is one that has begun."""
    ask(conn, (KEEPER, ()))
    ask(conn, (OTHER, ()))
    ask(conn, start("r", delay="1 minute"))
    assert ask(conn, ("select durable.worker_keep_v1('O', 'r')", ())) == (False,)
    clock.advance(60_000)
    assert claims(conn, "O") == ["r"]
    ask(conn, release_unknown("O"))
    assert ask(conn, ("select durable.worker_keep_v1('K', 'r')", ())) == (False,)


@contextmanager
def one_reservation(conn: Connection) -> Iterator[None]:
    """What is done in this transaction looks once whether the worker keeps its runs."""
    calls = (
        "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = '_reserved_until'"
    )
    conn.execute("set track_functions = 'all'")
    with conn.transaction():
        (before,) = ask(conn, (calls, ()))
        yield
        assert ask(conn, (calls, ())) == (before + 1,)
    conn.execute("reset track_functions")


RESERVED = (
    "select count(*) from durable._tasks where preference = 'K' and prefer_until = durable._now_ms() + %s"
)


def test_a_reservation_is_made_once_for_many_children(conn: Connection, clock: Clock, held: Held) -> None:
    """A turn asks once whether its worker keeps its runs, not once for each of a hundred children; each of
    them is reserved."""
    children = range(100)
    with one_reservation(conn):
        take_turn(
            conn, "K", report(held, commands=[run(child) for child in children], end=suspend(*children))
        )
    assert ask(conn, (RESERVED, (KEPT_MS,))) == (len(children),)


def test_a_reservation_is_made_once_for_all_that_is_given_back(
    conn: Connection, clock: Clock, held: Held
) -> None:
    """Children for which an answer has no room, and those whose answer was lost, are reserved together."""
    children = range(10)
    take_turn(conn, "K", report(held, commands=[run(child) for child in children], end=suspend(*children)))
    assert len(claims(conn, "K")) == len(children)
    with one_reservation(conn):
        ask(conn, release_unknown("K"))
    assert ask(conn, (RESERVED, (KEPT_MS,))) == (len(children),)
    assert len(claims(conn, "K")) == len(children)
    put_back = (
        "select durable._put_back(array_agg(execution), '{}', 'K', durable._now_ms()) "
        "from durable._tasks where state = 'acquired'"
    )
    with one_reservation(conn):
        ask(conn, (put_back, ()))
    assert ask(conn, (RESERVED, (KEPT_MS,))) == (len(children),)
