"""Exceptions to JSON text and back.

Lives here: `ExceptionCodec`. May not: making a record (error_describing.py), retry decisions. The form is
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
from collections.abc import Mapping
from typing import Any

import msgspec

from pyengine import errors
from pyengine.core.rules import SECOND_FORM_RULES
from pyengine.core.values.depth import is_deep
from pyengine.core.values.error_access import (
    asked,
    set_arguments,
    set_cause,
    traceback_of,
)
from pyengine.core.values.error_building import Unfit, found_class, make
from pyengine.core.values.error_describing import bare, describe, error_message, kind_of_record
from pyengine.core.values.error_first_form import (
    rebuilt,
)
from pyengine.core.values.error_limits import cut_short, lightened
from pyengine.core.values.error_values import (
    clean,
    is_declared,
    read_part,
)
from pyengine.core.values.step_timed_out import StepTimedOut
from pyengine.core.values.tracebacks import keep_record, place_of, remember
from pyengine.errors import RemoteError

logger = logging.getLogger("pyengine.codec")

MAX_ERROR_BYTES = 1 << 20
"""An error whose text is longer is cut."""

MIN_ERROR_BYTES = 4096
"""The limit on errors is never lower, however low that on payloads: errors must be able to report it."""

_WARNED_MAX = 1000
_UNKNOWN = "its class is not known here"
_SECOND_FORM_CLASSES: dict[type, type[BaseException]] = {errors.StepTimeout: StepTimedOut}


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

    Attributes:
        replays: whether errors go to code that is replayed. Then a record in its first form becomes what it
            always became: a class of the main program, which another process knows by its file, is not found.
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
        self.replays = True
        self._warned: set[str] = set()

    def encode(self, error: BaseException, *, rules: int | None = None, **origin: str | int) -> str:
        """Return the JSON text of an error; never fails.

        Args:
            error: the error.
            rules: of its run, by which the form of the record is chosen; None if it has none.
            origin: the run, step and attempt that raised it, unless it was read from a journal.
        """
        form = 2 if rules is None or rules >= SECOND_FORM_RULES else 1
        record = asked(lambda: describe(error, form), None) or bare(error)
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
        record = bare(error, why)
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
            if cls is not None and record.get("module") is None:
                # by SQL, which names no module
                cls = _SECOND_FORM_CLASSES.get(cls, cls)
            if cls is None and isinstance(record.get("module"), str) and isinstance(record.get("type"), str):
                self._warn([record["module"], record["type"]], "pyengine.RemoteError", _UNKNOWN)
            return None if cls is None else rebuilt(cls, record, members)
        names, why = [[record.get("module"), record.get("type")], *(record.get("bases") or ())], ""
        parts: _Parts | None = None
        for module, name in names:
            cls = found_class(self._classes, str(module), str(name))
            if cls is None:
                why = why or _UNKNOWN
                continue
            try:
                # once for all classes: the members of a group may be groups themselves
                parts = parts or self._parts(record)
                error = _made(cls, record, parts, is_base=bool(why))
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
        elif not self.replays:
            return found_class(self._classes, module, name)
        else:
            found = self._classes.get((module, name)) or sys.modules.get(module)
            if found is sys.modules.get(module):
                for part in name.split("."):
                    found = getattr(found, part, None)
        # StopIteration cannot be raised into a coroutine
        usable = isinstance(found, type) and issubclass(found, Exception) and found is not StopIteration
        return found if usable else None


def _made(cls: type[BaseException], record: dict[str, Any], parts: _Parts, *, is_base: bool) -> BaseException:
    """Return the error of a record as one of a class: its own, or one that it derives from.

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
    if (is_base or record.get("lossy")) and is_plain and error_message(error) != message:
        # the text was made of arguments that were lost, or by a class that is not this one
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
    error.__dict__["kind"] = kind_of_record(record)
    return error
