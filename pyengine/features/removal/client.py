"""The verb of a client that deletes a run.

Lives here: `Removal`, a mixin of the client. May not: SQL text, a decision.
"""

from __future__ import annotations

from typing import Any

from pyengine.core.client.transport import Transport
from pyengine.features.removal.statements import DELETE


class Removal:
    """`delete`; the client has the transport."""

    _transport: Transport

    async def delete(self, run_id: str, *, conn: Any = None) -> bool:
        """Delete a run that has ended, with its children and all that belongs to them; its id stays taken
        for a while, as after `durable.purge`.

        Args:
            run_id: run id.
            conn: a connection of yours, in whose transaction it is done.

        Returns:
            Whether it was deleted now: repeating the request is no error.

        Raises:
            NotFound: there is no such run.
            Conflict: it has not ended, is the child of another run, or something still needs it.
        """
        return bool((await self._transport.first_row(conn, DELETE, run_id))["deleted"])
