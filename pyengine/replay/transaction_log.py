"""What the transactions of a run have done, matched with the journal.

What lives here: `Transactions`, the queue of a run's open transactions, and `TransactionLog`, what one of
them asked and was answered. What may not: a connection (worker/transaction_runner.py), what code sees
(transaction.py). The theory: a transaction is one call with one row, which holds the answers of all its
statements. It is read like a captured value: by its number, at the moment when the code comes to it. So that
a replay finds the same order, the coroutine gets nothing else from the moment it has asked for a transaction
until that is over: rows of others wait, in live and in replay alike; and nothing that takes a number is
allowed inside: values that are captured there stand in the transaction's own record. A transaction that was
rolled back is recorded like a captured value, too, with what made it end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec

from pyengine.errors import Evicted
from pyengine.protocol.commands import RolledBack
from pyengine.protocol.journal import Row
from pyengine.replay.call_sequence import NOTHING, CallSequence
from pyengine.replay.history import described
from pyengine.values.codec import Codec
from pyengine.values.sql_values import error_of

__all__ = ["Ask", "AskKind", "Outcome", "TransactionLog", "Transactions"]

AskKind: TypeAlias = Literal["begin", "execute", "executemany", "fetch", "fetchval", "commit", "rollback"]

Outcome: TypeAlias = tuple[Literal["value", "database", "engine"], Any]
"""How an ask ended, as JSON: its value, the fields of a database error, or the text of another error."""

NO_VALUE: Outcome = ("value", None)


class _Record(msgspec.Struct, omit_defaults=True):
    """The data of a transaction's row.

    Args:
        committed: or rolled back.
        said: for each statement the hash of its text, and its outcome.
        end: what the commit failed with, if it did.
    """

    committed: bool
    said: list[tuple[str, Outcome]]
    end: Outcome | None = None


class Ask:
    """What the code of a transaction waits for.

    Attributes:
        kind: begin, a statement, commit or rollback.
        query: text of the statement.
        args: its arguments; of `executemany` one list of them.
        future: completed with the value or the error.
    """

    __slots__ = ("args", "future", "kind", "query")

    def __init__(self, kind: AskKind, query: str, args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self.kind = kind
        self.query = query
        self.args = args
        self.future = future


class TransactionLog:
    """One transaction of a run.

    Attributes:
        child: its number.
        name: a label for people.
        hash: input hash of its row.
        timeout_ms: it may take so long.
        effects: what it asks of the engine, done at its commit.
        ask: what its code waits for now.
        committed: its commit has been answered.
        size: bytes of what its statements answered, as the journal holds them.
    """

    __slots__ = (
        "_place",
        "_record",
        "ask",
        "child",
        "committed",
        "effects",
        "hash",
        "name",
        "said",
        "size",
        "timeout_ms",
    )

    def __init__(self, child: int, name: str, hash: str, timeout_ms: int, record: _Record | None) -> None:
        self.child = child
        self.name = name
        self.hash = hash
        self.timeout_ms = timeout_ms
        self.effects: list[dict[str, Any]] = []
        self.ask: Ask | None = None
        self.committed = False
        self.size = 1024
        self.said: list[tuple[str, Outcome]] = []
        self._record = record
        self._place = 0

    @property
    def live(self) -> bool:
        """Whether the journal does not know it yet."""
        return self._record is None

    def data(self, *, committed: bool, end: Outcome | None = None) -> str:
        """Return JSON text for its row."""
        return msgspec.json.encode(_Record(committed, self.said, end)).decode()

    def recorded(self, ask: Ask) -> Outcome | None:
        """Return the recorded outcome of an ask; None if the record does not go on so."""
        record = self._record
        assert record is not None
        if ask.kind == "begin":
            return NO_VALUE
        if ask.kind in ("commit", "rollback"):
            over = self._place == len(record.said)
            if ask.kind == "commit":
                fits = record.committed or record.end is not None
            else:
                fits = not record.committed and record.end is None
            return (record.end or NO_VALUE) if over and fits else None
        return self.take(_digest(ask.kind, ask.query))

    def take(self, digest: str) -> Outcome | None:
        """Return the next recorded outcome, if it is of this statement or captured value."""
        record = self._record
        assert record is not None
        if self._place == len(record.said) or record.said[self._place][0] != digest:
            return None
        self._place += 1
        return record.said[self._place - 1][1]


class Transactions:
    """The transactions that the code of a run is in, or waits to begin, in the order in which it asked.

    Args:
        ledger: numbers of the run.
        codec: reads errors.
        queue: those transactions; empty.
    """

    def __init__(self, ledger: CallSequence, codec: Codec, queue: list[TransactionLog]) -> None:
        self._ledger = ledger
        self._codec = codec
        self._queue = queue

    @property
    def front(self) -> TransactionLog | None:
        """The one that is open, or begins next."""
        return self._queue[0] if self._queue else None

    @property
    def live(self) -> bool:
        """Whether the coroutine gets nothing until a worker has answered."""
        return bool(self._queue) and self._queue[0].live and not self._ledger.dead

    @property
    def stuck(self) -> bool:
        """Whether the code of the open transaction waits for something else, which cannot come."""
        return self.live and self._queue[0].ask is None

    @property
    def overtaken(self) -> bool:
        """Whether a request of cancellation is known, so that what is not recorded yet does not count."""
        return self._ledger.history.cancel_seq is not None

    # -- what the code does

    async def begin(self, name: str, timeout_ms: int) -> TransactionLog:
        """Take the next number, and return when it is this one's turn.

        Raises:
            InvalidRequest: another one is open.
            asyncio.CancelledError: the run is being cancelled.
        """
        ledger = self._ledger
        if ledger.barred and (dead := ledger.bar("step", name)) is not None:
            await dead
        digest = sha256(f"transaction\0{name}".encode()).hexdigest()[:16]
        row, child = ledger.row(), ledger.next_child
        record = None
        if row is not None or child in ledger.history.receiving:
            record = _read(row, name, digest)
            if record is None:
                await ledger.disagree(described("transaction", name, digest), row, "step", name)
        elif ledger.barred and ledger.is_transaction_overtaken():
            call = ledger.take_call("step", name, NOTHING, overtaken=True)
            call.noted = _nothing
            await call
        ledger.next_child = child + 1
        log = TransactionLog(child, name, digest, timeout_ms, record)
        self._queue.append(log)
        try:
            await self.ask(log, "begin")
        except BaseException:
            self.leave(log)
            raise
        return log

    async def ask(
        self, log: TransactionLog, kind: AskKind, query: str = "", args: tuple[Any, ...] = ()
    ) -> Any:
        """Ask for a statement, or for the end, and return the answer.

        Raises:
            asyncpg.PostgresError, EngineError: what it failed with.
        """
        if self._ledger.dead:
            await self._ledger.dead_call("step", log.name)
        ask = log.ask = Ask(kind, query, args, self._ledger.loop.new_future())
        try:
            return await ask.future
        finally:
            if log.ask is ask:
                log.ask = None

    def leave(self, log: TransactionLog) -> None:
        """Note that the code is out of it."""
        if log in self._queue:
            self._queue.remove(log)
        self._ledger.in_transaction = self._ledger.keep_inside = None
        self._ledger.set_bar()

    def keep(self, name: str, make: Callable[[], str] | None) -> str | None:
        """Return a value captured inside the open transaction, from its record or into it.

        Args:
            name: what is captured.
            make: makes a new value; None for a mark, which is missing where the code was past this point.
        """
        log = self._queue[0]
        digest = _digest("capture", name)
        if log.live:
            text = "true" if make is None else make()
            log.said.append((digest, ("value", text)))
            return text
        outcome = log.take(digest)
        if outcome is None:
            if make is not None:
                self._disagree(log, f"a captured value, {name}")
            return None
        return str(outcome[1])

    # -- what it is answered

    def serve(self) -> bool:
        """Answer from the journal what the code waits for; false if there is nothing to be answered so."""
        log = self.front
        if log is None or log.live or log.ask is None or self._ledger.dead:
            return False
        ask = log.ask
        outcome = log.recorded(ask)
        if outcome is None:
            self._disagree(log, f"{ask.kind} {ask.query[:80]!r}" if ask.query else ask.kind)
            log.ask = None
            ask.future.set_exception(Evicted())
        else:
            self._give(log, ask, outcome)
        return True

    def _disagree(self, log: TransactionLog, what: str) -> None:
        row = self._ledger.history.allocated.get(log.child)
        self._ledger.halt(f"another statement in it: {what}", row, child=log.child)

    def answer(self, ask: Ask, outcome: Outcome) -> bool:
        """Give the code what a worker found; false if nobody waits for it any more."""
        log = self.front
        if log is None or log.ask is not ask or ask.future.done():
            return False
        if ask.kind == "rollback":
            self._ledger.commands.append(self._rolled_back(log, None))
        elif ask.kind == "commit":
            log.committed = outcome[0] == "value"
            if not log.committed:
                self._ledger.commands.append(self._rolled_back(log, outcome))
        elif ask.kind != "begin":
            log.said.append((_digest(ask.kind, ask.query), outcome))
        self._give(log, ask, outcome)
        return True

    @staticmethod
    def _rolled_back(log: TransactionLog, end: Outcome | None) -> RolledBack:
        text = log.data(committed=False, end=end)
        return RolledBack(child=log.child, name=log.name, hash=log.hash, value=text)

    def _give(self, log: TransactionLog, ask: Ask, outcome: Outcome) -> None:
        if ask.kind == "begin":
            self._ledger.in_transaction = log.name
            self._ledger.keep_inside = self.keep
            self._ledger.barred = True
        log.ask = None
        kind, value = outcome
        if kind == "value":
            ask.future.set_result(value)
        else:
            error = error_of(value) if kind == "database" else self._codec.decode_error(value)
            ask.future.set_exception(error)


def _digest(kind: str, query: str) -> str:
    return sha256(f"{kind}\0{query}".encode()).hexdigest()[:8]


def _read(row: Row | None, name: str, digest: str) -> _Record | None:
    """Return what the row of a transaction says; None if it is the row of something else."""
    if row is None or (row.type, row.name, row.hash) != ("L", name, digest):
        return None
    try:
        return msgspec.json.decode(row.data or "", type=_Record)
    except msgspec.DecodeError:
        return None


def _nothing(child: int) -> None:
    """What an overtaken transaction does when it is given up."""
