"""The start of a run that has not begun, moved.

Lives here: `RunStart`, a mixin of `RunControl`. May not: SQL text, a decision.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from pyengine.core.client.arguments import check_instant
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import RESCHEDULE
from pyengine.core.definitions.retry import Duration, waiting_time


class RunStart:
    """`reschedule`; the client has the transport."""

    _transport: Transport

    async def reschedule(
        self, run_id: str, *, at: datetime | None = None, delay: Duration | None = None, conn: Any = None
    ) -> datetime:
        """Move the start of a run that has not begun, and return the instant at which it starts now.

        Args:
            run_id: run id.
            at: the instant to start at, with a time zone; one that has passed means now.
            delay: how long from now on; 0 means now. One of the two is given.
            conn: a connection of yours, in whose transaction it is done.

        Raises:
            NotFound: there is no such run.
            Conflict: it has begun, is paused, or has ended.
            InvalidRequest: it would start after its deadline, or there is no instant or delay.
        """
        check_instant("at", at)
        delay_ms = waiting_time(delay, what="delay")
        row = await self._transport.first_row(conn, RESCHEDULE, run_id, at, delay_ms)
        return cast("datetime", row["start_at"])
