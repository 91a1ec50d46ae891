"""Many runs started by one statement, and runs found by their tags, from Python."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, InvalidRequest, NotFound, RunConflict
from pyengine.sync import Client as SyncClient

Connection = psycopg.Connection[tuple[object, ...]]


def test_many_runs_are_started_at_once(dsn: str, conn: Connection) -> None:
    """Typed arguments by position or by name, options for all, and a handle for each, in their order."""
    app = App(dsn)

    @app.workflow(queue="bulk", version="3")
    async def double(n: int, plus: int = 0) -> int:
        return 2 * n + plus

    async def main() -> list[int]:
        async with app.client() as client, app.worker():
            args: list[Any] = [(1,), {"n": 2, "plus": 1}, double.bind(3, plus=4)]
            runs = await client.start_many(double, args, tags={"batch": "7"}, priority=2)
            assert [run.created for run in runs] == [True] * 3
            found = await client.list(tags={"batch": "7"})
            assert {run.id for run in runs} == {one.id for one in found}
            assert {(one.queue, one.version, one.tags["batch"]) for one in found} == {("bulk", "3", "7")}
            return [await run.result(timeout=20) for run in runs]

    assert asyncio.run(main()) == [2, 5, 10]


def test_a_start_by_name_goes_to_the_declared_queue(dsn: str) -> None:
    """A client that does not know the code starts runs where the worker of the workflow serves them."""
    app = App(dsn)

    @app.workflow(queue="bulk")
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> None:
        async with app.worker(queues=["bulk"]), Client(dsn) as stranger:
            runs = [await stranger.start("double", 1), *await stranger.start_many("double", [(2,), (3,)])]
            assert [await run.result(timeout=20) for run in runs] == [2, 4, 6]
            runs.append(await stranger.start("double", 4, queue="other"))
            assert [(await stranger.get(run.id)).queue for run in runs] == [*["bulk"] * 3, "other"]

    asyncio.run(main())


def test_another_form_of_the_same_calls(dsn: str, conn: Connection) -> None:
    """Runs that exist are found though their arguments are written otherwise, and the rest is started; a call
    that is another one leaves nothing."""
    app = App(dsn)

    @app.workflow
    async def double(n: int, plus: int = 0) -> int:
        return 2 * n + plus

    conn.execute("select durable.start('double', '{\"n\": 1, \"plus\": 0}', id => 'a')")
    conn.execute("select durable.start('double', '[2, 0]', key => 'k')")

    async def main() -> None:
        async with app.client() as client:
            names: dict[str, Any] = {"ids": ["a", None, "c"], "keys": [None, "k", None]}
            with pytest.raises(RunConflict):
                await client.start_many(double, [(1,), (3,), (4,)], **names)
            assert len(await client.list()) == 2
            runs = await client.start_many(double, [(1,), (2,), (4,)], **names)
            assert [run.created for run in runs] == [False, False, True]

    asyncio.run(main())


def test_ids_and_keys(dsn: str, conn: Connection) -> None:
    """The same again finds the runs; some may have a key, some an id, some neither."""

    async def main() -> None:
        async with App(dsn).client() as client:
            first = await client.start_many(
                "w", [(1,), (2,), (3,)], ids=["a", None, None], keys=[None, "k", None]
            )
            again = await client.start_many(
                "w", [(1,), (2,), (3,)], ids=["a", None, None], keys=[None, "k", None]
            )
            assert [run.created for run in again] == [False, False, True]
            assert [run.id for run in first][:2] == [run.id for run in again][:2]
            assert first[0].id == "a" and first[2].id != again[2].id
            assert await client.start_many("w", []) == []
            with pytest.raises(RunConflict, match="element 2"):
                await client.start_many("w", [(1,), (5,)], ids=["new", "a"])
            with pytest.raises(InvalidRequest, match="2 runs, 1 ids"):
                await client.start_many("w", [(1,), (2,)], ids=["b"])
            with pytest.raises(InvalidRequest, match="1 to 512 bytes"):
                await client.start_many("w", [(1,)], ids=[""])
            with pytest.raises(InvalidRequest, match="element 2 of args is 2"):
                await client.start_many("w", [(1,), 2])  # type: ignore[list-item]

    asyncio.run(main())
    assert conn.execute("select count(*) from durable.runs where id in ('new', 'b')").fetchone() == (0,)


def test_many_runs_in_the_transaction_of_the_caller(dsn: str, conn: Connection) -> None:
    """A rollback leaves none; the blocking client has the verb too."""
    with SyncClient(dsn) as client, psycopg.connect(dsn) as mine:
        client.start_many("w", [(n,) for n in range(5)], conn=mine)
        mine.rollback()
        runs = client.start_many("w", [(n,) for n in range(5)], conn=mine)
        mine.commit()
        assert [run.get().args for run in runs] == [[n] for n in range(5)]


def test_an_unknown_workflow_is_refused(dsn: str) -> None:
    """As by start."""
    app = App(dsn)

    @app.workflow
    async def known() -> None: ...

    async def main() -> None:
        async with app.client() as client, app.worker():
            with pytest.raises(NotFound):
                await client.start_many("unknown", [()])

    asyncio.run(main())


def test_runs_are_found_by_their_tags(dsn: str, conn: Connection) -> None:
    """All of the tags that are asked for, with workflow and state, newest first."""
    with SyncClient(dsn) as client:
        client.start("w", id="a", tags={"customer": "7", "kind": "new"})
        client.start("w", id="b", tags={"customer": "7"})
        client.start("v", id="c", tags={"customer": "7"})
        client.start("w", id="d")
        client.cancel("b")

        def found(**wanted: Any) -> list[str]:
            return [run.id for run in client.list(**wanted)]

        assert found(tags={"customer": "7"}) == ["c", "b", "a"]
        assert found(tags={"customer": "7"}, limit=1) == ["c"]
        assert found(tags={"customer": "7"}, workflow="w", state="cancelled") == ["b"]
        assert found(tags={"customer": "7", "kind": "new"}) == ["a"]
        assert found(tags={"customer": "8"}) == []
        assert (client.get("a").tags, client.get("d").tags) == ({"customer": "7", "kind": "new"}, {})
        for wrong in ({"a": 1}, ["a"]):
            with pytest.raises(InvalidRequest, match="texts by name"):
                client.start("w", tags=wrong)  # type: ignore[arg-type]
