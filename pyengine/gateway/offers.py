"""Offers of tasks to members with open streams.

Lives here: `Offers`: what is asked for whom, and who gets an offer. May not: which tasks are due (SQL).
Design: an offer that was asked for is nobody else's for a while, so a gateway asks for its own members only,
and for no more than they may have without acquiring it. Tasks for any member of a group go round its members.
"""

from __future__ import annotations

import asyncio
import random

from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.gateway import OFFERS
from pyengine.gateway.frames import execute_frame
from pyengine.gateway.members import Members, Message, Stream
from pyengine.gateway.metrics import Metrics
from pyengine.gateway.polling import Poller

__all__ = ["Offers"]

_LONGEST_S = 1.0
# of one group, a member gets so many at once, so that others get some too
_SHARE = 8


class Offers:
    """Sends tasks that are due to members that have room.

    Args:
        link: connections for messages.
        members: the open streams.
        metrics: counts what is sent.
        server_url: where receivers reach this gateway, or None.
        max_unacquired: tasks that a member may have without having acquired them.
    """

    def __init__(
        self,
        link: ConnectionPool,
        members: Members,
        metrics: Metrics,
        *,
        server_url: str | None,
        max_unacquired: int,
    ) -> None:
        self._link = link
        self._members = members
        self._metrics = metrics
        self._server_url = server_url
        self._max_unacquired = max_unacquired
        self.poller = Poller(self._poll, "offers", _LONGEST_S)

    async def _poll(self) -> bool | None:
        loop = asyncio.get_running_loop()
        streams = self._members.taking(loop.time())
        if not len(self._members):
            return None
        asked: list[tuple[Stream, str, int]] = []
        for one in random.sample(streams, len(streams)):
            room = self._max_unacquired - one.unacquired(loop.time())
            # of little room one of the two gets all, now this one and now that one
            share = _SHARE if room > _SHARE else random.choice((0, room))
            asked += [(one, one.member.group, share), (one, one.member.address, room - share)]
        asked = [(one, queue, room) for one, queue, room in asked if room > 0]
        if not asked:
            return False
        rows = await self._link.rows(
            OFFERS,
            [queue for _, queue, _ in asked],
            [one.member.pid for one, _, _ in asked],
            [room for _, _, room in asked],
        )
        until_s = loop.time()
        for row in rows:
            self._send(asked[row["n"] - 1][0], row["id"], row["version"], until_s + row["retry_ms"] / 1000)
        return bool(rows)

    def _send(self, stream: Stream, id: str, version: int, again_s: float) -> None:
        # a second more, because the database's next offer comes by a poll
        if stream.offer((id, version), again_s + _LONGEST_S + 1):
            stream.send(Message(execute_frame(id, version, self._server_url)))
            self._metrics.messages.labels("execute").inc()
