"""Law: the ways in the page of `pyengine.core.worker` are those that a run takes, stop by stop."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import pytest

import pyengine.core.worker
from pyengine import App, Client, Worker

STOP = re.compile(r"^(\d+)\. (\w+):(\w+)\.(\w+) ", re.MULTILINE)
LOOPS = {"TurnLoop.send", "TurnLoop.apply"}
"""They begin with the worker and never return."""


def ways() -> list[list[tuple[str, str, str]]]:
    """The lists of the page: module, class and function of each stop."""
    found: list[list[tuple[str, str, str]]] = []
    for number, *stop in STOP.findall(inspect.getdoc(pyengine.core.worker) or ""):
        if number == "1":
            found.append([])
        found[-1].append((stop[0], stop[1], stop[2]))
        assert int(number) == len(found[-1])
    return found


def traced(calls: list[str], name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that notes its calls."""

    @wraps(plain)
    def noted(*given: Any, **more: Any) -> Any:
        calls.append(name)
        return plain(*given, **more)

    return noted


def test_the_ways_are_taken(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with two steps takes the way of a claimed run, then that of a step's result."""
    app, calls = App(dsn), []

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def go() -> int:
        return await step(1) + await step(2)

    first, second = ways()
    for module, holder, name in {*first, *second}:
        cls = getattr(import_module(f"pyengine.core.worker.{module}"), holder)
        stop = f"{holder}.{name}"
        if stop not in LOOPS:
            monkeypatch.setattr(cls, name, traced(calls, stop, vars(cls)[name]))
        else:
            assert name in vars(cls)

    async def main() -> int:
        async with Client(dsn) as client:
            run = await client.start(go)
            async with Worker(app.registry, dsn):
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 3
    left = iter(calls)
    for stop in [f"{holder}.{name}" for _, holder, name in (*first, *second)]:
        assert stop in LOOPS or stop in left, f"{stop} is not called after the stop before it"
