"""Rest: a worker that waits for work says so, and is then handed a run by the very start of it.

What lives here: `Handoff`, which knows when to say it and takes the note that comes. What may not: slots
(dispatcher.py), runs (run_manager.py). The theory: to claim a run that has just been started costs two
wake-ups and a commit, and at rest they are most of what a caller waits for. So a start looks for a worker
that rests, makes the task that worker's in its own transaction and notes the whole run to it. One run for
each rest, which begins anew with the turn that ends the run, if that does nothing else: so starts one after
the other find the worker at rest each time. Who reports and claims all the time, or has no slot left, does
not rest, and what is started then is claimed by turns, many at once. Notes may be lost with their connection;
what was in them is then given back, as after a turn whose answer got lost. Who cannot hear says that it does
not rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from pyengine.database.listener import Listener, message_address
from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.procedures import IDLE
from pyengine.errors import EngineError
from pyengine.protocol.turn import Answer, decode_handoff
from pyengine.worker.turn_sender import Identity

__all__ = ["Handoff"]

logger = logging.getLogger("pyengine.resting")

_AFTER_S = 0.003
_FOR_MS = 30_000
_AGAIN_S = 10.0
_VAIN_MAX = 6


class Handoff:
    """The rests of one worker.

    Args:
        link: to say so on.
        listener: hears the notes.
        identity: who rests, and what it can run.

    Attributes:
        words: what `IDLE` is told, all but for how long.
        handed: called with a run that was handed over, as the answer of a turn that had claimed it.
        missed: called when notes may have been lost.
    """

    def __init__(self, link: ConnectionPool, listener: Listener, identity: Identity) -> None:
        self._link = link
        self._listener = listener
        self._address = message_address()
        self.words = (identity.worker, self._address, *identity.serves, identity.ttl_ms)
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._saying: asyncio.Task[None] | None = None
        self._again_s = self._believed_until_s = 0.0
        self._notes = self._notes_before = self._vain = 0
        self._ended = self._quiet = self._full = False
        self.handed: Callable[[Answer], None]
        self.missed: Callable[[], None]

    def begin(self) -> None:
        """Listen for notes."""
        self._listener.add_receiver(self._address, self._noted, self._lost)

    def quiet(self) -> None:
        """There is a slot and nothing to do at this moment: if that lasts, say so."""
        self._quiet, self._full = True, False
        if not (self._is_said or self._ended):
            self._handle = self._loop.call_later(_AFTER_S, self._say)

    def stirred(self) -> None:
        """There may be something to do."""
        self._quiet = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def resume(self) -> int:
        """Return for how many ms the turn that is about to leave, and ends the only run, may say so; 0 if
        it was said already, or cannot be.
        """
        if self._is_said or self._ended or not self._listener.receives(self._address):
            return 0
        # perhaps: the answer may get lost
        self._believed_until_s = self._loop.time() + _FOR_MS / 1000
        self._notes_before = self._notes
        return _FOR_MS

    def resumed(self, *, believed: bool) -> None:
        """Note what the answer to that turn was."""
        if believed:
            self._repeat_later(self._notes_before)

    @property
    def _is_said(self) -> bool:
        """Whether it was said and still holds, or is about to be."""
        return self._handle is not None or self._saying is not None or self._loop.time() < self._again_s

    def _repeat_later(self, notes_before: int) -> None:
        """Say it again before it is forgotten; at once, if a run was handed over since it was said."""
        if self._notes == notes_before:
            self._vain, self._again_s = 0, self._loop.time() + _AGAIN_S

    @property
    def offered(self) -> bool:
        """Whether a start may hand something over, or may as soon as what is being said is read."""
        return self._saying is not None or self._loop.time() < self._believed_until_s

    def withdraw(self) -> None:
        """There is no slot left, or no ear: starts are to hand nothing over."""
        self._full = True
        if self._saying is None and self.offered:
            self._saying = self._loop.create_task(self._say_so(0))

    def forgotten(self) -> None:
        """Others may have said meanwhile that this worker does not rest."""
        self._again_s = 0.0
        if self._quiet:
            self.quiet()

    async def end(self) -> None:
        """Rest no more: starts are to leave what they start to others.

        Raises:
            EngineError: it could not be said; the worker is believed to rest for a while.
        """
        self.stirred()
        self._ended = True
        if self._saying is not None:
            await self._saying
        if self._loop.time() < self._believed_until_s:
            await self._link.run(IDLE, *self.words, 0)

    async def close(self) -> None:
        """Take no notes any more."""
        self.stirred()
        self._ended = True
        self._listener.remove_receiver(self._address)
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.gather(self._saying, return_exceptions=True)

    def _say(self) -> None:
        self._handle = None
        if self._listener.receives(self._address):
            self._saying = self._loop.create_task(self._say_so(_FOR_MS))
        else:
            self._say_later()

    def _say_later(self) -> None:
        """It is not present yet, mostly, or does not hear yet."""
        if self._quiet and not self._ended:
            self._vain = min(self._vain + 1, _VAIN_MAX)
            self._handle = self._loop.call_later(_AFTER_S * 4**self._vain, self._say)

    async def _say_so(self, for_ms: int) -> None:
        notes = self._notes
        self._again_s = 0.0
        # perhaps: the answer may get lost
        self._believed_until_s = self._loop.time() + for_ms / 1000 if for_ms else 0.0
        try:
            believed = await self._link.run(IDLE, *self.words, for_ms)
        except EngineError as error:
            logger.debug("rest: %s", error.message)
            believed = False
        self._saying = None
        if for_ms and not believed:
            self._say_later()
        elif for_ms:
            self._repeat_later(notes)
        if self._full:
            self.withdraw()
        if self._quiet:
            self.quiet()

    def _noted(self, words: str) -> None:
        self._notes += 1
        self._again_s = self._believed_until_s = 0.0
        try:
            answer = decode_handoff(words).answer()
        except msgspec.DecodeError:
            # of a start of another release, perhaps; others can claim what it tells of
            logger.exception("a note cannot be read; what came with it is given back")
            self.missed()
        else:
            self.handed(answer)

    def _lost(self) -> None:
        if self._listener.receives(self._address):
            self.forgotten()
        else:
            self.withdraw()
        self.missed()
