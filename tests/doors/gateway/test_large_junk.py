"""Law: ten megabytes of junk get a status of their endpoint, and the gateway lives on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import httpx
import pytest
from starlette.routing import Route

from pyengine.doors.gateway.app import routes
from pyengine.doors.gateway.config import MAX_BODY_BYTES
from pyengine.doors.gateway.envelope import read_request
from tests.doors.gateway.http_client import Client, raw
from tests.support.gateway import Gateway

SIZE = 10_000_000
REFUSED = {400, 404, 422}
WITH_BODY = ("POST", "PATCH")


def long_text() -> bytes:
    """A request of both APIs in which one text is long."""
    names = ("id", "promiseId", "rootPromiseId", "processId", "state", "cron")
    head = {"corrId": "c", "version": "2026-04-01"}
    data = {"timeoutAt": 1, "timeout": 1, "ttl": 1, "counter": 1, "promiseTimeout": 1, "recv": "g"}
    request = {"kind": "promise.create", "head": head, "data": data, **data, **dict.fromkeys(names, "x")}
    request["data"] = {**data, "id": "LONG"}
    return json.dumps({**request, "id": "LONG"}).replace("LONG", "x" * (SIZE // 2)).encode()


JUNK: dict[str, Callable[[], bytes]] = {
    "truncated": lambda: long_text()[:-2],
    "text": long_text,
    "no text": lambda: b'{"kind": "' + b"\xff" * SIZE + b'"}',
    "half a letter": lambda: b'{"kind": "promise.get", "data": "' + b"\\ud800" * (SIZE // 6) + b'"}',
    "nested": lambda: b"[" * SIZE,
    "a list": lambda: b"[" + b"{}," * (SIZE // 3) + b"0]",
    "names": lambda: b'{"a": {' + b",".join(b'"%d":0' % n for n in range(SIZE // 10)) + b"}}",
    "blanks": lambda: b" " * SIZE,
    "zeros": lambda: bytes(SIZE),
}


def endpoints(gateway: Gateway) -> list[tuple[str, str]]:
    """Method and path of everything that it answers."""
    found = []
    for route in routes(gateway.parts):
        assert isinstance(route, Route) and route.methods
        path = route.path.replace("{id:path}", "a").replace("{group}", "g").replace("{pid}", "p")
        found += [(method, path) for method in sorted(route.methods - {"HEAD"})]
    return found


def play(gateway: Gateway, requests: list[tuple[str, str, str]]) -> None:
    """Send junk: methods, paths, kinds of junk."""
    made = {name: make() for name, make in JUNK.items()}
    assert max(map(len, made.values())) < MAX_BODY_BYTES
    with Client(gateway.url) as client:
        for method, path, kind in requests:
            with client.http.stream(method, gateway.url + path, content=made[kind]) as answer:
                check(method, path, kind, answer)
        assert client.create("afterwards")["state"] == "pending"


def check(method: str, path: str, kind: str, answer: httpx.Response) -> None:
    """Endpoints with a body refuse it, in their own form; others do not look at it."""
    place = f"{method} {path}, {kind}: {answer.status_code}"
    if method not in WITH_BODY:
        assert answer.status_code in {200, 404}, place
        return
    answer.read()
    assert answer.status_code in REFUSED or (kind == "text" and answer.status_code < 500), place
    assert "Traceback" not in answer.text and len(answer.content) < 10_000, place
    if answer.status_code >= 400:
        told = answer.json()
        status = told["head"]["status"] if path == "/" else told["error"]["code"] // 100
        assert status == answer.status_code, place


def test_each_endpoint(opened: Callable[..., Gateway], caplog: pytest.LogCaptureFixture) -> None:
    """That has a body: one kind of junk each, all kinds in all."""
    gateway, kinds = opened(), itertools.cycle(JUNK)
    places = [one for one in endpoints(gateway) if one[0] in WITH_BODY]
    assert len(places) > len(JUNK)
    play(gateway, [(*place, next(kinds)) for place in places])
    assert "Traceback" not in caplog.text


@pytest.mark.full
def test_each_kind_at_each_endpoint(opened: Callable[..., Gateway], caplog: pytest.LogCaptureFixture) -> None:
    """Every pair, also where no body belongs."""
    gateway = opened()
    play(gateway, [(*place, kind) for place in endpoints(gateway) for kind in JUNK])
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("start", [b"GET /health?", b"GET /poll/g/", b"GET /health HTTP/1.1\r\na: "])
def test_long_heads(client: Client, start: bytes) -> None:
    """A head of ten megabytes is refused before it has arrived."""
    found = raw(client.url, start + b"x" * SIZE)
    assert found == b"" or found.startswith(b"HTTP/1.1 4")
    assert client.ask("promise.get", id="junk-nothing")[0] == 404


def test_no_guess_is_made_of_a_large_body() -> None:
    """A small body that no database takes is named in the answer; a large one is not read again."""
    start = b'{"kind": "promise.get", "head": {"corrId": "c"}, "data": "\\ud800'
    small = read_request(start + b'"}')
    assert (small.kind, small.corr_id, small.make(debug=False)) == ("promise.get", "c", False)
    large = read_request(start + b"x" * 100_000 + b'"}')
    assert (large.kind, large.corr_id, large.make(debug=False)) == ("unknown", "0", False)
