"""Functions that receive signals, as other modules of an application have them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyengine import Signal, ctx

elsewhere = Signal[int]("elsewhere")


async def wait_elsewhere() -> int:
    """A function that a workflow of another module awaits."""
    return await ctx.receive(elsewhere)


def begin_elsewhere() -> Coroutine[None, None, int]:
    """A function that returns a receive."""
    return ctx.receive(elsewhere)


class Desk:
    """An object that receives."""

    async def wait(self) -> int:
        """Wait for a signal."""
        return await ctx.receive("desk", type=int)


desk = Desk()
handlers: dict[str, Any] = {"wait": desk.wait}
