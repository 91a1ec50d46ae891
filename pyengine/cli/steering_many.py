"""Commands that do something to many runs or promises at once, named by ids or by what they have in common.

Lives here: their options, the dry run, the question before a filter is let loose, and how outcomes are
printed. May not: contain SQL (``admin/queries_many.py``), or decide what becomes of an id.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.cli.command import command
from pyengine.cli.database import Invocation, explain
from pyengine.cli.output import clip, listed, printable, table
from pyengine.cli.runs import checked_id, checked_text
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow
    from rich.console import Console

    from pyengine.admin.queries_many import Told

__all__ = [
    "After",
    "Before",
    "DryRun",
    "State",
    "Tags",
    "Which",
    "Workflow",
    "Yes",
    "add_to",
    "checked_json",
    "steer_many",
]

LINES = 40
FINE = ("done", "already")

Workflow = Annotated[
    str | None, typer.Option("--workflow", "-w", help="All live runs of this workflow, child runs too.")
]
State = Annotated[str | None, typer.Option("--state", "-s", help="All in this state: waiting, paused, ...")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="All with this tag; may be repeated.")
]
After = Annotated[
    str | None,
    typer.Option(
        "--started-after", metavar="INSTANT", help="All started then or later: '2025-01-31 12:00+01'."
    ),
]
Before = Annotated[
    str | None, typer.Option("--started-before", metavar="INSTANT", help="All started before that.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say which runs are meant.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before what matches is steered.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which runs a command is about: ids, or a filter."""

    ids: list[str]
    workflow: str | None = None
    state: str | None = None
    tags: list[str] | None = None
    after: str | None = None
    before: str | None = None
    dry_run: bool = False
    yes: bool = False

    @property
    def is_filter(self) -> bool:
        """Whether runs are named by what they have in common."""
        return any(one for one in (self.workflow, self.state, self.tags, self.after, self.before))

    @property
    def single(self) -> str | None:
        """The one run that is named, if it is no more than that."""
        return self.ids[0] if len(self.ids) == 1 and not self.is_filter and not self.dry_run else None


Verb = Callable[["Connection[TupleRow]", list[str]], "list[Told]"]


def add_to(app: typer.Typer) -> None:
    """Make these functions commands."""
    command(app, "signal-many")(signal_many)
    command(app)(settle)


