"""The journal of one run, indexed for replay.

Lives here: the row that allocated each child number, the rows that advance the coroutine and their order, the
operations on join sets, the attempts of a step, and how a row reads in an error. May not: a coroutine, the
decision whether code and journal agree (call_sequence.py). Rows are only ever added at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pyengine.core.protocol.commands import StepOutcome
from pyengine.core.protocol.journal import ALLOCATING, RESOLVING, ROW_WIDTH, SCHEDULING_STEPS, Row, RowType

_KINDS = dict.fromkeys(SCHEDULING_STEPS, "step") | {
    RowType.CHILD_RUN_SCHEDULED: "child run",
    RowType.PROMISE_REGISTERED: "promise",
    RowType.TIMER_SCHEDULED: "timer",
    RowType.RANDOM_GENERATED: "random value",
    RowType.TIME_RECORDED: "time",
    RowType.SIGNAL_RECEIVED: "signal",
    RowType.JOIN_SET_CREATED: "join set",
}
_STARTS = frozenset({RowType.STEP_STARTED, RowType.ATTEMPT_STARTED})
_FAILURES = frozenset({RowType.FIRST_ATTEMPT_FAILED, RowType.OPEN_ATTEMPT_FAILED, RowType.ATTEMPT_FAILED})
_ATTEMPTS = _STARTS | _FAILURES
_BEGINNINGS = frozenset({RowType.STEP_STARTED, RowType.FIRST_ATTEMPT_FAILED})
# how an outcome is recorded: of the first attempt, of a later one, and where an earlier row has its start
_STARTED = (RowType.STEP_STARTED, RowType.ATTEMPT_STARTED, RowType.ATTEMPT_STARTED)
_RETRYING = (RowType.FIRST_ATTEMPT_FAILED, RowType.ATTEMPT_FAILED, RowType.OPEN_ATTEMPT_FAILED)
_COMPLETED = (RowType.STEP_COMPLETED, RowType.LAST_ATTEMPT_COMPLETED, RowType.OPEN_STEP_COMPLETED)
_FAILED = (RowType.STEP_FAILED, RowType.LAST_ATTEMPT_FAILED, RowType.OPEN_STEP_FAILED)
_SET_OPERATIONS = {RowType.JOIN_SET_SUBMITTED: "submit", RowType.JOIN_SET_AWAITED: "take"}
_MADE_BY_CODE = frozenset(
    {
        RowType.CHILD_RUN_SCHEDULED,
        RowType.PROMISE_REGISTERED,
        RowType.TIMER_SCHEDULED,
        RowType.RANDOM_GENERATED,
        RowType.TIME_RECORDED,
        RowType.EXECUTION_AWAITING,
        RowType.JOIN_SET_CREATED,
        *_SET_OPERATIONS,
    }
)


_INPUT_MAX = 200


class _Retrying(msgspec.Struct):
    """The data of a row that ends an attempt and schedules another one."""

    retry_at: int | None = None
    interrupted: bool = False


class _Begun(msgspec.Struct):
    """The data of the first row of a step that has several: its input, and its retry policy, if any."""

    retry: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


class _Awaiting(msgspec.Struct):
    """The data of a row that suspends the run."""

    on: tuple[int, ...] = ()


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded attempts of one open step.

    Args:
        attempt: number of the attempt to make, counted from 1.
        failures: failed attempts that count for the retry policy.
        retry_at_ms: not before this epoch millisecond, or None.
        begun: the journal holds an open intent or start of this very attempt.
        interrupted: the previous attempt was cut off by a crash, which does not count as a failure.
        recorded_retry: JSON text of the retry policy in the journal, which wins over that of the code; "" if
            the step was begun without one, None if the journal holds no row of the step.
    """

    attempt: int = 1
    failures: int = 0
    retry_at_ms: int | None = None
    begun: bool = False
    interrupted: bool = False
    recorded_retry: str | None = None


NO_ATTEMPTS = Attempts()


