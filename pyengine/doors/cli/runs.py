"""``pyengine start``, and what all commands about runs have in common.

Lives here: the options of start, the checks of arguments, and the outcome of a run as text. May not: contain
SQL (``admin/queries.py``).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pyengine.core.client.run_status import Progress, read_status
from pyengine.core.database.statements.procedures import RUN, WHY_MANY
from pyengine.core.process import clock
from pyengine.core.protocol.causes import read_causes
from pyengine.core.values.codec import Codec
from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.output import Output, clip, compact, listed, printable, read_json, state_text
from pyengine.errors import InvalidRequest, NotFound, RunFailed
from pyengine.features.progress.live_bar import LiveBar, progress_summary

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.doors.admin.queries import Run

FIRST_POLL_S = 0.02
LONGEST_PAUSE_S = 0.5
MAX_ID_BYTES = 1024
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}
MAX_START_BYTES = 512  # the rest is reserved for the numbers of children


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(start)


def start(
    at: Invocation,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.")],
    args: Annotated[
        str, typer.Argument(help="""Arguments as JSON: '["world"]' or '{"name": "world"}'.""")
    ] = "[]",
    id: Annotated[
        str | None, typer.Option("--id", help="Id of the run; a second start with it finds the run.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key, unique for the workflow.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue; else the one that the workflow declares.")
    ] = None,
    version: Annotated[str, typer.Option("--workflow-version", help="Version of the workflow.")] = "1",
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag, by which ps finds the run.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit 1 if it fails.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="With --wait: the longest time, in seconds.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also if no worker knows the workflow.")] = False,
) -> None:
    """Start a run of a workflow."""
    from pyengine.doors.admin import queries

    _refuse_args(workflow, args)
    options = {
        "workflow": checked_text("a workflow name", workflow),
        "args": args,
        "id": None if id is None else checked_id(id, most=MAX_START_BYTES),
        "key": None if key is None else checked_text("a key", key),
        "queue": None if queue is None else checked_text("a queue name", queue),
        "version": checked_text("a version", version),
        "tags": json.dumps(checked_tags(tags or ())),
    }
    with at.database(create=True) as db:
        warning = _check_workers(db, workflow, anyway=anyway)
        id = queries.start(db.conn, **options)
        warning = warning or _no_worker(db, id)
        run = queries.run(db.conn, id)
        if warning:
            at.out.remark(warning)
        if wait:
            run = _wait(at.out, db, id, timeout)
        at.out.answer(run, lambda console: _show_started(console, run))
    if wait and run is not None and run.state != "completed":
        raise typer.Exit(1)


def checked_id(id: str, *, most: int = MAX_ID_BYTES) -> str:
    """Return an id after a check of its length.

    Args:
        id: an id from the command line.
        most: the largest size in bytes.

    Raises:
        InvalidRequest: it is empty or too long, or not UTF-8.
    """
    size = len(checked_text("a run id", id).encode())
    if not 1 <= size <= most:
        raise InvalidRequest(
            f"a run id has 1 to {most} bytes, this one has {size}", hint="pyengine ps lists the ids"
        )
    return id


def checked_tags(texts: Iterable[str]) -> dict[str, str]:
    """Return tags by name.

    Args:
        texts: KEY=VALUE, from the command line.

    Raises:
        InvalidRequest: one is not of this form.
    """
    pairs = [checked_text("a tag", text).partition("=") for text in texts]
    for key, sign, value in pairs:
        if not (key and sign):
            raise InvalidRequest(f"--tag takes KEY=VALUE, not {clip(key + sign + value, 40)!r}")
    return {key: value for key, _, value in pairs}


def checked_age(text: str) -> str:
    """Return an age as an interval of Postgres.

    Args:
        text: an age from the command line: 30d, 12h, 90m.

    Raises:
        InvalidRequest: it is not an age.
    """
    age = re.fullmatch(r"(\d{1,6}) ?(d|h|m)(ays?|ours?|in(ute)?s?)?", text.strip())
    if age is None:
        raise InvalidRequest(f"{clip(text, 40)!r} is no age", hint="like 30d, 12h or 90m")
    return f"{age[1]} {_UNITS[age[2]]}"


def checked_text(name: str, text: str) -> str:
    """Return a text after a check that Postgres can store it.

    Args:
        name: names it in the error.
        text: a text from the command line.

    Raises:
        InvalidRequest: it has a NUL, or half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} is UTF-8 text, not {text!r}") from error
    if "\0" in text:
        raise InvalidRequest(f"{name} has no NUL character")
    return text


