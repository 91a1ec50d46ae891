"""A client of the gateway, as small as a client can be.

Lives here: requests with the protocol's envelope, and streams read line by line. May not: retries, or any
other kindness of a real client.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

VERSION = "2026-04-01"
WAIT_S = 60.0
FAR = 2**52


class Client:
    """A client; use it as a context manager."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token
        self.http = httpx.Client(timeout=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def envelope(self, kind: str, **data: Any) -> dict[str, Any]:
        """A request."""
        head = {"corrId": "c-1", "version": VERSION}
        if self.token is not None:
            head["auth"] = self.token
        return {"kind": kind, "head": head, "data": data}

    def post(self, body: bytes | dict[str, Any], **headers: str) -> httpx.Response:
        """Send a body to the endpoint of the protocol."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(
            self.url, content=content, headers={"content-type": "application/json", **headers}
        )

    def ask(self, kind: str, **data: Any) -> tuple[int, Any]:
        """Status and data of the answer to a request."""
        answer = self.post(self.envelope(kind, **data))
        told = answer.json()
        assert told["head"]["status"] == answer.status_code
        assert (told["kind"], told["head"]["corrId"]) == (kind, "c-1")
        return answer.status_code, told["data"]

    def create(self, id: str, target: str | None = None, **tags: str) -> dict[str, Any]:
        """A promise without a deadline, made."""
        every = {"resonate:target": target, **tags} if target is not None else {**tags}
        status, data = self.ask("promise.create", id=id, timeoutAt=FAR, tags=every)
        assert status == 200, data
        return dict(data["promise"])

    def acquire(self, id: str, version: int = 0, pid: str = "p", ttl: int = 60_000) -> tuple[int, Any]:
        """A task, acquired."""
        return self.ask("task.acquire", id=id, version=version, pid=pid, ttl=ttl)


def raw(url: str, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that the server sends to a connection on which these bytes are sent, until it closes it.

    Args:
        url: where.
        parts: the bytes.
        pause_s: seconds between two parts.
    """
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=WAIT_S) as sock:
        for n, part in enumerate(parts):
            time.sleep(pause_s if n else 0)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(part)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while got := sock.recv(65536):
                found += got
    return found


def post_head(length: int | None = None, *headers: str) -> bytes:
    """The head of a request to the endpoint of the protocol; chunked if it has no length."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = ["POST / HTTP/1.1", "host: localhost", "content-type: application/json", size, *headers, "", ""]
    return "\r\n".join(lines).encode()


class EventStream:
    """An open stream of a member, read by a thread; use it as a context manager.

    It speaks HTTP/1.0, so the body ends with the connection and has no chunks.
    """

    path = "/poll/{}/{}"

    def __init__(
        self, url: str, group: str, pid: str, token: str | None = None, beside: EventStream | None = None
    ) -> None:
        """Open it; with `beside` its messages are those of another stream too."""
        place = urlsplit(url)
        self._sock = socket.create_connection((place.hostname, place.port), timeout=WAIT_S)
        path = self.path.format(quote(group, safe=""), quote(pid, safe=""))
        head = [f"GET {path} HTTP/1.0", "host: localhost", "accept: text/event-stream"]
        head += [] if token is None else [f"authorization: Bearer {token}"]
        self._sock.sendall("\r\n".join([*head, "", ""]).encode())
        own: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._messages = own if beside is None else beside._messages
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.status = 0
        self.comments = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._opened.wait(WAIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._sock.close()

    def next(self, wait_s: float = WAIT_S) -> dict[str, Any] | None:
        """The next message; None once the stream has ended."""
        return self._messages.get(timeout=wait_s)

    def messages(self, count: int) -> list[dict[str, Any]]:
        """So many messages."""
        late = time.monotonic() + WAIT_S
        found = [self.next(late - time.monotonic()) for _ in range(count)]
        return [one for one in found if one is not None]

    def is_silent(self, for_s: float = 0.3) -> bool:
        """Whether no message comes for a while."""
        try:
            return self._messages.get(timeout=for_s) is None
        except queue.Empty:
            return True

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._sock.makefile("rb") as lines:
            self._sock.settimeout(None)
            self.status = int(lines.readline().split()[1])
            while lines.readline().strip():
                pass
            for line in lines:
                self._opened.set()
                if line.startswith(b"data: "):
                    self._messages.put(json.loads(line[6:]))
                elif line.startswith(b":"):
                    self.comments += 1
        self._messages.put(None)
        self._opened.set()
