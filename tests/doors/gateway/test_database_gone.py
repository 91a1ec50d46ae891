"""Law: without its database, or in a copy in which nothing may run, a gateway refuses requests and keeps its
streams; with it, it goes on."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from pyengine.core.database.connection import Database
from pyengine.core.database.statements.procedures import Procedure
from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from pyengine.doors.gateway import backend
from pyengine.doors.gateway.backend import Backend
from pyengine.doors.gateway.envelope import Refused
from pyengine.errors import SchemaMismatch
from tests.conftest import Connection
from tests.doors.gateway.http_client import WAIT_S, Client, EventStream
from tests.doors.gateway.receivers import Receiver, Reply
from tests.doors.gateway.test_older import OlderClient, OlderStream
from tests.doors.gateway.test_push import report, unblocks, until
from tests.support.cluster import make_folder
from tests.support.gateway import Gateway


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server of this test's own."""
    folder = make_folder()
    server = EmbeddedPostgres(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def until_status(client: Client, path: str, status: int) -> None:
    """Ask until the answer has this status."""
    late = time.monotonic() + WAIT_S
    while client.http.get(client.url + path).status_code != status:
        assert time.monotonic() < late
        time.sleep(0.05)


OLDER_REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/promises/a", None),
    ("GET", "/promises", None),
    ("POST", "/promises", {"id": "a", "timeout": 1}),
    ("PATCH", "/promises/a", {"state": "RESOLVED"}),
    ("POST", "/promises/subscribe/a", {"id": "s", "timeout": 1, "recv": "g"}),
    ("POST", "/tasks/claim", {"id": "a", "counter": 1, "processId": "w", "ttl": 1}),
    ("POST", "/tasks/heartbeat", {"processId": "w"}),
    ("DELETE", "/schedules/a", None),
]


def refused_by_older_api(gateway: Gateway) -> None:
    """Each request is 503, in the form of the older API, on both ports."""
    with OlderClient(gateway.url) as one, OlderClient(gateway.older_url) as other:
        for client in (one, other):
            for method, path, body in OLDER_REQUESTS:
                answer = client.http.request(method, path, json=body)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), path
                assert answer.json()["error"]["code"] == 50300


def served_by_older_api(gateway: Gateway, stream: EventStream) -> None:
    """A promise is made, and its task is invoked on a stream that was open all the time."""
    with OlderClient(gateway.url) as client:
        client.create("o", "poll://any@o")
        message = stream.next()
        assert message is not None and message["task"]["id"] == "o"
        assert client.claim("o")[0] == 201


@pytest.mark.session("restarts the server")
def test_the_database_goes_and_comes(own_server: EmbeddedPostgres) -> None:
    """503 with an envelope and Retry-After meanwhile, in the older API with its error; /ready says so,
    /health does not; streams of both that were open get what is due afterwards; a report that was taken
    meanwhile does not come again."""
    migrate.install(own_server.dsn)
    with ExitStack() as stack:
        taken = threading.Event()
        receiver = stack.enter_context(Receiver(lambda got: Reply(status=200 if taken.wait(WAIT_S) else 500)))
        gateway = stack.enter_context(Gateway(own_server.dsn, push_private=("127.0.0.1",), older_port=0))
        client = stack.enter_context(Client(gateway.url))
        older = stack.enter_context(OlderStream(gateway.older_url, "o", "a"))
        with EventStream(gateway.url, "g", "a") as stream:
            report(client, "pushed", receiver.url)
            receiver.next()
            own_server.stop()
            taken.set()
            answer = client.post(client.envelope("promise.get", id="a"))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["data"] == "the database is not available"
            refused_by_older_api(gateway)
            until_status(client, "/ready", 503)
            assert client.http.get(gateway.url + "/health").status_code == 200
            own_server.start()
            until_status(client, "/ready", 200)
            client.create("after", "poll://any@g")
            message = stream.next()
            assert message is not None and message["data"]["task"]["id"] == "after"
            served_by_older_api(gateway, older)
            client.create("p", **{"resonate:external": "true"})
            client.ask("promise.register_listener", awaited="p", address="poll://uni@g/a")
            client.ask("promise.settle", id="p", state="resolved")
            message = stream.next()
            assert message is not None and message["kind"] == "unblock"
        with psycopg.connect(own_server.dsn, autocommit=True) as conn:
            until(lambda: unblocks(conn) == 0)
        assert len(receiver.got) == 1


def test_a_database_that_hangs(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose statement has no answer in time is 503, with Retry-After; the next one gets a
    connection. The server ends the statement a little earlier, if it can."""

    async def ask() -> tuple[Refused, str]:
        gateway = Backend(Database(dsn), connections=1, max_waiting=1)
        await gateway.open()
        try:
            with pytest.raises(Refused) as refused:
                await gateway.ask(Procedure(signature="", sql="select pg_sleep(60)::text"), repeatable=True)
            timeout = Procedure(signature="", sql="select current_setting('statement_timeout')")
            return refused.value, await gateway.ask(timeout)
        finally:
            await gateway.close()

    monkeypatch.setattr(backend, "_ANSWER_S", 0.5)
    refused, timeout = asyncio.run(ask())
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert timeout == "8s"


def test_a_database_without_the_schema(empty_database: Callable[[], str]) -> None:
    """A gateway that can never serve ends with the reason, and does not go on as a half."""
    with pytest.raises(SchemaMismatch), Gateway(empty_database()):
        pass


@pytest.mark.unlawful("the identity of the database is changed by hand")
def test_a_copy_that_is_not_adopted(
    conn: Connection, opened: Callable[..., Gateway], caplog: pytest.LogCaptureFixture
) -> None:
    """503 with Retry-After for whatever would run there, with the next command; people may read and write. No
    offer is made. After the adoption the gateway goes on by itself."""
    gateway = opened(older_port=0)
    with Client(gateway.url) as client, EventStream(gateway.url, "g", "a") as stream:
        client.create("other", "poll://any@nobody")
        conn.execute("update durable._site set system_identifier = 1")
        for kind, data in (
            ("task.acquire", {"id": "other", "version": 0, "pid": "p", "ttl": 1000}),
            ("task.fulfill", {"id": "other", "version": 1, "action": settlement(client, "other")}),
        ):
            answer = client.post(client.envelope(kind, **data))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10"), answer.text
            assert "pyengine db adopt" in answer.json()["data"]
        claim = {"id": "other", "counter": 1, "processId": "p", "ttl": 1000}
        answer = client.http.post(f"{gateway.url}/tasks/claim", json=claim)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert answer.json()["error"]["code"] == 50300
        assert client.create("work", "poll://any@g")["state"] == "pending"
        assert client.ask("promise.get", id="work")[0] == 200
        assert stream.is_silent(1.5)
        conn.execute("select from durable.adopt()")
        message = stream.next()
        assert message is not None and message["data"]["task"]["id"] == "work"
        assert client.acquire("work")[0] == client.acquire("other")[0] == 200


def settlement(client: Client, id: str) -> dict[str, Any]:
    """The request inside of a fulfilment."""
    return client.envelope("promise.settle", id=id, state="resolved")
