"""Law: forty ways to write and wrap a step. Each works, live and in a replay, or is refused at its
registration with its place and the way out.

What is imported twice or loaded again, and two functions of one name: tests/core/replay/test_one_name.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import operator
import sys
import types
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload
from unittest.mock import AsyncMock

import pydantic
import pytest
import tenacity
import wrapt

from pyengine import App
from pyengine.core.values.tracebacks import place_of
from pyengine.errors import InvalidRequest
from tests.support.decorators import plainly

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


async def double(n: int) -> int:
    """An async function."""
    return 2 * n


def treble(n: int) -> int:
    """A plain one."""
    return 3 * n


def asynchronously(fn: Any) -> Any:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return wrapper


def in_a_thread(fn: Any) -> Any:
    @functools.wraps(fn)
    async def wrapper(*args: Any) -> Any:
        return await asyncio.to_thread(fn, *args)

    return wrapper


def barely(fn: Any) -> Any:
    async def unnamed(n: int) -> Any:
        return await fn(n)

    return unnamed


def retrying(attempts: int) -> Any:
    """As the libraries for retries do it: an object around the function leaves itself on the wrapper."""

    def decorate(fn: Any) -> Any:
        wrapper = asynchronously(fn)
        wrapper.retry = wrapper.statistics = types.SimpleNamespace(attempts=attempts)
        return wrapper

    return decorate


def failing(times: int) -> Any:
    """A function that fails so often, then doubles."""
    failures = iter(range(times))

    async def flaky(n: int) -> int:
        if next(failures, None) is not None:
            raise OSError("try again")
        return 2 * n

    return flaky


@wrapt.decorator
def through(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs)


def as_list(fn: Any) -> Any:
    return functools.wraps(fn)(lambda *args: list(fn(*args)))


def nested(k: int) -> Any:
    def middle() -> Any:
        async def inner(n: int) -> int:
            return k * n

        return inner

    return middle()


class Till:
    """Functions of a class."""

    def __init__(self, k: int) -> None:
        self.k = k

    async def sell(self, n: int) -> int:
        return self.k * n

    def count(self, n: int) -> int:
        return self.k + n

    async def __call__(self, n: int) -> int:
        return self.k - n

    @classmethod
    async def close(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @staticmethod
    async def add(a: int, b: int) -> int:
        return a + b

    @staticmethod
    @asynchronously
    async def wrapped_below(n: int) -> int:
        return n


def counted(n: int) -> Any:
    yield from range(n)


async def streamed(n: int) -> AsyncIterator[int]:
    yield n


@contextlib.contextmanager
def opened(n: int) -> Iterator[int]:
    yield n


@contextlib.asynccontextmanager
async def connected(n: int) -> AsyncIterator[int]:
    yield n


async def generic(n: T) -> T:
    return n


async def many(*n: int) -> int:
    return sum(n)


async def named(**n: int) -> int:
    return sum(n.values())


async def only_named(*, n: int) -> int:
    return n


async def only_placed(n: int, /, m: int = 4) -> int:
    return n + m


async def mutable(n: list[int] = []) -> list[int]:  # noqa: B006
    return [*n, 1]


async def hidden(n: Decimal) -> Decimal:
    return n


@overload
def either(n: int) -> int: ...
@overload
def either(n: str) -> str: ...
def either(n: int | str) -> int | str:
    return n


@functools.singledispatch
def dispatched(n: Any) -> int:
    return 0


@dispatched.register
def _(n: int) -> int:
    return n + 1


def returning(n: int) -> Any:
    return double(n)


namespace: dict[str, Any] = {}
exec("async def unannotated(n): return n", namespace)
if sys.version_info >= (3, 12):
    exec("async def newest[T](n: T) -> T: return n", namespace)
namespace.setdefault("newest", generic)

WORKS: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "async": (double, (2,), 4),
    "plain": (treble, (2,), 6),
    "wraps above": (asynchronously(double), (2,), 4),
    "wraps twice": (asynchronously(plainly(double)), (2,), 4),
    "a plain wrapper": (plainly(double), (2,), 4),
    "a plain wrapper of a plain one": (plainly(treble), (2,), 6),
    "an async wrapper of a plain one": (in_a_thread(treble), (2,), 6),
    "no wraps": (barely(double), (2,), 4),
    "retries of a library": (retrying(3)(double), (2,), 4),
    "tenacity": (tenacity.retry(wait=tenacity.wait_none())(failing(2)), (2,), 4),
    "tenacity, plain": (tenacity.retry(treble), (2,), 6),
    "wrapt": (through(double), (2,), 4),
    "validate_call": (pydantic.validate_call(double), (2,), 4),
    "lru_cache": (functools.lru_cache(treble), (2,), 6),
    "cache": (functools.cache(treble), (2,), 6),
    "a generator in a list": (as_list(counted), (3,), [0, 1, 2]),
    "nested factories": (nested(5), (2,), 10),
    "method": (Till(7).sell, (2,), 14),
    "plain method": (Till(7).count, (2,), 9),
    "__call__": (Till(7).__call__, (2,), 5),
    "classmethod": (Till.close, (2,), "Till 2"),
    "staticmethod": (Till.add, (1, 2), 3),
    "staticmethod in its class": (Till.__dict__["add"], (1, 2), 3),
    "staticmethod above wraps": (Till.wrapped_below, (2,), 2),
    "lambda": (lambda n: n + 1, (2,), 3),
    "builtin with parameters": (abs, (-2,), 2),
    "of the standard library": (json.loads, ("[1]",), [1]),
    "a coroutine is returned": (returning, (2,), 4),
    "generic": (generic, (2,), 2),
    "PEP 695": (namespace["newest"], (2,), 2),
    "*args": (many, (1, 2, 3), 6),
    "**kwargs": (named, ({"a": 1, "b": 2},), 3),
    "keyword only": (only_named, ({"n": 2},), 2),
    "positional only": (only_placed, (2,), 6),
    "a mutable default": (mutable, (), [1]),
    "no annotations": (namespace["unannotated"], (2,), 2),
    "overload": (either, ("a",), "a"),
    "singledispatch": (dispatched, (2,), 3),
}


def test_what_works(dsn: str) -> None:
    """One run calls all of them, and is replayed from its journal."""
    app = App(dsn)
    steps = {name: app.step(name=name)(fn) for name, (fn, _, _) in WORKS.items()}
    bodies: list[int] = []

    @app.workflow
    async def go() -> None:
        bodies.append(len(bodies))
        for name, (_, args, expected) in WORKS.items():
            given = args[0] if name in ("**kwargs", "keyword only") else {}
            got = await steps[name](*(() if given else args), **given)
            assert got == expected, f"{name}: {got!r}"

    app.run(go)
    assert bodies == [0, 1]


def test_what_a_worker_refuses(dsn: str) -> None:
    """A type that is imported for type checkers alone is missed when the worker starts, with the place."""
    app, line = App(dsn), hidden.__code__.co_firstlineno
    app.step(hidden)
    with pytest.raises(InvalidRequest) as caught:
        app.run(app.workflow(double), 2)
    assert f"step hidden ({__file__}, line {line}): an annotation cannot be" in caught.value.message
    assert "not under TYPE_CHECKING" in (caught.value.hint or "")


REFUSED = {
    "a call": (lambda: double(2), "the coroutine that a call of double", "do not call it"),
    "a name": (lambda: "double", "not the text 'double'", "(name=...)"),
    "partial": (lambda: functools.partial(double, 2), "not a partial of double", "write a function"),
    "class": (lambda: Till, "not the class Till", "write a function"),
    "object": (lambda: Till(1), "object of the class Till", '(name="till")(object.__call__)'),
    "mock": (AsyncMock, "object of the class AsyncMock", "object.__call__"),
    "itemgetter": (lambda: operator.itemgetter(1), "object of the class itemgetter", "object.__call__"),
    "cache of an async one": (lambda: functools.cache(double), "cache of the async function", "app.memo"),
    "method in its class": (lambda: Till.sell, "no object to call it on", "@staticmethod"),
    "classmethod in its class": (lambda: Till.__dict__["close"], "no object to call it on", "@staticmethod"),
    "generator": (lambda: counted, "is a generator; return a list", ""),
    "async generator": (lambda: streamed, "is a generator; return a list", ""),
    "context manager": (lambda: opened, "cannot be a context manager", "with opened(...)"),
    "async context manager": (lambda: connected, "cannot be a context manager", "with connected(...)"),
    "builtin without parameters": (lambda: dir, "its parameters are not known", ""),
    "property": (lambda: property(treble), "is a function with a name", ""),
}


@pytest.mark.parametrize("kind", ["step", "workflow"])
def test_what_is_refused(kind: str) -> None:
    """The sentence names what was given, the traceback the line, and the hint what to write."""
    app = App("postgresql://nowhere/none")
    for name, (make, says, hint) in REFUSED.items():
        with pytest.raises(InvalidRequest) as caught:
            getattr(app, kind)(name="given")(make())
        refused = (caught.value.message, caught.value.hint or "")
        if not (kind == "workflow" and name in ("builtin without parameters", "async context manager")):
            assert says in refused[0] and hint in refused[1], (name, refused)
        assert (place_of(caught.value.__traceback__) or [""])[0] == __file__, name


def test_a_function_that_a_context_manager_decorates() -> None:
    """It returns what the function returns, as a transaction of an ORM does."""
    app = App("postgresql://nowhere/none")
    with_opened: Any = opened
    with_connected: Any = connected
    app.step(name="plain")(with_opened(1)(treble))
    app.step(name="async")(with_connected(1)(double))
