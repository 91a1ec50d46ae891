"""Law: connections are bounded. Idle ones give way to new ones, those that have been idle for longest first;
where all are busy, a new one is refused and told so."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
import uvicorn

from pyengine.doors.gateway import http_server
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.errors import EngineError, InvalidRequest
from tests.doors.gateway.http_client import Client, EventStream, post_head, raw
from tests.doors.gateway.test_older import OlderStream
from tests.support.gateway import Gateway

LIMIT = 12
# far less than the time after which a connection that sends nothing is closed anyway
SOON_S = 10


def silent(stack: ExitStack, url: str) -> socket.socket:
    """A connection on which nothing is sent."""
    place = urlsplit(url)
    return stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=SOON_S))


def is_open(sock: socket.socket) -> bool:
    """Whether the server has not closed a connection yet."""
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True


def test_idle_connections_give_way(opened: Callable[..., Gateway]) -> None:
    """The oldest first, whether they have had an answer or not; a stream and new clients are served."""
    gateway = opened(max_connections=LIMIT, max_streams=2)
    with ExitStack() as stack:
        stream = stack.enter_context(EventStream(gateway.url, "g", "a"))
        answered = silent(stack, gateway.url)
        answered.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answered.recv(65536).startswith(b"HTTP/1.1 200")
        idle = [answered, *(silent(stack, gateway.url) for _ in range(3 * LIMIT))]
        client = stack.enter_context(Client(gateway.url))
        client.create("t", "poll://any@g")
        message = stream.next()
        assert message is not None and message["data"]["task"]["id"] == "t"
        # beside the stream and the client
        kept = LIMIT - 2
        for sock in idle[:-kept]:
            while sock.recv(65536):
                pass
        assert all(is_open(sock) for sock in idle[-kept:])
        text = client.http.get(gateway.url + "/metrics").text
        assert f"pyengine_gateway_connections {LIMIT}.0" in text
        assert f'pyengine_gateway_connections_closed_total{{state="idle"}} {len(idle) - kept}.0' in text


def test_a_new_connection_is_refused_where_all_are_busy(opened: Callable[..., Gateway]) -> None:
    """It gets an envelope with 503; once one is free, the next is served."""
    gateway = opened(older_port=0, max_connections=2, max_streams=1)
    with EventStream(gateway.url, "g", "a"):
        with OlderStream(gateway.older_url, "g", "a"):
            head, _, body = raw(gateway.url).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
            assert json.loads(body)["head"]["status"] == 503
        while len(gateway.parts.older_members):
            time.sleep(0.01)
        with Client(gateway.url) as client:
            assert client.create("p")["state"] == "pending"


def test_files_bound_them_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Half of what the process may open is for all else, and the log says so."""
    monkeypatch.setattr(http_server, "_allow_files", lambda: 1_000)
    assert http_server._limit_of_connections(500) == 500
    assert not caplog.records
    assert http_server._limit_of_connections(501) == 500
    assert "may open 1000 files" in caplog.text


def test_streams_leave_room_for_requests() -> None:
    """As many streams as connections are refused with the next option to give."""
    with pytest.raises(InvalidRequest, match="leave none beside 8 streams"):
        GatewayConfig(database_url="", max_connections=8, max_streams=8).check()


def test_a_request_of_two_lengths_is_the_last_one(client: Client) -> None:
    """One that has a length and a transfer encoding is answered, and its connection is closed behind it: what
    follows may be of another request for a proxy."""
    body = json.dumps(client.envelope("promise.get", id="nothing")).encode()
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = post_head(None, "content-length: 5")
    found = raw(client.url, head + chunk + head + chunk)
    assert found.startswith(b"HTTP/1.1 404") and found.count(b"HTTP/1.1") == 1
    assert b"connection: close" in found.lower()
    found = raw(client.url, post_head(None) + chunk + post_head(None, "connection: close") + chunk)
    assert found.count(b"HTTP/1.1 404") == 2


@pytest.mark.parametrize("version", [b"9.9", b"2.0", b"0.9"])
def test_a_version_that_is_none(client: Client, version: bytes) -> None:
    """Is refused, and the connection closed."""
    found = raw(client.url, b"GET /health HTTP/%s\r\nhost: localhost\r\n\r\n" % version)
    assert found.startswith((b"HTTP/1.1 505", b"HTTP/1.1 400")) and b"connection: close" in found.lower()


def test_a_uvicorn_that_has_changed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release without a part that a gateway uses is named at the start."""
    monkeypatch.setitem(http_server._USED, uvicorn.Server, ("started", "not_any_more"))
    with pytest.raises(EngineError, match=r"has no Server\.not_any_more"), Gateway(dsn):
        pass
