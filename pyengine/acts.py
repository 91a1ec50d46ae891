"""What a coroutine asks for: how much it weighs, and when it is due.

What lives here: functions of acts and endings alone. What may not: a run, the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyengine.model import (
    Act,
    Captured,
    Complete,
    ContinueAsNew,
    Fail,
    Halt,
    Intend,
    MakePromise,
    RolledBack,
    RunChild,
    StartTimer,
)
from pyengine.wire import Ending

__all__ = ["deadlines_ms", "text_bytes", "weight"]

_WITH_PARAM = (RunChild, Intend)
_WITH_VALUE = (Captured, RolledBack)
_WITH_TIMEOUT = (RunChild, MakePromise)


def weight(acts: Iterable[Act], end: Ending | None) -> int:
    """Return how many bytes of payload acts and an ending carry."""
    size = 0
    for act in acts:
        if isinstance(act, _WITH_PARAM):
            size += text_bytes(act.param)
        elif isinstance(act, _WITH_VALUE):
            size += text_bytes(act.value)
    match end:
        case None:
            pass
        case Complete(value=text) | ContinueAsNew(value=text) | Fail(error=text) | Halt(problem=text):
            size += text_bytes(text)
    return size


def text_bytes(text: str) -> int:
    """Return how many bytes a text takes."""
    return len(text) if text.isascii() else len(text.encode())


def deadlines_ms(acts: Iterable[Act]) -> Iterator[int]:
    """Return in how many milliseconds what a coroutine made is due."""
    for act in acts:
        if isinstance(act, StartTimer):
            yield act.duration_ms
        elif isinstance(act, _WITH_TIMEOUT) and act.timeout_ms is not None:
            yield act.timeout_ms
