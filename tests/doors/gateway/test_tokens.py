"""Law: with a key only valid tokens are taken, and a request names only what its token covers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.permissions import Forbidden, check, check_stream, group_of
from pyengine.doors.gateway.tokens import Claims, TokenRefused, Verifier
from pyengine.errors import InvalidRequest
from tests.doors.gateway.http_client import FAR, Client, EventStream
from tests.support.gateway import Gateway

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
KEYS: dict[str, Any] = {
    "RS256": RSA_KEY,
    "PS512": RSA_KEY,
    "ES256": EC_KEY,
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def pem(key: Any) -> bytes:
    """The public key in PEM."""
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def token(key: Any = EC_KEY, algorithm: str = "ES256", kid: str | None = None, **claims: Any) -> str:
    """A token that is valid for an hour unless its claims say otherwise."""
    payload = {"exp": int(time.time()) + 3600, **claims}
    payload = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers=None if kid is None else {"kid": kid})


def jwks(path: Path, **keys: Any) -> Path:
    """A file with these keys by their kid."""
    found = []
    for kid, key in keys.items():
        algorithm: Any = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
        found.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    path.write_text(json.dumps({"keys": found}), encoding="utf-8")
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file with a public key."""
    path = tmp_path / "key.pem"
    path.write_bytes(pem(EC_KEY))
    return path


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_of_each_family(tmp_path: Path, algorithm: str) -> None:
    """RSA, elliptic curves and Ed25519; the key decides the algorithm."""
    path = tmp_path / "key.pem"
    path.write_bytes(pem(KEYS[algorithm]))
    verifier = Verifier(path)
    claims = verifier.verify(token(KEYS[algorithm], algorithm, role="Admin", groups=["a"]))
    assert claims == Claims(is_admin=True, prefix=None, groups=frozenset({"a"}))
    with pytest.raises(TokenRefused, match="not valid"):
        verifier.verify(token(OTHER_KEY))


def forged(text: str, **head: str) -> str:
    """A token with another head."""
    _, payload, signature = text.split(".")
    return f"{jwt.utils.base64url_encode(json.dumps(head).encode()).decode()}.{payload}.{signature}"


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "a.b.c", "..", "ü.ü.ü", "a" * 100_000),
        token(OTHER_KEY),
        jwt.encode({"exp": FAR}, None, "none"),
        # the public key as a secret, which a careless reader would take
        jwt.encode({"exp": 4_000_000_000}, b"a" * 64, "HS256"),
        forged(token(), alg="none"),
        forged(token(), alg="HS256"),
        token(exp=None),
        token(exp=int(time.time()) - 60),
        token(exp="soon"),
        # far off, for the suite may take ten minutes from here to the test
        token(nbf=4_000_000_000),
        token(groups="all"),
        token()[:-4],
        token(exp=FAR)[:-2] + "==",
    ],
    ids=range(18),
)
def test_a_bad_token_is_refused(key: Path, text: str) -> None:
    """Unsigned, signed by others, expired, cut or malformed: no exception but the one that refuses."""
    with pytest.raises(TokenRefused) as refused:
        Verifier(key).verify(text)
    assert text == "" or text not in str(refused.value)


def test_clocks_may_differ(key: Path) -> None:
    """By half a minute."""
    assert Verifier(key).verify(token(exp=int(time.time()) - 20))
    assert Verifier(key).verify(token(nbf=int(time.time()) + 20))


def test_issuer_and_audience(key: Path) -> None:
    """Are required and compared if they are configured, else ignored; an audience may be one or a list."""
    verifier = Verifier(key, issuer="us", audience="engine")
    assert verifier.verify(token(iss="us", aud="engine"))
    assert verifier.verify(token(iss="us", aud=["other", "engine"]))
    for claims in (
        {"iss": "us"},
        {"aud": "engine"},
        {"iss": "them", "aud": "engine"},
        {"iss": "us", "aud": "x"},
    ):
        with pytest.raises(TokenRefused):
            verifier.verify(token(**claims))
    assert Verifier(key).verify(token(iss="them", aud="x"))


def test_several_keys(tmp_path: Path) -> None:
    """A JWKS has keys by kid; a token without kid is tried with each; a changed file counts at once."""
    path = jwks(tmp_path / "keys.json", a=EC_KEY, b=OTHER_KEY)
    verifier = Verifier(path)
    for text in (token(kid="a"), token(OTHER_KEY, kid="b"), token(), token(OTHER_KEY)):
        assert verifier.verify(text)
    for text in (token(kid="b"), token(kid="c")):
        with pytest.raises(TokenRefused):
            verifier.verify(text)
    jwks(path, b=OTHER_KEY)
    with pytest.raises(TokenRefused):
        verifier.verify(token(kid="a"))
    path.write_text("{", encoding="utf-8")
    assert verifier.verify(token(OTHER_KEY, kid="b"))


