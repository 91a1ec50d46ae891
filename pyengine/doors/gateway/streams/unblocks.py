"""Unblock messages: promises that settled, to members that listen.

Lives here: `Unblocks`: what is claimed for whom, and what is acknowledged. May not: who listens to what
(SQL). Design: a claimed message comes again until it is acknowledged, which it is once the operating system
has its bytes. So it is delivered at least once, whatever becomes of this gateway. One that waits on a stream
whose client reads slowly is not put on a stream again here. Another gateway may send it too, once its claim
has ended: so there is one copy for each gateway at most, and one more for each stream that ended with it. A
claim has a bounded number of bytes; a message that is left out of it, or finds no room on a stream, comes
again when its claim ends.
"""

from __future__ import annotations

import functools
import logging
import random
from typing import Any, TypeAlias

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process import clock
from pyengine.doors.gateway.metrics import Metrics
from pyengine.doors.gateway.poller import Poller
from pyengine.doors.gateway.statements.gateway import ACKNOWLEDGE
from pyengine.doors.gateway.streams.dialects import Dialect
from pyengine.doors.gateway.streams.members import Member, Members, Message, Stream
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.gateway")

_LONGEST_S = 1.0
_LIMIT = 500
# until it is known how large they are
_LIMIT_FIRST = 8
_LIMIT_BYTES = 16 * 1024 * 1024
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
        self._limit = _LIMIT_FIRST
        self.poller = Poller(self._poll, "unblocks", _LONGEST_S)

    async def _poll(self) -> bool | None:
        if self._sent:
            await self._acknowledge()
        if not len(self._members):
            return False if self._sent else None
        streams = self._members.taking(clock.monotonic())
        if not streams:
            return False
        addresses = list({address for one in streams for address in _addresses(one.member)})
        random.shuffle(addresses)
        try:
            rows = await self._link.rows(
                self._dialect.unblocks, addresses, self._limit, _CLAIM_MS, _LIMIT_BYTES
            )
        except EngineError:
            # perhaps they are so large that it took too long
            self._limit = max(1, self._limit // 4)
            raise
        # what waited on a stream that has been closed is lost
        self._waiting = {key: one for key, one in self._waiting.items() if self._members.is_on_its_way(one)}
        self._send_rows(rows)
        return bool(rows)

    def _send_rows(self, rows: list[Any]) -> None:
        """Send what was claimed; the next claim takes as much as this one could bring, or more."""
        whole = [row for row in rows if row["promise"] is not None]
        if len(whole) < len(rows):
            self._limit = max(1, len(whole))
        elif len(rows) >= self._limit:
            self._limit = min(2 * self._limit, _LIMIT)
        # those of one promise have one frame
        frames: dict[str, bytes] = {}
        for row in whole:
            id, key = row["promise_id"], (row["promise_id"], row["address"])
            if not row["settled"]:
                # clients end their process on such a message
                logger.error("promise %s has an unblock message and is pending", id)
            elif key not in self._waiting and key not in self._sent:
                if id not in frames:
                    frames[id] = self._dialect.unblock(row["promise"])
                self._send(key, frames[id])

    def _send(self, key: Key, frame: bytes) -> None:
        stream = self._receiver(key[1])
        if stream is None:
            return
        message = Message(frame, functools.partial(self._was_sent, key))
        if stream.send(message):
            self._waiting[key] = message
            self._metrics.messages.labels("unblock").inc()
        else:
            self._metrics.messages_put_off.labels("unblock").inc()

    def _receiver(self, address: str) -> Stream | None:
        group, _, pid = address.partition("://")[2].partition("@")[2].partition("/")
        found = [self._members.find(Member(group, pid))] if pid else self._members.of_group(group)
        now_s = clock.monotonic()
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


def _addresses(member: Member) -> tuple[str, ...]:
    """Return the addresses whose messages a member may get."""
    group = f"poll://any@{member.group}"
    return member.address, group, f"{group}/{member.pid}"
