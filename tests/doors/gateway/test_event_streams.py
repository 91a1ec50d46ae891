"""Law: a member with an open stream gets what is due to it, once on each stream, as one frame."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Any, cast

import psycopg
import pytest

from pyengine.doors.gateway.memory import Memory
from pyengine.doors.gateway.metrics import Metrics
from pyengine.doors.gateway.statements.gateway import ACKNOWLEDGE
from pyengine.doors.gateway.streams.dialects import current
from pyengine.doors.gateway.streams.frames import execute_frame, unblock_frame
from pyengine.doors.gateway.streams.members import Member, Members, Message
from pyengine.doors.gateway.streams.offers import Offers
from pyengine.doors.gateway.streams.unblocks import Unblocks
from tests.conftest import Connection
from tests.doors.gateway.http_client import Client, EventStream
from tests.support.gateway import Gateway

ANY = "poll://any@{}"


def offered(message: dict[str, Any] | None) -> tuple[str, int]:
    """Id and version of the task that a message offers."""
    assert message is not None and message["kind"] == "execute" and isinstance(message["head"], dict)
    return message["data"]["task"]["id"], message["data"]["task"]["version"]


def listen(client: Client, promise: str, address: str) -> None:
    """Register a listener."""
    status, data = client.ask("promise.register_listener", awaited=promise, address=address)
    assert status == 200, data


def test_a_task_is_offered_to_one_member(client: Client) -> None:
    """A task for any member of a group goes to one of them; one for a certain member goes to that one."""
    with EventStream(client.url, "g1", "a"), EventStream(client.url, "g1", "b") as b:
        client.create("poll-1", "poll://uni@g1/b")
        assert offered(b.next()) == ("poll-1", 0)
    ids = {f"poll-any-{n}" for n in range(6)}
    with EventStream(client.url, "g1-any", "c") as c, EventStream(client.url, "g1-any", "d", beside=c):
        for id in ids:
            client.create(id, ANY.format("g1-any"))
        assert {offered(one)[0] for one in c.messages(6)} == ids


def test_a_task_waits_for_a_member(client: Client) -> None:
    """Tasks that were due before a stream is opened are sent on it at once."""
    client.create("poll-early", ANY.format("g2"))
    with EventStream(client.url, "g2", "a") as stream:
        assert offered(stream.next()) == ("poll-early", 0)


def test_a_preference_is_kept(client: Client) -> None:
    """A task that prefers a member goes to it, even if that one has more than others."""
    with EventStream(client.url, "g3", "a") as a, EventStream(client.url, "g3", "b"):
        for n in range(5):
            client.create(f"poll-pref-{n}", "poll://any@g3/a")
        assert {offered(one)[0] for one in a.messages(5)} == {f"poll-pref-{n}" for n in range(5)}


def test_a_promise_that_settled(client: Client, house: str) -> None:
    """A listener gets the settled promise, also in letters of the world, and the message is gone then."""
    client.create("poll-lis", **{"resonate:external": "true"})
    with EventStream(client.url, "g4", "a") as stream:
        listen(client, "poll-lis", "poll://uni@g4/a")
        client.ask("promise.settle", id="poll-lis", state="resolved", value={"headers": {"ä": "𝄞é"}})
        message = stream.next()
        assert message is not None and message["kind"] == "unblock" and message["head"] == {}
        promise = message["data"]["promise"]
        assert (promise["state"], promise["value"]["headers"]) == ("resolved", {"ä": "𝄞é"})
    with psycopg.connect(house, autocommit=True) as conn:
        until(conn, "select 1 where not exists (select from durable._unblocks where promise_id = 'poll-lis')")


def until(conn: psycopg.Connection[Any], text: str) -> Any:
    """The first row of a query as soon as it has one."""
    late = time.monotonic() + 60
    while (row := conn.execute(text.encode()).fetchone()) is None:
        assert time.monotonic() < late, text
        time.sleep(0.01)
    return row


def test_frames_are_lines_of_ascii() -> None:
    """One line of ASCII, an empty line behind it: clients cut at that line, and in the middle of letters."""
    frame = execute_frame("ä\n𝄞", 3, "http://h")
    assert frame.isascii() and frame.startswith(b"data: {") and frame.endswith(b"}\n\n")
    assert frame.count(b"\n") == 2
    message = json.loads(frame[6:])
    assert message["data"]["task"] == {"id": "ä\n𝄞", "version": 3}
    assert message["head"] == {"serverUrl": "http://h"}
    frame = unblock_frame(json.dumps({"id": "ä𝄞", "timeoutAt": 2**53 - 1}, ensure_ascii=False))
    assert frame.isascii() and frame.count(b"\n") == 2
    assert json.loads(frame[6:])["data"]["promise"] == {"id": "ä𝄞", "timeoutAt": 2**53 - 1}


@pytest.mark.parametrize("path", ["/poll/g5/{}", "//poll/g5/{}", "/g5/{}", "//g5/{}"])
def test_the_paths_of_streams(client: Client, path: str) -> None:
    """With and without the first part, and behind a URL that ends with a slash."""
    pid = f"p{len(path)}"
    with client.http.stream("GET", client.url + path.format(pid)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert next(answer.iter_lines()).startswith(":")


def test_names_are_decoded_once(client: Client) -> None:
    """Group and id may be percent-encoded or not; the stream is that of the member they mean."""
    with EventStream(client.url, "g ö%41".replace(" ", "-"), "p:1,ß") as stream:
        client.create("poll-names", "poll://uni@g-ö%41/p:1,ß")
        assert offered(stream.next())[0] == "poll-names"


@pytest.mark.parametrize("path", ["/poll/g%20g/p", "/poll/g@h/p", "/poll/g/" + "p" * 1100, "/poll/%00/p"])
def test_names_without_an_address(client: Client, path: str) -> None:
    """A member that no message can be addressed to gets no stream."""
    assert client.http.get(client.url + path).status_code == 400


def test_the_newest_stream_of_a_member_counts(client: Client) -> None:
    """A second stream of a member ends the first, and gets what comes then."""
    with EventStream(client.url, "g6", "a") as older:
        with EventStream(client.url, "g6", "a") as newer:
            assert older.next() is None
            client.create("poll-newer", ANY.format("g6"))
            assert offered(newer.next())[0] == "poll-newer"
        with EventStream(client.url, "g6", "a") as third:
            client.create("poll-third", ANY.format("g6"))
            assert offered(third.next())[0] == "poll-third"


def test_a_member_that_is_gone(client: Client, gateway: Gateway) -> None:
    """A stream that its client has closed is no stream: what is due goes to another member."""
    with EventStream(client.url, "g7", "b") as other:
        with EventStream(client.url, "g7", "a"):
            pass
        late = time.monotonic() + 60
        while len(gateway.parts.members.of_group("g7")) > 1:
            assert time.monotonic() < late
            time.sleep(0.01)
        for n in range(4):
            client.create(f"poll-gone-{n}", ANY.format("g7"))
        assert {offered(one)[0] for one in other.messages(4)} == {f"poll-gone-{n}" for n in range(4)}


def offer_again(dsn: str, ms: int) -> None:
    """Let offers come again after so many milliseconds."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('retry_offer_ms', %s)", (str(ms),))


