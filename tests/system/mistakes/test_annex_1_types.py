"""Wrong arguments of a start, and signals that a run does not receive: rows 5, 32 and 33 of the list of
mistakes. What type checkers say of them is in tests/doors/worker/test_typed_calls.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pyengine import (
    App,
    Client,
    DecodeError,
    EncodeError,
    InvalidRequest,
    NotFound,
    Run,
    RunFailed,
    Signal,
    ctx,
)
from pyengine.doors.admin import queries

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class Decision:
    """The payload of an approval."""

    ok: bool
    by: str = ""


approve = Signal[Decision]("approve")


def shop(dsn: str) -> App:
    """Workflows that wait for an approval, one of which goes on after a wrong one, and one that sends it."""
    app = App(dsn)

    @app.workflow
    async def buy(shop: str) -> str:
        return (await ctx.receive(approve)).by

    @app.workflow
    async def patient(shop: str) -> list[str]:
        found = []
        while not found or found[-1] == "unread":
            try:
                found.append((await ctx.receive(approve, timeout="1m")).by)
            except DecodeError as error:
                found.append("unread" if "signal approve" in error.message else error.message)
        return found

    @app.workflow(any_signal=True)
    async def open_to_all(shop: str) -> Any:
        return await ctx.receive(approve)

    @app.workflow
    async def ask(run_id: str, name: str, payload: Any) -> str:
        try:
            async with ctx.transaction() as tx:
                await tx.signal(run_id, name, payload)
        except (NotFound, InvalidRequest) as error:
            return type(error).__name__
        return "sent"

    return app


def play(dsn: str, main: Callable[[App, Client], Awaitable[None]], *, worker: bool = True) -> None:
    """Run a test with a client, which knows no code, and a worker."""

    async def go() -> None:
        app = shop(dsn)
        async with Client(dsn) as client:
            if worker:
                async with app.worker():
                    await main(app, client)
            else:
                await main(app, client)

    asyncio.run(go())


@pytest.mark.parametrize("verb", ["start", "begin", "bind"])
def test_row_05_wrong_arguments_of_a_start(dsn: str, verb: str) -> None:
    """The sentence names the workflow, its parameters and the argument, before anything is sent."""
    app = App(dsn)

    @app.workflow
    async def flow(a: int) -> str:
        return str(a)

    async def start(client: Client, *args: Any) -> None:
        if verb == "begin":
            await client.begin(flow, args)
        elif verb == "bind":
            await client.start(flow.bind(*args))
        else:
            await client.start(flow, *args)

    async def main() -> None:
        async with Client(dsn) as client:
            arity = await error_of(start(client, 1, 2))
            assert arity.startswith("workflow flow: too many positional arguments")
            assert "hint: it takes (a: 'int') -> 'str'" in arity
            kind = await error_of(start(client, "one"))
            assert kind == "workflow flow, argument 'a': Expected `int`, got `str`"
            assert await client.list() == []

    asyncio.run(main())


async def error_of(sent: Awaitable[Any]) -> str:
    """The error of a signal as people read it."""
    with pytest.raises((NotFound, InvalidRequest, EncodeError)) as caught:
        await sent
    return str(caught.value)


def test_row_33_a_typing_error_in_the_name_of_a_signal(dsn: str) -> None:
    """The name of a signal that the workflow does not receive is refused with the nearest one, for a client
    without its code, and for a transaction of a workflow."""

    async def main(app: App, client: Client) -> None:
        run = await client.start("buy", "corner", id="b")
        refusal = await error_of(run.signal("aprove", {"ok": True}))
        assert "There is no signal of workflow buy named 'aprove'." in refusal
        assert "Did you mean 'approve'? It receives 'approve'." in refusal
        assert await (await app.start("ask", "b", "aprove", {"ok": True})).result() == "NotFound"
        assert await (await app.start("ask", "b", "approve", {"ok": True, "by": "me"})).result() == "sent"
        assert await run.result() == "me"
        free = await client.start("open_to_all", "corner")
        assert await free.signal("whatever", 1) == 1

    play(dsn, main)


def test_row_32_a_signal_of_another_type(dsn: str) -> None:
    """By name or from SQL: another JSON type, and a missing key. A client that knows the code checks the
    whole."""

    async def main(app: App, client: Client) -> None:
        run = await client.start("buy", "corner", id="b")
        refusal = await error_of(run.signal("approve", "yes"))
        assert "The payload of signal 'approve' to run 'b' is of type string, not object." in refusal
        refusal = await error_of(run.signal("approve", {"by": "me"}))
        assert "The payload of signal 'approve' to run 'b' lacks 'ok'." in refusal
        with psycopg.connect(dsn, autocommit=True) as conn, pytest.raises(psycopg.Error) as caught:
            queries.signal(conn, "b", "approve", "3", None)
        assert caught.value.sqlstate == "WF004"
        assert await (await app.start("ask", "b", "approve", [])).result() == "InvalidRequest"
        async with app.client() as knowing:
            wrong = {"ok": "yes", "by": "me"}
            refusal = await error_of(knowing.signal("b", "approve", wrong))
            assert "the payload of signal approve to run b does not fit its annotation Decision" in refusal
            refusal = await error_of(knowing.signal_many(["b"], "approve", wrong))
            assert "the payload of signal approve to many runs does not fit" in refusal
            assert await knowing.signal("b", "approve", {"ok": True, "by": "me"}) == 1
        assert await run.result() == "me"

    play(dsn, main)


def test_row_33_many_get_an_outcome_each(dsn: str) -> None:
    """signal_many answers "refused" for a run that does not receive the signal."""

    async def main(app: App, client: Client) -> None:
        for id in "ab":
            await client.start("buy" if id == "a" else "open_to_all", "corner", id=id)
        outcomes = await client.signal_many(["a", "b"], "aprove", {"ok": True})
        assert [(one.id, one.outcome) for one in outcomes] == [("a", "refused"), ("b", "done")]

    play(dsn, main)


def test_row_32_code_goes_on_after_a_signal_of_another_type(dsn: str, conn: Connection) -> None:
    """A signal that was written before its type was registered raises DecodeError at the receive: code that
    catches it gets the next one, in order; code that does not fails with a sentence that says so."""

    async def before(app: App, client: Client) -> None:
        for name in ("patient", "buy"):
            run = await client.start(name, "corner", id=name)
            for payload in ("nonsense", {"by": "nobody"}, {"ok": True, "by": "me"}):
                await run.signal("approve", payload)

    async def main(app: App, client: Client) -> None:
        assert await client.run("patient").result() == ["unread", "unread", "me"]
        failing: Run[Any] = client.run("buy")
        with pytest.raises(RunFailed) as caught:
            await failing.result()
        assert isinstance(caught.value.__cause__, DecodeError)
        assert "signal approve (run buy, child 0) does not fit its annotation Decision" in str(caught.value)
        assert "`except DecodeError` around ctx.receive" in str(caught.value)

    play(dsn, before, worker=False)
    play(dsn, main)
    (types,) = conn.execute("select signals from durable.workflows where name = 'buy'").fetchone() or ((),)
    assert types["approve"]["$defs"]["Decision"]["required"] == ["ok"]  # type: ignore[index,call-overload]
