"""Commands about many runs or promises at once, selected by ids or by a filter.

Lives here: their options, the dry run, the confirmation of a filter, and the output of outcomes. May not:
contain SQL (``many_runs/statements.py``), or decide the outcome of an id.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pyengine.core.database.statements.procedures import Procedure
from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation, explain
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.display.ids import cut_all, whole_ids
from pyengine.doors.cli.output import listed, printable
from pyengine.doors.cli.runs import checked_id, checked_tags, checked_text, states
from pyengine.errors import InvalidRequest
from pyengine.features.many_runs.statements import (
    BATCH,
    FORK_MANY,
    FORKS,
    MATCHING_ENDED_RUNS,
    MATCHING_RUNS,
    SETTLE_MANY,
    SIGNAL_MANY,
)

if TYPE_CHECKING:
    from rich.console import Console

LINES = 40
SUCCESSES = ("done", "already")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome for one id; the state after a signal is its number."""

    id: str
    outcome: str
    state: str | None

    @classmethod
    def read(cls, id: str, outcome: str, state: Any) -> Outcome:
        """Return the outcome that a row says."""
        return cls(id=id, outcome=outcome, state=None if state is None else str(state))

    @property
    def last(self) -> str:
        """The text of the last column."""
        return self.state or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The outcome of `fork-many` for one id: its fork, or the problem."""

    id: str
    outcome: str
    fork: str | None
    problem: str | None

    @classmethod
    def read(cls, id: str, outcome: str, fork: str | None, problem: str | None) -> Forked:
        """Return the outcome that a row says."""
        return cls(id=id, outcome=outcome, fork=fork, problem=problem)

    @property
    def last(self) -> str:
        """The text of the last column."""
        return printable(self.fork or self.problem or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The options that select runs by a filter."""

    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="All live runs of this workflow, child runs too.")
    ] = None
    state: Annotated[
        str | None,
        typer.Option("--state", "-s", autocompletion=states, help="All in this state: waiting, paused, ..."),
    ] = None
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="All with this tag; may be repeated."),
    ] = None
    started_after: Annotated[
        str | None,
        typer.Option(
            "--started-after", metavar="INSTANT", help="All started then or later: '2025-01-31 12:00+01'."
        ),
    ] = None
    started_before: Annotated[
        str | None, typer.Option("--started-before", metavar="INSTANT", help="All started before that.")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the selected runs.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
    example: ClassVar[str] = "waiting"

    @property
    def is_filter(self) -> bool:
        """Whether there is a filter."""
        return bool(self.tags) or any(self._texts().values())

    def request(self) -> tuple[Procedure, tuple[object, ...]]:
        """Return the statement that answers the ids, and its values but the place and the number of ids."""
        started = (self.started_after, self.started_before)
        return MATCHING_RUNS, (self.workflow, self.state, self._tags_text(), *started)

    def _texts(self) -> dict[str, str | None]:
        """Return the texts of the filter by what they are."""
        texts = {"a workflow name": self.workflow, "a state": self.state}
        return texts | {"an instant": self.started_after, "another instant": self.started_before}

    def check(self) -> None:
        """Refuse what the database cannot store."""
        for name, text in self._texts().items():
            if text is not None:
                checked_text(name, text)

    def _tags_text(self) -> str | None:
        return json.dumps(checked_tags(self.tags)) if self.tags else None

    def single(self, ids: list[str] | None) -> str | None:
        """Return the id if one run is named and nothing else is asked for."""
        return ids[0] if ids and len(ids) == 1 and not self.is_filter and not self.dry_run else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSelection(Selection):
    """The options that select runs that have ended."""

    example: ClassVar[str] = "failed"

    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="All of this workflow, child runs too.")
    ] = None
    state: Annotated[
        str | None,
        typer.Option(
            "--state", "-s", autocompletion=states, help="All in this state: failed, timed_out, ..."
        ),
    ] = None
    error: Annotated[
        str | None, typer.Option("--error", help="All that failed with an error of this class.")
    ] = None
    ended_after: Annotated[
        str | None, typer.Option("--ended-after", metavar="INSTANT", help="All that ended then or later.")
    ] = None
    ended_before: Annotated[
        str | None, typer.Option("--ended-before", metavar="INSTANT", help="All that ended before that.")
    ] = None

    def request(self) -> tuple[Procedure, tuple[object, ...]]:
        """Return the statement for runs that have ended."""
        spans = (self.ended_after, self.ended_before, self.started_after, self.started_before)
        return MATCHING_ENDED_RUNS, (self.workflow, self.state, self._tags_text(), self.error, *spans)

    def _texts(self) -> dict[str, str | None]:
        ended = {"an error": self.error, "an instant of end": self.ended_after}
        return Selection._texts(self) | ended | {"another instant of end": self.ended_before}


