"""``pyengine replay-check MODULE:APP``: checks that code fits the existing runs.

Lives here: loading the application, and the output of the report. May not: replay (``replay_check.py`` of the
package), or contain SQL. It only reads, so the database may be a standby. Exit codes beyond the usual ones:
0 no run diverges, 1 a run diverges, 7 this code has the workflow of none of the runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Invocation
from pyengine.doors.cli.output import listed, printable, progress
from pyengine.doors.cli.worker import load, set_database
from pyengine.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.features.checks.replay_check import Break, Report

_ADVICE = (
    "guard the change with ctx.patched, or give it a new version and keep the old code until its runs end"
)
_NOT_DETERMINISTIC = (
    "two replays of one journal differ: take time, random numbers and ids from ctx, and the rest from steps"
)
_ENDED = ("completed", "failed", "timed_out", "cancelled", "continued")


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app, "replay-check")(replay_check)


def replay_check(
    at: Invocation,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, such as hello:app.")],
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="Only runs of this workflow.")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", "-n", min=1, help="Number of runs of each workflow and version."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Ended runs too: they must end the same way again.")
    ] = False,
) -> None:
    """Replay the journals of live runs with this code; nothing is written.

    Exit 1 if one diverges, 7 if this code has the workflow and version of none of the runs.
    """
    found = load(app, verb="replay-check")
    set_database(found, at)
    if not any(True for _ in found.registry.workflows()):
        raise NotFound(f"{app} has no workflow", hint="put @app.workflow on an async function")
    where = replace(at, database_url=found._database_url, data_dir=found._data_dir)
    with where.database() as db:
        from pyengine.core.database.connection import Database
        from pyengine.features.checks.replay_check import replay_check as check

        # the output of workflow code is not the answer of this command
        with contextlib.redirect_stdout(sys.stderr), progress(enabled=not at.out.json) as show:

            def replayed(done: int, total: int) -> None:
                if show is not None:
                    show(f"replayed {done} of {total} runs")

            report = asyncio.run(
                check(
                    Database(db.url),
                    found.registry,
                    workflow=workflow,
                    sample=sample,
                    finished=everything,
                    progress=replayed,
                )
            )
    at.out.answer(_document(report), lambda console: _show(console, report, app))
    if report.count("diverged"):
        first = report.breaks()[0]
        advice = _ADVICE if first.first.again is None else _NOT_DETERMINISTIC
        at.out.remark(f"{advice}; one of them: {at.line('show', first.runs[0])}")
        raise typer.Exit(1)
    if report.runs and report.count("unknown") == len(report.runs):
        at.out.remark(f"nothing was checked: {app} has the workflow and version of none of these runs")
        raise typer.Exit(7)


def _document(report: Report) -> dict[str, Any]:
    return {
        "checked": len(report.runs),
        "ok": report.count("ok"),
        "diverged": report.count("diverged"),
        "unknown": report.count("unknown"),
        "python": report.python,
        "other_pythons": report.other_pythons(),
        "breaks": [dataclasses.asdict(one) for one in report.breaks()],
        "runs": [dataclasses.asdict(one) for one in report.runs],
    }


def _show(console: Console, report: Report, app: str) -> None:
    """Print one line for each workflow and version, and below it the places where runs diverge."""
    from rich.text import Text

    if not report.runs:
        console.print("no runs to replay")
        return
    counts: dict[tuple[str, str], list[str]] = {}
    for one in report.runs:
        counts.setdefault((one.workflow, one.version), []).append(one.verdict)
    for python, number in report.other_pythons().items():
        were = "was" if number == 1 else "were"
        drove = f"{number} of the runs that break {were} driven by Python {python}"
        way_out = f"this is Python {report.python}: a worker with Python {python} can end them"
        console.print(Text(f"{drove}, and {way_out}", style="bold"), soft_wrap=True)
    breaks = report.breaks()
    for key, verdicts in counts.items():
        diverged, total = verdicts.count("diverged"), len(verdicts)
        name = printable(key[0] if key[1] == "1" else f"{key[0]} (version {key[1]})")
        runs = f"{total} run{'s' if total != 1 else ''}"
        if diverged:
            line = Text(f"{name}: breaks {diverged} of {runs}", style="bold red")
        elif "unknown" in verdicts:
            line = Text(f"{name}: {runs} not checked, {app} does not have it", style="yellow")
        else:
            line = Text(f"{name}: {runs}, no difference", style="green")
        console.print(line, soft_wrap=True)
        for each in breaks:
            if (each.workflow, each.version) == key:
                _show_break(console, each)
    live = [one for one in report.runs if one.state not in _ENDED and one.verdict == "ok"]
    if failing := sum(one.ends == "failed" for one in live):
        console.print(
            f"{failing} live runs fail where their journals end: that is no difference", style="dim"
        )


def _show_break(console: Console, one: Break) -> None:
    first, number = one.first, len(one.runs)
    place = "" if first.child is None else f"child {first.child}: "
    console.print(printable(f"  {place}the journal has {first.expected}"), soft_wrap=True)
    console.print(printable(f"  {' ' * len(place)}the code has {first.got}"), soft_wrap=True)
    if first.again is not None:
        console.print(printable(f"  {' ' * len(place)}and in a second replay {first.again}"), soft_wrap=True)
    for line in first.neighbours:
        console.print(printable(f"      {line}"), style="dim", soft_wrap=True)
    runs = f"in {number} run{'s' if number != 1 else ''}: {listed(list(one.runs), 3)}"
    console.print(printable(f"    {runs}"), style="dim", soft_wrap=True)
