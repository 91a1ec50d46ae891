"""The work that crash tests kill workers in: steps that leave a trace of their own outside the engine.

Each step writes one row into `effects` on a connection of its own, committed before it returns, so that a
step which ran again can be counted without asking the journal. Nothing here asserts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import psycopg

from pyengine import App, Retry, StepInterrupted, ctx

EFFECTS = """
create table if not exists public.effects (
  run text not null, child integer not null, step text not null, pid integer not null,
  at_ms bigint not null default floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
"""

app = App()


def leave_trace(step: str) -> None:
    """Write one row of `effects` and commit it."""
    info = ctx.step
    with psycopg.connect(os.environ["PYENGINE_DATABASE_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into public.effects (run, child, step, pid) values (%s, %s, %s, %s)",
            (info.run_id, info.child, step, os.getpid()),
        )


@app.step(retry=Retry(max_attempts=100, initial="50ms", backoff=1.0, only=(psycopg.OperationalError,)))
def note(text: str) -> str:
    """A step that works at once, as soon as the server for its trace is there."""
    leave_trace(text)
    return text


@app.step(retry=Retry(max_attempts=3, initial="20ms", jitter=0))
def wobble(text: str) -> str:
    """A step whose first attempt always fails."""
    leave_trace(text)
    if ctx.step.attempt == 1:
        raise ConnectionError("the first attempt fails")
    return text


@app.workflow
async def echo(text: str) -> str:
    """No step at all."""
    return text


@app.workflow
async def side(text: str) -> str:
    """A child run with one step."""
    return await note(f"{text}/step")


async def chain(name: str) -> list[str]:
    """Two steps, one after the other."""
    return [await note(f"{name}1"), await note(f"{name}2")]


@app.workflow
async def journey(name: str) -> list[str]:
    """Steps, a gather of two chains, a child, a sleep and a retry."""
    first = await note("first")
    left, right = await asyncio.gather(chain("left"), chain("right"))
    child = await side("child")
    await ctx.sleep(0.05)
    shaky = await wobble("shaky")
    return [name, first, *left, *right, child, shaky]


def expected_journey(name: str) -> list[str]:
    """What an undisturbed `journey` returns."""
    return [name, "first", "left1", "left2", "right1", "right2", "child/step", "shaky"]


@app.step
async def count(number: int) -> int:
    """One of very many steps; its trace is left in a thread so that the loop stays free."""
    await asyncio.to_thread(leave_trace, f"count {number}")
    return number


@app.workflow
async def marathon(steps: int, sleeps: int) -> int:
    """Many steps with sleeps strewn in."""
    total = 0
    every = max(1, steps // sleeps)
    for number in range(steps):
        total += await count(number)
        if number % every == every - 1:
            await ctx.sleep(0.001)
    return total


@app.workflow
async def stuck(path: str) -> str:
    """Blocks the loop for ever in the first process that runs it, and returns in the next."""
    if not os.path.exists(path):  # durable: ok
        with open(path, "w", encoding="utf-8") as mark:  # durable: ok
            mark.write(str(os.getpid()))  # durable: ok
        while True:
            time.sleep(1)  # durable: ok
    return "taken over"


@app.step(intent=True, on_interrupt="fail")
def once_only(text: str, seconds: float) -> str:
    """A step that must not run again once it was begun."""
    leave_trace(text)
    time.sleep(seconds)
    return text


@app.workflow
async def careful(text: str, seconds: float) -> str:
    """One step that must not repeat."""
    try:
        return await once_only(text, seconds)
    except StepInterrupted:
        return "interrupted"


@app.step
async def slow(text: str, seconds: float) -> str:
    """A step that takes its time."""
    await asyncio.to_thread(leave_trace, text)
    await asyncio.sleep(seconds)
    return text


@app.step
def outside(path: str) -> str:
    """A step with an effect that no crash of the server takes back; it ends when it is let go."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("x")
    while not os.path.exists(f"{path}.go"):
        time.sleep(0.01)
    return "done"


@app.workflow
async def leaving(path: str) -> str:
    """One step with an effect outside the database."""
    return await outside(path)


@app.workflow(any_signal=True)
async def patient(text: str, seconds: float) -> str:
    """One slow step. Signals to it are accepted, and stay unread."""
    return await slow(text, seconds)


def message(turn: int) -> dict[str, Any]:
    """A message of a conversation, of about 1 kB."""
    return {"turn": turn, "role": "user" if turn % 2 else "agent", "text": f"{turn:04}" * 250}


@app.step
def reply(conversation: list[dict[str, Any]], deadly: int) -> list[dict[str, Any]]:
    """Return the conversation with one message more; in every `deadly`-th turn its process is killed once."""
    turn = len(conversation)
    if deadly and turn % deadly == deadly - 1:
        info = ctx.step
        with psycopg.connect(os.environ["PYENGINE_DATABASE_URL"], autocommit=True) as conn:
            known = conn.execute(
                "select count(*) from public.effects where run = %s and child = %s", (info.run_id, info.child)
            ).fetchone()
        leave_trace("reply")
        if known == (0,):
            os.kill(os.getpid(), signal.SIGKILL)
    return [*conversation, message(turn)]


@app.workflow
async def converse(turns: int, deadly: int) -> int:
    """A conversation in which each turn holds all that was said; returns the characters of its texts."""
    conversation: list[dict[str, Any]] = []
    for _ in range(turns):
        conversation = await reply(conversation, deadly)
    return sum(len(str(each["text"])) for each in conversation)
