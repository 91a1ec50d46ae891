"""The medians of a run of the bench as one picture: a panel for each row that peers take part in, a bar for
each system. Needs matplotlib, which comes with the extra `bench`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.record import OURS, Results
from bench.report import number

_COLOURS = {
    OURS: "#1b6ca8",
    "dbos": "#c9803a",
    "absurd": "#7a9a4a",
    "procrastinate": "#9a7ab0",
    "pgqueuer": "#b85a5a",
    "restate": "#6b6b6b",
    "bare": "#c8c8c8",
}
_ACROSS = 4


def draw(results: Results, path: Path) -> bool:
    """Write the picture; return False if no row has a peer."""
    rows = [
        what
        for what in results.whats()
        if len(_who(results, what)) > 1
        and any(one.what == what and one.unit != "x" for one in results.figures)
    ]
    if not rows:
        return False
    down = -(-len(rows) // _ACROSS)
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 8}):
        figure, axes = pyplot.subplots(
            down, _ACROSS, figsize=(3.4 * _ACROSS, 1.9 * down), squeeze=False, layout="constrained"
        )
        places = list(axes.flat)
        for place, what in zip(places, rows, strict=False):
            _panel(place, results, what)
        for place in places[len(rows) :]:
            place.axis("off")
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return True


def _who(results: Results, what: str) -> list[str]:
    return [name for name in results.systems() if results.median(what, name)]


def _panel(place: Axes, results: Results, what: str) -> None:
    names = _who(results, what)
    found = [one for name in names if (one := results.median(what, name))]
    values = [one.value for one in found]
    bars = place.barh(names, values, color=[_COLOURS.get(name, "#888888") for name in names])
    place.bar_label(bars, [number(value) for value in values], padding=3)
    place.invert_yaxis()
    place.set_xscale("log")  # systems differ by orders of magnitude
    place.set_xlim(min(values) / 3, max(values) * 6)
    some = found[0]
    unit = "" if some.unit == "/s" else f", {some.unit}"
    place.set_title(f"{what}{unit}\n{some.better} is better", fontsize=8)
    place.spines[["top", "right"]].set_visible(False)
    place.tick_params(axis="x", which="both", labelbottom=False, length=0)
