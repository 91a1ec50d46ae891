"""Records of errors: what is written of one, of its causes, and of the members of a group.

Lives here: `describe`, and what it and its readers ask an error for. May not: the size of a record and
reading it (exceptions.py), parts (error_values.py). The theory: causes, members and parts may lead back to an
error, or to the same one on many ways. An error is not described within itself, and a record has at most
`ERRORS_MAX` of them, so it ends soon.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from pyengine import errors
from pyengine.core.values.error_access import (
    RECORDED,
    arguments_of,
    asked,
    attributes_of,
    cause_of,
    class_module,
    class_name,
    classes_of,
    is_a,
    is_retryable,
    members_of,
)
from pyengine.core.values.error_building import bases_of, error_module, fields_of
from pyengine.core.values.error_first_form import add_plain_parts, declared_names, own_arguments, plain
from pyengine.core.values.error_values import PartWriter, as_declared, clean, declared, shown
from pyengine.core.values.tracebacks import recorded_of, traceback_text
from pyengine.errors import EngineError, RemoteError, recorded_module

ErrorKind: TypeAlias = Literal["Trap", "UserError", "Timeout", "Cancelled", "Nondeterminism", "Uncategorized"]
"""Kind of an error: its author has to act (UserError), the operator (Trap), or as the name says."""

_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)
# kinds of records without one: errors that the database makes, and old rows; the schema's function
# _error_kind has the same table
_NAMED: dict[str, ErrorKind] = {
    "Rejected": "Uncategorized",
    **dict.fromkeys(("Timeout", "TimeoutError", "StepTimeout", "RunTimedOut", "Interrupted"), "Timeout"),
    **dict.fromkeys(("Cancelled", "CancelledError", "RunCancelled"), "Cancelled"),
    **dict.fromkeys(("Nondeterminism", "NondeterminismError"), "Nondeterminism"),
    **dict.fromkeys(("Crashed", "StepInterrupted"), "Trap"),
}
_CLASSED: tuple[tuple[tuple[type[BaseException], ...], ErrorKind], ...] = (
    ((errors.NondeterminismError,), "Nondeterminism"),
    ((errors.StepTimeout, errors.RunTimedOut, TimeoutError), "Timeout"),
    ((errors.RunCancelled,), "Cancelled"),
    ((errors.StepInterrupted, errors.Unavailable, errors.LeaseLost), "Trap"),
    ((errors.SchemaMismatch, errors.EmbeddedPostgresError), "Trap"),
)

ERRORS_MAX = 2000
"""How many errors a record has; of others only the class is kept."""

_MAX_DEPTH = 8
_PARTS_DEPTH = 4  # an error that is a part of another one carries none itself from here on


def error_kind(error: object) -> ErrorKind:
    """Return the kind of an error, which says who has to act on it.

    - Nondeterminism: code and journal disagree (NondeterminismError).
    - Timeout: a step, a run or a promise took too long, or a lease ran out; any TimeoutError.
    - Cancelled: a run, or the code that raised it, was cancelled.
    - Trap: the engine or the machine failed: a crash, a step cut off by one, no database, a plain
      EngineError, an exception that is no Exception (SystemExit).
    - UserError: any other exception, including errors of the engine about a wrong request of the code.
    - Uncategorized: no exception but free JSON, such as a promise that was rejected with a value.

    RunFailed has the kind of its cause, and a group the kind that all its members have.

    Args:
        error: an exception, or the JSON value recorded for one; a record that names its kind has that kind.
    """
    return _kind(error, 0)


def only_error(error: BaseException | None) -> BaseException | None:
    """Return the only member of an exception group (also of nested ones), or the error itself."""
    while error is not None and len(members := members_of(error)) == 1:
        error = members[0]
    return error


def _kind(error: object, depth: int) -> ErrorKind:
    if is_a(error, RemoteError):
        kind = vars(error).get("kind")
        return kind if kind in _KINDS else kind_of_record({"type": vars(error).get("type")})
    if not issubclass(type(error), BaseException):
        return kind_of_record(error)
    error = typing.cast("BaseException", error)
    for classes, kind in _CLASSED:
        if is_a(error, *classes):
            return kind
    if type(error) is errors.RunFailed and error.__cause__ is not None:
        # causes may form a cycle
        return _kind(error.__cause__, depth + 1) if depth < _MAX_DEPTH else "UserError"
    if is_a(error, BaseExceptionGroup):
        kinds = {_kind(one, depth + 1) for one in members_of(error)} if depth < _MAX_DEPTH else set()
        return kinds.pop() if len(kinds) == 1 else "UserError"
    # by name, since this module does not import asyncio
    if any(class_name(cls) == "CancelledError" for cls in classes_of(type(error))):
        return "Cancelled"
    return "UserError" if is_a(error, Exception) and type(error) is not EngineError else "Trap"


def kind_of_record(record: object) -> ErrorKind:
    """Return the kind of a recorded error, which may be of a release that recorded none."""
    if not isinstance(record, dict):
        return "Uncategorized"
    kind, name = record.get("kind"), record.get("type")
    if kind in _KINDS:
        return typing.cast("ErrorKind", kind)
    return _NAMED.get(name, "UserError") if isinstance(name, str) else "Uncategorized"


def bare(error: BaseException, why: str = "an error that raises when it is looked at") -> dict[str, Any]:
    """Return the record of an error of which no more than its class is known; it becomes a RemoteError."""
    cls = type(error)
    return {
        "type": clean(class_name(cls)),
        "module": clean(class_module(cls)),
        "message": why,
        "kind": asked(lambda: error_kind(error), "UserError"),
        "traceback": "",
        "retryable": True,
        "lossy": True,
    }


def describe(error: BaseException, form: int) -> dict[str, Any]:
    """Return the record of an error, in one of its two forms."""
    return _Describer(form).describe(error, 0)


class _Describer:
    """Makes the record of one error."""

    def __init__(self, form: int) -> None:
        self._form = form
        self._left = ERRORS_MAX
        self._above: set[int] = set()

    def describe(self, error: BaseException, depth: int, *, fold: bool = False) -> dict[str, Any]:
        """Return the record of the error, of a cause of it, or of a member."""
        kept = recorded_of(error)
        if self._form == 2 and kept is not None and kept.record is not None:
            # the caller adds to it
            return dict(kept.record)
        if id(error) in self._above or self._left == 0:
            return bare(error, "an error that is a part of itself" if self._left else "one error too many")
        self._left -= 1
        self._above.add(id(error))
        try:
            if is_a(error, RemoteError):
                return self._remote(typing.cast("RemoteError", error), depth)
            return self._known(error, depth, fold=fold)
        finally:
            self._above.discard(id(error))

    def _known(self, error: BaseException, depth: int, *, fold: bool) -> dict[str, Any]:
        cls, second = type(error), self._form == 2
        record: dict[str, Any] = {
            "type": clean(class_name(cls)),
            "module": clean(error_module(cls) if second else recorded_module(cls)),
            "message": error_message(error),
            "kind": error_kind(error),
        }
        is_lossy = self._add_parts(record, error, depth) if second else add_plain_parts(record, error)
        if is_a(error, BaseExceptionGroup) and depth < _MAX_DEPTH:
            record["exceptions"] = [self.describe(one, depth + 1) for one in members_of(error)]
        _add_origin(record, error, fold=fold)
        self._add_cause(record, error, depth, fold=fold)
        record["retryable"] = is_retryable(error)
        if is_lossy:
            record["lossy"] = True
        return record

    def _remote(self, error: RemoteError, depth: int) -> dict[str, Any]:
        """Return the record of a RemoteError: that of the original error."""
        record: dict[str, Any] = {
            "type": error.type,
            "module": error.module,
            "message": error_message(error),
            "kind": error_kind(error),
        }
        if error.data is not None:
            record["data"] = plain(error.data, [])
        _add_origin(record, error)
        self._add_cause(record, error, depth)
        record["retryable"] = error.retryable
        return record

    def _add_parts(self, record: dict[str, Any], error: BaseException, depth: int) -> bool:
        """Add arguments, attributes and base classes to a record; return whether a part of it was lost."""
        below = max(depth + 1, _PARTS_DEPTH)
        parts = PartWriter(None if depth >= _PARTS_DEPTH else lambda one: self.describe(one, below))
        record["args"] = [parts.write(arg) for arg in own_arguments(error)]
        is_lossy, lost = parts.lost, []
        cls = type(error)
        declares = frozenset[str]().union(
            *(asked(partial(declared_names, one), frozenset[str]()) for one in classes_of(cls))
        )
        data: dict[str, Any] = {}
        for name, value in attributes_of(error).items():
            if name == RECORDED or clean(name) != name:
                continue
            parts.lost = False
            data[name] = parts.write(value)
            if parts.lost and name in declares:
                written = asked(partial(declared, value), data)
                if written is not data:
                    data[name], parts.lost = as_declared(written), False
            if parts.lost:
                lost.append(name)
        fields: dict[str, Any] = {}
        for name, value in fields_of(error).items():
            parts.lost = False
            written = parts.write(value)
            if not parts.lost:
                fields[name] = written
        found: dict[str, Any] = {"data": data, "fields": fields, "lost": lost}
        if class_module(cls) != "builtins":
            found["bases"] = bases_of(cls)
        record |= {name: one for name, one in found.items() if one}
        record["form"] = 2
        return is_lossy or bool(lost)

    def _add_cause(
        self, record: dict[str, Any], error: BaseException, depth: int, *, fold: bool = False
    ) -> None:
        # what the engine found wrong with a value or a request: the frames in which it looked lead nowhere
        fold = fold or (is_a(error, EngineError) and error_kind(error) == "UserError")
        cause = cause_of(error)
        if cause is not None and depth < _MAX_DEPTH and id(cause) not in self._above and self._left:
            record["cause"] = self.describe(cause, depth + 1, fold=fold)


def _add_origin(record: dict[str, Any], error: BaseException, *, fold: bool = False) -> None:
    record["traceback"] = clean(traceback_text(error, fold=fold))
    recorded = recorded_of(error)
    if recorded is not None and recorded.origin:
        record["origin"] = recorded.origin


def parts_of(error: BaseException) -> Iterator[Any]:
    """Yield what an error and its causes carry: all that is written of them, except tracebacks."""
    for _ in range(_MAX_DEPTH):
        yield arguments_of(error)
        yield attributes_of(error)
        cause = cause_of(error)
        if cause is None:
            return
        error = cause


def error_message(error: BaseException) -> str:
    """Return the message of an error, whatever its class does when it is asked for."""
    text = asked(lambda: error.message if isinstance(error, EngineError) else str(error), None)
    return clean(shown(error) if text is None else text)
