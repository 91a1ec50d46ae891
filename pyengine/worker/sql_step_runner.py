"""Steps in SQL on real connections.

What lives here: `SqlStepRunner`, which makes one attempt of a step that is a database function (`ctx.sql`).
What may not: the definition of such a step (definitions/sql_steps.py), what its rows mean for the run
(run_manager.py). The theory: one statement calls the function and writes the journal row, so an attempt
leaves both or nothing. Asked again it answers what is recorded and calls nothing; so when an answer is lost
it is simply asked again. What the function raises is the step's error, which a turn records; what the engine
raises around it says who has the run now, or that the journal holds something that the coroutine has not
seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import asyncpg

from pyengine.database.connection import NoConnection, ReconnectingConnection, backoff_s
from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.sql_functions import SQL_STEP
from pyengine.definitions.sql_errors import sql_error
from pyengine.errors import EngineError, Unavailable, passes
from pyengine.protocol.commands import Release
from pyengine.protocol.turn import Journal, decode_journal
from pyengine.replay.advance import StepCall
from pyengine.worker.capacity import Capacity
from pyengine.worker.run_manager import RunManager
from pyengine.worker.run_state import LeasedRun, StepAttempt
from pyengine.worker.step_runner import too_long

__all__ = ["SqlStepRunner"]

logger = logging.getLogger("pyengine.steps")

_UNLIMITED_S = 1e7
_USERS = "durable._call_function("
_CONFLICTS = frozenset({"40001", "40P01"})
_BUSY, _CANCELED, _LOST, _STALE = "55P03", "57014", "WF002", "WF006"
_QUIET_S = 0.005
_TICK_S = 0.005
_STOPS_S = 0.5
_ELSEWHERE_MS = 100


class SqlStepRunner:
    """Makes attempts of steps in SQL.

    Args:
        links: connections for functions of users; who finds none free waits.
        worker: id of the worker.
        slots: is told when connections are short.

    Attributes:
        holdings: its runs; to be set before the first attempt.
    """

    holdings: RunManager

    def __init__(self, links: ConnectionPool, worker: str, slots: Capacity) -> None:
        self._worker = worker
        self._slots = slots
        self._links = links

    async def run(self, run: StepAttempt) -> Callable[[], object]:
        """Make an attempt, and return what is to be done once it is off the books.

        Raises:
            SqlError: the function failed.
            StepTimeout: it took too long.
            EngineError: its result cannot be recorded.
        """
        held, call = run.held, run.call
        # without the time that it waits for connections
        left_s = _UNLIMITED_S if call.step.timeout_ms is None else call.step.timeout_ms / 1000
        failures = 0
        while run.wanted and not held.dropped:
            try:
                async with self._links.taken() as link:
                    done, spent_s = await self._attempt(link, run, left_s)
            except NoConnection as error:
                self._slots.too_many(len(self.holdings.held), error.message)
                if held.waits_for_step(call.child):
                    return lambda: self._give_back(held, call)
                continue
            if done is not None:
                return done
            run.started_s = 0.0
            left_s -= spent_s
            failures += 1
            pause_s = min(backoff_s(failures), max(0.0, left_s))
            left_s -= pause_s
            await asyncio.sleep(pause_s)
        return lambda: None

    async def _attempt(
        self, link: ReconnectingConnection, run: StepAttempt, left_s: float
    ) -> tuple[Callable[[], object] | None, float]:
        """Ask once: what is to be done then, None for the same again, and the time that it took."""
        loop, held = asyncio.get_running_loop(), run.held
        began_s = loop.time()
        run.started_s = began_s
        seen = held.replay.next_seq
        if left_s <= _TICK_S:
            raise too_long(run.call)
        try:
            text = await self._ask(link, run, seen, left_s)
        except EngineError as error:
            spent_s = loop.time() - began_s
            word = _judged(error, run, over=spent_s >= left_s - _TICK_S)
            logger.debug("sql step %s of run %s: %s", run.call.name, held.info.id, error.message)
            if word == "lost":
                return partial(self.holdings.lose, [held.lease]), spent_s
            if word == "stale" and held.replay.next_seq == seen:
                await _quiet(run)
                return partial(self._replay, held), spent_s
            return None, spent_s
        return partial(self._recorded, run, decode_journal(text)), loop.time() - began_s

    def _give_back(self, held: LeasedRun, call: StepCall) -> None:
        """Leave a step, and with it its run, to a worker that has a connection."""
        if not (held.dropped or held.loading):
            held.parked[call.child] = call
            held.end = Release(retry_in_ms=_ELSEWHERE_MS)
            self.holdings.news(held)

    def _recorded(self, run: StepAttempt, journal: Journal) -> None:
        held, child = run.held, run.call.child
        # that it has begun is no news any more
        held.outcomes = [outcome for outcome in held.outcomes if outcome.child != child]
        self.holdings.recorded_outside(held, journal.rows, journal.next)

    async def _ask(self, link: ReconnectingConnection, run: StepAttempt, seen: int, timeout_s: float) -> str:
        held, call = run.held, run.call
        given = (self._worker, *held.lease, seen, call.child, call.attempt)

        async def ask(conn: Any) -> str:
            try:
                answer: str = await conn.fetchval(
                    SQL_STEP.sql, *given, call.name, call.hash, call.param, timeout=timeout_s
                )
            except (asyncio.CancelledError, TimeoutError):
                await _stopped(conn)
                raise
            return answer

        return await link.use(ask)

    def _replay(self, held: LeasedRun) -> None:
        if not (held.dropped or held.loading):
            # if its journal holds nothing new either, the run is given back for a moment
            held.moved_at = held.replay.next_seq
            self.holdings.replay_anew(held)


def _judged(error: EngineError, run: StepAttempt, *, over: bool) -> str:
    """Return what an error means: again, lost, stale; or raise what is the outcome of the attempt."""
    cause: Any = error.__cause__
    if isinstance(cause, TimeoutError) and cause.errno is None and over:
        raise too_long(run.call) from None
    if not isinstance(cause, asyncpg.PostgresError):
        return "again"
    state = getattr(cause, "sqlstate", None) or ""
    if state in _CONFLICTS or isinstance(error, Unavailable) or passes(state):
        return "again"
    if _USERS in (getattr(cause, "context", None) or ""):
        raise sql_error(
            getattr(cause, "message", None) or str(cause),
            sqlstate=state,
            detail=getattr(cause, "detail", None),
            hint=getattr(cause, "hint", None),
            constraint=getattr(cause, "constraint_name", None),
            table=getattr(cause, "table_name", None),
        ) from None
    # of the engine's own statements: a lock or a time that somebody has bounded is no fault of the run
    words = {_BUSY: "again", _CANCELED: "again", _LOST: "lost", _STALE: "stale"}
    if state not in words:
        raise error
    return words[state]


async def _stopped(conn: Any) -> None:
    """Give the driver the moment that it takes to ask the server to stop what nobody wants any more."""
    until_s = asyncio.get_running_loop().time() + _STOPS_S
    while getattr(conn, "_cancellations", None) and asyncio.get_running_loop().time() < until_s:
        await asyncio.sleep(_QUIET_S)


async def _quiet(run: StepAttempt) -> None:
    """Wait until nothing of the run is on its way."""
    while run.wanted and run.held.flight is not None:
        await asyncio.sleep(_QUIET_S)
