"""Calls without a workflow: an index, waits with a limit, and what a client does to a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
import pytest

from pyengine import App, CallAborted, CallFailed, ctx
from pyengine.errors import InvalidRequest

T = TypeVar("T")


class Lab:
    """An app whose functions are counted."""

    def __init__(self, dsn: str) -> None:
        self.app = app = App(dsn)
        self.ran: list[Any] = []

        @app.memo(version="1")
        async def slow(seconds: float) -> float:
            """Takes its time."""
            self.ran.append(seconds)
            await asyncio.sleep(seconds)
            return seconds

        @app.memo(version="1")
        def add(parts: list[float]) -> float:
            """Their sum, but not of negative numbers."""
            self.ran.append(parts)
            if min(parts) < 0:
                raise ValueError("negative")
            return sum(parts)

        self.slow, self.add = slow, add

    def run(self, body: Callable[[], Awaitable[T]]) -> T:
        """Run a test's body, which may take a minute."""

        async def main() -> T:
            async with asyncio.timeout(60):
                return await body()

        return asyncio.run(main())


@pytest.fixture
def lab(dsn: str) -> Lab:
    """Functions on a database of their own."""
    return Lab(dsn)


def test_an_index_pins_results(lab: Lab) -> None:
    """Calls are inputs of calls, a second index shares them, and a commit freezes the pins."""

    async def body() -> list[Any]:
        async with lab.app.worker(), lab.app.index("exp-7") as index, lab.app.index("other") as other:
            one = await index.call(lab.slow, 0.01)
            total = await index.call(lab.add, [one, 1.0])
            found = [await total.result(timeout=30), total.at, await one, await total.status()]
            again = await index.call(lab.add, [one, 1.0])
            shared = await other.call(lab.add, [await other.call(lab.slow, 0.01), 1.0])
            commit = await index.commit(total, name="total")
            return [*found, again.at, shared.at, await shared, len(commit)]

    assert lab.run(body) == [1.01, "started", 0.01, "ok", "pinned_hit", "shared_hit", 1.01, 64]
    assert lab.ran == [0.01, [0.01, 1.0]]


def test_a_workflow_and_an_index_share_a_scope(lab: Lab) -> None:
    """By its name."""

    @lab.app.workflow
    async def go() -> str | None:
        return (await ctx.call(lab.slow, 0.01, scope="exp-7").outcome()).at

    async def body() -> str:
        async with lab.app.worker(), lab.app.index("exp-7") as index:
            await (await index.call(lab.slow, 0.01))
            return str(await (await lab.app.start(go)).result())

    assert lab.run(body) == "pinned_hit"


def test_s32_a_wait_with_a_limit_leaves_the_attempt(lab: Lab) -> None:
    """TimeoutError; the attempt goes on, and a later call joins it."""
    asked = asyncio.Event()

    @lab.app.memo(version="1")
    async def patient(n: int) -> int:
        lab.ran.append(n)
        await asked.wait()
        return n

    async def body() -> list[Any]:
        async with lab.app.worker(), lab.app.index("exp-7") as index:
            call = await index.call(patient, 5)
            with pytest.raises(TimeoutError, match="its attempt goes on"):
                await call.result(timeout="200ms")
            later = await index.call(patient, 5)
            found = [await call.status(), later.at]
            asked.set()
            return [*found, await later.result(timeout=30), await call]

    assert lab.run(body) == ["pending", "joined", 5, 5]
    assert lab.ran == [5]


def test_retry_and_cancel(lab: Lab) -> None:
    """A retry is a new attempt; a cancelled call is given up."""

    async def body() -> list[Any]:
        async with lab.app.worker(), lab.app.index("exp-7") as index:
            call = await index.call(lab.add, [-1.0])
            with pytest.raises(CallFailed, match="negative") as failed:
                await call.result(timeout=30)
            outcome = await call.outcome()
            again = await (await call.retry()).outcome()
            waiting = await index.call(lab.slow, 30.0)
            ended = await waiting.cancel()
            with pytest.raises(CallAborted) as given_up:
                await waiting.result(timeout=30)
            return [
                failed.value.error["type"],
                outcome.status,
                again.status,
                ended,
                given_up.value.code,
                await waiting.status(),
            ]

    assert lab.run(body) == ["ValueError", "error", "error", True, "cancelled", "aborted"]
    assert lab.ran.count([-1.0]) == 2


def test_what_cannot_be_called_is_refused(lab: Lab) -> None:
    """With its reason; nothing is started."""

    async def body() -> None:
        async with lab.app.index("exp-7") as index:
            with pytest.raises(InvalidRequest, match="takes a memo"):
                await index.call(len, [1])  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="cache is True"):
                await index.call(lab.slow, 1.0, cache="maybe")  # type: ignore[arg-type]

    lab.run(body)
    assert lab.ran == []


def test_s48_another_version_is_another_call(dsn: str) -> None:
    """A worker of one version is never offered calls of another, which wait for who serves them."""
    old, new = App(dsn), App(dsn)

    def body(n: int) -> int:
        return n

    first = old.memo(name="same", version="1")(body)
    second = new.memo(name="same", version="2")(body)

    async def main() -> list[Any]:
        async with old.index("exp") as index, asyncio.timeout(60):
            async with new.worker():
                waiting = await index.call(first, 1)
                await (await index.call(second, 1)).result(timeout=30)
                with psycopg.connect(dsn, autocommit=True) as conn:
                    row = conn.execute(
                        "select a.polls, a.failures, t.version, t.queue from durable._call_attempts a "
                        "join durable._tasks t on t.id = durable._call_promise(a.execution_key)"
                    ).fetchone()
            async with old.worker():
                return [row, await waiting.result(timeout=30)]

    assert asyncio.run(main()) == [(0, 0, 0, "adapter:python.same?version=1"), 1]
