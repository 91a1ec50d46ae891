"""What the engine knows of a decorated function.

What lives here: `StepDef` and `WorkflowDef`, immutable. What may not: calling them (registry.py), finding
them.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pyengine.definitions.retry import NO_RETRY, Retry
from pyengine.definitions.signatures import Signature

__all__ = ["OnInterrupt", "StepDef", "WorkflowDef"]

OnInterrupt: TypeAlias = Literal["retry", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDef:
    """What the engine knows of a step.

    Args:
        fn: the plain function.
        name: recorded in the journal; renaming a step is a change of code.
        retry: its policy.
        timeout_ms: an attempt that takes longer fails with StepTimeout; None means no limit.
        intent: record the attempt and its arguments before it begins.
        on_interrupt: whether an attempt cut off by a crash is made again.
        is_async: whether `fn` returns an awaitable.
        signature: binds, writes and reads its arguments and result.
        key: what the hash of its calls begins with (see `input_hash`), made once.
    """

    fn: Callable[..., Any]
    name: str
    retry: Retry = NO_RETRY
    timeout_ms: int | None = None
    intent: bool = False
    on_interrupt: OnInterrupt = "retry"
    is_async: bool = True
    signature: Signature = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDef:
    """What the engine knows of a workflow.

    Args:
        fn: the plain async function.
        name: what runs are started by.
        version: claims match name and version.
        queue: queue of its runs unless the starter names one; None means the default, for a child run the
            parent's.
        deadline_ms: a run that takes longer times out; None means no limit.
        signature: binds, writes and reads its arguments and result.
    """

    fn: Callable[..., Coroutine[Any, Any, Any]]
    name: str
    version: str = "1"
    queue: str | None = None
    deadline_ms: int | None = None
    signature: Signature = field(repr=False)

    def digest(self, loop_version: int | str) -> str:
        """Return 64 hex digits that change with the code, the Python minor version or the loop.

        Args:
            loop_version: version of the deterministic loop that will drive it.
        """
        try:
            source = inspect.getsource(self.fn)
        except (OSError, TypeError):
            code = self.fn.__code__
            source = f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256("\0".join((source, python, str(loop_version))).encode()).hexdigest()
