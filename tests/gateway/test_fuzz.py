"""Law: whatever is sent to a gateway, its answer has a status of the protocol, and it serves on."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tests.conftest import Connection
from tests.gateway.http_client import VERSION, Client
from tests.support.gateway import Gateway

SECONDS, FULL_SECONDS = 4, 600
MAX_BODY = 100_000
ALLOWED = {200, 300, 400, 401, 403, 404, 405, 408, 409, 413, 422, 503}
TEXTS = [
    "a",
    "b",
    "a.1",
    "a:1",
    "",
    "ä𝄞",
    "\x00",
    "\ud800",
    "x" * 600,
    "{{.id}}",
    "*",
    "poll://any@g",
    "__proto__",
]
NUMBERS = [0, 1, -1, 2**31, 2**53, 2**63, 10**400, 1.5, 1e300, 60_000]
KINDS = [
    *(
        f"promise.{one}"
        for one in ("get", "create", "settle", "search", "register_callback", "register_listener")
    ),
    *(f"task.{one}" for one in ("get", "create", "acquire", "release", "suspend", "fulfill", "fence")),
    *(f"task.{one}" for one in ("heartbeat", "halt", "continue", "search")),
    *(f"schedule.{one}" for one in ("get", "create", "delete", "search")),
    *("debug.reset", "debug.snap", "promise.", "", "nonsense"),
]
FIELDS = ["id", "version", "pid", "ttl", "timeoutAt", "state", "tags", "param", "value", "awaited", "awaiter"]
FIELDS += ["address", "tasks", "actions", "action", "cron", "promiseId", "promiseTimeout", "limit", "cursor"]


class Fuzzer:
    """Requests at random, most of them nearly right."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.url = url
        self.place = urlsplit(url)
        self.http = httpx.Client(timeout=60)
        self.statuses: Counter[str] = Counter()
        self.slowest_s = 0.0

    def value(self, depth: int = 0) -> Any:
        """Any JSON."""
        choice = self.random.randrange(8 if depth < 3 else 5)
        if choice < 2:
            return self.random.choice(TEXTS)
        if choice < 4:
            return self.random.choice([*NUMBERS, None, True])
        if choice < 6:
            return {self.random.choice(TEXTS): self.value(depth + 1) for _ in range(self.random.randrange(3))}
        return [self.value(depth + 1) for _ in range(self.random.randrange(3))]

    def data(self) -> dict[str, Any]:
        """Data that might be right."""
        id = self.random.choice(["a", "b", "a.1", "a:1", "c"])
        inner = {"kind": self.random.choice(KINDS), "head": {}, "data": {"id": id, "state": "resolved"}}
        right: dict[str, Any] = {
            "id": id,
            "version": self.random.randrange(3),
            "pid": "p",
            "ttl": 1000,
            "timeoutAt": 2**52,
            "state": self.random.choice(["resolved", "rejected", "pending"]),
            "tags": {
                "resonate:target": self.random.choice(["g", "poll://any@g", "http://h", "sql://a.b", "?"])
            },
            "param": {"headers": {"a": "b"}, "data": "x"},
            "awaited": self.random.choice(["a", "b", "c"]),
            "awaiter": id,
            "address": "poll://uni@g/p",
            "tasks": [{"id": id, "version": 1}],
            "actions": [inner],
            "action": inner,
            "cron": "* * * * *",
            "promiseId": "{{.id}}-{{.timestamp}}",
            "promiseTimeout": 1000,
        }
        if self.random.random() < 0.5:
            right.pop("tags")
        for _ in range(self.random.choice([0, 0, 1, 3])):
            right[self.random.choice(FIELDS)] = self.value()
        return right

    def body(self) -> bytes:
        """A request, perhaps spoilt."""
        head: Any = {"corrId": "c", "version": VERSION, "resonate:origin": "a"}
        request: Any = {"kind": self.random.choice(KINDS), "head": head, "data": self.data()}
        if self.random.random() < 0.1:
            request[self.random.choice(["kind", "head", "data"])] = self.value()
        body = json.dumps(request).encode()
        if self.random.random() < 0.2:
            at = self.random.randrange(len(body))
            noise = self.random.randbytes(self.random.randrange(4))
            body = body[:at] + noise + body[at + self.random.randrange(3) :]
        if self.random.random() < 0.1:
            body = body[: self.random.randrange(len(body))]
        if self.random.random() < 0.01:
            body += b" " * self.random.randrange(2 * MAX_BODY)
        return body

    def post(self) -> None:
        """A request to the endpoint of the protocol."""
        begun_s = time.monotonic()
        answer = self.http.post(self.url, content=self.body(), headers={"content-type": "application/json"})
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        told = answer.json()
        self.count("POST /", answer)
        assert told["head"]["status"] == answer.status_code, told
        assert answer.status_code < 400 or isinstance(told["data"], str), told

    def get(self) -> None:
        """A request to any path."""
        method = self.random.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"])
        parts = [quote(self.random.choice(TEXTS).encode(errors="replace"), safe="*") for _ in range(2)]
        paths = [
            "/health",
            "/ready",
            "/metrics",
            "/nowhere",
            "//",
            "/poll/" + "/".join(parts),
            "/".join(["", *parts]),
        ]
        with self.http.stream(method, self.url + self.random.choice(paths)) as answer:
            self.count(method, answer)

    def junk(self) -> None:
        """Bytes that may be no HTTP at all."""
        with socket.create_connection((self.place.hostname, self.place.port), timeout=60) as sock:
            line = self.random.choice(
                [b"POST / HTTP/1.1", b"GET /poll/g/p HTTP/1.1", b"\x16\x03\x01", b"GET /"]
            )
            head = [b"host: x", b"content-length: %d" % self.random.choice([0, 5, 10**12, -1])]
            head += [b"transfer-encoding: chunked"] * self.random.randrange(2)
            head += [
                self.random.randbytes(self.random.randrange(40)) for _ in range(self.random.randrange(2))
            ]
            with suppress(OSError):
                sock.sendall(line + b"\r\n" + b"\r\n".join(head) + b"\r\n\r\n" + self.random.randbytes(20))
                sock.shutdown(socket.SHUT_WR)
                found = sock.recv(65536)
                assert b"Traceback" not in found and not found.startswith(b"HTTP/1.1 5")
        self.statuses["bytes"] += 1

    def count(self, name: str, answer: httpx.Response) -> None:
        """Check and count a status."""
        self.statuses[f"{name} {answer.status_code}"] += 1
        assert answer.status_code in ALLOWED, answer.read()


def test_fuzz(
    request: pytest.FixtureRequest,
    conn: Connection,
    opened: Callable[..., Gateway],
    seed: int,
    figures: Callable[[str, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Random requests, spoilt requests, other paths and bytes: no 500, no traceback, and the laws hold."""
    seconds = FULL_SECONDS if request.config.getoption("--full") else SECONDS
    gateway = opened(max_body_bytes=MAX_BODY, body_idle_s=0.5)
    fuzzer = Fuzzer(gateway.url, seed)
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        fuzzer.random.choices([fuzzer.post, fuzzer.get, fuzzer.junk], [20, 3, 1])[0]()
    with Client(gateway.url) as client:
        assert client.create("afterwards")["state"] == "pending"
    assert "Traceback" not in caplog.text
    counts = "\n".join(f"| {name} | {n} |" for name, n in sorted(fuzzer.statuses.items()))
    text = f"{fuzzer.statuses.total()} requests in {seconds} s, seed {seed}; the slowest answer took "
    text += f"{fuzzer.slowest_s * 1000:.0f} ms; no 500, no traceback, `durable.check()` empty afterwards."
    figures("fuzz", f"{text}\n\n| request | answers |\n| --- | ---: |\n{counts}\n")
