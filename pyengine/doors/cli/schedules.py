"""``pyengine schedules``: the schedules, and pause, resume and delete.

Lives here: its options and output. May not: contain SQL (``admin/queries_schedules.py``), or decide.
Instants are shown in the time zone of their schedule.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer

from pyengine.doors.cli.command import AsJson, DatabaseUrl, DataDir, command, remember
from pyengine.doors.cli.database import Invocation, asked
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.display.ids import cut_all
from pyengine.doors.cli.output import printable
from pyengine.doors.cli.runs import checked_text
from pyengine.features.schedules.statements import PAUSE_SCHEDULE, RESUME_SCHEDULE, UNSCHEDULE

if TYPE_CHECKING:
    from rich.console import Console

_ID_WIDTH = 40
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the schedule.")]

app = typer.Typer(
    help="Schedules: list, pause, resume, delete.", invoke_without_command=True, rich_markup_mode=None
)


@command(app)
def ls(
    at: Invocation,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="Only schedules of this workflow.")
    ] = None,
    count: Annotated[
        int, typer.Option("--next", "-n", min=1, max=100, help="So many of the next instants of each.")
    ] = 1,
) -> None:
    """List schedules, those that come next first."""
    from pyengine.doors.admin import queries_schedules

    if workflow is not None:
        checked_text("a workflow name", workflow)
    with asked(at, "schedules") as db:
        found = queries_schedules.schedules(db.conn, workflow, count)
    at.out.answer(found, lambda console: _print_all(console, found, at.out.width()))


@app.callback()
def _default(
    ctx: typer.Context,
    *,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Schedules: list, pause, resume, delete."""
    before: dict[str, Any] = ctx.obj or {}
    given = {"database_url": database_url, "data_dir": data_dir, "as_json": as_json}
    remember(ctx, {key: value or before.get(key) for key, value in given.items()})
    if ctx.invoked_subcommand is None:
        ls(ctx, workflow=None, count=1, database_url=None, data_dir=None, as_json=False)


@command(app)
def pause(at: Invocation, id: Id) -> None:
    """Pause a schedule: instants that pass meanwhile are left out."""
    with asked(at, "schedules") as db:
        db.ask(PAUSE_SCHEDULE, checked_text("an id", id))
    _answer(at, id, {"state": "paused"}, "paused")
    at.out.remark(f"it goes on with: {at.line('schedules', 'resume', id)}")


@command(app)
def resume(at: Invocation, id: Id) -> None:
    """Let a paused schedule go on with its first instant after now."""
    with asked(at, "schedules") as db:
        next_at = db.ask(RESUME_SCHEDULE, checked_text("an id", id))["next_at"]
    _answer(at, id, {"state": "active", "next_at": next_at}, f"active, next {_instant(next_at, UTC)}")


@command(app)
def delete(at: Invocation, id: Id) -> None:
    """Delete a schedule; its runs go on. One that code declares comes back with the next worker."""
    with asked(at, "schedules") as db:
        db.ask(UNSCHEDULE, checked_text("an id", id))
    _answer(at, id, {"state": "deleted"}, "deleted")


def _answer(at: Invocation, id: str, document: dict[str, Any], text: str) -> None:
    at.out.answer({"id": id, **document}, lambda console: console.print(f"{printable(id)}  {text}"))


def _print_all(console: Console, found: list[dict[str, Any]], width: int | None) -> None:
    """Print a line for each schedule, and one for each further instant."""
    if not found:
        console.print("no schedules", soft_wrap=True)
        return
    rows: list[tuple[str, ...]] = []
    for one in found:
        zone = _zone(one["timezone"])
        cron = one["cron"] if one["timezone"] == "UTC" else f"{one['cron']} {one['timezone']}"
        what = one["workflow"] or ("promises" if one["target"] is None else f"promises for {one['target']}")
        first, *later = [_instant(instant, zone) for instant in one["next"]] or [""]
        rows.append((one["id"], one["state"], cron, what, first))
        rows += [("", "", "", "", instant) for instant in later]
    ids, states, crons, starts, instants = (
        [printable(cell) for cell in cells] for cells in zip(*rows, strict=True)
    )
    columns = [
        Column(title="ID", cells=ids, rank=0, least=12, enough=20, most=_ID_WIDTH, cut=cut_all),
        Column(title="STATE", cells=states, rank=3),
        Column(title="CRON", cells=crons, rank=2, least=9, enough=24),
        Column(title="STARTS", cells=starts, rank=4, least=10, enough=16),
        Column(title="NEXT", cells=instants, rank=1),
    ]
    print_columns(console, columns, width)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # this machine has other time zones than the server
        return UTC


def _instant(instant: datetime | None, zone: tzinfo) -> str:
    if instant is None:
        return ""
    seconds = ":%S" if instant.second else ""
    return instant.astimezone(zone).strftime(f"%Y-%m-%d %H:%M{seconds} %Z")
