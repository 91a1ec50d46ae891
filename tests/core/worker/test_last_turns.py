"""Law: a worker that stops reports all that it knows, in as many turns as it takes, and leaves no timer."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.protocol.turn import Answer, RunReport
from pyengine.core.worker import events as on
from pyengine.core.worker.attempts import step_outcome
from pyengine.core.worker.turn_loop import TurnLoop
from tests.core.worker.run_stage import Stage


class _Database:
    """Takes turns; the first one meets a lock with its last report."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.hints: list[str] = []

    async def send_once(self, reports: list[RunReport], want: int) -> Answer:
        """Record the reports, all but one in the first turn."""
        assert want == -1
        executions = [report.execution for report in reports]
        self.sent.append(executions)
        busy = executions[-1:] if len(self.sent) == 1 else []
        return Answer(0, None, [], [], [], True, None, busy, [])

    def another(self) -> _Database:
        """Take the turns of large reports, too."""
        return self

    def wake(self, channel: str) -> None:
        """Note a hint within the process."""
        self.hints.append(f"wake {channel}")

    async def send_now(self, channel: str) -> None:
        """Note a hint to others."""
        self.hints.append(f"send {channel}")


def _loop_of(stage: Stage, database: Any, **more: Any) -> TurnLoop:
    parts: Any = SimpleNamespace(
        runs=stage.runs,
        turns=database,
        listener=database,
        wake=asyncio.Event(),
        slots=SimpleNamespace(most=2000),
        poll=PollSchedule(longest_s=5),
    )
    parts.__dict__.update(more)
    return TurnLoop(parts, SimpleNamespace(worker="w", queues=[]))  # type: ignore[arg-type]


def test_more_reports_than_a_turn_holds_leave_at_the_stop() -> None:
    """A thousand and one reports leave in two turns, the locked one once more; others get the hint."""
    stage, database = Stage(), _Database()
    for _ in range(1001):
        claimed = stage.database.claim(stage.database.start("steps"), warm=False)
        stage.runs.apply(on.RunClaimed(claimed, inf))
        attempt = stage.runs.leased[claimed.execution].phase.attempts[0]
        stage.runs.apply(on.AttemptEnded(attempt, step_outcome(attempt.call, value="1")))

    async def main() -> None:
        await _loop_of(stage, database).finish()

    asyncio.run(main())
    executions = list(stage.runs.leased)
    assert database.sent == [executions[:1000], executions[1000:], [executions[999]]]
    assert set(database.hints) == {"wake durable_settled", "send durable_settled"}


@pytest.mark.parametrize("closed", [False, True])
def test_a_closed_loop_has_no_timer(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    """Unknown leases are to be released once more after a while; a worker that has stopped is not woken."""
    monkeypatch.setattr("pyengine.core.worker.turn_loop._UNKNOWN_AGAIN_S", 0.01)

    async def main() -> None:
        async def nothing(*_: Any) -> list[str]:
            return []

        wake = asyncio.Event()
        sender = SimpleNamespace(close=nothing)
        sender.another = lambda: sender
        turns = _loop_of(
            Stage(),
            sender,
            wake=wake,
            side=SimpleNamespace(run=nothing),
            ticker=None,
            handoff=SimpleNamespace(address="a", connection_changed=lambda: None),
            listener=SimpleNamespace(remove_receiver=lambda address: None),
        )
        turns.messages_lost()
        await turns.give_back_unknown()
        wake.clear()
        if closed:
            await turns.close()
        await asyncio.sleep(0.05)
        assert wake.is_set() is not closed

    asyncio.run(main())
