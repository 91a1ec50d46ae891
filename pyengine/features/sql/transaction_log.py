"""The transactions of a run, matched with the journal.

Lives here: `Transactions`, the queue of a run's open transactions, and `TransactionLog`, the statements of
one of them and their outcomes. May not: a connection (sql/transaction_runner.py), the interface for
workflow code (transaction.py). The theory: a transaction is one call with one row, which holds the outcomes
of all its statements. It is read like a captured value: by its number, when the code comes to it. From the
moment at which the code asks for a transaction until the transaction is over, no other row advances the
coroutine, live and in replay alike, so a replay finds the same order. No call that takes a number is allowed
inside; values captured there stand in the transaction's own row. A transaction that was rolled back is
recorded too, with the error of its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from pyengine.core.protocol.commands import RolledBack
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.asks import Ask, AskKind, Outcome
from pyengine.core.replay.call_matcher import CallMatcher
from pyengine.core.replay.call_sequence import NOTHING, CallSequence, ignore_cancel
from pyengine.core.replay.completions import fire_at_ms
from pyengine.core.replay.history import describe_call
from pyengine.core.values.codec import Codec
from pyengine.errors import Evicted
from pyengine.features.sql.sql_values import error_of

NO_VALUE: Outcome = ("value", None)


class _Record(msgspec.Struct, omit_defaults=True, rename={"outcomes": "said"}):
    """The data of a transaction's row.

    Args:
        committed: false if it was rolled back.
        outcomes: (hash of its text, outcome) of each statement.
        end: the error of the commit, if it failed.
    """

    committed: bool
    outcomes: list[tuple[str, Outcome]]
    end: Outcome | None = None


def subject_of(name: str) -> str:
    """Return what a transaction is called in sentences."""
    return "the transaction" if name == "transaction" else f"transaction {name}"


class TransactionLog:
    """One transaction of a run.

    Attributes:
        child: its number.
        name: a label for people.
        hash: input hash of its row.
        timeout_ms: limit from its begin to its commit, milliseconds.
        limit_ms: milliseconds until a limit of asyncio around its block ends, if there is one.
        effects: starts, signals and settlements to do at its commit, as JSON objects.
        ask: the request that its code waits for now.
        committed: its commit succeeded.
        outcomes: (hash of its text, outcome) of each statement that was answered live.
        size: bytes of its outcomes in the journal.
    """

    __slots__ = (
        "_next",
        "_record",
        "ask",
        "child",
        "committed",
        "effects",
        "hash",
        "limit_ms",
        "name",
        "outcomes",
        "size",
        "timeout_ms",
    )

    def __init__(self, child: int, name: str, hash: str, timeout_ms: int, record: _Record | None) -> None:
        self.child = child
        self.name = name
        self.hash = hash
        self.timeout_ms = timeout_ms
        self.limit_ms: float | None = None
        self.effects: list[dict[str, Any]] = []
        self.ask: Ask | None = None
        self.committed = False
        self.size = 1024
        self.outcomes: list[tuple[str, Outcome]] = []
        self._record = record
        self._next = 0

    @property
    def live(self) -> bool:
        """Whether the journal holds no row of it yet."""
        return self._record is None

    @property
    def may_roll_back(self) -> bool:
        """Whether its code may roll it back: it is live, or it did so; not one that older code committed."""
        return self._record is None or not (self._record.committed or self._record.end)

    def data(self, *, committed: bool, end: Outcome | None = None) -> str:
        """Return the JSON text of its row."""
        return msgspec.json.encode(_Record(committed, self.outcomes, end)).decode()

    def recorded(self, ask: Ask) -> Outcome | None:
        """Return the recorded outcome of an ask; None if the record holds another one there."""
        record = self._record
        assert record is not None
        if ask.kind == "begin":
            return NO_VALUE
        if ask.kind in ("commit", "rollback"):
            over = self._next == len(record.outcomes)
            if ask.kind == "commit":
                fits = record.committed or record.end is not None
            else:
                fits = not record.committed and record.end is None
            return (record.end or NO_VALUE) if over and fits else None
        return self.take(_digest(ask.kind, ask.query))

    def take(self, digest: str) -> Outcome | None:
        """Return the next recorded outcome, if it belongs to this statement or captured value."""
        record = self._record
        assert record is not None
        if self._next == len(record.outcomes) or record.outcomes[self._next][0] != digest:
            return None
        self._next += 1
        return record.outcomes[self._next - 1][1]


class Transactions:
    """The transactions that the code of a run is in, or waits to begin, in the order of asking.

    Args:
        sequence: numbers and commands of the run.
        codec: writes values, decodes errors.
        now_ms: reads the clock, epoch milliseconds.

    Attributes:
        codec: likewise.
        queue: those transactions; the first one is open, or begins next.
    """

    def __init__(self, sequence: CallSequence, codec: Codec, now_ms: Callable[[], int]) -> None:
        self._sequence = sequence
        self._now_ms = now_ms
        self.codec = codec
        self.queue: list[TransactionLog] = []

    @property
    def front(self) -> TransactionLog | None:
        """The transaction that is open, or begins next."""
        return self.queue[0] if self.queue else None

    @property
    def live(self) -> bool:
        """Whether the coroutine is not advanced until a worker has answered."""
        return bool(self.queue) and self.queue[0].live and not self._sequence.dead

    @property
    def stuck(self) -> bool:
        """Whether the code of the open transaction waits for something else, which cannot happen."""
        return self.live and self.queue[0].ask is None

    # -- requests of the code

    async def begin(self, name: str, timeout_ms: int) -> TransactionLog:
        """Take the next number, and return when the transaction has begun.

        Raises:
            InvalidRequest: another one is open.
            asyncio.CancelledError: the run is being cancelled.
        """
        sequence = self._sequence
        if sequence.restricted and (dead := sequence.admit("step", name)) is not None:
            await dead
        digest = sha256(f"transaction\0{name}".encode()).hexdigest()[:16]
        row, child = sequence.row(), sequence.next_child
        record = None
        if row is not None or child in sequence.history.open_receives:
            record = _read(row, name, digest)
            if record is None:
                await sequence.disagree(describe_call("transaction", name), row, "step", name)
        elif sequence.restricted and sequence.cancellation.discards_transaction(child):
            call = sequence.take_call("step", name, NOTHING, discarded=True)
            call.on_cancel = ignore_cancel
            await call
        sequence.next_child = child + 1
        log = TransactionLog(child, name, digest, timeout_ms, record)
        if log.live:
            log.limit_ms = self._time_left_ms()
        self.queue.append(log)
        try:
            await self.ask(log, "begin")
        except BaseException:
            self.leave(log)
            raise
        return log

    def _time_left_ms(self) -> float | None:
        """Return how long the limits around the current code still last; None if there is none."""
        sequence, left = self._sequence, []
        for timer in sequence.loop.limits_of_current_task():
            assert timer.token is not None
            row = sequence.history.allocated.get(timer.token)
            instant_ms = fire_at_ms(row, sequence.history) if row else sequence.fire_at_ms.get(timer.token)
            if instant_ms is None:  # it is made in this advance
                left.append(1000 * (timer.when() - sequence.loop.time()))
            else:
                left.append(instant_ms - self._now_ms())
        return min(left, default=None)

    async def ask(
        self, log: TransactionLog, kind: AskKind, query: str = "", args: tuple[Any, ...] = ()
    ) -> Any:
        """Ask for a statement, or for the end, and return the answer.

        Raises:
            asyncpg.PostgresError, EngineError: the error that it failed with.
        """
        if self._sequence.dead:
            await self._sequence.dead_call("step", log.name)
        ask = log.ask = Ask(kind, query, args, self._sequence.loop.new_future())
        try:
            return await ask.future
        finally:
            if log.ask is ask:
                log.ask = None

    def leave(self, log: TransactionLog) -> None:
        """Remove a transaction whose block the code has left."""
        if log in self.queue:
            self.queue.remove(log)
        self._sequence.in_transaction = self._sequence.capture_inside = None
        self._sequence.update_restricted()

    def capture(self, name: str, make: Callable[[], str] | None) -> str | None:
        """Return a value captured inside the open transaction: from its row, or new and added to it.

        Args:
            name: name of the value.
            make: makes a new value; None for `patched`, which the row lacks if the old code was past here.
        """
        log = self.queue[0]
        digest = _digest("capture", name)
        if log.live:
            text = "true" if make is None else make()
            log.outcomes.append((digest, ("value", text)))
            return text
        outcome = log.take(digest)
        if outcome is None:
            if make is not None:
                self._disagree(log, f"a captured value, {name}")
            return None
        return str(outcome[1])

    # -- answers

    def answer_recorded(self) -> bool:
        """Answer the code from the journal; false if it waits for nothing that is recorded."""
        log = self.front
        if log is None or log.live or log.ask is None or self._sequence.dead:
            return False
        ask = log.ask
        outcome = log.recorded(ask)
        if outcome is None:
            self._disagree(log, f"{ask.kind} {ask.query[:80]!r}" if ask.query else ask.kind)
            log.ask = None
            ask.future.set_exception(Evicted())
        else:
            self._deliver(log, ask, outcome)
        return True

    def _disagree(self, log: TransactionLog, got: str) -> None:
        row = self._sequence.history.allocated.get(log.child)
        self._sequence.halt(f"another statement in it: {got}", row, child=log.child)

    def answer(self, ask: Ask, outcome: Outcome) -> bool:
        """Deliver the outcome that a worker found; false if the code does not wait for it any more."""
        log = self.front
        if log is None or log.ask is not ask or ask.future.done():
            return False
        if ask.kind == "rollback":
            self._sequence.commands.append(self._rolled_back(log, None))
        elif ask.kind == "commit":
            log.committed = outcome[0] == "value"
            if not log.committed:
                self._sequence.commands.append(self._rolled_back(log, outcome))
        elif ask.kind != "begin":
            log.outcomes.append((_digest(ask.kind, ask.query), outcome))
        self._deliver(log, ask, outcome)
        return True

    @staticmethod
    def _rolled_back(log: TransactionLog, end: Outcome | None) -> RolledBack:
        text = log.data(committed=False, end=end)
        return RolledBack(child=log.child, name=log.name, hash=log.hash, value=text)

    def _deliver(self, log: TransactionLog, ask: Ask, outcome: Outcome) -> None:
        if ask.kind == "begin":
            self._sequence.in_transaction = subject_of(log.name)
            self._sequence.capture_inside = self.capture
            self._sequence.restricted = True
        log.ask = None
        kind, value = outcome
        if kind == "value":
            ask.future.set_result(value)
        else:
            error = error_of(value) if kind == "database" else self.codec.decode_error(value)
            ask.future.set_exception(error)


def transactions_of(matcher: CallMatcher) -> Transactions:
    """Return the transactions of a run, which are made at their first use."""
    found = matcher.asks
    if not isinstance(found, Transactions):
        found = matcher.asks = Transactions(matcher.sequence, matcher.codec, matcher.now_ms)
    return found


def _digest(kind: str, query: str) -> str:
    return sha256(f"{kind}\0{query}".encode()).hexdigest()[:8]


def _read(row: Row | None, name: str, digest: str) -> _Record | None:
    """Return the record in the row of a transaction; None if the row is of something else."""
    if row is None or (row.type, row.name, row.hash) != (RowType.STEP_COMPLETED, name, digest):
        return None
    try:
        return msgspec.json.decode(row.data or "", type=_Record)
    except msgspec.DecodeError:
        return None
