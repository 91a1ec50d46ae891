"""Law: many sessions that do everything to the same objects at once break no law, never lock in a circle,
and leave nobody stranded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from tests.support.verbs import Connection
from tests.system.races.storm import World, calm, rage

SESSIONS = 8
KINDS = ("fence", "suspend", "settle")
STEERING = ("signal", "cancel")  # how many meet a run that has not ended yet is chance


def summary(world: World, seed: int, rings: int) -> str:
    """The figures of a storm as a table."""
    lines = [
        f"{world.done:,} operations from {SESSIONS} sessions, seed {seed}, deadlocks 0, "
        f"durable.check() empty, nobody stranded "
        f"({rings} rings of awaits broken at the end)",
        "",
        "| operation | tried | effective |",
        "|---|---|---|",
    ]
    lines += [
        f"| {kind} | {tried:,} | {world.share(kind):.0f} % |" for kind, tried in sorted(world.tried.items())
    ]
    refusals = ", ".join(f"{code} {number:,}" for code, number in sorted(world.refused.items()))
    return "\n".join([*lines, "", f"Refused: {refusals}."])


@pytest.mark.parametrize(
    "size", [pytest.param(2_000, id="2k"), pytest.param(500_000, id="500k", marks=pytest.mark.full)]
)
def test_storm(dsn: str, conn: Connection, seed: int, size: int, figures: Callable[[str, str], None]) -> None:
    """After the storm every law holds, and in the calm every task comes to its end."""
    world = World(rng=Random(seed), limit=size)
    asyncio.run(rage(dsn, world, SESSIONS))
    broken = conn.execute("select * from durable.check()").fetchall()
    assert not broken, (seed, broken)
    rings = asyncio.run(calm(dsn))
    left = conn.execute("select id, state, version from durable._tasks").fetchall()
    assert not left, f"seed {seed}: stranded"
    pending = conn.execute(
        "select id from durable._promises where state = 'pending' and external and execution is null"
    )
    assert not pending.fetchall()
    figures("storms", summary(world, seed, rings))
    for kind in KINDS:
        assert world.share(kind) >= 20, f"seed {seed}: {kind} had an effect in {world.share(kind):.0f} % only"
    for kind in STEERING:
        assert world.effective[kind] > 0, f"seed {seed}: of {world.tried[kind]} of {kind} none had an effect"
