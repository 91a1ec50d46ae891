"""The check that code fits the runs that other code began.

Lives here: `replay_check`, which reads journals and checks each of them. May not: a write of any kind, a
verdict (compatibility.py), printing (cli/replay_check.py). Design: all journals are read in one REPEATABLE
READ, READ ONLY transaction, so they are of one moment and a standby is enough. They are read in pages, so
their number is not limited.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyengine.core.database.connection import Database, mapped
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.sessions import DRIVER_ERRORS
from pyengine.core.definitions.definition import THIS_PYTHON, WorkflowDef
from pyengine.core.definitions.registry import Registry
from pyengine.core.values.codec import Codec
from pyengine.errors import InvalidRequest, NotFound
from pyengine.features.checks.compatibility import Divergence, Finding, Journal, Verdict, check_journal
from pyengine.features.checks.statements import JOURNAL_LIST, JOURNALS, JOURNALS_OF

_PAGE_EVENTS = 5000
_PAGE_RUNS = 200
_INPUT = re.compile(r" \(input .*\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Runs that diverge from the code in the same way.

    Args:
        workflow: workflow name.
        version: workflow version.
        first: the difference in the first of them.
        runs: ids, in the order of their starts.
    """

    workflow: str
    version: str
    first: Divergence
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of a check.

    Args:
        runs: one finding for each journal, by workflow and version, in the order of their starts.
        python: the Python that replayed them.
    """

    runs: tuple[Finding, ...]
    python: str = THIS_PYTHON

    def count(self, verdict: Verdict) -> int:
        """Return the number of runs with this verdict."""
        return sum(one.verdict == verdict for one in self.runs)

    def other_pythons(self) -> dict[str, int]:
        """Return how many of the runs that diverge were driven by each Python that is not this one."""
        diverged = (one.python for one in self.runs if one.verdict == "diverged")
        return dict(sorted(Counter(one for one in diverged if one not in (None, self.python)).items()))

    def breaks(self) -> list[Break]:
        """Return the differences, sorted by the number of their runs, largest first."""
        groups: dict[tuple[str, ...], list[Finding]] = {}
        for one in self.runs:
            if one.divergence is not None:
                found = one.divergence
                cause = "changed" if found.again is None else "not deterministic"
                pair = (_INPUT.sub("", found.expected), _INPUT.sub("", found.got))
                groups.setdefault((one.workflow, one.version, cause, *pair), []).append(one)
        made = [
            Break(workflow=key[0], version=key[1], first=first, runs=tuple(one.id for one in members))
            for key, members in groups.items()
            if (first := members[0].divergence) is not None
        ]
        return sorted(made, key=lambda one: -len(one.runs))


async def replay_check(
    database: Database,
    registry: Registry,
    *,
    workflow: str | None = None,
    sample: int | None = None,
    finished: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Replay the journals of live runs with the code of an application.

    Args:
        database: the database of the runs; it may be a standby.
        registry: the code.
        workflow: only runs of this workflow.
        sample: the number of runs of each workflow and version, drawn randomly; None means all.
        finished: also runs that have ended: they must end the same way again.
        progress: called with the number of runs checked so far, and of all runs to check.

    Raises:
        NotFound: the code has no such workflow.
        Unavailable: the database cannot be reached, or the connection was lost.
        SchemaMismatch: its schema does not fit.
    """
    if sample is not None and sample < 1:
        raise InvalidRequest("a sample has at least one run")
    if workflow is not None and all(one.name != workflow for one in registry.workflows()):
        registry.workflow(workflow)
    await database.open()
    conn = await database.connect("replay-check")
    found = list[Finding]()
    try:
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            listed = await conn.fetch(JOURNAL_LIST.sql, None if workflow is None else [workflow], finished)
            chosen = [pair for one in listed for pair in _sample(one["executions"], one["events"], sample)]
            for page in _pages(chosen):
                found += check_journals(
                    [Journal(**row) for row in await conn.fetch(JOURNALS.sql, page)], registry
                )
                if progress is not None:
                    progress(len(found), len(chosen))
    except DRIVER_ERRORS as error:
        raise mapped(error, database.where) from error
    finally:
        with contextlib.suppress(*DRIVER_ERRORS):
            await conn.close(timeout=2)
    return Report(runs=tuple(sorted(found, key=lambda one: (one.workflow, one.version, one.execution))))


async def read_generations(pool: ConnectionPool, id: str) -> list[Journal]:
    """Return the journals of one run, in the order of its generations.

    Args:
        pool: connections to the database of the run.
        id: run id.

    Raises:
        NotFound: there is no such run.
        Unavailable: the database cannot be reached.
    """
    return [Journal(**row) for row in await pool.rows(JOURNALS_OF, id)]


def check_journals(journals: Iterable[Journal], registry: Registry) -> list[Finding]:
    """Replay journals with the code of an application, and return a finding for each."""
    codec = Codec(registry.errors)
    return [check_journal(one, _code(registry, one), codec) for one in journals]


def _sample(executions: list[int], events: list[int], sample: int | None) -> list[tuple[int, int]]:
    """Return executions with their lengths, or a sample of them, the same one if nothing changes."""
    pairs = list(zip(executions, events, strict=True))
    if sample is None or sample >= len(pairs):
        return pairs
    return sorted(random.Random(len(pairs)).sample(pairs, sample))


def _pages(chosen: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Cut executions into pages with a similar number of events, which bounds the memory."""
    page: list[int] = []
    weight = 0
    for execution, events in chosen:
        if page and (weight + events > _PAGE_EVENTS or len(page) == _PAGE_RUNS):
            yield page
            page, weight = [], 0
        page.append(execution)
        weight += events
    if page:
        yield page


def _code(registry: Registry, journal: Journal) -> WorkflowDef | None:
    try:
        return registry.workflow(journal.workflow, journal.version)
    except NotFound:
        return None
