"""Typical mistakes of newcomers, by the rows of the list: code that a replay cannot repeat."""

from __future__ import annotations

import random
import time
import urllib.request
import uuid
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyengine import App, DeterminismWarning
from tests.core.replay.memory_run import step


def registered(*functions: Callable[..., Any]) -> list[str]:
    """Return the warnings with which workflows are registered."""
    app = App()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for fn in functions:
            app.workflow(fn)
    assert all(one.filename == __file__ for one in caught)
    assert all(issubclass(one.category, DeterminismWarning) for one in caught)
    return [str(one.message) for one in caught]


def test_row_01_clocks_and_random_numbers() -> None:
    """The registration warns, and names what to use."""

    async def clocks() -> None:
        datetime.now()
        time.time()
        uuid.uuid4()
        random.random()

    now, epoch, unique, number = registered(clocks)
    assert now.startswith(
        "workflow clocks calls datetime.now(): a replay cannot repeat it; use instead: ctx."
    )
    assert "calls time.time()" in epoch and "use instead: ctx.now()" in epoch
    assert "calls uuid.uuid4()" in unique and "use instead: ctx.uuid4()" in unique
    assert "calls random.random()" in number and "use instead: ctx.random()" in number


counter = 0


def test_row_17_a_global_counter() -> None:
    """The registration warns of a global that a workflow changes."""

    async def counts() -> int:
        global counter
        counter += 1
        return counter

    found = registered(counts)
    assert found[0].startswith("workflow counts changes the global counter: a replay cannot repeat it")


def test_row_21_files_and_sync_http() -> None:
    """The registration warns, and names a step."""

    async def reads() -> None:
        open("/dev/null").close()
        urllib.request.urlopen("http://localhost")

    file, http = registered(reads)
    assert "calls open()" in file and "use instead: a step" in file
    assert "calls urllib.request.urlopen()" in http and "use instead: ctx.http" in http


def test_row_16_a_list_that_a_step_changes() -> None:
    """The registration warns of a list that the workflow reads and a step appends to."""
    found: list[str] = []

    @step
    async def save(name: str) -> None:
        found.append(name)

    async def collects() -> list[str]:
        await save("a")
        return found

    async def returns_other() -> list[str]:
        await save("a")
        return []

    (text,) = registered(collects, returns_other)
    assert text.startswith(
        "workflow collects reads found, which step save changes: a replay cannot repeat it; use instead: "
        "a value that the step returns"
    )
