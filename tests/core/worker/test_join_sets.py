"""Join sets: many at once, taken as they complete, in the same order at every replay."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.errors import InvalidRequest, RunFailed
from tests.core.worker.test_cancelling import types
from tests.support.turns import Send, intercept

Connection = psycopg.Connection[tuple[object, ...]]


def test_the_one_that_completes_first_comes_first(dsn: str, conn: Connection) -> None:
    """Results come in the order in which the members completed, whatever they are."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        return await ctx.receive("go", type=int) + n

    @app.workflow
    async def go() -> list[int]:
        members = ctx.join_set()
        for n in range(3):
            members.submit(child(n))
        assert len(members) == 3
        return [await members.next() for _ in range(3)]

    async def main() -> list[int]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            for n, seen in ((2, 1), (0, 2), (1, 3)):
                while (await run.get()).state != "waiting" or types(conn, "r").count(
                    "open_child_settled"
                ) != seen - 1:
                    await asyncio.sleep(0.005)
                while (
                    conn.execute("select id from durable.runs where id = %s", (f"r.{n + 1}",)).fetchone()
                    is None
                ):
                    await asyncio.sleep(0.005)
                conn.execute("select durable.signal(%s, 'go', %s::jsonb)", (f"r.{n + 1}", str(10 * seen)))
            return await run.result(timeout=20)

    assert asyncio.run(main()) == [12, 20, 31]
    assert types(conn, "r").count("join_set_awaited") == 3


def test_waiting_for_all_wakes_once(dsn: str, conn: Connection) -> None:
    """A run that waits for every member is woken when the last one has completed, and not before."""
    app = App(dsn)

    @app.workflow
    async def child(n: int) -> int:
        await ctx.sleep(0.01 * n)
        return n

    @app.workflow
    async def go() -> list[int]:
        members = ctx.join_set()
        for n in (5, 1, 4, 2, 3):
            members.submit(child(n))
        return await members.all()

    async def main() -> list[int]:
        async with app.client() as client, app.worker():
            return await (await client.start(go, id="r")).result(timeout=20)

    assert asyncio.run(main()) == [5, 1, 4, 2, 3]
    rows = types(conn, "r")
    awaited, submitted = rows.count("join_set_awaited"), rows.count("join_set_submitted")
    assert (rows.count("execution_resumed"), awaited, submitted) == (1, 5, 5)


def test_local_steps_are_members_too(dsn: str, conn: Connection) -> None:
    """A step that is submitted has its row before it runs; the set is read with `async for`."""
    app = App(dsn)
    order = asyncio.Condition()
    done: list[int] = []

    @app.step
    async def step(n: int) -> int:
        async with order:
            await order.wait_for(lambda: len(done) == 2 - n)
            done.append(n)
            order.notify_all()
        return n

    @app.workflow
    async def go() -> list[int]:
        members = ctx.join_set()
        for n in range(3):
            members.submit(step(n))
        return [one async for one in members]

    assert app.run(go) == [2, 1, 0]
    row = conn.execute("select count(*) from durable._journal where type = 'step_started'").fetchone()
    assert row == (3,)


