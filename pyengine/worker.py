"""The worker: claims runs, drives them, reports what moved.

What lives here: `Worker`, its life (start, serve, stop) and its loops. What may not: what a verdict means (holding.py), how a step is run
(steps.py), the shape of a turn (turn.py). The theory: there is one turn on the way at any time, and the next one leaves as soon as
it is back and anything has moved; so at rest a step costs one round trip, and under load hundreds of steps share a commit.
While a turn is on its way the answer before it is worked through, so Python and Postgres work at the same time. A slot is taken by a
run that is being worked on, not by one that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from pyengine.codec import Codec
from pyengine.connection import Database, Link
from pyengine.errors import EngineError, InvalidRequest
from pyengine.heartbeat import Heartbeat, Vitals, say_hello
from pyengine.holding import DatabaseClock, Holdings, Hooks
from pyengine.housekeeping import Housekeeper, TickAnswer
from pyengine.listen import Listener, Looks
from pyengine.loop import loop_version
from pyengine.model import Row
from pyengine.procedures import BYE, JOURNAL, RELEASE_UNKNOWN
from pyengine.registry import Registry
from pyengine.runs import HeldRun
from pyengine.steps import UNWIND_S, StepRunner
from pyengine.turn import Answer, Bundle, Identity, Turns

__all__ = ["Worker"]

logger = logging.getLogger("pyengine.worker")

_POLL_LONGEST_S = 5.0
_POLL_POOLED_S = 2.0
_ADRIFT_AGAIN_S = 5.0
_SECOND_S = 1.0
_LAST_TURN_S = 5.0
_ANSWERS_MAX = 2


class _Journal(msgspec.Struct):
    next: int
    rows: list[Row]


class Worker:
    """Runs workflows of a registry.

    Args:
        registry: workflows and steps.
        database: where the runs are, or its URL.
        queues: which queues to serve.
        concurrency: runs worked on at a time; None means the setting max_in_flight of the database.
        step_concurrency: async steps at a time.
        threads: sync steps at a time.
        listener: shared with the clients of this process.

    Use it as an async context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        registry: Registry,
        database: Database | str,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int | None = None,
        step_concurrency: int = 1000,
        threads: int = 16,
        listener: Listener | None = None,
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise InvalidRequest("queues is a list of queue names, at least one")
        if min(concurrency or 1, step_concurrency, threads) < 1:
            raise InvalidRequest("concurrency, step_concurrency and threads are at least 1")
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.queues = tuple(queues)
        self._registry = registry
        self._database = Database(database) if isinstance(database, str) else database
        self._listener = listener or Listener(self._database)
        self._concurrency = concurrency
        self._step_concurrency = step_concurrency
        self._threads = threads
        self._codec = Codec(registry.errors)
        self._tasks: list[asyncio.Task[Any]] = []
        self._fetches: set[asyncio.Task[None]] = set()
        self._answers: deque[Answer] = deque()
        self._ticked_s = time.monotonic()
        self._stopping = False
        self._listening = False
        self._adrift_at_s: float | None = None
        self._adrift_left = 0
        self._heartbeat: Heartbeat | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._failed: BaseException | None = None

    # -- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Check the database, say hello and begin to claim.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
            InvalidRequest: an annotation of a step or workflow is wrong.
        """
        workflows = list(self._registry.workflows())
        for definition in (*workflows, *self._registry.steps()):
            definition.signature.codecs  # noqa: B018  resolves the annotations: early errors are better
        self._loop = loop = asyncio.get_running_loop()
        await self._database.open()
        names = [one.name for one in workflows]
        versions = [one.version for one in workflows]
        about = {"host": socket.gethostname(), "process": os.getpid(), "python": platform.python_version()}
        hello = (self.id, list(self.queues), names, versions, msgspec.json.encode(about).decode())
        self._side = Link(self._database, "side")
        answer = await say_hello(self._side, hello)
        settings = {name: str(value) for name, value in answer["settings"].items()}
        self._slots = self._concurrency or int(settings["max_in_flight"])
        ttl_ms = int(settings["lease_ttl_ms"])
        identity = Identity(
            worker=self.id,
            queues=list(self.queues),
            workflows=names,
            versions=versions,
            digests=[one.digest(loop_version) for one in workflows],
            ttl_ms=ttl_ms,
        )
        self._clock = DatabaseClock(loop)
        self._clock.set(answer["now"])
        self._turns = Turns(self._database, identity)
        self._turns.refused = self._refused
        self._looks = Looks(longest_s=_POLL_POOLED_S if self._database.pooled else _POLL_LONGEST_S)
        self._wake, self._applied = asyncio.Event(), asyncio.Event()
        self._housekeeper = Housekeeper(self._side, self.id, ticked=self._did_tick)
        self._make_holdings(int(settings["max_warm"]))
        try:
            await self._turns.open()
            await self._listener.start()
            self._listening = True
        except BaseException:
            await self._close()
            raise
        self._listener.subscribe("durable_ready", self._hinted)
        self._listener.subscribe("durable_settled", self._noticed)
        self._tick_loop()
        self._start_heartbeat(hello, ttl_ms, int(settings["stall_limit_ms"]))
        self._sender = loop.create_task(self._guard(self._send_turns))
        others = (self._apply_answers, self._housekeeper.run, self._each_second)
        self._tasks = [self._sender, *(loop.create_task(self._guard(body)) for body in others)]
        logger.info("worker.started", extra={"worker": self.id, "queues": self.queues, "workflows": names})

    def _make_holdings(self, max_warm: int) -> None:
        randomness = random.SystemRandom()
        self._holdings = Holdings(
            self._registry,
            codec=self._codec,
            clock=self._clock,
            randomness=randomness,
            max_warm=max_warm,
            hooks=Hooks(news=self._wake.set, fetch=self._fetch, timer=self._housekeeper.note_timer),
        )
        self._holdings.steps = self._steps = StepRunner(
            self._loop,
            codec=self._codec,
            randomness=randomness,
            concurrency=self._step_concurrency,
            threads=self._threads,
            news=self._holdings.news,
        )

    def _start_heartbeat(self, hello: tuple[Any, ...], ttl_ms: int, stall_limit_ms: int) -> None:
        loop = self._loop

        def lost(pairs: list[tuple[int, int]]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._holdings.lose, pairs)

        vitals = Vitals(
            hello=hello,
            pairs=self._pairs,
            lost=lost,
            ticked_s=lambda: self._ticked_s,
            main_thread=threading.get_ident(),
        )
        self._heartbeat = Heartbeat(self._database, vitals, ttl_ms=ttl_ms, stall_limit_ms=stall_limit_ms)
        self._heartbeat.start()

    async def wait(self) -> None:
        """Return when the worker has stopped.

        Raises:
            BaseException: what ended one of its loops, if it did not stop in an orderly way.
        """
        while self._tasks and self._failed is None:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping:
                break
        if self._failed is not None:
            raise self._failed

    async def stop(self) -> None:
        """Stop in an orderly way: running steps are cancelled, all work is given back at once."""
        if self._stopping or not self._tasks:
            return
        self._stopping = True
        self._steps.refuse()
        for held in tuple(self._holdings.held.values()):
            self._steps.cancel_all(held)
        self._wake.set()
        try:
            async with asyncio.timeout(_LAST_TURN_S):
                await self._steps.unwound()
                await self._sender
                while self._answers:
                    await asyncio.sleep(0.001)
                bundles = self._holdings.collect()
                if bundles:
                    await self._turns.send_once(bundles, -1)
            await self._loop.run_in_executor(None, self._heartbeat.stop)
            async with asyncio.timeout(_LAST_TURN_S):
                if await self._side.run(BYE, self.id):
                    self._listener.tell("durable_ready")
                    await self._listener.send_now("durable_ready")
        except (EngineError, TimeoutError) as error:
            logger.warning("worker %s could not give its work back; its leases will run out (%s)", self.id, error)
        await self._close()
        logger.info("worker.stopped", extra={"worker": self.id})

    async def _close(self) -> None:
        """Let go of everything, whatever state it is in."""
        tasks = (*self._tasks, *self._fetches)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        if self._heartbeat is not None:
            await self._loop.run_in_executor(None, self._heartbeat.stop)
        self._holdings.close()
        self._steps.close()
        self._listener.unsubscribe("durable_ready", self._hinted)
        self._listener.unsubscribe("durable_settled", self._noticed)
        if self._listening:
            self._listening = False
            await self._listener.stop()
        await asyncio.gather(self._turns.close(), self._side.close())

    async def _guard(self, body: Callable[[], Awaitable[None]]) -> None:
        """A loop that ends has failed: nothing works without it."""
        try:
            await body()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # boundary of the process: log it, and let whoever waits see it
            logger.exception("worker %s cannot go on", self.id)
            self._failed = error

    # -- hints and time

    def _hinted(self) -> None:
        now_s = self._loop.time()
        self._looks.hinted(now_s)
        self._housekeeper.note_activity(now_s)
        self._wake.set()

    def _noticed(self) -> None:
        """Something settled somewhere: runs that wait for others while a step of theirs runs here want to know."""
        self._holdings.keep()

    def _did_tick(self, answer: TickAnswer) -> None:
        if answer.hints:
            self._hinted()
            if self._housekeeper.others or not set(answer.hints) <= set(self.queues):
                self._listener.send("durable_ready")
        if answer.promises:
            self._listener.tell("durable_settled")
            self._listener.send("durable_settled")

    def _tick_loop(self) -> None:
        self._ticked_s = time.monotonic()
        self._tick_handle = self._loop.call_later(0.25, self._tick_loop)

    async def _each_second(self) -> None:
        """Report attempts that take long, and look after claims of a lost turn."""
        while True:
            await asyncio.sleep(_SECOND_S)
            since_s = self._loop.time() - _SECOND_S
            for held in tuple(self._holdings.held.values()):
                for run in tuple(held.steps.values()):
                    if not run.begun and 0 < run.started_s < since_s:
                        self._steps.note_begun(run)
            if self._adrift_at_s is not None and self._loop.time() > self._adrift_at_s:
                self._wake.set()

    def _pairs(self) -> list[tuple[int, int]]:
        """What the heartbeat may renew; called in its thread."""
        late_s = self._loop.time() - 2 * UNWIND_S
        pairs = []
        for held in self._holdings.held.copy().values():
            overdue = any(
                run.started_s and run.started_s + run.call.step.timeout_ms / 1000 < late_s
                for run in held.steps.copy().values()
                if run.call.step.timeout_ms is not None
            )
            if not overdue:
                pairs.append((held.execution, held.version))
        return pairs

    # -- turns

    async def _send_turns(self) -> None:
        holdings, looks, loop = self._holdings, self._looks, self._loop
        while not self._stopping:
            now_s = loop.time()
            if self._adrift_at_s is not None and self._adrift_at_s <= now_s and not self._answers:
                await self._give_back_unknown()
            free = self._free_slots()
            # a claim for a few slots is worth a turn of its own only if nothing else is going on
            enough = free >= self._slots // 8 or not (holdings.queue or self._answers)
            due = looks.at <= now_s
            full = len(self._answers) >= _ANSWERS_MAX
            if full or not (holdings.queue or (due and free > 0 and enough)):
                self._wake.clear()
                handle = loop.call_at(looks.at, self._wake.set) if free > 0 and not (due or full) else None
                await self._wake.wait()
                if handle is not None:
                    handle.cancel()
                continue
            bundles = holdings.collect()
            free += sum(bundle.end is not None for bundle in bundles)
            want = free if due and (free >= self._slots // 8 or not bundles) else 0
            if bundles or want:
                self._returned(await self._turns.send(bundles, max(want, 0)), want)

    def _free_slots(self) -> int:
        return self._slots - len(self._holdings.held) - sum(len(answer.tasks) for answer in self._answers)

    def _returned(self, answers: list[Answer], want: int) -> None:
        now_s = self._loop.time()
        if self._turns.uncertain:
            self._turns.uncertain = False
            self._adrift_at_s, self._adrift_left = now_s, 2
            # nobody knows what the lost turn did
            self._listener.send("durable_settled")
            self._listener.send("durable_ready")
        claimed = sum(len(answer.tasks) for answer in answers)
        if want > 0:
            self._looks.looked(now_s, found=claimed > 0)
            if claimed >= want:
                self._looks.hinted(now_s)
        for answer in answers:
            self._housekeeper.note_due(now_s, answer.due_in)
            if answer.hints:
                self._tell_ready(answer.hints)
            if answer.settled:
                self._listener.tell("durable_settled")
                self._listener.send("durable_settled")
        if claimed:
            self._housekeeper.note_activity(now_s)
        self._answers.extend(answers)
        self._applied.set()

    def _tell_ready(self, queues: list[str]) -> None:
        mine = [queue for queue in queues if queue in self.queues]
        if mine:
            self._looks.hinted(self._loop.time())
        if self._housekeeper.others or len(mine) < len(queues):
            self._listener.send("durable_ready")

    async def _apply_answers(self) -> None:
        while True:
            await self._applied.wait()
            self._applied.clear()
            while self._answers:
                await self._holdings.apply(self._answers[0])
                self._answers.popleft()
                self._wake.set()

    def _refused(self, bundle: Bundle, error: EngineError) -> None:
        held = self._holdings.held.get(bundle.execution)
        run_id = held.info.id if held is not None else bundle.execution
        logger.error("run %s: the database refuses what it reports; it is halted: %s", run_id, error)

    async def _give_back_unknown(self) -> None:
        """Give back what a turn whose answer was lost may have claimed; twice, because it may still be under way."""
        try:
            released = await self._side.run(RELEASE_UNKNOWN, self.id, list(self._holdings.held))
        except EngineError as error:
            logger.debug("adrift: %s", error.message)
            self._adrift_at_s = self._loop.time() + _SECOND_S
            return
        self._adrift_left -= 1
        self._adrift_at_s = self._loop.time() + _ADRIFT_AGAIN_S if self._adrift_left else None
        if released:
            self._hinted()

    # -- journals

    def _fetch(self, held: HeldRun) -> None:
        task = self._loop.create_task(self._fetch_journal(held))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch_journal(self, held: HeldRun) -> None:
        while not held.dropped:
            try:
                text = await self._side.run(JOURNAL, self.id, held.execution, held.version)
            except EngineError as error:
                logger.debug("journal of run %s: %s", held.info.id, error.message)
                await asyncio.sleep(_SECOND_S)
                continue
            journal = None if text is None else msgspec.json.decode(text, type=_Journal)
            if journal is None:
                self._holdings.journal_came(held, None)
            else:
                self._holdings.journal_came(held, journal.rows, journal.next)
            self._wake.set()
            return

