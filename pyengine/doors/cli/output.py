"""The format of answers: a JSON document or text.

Lives here: the choice between the two, the printable form of values, hiding passwords. May not: query the
database. Texts of users and of the database never reach the terminal as markup or as control characters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyengine.core.passwords import hidden

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH_OF_PIPES = 160
DEEPEST = 100
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_URL_PASSWORD = re.compile(r"(\w://[^\s:/@]*:)\S*@")
_NAMED_PASSWORD = re.compile(r"(password=)('[^']*'|[^\s&]+)", re.IGNORECASE)
_STATE_STYLES = {
    "completed": "green",
    "running": "cyan",
    "waiting": "blue",
    "paused": "yellow",
    "cancelling": "yellow",
    "failed": "bold red",
    "timed_out": "bold red",
    "cancelled": "yellow",
    "halted": "bold red",
    "dead": "bold red",
}


@contextlib.contextmanager
def progress(*, enabled: bool = True) -> Iterator[Callable[[str], None] | None]:
    """Give a function that shows a progress text on the terminal, which is erased at the end.

    Args:
        enabled: False gives None, as does a stderr that is not a terminal.
    """
    if not (enabled and sys.stderr.isatty()):
        yield None
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r{printable(text)}\x1b[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Prints answers: text for people, or one JSON document for programs."""

    json: bool = False

    def answer(self, document: Any, show: Callable[[Console], None]) -> None:
        """Print the answer of a command: the document with ``--json``, else what `show` prints."""
        if self.json:
            sys.stdout.write(json.dumps(document, default=encodable, indent=2, ensure_ascii=True) + "\n")
            sys.stdout.flush()
        else:
            show(self.console())

    def remark(self, text: str) -> None:
        """Print a remark beside the answer on stderr, unless the answer is JSON."""
        if not self.json:
            sys.stderr.write(indented(printable(redact(text), allow="\n")) + "\n")
            sys.stderr.flush()

    def console(self) -> Console:
        """Return a console for text; a wide one if stdout is not a terminal."""
        from rich.console import Console

        width = None if self._has_width() else WIDTH_OF_PIPES
        return Console(width=width, highlight=False, markup=False, emoji=False)

    def width(self) -> int | None:
        """Return the width of the terminal; None if stdout is none."""
        return self.console().width if self._has_width() else None

    def _has_width(self) -> bool:
        return sys.stdout.isatty() or "COLUMNS" in os.environ


def read_json(text: str | bytes) -> Any:
    """Return JSON as a value, or as its text if it is nested too deeply to be decoded and printed."""
    written = text if isinstance(text, str) else text.decode()
    if written.count("[") + written.count("{") > DEEPEST:
        depth = 0
        for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", written)):
            depth += 1 if bracket in "[{" else -1
            if depth > DEEPEST:
                return written
    return json.loads(written)


def encodable(value: Any) -> Any:
    """Convert a value that `json` cannot encode."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def printable(text: str, allow: str = "") -> str:
    """Return text with control characters, surrogates and the like escaped, except those in `allow`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in allow else c.encode("unicode_escape", "replace").decode() for c in text
    )


def indented(text: str) -> str:
    """Return text whose lines after the first are indented, so that none looks like another message."""
    first, *others = text.split("\n")
    return "\n".join([first, *(one if one.startswith("  ") else f"  {one}" for one in others)])


def redact(text: str) -> str:
    """Return text without passwords of URLs and of this process's environment and arguments."""
    for url in _urls():
        text = hidden(text, url)
    # a password of one or two letters occurs in every sentence
    if len(secret := os.environ.get("PGPASSWORD", "")) > 2:
        text = text.replace(secret, "***")
    text = _URL_PASSWORD.sub(r"\1***@", text)
    return _NAMED_PASSWORD.sub(r"\1***", text)


def _urls() -> list[str]:
    """Return the URLs in this process's environment and arguments."""
    names = ("PYENGINE_DATABASE_URL", "DATABASE_URL", "PYENGINE_LISTEN_URL")
    texts = [os.environ.get(name, "") for name in names]
    texts += [arg.partition("=")[2] if arg.startswith("--") else arg for arg in sys.argv[1:]]
    return [text for text in texts if "://" in text]


def compact(value: Any) -> str:
    """Return a JSON value on one line."""
    return printable(json.dumps(value, ensure_ascii=False, default=encodable))


def program() -> list[str]:
    """Return the arguments that start this program."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return ["python", "-m", "pyengine"] if name in ("__main__.py", "-m", "-c") else ["pyengine"]


def clip(text: str, width: int) -> str:
    """Cut text to a width, showing that it was cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def listed(texts: Sequence[str], limit: int = 8) -> str:
    """Return the first texts with commas, and the number of the others."""
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more


def span(duration: timedelta | float) -> str:
    """Return a duration as a short text: 412 ms, 3.4 s, 5m 12s, 2h 5m, 3d 4h."""
    s = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if s < 0.9995:
        return f"{s * 1000:.0f} ms"
    if s < 59.95:
        return f"{s:.1f} s"
    minutes, seconds = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes}m {seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def rough_span(duration: timedelta) -> str:
    """Return a duration in its greatest unit, rounded down, as columns of ages have it: 40s, 12m, 47h, 3d."""
    s = max(int(duration.total_seconds()), 0)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m"
    return f"{s // 3600}h" if s < 48 * 3600 else f"{s // 86400}d"


def state_style(state: str) -> str:
    """Return the style of a state of a run."""
    return _STATE_STYLES.get(state, "")


def state_text(state: str) -> Text:
    """Return the state of a run in its colour."""
    from rich.text import Text

    return Text(state, style=state_style(state))


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table without lines; the columns in `right` are aligned to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made
