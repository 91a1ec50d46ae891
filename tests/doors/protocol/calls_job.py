"""Workflows that programs of SDKs call, and that call functions of theirs. Nothing here asserts."""

from __future__ import annotations

from typing import Any

from pyengine import App, ctx

app = App()


@app.workflow(name="ours.add")
async def add(a: int, b: int) -> int:
    """What SDK programs call add."""
    return a + b


@app.workflow(name="ours.greet")
async def greet(*, name: str, loud: bool = False) -> str:
    """What SDK programs call greet; it takes arguments by name alone."""
    return f"hello {name.upper() if loud else name}"


@app.workflow(name="ours.fail")
async def fail() -> None:
    """What SDK programs call fail."""
    raise ValueError("no luck")


@app.workflow(name="ours.call")
async def call(target: str, function: str, args: list[Any]) -> Any:
    """Calls a function there and answers what it got, or the error."""
    try:
        return await ctx.rpc(target, function, *args, timeout="2m")
    except Exception as error:
        return {"error": str(error)}


@app.workflow(name="ours.question")
async def question() -> str:
    """Waits for what somebody else decides."""
    return f"they said {await ctx.promise(str)}"


@app.workflow(name="ours.wait")
async def wait(promise_id: str) -> Any:
    """Waits for a promise or call that somebody else made."""
    try:
        return await ctx.promise(id=promise_id)
    except Exception as error:
        return {"error": str(error)}


@app.workflow(name="ours.say_yes")
async def say_yes(promise_id: str) -> str:
    """Settles what somebody else waits for, by a function of the database."""
    return await ctx.sql("public.say_yes", promise_id, type=str)


@app.workflow(name="ours.nap")
async def nap(ms: int) -> str:
    """Sleeps, until it is cancelled."""
    await ctx.sleep(ms / 1000)
    return "awake"


@app.workflow(name="ours.relay")
async def relay(calls: list[tuple[str, list[Any]]]) -> list[Any]:
    """Runs workflows and services, one after the other; answers what it got of each, or the error."""
    known: dict[str, Any] = {"ours.add": add, "ours.fail": fail, "ours.nap": nap}
    answers: list[Any] = []
    for name, args in calls:
        try:
            answers.append(await ctx.start(known.get(name, name), *args))
        except Exception as error:
            answers.append({"error": f"{error}: {error.__cause__}"})
    return answers
