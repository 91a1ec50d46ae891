"""Law: whatever is sent to a gateway, its answer has a status of the protocol, and it serves on."""

from __future__ import annotations

import base64
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx
import pytest

from tests.conftest import Connection
from tests.doors.gateway.http_client import VERSION, Client
from tests.doors.gateway.test_tokens import EC_KEY, OTHER_KEY, pem, token
from tests.support.gateway import Gateway

SECONDS, FULL_SECONDS = 4, 600
MAX_BODY = 100_000
ALLOWED = {200, 300, 400, 401, 403, 404, 405, 408, 409, 413, 422, 503}
OLDER_ALLOWED = ALLOWED - {300} | {201, 204}
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
OLDER_FIELDS = ["id", "timeout", "tags", "param", "value", "state", "counter", "processId", "ttl", "recv"]
OLDER_FIELDS += ["rootPromiseId", "promiseId", "promise", "callback", "task", "cron", "promiseTimeout"]
OLDER_PATHS = [
    *("POST /promises", "GET /promises", "POST /promises/task", "POST /promises/callback"),
    *("POST /promises/callback/{}", "POST /promises/subscribe/{}", "POST /callbacks", "POST /subscriptions"),
    *("GET /promises/{}", "PATCH /promises/{}", "PATCH /promises/{}"),
    *("POST /tasks/claim", "POST /tasks/complete", "POST /tasks/drop", "POST /tasks/heartbeat"),
    *("POST /schedules", "GET /schedules/{}", "DELETE /schedules/{}", "PUT /promises/{}"),
]


@dataclass(frozen=True, kw_only=True)
class Door:
    """A way into a gateway, and the tokens that are tried there."""

    name: str
    url: str
    tokens: list[str] = field(default_factory=list)


class Fuzzer:
    """Requests at random, most of them nearly right, each through one of several doors."""

    def __init__(self, doors: list[Door], seed: int) -> None:
        self.random = random.Random(seed)
        self.doors = doors
        self.door = doors[0]
        self.http = httpx.Client(timeout=60)
        self.statuses: Counter[tuple[str, str]] = Counter()
        self.slowest_s = 0.0

    def step(self) -> None:
        """One request."""
        self.door = self.random.choice(self.doors)
        self.random.choices([self.post, self.older, self.get, self.junk], [20, 20, 3, 1])[0]()

    def authorization(self) -> dict[str, str]:
        """A header with a token, if the door has any."""
        if not self.door.tokens or self.random.random() < 0.1:
            return {}
        found = self.random.choice(self.door.tokens)
        if self.random.random() < 0.5:
            return {"authorization": f"Bearer {found}"}
        return {"authorization": "Basic " + base64.b64encode(f"any:{found}".encode()).decode()}

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
        other = self.random.choice([id, id, "a", "missing"])
        inner = {"kind": self.random.choice(KINDS), "head": {}, "data": {"id": other, "state": "resolved"}}
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

    def older_data(self) -> dict[str, Any]:
        """Data that might be right for the older API."""
        id, root = self.random.choice(["a", "b", "a.1", "o/1"]), self.random.choice(["a", "b"])
        recv = self.random.choice(["g", "poll://g:p", "http://h", {"type": "poll", "data": {"group": "g"}}])
        promise = {"id": id, "timeout": self.random.choice([1, 2**52, 2**63 - 1]), "param": {"data": "eA=="}}
        if self.random.random() < 0.7:
            promise["tags"] = {"resonate:invoke": self.random.choice(["g", "poll://any@g/p", "?"])}
        callback = {"promiseId": id, "rootPromiseId": root, "timeout": 2**52, "recv": recv}
        task = {"counter": self.random.randrange(3), "processId": "p", "ttl": 1000}
        right: dict[str, Any] = {**callback, **task, **promise, "promise": promise, "task": task}
        right |= {"callback": callback, "state": self.random.choice(["RESOLVED", "rejected", "PENDING"])}
        right |= {"value": {"data": "eQ=="}, "cron": "* * * * *", "promiseTimeout": 1000}
        for _ in range(self.random.choice([0, 0, 1, 3])):
            right[self.random.choice(OLDER_FIELDS)] = self.value()
        return right

    def body(self) -> bytes:
        """A request, perhaps spoilt."""
        head: Any = {"corrId": "c", "version": VERSION, "resonate:origin": "a"}
        if self.door.tokens and self.random.random() < 0.3:
            head["auth"] = self.random.choice([*self.door.tokens, self.value()])
        request: Any = {"kind": self.random.choice(KINDS), "head": head, "data": self.data()}
        if self.random.random() < 0.1:
            request[self.random.choice(["kind", "head", "data"])] = self.value()
        return self.spoilt(json.dumps(request).encode())

    def spoilt(self, body: bytes) -> bytes:
        """The same, now and then with noise in it, cut off, or too large."""
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
        headers = {"content-type": "application/json", **self.authorization()}
        answer = self.http.post(self.door.url, content=self.body(), headers=headers)
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        told = answer.json()
        self.count("POST /", answer)
        assert told["head"]["status"] == answer.status_code, told
        assert answer.status_code < 400 or isinstance(told["data"], str), told

    def older(self) -> None:
        """A request to the older API."""
        method, _, path = self.random.choice(OLDER_PATHS).partition(" ")
        id = quote(self.random.choice([*TEXTS, "a", "b", "a.1"]).encode(errors="replace"), safe="*/")
        url = self.door.url + path.format(id)
        if method == "GET" and self.random.random() < 0.5:
            names = ["id", "state", "limit", "cursor", "tags[a]"]
            url += "?" + urlencode(
                {self.random.choice(names): str(self.value()) for _ in range(2)}, errors="replace"
            )
        headers = (
            {"idempotency-key": self.random.choice(["k", "", "x" * 600])}
            if self.random.random() < 0.5
            else {}
        )
        headers |= {"strict": self.random.choice(["true", "False", "?"]), **self.authorization()}
        body = b"" if method in ("GET", "DELETE") else self.spoilt(json.dumps(self.older_data()).encode())
        begun_s = time.monotonic()
        answer = self.http.request(method, url, content=body, headers=headers)
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        self.count(f"{method} {path}", answer, OLDER_ALLOWED)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/json", answer.text

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
        url, headers = self.door.url + self.random.choice(paths), self.authorization()
        with self.http.stream(method, url, headers=headers) as answer:
            self.count(method, answer)

    def junk(self) -> None:
        """Bytes that may be no HTTP at all."""
        place = urlsplit(self.door.url)
        with socket.create_connection((place.hostname, place.port), timeout=60) as sock:
            line = self.random.choice(
                [b"POST / HTTP/1.1", b"GET /poll/g/p HTTP/1.1", b"\x16\x03\x01", b"GET /"]
            )
            head = [b"host: localhost", b"content-length: %d" % self.random.choice([0, 5, 10**12, -1])]
            head += [b"transfer-encoding: chunked"] * self.random.randrange(2)
            head += [
                self.random.randbytes(self.random.randrange(40)) for _ in range(self.random.randrange(2))
            ]
            with suppress(OSError):
                sock.sendall(line + b"\r\n" + b"\r\n".join(head) + b"\r\n\r\n" + self.random.randbytes(20))
                sock.shutdown(socket.SHUT_WR)
                found = sock.recv(65536)
                assert b"Traceback" not in found and not found.startswith(b"HTTP/1.1 5")
        self.statuses["bytes", self.door.name] += 1

    def count(self, name: str, answer: httpx.Response, allowed: set[int] = ALLOWED) -> None:
        """Check and count a status."""
        self.statuses[f"{name} {answer.status_code}", self.door.name] += 1
        assert answer.status_code in allowed, (name, answer.read())


