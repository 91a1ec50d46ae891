"""The journal of one run, indexed for replay.

What lives here: which row gave a child number away, which rows the coroutine is advanced by and in what
order, what was done to join sets, what is known of the attempts of a step, and how a row reads in an error.
What may not: a coroutine, a decision whether code and journal agree (call_sequence.py). Rows are only ever
added at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from pyengine.protocol.commands import StepOutcome
from pyengine.protocol.journal import ALLOCATING, RESOLVING, ROW_WIDTH, Row

__all__ = ["Attempts", "History", "add_outcomes", "describe", "described", "mark_described"]

_KINDS = {
    "L": "step",
    "E": "step",
    "f": "step",
    "l": "step",
    "o": "step",
    "I": "child run",
    "X": "promise",
    "T": "timer",
    "n": "random value",
    "m": "time",
    "v": "signal",
    "j": "join set",
}
_ATTEMPT = frozenset("flsrt")
_MADE_BY_CODE = frozenset("IXTnmAjua")
_MARKS = {"u": "submit", "a": "take"}


class _Retrying(msgspec.Struct):
    """The data of a row that ends an attempt which is followed by another one."""

    retry_at: int | None = None
    interrupted: bool = False


class _Begun(msgspec.Struct):
    """The data of the first row of a step that has more than one; with the policy, if it has one."""

    retry: msgspec.Raw = msgspec.Raw(b"")


class _Awaiting(msgspec.Struct):
    """The data of a row that blocks the run."""

    on: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What the journal knows of the attempts of one open step; fields as in StepCall."""

    attempt: int = 1
    failures: int = 0
    retry_at_ms: int | None = None
    begun: bool = False
    interrupted: bool = False
    recorded_retry: str | None = None


_FIRST = Attempts()


class History:
    """Journal rows in order, and where to find what in them."""

    __slots__ = (
        "_attempts",
        "allocated",
        "await_seq",
        "cancel_seq",
        "made_seq",
        "marks",
        "max_child",
        "next_seq",
        "receiving",
        "resolvers",
        "sealed_child",
    )

    def __init__(self) -> None:
        self.allocated: dict[int, Row] = {}
        self.resolvers: list[Row] = []
        """What the coroutine is advanced by: completions of children, and the request of cancellation."""
        self.marks: list[Row] = []
        """What the code did to join sets; such rows have no number of their own."""
        self.receiving: set[int] = set()
        """Numbers that the run was blocked on although no row gave them away: receives."""
        self.next_seq = 0
        """The logical number that the next row will have."""
        self.max_child = -1
        """The highest child number that a row has given away or the run was blocked on."""
        self.made_seq = -1
        """The last row that the coroutine itself brought about, other than by calling a step."""
        self.await_seq = -1
        """The last row that blocked the run."""
        self.cancel_seq: int | None = None
        """The request of cancellation, if there is one."""
        self.sealed_child = -1
        """`max_child` as it was before the request of cancellation."""
        self._attempts: dict[int, list[Row]] = {}

    def add(self, rows: Iterable[Row], next_seq: int = 0) -> None:
        """Append rows, in journal order; next_seq: where the journal goes on, if rows of it are left out."""
        row = None
        for row in rows:
            kind, child = row.type, row.child
            if child is not None:
                if kind in ALLOCATING:
                    self.allocated.setdefault(child, row)
                    if child > self.max_child:
                        self.max_child = child
                if kind in RESOLVING:
                    self.resolvers.append(row)
                elif kind in _ATTEMPT:
                    self._attempts.setdefault(child, []).append(row)
            elif kind == "Q" and self.cancel_seq is None:
                self.cancel_seq, self.sealed_child = row.seq, self.max_child
                self.resolvers.append(row)
            elif kind == "A":
                self._block(row)
            if kind in _MADE_BY_CODE:
                self.made_seq = row.seq
                if kind in _MARKS:
                    self.marks.append(row)
        if row is not None:
            self.next_seq = row.seq + ROW_WIDTH.get(row.type, 1)
        if next_seq > self.next_seq:
            self.next_seq = next_seq

    def _block(self, row: Row) -> None:
        self.await_seq = row.seq
        if not row.data:
            return
        on = msgspec.json.decode(row.data, type=_Awaiting).on
        self.receiving.update(set(on).difference(self.allocated))
        self.max_child = max(self.max_child, *on, -1)

    def attempts(self, child: int) -> Attempts:
        """Return what is known of the attempts of a step that is not completed."""
        if child not in self._attempts:
            return _FIRST
        ended, failures, begun = 0, 0, 0
        last = _Retrying()
        for row in self._attempts[child]:
            number = row.attempt or ended + 1
            if row.type in "ls":
                begun = number
                continue
            last = msgspec.json.decode(row.data, type=_Retrying) if row.data else _Retrying()
            failures += not last.interrupted
            ended = max(ended, number)
        is_begun = begun > ended
        return Attempts(
            attempt=begun if is_begun else ended + 1,
            failures=failures,
            retry_at_ms=last.retry_at,
            begun=is_begun,
            interrupted=last.interrupted,
            recorded_retry=_recorded_retry(self._attempts[child][0]),
        )

    def neighbours(self, child: int) -> tuple[str, ...]:
        """Return one line for each recorded child from the one before to the one after."""
        around = range(max(0, child - 1), child + 2)
        return tuple(f"{n}: {describe(self.allocated[n])}" for n in around if n in self.allocated)


