"""Law: a plain function around an async one is a memo as well: what it returns is awaited."""

from __future__ import annotations

import functools
from typing import Any

from pyengine import App


def plainly(fn: Any) -> Any:
    """A decorator that is not async."""

    @functools.wraps(fn)
    def wrapper(n: int) -> Any:
        return fn(n)

    return wrapper


def test_a_plain_decorator_of_a_memo(dsn: str) -> None:
    """It has the result and the error of the async function."""
    app = App(dsn)

    @app.memo(version="1")
    @plainly
    async def halve(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n // 2

    @app.workflow
    async def go(n: int) -> str:
        try:
            return str(await halve(n))
        except Exception as error:
            return str(error)

    assert app.run(go, 4) == "2"
    assert "3 is odd" in app.run(go, 3)