def tokens() -> list[str]:
    """Tokens of several kinds, and texts that are none."""
    good = [token(role="admin"), token(prefix=""), token(prefix="a"), token(prefix="", groups=["g"])]
    bad = [
        token(OTHER_KEY, role="admin"),
        token(exp=1),
        token(),
        token(prefix=5),
        token(groups="g"),
        "x",
        ".",
    ]
    return [*good, *good, *bad, good[0][:-3], good[0].replace(".", "..")]


@pytest.fixture
def doors(opened: Callable[..., Gateway], tmp_path: Path) -> list[Door]:
    """A gateway without tokens, the port of the older API, and a gateway with tokens, before one database."""
    key = tmp_path / "key.pem"
    key.write_bytes(pem(EC_KEY))
    limits = {"max_body_bytes": MAX_BODY, "body_idle_s": 0.5}
    without, needed = opened(older_port=0, **limits), opened(auth_key=key, **limits)
    return [
        Door(name="no token", url=without.url),
        Door(name="older port", url=without.older_url),
        Door(name="tokens", url=needed.url, tokens=tokens()),
    ]


def test_fuzz(
    request: pytest.FixtureRequest,
    conn: Connection,
    doors: list[Door],
    seed: int,
    figures: Callable[[str, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Random requests of both APIs, spoilt ones, other paths and bytes, with tokens and without, on both
    ports: no 500, no traceback, and the laws hold.
    """
    seconds = FULL_SECONDS if request.config.getoption("--full") else SECONDS
    fuzzer = Fuzzer(doors, seed)
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        fuzzer.step()
    for number, door in enumerate(doors):
        with Client(door.url, door.tokens[0] if door.tokens else None) as client:
            assert client.create(f"afterwards-{number}")["state"] == "pending"
    assert "Traceback" not in caplog.text
    text = f"{fuzzer.statuses.total()} requests in {seconds} s, seed {seed}; the slowest answer took "
    text += f"{fuzzer.slowest_s * 1000:.0f} ms; no 500, no traceback, `durable.check()` empty afterwards."
    figures("fuzz", f"{text}\n\n{table(fuzzer)}\n")


def table(fuzzer: Fuzzer) -> str:
    """How often each request had each status, with a column for each door."""
    names = [door.name for door in fuzzer.doors]
    lines = [f"| request | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for request in sorted({request for request, _ in fuzzer.statuses}):
        counts = " | ".join(str(fuzzer.statuses[request, name]) for name in names)
        lines.append(f"| {request} | {counts} |")
    return "\n".join(lines)
