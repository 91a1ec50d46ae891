"""The LISTEN connection of a process: hints and direct messages.

What lives here: `Listener`. What may not: rows; when to poll (poll_schedule.py). A hint says nothing but
"look again". It may be lost, and it may come for nothing: pollers find everything without it, only later. A
direct message says what is so. It begins with a secret that only roles which may read the tables know, and
may be lost too. A pooler passes neither on, so behind one the connection goes past it if `Database.sessions`
says how; otherwise everything is found by polling.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from pyengine.database.connection import Database, ReconnectingConnection
from pyengine.database.poll_schedule import Channel, NotifyThrottle
from pyengine.database.statements.procedures import HINT
from pyengine.errors import EngineError

__all__ = ["Listener", "note_address"]

logger = logging.getLogger("pyengine.listen")

_HINT_PAUSE_S = 0.002
_HINT_PAUSE_MAX_S = 0.02


def note_address() -> str:
    """Return a channel and the word that begins each note to it, which nobody else knows; `durable._note`."""
    return f"durable_to_{secrets.token_hex(16)}:{secrets.token_hex(16)}"


class Listener:
    """Receives hints for a whole process, and sends those of its workers and clients.

    Args:
        database: where to.

    A subscriber is called in the event loop's thread, also when a channel began to be listened to after
    `start` and each time the connection had to be made anew, because hints may have been missed. A channel is
    not listened to before somebody subscribes to it: a client would be woken by every start of all others.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._link = ReconnectingConnection(database, "listen", own=True, prepare=self._listen)
        self._subscribers: dict[Channel, list[Callable[[], None]]] = {
            "durable_ready": [],
            "durable_settled": [],
        }
        self._receivers: dict[str, tuple[str, Callable[[str], None], Callable[[], None]]] = {}
        self._session = 0
        self._lost = asyncio.Event()
        self._more = asyncio.Event()
        self._heard_on: set[str] = set()
        self._pending: set[Channel] = set()
        self._send_soon = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._users = 0
        self._changing = asyncio.Lock()
        self._pace = NotifyThrottle()

    def subscribe(self, channel: Channel, subscriber: Callable[[], None]) -> None:
        """Call `subscriber` at each hint."""
        self._subscribers[channel].append(subscriber)
        self._more.set()

    def unsubscribe(self, channel: Channel, subscriber: Callable[[], None]) -> None:
        """Do not call it any more."""
        if subscriber in self._subscribers[channel]:
            self._subscribers[channel].remove(subscriber)

    def receive(self, address: str, receiver: Callable[[str], None], missed: Callable[[], None]) -> None:
        """Call `receiver` with each note that comes to an address of `note_address`, and `missed` when the
        connection is lost and when there is a new one.
        """
        channel, _, word = address.partition(":")
        self._receivers[channel] = word, receiver, missed
        self._more.set()

    def receive_no_more(self, address: str) -> None:
        """Do not listen there any more."""
        self._receivers.pop(address.partition(":")[0], None)
        self._more.set()

    def hears(self, address: str) -> bool:
        """Whether notes to that address come here at this moment."""
        heard = address.partition(":")[0] in self._heard_on
        return heard and self._database.hints and self._link.alive

    async def start(self) -> None:
        """Begin to listen; may be called by several users, each of which calls `stop`.

        Raises:
            EngineError: the database cannot be reached.
        """
        async with self._changing:
            if not self._users:
                await self._link.connected()
                loops = (self._keep_listening, self._listen_to_more, self._send_hints)
                self._tasks = [asyncio.create_task(each()) for each in loops]
            self._users += 1

    async def stop(self) -> None:
        """End listening once the last user stops."""
        async with self._changing:
            self._users -= 1
            if self._users:
                return
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
            await self._link.close()

    def tell(self, channel: Channel) -> None:
        """Call the subscribers of this process directly."""
        for subscriber in tuple(self._subscribers[channel]):
            subscriber()

    def along(self, channel: Channel) -> bool:
        """Whether a statement may send this hint itself, with its commit; if not, `send` it afterwards."""
        return self._pace.along(channel, asyncio.get_running_loop().time())

    def one_more(self, channel: Channel) -> None:
        """The next such hint may go along however soon it comes."""
        self._pace.one_more(channel)

    def send(self, channel: Channel) -> None:
        """Send a hint to the other processes, soon and together with others."""
        self._pending.add(channel)
        self._send_soon.set()

    def announce(self, channel: Channel, *, sent: bool = False) -> None:
        """Tell this process and, unless they were told with a commit, the others."""
        self.tell(channel)
        if not sent:
            self.send(channel)

    async def send_now(self, channel: Channel) -> None:
        """Send a hint and wait until it is sent, or not."""
        try:
            await self._link.run(HINT, channel == "durable_ready", channel == "durable_settled")
        except EngineError as error:
            logger.debug("hint not sent: %s", error.message)

    async def _listen(self, conn: Any) -> None:
        self._heard_on.clear()
        self._session = conn.get_server_pid()
        await self._listen_to(conn)
        conn.add_termination_listener(lambda _: self._lost.set())

    async def _listen_to(self, conn: Any) -> list[Channel]:
        """Listen to each channel that somebody has subscribed to by now; return those of hints that are
        new.
        """
        hints = [one for one, who in self._subscribers.items() if who and one not in self._heard_on]
        notes = [one for one in self._receivers if one not in self._heard_on]
        gone = self._heard_on.difference(self._subscribers, self._receivers)
        if self._database.hints:
            for channel in hints:
                await conn.add_listener(channel, self._heard)
            for note in notes:
                await conn.add_listener(note, self._received)
            for note in gone:
                await conn.remove_listener(note, self._received)
            if notes:
                # the last statement of a session can be read by whoever watches the server
                await conn.execute("select")
        self._heard_on.update(hints, notes)
        self._heard_on -= gone
        return hints

    async def _listen_to_more(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                fresh = await self._link.use(self._listen_to)
            except EngineError as error:
                # the connection is made anew by another task, and listens to all then
                self._link.drop()
                self._lost.set()
                logger.debug("not listening yet: %s", error.message)
            else:
                for channel in fresh:
                    self.tell(channel)

    def _heard(self, conn: Any, pid: int, channel: Channel, payload: str) -> None:
        # not asked of the connection, which may be closed by now
        if pid != self._session:
            self.tell(channel)

    def _received(self, conn: Any, pid: int, channel: str, words: str) -> None:
        word, receiver, _ = self._receivers.get(channel, ("", None, None))
        if receiver is not None and secrets.compare_digest(words[: len(word)].encode(), word.encode()):
            receiver(words[len(word) :])

    async def _keep_listening(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            self._tell_missed()
            await self._link.connected_sometime(what="hints")
            for channel in self._subscribers:
                self.tell(channel)
            self._tell_missed()

    def _tell_missed(self) -> None:
        for _, _, missed in tuple(self._receivers.values()):
            missed()

    async def _send_hints(self) -> None:
        pause_s = _HINT_PAUSE_S
        while True:
            await self._send_soon.wait()
            self._send_soon.clear()
            channels, self._pending = self._pending, set()
            try:
                await self._link.run(HINT, "durable_ready" in channels, "durable_settled" in channels)
            except EngineError as error:
                # a hint may be lost; the connection is made anew by the other task
                logger.debug("hint not sent: %s", error.message)
            # the first one goes at once; where one follows the other they go together
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _HINT_PAUSE_MAX_S) if self._pending else _HINT_PAUSE_S
