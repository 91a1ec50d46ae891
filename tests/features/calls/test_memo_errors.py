"""Law: whatever a memo raises is its failed result: it ends no worker, and no call waits for ever."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pyengine import App, ctx


class Unspeakable(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        """Fail."""
        raise LookupError("no text")


def thrown(error: BaseException) -> Callable[[], int]:
    """A body that raises it."""

    def body() -> int:
        raise error

    return body


HOSTILE: dict[str, Callable[[], int]] = {
    "exit": lambda: sys.exit(3),
    "end of an iterator": lambda: next(iter(())),
    "cancelled": thrown(asyncio.CancelledError()),
    "no text": thrown(Unspeakable()),
    "base": thrown(BaseException("low")),
    "fine": lambda: 5,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", [how for how in HOSTILE if how != "fine"])
@pytest.mark.parametrize("is_async", [True, False])
def test_whatever_a_function_raises_is_its_result(dsn: str, how: str, is_async: bool) -> None:
    """It ends no worker and no call waits for ever: another call is answered afterwards."""
    app = App(dsn)

    @app.memo(version="1")
    def plain(how: str) -> int:
        return HOSTILE[how]()

    @app.memo(version="1")
    async def on_loop(how: str) -> int:
        return HOSTILE[how]()

    memo = on_loop if is_async else plain

    @app.workflow
    async def go(how: str) -> list[Any]:
        outcome = await ctx.call(memo, how).outcome()
        return [outcome.status, (outcome.error or {})["message"], await ctx.call(memo, "fine")]

    status, message, fine = app.run(go, how)
    assert (status, fine) == ("error", 5)
    assert isinstance(message, str)
