"""The root of the command line: its groups, its exit codes, and the place where errors become messages.

Lives here: `run`. May not: do the work of a command. Exit codes: 0 success; 1 a bad result (a failed run, a
broken law, a file that does not match); 2 wrong usage; 3 not found; 4 no database; 5 schema mismatch; 6
conflict; 130 interrupted.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pyengine.doors.cli.command import AsJson, DatabaseUrl, DataDir, remember
from pyengine.doors.cli.display.logs import log_warnings
from pyengine.doors.cli.output import Output, indented, printable, redact
from pyengine.errors import (
    Conflict,
    EmbeddedPostgresError,
    EngineError,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RunFailed,
    SchemaMismatch,
    Unavailable,
)

_EXIT_CODES: tuple[tuple[type[EngineError], int], ...] = (
    (RunFailed, 1),
    (InvalidRequest, 2),
    (PayloadTooLarge, 2),
    (NotFound, 3),
    (Unavailable, 4),
    (EmbeddedPostgresError, 4),
    (SchemaMismatch, 5),
    (Conflict, 6),
)
_NEXT = {
    2: "pyengine --help",
    3: "pyengine ps",
    4: "pyengine db status",
    5: "pyengine db status",
    6: "pyengine ps",
}

# the error of typer for wrong usage; some versions include a click of their own
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_ClickException: type[Exception] = _UsageError.__bases__[0]

# the commands of each module, in the order of the help
_COMMANDS = {
    "db": ("db",),
    "adapter": ("adapter",),
    "calls": ("call",),
    "schedules": ("schedules",),
    "demo": ("demo",),
    "worker": ("worker",),
    "serve": ("serve",),
    "runs": ("start",),
    "ps": ("ps",),
    "show": ("show",),
    "check": ("check",),
    "why": ("why",),
    "steering": ("signal", "cancel", "pause", "resume", "redrive", "reschedule", "delete", "fork", "as-of"),
    "steering_many": ("signal-many", "fork-many", "settle"),
    "replay_check": ("replay-check",),
}

_WITH_VALUE = ("--database-url", "--data-dir")
"""Common options whose value is the next word."""


def command_line(argv: Sequence[str] = ()) -> typer.Typer:
    """Make the command line. If it names a command, no other module than that one's is imported: to import
    all takes longer than most commands.

    Args:
        argv: the arguments after ``pyengine``.
    """
    app = typer.Typer(
        name="pyengine",
        help="Durable execution that is a PostgreSQL schema.",
        epilog="Begin with: pyengine demo",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_common)
    name = _command_of(argv)
    wanted = [module for module, names in _COMMANDS.items() if name in names]
    for module in wanted or _COMMANDS:
        found = importlib.import_module(f"pyengine.doors.cli.{module}")
        if hasattr(found, "add_to"):
            found.add_to(app)
        else:
            app.add_typer(found.app, name=_COMMANDS[module][0])
    return app


def _command_of(argv: Sequence[str]) -> str | None:
    """Return the name of the command, which common options may precede."""
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(words, None)
    return None


def _version(wanted: bool) -> None:
    if wanted:
        from pyengine.core.sources import VERSION

        typer.echo(f"pyengine {VERSION}")
        raise typer.Exit


def _common(
    ctx: typer.Context,
    *,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable execution that is a PostgreSQL schema."""
    remember(ctx, {"database_url": database_url, "data_dir": data_dir, "as_json": as_json})


def run(argv: list[str]) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the arguments after ``pyengine``.
    """
    out = Output(json=_wants_json(argv))
    log_warnings()
    try:
        command = typer.main.get_command(command_line(argv))
        code = command.main(args=argv, prog_name="pyengine", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except EngineError as error:
        return _fail(out, error)
    except _ClickException as error:
        return _wrong_usage(out, error)
    except (KeyboardInterrupt, typer.Abort):
        out.remark("interrupted")
        return 130
    except BrokenPipeError:
        # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # the process boundary: errors of the database become ours, others are bugs
        ours = _of_database(error)
        if ours is None:
            raise
        return _fail(out, ours)


def _wants_json(argv: list[str]) -> bool:
    """Whether errors are answered as JSON too."""
    pairs = itertools.pairwise(argv)
    return not {"--json", "--output=json", "-ojson"}.isdisjoint(argv) or any(
        one in ("--output", "-o") and form == "json" for one, form in pairs
    )


def _of_database(error: Exception) -> EngineError | None:
    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(error, psycopg.Error):
        return None
    from pyengine.doors.cli.database import explain

    return explain(error)


def _fail(out: Output, error: EngineError) -> int:
    code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    message = f"{error.message}: {error.detail}" if error.detail else error.message
    _print_error(out, code, (type(error).__name__, message, error.hint or _NEXT.get(code)))
    return code


def _wrong_usage(out: Output, error: Exception) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help; some versions print it
        if text := str(error):
            typer.echo(text)
        return 2
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "pyengine")
    message = str(getattr(error, "format_message", lambda: error)())
    _print_error(out, 2, ("InvalidRequest", message, f"{path} --help"))
    return 2


def _print_error(out: Output, code: int, texts: tuple[str, str, str | None]) -> None:
    kind, message, hint = (printable(redact(text), allow="\n") if text else None for text in texts)
    if out.json:
        document = {"error": {"type": kind, "message": message, "hint": hint, "exit_code": code}}
        out.answer(document, lambda _: None)
        return
    lines = [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    sys.stderr.write("\n".join(map(indented, lines)) + "\n")
