"""The LISTEN connection of a process: hints and direct messages.

Lives here: `Listener`. May not: reading rows; when to poll (poll_schedule.py). Design: a hint means "poll
now" and carries no data. It may be lost, and it may be superfluous: pollers find everything without it, only
later. A direct message carries data, starts with a secret that only roles with access to the tables can read,
and may be lost too. A pooler forwards neither, so the connection bypasses it if `Database.sessions` can;
otherwise everything is found by polling. Each notification wakes every session that listens, so a process
that sends many hints hears those of others too: all of them together send about as many as one would.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from math import inf
from typing import Any

from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.core.database.poll_schedule import Channel, NotifyThrottle
from pyengine.core.database.statements.procedures import HINT
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.listen")

_HINT_PAUSE_S = 0.002
_HINT_PAUSE_MAX_S = 0.02


def message_address() -> str:
    """Return a random address for direct messages: a channel, and the secret that starts each of them."""
    return f"durable_to_{secrets.token_hex(16)}:{secrets.token_hex(16)}"


class Listener:
    """Receives hints and direct messages for a whole process, and sends hints.

    Args:
        database: the database.

    Subscribers are called in the event loop's thread: at each hint, and after each new LISTEN and each new
    connection, because hints may have been missed. A channel without subscribers is not listened to, so a
    client is not woken by every start of other clients.

    Attributes:
        failed: called with the error after which nothing is received any more.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = ReconnectingConnection(database, "listen", own=True, prepare=self._listen)
        self._subscribers: dict[Channel, list[Callable[[], None]]] = {
            "durable_ready": [],
            "durable_settled": [],
            "durable_progress": [],
        }
        self._receivers: dict[str, tuple[str, Callable[[str], None], Callable[[], None]]] = {}
        self._session = 0
        self._lost = asyncio.Event()
        self._changed = asyncio.Event()
        self._channels: set[str] = set()
        self._pending: set[Channel] = set()
        self._followed: set[Channel] = set()
        self._last_hint_s = self._heard_s = -inf
        self._send_soon = asyncio.Event()
        self._background = Background(self._fail)
        self._is_broken = False
        self.failed: list[Callable[[BaseException], object]] = []
        self._users = 0
        self._starting = asyncio.Lock()
        self._throttle = NotifyThrottle()

    def subscribe(self, channel: Channel, subscriber: Callable[[], None]) -> None:
        """Call `subscriber` at each hint."""
        self._subscribers[channel].append(subscriber)
        self._changed.set()

    def follow(self, channel: Channel) -> None:
        """Hear the hints of other processes from now on, so that they save hints of this one."""
        if channel not in self._followed:
            self._followed.add(channel)
            self.subscribe(channel, _ignore)

    def unsubscribe(self, channel: Channel, subscriber: Callable[[], None]) -> None:
        """Do not call `subscriber` any more."""
        if subscriber in self._subscribers[channel]:
            self._subscribers[channel].remove(subscriber)

    def add_receiver(self, address: str, receiver: Callable[[str], None], missed: Callable[[], None]) -> None:
        """Receive the direct messages to an address.

        Args:
            address: as `message_address` makes it.
            receiver: called with each message, without the secret.
            missed: called when the connection is lost and when there is a new one.
        """
        channel, _, secret = address.partition(":")
        self._receivers[channel] = secret, receiver, missed
        self._changed.set()

    def remove_receiver(self, address: str) -> None:
        """Stop receiving the messages to an address."""
        self._receivers.pop(address.partition(":")[0], None)
        self._changed.set()

    def receives(self, address: str) -> bool:
        """Return whether messages to that address are received at this moment."""
        listening = address.partition(":")[0] in self._channels and not self._is_broken
        return listening and self._database.hints and self._connection.alive

    async def start(self) -> None:
        """Start listening; may be called by several users, each of which calls `stop`.

        Raises:
            EngineError: the database cannot be reached.
        """
        async with self._starting:
            if not self._users or self._is_broken:
                await self._connection.connected()
                self._is_broken = False
                for loop in (self._reconnect, self._change_channels, self._send_hints):
                    self._background.start(loop())
            self._users += 1

    async def stop(self) -> None:
        """Stop listening once the last user stops."""
        async with self._starting:
            self._users -= 1
            if self._users:
                return
            await self._background.cancel()
            await self._connection.close()

    def wake(self, channel: Channel) -> None:
        """Call the subscribers of this process directly."""
        for subscriber in tuple(self._subscribers[channel]):
            subscriber()

    def with_commit(self, channel: Channel) -> bool:
        """Return whether a statement may send this hint with its commit; if not, `announce` it afterwards."""
        return self._throttle.with_commit(channel, clock.monotonic())

    def allow_next(self, channel: Channel) -> None:
        """Let the next such hint be sent with its commit, however soon it comes."""
        self._throttle.allow_next(channel)

    def send(self, channel: Channel) -> None:
        """Send a hint to the other processes, soon and together with others."""
        self._pending.add(channel)
        self._send_soon.set()

    def announce(self, channel: Channel, *, with_commit: bool = False) -> None:
        """Wake this process and, unless a commit has sent the hint, the others."""
        self.wake(channel)
        if not with_commit:
            self.send(channel)

    async def send_now(self, channel: Channel) -> None:
        """Send a hint and wait for the attempt to end; a failure is only logged."""
        try:
            await self._connection.run(HINT, channel == "durable_ready", channel == "durable_settled")
        except EngineError as error:
            logger.debug("hint not sent: %s", error.message)

    def _fail(self, error: BaseException) -> None:
        """One of the loops has failed: nothing is received until the next `start`, and the rest is polled."""
        logger.error("hints and direct messages are no longer received", exc_info=error)
        self._is_broken = True
        self._background.stop()
        self._report_gap()
        for failed in tuple(self.failed):
            failed(error)

    async def _listen(self, conn: Any) -> None:
        self._channels.clear()
        self._session = conn.get_server_pid()
        await self._adjust_channels(conn)
        conn.add_termination_listener(lambda _: self._lost.set())

    async def _adjust_channels(self, conn: Any) -> list[Channel]:
        """LISTEN to the channels that have subscribers or receivers now; return the new ones of hints."""
        hints = [one for one, users in self._subscribers.items() if users and one not in self._channels]
        addresses = [one for one in self._receivers if one not in self._channels]
        removed = self._channels.difference(self._subscribers, self._receivers)
        if self._database.hints:
            for channel in hints:
                await conn.add_listener(channel, self._on_hint)
            for address in addresses:
                await conn.add_listener(address, self._on_message)
            for address in removed:
                await conn.remove_listener(address, self._on_message)
            if addresses:
                # pg_stat_activity shows the last statement of a session, and the address is a secret
                await conn.execute("select")
        self._channels.update(hints, addresses)
        self._channels -= removed
        return hints

    async def _change_channels(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                added = await self._connection.use(self._adjust_channels)
            except EngineError as error:
                # `_reconnect` makes a new connection, which listens to all channels
                self._connection.drop()
                self._lost.set()
                logger.debug("not listening yet: %s", error.message)
            else:
                for channel in added:
                    self.wake(channel)

    def _on_hint(self, conn: Any, pid: int, channel: Channel, payload: str) -> None:
        # the pid was read before: the connection may be closed by now
        if pid != self._session:
            if channel in self._followed and pid not in self._database.server_pids:
                self._heard_s = self._last_hint_s = clock.monotonic()
                self._throttle.heard(channel, self._heard_s)
                # whoever it made poll polls again in a few milliseconds, and finds what ours would announce
                self._pending.discard(channel)
            self.wake(channel)

    def _on_message(self, conn: Any, pid: int, channel: str, message: str) -> None:
        secret, receiver, _ = self._receivers.get(channel, ("", None, None))
        if receiver is not None and secrets.compare_digest(message[: len(secret)].encode(), secret.encode()):
            receiver(message[len(secret) :])

    async def _reconnect(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            self._report_gap()
            await self._connection.connected_eventually(purpose="hints")
            for channel in self._subscribers:
                self.wake(channel)
            self._report_gap()

    def _report_gap(self) -> None:
        for _, _, missed in tuple(self._receivers.values()):
            missed()

    async def _send_hints(self) -> None:
        now_s = clock.monotonic
        pause_s = _HINT_PAUSE_S
        while True:
            await self._send_soon.wait()
            self._send_soon.clear()
            # the first hint is sent at once; hints in quick succession are sent together
            in_succession = max(self._last_hint_s + pause_s, self._heard_s + _HINT_PAUSE_MAX_S) > now_s()
            while self._pending and (rest_s := self._last_hint_s + pause_s - now_s()) > 0:
                # after a hint of another process others wait for the same moment
                spread_s = random.random() * pause_s if self._heard_s == self._last_hint_s else 0.0
                await clock.sleep(rest_s + spread_s)
            pause_s = min(2 * pause_s, _HINT_PAUSE_MAX_S) if in_succession else _HINT_PAUSE_S
            channels, self._pending = self._pending, set()
            if not channels:
                continue
            self._last_hint_s = now_s()
            try:
                await self._connection.run(HINT, "durable_ready" in channels, "durable_settled" in channels)
            except EngineError as error:
                # a hint may be lost; `_reconnect` makes a new connection
                logger.debug("hint not sent: %s", error.message)


def _ignore() -> None:
    """Do not poll at a hint."""
