"""Looking at a run while it runs: its named values, why it waits, and its states up to its end.

Lives here: `RunWatch`, the verbs for that. May not: the status of a run (run.py), the way by which hints come
(transport.py). Design: progress and the end of a run send hints; anything else is found by a query after
growing pauses.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from pyengine.core.client.run_status import RunStatus
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import VALUE, WHY, WHY_ALL
from pyengine.core.protocol.causes import Cause, CauseGroup, read_cause
from pyengine.core.values.codec import Codec
from pyengine.errors import NotFound, Unavailable

_FIRST_S = 0.25
_LONGEST_S = 2.0


class RunWatch:
    """The verbs of a client that show what a run has set, as a mixin."""

    _transport: Transport
    _codec: Codec

    @abstractmethod
    async def get(self, id: str) -> RunStatus: ...

    async def get_value(self, run_id: str, name: str, type: Any = Any) -> Any:
        """Return the last value that a run has set by `ctx.set`; `durable.get_value` in SQL.

        Args:
            run_id: run id.
            name: name of the value.
            type: its type; plain JSON by default.

        Returns:
            The value; None if the run has set none.

        Raises:
            NotFound: there is no such run.
            DecodeError: the value does not fit the type.
        """
        (row,) = await self._transport.rows(VALUE, run_id, name)
        if row["value"] is None:
            return None
        return self._codec.decode(row["value"], type, where=f"the value {name} of run {run_id}")

    async def why(self, run_id: str, *, limit: int = 100) -> list[Cause]:
        """Return why a run waits: each cause, followed by the causes of what it waits for; `durable.why` in
        SQL.

        Args:
            run_id: run id; the id of a promise or of a schedule will do.
            limit: the largest number of causes.

        Raises:
            NotFound: nothing has this id; its detail names ids that look like it.
        """
        rows = await self._transport.rows(WHY, run_id, limit)
        causes = [read_cause(row) for row in rows]
        if causes and causes[0].cause == "unknown":
            raise NotFound(f"there is no run {run_id!r}", detail=causes[0].sentence)
        return causes

    async def why_all(self, *, limit: int = 1000) -> list[CauseGroup]:
        """Return what the runs that have not ended wait for, the most frequent first; also in SQL.

        Args:
            limit: how many runs are looked at, in the order of their ids.
        """
        return [CauseGroup(**dict(row)) for row in await self._transport.rows(WHY_ALL, limit)]

    async def watch(self, run_id: str) -> AsyncIterator[RunStatus]:
        """Iterate over the states of a run: `async for status in client.watch(id): print(status.progress)`.

        The first one is the present one, the last one that of its end. Then comes one after each change of
        its state, progress, values or children, a few in a second at most: what changes faster is passed
        over. Progress and the end are noticed by notification, other changes by a query every few seconds.

        Args:
            run_id: run id.

        Raises (when iterated):
            NotFound: there is no such run.
        """
        status = await self.get(run_id)
        yield status
        async with self._transport.hints() as wait:
            pause_s = _FIRST_S
            while status.settled_at is None:
                await wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
                before = status
                # the database may be away for a while, as when waiting for a result
                with contextlib.suppress(Unavailable):
                    status = await self.get(run_id)
                if status != before:
                    pause_s = _FIRST_S
                    yield status
