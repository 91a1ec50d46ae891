"""Rows of the journal, as the worker reads them.

Lives here: `Row`, its types, and their properties: how many logical events a row stands for, which rows
allocate a child number and which complete a child. May not: reading or writing a journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Self

import msgspec


class RowType(StrEnum):
    """The type of a journal row; `durable.journal_types()` in the database has the same words.

    The name of a row with one logical event is the name of that event. An invocation of a step or of a child
    run has up to three events in a row: `step_*` begins with the scheduling of the step, `attempt_*` and
    `last_attempt_*` with the start of an attempt; `open_*` ends something that an earlier row started.
    """

    EXECUTION_STARTED = "execution_started"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_FAILED = "execution_failed"
    CANCEL_REQUESTED = "cancel_requested"
    EXECUTION_CANCELLED = "execution_cancelled"
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    FIRST_ATTEMPT_FAILED = "first_attempt_failed"
    STEP_STARTED = "step_started"
    STEP_SCHEDULED = "step_scheduled"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_FAILED = "attempt_failed"
    LAST_ATTEMPT_COMPLETED = "last_attempt_completed"
    LAST_ATTEMPT_FAILED = "last_attempt_failed"
    OPEN_ATTEMPT_FAILED = "open_attempt_failed"
    OPEN_STEP_COMPLETED = "open_step_completed"
    OPEN_STEP_FAILED = "open_step_failed"
    CHILD_RUN_SCHEDULED = "child_run_scheduled"
    CHILD_RUN_STARTED = "child_run_started"
    CHILD_RUN_INTERRUPTED = "child_run_interrupted"
    CHILD_SETTLED = "child_settled"
    OPEN_CHILD_SETTLED = "open_child_settled"
    PROMISE_REGISTERED = "promise_registered"
    TIMER_SCHEDULED = "timer_scheduled"
    TIMER_FIRED = "timer_fired"
    RANDOM_GENERATED = "random_generated"
    TIME_RECORDED = "time_recorded"
    SIGNAL_DELIVERED = "signal_delivered"
    SIGNAL_RECEIVED = "signal_received"
    JOIN_SET_CREATED = "join_set_created"
    JOIN_SET_SUBMITTED = "join_set_submitted"
    JOIN_SET_AWAITED = "join_set_awaited"
    EXECUTION_AWAITING = "execution_awaiting"
    EXECUTION_RESUMED = "execution_resumed"

    # Enum's own is a Python function, and a replay looks up each row's type several times
    __hash__ = str.__hash__

    @classmethod
    def _missing_(cls, value: object) -> Self:
        """Read a type of a newer database as its word, so that only the run that has such a row diverges."""
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = str(value)
        return unknown


SCHEDULING_STEPS = frozenset(
    {
        RowType.STEP_SCHEDULED,
        RowType.STEP_STARTED,
        RowType.FIRST_ATTEMPT_FAILED,
        RowType.STEP_COMPLETED,
        RowType.STEP_FAILED,
    }
)
"""First rows of a local step."""

RESULTS = frozenset({RowType.STEP_COMPLETED, RowType.OPEN_STEP_COMPLETED, RowType.LAST_ATTEMPT_COMPLETED})
"""Last rows of a local step that has a result."""

ERRORS = frozenset({RowType.STEP_FAILED, RowType.OPEN_STEP_FAILED, RowType.LAST_ATTEMPT_FAILED})
"""Last rows of a local step that failed for good."""

SETTLING = frozenset({RowType.CHILD_SETTLED, RowType.OPEN_CHILD_SETTLED})
"""Ends of child runs and of external promises."""

ALLOCATING = SCHEDULING_STEPS | {
    RowType.CHILD_RUN_SCHEDULED,
    RowType.PROMISE_REGISTERED,
    RowType.TIMER_SCHEDULED,
    RowType.RANDOM_GENERATED,
    RowType.TIME_RECORDED,
    RowType.SIGNAL_RECEIVED,
    RowType.JOIN_SET_CREATED,
}
"""Row types that carry a child number for the first time."""

RESOLVING = RESULTS | ERRORS | SETTLING | {RowType.TIMER_FIRED, RowType.SIGNAL_RECEIVED}
"""Row types that complete a child."""

ROW_WIDTH: Mapping[RowType, int] = MappingProxyType(
    dict.fromkeys(RowType, 1)
    | dict.fromkeys((RowType.STEP_COMPLETED, RowType.STEP_FAILED, RowType.FIRST_ATTEMPT_FAILED), 3)
    | dict.fromkeys(
        (
            RowType.STEP_STARTED,
            RowType.ATTEMPT_FAILED,
            RowType.LAST_ATTEMPT_COMPLETED,
            RowType.LAST_ATTEMPT_FAILED,
            RowType.CHILD_SETTLED,
        ),
        2,
    )
)
"""How many of the twenty logical events a row of each type stands for."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One journal row as the turn returns it: an array in this order.

    Args:
        seq: logical number of its first event.
        type: what it stands for.
        child: child number, or None for events of the run itself.
        attempt: attempt number of a step, counted from 1; number of the delivery of a signal; number of the
            join set of a member.
        name: step, workflow, promise or signal name.
        hash: 16 hex digits of the input hash.
        data: JSON text; its meaning depends on the type.
        ok: of the end of a child run or promise, whether it was resolved; true for a received signal.
    """

    seq: int
    type: RowType
    child: int | None = None
    attempt: int | None = None
    name: str | None = None
    hash: str | None = None
    data: str | None = None
    ok: bool | None = None
