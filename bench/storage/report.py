"""Turns the runner's figures into Markdown tables: ratios to the base first, then absolute values."""

from __future__ import annotations

import statistics
from typing import Any

from variants import VARIANTS


def spread(values: list[float], digits: int = 2) -> str:
    """Return `median [min..max]`."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"


def ratios(found: dict[str, Any], name: str, in_flight: int, key: str) -> list[float]:
    """Return variant / base for each round."""
    return [
        a[key] / b[key]
        for a, b in zip(found["figures"][name][in_flight], found["figures"]["base"][in_flight], strict=True)
    ]


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def comparison(found: dict[str, Any], in_flight: int) -> list[str]:
    """One table: a line per variant, ratios to the base of the same round."""
    head = [
        "variant",
        "point",
        "backend CPU",
        "WAL",
        "WAL with vacuum",
        "client CPU",
        "steps/s (wall)",
        "CPU us/step",
        "WAL B/run",
        "vacuum us/step",
    ]
    lines = [row(head), row(["---"] * len(head))]
    for rounds in found["figures"].values():
        for f in rounds[in_flight]:
            f["wal_all"] = f["wal_run"] + f["vacuum_wal_run"]
    for name, rounds in found["figures"].items():
        figures = rounds[in_flight]
        lines.append(
            row(
                [
                    name,
                    str(VARIANTS[name][0]),
                    *(
                        spread(ratios(found, name, in_flight, k))
                        for k in ("cpu_us_step", "wal_run", "wal_all", "client_us_step", "steps_s")
                    ),
                    *(
                        spread([f[k] for f in figures], d)
                        for k, d in (("cpu_us_step", 1), ("wal_run", 0), ("vacuum_us_step", 1))
                    ),
                ]
            )
        )
    return lines


def left(found: dict[str, Any]) -> list[str]:
    """Bytes left for each finished run, by relation."""
    tables = ["promises", "tasks", "ready", "executions", "journal"]
    head = [
        "variant",
        "of base",
        "bytes/run",
        *(f"{t} heap + indexes" for t in tables),
        "start WAL",
        "read us",
    ]
    lines = [row(head), row(["---"] * len(head))]
    whole = {n: sum(s.values()) for n, s in found["sizes"].items()}
    for name, by in found["sizes"].items():
        cells = [
            f"{by[f'{t} heap']:.0f} + {by[f'{t} indexes']:.0f}" if f"{t} heap" in by else "" for t in tables
        ]
        lines.append(
            row(
                [
                    name,
                    f"{whole[name] / whole['base']:.3f}",
                    f"{whole[name]:.0f}",
                    *cells,
                    f"{found['starts'][name]:.0f}",
                    spread(found["reads"][name], 0),
                ]
            )
        )
    return lines


def soaked(found: dict[str, Any]) -> list[str]:
    """The soak: a line per stage and shape."""
    if "soak" not in found:
        return []
    head = list(found["soak"][0])
    return [
        "",
        "## Soak",
        "",
        row(head),
        row(["---"] * len(head)),
        *(row([str(v) for v in line.values()]) for line in found["soak"]),
    ]


def markdown(found: dict[str, Any]) -> str:
    """Return the whole report."""
    probes = [
        f["probe"] for rounds in found["figures"].values() for figures in rounds.values() for f in figures
    ]
    others = [
        f["others"] for rounds in found["figures"].values() for figures in rounds.values() for f in figures
    ]
    lines = [
        f"{found['about']}",
        "",
        f"Commit probe {spread(probes, 0)} /s; cores used by others and by Postgres helpers {spread(others)}",
    ]
    for in_flight in found["about"]["runs"]:
        lines += ["", f"## {in_flight} in flight", "", *comparison(found, in_flight)]
    return "\n".join([*lines, "", "## Bytes left", "", *left(found), *soaked(found)])
