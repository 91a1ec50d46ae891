"""The log of a process that serves: lines for a terminal, lines for a file, or JSON.

Lives here: the options, the three forms of a record, and the only code of the package that adds a handler to
`logging`. May not: records, which are made where things happen. A program that has configured `logging` when
its module is imported keeps its configuration. Design: messages, tracebacks and fields have texts of users in
them. So the whole of a record goes without passwords and control characters, and its further lines are
indented: only a record begins a line.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Any, TextIO

import typer

from pyengine.doors.cli.output import printable, redact

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLORS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "1;31", "CRITICAL": "1;31"}
_INDENT = "    "
_WORD = re.compile(r'[^\s"=]*')


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The options of every command that serves."""

    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log to stderr as JSON, one object a line.")
    ] = False

    def configure(self) -> None:
        """Log to stderr, unless the program has configured logging already."""
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(_handler(_Json() if self.log_json else _for_people()))
            root.setLevel(logging.INFO)


@dataclass(frozen=True, kw_only=True)
class RunLogOptions(LogOptions):
    """The options of a worker of runs."""

    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log when a run begins, suspends, goes on and ends.")
    ] = False

    def configure(self) -> None:
        """Log to stderr, unless the program has configured logging already."""
        if not logging.getLogger().handlers:
            super().configure()
            # two lines for each run are a good part of the work for a short one
            logging.getLogger("pyengine.runs").setLevel(logging.INFO if self.verbose else logging.WARNING)


def log_warnings() -> None:
    """Print warnings in the form of this program, where nothing else handles them."""
    logging.lastResort = _handler(_Lines(), logging.WARNING)


def log_uncaught() -> None:
    """Log errors that nobody has caught, those of threads too, instead of printing them as they are."""

    def of_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        logging.getLogger("pyengine").critical("an error that nobody caught", exc_info=(kind, error, trace))

    def of_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None and failed.exc_type is not SystemExit:
            of_process(failed.exc_type, failed.exc_value, failed.exc_traceback)

    sys.excepthook = of_process
    threading.excepthook = of_thread


def _handler(form: logging.Formatter, level: int = logging.NOTSET) -> logging.Handler:
    handler = _Stderr()
    handler.setFormatter(form)
    handler.setLevel(level)
    return handler


def _for_people() -> logging.Formatter:
    return _Terminal() if sys.stderr.isatty() else _Lines()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of an event, such as the run id."""
    return {key: value for key, value in vars(record).items() if key not in _RECORD_FIELDS}


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes records to stderr."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, also of one whose arguments do not fit its message."""
        try:
            return super().format(record)
        except (TypeError, ValueError, KeyError) as error:
            record.msg, record.args = f"{record.msg} (its arguments do not fit: {error})", ()
            return super().format(record)


class _Indented(logging.Formatter):
    """A record whose first line alone begins at the margin, without passwords and control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message and what follows it: an exception, a stack."""
        first, *others = printable(redact(super().format(record)), allow="\n").split("\n")
        return "\n".join([self.first(first, record), *(self.further(one) for one in others)])

    def first(self, line: str, record: logging.LogRecord) -> str:
        """Return the first line as it is shown."""
        return line

    def further(self, line: str) -> str:
        """Return another line as it is shown."""
        return _INDENT + line


class _Lines(_Indented):
    """A line with the fields of its event as name=value; a traceback follows it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def first(self, line: str, record: logging.LogRecord) -> str:
        """Return the line with the fields at its end."""
        return line + "".join(f" {key}={_word(value)}" for key, value in _fields(record).items())


class _Terminal(_Indented):
    """A line with its time and its level in colour; the lines of a traceback are dim."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def first(self, line: str, record: logging.LogRecord) -> str:
        """Return the line for people, who do not need the fields."""
        if "NO_COLOR" in os.environ:
            return line
        level = f"{record.levelname:<7}"
        return line.replace(level, f"\x1b[{_COLORS.get(record.levelname, '0')}m{level}\x1b[0m", 1)

    def further(self, line: str) -> str:
        """Return another line, dim."""
        shown = super().further(line)
        return shown if "NO_COLOR" in os.environ else f"\x1b[2m{shown}\x1b[0m"


class _Json(logging.Formatter):
    """One JSON object: time, level, logger and message, the fields of the event, an exception, a stack."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        document = _fields(record)
        document |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            document["exception"] = record.exc_text
        if record.stack_info:
            document["stack"] = record.stack_info
        return json.dumps(_redacted(document), default=lambda value: redact(str(value)))


def _word(value: object) -> str:
    """Return a field's value as one word."""
    text = printable(redact(str(value)))
    return text if _WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _redacted(value: Any) -> Any:
    """Return a value of a record without the passwords in its texts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(key)): _redacted(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redacted(one) for one in value]
    return value
