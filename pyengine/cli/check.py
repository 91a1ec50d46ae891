"""``pyengine check``: are the laws of the engine kept in this database?

Lives here: what it asks, how it tells how far it is, and how broken laws are printed. May not: contain SQL
(``admin/queries_check.py``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.cli.command import command
from pyengine.cli.database import Database, Invocation
from pyengine.cli.output import printable, table
from pyengine.cli.runs import checked_age, checked_id
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(check)


def check(
    at: Invocation,
    id: Annotated[
        str | None, typer.Argument(help="One run or promise, with all that lies below it; else everything.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="1h, 30m, 7d: what began since then, and what lives."),
    ] = None,
) -> None:
    """Check the laws of the engine in this database; exit 1 if one is broken."""
    if id is not None and since is not None:
        raise InvalidRequest("a check is of one run or of what happened since", hint="give one of the two")
    asked = None if id is None else checked_id(id)
    span = None if since is None else checked_age(since)
    from pyengine.cli.health import health, tell

    with at.database() as db, _progress() as progress:
        told = health(db.conn)
        broken = _everything(db, progress) if asked is span is None else _some(db, asked, span)

    def render(console: Console) -> None:
        if not broken:
            console.print("durable.check(): no law is broken", style="green")
            return
        shown = table("LAW", "ID", "DETAIL")
        for row in broken:
            shown.add_row(*(printable(str(row[name] or "")) for name in ("law", "id", "detail")))
        console.print(shown)

    at.out.answer(broken, render)
    tell(at.out, told)
    if broken:
        at.out.note(
            f"{len(broken)} laws are broken: a bug of pyengine or a hand in its tables; pyengine db psql"
        )
        raise typer.Exit(1)


def _some(db: Database, id: str | None, since: str | None) -> list[dict[str, Any]]:
    from pyengine.admin import queries_check

    return queries_check.broken_laws(db.conn, id, since)


def _everything(db: Database, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return all broken laws; says behind each portion how far it is."""
    from pyengine.admin import queries_check

    broken: list[dict[str, Any]] = []
    runs, promises = 0, 0
    all_runs, all_promises = queries_check.size(db.conn)
    for portion in queries_check.portions(db.conn):
        broken += portion.broken
        runs, promises = runs + portion.runs, promises + portion.promises
        progress(f"checked {_of(runs, all_runs)} runs, {_of(promises, all_promises)} promises")
    return sorted(broken, key=lambda row: (row["law"], row["id"]))


def _of(done: int, total: int) -> str:
    return f"{done} of about {total}" if total > done else str(done)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Give what shows how far it is, on a terminal; it is wiped away at the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
