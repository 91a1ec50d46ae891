"""The workflow of long runs: many steps with a suspend now and then. Its bodies do no work of their own."""

from __future__ import annotations

from bench.workloads.basic import app, tick
from pyengine import ctx


@app.workflow
async def long_run(steps: int, every: int) -> int:
    """Steps one after the other; a durable nap after so many of them."""
    total = 0
    for index in range(steps):
        total += (await tick(index))["number"]
        if index % every == every - 1:
            await ctx.sleep(0.001)
    return total
