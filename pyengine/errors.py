"""Every error that leaves the engine, and how database errors become Python ones.

    EngineError
    ├── InvalidRequest (WF004)          the request itself is wrong
    ├── NotFound (WF001)                no such run, promise, workflow, queue
    ├── Conflict (WF003)                the state does not allow it
    │   ├── LeaseLost (WF002)           another worker has the lease now
    │   └── RunConflict (WF009)         same id or key, other input
    ├── NotAwaitable (WF005)            waiting for it could never end
    ├── NotTargeted (WF010)             a promise that has no task is named as one
    ├── AwaitCycle (WF012)              a run would wait for itself, through others
    ├── NoRoute (WF013)                 no adapter serves the function of a call
    ├── InputUnresolved (WF014)         an input of a call has no value
    ├── Excised (WF015)                 the content of an object was removed on purpose
    ├── NotAdopted (WF016)              the database is a copy, in which nothing runs yet
    ├── Forbidden (WF011)               switched off here
    ├── NondeterminismError (WF006)     code and journal disagree
    ├── SchemaMismatch (WF007)          library and database schema do not fit
    ├── PayloadTooLarge (WF008)
    ├── EncodeError, DecodeError        a value that cannot be recorded, or read
    ├── Unavailable                     the database is down; try again
    ├── EmbeddedPostgresError           the embedded Postgres could not be started
    ├── ForbiddenInWorkflow             threads, sockets, ... inside workflow code
    ├── StepTimeout, StepInterrupted    a step took too long; was cut off
    ├── RunFailed                       a run ended with an error (it is the cause)
    │   ├── RunTimedOut
    │   └── RunCancelled
    ├── CallFailed                      the work of a content-addressed call failed
    ├── CallAborted                     the engine gave such a call up
    └── RemoteError                     an error whose class is unknown here
    Evicted (BaseException)             control signal, never recorded

A class declares its attributes with defaults, and the constructor takes them by name. The first line of its
docstring is the default message. Every error can be pickled. Nothing here imports the package, except
`core/annotations`, which imports nothing of it.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from pyengine.core.annotations import annotated_names

__all__ = [
    "ERROR_CODES",
    "AwaitCycle",
    "CallAborted",
    "CallFailed",
    "Conflict",
    "DecodeError",
    "EmbeddedPostgresError",
    "EncodeError",
    "EngineError",
    "Evicted",
    "Excised",
    "Forbidden",
    "ForbiddenInWorkflow",
    "InputUnresolved",
    "InvalidRequest",
    "LeaseLost",
    "NoRoute",
    "NondeterminismError",
    "NotAdopted",
    "NotAwaitable",
    "NotFound",
    "NotTargeted",
    "PayloadTooLarge",
    "RemoteError",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunTimedOut",
    "SchemaMismatch",
    "StepInterrupted",
    "StepTimeout",
    "Unavailable",
    "from_sqlstate",
    "passes",
    "recorded_module",
]


class EngineError(Exception):
    """The engine could not do what it was asked to do.

    Args:
        message: the problem and its place.
        detail: facts for the log (the DETAIL of a database error).
        hint: the next thing to try (the HINT of a database error).
        attributes: the attributes that the class declares, each with its default.
    """

    sqlstate: ClassVar[str | None] = None
    is_final: ClassVar[bool] = False  # whether a workflow that fails with it is not tried again
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: vars(cls)[name] for name in annotated_names(cls) if name in vars(cls)}
        cls._defaults = cls._defaults | own

    def __init__(
        self, message: str = "", *, detail: str | None = None, hint: str | None = None, **attributes: Any
    ) -> None:
        super().__init__(message or (type(self).__doc__ or type(self).__name__).splitlines()[0])
        self.detail = detail
        self.hint = hint
        if unknown := attributes.keys() - self._defaults.keys():
            raise TypeError(f"{type(self).__name__} has no attribute {', '.join(sorted(unknown))}")
        vars(self).update(self._defaults | attributes)

    @property
    def message(self) -> str:
        """The message without detail and hint."""
        return str(self.args[0]) if self.args else type(self).__name__

    def __str__(self) -> str:
        more = (("detail", self.detail), ("hint", self.hint))
        return "\n".join([self.message, *(f"{name}: {text}" for name, text in more if text)])


class InvalidRequest(EngineError):
    """The request is wrong in itself; sending it again does not help.

    Attributes:
        takes: the signature of the function, if arguments do not fit it.
    """

    sqlstate = "WF004"
    takes: str | None = None


class NotFound(EngineError):
    """There is no such run, promise, workflow or queue."""

    sqlstate = "WF001"


class Conflict(EngineError):
    """The present state does not allow the request."""

    sqlstate = "WF003"


class LeaseLost(Conflict):
    """Another worker holds the task now; this one must drop it."""

    sqlstate = "WF002"


class RunConflict(Conflict):
    """A run with the same id or key exists and has other input."""

    sqlstate = "WF009"


class NotAwaitable(EngineError):
    """Waiting for this could never end."""

    sqlstate = "WF005"


class NotTargeted(EngineError):
    """A promise without a target has no task: it can neither be acquired nor await."""

    sqlstate = "WF010"


class Forbidden(EngineError):
    """The operation is switched off here."""

    sqlstate = "WF011"


class AwaitCycle(EngineError):
    """A run would wait for itself, through others that wait for it.

    Args:
        path: the run, what it would wait for, whom that waits for, and so on to the run again.
    """

    sqlstate = "WF012"
    path: tuple[str, ...] = ()


class NoRoute(EngineError):
    """No adapter serves this function URI."""

    sqlstate = "WF013"


class InputUnresolved(EngineError):
    """An input of the call has no value: it is pending, failed or was given up."""

    sqlstate = "WF014"


class Excised(EngineError):
    """The content of an object was removed on purpose, so it cannot be read or put again."""

    sqlstate = "WF015"


class NotAdopted(EngineError):
    """The database is a copy of another one; nothing runs in it before it is adopted."""

    sqlstate = "WF016"


class NondeterminismError(EngineError):
    """The workflow code does not do what its journal says it did.

    Args:
        run_id: the run that was halted.
        child: the child number at which code and journal part.
        expected: what the journal holds there, one line.
        got: what the code did there, one line.
        neighbours: up to three lines of the journal around that child.
        again: what the code did there when the same journal was replayed again, one line; None if it did the
            same, so that the code was changed, and is deterministic.
    """

    sqlstate = "WF006"
    run_id: str | None = None
    child: int | None = None
    expected: str | None = None
    got: str | None = None
    neighbours: tuple[str, ...] = ()
    again: str | None = None


class SchemaMismatch(EngineError):
    """The schema in the database does not fit this version of the library."""

    sqlstate = "WF007"


class PayloadTooLarge(EngineError):
    """A value is larger than the limit of the engine.

    Args:
        size: bytes of the encoded value.
        limit: bytes allowed.
        where: the run and the step it belongs to.
    """

    sqlstate = "WF008"
    size: int | None = None
    limit: int | None = None
    where: str | None = None


class _ValueError(EngineError):
    """A value and its text do not fit."""

    where: str | None = None


class EncodeError(_ValueError):
    """A value cannot be written to the journal so that it comes back equal."""


class DecodeError(_ValueError):
    """A recorded text does not fit the type that the code declares."""


class Unavailable(EngineError):
    """The database cannot be reached at the moment; trying again may help."""

    retryable = True


class EmbeddedPostgresError(EngineError):
    """The embedded Postgres could not be found, started or used."""


class ForbiddenInWorkflow(EngineError):
    """Workflow code may not do this, because a replay could not repeat it; do it in a step."""


class StepTimeout(EngineError):
    """A step took longer than its timeout.

    Args:
        step: name of the step.
        timeout_ms: the timeout that it had.
    """

    step: str | None = None
    timeout_ms: int | None = None


class StepInterrupted(EngineError):
    """A step with on_interrupt="fail" was cut off by a crash and is not run again."""

    step: str | None = None


class RunFailed(EngineError):
    """A run ended with an error, which is the cause of this one.

    Args:
        run_id: the run that failed.
        workflow: its workflow name.
    """

    run_id: str | None = None
    workflow: str | None = None


class RunTimedOut(RunFailed):
    """A run did not end before its deadline."""


class RunCancelled(RunFailed):
    """A run was cancelled."""


class CallFailed(EngineError):
    """The work of a content-addressed call failed: that is its result, and pinned.

    Args:
        function: URI of the function.
        node: id of the call node.
        exec_id: the exec record of the failure.
        dag: id of the DAG of the failure; its root is `error`.
        error: {message, type, origin, stack}.
    """

    error: dict[str, Any]

    def __init__(
        self,
        message: str = "",
        *,
        function: str | None = None,
        node: str | None = None,
        exec_id: str | None = None,
        dag: str | None = None,
        error: dict[str, Any] | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.function = function
        self.node = node
        self.exec_id = exec_id
        self.dag = dag
        self.error = error or {}


class CallAborted(EngineError):
    """The engine gave a content-addressed call up; it has no result, and the next call starts again.

    Args:
        code: the reason, such as retry_budget_exhausted, deadline, cancelled, adapter_not_found.
        function: URI of the function.
        node: id of the call node.
        execution_key: the attempt that was given up.
        error: {code, message, cause}; the cause is the last failure, if there was one.
    """

    error: dict[str, Any]
    code: str | None = None
    function: str | None = None
    node: str | None = None
    execution_key: str | None = None

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        function: str | None = None,
        node: str | None = None,
        execution_key: str | None = None,
        error: dict[str, Any] | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = code
        self.function = function
        self.node = node
        self.execution_key = execution_key
        self.error = error or {}


class RemoteError(EngineError):
    """An error that came back from the journal and whose class is not known here.

    Args:
        message: text of the original error.
        type: class name of the original error.
        module: module of that class.
        data: further attributes of the original (JSON values).
        traceback: its traceback as text.
        cause: the error it was raised from.
        retryable: false if the original must not be retried.
    """

    type: str = "Exception"
    module: str | None = None
    data: Any = None
    traceback: str | None = None
    cause: BaseException | None = None
    retryable: bool = True

    def __init__(self, message: str = "", *, type: str = "Exception", **attributes: Any) -> None:
        super().__init__(message or type, type=type, **attributes)
        self.__cause__ = self.cause

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message != self.type else self.type


class Evicted(BaseException):
    """The coroutine is being discarded; the run itself continues elsewhere or later.

    It derives from BaseException, so `except Exception` in user code lets it pass. It is never recorded.
    """


def recorded_module(cls: Any) -> str:
    """Return the module that a journal names for a class.

    A class that the package exports is recorded under the package, so its file may move and old journals
    still find it; every other class is recorded under its own module.
    """
    module: str = getattr(cls, "__module__", "")
    is_public = module.startswith("pyengine.") and cls.__qualname__ in sys.modules["pyengine"].__all__
    return "pyengine" if is_public else module


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
        NoRoute,
        InputUnresolved,
        Excised,
        NotAdopted,
    )
}


# connection exceptions, too many connections, server shutting down or starting
_UNAVAILABLE_CLASSES = ("08",)
_UNAVAILABLE_CODES = frozenset({"53300", "57P01", "57P02", "57P03", "57P05"})


# resources, restarts, disk of the server; no limits (53400) or missing files (58P01), as in `durable._passes`
_TEMPORARY = frozenset(
    {"53000", "53100", "53200", "53300", "57P01", "57P02", "57P03", "57P05", "58000", "58030"}
    | {"25P03", "25P04"}
)
NO_RIGHT = "42501"
RIGHTS = (
    "the owner of the schema types: grant usage on schema durable to ROLE; "
    "grant select, insert, update, delete on all tables in schema durable to ROLE; "
    "grant usage on all sequences in schema durable to ROLE"
)
"""The grants for a role whose statements raise NO_RIGHT."""


def passes(code: str | None) -> bool:
    """Return whether an error is a temporary condition of the server, so that a retry may succeed."""
    return code in _TEMPORARY


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
