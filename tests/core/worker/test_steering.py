"""What people do to runs from Python: through a client, through a handle, in a transaction of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest

from pyengine import App, Client, Run, ctx
from pyengine.core.definitions.signals import Signal
from pyengine.errors import Conflict, EncodeError, InvalidRequest, NotFound, RunCancelled

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class Decision:
    """What an approval carries."""

    ok: bool
    by: str


Approval = Signal[Decision]("approve")


def shop(dsn: str) -> App:
    """One workflow."""
    app = App(dsn)

    @app.workflow
    async def price(n: int) -> int:
        return 2 * n

    return app


def play(dsn: str, main: Callable[[App, Client], Awaitable[None]]) -> None:
    """Run a test with a client and no worker."""

    async def go() -> None:
        app = shop(dsn)
        async with app.client() as client:
            await main(app, client)

    asyncio.run(go())


def sent(conn: Connection) -> list[tuple[object, ...]]:
    """Names, numbers and payloads of the signals there are."""
    return conn.execute(
        "select name, delivery, data::jsonb from durable._signals order by name, delivery"
    ).fetchall()


def kill(conn: Connection, id: str) -> None:
    """Set a run aside as dead, as the sweep does with one whose workers were lost too often."""
    conn.execute(
        'select durable._halt_runs(array[%s], array[\'{"type": "Crashed", "message": "five times"}\'], '
        "durable._now_ms())",
        (id,),
    )


def test_signals_are_numbered_and_encoded_by_their_type(dsn: str, conn: Connection) -> None:
    """A signal is sent by its object, whose type writes the payload, or by name with plain JSON; it answers
    its number among those of its name.
    """

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="a")
        assert await run.signal(Approval, Decision(ok=True, by="me")) == 1
        assert await client.signal("a", "approve", {"ok": False, "by": "you"}) == 2
        assert await run.signal("ping") == 1
        with pytest.raises(EncodeError, match="signal approve"):
            await run.signal(Approval, {"ok": 5})
        with pytest.raises(EncodeError, match="signal ping"):
            await run.signal("ping", {1, 2})

    play(dsn, main)
    assert sent(conn) == [
        ("approve", 1, {"ok": True, "by": "me"}),
        ("approve", 2, {"ok": False, "by": "you"}),
        ("ping", 1, None),
    ]


def test_a_key_is_one_signal(dsn: str, conn: Connection) -> None:
    """The same key again is the same delivery; without a key each call is a delivery of its own."""

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="a")
        assert await run.signal("ping", 1, dedup="k") == 1
        assert await run.signal("ping", 2, dedup="k") == 1
        assert [await run.signal("ping", 3), await run.signal("ping", 3)] == [2, 3]

    play(dsn, main)
    assert [payload for _, _, payload in sent(conn)] == [1, 3, 3]


def test_verbs_in_a_transaction_are_undone_with_it(dsn: str, conn: Connection) -> None:
    """With conn= a rollback leaves nothing of a signal, a cancel or a pause, and a commit all of it."""

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="a")
        own = await asyncpg.connect(dsn)
        for verb in (
            lambda: run.signal("ping", 1, conn=own),
            lambda: run.pause(conn=own),
            lambda: run.cancel("no", conn=own),
        ):
            transaction = own.transaction()
            await transaction.start()
            await verb()
            await transaction.rollback()
            assert (await run.get()).state == "queued"
        assert sent(conn) == []
        async with own.transaction():
            assert await run.signal("ping", 1, conn=own) == 1
            await run.pause(conn=own)
        assert (await run.get()).state == "paused"
        with pytest.raises(InvalidRequest, match=r"psycopg\.Connection, which blocks"):
            await run.pause(conn=conn)
        await own.close()

    play(dsn, main)
    assert sent(conn) == [("ping", 1, 1)]


def test_a_run_that_never_ran_is_cancelled_at_once(dsn: str) -> None:
    """Nothing of it needs a clean-up: it ends with RunCancelled, and asking again is no error."""

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="a")
        assert await run.cancel("customer called", grace="5s") == "cancelled"
        assert await client.cancel("a") == "cancelled"
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        assert "customer called" in str((await run.get()).error)

    play(dsn, main)


def test_pause_and_resume(dsn: str) -> None:
    """A paused run is not claimed; resumed, it goes on; what is not set aside cannot be resumed."""

    async def main(app: App, client: Client) -> None:
        run, other = await client.start("price", 4, id="a"), await client.start("price", 5, id="b")
        await run.pause()
        await run.pause()
        async with app.worker():
            assert await other.result(timeout=20) == 10
            status = await run.get()
            assert (status.state, status.problem["type"]) == ("paused", "Paused")
            await run.resume()
            assert await run.result(timeout=20) == 8
            with pytest.raises(Conflict):
                await run.resume()
            with pytest.raises(Conflict, match="has ended"):
                await run.pause()

    play(dsn, main)


def test_dead_runs_are_redriven_one_or_all(dsn: str, conn: Connection) -> None:
    """Redrive revives one dead run by its id, or all, and leaves alone what is merely halted."""

    async def main(app: App, client: Client) -> None:
        runs = [await client.start("price", 1, id=id) for id in "abcd"]
        for run in runs[:3]:
            kill(conn, run.id)
        await runs[3].pause()
        assert [one.id for one in await client.list(state="dead")] == ["c", "b", "a"]
        await runs[0].redrive()
        assert await client.redrive() == 2
        assert await client.redrive() == 0
        assert [(await run.get()).state for run in runs] == ["queued", "queued", "queued", "paused"]
        with pytest.raises(Conflict, match="not dead"):
            await runs[3].redrive()

    play(dsn, main)


@pytest.mark.parametrize("verb", ["signal", "cancel", "pause", "resume", "redrive"])
def test_a_run_that_does_not_exist(dsn: str, verb: str) -> None:
    """Every verb raises NotFound for an id that no run has."""

    async def main(app: App, client: Client) -> None:
        more: tuple[Any, ...] = ("ping",) if verb == "signal" else ()
        with pytest.raises(NotFound):
            await getattr(client, verb)("nowhere", *more)

    play(dsn, main)


def test_ended_runs_refuse_verbs(dsn: str) -> None:
    """Signal, cancel and pause raise Conflict once the run has completed."""

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1)
        async with app.worker():
            await run.result(timeout=20)
        for verb in (run.signal("ping"), run.cancel(), run.pause(), run.resume(), run.redrive()):
            with pytest.raises(Conflict):
                await verb

    play(dsn, main)


def test_repeated_requests_are_done_once(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that nobody named carries a name of its own: sent again after a lost answer, it finds what it
    did.
    """
    monkeypatch.setattr("pyengine.core.client.run.secrets.token_hex", lambda size: "f" * 2 * size)

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="a")
        assert [await run.signal("ping", 1), await run.signal("ping", 1)] == [1, 1]

    play(dsn, main)
    assert [name for name, *_ in sent(conn)] == ["ping"]


