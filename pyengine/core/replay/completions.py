"""The result of a call, read from its completion row: a value, or an error of the right class.

Lives here: from a completion row to what workflow code sees. May not: which call a row belongs to
(machine.py). The theory: code sees what the journal holds, read by the annotation that the code declares
today. An error that the database made itself (a deadline, a cancellation) becomes the Python class for it.
"""

from __future__ import annotations

from typing import cast

import msgspec

from pyengine.core.loop.awaitables import Call
from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.protocol.journal import ERRORS, RESULTS, SETTLING, Row, RowType
from pyengine.core.replay.call_sequence import CallSequence
from pyengine.core.replay.history import History
from pyengine.core.values.codec import Codec, unreadable
from pyengine.core.values.error_records import describe_error
from pyengine.errors import RemoteError, RunCancelled, RunFailed, RunTimedOut

_VALUES = RESULTS | {RowType.SIGNAL_RECEIVED}
_ENDED_BY_DATABASE: dict[str | None, tuple[type[RunFailed], str]] = {
    "Timeout": (RunTimedOut, "did not end before its deadline"),
    "Cancelled": (RunCancelled, "was cancelled"),
}
_SENT_UNCHECKED = (
    "it was sent before its type was registered, or its sender gave the name only; `except DecodeError` "
    "around ctx.receive goes on, and the next receive gets the next signal"
)
_ANSWERED = (
    "whoever answered gave another value than the code declares, or the code has changed since; `except "
    "DecodeError` around the await goes on, and another ctx.promise asks again"
)
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, RecursionError)


class _FireAt(msgspec.Struct):
    fire_at: int | None = None


def complete(call: Call, row: Row, codec: Codec) -> None:
    """Complete a call with the value or error of a row."""
    kind = row.type
    if kind in _VALUES or (kind in SETTLING and row.ok):
        read_into(call, row)
    elif kind in ERRORS:
        call.fail(codec.decode_error(row.data))
    elif kind == RowType.TIMER_FIRED:
        call.set_result(None)
    else:
        error = _child_error(call, row, codec)
        if not (type(error) is RunCancelled and call.end_asked()):
            call.fail(error)


def read_into(call: Call, row: Row) -> None:
    """Complete a call with the value of a row, or with DecodeError if the code cannot read it."""
    try:
        call.set_result(call.codec.unpack(row.data or "null"))
    except _UNREADABLE as error:
        run = cast("DeterministicLoop", call.get_loop()).run_id
        if call.kind == "receive":
            where = f"the payload of signal {call.name} (run {run}, child {call.child})"
            call.fail(unreadable(where, call.codec.annotation, error, hint=_SENT_UNCHECKED))
            return
        if call.kind == "promise":
            where = f"the answer to promise {call.name} ({call.id})"
            call.fail(unreadable(where, call.codec.annotation, error, hint=_ANSWERED))
            return
        where = f"the recorded result of {call.kind} {call.name} (run {run}, child {call.child})"
        call.fail(unreadable(where, call.codec.annotation, error))


def _child_error(call: Call, row: Row, codec: Codec) -> BaseException:
    """Return what a child run or promise that was not resolved raises in the code that waits for it."""
    error = codec.decode_error(row.data)
    # an error that the database made itself has no module
    name = error.type if type(error) is RemoteError and error.module is None else None
    if call.kind in ("promise", "remote call"):
        if name == "Timeout":
            return TimeoutError(f"{call.kind} {call.id} timed out")
        if name == "Cancelled" and call.kind == "remote call":
            return RunCancelled(
                f"call {call.id} of {call.name} was cancelled", run_id=call.id, workflow=call.name
            )
        return error
    if name in _ENDED_BY_DATABASE:
        cls, reason = _ENDED_BY_DATABASE[name]
        return cls(f"run {call.id} of workflow {call.name} {reason}", run_id=call.id, workflow=call.name)
    failed = RunFailed(
        f"run {call.id} of workflow {call.name} failed: {describe_error(error)}",
        run_id=call.id,
        workflow=call.name,
    )
    failed.__cause__ = error
    return failed


def virtual_s(row: Row, sequence: CallSequence) -> float:
    """Return the virtual time of a timer, in seconds: its nominal instant, not when it fired."""
    assert row.child is not None
    instant_ms = fire_at_ms(row, sequence.history)
    if instant_ms is None and (instant_ms := sequence.fire_at_ms.pop(row.child, None)) is None:
        return sequence.loop.time()
    return (instant_ms - sequence.run.started_at_ms) / 1000


def fire_at_ms(row: Row, history: History) -> int | None:
    """Return the nominal instant of a timer that fired, epoch milliseconds; None if no row holds it."""
    started = history.allocated.get(row.child) if row.child is not None else None
    for data in (row.data, started.data if started is not None else None):
        instant = msgspec.json.decode(data, type=_FireAt).fire_at if data else None
        if instant is not None:
            return instant
    return None
