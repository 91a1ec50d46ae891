"""Receivers of pushed messages: real HTTP servers on loopback.

Lives here: `Receiver`, which keeps what it gets and answers as it is asked to, and `Shim`, which runs a whole
pass within the request, as functions in the cloud do. May not: decide what a courier should do.
"""

from __future__ import annotations

import json
import queue
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import httpx

from tests.doors.gateway.http_client import VERSION, WAIT_S


@dataclass(frozen=True, kw_only=True)
class Got:
    """A request that arrived."""

    path: str
    headers: Mapping[str, str]
    message: dict[str, Any]
    at_s: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        """The task or promise that the message is about."""
        data = self.message["data"]
        return str(data["task"]["id"] if self.message["kind"] == "execute" else data["promise"]["id"])


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


Answer = Callable[[Got], Reply]


def answers(*statuses: int, **headers: str) -> Answer:
    """Answers with these statuses in turn, the last one for ever."""
    left = list(statuses)
    return lambda got: Reply(status=left.pop(0) if len(left) > 1 else left[0], headers=headers)


TAKEN = answers(200)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: a gateway that was killed reads no answer."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        """Keep the request, then answer."""
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.receiver.take(Got(path=self.path, headers=headers, message=json.loads(body)))
        self.send_response(reply.status)
        for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


class Receiver:
    """A receiver; use it as a context manager.

    Attributes:
        got: all requests so far.
        most: the largest number of requests that were open at once, by path; in all under "".
    """

    def __init__(self, answer: Answer = TAKEN, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.receiver = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._arrived: queue.Queue[Got] = queue.Queue()
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self.got: list[Got] = []
        self.most: Counter[str] = Counter()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/fn"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, got: Got) -> Reply:
        """Keep a request and answer it."""
        with self._lock:
            self.got.append(got)
            self._open.update(("", got.path))
            self.most |= self._open
        self._arrived.put(got)
        try:
            return self._answer(got)
        finally:
            with self._lock:
                self._open.subtract(("", got.path))

    def next(self, wait_s: float = WAIT_S) -> Got:
        """The next request."""
        return self._arrived.get(timeout=wait_s)

    def is_silent(self, for_s: float = 0.4) -> bool:
        """Whether no request comes for a while."""
        try:
            self._arrived.get(timeout=for_s)
        except queue.Empty:
            return True
        return False


class Shim(Receiver):
    """A function in the cloud: it acquires the task, works and fulfils within the request, and answers 500
    for whatever goes wrong, an offer that came twice included.

    Attributes:
        statuses: what it has answered.
    """

    def __init__(self, *, cold_s: float = 0.0, work_s: float = 0.0, ending: str = "task.fulfill") -> None:
        super().__init__(self._pass)
        self._cold_s = cold_s
        self._work_s = work_s
        self._ending = ending
        self.statuses: list[int] = []

    def _pass(self, got: Got) -> Reply:
        if got.message["kind"] != "execute":
            return self._answered(400)
        time.sleep(self._cold_s)
        url, task = got.message["head"]["serverUrl"], got.message["data"]["task"]
        if not self._ask(url, "task.acquire", **task, pid=f"shim-{id(got)}", ttl=60_000):
            return self._answered(500)
        time.sleep(self._work_s)
        held = {"id": task["id"], "version": task["version"] + 1}
        settle = {
            "kind": "promise.settle",
            "head": {"corrId": "s", "version": VERSION},
            "data": {"id": task["id"], "state": "resolved", "value": {}},
        }
        more = {"action": settle} if self._ending == "task.fulfill" else {}
        return self._answered(200 if self._ask(url, self._ending, **held, **more) else 500)

    def _answered(self, status: int) -> Reply:
        self.statuses.append(status)
        return Reply(status=status)

    def _ask(self, url: str, kind: str, **data: Any) -> bool:
        request = {"kind": kind, "head": {"corrId": "s", "version": VERSION}, "data": data}
        return httpx.post(url, json=request, timeout=WAIT_S).status_code == 200
