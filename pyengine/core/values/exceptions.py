"""Exceptions to JSON text and back.

Lives here: `ExceptionCodec`, and `error_kind`. May not: retry decisions, values of steps. The form is
`{"type", "module", "bases"?, "message", "kind", "args", "data"?, "fields"?, "lost"?, "form", "exceptions"?,
"traceback"?, "origin"?, "cause"?, "retryable", "lossy"?}`: `args`, `data` and `fields` are arguments,
attributes and what Python keeps of the error (error_values.py), `lost` names attributes that are a `repr`
only, and `origin` is where it was raised: run, step, attempt, worker, file, line. Decoding never runs an
unknown `__init__` (error_building.py), and only knows classes that are registered or in a module that is
imported already. An error whose class is not known, or cannot be made, becomes one of the nearest class that
it derives from, else a `RemoteError` with all its fields. Encoding never fails. Of an error over the size
limit large parts are left out; if that is not enough, only class, message and traceback remain, cut short.
"""

from __future__ import annotations

import builtins
import logging
import sys
import typing
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

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
    set_arguments,
    set_cause,
    traceback_of,
)
from pyengine.core.values.error_building import Unfit, bases_of, error_module, fields_of, found_class, make
from pyengine.core.values.error_first_form import (
    add_plain_parts,
    declared_names,
    own_arguments,
    plain,
    rebuilt,
)
from pyengine.core.values.error_limits import cut_short, lightened
from pyengine.core.values.error_values import (
    PartWriter,
    as_declared,
    clean,
    declared,
    is_declared,
    read_part,
    shown,
)
from pyengine.core.values.step_timed_out import StepTimedOut
from pyengine.core.values.tracebacks import keep_record, place_of, recorded_of, remember, traceback_text
from pyengine.errors import EngineError, RemoteError, recorded_module

logger = logging.getLogger("pyengine.codec")

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
_PARTS_DEPTH = 4  # an error that is a part of another one carries none itself from here on
_WARNED_MAX = 1000
_SECOND_FORM = 4  # the rules since which errors have it
_SECOND_FORM_CLASSES: dict[type, type[BaseException]] = {errors.StepTimeout: StepTimedOut}


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


