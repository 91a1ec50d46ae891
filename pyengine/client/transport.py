"""The calls by which the verbs of a client reach the database.

Lives here: `Transport`, the few calls that verbs make, and the refusal of workflow code. May not: a verb, or
the meaning of an answer (client.py, run.py, promises.py). Design: a verb awaits its transport and nothing
else. So the verbs are written once, for asynchronous programs (asyncpg_transport.py) and for blocking ones
(psycopg_transport.py), whose transport never suspends.
"""

from __future__ import annotations

from typing import Any, Protocol

from pyengine.database.poll_schedule import Channel
from pyengine.database.statements.procedures import Procedure, StartRequest
from pyengine.definitions.current_run import scope
from pyengine.loop.restrictions import refuse

__all__ = ["Transport", "first_row", "refuse_workflow"]


def refuse_workflow() -> None:
    """Refuse calls from workflow code, which would be repeated at every replay.

    Raises:
        ForbiddenInWorkflow: the caller is workflow code.
    """
    workflow = scope.get()
    if workflow is not None:
        refuse(workflow.run.id, "a client", "a step that does it, ctx.transaction() or ctx.start()")


class Transport(Protocol):
    """The calls that the verbs of a client await."""

    async def open(self) -> None:
        """Check the database once."""

    async def rows(self, procedure: Procedure, *values: Any) -> list[Any]:
        """Run a procedure that may be run twice, in a transaction of its own, and return its rows."""

    async def run_on(self, conn: Any, procedure: Procedure, *values: Any) -> Any:
        """Run a procedure on a connection of the caller's and return its first row."""

    async def start(self, request: StartRequest) -> Any:
        """Start a run, notify workers, and return the row of `START`."""

    @property
    def hint_count(self) -> int | None:
        """The number of hints received; None while not listening."""

    def with_commit(self, channel: Channel) -> bool:
        """Return whether a statement may send this hint with its commit."""

    async def announce(self, channel: Channel, *, with_commit: bool) -> None:
        """Wake this process and, unless a commit has sent the hint, the others."""

    async def ended(self, id: str, timeout_s: float | None, hint_count: int | None = None) -> Any:
        """Wait until a run has ended and return its row of `RESULTS`.

        Args:
            id: run id.
            timeout_s: how long to wait.
            hint_count: the property's value before the run was started.

        Raises:
            TimeoutError: it has not ended in time.
        """

    async def close(self) -> None:
        """Close the connections."""


async def first_row(transport: Transport, conn: Any, procedure: Procedure, *values: Any) -> Any:
    """Run a procedure and return its first row, in the caller's transaction if `conn` is given.

    Raises:
        EngineError: by SQLSTATE.
    """
    if conn is None:
        return (await transport.rows(procedure, *values))[0]
    return await transport.run_on(conn, procedure, *values)