def test_an_error_is_the_result_of_its_member(dsn: str) -> None:
    """A member that failed raises where it is taken; the others can be taken after it."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        if n == 0:
            raise ValueError("zero")
        return n

    @app.workflow
    async def go() -> list[Any]:
        members = ctx.join_set()
        for n in range(2):
            members.submit(step(n))
        found: list[Any] = []
        for _ in range(2):
            try:
                found.append(await members.next())
            except ValueError as error:
                found.append(str(error))
        return sorted(map(str, found))

    assert app.run(go) == ["1", "zero"]


def test_another_worker_takes_them_in_the_same_order(dsn: str, conn: Connection) -> None:
    """What was taken is taken again in the recorded order, and the rest as it completes."""
    app = App(dsn)
    taken: list[list[int]] = []

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def go() -> list[int]:
        members = ctx.join_set()
        for n in range(6):
            members.submit(step(n))
        found = []
        for n in range(6):
            found.append(await members.next())
            taken.append(list(found))
            if n % 2:
                await ctx.receive("go on")
        return found

    async def main() -> list[int]:
        async with app.client() as client:
            run = await client.start(go, id="r")
            for n in range(3):
                async with app.worker():
                    while (
                        types(conn, "r").count("join_set_awaited") < 2 * n + 2
                        or (await run.get()).state != "waiting"
                    ):
                        await asyncio.sleep(0.005)
                conn.execute("select durable.signal('r', 'go on')")
            async with app.worker():
                return await run.result(timeout=20)

    result = asyncio.run(main())
    assert sorted(result) == [0, 1, 2, 3, 4, 5]
    for seen in taken:
        assert result[: len(seen)] == seen


def test_promises_and_steps_side_by_side(dsn: str, conn: Connection) -> None:
    """A set may hold steps, child runs and promises; while a step is under way others still complete."""
    app = App(dsn)
    settled = asyncio.Event()

    @app.step
    async def slow() -> str:
        await settled.wait()
        return "step"

    @app.step
    async def heard(word: str) -> str:
        settled.set()
        return word

    @app.workflow
    async def child() -> str:
        return "child"

    @app.workflow
    async def go() -> list[str]:
        members = ctx.join_set()
        promise = ctx.promise(str)
        members.submit(slow())
        members.submit(promise)
        members.submit(child())
        found = [await members.next(), await members.next()]
        await heard("now")
        return [*sorted(found), await members.next()]

    async def main() -> list[str]:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while "join_set_submitted" not in types(conn, "r"):
                await asyncio.sleep(0.005)
            conn.execute(
                "select durable.resolve(id, '\"promise\"') from durable._promises where id like 'r.%' "
                "and target is null and state = 'pending'"
            )
            return await run.result(timeout=20)

    assert asyncio.run(main()) == ["child", "promise", "step"]


def test_a_step_that_ends_while_it_is_submitted_is_recorded_once(dsn: str, conn: Connection) -> None:
    """A step that was under way before it was submitted, and ends in that moment, has one beginning and one
    end in the journal.
    """
    app = App(dsn)
    release, ended = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> str:
        await release.wait()
        ended.set()
        return "slow"

    @app.step
    async def quick() -> str:
        return "quick"

    @app.workflow
    async def go() -> list[str]:
        call = slow()
        found = [await quick()]
        members = ctx.join_set()
        members.submit(call)
        return [*found, await members.next()]

    async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
        answer = await send()
        if any('"quick' in str(one) for one in sent):
            # the answer makes the code submit; what ended meanwhile is reported with that
            release.set()
            await ended.wait()
            await asyncio.sleep(0)
        return answer

    undo = intercept(watch)
    try:
        assert app.run(go) == ["quick", "slow"]
    finally:
        undo()
    rows = conn.execute("select type from durable._journal where child = 0 order by seq").fetchall()
    assert [row[0] for row in rows] == [
        "step_started",
        "join_set_submitted",
        "open_step_completed",
        "join_set_awaited",
    ]


def test_what_a_set_refuses(dsn: str) -> None:
    """A closed set takes nothing more, an empty one gives nothing, and only invocations are members."""
    app = App(dsn)

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def go() -> list[str]:
        said = []
        members, other = ctx.join_set(), ctx.join_set()
        call = members.submit(step(1))
        wrong = {
            "twice": lambda: members.submit(call),
            "two sets": lambda: other.submit(call),
            "timer": lambda: other.submit(ctx.sleep(1)),
            "set": lambda: other.submit(members),
        }
        for name, attempt in wrong.items():
            try:
                attempt()
            except InvalidRequest:
                said.append(name)
        await members.next()
        late: Any = step(2)
        for name, again in {"closed": lambda: members.submit(late), "empty": members.next}.items():
            try:
                found = again()
                if name == "empty":
                    await found
            except InvalidRequest:
                said.append(name)
        await late
        return said

    assert app.run(go) == ["twice", "two sets", "timer", "set", "closed", "empty"]


def test_a_refused_member_is_no_member(dsn: str) -> None:
    """The error of a set leaves the run as it was; uncaught it ends it."""
    app = App(dsn)

    @app.workflow
    async def go() -> None:
        await ctx.join_set().next()

    with pytest.raises(RunFailed) as failed:
        app.run(go)
    assert isinstance(failed.value.__cause__, InvalidRequest)
