"""``pyengine demo``: the command, its progress on the screen, its report and its exit code.

Lives here: what people see of it. May not: the work (``pyengine.demo``).
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.output import printable, program, redact
from pyengine.errors import RunFailed

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.doors.demo.audit import Verdict
    from pyengine.doors.demo.run import Job, Outcome

PROBLEM_LINES = 20
JOURNAL_LINES = 8


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(demo)


def demo(
    at: Invocation,
    path: Annotated[
        Path | None,
        typer.Argument(
            show_default=False, help="Folder of *.dist-info folders; by default the running environment."
        ),
    ] = None,
) -> None:
    """Audit installed packages, kill -9 the workers meanwhile, and show that nothing is lost.

    Compares every installed file with the hash in its RECORD; exit 1 if one does not match or is missing.
    """
    from pyengine.doors.admin import migrate
    from pyengine.doors.demo import run
    from pyengine.doors.demo.audit import Verdict

    job = run.prepare(path)
    with at.database(create=True, schema=False) as db:
        migrate.install(db.url)
        run.install(db.conn)
        root = run.start(db.conn, job)
        try:
            outcome = _drive(at, db, job, root)
        except KeyboardInterrupt:
            again = shlex.join([*program(), "demo", *([] if path is None else [str(path)]), *at.options()])
            at.out.remark(f"\nstopped; run {root} is in the database. Go on with: {again}")
            raise
        if outcome.run.state != "completed":
            raise RunFailed(f"run {root} {outcome.run.state}", hint=at.line("show", root))
        verdict = msgspec.convert(outcome.run.result, Verdict)
        at.out.answer(_document(outcome, verdict), lambda console: _show(console, at, db, outcome, verdict))
    if verdict.problems or outcome.repeated or outcome.broken_laws:
        raise typer.Exit(1)


def _drive(at: Invocation, db: Database, job: Job, root: str) -> Outcome:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from pyengine.doors.demo import run

    if at.out.json:
        return run.drive(db.conn, db.url, job, root, lambda done, text: None)
    console = at.out.console()
    console.print(
        f"audit of {job.packages} packages in {printable(', '.join(job.places))}, "
        f"run {root} in the {redact(db.place)}; two workers",
        soft_wrap=True,
    )
    columns = (BarColumn(bar_width=40), MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("audit", total=job.bodies)

        def report(done: int, text: str) -> None:
            bar.update(task, completed=done)
            if text:
                bar.console.print(text, soft_wrap=True)

        return run.drive(db.conn, db.url, job, root, report)


def _document(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    return {
        "run_id": outcome.run.id,
        "files": verdict.files,
        "bytes": verdict.bytes,
        "problems": [asdict(problem) for problem in verdict.problems],
        "killed": outcome.killed,
        "interrupted": outcome.interrupted,
        "bodies_run": outcome.bodies,
        "repeated_after_recorded": outcome.repeated,
        "check": outcome.broken_laws,
    }


def _show(console: Console, at: Invocation, db: Database, outcome: Outcome, verdict: Verdict) -> None:
    from pyengine.doors.demo.run import QUERIES

    if outcome.interrupted:
        _show_journal(console, db, outcome.run.id, outcome.interrupted[0])
    console.print()
    if not verdict.problems:
        told = f"All {verdict.files:,} files ({verdict.bytes / 1e6:,.1f} MB) are what RECORD says they are."
        console.print(told, style="bold green")
    for problem in verdict.problems[:PROBLEM_LINES]:
        console.print(f"{problem.kind}: {printable(problem.path)}", style="bold red", soft_wrap=True)
    if (more := len(verdict.problems) - PROBLEM_LINES) > 0:
        console.print(f"and {more} more: --json names them all", style="bold red")
    went_on = len(set(outcome.interrupted))
    console.print(f"Workers killed: {len(outcome.killed)}; runs that went on in another one: {went_on}.")
    console.print(
        f"Steps that ran again after they were recorded: {outcome.repeated} "
        f"(of {outcome.bodies:,} bodies that ran, as they recorded in pyengine_demo.effects).",
        style="bold red" if outcome.repeated else "bold",
    )
    for row in outcome.broken_laws:
        console.print(f"durable.check(): {row['law']}  {row['id']}  {row['detail']}", style="bold red")
    if not outcome.broken_laws:
        console.print("durable.check(): no law is broken", style="green")
    console.print(f"look around: {at.psql_line}", soft_wrap=True)
    for query in QUERIES:
        console.print(f"  {at.psql_line} -c '{query}'", style="dim", soft_wrap=True)


def _show_journal(console: Console, db: Database, root: str, child: str) -> None:
    """Print what the parent's journal says of a run whose worker was killed, and the end of its own."""
    from pyengine.doors.admin import queries
    from pyengine.doors.cli.display import timeline

    number = int(child.rpartition(".")[2])
    console.print(f"\n{child}, whose worker was killed, in the journal of its parent", style="bold")
    timeline.show(
        console, timeline.lines([one for one in queries.events(db.conn, root) if one.child == number])
    )
    console.print("the end of its own journal", style="bold")
    timeline.show(console, timeline.lines(queries.events(db.conn, child))[-JOURNAL_LINES:])
