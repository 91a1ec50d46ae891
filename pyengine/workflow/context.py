"""`ctx`: the interface of the engine for workflow code.

Lives here: the object that people import, typed and documented. May not: a decision; every method calls the
run that the code belongs to (definitions/current_run.py). Workflow code takes time, randomness, ids and waits
only from here, because a replay must find them again. Outside a workflow the methods raise `InvalidRequest`,
whose hint names the alternative there.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from pyengine.definitions.bound_workflow import BoundWorkflow
from pyengine.definitions.current_run import StepInfo, current_step, scope, within_run
from pyengine.definitions.dependencies import Dependencies, current_dependencies
from pyengine.definitions.retry import Duration, Retry, optional_duration, optional_limit, parse_duration
from pyengine.definitions.signals import Signal, check_signal_name
from pyengine.definitions.sql_steps import sql_arguments, sql_step
from pyengine.errors import InvalidRequest
from pyengine.values.codec import type_codec
from pyengine.values.texts import is_text
from pyengine.workflow.context_calls import ContextCalls
from pyengine.workflow.context_failures import ContextFailures
from pyengine.workflow.context_progress import ContextProgress
from pyengine.workflow.context_rpc import ContextRpc
from pyengine.workflow.context_starts import ContextStarts
from pyengine.workflow.context_values import EPOCH, ContextValues
from pyengine.workflow.context_waits import ContextWaits
from pyengine.workflow.handles import ChildRun, DurablePromise, RunLogger
from pyengine.workflow.http import DEFAULT_RETRY, http_request, http_step
from pyengine.workflow.http_records import HttpResponse, Secret

if TYPE_CHECKING:
    from pyengine.replay.transaction import Transaction

__all__ = ["ChildRun", "Context", "DurablePromise", "RunLogger", "ctx"]

T = TypeVar("T")


def _text(value: object, bytes_max: int, kind: str) -> str:
    if not is_text(value, bytes_max):
        raise InvalidRequest(f"{value!r} is not {kind}", hint=f"a text of 1 to {bytes_max} bytes, no NUL")
    return value


class Context(
    ContextStarts, ContextValues, ContextWaits, ContextCalls, ContextRpc, ContextFailures, ContextProgress
):
    """The interface of the engine for workflow code; use the module's `ctx`."""

    __slots__ = ()

    @property
    def run_id(self) -> str:
        """Id of the run that this code belongs to, in a workflow or a step."""
        step = current_step.get()
        return (
            step.run_id if step is not None else within_run("run_id", "the id that app.start returned").run.id
        )

    @property
    def workflow(self) -> str:
        """Name of the workflow."""
        return within_run("workflow", "the workflow's name").run.workflow

    @property
    def step(self) -> StepInfo:
        """Inside a step: run id, child number, attempt, and an idempotency key.

        Raises:
            InvalidRequest: no step is running here.
        """
        info = current_step.get()
        if info is None:
            where = "outside a step" if scope.get() is None else "in workflow code"
            raise InvalidRequest(
                f"ctx.step was used {where}", hint="it is the attempt of the step that is running"
            )
        return info

    @property
    def deps(self) -> Dependencies:
        """The dependencies of the app, in steps: `ctx.deps.mail`, or `ctx.deps[Mail]` with its type.

        Raises:
            InvalidRequest: this is workflow code, or they are not open here.
        """
        if scope.get() is not None:
            raise InvalidRequest(
                "ctx.deps was used in workflow code",
                hint="in steps only: a replay could not repeat what they answer; settings may be arguments",
            )
        found = current_dependencies.get()
        if found is None:
            raise InvalidRequest(
                "ctx.deps was used where no dependencies are open",
                hint="a worker opens them for its steps; elsewhere: async with app.dependencies(): ...",
            )
        return found

    @property
    def log(self) -> RunLogger:
        """A logger that is silent while replaying."""
        return RunLogger(within_run("log", "logging.getLogger"))

    @property
    def replaying(self) -> bool:
        """Whether the run was past this point before; for tracing only, never decide by it."""
        return within_run("replaying", "nothing: only workflow code is replayed").replaying

    # -- timers

    def sleep(self, duration: Duration) -> Coroutine[None, None, None]:
        """Wait durably; it costs nothing meanwhile.

        Args:
            duration: "30s", "1d", seconds, or a timedelta.
        """
        return within_run("sleep()", "asyncio.sleep()").sleep(parse_duration(duration, what="ctx.sleep"))

    def sleep_until(self, instant: datetime) -> Coroutine[None, None, None]:
        """Wait durably until an instant.

        Args:
            instant: with a time zone; one that has passed does not wait.
        """
        within = within_run("sleep_until()", "asyncio.sleep()")
        if instant.tzinfo is None:
            raise InvalidRequest(
                "ctx.sleep_until: the instant has no time zone", hint="datetime(..., tzinfo=timezone.utc)"
            )
        return within.sleep_until(-((EPOCH - instant) // timedelta(milliseconds=1)))

    # -- promises

    @overload
    def promise(
        self, type: type[T], *, timeout: Duration | None = None, name: str = "", id: str | None = None
    ) -> DurablePromise[T]: ...
    @overload
    def promise(
        self, type: Any = Any, *, timeout: Duration | None = None, name: str = "", id: str | None = None
    ) -> DurablePromise[Any]: ...
    def promise(
        self, type: Any = Any, *, timeout: Duration | None = None, name: str = "", id: str | None = None
    ) -> DurablePromise[Any]:
        """Make a promise that is settled from outside, or wait for one that exists already.

        Args:
            type: type of its value.
            timeout: awaiting it raises TimeoutError if it is not settled by then; None means no limit.
            name: a label for people.
            id: an existing promise or run to wait for; it has its own deadline, so no timeout and name here.

        Raises:
            InvalidRequest: the id is this run's own, a child's of this run, or waited for already.
        """
        within = within_run("promise()", "the SQL function durable.create_promise")
        if not is_text(name):
            raise InvalidRequest(f"ctx.promise: {name!r} is no label", hint="a text without NUL")
        timeout_ms = optional_limit(timeout, what="ctx.promise")
        if id is None:
            return cast("DurablePromise[Any]", within.make_promise(type, timeout_ms=timeout_ms, name=name))
        if timeout is not None or name:
            raise InvalidRequest(f"ctx.promise: promise {id!r} has its own deadline and no label here")
        return cast("DurablePromise[Any]", within.adopt(type, _text(id, 512, "the id of a promise")))

    # -- signals

    @overload
    def receive(
        self, signal: Signal[T], /, *, timeout: Duration | None = None
    ) -> Coroutine[None, None, T]: ...
    @overload
    def receive(
        self, signal: str, /, type: type[T], *, timeout: Duration | None = None
    ) -> Coroutine[None, None, T]: ...
    @overload
    def receive(
        self, signal: str, /, type: Any = ..., *, timeout: Duration | None = None
    ) -> Coroutine[None, None, Any]: ...
    def receive(
        self, signal: Signal[Any] | str, /, type: Any = Any, *, timeout: Duration | None = None
    ) -> Coroutine[None, None, Any]:
        """Receive the next signal of a name, in the order of sending.

        A signal that came before is received at once. A cancelled receive loses nothing: the next receive of
        that name gets the signal.

        Args:
            signal: the signal to receive, or its name.
            type: with a name: type of the payload.
            timeout: TimeoutError is raised if none comes by then; None means no limit.

        Raises:
            InvalidRequest: another receive of that name waits in this run.
            DecodeError: the payload is of another type, as its sender gave only the name, or did so before
                the workflow registered its signals. The signal is received: the next receive gets the next.
            asyncio.CancelledError: the run is being cancelled and receives no more, not even in a shield.
        """
        within = within_run("receive()", "run.signal() to send one")
        timeout_ms = optional_duration(timeout, what="ctx.receive")
        if isinstance(signal, Signal):
            if type is not Any:
                raise InvalidRequest(
                    f"ctx.receive: {signal!r} has its type already, {type!r} is one too many"
                )
            return within.receive(signal.name, signal.codec, timeout_ms)
        return within.receive(check_signal_name(signal), type_codec(type), timeout_ms)

    # -- the life of the run

    def shield(self, timeout: Duration | None = None) -> AbstractAsyncContextManager[None]:
        """Defer cancellation of the code inside: `async with ctx.shield("30s"): await undo()`.

        A cancellation from outside, of the run or of the task, is raised when the outermost shield is left.
        While a run is being cancelled, durable calls work in shields only; tasks made inside are shielded.

        Args:
            timeout: TimeoutError is raised inside if it takes longer; None means no limit of its own.
        """
        timeout_ms = optional_duration(timeout, what="ctx.shield")
        within = within_run("shield()", "asyncio.shield()")
        return within.shield(None if timeout_ms is None else timeout_ms / 1000)

    @overload
    def continue_as_new(self, workflow: BoundWorkflow[Any], /) -> NoReturn: ...
    @overload
    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn: ...
    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """End here and begin again with these arguments and an empty journal; never returns.

        The run keeps its id and the signals that it did not receive. Steps that are running are cancelled;
        children that are running go on. Call it in the workflow's own flow, not in a `try` with a bare
        `except`.

        Args:
            args: arguments of the workflow; or the workflow with its arguments, `poll.bind(cursor)`, which
                type checkers check.
            kwargs: arguments by name.

        Raises:
            InvalidRequest: they do not fit its signature, or those of another workflow were given.
        """
        within = within_run("continue_as_new()", "app.start()")
        bound = args[0] if args else None
        if isinstance(bound, BoundWorkflow):
            run = within.run
            if (bound.name, bound.definition.version) != (run.workflow, run.workflow_version):
                raise InvalidRequest(
                    f"a run of workflow {run.workflow} cannot continue as {bound.name}",
                    hint="start a child run: ctx.start(...)",
                )
            args, kwargs = bound.arguments(args[1:], kwargs)
        within.continue_as_new(args, kwargs)

    def patched(self, change: str) -> bool:
        """Return whether to run the new side of a change of code: `if ctx.patched("fee-2"): ... else: ...`.

        True, and recorded, for runs that come here for the first time; false for runs that were past this
        point when the change was deployed. The first answer for a name stays for the run.

        Args:
            change: name of the change.
        """
        within = within_run("patched()", "nothing: only workflow code is replayed")
        return within.values.patched(_text(change, 200, "the name of a change"))

    def transaction(
        self, name: str = "transaction", *, timeout: Duration = "30s"
    ) -> AbstractAsyncContextManager[Transaction]:
        """Write rows of your own: `async with ctx.transaction() as tx: await tx.execute(...)`.

        The rows, the run's journal and the effects of tx.start, tx.signal and tx.resolve are committed
        together or not at all, exactly once, even if the worker crashes. An error that leaves the block rolls
        back. The block is one call of the run: a replay runs it again with the recorded results. It also runs
        again after a conflict with another transaction (SQLSTATE 40...). While it is open the run does
        nothing else, so no step, child run, timer or signal is allowed inside.

        Args:
            name: a label for people.
            timeout: from its begin to its commit.

        Raises (when entered or left):
            InvalidRequest: another transaction of the run is open.
            asyncpg.PostgresError: the commit failed, such as by a deferred constraint.
            StepTimeout: it took too long.
        """
        within = within_run("transaction()", "a connection of your own")
        timeout_ms = parse_duration(timeout, what="ctx.transaction")
        if not timeout_ms:
            raise InvalidRequest("ctx.transaction: a timeout is more than 0")
        return within.transaction(_text(name, 200, "the name of a transaction"), timeout_ms)

    # -- database functions and HTTP

    @overload
    def sql(
        self,
        function: str,
        /,
        *args: Any,
        type: type[T],
        retry: Retry | None = None,
        timeout: Duration | None = "30s",
        **kwargs: Any,
    ) -> Coroutine[None, None, T]: ...
    @overload
    def sql(
        self,
        function: str,
        /,
        *args: Any,
        type: Any = Any,
        retry: Retry | None = None,
        timeout: Duration | None = "30s",
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]: ...
    def sql(
        self,
        function: str,
        /,
        *args: Any,
        type: Any = Any,
        retry: Retry | None = None,
        timeout: Duration | None = "30s",
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]:
        """Call a database function as a step named like it, and return its result.

        The writes of the function and the record of the step commit together or not at all, and only while
        this worker has the lease, so they happen exactly once. A call takes one round trip. After a
        serialization failure, a deadlock or a lost connection the function is called again; these are no
        failures of the step.

        Args:
            function: "schema.function", with argument types if several have that name.
            args: its arguments; Postgres converts each to its declared type. Write dates, decimals and uuids
                as such, arrays as lists, composite values as dicts or objects.
            type: type of the result as JSON: of a set a list, of a row a dict, of nothing None.
            retry: when a failed attempt is made again; None means never.
            timeout: limit of one attempt; None means no limit.
            kwargs: its arguments by name, except those named here, which can only go by position.

        Raises (when awaited):
            SqlError: the function raised it, or cannot be called so.
            StepTimeout: it took too long.
            InvalidRequest: an option is wrong; raised at once, nothing is recorded.
        """
        within = within_run("sql()", "a connection of your own")
        step = sql_step(function, retry, optional_duration(timeout, what="ctx.sql"), type)
        return within.call_step(step, *sql_arguments(step.name, args, kwargs))

    def http(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str | Secret] | None = None,
        json: Any = None,
        content: str | bytes | None = None,
        timeout: Duration | None = "30s",
        retry: Retry | None = DEFAULT_RETRY,
        expect: int | Collection[int] | None = None,
    ) -> Coroutine[None, None, HttpResponse]:
        """Make an HTTP request as a step named "http" and return the answer.

        Tried again, five times in all: no answer, no answer in time, and the statuses 408, 425, 429, 500,
        502, 503 and 504; a Retry-After header sets the delay, up to a day. The header Idempotency-Key is
        the same at every attempt, also after a crash. Redirects are not followed.

        Args:
            method: "GET", "POST", ...
            url: https://host/path; it is recorded.
            headers: a text is recorded, `Secret("env:NAME", "Bearer {}")` only by its name.
            json: body, as JSON.
            content: body, unchanged.
            timeout: limit of one attempt.
            retry: when a failed attempt is made again; None means never.
            expect: statuses to return instead of raising; 200 to 299 by default.

        Raises (when awaited):
            HttpStatusError: the answer has another status.
            HttpConnectionError: no answer came.
            StepTimeout: it took too long.
            InvalidRequest: the request is not valid; raised at once, nothing is recorded.
        """
        within = within_run("http()", "httpx")
        request = http_request(method, url, headers=headers, json=json, content=content, expect=expect)
        step = http_step(retry, optional_duration(timeout, what="ctx.http"))
        return within.call_step(step, (request,), {})


ctx = Context()
"""The interface of the engine for workflow code."""
