"""The adapter worker: a process that polls adapters for the attempts of calls.

Lives here: `AdapterWorker`: when it leases attempts, which polls run, and how it stops; and `Executor`, the
protocol of what runs one poll, such as programs (program_executor.py). May not: the work of a poll, or the
requests to the database (adapter_leases.py). Design: a lease lasts for one poll and no longer. Between two
polls an attempt waits in the database, so ten thousand jobs that run for days need no process here. A worker
serves the adapters that it was started with, so a call can choose among them and cannot name a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from pyengine.core.database.connection import Database
from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.listener import Listener
from pyengine.core.database.poll_schedule import PollSchedule
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.registered import STATEMENT_ENDS_S, Registered
from pyengine.core.database.statements.procedures import BYE, HEARTBEAT, Hello
from pyengine.core.process import clock
from pyengine.core.process.lease_terms import LeaseOver, LeaseTerms
from pyengine.core.worker.blocked_runs import BlockedRuns
from pyengine.core.worker.lease_heartbeat import about_process, hello_when_adopted, send_hello
from pyengine.core.worker.ticker import TickAnswer, Ticker
from pyengine.core.worker.worker import GRACE_S
from pyengine.errors import EngineError, InvalidRequest, PayloadTooLarge
from pyengine.features.calls import contract
from pyengine.features.calls.adapter_leases import Attempts, DatabaseAttempts, Leased, Sender
from pyengine.features.calls.contract import CannotRun, Executed, Failed, Request

logger = logging.getLogger("pyengine.adapters")

_POLL_LONGEST_S = 1.0
_CANCELLED_S = 5.0
_CONNECTIONS = 4


class Executor(Protocol):
    """Runs polls of the attempts of some adapters."""

    @property
    def adapters(self) -> Collection[str]:
        """The adapters that it serves now."""

    async def execute(self, adapter: str, request: Request, may_begin: Callable[[], bool]) -> Executed:
        """Run one poll; a cancellation ends it. It asks `may_begin` immediately before it begins.

        Raises:
            CannotRun: this process cannot; the attempt is left to other workers.
            LeaseOver: it may not begin.
        """
        ...

    async def cancel(self, adapter: str, request: Request) -> None:
        """Ask for the end of a job, once; nothing is reported."""

    async def close(self) -> None:
        """Let go of everything."""


class AdapterWorker(Registered):
    """Polls adapters.

    Args:
        executors: what runs the polls; the first one that serves an adapter does.
        database: where the calls are, or its URL.
        max_polls: polls at a time.
        inline_inputs: requests carry the values of the inputs, if these have 1 MiB at most.
        grace_s: how long `stop` waits for polls that run.
        listener: shared with others of this process.

    Attributes:
        sweep_every_s: seconds between two sweeps of attempts that no worker serves, about.

    Use it as an async context manager, or call `start` and `stop`.
    """

    sweep_every_s = 10.0

    def __init__(
        self,
        executors: Sequence[Executor],
        database: Database | str,
        *,
        max_polls: int = 16,
        inline_inputs: bool = False,
        grace_s: float = GRACE_S,
        listener: Listener | None = None,
    ) -> None:
        if max_polls < 1:
            raise InvalidRequest("a worker runs at least one poll at a time")
        super().__init__()
        self._database = Database(database) if isinstance(database, str) else database
        self._listener = listener or Listener(self._database)
        self._executors = tuple(executors)
        self._max_polls = max_polls
        self._inline_inputs = inline_inputs
        self._grace_s = grace_s
        self._running: dict[asyncio.Task[None], Leased] = {}
        self._schedule = PollSchedule(longest_s=_POLL_LONGEST_S)
        self._wake = asyncio.Event()
        self._renewing = asyncio.Lock()
        self._trouble = FailureLog(logger, "leasing attempts")

    @property
    def running(self) -> int:
        """The number of polls that run."""
        return len(self._running)

    @property
    def adapters(self) -> list[str]:
        """The adapters that it serves now."""
        return sorted({name for one in self._executors for name in one.adapters})

    # -- life

    async def start(self) -> None:
        """Check the database, say hello and begin to lease.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
        """
        await self._database.open()
        self._side = ConnectionPool(self._database, "adapters", _CONNECTIONS, min_open=1)
        queues = [f"adapter:{name}" for name in self.adapters]
        self._hello = Hello(self.id, queues, [], [], about_process(), [])
        try:
            hello = hello_when_adopted(self._database, self._side, self._hello)
            settings = (await self._register(self._side, hello))["settings"]
            await self._listener.start()
        except BaseException:
            await self._side.close()
            raise
        ttl_ms = int(settings["lease_ttl_ms"])
        self._terms = LeaseTerms(ttl_ms / 1000)
        self.use(DatabaseAttempts(self._side, self.id, ttl_ms))
        self._ticker = Ticker(
            self._side,
            self.id,
            ticked=self._did_tick,
            services=lambda now_s, due_ms: None,
            blocked=BlockedRuns(self._side, self.id),
        )
        self._listener.subscribe("durable_ready", self._hinted)
        bodies = (
            self._lease,
            self._ticker.run,
            lambda: self._renew(ttl_ms / 3000),
            self._sweep,
        )
        self._listener.failed.append(self.fail)
        self._tasks = [self._background.start(body()) for body in bodies]
        fields = {"event": "adapters_started", "worker": self.id, "adapters": self.adapters}
        logger.info(f"adapter worker {self.id} has started", extra=fields)

    def use(self, attempts: Attempts) -> None:
        """Use these requests to the database; `start` uses SQL."""
        self._attempts = attempts
        self._sender = Sender(attempts)

    async def stop(self) -> None:
        """Stop in an orderly way: let polls end for a while, then end them and give their leases back."""
        if self._stopping or not self._tasks:
            return
        self._stopping = True
        lease, *others = self._tasks
        lease.cancel()
        await asyncio.gather(lease, return_exceptions=True)
        if self._running:
            await clock.wait(self._running, self._grace_s)
        left = list(self._running.items())
        for task, _ in left:
            task.cancel()
        if left:
            await clock.wait([task for task, _ in left], _CANCELLED_S)
        for leased in (leased for task, leased in left if not task.done()):
            logger.warning("attempt %s does not end, it is given back", leased.key)
        await self._at_last(self._give_back_all([leased for _, leased in left]))
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(STATEMENT_ENDS_S), self._renewing:
                for task in others:
                    task.cancel()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._at_last(self._side.run(BYE, self.id))
        await asyncio.gather(*(one.close() for one in self._executors))
        self._listener.unsubscribe("durable_ready", self._hinted)
        self._listener.failed.remove(self.fail)
        await self._listener.stop()
        await self._side.close()
        logger.info(
            f"adapter worker {self.id} has stopped", extra={"event": "adapters_stopped", "worker": self.id}
        )

    # -- leases

    def _hinted(self) -> None:
        self._schedule.hinted(clock.monotonic())
        self._wake.set()

    def _did_tick(self, answer: TickAnswer) -> None:
        if answer.hints:
            self._hinted()
            self._listener.send("durable_ready")
        if answer.promises:
            self._listener.send("durable_settled")

    async def _lease(self) -> None:
        """Lease what is due whenever a process is free, for ever."""
        while True:
            self._wake.clear()
            now_s = clock.monotonic()
            free = self._max_polls - len(self._running)
            if not free or self._schedule.at > now_s:
                with contextlib.suppress(TimeoutError):
                    async with clock.timeout_at(None if not free else self._schedule.at):
                        await self._wake.wait()
                continue
            known_until_s = self._terms.asked()
            try:
                found = await self._attempts.lease(self.adapters, free)
            except EngineError as error:
                self._trouble.failed(error)
                found = []
            else:
                self._trouble.succeeded()
            self._schedule.polled(clock.monotonic(), found=bool(found))
            if len(found) >= free:
                # there may be more: ask as soon as a process is free
                self._schedule.hinted(clock.monotonic())
            for leased in found:
                leased.known_until_s = known_until_s
                self._start(leased)

    def _start(self, leased: Leased) -> None:
        task = self._background.start(self._guarded(leased))
        self._running[task] = leased
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._wake.set()

    async def _renew(self, every_s: float) -> None:
        """Renew the leases of polls that run, and show that this process is here, for ever."""
        trouble = FailureLog(logger, "renewing leases of adapters")
        while True:
            await clock.sleep(every_s)
            try:
                # none is under way at the goodbye: the row would be locked, or come back
                async with self._renewing:
                    running = self._running.values()
                    await self._renew_leases([one for one in running if one.version is not None])
                    await self._show_presence()
            except EngineError as error:
                trouble.failed(error)
            else:
                trouble.succeeded()

    async def _show_presence(self) -> None:
        if None in await self._side.run(HEARTBEAT, self.id, [], [], [], self._ticker.since_tick_ms()):
            await send_hello(self._side, self._hello)

    async def _renew_leases(self, leased: Sequence[Leased]) -> None:
        """Renew leases; if some are lost, one by one, for the answer does not say which."""
        until_s = self._terms.asked()
        if not leased or await self._attempts.renew(leased) == len(leased):
            self._terms.renewed(leased, until_s)
            return
        # polls that ended meanwhile have given theirs back
        held = [one for one in self._running.values() if one in leased]
        if len(leased) == 1 and held:
            logger.info("the lease of attempt %s was not renewed", leased[0].key)
        elif len(leased) > 1:
            for one in held:
                await self._renew_leases([one])

    async def _sweep(self) -> None:
        """End attempts that no worker serves, for ever; every worker may do it."""
        trouble = FailureLog(logger, "sweeping attempts")
        while True:
            try:
                await self._attempts.sweep()
            except EngineError as error:
                trouble.failed(error)
            else:
                trouble.succeeded()
            await clock.sleep(self.sweep_every_s * (0.5 + random.random()))

    # -- polls

    async def _guarded(self, leased: Leased) -> None:
        try:
            await self._poll(leased)
        except asyncio.CancelledError:
            raise
        except Exception:  # boundary of one poll: the others go on, and its lease runs out
            logger.exception("attempt %s: its poll by %s failed here", leased.key, leased.adapter)

    async def _poll(self, leased: Leased) -> None:
        """Poll the adapter of one attempt and report; or go on with an outcome that is stored."""
        if leased.version is not None and leased.phase != "poll_adapter":
            await self._sender.integrate(leased)
            return
        if leased.lost:
            message = f"{leased.lost} workers in a row were lost while they polled it"
            lost = Failed(False, {"code": "retry_budget_exhausted", "message": message})
            await self._report(leased, Executed(answer=lost))
            return
        try:
            executor = self._executor_of(leased.adapter)
            if leased.version is None:
                await executor.cancel(leased.adapter, leased.request)
                return
            request = await self._request(leased)
            executed = await executor.execute(leased.adapter, request, lambda: self._terms.may_begin(leased))
        except LeaseOver:
            logger.info("attempt %s is left to other workers: its lease may be over", leased.key)
            await self._give_back(leased, "not_begun")
            return
        except CannotRun as error:
            logger.warning("adapter %s is left to other workers: %s", leased.adapter, error.message)
            await self._give_back(leased, "not_served")
            return
        except EngineError as error:
            failure = {"code": "inputs_unavailable", "message": error.message}
            executed = Executed(answer=Failed(True, failure))
        await self._report(leased, executed)

    async def _request(self, leased: Leased) -> Request:
        """Return the request for an adapter, with the values of the inputs if they are wanted and small."""
        if not self._inline_inputs:
            return leased.request
        values = await self._attempts.values(leased)
        is_small = len(msgspec.json.encode(values)) <= contract.STDOUT_LIMIT
        return msgspec.structs.replace(leased.request, values=values) if is_small else leased.request

    def _executor_of(self, adapter: str) -> Executor:
        for one in self._executors:
            if adapter in one.adapters:
                return one
        raise CannotRun(f"this worker does not serve the adapter {adapter} now")

    async def _report(self, leased: Leased, executed: Executed) -> None:
        """Report a poll; one that the database refuses is reported as a failure of its adapter."""
        try:
            state = await self._sender.report(leased, executed)
        except (InvalidRequest, PayloadTooLarge) as error:
            executed = executed.with_answer(contract.broken("value", error.message))
            state = await self._sender.report(leased, executed)
        except EngineError as error:
            failure = {"code": "report_refused", "message": error.message}
            executed = executed.with_answer(Failed(True, failure))
            state = await self._sender.report(leased, executed)
        if isinstance(executed.answer, Failed):
            logger.log(
                logging.INFO if executed.answer.retryable else logging.WARNING,
                "adapter %s, attempt %s: %s (%s)",
                leased.adapter,
                leased.key,
                executed.answer.error.get("message", ""),
                state or "the lease is lost",
            )
        elif state == "failed_terminal":
            logger.warning("adapter %s, attempt %s: its result cannot be one", leased.adapter, leased.key)

    async def _give_back_all(self, left: Sequence[Leased]) -> None:
        for leased in left:
            await self._give_back(leased, "stopped")

    async def _give_back(self, leased: Leased, reason: str) -> None:
        if leased.version is not None:
            await self._sender.release(leased, reason)
