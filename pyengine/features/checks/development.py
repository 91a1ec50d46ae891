"""Replays of runs while they are developed, so that code which a replay cannot repeat fails at home.

Lives here: `observing`, by which a worker reports the runs that leave it; `DevelopmentChecks`, which replays
each of them; `check_finished`, which replays what `App.run` ran. May not: the verdict on a journal
(compatibility.py), a decision about a run. Design: the journal is read from the database and replayed by new
coroutines, as another worker would do after a crash. Prints of workflow code are muted meanwhile: they were
printed when it ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TextIO

from pyengine.core.database.connection import Database
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.definitions.registry import Registry
from pyengine.core.process import clock
from pyengine.core.process.background import Background, Block
from pyengine.core.protocol.commands import Halt, Release
from pyengine.core.replay.divergence import Difference, hint_of
from pyengine.core.worker.capacity import WarmRuns
from pyengine.core.worker.effects import Effect
from pyengine.core.worker.events import Event, ReportAnswered
from pyengine.core.worker.run_manager import RunManager
from pyengine.errors import EngineError, NondeterminismError, NotFound, Unavailable
from pyengine.features.checks.compatibility import READABLE, Finding
from pyengine.features.checks.replay_check import check_journals, read_generations

logger = logging.getLogger("pyengine.app")

_CHILDREN_MAX = 100
_RETRY_S = 1.0


class _ObservedRuns(RunManager):
    """A run manager that calls `left` with the id of each run that suspended or ended.

    A class of its own, so that workers of production do no work for it.
    """

    left: Callable[[str], object]

    def apply(self, event: Event) -> list[Effect]:
        """Apply an event, and report a run whose last report is recorded."""
        effects = super().apply(event)
        if isinstance(event, ReportAnswered) and event.verdict == "ok":
            end = event.report.end
            if end is not None and not isinstance(end, Halt | Release):
                self.left(event.report.id)
        return effects


def observing(left: Callable[[str], object], *, warm: bool = True) -> Callable[..., RunManager]:
    """Return what makes the run manager of a worker of development.

    Args:
        left: called with the id of each run that suspended or ended.
        warm: whether coroutines of suspended runs are kept; else each run that goes on is replayed.
    """

    def make(*args: Any, **options: Any) -> RunManager:
        runs = _ObservedRuns(*args, **(options if warm else options | {"warm": WarmRuns(0, 0)}))
        runs.left = left
        return runs

    return make


class DevelopmentChecks:
    """Replays every run that suspends or ends, as soon as it does, and logs what a replay cannot repeat.

    Args:
        database: where the runs are.
        registry: the code.

    Use it around the block of a worker that calls `left`: at its end the last runs are replayed, too.
    """

    def __init__(self, database: Database, registry: Registry) -> None:
        self._registry = registry
        self._pool = ConnectionPool(database, "replay-check", 1)
        self._ids: dict[str, None] = {}
        self._reported: set[tuple[str, str]] = set()
        self._wake = asyncio.Event()
        self._background = Background(self._fail)
        self._block: Block | None = None

    async def __aenter__(self) -> Self:
        self._block = Block()
        self._background.start(self._work())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.cancel()
        try:
            # in a task: errors of the replayed code would get that of the block as their context
            await asyncio.create_task(self._check_all())
        except Unavailable as error_:
            logger.warning("the last runs were not replayed: %s", error_.message)
        finally:
            await self._pool.close()
            if self._block is not None:
                await self._block.leave(error)

    def _fail(self, error: BaseException) -> None:
        """A replay has failed by a fault of ours: so does the block, for nothing more would be replayed."""
        logger.error("runs are not replayed any more", exc_info=error)
        if self._block is not None:
            self._block.fail(error)

    def left(self, id: str) -> None:
        """Replay a run that suspended or ended."""
        self._ids[id] = None
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._check_all()
            except Unavailable:
                # the worker reports it, and goes on when the database is back
                await clock.sleep(_RETRY_S)
                self._wake.set()

    async def _check_all(self) -> None:
        while self._ids:
            id = next(iter(self._ids))
            error = await check_run(self._pool, self._registry, id)
            self._ids.pop(id, None)
            if error is not None and (id, str(error.expected)) not in self._reported:
                self._reported.add((id, str(error.expected)))
                logger.error("%s", error, extra={"run": id})


async def check_run(pool: ConnectionPool, registry: Registry, id: str) -> NondeterminismError | None:
    """Replay the journals of a run, and return the first difference as an error.

    Raises:
        Unavailable: the database cannot be reached.
    """
    try:
        journals = await read_generations(pool, id)
    except NotFound:
        return None  # it was removed meanwhile
    # only around the replay: while a journal is read, other code of this thread runs and may print
    with _muted():
        findings = check_journals(journals, registry)
    for one in findings:
        # the code that cannot read a value is the code that ran: somebody else gave it
        if one.divergence is not None and one.divergence.expected != READABLE:
            return _error(one, registry)
    return None


async def check_finished(
    database: Database, registry: Registry, id: str, left: list[str]
) -> NondeterminismError | None:
    """Replay a run that `App.run` has finished, and the first of its children; return the first difference.

    Args:
        database: where the run is.
        registry: the code.
        id: the run.
        left: ids of runs that left the worker, in their order.
    """
    children = [one for one in dict.fromkeys(left) if one.startswith(f"{id}.")]
    pool = ConnectionPool(database, "replay-check", 1)
    try:
        for each in (id, *children[:_CHILDREN_MAX]):
            error = await check_run(pool, registry, each)
            if error is not None:
                return error
    except EngineError as error:
        logger.warning("run %s was not replayed: %s", id, error.message)
    finally:
        await pool.close()
    return None


def _error(finding: Finding, registry: Registry) -> NondeterminismError:
    """Return the difference that a check found, as the error with which it would halt a run."""
    found = finding.divergence
    assert found is not None
    fields: dict[str, Any] = {
        "run_id": finding.id,
        "child": found.child,
        "expected": found.expected,
        "got": found.got,
        "neighbours": found.neighbours,
        "again": found.again,
    }
    workflow = registry.workflow(finding.workflow, finding.version)
    hint = hint_of(workflow, repeats=found.again is None, same_code=True)
    return NondeterminismError(Difference(**fields).message, hint=hint, **fields)


class _Muted:
    """Standard output without what one thread prints."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Write, except from that thread."""
        return len(text) if threading.get_ident() == self._thread else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    with contextlib.redirect_stdout(_Muted(sys.stdout)):
        yield
