"""A bar on the terminal that shows how far a run has come.

Lives here: `LiveBar`, and `following`, which keeps one up to date. May not: a query; whoever waits for a run
has its status. Design: the bar stands on stderr, is gone at the end, and is not there at all if stderr is no
terminal.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyengine.core.process.background import Background

if TYPE_CHECKING:
    from pyengine.core.client.run import Run
    from pyengine.core.client.run_status import ChildCounts, Progress

logger = logging.getLogger("pyengine.app")


class LiveBar:
    """Shows the progress of one run.

    Args:
        title: what runs.
    """

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[summary]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(escape(_plain(title)), total=None, summary="")

    def __enter__(self) -> Self:
        # without a terminal older releases of rich end a bar that is disabled with an empty line
        if not self._bar.disable:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._bar.disable:
            self._bar.stop()

    def show(self, state: str, progress: Progress | None, children: ChildCounts | None) -> None:
        """Show a state of the run."""
        done = total = None
        if progress is not None:
            done, total = progress.done, progress.total
        text = _plain(summary(state, progress, children))
        self._bar.update(self._task, completed=done, total=total, summary=text)


def summary(state: str, progress: Progress | None, children: ChildCounts | None) -> str:
    """Return what is known of a run, on one line: `running 37/100 resizing, children 3/10 (1 failed)`."""
    text = state if progress is None else f"{state} {progress_summary(progress)}"
    if children is not None and children.total:
        ended = children.done + children.failed
        failed = f" ({children.failed} failed)" if children.failed else ""
        text += f", children {ended}/{children.total}{failed}"
    return text


def progress_summary(progress: Progress) -> str:
    """Return a progress on one line: `37/100 resizing`."""
    numbers = _number(progress.done) + ("" if progress.total is None else f"/{_number(progress.total)}")
    return " ".join([numbers, *(progress.note or "").split()])


def _plain(text: str) -> str:
    """Return a text of a user without what a terminal would obey."""
    return "".join(c for c in text if c.isprintable())


def _number(count: float) -> str:
    return str(int(count)) if count == int(count) else f"{count:g}"


@contextlib.asynccontextmanager
async def following(run: Run[Any], title: str) -> AsyncIterator[None]:
    """Show the progress of a run for the length of an `async with` block."""

    async def follow(bar: LiveBar) -> None:
        async for status in run.watch():
            bar.show(status.state, status.progress, status.children)

    with LiveBar(title) as bar:
        background = Background(lambda error: logger.warning("the progress is not shown: %s", error))
        background.start(follow(bar))
        try:
            yield
        finally:
            await background.cancel()
