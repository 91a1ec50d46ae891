"""A program of the Python SDK before the envelope, 0.6: a worker, or a client that plays scenes.

    program_0_6.py FOLDER URL GROUP PID worker
    program_0_6.py FOLDER URL GROUP PID ask PREFIX SCENE ...
    program_0_6.py FOLDER URL GROUP PID call ID FUNCTION ARGS
    program_0_6.py FOLDER URL GROUP PID settle ID VALUE
    program_0_6.py FOLDER URL GROUP PID await ID ...
    program_0_6.py FOLDER URL GROUP PID cancel ID

It runs in the SDK's own environment and knows nothing of the engine. URL is where requests go, and where
streams come from, with a comma between. Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from resonate import Context, Resonate
from resonate.retry_policies import Constant, Never

FOLDER, URL, GROUP, PID, ROLE, *REST = sys.argv[1:]
CALLS: list[int] = []


def add(ctx: Context, a: int, b: int) -> int:
    return a + b


def sum_of(ctx: Context, count: int) -> Any:
    """Calls side by side."""
    parts = []
    for n in range(count):
        parts.append((yield ctx.rfi("add", n, 1).options(target=GROUP)))
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
    first = yield ctx.rfi("fib", n - 1).options(target=GROUP)
    second = yield ctx.rfi("fib", n - 2).options(target=GROUP)
    return (yield first) + (yield second)


def nap(ctx: Context, seconds: float) -> Any:
    yield ctx.sleep(seconds)
    return "awake"


def leave(ctx: Context) -> Any:
    """Begins something and does not wait for it; answers its id."""
    part = yield ctx.detached("add", 2, 3).options(target=GROUP)
    return part.id


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
    return (yield ctx.lfc(flaky).options(retry_policy=Constant(delay=0, max_retries=3)))


def refuses(ctx: Context) -> Any:
    return (yield ctx.lfc(fail).options(retry_policy=Never()))


def outcome(get: Callable[[], Any]) -> Any:
    """A result, or the text of the error."""
    try:
        return get()
    except Exception as error:
        return {"error": str(error)}


def play(resonate: Resonate, scene: str, id_: str) -> Any:
    there = resonate.options(target=GROUP, timeout=300)
    calls: dict[str, tuple[Any, ...]] = {
        "rpc": ("add", 2, 3),
        "fan-out": ("sum_of", 20),
        "recursion": ("fib", 6),
        "sleep": ("nap", 0.3),
        "long-sleep": ("nap", 5),
        "human": ("question",),
        "retries": ("retries",),
        "work": ("work", 3),
    }
    if scene in calls:
        return there.rpc(id_, *calls[scene])
    match scene:
        case "run":
            return resonate.run(id_, steps, 3)
        case "detached":
            return resonate.get(there.rpc(id_, "leave")).result()
        case "rejected":
            try:
                there.rpc(id_, "refuses")
            except Exception as error:
                return str(error)
        case "again":
            return [there.rpc(id_, "add", 1, 1), there.rpc(id_, "add", 5, 5)]
        case "schedule":
            resonate.schedules.create(id_, "* * * * *", id_ + ".{{.timestamp}}", 60_000)
            found = resonate.schedules.get(id_)
            resonate.schedules.delete(id_)
            return found.cron


requests, streams = (urlsplit(one) for one in URL.split(","))
works = ROLE == "worker"
resonate = Resonate.remote(
    host=f"{requests.scheme}://{requests.hostname}",
    store_port=str(requests.port),
    message_source_port=str(streams.port),
    group=GROUP if works else f"{GROUP}-asks",
    pid=PID,
    ttl=5,
)
for known in (add, sum_of, steps, fib, nap, leave, question, work, retries, refuses):
    resonate.register(known)
resonate.start()
if works:
    # until its input ends: it does not outlive the tests
    sys.stdin.read()
elif ROLE == "call":
    id_, name, args = REST
    there = resonate.options(target=GROUP, timeout=300)
    print(json.dumps(outcome(lambda: there.rpc(id_, name, *json.loads(args)))), flush=True)
elif ROLE == "await":
    for id_ in REST:
        print(json.dumps(outcome(resonate.get(id_).result)), flush=True)
elif ROLE == "settle":
    id_, value = REST
    resonate.promises.resolve(id_, data=json.dumps(value))
elif ROLE == "cancel":
    resonate.promises.cancel(REST[0])
else:
    prefix, *scenes = REST
    for scene in scenes:
        print(json.dumps(play(resonate, scene, prefix + scene)), flush=True)
os._exit(0)
