"""Law: a message that a promise settled is handed out until somebody acknowledges it, and to one courier at a
time."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, ask, create, refusal, settle


def claim(address: str | None = None, limit: int = 10, ttl_ms: int = 1000) -> Call:
    """unblock.claim, as a list of promise, address, attempt and state."""
    text = (
        "select array(select concat_ws(' ', promise_id, address, attempt, (promise).state) "
        "from durable.unblock_claim(%s, %s, %s))"
    )
    return text, (address, limit, ttl_ms)


def settle_for(conn: Connection, promise: str, *groups: str) -> None:
    """Make a promise settle for which these groups listen."""
    ask(conn, create(promise, external="true"))
    for group in groups:
        ask(conn, ("select state from durable.promise_register_listener(%s, %s)", (promise, group)))
    ask(conn, settle(promise))


def test_a_message_is_tried_again_until_it_is_acknowledged(conn: Connection, clock: Clock) -> None:
    """Claimed once; again after the ttl, then after twice that, at most an hour; gone when acknowledged."""
    settle_for(conn, "p", "g")
    for attempt in range(1, 15):
        assert ask(conn, claim()) == ([f"p poll://any@g {attempt} resolved"],)
        assert ask(conn, claim()) == ([],)
        pause = min(1000 * 2 ** (attempt - 1), 3_600_000)
        clock.advance(pause - 1)
        assert ask(conn, claim()) == ([],)
        clock.advance(1)
    acknowledge = ("select durable.unblock_acknowledge('p', 'poll://any@g')", ())
    assert ask(conn, acknowledge) == (True,)
    assert ask(conn, acknowledge) == (False,)
    clock.advance(3_600_000)
    assert ask(conn, claim()) == ([],)


def test_a_courier_takes_messages_for_its_address(conn: Connection, clock: Clock) -> None:
    """With an address only its messages, without one any; a page at a time, the longest due first."""
    settle_for(conn, "p", "g", "h")
    clock.advance(1)
    settle_for(conn, "q", "g")
    assert ask(conn, claim("poll://any@h")) == (["p poll://any@h 1 resolved"],)
    assert ask(conn, claim(limit=1)) in ((["p poll://any@g 1 resolved"],), (["q poll://any@g 1 resolved"],))
    assert len(ask(conn, claim())[0]) == 1


def test_two_couriers_take_different_messages(conn: Connection, dsn: str) -> None:
    """What one has claimed in an open transaction the other passes over and does not wait for."""
    settle_for(conn, "p", "g")
    settle_for(conn, "q", "g")
    with psycopg.connect(dsn) as other:
        (first,) = ask(other, claim(limit=1))
        (second,) = ask(conn, claim())
        other.commit()
    assert sorted(first + second) == ["p poll://any@g 1 resolved", "q poll://any@g 1 resolved"]


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1001}, {"ttl_ms": 0}])
def test_a_claim_refuses_what_is_malformed(conn: Connection, wrong: dict[str, int]) -> None:
    """WF004 for a page out of 1 to 1000 and for no time at all."""
    assert refusal(conn, claim(**wrong)) == "WF004"
