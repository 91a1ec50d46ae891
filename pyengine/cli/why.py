"""``pyengine why``: why a run waits, one sentence for each cause.

Lives here: its options and its output. May not: contain SQL (``admin/queries_causes.py``), or find a cause;
the database does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyengine.cli.command import command
from pyengine.cli.database import Invocation
from pyengine.cli.display.ids import whole_id
from pyengine.cli.output import clip, printable, span, table
from pyengine.cli.runs import checked_id
from pyengine.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.admin.queries_causes import Cause, Group

__all__ = ["add_to", "print_causes"]

MOST_RUNS = 10_000


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(why)


def why(
    at: Invocation,
    id: Annotated[
        str | None, typer.Argument(help="Id of a run, promise or schedule; or --all.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All runs that have not ended, by cause.")
    ] = False,
) -> None:
    """Say why a run waits: each cause, followed by the causes of what it waits for."""
    from pyengine.admin import queries_causes

    if (id is None) != everything:
        raise InvalidRequest(
            "one run is asked about, or all of them: name it, or add --all", hint=at.line("ps")
        )
    if id is None:
        with at.database() as db:
            groups = queries_causes.groups(db.conn, MOST_RUNS)
        at.out.answer(groups, lambda console: _show_groups(console, groups))
        return
    checked_id(id)
    with at.database() as db:
        id = whole_id(at.out, db, id, promises=True)
        causes = queries_causes.causes(db.conn, id)
    if causes and causes[0].cause == "unknown":
        raise NotFound(f"{clip(id, 80)!r}: {causes[0].sentence}", hint=at.line("ps", "--all"))

    def render(console: Console) -> None:
        console.print(printable(id), style="bold", soft_wrap=True)
        print_causes(console, causes)

    at.out.answer(causes, render)


def print_causes(console: Console, causes: Sequence[Cause]) -> None:
    """Print causes; what a run waits for stands below it, farther to the right.

    Args:
        console: the console.
        causes: rows of ``durable.why``, in its order.
    """
    from rich.text import Text

    for one in causes:
        indent = "  " * (one.depth + 1)
        text = Text(printable(f"{one.id}: {one.sentence}" if one.depth else one.sentence))
        first, *rest = text.wrap(console, max(console.width - len(indent) - 2, 20))
        console.print(indent + first.plain.rstrip(), soft_wrap=True)
        for line in rest:
            console.print(f"{indent}  {line.plain.rstrip()}", soft_wrap=True)


def _show_groups(console: Console, groups: list[Group]) -> None:
    from datetime import UTC, datetime

    if not groups:
        console.print("no run waits")
        return
    now = datetime.now(UTC)
    shown = table("CAUSE", "NAME", "RUNS", "OLDEST", "EXAMPLE", right=("RUNS", "OLDEST"))
    shown.add_column("", no_wrap=True, overflow="ellipsis")
    for one in groups:
        shown.add_row(
            one.cause,
            printable(one.name or ""),
            str(one.runs),
            "" if one.oldest is None else span(max((now - one.oldest).total_seconds(), 0.0)),
            printable(one.example),
            printable(one.sentence),
        )
    console.print(shown)
