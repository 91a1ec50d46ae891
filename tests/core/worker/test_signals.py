"""Signals: sent by anybody, received in order, waited for at no cost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.definitions.signals import Signal
from pyengine.errors import DecodeError, InvalidRequest, RunFailed
from tests.core.worker.test_cancelling import types
from tests.support.unread_signals import leave_unread, resolve

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass
class Verdict:
    """A payload with a type of its own."""

    by: str
    ok: bool


approve = Signal[Verdict]("approve")


def signal(
    conn: Connection, name: str, payload: Any = None, run_id: str = "r", dedup: str | None = None
) -> int:
    """Send a signal, as people do in psql; answers its number."""
    row = conn.execute(
        "select durable.signal(%s, %s, %s::jsonb, %s)",
        (run_id, name, None if payload is None else json.dumps(payload), dedup),
    ).fetchone()
    assert row is not None
    return int(str(row[0]))


async def waits(run: Any) -> None:
    """Wait until a run waits."""
    while (await run.get()).state != "waiting":
        await asyncio.sleep(0.005)


def test_signals_that_lie_there_are_received_in_order(dsn: str, conn: Connection) -> None:
    """What was sent before anybody asked is received at once, first come, first served, by its type; the
    run never waits.
    """
    app = App(dsn)

    @app.workflow
    async def go() -> list[Any]:
        first = await ctx.receive(approve)
        second = await ctx.receive("approve", type=Verdict)
        return [first.by, first.ok, second.by, await ctx.receive("note"), await ctx.receive("empty")]

    async def main() -> list[Any]:
        async with app.client() as client:
            run = await client.start(go, id="r")
            signal(conn, "approve", {"by": "ann", "ok": True})
            signal(conn, "note", [1, {"a": None}])
            signal(conn, "empty")
            signal(conn, "approve", {"by": "bob", "ok": False})
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == ["ann", True, "bob", [1, {"a": None}], None]
    assert "execution_awaiting" not in types(conn, "r")


def test_a_run_that_waits_for_a_signal_is_woken(dsn: str, conn: Connection) -> None:
    """Nothing lies there, so the run waits without holding anything; the signal wakes it."""
    app = App(dsn)

    @app.workflow
    async def go() -> str:
        return (await ctx.receive(approve)).by + str(await ctx.receive("more"))

    async def main() -> str:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            await waits(run)
            assert conn.execute("select wait_kind from durable._executions").fetchone() == ("signal",)
            assert signal(conn, "approve", {"by": "ann", "ok": True}) == 1
            await until_types(
                conn,
                [
                    *("execution_started", "execution_awaiting", "signal_delivered", "signal_received"),
                    *("execution_resumed", "execution_awaiting"),
                ],
            )
            assert signal(conn, "more", 7) == 1
            return await run.result(timeout=20)

    assert asyncio.run(main()) == "ann7"
    assert types(conn, "r") == [
        *("execution_started", "execution_awaiting", "signal_delivered", "signal_received"),
        *("execution_resumed", "execution_awaiting", "signal_delivered", "signal_received"),
        *("execution_resumed", "execution_completed"),
    ]


async def until_types(conn: Connection, expected: list[str]) -> None:
    """Wait until the journal of r has rows of these types."""
    while types(conn, "r") != expected:
        await asyncio.sleep(0.005)


def test_the_same_signal_twice_is_one(dsn: str, conn: Connection) -> None:
    """A deduplication key makes a second sending the same delivery."""
    app = App(dsn)

    @app.workflow
    async def go() -> list[Any]:
        return [await ctx.receive("n"), await ctx.receive("n")]

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            assert [signal(conn, "n", 1, dedup="a"), signal(conn, "n", 2, dedup="a")] == [1, 1]
            assert signal(conn, "n", 3, dedup="b") == 2
            return await run.result(timeout=20)

    assert asyncio.run(main()) == [1, 3]


def test_a_receive_may_time_out_and_loses_nothing(dsn: str, conn: Connection) -> None:
    """A receive that was given up leaves its place to the next one of that name."""
    app = App(dsn)
    heard: list[int] = []

    @app.step
    async def note(n: int) -> None:
        heard.append(n)

    @app.workflow
    async def go() -> list[Any]:
        found = []
        for n in range(3):
            try:
                found.append(await ctx.receive("word", timeout=0.02 if n < 2 else None))
            except TimeoutError:
                found.append("timeout")
                await note(n)
        return found

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while len(heard) < 2:
                await asyncio.sleep(0.005)
            signal(conn, "word", "late")
            return await run.result(timeout=20)

    assert asyncio.run(main()) == ["timeout", "timeout", "late"]
    assert types(conn, "r").count("signal_received") == 1


def test_a_signal_that_came_for_a_receive_that_was_given_up_is_kept(dsn: str, conn: Connection) -> None:
    """A signal that arrives when nobody waits any more is what the next receive gets, before later ones."""
    app = App(dsn)
    given_up = asyncio.Event()

    @app.step
    async def pause() -> None:
        given_up.set()
        while "signal_received" not in types(conn, "r"):
            await asyncio.sleep(0.005)

    @app.workflow
    async def go() -> list[Any]:
        with pytest.raises(TimeoutError):
            await ctx.receive("word", timeout=0.02)
        await pause()
        return [await ctx.receive("word"), await ctx.receive("word")]

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            await given_up.wait()
            signal(conn, "word", "first")
            signal(conn, "word", "second")
            return await run.result(timeout=20)

    assert asyncio.run(main()) == ["first", "second"]


def test_several_names_are_awaited_together(dsn: str, conn: Connection) -> None:
    """Receives of different names can be gathered, with other waits; each gets its own."""
    app = App(dsn)

    @app.workflow
    async def go() -> list[Any]:
        found = await ctx.gather(ctx.receive("a"), ctx.receive("b"), ctx.sleep(0.01), ctx.receive("c"))
        return [one for one in found if one is not None]

    async def main() -> list[Any]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            for name in "cab":
                await waits(run)
                signal(conn, name, name.upper())
            return await run.result(timeout=20)

    assert asyncio.run(main()) == ["A", "B", "C"]


def test_a_signal_reaches_a_run_whose_steps_are_under_way(dsn: str, conn: Connection) -> None:
    """A run that is held while a step runs hears of a signal without waiting for the step."""
    app = App(dsn)
    began, heard = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> str:
        began.set()
        await heard.wait()
        return "slow"

    @app.step
    async def hear(word: str) -> str:
        heard.set()
        return word

    async def listen() -> str:
        return await hear(await ctx.receive("word", type=str))

    @app.workflow
    async def go() -> list[str]:
        return await asyncio.gather(slow(), listen())

    async def main() -> list[str]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            await began.wait()
            signal(conn, "word", "now")
            return await run.result(timeout=20)

    assert asyncio.run(main()) == ["slow", "now"]


def test_another_worker_receives_the_same(dsn: str, conn: Connection) -> None:
    """A replay by another worker gives every receive what it got before."""
    app = App(dsn)

    @app.step
    async def echo(word: str) -> str:
        return word

    @app.workflow
    async def go() -> list[str]:
        found = []
        for _ in range(4):
            found.append(await echo(await ctx.receive("word", type=str)))
            await ctx.receive("go on")
        return found

    async def main() -> list[str]:
        async with app.client() as client:
            run = await client.start(go, id="r")
            for word in ("one", "two", "three", "four"):
                signal(conn, "word", word)
            for n in range(4):
                async with app.worker():
                    while (
                        types(conn, "r").count("step_completed") <= n or (await run.get()).state != "waiting"
                    ):
                        await asyncio.sleep(0.005)
                signal(conn, "go on")
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == ["one", "two", "three", "four"]


def test_two_receives_of_one_name_at_a_time_are_refused(dsn: str) -> None:
    """Who gets the next one would depend on the order; so it is an error, and nothing is recorded of it."""
    app = App(dsn)

    @app.workflow
    async def go() -> None:
        await ctx.gather(ctx.receive("word"), ctx.receive("word"))

    with pytest.raises(RunFailed) as failed:
        app.run(go)
    assert isinstance(failed.value.__cause__, InvalidRequest)


def test_a_payload_of_another_type_is_an_error_of_the_receive(dsn: str, conn: Connection) -> None:
    """What does not fit the declared type is raised where it is received; the next one can be received."""
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        with pytest.raises(DecodeError):
            await ctx.receive("n", type=int)
        return await ctx.receive("n", type=int)

    async def main() -> int:
        # no worker has registered the signals of the workflow, so any payload is accepted
        conn.execute("select durable.start('go', id => 'r', any_workflow => true)")
        signal(conn, "n", "no number")
        signal(conn, "n", 5)
        async with app.client() as client, app.worker():
            return await client.run("r", go).result(timeout=20)

    assert asyncio.run(main()) == 5


@pytest.mark.parametrize("how", ["returns", "fails", "begins again"])
def test_a_run_that_leaves_signals_unread_says_so(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A run that ends with signals that nobody received warns of it, with their names and number; a signal
    that a generation before it left unread counts too.
    """
    unread, said = leave_unread(dsn, conn, how)
    (warning,) = [one for one in caplog.records if one.__dict__.get("event") == "run_signals_unread"]
    assert warning.getMessage() == f"run r of entity {said}"
    assert warning.__dict__["signals"] == {"request": unread}


def test_a_run_that_has_received_all_says_nothing(dsn: str, conn: Connection, caplog: Any) -> None:
    """A run whose signals were all received warns of none; of one that came for a receive which its code had
    given up it does.
    """
    app = App(dsn)

    @app.workflow
    async def reads(given_up: bool) -> None:
        one = asyncio.ensure_future(ctx.receive("request"))
        await ctx.promise(None, name="go")
        if given_up:
            one.cancel()
            await ctx.promise(None, name="on")
        else:
            await one

    async def main() -> None:
        async with app.client() as client, app.worker():
            for given_up, id in ((False, "all"), (True, "up")):
                run = await client.start(reads, given_up, id=id)
                await resolve(conn, f"{id}.1")
                if given_up:
                    while not conn.execute("select from durable._promises where id = 'up.2'").fetchall():
                        await asyncio.sleep(0.005)
                signal(conn, "request", run_id=id)
                if given_up:
                    await resolve(conn, "up.2")
                await run.result()

    asyncio.run(main())
    warned = [
        one.__dict__["run"] for one in caplog.records if one.__dict__.get("event") == "run_signals_unread"
    ]
    assert warned == ["up"]
