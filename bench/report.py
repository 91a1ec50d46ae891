"""The results of a run of the bench, as Markdown for people and as JSON for programs. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import budgets
from bench.record import OURS, Median, Results


def number(value: float) -> str:
    """Three significant digits, with separators."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _cell(found: Median | None) -> str:
    if found is None:
        return ""
    spread = f" [{number(found.least)}..{number(found.most)}]" if found.rounds > 1 else ""
    return number(found.value) + spread


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def figures(results: Results) -> str:
    """The medians of all systems side by side."""
    systems = results.systems()
    rows = []
    for what in results.whats():
        found = {name: results.median(what, name) for name in systems}
        some = next(one for one in found.values() if one)
        unit = "" if some.unit in ("/s", "x") else f", {some.unit}"
        label = what + unit + (" (less is better)" if some.better == "less" else "")
        least, most = results.probes(what)
        probe = f"{number(least)}..{number(most)}"
        rows.append([label, *(_cell(found[name]) for name in systems), probe])
    return _rows(["median [least..most]", *systems, "probes, commits/s"], rows)


def ratios(results: Results) -> str:
    """Our ratio to each peer."""
    peers = [name for name in results.systems() if name != OURS]
    rows = []
    for what in results.whats():
        found = [results.ahead(what, peer) for peer in peers]
        if any(found):
            rows.append([what, *(f"{one:.3g}x" if one else "" for one in found)])
    return _rows([f"{OURS} is ahead of", *peers], rows) if rows else ""


def budget_table(results: Results) -> str:
    """The budgets and their results."""
    told = {None: "not measured", True: "yes", False: "**no**"}
    rows = [
        [work, target, "" if measured is None else number(measured), told[met]]
        for work, target, measured, met in budgets.table(results)
    ]
    return _rows(["budget", "target", "measured", "met"], rows)


def markdown(results: Results, about: Mapping[str, Any]) -> str:
    """The whole report."""
    machine, postgres = about["machine"], about["postgres"]
    parts = [
        "# Speed, side by side\n",
        f"{about['at'][:10]}, commit {about['commit'][:12] or 'unknown'}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}, load "
        f"{machine['load_1m']} at the start.\nPostgreSQL "
        + ", ".join(
            f"{value}" if name == "version" else f"{name} {value}" for name, value in postgres.items()
        )
        + f".\n{about['rounds']} rounds, interleaved; repeat with `{about['command']}`."
        + (" **Quick sizes: these figures say that it works, not how fast.**" if about["quick"] else "")
        + "\n\nWhere the probes of a row lie far apart, its systems met different machines.\n",
        figures(results),
        "## Ratios\n",
        ratios(results),
        "## Budgets\n",
        budget_table(results),
        "## Versions and settings\n",
        "\n".join(
            f"* **{name}** {_versions(one['versions'])}: {one['settings']}"
            if not one["missing"]
            else f"* **{name}** was left out: {one['missing']}"
            for name, one in about["systems"].items()
        )
        + "\n",
    ]
    if results.faults:
        parts += [
            "## What failed\n",
            "\n".join(
                f"* {one.system}, {one.workload}, round {one.round}: {' '.join(one.why.split())[:600]}"
                for one in results.faults
            )
            + "\n",
        ]
    return "\n".join(part for part in parts if part)


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def write(results: Results, about: Mapping[str, Any], folder: Path) -> None:
    """Write speed.json and speed.md, after each turn, so that an interrupted run has a report."""
    folder.mkdir(parents=True, exist_ok=True)
    judged = [
        {"work": work, "target": target, "measured": measured, "met": met}
        for work, target, measured, met in budgets.table(results)
    ]
    data = {**about, **results.as_data(), "budgets": judged}
    (folder / "speed.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / "speed.md").write_text(markdown(results, about), encoding="utf-8")


def draw(results: Results, folder: Path) -> None:
    """Write speed.svg, if matplotlib is installed and there is a peer."""
    try:
        from bench import plot
    except ImportError:
        return
    plot.draw(results, folder / "speed.svg")
