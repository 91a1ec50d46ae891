"""Unblock messages: promises that settled, to members that listen.

Lives here: `Unblocks`: what is claimed for whom, and what is acknowledged. May not: who listens to what
(SQL). Design: a claimed message comes again until it is acknowledged, which it is once the operating system
has its bytes. So it is delivered at least once, whatever becomes of this gateway. One that waits on a stream
whose client reads slowly is not put on a stream again here. Another gateway may send it too, once its claim
has ended: so there is one copy for each gateway at most, and one more for each stream that ended with it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from typing import TypeAlias

from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.gateway import ACKNOWLEDGE
from pyengine.gateway.dialects import Dialect
from pyengine.gateway.members import Member, Members, Message, Stream
from pyengine.gateway.metrics import Metrics
from pyengine.gateway.polling import Poller

__all__ = ["Unblocks"]

logger = logging.getLogger("pyengine.gateway")

_LONGEST_S = 1.0
_LIMIT = 500
_CLAIM_MS = 5_000

# promise and address
Key: TypeAlias = tuple[str, str]


class Unblocks:
    """Sends reports of settled promises to members that listen.

    Args:
        link: connections for messages.
        members: the open streams.
        metrics: counts what is sent.
        dialect: how messages are read and written.
    """

    def __init__(self, link: ConnectionPool, members: Members, metrics: Metrics, *, dialect: Dialect) -> None:
        self._dialect = dialect
        self._link = link
        self._members = members
        self._metrics = metrics
        self._waiting: dict[Key, Message] = {}
        self._sent: set[Key] = set()
        self.poller = Poller(self._poll, "unblocks", _LONGEST_S)

    async def _poll(self) -> bool | None:
        if self._sent:
            await self._acknowledge()
        if not len(self._members):
            return False if self._sent else None
        streams = self._members.taking(asyncio.get_running_loop().time())
        if not streams:
            return False
        addresses = {f"poll://any@{one.member.group}" for one in streams}
        for one in streams:
            addresses |= {one.member.address, f"poll://any@{one.member.group}/{one.member.pid}"}
        rows = await self._link.rows(self._dialect.unblocks, sorted(addresses), _LIMIT, _CLAIM_MS)
        # what waited on a stream that has been closed is lost
        self._waiting = {key: one for key, one in self._waiting.items() if self._members.is_on_its_way(one)}
        for row in rows:
            key = row["promise_id"], row["address"]
            if key not in self._waiting and key not in self._sent:
                self._send(key, row["promise"], settled=row["settled"])
        return bool(rows)

    def _send(self, key: Key, promise: str, *, settled: bool) -> None:
        promise_id, address = key
        stream = self._receiver(address)
        if not settled:
            # clients end their process on such a message
            logger.error("promise %s has an unblock message and is pending", promise_id)
        elif stream is not None:
            message = Message(self._dialect.unblock(promise), functools.partial(self._was_sent, key))
            self._waiting[key] = message
            stream.send(message)
            self._metrics.messages.labels("unblock").inc()

    def _receiver(self, address: str) -> Stream | None:
        group, _, pid = address.partition("://")[2].partition("@")[2].partition("/")
        found = [self._members.find(Member(group, pid))] if pid else self._members.of_group(group)
        now_s = asyncio.get_running_loop().time()
        streams = [one for one in found if one is not None and one.takes_messages(now_s)]
        return random.choice(streams) if streams else None

    def _was_sent(self, key: Key) -> None:
        self._waiting.pop(key, None)
        self._sent.add(key)
        self.poller.wake()

    async def _acknowledge(self) -> None:
        sent = list(self._sent)
        rows = await self._link.rows(ACKNOWLEDGE, [id for id, _ in sent], [address for _, address in sent])
        # those that somebody has locked wait for the next poll, and are not sent again until then
        locked = {(row["promise_id"], row["address"]) for row in rows}
        self._sent.difference_update(set(sent) - locked)
