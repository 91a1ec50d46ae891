"""Law: a client steers many runs in portions, each once, and tells what became of every id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyengine import Client, InvalidRequest, RunFilter, Steered
from pyengine.features.many_runs import client as many_runs
from pyengine.sync import Client as SyncClient
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    complete,
    create,
    fail,
    halt,
    report,
    start,
    take_turn,
)

EARLIER = datetime.now(UTC) - timedelta(days=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of three."""
    monkeypatch.setattr(many_runs, "BATCH", 3)


def transactions(conn: Connection, kind: str) -> int:
    """In how many transactions events of a kind were written."""
    number = "select count(distinct j.xmin::text) from durable._journal j where j.type = %s"
    return int(ask(conn, (number, (kind,)))[0])


@pytest.mark.usefixtures("small")
def test_a_filter_is_sent_in_batches(dsn: str, conn: Connection) -> None:
    """Ten runs are found in pages and steered in four transactions; what does not match is left alone."""
    for number in range(10):
        begin_run(conn, f"r{number}")
    ask(conn, start("other", workflow="v"))

    async def main() -> None:
        async with Client(dsn) as client:
            told = await client.signal_many(RunFilter(workflow="w", started_after=EARLIER), "go", 1)
            assert told == [Steered(id=f"r{number}", outcome="done", delivery=1) for number in range(10)]
            assert transactions(conn, "signal_delivered") == 4
            told = await client.cancel_many(RunFilter(workflow="w", state="running"), "why")
            assert {one.state for one in told} == {"cancelling"}
            assert len(told) == 10
            assert await client.cancel_many(RunFilter(started_before=EARLIER)) == []

    asyncio.run(main())
    assert ask(conn, ("select state from durable.runs where id = 'other'", ())) == ("queued",)


def test_a_batch_is_bounded_by_bytes(dsn: str, conn: Connection) -> None:
    """Payloads and values of three megabytes go two at a time, and each to its own run or promise; small ones
    of as many go together.
    """
    for number in range(5):
        begin_run(conn, f"r{number}")
        ask(conn, create(f"p{number}"))
    sizes = {f"{number}": 3_000_000 + number for number in range(5)}

    async def main() -> None:
        async with Client(dsn) as client:
            large = await client.signal_many({f"r{id}": "x" * size for id, size in sizes.items()}, "go")
            assert {one.outcome for one in large} == {"done"} and transactions(conn, "signal_delivered") == 3
            await client.signal_many({f"r{id}": "y" for id in sizes}, "go")
            assert transactions(conn, "signal_delivered") == 4
            await client.settle_many({f"p{id}": "x" * size for id, size in sizes.items()})

    asyncio.run(main())
    lengths = (
        "select array_agg(octet_length(data) order by execution) from durable._signals where delivery = 1"
    )
    assert ask(conn, (lengths, ())) == ([2 + size for size in sizes.values()],)
    settled = (
        "select array_agg(octet_length(value_data) order by id), count(distinct xmin::text) "
        "from durable._promises where id like 'p_'"
    )
    assert ask(conn, (settled, ())) == ([2 + size for size in sizes.values()], 3)


@pytest.mark.usefixtures("small")
def test_each_has_its_own_payload(dsn: str, conn: Connection) -> None:
    """Payloads and values by id stay with their ids, through portions."""
    for number in range(5):
        begin_run(conn, f"r{number}")
        ask(conn, create(f"p{number}"))

    async def main() -> None:
        async with Client(dsn) as client:
            await client.signal_many({f"r{number}": number for number in range(5)}, "go")
            await client.settle_many({f"p{number}": number for number in range(5)})
            told = await client.settle_many(["p0", "late"], error=ValueError("no"))
            assert [one.outcome for one in told] == ["ended", "not_found"]

    asyncio.run(main())
    sent = conn.execute(
        "select h.id, s.data from durable._signals s join durable._executions h using (execution)"
    )
    assert dict(sent.fetchall()) == {f"r{number}": str(number) for number in range(5)}
    values = conn.execute("select id, value_data from durable._promises where id like 'p%'")
    assert dict(values.fetchall()) == {f"p{number}": str(number) for number in range(5)}


def test_the_blocking_client_does_the_same(dsn: str, conn: Connection) -> None:
    """The client that blocks has them too, and an outcome for each way in which a run may be found."""
    take_turn(conn, "W", report(begin_run(conn, "ended"), end=complete()))
    begin_run(conn, "live")
    with SyncClient(dsn) as client:
        told = client.pause_many(["live", "ended", "none"])
        assert [(one.outcome, one.state) for one in told] == [
            ("done", "paused"),
            ("ended", "completed"),
            ("not_found", None),
        ]
        assert client.resume_many(RunFilter(state="paused"))[0].state == "queued"
        assert client.pause_many([]) == []


def test_forks_go_in_batches_and_once(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed runs that a filter selects are forked in small portions; the call that is made again after an
    abort, whose first fork has failed too, makes the rest only. Dead ones are revived in place.
    """
    monkeypatch.setattr(many_runs, "FORKS", 2)
    for number in range(5):
        take_turn(conn, "W", report(begin_run(conn, f"r{number}"), end=fail('{"type": "Boom"}')))
    take_turn(conn, "W", report(begin_run(conn, "other"), end=fail('{"type": "Bang"}')))
    take_turn(conn, "W", report(begin_run(conn, "dead"), end=halt('{"type": "Crashed"}')))
    ended = RunFilter(state="failed", error="Boom", ended_after=EARLIER)
    with SyncClient(dsn) as client:
        (first,) = client.fork_many(["r0"], key="k")
        client.cancel(first.fork or "", force=True)
        told = client.fork_many(ended, key="k")
        assert [(one.id, one.outcome) for one in told] == [
            *((f"r{number}", "done") for number in (4, 3, 2, 1)),
            ("r0", "already"),
        ]
        assert ask(conn, ("select count(*) from durable._forks", ())) == (5,)
        assert client.fork_many(RunFilter(ended_before=EARLIER), key="k") == []
        assert [one.id for one in client.redrive_many(RunFilter(workflow="w"))] == ["dead"]


WRONG: list[Callable[[Any], Any]] = [
    lambda client: client.pause_many("live"),
    lambda client: client.pause_many([""]),
    lambda client: client.pause_many([None]),
    lambda client: client.pause_many(RunFilter(state="completed")),
    lambda client: client.pause_many(RunFilter(started_after=datetime(2025, 1, 1))),
    lambda client: client.settle_many(["p"], 1, error="e"),
    lambda client: client.cancel_many(RunFilter(ended_after=EARLIER)),
    lambda client: client.fork_many(RunFilter(state="waiting"), key="k"),
    lambda client: client.fork_many(RunFilter(ended_after=datetime(2025, 1, 1)), key="k"),
    lambda client: client.fork_many(["r"], key=""),
    lambda client: client.fork_many(["r"], key="k", seq=1, step="pay"),
    lambda client: client.redrive_many(RunFilter(state="paused")),
    lambda client: client.redrive_many(RunFilter(state="failed")),
    lambda client: client.settle_many({"p": 1}, error="e"),
]


@pytest.mark.parametrize("call", WRONG)
def test_refused(dsn: str, call: Callable[[Any], Any]) -> None:
    """What is malformed is an InvalidRequest, and nothing is steered."""
    with SyncClient(dsn) as client, pytest.raises(InvalidRequest):
        call(client)