def add_to(app: typer.Typer) -> None:
    """Make these functions commands."""
    command(app, "signal-many")(signal_many)
    command(app)(settle)
    command(app, "fork-many")(fork_many)


def signal_many(
    at: Invocation,
    name: Annotated[str, typer.Argument(help="Name of the signal.")],
    payload: Annotated[str, typer.Argument(help="""Its payload, as JSON: '{"ok": true}'.""")] = "null",
    ids: Annotated[list[str] | None, typer.Option("--id", help="Id of a run; may be repeated.")] = None,
    dedup: Annotated[
        str | None, typer.Option("--dedup", help="Deduplication key: a run receives it once.")
    ] = None,
    *,
    selection: Selection,
) -> None:
    """Send a signal to many runs."""
    checked_text("the name of a signal", name)
    checked_json("the payload", payload, """pyengine signal-many go '{"ok": true}' --workflow mail.send""")
    if dedup is not None:
        checked_text("a key", dedup)
    values = (name, payload, dedup, None)
    steer_many(at, "signal-many", ids or [], selection, SIGNAL_MANY, *values, column="NUMBER")


def fork_many(
    at: Invocation,
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of runs; or a filter.", show_default=False, metavar="[ID]..."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Names this call: the same call again makes no fork twice.")
    ] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", help="Copy so many events; 1: from the beginning.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="Copy the events before the first call of this name.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Their queue; else the same.")] = None,
    version: Annotated[
        str | None, typer.Option("--workflow-version", help="Their version; else the same.")
    ] = None,
    *,
    selection: EndedSelection,
) -> None:
    """Try runs that have ended again, under new ids, each from before the call that failed."""
    if seq is not None and step is not None:
        raise InvalidRequest("a fork has one position", hint="leave out --seq or --step")
    if key is None and not selection.dry_run:
        raise InvalidRequest(
            "fork-many needs --key: the same call with the same key makes no fork twice, after an abort too",
            hint=at.line("fork-many", "--state", "failed", "--key", "today"),
        )
    for name, text in {"a key": key, "a step": step, "a queue name": queue, "a version": version}.items():
        if text is not None:
            checked_text(name, text)
    values = (key, seq, step, "{}", queue, version)
    steer_many(
        at, "fork-many", ids or [], selection, FORK_MANY, *values, column="FORK", kind=Forked, most=FORKS
    )


def settle(
    at: Invocation,
    ids: Annotated[list[str], typer.Argument(help="Ids of promises.")],
    value: Annotated[str | None, typer.Option("--value", help="The value to resolve with, as JSON.")] = None,
    error: Annotated[
        str | None, typer.Option("--error", help="The error to reject with instead, as JSON.")
    ] = None,
) -> None:
    """Resolve promises, or reject them."""
    if value is not None and error is not None:
        raise InvalidRequest("promises are settled with a value or with an error, not with both")
    state, text = ("resolved", value or "null") if error is None else ("rejected", error)
    checked_json("the payload", text, """pyengine settle invoice-7 --value '{"paid": true}'""")
    steer_many(at, "settle", ids, Selection(), SETTLE_MANY, state, text, None)


