"""Code that goes on however often it is cancelled is stopped, and nothing else stands still meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from pyengine import App, RunCancelled, Signal, ctx
from pyengine.core.replay.call_sequence import REFUSALS_MAX

go = Signal[int]("go")
CALLS: dict[str, Callable[[], Awaitable[object]]] = {
    "sleep": lambda: ctx.sleep("1h"),
    "asyncio": lambda: asyncio.sleep(3600),
    "receive": lambda: ctx.receive(go),
    "gather": lambda: ctx.gather(ctx.sleep("1h"), ctx.sleep("2h")),
    "promise": lambda: ctx.promise(int),
}


@pytest.mark.parametrize("what", CALLS)
def test_code_that_swallows_every_cancellation_is_stopped(
    dsn: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bare except in a loop: the run is cancelled, an error names the line, and others go on (W3)."""
    app, swallowed = App(dsn), [0]

    @app.workflow(any_signal=True)
    async def stubborn() -> None:
        while True:
            try:
                await CALLS[what]()
            except:  # noqa: E722
                swallowed[0] += 1

    @app.workflow
    async def other() -> int:
        return await ctx.receive(go)

    async def main() -> int:
        async with app.worker(), app.client() as client:
            run, beside = await client.start(stubborn), await client.start(other)
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.01)
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result(timeout=30)
            await beside.signal(go, 7)
            return await beside.result(timeout=30)

    with caplog.at_level(logging.ERROR, logger="pyengine"):
        assert asyncio.run(main()) == 7
    assert swallowed[0] >= REFUSALS_MAX
    (record,) = (one for one in caplog.records if getattr(one, "event", "") == "cancellation_swallowed")
    assert "test_swallowed.py:" in record.getMessage()