def _recorded_retry(row: Row) -> str | None:
    """Return the policy that the first row of a step tells; "" if it was begun without one."""
    if row.type not in "lf" or not row.data:
        return None
    try:
        policy = bytes(msgspec.json.decode(row.data, type=_Begun).retry).decode()
    except msgspec.ValidationError:
        return None
    return "" if policy == "null" else policy


def describe(row: Row) -> str:
    """Return how a row reads in an error: kind, name and input hash."""
    if row.type in _MARKS:
        return mark_described(_MARKS[row.type], row.child, row.attempt)
    return described(_KINDS.get(row.type, f"row of type {row.type}"), row.name, row.hash)


def described(kind: str, name: str | None, input_hash: str | None) -> str:
    """Return how a call reads in an error."""
    words = [kind]
    if name:
        words.append(name)
    if input_hash:
        words.append(f"(input {input_hash})")
    return " ".join(words)


def mark_described(verb: str, child: int | None, join_set: int | None) -> str:
    """Return how an operation on a join set reads in an error."""
    return f"{verb} of child {child} by join set {join_set}"


def outcome_row(outcome: StepOutcome, seq: int, history: History) -> Row:
    """Return the row that an outcome becomes when a turn takes it.

    Args:
        outcome: what the worker reported.
        seq: logical number of the row.
        history: the journal before it, which decides between fused and separate forms.
    """
    first = outcome.child not in history.allocated
    alone = (
        not first and not history.attempts(outcome.child).begun
    )  # nothing told that this attempt had begun
    data: str | None
    if outcome.begun:
        policy = f', "retry": {outcome.retry}' if outcome.retry else ""
        kind, data = "l" if first else "s", f'{{"input": {outcome.param}{policy}}}'
    elif outcome.value is not None:
        kind, data = "L" if first else "k" if alone else "c", outcome.value
    elif outcome.retry_in_ms is None:
        kind, data = "E" if first else "K" if alone else "e", outcome.error
    else:
        kind, data = "f" if first else "t" if alone else "r", None
    return Row(seq, kind, outcome.child, outcome.attempt, outcome.name, outcome.hash, data)


def add_outcomes(history: History, outcomes: Sequence[StepOutcome]) -> None:
    """Append the rows of outcomes that a turn took."""
    for outcome in outcomes:
        history.add((outcome_row(outcome, history.next_seq, history),))
