"""How errors of the database become ours: one class for each SQLSTATE of class WF.

What lives here: `ERROR_CODES` and `from_sqlstate`. What may not: an error's class (errors.py), a driver.
"""

from __future__ import annotations

from pyengine.errors import (
    AwaitCycle,
    Conflict,
    EngineError,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NondeterminismError,
    NotAwaitable,
    NotFound,
    NotTargeted,
    PayloadTooLarge,
    RunConflict,
    SchemaMismatch,
    Unavailable,
)

__all__ = ["ERROR_CODES", "from_sqlstate", "passes"]

ERROR_CODES: dict[str, type[EngineError]] = {
    str(cls.sqlstate): cls
    for cls in (
        NotFound,
        LeaseLost,
        Conflict,
        InvalidRequest,
        NotAwaitable,
        NotTargeted,
        Forbidden,
        NondeterminismError,
        SchemaMismatch,
        PayloadTooLarge,
        RunConflict,
        AwaitCycle,
    )
}

# connection exceptions, too many connections, server shutting down or starting
_UNAVAILABLE_CLASSES = ("08",)
_UNAVAILABLE_CODES = frozenset({"53300", "57P01", "57P02", "57P03", "57P05"})


# disk full, out of memory, too many connections; the server stops, starts or has restarted; a disk fails.
# Not: limits that somebody has set (53400), files that are not there (58P01). `durable._passes` has the same.
_PASSING = frozenset(
    {
        "53000",
        "53100",
        "53200",
        "53300",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
        "58000",
        "58030",
        "25P03",
        "25P04",
    }
)


def passes(code: str | None) -> bool:
    """Return whether an error tells of the state of the server and not of what was asked: what was under way
    is lost, and the same may work when it is done again.
    """
    return code in _PASSING


def from_sqlstate(
    code: str | None, message: str = "", detail: str | None = None, hint: str | None = None
) -> EngineError:
    """Return the error (not raised) that stands for a database error.

    Args:
        code: five-character SQLSTATE, or None if the error has none.
        message: primary message.
        detail: DETAIL, if any.
        hint: HINT, if any.
    """
    code = code or ""
    cls = ERROR_CODES.get(code)
    if cls is None:
        down = code[:2] in _UNAVAILABLE_CLASSES or code in _UNAVAILABLE_CODES
        cls = Unavailable if down else EngineError
    return cls(message, detail=detail, hint=hint)
