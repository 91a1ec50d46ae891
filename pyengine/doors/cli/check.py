"""``pyengine check``: checks the laws of the engine in a database.

Lives here: its options, its progress, and the output of broken laws. May not: contain SQL
(``admin/queries_check.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.display.ids import whole_id
from pyengine.doors.cli.output import printable, progress, table
from pyengine.doors.cli.runs import checked_age, checked_id
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(check)


def check(
    at: Invocation,
    id: Annotated[
        str | None, typer.Argument(help="One run or promise, with its children; else everything.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="1h, 30m, 7d: runs started since then, and live runs."),
    ] = None,
) -> None:
    """Check the laws of the engine in this database; exit 1 if one is broken."""
    if id is not None and since is not None:
        raise InvalidRequest("a check is of one run or of recent changes", hint="give one of the two")
    if id is not None:
        checked_id(id)
    span = None if since is None else checked_age(since)
    from pyengine.doors.admin.queries_check import broken_laws, health
    from pyengine.doors.cli.display.health import print_problems

    with at.database() as db, progress() as show:
        rows = health(db.conn)
        whole = None if id is None else whole_id(at.out, db, id, promises=True)
        broken = _everything(db, show) if whole is span is None else broken_laws(db.conn, whole, span)

    def render(console: Console) -> None:
        if not broken:
            console.print("durable.check(): no law is broken", style="green")
            return
        shown = table("LAW", "ID", "DETAIL")
        for row in broken:
            shown.add_row(*(printable(str(row[name] or "")) for name in ("law", "id", "detail")))
        console.print(shown)

    at.out.answer(broken, render)
    print_problems(at.out, rows)
    if broken:
        laws = len({row["law"] for row in broken})
        said = f"{laws} law{'s are' if laws > 1 else ' is'}"
        at.out.remark(f"{said} broken: a bug of pyengine or a hand in its tables; pyengine db psql")
        raise typer.Exit(1)


def _everything(db: Database, show: Callable[[str], None] | None) -> list[dict[str, Any]]:
    """Return all broken laws, and show the progress after each portion."""
    from pyengine.doors.admin import queries_check

    broken: list[dict[str, Any]] = []
    runs, promises = 0, 0
    all_runs, all_promises = queries_check.size(db.conn)
    for portion in queries_check.portions(db.conn):
        broken += portion.broken
        runs, promises = runs + portion.runs, promises + portion.promises
        if show is not None:
            show(f"checked {_of(runs, all_runs)} runs, {_of(promises, all_promises)} promises")
    return sorted(broken, key=lambda row: (row["law"], row["id"]))


def _of(done: int, total: int) -> str:
    return f"{done} of about {total}" if total > done else str(done)