def test_streams_end_by_themselves(dsn: str, opened: Callable[..., Gateway]) -> None:
    """A stream ends cleanly after its time; in its last seconds nothing is sent on it, so that nothing is
    lost; meanwhile comments keep it open."""
    gateway = opened(stream_life_s=(1.5, 1.5), closing_s=1.0, comment_s=0.05)
    with Client(gateway.url) as client, EventStream(client.url, "g", "a") as stream:
        time.sleep(0.6)
        client.create("end-1", ANY.format("g"))
        assert stream.next() is None
        assert stream.comments > 10
        with EventStream(client.url, "g", "a") as again:
            assert offered(again.next())[0] == "end-1"


def test_an_offer_is_sent_once_on_a_stream(dsn: str, opened: Callable[..., Gateway]) -> None:
    """A task that nobody acquires is offered again to another member, not to the same stream; once it was
    released, which makes it a new offer, to all."""
    offer_again(dsn, 200)
    gateway = opened()
    with Client(gateway.url) as client, EventStream(client.url, "g", "a") as a:
        client.create("once", ANY.format("g"))
        assert offered(a.next()) == ("once", 0)
        assert a.is_silent(1.0)
        with EventStream(client.url, "g", "b") as b:
            assert offered(b.next()) == ("once", 0)
        assert client.acquire("once", pid="c")[0] == 200
        assert client.ask("task.release", id="once", version=1)[0] == 200
        assert offered(a.next()) == ("once", 1)


