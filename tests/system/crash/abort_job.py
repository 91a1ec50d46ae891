"""A workflow that takes its process with it in its first line, and neighbours that do some work."""

from __future__ import annotations

import os

from pyengine import App, ctx

app = App()


@app.step
async def one(number: int) -> int:
    """A step."""
    return number


@app.workflow
async def ends_it() -> None:
    """No error, no exit code of Python's: the process is gone."""
    os.abort()


@app.workflow
async def neighbour(number: int) -> int:
    """Two steps and a pause."""
    before = await one(number)
    await ctx.sleep(0.01)
    return before + await one(number)
