"""What is too large, too slow or refused: it is cut, divided or given back, and nothing stalls."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import psycopg
import pytest

from pyengine import App
from pyengine.core.database.connection import Database, ReconnectingConnection, mapped
from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.protocol.commands import Captured, Complete, RunChild, StepOutcome, Suspend
from pyengine.core.protocol.turn import Answer, RunReport, encode_reports
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from pyengine.core.worker.attempts import Attempt
from pyengine.core.worker.capacity import Capacity
from pyengine.core.worker.events import Event
from pyengine.core.worker.report_queue import REPORTS_MAX, ReportQueue
from pyengine.core.worker.run_state import TURN_BYTES_MAX, Gone, LeasedRun, Live
from pyengine.core.worker.turn_sender import Identity, TurnSender
from pyengine.errors import PayloadTooLarge, RunFailed
from tests.support.turns import Send, intercept

Connection = psycopg.Connection[tuple[object, ...]]


def big_app(dsn: str) -> App:
    """Workflows that are too large in one place each, where 2000 bytes are allowed."""
    app = App(dsn)

    @app.step
    async def echo(text: str) -> int:
        return len(text)

    @app.step
    async def make(size: int) -> str:
        return "x" * size

    @app.step
    async def fail(size: int) -> str:
        raise LookupError("x" * size)

    @app.workflow
    async def result() -> str:
        return "x" * 5000

    @app.workflow
    async def step_result() -> str:
        return await make(5000)

    @app.workflow
    async def step_input() -> int:
        return await echo("x" * 5000)

    @app.workflow
    async def step_error() -> str:
        return await fail(5000)

    @app.workflow
    async def child(text: str) -> int:
        return len(text)

    @app.workflow
    async def child_input() -> int:
        return await child("x" * 5000)

    @app.workflow
    async def caught() -> str:
        try:
            return await make(5000)
        except PayloadTooLarge:
            return await make(1500)

    return app


def result_of(dsn: str, name: str) -> Any:
    """What a run of one of them ends with."""
    app = big_app(dsn)

    async def main() -> Any:
        async with app.worker(), app.client() as client:
            return await (await client.start(name)).result(timeout=20)

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["result", "step_result", "step_input", "child_input"])
def test_what_is_over_the_set_limit_fails_the_run(dsn: str, conn: Connection, name: str) -> None:
    """The setting payload_max_bytes holds for results, step results and inputs: PayloadTooLarge, once."""
    conn.execute("select durable.set_setting('payload_max_bytes', '2000')")
    with pytest.raises(RunFailed) as failed:
        result_of(dsn, name)
    assert isinstance(failed.value.__cause__, PayloadTooLarge)
    assert failed.value.__cause__.limit == 2000
    made = conn.execute(
        "select count(*) from durable._journal where type in ('step_completed', 'first_attempt_failed')"
    ).fetchone()
    assert made == (0,)


def test_an_error_over_the_set_limit_is_cut(dsn: str, conn: Connection) -> None:
    """An error that is larger than payload_max_bytes is recorded all the same, cut."""
    conn.execute("select durable.set_setting('payload_max_bytes', '2000')")
    with pytest.raises(RunFailed, match=r"\[cut: it had ") as failed:
        result_of(dsn, "step_error")
    assert isinstance(failed.value.__cause__, LookupError)


def test_a_large_payload_is_reported(dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """A workflow may go on after a result that was too large; what is over payload_warn_bytes is logged,
    with step and run.
    """
    conn.execute("select durable.set_setting('payload_max_bytes', '2000')")
    conn.execute("select durable.set_setting('payload_warn_bytes', '1000')")
    with caplog.at_level(logging.WARNING, "pyengine.codec"):
        assert result_of(dsn, "caught") == "x" * 1500
    run_id = conn.execute("select id from durable.runs").fetchone()
    assert run_id is not None
    places = [
        vars(record)["where"] for record in caplog.records if vars(record).get("event") == "payload_large"
    ]
    assert f"the result of step make of run {run_id[0]}" in places


def quiet_run(execution: int = 1) -> LeasedRun:
    """A run that was not advanced."""
    app = App("postgresql://127.0.0.1:1/shop")

    @app.workflow
    async def go() -> None:
        pass

    info = RunInfo(id=f"r{execution}", execution=execution, version=1, workflow="go")
    return LeasedRun(info, Replay(app.registry.workflow("go"), info, lambda: 0, random.Random(0), Codec()))


def outcome(child: int, size: int) -> StepOutcome:
    """A step that is done, with a result of that size."""
    return StepOutcome(child=child, name="step", hash="0" * 16, attempt=1, value="x" * size)


def live(run: LeasedRun) -> Live:
    """The phase of a run that does something."""
    assert isinstance(run.phase, Live)
    return run.phase


def queue_of(*runs: LeasedRun) -> tuple[ReportQueue, deque[LeasedRun]]:
    """A queue with these runs in it, and how it is filled."""
    dirty = deque[LeasedRun]()
    for run in runs:
        run.queued = True
        dirty.append(run)
    return ReportQueue(dirty, list), dirty


def test_a_report_is_bounded_by_bytes() -> None:
    """Outcomes beyond the bytes of a turn wait for the next one, in order, and the suspend with them; an
    outcome that is larger than that goes alone.
    """
    run = quiet_run()
    sizes = [TURN_BYTES_MAX // 2, TURN_BYTES_MAX // 2, 1, 2 * TURN_BYTES_MAX, 1]
    live(run).outcomes = [outcome(child, size) for child, size in enumerate(sizes)]
    sent = []
    while live(run).outcomes:
        live(run).end = Suspend(on=(9,), kind="single")
        report = live(run).take_report(run)
        sent.append([one.child for one in report.outcomes])
        assert (report.end is None) == bool(live(run).outcomes)
    assert sent == [[0, 1], [2, 3], [4]]


def test_commands_and_endings_count() -> None:
    """A turn is full also when inputs of child runs, captured values or endings fill it."""
    half = "x" * (TURN_BYTES_MAX // 2)
    child = RunChild(
        child=1, name="n", version="1", queue=None, hash="0" * 16, param=half, timeout_ms=None, detached=False
    )
    captured = Captured(kind="random", child=1, name="random", value=half)
    runs = [quiet_run(number) for number in range(6)]
    for run, command in zip(runs, (child, captured, None, None, child, None), strict=True):
        if command is None:
            live(run).end = Complete(value=half)
        else:
            live(run).commands = (command,)
    queue, _ = queue_of(*runs)
    assert not queue.collect(0.0, REPORTS_MAX).reports
    assert [len(queue.take_large()) for _ in range(4)] == [2, 2, 2, 0]
    run = quiet_run()
    live(run).commands, live(run).outcomes = (child, captured), [outcome(0, 1), outcome(2, 1)]
    assert len(live(run).take_report(run).outcomes) == 1


def test_what_is_packed_leaves_with_the_rest() -> None:
    """While a turn is away the next one is written: a run whose attempts are under way waits until it leaves,
    one that is gone meanwhile stays here, and ends that have not left are known.
    """
    runs = [quiet_run(number) for number in range(4)]
    for run in runs:
        live(run).outcomes = [outcome(0, 1)]
    live(runs[0]).end = Complete(value="1")
    live(runs[1]).attempts[1] = Attempt(1, "r1", cast("Any", SimpleNamespace(begun=False)))
    queue, dirty = queue_of(*runs)
    queue.pack(0, 10)
    assert queue.ends == 1 and [run.report is None for run in runs] == [False, True, False, False]
    runs[2].phase = Gone()
    live(runs[1]).outcomes.append(outcome(1, 1))
    again = quiet_run(2)
    live(again).end = Complete(value="2")
    dirty.append(again)
    batch = queue.collect(0, 10)
    assert [(one.execution, len(one.outcomes)) for one in batch.reports] == [(0, 1), (3, 1), (1, 2), (2, 0)]
    assert batch.text == encode_reports(batch.reports) and batch.ends == 2
    assert not queue and queue.ends == 0 and queue.collect(0.0, REPORTS_MAX).text == "[]"


def test_slots_are_free_when_a_turn_has_left() -> None:
    """A run that ends by what is packed is in its slot until that leaves."""
    run = quiet_run(7)
    live(run).end = Complete(value="1")
    queue, _ = queue_of(run)
    slots = Capacity(3, {7: run}, lambda: None)
    found = [slots.free(packed_ends=queue.ends)]
    queue.pack(0, 10)
    found.append(slots.free(packed_ends=queue.ends))
    queue.collect(0, 10)
    found.append(slots.free(packed_ends=queue.ends))
    assert found == [2, 2, 3]


def turns_of(
    monkeypatch: pytest.MonkeyPatch, once: Any, post: Callable[[Event], None] = lambda event: None
) -> TurnSender:
    """Turns without a database; `once` stands for one of them."""
    who = Identity(worker="w", queues=[], names=[], codes=[], digests=[], ttl_ms=1)
    nowhere = Database("postgresql://127.0.0.1:1/shop")
    turns = TurnSender(nowhere, who, lambda: inf, post, cast("Any", None))

    async def connected(link: ReconnectingConnection, *, purpose: str) -> None:
        pass

    monkeypatch.setattr(turns, "send_once", once)
    monkeypatch.setattr(ReconnectingConnection, "connected_eventually", connected)
    return turns


@pytest.mark.parametrize(
    ("cause", "sizes"),
    [
        (TimeoutError(), [4, 4, 2, 2]),
        (asyncpg.QueryCanceledError("statement timeout"), [4, 4, 2, 2]),
        (ConnectionResetError(), [4, 4, 4]),
        (TimeoutError(110, "the kernel gave up"), [4, 4, 4]),
    ],
)
def test_a_batch_that_times_out_twice_is_halved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cause: BaseException, sizes: list[int]
) -> None:
    """A turn that took too long twice is sent in halves; one whose connection broke is sent as it was."""
    sent: list[int] = []

    async def once(bundles: list[RunReport], want: int, **rest: object) -> str:
        sent.append(len(bundles))
        if len(sent) <= 2:
            error = mapped(cause, "there")
            error.__cause__ = cause
            raise error
        return "answer"

    turns = turns_of(monkeypatch, once)
    with caplog.at_level(logging.WARNING, "pyengine.turn"):
        answers: list[Any] = asyncio.run(turns.send([RunReport(n, str(n), 1, 0) for n in range(4)], 5))
    assert sent == sizes and answers == ["answer"] * (len(sizes) - 2)
    assert caplog.records


@pytest.mark.parametrize("want", [5, 0])
def test_a_run_is_not_blamed_for_what_was_to_be_claimed(want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that is refused beside a claim, if only of what it woke, is sent without it before its run is
    halted; then the claim is made by itself.
    """
    sent: list[tuple[int, int]] = []
    cause = asyncpg.ProgramLimitExceededError("string buffer exceeds maximum allowed length")

    async def once(bundles: list[RunReport], asked: int, **rest: object) -> str:
        sent.append((len(bundles), asked))
        if bundles and asked >= 0:
            raise mapped(cause, "there") from cause
        return Answer(0, None, [], [], [], False, None)

    rejected: list[Event] = []
    turns = turns_of(monkeypatch, once, rejected.append)
    answers: list[Any] = asyncio.run(turns.send([RunReport(1, "1", 1, 0)], want))
    claims = [(0, want)] if want else []
    assert (sent, rejected) == ([(1, want), (1, -1), *claims], [])
    assert len(answers) == 1 + len(claims)


