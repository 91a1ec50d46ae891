"""The work that goes on while databases change places: steps that leave a trace in a file.

What lives here: workflows, and the file. What may not: what a test counts (trail.py). No database takes the
file back, so it holds what was really done, in whatever history the database is.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import timedelta
from typing import Any

from pyengine import App, Retry, Signal, ctx

FILE = "PYENGINE_TEST_TRAIL"
app = App()
go_on: Signal[str] = Signal("go_on")


def leave_trace(step: str) -> None:
    """Append one line, in one write."""
    info = ctx.step
    line = json.dumps([info.run_id, info.child, step, os.getpid(), time.time_ns() // 1_000_000])
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


@app.step
def note(text: str) -> str:
    """A step that works at once."""
    leave_trace(text)
    return text


@app.step(retry=Retry(max_attempts=3, initial="20ms", jitter=0))
def wobble(text: str) -> str:
    """A step whose first attempt always fails."""
    leave_trace(text)
    if ctx.step.attempt == 1:
        raise ConnectionError("the first attempt fails")
    return text


@app.step
async def slow(text: str, seconds: float) -> str:
    """A step that takes its time."""
    leave_trace(text)
    await asyncio.sleep(seconds)
    return text


@app.step
def large(number: int) -> list[dict[str, Any]]:
    """A list of 40 kB, whose elements are stored apart."""
    leave_trace("large")
    return [{"number": number, "line": line, "text": f"{line:04}" * 100} for line in range(100)]


@app.workflow
async def side(text: str) -> str:
    """A child run with one step."""
    return await note(f"{text}/step")


@app.workflow
async def journey(name: str) -> list[str]:
    """Steps in parallel, a child, a sleep, a retry, and a row in a table of the user's own."""
    first = await note("first")
    left, right = await asyncio.gather(note("left"), note("right"))
    child = await side("child")
    await ctx.sleep(timedelta(milliseconds=50))
    shaky = await wobble("shaky")
    async with ctx.transaction() as tx:
        await tx.execute("insert into public.ledger (run) values ($1)", ctx.run_id)
    return [name, first, left, right, child, shaky]


def expected_journey(name: str) -> list[str]:
    """What an undisturbed `journey` returns."""
    return [name, "first", "left", "right", "child/step", "shaky"]


@app.workflow
async def patient(text: str, seconds: float) -> str:
    """One slow step."""
    return await slow(text, seconds)


@app.workflow
async def collector(count: int) -> int:
    """Large values, a wait for a signal, and a step."""
    lines = sum([len(await large(number)) for number in range(count)])
    await note(await ctx.receive(go_on))
    return lines


@app.workflow
async def sleeper(seconds: float) -> str:
    """A timer, then a step."""
    await ctx.sleep(timedelta(seconds=seconds))
    return await note("awake")


@app.workflow
async def buyer(number: int) -> str:
    """A wait for a row of the user's."""
    order = await ctx.until("orders", "paid", key={"id": number})
    return str(order["status"])


@app.memo(version="1")
def doubled(number: int) -> int:
    """A function whose calls are identified by their content."""
    return 2 * number


@app.workflow
async def caller(number: int) -> int:
    """A call, whose result is an object."""
    return int(await ctx.call(doubled, number))
