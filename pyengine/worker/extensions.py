"""The extensions of a worker, which features fill.

Lives here: the record that an app fills. May not: a feature. Design: a worker without any executes workflows
and steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pyengine.database.pool import ConnectionPool

__all__ = ["Declarations", "Extensions", "Served", "Services", "extensions_of"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """The extensions of a worker, which features fill.

    Args:
        declarations: makes what records the declarations of the code; takes connections for statements.
        services: makes what serves tasks of services; takes connections for functions of users, and a
            function to call with each answer that did something.
        shared: context variables that the bodies of steps see, with their values.
    """

    declarations: Callable[[ConnectionPool], Declarations] = _NothingDeclared
    services: Callable[[ConnectionPool, Callable[[Served], None]], Services] = _NoServices
    shared: tuple[tuple[ContextVar[Any], Any], ...] = ()


def extensions_of(given: object) -> Extensions:
    """Return what was given to a worker, or to its registry; none if nothing was."""
    return given if isinstance(given, Extensions) else Extensions()
