"""Law: not only large results of steps, also large journals of steps in SQL and of commits, rows of
transactions and errors are read and written beside the loop. What is small stays in it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, ctx
from pyengine.core.protocol.turn import decode_journal
from pyengine.core.values.exceptions import ExceptionCodec
from pyengine.core.values.sizes import is_large
from pyengine.features.sql import sql_step_runner, transaction_runner
from pyengine.features.sql.sql_values import are_large, records_json, value_json

SIZE = 1 << 20


class Watch:
    """Notes of a function where large and small arguments were worked on: in the loop or beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._loop_thread = threading.get_ident()
        self.seen: set[tuple[str, str]] = set()

    def note(self, value: Any) -> None:
        """A function is called with a value."""
        size = "large" if is_large(value) or (isinstance(value, list) and are_large(value)) else "small"
        self.seen.add((size, "loop" if threading.get_ident() == self._loop_thread else "thread"))

    def function(self, module: Any, name: str, true: Any) -> None:
        """Watch a function of a module, by its first argument."""

        def noting(value: Any) -> Any:
            self.note(value)
            return true(value)

        self._monkeypatch.setattr(module, name, noting)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A new one."""
    return Watch(monkeypatch)


def play(app: App, workflow: Any, *args: Any) -> Any:
    """Return the result of a run."""

    async def main() -> Any:
        async with app.worker(), app.client() as client:
            return await (await client.start(workflow, *args)).result(timeout=60)

    return asyncio.run(main())


BOTH = {("large", "thread"), ("small", "loop")}


def test_a_journal_of_a_step_in_sql(dsn: str, conn: psycopg.Connection[Any], watch: Watch) -> None:
    """What a function of the database gives is read beside the loop if it is large."""
    conn.execute("create function much(n integer) returns text language sql as $$ select repeat('x', n) $$")
    watch.function(sql_step_runner, "decode_journal", decode_journal)
    app = App(dsn)

    @app.workflow
    async def reads(n: int) -> int:
        return len(await ctx.sql("public.much", n)) + len(await ctx.sql("public.much", 1))

    assert play(app, reads, SIZE) == SIZE + 1
    assert watch.seen == BOTH


@pytest.mark.parametrize("count", [1, 50_000])
def test_rows_of_a_transaction(dsn: str, watch: Watch, count: int) -> None:
    """Rows that are many or have long texts, a long text alone, and the journal of such a commit."""
    watch.function(transaction_runner, "records_json", records_json)
    watch.function(transaction_runner, "value_json", value_json)
    watch.function(transaction_runner, "decode_journal", decode_journal)
    app = App(dsn)

    @app.workflow
    async def reads(count: int) -> int:
        async with ctx.transaction() as tx:
            rows = await tx.fetch(
                "select repeat('x', $1) from generate_series(1, $2)", 1 + SIZE // count, count
            )
            text = await tx.fetchval("select repeat('x', $1)", SIZE)
            await tx.fetch("select 1")
            await tx.fetchval("select 1")
        return len(rows) + len(text)

    assert play(app, reads, count) == count + SIZE
    assert watch.seen == BOTH


def test_errors_of_steps(dsn: str, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error with much in its arguments, its attributes or those of its cause, of both kinds of steps."""
    true = ExceptionCodec.encode

    def noting(self: ExceptionCodec, error: BaseException, **origin: Any) -> str:
        large = is_large([error.args, vars(error), getattr(error.__cause__, "args", ())])
        watch.note("x" * SIZE if large else "")
        return true(self, error, **origin)

    app = App(dsn)

    def fail(way: str) -> None:
        error = ValueError("x" * SIZE if way == "argument" else way)
        if way == "attribute":
            error.answer = ["x"] * 5_000  # type: ignore[attr-defined]
        raise error from (KeyError("x" * SIZE) if way == "cause" else None)

    @app.step(retry=Retry(max_attempts=1))
    def in_thread(way: str) -> None:
        fail(way)

    @app.step(retry=Retry(max_attempts=1))
    async def in_loop(way: str) -> None:
        fail(way)

    @app.workflow
    async def tries(way: str) -> int:
        failed = 0
        for step in (in_thread, in_loop):
            try:
                await step(way)
            except ValueError:
                failed += 1
        return failed

    monkeypatch.setattr(ExceptionCodec, "encode", noting)
    for way in ("argument", "attribute", "cause"):
        assert play(app, tries, way) == 2
        assert watch.seen == {("large", "thread")}
    assert play(app, tries, "small") == 2
    assert watch.seen == BOTH
