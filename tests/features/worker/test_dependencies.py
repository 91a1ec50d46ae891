"""Law: a worker opens the dependencies of its app before the first step and closes them after the last; steps
have them, workflow code does not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from pyengine import App, ctx
from pyengine.errors import InvalidRequest, RunFailed
from pyengine.features.dependencies.dependencies import Dependencies, open_dependencies

LOG: list[str] = []


@dataclass
class Pool:
    """Connections."""

    url: str


@dataclass
class Mail:
    """A client."""

    host: str


class Fake(Mail):
    """What a test has instead."""


class Sends(Protocol):
    """No class that instances can be compared with."""

    host: str


async def pool() -> AsyncIterator[Pool]:
    """Opened and closed."""
    LOG.append("pool opens")
    yield Pool("db://shop")
    LOG.append("pool closes")


def mail() -> Iterator[Mail]:
    """The same, for a plain function."""
    LOG.append("mail opens")
    yield Mail("smtp")
    LOG.append("mail closes")


def use() -> str:
    """What a step sees of them."""
    LOG.append("used")
    # a type checker knows these types
    found: Pool = ctx.deps[Pool]
    return f"{found.url} {ctx.deps.mail.host} {ctx.deps.limit}"


class Shop:
    """An app with three dependencies, and steps of both kinds that use them."""

    def __init__(self, dsn: str = "postgresql://127.0.0.1:1/none") -> None:
        self.app = App(dsn, deps={"pool": pool, "mail": mail, "limit": 7})
        self.plain = plain = self.app.step(name="plain")(use)

        @self.app.step
        async def loose() -> str:
            return use()

        @self.app.workflow
        async def work() -> list[str]:
            return [await plain(), await loose()]

        @self.app.workflow
        async def peeks() -> str:
            return str(ctx.deps.limit)

        self.loose, self.work, self.peeks = loose, work, peeks


def test_a_worker_opens_and_closes_them(dsn: str) -> None:
    """In their order, before the first step; and in the opposite order, after the last. Both kinds of steps
    have them."""
    LOG.clear()
    shop = Shop(dsn)
    assert shop.app.run(shop.work) == ["db://shop smtp 7"] * 2
    assert LOG == ["pool opens", "mail opens", "used", "used", "mail closes", "pool closes"]


def test_a_test_replaces_one(dsn: str) -> None:
    """Before the worker starts."""
    LOG.clear()
    shop = Shop(dsn)
    shop.app.deps["mail"] = Fake("nowhere")
    assert shop.app.run(shop.work)[0] == "db://shop nowhere 7"
    assert "mail opens" not in LOG


def test_workflow_code_has_none(dsn: str) -> None:
    """It says so, and where they belong."""
    shop = Shop(dsn)
    with pytest.raises(RunFailed, match=r"ctx\.deps was used in workflow code") as failed:
        shop.app.run(shop.peeks)
    assert "in steps only" in str(failed.value.__cause__)


def test_plain_calls_of_steps() -> None:
    """Outside of a worker a block opens them; outside of the block there are none."""
    LOG.clear()
    shop = Shop()

    async def main() -> None:
        async with shop.app.dependencies() as opened:
            assert opened[Mail].host == "smtp"
            assert await shop.plain() == await shop.loose() == "db://shop smtp 7"
        assert LOG[-2:] == ["mail closes", "pool closes"]
        with pytest.raises(InvalidRequest, match="no dependencies are open") as caught:
            await shop.plain()
        assert "app.dependencies()" in (caught.value.hint or "")

    asyncio.run(main())


def opened(**provided: Any) -> Dependencies:
    """Dependencies, after their block."""

    async def main() -> Dependencies:
        async with open_dependencies(provided) as found:
            return found

    return asyncio.run(main())


async def make_async() -> Mail:
    """A factory without an end."""
    return Mail("async")


@asynccontextmanager
async def managed_async() -> AsyncIterator[Mail]:
    """A context manager of the standard library."""
    yield Mail("managed async")


@contextmanager
def managed() -> Iterator[Mail]:
    """The same, a plain one."""
    yield Mail("managed")


class Caller:
    """A value that can be called."""

    host = "value"

    def __call__(self) -> Mail:
        raise AssertionError


@pytest.mark.parametrize(
    ("provided", "host"),
    [
        (lambda: Mail("plain"), "plain"),
        (functools.partial(Mail, "partial"), "partial"),
        (type("Own", (Mail,), {"__init__": lambda self: Mail.__init__(self, "class")}), "class"),
        (make_async, "async"),
        (managed_async, "managed async"),
        (managed, "managed"),
        (Caller(), "value"),
        (Mail("value"), "value"),
    ],
)
def test_values_and_factories(provided: Any, host: str) -> None:
    """Functions and classes are called; whatever else there is, is the value."""
    assert opened(mail=provided).mail.host == host


def test_one_that_cannot_be_made() -> None:
    """Those before it are closed, and the error names it."""
    LOG.clear()

    def broken() -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route") as caught:
        opened(pool=pool, broken=broken)
    assert caught.value.__notes__ == ["while the dependency 'broken' was made"]
    assert LOG == ["pool opens", "pool closes"]


def test_names_and_classes_that_are_not_there() -> None:
    """The message lists what is there; no value is shown, since values have secrets."""
    deps = opened(mail=Mail("secret"), other=Fake("secret"))
    with pytest.raises(AttributeError, match="no dependency is named 'mial'; did you mean 'mail'"):
        _ = deps.mial
    with pytest.raises(AttributeError, match=r"App\(deps=...\) has \['mail', 'other'\]"):
        _ = deps.pool
    for cls, words in (
        (Pool, "no dependencies are of class Pool"),
        (Mail, "2 dependencies are of class Mail"),
    ):
        with pytest.raises(InvalidRequest, match=words) as caught:
            _ = deps[cls]
        assert "mail: Mail, other: Fake" in (caught.value.hint or "")
    with pytest.raises(InvalidRequest, match="protocol"):
        _ = deps[Sends]  # type: ignore[type-abstract]
    assert deps[Fake].host == "secret" and repr(deps) == "<dependencies mail, other>"
    assert "mail" in dir(deps) and not hasattr(deps, "_private")


@pytest.mark.parametrize("name", ["a b", "", "_x", "1a"])
def test_names_that_are_none(name: str) -> None:
    """A name is used as an attribute."""
    with pytest.raises(InvalidRequest, match="is no name of a dependency"):
        App(deps={name: 1})
