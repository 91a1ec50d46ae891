"""Law: what one run reports costs others nothing, however large it is: small reports do not wait for it, and
it is written and checked beside the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyengine import App, RunFailed
from pyengine.core.values import codec
from pyengine.core.values.sizes import LARGE_BYTES
from tests.support.turns import Send, intercept

NEIGHBOURS = 20


def weight(sent: tuple[Any, ...]) -> int:
    """Characters of the texts of a turn."""
    texts = [one for value in sent for one in (value if isinstance(value, list) else [value])]
    return sum(len(one) for one in texts if isinstance(one, str))


@pytest.fixture
def size(request: pytest.FixtureRequest) -> int:
    """Bytes of a large result."""
    return (60 if request.config.getoption("--full") else 4) << 20


def shop(dsn: str, size: int) -> tuple[App, Any, Any, Any]:
    """An app with a workflow whose step in a thread returns much, one whose async step does, a small one."""
    app = App(dsn)

    @app.step
    def text() -> str:
        return "x" * size

    @app.step
    async def texts() -> list[str]:
        return ["y" * 1024] * (size // 1024)

    @app.step
    async def small(n: int) -> int:
        return n

    @app.workflow
    async def one() -> int:
        return len(await text())

    @app.workflow
    async def several() -> int:
        return len(await texts())

    @app.workflow
    async def hello(n: int) -> int:
        return await small(n)

    return app, one, several, hello


def test_neighbours_go_on_while_a_large_report_is_under_way(dsn: str, size: int) -> None:
    """A large report goes without small ones, and does not come back before all neighbours are complete: each
    begins, records its step and ends meanwhile. Then the large run has its result.
    """
    app, one, _, hello = shop(dsn, size)
    large: list[int] = []

    async def main() -> None:
        under_way, neighbours = asyncio.Event(), asyncio.Event()

        async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
            if weight(sent) >= size:
                large.append(str(sent).count('"execution"'))
                under_way.set()
                await neighbours.wait()
            return await send()

        undo = intercept(watch)
        try:
            async with app.worker(), app.client() as client:
                big = await client.start(one)
                await asyncio.wait_for(under_way.wait(), 60)
                runs = [await client.start(hello, n) for n in range(NEIGHBOURS)]
                results = [await run.result(timeout=60) for run in runs]
                assert results == [*range(NEIGHBOURS)] and (await big.get()).state == "running"
                neighbours.set()
                assert await big.result(timeout=120) == size
        finally:
            undo()

    asyncio.run(main())
    assert large == [1]


def test_a_large_report_under_way_at_the_stop_arrives(dsn: str) -> None:
    """A worker that is stopped waits for the answer to its large report, as long as a stop may take; nothing
    is done again.
    """
    size = 1 << 20
    app, one, _, _ = shop(dsn, size)
    sent_large = 0

    async def main() -> None:
        nonlocal sent_large
        under_way = asyncio.Event()

        async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
            nonlocal sent_large
            if weight(sent) >= size:
                sent_large += 1
                under_way.set()
                await asyncio.sleep(0)
            return await send()

        undo = intercept(watch)
        try:
            async with app.client() as client:
                run = await client.start(one)
                async with app.worker():
                    await asyncio.wait_for(under_way.wait(), 60)
                assert (await run.get()).state in ("queued", "completed")
                async with app.worker():
                    assert await run.result(timeout=120) == size
        finally:
            undo()

    asyncio.run(main())
    assert sent_large == 1


def test_large_values_are_written_beside_the_loop(
    dsn: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No large result of a step, in a thread or async, is written or checked by the thread of the loop."""
    app, one, several, hello = shop(dsn, size)
    by_loop: list[int] = []
    beside: list[int] = []
    pack: Callable[..., bytes] = codec.pack_value
    check: Callable[..., tuple[str, Any]] = codec.TypeCodec.check
    loop_thread = threading.get_ident()

    def note(count: int) -> None:
        if count >= LARGE_BYTES:
            (by_loop if threading.get_ident() == loop_thread else beside).append(count)

    def packed(*given: Any) -> bytes:
        text = pack(*given)
        note(len(text))
        return text

    def checked(self: Any, value: Any, text: bytes, where: str, **more: Any) -> tuple[str, Any]:
        note(len(text))
        return check(self, value, text, where, **more)

    monkeypatch.setattr(codec, "pack_value", packed)
    monkeypatch.setattr(codec.TypeCodec, "check", checked)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            runs = [await client.start(one), await client.start(several), await client.start(hello, 1)]
            assert [await run.result(timeout=120) for run in runs] == [size, size // 1024, 1]

    asyncio.run(main())
    assert not by_loop and len(beside) == 4


@pytest.mark.parametrize("step", ["text", "texts"])
def test_a_result_without_memory_fails_its_attempt_alone(
    dsn: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It fails by the policy of its step, and the worker goes on with the others."""
    app, one, several, hello = shop(dsn, 1 << 16)
    write, failed = codec.Codec.write, []

    def writing(self: codec.Codec, type_: Any, value: Any, where: str, **options: Any) -> str:
        if f"result of step {step}" in where and not failed:
            failed.append(where)
            raise MemoryError
        return write(self, type_, value, where, **options)

    monkeypatch.setattr(codec.Codec, "write", writing)

    async def main() -> int:
        async with app.worker(), app.client() as client:
            large = await client.start(one if step == "text" else several)
            small = await client.start(hello, 1)
            with pytest.raises(RunFailed, match="MemoryError"):
                await large.result(timeout=30)
            return await small.result(timeout=30)

    assert asyncio.run(main()) == 1 and len(failed) == 1
