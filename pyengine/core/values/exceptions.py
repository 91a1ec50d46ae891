"""Exceptions to JSON text and back.

Lives here: `ExceptionCodec`, and `error_kind`. May not: retry decisions, values of steps. The form is
`{"type", "module", "message", "kind", "args", "data"?, "exceptions"?, "traceback"?, "origin"?, "cause"?,
"retryable", "lossy"?}`: `args` and `data` are the exception's arguments and attributes as plain JSON, and
`origin` is where it was raised: run, step, attempt, worker, file, line. Decoding never runs
an unknown `__init__`: as pickle does, it allocates the exception and sets arguments and attributes. It does
so only if the class is known (registered, or in a module that is imported already) and the attributes fit
their annotations. Any other record becomes a `RemoteError` with all its fields. Encoding never fails: a value
that cannot be encoded is replaced by its `repr` and "lossy" is set; of an error over the size limit only
class, message and traceback remain, cut short.
"""

from __future__ import annotations

import builtins
import math
import sys
import typing
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

import msgspec

from pyengine import errors
from pyengine.core.values.depth import is_deep
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
    set_cause,
    traceback_of,
)
from pyengine.core.values.pydantic_models import read_unknown, write_unknown
from pyengine.core.values.tracebacks import place_of, recorded_of, remember, traceback_text
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

MAX_ERROR_BYTES = 1 << 20
"""An error whose text is longer is cut."""

MIN_ERROR_BYTES = 4096
"""The limit on errors is never lower, however low that on payloads: errors must be able to report it."""

_MAX_DEPTH = 8
_NO_NAMES: frozenset[str] = frozenset()


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
        return kind if kind in _KINDS else _kind_of_record({"type": vars(error).get("type")})
    if not issubclass(type(error), BaseException):
        return _kind_of_record(error)
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


def _kind_of_record(record: object) -> ErrorKind:
    if not isinstance(record, dict):
        return "Uncategorized"
    kind, name = record.get("kind"), record.get("type")
    if kind in _KINDS:
        return typing.cast("ErrorKind", kind)
    return _NAMED.get(name, "UserError") if isinstance(name, str) else "Uncategorized"


class ExceptionCodec:
    """Encodes and decodes exceptions.

    Args:
        classes: exception classes by (module, qualified name) that may be decoded, besides builtin and
            imported ones; looked up at each use, so the mapping may grow.
        max_bytes: limit on the text of an error.
        worker: id of the worker that records errors; part of their origin.
    """

    def __init__(
        self,
        classes: Mapping[tuple[str, str], type[BaseException]] | None = None,
        *,
        max_bytes: int = MAX_ERROR_BYTES,
        worker: str | None = None,
    ) -> None:
        self._classes = {} if classes is None else classes
        self._max_bytes = max_bytes
        self._worker = worker

    def encode(self, error: BaseException, **origin: str | int) -> str:
        """Return the JSON text of an error; never fails.

        Args:
            error: the error.
            origin: the run, step and attempt that raised it, unless it was read from a journal.
        """
        record = asked(lambda: _describe(error, 0), None) or _bare(error)
        if origin and "origin" not in record:
            record["origin"] = self._origin(error, origin)
        packed = msgspec.json.encode(record)
        if len(packed) > self._max_bytes or is_deep(packed):
            packed = msgspec.json.encode(_cut(record, self._max_bytes))
        return packed.decode()

    def unseen(self, error: BaseException, why: str, **origin: str | int) -> str:
        """Return the JSON text of an error at which nobody may look, with a message in place of its own."""
        record = _bare(error, why)
        record["origin"] = self._origin(error, origin)
        return msgspec.json.encode(record).decode()

    def _origin(self, error: BaseException, origin: Mapping[str, str | int]) -> dict[str, str | int]:
        """Return where an error was raised."""
        found = dict(origin)
        if self._worker is not None:
            found["worker"] = self._worker
        place = place_of(traceback_of(error))
        if place is not None:
            found["file"], found["line"] = _clean(place[0]), place[1]
        return found

    def decode(self, text: str | None) -> BaseException:
        """Return the error (not raised) of a JSON text; never fails.

        Args:
            text: the result of `encode`, or any other JSON or text, or None.
        """
        try:
            record = msgspec.json.decode(text) if text else None
        except (msgspec.DecodeError, RecursionError):
            record = text
        try:
            return self._build(record)
        except RecursionError:
            # only a row that was not written by this engine has so many causes, or is so deep
            return _remote({"message": "an error with more causes than can be followed"}, None)
        except BaseException:  # boundary to user code: a class may do anything when it is set up
            return _remote(record if isinstance(record, dict) else {}, None)

    def _build(self, record: Any) -> BaseException:
        if not isinstance(record, dict):
            message = "unknown error" if record is None else msgspec.json.encode(record).decode()
            return _remote({"message": record if isinstance(record, str) else message}, None)
        cause = None if record.get("cause") is None else self._build(record["cause"])
        error = self._known(record)
        if error is None:
            error = _remote(record, cause)
        else:
            set_cause(error, cause)
        remember(error, record.get("traceback"), record.get("origin"))
        return error

    def _known(self, record: dict[str, Any]) -> BaseException | None:
        cls = self._find(record.get("module"), record.get("type"))
        args, data = record.get("args", []), record.get("data") or {}
        if cls is None or not isinstance(args, list) or not isinstance(data, dict):
            return None
        if "args" not in record and isinstance(record.get("message"), str):
            args = [record["message"]]
        lossy = record.get("lossy") is True
        try:
            if issubclass(cls, BaseExceptionGroup):
                return _group(cls, args, [self._build(one) for one in record.get("exceptions", ())])
            if cls.__module__ == "builtins":
                error = cls(*args)
                error.__dict__.update(data)
                return error
            return None if lossy else _rebuild(cls, args, data)
        except (TypeError, ValueError, AttributeError, NameError, msgspec.ValidationError):
            return None

    def _find(self, module: Any, name: Any) -> type[BaseException] | None:
        """Return the exception class of that name, without importing anything."""
        if not isinstance(name, str) or not (module is None or isinstance(module, str)):
            return None
        if module is None:
            named = [cls for (_, known), cls in self._classes.items() if known == name]
            found: Any = named[0] if len(named) == 1 else getattr(errors, name, getattr(builtins, name, None))
        else:
            found = self._classes.get((module, name)) or sys.modules.get(module)
            if found is sys.modules.get(module):
                for part in name.split("."):
                    found = getattr(found, part, None)
        # StopIteration cannot be raised into a coroutine
        usable = isinstance(found, type) and issubclass(found, Exception) and found is not StopIteration
        return found if usable else None


