"""Law: a message for an http address is pushed to it, as often as it must and no oftener; what a receiver
answers, or that it does not, costs no other address anything."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pyengine.doors.gateway.courier import outbox
from pyengine.errors import InvalidRequest
from tests.conftest import Connection
from tests.doors.gateway.http_client import WAIT_S, Client, post_head
from tests.doors.gateway.receivers import Got, Receiver, Reply, Shim, answers
from tests.doors.gateway.test_older import OlderClient
from tests.support.gateway import Gateway

Opened = Callable[..., Gateway]
HOST = "127.0.0.1"


@pytest.fixture
def pushing(opened: Opened) -> Callable[..., Gateway]:
    """A function: a gateway that may push to this machine, and tells receivers where it is."""

    def open_one(**options: Any) -> Gateway:
        with socket.create_server((HOST, 0)) as sock:
            port = sock.getsockname()[1]
        options = {"port": port, "public_url": f"http://{HOST}:{port}", "push_private": (HOST,)} | options
        return opened(**options)

    return open_one


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test opens."""
    with ExitStack() as opened:
        yield opened


def set_offer_ms(conn: Connection, ms: int) -> None:
    """Let offers come again after so many milliseconds."""
    conn.execute("select durable.set_setting('retry_offer_ms', %s)", (str(ms),))


def report(client: Client, id: str, *addresses: str) -> None:
    """Let a promise settle that these addresses listen to."""
    client.create(id, **{"resonate:external": "true"})
    for address in addresses:
        status, data = client.ask("promise.register_listener", awaited=id, address=address)
        assert status == 200, data
    assert client.ask("promise.settle", id=id, state="resolved")[0] == 200


def until(is_true: Callable[[], bool]) -> None:
    """Wait for something."""
    late = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < late
        time.sleep(0.01)


def unblocks(conn: Connection) -> int:
    """How many reports wait."""
    row = conn.execute("select count(*) from durable._unblocks").fetchone()
    assert row is not None
    return int(row[0])


