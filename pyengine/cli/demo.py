"""``pyengine demo``: the command, its progress on the screen, and its exit code.

Lives here: the command's options, and the display of its progress. May not: the work (``pyengine.demo``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyengine import clock
from pyengine.cli.command import command
from pyengine.cli.database import Database, Invocation
from pyengine.cli.output import printable, program, redact, span
from pyengine.errors import RunFailed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from pyengine.demo.effects import Progress
    from pyengine.demo.job import Job
    from pyengine.demo.run import Outcome

__all__ = ["add_to"]

LINE_EVERY_S = 1.0


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(demo)


def demo(
    at: Invocation,
    path: Annotated[
        Path | None,
        typer.Argument(
            show_default=False,
            help="Folder of *.dist-info folders or wheels, or a virtual environment; "
            "the running environment by default.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do it again, even if it is done already.")] = False,
) -> None:
    """Audit installed packages, kill -9 the workers meanwhile, and show that nothing is lost.

    Compares every installed file with the hash in its RECORD; exit 1 if one does not match or is missing.
    """
    from pyengine.demo.job import prepare

    job = prepare(path)
    with at.database(create=True, schema=False) as db:
        _install(db)
        code = _run(at, db, job, again=_again(at, path), fresh=fresh)
    if code:
        raise typer.Exit(code)


def _install(db: Database) -> None:
    from pyengine.admin import migrate
    from pyengine.demo import effects

    migrate.install(db.url)
    effects.install(db.conn)


def _again(at: Invocation, path: Path | None) -> str:
    """Return the same command."""
    return shlex.join([*program(), "demo", *([] if path is None else [str(path)]), *at.options()])


def _run(at: Invocation, db: Database, job: Job, *, again: str, fresh: bool) -> int:
    from pyengine.cli import demo_report as report
    from pyengine.demo import run

    run_id = run.settle_id(db.conn, job, fresh=fresh)
    try:
        with _screen(at, db, job) as screen:
            outcome = run.drive(db, job, run_id, screen)
    except KeyboardInterrupt:
        at.out.remark(
            f"\nstopped; run {run_id} is in the database. Go on with: {again.replace(' --fresh', '')}"
        )
        raise
    if outcome.state != "completed":
        from pyengine.cli.display.timeline import error_text

        raise RunFailed(
            f"run {run_id} {outcome.state}: {error_text(outcome.error)}",
            hint=f"{shlex.join(program())} show {run_id}; or do it again: {again} --fresh",
        )
    account = report.collect(db, outcome, at.psql_line)

    def show(console: Console) -> None:
        if outcome.found_finished:
            console.print(
                f"Run {run_id} is this audit, finished; no file has changed since, by size and times. "
                f"To read all again: {again} --fresh",
                soft_wrap=True,
            )
        report.show(console, outcome, account)
        _show_time(console, outcome)

    at.out.answer(report.document(job, outcome, account), show)
    return 1 if account.problems or account.broken_laws or account.repeated.after_recorded else 0


def _show_time(console: Console, outcome: Outcome) -> None:
    if outcome.seconds:
        console.print(f"took {span(outcome.seconds)}", style="dim")


class _Silent:
    """No screen: the answer is a document."""

    def begin(self, run_id: str) -> None:
        """Show nothing."""

    def print(self, text: str) -> None:
        """Show nothing."""

    def progress(self, done: Progress, *, waiting: bool) -> None:
        """Show nothing."""


_WAITING = "waiting until the leases of the killed worker are taken over"


class _Lines:
    """Progress without a terminal: a line now and then."""

    def __init__(self, console: Console, job: Job, place: str) -> None:
        self._console = console
        self._job = job
        self._place = place
        self._printed_at = 0.0
        self._last = ""

    def begin(self, run_id: str) -> None:
        """Print the place of the run."""
        self.print(f"run {run_id} in the {self._place}; two workers")
        if pause_ms := self._job.limits.pause_ms:
            self.print(f"(so few files would be read before a kill: each step waits {pause_ms} ms)")

    def print(self, text: str) -> None:
        """Print one line."""
        self._console.print(printable(text), soft_wrap=True)

    def progress(self, done: Progress, *, waiting: bool) -> None:
        """Print a line if it is new and the last one is a while ago."""
        line = f"{done.files:,} of {self._job.files:,} files" + (f" ({_WAITING})" if waiting else "")
        finished = done.files >= self._job.files
        if line != self._last and (finished or clock.monotonic() - self._printed_at > LINE_EVERY_S):
            self._printed_at, self._last = clock.monotonic(), line
            self.print(line)


class _Window(_Lines):
    """Progress as a moving bar, with events printed above it."""

    def __init__(self, console: Console, job: Job, place: str) -> None:
        super().__init__(console, job, place)
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def begin(self, run_id: str) -> None:
        """Print the place of the run, and show the bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().begin(run_id)
        columns = (BarColumn(bar_width=40), MofNCompleteColumn(), TextColumn("files"), TimeElapsedColumn())
        state = TextColumn("{task.fields[state]}", style="dim")
        self._bar = Progress(*columns, state, console=self._console)
        self._task = self._bar.add_task("audit", total=max(self._job.files, 1), state="")
        self._bar.start()

    def progress(self, done: Progress, *, waiting: bool) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done.files, state=_WAITING if waiting else "")

    def end(self) -> None:
        """Stop the bar, which stays visible."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def _screen(at: Invocation, db: Database, job: Job) -> Iterator[_Silent | _Lines]:
    if at.out.json:
        yield _Silent()
        return
    console = at.out.console()
    size = f"{job.distributions} distributions, {job.files:,} files, {job.bytes / 1e6:,.1f} MB"
    console.print(f"audit of {size} in {printable(', '.join(job.places))}", style="bold", soft_wrap=True)
    if not sys.stdout.isatty():
        yield _Lines(console, job, redact(db.place))
        return
    window = _Window(console, job, redact(db.place))
    try:
        yield window
    finally:
        window.end()
