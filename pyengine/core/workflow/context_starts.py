"""The child runs of `ctx`.

Lives here: `ctx.start`, by the types of its arguments. May not: a decision; the call goes to the run that the
code belongs to (definitions/current_run.py). The overloads are those of a client's start
(client/starts.py), with other options.
"""

from __future__ import annotations

from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from pyengine.core.definitions.bound_workflow import A, Accepts, B, BoundWorkflow, C, D, E
from pyengine.core.definitions.current_run import within_run
from pyengine.core.definitions.queues import check_queue
from pyengine.core.definitions.refusals import name_options, not_a_workflow
from pyengine.core.definitions.registry import Workflow
from pyengine.core.definitions.retry import Duration, time_left
from pyengine.core.definitions.services import service_call
from pyengine.core.workflow.handles import ChildRun
from pyengine.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")


class ChildOptions(TypedDict, total=False):
    """The options of a child run; `ContextStarts.start` says what they are."""

    queue: str | None
    timeout: Duration | None
    detached: bool
    on_cancel: Literal["cancel", "abandon"]


_OPTIONS = frozenset(ChildOptions.__annotations__)


class ContextStarts:
    """The part of `ctx` that starts child runs."""

    __slots__ = ()

    @overload
    def start(self, workflow: BoundWorkflow[T], /, **options: Unpack[ChildOptions]) -> ChildRun[T]: ...
    @overload
    def start(self, workflow: Workflow[P, T], /, *args: P.args, **kwargs: P.kwargs) -> ChildRun[T]: ...
    @overload
    def start(self, workflow: Accepts[[], T], /, **options: Unpack[ChildOptions]) -> ChildRun[T]: ...
    @overload
    def start(
        self, workflow: Accepts[[A], T], /, *args: *tuple[A], **options: Unpack[ChildOptions]
    ) -> ChildRun[T]: ...
    @overload
    def start(
        self, workflow: Accepts[[A, B], T], /, *args: *tuple[A, B], **options: Unpack[ChildOptions]
    ) -> ChildRun[T]: ...
    @overload
    def start(
        self, workflow: Accepts[[A, B, C], T], /, *args: *tuple[A, B, C], **options: Unpack[ChildOptions]
    ) -> ChildRun[T]: ...
    @overload
    def start(
        self,
        workflow: Accepts[[A, B, C, D], T],
        /,
        *args: *tuple[A, B, C, D],
        **options: Unpack[ChildOptions],
    ) -> ChildRun[T]: ...
    @overload
    def start(
        self,
        workflow: Accepts[[A, B, C, D, E], T],
        /,
        *args: *tuple[A, B, C, D, E],
        **options: Unpack[ChildOptions],
    ) -> ChildRun[T]: ...
    @overload
    def start(
        self,
        workflow: str,
        /,
        *args: Any,
        queue: None = None,
        timeout: Duration | None = None,
        detached: bool = False,
        on_cancel: Literal["cancel", "abandon"] = "cancel",
        **kwargs: Any,
    ) -> ChildRun[Any]: ...
    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> ChildRun[Any]:
        """Start a child run without waiting for it; await the handle for its result.

        The child is cancelled if the await is, and if this run ends before it, unless it is detached.

        `ctx.start(ship.bind(order, express=True), queue="depot")` is checked by type checkers however many
        arguments there are.

        Args:
            workflow: the workflow to run, with its arguments if it is bound; "sql://schema.function" for a
                service in SQL (durable.serve).
            args: its arguments.
            kwargs: its arguments by name, except those named like these options:
            queue: queue of the child; the workflow's own or the parent's by default.
            timeout: its deadline; the workflow's own by default.
            detached: this run cannot wait for it, and it outlives this run.
            on_cancel: "abandon" if the child goes on when the await is cancelled, or this run ends before it.

        Raises:
            InvalidRequest: the arguments do not fit its signature, or an option is wrong.
        """
        options: Any = {name: kwargs.pop(name) for name in _OPTIONS & kwargs.keys()}
        try:
            return self._start(workflow, args, kwargs, **options)
        except InvalidRequest as error:
            name_options(error, kwargs, "ctx.start", ChildOptions.__annotations__)
            raise

    def _start(
        self,
        workflow: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        queue: str | None = None,
        timeout: Duration | None = None,
        detached: bool = False,
        on_cancel: Literal["cancel", "abandon"] = "cancel",
    ) -> ChildRun[Any]:
        within = within_run("start()", "app.start()")
        if isinstance(workflow, BoundWorkflow):
            args, kwargs = workflow.arguments(args, kwargs)
        if isinstance(workflow, str):
            definition, args, kwargs = service_call(workflow, queue, args, kwargs)
        elif isinstance(workflow, Workflow | BoundWorkflow):
            definition = workflow.definition
        else:
            raise not_a_workflow(workflow, "ctx.start")
        if on_cancel not in ("cancel", "abandon"):
            raise InvalidRequest(f'ctx.start: on_cancel is "cancel" or "abandon", not {on_cancel!r}')
        return cast(
            "ChildRun[Any]",
            within.call_workflow(
                definition,
                args,
                kwargs,
                queue=None if queue is None else check_queue(queue, what="ctx.start"),
                timeout_ms=time_left(timeout, what="ctx.start", rules=within.run.rules),
                detached=detached,
                abandon=on_cancel == "abandon",
            ),
        )
