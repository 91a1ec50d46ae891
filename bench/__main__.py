"""Durable execution on Postgres, side by side: python -m bench [--quick] [--systems a,b] [--workloads c,d]
[--rounds N] [--dsn URL] [--out DIR]

The command: its options, lines of progress, the tables at the end.
"""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import report, runner, server, systems, workloads
from bench.record import Results
from bench.systems import System

_out = Console(soft_wrap=True, highlight=False)


def _chosen(text: str | None, known: tuple[str, ...], what: str, *more: str) -> list[str]:
    names = list(known) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if strange := [name for name in names if name not in (*known, *more)]:
        raise typer.BadParameter(f"no {what} {', '.join(strange)}; there are {', '.join((*known, *more))}")
    return names


def main(
    quick: Annotated[
        bool, typer.Option(help="Small sizes and one round: that it works, not how fast.")
    ] = False,
    only: Annotated[
        str | None, typer.Option("--systems", help=", ".join((*systems.NAMES, systems.LIMIT)))
    ] = None,
    work: Annotated[str | None, typer.Option("--workloads", help=", ".join(workloads.NAMES))] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Repetitions; 3, or 1 when quick.")] = None,
    dsn: Annotated[str | None, typer.Option(help="A server to make databases bench_* on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for speed.json, .md and .svg.")] = None,
) -> None:
    """Measure pyengine and its peers on one server, fsync on, and put the figures side by side."""
    names = _chosen(work, workloads.NAMES, "workload")
    asked = [systems.system(name) for name in _chosen(only, systems.NAMES, "system", systems.LIMIT)]
    there = [one for one in asked if one.missing() is None]
    for one in asked:
        if one not in there:
            _out.print(f"{one.name}: left out, because {one.missing()}", markup=False, style="yellow")
    folder = out or Path(tempfile.mkdtemp(prefix="pyengine-bench-results-", dir="/tmp"))
    count = rounds or (1 if quick else 3)
    results = Results()
    with server.server(dsn) as url:
        if dsn is not None and server.settings(dsn)["track_commit_timestamp"] != "on":
            raise typer.BadParameter(
                "that server does not tell when a transaction was committed; ALTER SYSTEM SET "
                "track_commit_timestamp = on, restart it, and try again",
                param_hint="--dsn",
            )
        about = {**_about(url, asked, count), "quick": quick}
        try:
            for turn in runner.turns(url, there, names, count, quick):
                _one(turn, results)
                report.write(results, about, folder)
        finally:
            if dsn is not None:
                runner.clear(url, there, names)
    report.draw(results, folder)
    text = report.markdown(results, about)
    _out.print("\n" + text, markup=False)
    _out.print(f"written to {folder}")


def _one(turn: runner.Turn, results: Results) -> None:
    label = f"[dim]{time.strftime('%H:%M:%S')}[/] {turn.round} {turn.workload:9} [bold]{turn.system}[/]"
    done = runner.take(turn)
    results.figures += done.figures
    results.faults += done.faults
    told = "; ".join(f"{one.what} [bold]{report.number(one.value)}[/] {one.unit}" for one in done.figures)
    probe = f"probe {done.figures[0].probe:,.0f}/s, " if done.figures else ""
    _out.print(f"{label}  {told}  [dim]{probe}{done.seconds:.1f} s[/]")
    for fault in done.faults:
        _out.print(f"    {fault.why}", markup=False, style="red")


def _repeat(words: list[str]) -> str:
    """The command, without the options for paths and databases."""
    kept, left = [], iter(words)
    for word in left:
        if word in ("--out", "--dsn"):
            next(left, None)
        elif not word.startswith(("--out=", "--dsn=")):
            kept.append(word)
    return shlex.join(["python", "-m", "bench", *kept])


def _about(url: str, asked: list[System], rounds: int) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _repeat(sys.argv[1:]),
        "commit": server.commit(),
        "machine": server.machine(),
        "postgres": server.settings(url),
        "rounds": rounds,
        "systems": {
            one.name: {"versions": one.versions(), "settings": one.settings, "missing": one.missing()}
            for one in asked
        },
    }


def _ended(number: int, frame: object) -> None:
    sys.exit(128 + number)  # an exit like any other: the server and the turn's processes are ended on the way


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)
    typer.run(main)
