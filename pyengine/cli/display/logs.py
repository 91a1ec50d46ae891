"""The log of a process that serves: lines for a terminal, lines for a file, or JSON.

Lives here: the options, the three forms of a record, and the only code of the package that adds a handler to
`logging`. May not: records, which are made where things happen. A program that has configured `logging` when
its module is imported keeps its configuration.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pyengine.cli.output import printable, redact

__all__ = ["LogOptions", "RunLogOptions", "log_warnings"]

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLORS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "1;31", "CRITICAL": "1;31"}


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


def _handler(form: logging.Formatter, level: int = logging.NOTSET) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    handler.setLevel(level)
    return handler


def _for_people() -> logging.Formatter:
    return _Terminal() if sys.stderr.isatty() else _Lines()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of an event, such as the run id."""
    return {key: value for key, value in vars(record).items() if key not in _RECORD_FIELDS}


class _Lines(logging.Formatter):
    """A line with the fields of its event as name=value; a traceback follows it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """Return the message, with the fields at the end of its first line."""
        first, *others = super().formatMessage(record).split("\n")
        first += "".join(f" {key}={value}" for key, value in _fields(record).items())
        return redact(printable("\n".join([first, *others]), allow="\n"))


class _Terminal(logging.Formatter):
    """A line with its time and its level in colour; the lines of a traceback are dim."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """Return the message for people, who do not need the fields."""
        text = redact(printable(super().formatMessage(record), allow="\n"))
        if "NO_COLOR" in os.environ:
            return text
        first, *others = text.split("\n")
        level = f"{record.levelname:<7}"
        first = first.replace(level, f"\x1b[{_COLORS.get(record.levelname, '0')}m{level}\x1b[0m", 1)
        return "\n".join([first, *(f"\x1b[2m{one}\x1b[0m" for one in others)])


class _Json(logging.Formatter):
    """One JSON object: time, level, logger and message, the fields of the event, and an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        document = _fields(record)
        document |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info:
            document["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(document, default=str)
