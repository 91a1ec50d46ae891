"""Figures: measure, system, round and probe; their medians, and their ratios to those of peers. Measures
nothing and prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Better = Literal["more", "less"]
OURS = "pyengine"


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of a workload.

    Args:
        what: the title of the row, the same for every system.
        value: the number.
        unit: its unit.
        better: whether more or less is better.
    """

    what: str
    value: float
    unit: str
    better: Better = "more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measure with its origin.

    Args:
        probe: single-row commits a second of one connection, taken a moment before.
    """

    system: str
    workload: str
    round: int
    what: str
    value: float
    unit: str
    better: Better
    probe: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The reason why a system has no figure."""

    system: str
    workload: str
    round: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The middle of all rounds, with the ends."""

    value: float
    least: float
    most: float
    rounds: int
    unit: str
    better: Better
    probe: float


class Results:
    """All results of one run of the bench."""

    def __init__(self, figures: Iterable[Figure] = (), faults: Iterable[Fault] = ()) -> None:
        self.figures = list(figures)
        self.faults = list(faults)

    def whats(self) -> list[str]:
        """The rows, in the order in which they were first measured."""
        return list(dict.fromkeys(figure.what for figure in self.figures))

    def systems(self) -> list[str]:
        """The columns: ours, then the others in the order of measurement."""
        names = dict.fromkeys([*(one.system for one in self.figures), *(one.system for one in self.faults)])
        return sorted(names, key=lambda name: name != OURS)

    def median(self, what: str, system: str = OURS) -> Median | None:
        """The median of one row and column, or None if it was not measured."""
        found = [one for one in self.figures if one.what == what and one.system == system]
        if not found:
            return None
        values = [one.value for one in found]
        return Median(
            value=statistics.median(values),
            least=min(values),
            most=max(values),
            rounds=len(values),
            unit=found[0].unit,
            better=found[0].better,
            probe=statistics.median(one.probe for one in found),
        )

    def probes(self, what: str) -> tuple[float, float]:
        """The least and the largest probe beside the figures of a row, which show whether the machine was
        calm.
        """
        found = [one.probe for one in self.figures if one.what == what]
        return min(found), max(found)

    def ahead(self, what: str, system: str) -> float | None:
        """The ratio of our median to this peer's; above 1 is better."""
        ours, theirs = self.median(what), self.median(what, system)
        if ours is None or theirs is None or not ours.value or not theirs.value:
            return None
        ratio = ours.value / theirs.value
        return ratio if ours.better == "more" else 1 / ratio

    def as_data(self) -> dict[str, Any]:
        """For JSON: the raw figures and their medians."""
        return {
            "figures": [asdict(one) for one in self.figures],
            "faults": [asdict(one) for one in self.faults],
            "medians": {
                what: {
                    system: {
                        "value": found.value,
                        "unit": found.unit,
                        "better": found.better,
                        "rounds": found.rounds,
                        "probe": found.probe,
                    }
                    for system in self.systems()
                    if (found := self.median(what, system))
                }
                for what in self.whats()
            },
        }
