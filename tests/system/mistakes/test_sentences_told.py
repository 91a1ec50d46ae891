"""Sentences that say what to write, for names that mean something else, locks, passwords, options, rights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pyengine import App, ctx
from pyengine.core.definitions.signatures import Signature
from pyengine.core.passwords import hidden, is_unescaped
from pyengine.core.servers import Servers
from pyengine.doors.admin.migrate import connected
from pyengine.doors.embedded.server import database_url
from pyengine.errors import EmbeddedPostgresError, EngineError, InvalidRequest, NotAwaitable
from pyengine.features.checks.unawaited import UNAWAITED
from pyengine.sync import Client
from tests.core.replay.memory_run import MemoryRun, workflow
from tests.support.verbs import Connection


def rest(*values: int, **more: int) -> None: ...
def only(a: int, /, **more: int) -> None: ...
def more(**more: int) -> None: ...


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "means"),
    [
        (rest, (7,), {"*": 1}, "'*', which is the arguments by position"),
        (more, (), {"*": 1}, "'*', which is the arguments by position"),
        (rest, (7,), {"values": 1}, "'values', which is the parameter values"),
        (only, (7,), {"a": 1}, "'a', which is the parameter a"),
    ],
)
def test_a_name_that_json_has_for_something_else(
    fn: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int], means: str
) -> None:
    """It took the place of other arguments, and the error was about those (C005)."""
    with pytest.raises(InvalidRequest, match="cannot be called") as refused:
        Signature(fn, "step f").pack(args, kwargs)
    assert means in refused.value.message


def test_other_names_are_taken() -> None:
    """A keyword argument may have the name of `**more` itself, and of options, self and cls."""
    kwargs = {"more": 1, "id": 2, "self": 3, "cls": 4, "queue": 5}
    signature = Signature(rest, "step f")
    assert signature.check((7,), kwargs, signature.pack((7,), kwargs))[1:] == ((7,), kwargs)


def test_ctx_step_in_a_thread_of_ones_own() -> None:
    """An executor does not copy the context variables of who submits (C049)."""
    with pytest.raises(InvalidRequest, match=r"contextvars\.copy_context\(\)\.run"):
        ctx.step  # noqa: B018


def test_a_lock_of_several_runs() -> None:
    """Whether asyncio refuses it or the wait has no end, the sentence says where locks belong."""

    async def wait() -> None:
        await asyncio.Event().wait()

    stuck = MemoryRun(workflow(wait)).error
    assert isinstance(stuck, NotAwaitable)
    assert stuck.hint == "nothing is pending that could end it; make locks, events and queues in the workflow"

    lock = asyncio.Lock()

    async def use() -> None:
        async with lock:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await lock.acquire()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="different event loop") as bound:
        asyncio.run(use())
    hint = UNAWAITED.hint(bound.value)
    assert hint == "hint: make locks, events and queues in the workflow: each run has its own loop"
    assert UNAWAITED.hint(RuntimeError("is bound to a different event loop")) is None


@pytest.mark.parametrize("password", ["p@ss", "pa/ss", "pa#ss", "pa?ss"])
def test_a_password_that_is_not_escaped(password: str) -> None:
    """Drivers took a part of it for host or port, and said that it is none."""
    url = f"postgresql://bob:{password}@127.0.0.1:5432/shop"
    with pytest.raises(EmbeddedPostgresError, match=r"not escaped .*urllib\.parse\.quote") as given:
        database_url(url)
    with pytest.raises(InvalidRequest, match=r"urllib\.parse\.quote") as asked:
        Servers(url)
    said = f"{given.value} {asked.value}".replace("p%40ss for p@ss", "")
    assert password not in said and said == hidden(said, url)


@pytest.mark.parametrize(
    "rest",
    [
        *("", "bob:p%40ss@h/x", "/x?host=/tmp", "h:5432/x?application_name=a@b", "[::1]:5432/x?user=a@b"),
        *("bob@one:1,two:2/x", "bob:p:ss@h/x", "bob:p%ss@h/x", "h/x@y", "one:1,two/x@y", "h:1,two:2/x@y"),
    ],
)
def test_urls_that_are_escaped(rest: str) -> None:
    """An @ in a path or parameter ends nothing."""
    assert not is_unescaped(f"postgresql://{rest}")


def test_options_that_are_misspelt() -> None:
    """The parameters of the workflow are listed, and the options of the verb."""

    @workflow
    async def child(n: int) -> int:
        return n

    async def starts() -> str:
        with pytest.raises(InvalidRequest) as refused:
            ctx.start(child, 1, queu="x")  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest) as bound:
            ctx.start(child.bind(1), queu="x")  # type: ignore[call-overload]
        return f"{refused.value.hint}|{bound.value.hint}"

    run = MemoryRun(workflow(starts))
    assert run.value == "|".join(
        f"{hint}; options of ctx.start: queue, timeout, detached, on_cancel"
        for hint in ("it takes (n: 'int') -> 'int'", "give all of them to child.bind(...)")
    )


def test_app_run_has_no_options_of_a_start(dsn: str) -> None:
    """It took `priority` for an argument of the workflow, and said so alone."""
    app = App(dsn)

    @app.workflow
    async def hello(n: int) -> int:
        return n

    with pytest.raises(InvalidRequest, match=r"it takes .*options of app.run: progress .*app.start has id"):
        app.run(hello, 1, priority=3)  # type: ignore[call-overload]


@pytest.mark.new_database("it takes rights from everybody")
def test_a_role_without_rights(conn: Connection, direct: str) -> None:
    """The grants to type stand below; that for the function of the server which says where it is (C073)."""
    conn.execute("create role nobody_here login; revoke execute on function pg_control_system() from public")
    as_nobody = direct.replace("//postgres@", "//nobody_here@")
    try:
        with pytest.raises(EngineError, match=r"hint: .*grant usage on schema durable to ROLE;"):
            Client(as_nobody).open()
        with pytest.raises(EngineError) as refused, connected(as_nobody) as asked:
            asked.execute("select pg_catalog.pg_control_system()")
        assert str(refused.value.hint).endswith(
            "grant execute on function pg_catalog.pg_control_system() to nobody_here"
        )
        with pytest.raises(EngineError, match="schema durable to ROLE"), connected(as_nobody) as asked:
            asked.execute("select from durable.runs")
    finally:
        conn.execute("grant execute on function pg_control_system() to public; drop role nobody_here")
