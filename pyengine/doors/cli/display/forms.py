"""The forms of an answer about runs: a table or a page, a wide one, JSON, CSV, or a page that is redrawn.

Lives here: the options ``--output`` and ``--watch``, and what they do. May not: know what is shown.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import io
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from pyengine.core.process import clock
from pyengine.doors.cli.output import Output, encodable, printable
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

# codes of terminals: the cursor to the first line; clear the rest of the line, the lines below
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
# no wrapping of long lines, and wrapping again
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Form(enum.StrEnum):
    """The form of an answer."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    CSV = "csv"


class Answer(Protocol):
    """An answer that can be printed in each form."""

    def document(self) -> Any:
        """Return the document of ``--json``."""
        ...

    def records(self) -> Sequence[Any]:
        """Return the records of CSV, all of one dataclass."""
        ...

    def record_type(self) -> type[Any]:
        """Return that dataclass."""
        ...

    def show(self, console: Console, width: int | None) -> None:
        """Print it for people.

        Args:
            console: the console.
            width: the width of the terminal; None: nothing is cut.
        """
        ...


T = TypeVar("T", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """The options of commands that list or show runs."""

    form: Annotated[
        Form,
        typer.Option("--output", "-o", help="wide cuts nothing and has more columns; json is --json."),
    ] = Form.TABLE
    watch: Annotated[bool, typer.Option("--watch", help="Redraw it until Ctrl-C.")] = False
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="With --watch: seconds between two looks.")
    ] = 2.0

    @property
    def wide(self) -> bool:
        """Whether nothing is cut."""
        return self.form is Form.WIDE

    def present(self, out: Output, read: Callable[[int | None], T]) -> T:
        """Read an answer and print it in its form, again and again with ``--watch``.

        Args:
            out: prints it.
            read: reads the answer; its argument is how many lines there are for it, None: any number.

        Returns:
            The last answer.

        Raises:
            InvalidRequest: the options exclude each other, or there is no terminal to redraw.
        """
        if out.json and self.form not in (Form.TABLE, Form.JSON):
            raise InvalidRequest(f"--json and --output {self.form} exclude each other", hint="leave one out")
        if self.form is Form.JSON:
            out = dataclasses.replace(out, json=True)
        if self.watch:
            return self._watch(out, read)
        answer = read(None)
        if self.form is Form.CSV:
            _print_csv(answer)
        else:
            out.answer(answer.document(), lambda console: answer.show(console, self._width(out)))
        return answer

    def _width(self, out: Output) -> int | None:
        return None if self.form is Form.WIDE else out.width()

    def _watch(self, out: Output, read: Callable[[int | None], T]) -> T:
        """Redraw an answer until Ctrl-C, and leave the last one on the terminal."""
        if out.json or self.form is Form.CSV or not sys.stdout.isatty():
            raise InvalidRequest("--watch redraws a table on a terminal", hint="leave it out")
        console, answer = out.console(), None
        with _screen(console):
            try:
                while True:
                    answer = read(max(console.height - 2, 2))
                    _draw(console, self._frame(out, console, answer))
                    clock.pause(self.interval)
            except KeyboardInterrupt:
                pass
        answer = read(None) if answer is None else answer
        answer.show(console, self._width(out))
        return answer

    def _frame(self, out: Output, console: Console, answer: Answer) -> list[str]:
        """Return the lines of a screen; those in the middle are left out if there are too many."""
        with console.capture() as captured:
            answer.show(console, self._width(out))
        lines = captured.get().rstrip("\n").split("\n")
        room = max(console.height - 1, 3)
        if len(lines) > room:
            lines[room // 2 : len(lines) - (room - room // 2 - 1)] = ["…"]
        return [*lines, f"{time.strftime('%H:%M:%S')}, every {self.interval:g} s; Ctrl-C ends"]


@contextmanager
def _screen(console: Console) -> Iterator[None]:
    """Use the terminal's other screen for the length of a `with` block; SIGTERM ends it as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    console.set_alt_screen(True)
    console.show_cursor(False)
    console.file.write(_NO_WRAP)
    try:
        yield
    finally:
        console.file.write(_WRAP)
        console.show_cursor(True)
        console.set_alt_screen(False)
        signal.signal(signal.SIGTERM, before)


def _draw(console: Console, lines: list[str]) -> None:
    """Write all lines at once, over those that are there."""
    cleared = f"{_CLEAR_LINE}\n".join(lines)
    console.file.write(f"{_HOME}{cleared}{_CLEAR_LINE}{_CLEAR_BELOW}")
    console.file.flush()


def _print_csv(answer: Answer) -> None:
    """Print records as CSV; values that are no plain ones are JSON."""
    names = [field.name for field in dataclasses.fields(answer.record_type())]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(getattr(one, name)) for name in names] for one in answer.records())
    text = written.getvalue()
    # a terminal gets no control characters of users
    sys.stdout.write(printable(text, allow="\n") if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    plain = value if isinstance(value, bool | int | float | list | dict) else encodable(value)
    return plain if isinstance(plain, str) else json.dumps(plain, default=encodable, ensure_ascii=False)
