"""Law: an address has one canonical text, a pure function of what was written; what cannot be routed has
none."""

from __future__ import annotations

import pytest

from tests.support.verbs import Connection, ask

CANONICAL = {
    "poll://uni@g/w1": "poll://uni@g/w1",
    "poll://any@g": "poll://any@g",
    "poll://any@g/w1": "poll://any@g/w1",
    "http://host:80/path?x=1": "http://host:80/path?x=1",
    "https://host": "https://host",
    "g": "poll://any@g",
    "order-workers.eu": "poll://any@order-workers.eu",
    "poll://g": "poll://any@g",
    "poll://g/w1": "poll://any@g/w1",
    "poll://g:w1": "poll://any@g/w1",
}
UNROUTABLE = [
    "",
    " ",
    "poll://",
    "poll://uni@g",
    "poll://any@",
    "poll://any@g/a/b",
    "ftp://x",
    "http://",
    "a b",
    "a/b",
    "a:b",
]


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical(conn: Connection, text: str) -> None:
    """Older forms and bare groups become the canonical one, which is a fixed point."""
    canonical = CANONICAL[text]
    assert ask(conn, ("select durable._canonical_address(%s)", (text,))) == (canonical,)
    assert ask(conn, ("select durable._canonical_address(%s)", (canonical,))) == (canonical,)


@pytest.mark.parametrize("text", UNROUTABLE)
def test_unroutable(conn: Connection, text: str) -> None:
    """What names no group, no member for a unicast, or an unknown scheme is refused."""
    assert ask(conn, ("select durable._canonical_address(%s)", (text,))) == (None,)


@pytest.mark.parametrize(
    ("target", "queue", "preference"),
    [
        ("poll://any@g", "g", None),
        ("poll://any@g/w1", "g", "w1"),
        ("poll://uni@g/w1", "poll://uni@g/w1", None),
        ("https://host/x", "https://host/x", None),
    ],
)
def test_queue_and_preference(conn: Connection, target: str, queue: str, preference: str | None) -> None:
    """An anycast is claimed from its group and may prefer a worker; anything else is its own queue."""
    found = ask(conn, ("select durable._queue_of(%s), durable._preference_of(%s)", (target, target)))
    assert found == (queue, preference)
