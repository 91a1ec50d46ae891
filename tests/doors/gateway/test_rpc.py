"""Law: a request over HTTP has the answer of the database, and whatever is no request has an envelope too."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from pyengine.doors.gateway import memory
from pyengine.doors.gateway.app import create_app
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.envelope import read_request
from pyengine.doors.gateway.http_server import KEEP_ALIVE_S
from tests.doors.gateway.conftest import MAX_BODY
from tests.doors.gateway.http_client import FAR, VERSION, WAIT_S, Client, post_head, raw
from tests.support.gateway import Gateway

HEAD = {"corrId": "c-1", "version": VERSION}
GET = {"kind": "promise.get", "head": HEAD, "data": {"id": "x"}}


def with_data(text: str, kind: str = "promise.create") -> bytes:
    """A request whose data is this text."""
    return f'{{"kind": "{kind}", "head": {json.dumps(HEAD)}, "data": {text}}}'.encode()


def test_an_answer_is_an_envelope(client: Client) -> None:
    """Kind and correlation id come back, and the status of HTTP is that of the envelope."""
    assert client.create("rpc-a")["state"] == "pending"
    assert client.ask("promise.get", id="rpc-a")[1]["promise"]["id"] == "rpc-a"
    assert client.ask("promise.get", id="rpc-nothing")[0] == 404
    assert client.ask("promise.settle", id="rpc-a", state="timedout")[0] == 400


def test_every_status_of_the_protocol_is_one_of_http(client: Client) -> None:
    """A conflict is 409, an unsuitable second object 422, a suspension that is not needed 300."""
    client.create("rpc-t", "poll://any@nobody")
    client.create("rpc-p", **{"resonate:external": "true"})
    client.create("rpc-inner")
    assert client.acquire("rpc-t")[0] == 200
    assert client.acquire("rpc-t", pid="q")[0] == 409
    assert client.ask("promise.register_callback", awaited="rpc-inner", awaiter="rpc-nothing")[0] == 422
    assert client.ask("promise.settle", id="rpc-p", state="resolved")[0] == 200
    callback = client.envelope("promise.register_callback", awaiter="rpc-t", awaited="rpc-p")
    status, data = client.ask("task.suspend", id="rpc-t", version=1, actions=[callback])
    assert (status, list(data)) == (300, ["preload"])


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"nonsense", b"[]", b"7", b'"a"', b"null", b"{}", b"\xff\xfe", b"\x00"),
        *(b'{"kind": "promise.get"}', b'{"kind": 7, "head": {}, "data": {}}'),
        b'{"kind": "", "head": {"corrId": "c", "version": "2026-04-01"}, "data": {}}',
        json.dumps(GET).encode()[:-5],
        json.dumps(GET).encode("utf-16"),
        json.dumps({**GET, "data": []}).encode(),
        json.dumps({**GET, "head": {"corrId": "c"}}).encode(),
        json.dumps({**GET, "head": {**HEAD, "version": "2020-01-01"}}).encode(),
        json.dumps({**GET, "kind": "promise.steal"}).encode(),
        with_data('{"id": "a\\u0000b", "timeoutAt": 1}'),
        with_data('{"id": "a\\ud800", "timeoutAt": 1}'),
        with_data(f'{{"id": "a", "timeoutAt": {FAR}, "tags": {{"\\udfff": ""}}}}'),
        with_data('{"id": "a", "timeoutAt": 92233720368547758070}'),
        with_data('{"id": "a", "timeoutAt": 1e400}'),
        with_data('{"id": "a", "timeoutAt": 1.5}'),
        with_data('{"id": "a", "timeoutAt": NaN}'),
        with_data('{"id": "a", "timeoutAt": "1"}'),
        with_data("[" * 5000 + "]" * 5000),
        with_data("{}", "\\ud800"),
        with_data('{"a":' * 900 + "1" + "}" * 900),
    ],
    ids=range(30),
)
def test_junk_is_refused(client: Client, body: bytes) -> None:
    """A body that is no request of the protocol is 400, with an envelope whose data is a text; and the
    connection still serves."""
    answer = client.post(body)
    told = answer.json()
    assert answer.status_code == told["head"]["status"] == 400, told
    assert isinstance(told["data"], str) and told["head"]["version"] == VERSION
    assert told["kind"] and told["head"]["corrId"]
    assert "Traceback" not in told["data"] and "dbname" not in told["data"]
    assert client.ask("promise.get", id="rpc-nothing")[0] == 404


def test_a_refusal_names_the_request(client: Client) -> None:
    """Kind and correlation id come back even where the JSON is such that no database takes it."""
    told = client.post(with_data('{"id": "a\\ud800", "timeoutAt": 1}')).json()
    assert (told["kind"], told["head"]["corrId"]) == ("promise.create", "c-1")
    told = client.post(b"{").json()
    assert (told["kind"], told["head"]["corrId"]) == ("unknown", "0")


def test_of_equal_keys_the_last_counts(client: Client) -> None:
    """As in the database's own reading of JSON."""
    answer = client.post(with_data('{"id": "rpc-first", "id": "rpc-last"}', "promise.get"))
    assert "rpc-last" in answer.json()["data"]


