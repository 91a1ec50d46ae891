"""The core of `ctx`: the run itself, its timers, promises, signals and changes.

Lives here: `CoreContext`, typed and documented. May not: a decision; every method calls the run that the code
belongs to (definitions/current_run.py); what a feature adds to `ctx`, which the hall puts together
(pyengine/context.py). Outside a workflow the methods raise `InvalidRequest`, whose hint names the alternative
there.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar, cast, overload

from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.current_run import StepInfo, current_step, scope, within_run
from pyengine.core.definitions.retry import Duration, time_left, waiting_time
from pyengine.core.definitions.signals import Receivable, Signal, check_signal_name
from pyengine.core.values.codec import type_codec
from pyengine.core.values.texts import is_text
from pyengine.core.workflow.context_starts import ContextStarts
from pyengine.core.workflow.context_values import EPOCH, ContextValues
from pyengine.core.workflow.context_waits import ContextWaits
from pyengine.core.workflow.handles import DurablePromise, RunLogger
from pyengine.errors import InvalidRequest

T = TypeVar("T")


def _text(value: object, bytes_max: int, kind: str) -> str:
    if not is_text(value, bytes_max):
        raise InvalidRequest(f"{value!r} is not {kind}", hint=f"a text of 1 to {bytes_max} bytes, no NUL")
    return value


class CoreContext(ContextStarts, ContextValues, ContextWaits):
    """The part of `ctx` that every durable program needs."""

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
    def attempt(self) -> int:
        """Which attempt of the run this is, from 1; above 1 after a retry of the whole workflow."""
        return within_run("attempt", "ctx.step.attempt in a step").run.attempt

    @property
    def step(self) -> StepInfo:
        """Inside a step: run id, child number, attempt, and an idempotency key.

        Raises:
            InvalidRequest: no step is running here.
        """
        info = current_step.get()
        if info is None:
            where, hint = "in workflow code", "it is the attempt of the step that is running"
            if scope.get() is None:
                where = "outside a step"
                hint += "; a thread that a step starts sees it by contextvars.copy_context().run"
            raise InvalidRequest(f"ctx.step was used {where}", hint=hint)
        return info

    @property
    def log(self) -> RunLogger:
        """A logger that is silent while replaying.

        It logs as `pyengine.workflow`, with the run in its fields. In a step the fields name the attempt,
        elsewhere it is that logger: a line for the log fails nothing.
        """
        return RunLogger(scope.get(), current_step.get())

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
        within = within_run("sleep()", "asyncio.sleep()")
        return within.sleep(waiting_time(duration, what="ctx.sleep", rules=within.run.rules) or 0)

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
        timeout_ms = time_left(timeout, what="ctx.promise", rules=within.run.rules)
        if id is None:
            return cast("DurablePromise[Any]", within.make_promise(type, timeout_ms=timeout_ms, name=name))
        if timeout is not None or name:
            given = "name" if timeout is None else "timeout"
            raise InvalidRequest(
                f"ctx.promise(id={id!r}) takes no {given}: the promise that is there has its own",
                hint="a limit for the wait: async with asyncio.timeout(60): await ctx.promise(id=...)",
            )
        return cast("DurablePromise[Any]", within.adopt(type, _text(id, 512, "the id of a promise")))

    # -- signals

    @overload
    def receive(
        self, signal: Receivable[T], /, *, timeout: Duration | None = None
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
        self, signal: Receivable[Any] | str, /, type: Any = Any, *, timeout: Duration | None = None
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
        timeout_ms = waiting_time(timeout, what="ctx.receive", rules=within.run.rules)
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
        within = within_run("shield()", "asyncio.shield()")
        timeout_ms = waiting_time(timeout, what="ctx.shield", rules=within.run.rules)
        return within.shield(None if timeout_ms is None else timeout_ms / 1000)

    @overload
    def continue_as_new(self, workflow: BoundWorkflow[Any], /) -> NoReturn: ...
    @overload
    def continue_as_new(self, /, *args: Any, **kwargs: Any) -> NoReturn: ...
    def continue_as_new(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        """End here and begin again with these arguments and an empty journal; never returns.

        The run keeps its id and the signals that it did not receive. Steps that are running are cancelled;
        children that are running go on. Another version of the workflow may go on in its place. Call it in
        the workflow's own flow, not in a `try` with a bare `except`.

        Args:
            args: arguments of the workflow; or the workflow, or another version of it, with its arguments:
                `poll.bind(cursor)`, which type checkers check.
            kwargs: arguments by name.

        Raises:
            InvalidRequest: they do not fit its signature, or those of another workflow were given.
        """
        within = within_run("continue_as_new()", "app.start()")
        bound, version = args[0] if args else None, None
        if isinstance(bound, BoundWorkflow):
            run, definition = within.run, bound.definition
            if bound.name != run.workflow:
                raise InvalidRequest(
                    f"a run of workflow {run.workflow} cannot continue as {bound.name}",
                    hint="start a child run: ctx.start(...); another version has the same name",
                )
            version = definition if definition.version != run.workflow_version else None
            args, kwargs = bound.arguments(args[1:], kwargs)
        within.continue_as_new(args, kwargs, version)

    def patched(self, change: str) -> bool:
        """Return whether to run the new side of a change of code: `if ctx.patched("fee-2"): ... else: ...`.

        True, and recorded, for runs that come here for the first time; false for runs that were past this
        point when the change was deployed. The first answer for a name stays for the run.

        Args:
            change: name of the change.
        """
        within = within_run("patched()", "nothing: only workflow code is replayed")
        return within.values.patched(_text(change, 200, "the name of a change"))
