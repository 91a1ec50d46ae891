"""Law: one call gives many members of groups what waits for them: to each its own, no more than it has room
for, to the one that a task prefers, and never a task back to the process that has just released it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.envelope import acquire, make, say, settle, suspend
from tests.support.verbs import NEVER, Connection, refusal

A, B = "poll://uni@g/a", "poll://uni@g/b"


def offers(conn: Connection, **limits: int) -> list[tuple[str, str]]:
    """What the members a, b, ... of group g are offered, as (member, id)."""
    rows = conn.execute(
        "select split_part(address, '/', 4), id from durable.task_offer_many(%s, %s)",
        ([f"poll://uni@g/{pid}" for pid in limits], list(limits.values())),
    )
    return [(str(pid), str(id_)) for pid, id_ in rows.fetchall()]


def due(conn: Connection, prefix: str = "") -> list[tuple[Any, ...]]:
    """Addresses with something due: execute, unblock."""
    return conn.execute("select * from durable.addresses_due(%s)", (prefix,)).fetchall()


def waiting(conn: Connection, count: int, target: str = "poll://any@g", letter: str = "t") -> list[str]:
    """Tasks for an address."""
    ids = [f"{letter}{n}" for n in range(count)]
    for id_ in ids:
        make(conn, id_, target=target)
    return ids


def test_tasks_go_round(conn: Connection, clock: Clock) -> None:
    """Each task once, evenly; offered again when its time is over."""
    ids = waiting(conn, 6)
    found = offers(conn, a=64, b=64, c=64)
    assert sorted(id_ for _, id_ in found) == ids
    assert Counter(pid for pid, _ in found) == {"a": 2, "b": 2, "c": 2}
    assert offers(conn, a=64) == []
    clock.advance(5000)
    assert len(offers(conn, a=64)) == 6


def test_members_with_nothing_due_cost_no_search(conn: Connection) -> None:
    """However many members there are, tasks are looked for and locked at the addresses with something due."""
    conn.execute("set track_functions = 'all'")
    make(conn, "alone", target="poll://uni@g/m7")
    waiting(conn, 1)
    members = {f"m{n}": 9 for n in range(200)}
    found = offers(conn, **members)
    assert ("m7", "alone") in found
    assert len(found) == 2
    calls = "select pg_stat_get_xact_function_calls('durable._try_lock_due_offers'::regproc)"
    assert conn.execute(calls).fetchone() == (2,)


def test_no_member_gets_more_than_its_limit(conn: Connection) -> None:
    """What nobody has room for waits, and stays due."""
    waiting(conn, 6)
    assert Counter(pid for pid, _ in offers(conn, a=1, b=0, c=3)) == {"a": 1, "c": 3}
    assert offers(conn, b=0) == []
    assert len(offers(conn, b=9)) == 2


def test_a_member_gets_what_is_for_it_alone(conn: Connection) -> None:
    """Unicast first: the limit counts for both kinds."""
    waiting(conn, 1, B, "own")
    waiting(conn, 2)
    assert sorted(offers(conn, a=5, b=1)) == [("a", "t0"), ("a", "t1"), ("b", "own0")]


def test_a_preferred_member_gets_its_task(conn: Connection, clock: Clock) -> None:
    """A preferred member that is none of these has a head start of prefer_ms."""
    waiting(conn, 4, "poll://any@g/b")
    waiting(conn, 1, "poll://any@g/z", "z")
    assert offers(conn, a=9, b=9) == [("b", f"t{n}") for n in range(4)]
    clock.advance(199)
    assert offers(conn, a=9) == []
    clock.advance(1)
    assert offers(conn, a=9) == [("a", "z0")]


def test_a_preferred_member_without_room_is_passed_over(conn: Connection) -> None:
    """A preference is a wish."""
    waiting(conn, 2, "poll://any@g/b")
    assert sorted(offers(conn, a=9, b=1)) == [("a", "t1"), ("b", "t0")]


def test_a_task_is_not_offered_to_the_process_that_just_released_it(conn: Connection, clock: Clock) -> None:
    """From its second release on, for a while; others get it at once."""
    waiting(conn, 1)
    for version in range(2):
        acquire(conn, "t0", version, pid="a")
        say(conn, "task.release", id="t0", version=version + 1)
    assert offers(conn, a=9) == []
    assert offers(conn, a=9, b=1) == [("b", "t0")]
    clock.advance(5000)
    assert offers(conn, a=9) == [("a", "t0")]


def test_runs_of_the_engine_are_not_offered(conn: Connection) -> None:
    """They are claimed by its own workers."""
    conn.execute("select durable.start('w', queue => 'g')")
    waiting(conn, 1)
    assert offers(conn, a=9) == [("a", "t0")]


def test_a_timer_with_a_target_is_never_offered(conn: Connection, clock: Clock) -> None:
    """It resolves at its deadline; no worker could run it."""
    make(conn, "nap", clock.now_ms + 1000, target="poll://any@g", timer="true")
    clock.advance(999)
    assert offers(conn, a=9) == []
    clock.advance(1)
    assert say(conn, "promise.get", id="nap").promise["state"] == "resolved"


def test_two_gateways_take_different_tasks(conn: Connection, dsn: str) -> None:
    """What one has taken in an open transaction the other passes over and does not wait for."""
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        with psycopg.connect(dsn, autocommit=True) as setup:
            waiting(setup, 4, letter="two-")
        taken = {id_ for _, id_ in offers(first, a=2)} | {id_ for _, id_ in offers(second, b=2)}
        assert len(taken) == 4
        first.rollback()
        second.rollback()
    with psycopg.connect(dsn, autocommit=True) as setup:
        for id_ in taken:
            settle(setup, id_)


@pytest.mark.parametrize(("members", "limits"), [([A], [1, 2]), ([A, B], None), (None, [1])])
def test_members_and_limits_come_together(conn: Connection, members: object, limits: object) -> None:
    """WF004 otherwise."""
    assert refusal(conn, ("select durable.task_offer_many(%s, %s)", (members, limits))) == "WF004"


def test_addresses_with_something_due(conn: Connection, clock: Clock) -> None:
    """Tasks by their queue, unblocks by their address; not what is delayed, offered or claimed."""
    waiting(conn, 3)
    waiting(conn, 1, "http://far/away", "h")
    make(conn, "later", target="g2", delay=str(clock.now_ms + 50))
    make(conn, "p", external="true")
    say(conn, "promise.register_listener", awaited="p", address="https://there")
    assert due(conn) == [("http://far/away", True, False), ("poll://any@g", True, False)]
    settle(conn, "p")
    assert due(conn, "http") == [("http://far/away", True, False), ("https://there", False, True)]
    clock.advance(50)
    assert ("poll://any@g2", True, False) in due(conn, "poll://")
    conn.execute("select durable.task_offer('http://far/away'), durable.unblock_claim('https://there')")
    assert due(conn, "http") == []


def test_unblocks_for_many_members(conn: Connection) -> None:
    """The promise is in the form of the wire; one acknowledgement may name many."""
    for id_ in ("p", "q"):
        make(conn, id_, external="true")
        for address in (A, B, "poll://uni@g/c"):
            say(conn, "promise.register_listener", awaited=id_, address=address)
        settle(conn, id_, data="NQ==")
    rows = conn.execute(
        "select promise_id, address, promise from durable.unblock_claim_many(%s)", ([A, B],)
    ).fetchall()
    assert [row[:2] for row in rows] == [("p", A), ("p", B), ("q", A), ("q", B)]
    assert rows[0][2]["value"] == {"data": "NQ=="}
    assert conn.execute(
        "select durable.unblock_acknowledge_many(%s, %s)",
        ([row[0] for row in rows], [row[1] for row in rows]),
    ).fetchone() == (4,)
    assert conn.execute("select count(*) from durable._unblocks").fetchone() == (2,)


def test_an_acquire_that_is_sent_again(conn: Connection, clock: Clock) -> None:
    """The process whose answer was lost gets it again; nobody else does."""
    waiting(conn, 1)
    first = acquire(conn, "t0", 0, pid="a")
    clock.advance(10)
    assert acquire(conn, "t0", 0, pid="a") == first
    assert acquire(conn, "t0", 0, pid="b").status == 409
    assert acquire(conn, "t0", 1, pid="a").status == 409


def test_an_acquire_is_not_repeated_after_a_renewal(conn: Connection, clock: Clock) -> None:
    """A process that renews the lease has the answer: a second execute message must not start it twice."""
    waiting(conn, 1)
    acquire(conn, "t0", 0, pid="a")
    clock.advance(10)
    say(conn, "task.heartbeat", pid="a", tasks=[])
    assert acquire(conn, "t0", 0, pid="a").status == 409


def test_an_acquire_is_not_repeated_after_a_write(conn: Connection, clock: Clock) -> None:
    """Nor does a process that has written a promise of its branch."""
    waiting(conn, 1)
    acquire(conn, "t0", 0, pid="a")
    make(conn, "t0:1", origin="t0", branch="t0", parent="t0")
    assert acquire(conn, "t0", 0, pid="a").status == 409


def test_the_strict_profile_repeats_no_acquire(conn: Connection) -> None:
    """The specification: an acquire is exclusive."""
    conn.execute("select durable.set_setting('conformance', 'strict')")
    waiting(conn, 1)
    acquire(conn, "t0", 0, pid="a")
    assert acquire(conn, "t0", 0, pid="a").status == 409


def test_a_resumed_task_is_acquired_again_only_at_its_version(conn: Connection) -> None:
    """After a suspend an old acquire is an old one."""
    waiting(conn, 1)
    make(conn, "p", NEVER, external="true")
    acquire(conn, "t0", 0, pid="a")
    suspend(conn, "t0", 1, "p")
    settle(conn, "p")
    assert acquire(conn, "t0", 0, pid="a").status == 409
    assert acquire(conn, "t0", 1, pid="a").task["version"] == 2
