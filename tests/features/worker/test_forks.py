"""Forks of real runs, run to their ends by a real worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, RunFailed, ctx
from tests.support.idle import until

Connection = psycopg.Connection[tuple[Any, ...]]


def order_app(dsn: str, ran: Counter[str]) -> App:
    """A workflow that uses a bit of everything; `ran` counts the bodies of steps."""
    app = App(dsn)

    @app.step
    async def price(n: int) -> int:
        ran[f"price {n}"] += 1
        return n * 10

    @app.workflow
    async def pack(n: int) -> int:
        return await price(n) + 1

    @app.workflow
    async def order() -> list[Any]:
        first = await price(1)
        lucky = ctx.random()
        packed = await pack(first)
        await ctx.sleep(0.001)
        both = await asyncio.gather(price(2), pack(3), price(4))
        started = ctx.start(pack, 5)
        last = await price(6)
        return [first, lucky, packed, *both, await started, last]

    return app


def seq_of(conn: Connection, id_: str, event: str) -> int:
    """Where the first event of this name stands."""
    query = "select min(seq) from durable.journal_events where id = %s and event = %s"
    row = conn.execute(query, (id_, event)).fetchone()
    assert row is not None
    return int(row[0])


def fork(conn: Connection, id_: str, values: str = "{}", **place: Any) -> str:
    """Fork a run."""
    extra = "".join(f", {name} => %s" for name in place)
    query = f"select durable.fork(%s, set_values => %s::jsonb{extra})"
    row = conn.execute(query.encode(), (id_, values, *place.values())).fetchone()
    assert row is not None
    return str(row[0])


async def result_of(client: Client, id_: str) -> Any:
    """The result of a run."""
    return await client.run(id_).result(timeout=30)


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.full)])
def test_a_fork_at_every_position_comes_to_the_same_end(dsn: str, conn: Connection, every: int) -> None:
    """Wherever it is cut, a run goes on to the result it had; what is in the copy is not run again."""
    ran: Counter[str] = Counter()
    app = order_app(dsn, ran)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start("order")
            whole = await run.result(timeout=30)
            row = conn.execute("select events from durable.runs where id = %s", (run.id,)).fetchone()
            assert row is not None
            drawn = seq_of(conn, run.id, "RandomGenerated")
            assert set(ran.values()) == {1}
            for seq in reversed(range(row[0], 0, -every)):
                ran.clear()
                forked = await result_of(client, fork(conn, run.id, seq=seq))
                assert forked[:1] + forked[2:] == whole[:1] + whole[2:]
                assert (forked[1] == whole[1]) == (seq > drawn)
                assert ran["price 1"] == (seq < 4)
            assert ran == {}

    asyncio.run(main())


def test_values_change_the_end(dsn: str, conn: Connection) -> None:
    """A value that was put in place is what the code gets, for a step, a child run, a captured value, before
    and at the position."""
    ran: Counter[str] = Counter()
    app = order_app(dsn, ran)

    async def main() -> list[list[Any]]:
        async with app.worker(), app.client() as client:
            run = await client.start("order")
            await run.result(timeout=30)
            ran.clear()
            places = [
                fork(conn, run.id, '{"1": 0.25, "2": 7}'),
                fork(conn, run.id, '{"0": 10, "1": 0.5, "2": 6}', step="price"),
                fork(conn, run.id, '{"2": 8}', step="pack"),
            ]
            return [(await result_of(client, id_))[:3] for id_ in places]

    first, second, third = asyncio.run(main())
    assert first == [10, 0.25, 7]
    assert second == [10, 0.5, 6]
    assert (third[0], third[2]) == (10, 8)
    assert "price 1" not in ran and "price 10" not in ran


def test_a_failed_run_is_mended(dsn: str, conn: Connection) -> None:
    """A run that failed at a step goes on as a fork in which the step succeeded."""
    app = App(dsn)

    @app.step
    async def charge(amount: int) -> dict[str, Any]:
        raise ValueError("the card is gone")

    @app.workflow
    async def pay(amount: int) -> str:
        receipt = await charge(amount)
        return f"paid with {receipt['by']}"

    async def main() -> str:
        async with app.worker(), app.client() as client:
            run = await client.start(pay, 5)
            with pytest.raises(RunFailed):
                await run.result(timeout=30)
            return str(
                await result_of(client, fork(conn, run.id, '{"charge": {"by": "hand"}}', step="charge"))
            )

    assert asyncio.run(main()) == "paid with hand"


def test_a_fork_of_a_waiting_run_waits_for_its_own(dsn: str, conn: Connection) -> None:
    """Original and fork wait each for a promise of its own, and end on their own."""
    app = App(dsn)

    @app.workflow
    async def ask() -> str:
        answer = ctx.promise(str, name="answer")
        return f"{await answer}!"

    async def main() -> list[str]:
        async with app.worker(), app.client() as client:
            run = await client.start(ask)
            while not conn.execute(
                "select 1 from durable.promises where id = %s", (f"{run.id}.0",)
            ).fetchone():
                await asyncio.sleep(0.01)
            other = fork(conn, run.id)
            conn.execute("select durable.resolve(%s, '\"two\"')", (f"{other}.0",))
            there = await result_of(client, other)
            conn.execute("select durable.resolve(%s, '\"one\"')", (f"{run.id}.0",))
            return [await run.result(timeout=30), there]

    assert asyncio.run(main()) == ["one!", "two!"]


def test_signals_and_join_sets_in_forks(dsn: str, conn: Connection) -> None:
    """Wherever a run is cut that receives and uses a join set, its fork comes to the same end, once what was
    not delivered before is sent to it."""
    app = App(dsn)

    @app.step
    async def twice(n: int) -> int:
        return 2 * n

    @app.workflow
    async def child(n: int) -> int:
        return n + await twice(n)

    @app.workflow
    async def talk() -> list[Any]:
        started = ctx.start(child, 1)
        said = await ctx.receive("word", type=str)
        group = ctx.join_set()
        for n in range(2):
            group.submit(child(n))
        group.submit(twice(7))
        results = sorted([await group.next() for _ in range(3)])
        other = await ctx.receive("word", type=str)
        return [said, other, await started, results]

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start(talk)
            for word in ("one", "two"):
                await until(conn, "exists (select from durable._inboxes where receiver is not null)")
                conn.execute("select durable.signal(%s, 'word', to_jsonb(%s::text))", (run.id, word))
            whole = await run.result(timeout=30)
            assert whole == ["one", "two", 3, [0, 3, 14]]
            row = conn.execute("select events from durable.runs where id = %s", (run.id,)).fetchone()
            assert row is not None
            for seq in range(1, row[0] + 1):
                other = fork(conn, run.id, seq=seq)
                heard = conn.execute(
                    "select count(*) from durable.journal_events where id = %s and seq < %s and event = %s",
                    (run.id, seq, "SignalDelivered"),
                ).fetchone()
                assert heard is not None
                for word in ("one", "two")[heard[0] :]:
                    conn.execute("select durable.signal(%s, 'word', to_jsonb(%s::text))", (other, word))
                assert await result_of(client, other) == whole, seq

    asyncio.run(main())


def test_another_input_of_a_recorded_call_halts(dsn: str, conn: Connection) -> None:
    """A value that changes the arguments of calls in the copy halts the fork, and says so; cut before them,
    it goes on with the value."""
    app = order_app(dsn, Counter())

    async def main() -> Any:
        async with app.worker(), app.client() as client:
            run = await client.start("order")
            await run.result(timeout=30)
            bad = fork(conn, run.id, '{"0": 7}')
            query = "select state, problem ->> 'type' from durable.runs where id = %s"
            while (told := conn.execute(query, (bad,)).fetchone()) and told[0] != "halted":
                await asyncio.sleep(0.05)
            assert told == ("halted", "NondeterminismError")
            return await result_of(client, fork(conn, run.id, '{"0": 7}', step="pack"))

    result = asyncio.run(main())
    assert (result[0], result[2]) == (7, 71)


def problem_of(conn: Connection, id_: str) -> str | None:
    """Why a run is halted; null while it is not."""
    query = "select problem ->> 'message' from durable.runs where id = %s and state = 'halted'"
    row = conn.execute(query, (id_,)).fetchone()
    return None if row is None else str(row[0])


def test_a_value_of_another_type_is_named(dsn: str, conn: Connection) -> None:
    """A value that the code cannot read halts the fork; the problem names error, origin and value."""
    app = order_app(dsn, Counter())

    async def main() -> str:
        async with app.worker(), app.client() as client:
            run = await client.start("order", id="origin")
            await run.result(timeout=30)
            bad = fork(conn, run.id, '{"0": "ten"}')
            while (problem := problem_of(conn, bad)) is None:
                await asyncio.sleep(0.05)
            return problem

    problem = asyncio.run(main())
    assert "the workflow ended with DecodeError" in problem
    assert "it is a fork of 'origin'" in problem and "other values for 0: a value of another type" in problem


def test_a_call_that_holds_the_id_of_its_run_is_named(dsn: str, conn: Connection) -> None:
    """Code that puts the id of its run into what it awaits halts in a fork of a fork; the problem says so."""
    app = App(dsn)

    @app.workflow
    async def waits() -> int:
        return await ctx.promise(int, id=f"paid-{ctx.run_id}")

    async def main() -> str:
        async with app.worker(), app.client() as client:
            conn.execute("select durable.promise_create('paid-origin', 9007199254740991)")
            run = await client.start(waits, id="origin")
            conn.execute("select durable.resolve('paid-origin', '7')")
            assert await run.result(timeout=30) == 7
            second = fork(conn, fork(conn, "origin"))
            while (problem := problem_of(conn, second)) is None:
                await asyncio.sleep(0.05)
            return problem

    problem = asyncio.run(main())
    assert "the code puts the id of its run into that call, which was 'origin'; fork before it" in problem
