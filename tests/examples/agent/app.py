"""An agent that uses tools in parallel and asks a person before it acts; docs/tutorial/agent.md.

Serve it with `pyengine worker tests.examples.agent.app:app`. MODEL_URL names the model: it gets the
conversation as JSON, and answers with text or with calls of tools.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from pyengine import App, Retry, Signal, ctx

URL = os.environ.get("PYENGINE_DATABASE_URL", "postgresql://localhost/agent")
MODEL_URL = os.environ.get("MODEL_URL", "http://127.0.0.1:8080/chat")
TURNS_MAX = 10
app = App(URL)


class ToolCall(BaseModel):
    """A tool that the model wants to use."""

    id: str
    tool: str
    arguments: dict[str, Any]


class Message(BaseModel):
    """A part of the conversation; a message of the model has text, calls of tools, or both."""

    role: str
    text: str = ""
    calls: list[ToolCall] = []
    call_id: str | None = None


class Verdict(BaseModel):
    """The answer of a person to the question whether the agent may act."""

    allowed: bool
    reason: str = ""


verdict = Signal[Verdict]("verdict")


# -- tools


@app.step(retry=Retry(initial="0.2s"))
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: {10 + len(city)} degrees"


@app.step(retry=Retry(initial="0.2s"))
async def trains(start: str, end: str) -> list[str]:
    """Look up trains."""
    return [f"{hour}:15 {start} to {end}" for hour in (8, 10)]


@app.step
async def book(train: str) -> str:
    """Buy a ticket. The key makes it one ticket, also if the worker dies before the ticket is recorded."""
    return f"ticket {ctx.step.idempotency_key} for the {train}"


LOOK_UPS: dict[str, Callable[..., Awaitable[Any]]] = {"weather": weather, "trains": trains}


# -- the agent


@app.workflow
async def assist(task: str) -> str:
    """Work on a task until the model answers without calls of tools."""
    conversation = [Message(role="user", text=task)]
    for turn in range(TURNS_MAX):
        ctx.progress(turn, TURNS_MAX, "the model thinks")
        reply = await think(conversation)
        conversation.append(reply)
        if not reply.calls:
            return reply.text
        ctx.progress(turn, TURNS_MAX, f"uses {', '.join(call.tool for call in reply.calls)}")
        conversation += await ctx.gather(*(use(call) for call in reply.calls))
    raise RuntimeError(f"no answer after {TURNS_MAX} turns")


async def think(conversation: list[Message]) -> Message:
    """Ask the model; a recorded answer is never asked for again."""
    answer = await ctx.http("POST", MODEL_URL, json=[one.model_dump() for one in conversation])
    return answer.json(Message)


async def use(call: ToolCall) -> Message:
    """Use one tool; an error is an answer that the model can read."""
    try:
        if call.tool == "book":
            result: Any = await with_permission(call)
        else:
            result = await LOOK_UPS[call.tool](**call.arguments)
    except Exception as error:
        result = f"failed: {error}"
    return Message(role="tool", text=str(result), call_id=call.id)


async def with_permission(call: ToolCall) -> str:
    """Book a train if a person allows it within a day."""
    ctx.set("question", f"book the {call.arguments['train']}?")
    try:
        answer = await ctx.receive(verdict, timeout="1d")
    finally:
        ctx.set("question", None)
    if not answer.allowed:
        return f"not allowed: {answer.reason}"
    return await book(call.arguments["train"])