def signal_many(
    at: Invocation,
    name: Annotated[str, typer.Argument(help="Name of the signal.")],
    payload: Annotated[str, typer.Argument(help="""What it carries, as JSON: '{"ok": true}'.""")] = "null",
    ids: Annotated[list[str] | None, typer.Option("--id", help="Id of a run; may be repeated.")] = None,
    dedup: Annotated[
        str | None, typer.Option("--dedup", help="The same key again is the same signal of a run.")
    ] = None,
    workflow: Workflow = None,
    state: State = None,
    tags: Tags = None,
    started_after: After = None,
    started_before: Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Send a signal to many runs."""
    from pyengine.admin import queries_many

    checked_text("the name of a signal", name)
    checked_json("the payload", payload, """pyengine signal-many go '{"ok": true}' --workflow mail.send""")
    if dedup is not None:
        checked_text("a key", dedup)
    which = Which(
        ids=ids or [],
        workflow=workflow,
        state=state,
        tags=tags,
        after=started_after,
        before=started_before,
        dry_run=dry_run,
        yes=yes,
    )
    steer_many(
        at,
        "signal-many",
        which,
        lambda conn, some: queries_many.signal_many(conn, some, name, payload, dedup),
        column="NUMBER",
    )


def settle(
    at: Invocation,
    ids: Annotated[list[str], typer.Argument(help="Ids of promises.")],
    value: Annotated[
        str | None, typer.Option("--value", help="What they are resolved with, as JSON.")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", help="What they are rejected with instead, as JSON.")
    ] = None,
) -> None:
    """Resolve promises, or reject them."""
    from pyengine.admin import queries_many

    if value is not None and error is not None:
        raise InvalidRequest("promises are settled with a value or with an error, not with both")
    verdict, text = ("resolved", value or "null") if error is None else ("rejected", error)
    checked_json("the payload", text, """pyengine settle invoice-7 --value '{"paid": true}'""")
    steer_many(
        at,
        "settle",
        Which(ids=ids),
        lambda conn, some: queries_many.settle_many(conn, some, verdict, text),
    )


def steer_many(at: Invocation, verb: str, which: Which, do: Verb, *, column: str = "STATE") -> None:
    """Do a verb to all that are meant, in portions, and say what became of each.

    Args:
        at: the invocation.
        verb: name of the command.
        which: what is meant.
        do: the verb, for a portion.
        column: what the third column tells.

    Raises:
        InvalidRequest: nothing is named, or both ids and a filter, or nobody confirmed.
        Exit: an id that was named is not as it was wanted to be.
    """
    import psycopg

    from pyengine.admin import queries_many

    if bool(which.ids) == which.is_filter:
        raise InvalidRequest(
            "name runs by their ids, or by what they have in common",
            hint=f"{at.line(verb, '--workflow', 'NAME', '--state', 'waiting', '--dry-run')}",
        )
    told: list[Told] = []
    with at.database() as db:
        try:
            ids = _meant(db.conn, which)
            if which.dry_run:
                at.out.answer(ids, lambda console: _show_ids(console, ids))
                return
            if which.is_filter and not which.yes and ids:
                _confirm(at, verb, ids)
            for first in range(0, len(ids), queries_many.PORTION):
                told += do(db.conn, ids[first : first + queries_many.PORTION])
        except psycopg.Error as error:
            raise explain(error) from error
    at.out.answer(told, lambda console: _show_told(console, told, column))
    if which.ids and any(one.outcome not in FINE for one in told):
        raise typer.Exit(1)


def _meant(conn: Connection[TupleRow], which: Which) -> list[str]:
    from pyengine.admin import queries_many

    if not which.is_filter:
        return list(dict.fromkeys(checked_id(id) for id in which.ids))
    pairs = [checked_text("a tag", tag).partition("=") for tag in which.tags or ()]
    for key, sign, value in pairs:
        if not (key and sign):
            raise InvalidRequest(f"--tag takes KEY=VALUE, not {clip(key + sign + value, 40)!r}")
    texts = {"a workflow name": which.workflow, "a state": which.state}
    texts |= {"an instant": which.after, "another instant": which.before}
    for what, text in texts.items():
        if text is not None:
            checked_text(what, text)
    return queries_many.matching(
        conn,
        queries_many.Matching(
            workflow=which.workflow,
            state=which.state,
            tags=json.dumps({key: value for key, _, value in pairs}) if pairs else None,
            started_after=which.after,
            started_before=which.before,
        ),
    )


def _confirm(at: Invocation, verb: str, ids: list[str]) -> None:
    """Ask before what matches is steered; who cannot be asked says so himself.

    Raises:
        InvalidRequest: nobody is there to be asked, or he said no.
    """
    what = f"{verb}: {_runs(len(ids))}, {printable(listed(ids, 5))}"
    if at.out.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(
            f"{what}: nobody is here to confirm that", hint="say --yes, or look with --dry-run"
        )
    if not typer.confirm(f"{what}. Go on?", err=True):
        raise InvalidRequest(f"{verb}: nothing was done")


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _show_ids(console: Console, ids: list[str]) -> None:
    for id in ids:
        console.print(printable(id), soft_wrap=True)


def _show_told(console: Console, told: list[Told], column: str) -> None:
    """Print how many had which outcome, and a line for each, first those that went otherwise."""
    counts = Counter(one.outcome for one in told)
    words = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.most_common()]
    console.print(", ".join(words) or "none", soft_wrap=True)
    shown = table("ID", "OUTCOME", column)
    for one in sorted(told, key=lambda one: one.outcome == "done")[:LINES]:
        shown.add_row(printable(one.id), one.outcome.replace("_", " "), one.state or "")
    if told:
        console.print(shown)
    if len(told) > LINES:
        console.print(f"and {len(told) - LINES} more: --json tells all")


def checked_json(what: str, text: str, example: str) -> Any:
    """Return the value of a JSON text that people typed.

    Args:
        what: how the error calls it.
        text: what they typed.
        example: a command with a right one.

    Raises:
        InvalidRequest: it is not JSON.
    """
    try:
        return json.loads(checked_text(what, text))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not JSON: {error}", hint=f"for example: {example}") from error
