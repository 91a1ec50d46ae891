"""Registering a worker as idle, so that the start of a run hands the run to it.

Lives here: `Handoff`, which knows when to register and when to withdraw. May not: slots and the
runs that are handed over (turn_loop.py). Design: to claim a run that has just been started costs two
wake-ups and a commit, and for an idle worker they are most of what a caller waits for. So a start looks for a
worker that is registered as idle, leases the run to it in its own transaction and sends it the whole run as a
direct message. One run for each registration; the turn that ends the run registers the worker again, if it
does nothing else, so starts that follow each other find the worker idle each time. A worker that reports and
claims all the time, or has no slot left, is not registered, and what is started then is claimed by turns,
many at once. A worker whose listener is down withdraws its registration.
"""

from __future__ import annotations

import asyncio
import logging

from pyengine.core.database.listener import Listener, message_address
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import IDLE
from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.core.process.backoff import backoff_pause
from pyengine.core.worker.turn_sender import Identity
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.handoff")

_AFTER_S = 0.003
_AFTER_MAX_S = 12.0
# each renewal is a version of the row, which starts read while a transaction of somebody stays open
_FOR_MS = 90_000
_AGAIN_S = 30.0


class Handoff:
    """The idle registration of one worker.

    Args:
        link: to register on.
        listener: receives direct messages.
        identity: the worker, and what it can run.
        background: its tasks.

    Attributes:
        address: where direct messages to the worker are sent.
        parameters: of `IDLE`, all but for how long.
    """

    def __init__(
        self, link: ConnectionPool, listener: Listener, identity: Identity, background: Background
    ) -> None:
        self._link = link
        self._listener = listener
        self.address = message_address()
        self.parameters = (identity.worker, self.address, *identity.serves, identity.ttl_ms)
        self._background = background
        self._handle: clock.Timer | None = None
        self._registering: asyncio.Task[None] | None = None
        self._again_s = self._believed_until_s = self._row_at_s = 0.0
        self._used = self._used_before = self._vain = 0
        self._ended = self._idle = self._full = False

    def idle(self) -> None:
        """There is a slot and nothing to do at this moment: if that lasts, register."""
        self._idle, self._full = True, False
        if not (self._is_known or self._ended):
            self._handle = clock.call_later(_AFTER_S, self._register)

    def busy(self) -> None:
        """There may be something to do."""
        self._idle = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def may_register(self) -> int:
        """Return for how many ms the turn that is about to leave, and ends the only run, may register the
        worker; 0 if it is registered already, or cannot be.
        """
        if self._is_known or self._ended or not self._listener.receives(self.address):
            return 0
        # assume that it is registered: the answer may get lost
        self._believed_until_s = clock.monotonic() + _FOR_MS / 1000
        self._used_before = self._used
        return _FOR_MS

    def idle_with_turn(self, *, registered: bool) -> None:
        """Note the answer to that turn. A turn only renews the row of a worker: where there is none yet,
        and the worker never rests, it is written beside the turns.
        """
        now_s = clock.monotonic()
        if registered:
            self._renew_later(self._used_before)
        elif now_s >= self._row_at_s and self._registering is None and not self._ended:
            self._vain += 1
            self._row_at_s = now_s + backoff_pause(_AFTER_S, _AFTER_MAX_S, self._vain)
            self._registering = self._background.start(self._send(_FOR_MS))

    def used(self) -> None:
        """A run was handed over, which ends the registration."""
        self._used += 1
        self._again_s = self._believed_until_s = 0.0

    @property
    def _is_known(self) -> bool:
        """Whether the worker is registered, or about to be."""
        return self._handle is not None or self._registering is not None or clock.monotonic() < self._again_s

    def _renew_later(self, used_before: int) -> None:
        """Renew the registration before it expires; at once, if it has been used since."""
        if self._used == used_before:
            self._vain, self._again_s = 0, clock.monotonic() + _AGAIN_S

    @property
    def registered(self) -> bool:
        """Whether a start may hand something over, or may as soon as what is being sent is read."""
        return self._registering is not None or clock.monotonic() < self._believed_until_s

    def withdraw(self) -> None:
        """There is no slot left, or no listener: starts are to hand nothing over."""
        self._full = True
        if self._registering is None and self.registered:
            self._registering = self._background.start(self._send(0))

    def forgotten(self) -> None:
        """Another session may have withdrawn the registration meanwhile."""
        self._again_s = 0.0
        if self._idle:
            self.idle()

    def connection_changed(self) -> None:
        """The connection for direct messages was lost, or is a new one."""
        if self._listener.receives(self.address):
            self.forgotten()
        else:
            self.withdraw()

    async def end(self) -> None:
        """Withdraw for good: starts are to leave what they start to others.

        Raises:
            EngineError: that could not be sent; the worker counts as idle for a while.
        """
        self.busy()
        self._ended = True
        if self._registering is not None:
            await asyncio.wait((self._registering,))
        if clock.monotonic() < self._believed_until_s:
            await self._link.run(IDLE, *self.parameters, 0)

    async def close(self) -> None:
        """Register no more."""
        self.busy()
        self._ended = True
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)

    def _register(self) -> None:
        self._handle = None
        if self._listener.receives(self.address):
            self._registering = self._background.start(self._send(_FOR_MS))
        else:
            self._register_later()

    def _register_later(self) -> None:
        """It is not present yet, mostly, or its listener is not connected."""
        if self._idle and not self._ended:
            self._vain += 1
            pause_s = backoff_pause(_AFTER_S, _AFTER_MAX_S, self._vain, factor=4)
            self._handle = clock.call_later(pause_s, self._register)

    async def _send(self, for_ms: int) -> None:
        used = self._used
        self._again_s = 0.0
        # assume that it is registered: the answer may get lost
        self._believed_until_s = clock.monotonic() + for_ms / 1000 if for_ms else 0.0
        try:
            registered = await self._link.run(IDLE, *self.parameters, for_ms)
        except EngineError as error:
            logger.debug("hand-off: %s", error.message)
            registered = False
        self._registering = None
        if for_ms and not registered:
            self._register_later()
        elif for_ms:
            self._renew_later(used)
        if self._full:
            self.withdraw()
        if self._idle:
            self.idle()
