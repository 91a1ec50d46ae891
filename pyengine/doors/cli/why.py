"""``pyengine why``: why runs wait, one sentence for each cause.

Lives here: its options and its output. May not: contain SQL, or find a cause; the database does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.core.database.statements.procedures import WHY_ALL, WHY_MANY
from pyengine.core.protocol.causes import Cause, CauseGroup, read_causes
from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.display.ids import cut_all, whole_ids
from pyengine.doors.cli.output import clip, printable, read_json, span
from pyengine.doors.cli.runs import checked_text
from pyengine.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import Console

MOST_RUNS = 10_000
MOST_CAUSES = 100


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(why)


def why(
    at: Invocation,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids of runs, promises or schedules; or --where, or --all.",
            show_default=False,
            metavar="[ID]...",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="CONDITION", help="The runs that ps --where lists: 'state=waiting'."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="With --where: number of runs.")
    ] = 20,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All runs that have not ended, by cause.")
    ] = False,
) -> None:
    """Say why runs wait: each cause, followed by the causes of what it waits for."""
    if sum((bool(ids), where is not None, everything)) != 1:
        raise InvalidRequest(
            "runs are named, or selected by --where, or all are asked about: add --all", hint=at.line("ps")
        )
    with at.database() as db:
        if everything:
            groups = [CauseGroup(**row) for row in db.rows(WHY_ALL, MOST_RUNS)]
            at.out.answer(groups, lambda console: _show_groups(console, groups, at.out.width()))
            return
        if where is None:
            asked = whole_ids(at.out, db, ids or [], promises=True, schedules=True)
        else:
            asked = _selected(db, where, limit)
        found = causes_of(db, asked)
    for id, causes in found.items():
        if causes and causes[0].cause == "unknown":
            raise NotFound(f"{clip(id, 80)!r}: {causes[0].sentence}", hint=at.line("ps", "--all"))
    document: Any = [{"id": id, "why": causes} for id, causes in found.items()]
    if len(ids or []) == 1:
        document = found[asked[0]]
    at.out.answer(document, lambda console: _show(console, found))


def causes_of(db: Database, ids: Sequence[str]) -> dict[str, list[Cause]]:
    """Return by id the causes of waits, each followed by those of what it waits for."""
    return read_causes(ids, db.rows(WHY_MANY, list(ids), MOST_CAUSES), read_json)


def _selected(db: Database, where: str, limit: int) -> list[str]:
    """Return the ids of the newest runs that a condition selects."""
    from pyengine.doors.admin import conditions, queries_runs

    condition = conditions.parse(checked_text("a condition", where), queries_runs.columns(db.conn))
    runs = queries_runs.runs(db.conn, queries_runs.Filter(where=condition, limit=limit))
    return [run.id for run in runs]


def _show(console: Console, found: Mapping[str, Sequence[Cause]]) -> None:
    if not found:
        console.print("no runs")
    for id, causes in found.items():
        console.print(printable(id), style="bold", soft_wrap=True)
        print_causes(console, causes)


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


def _show_groups(console: Console, groups: list[CauseGroup], width: int | None) -> None:
    from datetime import UTC, datetime

    if not groups:
        console.print("no run waits")
        return
    now = datetime.now(UTC)
    ages = [None if one.oldest is None else max((now - one.oldest).total_seconds(), 0.0) for one in groups]
    columns = [
        Column(title="CAUSE", cells=[one.cause for one in groups], rank=0),
        Column(title="NAME", cells=[printable(one.name or "") for one in groups], rank=4, least=8, enough=16),
        Column(title="RUNS", cells=[str(one.runs) for one in groups], rank=2, right=True),
        Column(title="OLDEST", cells=["" if s is None else span(s) for s in ages], rank=3, right=True),
        Column(
            title="EXAMPLE",
            cells=[printable(one.example) for one in groups],
            rank=1,
            least=20,
            enough=32,
            cut=cut_all,
        ),
        Column(title="", cells=[printable(one.sentence) for one in groups], rank=5, least=20),
    ]
    print_columns(console, columns, width)
