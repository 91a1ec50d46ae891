"""Signs of life, from a thread of their own.

Lives here: `Heartbeat`: renewing leases, holding the presence lock, and watching the worker's event
loop. May not: what a run is. Design: whether this process lives must not depend on whether user
code lets its event loop turn. So leases are renewed by a thread with its own loop and its own connection;
it tells when the worker's loop is blocked, with the stack, and it stops renewing when that lasts, so that a
hung worker loses its work in bounded time. The presence lock belongs to the session of the heartbeat:
Postgres frees it when this process dies, and others need not wait for leases to run out. It is declared from
another session, which must see it held. When the session breaks, presence is withdrawn at once,
and declared again with a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import platform
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import msgspec

from pyengine.core.database.connection import Database, ReconnectingConnection
from pyengine.core.database.faults import sqlstate_of
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.registered import STATEMENT_ENDS_S
from pyengine.core.database.statements.procedures import (
    HEARTBEAT,
    HELLO,
    IDLE,
    PRESENT,
    RELEASE_UNKNOWN,
    TAKE_PRESENCE,
    Hello,
)
from pyengine.core.database.statements.sessions import HOLDERS_OF_TABLES
from pyengine.core.database.statements.time_limits import limit_s
from pyengine.core.process import clock
from pyengine.core.process.lease_terms import Leased, LeaseTerms
from pyengine.core.protocol.turn import Lease
from pyengine.core.sources import VERSION
from pyengine.core.worker.blocked_runs import WARN_AFTER_S, Holder
from pyengine.errors import EngineError, NotAdopted, Unavailable

logger = logging.getLogger("pyengine.heartbeat")

WATCH_EVERY_S = 0.25
BLOCKED_AFTER_S = 1.0
ADOPTION_RETRY_S = 2.0
_PRESENCE_RETRY_S = 0.2
_LOCKED = "55P03"
_NOT_OF_USERS = ("pyengine", "asyncio")
_PRESENCE_SELDOM_S = 30.0
_VAIN_DECLARATIONS = 10
_STOP_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The calls between heartbeat and worker, in the heartbeat's thread.

    Args:
        hello: arguments of the worker's hello.
        number: what the first hello answered.
        idle: parameters of the idle registration, without its duration.
        leases: the leases to renew, each with what is held under it.
        lost: called with the lost leases.
        failed: called with the error that has ended the heartbeat.
        reinstalled: called when the schema was dropped and installed again under the worker.
        at_work: the lease of the run whose code a thread executes there, if it is known.
        stalled: called when the loop has stood still for too long, and all other leases are given back.
        terms: learn until when the leases hold.
        asked_s: since when the worker waits for the answer to a turn; None if it does not.
        ticked_s: the last time at which the worker's loop turned, by `time.monotonic`.
        since_tick_ms: milliseconds since its last successful tick of the database; None before the first.
        declare: declares presence in the worker's loop, from another session; returns whether it is accepted.
        main_thread: identifier of the thread of the worker's loop.
    """

    hello: Hello
    number: int
    idle: tuple[Any, ...]
    leases: Callable[[], Mapping[Lease, Leased]]
    lost: Callable[[list[Lease]], None]
    failed: Callable[[Exception], None]
    reinstalled: Callable[[], None]
    at_work: Callable[[FrameType | None], Lease | None]
    stalled: Callable[[EngineError], None]
    terms: LeaseTerms
    asked_s: Callable[[], float | None]
    ticked_s: Callable[[], float]
    since_tick_ms: Callable[[], int | None]
    declare: Callable[[], Future[Any]]
    main_thread: int


def about_process(places: Sequence[tuple[str, str]] = (), *, keeps: bool = False) -> str:
    """Return what a hello says about this process, as JSON: a migration looks at the version.

    Args:
        places: module and parameters of each of its workflows.
        keeps: others may not have its runs while it is there.
    """
    about: dict[str, Any] = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "python": platform.python_version(),
        "pyengine": VERSION,
        "places": places,
        "keeps": keeps,
    }
    return msgspec.json.encode(about).decode()