def test_a_member_has_a_bound(dsn: str, opened: Callable[..., Gateway]) -> None:
    """A member is offered so many tasks and no more until it has acquired some; here or elsewhere."""
    offer_again(dsn, 300)
    gateway = opened(max_unacquired=3)
    with Client(gateway.url) as client, EventStream(client.url, "g", "a") as stream:
        for n in range(5):
            client.create(f"bound-{n}", ANY.format("g"))
        first = [offered(one)[0] for one in stream.messages(3)]
        assert stream.is_silent(0.5)
        assert client.acquire(first[0])[0] == 200
        assert offered(stream.next())[0] not in first
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select durable.task_acquire(%s, 0, 'p', 60000)", (first[1],))
        assert offered(stream.next())[0] not in first


def test_two_gateways_share_a_database(dsn: str, opened: Callable[..., Gateway]) -> None:
    """Each asks for what is due to its own members only, so that nothing waits for the other's."""
    with ExitStack() as stack:
        one, other = stack.enter_context(Client(opened().url)), stack.enter_context(Client(opened().url))
        with (
            EventStream(one.url, "g", "a") as a,
            EventStream(other.url, "g", "b") as b,
            EventStream(other.url, "h", "c") as c,
        ):
            one.create("to-a", "poll://uni@g/a")
            one.create("to-b", "poll://uni@g/b")
            one.create("prefers-b", "poll://any@g/b")
            other.create("prefers-a", "poll://any@g/a")
            one.create("to-h", ANY.format("h"))
            assert {offered(message)[0] for message in a.messages(2)} == {"to-a", "prefers-a"}
            assert {offered(message)[0] for message in b.messages(2)} == {"to-b", "prefers-b"}
            assert offered(c.next())[0] == "to-h"
            one.create("p", **{"resonate:external": "true"})
            listen(one, "p", "poll://uni@h/c")
            one.ask("promise.settle", id="p", state="resolved")
            message = c.next()
            assert message is not None and message["data"]["promise"]["id"] == "p"


def test_listeners_of_groups(client: Client) -> None:
    """A listener that is any member of a group is one of those with an open stream."""
    client.create("poll-group", **{"resonate:external": "true"})
    listen(client, "poll-group", "poll://any@g8")
    with EventStream(client.url, "g8", "a") as stream:
        client.ask("promise.settle", id="poll-group", state="resolved")
        message = stream.next()
        assert message is not None and message["data"]["promise"]["id"] == "poll-group"


def test_a_stream_has_no_session(opened: Callable[..., Gateway], conn: Connection) -> None:
    """However many streams are open, the gateway has a few sessions in the database, none of them at work."""
    gateway = opened()
    with ExitStack() as stack, Client(gateway.url) as client:
        streams = [stack.enter_context(EventStream(gateway.url, "g", f"p{n}")) for n in range(30)]
        client.create("work", "poll://uni@g/p7")
        assert offered(streams[7].next())[0] == "work"
        row = conn.execute(
            "select count(*), count(*) filter (where state not like 'idle') from pg_stat_activity "
            "where datname = current_database() and application_name like 'pyengine gateway%'"
        ).fetchone()
        assert row is not None and row[0] <= 6


def test_there_is_a_largest_number_of_streams(opened: Callable[..., Gateway]) -> None:
    """The next one is 503, on which clients wait; there is room again once one has ended."""
    gateway = opened(max_streams=1)
    with EventStream(gateway.url, "g", "a"), Client(gateway.url) as client:
        answer = client.http.get(f"{gateway.url}/poll/g/b")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    late = time.monotonic() + 60
    while len(gateway.parts.members):
        assert time.monotonic() < late
        time.sleep(0.01)
    with EventStream(gateway.url, "g", "b") as stream:
        assert stream.status == 200


def test_time_passes_without_a_worker(client: Client) -> None:
    """Deadlines and lost leases need no worker of ours: the gateway ticks."""
    now = client.create("poll-now")["createdAt"]
    request = client.envelope(
        "promise.create", id="poll-timer", timeoutAt=now + 1000, tags={"resonate:timer": "true"}
    )
    assert client.post(request).status_code == 200
    with EventStream(client.url, "g9", "a") as stream:
        listen(client, "poll-timer", "poll://uni@g9/a")
        message = stream.next()
        assert message is not None and message["data"]["promise"]["state"] == "resolved"


