"""`start`, as the client and the app have it, by the types of its arguments.

Lives here: `StartOptions`, and `Starts` with the overloads of `start`. May not: starting a run, which
`begin` does. Design: one overload for each way to give arguments. A type checker finds wrong ones in each of
them; none takes Any but that of a workflow that is only named. In Python's types a signature has the
parameters of a workflow or named options, not both. So arguments by name together with options are given
with `bind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

from pyengine.core.client.run import Run
from pyengine.core.definitions.bound_workflow import A, Accepts, B, BoundWorkflow, C, D, E
from pyengine.core.definitions.refusals import name_options
from pyengine.core.definitions.registry import Workflow
from pyengine.core.definitions.retry import Duration
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    # as in client/run.py
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Any)
else:
    T = TypeVar("T")

P = ParamSpec("P")


class StartOptions(TypedDict, total=False):
    """The options of a start; `Starts.start` says what they are."""

    id: str | None
    key: str | None
    queue: str | None
    version: str | None
    delay: Duration | None
    timeout: Duration | None
    priority: int
    tags: Mapping[str, str] | None
    conn: Any


_OPTIONS = frozenset(StartOptions.__annotations__)


class Starts:
    """`start`, as a mixin of the client and of the app."""

    async def begin(
        self,
        workflow: Workflow[..., T] | BoundWorkflow[T] | str,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        **options: Unpack[StartOptions],
    ) -> Run[T]:
        """Start a run like `start`, with arguments whose names may be names of options too.

        Raises:
            EngineError: as `start`.
        """
        raise NotImplementedError

    @overload
    async def start(self, workflow: BoundWorkflow[T], /, **options: Unpack[StartOptions]) -> Run[T]: ...
    @overload
    async def start(self, workflow: Workflow[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Run[T]: ...
    @overload
    async def start(self, workflow: Accepts[[], T], /, **options: Unpack[StartOptions]) -> Run[T]: ...
    @overload
    async def start(
        self, workflow: Accepts[[A], T], /, *args: *tuple[A], **options: Unpack[StartOptions]
    ) -> Run[T]: ...
    @overload
    async def start(
        self, workflow: Accepts[[A, B], T], /, *args: *tuple[A, B], **options: Unpack[StartOptions]
    ) -> Run[T]: ...
    @overload
    async def start(
        self, workflow: Accepts[[A, B, C], T], /, *args: *tuple[A, B, C], **options: Unpack[StartOptions]
    ) -> Run[T]: ...
    @overload
    async def start(
        self,
        workflow: Accepts[[A, B, C, D], T],
        /,
        *args: *tuple[A, B, C, D],
        **options: Unpack[StartOptions],
    ) -> Run[T]: ...
    @overload
    async def start(
        self,
        workflow: Accepts[[A, B, C, D, E], T],
        /,
        *args: *tuple[A, B, C, D, E],
        **options: Unpack[StartOptions],
    ) -> Run[T]: ...
    @overload
    async def start(
        self,
        workflow: str,
        /,
        *args: Any,
        id: str | None = ...,
        key: str | None = ...,
        queue: str | None = ...,
        version: str | None = ...,
        delay: Duration | None = ...,
        timeout: Duration | None = ...,
        priority: int = ...,
        tags: Mapping[str, str] | None = ...,
        conn: Any = ...,
        **kwargs: Any,
    ) -> Run[Any]: ...
    async def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a run, or find the one that has this id or key; `durable.start` in SQL.

        Type checkers check the arguments, by the parameters of the workflow: all of them without options, up
        to five by position with options. `client.start(checkout.bind(order, express=True), id="order-42")`
        is checked however many there are, and if some are given by name.

        Args:
            workflow: the workflow, with its arguments if it is bound; or its name, or a service in SQL like
                "sql://billing.close_month".
            args: its arguments.
            kwargs: its arguments by name, except those named like these options:
            id: id of the run, up to 512 bytes; a second start with it finds the run.
            key: idempotency key, unique for the workflow.
            queue: None means the queue that the workflow declares, or "default".
            version: None means the workflow's own version, or "1".
            delay: the run does not start before this duration is over.
            timeout: the run times out after this duration; None means the workflow's deadline, or none.
            priority: smaller is claimed first; 0 by default.
            tags: texts by name, by which `list` finds the run.
            conn: a connection of yours, in whose transaction the run is started: a rollback leaves nothing.
                It is of asyncpg or psycopg, or an SQLAlchemy session or connection over one of them.

        Raises:
            InvalidRequest: the arguments do not fit the workflow, or an option is wrong.
            NotFound: no worker has registered this workflow, while others are known.
            RunConflict: a run with this id or key exists and has other input.
            Unavailable: the database cannot be reached.
        """
        options: Any = {name: kwargs.pop(name) for name in _OPTIONS & kwargs.keys()}
        try:
            run: Run[Any] = await self.begin(workflow, args, kwargs, **options)
        except InvalidRequest as error:
            name_options(error, kwargs, "a start", StartOptions.__annotations__)
            raise
        return run