def _group(cls: type[BaseException], args: list[Any], members: list[BaseException]) -> BaseException | None:
    if cls not in (ExceptionGroup, BaseExceptionGroup) or not members:
        return None
    return BaseExceptionGroup(str(args[0]) if args else "", members)


def _rebuild(cls: type[BaseException], args: list[Any], data: dict[str, Any]) -> BaseException | None:
    """Allocate an exception and put its arguments and attributes back; its __init__ does not run."""
    base = next(one for one in cls.__mro__ if one.__module__ == "builtins")
    if cls.__new__ is not base.__new__ or "__setattr__" in cls.__dict__:
        return None
    if issubclass(cls, EngineError) and not data:
        # written by SQL, with a message only
        return cls(*args)
    hints = {name: hint for name, hint in get_type_hints(cls).items() if name in data}
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    for name, value in data.items():
        object.__setattr__(error, name, _read(value, hints.get(name)))
    required = getattr(cls, "__dataclass_fields__", {})
    return error if all(name in data or hasattr(cls, name) for name in required) else None


def _read(value: Any, hint: Any) -> Any:
    return value if hint is None else msgspec.convert(value, hint, str_keys=True, dec_hook=read_unknown)


def _remote(record: dict[str, Any], cause: BaseException | None) -> RemoteError:
    def text(key: str) -> str | None:
        value = record.get(key)
        return value if value is None or isinstance(value, str) else str(value)

    error = RemoteError(
        text("message") or "",
        type=text("type") or "Exception",
        module=text("module"),
        data=record.get("data"),
        traceback=text("traceback"),
        cause=cause,
        retryable=record.get("retryable") is not False,
    )
    # encoding the RemoteError again must give the recorded kind
    error.__dict__["kind"] = _kind_of_record(record)
    return error


def _bare(error: BaseException, why: str = "an error that raises when it is looked at") -> dict[str, Any]:
    """Return the record of an error of which no more than its class is known; it becomes a RemoteError."""
    cls = type(error)
    return {
        "type": _clean(class_name(cls)),
        "module": _clean(class_module(cls)),
        "message": why,
        "kind": asked(lambda: error_kind(error), "UserError"),
        "traceback": "",
        "retryable": True,
        "lossy": True,
    }


def _describe(error: BaseException, depth: int, *, fold: bool = False) -> dict[str, Any]:
    if is_a(error, RemoteError):
        return _describe_remote(typing.cast("RemoteError", error), depth)
    cls = type(error)
    lossy: list[str] = []
    record: dict[str, Any] = {
        "type": _clean(cls.__qualname__),
        "module": _clean(recorded_module(cls)),
        "message": error_message(error),
        "kind": error_kind(error),
        "args": [_plain(arg, lossy) for arg in _arguments(error)],
    }
    data = _attributes(error, lossy)
    if data:
        record["data"] = data
    if is_a(error, BaseExceptionGroup) and depth < _MAX_DEPTH:
        record["exceptions"] = [_describe(one, depth + 1) for one in members_of(error)]
    _add_origin(record, error, fold=fold)
    _add_cause(record, error, depth, fold=fold)
    record["retryable"] = is_retryable(error)
    if lossy:
        record["lossy"] = True
    return record


