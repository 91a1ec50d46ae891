"""The async generators of a run.

Lives here: `Generators`, which knows those that began and were not closed; `close_left_open`, which closes
them where the code has ended. May not: the hooks of the thread (futures.py), rows, rules of replay. The
theory: Python closes a generator that nothing refers to, and its `finally` may await. Where code lets one go
that is a task of the loop, which every replay repeats. Where the garbage collector finds one it is not: the
generator is kept, as if it had not been found, until the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeAlias

_Generator: TypeAlias = AsyncGenerator[Any, Any]

_PRUNE_MIN: Final = 16
_ROUNDS: Final = 32  # generators that are left open by the clean-up of others


class Generators:
    """Generators that began and were not closed, and the tasks that close those that code let go.

    As a bool: whether there are any.

    Attributes:
        gave_up: whether some stayed open, whatever was tried.
    """

    __slots__ = ("_known", "_prune_at", "_tasks", "gave_up")

    def __init__(self) -> None:
        self._known: dict[int, Callable[[], _Generator | None]] = {}
        self._prune_at = _PRUNE_MIN
        self._tasks: list[asyncio.Task[Any]] = []
        self.gave_up = False

    def __bool__(self) -> bool:
        return bool(self.closing) or any(_is_open(find()) for find in self._known.values())

    def track(self, generator: _Generator) -> None:
        """Add one that begins."""
        if len(self._known) >= self._prune_at:
            self._known = {key: find for key, find in self._known.items() if _is_open(find())}
            self._prune_at = 2 * len(self._known) + _PRUNE_MIN
        self._known.pop(id(generator), None)
        self._known[id(generator)] = weakref.ref(generator)

    def keep(self, generator: _Generator) -> None:
        """Keep one that is freed at a moment that no replay repeats, in its place."""
        self._known[id(generator)] = lambda: generator

    def add_task(self, generator: _Generator, task: asyncio.Task[Any]) -> None:
        """Add the task that closes one that code let go."""
        self._known.pop(id(generator), None)
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)

    @property
    def open(self) -> list[_Generator]:
        """Those that can be closed now, the youngest first."""
        found: list[Any] = [find() for find in reversed(self._known.values())]
        return [one for one in found if _is_open(one) and not one.ag_running]

    @property
    def left_open(self) -> bool:
        """Whether some are open, or being closed."""
        return bool(self.open or self.closing)

    @property
    def closing(self) -> list[asyncio.Task[Any]]:
        """The tasks that close one and are not done."""
        return [one for one in self._tasks if not one.done()]


def _is_open(generator: Any) -> bool:
    return generator is not None and generator.ag_frame is not None


async def close_left_open(
    generators: Generators, report: Callable[[dict[str, Any]], None], main: asyncio.Task[Any]
) -> Any:
    """Close the generators that code left open, the youngest first, and end as the code did.

    An error of a clean-up is reported, as asyncio does; the others are closed all the same.

    Args:
        generators: those of the run.
        report: the exception handler of its loop.
        main: the task of the code, done.
    """
    for _ in range(_ROUNDS):
        if not generators.left_open:
            break
        for generator in generators.open:
            try:
                await generator.aclose()
            except asyncio.CancelledError:
                pass
            except Exception as error:  # boundary to user code
                report(
                    {"message": f"{generator!r} failed to close at the end of its run", "exception": error}
                )
        if tasks := generators.closing:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks)
    else:
        generators.gave_up = True
    return main.result()
