"""``pyengine show``: one run, section by section.

Lives here: its sections, in their order. May not: contain SQL (``admin/queries.py``). A section is a function
that prints nothing if it has nothing to show, and no line that is wider than the console.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.core.values.error_records import origin_lines, traceback_of
from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.display import timeline
from pyengine.doors.cli.display.columns import cut_ends
from pyengine.doors.cli.display.forms import Display
from pyengine.doors.cli.display.ids import cut, whole_id
from pyengine.doors.cli.output import clip, compact, printable, span, state_style, state_text
from pyengine.doors.cli.runs import checked_id, outcome, progress_text
from pyengine.doors.cli.why import causes_of, print_causes
from pyengine.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.core.protocol.causes import Cause
    from pyengine.doors.admin.queries import Event, Generation, Run

TREE_LINES = 40
MOST_CAUSES = 6
OUTCOME_LINES = 4
INDENT = 13
ROOM_FOR_ALL = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """A run, and all that its sections show.

    Args:
        run: its row.
        causes: why it waits, or how it ended.
        family: its child runs and theirs.
        events: its journal.
        generations: its journals, the earlier ones too.
        wide: whether nothing is cut.
    """

    run: Run
    causes: list[Cause]
    family: list[Run]
    events: list[Event]
    generations: list[Generation]
    wide: bool

    def document(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return {
            "run": self.run,
            "why": self.causes,
            "children": self.family,
            "generations": self.generations,
            "journal": self.events,
        }

    def records(self) -> list[Event]:
        """Return its journal."""
        return self.events

    def record_type(self) -> type[Event]:
        """Return the class of an event."""
        from pyengine.doors.admin.queries import Event

        return Event

    def show(self, console: Console, width: int | None) -> None:
        """Print the sections."""
        if self.wide:
            console.width = ROOM_FOR_ALL
        for section in SECTIONS:
            section(console, self)


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(show)


def show(
    at: Invocation,
    id: Annotated[str, typer.Argument(help="Id of the run, or its beginning.")],
    *,
    display: Display,
) -> None:
    """Show a run: its child runs, and its journal."""
    checked_id(id)
    with at.database() as db:
        whole = whole_id(at.out, db, id)
        display.present(at.out, lambda _: _read(db, whole, wide=display.wide))


def _read(db: Database, id: str, *, wide: bool) -> RunDetails:
    """Return all that is shown of a run.

    Raises:
        NotFound: there is no such run.
    """
    from pyengine.doors.admin import queries

    run = queries.run(db.conn, id)
    if run is None:
        raise NotFound(f"there is no run {clip(id, 80)!r}", hint="pyengine ps --all")
    return RunDetails(
        run=run,
        causes=causes_of(db, [id])[id],
        family=queries.family(db.conn, id),
        events=queries.events(db.conn, id),
        generations=queries.generations(db.conn, id),
        wide=wide,
    )


def _heading(console: Console, details: RunDetails) -> None:
    console.print(cut(printable(details.run.id), console.width), style="bold", soft_wrap=True)


def _causes(console: Console, details: RunDetails) -> None:
    """Print why it waits, or how it ended."""
    print_causes(console, details.causes[:MOST_CAUSES])
    if (more := len(details.causes) - MOST_CAUSES) > 0:
        console.print(f"  and {more} more: pyengine why ID", style="dim", soft_wrap=True)


def _attributes(console: Console, details: RunDetails) -> None:
    from rich.text import Text

    run, room = details.run, console.width - INDENT
    shown: dict[str, str | None] = {
        "workflow": run.workflow if run.version == "1" else f"{run.workflow} (version {run.version})",
        "state": run.state,
        # of a live run the causes above say where it is, and what it is halted by
        "outcome": outcome(run) if run.settled_at else None,
        "progress": progress_text(run),
        "arguments": compact(run.args),
        "queue": run.queue,
        "parent": None if run.parent is None else cut(printable(run.parent), room),
        "key": run.key,
        "worker": run.worker,
        "created": f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}",
        "took" if run.settled_at else "age": span(run.age),
        "deadline": None if run.deadline is None else f"{run.deadline:%Y-%m-%d %H:%M:%S %Z}",
        "crashes": str(run.crashes or ""),
    }
    for name, value in shown.items():
        if value:
            lines = fitted(console, printable(value), room, OUTCOME_LINES if name == "outcome" else 1)
            text = Text(f"  {name:<{INDENT - 3}} ")
            text.append(lines[0], style=state_style(value) if name == "state" else "")
            console.print(text, soft_wrap=True)
            for line in lines[1:]:
                console.print(" " * INDENT + line, soft_wrap=True)


def _values(console: Console, details: RunDetails) -> None:
    """Print the values that its code has set by name."""
    named = details.run.named
    if not named:
        return
    console.print("\nvalues", style="bold")
    # a value that is nested too deeply makes all of them one text
    pairs = named.items() if isinstance(named, dict) else [("", named)]
    lines = [
        f"  {printable(name):<{INDENT - 3}} {clip(compact(value), console.width)}" for name, value in pairs
    ]
    for line in cut_ends(lines, console.width):
        console.print(line, soft_wrap=True)


def _failure(console: Console, details: RunDetails) -> None:
    """Print place and traceback of the error of the run, or of its last failed attempt of an open step."""
    record = details.run.error or _last_failure(details.events)
    lines = [*origin_lines(record), *traceback_of(record).splitlines()]
    if not lines:
        return
    console.print("\nfailure" if details.run.error else "\nlast failed attempt", style="bold")
    for line in lines:
        text = printable(line)
        # the end of a line about a file has its line number
        shown = cut(text, console.width - 2) if "File " in text else cut_ends([text], console.width - 2)[0]
        console.print(f"  {shown}", soft_wrap=True)


def _last_failure(events: list[Event]) -> Any:
    """Return the error of the last failed attempt, if its step has not ended since."""
    ended = set()
    for one in reversed(events):
        if one.event == "InvokeCompleted":
            ended.add(one.child)
        elif one.event == "InvokeRetrying" and one.child not in ended and isinstance(one.payload, dict):
            return one.payload.get("error")
    return None


def fitted(console: Console, text: str, width: int, most: int) -> list[str]:
    """Return a text as lines of at most this width, broken between words.

    Args:
        console: the console.
        text: the text.
        width: the width.
        most: the greatest number of lines; the last one shows that there is more.
    """
    from rich.text import Text

    if most == 1:
        return cut_ends([text], width)
    start = clip(text, width * most)
    lines = [line.plain.rstrip() for line in Text(start).wrap(console, max(width, 10))]
    return (
        lines if len(lines) <= most else [*lines[: most - 1], *cut_ends([" ".join(lines[most - 1 :])], width)]
    )


def _children(console: Console, details: RunDetails) -> None:
    """Print the child runs as a tree."""
    from rich.text import Text
    from rich.tree import Tree

    def label(run: Run) -> Text:
        id = printable(run.id.rpartition(".")[2] if run.parent else cut(run.id, console.width // 2))
        text = Text(id, style="bold", no_wrap=True, overflow="ellipsis")
        text.append(f"  {printable(run.workflow)}  ", style="").append_text(state_text(run.state))
        text.append(f"  {span(run.age)}  ", style="dim")
        return text.append(printable(outcome(run)))

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


def _generations(console: Console, details: RunDetails) -> None:
    """Print a line for each journal, if there are earlier ones."""
    if len(details.generations) == 1:
        return
    console.print("\nearlier journals", style="bold")
    for one in details.generations[:-1]:
        took = "" if one.ended_at is None else span(one.ended_at - one.started_at)
        ended = (
            f"attempt {one.attempt}  {timeline.error_text(one.error)}" if one.error else "continued as new"
        )
        line = f"  {one.generation}  {one.started_at:%Y-%m-%d %H:%M:%S}  {took:>7}  {printable(ended)}"
        console.print(*cut_ends([line], console.width), soft_wrap=True)


def _journal(console: Console, details: RunDetails) -> None:
    console.print("\njournal", style="bold")
    timeline.show(console, timeline.lines(details.events))


SECTIONS: tuple[Callable[[Console, RunDetails], None], ...] = (
    _heading,
    _causes,
    _attributes,
    _values,
    _failure,
    _children,
    _generations,
    _journal,
)
"""The sections of a run, from the top."""
