"""Content-addressed calls, as workflow code sees them.

Lives here: `CallOptions`, `CallOutcome`, and the protocols of what can be called (`Callee`) and of a call
that has begun (`CallHandle`). May not: their implementations, which are in calls/, so that `ctx` need not
import them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from pyengine.core.definitions.current_run import WorkflowRuntime

R_co = TypeVar("R_co", covariant=True)

CacheMode: TypeAlias = bool | Literal["scope"]
"""True: use every result that exists; "scope": only those pinned in the scope; False: run again."""

CallStatus: TypeAlias = Literal["ok", "error", "aborted"]


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a call is made; None means what its callee says.

    Args:
        cache: which results may answer it.
        scope: name of the index that holds its pin; None means that of the run.
        share: whether other scopes may use its result, and join it while it runs.
        cache_errors: whether other scopes may use its result if it is a failure.
        retry_errors: whether a failure that is pinned here is tried again.
        timeout_ms: deadline of an attempt that this call starts.
        max_age_ms: results of other scopes that are older are not used.
        request: goes to the adapter with a new attempt, and is no part of the identity.
        name: a label for people, in `show`, `call ls`, and the request of the adapter.
    """

    cache: CacheMode = True
    scope: str | None = None
    share: bool | None = None
    cache_errors: bool | None = None
    retry_errors: bool = False
    timeout_ms: int | None = None
    max_age_ms: int | None = None
    request: Mapping[str, Any] | None = None
    name: str | None = None


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call.

    Args:
        status: "ok"; "error": the work failed; "aborted": the engine gave up and recorded no result.
        value: the value of its result, if it is "ok".
        error: {message, type, origin, stack} of a failure, or {code, message} if it was given up.
        exec_id: the exec record of the result.
        dag: id of the DAG of the result; its root is the value, or describes the failure.
        execution_key: the attempt; None for a result that was there already.
        at: how the call found it: pinned_hit, shared_hit, step_hit, joined, started, aborted.
    """

    status: CallStatus
    value: Any = None
    error: dict[str, Any] | None = None
    exec_id: str | None = None
    dag: str | None = None
    execution_key: str | None = None
    at: str | None = None


class CallHandle(Protocol[R_co]):
    """A content-addressed call that has begun: await it for its value, or pass it on as an input."""

    @property
    def node(self) -> str | None:
        """Id of its call node; None until the call is recorded."""

    @property
    def function(self) -> str:
        """URI of the function."""

    def done(self) -> bool:
        """Whether it has ended, according to this run's journal."""

    async def outcome(self) -> CallOutcome:
        """Wait for its end and return that as a value, also a failure."""

    def retry(self) -> CallHandle[R_co]:
        """Call it again as a new attempt, whose result replaces the pin of this one."""

    async def cancel(self) -> bool:
        """Stop waiting for it here; return whether its attempt ended, as nothing else waits for it."""

    def __await__(self) -> Generator[Any, None, R_co]: ...


class Callee(Protocol[R_co]):
    """A function whose calls are content-addressed: a memo function, or an executable."""

    def begin_call(
        self,
        within: WorkflowRuntime,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> CallHandle[R_co]:
        """Begin a call in the workflow that is running."""