class _Recorded:
    """The attempts of one step, as its rows tell them.

    They are read when somebody asks, so those of a step that has ended never are. The numbers count and not
    the rows: those of failures that lie far back are removed, and those of interrupted attempts are not.
    """

    __slots__ = ("begun", "ended", "first", "interrupted", "last", "unread")

    def __init__(self, first: Row) -> None:
        self.first = first
        self.unread: list[Row] = []
        self.begun = self.ended = self.interrupted = 0
        self.last = _Retrying()

    def read(self) -> None:
        """Take in the rows that were added since."""
        for row in self.unread:
            number = row.attempt or self.ended + 1
            if row.type in _STARTS:
                self.begun = number
                continue
            self.last = msgspec.json.decode(row.data, type=_Retrying) if row.data else _Retrying()
            self.interrupted += self.last.interrupted
            self.ended = max(self.ended, number)
        self.unread.clear()


class History:
    """Journal rows in order, with indexes for replay.

    Attributes:
        allocated: the row that allocated a child number, by that number.
        completions: rows that advance the coroutine: completions of children, and a cancellation request.
        set_operations: submissions and takes of join sets, which have no numbers of their own.
        open_receives: numbers that the run was suspended on and that no row allocated.
        next_seq: the logical number that the next row will have.
        run_attempt: which attempt of its run the journal is.
        max_child: the highest child number that a row allocated or the run was suspended on; -1 if none.
        last_command_seq: the last row that the code itself caused, other than by calling a step; -1 if none.
        suspend_seq: the last row that suspended the run; -1 if none.
        cancel_seq: the first cancellation request, if there is one.
        cancel_data: its data.
        max_child_at_cancel: `max_child` before that request.
        size: characters of the data of all rows but those of later attempts, which are not kept.
    """

    __slots__ = (
        "_attempts",
        "allocated",
        "cancel_data",
        "cancel_seq",
        "completions",
        "last_command_seq",
        "max_child",
        "max_child_at_cancel",
        "next_seq",
        "open_receives",
        "run_attempt",
        "set_operations",
        "size",
        "suspend_seq",
    )

    def __init__(self) -> None:
        self.allocated: dict[int, Row] = {}
        self.completions: list[Row] = []
        self.set_operations: list[Row] = []
        self.open_receives: set[int] = set()
        self.next_seq = 0
        self.run_attempt = 1
        self.max_child = -1
        self.last_command_seq = -1
        self.suspend_seq = -1
        self.cancel_seq: int | None = None
        self.cancel_data: str | None = None
        self.max_child_at_cancel = -1
        self.size = 0
        self._attempts: dict[int, _Recorded] = {}

    def add(self, rows: Iterable[Row], next_seq: int = 0) -> None:
        """Append rows, in journal order.

        Args:
            rows: the rows.
            next_seq: logical number after them, if rows at the end are left out.
        """
        row = None
        for row in rows:
            kind, child, data = row.type, row.child, row.data
            if data:
                self.size += len(data)
            if child is not None:
                if kind in ALLOCATING:
                    self.allocated.setdefault(child, row)
                    if child > self.max_child:
                        self.max_child = child
                if kind in RESOLVING:
                    self.completions.append(row)
                elif kind in _ATTEMPTS:
                    self._add_attempt(child, row)
            elif kind == RowType.CANCEL_REQUESTED and self.cancel_seq is None:
                self.cancel_seq, self.max_child_at_cancel = row.seq, self.max_child
                self.cancel_data = row.data
                self.completions.append(row)
            elif kind == RowType.EXECUTION_AWAITING:
                self._add_suspension(row)
            elif kind == RowType.EXECUTION_STARTED:
                self.run_attempt = row.attempt or 1
            if kind in _MADE_BY_CODE:
                self.last_command_seq = row.seq
                if kind in _SET_OPERATIONS:
                    self.set_operations.append(row)
        if row is not None:
            self.next_seq = row.seq + ROW_WIDTH.get(row.type, 1)
        if next_seq > self.next_seq:
            self.next_seq = next_seq

    def _add_attempt(self, child: int, row: Row) -> None:
        recorded = self._attempts.get(child)
        if recorded is None:
            recorded = self._attempts[child] = _Recorded(row)
        elif row.data:
            # it is read and forgotten
            self.size -= len(row.data)
        recorded.unread.append(row)

    def _add_suspension(self, row: Row) -> None:
        self.suspend_seq = row.seq
        if not row.data:
            return
        on = msgspec.json.decode(row.data, type=_Awaiting).on
        self.open_receives.update(set(on).difference(self.allocated))
        self.max_child = max(self.max_child, *on, -1)

    def attempts(self, child: int) -> Attempts:
        """Return the recorded attempts of a step that is not completed."""
        recorded = self._attempts.get(child)
        if recorded is None:
            return NO_ATTEMPTS
        recorded.read()
        is_begun = recorded.begun > recorded.ended
        return Attempts(
            attempt=recorded.begun if is_begun else recorded.ended + 1,
            failures=recorded.ended - recorded.interrupted,
            retry_at_ms=recorded.last.retry_at,
            begun=is_begun,
            interrupted=recorded.last.interrupted,
            recorded_retry=_recorded_retry(recorded.first),
        )

    def neighbours(self, child: int) -> tuple[str, ...]:
        """Return one line for each recorded child from the one before to the one after."""
        around = range(max(0, child - 1), child + 2)
        return tuple(f"{n}: {describe_row(self.allocated[n])}" for n in around if n in self.allocated)