def figure(client: Client, name: str) -> float:
    """A figure of the gateway; no number until it has begun to push."""
    text = client.http.get(f"{client.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith(f"pyengine_gateway_{name} ")]
    return float(lines[0].split()[-1]) if lines else math.nan


def test_an_offer_is_pushed(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """A POST of the message to the whole address; again until the task is acquired, and then no more."""
    set_offer_ms(conn, 300)
    receiver, gateway = stack.enter_context(Receiver()), pushing()
    client = stack.enter_context(Client(gateway.url))
    client.create("a", receiver.url + "/ä?x=%41")
    got = receiver.next()
    assert got.path == "/fn/%C3%A4?x=%41"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"{HOST}:{receiver.port}"
    task = {"id": "a", "version": 0}
    assert got.message == {"kind": "execute", "head": {"serverUrl": gateway.url}, "data": {"task": task}}
    assert receiver.next().message == got.message
    assert client.acquire("a")[0] == 200
    while not receiver.is_silent(0.4):
        pass
    assert client.ask("task.release", id="a", version=1)[0] == 200
    assert receiver.next().message["data"]["task"] == {"id": "a", "version": 1}


def test_a_report_is_pushed_once(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """A settled promise goes to each address that listens, and is gone once it was taken."""
    one, other = stack.enter_context(Receiver()), stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing().url))
    report(client, "p-ü", one.url, other.url)
    for receiver in (one, other):
        got = receiver.next()
        assert (got.message["kind"], got.message["head"], got.id) == ("unblock", {}, "p-ü")
        assert got.message["data"]["promise"]["state"] == "resolved"
    until(lambda: unblocks(conn) == 0)
    assert one.is_silent()
    assert len(other.got) == 1


def test_a_pass_within_the_request(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """A receiver may take longer to acquire a task than an offer lasts: two gateways push it once."""
    set_offer_ms(conn, 1000)
    shim = stack.enter_context(Shim(cold_s=1.7, work_s=0.3))
    client = stack.enter_context(Client(pushing().url))
    pushing()
    for n in range(6):
        client.create(f"pass-{n}", shim.url)
    until(lambda: len(shim.statuses) == 6)
    assert shim.statuses == [200] * 6
    assert sorted(got.id for got in shim.got) == [f"pass-{n}" for n in range(6)]


def test_a_report_is_held_while_its_request_is_open(
    conn: Connection, pushing: Opened, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver may take longer than a claim lasts: no other gateway sends the report too."""
    monkeypatch.setattr(outbox, "_CLAIM_MS", 1000)
    monkeypatch.setattr(outbox, "_RENEW_S", 0.7)

    def slow(got: Got) -> Reply:
        time.sleep(2.0)
        return Reply()

    receiver = stack.enter_context(Receiver(slow))
    # with one request open the first gateway claims nothing, so the second one would
    client = stack.enter_context(Client(pushing(push_in_all=1).url))
    report(client, "p", receiver.url)
    receiver.next()
    pushing()
    until(lambda: unblocks(conn) == 0)
    assert len(receiver.got) == 1


def test_an_offer_that_came_twice_is_no_failure(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """A shim answers 500 to a task that somebody else has acquired: the address goes on to get all others."""
    set_offer_ms(conn, 150)
    shim = stack.enter_context(Shim(cold_s=0.15))
    client = stack.enter_context(Client(pushing().url))
    for n in range(8):
        client.create(f"twice-{n}", shim.url)
        shim.next()
        client.acquire(f"twice-{n}")
    until(lambda: shim.statuses == [500] * 8)
    assert figure(client, "circuits_open") == 0
    client.create("last", shim.url)
    until(lambda: shim.statuses[-1] == 200)


def test_a_receiver_that_refuses_is_not_asked_often(
    conn: Connection, pushing: Opened, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """The pauses of this offer grow, those of others do not; the log has it once."""
    set_offer_ms(conn, 100)
    receiver = stack.enter_context(Receiver(answers(404)))
    client = stack.enter_context(Client(pushing().url))
    client.create("refused", receiver.url)
    time.sleep(2.0)
    assert 1 <= len(receiver.got) <= 6
    client.create("new", receiver.url)
    until(lambda: receiver.got[-1].id == "new")
    assert caplog.text.count("status 404") == 1


def test_a_receiver_that_releases_is_not_asked_at_once(pushing: Opened, stack: ExitStack) -> None:
    """Its pauses grow with each release in a row, as they do for members with a stream."""
    shim = stack.enter_context(Shim(ending="task.release"))
    client = stack.enter_context(Client(pushing().url))
    client.create("released", shim.url)
    time.sleep(1.5)
    assert 2 <= len(shim.got) <= 4
    assert set(shim.statuses) == {200}


def test_headers_of_the_older_api(pushing: Opened, stack: ExitStack) -> None:
    """A receiver of a callback is sent the headers that it came with, but for those of the request itself."""
    receiver, gateway = stack.enter_context(Receiver()), pushing()
    older = stack.enter_context(OlderClient(gateway.url))
    older.create("root", "poll://any@old")
    older.create("leaf")
    assert older.claim("root")[0] == 201
    headers = {"X-Key": "k ä", "Authorization": "Bearer own", "Host": "elsewhere", "Content-Length": "1"}
    recv = {"type": "http", "data": {"url": receiver.url, "headers": headers}}
    body = {"rootPromiseId": "root", "timeout": 2**53 - 1, "recv": recv}
    assert older.ask("POST", "/promises/callback/leaf", body)[0] == 201
    assert older.ask("POST", "/tasks/complete", {"id": "root", "counter": 1})[0] == 201
    older.ask("PATCH", "/promises/leaf", {"state": "RESOLVED"})
    got = receiver.next()
    assert got.message["data"]["task"] == {"id": "root", "version": 1}
    assert got.headers["x-key"].encode("latin-1").decode() == "k ä"
    assert got.headers["authorization"] == "Bearer own"
    assert got.headers["host"] == f"{HOST}:{receiver.port}"


def test_credentials(pushing: Opened, stack: ExitStack, tmp_path: Path) -> None:
    """The token of the gateway for hosts that the operator has named; a user in the address before it."""
    token = tmp_path / "token"
    token.write_text("secret-1\n")
    receiver = stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing(push_token=token).url))
    client.create("with-token", receiver.url)
    assert receiver.next().headers["authorization"] == "Bearer secret-1"
    client.acquire("with-token")
    client.create("with-user", receiver.url.replace("//", "//ann:p%40ss@"))
    got = receiver.next()
    assert got.headers["authorization"] == "Basic YW5uOnBAc3M="
    assert got.headers["host"] == f"{HOST}:{receiver.port}"


@pytest.mark.parametrize("text", ["", "a b", "ä"])
def test_a_token_that_no_header_can_carry(dsn: str, tmp_path: Path, text: str) -> None:
    """The gateway does not start with it."""
    token = tmp_path / "token"
    token.write_text(text)
    with pytest.raises(InvalidRequest), Gateway(dsn, push_token=token):
        pass


def test_a_report_is_tried_again(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """Until it is taken, whatever else the receiver answers, after a pause."""
    receiver = stack.enter_context(Receiver(answers(409, 204)))
    client = stack.enter_context(Client(pushing().url))
    report(client, "p", receiver.url)
    first = receiver.next()
    assert receiver.next().at_s - first.at_s > 0.75
    until(lambda: unblocks(conn) == 0)


@pytest.mark.parametrize("status", [400, 404, 405, 410])
def test_a_receiver_without_reports(
    conn: Connection,
    pushing: Opened,
    stack: ExitStack,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says so once, and so does the log, without what may be secret in the address."""
    receiver = stack.enter_context(Receiver(answers(status)))
    client = stack.enter_context(Client(pushing().url))
    report(client, "p", receiver.url + "?key=secret")
    until(lambda: unblocks(conn) == 0)
    assert len(receiver.got) == 1
    assert figure(client, "pushes_given_up_total") == 1
    place = f"http://{HOST}:{receiver.port}"
    assert f"the unblock of promise p to {place} is given up: status {status}" in caplog.text
    assert "secret" not in caplog.text


def test_a_report_is_given_up_after_a_day(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """With all others for its address that have waited as long; younger ones stay."""
    receiver = stack.enter_context(Receiver(answers(503)))
    gateway = pushing(courier=False)
    client = stack.enter_context(Client(gateway.url))
    for n in range(5):
        report(client, f"old-{n}", receiver.url)
    report(client, "young", receiver.url)
    conn.execute(
        "update durable._unblocks set created_at = created_at - 86400000 where promise_id like 'old%'"
    )
    pushing(push_per_address=1)
    until(lambda: unblocks(conn) == 1)
    assert conn.execute("select promise_id from durable._unblocks").fetchone() == ("young",)


def test_the_acknowledgment_of_a_push_that_is_held(
    conn: Connection, direct: str, pushing: Opened, stack: ExitStack
) -> None:
    """The other one is acknowledged at once, this one after the commit; neither is pushed again."""
    taken = threading.Event()
    receiver = stack.enter_context(Receiver(lambda got: Reply(status=200 if taken.wait(WAIT_S) else 500)))
    client = stack.enter_context(Client(pushing().url))
    for promise in ("h", "f"):
        report(client, promise, receiver.url)
    until(lambda: len(receiver.got) == 2)
    with psycopg.connect(direct) as user:
        assert user.execute("select from durable._unblocks where promise_id = 'h' for update").rowcount == 1
        taken.set()
        until(lambda: unblocks(conn) == 1)
        user.rollback()
        until(lambda: unblocks(conn) == 0)
    assert sorted(got.id for got in receiver.got) == ["f", "h"]


def test_redirects_are_not_followed(pushing: Opened, stack: ExitStack) -> None:
    """They could lead past the check of hosts."""
    other = stack.enter_context(Receiver())
    receiver = stack.enter_context(Receiver(answers(307, location=other.url)))
    client = stack.enter_context(Client(pushing().url))
    client.create("r", receiver.url)
    receiver.next()
    assert other.is_silent()


@pytest.mark.parametrize("named", [(), (f"{HOST}:1",), ("localhost",)])
def test_private_addresses(
    pushing: Opened, stack: ExitStack, named: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent to this machine or its network, unless the operator has named the host."""
    receiver = stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing(push_private=named).url))
    client.create("private", receiver.url)
    until(lambda: figure(client, "circuits_open") == 1)
    assert receiver.got == []
    assert f"{HOST} has the address {HOST}, which is not public" in caplog.text


def test_an_address_that_is_away(
    conn: Connection, pushing: Opened, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried now and then, which the log says once; others get theirs; once it is there it gets all."""
    set_offer_ms(conn, 100)
    with Receiver() as gone:
        away = gone.url
    other = stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing().url))
    for n in range(10):
        client.create(f"away-{n}", away)
    report(client, "p", away)
    until(lambda: figure(client, "circuits_open") == 1)
    client.create("other", other.url)
    assert other.next().id == "other"
    place = away.removesuffix("/fn")
    receiver = stack.enter_context(Receiver(port=int(place.rpartition(":")[2])))
    until(lambda: {got.id for got in receiver.got} == {"p", *(f"away-{n}" for n in range(10))})
    until(lambda: unblocks(conn) == 0 and figure(client, "circuits_open") == 0)
    assert caplog.text.count(f"pushes to {place} fail, and are tried now and then: unreachable") == 1
    assert caplog.text.count(f"pushes to {place} work again") == 1


def test_a_receiver_that_asks_for_a_pause(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """Retry-After of a 429 or 503 counts for all that its address is to get."""
    set_offer_ms(conn, 100)
    receiver = stack.enter_context(Receiver(answers(429, 200, Retry_After="2")))
    client = stack.enter_context(Client(pushing().url))
    client.create("first", receiver.url)
    first = receiver.next()
    client.create("second", receiver.url)
    assert receiver.next().at_s - first.at_s >= 1.9


def test_a_receiver_that_does_not_answer(pushing: Opened, stack: ExitStack) -> None:
    """Its request has an end, and counts as a failure."""

    def late(got: Got) -> Reply:
        time.sleep(1.5)
        return Reply()

    receiver = stack.enter_context(Receiver(late))
    client = stack.enter_context(Client(pushing(push_request_s=0.3).url))
    for n in range(3):
        client.create(f"late-{n}", receiver.url)
    until(lambda: figure(client, "circuits_open") == 1)
    text = client.http.get(f"{client.url}/metrics").text
    assert 'push_seconds_count{kind="execute",outcome="timeout"} 3.0' in text


def test_requests_have_bounds_and_no_session(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """So many to one address; meanwhile the gateway has a few sessions in the database."""

    def slow(got: Got) -> Reply:
        time.sleep(0.8)
        return Reply()

    receiver = stack.enter_context(Receiver(slow))
    client = stack.enter_context(Client(pushing(courier=False).url))
    for n in range(8):
        # of two hosts, because one has no more than one address here
        report(client, f"r-{n}", receiver.url + "/a", receiver.url.replace(HOST, "localhost") + "/b")
    pushing(push_per_address=5, push_in_all=20, push_private=(HOST, "localhost"))
    until(lambda: len(receiver.got) >= 10)
    row = conn.execute(
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and application_name = 'pyengine gateway messages'"
    ).fetchone()
    # the connections of two gateways, however many requests are open
    assert row is not None and row[0] <= 8
    until(lambda: unblocks(conn) == 0)
    assert receiver.most[""] == 10
    assert (receiver.most["/fn/a"], receiver.most["/fn/b"]) == (5, 5)
    assert len(receiver.got) == 16


def test_a_gateway_without_courier(pushing: Opened, stack: ExitStack) -> None:
    """--no-courier leaves it out; another gateway may have one."""
    receiver = stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing(courier=False).url))
    client.create("a", receiver.url)
    assert receiver.is_silent()
    pushing()
    assert receiver.next().id == "a"


def test_a_stop_waits_for_requests(conn: Connection, dsn: str, stack: ExitStack) -> None:
    """A pass that has begun when the gateway stops may end there, and a report is acknowledged."""

    def slow(got: Got) -> Reply:
        time.sleep(0.7)
        return Reply()

    receiver, shim = stack.enter_context(Receiver(slow)), stack.enter_context(Shim(cold_s=0.3, work_s=0.3))
    with socket.create_server((HOST, 0)) as sock:
        port = sock.getsockname()[1]
    url = f"http://{HOST}:{port}"
    with Gateway(dsn, port=port, public_url=url, push_private=(HOST,)), Client(url) as client:
        report(client, "p", receiver.url)
        client.create("t", shim.url)
        receiver.next()
        shim.next()
    assert unblocks(conn) == 0
    assert shim.statuses == [200]


def test_a_stop_has_one_time(dsn: str, stack: ExitStack) -> None:
    """For pushes and requests together, whichever of them hang."""
    ended = threading.Event()
    receiver = stack.enter_context(Receiver(lambda got: Reply(status=200 if ended.wait(WAIT_S) else 500)))
    stack.callback(ended.set)
    with Gateway(dsn, stop_s=2.0, push_private=(HOST,)) as gateway, Client(gateway.url) as client:
        client.create("hangs", receiver.url)
        receiver.next()
        place = urlsplit(gateway.url)
        hanging = stack.enter_context(socket.create_connection((place.hostname, place.port)))
        hanging.sendall(post_head(100) + b" " * 50)
        until(lambda: figure(client, "body_bytes") > 0)
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 8.0


def test_a_lock_of_a_user_stops_one_acknowledgment(
    conn: Connection, dsn: str, pushing: Opened, stack: ExitStack
) -> None:
    """Not the pushes to others, and no report comes twice for it."""

    def slow(got: Got) -> Reply:
        time.sleep(0.3)
        return Reply()

    receiver, other = stack.enter_context(Receiver(slow)), stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing().url))
    user = stack.enter_context(psycopg.connect(dsn))
    report(client, "locked", receiver.url)
    receiver.next()
    user.execute("select from durable._unblocks where promise_id = 'locked' for update")
    time.sleep(0.4)
    report(client, "free", other.url)
    client.create("offered", other.url)
    assert {other.next().id for _ in range(2)} == {"free", "offered"}
    user.rollback()
    until(lambda: unblocks(conn) == 0)
    assert len(receiver.got) == 1


def test_a_pending_promise_is_never_pushed(conn: Connection, pushing: Opened, stack: ExitStack) -> None:
    """Whatever the outbox says."""
    receiver = stack.enter_context(Receiver())
    client = stack.enter_context(Client(pushing().url))
    client.create("open", **{"resonate:external": "true"})
    conn.execute(
        "insert into durable._unblocks (promise_id, address, created_at) values ('open', %s, 0)",
        (receiver.url,),
    )
    client.create("t", receiver.url)
    assert receiver.next().id == "t"
    assert receiver.is_silent()
    conn.execute("delete from durable._unblocks")
    assert client.ask("promise.settle", id="open", state="resolved")[0] == 200
