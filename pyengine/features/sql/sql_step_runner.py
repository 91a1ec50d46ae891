"""Steps in SQL on real connections.

Lives here: `SqlStepRunner`, which executes one attempt of a step that is a database function
(`ctx.sql`). May not: the definition of such a step (sql/sql_steps.py), what its rows mean for
the run (worker/run_manager.py). Design: one statement calls the function and writes the journal row, so an
attempt leaves both or nothing. Executed again it returns what is recorded and calls nothing, so an attempt
whose answer was lost is simply repeated. An error of the function is the step's error, which a turn records;
an error of the engine around it says that the lease is lost, or that the journal holds something that the
coroutine has not seen. Time that passes on a session that the network has lost is not the function's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import asyncpg

from pyengine.core.database.connection import NoConnection, ReconnectingConnection, backoff_s
from pyengine.core.database.sessions import answers, stopped
from pyengine.core.process import clock
from pyengine.core.protocol.turn import decode_journal
from pyengine.core.values.sizes import is_large
from pyengine.core.worker.attempts import Attempt
from pyengine.core.worker.events import AttemptDeferred, AttemptStale, Event, JournalWritten, LeasesLost
from pyengine.core.worker.extensions import WorkerResources
from pyengine.core.worker.run_state import LeasedRun
from pyengine.core.worker.step_runner import too_long
from pyengine.errors import EngineError, NotAdopted, Unavailable, passes
from pyengine.features.sql.sql_errors import sql_error
from pyengine.features.sql.sql_steps import SqlStep
from pyengine.features.sql.statements import SQL_STEP

logger = logging.getLogger("pyengine.steps")

_UNLIMITED_S = 1e7
_USERS = "durable.user"
"""The mark of an error of the user's function, in a field that is no text (durable._fail_as_user)."""
_CONFLICTS = frozenset({"40001", "40P01"})
_BUSY, _CANCELED, _LOST, _STALE = "55P03", "57014", "WF002", "WF006"
_TICK_S = 0.005
_SILENT_MAX = 3


class _Silent(ConnectionError):
    """The time is over, and the server does not answer on the connection: it may not have got the statement.

    A function that does not let itself be stopped looks the same, so it is believed a few times only.
    """


class SqlStepRunner:
    """Executes attempts of steps in SQL.

    Args:
        resources: parts of its worker.
    """

    def __init__(self, resources: WorkerResources) -> None:
        self._worker = resources.worker
        self._slots = resources.slots
        self._links = resources.links
        self._values = resources.values

    async def run(self, run: LeasedRun, attempt: Attempt) -> Event | None:
        """Execute an attempt, and return the event that ends it; None if it is not wanted any more.

        Raises:
            SqlError: the function failed.
            StepTimeout: it took too long.
            EngineError: its result cannot be recorded.
        """
        timeout_ms = attempt.call.step.timeout_ms
        # without the time that it waits for connections
        left_s = _UNLIMITED_S if timeout_ms is None else timeout_ms / 1000
        failures = silent = 0
        while attempt.wanted:
            try:
                async with self._links.taken() as link:
                    event, spent_s = await self._once(link, run, attempt, left_s)
            except NoConnection as error:
                self._slots.too_many(error.message)
                if run.waits_only_for(attempt):
                    return AttemptDeferred(attempt)
                continue
            except _Silent:
                attempt.started_s = 0.0
                silent += 1
                if silent == _SILENT_MAX:
                    raise too_long(attempt.call) from None
                await clock.sleep(backoff_s(silent))
                continue
            if event is not None:
                return event
            attempt.started_s = 0.0
            left_s -= spent_s
            failures += 1
            pause_s = min(backoff_s(failures), max(0.0, left_s))
            left_s -= pause_s
            await clock.sleep(pause_s)
        return None

    async def _once(
        self, link: ReconnectingConnection, run: LeasedRun, attempt: Attempt, left_s: float
    ) -> tuple[Event | None, float]:
        """Execute the statement once: the event, None if it is to be repeated, and the time that it took."""
        attempt.started_s = began_s = clock.monotonic()
        seen = run.replay.next_seq
        if left_s <= _TICK_S:
            raise too_long(attempt.call)
        try:
            text = await self.execute(link, run, attempt, seen, left_s)
        except EngineError as error:
            spent_s = clock.monotonic() - began_s
            if isinstance(error.__cause__, _Silent):
                raise error.__cause__ from None
            meaning = _meaning(error, attempt, over=spent_s >= left_s - _TICK_S)
            logger.debug("sql step %s of run %s: %s", attempt.call.name, attempt.run_id, error.message)
            if meaning == "lost":
                return LeasesLost([run.lease]), spent_s
            if meaning == "stale" and run.replay.next_seq == seen:
                return AttemptStale(attempt, seen), spent_s
            return None, spent_s
        spent_s = clock.monotonic() - began_s
        journal = await self._values.made_of(text, decode_journal, large=is_large(text))
        return JournalWritten(attempt, journal), spent_s

    async def execute(
        self, link: ReconnectingConnection, run: LeasedRun, attempt: Attempt, seen: int, timeout_s: float
    ) -> str:
        """Execute the statement, and return the run's journal from where the coroutine was.

        Raises:
            EngineError: it failed, or took longer than `timeout_s`; caused by `_Silent` if nothing is known.
        """
        call = attempt.call
        param = _sql_step_of(attempt).sent_arguments(call.param, f"{attempt.run_id}.{call.child}")
        given = (self._worker, *run.lease, seen, call.child, call.attempt, call.name, call.hash, param)

        async def execute(conn: Any) -> str:
            try:
                answer: str = await conn.fetchval(SQL_STEP.sql, *given, timeout=timeout_s)
            except asyncio.CancelledError:
                await stopped(conn)
                raise
            except TimeoutError as error:
                await stopped(conn)
                if error.errno is None and not await answers(conn):
                    conn.terminate()
                    raise _Silent("the server does not answer") from None
                raise
            return answer

        return await link.use(execute)


def _sql_step_of(attempt: Attempt) -> SqlStep:
    return cast("SqlStep", attempt.call.step)


def _meaning(error: EngineError, attempt: Attempt, *, over: bool) -> str:
    """Return what an error means: again, lost, stale; or raise what is the outcome of the attempt."""
    cause: Any = error.__cause__
    if isinstance(cause, TimeoutError) and cause.errno is None and over:
        raise too_long(attempt.call) from None
    if not isinstance(cause, asyncpg.PostgresError):
        return "again"
    state = getattr(cause, "sqlstate", None) or ""
    if state in _CONFLICTS or isinstance(error, Unavailable | NotAdopted) or passes(state):
        return "again"
    if getattr(cause, "data_type_name", None) == _USERS and not _sql_step_of(attempt).is_engines:
        raise sql_error(
            getattr(cause, "message", None) or str(cause),
            sqlstate=state,
            detail=getattr(cause, "detail", None) or None,
            hint=getattr(cause, "hint", None) or None,
            constraint=getattr(cause, "constraint_name", None) or None,
            table=getattr(cause, "table_name", None) or None,
        ) from None
    # of the engine's own statements; a lock or statement timeout that is set is no fault of the run
    words = {_BUSY: "again", _CANCELED: "again", _LOST: "lost", _STALE: "stale"}
    if state not in words:
        raise error
    return words[state]
