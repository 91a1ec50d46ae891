"""Law: clients that send or read slowly hold a bounded memory, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyengine.doors.gateway import http_server, memory, outgoing
from pyengine.doors.gateway.backend import Backend
from pyengine.doors.gateway.config import MAX_OUTGOING_BYTES
from pyengine.doors.gateway.envelope import refusal
from pyengine.doors.gateway.memory import Memory, Share
from pyengine.doors.gateway.streams import unblocks
from tests.doors.gateway.http_client import FAR, WAIT_S, Client, EventStream, post_head
from tests.doors.gateway.test_killed import Gateways, free_port
from tests.support.gateway import Gateway

# more than the buffers of a connection take
LARGE = 600_000


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel take little of what a gateway writes, so that not much need be written."""

    def set_up(sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(http_server, "_keep_alive", set_up)


small = pytest.mark.usefixtures("small_buffers")


def shares(limit: int, *sizes: int, slow: bool) -> tuple[list[Share], list[int]]:
    """Shares of a memory with these bytes, and a list of those that are interrupted."""
    all_of_them, interrupted = Memory(limit), list[int]()
    found = [Share(all_of_them) for _ in sizes]
    for n, (one, size) in enumerate(zip(found, sizes, strict=True)):
        assert one.add(size)
        one.since_s = n - 1000 if slow else one.since_s
        one.interrupt = functools.partial(interrupted.append, n)
    return found, interrupted


def test_who_has_waited_longest_makes_room() -> None:
    """And no more of them than are needed; nobody, if that is not enough; and nobody who came just now."""

    async def play(slow: bool, size: int) -> tuple[bool, list[int]]:
        (*_, newest), interrupted = shares(100, 30, 30, 30, 0, slow=slow)
        return newest.add(size), interrupted

    assert asyncio.run(play(True, 10)) == (True, [])
    assert asyncio.run(play(True, 11)) == (True, [0])
    assert asyncio.run(play(True, 41)) == (True, [0, 1])
    assert asyncio.run(play(True, 100)) == (True, [0, 1, 2])
    assert asyncio.run(play(True, 101)) == (False, [])
    assert asyncio.run(play(False, 11)) == (False, [])


def test_bytes_are_given_back_once() -> None:
    """Whatever an owner does after it was interrupted; and one share alone may exceed the limit."""

    async def play() -> list[int]:
        (one, other), _ = shares(100, 40, 60, slow=True)
        one.let_go()
        other.let_go()
        one.give_back()
        other.remove(60)
        whole = Memory(100)
        first, second = Share(whole), Share(whole)
        assert first.add(150) and not second.add(1)
        first.remove(100)
        assert second.add(50) and not second.add(1)
        first.give_back()
        second.give_back()
        return [one.held, other.held, whole.held]

    assert asyncio.run(play()) == [0, 0, 0]


def deaf(url: str, head: bytes) -> socket.socket:
    """A connection on which a request is sent, and nothing is read."""
    place = urlsplit(url)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(WAIT_S)
    sock.connect((place.hostname, place.port))
    sock.sendall(head)
    return sock


def question(kind: str, **data: Any) -> bytes:
    """A request on a connection of its own."""
    body = json.dumps({"kind": kind, "head": {"corrId": "c", "version": "2026-04-01"}, "data": data}).encode()
    return post_head(len(body)) + body


def figure(client: Client, name: str) -> float:
    """A figure of the gateway; 0 if it has none yet."""
    lines = client.http.get(f"{client.url}/metrics").text.splitlines()
    found = [one.rpartition(" ")[2] for one in lines if one.startswith(f"pyengine_gateway_{name} ")]
    return float(found[0]) if found else 0.0


def until(check: Callable[[], object]) -> None:
    """Wait until something is true."""
    late = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < late
        time.sleep(0.01)


def create_large(client: Client, id: str, size: int = LARGE) -> None:
    """A promise with a value that no buffer of the kernel takes."""
    param = {"headers": {}, "data": "x" * size}
    status, data = client.ask(
        "promise.create", id=id, timeoutAt=FAR, param=param, tags={"resonate:external": "true"}
    )
    assert status == 200, data


@small
@pytest.mark.parametrize("path", ["/", "/promises/large"])
def test_clients_that_do_not_read_answers(
    opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Their answers are counted: a further one is 503 with Retry-After, a small one is served. After a moment
    they make room for others, and their connections are cut off."""
    monkeypatch.setattr(memory, "_PATIENCE_S", WAIT_S)
    gateway = opened(max_outgoing_bytes=LARGE * 2 + LARGE // 2)
    get = question("promise.get", id="large")
    head = get if path == "/" else f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        create_large(client, "large")
        held: list[socket.socket] = []
        for _ in range(2):
            held.append(stack.enter_context(deaf(gateway.url, head)))
            until(lambda: figure(client, "outgoing_bytes") > len(held) * LARGE)

        def ask() -> Any:
            if path != "/":
                return client.http.get(gateway.url + path)
            return client.post(client.envelope("promise.get", id="large"))

        answer = ask()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert "too many bytes of answers" in answer.text
        assert client.create("small")["state"] == "pending"
        monkeypatch.setattr(memory, "_PATIENCE_S", 0.0)
        assert ask().status_code == 200
        until(lambda: figure(client, 'slow_clients_total{what="answer"}') == 1)
        assert LARGE < figure(client, "outgoing_bytes") < 2 * LARGE


@small
def test_members_that_do_not_read(opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages for them are counted: what finds no room comes later, and a member that reads gets its own."""
    monkeypatch.setattr(memory, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(unblocks, "_CLAIM_MS", 300)
    limit = LARGE * 2 + LARGE // 2
    gateway = opened(max_outgoing_bytes=limit)
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        create_large(client, "large")
        for n in range(3):
            head = f"GET /poll/g/{n} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            stack.enter_context(deaf(gateway.url, head))
        reader = stack.enter_context(EventStream(gateway.url, "g", "reader"))
        until(lambda: figure(client, "streams") == 4)
        for pid in ("0", "1", "2", "reader"):
            assert client.ask("promise.register_listener", awaited="large", address=f"poll://uni@g/{pid}")
        assert client.ask("promise.settle", id="large", state="resolved")[0] == 200
        message = reader.next()
        assert message is not None and len(message["data"]["promise"]["param"]["data"]) == LARGE
        until(lambda: figure(client, 'slow_clients_total{what="stream"}') >= 1)
        assert figure(client, "outgoing_bytes") <= limit


@small
@pytest.mark.parametrize("path", ["POST", "/g/b"])
def test_a_client_that_takes_nothing_is_cut_off(
    opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Also while nobody else needs the memory: it is free again, and a message comes again elsewhere."""
    gateway = opened(older_port=0)
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        create_large(client, "large")
        monkeypatch.setattr(outgoing, "STUCK_S", 0.2)
        if path == "POST":
            stack.enter_context(deaf(gateway.url, question("promise.get", id="large")))
        else:
            head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            stack.enter_context(deaf(gateway.older_url, head))
            client.ask("promise.register_listener", awaited="large", address="poll://uni@g/b")
            client.ask("promise.settle", id="large", state="resolved")
        what = "answer" if path == "POST" else "stream"
        until(lambda: figure(client, f'slow_clients_total{{what="{what}"}}') == 1)
        until(lambda: figure(client, "outgoing_bytes") == figure(client, "streams") == 0)


@small
def test_a_stream_has_a_bound_of_its_own(
    opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that does not read has one large message on its way, not all that it listens to."""
    monkeypatch.setattr(unblocks, "_CLAIM_MS", 200)
    gateway = opened(max_stream_bytes=LARGE // 2)
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        stack.enter_context(deaf(gateway.url, b"GET /poll/g/a HTTP/1.1\r\nhost: localhost\r\n\r\n"))
        for id in ("one", "two"):
            create_large(client, id)
            client.ask("promise.register_listener", awaited=id, address="poll://uni@g/a")
            client.ask("promise.settle", id=id, state="resolved")
        until(lambda: figure(client, "outgoing_bytes") > LARGE)
        # what is due later shows that the second large one was passed by
        with EventStream(gateway.url, "g", "b") as other:
            client.create("small", **{"resonate:external": "true"})
            client.ask("promise.register_listener", awaited="small", address="poll://any@g")
            client.ask("promise.settle", id="small", state="resolved")
            assert other.next() is not None
        assert LARGE < figure(client, "outgoing_bytes") < 2 * LARGE


def test_slow_bodies_make_room(opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that trickle hold the memory of all until others need it; then they are 408."""
    size = 50_000
    gateway = opened(max_body_bytes=size, max_bodies_bytes=2 * size)
    body = question("promise.get", id="x").partition(b"\r\n\r\n")[2].ljust(size)
    head = post_head(size, "connection: close")
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        slow: list[socket.socket] = []
        for _ in range(2):
            slow.append(stack.enter_context(deaf(gateway.url, head + body[:-1])))
            until(lambda: figure(client, "body_bytes") == len(slow) * (size - 1))
        monkeypatch.setattr(memory, "_PATIENCE_S", 0.0)
        assert client.post(body).status_code == 404
        assert slow[0].recv(65_536).startswith(b"HTTP/1.1 408")
        slow[1].sendall(body[-1:])
        assert slow[1].recv(65_536).startswith(b"HTTP/1.1 404")
        assert figure(client, "body_bytes") == 0


def test_a_request_that_waits_is_its_text(
    opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects that were read from it, with many times its bytes, do not wait for the database with it."""
    blocks: list[int] = []

    async def rpc(self: Backend, kind: str, text: str) -> dict[str, Any]:
        blocks.append(sys.getallocatedblocks())
        return refusal(kind, "c", 404, "nothing")

    monkeypatch.setattr(Backend, "rpc", rpc)
    with Client(opened().url) as client:
        for count in (1, 300_000):
            request = client.envelope("promise.get", id="a", tags=[{}] * count)
            assert client.post(request).status_code == 404
    assert blocks[1] - blocks[0] < 100_000


def test_slow_heads(opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that does not arrive in time ends its connection, also if bytes of it come again and again, and
    behind a request that was answered; others are served meanwhile."""
    monkeypatch.setattr(http_server, "_HEAD_S", 1.0)
    gateway = opened()
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        starts = [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /"]
        starts += [b"POST / HTTP/1.1\r\na: "] * 30
        heads = [stack.enter_context(deaf(gateway.url, start)) for start in starts]
        assert client.create("meanwhile")["state"] == "pending"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            late = time.monotonic() + WAIT_S
            while True:
                heads[-1].sendall(b"b: c\r\nd: ")
                assert time.monotonic() < late
                time.sleep(0.02)
        for one in heads[:-1]:
            while one.recv(65_536):
                pass
        assert client.create("afterwards")["state"] == "pending"


def resident(process: subprocess.Popen[bytes], field: str) -> int:
    """Bytes of memory of a process: VmRSS now, VmHWM at most so far."""
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(next(one for one in text.splitlines() if one.startswith(field)).split()[1]) * 1024


@pytest.mark.full
@pytest.mark.parametrize("what", ["listeners", "requests"])
def test_the_process_stays_small(dsn: str, figures: Callable[[str, str], None], what: str) -> None:
    """Sixty clients wait for 4 MB each and never read: the process takes little more than the limit."""
    count, size, port = 60, 4_000_000, free_port()
    gateways = Gateways(dsn)
    with ExitStack() as stack:
        stack.callback(gateways.end)
        process = gateways.running[gateways.start(port)]
        client = stack.enter_context(Client(f"http://127.0.0.1:{port}"))
        create_large(client, "large", size)
        before = resident(process, "VmRSS")
        for n in range(count if what == "listeners" else 0):
            head = f"GET /poll/g/{n} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            stack.enter_context(deaf(client.url, head))
            client.ask("promise.register_listener", awaited="large", address=f"poll://uni@g/{n}")
        client.ask("promise.settle", id="large", state="resolved")
        for _ in range(count if what == "requests" else 0):
            stack.enter_context(deaf(client.url, question("promise.get", id="large")))
        until(lambda: figure(client, "outgoing_bytes") > size)
        # a claim and those that follow it
        time.sleep(12)
        most, held = resident(process, "VmHWM"), figure(client, "outgoing_bytes")
        assert client.create("meanwhile")["state"] == "pending"
    assert most - before < 2 * MAX_OUTGOING_BYTES
    figures(
        f"slow-readers-{what}",
        f"{count} {what} for {size} bytes each that never read: {before / 1e6:.0f} MB before, "
        f"{most / 1e6:.0f} MB at most, {held / 1e6:.0f} MB counted as on their way",
    )
