"""Law: a report that waits for a lock holds up the others once. From then on it is sent alone, after them,
until it arrives.
"""

from __future__ import annotations

import asyncio
import json
from math import inf
from typing import Any, cast

import asyncpg
import pytest

from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.core.protocol.turn import RunReport
from pyengine.core.worker.turn_sender import Identity, TurnSender
from pyengine.errors import EngineError

IDENTITY = Identity(worker="W", queues=["default"], names=[], codes=[], digests=[], ttl_ms=1000)


class Server:
    """Answers turns, unless a report needs what somebody has locked.

    Attributes:
        locked: runs whose reports wait for a lock.
        turns: the runs of each turn, and how many tasks it claims.
    """

    def __init__(self) -> None:
        self.locked: set[int] = set()
        self.turns: list[tuple[list[int], int]] = []

    async def run(self, link: object, procedure: object, *given: Any) -> str:
        """Execute a turn."""
        want, text = given[4], given[5]
        runs = [one["execution"] for one in json.loads(text)]
        self.turns.append((runs, want))
        if self.locked.intersection(runs):
            raise EngineError("waits for a lock") from asyncpg.LockNotAvailableError("lock timeout")
        return '{"now":0,"verdicts":null,"tails":[],"tasks":[],"hints":[],"settled":false,"due_in":null}'


def test_a_report_that_waits_for_a_lock_is_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time the batch is halved until the report is found. The second time it goes by itself, once,
    and the turn of the others claims; when it has arrived it travels with the others again.
    """
    server, reports = Server(), [RunReport(n, f"r{n}", 1, 0) for n in range(8)]
    monkeypatch.setattr("pyengine.core.worker.turn_sender.backoff_s", lambda failures: 0.0)
    monkeypatch.setattr(ReconnectingConnection, "run", lambda *given: server.run(*given))

    async def main() -> None:
        nowhere = Database("postgresql://127.0.0.1:1/none")
        turns = TurnSender(nowhere, IDENTITY, lambda: inf, lambda event: None, cast("Any", None))

        async def sent(want: int) -> tuple[list[int], list[tuple[list[int], int]]]:
            """Send the reports: which of them did not arrive, and the turns that it took."""
            server.turns.clear()
            answers = await turns.send(reports, want)
            return [execution for answer in answers for execution in answer.busy], [*server.turns]

        others = [0, 1, 2, 3, 4, 6, 7]
        server.locked.add(5)
        busy, taken = await sent(0)
        assert busy == [5] and len(taken) > 8
        assert await sent(3) == ([5], [(others, 3), ([5], -1)])
        server.locked.clear()
        assert await sent(3) == ([], [(others, 3), ([5], -1)])
        assert await sent(3) == ([], [([*range(8)], 3)])

    asyncio.run(main())