def deciding(dsn: str) -> App:
    """One workflow that waits for a decision, and cleans up when it is cancelled."""
    app = App(dsn)

    @app.step
    async def undo(n: int) -> None:
        return None

    @app.workflow
    async def decide(n: int) -> str:
        try:
            decision = await ctx.receive(Approval)
        except asyncio.CancelledError:
            async with ctx.shield():
                await undo(n)
            raise
        return f"{decision.by}: {decision.ok}"

    return app


async def until(run: Run[Any], state: str) -> None:
    """Wait until a run is in this state."""
    while (await run.get()).state != state:
        await asyncio.sleep(0.005)


def test_a_signal_reaches_the_code(dsn: str) -> None:
    """A run that waits for a signal goes on with what was sent, as the type that both sides declared."""
    app = deciding(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start("decide", 1)
            await until(run, "waiting")
            await run.signal(Approval, Decision(ok=True, by="me"))
            assert await run.result(timeout=20) == "me: True"

    asyncio.run(main())


def test_a_cancel_lets_the_code_clean_up(dsn: str, conn: Connection) -> None:
    """A run that is cancelled while it waits takes its clean-up step and ends as cancelled, with a reason."""
    app = deciding(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start("decide", 1, id="a")
            await until(run, "waiting")
            assert await run.cancel({"by": "customer"}) == "cancelling"
            with pytest.raises(RunCancelled):
                await run.result(timeout=20)
            assert (await run.get()).state == "cancelled"

    asyncio.run(main())
    done = conn.execute("select name from durable.journal_events where event = 'InvokeCompleted'").fetchall()
    assert done == [("undo",)]
    reason = conn.execute("select error -> 'reason' from durable.runs where id = 'a'").fetchone()
    assert reason == ({"by": "customer"},)
