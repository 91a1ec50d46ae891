"""Law: large inputs and results of memo functions are read and written beside the loop of their worker, small
ones in it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pyengine import App, ctx
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.values.sizes import LARGE_BYTES
from pyengine.features.calls import memo_runner
from pyengine.features.calls.typed_values import ValueType

SIZE = LARGE_BYTES + 1


@pytest.mark.parametrize("is_async", [True, False])
def test_large_values_of_memos(dsn: str, monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    """Of functions in threads and of async ones."""
    app = App(dsn)
    seen: set[tuple[str, int, bool]] = set()
    read, encode = memo_runner._arguments, ValueType.encode

    def in_value_thread() -> bool:
        return threading.current_thread().name.startswith("pyengine-value")

    def reading(memo: Any, request: Any, inputs: str) -> Any:
        seen.add(("read", min(len(inputs) // LARGE_BYTES, 1), in_value_thread()))
        return read(memo, request, inputs)

    def writing(self: ValueType, value: Any, where: str) -> Any:
        if where == "the result of memo double":
            seen.add(("written", min(len(value) // LARGE_BYTES, 1), in_value_thread()))
        return encode(self, value, where)

    monkeypatch.setattr(memo_runner, "_arguments", reading)
    monkeypatch.setattr(ValueType, "encode", writing)

    def plain(text: str) -> str:
        return 2 * text

    async def on_loop(text: str) -> str:
        return 2 * text

    memo: Any = app.memo(version="1", name="double")(on_loop if is_async else plain)

    @app.workflow
    async def go(size: int) -> int:
        return len(await ctx.call(memo, "x" * size))

    assert app.run(go, 1) == 2
    assert seen == {("read", 0, False), ("written", 0, False)}
    assert app.run(go, SIZE) == 2 * SIZE
    assert seen == {(what, large, bool(large)) for what in ("read", "written") for large in (0, 1)}


def test_a_thread_of_ours_gives_what_no_future_takes() -> None:
    """Whoever waits for a function that raises StopIteration goes on."""

    async def main() -> None:
        values = ValueThreads(asyncio.get_running_loop())
        with pytest.raises(RuntimeError, match="StopIteration"):
            await values.call(lambda: next(iter(())))
        values.close()

    asyncio.run(asyncio.wait_for(main(), 60))
