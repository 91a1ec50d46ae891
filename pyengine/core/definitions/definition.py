"""Definitions of decorated functions.

Lives here: `StepDef` and `WorkflowDef`, immutable. May not: calling or finding them (registry.py).
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from pyengine.core.definitions.code_check import Hazard
from pyengine.core.definitions.retry import NO_RETRY, Retry
from pyengine.core.definitions.signals import Signal
from pyengine.core.definitions.signatures import Signature
from pyengine.errors import InvalidRequest

OnInterrupt: TypeAlias = Literal["retry", "fail"]

# a digest of code: 28 bytes of the code, these two, and the major and the minor version of its Python
_CODE_BYTES = 28
_PYTHON = b"py"
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def python_of(digest: str) -> str | None:
    """Return the Python that a digest of code names, such as "3.11"; None if it is of a worker of 0.1.0."""
    whole = bytes.fromhex(digest)
    named = whole[_CODE_BYTES:-2] == _PYTHON
    return f"{whole[-2]}.{whole[-1]}" if named else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDef:
    """The definition of a step.

    Args:
        fn: the plain function.
        name: its name in the journal; a new name is a change of code.
        retry: its retry policy.
        timeout_ms: limit of one attempt, milliseconds, which then fails with StepTimeout; None means none.
        intent: record the attempt and its arguments before it begins.
        on_interrupt: "retry" if an attempt cut off by a crash is made again.
        is_async: whether `fn` returns an awaitable.
        signature: binds, encodes and decodes its arguments and result.
        key: the prefix of its calls' hash input (see `input_hash`).

    Attributes:
        records_itself: whether the database executes and records an attempt in one statement.
    """

    records_itself: ClassVar[bool] = False

    fn: Callable[..., Any]
    name: str
    retry: Retry = NO_RETRY
    timeout_ms: int | None = None
    intent: bool = False
    on_interrupt: OnInterrupt = "retry"
    is_async: bool = True
    signature: Signature = field(repr=False)
    key: bytes = field(repr=False)


class Home(Protocol):
    """The registry of an app, as its workflows see it."""

    def find(self, name: str, version: str | None = None) -> WorkflowDef | None:
        """Return its workflow of that name and version, or None."""
        ...

    def hazards(self, function: Callable[..., Any]) -> Sequence[Hazard]:
        """Return what its checks find in the code of a workflow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDef:
    """The definition of a workflow.

    Args:
        fn: the plain async function.
        name: the name by which runs are started.
        version: claims match name and version.
        queue: queue of its runs unless the start names one; None means the default, for a child run the
            parent's.
        deadline_ms: limit of a whole run, milliseconds; a longer one times out; None means no limit.
        retry: how often and when a failed run is tried again from its beginning.
        signals: declared signals; with those that its code names they are all that it receives. None means
            that none are declared (see features/checks/received_signals.py).
        any_signal: whether signals of other names are accepted.
        signature: binds, encodes and decodes its arguments and result.
        home: the registry of its app; None outside of one.
    """

    fn: Callable[..., Coroutine[Any, Any, Any]]
    name: str
    version: str = "1"
    queue: str | None = None
    deadline_ms: int | None = None
    retry: Retry = NO_RETRY
    signals: tuple[Signal[Any], ...] | None = None
    any_signal: bool = False
    signature: Signature = field(repr=False)
    home: Home | None = field(default=None, repr=False, compare=False)

    def refuse_namesake(self, home: Home | None) -> None:
        """Refuse a workflow of another app where a workflow of this name is at home: that one would run.

        Raises:
            InvalidRequest: it is so.
        """
        if home is None or self.home is None or self.home is home:
            return
        known = home.find(self.name, self.version)
        if known is not None and known is not self:
            raise InvalidRequest(
                f"workflow {self.name!r} of {self.place[0]} belongs to another App, and this App has a "
                f"workflow of that name, of {known.place[0]}; that one would run",
                hint="names are global in a database: give one of them another name= or version=",
            )

    @property
    def place(self) -> tuple[str, str]:
        """Its module and its parameters, as a worker registers them for people."""
        module = self.fn.__module__
        if module == "__main__":
            main = sys.modules["__main__"]
            spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
            module = spec.name if spec is not None else Path(file).stem if file else module
        return module, self.signature.parameters

    def digest(self, loop_version: int | str) -> str:
        """Return 64 hex digits that change with the code, the Python minor version or the loop; the last
        eight name that Python (decisions/0131).

        Args:
            loop_version: version of the deterministic loop that will drive it.
        """
        try:
            source = inspect.getsource(self.fn)
        except (OSError, TypeError):
            code = self.fn.__code__
            source = f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
        hashed = hashlib.sha256(f"{source}\0{loop_version}".encode()).digest()[:_CODE_BYTES]
        return (hashed + _PYTHON + bytes(map(int, THIS_PYTHON.split(".")))).hex()
