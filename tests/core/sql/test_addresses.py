"""Law: an address has one canonical text, a pure function of what was written; what cannot be routed has
none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyengine.core.definitions.queues import check_queue
from pyengine.errors import InvalidRequest
from tests.support.verbs import Connection, ask

LONGEST = 1024 - len("poll://any@")

CANONICAL = {
    # as it is stored
    "poll://uni@g/w1": "poll://uni@g/w1",
    "poll://any@g": "poll://any@g",
    "poll://any@g/w1": "poll://any@g/w1",
    # bare groups, and what older clients write
    "g": "poll://any@g",
    "order-workers.eu": "poll://any@order-workers.eu",
    "default": "poll://any@default",
    "poll://g": "poll://any@g",
    "poll://g/w1": "poll://any@g/w1",
    "poll://g:w1": "poll://any@g/w1",
    "poll://any": "poll://any@any",
    "poll://uni/w1": "poll://any@uni/w1",
    # the scheme has no case; groups and members have
    "POLL://any@Group/Member": "poll://any@Group/Member",
    "Poll://Group:Member": "poll://any@Group/Member",
    "Group": "poll://any@Group",
    # names of groups and members are taken as they are
    "50%": "poll://any@50%",
    "poll://any@a%2Fb/c%20d": "poll://any@a%2Fb/c%20d",
    "poll://any@a:b": "poll://any@a:b",
    "poll://any@a:b/c:d": "poll://any@a:b/c:d",
    "poll://any@g/a@b": "poll://any@g/a@b",
    "poll://g/a@b": "poll://any@g/a@b",
    "größe": "poll://any@größe",
    "what?#now": "poll://any@what?#now",
    # services: a name as SQL reads it, quoted where it must be
    "sql://billing.close_month": "sql://billing.close_month",
    "SQL://Billing.Close_Month": "sql://billing.close_month",
    'sql://"Billing".close': 'sql://"Billing".close',
    'sql://"billing"."close"': "sql://billing.close",
    "sql://billing.select": 'sql://billing."select"',
    'sql://a."b""c"': 'sql://a."b""c"',
    "sql://größe._x$1": 'sql://"größe"."_x$1"',
    # http: scheme and host have no case, the default port and a lone slash say nothing
    "http://host:8080/path?x=1": "http://host:8080/path?x=1",
    "https://host": "https://host",
    "https://host/": "https://host",
    "HTTPS://Example.COM/Path": "https://example.com/Path",
    "http://host:80/x": "http://host/x",
    "https://host:443": "https://host",
    "https://host:80/x": "https://host:80/x",
    "http://host:443/x": "http://host:443/x",
    "http://host:0080/x": "http://host/x",
    "http://host:65535": "http://host:65535",
    "http://host/?x=1": "http://host?x=1",
    "http://host?x=/": "http://host?x=/",
    "http://host/a/": "http://host/a/",
    "http://host//": "http://host//",
    "http://host/a%2fb?c=%C3%9F": "http://host/a%2fb?c=%C3%9F",
    "http://User:Pass@Host/x": "http://User:Pass@host/x",
    "http://127.0.0.1:9000/x": "http://127.0.0.1:9000/x",
    "http://[::1]:80/x": "http://[::1]/x",
    "http://[2001:DB8::1]/x": "http://[2001:db8::1]/x",
    # as long as allowed
    "g" * LONGEST: "poll://any@" + "g" * LONGEST,
    "http://h/" + "p" * 1015: "http://h/" + "p" * 1015,
}
UNROUTABLE = {
    # no group, or no member where one is needed
    "",
    "poll://",
    "poll://uni@g",
    "poll://uni@",
    "poll://any@",
    "poll://@g",
    "poll:///w1",
    "poll://any@/w1",
    "poll://uni@/w1",
    "poll://:w1",
    "poll://g:",
    # a trailing slash announces a member that is not named; there is no third part
    "poll://g/",
    "poll://any@g/",
    "poll://uni@g/",
    "poll://any@g/a/b",
    "poll://any@g/a/",
    "poll://g:a/b",
    "poll://g:a:b",
    "poll://g:a@b",
    # unknown casts and schemes; a cast has a case
    "poll://one@g",
    "poll://ANY@g",
    "poll://any@g@h",
    "ftp://x",
    "gcps://project/topic",
    "poll:/g",
    "poll:g",
    # no name of a function: no schema, three parts, types, blanks, a number first
    "sql://",
    "sql://billing",
    "sql://a.b.c",
    "sql://a.b(int)",
    'sql://"a b".c',
    "sql://1a.b",
    'sql://"".b',
    "sql://a.b;select",
    # neither a group nor an address
    "a/b",
    "a:b",
    "a@b",
    "/",
    # blanks and control characters
    " ",
    " g",
    "g ",
    "a b",
    "a\tb",
    "poll://any@g/a\nb",
    "http://host/a b",
    "http://host/a\r\nX: y",
    "g\x7f",
    "g\u00a0h",
    "poll://any@g\u200b",
    "http://host\u2028/x",
    # no URL that can be called
    "http://",
    "http:///x",
    "http://:80",
    "http://host:",
    "http://host:0",
    "http://host:65536",
    "http://host:1e3",
    "http://host:-1",
    "http://ho#st",
    "http://host/x#part",
    "http://a@b@c/x",
    "http://[::1/x",
    "http://[host]/x",
    "http://host/100%",
    "http://host/%zz",
    'http://host/"x"',
    "http://host\\x",
    "http:/host",
    # too long to be stored, also where only the canonical text is
    "g" * (LONGEST + 1),
    "ß" * 600,
    "http://h/" + "p" * 1016,
}


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical(conn: Connection, text: str) -> None:
    """Older forms and bare groups become the canonical one, which is a fixed point."""
    canonical = CANONICAL[text]
    assert ask(conn, ("select durable._canonical_address(%s)", (text,))) == (canonical,)
    assert ask(conn, ("select durable._canonical_address(%s)", (canonical,))) == (canonical,)


@pytest.mark.parametrize("text", sorted(UNROUTABLE))
def test_unroutable(conn: Connection, text: str) -> None:
    """What names no group, no member for a unicast, an unknown scheme or no place at all is refused."""
    assert ask(conn, ("select durable._canonical_address(%s)", (text,))) == (None,)


def test_nothing_is_unroutable(conn: Connection) -> None:
    """No address has no canonical text."""
    assert ask(conn, ("select durable._canonical_address(null)", ())) == (None,)


LISTENERS = {
    text: canonical for text, canonical in CANONICAL.items() if not text.lower().startswith("sql:")
} | {
    "poll://g:w1": "poll://uni@g/w1",
    "Poll://Group:Member": "poll://uni@Group/Member",
}


@pytest.mark.parametrize("text", LISTENERS)
def test_listener(conn: Connection, text: str) -> None:
    """Who is to be told under the older shorthand is one member; every other form means the same for all."""
    canonical = LISTENERS[text]
    assert ask(conn, ("select durable._canonical_listener(%s)", (text,))) == (canonical,)
    assert ask(conn, ("select durable._canonical_address(%s)", (canonical,))) == (canonical,)


@pytest.mark.parametrize("text", sorted(UNROUTABLE))
def test_unroutable_listener(conn: Connection, text: str) -> None:
    """What cannot be resumed cannot be told either."""
    assert ask(conn, ("select durable._canonical_listener(%s)", (text,))) == (None,)


QUEUES = ("default", "a.b", "a:b", "ü", "a,b", "sql:x", "poll", "x" * 256, "é" * 128)
NO_QUEUES = (
    "",
    "a/b",
    "a b",
    "any@z",
    "@",
    "/",
    "a\n",
    "\tb",
    "a\u00a0",
    "\u200b",
    "x" * 257,
    "é" * 129,
    "sql://s.f",
)


@pytest.mark.parametrize("queue", [*QUEUES, *NO_QUEUES])
def test_names_of_queues(conn: Connection, queue: str) -> None:
    """SQL and Python take the same texts for names of queues: those whose address can be routed."""
    sound = queue in QUEUES
    assert ask(conn, ("select durable._is_queue(%s)", (queue,))) == (sound,)
    if sound:
        assert check_queue(queue, what="here") == queue
    else:
        with pytest.raises(InvalidRequest, match=r"here: .* is not a queue name"):
            check_queue(queue, what="here")


@pytest.mark.parametrize("queue", ["a\0b", "\ud800", 5, None, b"q", ["q"]])
def test_invalid_queue_names_never_reach_sql(queue: Any) -> None:
    """What is no text, or none that a database can hold, is no name of a queue either."""
    with pytest.raises(InvalidRequest, match="is not a queue name"):
        check_queue(queue, what="here")


def poll(**data: Any) -> dict[str, Any]:
    """A receiver that polls."""
    return {"type": "poll", "data": data}


def http(url: Any = "http://h/x", **data: Any) -> dict[str, Any]:
    """A receiver that is called."""
    return {"type": "http", "data": {"url": url, **data}}


# receiver -> its address for a resume, its address for a notification, its headers
RECEIVERS: list[tuple[Any, str, str, dict[str, str] | None]] = [
    (poll(group="g", id="w"), "poll://any@g/w", "poll://uni@g/w", None),
    (poll(group="g"), "poll://any@g", "poll://any@g", None),
    (poll(group="g", id=None), "poll://any@g", "poll://any@g", None),
    (poll(group="g", id=""), "poll://any@g", "poll://any@g", None),
    (poll(group="a:b", id="c@d"), "poll://any@a:b/c@d", "poll://uni@a:b/c@d", None),
    (poll(group="g", id="w", headers={"a": "b"}), "poll://any@g/w", "poll://uni@g/w", None),
    ("poll://g:w", "poll://any@g/w", "poll://uni@g/w", None),
    ("poll://g/w", "poll://any@g/w", "poll://any@g/w", None),
    ("poll://uni@g/w", "poll://uni@g/w", "poll://uni@g/w", None),
    ("workers", "poll://any@workers", "poll://any@workers", None),
    ("HTTP://Example.com/", "http://example.com", "http://example.com", None),
    (http(), "http://h/x", "http://h/x", None),
    (http("https://H:443/x"), "https://h/x", "https://h/x", None),
    (http(headers={}), "http://h/x", "http://h/x", None),
    (http(headers=None), "http://h/x", "http://h/x", None),
    (http(headers={"X-Key": "a b\tc"}), "http://h/x", "http://h/x", {"X-Key": "a b\tc"}),
]
NO_RECEIVERS: list[Any] = [
    None,
    7,
    True,
    [],
    ["poll://g:w"],
    {},
    {"type": "poll"},
    {"type": "poll", "data": "g"},
    {"type": "poll", "data": []},
    {"data": {"group": "g"}},
    {"type": "POLL", "data": {"group": "g"}},
    {"type": "kafka", "data": {"group": "g"}},
    {"type": ["poll"], "data": {"group": "g"}},
    poll(),
    poll(id="w"),
    poll(group=""),
    poll(group=None, id="w"),
    poll(group=7),
    poll(group="g", id=7),
    poll(group=["g"]),
    poll(group="a/b"),
    poll(group="a@b"),
    poll(group="a b"),
    poll(group="g", id="a/b"),
    poll(group="g", id="a b"),
    poll(group="g" * 1024),
    http(None),
    http(7),
    http(""),
    http("poll://g:w"),
    http("workers"),
    http("http://h/#x"),
    http(headers=[]),
    http(headers="x"),
    http(headers={"a": 1}),
    http(headers={"a": None}),
    http(headers={"a b": "c"}),
    http(headers={"": "c"}),
    http(headers={"a:": "c"}),
    http(headers={"a": "b\r\nc: d"}),
    "",
    "a b",
    "logical/name",
    "ftp://x",
]


@pytest.mark.parametrize(
    ("recv", "resume", "notify", "headers"), RECEIVERS, ids=map(repr, range(len(RECEIVERS)))
)
def test_receiver(
    conn: Connection, recv: Any, resume: str, notify: str, headers: dict[str, str] | None
) -> None:
    """A receiver of the older API is an address and the headers that go with it; a polling one is a
    preference for a resume and the one to be told for a notification."""
    text = json.dumps(recv)
    found = ask(
        conn,
        (
            "select durable._canonical_recv(r, false), durable._canonical_recv(r, true), "
            "durable._recv_headers(r) from (values (%s::jsonb)) as x (r)",
            (text,),
        ),
    )
    assert found == (resume, notify, headers)


@pytest.mark.parametrize("recv", NO_RECEIVERS, ids=map(repr, range(len(NO_RECEIVERS))))
@pytest.mark.parametrize("notify", [False, True])
def test_no_receiver(conn: Connection, recv: Any, notify: bool) -> None:
    """A receiver of another type, without its parts, or with headers that would break a request, is none."""
    found = ask(conn, ("select durable._canonical_recv(%s::jsonb, %s)", (json.dumps(recv), notify)))
    assert found == (None,)


@pytest.mark.parametrize(
    ("target", "queue", "preference"),
    [
        ("poll://any@g", "g", None),
        ("poll://any@g/w1", "g", "w1"),
        ("poll://any@a:b/c@d", "a:b", "c@d"),
        ("poll://uni@g/w1", "poll://uni@g/w1", None),
        ("https://host/x", "https://host/x", None),
    ],
)
def test_queue_and_preference(conn: Connection, target: str, queue: str, preference: str | None) -> None:
    """An anycast is claimed from its group and may prefer a worker; anything else is its own queue."""
    found = ask(conn, ("select durable._queue_of(%s), durable._preference_of(%s)", (target, target)))
    assert found == (queue, preference)


@pytest.mark.parametrize("address", ["sql://billing.close", "SQL://a.b"])
def test_a_service_is_only_ever_a_target(conn: Connection, address: str) -> None:
    """A service is called for its own promises: it is neither told of others nor resumed for them."""
    told = (
        "select durable._canonical_listener(%s), durable._canonical_recv(%s, true), "
        "durable._canonical_recv(%s, false)"
    )
    recv = json.dumps(address)
    assert ask(conn, (told, (address, recv, recv))) == (None, None, None)
    found = ask(
        conn,
        (
            "select durable._queue_of(a), durable._target_of(a) from durable._canonical_address(%s) a",
            (address,),
        ),
    )
    assert found == (address.lower(), address.lower())
