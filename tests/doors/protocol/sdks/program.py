"""A program of the published Python SDK: a worker, or a client that plays scenes and prints what it got.

    program.py FOLDER URL GROUP PID worker | late-worker
    program.py FOLDER URL GROUP PID ask PREFIX SCENE ...
    program.py FOLDER URL GROUP PID call ID FUNCTION ARGS
    program.py FOLDER URL GROUP PID settle ID VALUE
    program.py FOLDER URL GROUP PID await ID ...
    program.py FOLDER URL GROUP PID cancel ID

It runs in the SDK's own environment and knows nothing of the engine. URL is that of a gateway, or of a
database with the functions of a Postgres server of Resonate. A scene is about functions of workers of a
group, whatever language they are written in; GROUP is that group, also for who only asks. Each answer is a
line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from resonate.context import Context
from resonate.resonate import Resonate
from resonate.retry import Constant, Never
from resonate.types import Value

FOLDER, URL, GROUP, PID, ROLE, *REST = sys.argv[1:]
CALLS: list[int] = []


def add(ctx: Context, a: int, b: int) -> int:
    return a + b


async def sum_of(ctx: Context, count: int) -> int:
    """Calls side by side."""
    parts = [ctx.options(target=GROUP).rpc("add", n, 1) for n in range(count)]
    return sum([await part for part in parts])


async def steps(ctx: Context, count: int) -> int:
    """Calls of its own, here."""
    return sum([await ctx.run(add, n, 1) for n in range(count)])


async def fib(ctx: Context, n: int) -> int:
    """Calls of itself."""
    if n < 2:
        return n
    parts = [ctx.options(target=GROUP).rpc("fib", n - 1), ctx.options(target=GROUP).rpc("fib", n - 2)]
    return sum([await part for part in parts])


async def nap(ctx: Context, ms: int) -> str:
    await ctx.options(target=GROUP).sleep(timedelta(milliseconds=ms))
    return "awake"


async def leave(ctx: Context) -> str:
    """Begins something and does not wait for it; answers its id."""
    return await ctx.options(target=GROUP).detached("add", 2, 3)


async def question(ctx: Context) -> str:
    """Waits for what somebody else decides."""
    return f"they said {await ctx.promise()}"


def fail(ctx: Context) -> None:
    raise ValueError("no luck")


def flaky(ctx: Context) -> int:
    """Fails once; answers how often it was called."""
    CALLS.append(1)
    if len(CALLS) == 1:
        raise ValueError("not yet")
    return len(CALLS)


async def relay(ctx: Context, calls: list[Any]) -> list[Any]:
    """Calls functions of others, one after the other; answers what it got of each."""
    answers = []
    for target, name, args in calls:
        answers.append(await outcome(ctx.options(target=target).rpc(name, *args)))
    return answers


async def work(ctx: Context, seconds: float) -> str:
    """Takes a while."""
    await asyncio.sleep(seconds)
    return "worked"


def late(ctx: Context) -> str:
    return "at last"


async def outcome(answer: Awaitable[Any]) -> Any:
    """A result, or the text of the error."""
    try:
        return await answer
    except Exception as error:
        return {"error": str(error)}


async def count_of(resonate: Resonate, tags: dict[str, str]) -> int:
    """How many resolved promises have these tags, page by page."""
    count, cursor = 0, None
    while True:
        page = await resonate.promises.search("resolved", tags, 10, cursor)
        count, cursor = count + len(page.promises), page.cursor
        if cursor is None:
            return count


async def play(resonate: Resonate, scene: str, id_: str) -> Any:
    there = resonate.options(target=GROUP, timeout=timedelta(minutes=5))
    calls = {
        "rpc": ("add", 2, 3),
        "fan-out": ("sum_of", 20),
        "recursion": ("fib", 6),
        "sleep": ("nap", 300),
        "long-sleep": ("nap", 5000),
        "human": ("question",),
        "missing": ("late",),
        "retries": ("flaky",),
        "work": ("work", 3),
        "fan-out-of-hundred": ("sum_of", 100),
        "deep-recursion": ("fib", 9),
    }
    if scene in calls:
        return await there.rpc(id_, *calls[scene]).result()
    match scene:
        case "run":
            return await resonate.run(id_, steps, 3).result()
        case "detached":
            child = await there.rpc(id_, "leave").result()
            return await (await resonate.get(child)).result()
        case "rejected":
            try:
                await there.rpc(id_, "fail").result()
            except Exception as error:
                return str(error)
        case "again":
            first = await there.rpc(id_, "add", 1, 1).result()
            return [first, await there.rpc(id_, "add", 5, 5).result()]
        case "named":
            right = await there.rpc(f"{id_}-right", "greet", name="ann", loud=True).result()
            try:
                return [right, await there.rpc(id_, "greet", "ann").result()]
            except Exception as error:
                return [right, str(error)]
        case "search":
            return await count_of(resonate, {"resonate:origin": id_.removesuffix(scene) + "fan-out"})
        case "schedule":
            await resonate.schedule(id_, "* * * * *", "add", 1, 2)
            found = await resonate.schedules.get(id_)
            await resonate.schedules.delete(id_)
            return found.cron


def connected(group: str) -> Resonate:
    """A client over HTTP, or over the database itself."""
    if not URL.startswith("postgresql:"):
        return Resonate(url=URL, group=group, pid=PID, retry_policy=Never())
    from resonate_pg import PostgresConnection

    network = PostgresConnection(URL, pid=PID, group=group)
    return Resonate(network=network, group=group, pid=PID, retry_policy=Never())


async def main() -> None:
    works = ROLE in ("worker", "late-worker")
    resonate = connected(GROUP if works else f"{GROUP}-asks")
    # 0.7 begins its network in a task, and refuses what is sent before
    await asyncio.sleep(0)
    usual = (add, sum_of, steps, fib, nap, leave, question, fail, relay, work)
    for function in (late,) if ROLE == "late-worker" else usual:
        resonate.register(function)
    resonate.register(flaky, retry_policy=Constant(max_retries=3, delay=0))
    if works:
        # until its input ends: it does not outlive the tests
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)
    elif ROLE == "settle":
        id_, value = REST
        await resonate.promises.resolve(id_, Value(data=value))
    elif ROLE == "cancel":
        await resonate.promises.cancel(REST[0], Value())
    elif ROLE == "await":
        for id_ in REST:
            print(json.dumps(await outcome((await resonate.get(id_)).result())), flush=True)
    elif ROLE == "call":
        id_, name, args = REST
        there = resonate.options(target=GROUP, timeout=timedelta(minutes=5))
        print(json.dumps(await outcome(there.rpc(id_, name, *json.loads(args)).result())), flush=True)
    else:
        prefix, *scenes = REST
        for scene in scenes:
            print(json.dumps(await play(resonate, scene, prefix + scene)), flush=True)
    await resonate.stop()


asyncio.run(main())