def test_a_pending_promise_is_never_sent(
    conn: Connection, opened: Callable[..., Gateway], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the outbox says: a client would end its process."""
    with Client(opened().url) as client, EventStream(client.url, "g", "a") as stream:
        client.create("open", **{"resonate:external": "true"})
        conn.execute(
            "insert into durable._unblocks (promise_id, address, created_at) "
            "values ('open', 'poll://uni@g/a', 0)"
        )
        client.create("t", ANY.format("g"))
        assert offered(stream.next())[0] == "t"
        assert stream.is_silent(0.5)
        assert "open has an unblock message and is pending" in caplog.text
        conn.execute("delete from durable._unblocks")
        assert client.ask("promise.settle", id="open", state="resolved")[0] == 200


def test_a_member_that_stalls_is_asked_for_less_often(
    conn: Connection, dsn: str, opened: Callable[..., Gateway]
) -> None:
    """Tasks that it does not acquire are offered to it again in growing pauses; once it acquires one it gets
    new ones at once."""
    offer_again(dsn, 100)
    gateway = opened()
    with Client(gateway.url) as client, EventStream(client.url, "g", "a") as stream:
        client.create("vain", ANY.format("g"))
        assert offered(stream.next()) == ("vain", 0)
        offers = set()
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            offers.add(conn.execute("select retry_at from durable._tasks where id = 'vain'").fetchone())
            time.sleep(0.02)
        # at once, again when that is over, after 1 s, after 2 s; without pauses it would be about twenty
        assert len(offers) <= 4
        client.create("next", ANY.format("g"))
        assert client.acquire("vain")[0] == 200
        assert offered(stream.next()) == ("next", 0)


def some_members() -> Members:
    """Members without streams yet."""
    return Members(10, Memory(1_000_000), 1_000_000)


def test_nothing_is_told_from_offers_that_were_not_asked_for() -> None:
    """While a member stalls its tasks count as not acquired, however long its pause."""
    members = some_members()
    stream = members.join(Member("g", "a"), 1e9, 1e9)
    assert stream.offer(("t", 0), 10.0) and not stream.offer(("t", 0), 20.0)
    stream.stalled(11.0)
    assert not stream.asks_for_tasks(11.9) and stream.asks_for_tasks(12.0)
    assert (stream.unacquired(20.5), stream.unacquired(21.0)) == (1, 0)
    for pause_s in (2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        stream.stalled(100.0)
        assert not stream.asks_for_tasks(99.9 + pause_s) and stream.asks_for_tasks(100.0 + pause_s)
    stream.offer(("u", 3), 200.0)
    members.acquired("u", 3)
    assert stream.asks_for_tasks(100.0)
    stream.stalled(100.0)
    assert stream.asks_for_tasks(101.0)


def test_a_task_is_known_until_the_database_was_asked_for_it() -> None:
    """A member that may have nothing more is not asked for, so a missing offer means nothing either."""
    stream = some_members().join(Member("g", "a"), inf, inf)
    assert stream.offer(("t", 0), 10.0)
    assert stream.unacquired(10.0) == 0
    assert not stream.offer(("t", 0), 20.0)
    stream.missed(19.9)
    assert not stream.offer(("t", 0), 30.0)
    stream.missed(30.0)
    assert stream.offer(("t", 0), 40.0)


def test_a_task_that_was_refused_is_offered_again() -> None:
    """Once, and it counts as not acquired: a gateway under load asks for no further task in its place."""
    members = some_members()
    stream = members.join(Member("g", "a"), inf, inf)
    assert stream.offer(("t", 0), 10.0)
    stream.stalled(1.0)
    members.refused("t", 0)
    members.refused("t", 1)
    assert stream.asks_for_tasks(1.0) and stream.unacquired(1.0) == 1
    assert stream.offer(("t", 0), 20.0) and not stream.offer(("t", 0), 30.0)


class Due:
    """A database in which these tasks are due for the first member, and their offers end at once."""

    ids: list[str]

    async def rows(self, procedure: object, addresses: list[str], rooms: list[int]) -> list[dict[str, Any]]:
        """Give as many as there is room for."""
        ids = self.ids[: rooms[0]]
        return [{"address": addresses[0], "id": id, "version": 0, "retry_ms": -9000} for id in ids]


def test_a_member_with_all_its_tasks_gets_none_again() -> None:
    """What it has not acquired comes again and is not sent again; once it did not come, it is a new offer."""

    async def sent() -> list[int]:
        due, members, found = Due(), some_members(), []
        stream = members.join(Member("g", "a"), inf, inf)
        offers = Offers(cast(Any, due), members, Metrics(), dialect=current(None), max_unacquired=2)
        for ids in (["t", "u"], ["t", "u"], [], ["t", "u"]):
            due.ids = ids
            stream.acquired(("another", 0))  # it does not stall
            await offers._poll()
            found.append(len(stream.take()))
        return found

    assert asyncio.run(sent()) == [2, 0, 0, 2]


class Reports:
    """A database in which these reports for any member of a group are due until they are acknowledged."""

    def __init__(self, *ids: str) -> None:
        self.left = set(ids)
        self.claims = 0

    async def rows(self, procedure: object, *values: Any) -> list[dict[str, Any]]:
        """Give all of them at each claim."""
        if procedure is ACKNOWLEDGE:
            self.left.difference_update(values[0])
            return []
        self.claims += 1
        return [
            {"promise_id": id, "address": ANY.format("g"), "promise": json.dumps({"id": id}), "settled": True}
            for id in sorted(self.left)
        ]


async def deliver(reports: Reports, members: Members, until: Callable[[], object]) -> None:
    """Claim and send reports until something is true."""
    unblocks = Unblocks(cast(Any, reports), members, Metrics(), dialect=current(None))
    running = asyncio.create_task(unblocks.poller.run())
    async with asyncio.timeout(60):
        while not until():
            unblocks.poller.wake()
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_report_waits_on_one_stream_only() -> None:
    """However often its claim ends before a slow client has read it; again once that stream is closed."""
    reports, members = Reports("p"), some_members()
    slow = members.join(Member("g", "a"), inf, inf)
    found: list[list[Message]] = []

    def read() -> bool:
        if reports.claims == 5:
            found.append(slow.take())
            members.leave(slow)
            members.join(Member("g", "b"), inf, inf)
            reports.claims += 1
        other = members.find(Member("g", "b"))
        for message in other.take() if other is not None else []:
            found.append([message])
            assert message.sent is not None
            message.sent()
        return not reports.left

    asyncio.run(deliver(reports, members, read))
    assert [len(messages) for messages in found] == [1, 1]


def test_a_report_moves_to_the_next_stream_of_its_member() -> None:
    """However often a client opens another one without reading: one copy waits, on the newest."""
    reports, members = Reports("p"), some_members()
    streams = [members.join(Member("g", "a"), inf, inf)]

    def reopened() -> bool:
        if reports.claims >= 2 * len(streams):
            streams.append(members.join(Member("g", "a"), inf, inf))
            members.leave(streams[-2])
        return len(streams) == 5

    asyncio.run(deliver(reports, members, reopened))
    assert [len(stream.take()) for stream in streams] == [0, 0, 0, 0, 1]


def test_a_report_has_a_copy_for_each_gateway_at_most() -> None:
    """If the streams of all of them are read slowly, and all claims end before that."""
    reports, gateways = Reports("p"), [some_members() for _ in range(3)]
    streams = [members.join(Member("g", f"m{n}"), inf, inf) for members in gateways for n in range(4)]

    async def all_deliver() -> None:
        await asyncio.gather(*(deliver(reports, one, lambda: reports.claims >= 30) for one in gateways))

    asyncio.run(all_deliver())
    assert sum(len(stream.take()) for stream in streams) == len(gateways)


def test_a_report_goes_to_a_stream_that_takes_it() -> None:
    """Not to one that is about to end, of another member of the group."""
    reports, members = Reports(*(f"p{n}" for n in range(20))), some_members()
    closing, other = members.join(Member("g", "a"), inf, 0.0), members.join(Member("g", "b"), inf, inf)

    asyncio.run(deliver(reports, members, lambda: reports.claims > 1))
    assert (len(closing.take()), len(other.take())) == (0, 20)
