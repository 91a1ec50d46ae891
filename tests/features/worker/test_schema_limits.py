"""Law: what the schema cannot take is refused where the call is made, by an error that the code can catch.
Sent in a turn it would cost the run its report, and halt it, or stop the worker that cannot write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from pyengine import App, ctx
from pyengine.errors import EngineError

Connection = psycopg.Connection[tuple[Any, ...]]
TEXTS = {"long": "n" * 100_000, "NUL": "a\0b", "lone surrogate": "a\ud800b"}
# errors of others than the call: what a child or a step said, what is not there, what the driver cannot send,
# and an argument in base64, for which nobody answers
EXPECTED = {"RunFailed", "RemoteError", "Boom", "NotFound", "asyncpg", "TimeoutError", "done"}

app = App("postgresql://nowhere")


class Boom(Exception):
    """An error with data."""


@app.step
async def give(which: str, *, as_key: bool = False) -> Any:
    """A result that holds the text."""
    return {TEXTS[which]: 1} if as_key else TEXTS[which]


@app.step
async def fail(which: str, *, as_data: bool = False) -> None:
    """An error that holds the text."""
    error = Boom("boom" if as_data else TEXTS[which])
    error.__dict__.update({TEXTS[which]: TEXTS[which]} if as_data else {})
    raise error


@app.step
async def take(value: Any) -> None:
    """A step with an argument."""


@app.workflow
async def child(value: Any) -> Any:
    """A child run with an argument."""
    return TEXTS.get(value, value)


async def transact(name: str, verb: str, *given: Any, **more: Any) -> None:
    """A transaction with one statement or effect."""
    async with ctx.transaction(name) as tx:
        await getattr(tx, verb)(*given, **more)


def calls(which: str) -> dict[str, Callable[[], Any]]:
    """All calls that take a text, or answer with one."""
    text = TEXTS[which]
    return {
        "the label of a promise": lambda: ctx.promise(str, name=text, timeout="1ms"),
        "the id of a promise": lambda: ctx.promise(id=text),
        "the name of a signal": lambda: ctx.receive(text, timeout="1ms"),
        "the name of a value": lambda: ctx.set(text, 1),
        "a value": lambda: ctx.set("x", text),
        "the note of a progress": lambda: ctx.progress(1, 2, text),
        "a change": lambda: ctx.patched(text),
        "the queue of a child": lambda: ctx.start(child, 1, queue=text),
        "a service": lambda: ctx.start(f"sql://{text}.x"),
        "an argument": lambda: take(text),
        "an argument of a child": lambda: child(text),
        "an undo step": lambda: ctx.on_failure(take, text),
        "the next generation": lambda: ctx.continue_as_new(text) if which != "long" else None,
        "the result of a step": lambda: give(which),
        "a key of a result": lambda: give(which, as_key=True),
        "the result of a child": lambda: child(which),
        "the message of an error": lambda: fail(which),
        "an attribute of an error": lambda: fail(which, as_data=True),
        "the target of a remote call": lambda: ctx.rpc(f"poll://any@{text}", "f", timeout="1ms"),
        "a remote function": lambda: ctx.rpc("poll://any@g", text, timeout="1ms"),
        "an argument of a remote call": lambda: ctx.rpc("poll://any@g", "f", text, timeout="1ms"),
        "a function of the database": lambda: ctx.sql(f"pg_catalog.{text}"),
        "an argument of a function": lambda: ctx.sql("pg_catalog.md5", text),
        "the name of a transaction": lambda: transact(text, "execute", "select 1"),
        "a statement": lambda: transact("t", "execute", f"select '{text}'"),
        "an argument of a statement": lambda: transact("t", "execute", "select $1::text", text),
        "a run to start": lambda: transact("t", "start", child, 1, id=text),
        "a workflow to start": lambda: transact("t", "start", text),
        "a version to start": lambda: transact("t", "start", "child", 1, version=text),
        "a run to signal": lambda: transact("t", "signal", text, "go"),
        "a signal to send": lambda: transact("t", "signal", "r", text),
        "the key of a signal": lambda: transact("t", "signal", "r", "go", dedup=text),
        "a promise to settle": lambda: transact("t", "resolve", text),
        "a value to settle with": lambda: transact("t", "resolve", "p", text),
        "an error to settle with": lambda: transact("t", "reject", "p", text),
    }


CALLS = {f"{what}, {which}": call for which in TEXTS for what, call in calls(which).items()}
NUMBERS = (float("nan"), float("inf"), -1, 0, 10**30, 10**400)
for number in NUMBERS:
    CALLS[f"progress {number}"[:40]] = lambda n=number: ctx.progress(n, n)
    CALLS[f"sleep {number}"[:40]] = lambda n=number: ctx.sleep(n)
    CALLS[f"promise {number}"[:40]] = lambda n=number: ctx.promise(timeout=n)
    CALLS[f"child {number}"[:40]] = lambda n=number: ctx.start(child, 1, timeout=n)
    CALLS[f"priority {number}"[:40]] = lambda n=number: transact("t", "start", child, 1, priority=n)
    CALLS[f"argument {number}"[:40]] = lambda n=number: child(n)


@app.workflow(any_signal=True)
async def attempt(what: str) -> str:
    """Make one call, and go on, whatever came of it."""
    try:
        found = CALLS[what]()
        if hasattr(found, "__await__"):
            await found
        told = "done"
    except (EngineError, Boom, TimeoutError, OverflowError) as error:
        told = type(error).__name__
    except Exception as error:
        # the driver's own, for what it sends to the server outside of a turn
        told = type(error).__module__.partition(".")[0]
    await take(1)
    return told


def test_each_limit_is_met_at_the_call(dsn: str, conn: Connection) -> None:
    """Every run that makes such a call goes on and completes; none is halted, and the worker goes on."""
    app.use_database(dsn)
    told: dict[str, str] = {}

    async def play() -> None:
        async with app.worker(), app.client() as client:
            runs = {what: await client.start(attempt, what) for what in CALLS}
            for what, run in runs.items():
                told[what] = await run.result()

    asyncio.run(asyncio.wait_for(play(), 120))
    assert set(told) == set(CALLS)
    unsaid = {what: how for what, how in told.items() if what.endswith((", NUL", ", lone surrogate"))}
    kinds = {*EXPECTED, "InvalidRequest", "EncodeError"}
    assert {what for what, how in unsaid.items() if how not in kinds} == set()
    assert [what for what, how in unsaid.items() if how == "done"] == [
        f"the note of a progress, {which}" for which in ("NUL", "lone surrogate")
    ]
