"""Messages of the protocol and of its older API.

Lives here: `Dialect`: the statements that give messages, and the frames that carry them. May not: when they
are asked for, and for whom (offers.py, unblocks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyengine.core.database.statements.procedures import Procedure
from pyengine.doors.gateway.statements.gateway import OFFERS, UNBLOCKS
from pyengine.doors.gateway.statements.older import OLDER_OFFERS, OLDER_UNBLOCKS
from pyengine.doors.gateway.streams.frames import execute_frame, notify_frame, older_frame, unblock_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How messages are read and written.

    Args:
        offers: gives tasks that are due.
        execute: writes one row of it.
        unblocks: gives promises that settled.
        unblock: writes one promise.
    """

    offers: Procedure
    execute: Callable[[Any], bytes]
    unblocks: Procedure
    unblock: Callable[[str], bytes]


def current(server_url: str | None) -> Dialect:
    """Return the messages of the protocol.

    Args:
        server_url: where receivers reach this gateway, or None.
    """
    return Dialect(
        offers=OFFERS,
        execute=lambda row: execute_frame(row["id"], row["version"], server_url),
        unblocks=UNBLOCKS,
        unblock=unblock_frame,
    )


OLDER = Dialect(
    offers=OLDER_OFFERS,
    execute=lambda row: older_frame(row["message"]),
    unblocks=OLDER_UNBLOCKS,
    unblock=notify_frame,
)
"""The messages of the older API: invoke, resume and notify."""
