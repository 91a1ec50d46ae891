"""Waiting for the ends of runs.

What lives here: `ResultPoller`, one loop for all runs that a client waits for. What may not: what an end
means (run.py). The theory: waiting is polling. One query asks for all runs at once: at each hint that
something settled, and without one after growing pauses. A database that is down is waited for as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any

import msgspec

from pyengine.client.caller_connection import unwritable
from pyengine.database.listener import Listener, note_address
from pyengine.database.poll_schedule import PollSchedule
from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.procedures import RESULTS
from pyengine.errors import EngineError, InvalidRequest
from pyengine.protocol.turn import decode_result

__all__ = ["ResultPoller", "refuse_no_text"]

logger = logging.getLogger("pyengine.results")

_LONGEST_S = 3.0
_AGAIN_S = 1.0
_MANY = 50
_PAUSE_MAX_S = 0.2
_EARLY_MAX = 100


class ResultPoller:
    """Waits for runs, all with one loop that begins with the first of them.

    Args:
        links: connections to ask on.
        listener: hints.
    """

    def __init__(self, links: ConnectionPool, listener: Listener) -> None:
        self._links = links
        self._listener = listener
        self._futures: dict[str, list[asyncio.Future[Any]]] = {}
        self._looks = PollSchedule(longest_s=_LONGEST_S)
        self._wake = asyncio.Event()
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._heard = 0
        self._early: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._address = note_address()

    @property
    def heard(self) -> int | None:
        """How many hints have come so far; None while nobody listens."""
        return None if self._task is None else self._heard

    @property
    def reply(self) -> str | None:
        """Where the end of a run may be noted; None while nobody listens there."""
        return self._address if self._task is not None and self._listener.hears(self._address) else None

    async def listen(self) -> None:
        """Begin to listen for hints; they can be sent from then on too.

        Raises:
            EngineError: the database cannot be reached.
        """
        if self._task is not None:
            return
        async with self._starting:
            if self._task is None:
                self._listener.subscribe("durable_settled", self._hinted)
                self._listener.receive(self._address, self._noted, self._hinted)
                try:
                    await self._listener.start()
                except BaseException:
                    self._leave()
                    raise
                self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; whoever still waits gets a CancelledError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self._leave()
            await self._listener.stop()
        for futures in self._futures.values():
            for future in futures:
                future.cancel()
        self._futures.clear()

    async def wait(self, id: str, timeout_s: float | None, since: int | None = None) -> Any:
        """Return the row of a run that has ended: state (None if there is no such run), value, error.

        Args:
            id: the run.
            timeout_s: for how long.
            since: `heard` before the run was started; without a hint since then there is no hurry to look.

        Raises:
            TimeoutError: it has not ended in time.
            InvalidRequest: that can be no id.
        """
        refuse_no_text(id)
        if id in self._early:
            return self._early.pop(id)
        await self.listen()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(id, []).append(future)
        if since is not None and since == self._heard:
            alone = len(self._futures) == len(self._futures[id]) == 1
            self._looks.begun(asyncio.get_running_loop().time(), alone=alone)
            self._wake.set()
        else:
            self._look_now()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise TimeoutError(f"run {id} has not ended after {timeout_s:g} s; it goes on") from None
        finally:
            futures = self._futures.get(id, [])
            if future in futures:
                futures.remove(future)
                if not futures:
                    del self._futures[id]

    def _leave(self) -> None:
        self._listener.unsubscribe("durable_settled", self._hinted)
        self._listener.receive_no_more(self._address)

    def _noted(self, words: str) -> None:
        """A run that was started here has ended, and its worker has noted how."""
        try:
            row = msgspec.structs.asdict(decode_result(words))
        except msgspec.DecodeError:
            # the hint that comes with it is enough
            logger.exception("a note cannot be read")
            return
        if not self._settle(row):
            # the answer of its start is still under way, perhaps; what has ended stays as it is
            self._early[row["id"]] = row
            if len(self._early) > _EARLY_MAX:
                self._early.popitem(last=False)

    def _settle(self, row: Any) -> bool:
        """Give a row to those who wait for it; false if nobody does."""
        futures = self._futures.pop(row["id"], None)
        for future in futures or ():
            if not future.done():
                future.set_result(row)
        return futures is not None

    def _hinted(self) -> None:
        self._heard += 1
        self._look_now()

    def _look_now(self) -> None:
        if self._futures:
            self._looks.hinted(asyncio.get_running_loop().time())
            self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._futures or self._looks.at > loop.time():
                self._wake.clear()
                handle = loop.call_at(self._looks.at, self._wake.set) if self._futures else None
                await self._wake.wait()
                if handle is not None:
                    handle.cancel()
                continue
            try:
                await self._look(loop)
            except EngineError as error:
                logger.warning("waiting for %d runs: %s", len(self._futures), error.message)
                await asyncio.sleep(_AGAIN_S)

    async def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        ids, began_s = list(self._futures), loop.time()
        self._looks.looked(began_s, found=False)
        rows = await self._links.rows(RESULTS, ids)
        for row in rows:
            self._settle(row)
        if len(ids) > _MANY:
            # a long look must not follow a long look at every hint
            await asyncio.sleep(min(_PAUSE_MAX_S, 2 * (loop.time() - began_s)))


def refuse_no_text(id: object) -> None:
    """Refuse what can be no id: all are asked for in one query, where it would keep the others waiting.

    Raises:
        InvalidRequest: it is no text, or one that Postgres cannot read.
    """
    if not isinstance(id, str) or unwritable(id):
        raise InvalidRequest(f"{id!r} can be no run id: an id is a text without NUL")
