"""Unblock messages: promises that settled, to members that listen.

Lives here: `Unblocks`: what is claimed for whom, and what is acknowledged. May not: who listens to what
(SQL). Design: a claimed message comes again until it is acknowledged, which it is once the operating system
has its bytes. So it is delivered at least once, whatever becomes of this gateway.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random

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
        self._sent: list[tuple[str, str]] = []
        self.poller = Poller(self._poll, "unblocks", _LONGEST_S)

    async def _poll(self) -> bool | None:
        if self._sent:
            await self._acknowledge()
        if not len(self._members):
            return None
        streams = self._members.taking(asyncio.get_running_loop().time())
        if not streams:
            return False
        addresses = {f"poll://any@{one.member.group}" for one in streams}
        for one in streams:
            addresses |= {one.member.address, f"poll://any@{one.member.group}/{one.member.pid}"}
        rows = await self._link.rows(self._dialect.unblocks, sorted(addresses), _LIMIT, _CLAIM_MS)
        for row in rows:
            self._send(row["promise_id"], row["address"], row["promise"], settled=row["settled"])
        return bool(rows)

    def _send(self, promise_id: str, address: str, promise: str, *, settled: bool) -> None:
        stream = self._receiver(address)
        if not settled:
            # clients end their process on such a message
            logger.error("promise %s has an unblock message and is pending", promise_id)
        elif stream is not None:
            done = functools.partial(self._was_sent, promise_id, address)
            stream.send(Message(self._dialect.unblock(promise), done))
            self._metrics.messages.labels("unblock").inc()

    def _receiver(self, address: str) -> Stream | None:
        group, _, pid = address.partition("://")[2].partition("@")[2].partition("/")
        if pid:
            return self._members.find(Member(group, pid))
        streams = self._members.of_group(group)
        return random.choice(streams) if streams else None

    def _was_sent(self, promise_id: str, address: str) -> None:
        self._sent.append((promise_id, address))
        self.poller.wake()

    async def _acknowledge(self) -> None:
        sent, self._sent = self._sent, []
        try:
            await self._link.rows(ACKNOWLEDGE, [id for id, _ in sent], [address for _, address in sent])
        except BaseException:
            self._sent = sent + self._sent
            raise
