"""Transactions of workflows on real connections.

What lives here: `TransactionRunner`, which answers what the transactions of this worker's runs ask for. What
may not: what a transaction means for a replay (replay/transaction_log.py), turns. The theory: a transaction
begins when all that the code did before is recorded, and commits with its journal row or not at all. Whatever
ends it otherwise, and is not the code's business (a serialization failure, a deadlock, a connection that is
gone, a request to replay), leaves nothing; then the run is replayed from its journal, and so the block runs
again from its beginning. That also tells what became of a commit whose answer got lost: its row is there, or
not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import Any

import asyncpg
import msgspec

from pyengine.database.connection import NoConnection, ReconnectingConnection, backoff_s, mapped
from pyengine.database.pool import ConnectionPool
from pyengine.database.sessions import begin
from pyengine.database.statements.procedures import COMMIT, TRANSACTION_LIMITS
from pyengine.errors import (
    EncodeError,
    EngineError,
    InvalidRequest,
    LeaseLost,
    PayloadTooLarge,
    StepTimeout,
    passes,
)
from pyengine.protocol.commands import Halt, Release
from pyengine.protocol.turn import Journal, decode_journal
from pyengine.replay.transaction_log import Ask, Outcome, TransactionLog
from pyengine.values.codec import Codec
from pyengine.values.sql_values import error_fields, records_json, value_json
from pyengine.worker.capacity import Capacity
from pyengine.worker.run_manager import RunManager
from pyengine.worker.run_state import LeasedRun, TransactionRun

__all__ = ["TransactionRunner"]

logger = logging.getLogger("pyengine.worker")

_IDLE_MS_MAX = 10_000
_TRIES_MAX = 10
_ELSEWHERE_MS = 100
_WARN_FROM = 3
_ANEW = "WF099"
# a lock or a time that somebody has bounded
_BOUNDED = frozenset({"55P03", "57014"})
_ENDS_IT = re.compile(
    r"(?:[\s;]|--[^\n\r]*[\n\r]|/\*.*?\*/)*"
    r"(?:(begin|start\s+transaction|commit|end|abort|prepare\s+transaction)\b"
    r"|(rollback)\b(?!\s+(?:work\s+|transaction\s+)?to\b))",
    re.IGNORECASE | re.DOTALL,
)


class _Again(Exception):
    """Nothing is left of the transaction, and the run is to be replayed.

    Args:
        error: what ended it.
        expected: it was the engine that asked for a replay.
        passing: the server could not, whoever had asked; that may last, and is no reason to give up.
    """

    def __init__(
        self, error: object = "no answer came", *, expected: bool = False, passing: bool = False
    ) -> None:
        super().__init__(str(error))
        self.expected = expected
        self.passing = passing


class _Ended(Exception):
    """The transaction was ended by one of its own statements, so what they wrote may be there already."""


class TransactionRunner:
    """Answers the transactions of runs.

    Args:
        links: connections for transactions of users; who finds none free waits.
        worker: id of the worker.
        holdings: its runs.
        codec: writes errors.
        slots: is told when connections are short.
    """

    def __init__(
        self,
        links: ConnectionPool,
        worker: str,
        holdings: RunManager,
        codec: Codec,
        slots: Capacity,
    ) -> None:
        self._worker = worker
        self._holdings = holdings
        self._codec = codec
        self._slots = slots
        self._links = links
        self._tasks: set[asyncio.Task[None]] = set()

    def look(self, held: LeasedRun) -> None:
        """Note that something of a run moved that is in a transaction, or waits to begin one."""
        if held.transaction is not None:
            held.transaction.moved.set()
        elif held.replay.transactions.live and not (held.dropped or held.loading):
            own = held.transaction = TransactionRun()
            own.task = asyncio.get_running_loop().create_task(self._run(held, own))
            self._tasks.add(own.task)
            own.task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Roll back what is open."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- one run

    async def _run(self, held: LeasedRun, own: TransactionRun) -> None:
        try:
            async with self._links.taken() as link:
                await self._play(link, held, own)
        except asyncio.CancelledError:
            raise
        except NoConnection as error:
            self._slots.too_many(len(self._holdings.held), error.message)
            self._leave(held, own)
            if held.waits_for_transaction:
                held.end = Release(retry_in_ms=_ELSEWHERE_MS)
                self._holdings.news(held)
                return
        except _Again as anew:
            held.tries += not (anew.expected or (anew.passing and held.tries >= _WARN_FROM))
            if held.tries > _TRIES_MAX:
                self._halt(
                    held, own, f"a transaction was begun {held.tries} times and never came to its end: {anew}"
                )
                return
            level = logging.INFO if held.tries < _WARN_FROM else logging.WARNING
            logger.log(level, "transaction.again", extra={"run_id": held.info.id, "problem": str(anew)})
            await asyncio.sleep(backoff_s(held.tries) * random.random() / 4)
            await self._replay(held, own)
        except LeaseLost:
            logger.info("run.lost", extra={"run_id": held.info.id, "version": held.version})
            self._leave(held, own)
            self._holdings.drop(held)
        except Exception as error:  # boundary: a fault of ours must not leave the run waiting for ever
            logger.exception("transaction.failed", extra={"run_id": held.info.id})
            self._halt(held, own, str(error))
            return
        finally:
            self._leave(held, own)
        self.look(held)

    def _halt(self, held: LeasedRun, own: TransactionRun, words: str) -> None:
        self._leave(held, own)
        problem = {"type": "TransactionProblem", "message": words}
        held.end = Halt(problem=msgspec.json.encode(problem).decode())
        self._holdings.news(held)

    @staticmethod
    def _leave(held: LeasedRun, own: TransactionRun) -> None:
        if held.transaction is own:
            held.transaction = None

    async def _play(self, link: ReconnectingConnection, held: LeasedRun, own: TransactionRun) -> None:
        transactions = held.replay.transactions
        conn = await link.connected()
        try:
            while (log := transactions.front) is not None and log.live and log.ask is not None:
                await self._play_one(conn, held, own, log)
        except asyncio.CancelledError:
            # what was under way may still hold the connection
            link.drop()
            raise
        finally:
            if conn.is_closed() or conn.is_in_transaction():
                # whatever is under way is rolled back by the server
                link.drop()

    async def _play_one(self, conn: Any, held: LeasedRun, own: TransactionRun, log: TransactionLog) -> None:
        """Answer one transaction from its begin to its end."""
        transactions = held.replay.transactions
        ends_s = asyncio.get_running_loop().time() + log.timeout_ms / 1000
        while (ask := log.ask) is not None:
            if ask.kind in ("begin", "commit"):
                await self._recorded(held, own)
            journal = None
            try:
                async with asyncio.timeout_at(ends_s):
                    if ask.kind == "commit":
                        outcome, journal = await self._commit(conn, own, held, log)
                    else:
                        outcome = await self._answer(conn, own, held, log, ask)
            except TimeoutError:
                conn.terminate()
                if ask.kind == "commit":
                    raise _Again(_overdue(log).message) from None
                own.overdue = log
                outcome = self._refused(_overdue(log))
            if ask.kind == "begin" and outcome[0] != "value":
                # what the journal would not hold is nothing that the code may see
                raise _Again(f"the transaction could not begin: {outcome[1]}")
            if not transactions.answer(ask, outcome):
                continue
            if journal is None or not self._holdings.recorded_outside(held, journal.rows, journal.next):
                self._holdings.advance(held)
            if ask.kind in ("commit", "rollback"):
                return

    async def _recorded(self, held: LeasedRun, own: TransactionRun) -> None:
        """Wait until all that the code did before is in the journal."""
        while held.commands or (held.flight is not None and held.flight.commands):
            own.moved.clear()
            await own.moved.wait()

    async def _replay(self, held: LeasedRun, own: TransactionRun) -> None:
        """Have the run replayed from its journal, when nothing of it is on its way."""
        while held.flight is not None:
            own.moved.clear()
            await own.moved.wait()
        self._leave(held, own)
        if not (held.dropped or held.loading):
            self._holdings.replay_anew(held)

    # -- statements

    async def _answer(
        self, conn: Any, own: TransactionRun, held: LeasedRun, log: TransactionLog, ask: Ask
    ) -> Outcome:
        if ask.kind == "rollback":
            if not conn.is_closed() and conn.is_in_transaction():
                await self._reaching(conn, held, conn.execute("rollback"))
            return ("value", None)
        if own.overdue is log:
            return self._refused(_overdue(log))
        if conn.is_closed():
            raise _Again("the connection was lost")
        if ask.kind == "begin":
            return await self._reaching(conn, held, self._begin(conn, log.timeout_ms))
        found = _ENDS_IT.match(ask.query)
        if found is not None:
            word = (found[1] or found[2]).lower()
            return self._refused(
                InvalidRequest(
                    f"transaction {log.name}: {word!r} would end it without its journal row",
                    hint="leave the block to commit, raise an error to roll back, or use tx.savepoint()",
                )
            )
        outcome = await self._reaching(conn, held, self._statement(conn, ask), ours=False)
        if not (conn.is_closed() or conn.is_in_transaction()):
            raise _Ended(
                f"transaction {log.name} was ended by {ask.query[:80]!r}; what it wrote may be there"
            )
        return self._within_limit(log, outcome)

    def _within_limit(self, log: TransactionLog, outcome: Outcome) -> Outcome:
        """Count what goes into the journal; a statement whose answer has no room there is refused."""
        size = log.size + len(msgspec.json.encode(outcome))
        try:
            self._codec.check_size(size, f"what the statements of transaction {log.name} returned")
        except PayloadTooLarge as error:
            return self._refused(error)
        log.size = size
        return outcome

    async def _begin(self, conn: Any, timeout_ms: int) -> None:
        await begin(conn)
        await conn.execute(TRANSACTION_LIMITS.sql, str(timeout_ms), str(min(timeout_ms, _IDLE_MS_MAX)))

    @staticmethod
    async def _statement(conn: Any, ask: Ask) -> Any:
        match ask.kind:
            case "execute":
                # like conn.execute, but one statement only, also without arguments
                _, status, _ = await conn._execute(ask.query, ask.args, 0, None, return_status=True)
                return status.decode()
            case "executemany":
                await conn.executemany(ask.query, ask.args[0])
                return None
            case "fetch":
                return records_json(await conn.fetch(ask.query, *ask.args))
            case _:
                return value_json(await conn.fetchval(ask.query, *ask.args))

    async def _commit(
        self, conn: Any, own: TransactionRun, held: LeasedRun, log: TransactionLog
    ) -> tuple[Outcome, Journal | None]:
        if own.overdue is log:
            return self._refused(_overdue(log)), None
        if conn.is_closed():
            raise _Again("the connection was lost")
        journal: Journal | None = None

        async def commit() -> None:
            nonlocal journal
            text = await conn.fetchval(
                COMMIT.sql,
                self._worker,
                *held.lease,
                held.replay.next_seq,
                log.child,
                log.name,
                log.hash,
                log.data(committed=True),
                msgspec.json.encode(log.effects).decode(),
            )
            journal = decode_journal(text)
            await conn.execute("commit")

        outcome = await self._reaching(conn, held, commit())
        if outcome[0] != "value":
            await self._reaching(conn, held, conn.execute("rollback"))
            return outcome, None
        held.tries = 0
        return outcome, journal

    async def _reaching(self, conn: Any, held: LeasedRun, work: Any, *, ours: bool = True) -> Outcome:
        """Return how a statement ended, as the code is to see it; `ours` says that it is not the user's.

        Raises:
            _Again: it is not the code's business.
            LeaseLost: neither, and the run is somebody else's.
        """
        try:
            return ("value", await work)
        except asyncpg.PostgresError as error:
            code = error.sqlstate or ""
            passing = passes(code) or (ours and code in _BOUNDED)
            if passing or code == _ANEW or code.startswith("08") or conn.is_closed():
                raise _Again(error, expected=code == _ANEW, passing=passing) from error
            if code.startswith("40") and held.tries < _TRIES_MAX:
                raise _Again(error) from error
            known = mapped(error, self._links.where)
            if isinstance(known, LeaseLost):
                raise known from error
            if code.startswith("WF"):
                return self._refused(known)
            return ("database", error_fields(error))
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            if conn.is_closed() or isinstance(error, OSError):
                raise _Again(error) from error
            # asyncpg's own judgement of the arguments
            return self._refused(InvalidRequest(f"a statement of a transaction was refused: {error}"))
        except EncodeError as error:
            return self._refused(error)

    def _refused(self, error: EngineError) -> Outcome:
        return ("engine", self._codec.encode_error(error))


def _overdue(log: TransactionLog) -> StepTimeout:
    return StepTimeout(
        f"transaction {log.name} took longer than {log.timeout_ms / 1000:g} s",
        step=log.name,
        timeout_ms=log.timeout_ms,
    )