async def send_hello(link: ReconnectingConnection | ConnectionPool, hello: Hello) -> dict[str, Any]:
    """Register the worker and return the answer: number, settings, now, codes, what could not be written.

    Raises:
        EngineError: it failed.
    """
    answer: dict[str, Any] = msgspec.json.decode(await link.run(HELLO, *hello))
    return answer


async def hello_when_adopted(
    database: Database, link: ReconnectingConnection | ConnectionPool, hello: Hello
) -> dict[str, Any]:
    """Register the worker as `send_hello` does; wait while the database is a copy that was not adopted, and
    while somebody has locked a table that it needs.

    Raises:
        EngineError: it failed.
    """
    warned: set[tuple[int, str]] = set()
    while True:
        try:
            answer = await send_hello(link, hello)
        except NotAdopted:
            database.copy.found(database.where)
            await clock.sleep(ADOPTION_RETRY_S)
        except EngineError as error:
            if sqlstate_of(error) != _LOCKED:
                raise
            await _warn_of_holders(link, warned)
            await clock.sleep(_PRESENCE_RETRY_S)
        else:
            database.copy.ended(database.where)
            return answer


async def _warn_of_holders(
    link: ReconnectingConnection | ConnectionPool, warned: set[tuple[int, str]]
) -> None:
    """Log who has locked tables that a worker needs at its start; each transaction once."""
    try:
        holders = msgspec.json.decode(await link.run(HOLDERS_OF_TABLES), type=list[Holder])
    except EngineError as error:
        logger.debug("holders: %s", error.message)
        return
    for holder in holders:
        if holder.key not in warned:
            warned.add(holder.key)
            logger.warning("the worker waits to start: table %s is locked by %s", holder.id, holder)


