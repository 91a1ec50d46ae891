"""Blocks: what is open for the length of an `async with`.

Lives here: `block`, which makes an async generator such a block. May not: know what is opened. Design: its
errors say what to write; those of Python name `_AsyncGeneratorContextManager`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Generic, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Block(AbstractAsyncContextManager[T], Generic[T]):
    """Something that `async with` opens and closes."""

    def __init__(self, what: str, manager: AbstractAsyncContextManager[T]) -> None:
        self._what, self._manager = what, manager

    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._what} has no {name!r} before it is opened: {self._right}")

    def __await__(self) -> NoReturn:
        raise TypeError(f"{self._what} is opened by a block, not by await: {self._right}")

    @property
    def _right(self) -> str:
        return f"async with {self._what} as {self._what.strip('()').rpartition('.')[2]}:"


def block(what: str) -> Callable[[Callable[P, AsyncIterator[T]]], Callable[P, Block[T]]]:
    """Make an async generator function one that returns a block.

    Args:
        what: the call, as code spells it: "app.client()".
    """

    def decorate(fn: Callable[P, AsyncIterator[T]]) -> Callable[P, Block[T]]:
        opened = asynccontextmanager(fn)

        @functools.wraps(fn)
        def made(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
            return Block(what, opened(*args, **kwargs))

        return made

    return decorate
