"""Hints to a client that blocks: one connection for all threads that wait, and none is lost between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pyengine import sync
from pyengine.client import psycopg_transport
from pyengine.client.psycopg_transport import PsycopgTransport
from pyengine.database.poll_schedule import PollSchedule
from pyengine.database.statements.procedures import RESULTS, Procedure
from tests.crash.processes import until

Connection = psycopg.Connection[tuple[Any, ...]]


class Never(PollSchedule):
    """Looks that come so late that only a hint can end a wait in time."""

    def polled(self, now: float, *, found: bool) -> None:
        """Note that one has looked."""
        super().polled(now, found=found)
        self._at = now + 600


class Looked:
    """Counts the looks for `other`; `mine` ends just after the first look for it, whose answer comes when the
    hint has woken who waits for `other`.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.others = 0
        self.ended = False
        self.more = threading.Condition()
        self.answer = PsycopgTransport.rows

    @property
    def rows(self) -> Callable[..., Any]:
        """In the place of `PsycopgTransport.rows`."""

        async def rows(transport: PsycopgTransport, procedure: Procedure, *values: Any) -> list[Any]:
            found = await self.answer(transport, procedure, *values)
            if procedure is RESULTS and values == (["other"],):
                with self.more:
                    self.others += 1
                    self.more.notify_all()
            if procedure is RESULTS and values == (["mine"],) and not self.ended:
                self.ended = True
                self.conn.execute("select durable.promise_settle('mine', 'resolved', '\"mine\"')")
                # the look that the hint brings may be over before its sender is back
                before = self.others
                self.conn.execute("select durable.hint_v1(false, true)")
                self.wait_for(before + 1)
            return found

        return rows

    def wait_for(self, count: int) -> None:
        """Wait until so many looks for `other` were answered."""
        with self.more:
            assert self.more.wait_for(lambda: self.others >= count, 30)


@pytest.mark.session("a hint is heard in a session of one's own")
def test_a_hint_ends_a_long_wait(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for long are told when something settled, all over one connection, which is gone when
    nobody waits any more.
    """
    monkeypatch.setattr(psycopg_transport, "PollSchedule", Never)
    listening = (
        "select count(*) = {} from pg_stat_activity where datname = current_database() "
        "and application_name = 'pyengine listen'"
    )
    with sync.Client(dsn) as client, ThreadPoolExecutor(4) as pool:
        for id in "abcd":
            client.promises.create(id, tags={"resonate:target": "poll://any@peers"})
        waits = [pool.submit(client.run(id).result, timeout=60) for id in "abcd"]
        until(dsn, listening.format(1))
        until(
            dsn,
            "select count(*) = 1 from pg_stat_activity where datname = current_database() "
            "and query = 'listen durable_settled'",
        )
        for id in "abcd":
            # one of them listens, or takes over, at any time
            conn.execute("select durable.promise_settle(%s, 'resolved', %s)", (id, f'"{id}"'))
            conn.execute("select durable.hint_v1(false, true)")
            assert waits["abcd".index(id)].result(50) == id
        until(dsn, listening.format(0))


@pytest.mark.session("a hint is heard in a session of one's own")
def test_a_hint_during_a_look_is_not_lost(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who looked in vain, and does not wait yet when the hint comes to the others, looks again."""
    looks = Looked(conn)
    monkeypatch.setattr(psycopg_transport, "PollSchedule", Never)
    monkeypatch.setattr(PsycopgTransport, "rows", looks.rows)
    with sync.Client(dsn) as client, ThreadPoolExecutor(2) as pool:
        for id in ("other", "mine"):
            client.promises.create(id, tags={"resonate:target": "poll://any@peers"})
        other = pool.submit(client.run("other").result, timeout=60)
        # the second look is the one after LISTEN
        looks.wait_for(2)
        assert pool.submit(client.run("mine").result, timeout=60).result(50) == "mine"
        conn.execute("select durable.promise_settle('other', 'resolved', '1')")
        conn.execute("select durable.hint_v1(false, true)")
        assert other.result(50) == 1