def _refuse_args(workflow: str, args: str) -> None:
    example = f"""pyengine start {workflow} '["world"]'"""
    try:
        value = json.loads(checked_text("the arguments", args))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the arguments are not JSON: {error}", hint=f"for example: {example}"
        ) from error
    if not isinstance(value, list | dict):
        raise InvalidRequest(
            "the arguments are a JSON array (by position) or object (by name), "
            f"not {clip(compact(value), 40)}",
            hint=f"for example: {example}",
        )


def _check_workers(db: Database, workflow: str, *, anyway: bool) -> str | None:
    """Return a warning if no running worker serves the workflow.

    Raises:
        NotFound: no worker has ever registered it, which looks like a typing error.
    """
    from pyengine.doors.admin import queries

    workers = queries.workers(db.conn)
    if any(workflow in worker["workflows"] for worker in workers):
        return None
    known = queries.known_workflows(db.conn)
    if known and workflow not in known and not anyway:
        raise NotFound(
            f"no worker knows a workflow {clip(workflow, 80)!r}{_known(workflow, known)}",
            hint="if its worker starts later, add --anyway",
        )
    return f"no worker that serves {workflow} is running; the run waits for: pyengine worker MODULE:APP"


def _no_worker(db: Database, id: str) -> str | None:
    """Return the sentence of `pyengine why` about a run for which no worker is there, such as one of an older
    version."""
    import psycopg

    try:
        causes = read_causes([id], db.rows(WHY_MANY, [id], 1), read_json)[id]
    except psycopg.Error as error:  # the run is started: its answer must not be lost
        return f"whether a worker is there is not known: {error}"
    return next((one.sentence for one in causes if one.cause.startswith("no_worker")), None)


def states(incomplete: str) -> list[str]:
    """Return the states of runs that begin so, for completion in a shell."""
    from pyengine.doors.admin.queries import STATES

    return [state for state in STATES if state.startswith(incomplete)]


def unknown_workflow(workflow: str, known: list[str]) -> NotFound:
    """Return the error for a name that no workflow has, with those that are near."""
    return NotFound(
        f"no workflow is named {clip(workflow, 80)!r}{_known(workflow, known)}", hint="pyengine ps"
    )


def _near(name: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=3, cutoff=0.6)


def _known(name: str, known: list[str]) -> str:
    if near := _near(name, known):
        return f"; did you mean {' or '.join(near)}?"
    return f"; known are {listed(known)}" if known else ""


def _wait(out: Output, db: Database, id: str, timeout_s: float | None) -> Run | None:
    """Poll until the run has ended, is halted, or the time is over."""
    from pyengine.doors.admin import queries

    pause_s, ends_at = FIRST_POLL_S, None if timeout_s is None else clock.monotonic() + timeout_s
    try:
        with LiveBar(id) as bar:
            while (run := queries.run(db.conn, id)) is not None and run.settled_at is None:
                if run.state in ("halted", "dead", "paused"):
                    return run
                if ends_at is not None and clock.monotonic() >= ends_at:
                    raise RunFailed(
                        f"run {id} is still {run.state} after {timeout_s:g} s",
                        hint=f"it goes on: pyengine show {id}",
                    )
                now = read_status(db.ask(RUN, id), Codec())
                bar.show(now.state, now.progress, now.children)
                clock.pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    except KeyboardInterrupt:
        out.remark(f"no longer waiting; the run goes on: pyengine show {id}")
        raise
    return run


def outcome(run: Run) -> str:
    """Return the most interesting fact about a run beside its state."""
    from pyengine.doors.cli.display.timeline import error_text

    if run.state == "completed":
        return compact(run.result)
    if run.error is not None:
        return error_text(run.error)
    if run.problem is not None:
        return error_text(run.problem)
    return ", ".join(filter(None, (progress_text(run), _whereabouts(run))))


def progress_text(run: Run) -> str:
    """Return how far a run has come, as its code has set it; empty if it has set nothing."""
    if run.progress is None:
        return ""
    return printable(progress_summary(Progress(**run.progress)))


def _whereabouts(run: Run) -> str:
    if run.waits_for:
        return listed(run.waits_for, 2)
    if run.state in ("queued", "scheduled"):
        return f"queue {run.queue}"
    return f"worker {run.worker}" if run.worker else ""


def _show_started(console: Console, run: Run | None) -> None:
    from rich.text import Text

    if run is None:
        return
    line = Text(printable(run.id), style="bold").append("  ").append_text(state_text(run.state))
    if run.state not in ("queued", "running"):
        line.append("  " + printable(outcome(run)))
    console.print(line, soft_wrap=True)
    if run.state in ("halted", "dead"):
        console.print(f"look at it: pyengine show {run.id}", soft_wrap=True)