def test_a_key_is_revoked_by_a_file_with_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is no good file revokes nothing: it is empty, gone, or has a key that is not supported. One with a
    key for encryption alone refuses all; a good one counts again (F13)."""
    path, instant = jwks(tmp_path / "keys.json", old=EC_KEY, new=OTHER_KEY), count(1_000_000_000, 1_000_000)
    verifier = Verifier(path)
    old, new = json.loads(path.read_text(encoding="utf-8"))["keys"]

    def write(text: str) -> None:
        """Another file, whose instant differs however coarse those of the file system are."""
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(at := next(instant), at))

    def are_taken(*kids: str) -> bool:
        """Whether the tokens of these keys are taken, and no others."""
        for kid, key in (("old", EC_KEY), ("new", OTHER_KEY)):
            try:
                verifier.verify(token(key, kid=kid))
            except TokenRefused:
                if kid in kids:
                    return False
            else:
                if kid not in kids:
                    return False
        return True

    unsupported = json.dumps({"keys": [new, {**old, "kid": "p521", "crv": "P-521"}]})
    for text in ('{"keys": []}', unsupported, "", None):
        caplog.clear()
        if text is None:
            path.unlink()
        else:
            write(text)
        assert are_taken("old", "new")
        (warning,) = caplog.messages
        assert "the keys that were read before stay valid" in warning
    for keys, kids in (
        ([new], ["new"]),
        ([{**old, "use": "enc"}, {**new, "use": "enc"}], []),
        ([old, new], ["old", "new"]),
    ):
        write(json.dumps({"keys": keys}))
        assert are_taken(*kids)


def test_a_key_file_that_breaks_is_reported(key: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each change; the keys that were read before stay valid, and the next good file counts."""
    verifier, good = Verifier(key), key.read_bytes()
    for spoil, reason in (
        (lambda: key.write_bytes(b"{"), "neither a public key"),
        (key.unlink, "cannot be read"),
    ):
        caplog.clear()
        spoil()
        assert verifier.verify(token()) and verifier.verify(token())
        (warning,) = caplog.messages
        assert str(key) in warning and reason in warning
    caplog.clear()
    key.write_bytes(good)
    assert verifier.verify(token()) and not caplog.messages


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"nonsense",
            b"{}",
            b'{"keys": []}',
            b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
            b'{"keys": 5}',
        ),
        EC_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        pem(rsa.generate_private_key(65537, 1024)),
        pem(ec.generate_private_key(ec.SECP256K1())),
        json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}).encode(),
    ],
    ids=range(10),
)
def test_a_key_that_is_none(tmp_path: Path, text: bytes) -> None:
    """No key, a secret or private one, or a weak one: the gateway does not start."""
    path = tmp_path / "key"
    path.write_bytes(text)
    with pytest.raises(InvalidRequest):
        Verifier(path)
    with pytest.raises(InvalidRequest):
        Verifier(tmp_path / "missing")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_tokens(host: str) -> None:
    """Without a key a gateway serves its own machine, and others only if that is said in so many words."""
    GatewayConfig(database_url="postgresql://x/y", host="127.0.0.1").check()
    GatewayConfig(database_url="postgresql://x/y", host="localhost").check()
    GatewayConfig(database_url="postgresql://x/y", host=host, insecure_no_auth=True).check()
    GatewayConfig(database_url="postgresql://x/y", host=host, auth_key=Path("key")).check()
    with pytest.raises(InvalidRequest, match="no key"):
        GatewayConfig(database_url="postgresql://x/y", host=host).check()


LIMITED = Claims(is_admin=False, prefix="a", groups=frozenset({"g"}))


