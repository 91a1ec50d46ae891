"""Law: a workflow with its arguments starts everywhere as the workflow and its arguments would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyengine import App, Client, InvalidRequest, ctx, sync
from pyengine.core.definitions.bound_workflow import BoundWorkflow


def shop(dsn: str) -> App:
    """A workflow with a parameter that is named like an option, and one that starts it in each way."""
    app = App(dsn)

    @app.workflow
    async def ship(order: int, id: str = "none", *, express: bool = False) -> list[Any]:
        return [order, id, express]

    @app.workflow
    async def all_ways() -> list[Any]:
        bound = ship.bind(1, id="child", express=True)
        found = [await ctx.start(bound, timeout="1m")]
        async with ctx.transaction() as tx:
            run_id = await tx.start(bound, id="in-transaction")
        return [*found, await ctx.promise(list, id=run_id)]

    return app


def bound(app: App, *args: Any, **kwargs: Any) -> BoundWorkflow[Any]:
    """The workflow `ship` with arguments."""
    definition = app.registry.workflow("ship")
    definition.signature.bind(args, kwargs)
    return BoundWorkflow(definition, args, kwargs)


def test_every_start_takes_one(dsn: str) -> None:
    """Client, app, blocking client, child run and transaction: all arguments arrive, and all options."""
    app = shop(dsn)
    given = bound(app, 7, id="mine", express=True)

    async def main() -> None:
        async with app.worker(), Client(dsn) as client:
            run = await client.start(given, id="by-client", priority=3)
            again = await client.begin(given, id="by-client")
            assert (run.id, run.created, again.created) == ("by-client", True, False)
            assert await run.result() == [7, "mine", True]
            assert await (await app.start(given, id="by-app")).result() == [7, "mine", True]
            assert await (await app.start("all_ways")).result() == [[1, "child", True]] * 2

            def block() -> Any:
                with sync.Client(dsn) as blocking:
                    return blocking.start(given, id="blocking").result(timeout="1m")

            assert await asyncio.to_thread(block) == [7, "mine", True]

    asyncio.run(main())
    assert app.run(given) == [7, "mine", True]


def test_a_run_continues_as_itself_only(dsn: str) -> None:
    """continue_as_new takes the run's own workflow with new arguments, and no other one."""
    app = App(dsn)

    @app.workflow
    async def other(left: int) -> int:
        return left

    @app.workflow
    async def count(left: int, *, done: int = 0) -> int:
        if left:
            ctx.continue_as_new(count.bind(left - 1, done=done + 1))
        with pytest.raises(InvalidRequest, match="a run of workflow count cannot continue as other"):
            ctx.continue_as_new(other.bind(3))
        return done

    assert app.run(count, 3) == 3


def test_arguments_are_given_once(dsn: str) -> None:
    """Arguments beside those that are bound are refused, and named."""
    app = shop(dsn)

    async def main() -> None:
        async with Client(dsn) as client:
            for args, kwargs in (((8,), {}), ((), {"order": 8})):
                with pytest.raises(InvalidRequest, match="workflow ship has its arguments from bind"):
                    await client.begin(bound(app, 7), args, kwargs)

    asyncio.run(main())


def test_bind_checks_the_parameters(dsn: str) -> None:
    """Wrong arguments are refused where they are bound; the value says what it starts."""
    app = App(dsn)

    @app.workflow
    async def ship(order: int, *, express: bool = False) -> int:
        return order

    assert repr(ship.bind(7, express=True)) == "<workflow ship(7, express=True)>"
    assert ship.bind(7) == ship.bind(7) != ship.bind(8)
    with pytest.raises(InvalidRequest, match="missing a required argument: 'order'") as caught:
        ship.bind()  # type: ignore[call-arg]
    assert "it takes (order: " in str(caught.value)
