"""Transactions of runs whose results are sent early."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.worker.step_runner import StepRunner
from tests.core.worker.test_early import end_at_once, result, serve, shapes, turns

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_transaction_waits_for_what_comes_before_it(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """A transaction that follows a result does not begin before the result is recorded."""
    if at_once:
        monkeypatch.setattr(StepRunner, "start_task", end_at_once)
    app, recorded = App(dsn), list[int]()

    @app.step
    async def price(n: int) -> int:
        return n

    @app.workflow
    async def paying(pays: bool) -> int:
        found = await price(1)
        if pays:
            async with ctx.transaction() as tx:
                rows = (
                    "select count(*) from durable._journal where type = 'step_completed' and name = 'price'"
                )
                recorded.append(await tx.fetchval(rows))
        return found

    async def play(client: Any) -> None:
        for number, pays in enumerate((False, False, True, True)):
            assert await result(client, "paying", pays, id=f"r{number}") == 1

    with turns() as sent:
        serve(app, play)
    assert (1, 0, "complete") in shapes(sent) and recorded == [3, 4]
