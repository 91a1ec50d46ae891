"""Threads of functions that do not end are missing to nobody else."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from pyengine import App, StepTimeout


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What hanging functions wait for; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def hanging(dsn: str, release: threading.Event) -> App:
    """A workflow whose step outlives its timeout, and one with a quick step."""
    app = App(dsn)

    @app.step(timeout="50ms")
    def hang() -> None:
        release.wait(60)

    @app.step
    def quick() -> str:
        return "quick"

    @app.workflow
    async def bad() -> str:
        try:
            await hang()
        except StepTimeout:
            return "left behind"
        return "not reached"

    @app.workflow
    async def good() -> str:
        return await quick()

    return app


def test_another_thread_takes_the_place(dsn: str, release: threading.Event) -> None:
    """As many steps as there are threads, and one more, outlive their timeouts: the next one is executed."""
    app = hanging(dsn, release)

    async def main() -> list[str]:
        async with app.worker(threads=2), app.client() as client:
            runs = [await client.start("bad") for _ in range(3)]
            runs.append(await client.start("good"))
            return [await run.result(timeout=20) for run in runs]

    assert asyncio.run(main()) == ["left behind"] * 3 + ["quick"]


def test_a_worker_without_threads_gives_back_what_needs_one(
    dsn: str, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes some threads in place of those that hang, and no more: another worker has the run then."""
    app = hanging(dsn, release)

    async def main() -> str:
        async with app.client() as client, app.worker(threads=1):
            runs = [await client.start("bad") for _ in range(5)]
            assert [await run.result(timeout=20) for run in runs] == ["left behind"] * 5
            good = await client.start("good", id="good")
            while "all threads of steps are left behind" not in caplog.text:
                await asyncio.sleep(0.02)
            async with app.worker(threads=1):
                return await good.result(timeout=30)

    with caplog.at_level(logging.WARNING, logger="pyengine"):
        assert asyncio.run(main()) == "quick"


def test_a_thread_that_comes_back_is_one_again(dsn: str, release: threading.Event) -> None:
    """Afterwards no more functions run at a time than before."""
    app = hanging(dsn, release)
    together, most = [0], [0]
    lock = threading.Lock()

    @app.step
    def counted() -> None:
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        threading.Event().wait(0.02)
        with lock:
            together[0] -= 1

    @app.workflow
    async def count() -> None:
        await counted()

    async def main() -> None:
        async with app.worker(threads=2), app.client() as client:
            bad = [await client.start("bad") for _ in range(3)]
            assert [await run.result(timeout=20) for run in bad] == ["left behind"] * 3
            release.set()
            while sum(one.name.startswith("pyengine-step") for one in threading.enumerate()) > 2:
                await asyncio.sleep(0.01)
            for run in [await client.start("count") for _ in range(8)]:
                await run.result(timeout=20)

    asyncio.run(main())
    assert most == [2]
