"""Transactions of workflows on real connections.

Lives here: `TransactionRunner`, which executes the transactions of this worker's runs. May not: the meaning
of a transaction for a replay (sql/transaction_log.py), the time of a statement (worker/run_manager.py),
turns. Design: a transaction commits with its journal row or not at all. Whatever else ends it, and is not the
code's business (a serialization failure, a deadlock, a lost connection, a plan that an ALTER TABLE made
stale, a request to replay), leaves nothing; then the run is replayed from its journal, and so the block runs
again from its beginning. The replay also tells whether a commit whose answer was lost succeeded: its row is
there, or not.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from functools import partial
from typing import Any

import asyncpg
import msgspec

from pyengine.core.database.connection import NoConnection, ReconnectingConnection, backoff_s, mapped
from pyengine.core.database.faults import TOO_LARGE
from pyengine.core.database.sessions import answers, begin, stopped
from pyengine.core.database.statements.procedures import TRANSACTION_LIMITS
from pyengine.core.process import clock
from pyengine.core.protocol.turn import Journal, decode_journal
from pyengine.core.replay import run_log
from pyengine.core.replay.asks import Ask, Outcome
from pyengine.core.values.sizes import LARGE_BYTES, is_large
from pyengine.core.worker.effects import Execute, RollBack
from pyengine.core.worker.events import (
    LeasesLost,
    StatementAnswered,
    TransactionBroken,
    TransactionDeferred,
    TransactionFailed,
)
from pyengine.core.worker.extensions import WorkerResources
from pyengine.core.worker.run_state import LeasedRun
from pyengine.errors import (
    EncodeError,
    EngineError,
    InvalidRequest,
    LeaseLost,
    NotAdopted,
    PayloadTooLarge,
    StepTimeout,
    passes,
)
from pyengine.features.sql.sql_values import are_large, error_fields, records_json, value_json
from pyengine.features.sql.statements import COMMIT
from pyengine.features.sql.transaction_log import TransactionLog, subject_of

_IDLE_MS_MAX = 10_000
_TRIES_MAX = 10
_EXCUSED_FROM = 3
_REPLAY = "WF099"
# what a session has cached: a prepared statement that is gone, a type or function that was made again
_STALE = frozenset({"26000", "XX000"})
# what begins or ends a transaction is not cut off by a limit around its block
_ENDS = frozenset({"begin", "commit", "rollback"})
# a lock timeout or a statement timeout that is set
_BOUNDED = frozenset({"55P03", "57014"})
_ENDS_IT = re.compile(
    r"(?:[\s;]|--[^\n\r]*[\n\r]|/\*.*?\*/)*"
    r"(?:(begin|start\s+transaction|commit|end|abort|prepare\s+transaction)\b"
    r"|(rollback)\b(?!\s+(?:work\s+|transaction\s+)?to\b))",
    re.IGNORECASE | re.DOTALL,
)


class Again(Exception):
    """Nothing is left of the transaction, and the run is to be replayed.

    Args:
        error: what ended it.
        expected: the engine asked for a replay.
        passing: the server could not execute it, whoever had asked; that may last, and is no reason to give
            up.
    """

    def __init__(
        self, error: object = "no answer came", *, expected: bool = False, passing: bool = False
    ) -> None:
        super().__init__(str(error))
        self.expected = expected
        self.passing = passing


class _Ended(Exception):
    """The transaction was ended by one of its own statements, so what they wrote may be there already."""


class _Session:
    """The transactions of one run, one after the other on one connection.

    Attributes:
        task: the work.
        todo: what is to be executed next.
        ask: the last of it.
        log: the transaction that is open, or begins.
        ends_s: when its time is over, by our clock.
        limit_s: when a limit around its block is over; a statement after that is refused, and the commit.
        overdue: its time was over, or that of a limit around its block; nothing of it is committed.
    """

    __slots__ = ("ask", "ends_s", "limit_s", "log", "overdue", "task", "todo")
    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.todo: asyncio.Queue[Execute] = asyncio.Queue()
        self.ask: Ask
        self.log: TransactionLog | None = None
        self.ends_s = self.limit_s = 0.0
        self.overdue = False


class TransactionRunner:
    """Executes what transactions ask for.

    Args:
        resources: parts of its worker.
    """

    def __init__(self, resources: WorkerResources) -> None:
        self._worker = resources.worker
        self._codec = resources.codec
        self._slots = resources.slots
        self._links = resources.links
        self._post = resources.post
        self._sessions: dict[LeasedRun, _Session] = {}
        self._background = resources.background
        self._values = resources.values
        self._tasks: set[asyncio.Task[None]] = set()

    def execute(self, effect: Execute) -> None:
        """Execute what a transaction asks for, on the connection that the run has, or on a new one."""
        run = effect.run
        session = self._sessions.get(run)
        if session is None:
            session = self._sessions[run] = _Session()
            session.task = self._background.start(self._run(run, session))
            self._tasks.add(session.task)
            session.task.add_done_callback(self._tasks.discard)
        session.ask = effect.ask
        session.todo.put_nowait(effect)

    def roll_back(self, effect: RollBack) -> None:
        """Roll back what a run has open."""
        session = self._sessions.pop(effect.run, None)
        if session is not None:
            session.task.cancel()

    async def close(self) -> None:
        """Roll back what is open."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- one run

    async def _run(self, run: LeasedRun, session: _Session) -> None:
        try:
            await self._serve(run, session)
        except Again as again:
            # what passes is an excuse only for a transaction that has failed before
            excused = again.passing and run.transaction_tries >= _EXCUSED_FROM
            counts = not (again.expected or excused)
            await clock.sleep(backoff_s(run.transaction_tries + counts) * random.random() / 4)
            self._post(TransactionBroken(run, session.ask, str(again), counts))
        except LeaseLost:
            self._post(LeasesLost([run.lease]))
        except Exception as error:  # boundary: a fault of ours must not leave the run waiting for ever
            run_log.transaction_failed(run.info)
            self._post(TransactionFailed(run, session.ask, str(error)))
        finally:
            if self._sessions.get(run) is session:
                del self._sessions[run]

    async def _serve(self, run: LeasedRun, session: _Session) -> None:
        """Execute all that is asked for, as soon as there is a connection."""
        while True:
            try:
                async with self._links.taken() as link:
                    await self._execute_all(link, run, session)
                    return
            except NoConnection as error:
                self._slots.too_many(error.message)
                if run.waits_only_for(None):
                    self._post(TransactionDeferred(run, session.ask))
                    return

    async def _execute_all(self, link: ReconnectingConnection, run: LeasedRun, session: _Session) -> None:
        """Execute statements until a transaction is over and none follows at once."""
        conn = await link.connected()
        try:
            while True:
                effect = await session.todo.get()
                outcome, journal = await self.execute_in_time(conn, run, session, effect)
                self._post(StatementAnswered(run, effect.ask, outcome, journal))
                if effect.ask.kind in ("commit", "rollback") and session.todo.empty():
                    return
        except asyncio.CancelledError:
            # what was under way may still hold the connection
            # a commit may wait for a standby: to cancel it is to end that wait
            if session.ask.kind != "commit":
                await stopped(conn)
            link.drop()
            raise
        finally:
            if conn.is_closed() or conn.is_in_transaction():
                # whatever is under way is rolled back by the server
                link.drop()

    async def execute_in_time(
        self, conn: Any, run: LeasedRun, session: _Session, effect: Execute
    ) -> tuple[Outcome, Journal | None]:
        """Execute one statement, within the time that its transaction has left."""
        log, ask = _log_of(effect), effect.ask
        if session.log is not log:
            session.log, session.overdue = log, False
            session.ends_s = clock.monotonic() + log.timeout_ms / 1000
            session.limit_s = math.inf if log.limit_ms is None else clock.monotonic() + log.limit_ms / 1000
        journal = None
        if ask.kind != "begin" and clock.monotonic() >= session.limit_s:
            session.overdue = True
        ends_s = session.ends_s if ask.kind in _ENDS else min(session.ends_s, session.limit_s)
        try:
            async with clock.timeout_at(ends_s):
                if ask.kind == "commit":
                    outcome, journal = await self.commit(conn, run, session, log)
                else:
                    outcome = await self._statement_or_end(conn, run, session, effect)
        except TimeoutError:
            slow = await answers(conn)
            conn.terminate()
            if ask.kind == "commit" or not slow:
                raise Again(overdue(log).message if slow else "the server does not answer") from None
            session.overdue = True
            outcome = self._refused(overdue(log))
        if ask.kind == "begin" and outcome[0] != "value":
            # the code must not see what the journal would not hold
            raise Again(f"the transaction could not begin: {outcome[1]}")
        return outcome, journal

    # -- statements

    async def _statement_or_end(
        self, conn: Any, run: LeasedRun, session: _Session, effect: Execute
    ) -> Outcome:
        log, ask = _log_of(effect), effect.ask
        if ask.kind == "rollback":
            if not conn.is_closed() and conn.is_in_transaction():
                await self._reaching(conn, run, conn.execute("rollback"))
            return ("value", None)
        if session.overdue:
            return self._refused(overdue(log))
        if conn.is_closed():
            raise Again("the connection was lost")
        if ask.kind == "begin":
            return await self._reaching(conn, run, self._begin(conn, log.timeout_ms))
        if not conn.is_in_transaction():
            # outside of it the statement would be committed at once
            raise Again("nothing is left of the transaction")
        found = _ENDS_IT.match(ask.query)
        if found is not None:
            word = (found[1] or found[2]).lower()
            return self._refused(
                InvalidRequest(
                    f"{subject_of(log.name)}: {word!r} would end it without its journal row",
                    hint="leave the block to commit, raise an error to roll back, or use tx.savepoint()",
                )
            )
        outcome = await self._reaching(conn, run, self._statement(conn, ask), ours=False)
        if not (conn.is_closed() or conn.is_in_transaction()):
            raise _Ended(
                f"{subject_of(log.name)} was ended by {ask.query[:80]!r}; what it wrote may be there"
            )
        return await self._within_limit(log, outcome)

    async def _within_limit(self, log: TransactionLog, outcome: Outcome) -> Outcome:
        """Count what goes into the journal; a statement whose answer has no room there is refused."""
        large = is_large(outcome)
        size = log.size + len(await self._values.made_of(outcome, msgspec.json.encode, large=large))
        try:
            self._codec.check_size(size, f"what the statements of {subject_of(log.name)} returned")
        except PayloadTooLarge as error:
            return self._refused(error)
        log.size = size
        return outcome

    async def _begin(self, conn: Any, timeout_ms: int) -> None:
        await begin(conn)
        await conn.execute(TRANSACTION_LIMITS.sql, str(timeout_ms), str(min(timeout_ms, _IDLE_MS_MAX)))

    async def _statement(self, conn: Any, ask: Ask) -> Any:
        match ask.kind:
            case "execute":
                # like conn.execute, but one statement only, also without arguments
                _, status, _ = await conn._execute(ask.query, ask.args, 0, None, return_status=True)
                return status.decode()
            case "executemany":
                await conn.executemany(ask.query, ask.args[0])
                return None
            case "fetch":
                rows = await conn.fetch(ask.query, *ask.args)
                return await self._values.made_of(rows, records_json, large=are_large(rows))
            case _:
                value = await conn.fetchval(ask.query, *ask.args)
                return await self._values.made_of(value, value_json, large=is_large(value))

    async def commit(
        self, conn: Any, run: LeasedRun, session: _Session, log: TransactionLog
    ) -> tuple[Outcome, Journal | None]:
        """Commit the transaction together with its journal row."""
        if session.overdue:
            return self._refused(overdue(log)), None
        if conn.is_closed() or not conn.is_in_transaction():
            raise Again("the connection was lost")
        journal: Journal | None = None

        async def commit() -> None:
            nonlocal journal
            write = partial(log.data, committed=True)
            data = await self._values.call(write) if log.size >= LARGE_BYTES else write()
            text = await conn.fetchval(
                COMMIT.sql,
                self._worker,
                *run.lease,
                run.replay.next_seq,
                log.child,
                log.name,
                log.hash,
                data,
                msgspec.json.encode(log.effects).decode(),
            )
            journal = await self._values.made_of(text, decode_journal, large=is_large(text))
            await conn.execute("commit")

        outcome = await self._reaching(conn, run, commit())
        if outcome[0] != "value":
            await self._reaching(conn, run, conn.execute("rollback"))
            return outcome, None
        return outcome, journal

    async def _reaching(self, conn: Any, run: LeasedRun, work: Any, *, ours: bool = True) -> Outcome:
        """Return how a statement ended, as the code is to see it; `ours` says that it is not the user's.

        Raises:
            Again: it is not the code's business.
            LeaseLost: neither, and the run is somebody else's.
        """
        try:
            return ("value", await work)
        except asyncpg.PostgresError as error:
            code = error.sqlstate or ""
            passing = passes(code) or code == NotAdopted.sqlstate or (ours and code in _BOUNDED)
            if passing or code == _REPLAY or code.startswith("08") or conn.is_closed():
                raise Again(error, expected=code == _REPLAY, passing=passing) from error
            has_tries = run.transaction_tries < _TRIES_MAX
            if has_tries and (code.startswith("40") or (ours and code == TOO_LARGE)):
                # the latter: its hints found the server's queue of notifications full
                raise Again(error) from error
            if has_tries and (code in _STALE or isinstance(error, asyncpg.InvalidCachedStatementError)):
                raise self._stale(error) from error
            known = mapped(error, self._links.where)
            if isinstance(known, LeaseLost):
                raise known from error
            if code.startswith("WF"):
                return self._refused(known)
            return ("database", error_fields(error))
        except asyncpg.OutdatedSchemaCacheError as error:
            if run.transaction_tries < _TRIES_MAX:
                raise self._stale(error) from error
            return self._refused(InvalidRequest(f"a statement of a transaction was refused: {error}"))
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            if conn.is_closed() or isinstance(error, OSError):
                raise Again(error) from error
            # asyncpg's own judgement of the arguments
            return self._refused(InvalidRequest(f"a statement of a transaction was refused: {error}"))
        except EncodeError as error:
            return self._refused(error)
        except (ValueError, ArithmeticError) as error:
            if ours:
                raise
            # of the driver's decoders: a date before Christ, the year 20000, 24:00
            words = f"a statement of a transaction returned a value that Python has no form for: {error}"
            return self._refused(EncodeError(words, hint="cast it in the statement: select value::text"))

    def _stale(self, error: Exception) -> Again:
        """Another connection, for what this one and idle ones have cached of the schema is out of date."""
        self._links.drop_idle()
        return Again(error)

    def _refused(self, error: EngineError) -> Outcome:
        return ("engine", self._codec.encode_error(error))


def _log_of(effect: Execute) -> TransactionLog:
    """Return the transaction that asks; the core knows it as a block of code that asks."""
    assert isinstance(effect.log, TransactionLog)
    return effect.log


def overdue(log: TransactionLog) -> StepTimeout:
    """Return the error of a transaction whose time is over, or that of a limit around its block."""
    limit_ms = log.timeout_ms if log.limit_ms is None else min(log.timeout_ms, max(0, log.limit_ms))
    around = "" if limit_ms == log.timeout_ms else ", the limit around its block"
    name = subject_of(log.name)
    return StepTimeout(
        f"{name} took longer than {limit_ms / 1000:g} s{around}"
        if limit_ms > 0
        else f"the limit around the block of {name} was over before it began",
        step=log.name,
        timeout_ms=round(limit_ms),
    )
