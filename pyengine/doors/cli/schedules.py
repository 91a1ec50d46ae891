"""``pyengine schedules``: the schedules, what became of their instants, and the verbs that steer them.

Lives here: its options and output. May not: contain SQL (``admin/queries_schedules.py``), or decide.
Instants are shown in the time zone of their schedule.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from json import loads
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer

from pyengine.doors.cli.command import AsJson, DatabaseUrl, DataDir, command, remember
from pyengine.doors.cli.database import Invocation, asked
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.display.ids import cut_all
from pyengine.doors.cli.output import printable
from pyengine.doors.cli.runs import checked_text
from pyengine.doors.cli.steering_many import confirm
from pyengine.errors import InvalidRequest, NotFound
from pyengine.features.schedules.statements import (
    BACKFILL_SCHEDULE,
    PAUSE_SCHEDULE,
    READ_SCHEDULE,
    RESUME_SCHEDULE,
    SCHEDULE_INSTANTS,
    TRIGGER_SCHEDULE,
    UNSCHEDULE,
)

if TYPE_CHECKING:
    from rich.console import Console

_ID_WIDTH = 40
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the schedule.")]
Overlapping = Annotated[
    str | None,
    typer.Option("--overlap", help="Instead of its own: allow, skip, buffer_one, buffer_all, cancel."),
]

app = typer.Typer(
    help="Schedules: list, show, pause, resume, trigger, backfill, delete.",
    invoke_without_command=True,
    rich_markup_mode=None,
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
    """Schedules: list, show, pause, resume, trigger, backfill, delete."""
    before: dict[str, Any] = ctx.obj or {}
    given = {"database_url": database_url, "data_dir": data_dir, "as_json": as_json}
    remember(ctx, {key: value or before.get(key) for key, value in given.items()})
    if ctx.invoked_subcommand is None:
        ls(ctx, workflow=None, count=1, database_url=None, data_dir=None, as_json=False)


@command(app)
def show(
    at: Invocation,
    id: Id,
    count: Annotated[int, typer.Option("--last", "-n", min=1, max=100, help="So many instants.")] = 20,
) -> None:
    """Show what became of the latest instants of a schedule, the latest first."""
    with asked(at, "schedules") as db:
        known = db.rows(READ_SCHEDULE, checked_text("an id", id))
        if not known:
            raise NotFound(f"there is no schedule {id!r}", hint=at.line("schedules"))
        instants = db.rows(SCHEDULE_INSTANTS, id, count)
    one = known[0]
    args = None if one["args"] is None else loads(one["args"])
    document = {**one, "args": args, "tags": loads(one["tags"]), "instants": instants}
    at.out.answer(document, lambda console: _print_one(console, one, instants, at.out.width()))


@command(app)
def pause(
    at: Invocation,
    id: Id,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Why, for those who look.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="INSTANT", help="It goes on by itself then.")
    ] = None,
) -> None:
    """Pause a schedule: instants that pass meanwhile are left out."""
    if reason is not None:
        checked_text("the reason", reason)
    end = None if until is None else _read(until)
    with asked(at, "schedules") as db:
        db.ask(PAUSE_SCHEDULE, checked_text("an id", id), reason, end, None)
    _answer(at, id, {"state": "paused"}, "paused")
    at.out.remark(f"it goes on with: {at.line('schedules', 'resume', id)}")


@command(app)
def trigger(at: Invocation, id: Id, overlap: Overlapping = None) -> None:
    """Start a run of a schedule now, paused or not."""
    if overlap is not None:
        checked_text("an overlap", overlap)
    with asked(at, "schedules") as db:
        one = db.ask(TRIGGER_SCHEDULE, checked_text("an id", id), overlap)
    said = "the latest run goes on" if one["run"] is None else f"run {printable(one['run'])}"
    _answer(at, id, dict(one), f"{one['outcome']}: {said}")


@command(app)
def backfill(
    at: Invocation,
    id: Id,
    since: Annotated[str, typer.Argument(metavar="SINCE", help="Its begin: 2026-03-01T00:00Z.")],
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="Its end, in the past.")],
    at_once: Annotated[bool, typer.Option("--at-once", help="All at once, not one after the other.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Start the runs of instants of a range that have none."""
    overlap = "allow" if at_once else "buffer_all"
    asks = (checked_text("an id", id), _read(since), _read(until), overlap)
    with asked(at, "schedules") as db:
        if not (dry_run or yes):
            count = int(db.ask(BACKFILL_SCHEDULE, *asks, True)["instants"])
            if count:
                runs = f"{count} run{'' if count == 1 else 's'}"
                confirm(at, f"backfill: {runs} of {printable(id)}")
        one = db.ask(BACKFILL_SCHEDULE, *asks, dry_run)
    text = f"{one['instants']} instants without a run, {one['started']} started, {one['buffered']} buffered"
    _answer(at, id, dict(one), text)


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


def _print_one(
    console: Console, one: dict[str, Any], instants: list[dict[str, Any]], width: int | None
) -> None:
    """Print when a schedule fires, its policies, and a line for each instant."""
    zone = _zone(one["timezone"])
    lines = [f"{one['id']}  {one['state']}  {one['description']}", f"starts {one['workflow'] or 'promises'}"]
    if one["state"] == "paused":
        until = f" until {_instant(one['paused_until'], zone)}" if one["paused_until"] else ""
        lines.append(f"paused{until} by {one['paused_by']}: {one['pause_reason'] or 'no reason given'}")
    for name in ("overlap", "catch_up", "jitter", "starts_at", "ends_at", "runs_left", "pause_after"):
        value = one[name]
        if value is not None and value != "allow" and value != timedelta():
            text = _instant(value, zone) if isinstance(value, datetime) else str(value)
            lines.append(f"{name.replace('_', ' ')}: {text}")
    lines.append(f"next: {_instant(one['next_at'], zone) or 'none'}")
    for line in lines:
        console.print(printable(line), soft_wrap=True)
    if not instants:
        return
    rows = [
        (_instant(each["at"], zone), each["outcome"], printable(each["run"] or each["reason"]))
        for each in instants
    ]
    ats, outcomes, what = ([printable(cell) for cell in cells] for cells in zip(*rows, strict=True))
    columns = [
        Column(title="INSTANT", cells=ats, rank=0),
        Column(title="OUTCOME", cells=outcomes, rank=1),
        Column(title="RUN, OR WHY NONE", cells=what, rank=2, least=12, enough=40),
    ]
    print_columns(console, columns, width)


def _read(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidRequest(
            f"{text!r} is no instant with an offset from UTC",
            hint="for example: 2026-03-01T09:00+01:00, or 2026-03-01T08:00Z",
        )
    return instant


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