def inside(kind: str, **data: Any) -> dict[str, Any]:
    """A request inside another."""
    return {"kind": kind, "head": {}, "data": data}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(
            (kind, {"id": "b"})
            for kind in ("promise.get", "promise.settle", "task.acquire", "schedule.delete")
        ),
        ("promise.register_listener", {"awaited": "b", "address": "poll://uni@g/p"}),
        ("promise.register_listener", {"awaited": "a", "address": "poll://uni@h/p"}),
        ("promise.register_callback", {"awaited": "a", "awaiter": "b"}),
        ("promise.create", {"id": "a", "tags": {"resonate:target": "poll://any@h"}}),
        ("promise.create", {"id": "a", "tags": {"resonate:target": "http://127.0.0.1/"}}),
        ("promise.create", {"id": "a", "tags": {"resonate:target": "sql://x.y"}}),
        ("promise.create", {"id": "a", "tags": {"resonate:target": 5}}),
        ("task.create", {"action": inside("promise.create", id="b", tags={})}),
        ("task.create", {"action": inside("promise.create", id="a", tags={"resonate:target": "h"})}),
        ("task.fence", {"id": "a", "action": inside("promise.settle", id="b")}),
        (
            "task.suspend",
            {"id": "a", "actions": [inside("promise.register_callback", awaited="b", awaiter="a")]},
        ),
        ("task.fulfill", {"id": "a", "action": inside("promise.settle", id="b")}),
        ("task.heartbeat", {"pid": "p", "tasks": [{"id": "a"}, {"id": "b"}]}),
        ("schedule.create", {"id": "a", "promiseId": "b-{{.timestamp}}"}),
        ("schedule.create", {"id": "b", "promiseId": "a-{{.timestamp}}"}),
        ("schedule.create", {"id": "a", "promiseId": "a", "promiseTags": {"resonate:target": "poll://h/p"}}),
        *((f"{noun}.search", {}) for noun in ("promise", "task", "schedule")),
        *(("debug.reset", {}), ("promise.steal", {"id": "a"}), ("unknown", {})),
    ],
)
def test_what_a_token_does_not_cover(kind: str, data: dict[str, Any]) -> None:
    """An id without its prefix, an address outside its groups, and requests that name no id."""
    with pytest.raises(Forbidden):
        check(LIMITED, kind, data)
    check(Claims(is_admin=True, prefix=None, groups=frozenset()), kind, data)
    check(Claims(is_admin=False, prefix="", groups=None), kind, data)
    with pytest.raises(Forbidden):
        check(Claims(is_admin=False, prefix=None, groups=None), kind, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("promise.get", {"id": "abc"}),
        (
            "promise.create",
            {"id": "a:1", "tags": {"resonate:target": "poll://any@g/p", "resonate:origin": "a"}},
        ),
        ("promise.create", {"id": "a", "tags": {"resonate:target": "g"}}),
        ("promise.register_listener", {"awaited": "a", "address": "poll://uni@g/p"}),
        ("task.create", {"action": inside("promise.create", id="a", tags={"resonate:target": "poll://g"})}),
        ("task.fence", {"id": "a", "action": inside("promise.create", id="a.1", tags={})}),
        (
            "task.suspend",
            {"id": "a", "actions": [inside("promise.register_callback", awaited="a.1", awaiter="a")]},
        ),
        ("task.heartbeat", {"pid": "p", "tasks": [{"id": "a"}, {"id": "ab"}]}),
        ("schedule.create", {"id": "a", "promiseId": "{{.id}}-{{.timestamp}}"}),
        # the database refuses it
        ("promise.get", {"id": ["b"]}),
    ],
)
def test_what_a_token_covers(kind: str, data: dict[str, Any]) -> None:
    """Everything that a request names, the requests inside it too."""
    check(LIMITED, kind, data)


def test_the_group_of_an_address_is_that_of_the_schema(house: str) -> None:
    """Every form that the schema takes has the group here that it has there, or none."""
    texts = ["g", "poll://g", "poll://g/p", "POLL://g:p", "poll://any@g", "poll://any@g/p", "poll://uni@g/p"]
    texts += [
        "poll://any@g:h",
        "poll://g/p@q",
        "poll://g/p:q",
        "poll://UNI@g/p",
        "poll://uni@g",
        "g/p",
        "a b",
    ]
    texts += [
        "http://g/p",
        "https://g",
        "sql://a.b",
        "cell://g/p",
        "poll://",
        "poll://@g",
        "poll://any@g/p/q",
        "",
    ]
    with psycopg.connect(house) as conn:
        for text in texts:
            row = conn.execute(
                "select durable._queue_of(a), a from (select durable._canonical_address(%s) as a) x", (text,)
            ).fetchone()
            assert row is not None
            queue, address = row
            group = group_of(text)
            if address is not None and address.startswith("poll://any@"):
                assert group == queue, text
            elif address is not None and address.startswith("poll://uni@"):
                assert address.startswith(f"poll://uni@{group}/"), text
            elif address is not None:
                assert group is None, text


@pytest.fixture
def guarded(house: str, key: Path) -> Iterator[Gateway]:
    """A gateway that wants tokens."""
    with Gateway(house, auth_key=key) as started:
        yield started