class _Parts(typing.NamedTuple):
    """The parts of an error in the second form of its record, as `make` takes them."""

    args: list[Any]
    data: dict[str, Any]
    fields: dict[str, Any]
    declared: frozenset[str]
    lost: frozenset[str]
    members: list[BaseException]


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
        self._warned: set[str] = set()

    def encode(self, error: BaseException, *, rules: int | None = None, **origin: str | int) -> str:
        """Return the JSON text of an error; never fails.

        Args:
            error: the error.
            rules: of its run, by which the form of the record is chosen; None if it has none.
            origin: the run, step and attempt that raised it, unless it was read from a journal.
        """
        form = 2 if rules is None or rules >= _SECOND_FORM else 1
        record = asked(lambda: _describe(error, 0, form), None) or _bare(error)
        if origin and "origin" not in record:
            record["origin"] = self._origin(error, origin)
        packed = asked(lambda: msgspec.json.encode(record), b"")
        if not packed:
            return self.unseen(error, "an error that cannot be written as JSON", **origin)
        if len(packed) > self._max_bytes and form == 2:
            packed = msgspec.json.encode(lightened(record, self._max_bytes // 8))
        if len(packed) > self._max_bytes or is_deep(packed):
            packed = msgspec.json.encode(cut_short(record, self._max_bytes))
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
            found["file"], found["line"] = clean(place[0]), place[1]
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
        """Return the error of a record, of its class or of the nearest that it derives from; None if there is
        none.
        """
        if record.get("form") != 2:
            cls = self._find(record.get("module"), record.get("type"))
            members = [self._build(one) for one in record.get("exceptions") or ()]
            return None if cls is None else rebuilt(cls, record, members)
        names, why = [[record.get("module"), record.get("type")], *(record.get("bases") or ())], ""
        parts: _Parts | None = None
        for module, name in names:
            cls = found_class(self._classes, str(module), str(name))
            if cls is None:
                why = why or "its class is not known here"
                continue
            try:
                # once for all classes: the members of a group may be groups themselves
                parts = parts or self._parts(record)
                error = _made(cls, record, parts)
            except (Unfit, ValueError) as problem:
                why = why or str(problem)
                continue
            if why:
                keep_record(error, record)
                self._warn(names[0], f"{module}.{name}", why)
            return error
        self._warn(names[0], "pyengine.RemoteError", why)
        return None

    def _parts(self, record: dict[str, Any]) -> _Parts:
        """Return what a record holds of its error.

        Raises:
            ValueError: it holds something that cannot be read.
        """
        lost = frozenset(record.get("lost") or ())
        data = {name: one for name, one in (record.get("data") or {}).items() if name not in lost}
        return _Parts(
            args=[read_part(one, self._build) for one in record.get("args", [record.get("message")])],
            data={name: read_part(one, self._build) for name, one in data.items()},
            fields={name: read_part(one, self._build) for name, one in (record.get("fields") or {}).items()},
            declared=frozenset(name for name, one in data.items() if is_declared(one)),
            lost=lost,
            members=[self._build(one) for one in record.get("exceptions") or ()],
        )

    def _warn(self, recorded: list[Any], became: str, why: str) -> None:
        """Log, once for each class, that its errors come back as another one."""
        name = f"{recorded[0]}.{recorded[1]}"
        if name not in self._warned and len(self._warned) < _WARNED_MAX:
            self._warned.add(name)
            logger.warning("an error %s came back from the journal as %s: %s", name, became, why)

    def _find(self, module: Any, name: Any) -> type[BaseException] | None:
        """Return the class of a record in its first form, or of one by SQL, without importing anything."""
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


def _made(cls: type[BaseException], record: dict[str, Any], parts: _Parts) -> BaseException:
    """Return the error of a record as one of a class.

    Raises:
        Unfit, ValueError: it cannot be made.
    """
    error = make(
        _SECOND_FORM_CLASSES.get(cls, cls),
        list(parts.args),
        dict(parts.data),
        dict(parts.fields),
        declared=parts.declared,
        lost=parts.lost,
        members=list(parts.members),
    )
    message, is_plain = record.get("message"), type(error).__str__ is BaseException.__str__
    if record.get("lossy") and is_plain and error_message(error) != message:
        # the text was made of arguments that were lost
        set_arguments(error, (message,))
    return error


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
        "type": clean(class_name(cls)),
        "module": clean(class_module(cls)),
        "message": why,
        "kind": asked(lambda: error_kind(error), "UserError"),
        "traceback": "",
        "retryable": True,
        "lossy": True,
    }


def _describe(error: BaseException, depth: int, form: int, *, fold: bool = False) -> dict[str, Any]:
    kept = recorded_of(error)
    if form == 2 and kept is not None and kept.record is not None:
        # the caller adds to it
        return dict(kept.record)
    if is_a(error, RemoteError):
        return _describe_remote(typing.cast("RemoteError", error), depth, form)
    cls = type(error)
    record: dict[str, Any] = {
        "type": clean(class_name(cls)),
        "module": clean(recorded_module(cls) if form == 1 else error_module(cls)),
        "message": error_message(error),
        "kind": error_kind(error),
    }
    is_lossy = _add_parts(record, error, depth) if form == 2 else add_plain_parts(record, error)
    if is_a(error, BaseExceptionGroup) and depth < _MAX_DEPTH:
        record["exceptions"] = [_describe(one, depth + 1, form) for one in members_of(error)]
    _add_origin(record, error, fold=fold)
    _add_cause(record, error, depth, form, fold=fold)
    record["retryable"] = is_retryable(error)
    if is_lossy:
        record["lossy"] = True
    return record


def _add_parts(record: dict[str, Any], error: BaseException, depth: int) -> bool:
    """Add arguments, attributes and base classes to a record; return whether a part of it was lost."""
    deep = depth >= _PARTS_DEPTH
    parts = PartWriter(None if deep else lambda one: _describe(one, max(depth + 1, _PARTS_DEPTH), 2))
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


def _describe_remote(error: RemoteError, depth: int, form: int) -> dict[str, Any]:
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
    _add_cause(record, error, depth, form)
    record["retryable"] = error.retryable
    return record


def _add_origin(record: dict[str, Any], error: BaseException, *, fold: bool = False) -> None:
    record["traceback"] = clean(traceback_text(error, fold=fold))
    recorded = recorded_of(error)
    if recorded is not None and recorded.origin:
        record["origin"] = recorded.origin


def _add_cause(
    record: dict[str, Any], error: BaseException, depth: int, form: int, *, fold: bool = False
) -> None:
    # what the engine found wrong with a value or a request: the frames in which it looked lead nowhere
    fold = fold or (is_a(error, EngineError) and error_kind(error) == "UserError")
    cause = cause_of(error)
    # the limit on depth also ends cycles of causes
    if cause is not None and depth < _MAX_DEPTH:
        record["cause"] = _describe(cause, depth + 1, form, fold=fold)


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
