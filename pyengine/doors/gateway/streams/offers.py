"""Offers of tasks to members with open streams.

Lives here: `Offers`: what is asked for whom, and who gets an offer. May not: which tasks are due (SQL).
Design: an offer that was asked for is nobody else's for a while, so a gateway asks for its own members only,
and for no more than they may have without acquiring it.
"""

from __future__ import annotations

import random
from typing import Any

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process import clock
from pyengine.doors.gateway.metrics import Metrics
from pyengine.doors.gateway.poller import Poller
from pyengine.doors.gateway.streams.dialects import Dialect
from pyengine.doors.gateway.streams.members import Members, Message, Stream

_LONGEST_S = 1.0
# offers in one transaction, unless there are more members
_BATCH = 1_000


class Offers:
    """Sends tasks that are due to members that have room.

    Args:
        link: connections for messages.
        members: the open streams.
        metrics: counts what is sent.
        dialect: how messages are read and written.
        max_unacquired: tasks that a member may have without having acquired them.
    """

    def __init__(
        self,
        link: ConnectionPool,
        members: Members,
        metrics: Metrics,
        *,
        dialect: Dialect,
        max_unacquired: int,
    ) -> None:
        self._link = link
        self._members = members
        self._metrics = metrics
        self._dialect = dialect
        self._max_unacquired = max_unacquired
        self.poller = Poller(self._poll, "offers", _LONGEST_S)

    async def _poll(self) -> bool | None:
        if not len(self._members):
            return None
        asked_s = now_s = clock.monotonic()
        streams = [one for one in self._members.taking(now_s) if one.asks_for_tasks(now_s)]
        most = max(1, _BATCH // max(1, len(streams)))
        rooms = {one.member.address: (one, self._room(one, now_s)) for one in streams}
        asked = [(address, min(room, most)) for address, (_, room) in rooms.items() if room > 0]
        if not asked:
            return False
        # the first ones get the odd tasks
        random.shuffle(asked)
        rows = await self._link.rows(
            self._dialect.offers, [address for address, _ in asked], [room for _, room in asked]
        )
        now_s = clock.monotonic()
        sent = False
        in_vain: set[Stream] = set()
        left = dict(asked)
        for row in rows:
            stream, _ = rooms[row["address"]]
            left[row["address"]] -= 1
            if self._send(stream, row, now_s + row["retry_ms"] / 1000):
                sent = True
            else:
                in_vain.add(stream)
        for address in [address for address, room in left.items() if room > 0]:
            rooms[address][0].missed(asked_s)
        for stream in in_vain:
            stream.stalled(now_s)
        return sent

    def _room(self, stream: Stream, now_s: float) -> int:
        return self._max_unacquired - stream.unacquired(now_s)

    def _send(self, stream: Stream, row: Any, again_s: float) -> bool:
        """Send an offer, unless this one was sent already; return whether it was sent now."""
        task = row["id"], row["version"]
        # a second more, because the database's next offer comes by a poll
        if not stream.offer(task, again_s + _LONGEST_S + 1):
            return False
        if not stream.send(Message(self._dialect.execute(row))):
            self._metrics.messages_put_off.labels("execute").inc()
            stream.was_not_sent(task)
            return False
        self._metrics.messages.labels("execute").inc()
        return True