def test_requests_need_tokens(guarded: Gateway) -> None:
    """In the head of the request or of HTTP; two that differ are none; operators need none."""
    with Client(guarded.url) as client:
        answer = client.post(client.envelope("promise.get", id="a"))
        assert (answer.status_code, answer.json()["head"]["corrId"]) == (401, "c-1")
        assert answer.headers["www-authenticate"] == "Bearer"
        valid, other = token(role="admin"), token(role="admin", x=1)
        request = client.envelope("promise.get", id="nothing")
        assert client.post(request, authorization=f"Bearer {valid}").status_code == 404
        request["head"]["auth"] = valid
        assert client.post(request).status_code == 404
        assert client.post(request, authorization=f"bearer {valid}").status_code == 404
        assert client.post(request, authorization=f"Bearer {other}").status_code == 401
        assert client.post({**request, "data": 7}).status_code == 400
        request["head"]["auth"] = {"a": 1}
        assert client.post(request).status_code == 401
        for path in ("/health", "/ready", "/metrics"):
            assert client.http.get(guarded.url + path).status_code == 200


def test_a_prefix_holds_over_http(guarded: Gateway) -> None:
    """A token with a prefix gets 403 for other ids, and its own work done."""
    with Client(guarded.url, token(prefix="mine-", groups=["g"])) as client:
        assert client.create("mine-1", "poll://any@g")["state"] == "pending"
        assert client.ask("promise.get", id="theirs")[0] == 403
        assert client.ask("promise.search")[0] == 403
        assert client.ask("task.acquire", id="mine-1", version=0, pid="p", ttl=1000)[0] == 200
        assert client.ask("debug.reset")[0] == 403


def test_a_heartbeat_keeps_to_the_prefix(guarded: Gateway, house: str) -> None:
    """Whoever knows the process of others renews its own tasks of that name only, in both APIs."""
    ids = ("beat-mine", "beat-theirs")
    renewed = "select id from durable._tasks where id like 'beat-%' and expires_at > acquired_at + ttl"
    mine = token(prefix="beat-m")
    with Client(guarded.url, token(role="admin")) as client, psycopg.connect(house, autocommit=True) as conn:
        for id in ids:
            client.create(id, "poll://any@beat")
            assert client.acquire(id, pid="beat-p")[0] == 200
        with Client(guarded.url, mine) as limited:
            assert limited.ask("task.heartbeat", pid="beat-p", tasks=[]) == (200, {})
            assert limited.ask("task.heartbeat", pid="beat-p", tasks=[], prefix="beat-") == (200, {})
        found = client.http.post(
            f"{guarded.url}/tasks/heartbeat",
            json={"processId": "beat-p"},
            headers={"authorization": f"Bearer {mine}"},
        )
        assert (found.status_code, found.json()) == (200, {"tasksAffected": 1})
        assert conn.execute(renewed.encode()).fetchall() == [(ids[0],)]
        assert client.ask("task.heartbeat", pid="beat-p", tasks=[])[0] == 200
        assert len(conn.execute(renewed.encode()).fetchall()) == 2


def test_a_preload_keeps_to_the_prefix(guarded: Gateway) -> None:
    """A task may be of a branch that has promises of others; they are not sent with it."""
    tags = {"resonate:branch": "shop"}
    with Client(guarded.url, token(role="admin")) as client:
        client.create("shop", **tags)
        client.create("shop.mine.1", **tags)
    with Client(guarded.url, token(prefix="shop.mine")) as client:
        tags["resonate:target"] = "poll://any@shop"
        create = client.envelope("promise.create", id="shop.mine", timeoutAt=FAR, tags=tags)
        status, data = client.ask("task.create", pid="p", ttl=60_000, action=create)
        assert (status, [one["id"] for one in data["preload"]]) == (200, ["shop.mine.1"])


def test_streams_need_tokens(guarded: Gateway) -> None:
    """A stream needs a valid token, and a group that the token has, if it lists groups."""
    with Client(guarded.url) as client:
        answer = client.http.get(f"{guarded.url}/poll/g/p")
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/plain; charset=utf-8")
        for text, status in ((token(groups=["h"]), 403), ("nonsense", 401)):
            headers = {"authorization": f"Bearer {text}"}
            assert client.http.get(f"{guarded.url}/poll/g/p", headers=headers).status_code == status
    for text in (token(groups=["g"]), token(prefix="x"), token(role="admin", groups=[])):
        with EventStream(guarded.url, "g", "p", token=text) as stream:
            assert stream.status == 200


def test_a_poll_of_any_group_is_for_tokens_without_groups() -> None:
    """As current servers have it: who has a token may poll, unless the token names groups."""
    check_stream(Claims(is_admin=False, prefix=None, groups=None), "g")
    with pytest.raises(Forbidden):
        check_stream(LIMITED, "h")


def test_tokens_are_not_logged(guarded: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a valid token nor a bad one stands in a log or an answer."""
    with caplog.at_level(0), Client(guarded.url) as client:
        for text in (token(role="admin"), "bad-secret-token"):
            request = client.envelope("promise.get", id="a\x00")
            request["head"]["auth"] = text
            answer = client.post(request)
            assert text not in answer.text and text not in caplog.text