def test_the_header_that_is_no_header(client: Client) -> None:
    """A Python SDK sends `resonate:origin: id` as a header, also with letters that are not ASCII."""
    body = json.dumps(GET).encode()
    head = post_head(len(body), "connection: close").replace(
        b"host: localhost", "host: localhost\r\nresonate:origin: häß".encode()
    )
    assert raw(client.url, head + body).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "/", 405), ("PUT", "/", 405), ("GET", "/nowhere", 404), ("POST", "/poll/g/p", 405)),
        *(("GET", "/poll", 404), ("GET", "/a/b/c", 404), ("HEAD", "/poll/g/p", 405)),
        *(("DELETE", "/ready", 405), ("GET", "/poll/%2F/p", 404)),
    ],
)
def test_other_paths_and_methods_have_json(client: Client, method: str, path: str, status: int) -> None:
    """A wrong path or method is 404 or 405 with JSON: some clients take another 404 for an older server."""
    answer = client.http.request(method, client.url + path)
    assert answer.status_code == status
    assert method == "HEAD" or answer.headers["content-type"] == "application/json"


def test_a_fence_around_a_request_that_is_refused(client: Client) -> None:
    """The fence lets it pass; the answer within the answer is the refusal, whose data is a text."""
    client.create("rpc-fence", "poll://any@rpc-fence")
    assert client.acquire("rpc-fence")[0] == 200
    settle = {"kind": "promise.settle", "head": {}, "data": {"id": "rpc-missing", "state": "resolved"}}
    status, data = client.ask("task.fence", id="rpc-fence", version=1, action=settle)
    assert (status, data["action"]["head"]["status"]) == (200, 404)
    assert isinstance(data["action"]["data"], str)


@pytest.fixture(scope="module")
def named(house: str) -> Iterator[Gateway]:
    """A gateway with a public URL."""
    with Gateway(house, public_url="https://Gateway.example/") as started:
        yield started


def test_pages_have_no_access_without_a_token(client: Client) -> None:
    """A browser sends requests for any page that it shows, also to this machine; it names the page."""
    request = client.envelope("promise.get", id="rpc-nothing")
    assert client.post(request, origin="https://example.org").status_code == 403
    answer = client.http.get(f"{client.url}/poll/g/p", headers={"origin": "null"})
    assert answer.status_code == 403
    # an image, and a page of another port of this machine
    for site in ("cross-site", "same-site", "same-origin"):
        assert client.http.get(f"{client.url}/health", headers={"sec-fetch-site": site}).status_code == 403
    # typed by a person
    assert client.http.get(f"{client.url}/health", headers={"sec-fetch-site": "none"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LocalHost:1", "127.0.0.1", "127.0.0.2:80", "[::1]:8001")),
        *((name, 200) for name in ("gateway.example", "gateway.example:80")),
        *(
            (name, 403)
            for name in ("evil.example", "evil.example:8001", "localhost.evil.example", "192.0.2.1")
        ),
        *((name, 403) for name in ("", "0.0.0.0", "[", "a:b:1", "127.0.0.1.evil.example", "user@localhost")),
    ],
)
def test_a_name_that_was_made_to_lead_here(named: Gateway, host: str, status: int) -> None:
    """A page whose own name leads to this machine is known by the host, which is not the gateway's."""
    assert httpx.get(f"{named.url}/health", headers={"host": host}).status_code == status


