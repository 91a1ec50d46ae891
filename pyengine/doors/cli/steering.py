"""Commands that change an existing run, from signal to fork, and as-of, which shows an earlier moment.

Lives here: their options and their output. May not: contain SQL (``admin/queries.py``), or decide; the
database refuses a command that the state of a run does not allow, and the error here names the next command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.core.client.run_status import ENDED, RunMoment, read_moment
from pyengine.core.database.statements.procedures import (
    AS_OF,
    CANCEL,
    FORK,
    PAUSE,
    REDRIVE,
    RESCHEDULE,
    RESUME,
    Procedure,
)
from pyengine.core.definitions.retry import optional_duration
from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation, explain
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.display.ids import only_beginning, whole_id
from pyengine.doors.cli.display.timeline import error_text
from pyengine.doors.cli.output import clip, compact, listed, printable, read_json, state_text
from pyengine.doors.cli.runs import MAX_START_BYTES, checked_id, checked_text
from pyengine.doors.cli.steering_many import Selection, checked_json, confirm, steer_many
from pyengine.errors import Conflict, EngineError, InvalidRequest, NotFound
from pyengine.features.many_runs.statements import CANCEL_MANY, PAUSE_MANY, REDRIVE_MANY, RESUME_MANY
from pyengine.features.removal.statements import DELETE

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.doors.admin.queries import Run

_CONFLICTS = {
    "signal": "it would receive no signal any more",
    "cancel": "it has ended",
    "pause": "it has ended",
    "resume": "only paused, halted or dead runs can be resumed",
    "redrive": "only dead runs can be redriven",
}
RunId = Annotated[str, typer.Argument(help="Id of the run, or its beginning.")]
RunIds = Annotated[
    list[str] | None, typer.Argument(help="Ids of runs; or a filter.", show_default=False, metavar="[ID]...")
]


def add_to(app: typer.Typer) -> None:
    """Make these functions commands."""
    command(app)(signal)
    command(app)(cancel)
    command(app)(pause)
    command(app)(resume)
    command(app)(redrive)
    command(app)(reschedule)
    command(app)(delete)
    command(app)(fork)
    command(app, "as-of")(as_of)


def signal(
    at: Invocation,
    id: RunId,
    name: Annotated[str, typer.Argument(help="Name of the signal.")],
    payload: Annotated[str, typer.Argument(help="""Its payload, as JSON: '{"ok": true}'.""")] = "null",
    dedup: Annotated[
        str | None, typer.Option("--dedup", help="Deduplication key: the run receives it once.")
    ] = None,
) -> None:
    """Send a signal to a run, which receives its signals in the order of sending."""
    from pyengine.doors.admin import queries

    checked_text("the name of a signal", name)
    checked_json("the payload", payload, f"""pyengine signal {id} {name} '{{"ok": true}}'""")
    if dedup is not None:
        checked_text("a key", dedup)
    with steered(at, id, "signal") as (db, id):
        delivery = queries.signal(db.conn, id, name, payload, dedup)
    document = {"id": id, "signal": name, "delivery": delivery}
    text = f"{printable(id)}  signal {printable(name)}, number {delivery} of this name"
    at.out.answer(document, lambda console: console.print(text, soft_wrap=True))


def cancel(
    at: Invocation,
    ids: RunIds = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; its code can read it.")] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", help="How long its code may clean up: 30s, 5m.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="End it now, without any clean-up.")] = False,
    *,
    selection: Selection,
) -> None:
    """Cancel runs and their child runs: their code may clean up, then they end."""
    grace_ms = optional_duration(grace, what="--grace")
    if reason is not None:
        checked_text("the reason", reason)
    text = None if reason is None else json.dumps(reason)
    run = _steer(at, "cancel", (ids, selection), (CANCEL, CANCEL_MANY), text, grace_ms, force)
    if run is not None and run.state == "cancelling":
        at.out.remark(
            f"its code may clean up for its grace; what it waits for: {at.line('why', run.id)}; "
            f"to end it now: {at.line('cancel', run.id, '--force')}"
        )


def pause(at: Invocation, ids: RunIds = None, *, selection: Selection) -> None:
    """Pause runs until they are resumed; signals and promises are still accepted."""
    run = _steer(at, "pause", (ids, selection), (PAUSE, PAUSE_MANY))
    if run is not None:
        at.out.remark(f"it continues with: {at.line('resume', run.id)}")


def resume(at: Invocation, ids: RunIds = None, *, selection: Selection) -> None:
    """Continue paused, halted or dead runs, with the code that workers have now."""
    _steer(at, "resume", (ids, selection), (RESUME, RESUME_MANY))


def redrive(
    at: Invocation,
    ids: RunIds = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All runs that are dead.")] = False,
    *,
    selection: Selection,
) -> None:
    """Continue dead runs, those whose workers were lost too often."""
    if bool(ids or selection.is_filter) == everything:
        raise InvalidRequest(
            "dead runs are redriven by their ids, by a filter, or all of them: name them, or add --all",
            hint=at.line("ps", "--state", "dead"),
        )
    single = selection.single(ids)
    if single is None and (selection.dry_run or not everything):
        if selection.state not in (None, "dead"):
            verb = "fork-many" if selection.state in ENDED else "resume"
            raise InvalidRequest("only dead runs are redriven", hint=at.line(verb, "--help"))
        dead = replace(selection, state="dead") if everything or selection.is_filter else selection
        steer_many(at, "redrive", ids or [], dead, REDRIVE_MANY)
        return
    if single is None:
        with at.database() as db:
            number = int(db.ask(REDRIVE, None)["number"])
    else:
        with steered(at, single, "redrive") as (db, single):
            number = int(db.ask(REDRIVE, single)["number"])
    text = f"{number} dead run{'s' if number != 1 else ''} redriven"
    at.out.answer({"redriven": number, "id": single}, lambda console: console.print(text))


def reschedule(
    at: Invocation,
    id: RunId,
    instant: Annotated[
        str | None, typer.Option("--at", metavar="INSTANT", help="The instant: '2025-01-31 12:00+01'.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", help="How long from now on: 30s, 2h; 0s is now.")
    ] = None,
) -> None:
    """Move the start of a run that has not begun."""
    delay_ms = optional_duration(delay, what="--delay")
    if (instant is None) == (delay_ms is None):
        raise InvalidRequest(
            "a start is moved to an instant or by a delay",
            hint=f"{at.line('reschedule', id, '--delay', '2h')}, or --at",
        )
    if instant is not None:
        checked_text("an instant", instant)
    with steered(at, id, "reschedule") as (db, id):
        db.ask(RESCHEDULE, id, instant, delay_ms)
        _answer(at, db, id)


def delete(
    at: Invocation,
    id: RunId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a run that has ended, with its children and all that belongs to it."""
    with steered(at, id, "delete") as (db, id):
        if not yes:
            confirm(at, f"delete: {printable(id)} and its children", hint="add --yes")
        deleted = bool(db.ask(DELETE, id)["deleted"])
    text = f"{printable(id)}  {'deleted' if deleted else 'was removed before'}"
    at.out.answer({"id": id, "deleted": deleted}, lambda console: console.print(text, soft_wrap=True))


