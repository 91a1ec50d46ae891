"""The extensions of a worker, which features fill.

Lives here: the record that an app fills. May not: a feature. Design: a worker without any executes workflows
and steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process.background import Background
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.replay.extensions import NO_SEARCH, UnawaitedCalls
from pyengine.core.values.codec import Codec
from pyengine.core.worker.attempts import Attempt
from pyengine.core.worker.capacity import Capacity
from pyengine.core.worker.effects import Execute, RollBack
from pyengine.core.worker.events import Event, TransactionFailed
from pyengine.core.worker.run_state import LeasedRun
from pyengine.errors import InvalidRequest


class Declarations(Protocol):
    """Declarations of the code of a worker, in the database."""

    async def record(self) -> None:
        """Send all of it, when the worker starts."""
        ...

    async def retry(self) -> None:
        """Send what another session had locked, each second; an error is logged."""
        ...

    def reinstalled(self) -> None:
        """Have all sent again, because the database has lost it; callable from any thread."""
        ...


class _NothingDeclared:
    def __init__(self, links: ConnectionPool) -> None: ...

    async def record(self) -> None: ...

    async def retry(self) -> None: ...

    def reinstalled(self) -> None: ...


class Served(msgspec.Struct):
    """The answer to serving a task of a service.

    Args:
        served: how many tasks were served.
        hints: queues that got ready tasks.
        settled: whether a promise was settled.
    """

    served: int
    hints: list[str]
    settled: bool


class Services(Protocol):
    """Serves tasks whose code is elsewhere than in the app, such as in the database."""

    def record_due(self, now_s: float, due_ms: int | None) -> None:
        """Record when the next task is ready, as a tick reports it: None if nothing is served."""
        ...

    def hinted(self, now_s: float) -> None:
        """Something became ready somewhere."""
        ...

    async def run(self) -> None:
        """Serve whatever is ready, for ever."""
        ...


class _NoServices:
    def __init__(self, links: ConnectionPool, served: Callable[[Served], None]) -> None: ...

    def record_due(self, now_s: float, due_ms: int | None) -> None: ...

    def hinted(self, now_s: float) -> None: ...

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """Resources that a worker shares with the runners of features.

    Args:
        links: connections for functions and transactions of users; who finds none free waits.
        worker: id of the worker.
        codec: writes errors, bounds sizes.
        slots: reduced when connections are short.
        post: takes events.
        background: runs tasks.
        values: threads that write and read large values.
    """

    links: ConnectionPool
    worker: str
    codec: Codec
    slots: Capacity
    post: Callable[[Event], None]
    background: Background
    values: ValueThreads


class StepsInSql(Protocol):
    """Executes attempts of steps that the database records by itself."""

    async def run(self, run: LeasedRun, attempt: Attempt) -> Event | None:
        """Execute an attempt, and return the event that ends it; None if it is not wanted any more.

        Raises:
            Exception: the error of the step.
        """
        ...


class _NoStepsInSql:
    def __init__(self, resources: WorkerResources) -> None: ...

    async def run(self, run: LeasedRun, attempt: Attempt) -> Event | None:
        raise InvalidRequest(f"step {attempt.call.name} is in SQL, which this worker does not execute")


class Requests(Protocol):
    """Executes the requests of code to its worker (replay/asks.py)."""

    def execute(self, effect: Execute) -> None:
        """Execute a request; `StatementAnswered` or another event about it follows."""
        ...

    def roll_back(self, effect: RollBack) -> None:
        """End what a run has open."""
        ...

    async def close(self) -> None:
        """End all that is open."""
        ...


class _NoRequests:
    def __init__(self, resources: WorkerResources) -> None:
        self._post = resources.post

    def execute(self, effect: Execute) -> None:
        self._post(TransactionFailed(effect.run, effect.ask, "this worker executes no transactions"))

    def roll_back(self, effect: RollBack) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """The extensions of a worker, which features fill.

    Args:
        declarations: makes what records the declarations of the code; takes connections for statements.
        services: makes what serves tasks of services; takes connections for functions of users, and a
            function to call with each answer that did something.
        steps_in_sql: makes what executes steps that record themselves.
        requests: makes what executes requests of code.
        shared: context variables that the bodies of steps see, with their values.
        unawaited: finds calls that no code of a workflow awaits.
        around: makes the block in which the body of a sync step is called, in its thread.
    """

    declarations: Callable[[ConnectionPool], Declarations] = _NothingDeclared
    services: Callable[[ConnectionPool, Callable[[Served], None]], Services] = _NoServices
    steps_in_sql: Callable[[WorkerResources], StepsInSql] = _NoStepsInSql
    requests: Callable[[WorkerResources], Requests] = _NoRequests
    shared: tuple[tuple[ContextVar[Any], Any], ...] = ()
    unawaited: UnawaitedCalls = NO_SEARCH
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def extensions_of(given: object) -> Extensions:
    """Return what was given to a worker, or to its registry; none if nothing was."""
    return given if isinstance(given, Extensions) else Extensions()
