"""A plain function around an async one as a step: what it returns is awaited, with the limits of a step."""

from __future__ import annotations

import asyncio
from typing import Any

from pyengine import App, Client, Retry, Worker, ctx
from pyengine.errors import StepTimeout
from tests.support.decorators import plainly


def test_a_plain_decorator(dsn: str) -> None:
    """Its step has the result, the error and the attempts of the async function, one body at a time where one
    is allowed; its timeout cancels that."""
    app, ended, running = App(dsn), list[str](), [0, 0]

    @app.step(retry=Retry(max_attempts=2, initial=0))
    @plainly
    async def halve(n: int) -> int:
        running[:] = running[0] + 1, max(running[1], running[0] + 1)
        await asyncio.sleep(0)
        running[0] -= 1
        if n % 2:
            raise ValueError(f"{n} is odd, in attempt {ctx.step.attempt}")
        return n // 2

    @app.step(timeout="50ms")
    @plainly
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @app.workflow
    async def go() -> list[Any]:
        try:
            await hang()
        except StepTimeout:
            ended.append("timeout")
        results = await ctx.gather(*map(halve, (2, 3, 4)), return_exceptions=True)
        return [each if isinstance(each, int) else str(each) for each in results]

    async def main() -> list[Any]:
        async with Worker(app.registry, dsn, step_concurrency=1), Client(dsn) as client:
            return await (await client.start(go)).result(timeout=20)

    assert asyncio.run(main()) == [1, "3 is odd, in attempt 2", 2]
    assert ended == ["cancelled", "timeout"] and running[1] == 1