def _recorded_retry(row: Row) -> str | None:
    """Return the retry policy in the first row of a step; "" if it was begun without one, None if unknown."""
    if row.type not in _BEGINNINGS or not row.data:
        return None
    try:
        policy = bytes(msgspec.json.decode(row.data, type=_Begun).retry).decode()
    except msgspec.ValidationError:
        return None
    return "" if policy == "null" else policy


def describe_row(row: Row) -> str:
    """Return how a row reads in an error: kind, name and input."""
    if row.type in _SET_OPERATIONS:
        return describe_operation(_SET_OPERATIONS[row.type], row.child, row.attempt)
    kind = _KINDS.get(row.type, f"row of type {row.type}")
    return describe_call(kind, row.name, _recorded_input(row), row.hash)


def describe_call(
    kind: str, name: str | None, param: str | bytes | None = None, input_hash: str | None = None
) -> str:
    """Return how a call reads in an error.

    Args:
        kind: kind of the call.
        name: step, workflow, promise or signal name.
        param: JSON text of its input, if that is known.
        input_hash: input hash, if it has one.
    """
    text = f"{kind} {name}" if name else kind
    if param is None:
        return f"{text} (of its input the journal keeps only the hash, {input_hash})" if input_hash else text
    shown = " ".join((param.decode(errors="replace") if isinstance(param, bytes) else param).split())
    if len(shown) > _INPUT_MAX:
        shown = f"{shown[:_INPUT_MAX]}…, hash {input_hash}"
    return f"{text} (input {shown})"


def _recorded_input(row: Row) -> str | None:
    """Return the input of a step that was begun before it ended; other rows hold only its hash."""
    if row.type != RowType.STEP_STARTED or not row.data:
        return None
    try:
        return bytes(msgspec.json.decode(row.data, type=_Begun).input).decode() or None
    except msgspec.DecodeError:
        return None


def describe_operation(verb: str, child: int | None, join_set: int | None) -> str:
    """Return how an operation on a join set reads in an error."""
    return f"{verb} of child {child} by join set {join_set}"


def outcome_row(outcome: StepOutcome, seq: int, history: History) -> Row:
    """Return the row that a turn records for a step outcome.

    Args:
        outcome: the outcome that the worker reported.
        seq: logical number of the row.
        history: the journal before it, which decides between fused and separate row types.
    """
    data: str | None = None
    if outcome.begun:
        policy = f', "retry": {outcome.retry}' if outcome.retry else ""
        kinds, data = _STARTED, f'{{"input": {outcome.param}{policy}}}'
    elif outcome.value is not None:
        kinds, data = _COMPLETED, outcome.value
    elif outcome.retry_in_ms is None:
        kinds, data = _FAILED, outcome.error
    else:
        kinds = _RETRYING
    first, later, end = kinds
    if outcome.child not in history.allocated:
        kind = first
    else:
        kind = end if history.attempts(outcome.child).begun else later
    return Row(seq, kind, outcome.child, outcome.attempt, outcome.name, outcome.hash, data)


def add_outcomes(history: History, outcomes: Sequence[StepOutcome]) -> None:
    """Append the rows that a turn recorded for step outcomes."""
    for outcome in outcomes:
        history.add((outcome_row(outcome, history.next_seq, history),))