def test_slots_are_used(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is more to claim, a turn claims for every slot that it leaves or that was free, up to half
    of them; and never more runs are worked on than there are slots."""
    slots = 40
    app = App(dsn)
    plain, unused = TurnSender.send_once, []

    @app.workflow
    async def nothing(n: int) -> int:
        return n

    async def once(self: TurnSender, bundles: list[RunReport], want: int, **more: Any) -> Answer:
        sent = [run.report for run in worker.parts.runs.leased.values()]
        stay = sum(one is None or one.end is None for one in sent)
        coming = worker.turn_loop.coming
        answer = await plain(self, bundles, want, **more)
        assert stay + coming + want <= slots
        if answer.tasks and want < slots // 2:
            unused.append(slots - stay - coming - want)
        return answer

    monkeypatch.setattr(TurnSender, "send_once", once)

    async def main() -> list[int]:
        nonlocal worker
        async with app.client() as client:
            runs = [await client.start(nothing, n) for n in range(400)]
            async with app.worker(concurrency=slots) as worker:
                return await asyncio.gather(*(run.result(timeout=30) for run in runs))

    worker: Any = None
    assert asyncio.run(main()) == list(range(400))
    assert not [count for count in unused if count >= slots // 8], unused


def test_a_run_that_cannot_be_halted_is_given_back(dsn: str, conn: Connection) -> None:
    """If the database refuses even the halt, the run is released and forgotten; others are not touched."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def go(n: int) -> int:
        return await step(n)

    async def refuse(send: Send, sent: tuple[Any, ...]) -> Any:
        if any(isinstance(value, str) and ("66666" in value or "halt" in value) for value in sent):
            raise asyncpg.DataError("no such thing")
        return await send()

    async def main() -> None:
        async with app.client() as client, app.worker() as worker:
            runs = [await client.start(go, n, id=id) for id, n in (("a", 1), ("b", 66666), ("c", 2))]
            assert [await runs[0].result(timeout=20), await runs[2].result(timeout=20)] == [1, 2]
            while (await runs[1].get()).state == "running" or worker.parts.runs.leased:
                await asyncio.sleep(0.01)

    undo = intercept(refuse)
    try:
        asyncio.run(asyncio.wait_for(main(), 30))
    finally:
        undo()
    left = conn.execute("select state, pid from durable._tasks where id = 'b'").fetchone()
    assert left == ("pending", None)
