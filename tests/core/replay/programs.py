"""Random workflow programs: a tree of branches, each leaf one durable call of some kind.

What a program returns holds ids, captured values and virtual times, so that a number that moved cannot go
unnoticed. `play` runs one; `drive` plays one to its end with events in random order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from pyengine.context import ctx
from pyengine.core.definitions.signals import Signal
from pyengine.core.protocol.commands import Adopt, Fail, Halt, MakePromise, Receive, StartTimer, Suspend
from pyengine.core.replay.advance import StepCall
from pyengine.errors import InvalidRequest, NotFound
from tests.core.replay.memory_run import Cancel, Done, MemoryRun, SignalSent, add, greet, ship, workflow

Node = tuple[Any, ...]
PLAIN_LEAVES = (
    *("step", "child", "promise", "sleep", "aio_sleep", "now", "random", "uuid4", "timeout", "given_up"),
)
NEW_LEAVES = ("receive", "receive_limit", "set_all", "set_next", "set_limit", "adopt", "refused", "patched")
NEW_LEAVES += ("randint", "choice", "shuffle", "uuid7")
PLAIN_FORKS = ("seq", "gather", "aio_gather", "group", "first", "as_completed")
NEW_FORKS = ("shield", "cancel", "background", "limit")
NAMES = "ab"


def program(rng: random.Random, depth: int, *, new: bool) -> Node:
    """Return a random program of at most that depth; `new` with signals, join sets, shields."""
    if depth == 0 or rng.random() < 0.3:
        return (rng.choice(PLAIN_LEAVES + NEW_LEAVES * new), rng.randrange(100))
    fork = rng.choice(PLAIN_FORKS + NEW_FORKS * new)
    return (fork, *(program(rng, depth - 1, new=new) for _ in range(rng.randint(1, 3))))


async def timed(call: Awaitable[Any], delay: float) -> Any:
    """Wait for a call, but not longer than that."""
    try:
        async with asyncio.timeout(delay):
            return await call
    except TimeoutError:
        return ["late", asyncio.get_running_loop().time()]


async def receive(name: str, limit: float | None) -> Any:
    """Receive a signal, unless somebody else does."""
    try:
        return await ctx.receive(Signal[int](name), timeout=limit)
    except TimeoutError:
        return "nothing"
    except InvalidRequest:
        return "busy"


async def refused(n: int) -> Any:
    """Wait for a promise that does not exist, sometimes as a member of a join set."""
    promise = ctx.promise(id=f"missing-{n}-{ctx.uuid4()}")
    try:
        if n % 3 == 0:
            tasks = ctx.join_set()
            tasks.submit(promise)
            return await tasks.next()
        return await promise
    except NotFound as error:
        return [str(error), (await promise_error(promise)) == str(error)]


async def promise_error(promise: Awaitable[Any]) -> str:
    """The error of a promise that failed before."""
    try:
        await promise
    except NotFound as error:
        return str(error)
    return ""


async def members(kind: str, n: int) -> Any:
    """Put a step, a child run and a promise into a join set and take them."""
    tasks = ctx.join_set()
    for each in (add(n, n), ctx.start(ship, n), ctx.promise())[: n % 3 + 1]:
        tasks.submit(each)
    if kind == "set_all":
        return await tasks.all()
    if kind == "set_limit":
        first = await timed(tasks.next(), n)
        return [first, [one async for one in tasks]]
    return [await tasks.next() for _ in range(len(tasks))]


async def leaf(kind: str, n: int) -> Any:
    """Make one durable call."""
    match kind:
        case "step":
            return await add(n, n)
        case "child":
            child = ctx.start(ship, n)
            return [child.id, await child]
        case "promise" | "adopt":
            promise = ctx.promise(id=f"foreign-{n}-{ctx.uuid4()}") if kind == "adopt" else ctx.promise()
            return [promise.id, await promise]
        case "refused":
            return await refused(n)
        case "sleep":
            return await ctx.sleep(n / 10)
        case "aio_sleep":
            return await asyncio.sleep(n / 10)
        case "now":
            return ctx.now().isoformat()
        case "random":
            return ctx.random()
        case "uuid4":
            return str(ctx.uuid4())
        case "randint":
            return ctx.randint(-n, n)
        case "choice":
            return ctx.choice(NAMES)
        case "shuffle":
            items = list(range(n))
            ctx.shuffle(items)
            return items
        case "uuid7":
            return str(ctx.uuid7())
        case "patched":
            return ctx.patched(f"change-{n % 3}")
        case "timeout":
            return await timed(greet(str(n)), 1 + n)
        case "receive" | "receive_limit":
            return await receive(NAMES[n % len(NAMES)], n if kind == "receive_limit" else None)
        case "set_all" | "set_next" | "set_limit":
            return await members(kind, n)
        case _:
            _ = greet(f"nobody waits for {n}")
            return "gone"


async def play(node: Node) -> Any:
    """Run a program."""
    kind, rest = node[0], node[1:]
    if kind in PLAIN_LEAVES + NEW_LEAVES:
        return [kind, await leaf(kind, rest[0])]
    match kind:
        case "seq":
            return [await play(one) for one in rest]
        case "gather":
            return list(await ctx.gather(*map(play, rest)))
        case "aio_gather":
            return list(await asyncio.gather(*map(play, rest)))
        case "first":
            return list(await ctx.first(*map(play, rest)))
        case "as_completed":
            return [await one for one in ctx.as_completed(*map(play, rest))]
        case "shield":
            async with ctx.shield():
                return [await play(one) for one in rest]
        case "limit":
            return await timed(asyncio.gather(*map(play, rest)), 7)
        case "cancel" | "background":
            return await beside(kind, rest)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play(one)) for one in rest]
    return [task.result() for task in tasks]


async def beside(kind: str, rest: Node) -> Any:
    """Run the first part in a task beside the others, and then cancel it or wait for it."""
    task = asyncio.create_task(play(rest[0]))
    others = [await play(one) for one in rest[1:]]
    if kind == "cancel":
        task.cancel()
        await asyncio.wait([task])
    return [others, "cancelled" if task.done() and task.cancelled() else await task]


def cleaning(work: Node, clean_up: Node | None) -> Callable[[], Any]:
    """Return a workflow that plays a program, and on cancellation another one in a shield."""

    async def code() -> Any:
        try:
            return await play(work)
        except asyncio.CancelledError:
            if clean_up is None:
                raise
            async with ctx.shield():
                cleaned = await play(clean_up)
            return ["cleaned", cleaned]

    return code


def check_cold(run: MemoryRun) -> None:
    """A replay by another process wants what is open, and nothing that was done."""
    moves = run.cold()
    assert not isinstance(moves.end, Halt), moves.end
    for command in moves.commands:
        assert isinstance(command, Receive) and run.receivers[command.name] == command.child, command
    steps = {one.child: one for one in moves.steps}
    open_steps = {n: one.hash for n, one in run.open.items() if isinstance(one, StepCall)}
    # a step that was given up before it was ever recorded is not asked for again
    assert {n: one.hash for n, one in steps.items()}.items() <= open_steps.items()
    assert len(steps) == run.waits == run.cold_waits
    assert moves.end == run.end


def _value(run: MemoryRun, child: int) -> Any:
    call = run.open[child]
    if isinstance(call, StepCall):
        return sum(call.args) if call.name == "add" else f"hello {child}"
    return None if isinstance(call, StartTimer) else f"value {child}"


def events(run: MemoryRun, rng: random.Random) -> Iterator[Done | SignalSent]:
    """Return what may happen next, in random order: some completions, some signals."""
    awaited = run.end.on if isinstance(run.end, Suspend) else ()
    choices = [n for n in run.open if not awaited or n in awaited or rng.random() < 0.3]
    for child in rng.sample(choices, min(len(choices), rng.choice((0, 1, 1, 1, 2, 3)))):
        unlucky = isinstance(run.open[child], MakePromise | Adopt) and rng.random() < 0.02
        yield Done(child, _value(run, child), ValueError(f"rejected {child}") if unlucky else None)
    if rng.random() < (0.5 if run.receivers else 0.1):
        yield SignalSent(rng.choice(NAMES), rng.randrange(10))


def drive(code: Callable[[], Any], rng: random.Random, *, cancel: float = 0.0) -> MemoryRun:
    """Play a program to its end; with that probability for each turn it is asked to end."""
    run = MemoryRun(workflow(code), seed=rng.randrange(2**30))
    for _ in range(2000):
        if run.warm.finished or isinstance(run.end, Fail | Halt):
            return run
        check_cold(run)
        happen: list[Any] = list(events(run, rng))
        rng.shuffle(happen)
        if not run.cancelling and run.late_request is None and rng.random() < cancel:
            if rng.random() < 0.3:
                run.late_request = Cancel("late")
            else:
                happen.insert(rng.randint(0, len(happen)), Cancel("asked"))
        run.now_ms += rng.randrange(50_000)
        run.turn(*happen)
    raise AssertionError("it never ends")
