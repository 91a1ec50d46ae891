"""The calls by which the verbs of a client reach the database.

Lives here: `Transport`, the few calls that verbs make, and the refusal of workflow code. May not: a verb, or
the meaning of an answer (client.py, run.py, promises/client.py). Design: a verb awaits its transport and
nothing else. So the verbs are written once, for asynchronous programs (asyncpg_transport.py) and for blocking
ones (psycopg_transport.py), whose transport never suspends. The first steps of every call stand here:
workflow code is refused, values are checked, the database is opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pyengine.core.client.caller_connection import check_values, unwritable
from pyengine.core.database.poll_schedule import Channel
from pyengine.core.database.statements.procedures import START, Procedure, StartRequest
from pyengine.core.definitions.current_run import scope
from pyengine.core.loop.restrictions import refuse
from pyengine.errors import InvalidRequest


class Transport(ABC):
    """The calls that the verbs of a client await."""

    async def rows(self, procedure: Procedure, *values: Any) -> list[Any]:
        """Run a procedure that may be run twice, in a transaction of its own, and return its rows.

        Raises:
            EngineError: by SQLSTATE; Unavailable if the database cannot be reached.
        """
        await self._prepare(procedure, values)
        return await self._rows(procedure, values)

    async def first_row(self, conn: Any, procedure: Procedure, *values: Any) -> Any:
        """Run a procedure and return its first row, in the caller's transaction if `conn` is given.

        Raises:
            EngineError: by SQLSTATE; InvalidRequest if the connection is of an unsupported kind.
        """
        if conn is None:
            return (await self.rows(procedure, *values))[0]
        _refuse_workflow()
        check_values(procedure, values)
        return await self._first_row_on(conn, procedure, values)

    async def start(self, request: StartRequest) -> Any:
        """Start a run, notify workers, and return the row of `START`.

        Raises:
            EngineError: as `rows`.
        """
        with_commit = self.with_commit("durable_ready")
        (row,) = await self.rows(START, *request, with_commit, self.address if with_commit else None)
        if row["handed_off"]:
            await self.allow_next("durable_ready")
        elif row["created"]:
            await self.announce("durable_ready", with_commit=with_commit)
        return row

    async def ended(self, id: object, timeout_s: float | None, hint_count: int | None = None) -> Any:
        """Wait until a run has ended and return its row of `RESULTS`.

        Args:
            id: run id.
            timeout_s: how long to wait.
            hint_count: the property's value before the run was started.

        Raises:
            TimeoutError: it has not ended in time.
            InvalidRequest: the id is invalid.
        """
        _refuse_workflow()
        # all waits share one query, and one bad id would fail it for every wait
        if not isinstance(id, str) or unwritable(id):
            raise InvalidRequest(f"{id!r} can be no run id: an id is a text without NUL")
        await self.open()
        return await self._ended(id, timeout_s, hint_count)

    # -- what a driver does

    @abstractmethod
    def hints(self) -> AbstractAsyncContextManager[Callable[[float], Awaitable[None]]]:
        """Return a context whose value waits until some run has changed, or for at most so many seconds. A
        change may be noticed late.

        Raises (when entered):
            EngineError: the database cannot be reached.
        """

    @property
    def hint_count(self) -> int | None:
        """The number of hints received; None while not listening."""
        return None

    @property
    def address(self) -> str | None:
        """The address to which a worker may send a result directly; None while not listening there."""
        return None

    @abstractmethod
    async def open(self) -> None:
        """Check the database, once.

        Raises:
            EngineError: it cannot be used.
        """

    @abstractmethod
    def with_commit(self, channel: Channel) -> bool:
        """Return whether a statement may send this hint with its commit."""

    @abstractmethod
    async def allow_next(self, channel: Channel) -> None:
        """Let the next such hint be sent with its commit, however soon it comes."""

    @abstractmethod
    async def announce(self, channel: Channel, *, with_commit: bool) -> None:
        """Wake this process and, unless a commit has sent the hint, the others; a hint may be lost."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    async def _prepare(self, procedure: Procedure, values: tuple[Any, ...]) -> None:
        """Do what comes before each procedure: refuse workflow code, check the values, open the database."""
        _refuse_workflow()
        check_values(procedure, values)
        await self.open()

    @abstractmethod
    async def _rows(self, procedure: Procedure, values: tuple[Any, ...]) -> list[Any]: ...

    @abstractmethod
    async def _first_row_on(self, conn: Any, procedure: Procedure, values: tuple[Any, ...]) -> Any: ...

    @abstractmethod
    async def _ended(self, id: str, timeout_s: float | None, hint_count: int | None) -> Any: ...


def _refuse_workflow() -> None:
    """Refuse calls from workflow code, which would be repeated at every replay.

    Raises:
        ForbiddenInWorkflow: the caller is workflow code.
    """
    workflow = scope.get()
    if workflow is not None:
        refuse(workflow.run.id, "a client", "a step that does it, ctx.transaction() or ctx.start()")
