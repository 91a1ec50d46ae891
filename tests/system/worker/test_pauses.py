"""Law: a back-off or poll schedule goes on for ever at its longest pause, however often nothing happened."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import psycopg
import pytest

from pyengine import Retry, sync
from pyengine.core.client.psycopg_transport import PsycopgTransport
from pyengine.core.database.connection import backoff_s
from pyengine.core.database.poll_schedule import NotifyThrottle, PollSchedule
from pyengine.core.process.backoff import backoff_pause
from pyengine.core.worker.blocked_runs import pause_s, resend_pause_s
from pyengine.core.worker.handoff import Handoff
from pyengine.doors.admin.migration_locks import Limits, Patience
from pyengine.doors.cli import database as cli_database
from pyengine.doors.gateway.courier.answers import Answer
from pyengine.doors.gateway.courier.circuits import Circuit
from pyengine.doors.gateway.courier.courier import Courier
from pyengine.doors.gateway.courier.outbox import Outbox
from pyengine.doors.gateway.courier.pushes import Offer, Unblock
from pyengine.errors import Unavailable
from tests.support.hand_clock import HandClock

ROUNDS = 12_000
RETRIES = [
    *(Retry(max_attempts=None), Retry(max_attempts=None, backoff=1e308), Retry(max_attempts=None, backoff=1)),
    *(Retry(max_attempts=None, backoff=1.0000001), Retry(max_attempts=None, initial=0, max_delay=0)),
    *(Retry(max_attempts=None, on_exhausted="fail", jitter=0), Retry(max_attempts=ROUNDS + 1, backoff=7.5)),
]


def idle(longest_s: float) -> list[float]:
    """The pauses of a schedule that finds nothing."""
    schedule, pauses = PollSchedule(longest_s=longest_s), []
    for _ in range(ROUNDS):
        schedule.polled(0.0, found=False)
        pauses.append(schedule.at)
    return pauses


def unreachable_circuit() -> list[float]:
    """The pauses of the circuit of an address that fails each time."""
    pauses: list[float] = []
    circuit = Circuit()
    for _ in range(ROUNDS):
        circuit.begun(0.0)
        circuit.failed(0.0, 0.0, at_once=False, retry_after_s=None)
        circuit._opened_s, pauses = 0.0, [*pauses[-1:], circuit._retry_s]
    return pauses


def unheard_hints() -> list[float]:
    """The spans of a throttle in a stream of others' hints."""
    throttle, now_s, pauses = NotifyThrottle(), 0.0, []
    for _ in range(ROUNDS):
        throttle.heard("durable_ready", now_s)
        throttle.with_commit("durable_ready", now_s)
        now_s += 0.01
        pauses.append(throttle._retry_at_s.get("durable_ready", 0.0) - now_s)
    return pauses


