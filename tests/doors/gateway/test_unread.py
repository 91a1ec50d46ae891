"""Law: before a token was found valid nothing is made of a body, and little of what it says is kept."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyengine.doors.gateway import envelope, json_object
from pyengine.doors.gateway.envelope import read_request
from tests.doors.gateway.http_client import VERSION, Client
from tests.doors.gateway.test_tokens import EC_KEY, OTHER_KEY, pem, token
from tests.support.gateway import Gateway

MANY = 200_000
OBJECTS = b"[" + b",".join([b'{"":{}}'] * MANY) + b"]"


def body(auth: str | None = None, *, place: str = "data") -> bytes:
    """A request with a great many objects in its data, in its head, or beside them."""
    head: dict[str, Any] = {"corrId": "c-1", "version": VERSION} | ({} if auth is None else {"auth": auth})
    parts = {"kind": "promise.get", "head": head, "data": {"id": "x"}}
    many: Any = parts if place == "top" else parts[place]
    many["z"] = "MANY"
    return json.dumps(parts).encode().replace(b'"MANY"', OBJECTS)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file with a public key."""
    path = tmp_path / "key.pem"
    path.write_bytes(pem(EC_KEY))
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the texts of which values were made."""
    sizes: list[int] = []
    real = json_object.read_value

    def counted(text: Any) -> Any:
        sizes.append(len(memoryview(text)))
        return real(text)

    monkeypatch.setattr(json_object, "read_value", counted)
    monkeypatch.setattr(envelope, "read_value", counted)
    return sizes


@pytest.mark.parametrize("place", ["data", "head", "top"])
def test_a_look_makes_nothing(place: str) -> None:
    """Kind, correlation id and token of a body are found in a fraction of its own memory."""
    text = body("t", place=place)
    tracemalloc.start()
    try:
        request = read_request(text)
        assert tracemalloc.get_traced_memory()[1] < len(text) / 100
    finally:
        tracemalloc.stop()
    assert (request.kind, request.corr_id, request.token) == ("promise.get", "c-1", "t")
    assert (request.document, request.data) == ({}, {})
    assert request.make(debug=False)
    assert len(request.data.get("z", [])) == (MANY if place == "data" else 0)
    assert "z" not in request.document and "auth" not in request.document["head"]


def test_what_is_checked_is_what_is_made() -> None:
    """A name that comes twice has the same value for the look at the token as for the document."""
    twice = (
        b'{"kind": "task.get", "head": {"corrId": "a", "auth": "first"}, "data": {"id": "a"},'
        b' "kind": "promise.get", "head": {"corrId": "b", "corrId": "c", "auth": 5, "auth": "second"},'
        b' "data": {"id": "b"}, "\\u0064ata": {"id": "c"}}'
    )
    request = read_request(twice)
    assert request.make(debug=False)
    assert (request.kind, request.corr_id, request.token) == ("promise.get", "c", "second")
    assert request.document == {"kind": "promise.get", "head": {"corrId": "c"}, "data": {"id": "c"}}


@pytest.mark.sample(6)
@pytest.mark.parametrize("place", ["data", "head", "top"])
@pytest.mark.parametrize(
    ("header", "auth"),
    [
        (None, None),
        ("none", None),
        (None, "none"),
        ("x" * 20_000, None),
        (None, "x" * 1_000_000),
        (token(OTHER_KEY), None),
        (None, token(OTHER_KEY)),
        (token(role="admin"), token(OTHER_KEY)),
    ],
    ids=["none", "header", "head", "long header", "long head", "other key", "other head", "two"],
)
def test_a_body_without_a_valid_token(
    opened: Callable[..., Gateway],
    key: Path,
    made: list[int],
    header: str | None,
    auth: str | None,
    place: str,
) -> None:
    """Is answered 401 with its own correlation id, and no value was made of it but kind, id and token."""
    gateway = opened(auth_key=key)
    headers = {} if header is None else {"authorization": f"Bearer {header}"}
    with Client(gateway.url) as client:
        answer = client.post(body(auth, place=place), **headers)
        assert answer.status_code == 401
        assert (answer.json()["kind"], answer.json()["head"]["corrId"]) == ("promise.get", "c-1")
        assert sum(made) <= 100 + len(auth or "")
        answer = client.post(body(token(role="admin"), place=place))
        assert (answer.status_code, sum(made) > len(OBJECTS)) == (404, place != "top")


OLDER = [
    ("POST", "/promises"),
    ("POST", "/promises/task"),
    ("POST", "/promises/callback"),
    ("POST", "/callbacks"),
    ("POST", "/subscriptions"),
    ("PATCH", "/promises/x"),
    ("POST", "/tasks/claim"),
    ("POST", "/tasks/complete"),
    ("POST", "/tasks/drop"),
    ("POST", "/tasks/heartbeat"),
    ("POST", "/schedules"),
    ("GET", "/poll/g/p"),
    ("GET", "/g/p"),
]


def test_the_other_doors(opened: Callable[..., Gateway], key: Path, made: list[int]) -> None:
    """The older API and streams: 401, and nothing was made of what came with the request."""
    gateway = opened(auth_key=key)
    for method, path in OLDER:
        answer = httpx.request(method, gateway.url + path, content=b'{"id": "x"}')
        assert answer.status_code == 401, path
    assert made == []
