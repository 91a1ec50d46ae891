"""The worker: a process that serves queues.

Lives here: `Worker`: how it starts, what it is made of, and how it stops. May not: turns
(dispatcher.py), runs (run_manager.py), steps (step_runner.py), leases (lease_heartbeat.py). Design: a
worker owns nothing. All it knows can be read again from the database, so it may end at any moment; ending in
order only gives its work back sooner. Each start has a fresh id, so that nothing of an earlier life is taken
for its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from pyengine.core.database.connection import Database
from pyengine.core.database.listener import Listener
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.registered import Registered
from pyengine.core.database.statements.procedures import BYE, PRESENT, Hello
from pyengine.core.database.statements.reservations import KEEP
from pyengine.core.definitions.queues import check_queue
from pyengine.core.definitions.registry import Registry
from pyengine.core.loop.event_loop import loop_version
from pyengine.core.process import clock
from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.protocol.turn import Lease
from pyengine.core.values.codec import Codec
from pyengine.core.worker.blocked_runs import BlockedRuns
from pyengine.core.worker.capacity import Capacity, WarmRuns
from pyengine.core.worker.dispatcher import Dispatcher
from pyengine.core.worker.effects import (
    CancelAttempt,
    Execute,
    FetchJournal,
    FindUnread,
    RecordDeadline,
    RollBack,
    StartAttempt,
)
from pyengine.core.worker.events import AttemptRunsLong, Closed, Draining, LeasesLost, Stopping
from pyengine.core.worker.extensions import Extensions, Served, WorkerResources, extensions_of
from pyengine.core.worker.handoff import Handoff
from pyengine.core.worker.journal_poller import JournalFetcher, JournalPoller
from pyengine.core.worker.lease_heartbeat import (
    BLOCKED_AFTER_S,
    Heartbeat,
    Vitals,
    about_process,
    hello_when_adopted,
)
from pyengine.core.worker.run_manager import RunManager
from pyengine.core.worker.step_runner import StepRunner, lease_in, renewable
from pyengine.core.worker.ticker import DatabaseClock, TickAnswer, Ticker
from pyengine.core.worker.turn_loop import Parts, TurnLoop
from pyengine.core.worker.turn_sender import Identity, TurnSender
from pyengine.core.worker.unread_signals import UnreadSignals
from pyengine.errors import EngineError, InvalidRequest

logger = logging.getLogger("pyengine.worker")

GRACE_S = 10.0
"""How long a stop waits for steps, unless it is set."""

_POLL_LONGEST_S = 5.0
_POLL_ALONE_S = 2.0
_SECOND_S = 1.0
_LONG_S = 1.0
_POLL_EVERY, _POLL_EVERY_ALONE = 5, 2
_SOON_S = 1.0
_LOOP_TICK_S = 0.25
_SIDE, _WORK = 3, 12


class Worker(Registered):
    """Runs workflows of a registry.

    Args:
        registry: workflows and steps.
        database: where the runs are, or its URL.
        queues: which queues to serve; None means "default" and those that workflows of the registry name.
        concurrency: runs worked on at a time; None means the setting max_in_flight of the database.
        step_concurrency: async steps at a time.
        threads: sync steps at a time.
        listener: shared with the clients of this process.
        extensions: what features add to it; by default what the app of the registry adds.
        grace_s: how long a stop waits for steps that must not be cut off, and for those that clean up.
        keeps: other workers may not have its runs while it is there.
        make_runs: makes its run manager, from the arguments of `RunManager`; for checks of development.

    Attributes:
        id: its id, fresh at each start.
        database: where the runs are.
        queues: the queues that it serves.
        parts: what it is made of, from `start` on; for the package and its tests.
        turn_loop: sends its turns; likewise.

    Use it as an async context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        registry: Registry,
        database: Database | str,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        step_concurrency: int = 1000,
        threads: int = 16,
        listener: Listener | None = None,
        extensions: Extensions | None = None,
        grace_s: float = GRACE_S,
        keeps: bool = False,
        make_runs: Callable[..., RunManager] = RunManager,
    ) -> None:
        if queues is None:
            queues = registry.queues()
        if isinstance(queues, str) or not queues:
            raise InvalidRequest("queues is a list of queue names, at least one")
        if min(1 if concurrency is None else concurrency, step_concurrency, threads) < 1:
            raise InvalidRequest("concurrency, step_concurrency and threads are at least 1")
        super().__init__()
        self.queues = tuple(check_queue(queue, what="worker") for queue in queues)
        self._registry = registry
        self.database = Database(database) if isinstance(database, str) else database
        self._listener = listener or Listener(self.database)
        self._concurrency = concurrency
        self._step_concurrency = step_concurrency
        self._threads = threads
        self._extensions = extensions_of(extensions or registry.extensions)
        self._grace_s = grace_s
        self._keeps = keeps
        self._make_runs = make_runs
        self._ticked_s = clock.monotonic()
        self._tick_handle: clock.Timer | None = None
        self._heartbeat: Heartbeat | None = None
        self._declaring: asyncio.Task[Any] | None = None
        self._listening = False

    # -- life

    async def start(self) -> None:
        """Check the database, say hello, record schedules and begin to claim; a copy must be adopted before.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
            InvalidRequest: an annotation of a step or workflow, or a schedule, is wrong.
            Conflict: a schedule of promises has the id of a schedule of the registry.
        """
        workflows = list(self._registry.workflows())
        signatures = [one.signature for one in workflows] + [one.signature for one in self._registry.steps()]
        for signature in signatures:
            signature.codecs  # noqa: B018  resolves the annotations: early errors are better
        self._loop = asyncio.get_running_loop()
        await self.database.open()
        names, versions = [one.name for one in workflows], [one.version for one in workflows]
        digests = [one.digest(loop_version) for one in workflows]
        signals = msgspec.json.encode([self._registry.signals(one).registration() for one in workflows])
        own_queues = [one.queue for one in workflows]
        hello = Hello(
            self.id,
            list(self.queues),
            names,
            versions,
            about_process([one.place for one in workflows], keeps=self._keeps),
            digests,
            signals.decode(),
            own_queues,
        )
        self._values = ValueThreads(self._loop)
        self._side = ConnectionPool(self.database, "side", _SIDE, min_open=1)
        self._work = ConnectionPool(self.database, "work", _WORK)
        self._declarations = self._extensions.declarations(self._side)
        answer = await self._register(self._side, hello_when_adopted(self.database, self._side, hello))
        _warn_of_namesakes(answer["namesakes"], self._registry)
        settings = {name: int(value) for name, value in answer["settings"].items() if str(value).isdigit()}
        identity = Identity(
            worker=self.id,
            queues=list(self.queues),
            names=names,
            codes=answer["codes"],
            digests=digests,
            ttl_ms=settings["lease_ttl_ms"],
        )
        database_clock = DatabaseClock()
        database_clock.set(answer["now"])
        self._assemble(identity, settings, database_clock)
        try:
            await self._declarations.record()
            await self.parts.turns.open()
            await self._listener.start()
        except BaseException:
            await self.abandon()
            raise
        self._listening = True
        self._serve(hello, answer["number"], settings)
        about = {"worker": self.id, "queues": self.queues, "workflows": names}
        logger.info(f"worker {self.id} has started", extra={"event": "worker_started", **about})

    def _assemble(self, identity: Identity, settings: dict[str, int], database_clock: DatabaseClock) -> None:
        """Make the parts, each of which knows only those before it."""
        wake, terms = asyncio.Event(), LeaseTerms(identity.ttl_ms / 1000)
        limits = {"warn_bytes": settings["payload_warn_bytes"], "max_bytes": settings["payload_max_bytes"]}
        codec = Codec(self._registry.errors, worker=self.id, **limits)
        randomness, warm = random.SystemRandom(), WarmRuns(settings["max_warm"], settings["max_warm_bytes"])
        asked = database_clock.now_ms, terms.may_begin, randomness
        runs = self._make_runs(self._registry, codec, *asked, warm=warm, unawaited=self._extensions.unawaited)
        dispatcher = Dispatcher(runs, wake.set)
        for variable, value in self._extensions.shared:  # once, not in the context of each step
            dispatcher.share(variable, value)
        post, leased = dispatcher.post, runs.leased
        slots = Capacity(self._concurrency or settings["max_in_flight"], leased, wake.set)
        self._services = self._extensions.services(self._work, self._did_serve)
        blocked = BlockedRuns(self._side, self.id)
        ticker = Ticker(
            self._side, self.id, ticked=self._did_tick, services=self._services.record_due, blocked=blocked
        )
        tasks, values = self._background, self._values
        resources = WorkerResources(self._work, self.id, codec, slots, post, background=tasks, values=values)
        self._steps = StepRunner(
            self._loop,
            codec=codec,
            randomness=randomness,
            concurrency=self._step_concurrency,
            threads=self._threads,
            post=post,
            failed=self.fail,
            in_sql=self._extensions.steps_in_sql(resources).run,
            slots=slots,
            terms=terms,
            values=self._values,
            around=self._extensions.around,
        )
        self._requests = self._extensions.requests(resources)
        self._fetcher = JournalFetcher(self._side, self.id, terms, post, background=tasks, values=values)
        self._poller = JournalPoller(leased, post)
        self._unread = UnreadSignals(self._side, tasks)
        longest_s = _POLL_LONGEST_S if self.database.hints else _POLL_ALONE_S
        self.parts = Parts(
            runs=runs,
            dispatcher=dispatcher,
            turns=TurnSender(self.database, identity, terms.asked, post, self._values),
            side=self._side,
            listener=self._listener,
            clock=database_clock,
            ticker=ticker,
            handoff=Handoff(self._side, self._listener, identity, self._background),
            slots=slots,
            blocked=blocked,
            terms=terms,
            poll=PollSchedule(longest_s=longest_s),
            wake=wake,
        )
        self.turn_loop = TurnLoop(self.parts, identity)
        self._connect()

    def _connect(self) -> None:
        """Connect each effect with the part that performs it."""
        self.parts.dispatcher.start(
            {
                StartAttempt: self._steps.start,
                CancelAttempt: self._steps.cancel,
                FetchJournal: self._fetcher.fetch,
                Execute: self._requests.execute,
                RollBack: self._requests.roll_back,
                FindUnread: self._unread.find,
                RecordDeadline: self.parts.ticker.record_deadline,
            }
        )

    def _serve(self, hello: Hello, number: int, settings: dict[str, int]) -> None:
        self._listener.subscribe("durable_ready", self._hinted)
        self._listener.subscribe("durable_settled", self._poller.hinted)
        self._tick_loop()
        self._heartbeat = Heartbeat(
            self.database,
            Vitals(
                hello=hello,
                number=number,
                idle=self.parts.handoff.parameters,
                leases=lambda: renewable(self.parts.runs.leased.copy().values()),
                lost=self._leases_lost,
                failed=self._heartbeat_failed,
                at_work=lambda frame: lease_in(frame, self._loop, self.parts.runs.leased),
                stalled=self._loop_stalled,
                terms=self.parts.terms,
                asked_s=lambda: self.parts.turns.asked_s,
                reinstalled=self._declarations.reinstalled,
                ticked_s=lambda: self._ticked_s,
                since_tick_ms=self.parts.ticker.since_tick_ms,
                declare=self._declare,
                main_thread=threading.get_ident(),
            ),
            ttl_ms=settings["lease_ttl_ms"],
            stall_limit_ms=settings["stall_limit_ms"],
        )
        self._heartbeat.start()
        self.stop_asked = self._heartbeat.expect_stop
        bodies = (
            self.turn_loop.send,
            self.turn_loop.apply,
            self.turn_loop.send_large,
            self.parts.ticker.run,
            self._services.run,
            self._each_second,
            self.parts.dispatcher.failure,
        )
        self._listener.failed.append(self.fail)
        self._tasks = [self._background.start(body()) for body in bodies]

    async def keep(self, run_id: str) -> None:
        """Execute a run here that was started with a delay; for a worker that keeps its runs.

        Raises:
            Unavailable: the connection was lost; whoever is there executes it after the delay.
        """
        await self._side.run(KEEP, self.id, run_id)
        self.turn_loop.hinted()

    async def stop(self) -> None:
        """Stop in an orderly way: steps are cancelled, all work is given back at once; but runs whose steps
        must not be cut off, or clean up after they were cancelled, have the grace."""
        if self._stopping or not self._tasks:
            return
        self._stopping = True
        ends_s = clock.monotonic() + self._grace_s
        self.turn_loop.drain()
        await self.parts.dispatcher.post_all((Stopping(drains=self._grace_s > 0),))
        with contextlib.suppress(EngineError, TimeoutError):
            async with clock.timeout(_SOON_S):
                await self.parts.handoff.end()
        await self._requests.close()
        await self._drain(ends_s)
        self.turn_loop.stop()
        await self._at_last(self._finish_turns())
        await self._stop_heartbeat()
        await self._at_last(self._unread.finish())
        await self._at_last(self._deregister())
        await self.abandon()
        about = {"event": "worker_stopped", "worker": self.id}
        logger.info(f"worker {self.id} has stopped", extra=about)

    async def _finish_turns(self) -> None:
        """Report what has ended, unless the part that works through answers has failed."""
        await asyncio.wait(self._tasks[:1])
        if not self._tasks[1].done():
            await self.turn_loop.finish()

    async def _deregister(self) -> None:
        """Give back all that is still leased."""
        if await self._side.run(BYE, self.id):
            self._listener.wake("durable_ready")
            await self._listener.send_now("durable_ready")

    async def _drain(self, ends_s: float) -> None:
        """Wait for steps that end by themselves, with the leases of their runs; give all others back soon."""
        rest_s = clock.monotonic() + _SOON_S
        while (draining := self._draining()) and (now_s := clock.monotonic()) < ends_s:
            if now_s >= rest_s:
                self.parts.dispatcher.post(Draining(draining))
                self.turn_loop.give_back_others()
                rest_s = now_s + _SOON_S
            await self._steps.changed(min(ends_s, rest_s) - now_s)
        if draining:
            ids = sorted(run.info.id for run in self.parts.runs.leased.values() if run.execution in draining)
            logger.warning("steps do not end, their runs are given back: %s", ", ".join(ids))
            self.parts.dispatcher.post(Stopping())

    def _draining(self) -> set[int]:
        """Return the runs that the worker waits for."""
        runs = self.parts.runs.leased.values()
        return {run.execution for run in runs if run.phase.attempts} | self._steps.unwinding()

    async def _stop_heartbeat(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            await heartbeat.stop()
        if self._declaring is not None:
            # while it is under way the row of this worker is locked, and a farewell leaves a locked row alone
            with contextlib.suppress(EngineError):
                await self._declaring

    async def abandon(self) -> None:
        """Let go of everything at once, as a crash does: leases are lost when they expire."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.parts.handoff.close()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        await self._stop_heartbeat()
        self._poller.close()
        self.parts.dispatcher.post(Closed())
        self.parts.dispatcher.close()
        self._steps.close()
        self._values.close()
        self._listener.unsubscribe("durable_ready", self._hinted)
        if self.fail in self._listener.failed:
            self._listener.failed.remove(self.fail)
        self._listener.unsubscribe("durable_settled", self._poller.hinted)
        if self._listening:
            self._listening = False
            await self._listener.stop()
        await asyncio.gather(self._requests.close(), self._fetcher.close())
        await asyncio.gather(self.turn_loop.close(), self._side.close(), self._work.close())

    # -- hints and time

    def _hinted(self) -> None:
        self.parts.ticker.record_activity(clock.monotonic())
        self._services.hinted(clock.monotonic())
        self.turn_loop.hinted()

    def _did_tick(self, answer: TickAnswer) -> None:
        if answer.hints:
            self._hinted()
            if self.parts.ticker.others or not set(answer.hints) <= set(self.queues):
                self._listener.send("durable_ready")
        if answer.promises:
            self._listener.announce("durable_settled")

    def _did_serve(self, answer: Served) -> None:
        if answer.hints:
            self._hinted()
            self._listener.send("durable_ready")
        if answer.settled:
            self._listener.announce("durable_settled")

    def _tick_loop(self) -> None:
        before_s, self._ticked_s = self._ticked_s, clock.monotonic()
        self._tick_handle = clock.call_later(_LOOP_TICK_S, self._tick_loop)
        if self._ticked_s - before_s > BLOCKED_AFTER_S:
            self.parts.handoff.forgotten()

    async def _each_second(self) -> None:
        """Report attempts that take long, and poll runs that no hint may have been about."""
        every = _POLL_EVERY if self.database.hints else _POLL_EVERY_ALONE
        for second in itertools.count():
            await clock.sleep(_SECOND_S)
            await self.parts.blocked.report(clock.monotonic())
            await self._declarations.retry()
            if second % every == 0:
                self._poller.hinted()
            since_s = clock.monotonic() - _LONG_S
            for run in tuple(self.parts.runs.leased.values()):
                for attempt in tuple(run.phase.attempts.values()):
                    if not attempt.begun and 0 < attempt.started_s < since_s:
                        self.parts.dispatcher.post(AttemptRunsLong(attempt))

    # -- what the heartbeat's thread calls

    def _declare(self) -> Future[Any]:
        """Declare presence."""
        return asyncio.run_coroutine_threadsafe(self._declare_presence(), self._loop)

    async def _declare_presence(self) -> Any:
        self._declaring = asyncio.create_task(self._side.run(PRESENT, self.id, True))
        return await asyncio.shield(self._declaring)

    def _loop_stalled(self, error: EngineError) -> None:
        if self.stalled is not None:
            self.stalled(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.fail, error)

    def _leases_lost(self, leases: list[Lease]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.parts.dispatcher.post, LeasesLost(leases))

    def _heartbeat_failed(self, error: Exception) -> None:
        ended = EngineError(f"the heartbeat of worker {self.id} has ended: {error!r}; its leases run out")
        ended.__cause__ = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.fail, ended)


def _warn_of_namesakes(namesakes: list[dict[str, str]], registry: Registry) -> None:
    """Warn of workflows that other workers have registered under a name of ours."""
    for one in namesakes:
        name, version = one["name"], one["version"]
        module, parameters = registry.workflow(name, version).place
        logger.warning(
            f"workflow {name} version {version} is here {module}: {name}({parameters}), and in worker "
            f"{one['worker']} {one['module']}: {name}({one['parameters']}); runs of that name get the one or "
            "the other, by chance. Give one of them another name= or version=; durable.workflows shows both",
            extra={"event": "workflow_namesake", "workflow": name, "other_worker": one["worker"]},
        )