def steer_many(
    at: Invocation,
    verb: str,
    ids: list[str],
    selection: Selection,
    procedure: Procedure,
    *values: object,
    column: str = "STATE",
    kind: type[Outcome] | type[Forked] = Outcome,
    most: int | None = None,
) -> None:
    """Do a verb to all selected runs, in batches, and print the outcome of each.

    Args:
        at: the invocation.
        verb: name of the command.
        ids: ids that are named.
        selection: the filter, if there are no ids.
        procedure: the verb: takes the ids of a batch, and `values`.
        values: the values that all ids share.
        column: title of the third column.
        kind: what a row of the verb is read as.
        most: the largest number of ids of a batch; None means as many as of any verb.

    Raises:
        InvalidRequest: there is neither an id nor a filter, or both, or the filter was not confirmed.
        Exit: the verb failed for an id that was named.
    """
    import psycopg

    for id in ids:
        checked_id(id)
    if bool(ids) == selection.is_filter:
        raise InvalidRequest(
            "name runs by their ids, or select them by a filter",
            hint=at.line(verb, "--workflow", "NAME", "--state", selection.example, "--dry-run"),
        )
    outcomes: list[Outcome | Forked] = []
    with at.database() as db:
        try:
            selected = _matching(db, selection) if selection.is_filter else _named(at, db, verb, ids)
            if selection.dry_run:
                at.out.answer(selected, lambda console: _show_ids(console, selected))
                if not selected:
                    at.out.remark("the filter selects nothing")
                return
            if selection.is_filter and not selection.yes and selected:
                runs = f"{len(selected)} run{'' if len(selected) == 1 else 's'}"
                confirm(at, f"{verb}: {runs}, {printable(listed(selected, 5))}")
            size = BATCH if most is None else most
            for first in range(0, len(selected), size):
                row = db.ask(procedure, selected[first : first + size], *values)
                outcomes += [kind.read(*one) for one in json.loads(row["outcomes"])]
        except psycopg.Error as error:
            raise explain(error) from error
    at.out.answer(outcomes, lambda console: _show_outcomes(console, at.out.width(), outcomes, column))
    if ids and any(one.outcome not in SUCCESSES for one in outcomes):
        raise typer.Exit(1)


def _named(at: Invocation, db: Database, verb: str, texts: list[str]) -> list[str]:
    """Return the ids that are named, each once."""
    return whole_ids(at.out, db, texts, changes=True, promises=verb == "settle")


def _matching(db: Database, selection: Selection) -> list[str]:
    """Return the ids of all runs that a filter selects."""
    selection.check()
    procedure, wanted = selection.request()
    ids: list[str] = []
    while True:
        last = ids[-1] if ids else ""
        page = db.ask(procedure, *wanted, last, BATCH)["ids"]
        ids += page
        if len(page) < BATCH:
            return ids


def confirm(at: Invocation, question: str, *, hint: str = "add --yes, or try --dry-run first") -> None:
    """Ask for confirmation.

    Args:
        at: the invocation.
        question: what would be done, and to what.
        hint: what to type where nobody can be asked.

    Raises:
        InvalidRequest: there is no terminal to ask on, or the answer is no.
    """
    if at.out.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(f"{question}: there is no terminal to confirm that on", hint=hint)
    if not typer.confirm(f"{question}. Go on?", err=True):
        raise InvalidRequest(f"{question.partition(':')[0]}: nothing was done")


def _show_ids(console: Console, ids: list[str]) -> None:
    for id in ids:
        console.print(printable(id), soft_wrap=True)


def _show_outcomes(
    console: Console, width: int | None, outcomes: list[Outcome | Forked], column: str
) -> None:
    """Print the number of each outcome, and a line for each id, failures first."""
    counts = Counter(one.outcome for one in outcomes)
    parts = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.most_common()]
    console.print(", ".join(parts) or "none", soft_wrap=True)
    shown = sorted(outcomes, key=lambda one: one.outcome == "done")[:LINES]
    columns = [
        Column(title="ID", cells=[printable(one.id) for one in shown], rank=0, least=20, cut=cut_all),
        Column(title="OUTCOME", cells=[one.outcome.replace("_", " ") for one in shown], rank=1),
        Column(title=column, cells=[one.last for one in shown], rank=2),
    ]
    if outcomes:
        print_columns(console, columns, width)
    if len(outcomes) > LINES:
        console.print(f"and {len(outcomes) - LINES} more: --json lists all")


def checked_json(name: str, text: str, example: str) -> Any:
    """Return the value of a JSON text from the command line.

    Args:
        name: names it in the error.
        text: the text.
        example: a valid command.

    Raises:
        InvalidRequest: it is not JSON.
    """
    try:
        return json.loads(checked_text(name, text))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not JSON: {error}", hint=f"for example: {example}") from error