def test_other_machines_know_a_gateway_as_any_host() -> None:
    """A gateway that serves them without tokens cannot know its names; pages are refused all the same."""
    config = GatewayConfig(database_url="postgresql://x/y", host="0.0.0.0", insecure_no_auth=True)

    async def status(**headers: str) -> int:
        transport = httpx.ASGITransport(create_app(config))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway.internal") as client:
            return (await client.get("/health", headers=headers)).status_code

    assert asyncio.run(status()) == 200
    assert asyncio.run(status(origin="https://example.org")) == 403


def test_a_body_that_is_too_large(client: Client) -> None:
    """Is 413 with an envelope, also for a client that writes on; and the connection is closed."""
    answer = client.post(b" " * (MAX_BODY + 1))
    assert (answer.status_code, answer.json()["head"]["status"]) == (413, 413)
    assert answer.headers["connection"] == "close"
    assert client.post(b" " * MAX_BODY).status_code == 400


def test_a_body_without_length_is_limited_while_it_arrives(client: Client) -> None:
    """A chunked body gets its answer before it has ended."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    found = raw(client.url, post_head() + chunk * 5)
    assert found.startswith(b"HTTP/1.1 413") and b'"status":413' in found


def test_a_client_that_asks_first_need_not_send(client: Client) -> None:
    """Expect: 100-continue for a body that is too large is answered with 413 at once."""
    found = raw(client.url, post_head(MAX_BODY + 1, "expect: 100-continue"))
    assert found.startswith(b"HTTP/1.1 413")


def body_bytes(client: Client) -> float:
    """Bytes of bodies that the gateway holds."""
    lines = client.http.get(f"{client.url}/metrics").text.splitlines()
    return float(next(one for one in lines if one.startswith("pyengine_gateway_body_bytes ")).split()[1])


@pytest.mark.parametrize("path", ["/", "/promises"])
def test_all_bodies_together_have_a_limit(
    opened: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A request beyond it is 503 with Retry-After, and may come again once others have their answers. Those
    that were first are served, unless they take long."""
    monkeypatch.setattr(memory, "_PATIENCE_S", WAIT_S)
    gateway = opened(max_body_bytes=50_000, max_bodies_bytes=60_000)
    body = json.dumps(GET).encode().ljust(40_000)
    place = urlsplit(gateway.url)
    first = socket.create_connection((place.hostname, place.port), timeout=WAIT_S)
    with Client(gateway.url) as client, first:
        first.sendall(post_head(len(body), "connection: close") + body[:-1])
        late = time.monotonic() + WAIT_S
        while body_bytes(client) < 39_999:
            assert time.monotonic() < late
            time.sleep(0.01)
        answer = client.http.post(gateway.url + path, content=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert "too many bytes" in answer.text and body_bytes(client) == 39_999
        assert client.create("small")["state"] == "pending"
        first.sendall(body[-1:])
        assert first.recv(65_536).startswith(b"HTTP/1.1 404")
        assert client.post(body).status_code == 404
        assert body_bytes(client) == 0


def test_a_slow_body(client: Client) -> None:
    """Is given up with 408 when no byte has come for a while; one that trickles is read."""
    body = json.dumps(GET).encode()
    assert raw(client.url, post_head(len(body)) + body[:-1]).startswith(b"HTTP/1.1 408")
    parts = [bytes([byte]) for byte in body[-5:]]
    head = post_head(len(body), "connection: close")
    assert raw(client.url, head + body[:-5], *parts, pause_s=0.1).startswith(b"HTTP/1.1 404")


def test_what_is_no_http(client: Client) -> None:
    """Gets a status and no traceback, and the gateway serves on."""
    other = b"POST / HTTP/9.9\r\nconnection: close\r\n\r\n"
    for junk in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", other, b"\r\n" * 100 + b"x: y\r\n\r\n"):
        assert b"Traceback" not in raw(client.url, junk)
    assert raw(client.url, post_head(-5)).startswith(b"HTTP/1.1 400")
    assert raw(client.url, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000).startswith(b"HTTP/1.1 4")
    assert client.ask("promise.get", id="rpc-nothing")[0] == 404


def test_clients_close_first() -> None:
    """A connection is kept longer than clients keep theirs, so that no request meets its end."""
    assert KEEP_ALIVE_S >= 75


def test_debug_operations_are_off(client: Client) -> None:
    """Without --debug they are 403, and the instant that a request names is ignored."""
    assert client.ask("debug.reset")[0] == 403
    request = client.envelope("promise.get", id="rpc-nothing")
    request["head"]["resonate:debug_time"] = 5
    assert client.post(request).status_code == 404


def test_debug_operations_need_a_test_installation(opened: Callable[..., Gateway]) -> None:
    """With --debug the database decides, and an ordinary one refuses."""
    with Client(opened(debug=True).url) as client:
        status, data = client.ask("debug.snap")
        assert (status, "switched off" in data) == (403, True)


def test_tokens_go_no_further() -> None:
    """The document that the database is given has no token, not in the requests inside it either."""
    inner = {"kind": "promise.settle", "head": {"auth": "secret"}, "data": {}}
    body = {
        "kind": "task.fence",
        "head": {**HEAD, "auth": "secret", "resonate:debug_time": 5},
        "data": {"action": inner, "actions": [inner, 5]},
    }
    request, debugged = (read_request(json.dumps(body).encode()) for _ in range(2))
    assert request.token == "secret" and request.make(debug=False) and debugged.make(debug=True)
    assert "secret" not in str(request.document) and "debug_time" not in str(request.document)
    assert "debug_time" in str(debugged.document)


def locked(dsn: str, id: str) -> psycopg.Connection[Any]:
    """A transaction of a user that has locked a promise."""
    conn = psycopg.connect(dsn)
    conn.execute("select from durable._promises where id = %s for update", (id,))
    return conn


def test_a_row_that_somebody_keeps_locked(dsn: str, opened: Callable[..., Gateway]) -> None:
    """A request that would wait for a user's transaction is 503 after a while, with Retry-After; others are
    served meanwhile."""
    with Client(opened().url) as client:
        client.create("kept", **{"resonate:external": "true"})
        with locked(dsn, "kept"):
            answer = client.post(client.envelope("promise.settle", id="kept", state="resolved"))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert client.create("other")["state"] == "pending"
        assert client.ask("promise.settle", id="kept", state="resolved")[0] == 200


def test_many_requests_for_a_row_that_somebody_keeps_locked(dsn: str, opened: Callable[..., Gateway]) -> None:
    """Each gives its connection back soon, so those that wait for one get it in time."""
    gateway = opened(connections=2)
    with Client(gateway.url) as client, ThreadPoolExecutor(8) as crowd:
        client.create("crowded", **{"resonate:external": "true"})
        request = client.envelope("promise.settle", id="crowded", state="resolved")
        with locked(dsn, "crowded"):
            answers = [crowd.submit(client.post, request) for _ in range(6)]
            others = [crowd.submit(client.ask, "promise.get", id="crowded") for _ in range(2)]
            assert [one.result()[0] for one in others] == [200, 200]
            assert {one.result().status_code for one in answers} == {503}


def test_readiness_needs_no_connection_for_requests(opened: Callable[..., Gateway]) -> None:
    """A gateway whose requests cannot even wait is ready, because its database answers."""
    gateway = opened(max_waiting=0)
    with Client(gateway.url) as client:
        assert client.post(GET).status_code == 503
        assert client.http.get(gateway.url + "/ready").status_code == 200
