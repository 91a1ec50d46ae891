"""The workflows of the first figures: nothing at all, ten steps, one step, fan-out. Their bodies do no work
of their own."""

from __future__ import annotations

from pyengine import App, ctx

app = App()


@app.step
async def tick(number: int) -> dict[str, int]:
    """A step that costs nothing but its record."""
    return {"number": number}


@app.workflow
async def noop(number: int) -> int:
    """A run without steps."""
    return number


@app.workflow
async def ten_steps(number: int) -> int:
    """Ten steps, one after the other."""
    total = number
    for index in range(10):
        total += (await tick(index))["number"]
    return total


@app.workflow
async def fan_out(width: int) -> int:
    """As many child runs as asked for, awaited together."""
    return sum(await ctx.gather(*(noop(index) for index in range(width))))
