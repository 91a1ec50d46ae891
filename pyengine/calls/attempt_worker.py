"""The worker of attempts: it leases what is due, lets an executor run it, and reports the answer.

Lives here: `AttemptWorker`, and `Executor`, the protocol of what runs one poll of an attempt: a function of
an app (memo_runner.py) or a program. May not: the meaning of an answer, which is SQL. Design: a lease lasts
one poll. Between polls an attempt has neither a lease nor a process, so that many thousand may be pending. A
lease that is lost ends the poll, because another worker has the attempt or nothing waits for it. All that
this process knows can be read again, so it may end at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from pyengine.calls.contract import Answer, CannotRun, Request
from pyengine.database.connection import Database, backoff_s
from pyengine.database.failure_log import FailureLog
from pyengine.database.listener import Listener
from pyengine.database.pool import ConnectionPool
from pyengine.database.statements.calls import GIVE_BACK, INTEGRATE, LEASE, RENEW, REPORT, SWEEP
from pyengine.database.statements.procedures import Procedure
from pyengine.errors import EngineError, LeaseLost, NotFound

__all__ = ["AttemptWorker", "Executed", "Executor"]

logger = logging.getLogger("pyengine.calls")

_POLL_S = 1.0
_SWEEP_S = 5.0
_TTL_MS = 15_000
_STOP_S = 10.0
_CONNECTIONS = 4
_ENDED = frozenset({"completed_ok", "completed_error", "failed_terminal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """One poll that has ended.

    Args:
        answer: its answer.
        stderr: the end of what it logged.
        started_ms: when it began, epoch milliseconds; None means that it is not known.
    """

    answer: Answer
    stderr: str = ""
    started_ms: int | None = None


class Executor(Protocol):
    """Runs polls of the attempts of some adapters."""

    @property
    def adapters(self) -> Collection[str]:
        """The adapters that it serves now."""

    async def execute(self, adapter: str, request: Request) -> Executed:
        """Run one poll.

        Raises:
            CannotRun: this process cannot; the attempt is given back and `adapters` lacks its adapter.
            asyncio.CancelledError: the poll is not wanted any more.
        """

    async def cancel(self, adapter: str, request: Request) -> None:
        """Ask for the end of the work, once; nothing is reported."""

    async def close(self) -> None:
        """Let go of everything."""


@dataclass(slots=True, eq=False)
class _Leased:
    """An attempt that this worker has leased."""

    key: str
    version: int
    task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """Id of its promise and task."""
        return f"call:{self.key}"


class AttemptWorker:
    """Runs attempts of the adapters that its executors serve.

    Args:
        database: where they are.
        executors: which of them runs an attempt is decided by the name of its adapter.
        listener: shared with others of this process.
        most: polls at a time.
        ttl_ms: length of a lease; renewed every third of it.

    Use it as an async context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        database: Database,
        executors: Sequence[Executor],
        *,
        listener: Listener | None = None,
        most: int = 16,
        ttl_ms: int = _TTL_MS,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._database = database
        self._executors = tuple(executors)
        self._listener = listener or Listener(database)
        self._most = most
        self._ttl_ms = ttl_ms
        self._leased: dict[str, _Leased] = {}
        self._cancels: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._trouble = FailureLog(logger, "attempts of calls")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to lease.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
        """
        await self._database.open()
        self._pool = ConnectionPool(self._database, "calls", _CONNECTIONS, min_open=1)
        await self._listener.start()
        self._listener.subscribe("durable_ready", self._wake.set)
        self._loops = [asyncio.create_task(loop()) for loop in (self._lease, self._renew, self._sweep)]
        logger.info("calls.started", extra={"worker": self.id, "adapters": self.adapters})

    async def stop(self) -> None:
        """Stop in an orderly way: polls are cancelled, and their attempts given back at once."""
        if not self._loops:
            return
        self._listener.unsubscribe("durable_ready", self._wake.set)
        await _cancelled(self._loops)
        self._loops = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await _cancelled([one.task for one in self._leased.values() if one.task is not None])
        await _cancelled(self._cancels)
        await asyncio.gather(*(one.close() for one in self._executors))
        await self._listener.stop()
        await self._pool.close()
        logger.info("calls.stopped", extra={"worker": self.id})

    @property
    def adapters(self) -> list[str]:
        """The adapters that it serves now."""
        return sorted({name for one in self._executors for name in one.adapters})

    # -- loops

    async def _lease(self) -> None:
        """Lease what is due, whenever there is room, a hint, or a while has passed."""
        while True:
            self._wake.clear()
            room, adapters = self._most - len(self._leased), self.adapters
            documents: list[str] = []
            if room > 0 and adapters:
                try:
                    rows = await self._pool.rows(LEASE, self.id, adapters, self._ttl_ms, room)
                except EngineError as error:
                    self._trouble.failed(error)
                    await asyncio.sleep(backoff_s(self._trouble.failures))
                    continue
                self._trouble.succeeded()
                documents = [row[0] for row in rows]
            for text in documents:
                self._begin(msgspec.json.decode(text))
            if len(documents) < room or not adapters:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._wake.wait()
            elif len(self._leased) >= self._most:
                await self._wake.wait()

    async def _renew(self) -> None:
        """Renew the leases, and end the polls whose leases are lost."""
        while True:
            await asyncio.sleep(self._ttl_ms / 3000)
            leased = list(self._leased.values())
            if not leased:
                continue
            ids, versions = [one.id for one in leased], [one.version for one in leased]
            try:
                lost = set(await self._pool.run(RENEW, self.id, ids, versions))
            except EngineError as error:
                logger.debug("leases of attempts not renewed: %s", error.message)
                continue
            for one in leased:
                if one.id in lost and one.task is not None:
                    one.task.cancel("lost")

    async def _sweep(self) -> None:
        """Close what ended by time or by hand; every such worker does it, and any number of times."""
        while True:
            try:
                found = msgspec.json.decode(await self._pool.run(SWEEP))
                if found.get("adapter_not_found"):
                    self._announce()
            except EngineError as error:
                logger.debug("attempts not swept: %s", error.message)
            await asyncio.sleep(_SWEEP_S)

    # -- one attempt

    def _begin(self, document: dict[str, Any]) -> None:
        adapter, phase, version = document.pop("adapter"), document.pop("phase"), document.pop("version")
        document.pop("result", None)
        request = msgspec.convert(document, Request)
        if request.op == "cancel":
            self._cancels.add(task := asyncio.create_task(self._cancel(adapter, request)))
            task.add_done_callback(self._cancels.discard)
            return
        one = self._leased[request.execution_key] = _Leased(request.execution_key, version)
        one.task = asyncio.create_task(self._run(one, adapter, phase, request))

    async def _run(self, one: _Leased, adapter: str, phase: str, request: Request) -> None:
        try:
            if phase == "poll_adapter":
                await self._poll(one, adapter, request)
            else:
                await self._send(INTEGRATE, one.key, one.version)
        except asyncio.CancelledError as error:
            if error.args != ("lost",):
                await self._give_back(one, "stopped")
        except CannotRun as error:
            logger.warning("adapter %s is not served any more: %s", adapter, error.message)
            await self._give_back(one, "not_served")
        except (LeaseLost, NotFound) as error:
            logger.info("attempt %s is not ours any more: %s", one.key, error.message)
        except Exception:  # boundary of a task: the lease runs out, and another worker tries
            logger.exception("attempt %s of adapter %s", one.key, adapter)
        finally:
            del self._leased[one.key]
            self._wake.set()

    async def _poll(self, one: _Leased, adapter: str, request: Request) -> None:
        executor = self._executor_of(adapter)
        executed = await executor.execute(adapter, request)
        report = msgspec.to_builtins(executed.answer)
        report |= {"stderr": executed.stderr} if executed.stderr else {}
        report |= {} if executed.started_ms is None else {"started_at": executed.started_ms}
        reporting = asyncio.create_task(self._report(one, msgspec.json.encode(report).decode()))
        try:
            await asyncio.shield(reporting)
        except asyncio.CancelledError:
            # the answer counts, also if this worker is asked to stop while it is reported
            await reporting

    async def _report(self, one: _Leased, report: str) -> None:
        state = await self._send(REPORT, one.key, one.version, report)
        if state.startswith("integrate_"):
            # the outcome is stored, and what it pins was locked at that moment
            await self._send(INTEGRATE, one.key, one.version)

    def _executor_of(self, adapter: str) -> Executor:
        for one in self._executors:
            if adapter in one.adapters:
                return one
        raise CannotRun(f"this worker does not serve the adapter {adapter}")

    async def _send(self, procedure: Procedure, *values: Any) -> str:
        """Report until it is recorded, and return the state; a report that is repeated changes nothing.

        Raises:
            EngineError: it is refused.
        """
        failures = 0
        while True:
            try:
                state = await self._pool.use(lambda conn: conn.fetchval(procedure.sql, *values))
            except EngineError as error:
                if isinstance(error, LeaseLost) or not getattr(error, "retryable", False):
                    raise
                state = "busy"
            if state != "busy":
                break
            failures += 1
            await asyncio.sleep(backoff_s(failures))
        if state in _ENDED:
            self._announce()
        return str(state)

    async def _give_back(self, one: _Leased, reason: str) -> None:
        try:
            await self._send(GIVE_BACK, one.key, one.version, reason)
        except EngineError as error:
            logger.info("attempt %s could not be given back: %s", one.key, error.message)
        self._listener.send("durable_ready")

    async def _cancel(self, adapter: str, request: Request) -> None:
        with contextlib.suppress(CannotRun):
            await self._executor_of(adapter).cancel(adapter, request)

    def _announce(self) -> None:
        """Somebody waits for what has ended: runs to claim, and clients."""
        self._listener.announce("durable_ready")
        self._listener.announce("durable_settled")


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
