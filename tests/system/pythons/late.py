"""A program whose annotations name classes that stand below, or that type checkers alone import. From Python
3.14 on it needs no `from __future__ import annotations`; before, it cannot be imported.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine import App
from pyengine.errors import EngineError, InvalidRequest

if TYPE_CHECKING:
    from decimal import Decimal

    from httpx import Response

app = App()


class Refused(Exception):
    """An error with an annotation that cannot be evaluated."""

    response: Response


class OfTheEngine(EngineError):
    """Another one."""

    response: Response
    attempts: int = 3


@app.step
async def double(one: Later) -> Later:  # noqa: F821
    """Take and return what stands below."""
    return Later(2 * one.n)


@app.step
async def refuse() -> None:
    """Fail with such an error."""
    raise Refused("no")


@dataclass
class Later:
    """It stands below."""

    n: int


@app.workflow
async def doubled(n: int) -> int:
    """Use it."""
    return (await double(Later(n))).n


@app.workflow
async def refused() -> str:
    """Catch it."""
    try:
        await refuse()
    except Exception as error:
        return f"caught {error.args[0]}"
    return "nothing"


async def main() -> None:
    """Run them."""
    assert OfTheEngine("why").attempts == 3
    async with app.worker(), app.client() as client:
        print(await (await client.start(doubled, 2)).result(timeout=30))
        print(await (await client.start(refused)).result(timeout=30))
    try:
        # its types are asked for when a worker begins
        @app.step
        async def hidden(x: Decimal) -> str: ...

        async with app.worker():
            print("hidden is taken")
    except InvalidRequest:
        print("hidden is refused")


if __name__ == "__main__":
    asyncio.run(main())