def fork(
    at: Invocation,
    id: RunId,
    seq: Annotated[
        int | None, typer.Option("--seq", help="Copy so many events of its journal; else all.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="Copy the events before the first call of this name.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=JSON", help="Replace a result, by step or child number."),
    ] = None,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the new run.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Its queue; else the same.")] = None,
    version: Annotated[
        str | None, typer.Option("--workflow-version", help="Its version; else the same.")
    ] = None,
) -> None:
    """Start a new run with a copy of another run's journal, up to a position."""
    if seq is not None and step is not None:
        raise InvalidRequest("a fork has one position", hint="leave out --seq or --step")
    texts = {"a step": step, "a queue name": queue, "a version": version}
    for name, text in texts.items():
        if text is not None:
            checked_text(name, text)
    new_values = json.dumps(dict(_pair(id, one) for one in values or ()))
    new_id = None if new_id is None else checked_id(new_id, most=MAX_START_BYTES)
    with steered(at, id, "fork") as (db, id):
        _answer(at, db, db.ask(FORK, id, seq, step, new_values, new_id, queue, version)["id"])


def as_of(
    at: Invocation,
    id: RunId,
    seq: Annotated[int | None, typer.Option("--seq", help="When its journal had so many events.")] = None,
    instant: Annotated[
        str | None, typer.Option("--at", metavar="INSTANT", help="At an instant: '2025-01-31 12:00+01'.")
    ] = None,
    generation: Annotated[
        int | None, typer.Option("--generation", help="An earlier journal of a run that continued as new.")
    ] = None,
) -> None:
    """Show the state of a run at an earlier moment, or now if none is given."""
    if instant is not None:
        checked_text("an instant", instant)
    with steered(at, id, "as-of", changes=False) as (db, id):
        moment = read_moment(db.ask(AS_OF, id, seq, instant, generation), read_json)
    document = asdict(moment)
    document["waiting_on"] = document.pop("waits_for")
    at.out.answer(document, lambda console: _show_moment(console, id, moment, at.out.width()))


def _show_moment(console: Console, id: str, moment: RunMoment, width: int | None) -> None:
    """Print a line about the run, and one for each child."""
    generation = f", generation {moment.generation}" if moment.generation > 1 else ""
    console.print(printable(id), style="bold", soft_wrap=True)
    console.print(
        f"  {moment.status} after {moment.seq} events{generation}, at {moment.at:%Y-%m-%d %H:%M:%S.%f %Z}",
        soft_wrap=True,
    )
    if moment.waits_for:
        console.print(printable(f"  waits for {listed(moment.waits_for)}"), soft_wrap=True)
    for name, one in moment.signals.items():
        text = f"  signal {name}: {one['delivered']} delivered, {one['received']} received"
        console.print(printable(text), soft_wrap=True)
    attempts = {one["child"]: one for one in moment.running}
    rows: list[tuple[str, ...]] = []
    for number, child in sorted(moment.children.items()):
        attempt = attempts.get(number)
        state = child["state"] if attempt is None else f"{attempt['state']}, attempt {attempt['attempt']}"
        value = compact(child["value"]) if "value" in child else error_text(child.get("error") or "")
        shown = clip(value if "value" in child or "error" in child else "", 60)
        name = printable(child.get("name") or "")
        rows.append((str(number), child["kind"].replace("_", " "), name, state, shown))
    if rows:
        numbers, kinds, names, states, values = zip(*rows, strict=True)
        columns = [
            Column(title="CHILD", cells=numbers, rank=0, right=True),
            Column(title="KIND", cells=kinds, rank=3),
            Column(title="NAME", cells=names, rank=2, least=10, enough=20),
            Column(title="STATE", cells=states, rank=1),
            Column(title="", cells=values, rank=4, least=12),
        ]
        print_columns(console, columns, width)


def _pair(id: str, text: str) -> tuple[str, Any]:
    """Split a value of ``--set``."""
    key, sign, value = text.partition("=")
    example = f"""pyengine fork {id} --step charge --set 'charge={{"paid": true}}'"""
    if not (key and sign):
        raise InvalidRequest(f"--set takes KEY=JSON, not {clip(text, 40)!r}", hint=f"for example: {example}")
    return checked_text("a key of --set", key), checked_json(f"the value for {key}", value, example)


def _steer(
    at: Invocation,
    verb: str,
    runs: tuple[list[str] | None, Selection],
    procedures: tuple[Procedure, Procedure],
    *values: object,
) -> Run | None:
    """Do a verb to the one run that is named, or to many; both procedures take the same values.

    Returns:
        The run that is named, as it is now.
    """
    one, many = procedures
    ids, selection = runs
    single = selection.single(ids)
    if single is None:
        steer_many(at, verb, ids or [], selection, many, *values)
        return None
    with steered(at, single, verb) as (db, id):
        db.ask(one, id, *values)
        return _answer(at, db, id)


@contextmanager
def steered(at: Invocation, text: str, verb: str, *, changes: bool = True) -> Iterator[tuple[Database, str]]:
    """Open the database for a command about one run; a refusal names the next command to type.

    Args:
        at: the invocation.
        text: the id of the run, or what stands for it.
        verb: name of the command.
        changes: whether it changes the run.

    Returns:
        The database, and the id.

    Raises:
        NotFound: there is no such run.
        Conflict: its state does not allow that.
        InvalidRequest: the database does not take an argument.
    """
    import psycopg

    checked_id(text)
    with at.database() as db:
        id = whole_id(at.out, db, text, changes=changes)
        try:
            yield db, id
        except psycopg.Error as error:
            raise _with_hint(at, db, explain(error), id, verb) from error


def _with_hint(at: Invocation, db: Database, error: EngineError, id: str, verb: str) -> EngineError:
    """Return the error with a command to type, and a conflict with the state of the run."""
    from pyengine.doors.admin import queries

    if type(error) not in (NotFound, Conflict, InvalidRequest):
        return error
    run = queries.run(db.conn, id)
    if run is None:
        near = only_beginning(db, id)
        hint = (
            at.line("ps", "--all") if near is None else f"without a terminal an id is written whole: {near}"
        )
        return NotFound(f"there is no run {clip(id, 80)!r}", hint=hint)
    reason = _CONFLICTS.get(verb)
    if isinstance(error, Conflict) and reason is not None:
        return Conflict(f"run {clip(id, 80)!r} is {run.state}: {reason}", hint=at.line("show", id))
    message = " ".join(part for part in (error.message, error.hint) if part)
    invalid = isinstance(error, InvalidRequest)
    return type(error)(message, hint=at.line(verb, "--help") if invalid else at.line("show", id))


def _answer(at: Invocation, db: Database, id: str) -> Run | None:
    """Print the run as it is now, and return it."""
    from pyengine.doors.admin import queries

    run = queries.run(db.conn, id)

    def show(console: Console) -> None:
        from rich.text import Text

        if run is not None:
            console.print(
                Text(printable(run.id), style="bold").append("  ").append_text(state_text(run.state)),
                soft_wrap=True,
            )

    at.out.answer(run, show)
    return run