def _attributes(error: BaseException, lossy: list[str]) -> dict[str, Any]:
    """Return the attributes of an error as plain JSON; declared ones are encoded by their type."""
    values = {name: one for name, one in attributes_of(error).items() if name != RECORDED}
    declared = asked(lambda: frozenset(getattr(type(error), "__dataclass_fields__", ())), _NO_NAMES)
    annotated = asked(lambda: frozenset(getattr(type(error), "__annotations__", ())), _NO_NAMES)
    for name in declared - values.keys():
        value = asked(partial(getattr, error, name), declared)
        if value is not declared:
            values[name] = value
    data: dict[str, Any] = {}
    for name, value in values.items():
        if name in declared or name in annotated:
            value = asked(partial(_written, value), value)
        data[_clean(str(name))] = _plain(value, lossy)
    return data


def _written(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=write_unknown)


def _describe_remote(error: RemoteError, depth: int) -> dict[str, Any]:
    """Return the record of a RemoteError: that of the original error."""
    record: dict[str, Any] = {
        "type": error.type,
        "module": error.module,
        "message": error_message(error),
        "kind": error_kind(error),
    }
    if error.data is not None:
        record["data"] = _plain(error.data, [])
    _add_origin(record, error)
    _add_cause(record, error, depth)
    record["retryable"] = error.retryable
    return record


def _add_origin(record: dict[str, Any], error: BaseException, *, fold: bool = False) -> None:
    record["traceback"] = _clean(traceback_text(error, fold=fold))
    recorded = recorded_of(error)
    if recorded is not None and recorded.origin:
        record["origin"] = recorded.origin


def _add_cause(record: dict[str, Any], error: BaseException, depth: int, *, fold: bool = False) -> None:
    # what the engine found wrong with a value or a request: the frames in which it looked lead nowhere
    fold = fold or (is_a(error, EngineError) and error_kind(error) == "UserError")
    cause = cause_of(error)
    # the limit on depth also ends cycles of causes
    if cause is not None and depth < _MAX_DEPTH:
        record["cause"] = _describe(cause, depth + 1, fold=fold)


def _cut(record: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return a record within the limit; class names fit into the last quarter."""
    return {
        "type": record["type"],
        "module": record["module"],
        "message": _shortened(record["message"], max_bytes // 2),
        "kind": record["kind"],
        "traceback": _shortened(record["traceback"], max_bytes // 4, end=True),
        "retryable": record["retryable"],
        "lossy": True,
    }


def _shortened(text: str, max_bytes: int, *, end: bool = False) -> str:
    """Return the text if it fits, else its beginning (or its end) and its original length."""
    if len(msgspec.json.encode(text)) <= max_bytes:
        return text
    note = f"[cut: it had {len(text)} characters]"
    # a character takes one to six bytes, as an escape: shorten until it fits
    length = min(max_bytes, len(text))
    while True:
        short = f"{note} {text[len(text) - length :]}" if end else f"{text[:length]} {note}"
        if length == 0 or len(msgspec.json.encode(short)) <= max_bytes:
            return short
        length = length * 3 // 4


def parts_of(error: BaseException) -> Iterator[Any]:
    """Yield what an error and its causes carry: all that is written of them, except tracebacks."""
    for _ in range(_MAX_DEPTH):
        yield arguments_of(error)
        yield attributes_of(error)
        cause = cause_of(error)
        if cause is None:
            return
        error = cause


def _arguments(error: BaseException) -> tuple[Any, ...]:
    # the second argument of a group is its members, which have a field of their own
    return arguments_of(error)[: 1 if is_a(error, BaseExceptionGroup) else None]


def error_message(error: BaseException) -> str:
    """Return the message of an error, whatever its class does when it is asked for."""
    text = asked(lambda: error.message if isinstance(error, EngineError) else str(error), None)
    return _clean(_repr(error) if text is None else text)


def _plain(value: Any, lossy: list[str], depth: int = 0) -> Any:
    """Return a plain JSON value; one that is none is replaced by its `repr` and listed in `lossy`."""
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is str and _clean(value) == value:
        return value
    if type(value) in (list, tuple) and depth < _MAX_DEPTH:
        return [_plain(one, lossy, depth + 1) for one in value]
    if type(value) is dict and depth < _MAX_DEPTH and all(type(key) is str for key in value):
        return {_clean(key): _plain(one, lossy, depth + 1) for key, one in value.items()}
    return _degrade(value, lossy)


def _degrade(value: Any, lossy: list[str]) -> str:
    lossy.append(type(value).__name__)
    return _clean(_repr(value))


def _repr(value: Any) -> str:
    return asked(lambda: repr(value), f"<{class_name(type(value))}>")


def _clean(text: str) -> str:
    """Return the text without what Postgres cannot store: NUL and half surrogate pairs."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
