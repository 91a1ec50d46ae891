"""Law: the older API has the paths, headers, statuses and errors that its clients know, and streams on a port
of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doors.gateway.conftest import IDLE_S, MAX_BODY
from tests.doors.gateway.http_client import EventStream
from tests.doors.gateway.test_tokens import EC_KEY, pem, token
from tests.support.gateway import Gateway

FAR = 2**63 - 1
NEVER = 2**53 - 1
Ask = Callable[..., httpx.Response]


class OlderClient:
    """A client of the older API, as small as it can be; use it as a context manager."""

    def __init__(self, url: str, **headers: str) -> None:
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60)

    def __enter__(self) -> OlderClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and body of an answer; of an error, its code alone."""
        answer = self.http.request(
            method, path, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        found = answer.json() if answer.content else None
        return answer.status_code, found["error"]["code"] if answer.is_error else found

    def create(self, id: str, target: str | None = None, **more: Any) -> dict[str, Any]:
        """A promise, made."""
        tags = {} if target is None else {"resonate:invoke": target}
        status, record = self.ask("POST", "/promises", {"id": id, "timeout": FAR, "tags": tags, **more})
        assert status == 201, record
        return dict(record)

    def claim(self, id: str, counter: int = 1) -> tuple[int, Any]:
        """A task, claimed."""
        return self.ask(
            "POST", "/tasks/claim", {"id": id, "counter": counter, "processId": "w", "ttl": 60_000}
        )


class OlderStream(EventStream):
    """A stream at a path without a prefix."""

    path = "/{}/{}"


@pytest.fixture(scope="module")
def older_gateway(house: str) -> Iterator[Gateway]:
    """A gateway with a port for streams of the older API."""
    with Gateway(house, older_port=0, body_idle_s=IDLE_S, max_body_bytes=MAX_BODY) as started:
        yield started


@pytest.fixture
def older(older_gateway: Gateway) -> Iterator[OlderClient]:
    """A client of it."""
    with OlderClient(older_gateway.url) as client:
        yield client


def test_a_promise(older: OlderClient) -> None:
    """Created, read and completed; the key and the strictness are headers, in any case of letters."""
    param = {"headers": {"a": "b"}, "data": "eA=="}
    body = {"id": "L/a b", "timeout": FAR, "tags": {"t": "1"}, "param": param}
    status, record = older.ask("POST", "/promises", body, idempotency_KEY="k", Strict="True")
    assert (status, record["state"], record["timeout"], record["param"]) == (201, "PENDING", NEVER, param)
    assert record["idempotencyKeyForCreate"] == "k"
    assert older.ask("POST", "/promises", body, Idempotency_Key="k", STRICT="true") == (200, record)
    assert older.ask("POST", "/promises", body) == (409, 40900)
    assert older.ask("GET", "/promises/L/a%20b") == (200, record)
    done = {"state": "RESOLVED", "value": {"data": "eQ=="}}
    status, record = older.ask("PATCH", "/promises/L/a%20b", done, idempotency_key="u")
    assert (status, record["state"], record["value"]) == (201, "RESOLVED", {"data": "eQ=="})
    assert older.ask("PATCH", "/promises/L/a%20b", done, idempotency_key="u", strict="true") == (200, record)
    assert older.ask("PATCH", "/promises/L/a%20b", {"state": "REJECTED"}) == (403, 40301)


@pytest.mark.parametrize(("state", "code"), [("REJECTED", 40302), ("REJECTED_CANCELED", 40303)])
def test_codes_of_completed_promises(older: OlderClient, state: str, code: int) -> None:
    """Each state has its code."""
    older.create(f"L-{state}")
    assert older.ask("PATCH", f"/promises/L-{state}", {"state": state})[0] == 201
    assert older.ask("PATCH", f"/promises/L-{state}", {"state": "RESOLVED"}) == (403, code)


def test_a_promise_past_its_deadline(older: OlderClient) -> None:
    """Timed out: any completion succeeds unless it is strict."""
    older.create("L-late", timeout=1)
    status, record = older.ask("PATCH", "/promises/L-late", {"state": "RESOLVED"})
    assert (status, record["state"]) == (200, "REJECTED_TIMEDOUT")
    assert older.ask("PATCH", "/promises/L-late", {"state": "RESOLVED"}, strict="True") == (403, 40304)


def test_search(older: OlderClient) -> None:
    """By pattern, state and tags, page by page."""
    for n in range(3):
        older.create(f"L-search-{n}", tags={"colour": "red"})
    query = "/promises?id=L-search-*&state=pending&tags[colour]=red&limit=2"
    status, page = older.ask("GET", query)
    assert (status, [one["id"] for one in page["promises"]]) == (200, ["L-search-0", "L-search-1"])
    status, page = older.ask("GET", f"{query}&cursor={page['cursor']}")
    assert ([one["id"] for one in page["promises"]], page["cursor"]) == (["L-search-2"], None)
    for wrong in ("state=x", "limit=x", "limit=0", "limit=9999999"):
        assert older.ask("GET", f"/promises?{wrong}") == (400, 40000)


def test_a_task(older: OlderClient) -> None:
    """Claimed, kept, dropped and completed by its counter; the promise has a link."""
    older.create("L-t", "L-group")
    assert older.claim("L-t", 7) == (403, 40308)
    status, message = older.claim("L-t")
    root = message["promises"]["root"]
    assert (status, message["type"], root["id"], root["data"]["state"]) == (201, "invoke", "L-t", "PENDING")
    assert httpx.get(root["href"]).json() == root["data"]
    assert older.claim("L-t") == (403, 40306)
    assert older.ask("POST", "/tasks/heartbeat", {"processId": "w"})[1]["tasksAffected"] >= 1
    assert older.ask("POST", "/tasks/drop", {"id": "L-t", "counter": 1}) == (204, None)
    assert older.claim("L-t", 2)[0] == 201
    assert older.ask("POST", "/tasks/complete", {"id": "L-t", "counter": 1}) == (403, 40308)
    older.ask("PATCH", "/promises/L-t", {"state": "RESOLVED"})
    assert older.ask("POST", "/tasks/complete", {"id": "L-t", "counter": 2})[0] == 201
    assert older.claim("L-t", 3) == (403, 40307)
    assert older.claim("L-none") == (404, 40403)


def test_a_promise_with_its_task(older: OlderClient) -> None:
    """The creator has the task, and nobody a second time."""
    promise = {"id": "L-own", "timeout": FAR, "tags": {"resonate:invoke": "poll://any@L-group/w"}}
    body = {"promise": promise, "task": {"processId": "w", "ttl": 60_000}}
    status, made = older.ask("POST", "/promises/task", body, idempotency_key="k")
    assert (status, made["task"]["counter"], made["promise"]["id"]) == (201, 1, "L-own")
    status, again = older.ask("POST", "/promises/task", body, idempotency_key="k")
    assert (status, again["task"], again["promise"]) == (200, None, made["promise"])
    promise["tags"] = {}
    assert older.ask("POST", "/promises/task", body) == (400, 40000)


@pytest.mark.parametrize("form", ["path", "body"])
def test_callbacks_and_streams(older: OlderClient, older_gateway: Gateway, form: str) -> None:
    """A task is invoked, waits for a promise and is resumed with it; a subscriber is notified. Both forms of
    a registration are known, and the second answers as the first did."""
    group, root, leaf = f"L-{form}", f"L-{form}", f"L-{form}.1"
    with OlderStream(older_gateway.older_url, group, "w") as stream:
        older.create(root, f"poll://any@{group}")
        assert stream.next() == {
            "type": "invoke",
            "task": {"id": root, "counter": 1, "rootPromiseId": root},
        }
        assert older.claim(root)[0] == 201
        older.create(leaf)
        wait = {"rootPromiseId": root, "timeout": FAR, "recv": f"poll://any@{group}/w"}
        told = {"id": "s", "timeout": FAR, "recv": {"type": "poll", "data": {"group": group, "id": "w"}}}
        paths = (f"/promises/callback/{leaf}", f"/promises/subscribe/{leaf}")
        if form == "body":
            wait, told = wait | {"id": "c", "promiseId": leaf}, told | {"promiseId": leaf}
            paths = ("/callbacks", "/subscriptions")
        for path, body in zip(paths, (wait, told), strict=True):
            for status in (201, 200):
                got, answer = older.ask("POST", path, body)
                assert (got, answer["promise"]["state"]) == (status, "PENDING")
                assert answer["callback"]["promiseId"] == leaf
                assert answer["callback"].keys() >= {"id", "timeout", "createdOn"}
        assert older.ask("POST", "/tasks/complete", {"id": root, "counter": 1})[0] == 201
        older.ask("PATCH", f"/promises/{leaf}", {"state": "RESOLVED", "value": {"data": "Nw=="}})
        found: dict[str, dict[str, Any]] = {}
        while found.keys() - {"invoke"} != {"notify", "resume"}:
            # the offer comes again where the claim took long
            (message,) = stream.messages(1)
            found[message["type"]] = message
        assert found["notify"]["promise"]["value"] == {"data": "Nw=="}
        status, message = older.claim(root, 2)
        assert (status, message["promises"]["leaf"]["data"]["id"]) == (201, leaf)
        for path, body in zip(paths, (wait, told), strict=True):
            status, answer = older.ask("POST", path, body)
            assert (status, answer["callback"], answer["promise"]["state"]) == (200, None, "RESOLVED")


def test_a_promise_with_its_callback(older: OlderClient, older_gateway: Gateway) -> None:
    """Both are made by one request, as versions 0.2 and 0.3 send it; again they are the same. Neither is made
    if the other cannot be."""
    with OlderStream(older_gateway.older_url, "L-with", "w") as stream:
        older.create("L-with", "poll://any@L-with")
        assert stream.next() is not None and older.claim("L-with")[0] == 201
        promise = {"id": "L-with.1", "timeout": FAR, "param": {"data": "eA=="}, "tags": {"a": "b"}}
        callback = {"rootPromiseId": "L-with", "timeout": FAR, "recv": "poll://any@L-with/w"}
        body = {"promise": promise, "callback": callback}
        for status in (201, 200):
            got, made = older.ask("POST", "/promises/callback", body, idempotency_key="k", strict="True")
            assert (got, made["promise"]["param"], made["promise"]["tags"]) == (
                status,
                {"data": "eA=="},
                {"a": "b"},
            )
            assert made["callback"]["promiseId"] == "L-with.1"
            assert made["callback"]["rootPromiseId"] == "L-with"
        assert older.ask("POST", "/promises/callback", body) == (409, 40900)
        assert older.ask("POST", "/tasks/complete", {"id": "L-with", "counter": 1})[0] == 201
        older.ask("PATCH", "/promises/L-with.1", {"state": "RESOLVED"})
        message = stream.next()
        assert message is not None and message["type"] == "resume"
        status, made = older.ask("POST", "/promises/callback", body, idempotency_key="k")
        assert (status, made["callback"], made["promise"]["state"]) == (200, None, "RESOLVED")
    alone = {"promise": promise | {"id": "L-alone.1"}, "callback": callback | {"rootPromiseId": "L-alone"}}
    assert older.ask("POST", "/promises/callback", alone) == (422, 42200)
    assert older.ask("GET", "/promises/L-alone.1") == (404, 40400)


def test_a_path_without_a_prefix_is_the_protocol_on_the_other_port(
    older: OlderClient, older_gateway: Gateway
) -> None:
    """The port of requests gives the same path the messages of the protocol."""
    with OlderStream(older_gateway.url, "L-both", "w") as stream:
        older.create("L-both", "L-both")
        message = stream.next()
        assert message is not None and message["kind"] == "execute"


def test_schedules(older: OlderClient) -> None:
    """Created, read and deleted."""
    body = {"id": "L-s", "cron": "* * * * *", "promiseId": "{{.id}}.{{.timestamp}}", "promiseTimeout": 60_000}
    status, record = older.ask("POST", "/schedules", body)
    assert (status, record["cron"]) == (201, "* * * * *")
    assert older.ask("POST", "/schedules", body) == (200, record)
    assert older.ask("POST", "/schedules", body | {"promiseTimeout": 1}) == (409, 40901)
    assert older.ask("GET", "/schedules/L-s") == (200, record)
    assert older.ask("DELETE", "/schedules/L-s") == (204, None)
    assert older.ask("GET", "/schedules/L-s") == older.ask("DELETE", "/schedules/L-s") == (404, 40401)


def test_far_means_never_in_every_field(older: OlderClient) -> None:
    """The largest number of eight bytes, as a deadline, a lease and the time of a promise of a schedule."""
    older.create("L-far", "L-group")
    claim = {"id": "L-far", "counter": 1, "processId": "w", "ttl": FAR}
    assert older.ask("POST", "/tasks/claim", claim)[0] == 201
    promise = {"id": "L-far-own", "timeout": FAR, "tags": {"resonate:invoke": "poll://any@L-group/w"}}
    body = {"promise": promise, "task": {"processId": "w", "ttl": FAR}}
    assert older.ask("POST", "/promises/task", body)[0] == 201
    callback = {"rootPromiseId": "L-far-own", "timeout": FAR, "recv": "L-group"}
    assert older.ask("POST", "/promises/callback/L-far", callback)[0] == 201
    schedule = {
        "id": "L-far-s",
        "cron": "0 * * * *",
        "promiseId": "L-f.{{.timestamp}}",
        "promiseTimeout": FAR,
    }
    assert older.ask("POST", "/schedules", schedule)[0] == 201
    for path in ("/promises/L-far", "/promises/L-far-own"):
        older.ask("PATCH", path, {"state": "RESOLVED"})
    assert older.ask("DELETE", "/schedules/L-far-s") == (204, None)


JUNK: list[tuple[str, str, Any]] = [
    ("POST", "/promises", [1]),
    ("POST", "/promises", {}),
    ("POST", "/promises", {"id": "L-x"}),
    ("POST", "/promises", {"id": "L-x", "timeout": "1"}),
    ("POST", "/promises", {"id": "L-x", "timeout": 1e300}),
    ("POST", "/promises", {"id": "L-x", "timeout": -1}),
    ("POST", "/promises", {"id": "L-\0", "timeout": 1}),
    ("POST", "/promises", {"id": "L-x", "timeout": 1, "tags": {"a": 1}}),
    ("POST", "/promises", {"id": "L-x", "timeout": 1, "tags": {"resonate:invoke": "a b"}}),
    ("POST", "/promises", {"id": "L-x", "timeout": 1, "param": {"data": 1}}),
    ("POST", "/promises", {"id": "L-x", "timeout": 1, "param": {"headers": {"a": []}}}),
    ("POST", "/promises/task", {"promise": {"id": "L-x", "timeout": 1}}),
    ("PATCH", "/promises/L-x", {"state": "PENDING"}),
    ("PATCH", "/promises/L-x", {}),
    ("POST", "/promises/callback/L-x", {"rootPromiseId": "L-x", "timeout": 1, "recv": "g"}),
    ("POST", "/promises/callback", {"promise": {"id": "L-x", "timeout": 1}}),
    ("POST", "/promises/callback", {"promise": {}, "callback": {"rootPromiseId": "L-y"}}),
    ("POST", "/promises/subscribe/L-x", {"id": "s", "timeout": 1}),
    ("POST", "/subscriptions", {"id": "s", "promiseId": "L-x", "timeout": 1, "recv": {"type": "sqs"}}),
    ("POST", "/tasks/claim", {"id": "L-x", "counter": 1.5, "processId": "w", "ttl": 1}),
    ("POST", "/tasks/claim", {"id": "L-x", "counter": 1, "processId": "w", "ttl": 0}),
    ("POST", "/tasks/heartbeat", {}),
    ("POST", "/schedules", {"id": "L-x", "cron": "x", "promiseId": "p", "promiseTimeout": 1}),
]


@pytest.mark.parametrize(("method", "path", "body"), JUNK, ids=lambda one: json.dumps(one)[:60])
def test_junk(older: OlderClient, method: str, path: str, body: Any) -> None:
    """What is malformed is 400 in the form of the older API."""
    assert older.ask(method, path, body) == (400, 40000)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"id": "\\ud800", "timeout": 1}'])