class Heartbeat:
    """Signs of life of one worker process.

    Args:
        database: where to.
        vitals: what to ask and to tell.
        ttl_ms: length of a lease; renewed every half of it.
        stall_limit_ms: how long the worker's loop may stand still before its leases are let go.
    """

    def __init__(self, database: Database, vitals: Vitals, *, ttl_ms: int, stall_limit_ms: int) -> None:
        self._database = database
        self._vitals = vitals
        self._worker: str = vitals.hello.worker
        self._ttl_s = ttl_ms / 1000
        self._every_s = self._ttl_s / 2
        self._stall_limit_s = stall_limit_ms / 1000
        self._thread = threading.Thread(target=self._run, name="pyengine-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._reported_s = 0.0
        self._stop_asked_s: float | None = None
        self._given_back = False
        # the hello that started the worker may have met a lock
        self._again = True
        self._number = vitals.number
        self._warned: set[int] = set()
        self.present = False

    def start(self) -> None:
        """Start the thread."""
        self._workers_loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread.start()
        self._ready.wait()

    async def stop(self) -> None:
        """End the thread; wait until it has ended, or for a while."""
        loop, stop = self._loop, self._stop
        if loop is None or stop is None:
            return
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(stop.set)
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(_STOP_WITHIN_S):
                await self._ended.wait()

    def expect_stop(self) -> None:
        """A stop is asked for: while the loop stands still, leases are given back from here; any thread."""
        self._stop_asked_s = self._stop_asked_s or clock.monotonic()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # boundary of the thread
            self._vitals.failed(error)
        finally:
            self._ready.set()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._workers_loop.call_soon_threadsafe(self._ended.set)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        gone = asyncio.Event()

        async def prepare(conn: Any) -> None:
            gone.clear()
            conn.add_termination_listener(lambda _: gone.set())

        link = ReconnectingConnection(self._database, "heartbeat", own=True, prepare=prepare)
        tasks = [
            asyncio.create_task(self._beat(link)),
            asyncio.create_task(self._keep_presence(link, gone)),
            asyncio.create_task(self._watch(link)),
            asyncio.create_task(self._stop.wait()),
        ]
        self._ready.set()
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # a hello that is cut off may register the worker behind its goodbye
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(STATEMENT_ENDS_S):
                await link.finish()
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await link.close(timeout_s=1.0)
        for task in done:
            task.result()

    # -- leases

    async def _beat(self, link: ReconnectingConnection) -> None:
        missed = False
        while True:
            if missed or not link.alive:
                missed = not await self._back(link)
            else:
                await clock.sleep(self._every_s)
                if self._again:
                    await self._back(link)
            if missed or self._stalled():
                continue
            leases, until_s = self._vitals.leases(), self._vitals.terms.asked()
            try:
                lost, newest = await link.use(partial(self._renew, leases))
            except NotAdopted:
                # leases and presence of this worker belong to another database
                missed = True
                link.drop()
            except EngineError as error:
                missed = isinstance(error, Unavailable)
                logger.log(logging.DEBUG if missed else logging.ERROR, "heartbeat: %s", error.message)
            else:
                gone = set(lost)
                if None in gone:
                    # the presence lock is that of a number which may be another worker's by now
                    missed = True
                    link.drop()
                if ended := [one for one in leases if one.execution in gone]:
                    self._vitals.lost(ended)
                # a later lease of one of these runs has begun after this was sent
                kept = [held for one, held in leases.items() if not {one.execution, -one.execution} & gone]
                self._vitals.terms.renewed(kept, until_s)
                if newest is not None:
                    self._vitals.terms.numbered(newest, until_s)

    async def _renew(self, leases: Mapping[Lease, Leased], conn: Any) -> tuple[list[int | None], int | None]:
        """Renew these leases; return those that are lost, as negative numbers those that others may take
        because nothing could be written about them, and the newest number of a run."""
        lost, newest = await conn.fetchrow(
            HEARTBEAT.sql,
            self._worker,
            [one.execution for one in leases],
            [one.id for one in leases],
            [one.version for one in leases],
            self._vitals.since_tick_ms(),
            timeout=limit_s(HEARTBEAT),
        )
        return lost, newest

    async def _back(self, link: ReconnectingConnection) -> bool:
        """Come back after the connection was lost: the worker may have been forgotten meanwhile."""
        await link.connected_eventually(purpose="heartbeat")
        try:
            await self._hello(link)
        except EngineError as error:
            logger.debug("hello: %s", error.message)
            await clock.sleep(_retry_s(error))
            return False
        return True

    async def _hello(self, link: ReconnectingConnection) -> dict[str, Any]:
        """Say hello, and note whether to say it again: others have locked what it writes."""
        answer = await send_hello(link, self._vitals.hello)
        self._again = bool(answer["unannounced"]) or not answer["registered"]
        if answer["is_new"]:
            logger.info("worker %s was not registered any more; it is again", self._worker)
            if answer["number"] <= self._number:
                # numbers only grow in the life of a schema
                self._vitals.reinstalled()
        self._number = answer["number"]
        holders = [Holder(id=", ".join(answer["unannounced"]), **one) for one in answer["holders"]]
        # a number of a process comes again in the life of a worker
        self._warned &= {holder.pid for holder in holders}
        for holder in holders:
            if holder.pid not in self._warned and holder.may_block(WARN_AFTER_S):
                self._warned.add(holder.pid)
                logger.warning(
                    "workflow %s cannot be announced yet: the same row is written by another session, "
                    "most likely %s. Its runs are started and claimed, but not handed off",
                    holder.id,
                    holder,
                )
        return answer

    def _stalled(self) -> bool:
        """Whether the part that works stands still, loop or turn: then others are to have the runs."""
        ticked_s, asked_s = self._vitals.ticked_s(), self._vitals.asked_s()
        # the loop does not hear an answer while it stands still
        return self._stands_still() or (asked_s is not None and ticked_s - asked_s > self._ttl_s)

    def _stands_still(self) -> bool:
        return clock.monotonic() - self._vitals.ticked_s() > self._stall_limit_s

    # -- presence

    async def _keep_presence(self, link: ReconnectingConnection, gone: asyncio.Event) -> None:
        if not self._database.hints:
            # the session behind a pooler is not ours: the leases decide
            await asyncio.Event().wait()
        while True:
            await link.connected_eventually(purpose="presence")
            try:
                await self._declare(link)
                await gone.wait()
                self.present = False
                logger.info("presence: the connection to %s was lost", self._database.where)
                await link.run(PRESENT, self._worker, False)
            except EngineError as error:
                logger.debug("presence: %s", error.message)
                await clock.sleep(_retry_s(error))

    async def _declare(self, link: ReconnectingConnection) -> None:
        """Take the lock, and have another session see it held."""
        for vain in itertools.count(1):
            while not (answer := await self._hello(link))["registered"]:
                # a transaction holds our row, or has deleted it because we seemed to be gone
                await clock.sleep(_PRESENCE_RETRY_S)
            while not await link.run(TAKE_PRESENCE, answer["number"]):
                # the server has not noticed yet that our last session is gone
                await clock.sleep(_PRESENCE_RETRY_S)
            self.present = bool(await asyncio.wrap_future(self._vitals.declare()))
            if self.present:
                return
            # others have deleted our row meanwhile, as after a failover, or a pooler has split the two
            if vain == _VAIN_DECLARATIONS:
                logger.warning("presence: the lock is not seen held; is there a pooler? Leases decide")
            await clock.sleep(_PRESENCE_RETRY_S if vain < _VAIN_DECLARATIONS else _PRESENCE_SELDOM_S)

    # -- the worker's loop

    def _stop_is_due(self) -> bool:
        return self._stop_asked_s is not None and clock.monotonic() > self._stop_asked_s + BLOCKED_AFTER_S

    async def _give_back(self, link: ReconnectingConnection) -> None:
        """Give back all leases but that of the run whose code holds the loop: its loss is its own."""
        frame = sys._current_frames().get(self._vitals.main_thread)
        kept = self._vitals.at_work(frame)
        stands = self._stands_still()
        who = "code" if kept is None else f"run {kept.id}"
        error = EngineError(f"{who} holds the event loop of worker {self._worker} at {_place_of(frame)}")
        logger.error("%s; all other runs are given back", error.message)
        self._given_back = True
        self._vitals.terms.void()
        known = [] if kept is None else [kept]
        with contextlib.suppress(EngineError):
            await link.run(
                RELEASE_UNKNOWN, self._worker, [one.execution for one in known], [one.id for one in known]
            )
        if stands:
            self._vitals.stalled(error)

    async def _watch(self, link: ReconnectingConnection) -> None:
        while True:
            await clock.sleep(WATCH_EVERY_S)
            ticked_s = self._vitals.ticked_s()
            blocked_s = clock.monotonic() - ticked_s - WATCH_EVERY_S
            if blocked_s < BLOCKED_AFTER_S:
                self._reported_s, self._given_back = 0.0, False
            elif not self._given_back and (self._stands_still() or self._stop_is_due()):
                await self._give_back(link)
            elif blocked_s > 2 * self._reported_s:
                first, self._reported_s = not self._reported_s, blocked_s
                frame = sys._current_frames().get(self._vitals.main_thread)
                stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
                logger.warning(
                    "the event loop has been blocked for %.1f s; steps and workflows must not block "
                    "(use `def` steps, which run in threads). It is here:\n%s",
                    blocked_s,
                    stack,
                )
                if first:
                    # what a start would hand over now would not be heard
                    with contextlib.suppress(EngineError):
                        await link.run(IDLE, *self._vitals.idle, 0)


def _place_of(frame: FrameType | None) -> str:
    """Return file and line of the code of users that a thread executes."""
    inner = frame
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] in _NOT_OF_USERS:
        frame = frame.f_back
    found = frame or inner
    return "an unknown place" if found is None else f"{found.f_code.co_filename}:{found.f_lineno}"


def _retry_s(error: EngineError) -> float:
    """Return when to say hello again; the server logs each one that it refuses."""
    return ADOPTION_RETRY_S if isinstance(error, NotAdopted) else _PRESENCE_RETRY_S
