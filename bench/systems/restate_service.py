"""Restate's worker: the workflows that are measured as handlers of its Python SDK, under hypercorn. Apart
from its adapter because the SDK evaluates annotations when handlers are defined, which therefore are of a
module that imports it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.systems.restate import ENDS
from bench.workflows import tenths

Json = dict[str, Any]
bench, signalled = restate.Service("Bench"), restate.Workflow("Signalled")
ended, last = 0, 0.0


async def tick(number: int) -> Json:
    """A step that costs nothing but its record."""
    return {"number": number}


async def stamp() -> float:
    """A step that records when it ran."""
    return time.monotonic()


def count() -> None:
    """A run has come to its end."""
    global ended, last
    ended, last = ended + 1, time.time()


@bench.handler()
async def noop(ctx: restate.Context, number: int) -> Json:
    """A run without steps."""
    count()
    return {"number": number}


@bench.handler()
async def few_steps(ctx: restate.Context, number: int) -> Json:
    """As many steps as asked for, one after the other."""
    total = 0
    for index in range(number):
        total += (await ctx.run_typed("tick", tick, restate.RunOptions(), index))["number"]
    count()
    return {"number": total}


@bench.handler()
async def ten_steps(ctx: restate.Context, number: int) -> Json:
    """Ten steps, one after the other."""
    for index in range(10):
        number += (await ctx.run_typed("tick", tick, restate.RunOptions(), index))["number"]
    count()
    return {"number": number}


@bench.handler()
async def fan_out(ctx: restate.Context, width: int) -> Json:
    """As many calls as asked for, awaited together."""
    calls = [ctx.service_call(noop, index) for index in range(width)]
    await restate.gather(*calls)
    return {"number": sum([(await call)["number"] for call in calls])}


@bench.handler()
async def long(ctx: restate.Context, steps: int) -> list[float]:
    """Steps one after the other; answers what one cost, early and late."""
    return tenths([await ctx.run_typed("stamp", stamp) for _ in range(steps)])


@signalled.main()
async def run(ctx: restate.WorkflowContext, number: int) -> Json:
    """A run that waits for one signal."""
    return await ctx.promise("go").value()


@signalled.handler()
async def go(ctx: restate.WorkflowSharedContext, value: Json) -> None:
    """The signal."""
    await ctx.promise("go").resolve(value)


served = restate.app([bench, signalled], protocol="bidi")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The service, and the number of finished handlers and the time of the last one, which Restate does not
    report.
    """
    if scope.get("path") != ENDS:
        await served(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{ended} {last}".encode()})


if __name__ == "__main__":
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    asyncio.run(serve(app, config))
