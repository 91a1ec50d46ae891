"""What people do with the past of runs from Python: forks, runs as they were, and why they wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pyengine import App, Client
from pyengine.errors import Conflict, EncodeError, InvalidRequest, NotFound, RunCancelled
from tests.core.worker.test_steering import deciding, play, until

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class Receipt:
    """What a payment gives."""

    paid: int


def paying(dsn: str) -> App:
    """One workflow of two steps."""
    app = App(dsn)

    @app.step
    async def charge(n: int) -> Receipt:
        return Receipt(paid=n)

    @app.step
    async def ship(receipt: Receipt) -> int:
        return 10 * receipt.paid

    @app.workflow
    async def order(n: int) -> int:
        return await ship(await charge(n))

    return app


@pytest.mark.parametrize("verb", ["fork", "as_of"])
def test_a_run_that_does_not_exist(dsn: str, verb: str) -> None:
    """Both raise NotFound for an id that no run has."""

    async def main(app: App, client: Client) -> None:
        with pytest.raises(NotFound):
            await getattr(client, verb)("nowhere")

    play(dsn, main)


def test_a_fork_continues_by_itself(dsn: str) -> None:
    """A fork takes over what was before a step, with a value of that step's own type put in place, and ends
    with a result of its own; the run that it was made from stays as it was.
    """
    app = paying(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start("order", 1, id="a")
            assert await run.result(timeout=20) == 10
            fork = await run.fork(step="ship", set={"charge": Receipt(paid=5)}, id="b")
            assert (fork.id, await fork.result(timeout=20)) == ("b", 50)
            assert await (await run.fork(set={0: {"paid": 7}}, seq=4)).result(timeout=20) == 70
            assert await run.result(timeout=20) == 10
            with pytest.raises(Conflict, match="'b' is taken"):
                await client.fork("a", id="b")
            with pytest.raises(EncodeError, match="the value for charge"):
                await run.fork(set={"charge": 5})
            with pytest.raises(NotFound, match="nothing"):
                await run.fork(step="nothing")
            with pytest.raises(InvalidRequest):
                await run.fork(set={"nothing": 1})

    asyncio.run(main())


def test_a_repeated_fork_is_made_once(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that nobody named carries a name of its own: asked for again, it is found."""
    monkeypatch.setattr("pyengine.core.client.run.secrets.token_hex", lambda size: "f" * 2 * size)

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="a")
        assert [(await run.fork()).id, (await run.fork()).id] == ["f" * 32] * 2

    play(dsn, main)
    assert conn.execute("select count(*) from durable.runs").fetchone() == (2,)


def test_a_run_as_it_was(dsn: str) -> None:
    """A run can be looked at as it was at any event and any instant since it began, whatever came later."""
    app = paying(dsn)

    async def main() -> None:
        async with app.client() as client:
            run = await client.start("order", 1, id="a")
            await run.signal("ping")
            begun = await run.as_of()
            async with app.worker():
                await run.result(timeout=20)
            then, now = await run.as_of(seq=1), await client.as_of("a")
            assert (then.status, then.seq, then.children, then.signals) == ("running", 1, {}, {})
            assert (now.status, now.next_child, now.generation) == ("completed", 2, 1)
            assert now.children[0] == {
                "kind": "step",
                "name": "charge",
                "state": "resolved",
                "value": {"paid": 1},
            }
            assert await run.as_of(at=begun.at) == begun
            assert begun.signals == {"ping": {"delivered": 1, "received": 0}}
            for wrong in (
                {"seq": 99},
                {"seq": 1, "at": begun.at},
                {"at": begun.at - timedelta(days=1)},
                {"at": datetime(2025, 1, 1)},
                {"generation": 2},
            ):
                with pytest.raises(InvalidRequest):
                    await run.as_of(**wrong)

    asyncio.run(main())


def test_signals_and_the_end_of_a_run_as_they_were(dsn: str) -> None:
    """A signal that nobody received counts as delivered; a run that was cancelled is told as such."""
    app = deciding(dsn)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            early = await client.start("decide", 1, delay="1h")
            await early.signal("approve", {"ok": False, "by": "you"})
            assert (await early.as_of()).signals == {"approve": {"delivered": 1, "received": 0}}
            run = await client.start("decide", 1)
            await until(run, "waiting")
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result(timeout=20)
            assert (await run.as_of()).status == "cancelled"

    asyncio.run(main())


def test_why_a_run_waits(dsn: str, conn: Connection) -> None:
    """Causes come as records, with instants and details; an id that nothing has is not found, with those like
    it.
    """

    async def main(app: App, client: Client) -> None:
        run = await client.start("price", 1, id="order-42", delay="1 h")
        (cause,) = await run.why()
        assert (cause.depth, cause.id, cause.cause, cause.since) == (0, "order-42", "delayed", None)
        assert cause.sentence.startswith("starts ")
        assert cause.until is not None
        assert cause.until > datetime.now(UTC)
        assert cause.details == {"name": "price"}
        with pytest.raises(NotFound, match="near are order-42"):
            await client.why("order-43")

    play(dsn, main)
