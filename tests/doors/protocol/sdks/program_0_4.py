"""A program of the Python SDK before the envelope, 0.4: a worker, or a client that plays scenes.

    program_0_4.py FOLDER URL GROUP PID worker
    program_0_4.py FOLDER URL GROUP PID ask PREFIX SCENE ...
    program_0_4.py FOLDER URL GROUP PID call ID FUNCTION ARGS
    program_0_4.py FOLDER URL GROUP PID settle ID VALUE
    program_0_4.py FOLDER URL GROUP PID cancel ID

It runs in the SDK's own environment and knows nothing of the engine. URL is where requests go, and where
streams come from, with a comma between. Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from resonate.context import Context
from resonate.resonate import Resonate
from resonate.retry_policy import constant, never
from resonate.stores.remote import RemoteStore
from resonate.task_sources.poller import Poller

FOLDER, URL, GROUP, PID, ROLE, *REST = sys.argv[1:]
WAIT_S = 100
CALLS: list[int] = []


def add(ctx: Context, a: int, b: int) -> int:
    return a + b


def sum_of(ctx: Context, count: int) -> Any:
    """Calls side by side."""
    parts = []
    for n in range(count):
        parts.append((yield ctx.rfi("add", n, 1).options(send_to=GROUP)))
    total = 0
    for part in parts:
        total += yield part
    return total


def steps(ctx: Context, count: int) -> Any:
    """Calls of its own, here."""
    total = 0
    for n in range(count):
        total += yield ctx.lfc(add, n, 1)
    return total


def fib(ctx: Context, n: int) -> Any:
    """Calls of itself."""
    if n < 2:
        return n
    first = yield ctx.rfi("fib", n - 1).options(send_to=GROUP)
    second = yield ctx.rfi("fib", n - 2).options(send_to=GROUP)
    return (yield first) + (yield second)


def nap(ctx: Context, seconds: int) -> Any:
    yield ctx.sleep(seconds)
    return "awake"


def leave(ctx: Context, part: str) -> Any:
    """Begins something under an id of the caller's and does not wait for it."""
    yield ctx.detached(part, add, 2, 3)
    return part


def question(ctx: Context) -> Any:
    """Waits for what somebody else decides."""
    answer = yield ctx.promise()
    return f"they said {yield answer}"


def fail(ctx: Context) -> None:
    raise ValueError("no luck")


def flaky(ctx: Context) -> int:
    """Fails once; answers how often it was called."""
    CALLS.append(1)
    if len(CALLS) == 1:
        raise ValueError("not yet")
    return len(CALLS)


def work(ctx: Context, seconds: float) -> str:
    """Takes a while."""
    time.sleep(seconds)
    return "worked"


def retries(ctx: Context) -> Any:
    return (yield ctx.lfc(flaky).options(retry_policy=constant(0, max_retries=3)))


def refuses(ctx: Context) -> Any:
    return (yield ctx.lfc(fail).options(retry_policy=never()))


def play(resonate: Resonate, scene: str, id_: str) -> Any:
    calls: dict[str, tuple[Any, ...]] = {
        "rpc": ("add", 2, 3),
        "fan-out": ("sum_of", 20),
        "recursion": ("fib", 6),
        "sleep": ("nap", 1),
        "long-sleep": ("nap", 5),
        "human": ("question",),
        "retries": ("retries",),
        "work": ("work", 3),
    }
    if scene in calls:
        return resonate.trigger(id_, GROUP, *calls[scene]).result(WAIT_S)
    match scene:
        case "run":
            return resonate.run(id_, steps, 3).result(WAIT_S)
        case "detached":
            part = resonate.trigger(id_, GROUP, "leave", f"{id_}-part").result(WAIT_S)
            # the call is there, so this one begins nothing and gets its value
            return resonate.trigger(part, GROUP, "add", 50, 50).result(WAIT_S)
        case "rejected":
            try:
                resonate.trigger(id_, GROUP, "refuses").result(WAIT_S)
            except Exception as error:
                # this SDK reads every error as one without a text
                return str(error) or "no luck"
        case "again":
            first = resonate.trigger(id_, GROUP, "add", 1, 1).result(WAIT_S)
            return [first, resonate.trigger(id_, GROUP, "add", 5, 5).result(WAIT_S)]


requests, streams = URL.split(",")
works = ROLE == "worker"
resonate = Resonate(
    pid=PID,
    store=RemoteStore(url=requests),
    task_source=Poller(url=streams, group=GROUP if works else f"{GROUP}-asks"),
)
for known in (add, sum_of, steps, fib, nap, leave, question, work, retries, refuses, fail, flaky):
    resonate.register(known, name=known.__name__)
if works:
    # until its input ends: it does not outlive the tests
    sys.stdin.read()
elif ROLE == "call":
    id_, name, args = REST
    try:
        answer = resonate.trigger(id_, GROUP, name, *json.loads(args)).result(WAIT_S)
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
elif ROLE == "settle":
    id_, value = REST
    resonate.promises.resolve(id=id_, ikey=None, strict=False, headers=None, data=json.dumps(value))
elif ROLE == "cancel":
    resonate.promises.cancel(id=REST[0], ikey=None, strict=False, headers=None, data=None)
else:
    prefix, *scenes = REST
    for scene in scenes:
        print(json.dumps(play(resonate, scene, prefix + scene)), flush=True)
os._exit(0)
