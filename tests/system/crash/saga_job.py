"""The work of a saga in which workers are killed: three things are done, the run fails, all is undone."""

from __future__ import annotations

import time

from pyengine import App, Retry, ctx
from tests.system.crash.job import leave_trace

app = App()


@app.step
def book(number: int) -> int:
    """Do one thing."""
    leave_trace(f"book {number}")
    time.sleep(0.1)
    return number


@app.step
def give_back(number: int) -> int:
    """Undo it."""
    leave_trace(f"give back {number}")
    time.sleep(0.1)
    return number


@app.workflow(retry=Retry(max_attempts=2, initial="50ms"))
async def travel() -> None:
    """Fail at the end of each attempt."""
    for number in range(3):
        ctx.on_failure(give_back, await book(number))
    raise LookupError("no room is free")
