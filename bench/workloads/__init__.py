"""The workloads: one function each, which takes a fresh database with a system in it and yields measures. A
system takes part if it has the ability. No figure is checked here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.record import Measure
from bench.systems import Ability, System


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of a workload.

    Args:
        system: the measured system.
        dsn: a database with its tables and nothing else.
        quick: sizes for two minutes, not for figures.
    """

    system: System
    dsn: str
    quick: bool

    def size(self, full: int, quick: int | None = None) -> int:
        """The number of runs: a tenth of it, or the second number, when quick."""
        if not self.quick:
            return full
        return max(full // 10, 1) if quick is None else quick


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload and what it asks for.

    Args:
        needs: the ability a system must have.
        run: the function.
        bound_s: a system that takes longer is stopped, and has no figure.
    """

    needs: Ability
    run: Callable[[Site], Iterable[Measure]]
    bound_s: float = 180


_PLACES: dict[str, tuple[str, Ability, float]] = {
    "start": ("speed", "noop", 120),
    "noop": ("speed", "noop", 240),
    "ten_steps": ("speed", "steps", 240),
    "latency": ("waits", "noop", 120),
    "few_steps": ("waits", "steps", 120),
    "start_options": ("options", "own", 120),
    "signal": ("waits", "signal", 120),
    "fan_out": ("waits", "fan_out", 300),
    "long": ("length", "long", 240),
    "naps": ("length", "naps", 300),
    "replay": ("replay", "own", 180),
    "recovery": ("recovery", "own", 120),
    "growth": ("growth", "own", 2_400),
    "reads": ("reads", "own", 1_200),
    "holds": ("holds", "own", 240),
    "idle": ("idle", "own", 240),
    "hints": ("hints", "own", 180),
    "calls": ("calls", "own", 180),
    "upgrade": ("upgrade", "own", 300),
}
NAMES = tuple(_PLACES)


def workload(name: str) -> Workload:
    """The workload of that name."""
    place, needs, bound_s = _PLACES[name]
    run = getattr(importlib.import_module(f"bench.workloads.{place}"), name)
    return Workload(needs, run, bound_s)


def needs(name: str) -> Ability:
    """The ability that a workload asks for, without importing it."""
    return _PLACES[name][1]
