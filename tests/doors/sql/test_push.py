"""Law: a courier claims reports for each address as far as that has room, holds what it is sending, and
gives up what is old; it waits for no lock."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.support.clock import Clock
from tests.support.envelope import acquire, make, say, settle
from tests.support.verbs import Connection, refusal

A, B = "https://a.example", "http://b.example/x"


def settled(conn: Connection, count: int, *addresses: str, letter: str = "p") -> None:
    """Promises that settled and that these addresses listen to."""
    for n in range(count):
        make(conn, f"{letter}{n}", external="true")
        for address in addresses:
            say(conn, "promise.register_listener", awaited=f"{letter}{n}", address=address)
        settle(conn, f"{letter}{n}")


def claimed(conn: Connection, addresses: list[str], limits: list[int]) -> list[tuple[Any, ...]]:
    """Promise, address, attempt and age of the reports that are claimed for a second."""
    return conn.execute(
        "select promise_id, address, attempt, age_ms from durable.unblock_claim_each(%s, %s, 1000)",
        (addresses, limits),
    ).fetchall()


def number(conn: Connection, text: str, *values: object) -> int:
    """What a function answers."""
    row = conn.execute(text.encode(), values).fetchone()
    assert row is not None
    return int(row[0])


def test_reports_for_each_address(conn: Connection, clock: Clock) -> None:
    """A limit for each; the rest stays due; each report once until its claim ends, with its age."""
    settled(conn, 4, A, B)
    clock.advance(70)
    assert [row[1:] for row in claimed(conn, [A, B], [3, 1])] == [(A, 1, 70)] * 3 + [(B, 1, 70)]
    assert [row[1] for row in claimed(conn, [A, B], [3, 9])] == [A] + [B] * 3
    assert claimed(conn, [A, B], [9, 9]) == []
    clock.advance(1000)
    assert {row[2:] for row in claimed(conn, [A, B], [9, 9])} == {(2, 1070)}


def test_a_claim_lasts_as_long_as_it_says(conn: Connection, clock: Clock) -> None:
    """However often a report was claimed before: a courier that has failed puts it off."""
    settled(conn, 1, A)
    each = "select attempt from durable.unblock_claim_each(array[%s], '{1}', 1000)"
    many = "select attempt from durable.unblock_claim_many(array[%s], 1, 1000)"
    for attempt in range(1, 15):
        text = each if attempt % 2 else many
        assert number(conn, text, A) == attempt
        clock.advance(999)
        assert conn.execute(text.encode(), (A,)).fetchall() == []
        clock.advance(1)


def test_bad_claims(conn: Connection) -> None:
    """A limit for each address, of 1 to 1000."""
    text = "select durable.unblock_claim_each(%s, %s)"
    for addresses, limits in (([A], [1, 2]), (None, [1]), ([A], None), ([A], [0]), ([A], [1001])):
        assert refusal(conn, (text, (addresses, limits))) == "WF004"
    assert claimed(conn, [], []) == []


def test_reports_are_put_off(conn: Connection, clock: Clock) -> None:
    """Each for its own time from now, longer or shorter than its claim."""
    settled(conn, 2, A)
    claimed(conn, [A], [2])
    put_off = "select durable.unblock_defer_many(%s, %s, %s)"
    assert number(conn, put_off, ["p0", "p1", "p9"], [A, A, A], [5000, 10, 10]) == 2
    clock.advance(9)
    assert claimed(conn, [A], [2]) == []
    clock.advance(1)
    assert [row[0] for row in claimed(conn, [A], [2])] == ["p1"]
    clock.advance(4990)
    assert {row[0] for row in claimed(conn, [A], [2])} == {"p0", "p1"}


def test_offers_are_put_off(conn: Connection, clock: Clock) -> None:
    """While the task waits at this version, and never to an earlier time."""
    for id_ in ("t0", "t1", "t2"):
        make(conn, id_, target=A)
    offer = "select count(*) from durable.task_offer_many(%s, %s)"
    assert number(conn, offer, [A], [9]) == 3
    acquire(conn, "t2", 0)
    put_off = "select durable.task_offer_defer_many(%s, %s, %s)"
    assert number(conn, put_off, ["t0", "t1", "t2", "t0"], [0, 0, 0, 7], [9000, 10, 10, 10]) == 2
    clock.advance(4999)
    assert number(conn, offer, [A], [9]) == 0
    clock.advance(1)
    assert number(conn, offer, [A], [9]) == 1
    clock.advance(4000)
    assert number(conn, offer, [A], [9]) == 1


def test_a_place_without_processes_waits_after_releases(conn: Connection, clock: Clock) -> None:
    """A receiver has no name, so its own release would not keep the task from it."""
    make(conn, "t", target=A)
    offer = "select count(*) from durable.task_offer_many(%s, %s)"
    for version in range(3):
        clock.advance(5000)
        acquire(conn, "t", version, pid=f"shim-{version}")
        say(conn, "task.release", id="t", version=version + 1)
    assert number(conn, offer, [A], [9]) == 0
    clock.advance(499)
    assert number(conn, offer, [A], [9]) == 0
    clock.advance(1)
    assert number(conn, offer, [A], [9]) == 1


def test_old_reports_are_given_up(conn: Connection, clock: Clock) -> None:
    """Those of one address, claimed or not."""
    settled(conn, 3, A, B)
    claimed(conn, [A], [1])
    clock.advance(1000)
    settled(conn, 1, A, letter="young")
    expire = "select durable.unblock_expire(%s, %s)"
    assert number(conn, expire, A, 1001) == 0
    assert number(conn, expire, A, 1000) == 3
    left = conn.execute("select promise_id, address from durable._unblocks order by 1, 2").fetchall()
    assert left == [("p0", B), ("p1", B), ("p2", B), ("young0", A)]


def test_nothing_waits_for_a_lock(conn: Connection, dsn: str) -> None:
    """What a user's open transaction has locked is left as it is."""
    with psycopg.connect(dsn) as user, psycopg.connect(dsn, autocommit=True) as other:
        other.execute("set lock_timeout = '100ms'")
        settled(other, 1, A, letter="held")
        make(other, "held", target=A)
        user.execute("select from durable._unblocks for update")
        user.execute("select from durable._tasks for update")
        assert claimed(other, [A], [9]) == []
        assert number(other, "select durable.unblock_defer_many(%s, %s, %s)", ["held0"], [A], [1]) == 0
        assert number(other, "select durable.task_offer_defer_many(%s, %s, %s)", ["held"], [0], [1]) == 0
        assert number(other, "select durable.unblock_expire(%s, 0)", A) == 0
        assert number(other, "select durable.unblock_acknowledge_many(%s, %s)", ["held0"], [A]) == 0
        each = "select * from durable.unblock_acknowledge_each(%s, %s)"
        settled(other, 1, A, letter="free")
        both = (["held0", "free0"], [A, A])
        assert other.execute(each.encode(), both).fetchall() == [("held0", A)]
        user.rollback()
        assert other.execute(each.encode(), both).fetchall() == []
        assert number(other, "select count(*) from durable._unblocks") == 0
