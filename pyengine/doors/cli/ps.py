"""``pyengine ps``: the runs of a database, newest first, page by page.

Lives here: its options and its columns. May not: contain SQL (``admin/queries_runs.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.display.forms import Display
from pyengine.doors.cli.display.ids import cut_all, whole_id
from pyengine.doors.cli.output import clip, printable, rough_span, span, state_style
from pyengine.doors.cli.runs import checked_text, outcome, states, unknown_workflow
from pyengine.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.doors.admin.queries import Run
    from pyengine.doors.admin.queries_runs import Filter

DETAIL_OF_PIPES = 60
WIDEST_ID = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The options that select runs."""

    state: Annotated[
        str | None,
        typer.Option("--state", "-s", autocompletion=states, help="Only runs in this state."),
    ] = None
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="Only runs of this workflow.")] = (
        None
    )
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only runs with these values: 'state=running and workflow~check%'.",
        ),
    ] = None
    everything: Annotated[bool, typer.Option("--all", "-a", help="Child runs too; so does any filter.")] = (
        False
    )
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Only runs below this one in the list.")
    ] = None
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Number of runs.")] = 20

    def options(self) -> list[str]:
        """Return these options as they are typed, without the place in the list."""
        named = (("--state", self.state), ("--workflow", self.workflow), ("--where", self.where))
        given = [word for name, value in named if value is not None for word in (name, value)]
        return [*given, *(["--all"] if self.everything else []), "--limit", str(self.limit)]

    def check(self) -> None:
        """Refuse what can be no state and no workflow.

        Raises:
            InvalidRequest: an option is wrong in itself.
        """
        from pyengine.doors.admin.queries import STATES

        if self.state is not None and self.state not in STATES:
            raise InvalidRequest(f"{self.state!r} is no state of a run", hint=f"one of {', '.join(STATES)}")
        for name, text in (("a workflow name", self.workflow), ("a condition", self.where)):
            if text is not None:
                checked_text(name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the list.

    Args:
        runs: its runs, newest first.
        more: whether there are more below.
        wide: whether it is shown with all columns.
    """

    runs: list[Run]
    more: bool
    wide: bool

    def document(self) -> list[Run]:
        """Return the runs."""
        return self.runs

    def records(self) -> list[Run]:
        """Return the runs."""
        return self.runs

    def record_type(self) -> type[Run]:
        """Return the class of a run."""
        from pyengine.doors.admin.queries import Run

        return Run

    def show(self, console: Console, width: int | None) -> None:
        """Print a line for each run."""
        if not self.runs:
            console.print("no runs")
        else:
            print_columns(console, self._columns(width), width)

    def _columns(self, width: int | None) -> list[Column]:
        def texts(text: Callable[[Run], str | None]) -> list[str]:
            return [printable(text(run) or "") for run in self.runs]

        details = texts(outcome)
        if not self.wide:
            details = [clip(text, width or DETAIL_OF_PIPES) for text in details]
        columns = [
            Column(
                title="ID",
                cells=texts(lambda run: run.id),
                rank=0,
                least=16,
                enough=20,
                most=None if self.wide or width is None else WIDEST_ID,
                cut=cut_all,
            ),
            Column(title="WORKFLOW", cells=texts(lambda run: run.workflow), rank=3, least=10, enough=20),
            Column(title="STATE", cells=texts(lambda run: run.state), rank=1, style=state_style),
            Column(title="AGE", cells=texts(lambda run: rough_span(run.since_start)), rank=2, right=True),
        ]
        if any(run.settled_at for run in self.runs):
            cells = texts(lambda run: span(run.age) if run.settled_at else "")
            columns.append(Column(title="TOOK", cells=cells, rank=4, right=True))
        if any(run.children for run in self.runs):
            cells = texts(lambda run: str(run.children or ""))
            columns.append(Column(title="CALLS", cells=cells, rank=6, spare=True, right=True))
        if self.wide:
            columns += [
                Column(title="VERSION", cells=texts(lambda run: run.version), rank=7),
                Column(title="QUEUE", cells=texts(lambda run: run.queue), rank=7),
                Column(title="WORKER", cells=texts(lambda run: run.worker), rank=7),
                Column(
                    title="CREATED", cells=texts(lambda run: f"{run.created_at:%Y-%m-%d %H:%M:%S}"), rank=7
                ),
            ]
        return [*columns, Column(title="DETAIL", cells=details, rank=5, least=16, enough=26)]


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(ps)


def ps(at: Invocation, *, selected: Selected, display: Display) -> None:
    """List runs, newest first."""
    from pyengine.doors.admin import queries_runs

    selected.check()
    with at.database() as db:
        wanted = _filter(at, db, selected)

        def read(lines: int | None) -> Page:
            limit = wanted.limit if lines is None else min(wanted.limit, max(lines - 1, 1))
            found = queries_runs.runs(db.conn, replace(wanted, limit=limit + 1))
            if not found and wanted.workflow is not None:
                _refuse_unknown(db, wanted.workflow)
            return Page(runs=found[:limit], more=len(found) > limit, wide=display.wide)

        page = display.present(at.out, read)
    if page.more and not display.watch:
        at.out.remark(f"more: {at.line('ps', *selected.options(), '--after', page.runs[-1].id)}")


def _filter(at: Invocation, db: Database, selected: Selected) -> Filter:
    """Return the filter that the options stand for.

    Raises:
        InvalidRequest: the condition is none, or the text of ``--after`` stands for several runs.
        NotFound: the run of ``--after`` is unknown.
    """
    from pyengine.doors.admin import conditions, queries_runs

    where = None
    if selected.where is not None:
        where = conditions.parse(selected.where, queries_runs.columns(db.conn))
    before = None
    if selected.after is not None:
        last = whole_id(at.out, db, selected.after)
        before = queries_runs.place(db.conn, last)
        if before is None:
            raise NotFound(f"there is no run {clip(last, 80)!r}", hint=at.line("ps", *selected.options()))
    return queries_runs.Filter(
        state=selected.state,
        workflow=selected.workflow,
        where=where,
        roots_only=not (selected.everything or selected.state or selected.workflow or where),
        before=before,
        limit=selected.limit,
    )


def _refuse_unknown(db: Database, workflow: str) -> None:
    from pyengine.doors.admin import queries

    known = queries.known_workflows(db.conn)
    if workflow not in known:
        raise unknown_workflow(workflow, known)
