"""The law that another process does the same: no hash seed, no address, no C part changes the order."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyengine.core.loop.futures import DeterministicFuture, DeterministicTask
from tests.core.replay import loop_scenarios

ROOT = Path(__file__).parents[3]


def digest_of(seed: int, *options: str) -> str:
    """Run all scenario programs in a process with this hash seed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", loop_scenarios.__file__, *options],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.full)])
def test_all_hash_seeds_give_one_trace(count: int) -> None:
    """Processes with different hash seeds do exactly the same, and the same as this one."""
    with ThreadPoolExecutor(2) as pool:
        digests = set(pool.map(digest_of, range(count)))
    assert digests == {loop_scenarios.digest()}


def test_asyncio_without_its_c_part_gives_the_same_trace() -> None:
    """Tasks and futures in Python do what those in C do."""
    assert digest_of(1, "--pure") == loop_scenarios.digest()


@pytest.mark.parametrize("program", loop_scenarios.PROGRAMS)
def test_a_second_play_is_equal(program: loop_scenarios.Program) -> None:
    """Each program does the same again in the same process, amid other objects in memory."""
    ballast: list[Any] = [loop_scenarios.play(program)]
    ballast.append([object() for _ in range(999)])
    assert loop_scenarios.play(program) == ballast[0]


def test_the_scenarios_notice_order_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """With asyncio's own hashes the traces differ between plays, so the scenarios do test what they claim."""
    monkeypatch.setattr(DeterministicTask, "__hash__", object.__hash__)
    monkeypatch.setattr(DeterministicFuture, "__hash__", object.__hash__)
    monkeypatch.setattr("pyengine.core.loop.restrictions.check_future", lambda *_: None)
    plays = []
    for _ in range(20):
        plays.append(loop_scenarios.play(loop_scenarios.waiting))
        plays.append([object() for _ in range(len(plays) * 37)])
    assert any(play != plays[0] for play in plays[::2])