def test_bodies_that_are_no_json(older: OlderClient, content: bytes) -> None:
    """So are bodies that cannot be read."""
    answer = older.http.post("/promises", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 40000)


def test_limits_and_wrong_methods(older: OlderClient) -> None:
    """A body that is too large, a method that a path does not have, a promise that has no task."""
    assert older.http.post("/promises", content=b" " * (MAX_BODY + 1)).status_code == 413
    assert older.http.put("/promises/L-x").status_code == 405
    older.create("L-bare")
    older.create("L-bare.1")
    body = {"rootPromiseId": "L-bare", "timeout": 1, "recv": "g"}
    assert older.ask("POST", "/promises/callback/L-bare.1", body) == (422, 42200)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file with a public key."""
    path = tmp_path / "key.pem"
    path.write_bytes(pem(EC_KEY))
    return path


def basic(password: str) -> str:
    """The header of Basic authorization."""
    return "Basic " + base64.b64encode(f"any:{password}".encode()).decode()


def test_the_groups_of_a_token_hold_for_receivers(opened: Callable[..., Gateway], key: Path) -> None:
    """Callbacks and subscriptions lead to its groups alone: to no other group, and to no http address."""
    own = {"type": "poll", "data": {"group": "g", "id": "w"}}
    others = ["h", "poll://any@h", "http://127.0.0.1:9/", {"type": "poll", "data": {"group": "g:h"}}]
    others += [{"type": "http", "data": {"url": "https://example.org/", "headers": {"authorization": "x"}}}]
    header = basic(token(prefix="a.", groups=["g"]))
    with OlderClient(opened(auth_key=key).url, authorization=header) as client:
        client.create("a.1")
        client.create("a.2", "g")
        for recv, statuses in [*((one, {403}) for one in others), (own, {200, 201})]:
            wait = {"id": "c", "rootPromiseId": "a.2", "promiseId": "a.1", "timeout": FAR, "recv": recv}
            both = {"promise": {"id": "a.3", "timeout": FAR}, "callback": wait}
            assert client.ask("POST", "/promises/callback", both)[0] in statuses, recv
            for path in ("/promises/callback/a.1", "/callbacks", "/promises/subscribe/a.1", "/subscriptions"):
                assert client.ask("POST", path, wait)[0] in statuses, (path, recv)


def test_tokens(opened: Callable[..., Gateway], key: Path) -> None:
    """A token is the password of Basic authorization, or a bearer's; its prefix and groups hold here too."""
    gateway = opened(auth_key=key, older_port=0)
    with OlderClient(gateway.url) as client:
        for header in ("", "Basic x", basic("x"), basic("")):
            assert client.ask("GET", "/promises/a.1", authorization=header) == (401, 40100)
        mine = basic(token(prefix="a.", groups=["g"]))
        assert client.ask("GET", "/promises/a.1", authorization=mine) == (404, 40400)
        assert client.ask("GET", "/promises/b.1", authorization=mine) == (403, 40300)
        assert client.ask("GET", "/promises", authorization=mine) == (403, 40300)
        body = {"id": "a.1", "timeout": FAR, "tags": {"resonate:invoke": "g"}}
        assert client.ask("POST", "/promises", body, authorization=mine)[0] == 201
        body = {"id": "a.2", "timeout": FAR, "tags": {"resonate:invoke": "h"}}
        assert client.ask("POST", "/promises", body, authorization=mine) == (403, 40300)
        both = {"promise": body, "callback": {"rootPromiseId": "a.1", "timeout": FAR, "recv": "g"}}
        assert client.ask("POST", "/promises/callback", both, authorization=mine) == (403, 40300)
        both["promise"] = {"id": "a.2", "timeout": FAR}
        both["callback"] = {"rootPromiseId": "b.1", "timeout": FAR, "recv": "g"}
        assert client.ask("POST", "/promises/callback", both, authorization=mine) == (403, 40300)
        listen = {"id": "s", "timeout": FAR, "recv": {"type": "poll", "data": {"group": "h"}}}
        assert client.ask("POST", "/promises/subscribe/a.1", listen, authorization=mine) == (403, 40300)
        admin = f"Bearer {token(role='admin')}"
        assert client.ask("GET", "/promises", authorization=admin)[0] == 200
        streams = gateway.older_url
        assert httpx.get(f"{streams}/g/w").status_code == 401
        assert httpx.get(f"{streams}/h/w", headers={"authorization": mine}).status_code == 403
