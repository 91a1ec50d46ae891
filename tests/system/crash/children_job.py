"""The work of a parent that ends before its child, in which workers are killed."""

from __future__ import annotations

from pyengine import App, Signal, ctx

app = App()
end = Signal("end", bool)


@app.workflow
async def child() -> None:
    """Wait, and clean up once the test says so."""
    try:
        await ctx.sleep("1h")
    finally:
        async with ctx.shield():
            await ctx.promise()


@app.workflow
async def parent() -> str:
    """Leave a child run."""
    ctx.start(child)
    await ctx.receive(end)
    return "done"
