"""A promise of a run is settled from another connection in every gap between two turns.

For each gap one run: two chains of steps and one branch that waits for the promise, gathered. Whatever the
gap, the live run and a cold replay of its journal agree on every number, name and result, and the result is
the same.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import psycopg

from pyengine import App, Client, Worker, ctx
from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.protocol.commands import Complete
from pyengine.core.protocol.journal import RESULTS, Row
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from tests.support.turns import Send, carries, intercept

app = App()
made: dict[str, dict[int, str]] = {}


@app.step
async def note(text: str) -> str:
    """Remembers the number under which it really ran."""
    made.setdefault(ctx.step.run_id, {})[ctx.step.child] = text
    return text


async def chain(name: str) -> list[str]:
    """Three steps, one after the other."""
    return [await note(f"{name}{number}") for number in range(3)]


async def outside() -> str:
    """Waits for somebody else, then takes a step that depends on the answer."""
    return await note(f"after {await ctx.promise(str, name='word')}")


@app.workflow
async def weave() -> list[Any]:
    """Two chains and a branch that waits."""
    return [
        await note("first"),
        *await asyncio.gather(chain("left"), chain("right"), outside()),
        await note("last"),
    ]


EXPECTED = ["first", ["left0", "left1", "left2"], ["right0", "right1", "right2"], "after word", "last"]


async def live(dsn: str, name: str, gap: int) -> int:
    """Run `weave`, settling its promise right before turn number `gap` (or when it waits for nothing else);
    answers the turns.
    """
    turns = 0

    async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
        nonlocal turns
        if carries(sent):
            turns += 1
            if turns >= gap:
                await asyncio.to_thread(settle, dsn, name)
        return await send()

    undo = intercept(watch)
    try:
        async with Worker(app.registry, dsn), Client(dsn) as client:
            run = await client.start(weave, id=name)
            while (state := (await run.get()).state) not in ("completed", "failed", "halted"):
                await asyncio.sleep(0.01)
                if state == "waiting":
                    await asyncio.to_thread(settle, dsn, name)
            assert await run.result(timeout=5) == EXPECTED
    finally:
        undo()
    return turns


def settle(dsn: str, name: str) -> None:
    """Resolve the pending promise of the run, if it has one."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select durable.resolve(id, '\"word\"') from durable._promises where id like %s and "
            "target is null and state = 'pending'",
            (f"{name}.%",),
        )


def cold(dsn: str, name: str) -> tuple[Any, dict[int, str]]:
    """Result and step numbers of a replay of the finished run's journal, without its last row."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "select h.execution, p.created_at, r.rows from durable._executions h "
            "join durable._promises p on p.id = h.id cross join lateral "
            "durable._rows(h.execution, h.bucket, h.id, 0, h.next_seq - 1) r where h.id = %s",
            (name,),
        ).fetchone()
    assert row is not None
    rows = [Row(*each) for each in row[2]]
    definition = app.registry.workflow("weave")
    info = RunInfo(id=name, execution=row[0], version=1, workflow="weave", started_at_ms=row[1])
    replay = Replay(definition, info, lambda: 0, random.Random(0), Codec())
    replay.load(rows)
    moves = replay.advance()
    assert isinstance(moves.end, Complete), moves
    assert (moves.commands, moves.steps) == ((), ())
    return json.loads(moves.end.value), {
        r.child: json.loads(r.data or "") for r in rows if r.child is not None and r.type in RESULTS
    }


def test_a_promise_settled_in_any_gap_leaves_live_and_cold_equal(
    dsn: str, figures: Callable[[str, str], None]
) -> None:
    """In every gap between turns a settlement from outside gives the same result, with numbers that a cold
    replay makes again.
    """
    gap, turns = 2, 99
    while gap <= turns + 1:
        name = f"weave-{gap}"
        turns = asyncio.run(live(dsn, name, gap))
        result, numbers = cold(dsn, name)
        assert result == EXPECTED
        assert numbers == made[name]
        gap += 1
    assert gap > 5
    figures(
        "gaps", f"a settlement in each of {gap - 2} gaps between turns; live and cold replay equal every time"
    )
