"""Law: a ticker calls when something is due, by the answer of its last call."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.worker import ticker
from pyengine.core.worker.blocked_runs import BlockedRuns

EMPTY = {"promises": 0, "leases": 0, "schedules": 0, "next_due_ms": None, "more": False, "hints": []}


class Answers:
    """A pool that gives these answers to ticks, one after the other, and says when none is left."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._left = list(answers)
        self.used_up = asyncio.Event()

    async def rows(self, *_: object) -> list[dict[str, Any]]:
        """Answer one tick."""
        answer = json.dumps({**EMPTY, **self._left.pop(0)}).encode()
        if not self._left:
            self.used_up.set()
        return [{"answer": answer, "watch": 2, "services": None}]


async def called(*answers: dict[str, Any], within_s: float) -> bool:
    """Whether a ticker calls as often as there are answers."""
    pool = Answers(*answers)
    link = cast("ConnectionPool", pool)
    one = ticker.Ticker(
        link, "W", ticked=lambda _: None, services=lambda *_: None, blocked=BlockedRuns(link, "W")
    )
    running = asyncio.create_task(one.run())
    try:
        await asyncio.wait_for(pool.used_up.wait(), within_s)
    except TimeoutError:
        return False
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return True


@pytest.mark.parametrize(
    ("answer", "again"), [({}, False), ({"gone_in_ms": None}, False), ({"gone_in_ms": 20}, True)]
)
def test_a_missing_worker_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], again: bool
) -> None:
    """As soon as its grace is over, however seldom the watch is; else the watch decides."""
    monkeypatch.setattr(ticker, "WATCH_EVERY_S", 1e6)
    assert asyncio.run(called(answer, {}, within_s=10 if again else 0.3)) is again
