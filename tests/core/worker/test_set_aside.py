"""Law: one run that cannot be claimed stops no claim. It is set aside by name, and all others go on."""

from __future__ import annotations

import asyncio
import json
from math import inf
from typing import Any, cast

import asyncpg
import pytest

from pyengine import App, ctx
from pyengine.core.database.connection import Database, ReconnectingConnection, mapped
from pyengine.core.protocol.turn import RunReport
from pyengine.core.worker.turn_sender import Identity, TurnSender
from tests.support.verbs import Connection

IDENTITY = Identity(worker="W", queues=["default"], names=[], codes=[], digests=[], ttl_ms=1000)
ANSWER = {"now": 0, "verdicts": None, "tails": [], "tasks": [], "hints": [], "settled": False, "due_in": None}


@pytest.mark.unlawful
def test_a_huge_journal_stops_no_claim(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty rows that share a value of 60 MB make a journal above a gigabyte. Twenty small runs beside it
    complete, it is halted with its size as the problem, and the log names it.
    """
    app = App(dsn)

    @app.step
    async def blob(i: int) -> str:
        return "x" * 20_000

    @app.step
    async def small(n: int) -> int:
        return n

    @app.workflow(any_signal=True)
    async def big() -> int:
        for i in range(20):
            await blob(i)
        await ctx.receive("go")
        return 0

    @app.workflow
    async def hello(n: int) -> int:
        return await small(n)

    async def main() -> None:
        async with app.client() as client:
            run = await client.start(big, id="big")
            async with app.worker():
                while (await run.get()).state != "waiting":
                    await asyncio.sleep(0.01)
            conn.execute("update durable._journal_values set data = '\"' || repeat('x', 60000000) || '\"'")
            await run.signal("go", None)
            runs = [await client.start(hello, n) for n in range(20)]
            async with app.worker():
                for n, one in enumerate(runs):
                    assert await one.result(timeout=60) == n
                while (await run.get()).state != "halted":
                    await asyncio.sleep(0.01)
            assert "12000" in str((await run.get()).problem)

    asyncio.run(main())
    assert "run big is set aside" in caplog.text


class Server:
    """Answers claims, or fails.

    Attributes:
        errors: what it raises, one call after the other; then it answers.
        calls: want of each call; with whether it puts off, if it is one that claims run by run.
    """

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.calls: list[Any] = []

    async def run(self, link: object, procedure: Any, *given: Any) -> str:
        """Execute a turn or a claim."""
        apart = "claim_apart" in procedure.sql
        self.calls.append((given[5], given[7]) if apart else (given[4], len(json.loads(given[5]))))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            ours = mapped(error, "the database")
            raise ours from error
        return json.dumps(ANSWER | ({"aside": ["big", "54000", "too large"]} if apart else {}))


def _error(code: str) -> asyncpg.PostgresError:
    error = asyncpg.PostgresError("no")
    error.sqlstate = code
    return error


TIMEOUT = TimeoutError()
CLAIMS = {
    "too large": ([_error("54000")], [(8, 0), (8, False)]),
    "damaged": ([_error("XX001")], [(8, 0), (8, False)]),
    "of somebody": ([_error("P0001"), _error("P0001")], [(8, 0), (8, 0), (8, False)]),
    "of a session": ([_error("XX000")], [(8, 0), (8, 0)]),
    "a passing state": ([_error("53200"), _error("53200")], [(8, 0), (8, 0), (8, 0)]),
    "a state that lasts": ([_error("53200")] * 5, [(8, 0)] * 5 + [(8, False)]),
    "no answer": ([TIMEOUT] * 4, [(8, 0), (8, 0), (1, 0), (1, 0), (1, True)]),
    "statement timeout": ([_error("57014")] * 4, [(8, 0), (8, 0), (1, 0), (1, 0), (1, True)]),
}


def _sender(monkeypatch: pytest.MonkeyPatch, server: Server) -> TurnSender:
    monkeypatch.setattr("pyengine.core.worker.turn_sender.backoff_s", lambda failures: 0.0)
    monkeypatch.setattr(ReconnectingConnection, "run", lambda *given: server.run(*given))

    async def connected(link: object, *, purpose: str) -> None:
        """The server is there."""

    monkeypatch.setattr(ReconnectingConnection, "connected_eventually", connected)
    nowhere = Database("postgresql://127.0.0.1:1/none")
    return TurnSender(nowhere, IDENTITY, lambda: inf, lambda event: None, cast("Any", None))


@pytest.mark.parametrize("name", CLAIMS)
def test_how_a_claim_that_fails_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A fault of a run: run by run, at once. Of somebody: if it happens twice. Of the server: if it lasts.
    No answer in time: one run at a time, and then that one is put off. In the end no answer is missing.
    """
    errors, calls = CLAIMS[name]
    server = Server(*errors)

    async def main() -> None:
        sender = _sender(monkeypatch, server)
        await sender.send([], 8)
        assert sender.asked_s is None

    asyncio.run(main())
    assert server.calls == calls
    # a bool: the last one was run by run
    assert ("run big is set aside" in caplog.text) == isinstance(calls[-1][1], bool)


def test_a_claim_beside_reports_is_made_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn with reports that fails only if it claims: the reports go alone, and the claim by itself."""
    server = Server(_error("54000"), None, _error("54000"))

    async def main() -> None:
        answers = await _sender(monkeypatch, server).send([RunReport(1, "r", 1, 0)], 8)
        assert len(answers) == 2

    asyncio.run(main())
    assert server.calls == [(8, 1), (-1, 1), (8, 0), (8, False)]


def test_reports_that_fail_claim_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that goes on without the claim is not the claim's."""
    server = Server(_error("53200"), _error("53200"))

    async def main() -> None:
        await _sender(monkeypatch, server).send([RunReport(1, "r", 1, 0)], -1)

    asyncio.run(main())
    assert server.calls == [(-1, 1)] * 3