SCHEDULES: dict[str, tuple[Callable[[], list[float]], float]] = {
    "a poll": (lambda: idle(3.0), 3.0),
    "a short poll": (lambda: idle(0.3), 1.0),
    "a locked run": (lambda: [pause_s(n) for n in range(ROUNDS)], 0.4),
    "a busy report": (lambda: [resend_pause_s(n, random) for n in range(ROUNDS)], 0.5),
    "a connection": (lambda: [backoff_s(n) for n in range(ROUNDS)], 5.0),
    "a circuit": (unreachable_circuit, 72.0),
    "a hint": (unheard_hints, 1.0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_for_ever(name: str) -> None:
    """Twelve thousand rounds without anything: each pause is at most the longest."""
    schedule, longest_s = SCHEDULES[name]
    pauses = schedule()
    assert max(pauses) <= longest_s and pauses[-1] > 0


@pytest.mark.parametrize("policy", RETRIES)
def test_a_retry_policy_goes_on_for_ever(policy: Retry) -> None:
    """A step that fails twelve thousand times waits for the longest pause of its policy."""
    delays = [policy.delay_ms(n, ValueError(), random) for n in range(1, ROUNDS)]
    assert all(delay is not None and 0 <= delay <= 3_600_000 for delay in delays)


@pytest.mark.parametrize("factor", [1.0, 1.0000001, 2.0, 4.0, 1e308])
@pytest.mark.parametrize("times", [-1, 0, 1, 2, 1_023, 1_024, 10**9, 10**100])
@pytest.mark.parametrize(("first", "longest"), [(0.0, 5.0), (1e-9, 1e15), (1.0, 3.0), (9.0, 3.0)])
def test_a_pause_is_never_above_its_ceiling(first: float, longest: float, times: int, factor: float) -> None:
    """Whatever the counter has come to: from the first pause to the longest, and no error."""
    assert min(first, longest) <= backoff_pause(first, longest, times, factor) <= longest


def test_a_pause_grows_by_its_factor() -> None:
    """Below the ceiling it is the power, and the counter of failures moves it by one factor each time."""
    assert [backoff_pause(1, 9, n) for n in range(6)] == [1, 2, 4, 8, 9, 9]
    assert [backoff_pause(5, 5000, n, 4) for n in range(7)] == [5, 20, 80, 320, 1280, 5000, 5000]


def test_messages_are_put_off_for_ever() -> None:
    """An unblock that was claimed, and an offer that was refused, any number of times."""

    async def program() -> None:
        outbox = Outbox(cast("Any", None), None)
        offer = Offer(address="http://x", id="a", version=1, retry_ms=5_000, headers={}, body=b"")
        unblock = Unblock(address="http://x", id="a", attempt=ROUNDS, age_ms=0, body=b"")
        metrics = SimpleNamespace(gauge=lambda *_: None)
        courier = Courier(outbox, cast("Any", None), cast("Any", metrics), cast("Any", None))
        for _ in range(ROUNDS):
            outbox.refuse(offer)
        await courier._finish_unblock(unblock, Answer(status=503))
        assert {ms for _, ms in outbox._put_off_offers[-9_000:]} == {60_000}
        assert 0 < outbox._put_off[0][1] <= 1.2 * 3_600_000

    asyncio.run(program())


def test_a_worker_without_a_listener_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registration as idle is tried again at most every 12 s, any number of times."""

    clock = HandClock(0.0)
    monkeypatch.setattr("pyengine.core.process.clock._clock", clock)

    async def program() -> None:
        listener = SimpleNamespace(receives=lambda _: False)
        identity = SimpleNamespace(worker="w", serves=(), ttl_ms=1)
        handoff = Handoff(cast("Any", None), cast("Any", listener), cast("Any", identity), cast("Any", None))
        handoff._idle = True
        for _ in range(ROUNDS):
            handoff._register()
        asked = [at_s for at_s, _ in clock.timers]
        assert asked[0] == 0.012 and max(asked) == asked[-1] == 12.0

    asyncio.run(program())


def test_a_migration_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that meets locks pauses for a second at most."""
    clock = HandClock()
    monkeypatch.setattr("pyengine.core.process.clock._clock", clock)
    patience = Patience(Limits(wait_s=inf))
    for _ in range(ROUNDS):
        patience.pause(cast("Any", None), psycopg.errors.LockNotAvailable(), None)
    assert min(clock.paused[10:]) >= 0.5 and max(clock.paused) <= 1.0


def test_a_blocking_wait_polls_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for a run polls with growing pauses, then four times a second, over no connection
    that listens.
    """
    clock, polls = HandClock(), count()

    async def rows(*_: Any) -> list[Any]:
        return [{"state": "resolved"}] if next(polls) == ROUNDS else []

    monkeypatch.setattr("pyengine.core.process.clock._clock", clock)
    transport = PsycopgTransport("postgresql://nobody@nowhere/x", 1)
    monkeypatch.setattr(transport, "rows", rows)
    assert sync._driven(transport._ended("a", None, None)) == {"state": "resolved"}
    assert clock.paused == [backoff_pause(0.005, 0.25, number, 1.25) for number in range(ROUNDS)]
    assert not transport._all


def test_a_command_waits_for_its_server_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that waits for the server tries again every 3 s."""
    clock = HandClock()

    def unreachable(url: str, target: Any) -> NoReturn:
        if len(clock.paused) == ROUNDS:
            raise TimeoutError
        raise Unavailable("not there") from OSError("not there")

    monkeypatch.setattr(cli_database, "connect", unreachable)
    monkeypatch.setattr("pyengine.core.process.clock._clock", clock)
    out = cast("Any", SimpleNamespace(remark=str))
    with pytest.raises(TimeoutError), cli_database._reached("postgres://x", cast("Any", None), out):
        pass
    assert max(clock.paused) == clock.paused[-1] == 3.0
