"""``pyengine show``: one run, section by section.

Lives here: its sections, in their order. May not: contain SQL (``admin/queries.py``). A section is a function
that prints nothing if it has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.cli import timeline
from pyengine.cli.command import command
from pyengine.cli.database import Database, Invocation
from pyengine.cli.output import clip, compact, printable, span, state_text
from pyengine.cli.runs import checked_id, outcome
from pyengine.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.admin.queries import Event, Run

__all__ = ["add_to"]

TREE_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """A run, and all that its sections show.

    Args:
        run: its row.
        family: its child runs and theirs.
        events: its journal.
    """

    run: Run
    family: list[Run]
    events: list[Event]

    def document(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return {"run": self.run, "children": self.family, "journal": self.events}


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(show)


def show(
    at: Invocation,
    id: Annotated[str, typer.Argument(help="Id of the run.")],
) -> None:
    """Show a run: its child runs, and its journal."""
    with at.database() as db:
        details = _read(db, checked_id(id))
    at.out.answer(details.document(), lambda console: _render(console, details))


def _read(db: Database, id: str) -> RunDetails:
    """Return all that is shown of a run.

    Raises:
        NotFound: there is no such run.
    """
    from pyengine.admin import queries

    run = queries.run(db.conn, id)
    if run is None:
        raise NotFound(f"there is no run {clip(id, 80)!r}", hint="pyengine ps --all")
    return RunDetails(run=run, family=queries.family(db.conn, id), events=queries.events(db.conn, id))


def _render(console: Console, details: RunDetails) -> None:
    for section in SECTIONS:
        section(console, details)


def _heading(console: Console, details: RunDetails) -> None:
    console.print(printable(details.run.id), style="bold", soft_wrap=True)


def _attributes(console: Console, details: RunDetails) -> None:
    run = details.run
    shown: dict[str, Any] = {
        "workflow": run.workflow if run.version == "1" else f"{run.workflow} (version {run.version})",
        "state": run.state,
        "outcome": outcome(run),
        "arguments": compact(run.args),
        "queue": run.queue,
        "parent": run.parent,
        "key": run.key,
        "worker": run.worker,
        "created": f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}",
        "took" if run.settled_at else "age": span(run.age),
        "deadline": None if run.deadline is None else f"{run.deadline:%Y-%m-%d %H:%M:%S %Z}",
        "crashes": run.crashes or None,
    }
    for name, value in shown.items():
        if value:
            text = clip(printable(str(value)), max(console.width * 4, 200))
            console.print(f"  {name:<10} {text}", soft_wrap=True)


def _children(console: Console, details: RunDetails) -> None:
    """Print the child runs as a tree."""
    from rich.text import Text
    from rich.tree import Tree

    def label(run: Run) -> Text:
        text = Text(printable(run.id.rpartition(".")[2] if run.parent else run.id), style="bold")
        text.append(f"  {printable(run.workflow)}  ", style="").append_text(state_text(run.state))
        text.append(f"  {span(run.age)}  ", style="dim")
        return text.append(clip(printable(outcome(run)), max(console.width - text.cell_len - 8, 20)))

    root, family = details.run, details.family
    if not family:
        return
    tree = Tree(label(root))
    branches = {root.id: tree}
    for run in family[:TREE_LINES]:
        branches[run.id] = branches.get(run.parent or root.id, tree).add(label(run))
    if len(family) > TREE_LINES:
        tree.add(f"and {len(family) - TREE_LINES} more")
    console.print()
    console.print(tree)


def _journal(console: Console, details: RunDetails) -> None:
    console.print("\njournal", style="bold")
    timeline.show(console, timeline.lines(details.events))


SECTIONS: tuple[Callable[[Console, RunDetails], None], ...] = (_heading, _attributes, _children, _journal)
"""The sections of a run, from the top."""
