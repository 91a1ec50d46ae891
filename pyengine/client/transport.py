"""What the verbs of a client need to reach the database.

What lives here: `Transport`, the few calls that verbs make, and the refusal of workflow code. What may not: a
verb, and what an answer means (client.py, run.py, promises.py). The theory: a verb awaits its transport and
nothing else. So the same verbs, written once, serve programs that await (asyncpg_transport.py) and programs
that block (psycopg_transport.py), whose transport never suspends.
"""

from __future__ import annotations

from typing import Any, Protocol

from pyengine.database.poll_schedule import Channel
from pyengine.database.statements.procedures import Procedure
from pyengine.definitions.current_run import scope
from pyengine.loop.restrictions import refuse

__all__ = ["Transport", "refuse_workflow"]


def refuse_workflow() -> None:
    """Refuse workflow code, which would ask anew at every replay.

    Raises:
        ForbiddenInWorkflow: it is workflow code that asks.
    """
    workflow = scope.get()
    if workflow is not None:
        refuse(workflow.run.id, "a client", "a step that does it, ctx.transaction() or ctx.start()")


class Transport(Protocol):
    """What the verbs of a client wait for."""

    async def open(self) -> None:
        """Check the database once."""

    async def rows(self, procedure: Procedure, *values: Any) -> list[Any]:
        """Run a procedure that may be run twice, in a transaction of its own, and return its rows."""

    async def within(self, conn: Any, procedure: Procedure, *values: Any) -> Any:
        """Run a procedure on a connection of the caller's and return its first row."""

    async def start(self, values: tuple[Any, ...], *, fresh: bool) -> Any:
        """Start a run, tell of it, and return the row of `START`; `values` are those that `START_WITHIN` has
        too, and nobody else knows an id that is `fresh`.
        """

    @property
    def heard(self) -> int | None:
        """How many hints have come; None if nobody listens."""

    def along(self, channel: Channel) -> bool:
        """Whether a statement may send this hint itself, with its commit."""

    async def hint(self, channel: Channel, *, sent: bool = False) -> None:
        """Tell workers and clients to look again; only those of this process if the others were told."""

    async def ended(self, id: str, timeout_s: float | None, since: int | None = None) -> Any:
        """Wait for a run, started when so many hints had come, and return its row of `RESULTS`; raises
        TimeoutError.
        """

    async def close(self) -> None:
        """Close the connections."""
