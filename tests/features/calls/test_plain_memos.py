"""Laws of the functions that memos are made of: as with steps, each name has one, and a plain function around
an async one is awaited."""

from __future__ import annotations

import asyncio
import functools

import pytest

from pyengine import App
from pyengine.errors import InvalidRequest
from tests.core.replay.test_one_name import FACTORIES, Function
from tests.support.decorators import plainly


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
    assert asyncio.run(halve(4)) == 2


@pytest.mark.parametrize("make", FACTORIES)
def test_a_factory_of_memos(make: Function) -> None:
    """Two functions that differ in a value from where they were made are two."""
    app = App()
    app.memo(make("a"), version="1")
    app.memo(make("a"), version="1")
    with pytest.raises(InvalidRequest, match=r"memo 'handle' is registered twice"):
        app.memo(make("b"), version="1")


def test_what_is_no_function_is_no_memo() -> None:
    """An object that can be called, and a cache of coroutines."""

    async def halve(n: int) -> int:
        return n // 2

    for given, says in (
        (functools.lru_cache(halve), "a memo cannot be a cache of the async function halve"),
        (functools.partial(halve, 2), "a memo is a function, not a partial of halve"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            App().memo(given, name="halve", version="1")  # type: ignore[call-overload]
        assert says in caught.value.message
