"""Events as a client says them: name and payload, one function for each kind.

The run is called j, and children are named by their numbers. Nothing here decides or asserts.
"""

from __future__ import annotations

from typing import Any

from tests.features.journal.keeper import Json

ClientEvent = tuple[str, Json]


def step(child: int, **payload: Any) -> ClientEvent:
    """A function is scheduled."""
    said = {"promise_id": f"j.{child}", "kind": "Function", "function_name": "f", "input": child, **payload}
    return "InvokeScheduled", said


def external(child: int, **payload: Any) -> ClientEvent:
    """An invocation that somebody outside settles is scheduled."""
    return step(child, kind="External", **payload)


def go(child: int, attempt: int = 1) -> ClientEvent:
    """An attempt starts."""
    return "InvokeStarted", {"promise_id": f"j.{child}", "attempt": attempt}


def done(child: int, result: Any = "v", attempt: int = 1) -> ClientEvent:
    """An invocation is complete."""
    return "InvokeCompleted", {"promise_id": f"j.{child}", "attempt": attempt, "result": result}


def failed(child: int, attempt: int = 1) -> ClientEvent:
    """An attempt failed and will be followed by another."""
    error = {"kind": "Trap", "message": "m"}
    return "InvokeRetrying", {
        "promise_id": f"j.{child}",
        "failed_attempt": attempt,
        "error": error,
        "retry_at": 5,
    }


def timer(child: int, duration: int = 1000) -> ClientEvent:
    """A timer is scheduled; the clock of the tests stands at 1,800,000,000,000."""
    fire_at = 1_800_000_000_000 + duration
    return "TimerScheduled", {"promise_id": f"j.{child}", "duration": duration, "fire_at": fire_at}


def fired(child: int) -> ClientEvent:
    """A timer fires."""
    return "TimerFired", {"promise_id": f"j.{child}"}


def wait(kind: str, *children: int) -> ClientEvent:
    """The run blocks."""
    return "ExecutionAwaiting", {"waiting_on": [f"j.{c}" for c in children], "kind": {"tag": kind}}


def wait_signal(child: int, name: str = "s") -> ClientEvent:
    """The run blocks on a signal."""
    kind = {"tag": "Signal", "name": name, "promise_id": f"j.{child}"}
    return "ExecutionAwaiting", {"waiting_on": [f"j.{child}"], "kind": kind}


def sent(payload: Any = "p", name: str = "s", **more: Any) -> ClientEvent:
    """A signal is delivered."""
    return "SignalDelivered", {"signal_name": name, "payload": payload, **more}


def received(child: int, payload: Any = "p", name: str = "s", **more: Any) -> ClientEvent:
    """A signal is received."""
    return "SignalReceived", {"promise_id": f"j.{child}", "signal_name": name, "payload": payload, **more}


def join_set(child: int) -> ClientEvent:
    """A join set is made."""
    return "JoinSetCreated", {"join_set_id": f"j.{child}"}


def member(join_set_: int, child: int) -> ClientEvent:
    """A child is submitted."""
    return "JoinSetSubmitted", {"join_set_id": f"j.{join_set_}", "promise_id": f"j.{child}"}


def taken(join_set_: int, child: int, **outcome: Any) -> ClientEvent:
    """The result of a member is taken."""
    said = {"join_set_id": f"j.{join_set_}", "promise_id": f"j.{child}", **(outcome or {"result": "v"})}
    return "JoinSetAwaited", said


def value(child: int) -> ClientEvent:
    """A random value is captured."""
    return "RandomGenerated", {"promise_id": f"j.{child}", "value": 0.5}


def time(child: int) -> ClientEvent:
    """The time is captured."""
    return "TimeRecorded", {"promise_id": f"j.{child}", "time": 7}


RESUMED: ClientEvent = ("ExecutionResumed", {})
CANCEL: ClientEvent = ("CancelRequested", {"reason": "r"})
CANCELLED: ClientEvent = ("ExecutionCancelled", {"reason": "r"})
COMPLETED: ClientEvent = ("ExecutionCompleted", {"result": 1})
FAILED: ClientEvent = ("ExecutionFailed", {"error": "e"})
BLOCKED: list[ClientEvent] = [step(0), wait("Single", 0)]
