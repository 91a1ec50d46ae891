"""Leased attempts: how an adapter worker takes them and how their outcomes get back.

Lives here: `Leased`, one attempt with the request for its adapter, `Attempts`, what a worker asks of the
database, and `DatabaseAttempts`, the same by SQL. May not: processes, or when to ask (adapter_worker.py).
Design: a report is sent until it is answered. It is fenced by the version of the lease, so sending it twice
is harmless, and it ends at the latest when the lease has run out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from pyengine.core.database.failure_log import FailureLog
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process import clock
from pyengine.core.worker.blocked_runs import resend_pause_s
from pyengine.errors import Conflict, EngineError, InvalidRequest, NotFound
from pyengine.features.calls.contract import Executed, Request
from pyengine.features.calls.statements.adapters import (
    CALL_INTEGRATE,
    CALL_LEASE,
    CALL_RELEASE,
    CALL_REPORT,
    CALL_SWEEP,
    RENEW,
)
from pyengine.features.calls.statements.calls import INPUTS

logger = logging.getLogger("pyengine.adapters")

_FIELDS = frozenset(Request.__struct_fields__)
_BUSY = "busy"
# bad data, a broken constraint, a limit, an error of the engine, a refusal with a name
_FINAL = ("22", "23", "54", "P0", "WF")


class Leased(msgspec.Struct, kw_only=True, eq=False):
    """One attempt that a worker has leased, or a job that it is to cancel, which needs no lease.

    Args:
        request: the document for the adapter.
        adapter: name of the adapter.
        version: version of the lease; None for a cancellation.
        phase: poll_adapter, or integrate_ok and integrate_error if the outcome is stored already.
        lost: leases that were lost in a row, each during its poll, if these are too many to poll once more.
        known_until_s: until when the lease is known to hold (pyengine/core/process/lease_terms.py).
    """

    request: Request
    adapter: str
    version: int | None
    phase: str
    lost: int = 0
    known_until_s: float = 0.0

    @classmethod
    def read(cls, document: dict[str, Any]) -> Leased:
        """Return the attempt of a document of `durable.call_lease_v1`."""
        own = {name: value for name, value in document.items() if name in _FIELDS}
        return cls(
            request=msgspec.convert(own, Request),
            adapter=document["adapter"],
            version=document["version"],
            phase=document["phase"],
            lost=document.get("lost", 0),
        )

    @property
    def key(self) -> str:
        """The execution key."""
        return self.request.execution_key

    @property
    def task_id(self) -> str:
        """The id of the task whose lease it is."""
        return f"call:{self.key}"


def report(executed: Executed) -> bytes:
    """Return what a worker reports about a poll, as JSON."""
    answer: dict[str, Any] = msgspec.to_builtins(executed.answer)
    return msgspec.json.encode(answer | {"stderr": executed.stderr, "started_at": executed.started_ms})


class Attempts(Protocol):
    """The requests of an adapter worker to the database."""

    async def lease(self, adapters: Sequence[str], most: int) -> list[Leased]:
        """Lease attempts whose next poll is due."""
        ...

    async def values(self, leased: Leased) -> list[Any]:
        """Return the values of the inputs, tagged."""
        ...

    async def report(self, leased: Leased, report: bytes) -> str:
        """Report the outcome of a poll; return the new state, or busy."""
        ...

    async def integrate(self, leased: Leased) -> str:
        """Pin a stored outcome; return the new state, or busy."""
        ...

    async def release(self, leased: Leased, reason: str) -> str:
        """Give a lease back, which counts as no failure; return released, or busy."""
        ...

    async def renew(self, leased: Sequence[Leased]) -> int:
        """Renew leases; return how many were still ours."""
        ...

    async def sweep(self) -> None:
        """End attempts that can never be polled."""
        ...


class DatabaseAttempts:
    """Those requests as calls of SQL functions.

    Args:
        pool: connections.
        worker: id of the worker.
        ttl_ms: length of a lease.
    """

    def __init__(self, pool: ConnectionPool, worker: str, ttl_ms: int) -> None:
        self._pool = pool
        self._worker = worker
        self._ttl_ms = ttl_ms

    async def lease(self, adapters: Sequence[str], most: int) -> list[Leased]:
        """Lease attempts whose next poll is due."""
        text = await self._pool.run(CALL_LEASE, self._worker, list(adapters), self._ttl_ms, most)
        found = []
        for document in msgspec.json.decode(text):
            try:
                found.append(Leased.read(document))
            except (msgspec.ValidationError, AttributeError, KeyError) as error:
                # the others go on; this lease runs out
                logger.error("a leased attempt cannot be read: %r in %.200s", error, document)
        return found

    async def values(self, leased: Leased) -> list[Any]:
        """Return the values of the inputs, tagged."""
        values: list[Any] = msgspec.json.decode(await self._pool.run(INPUTS, leased.key))
        return values

    async def report(self, leased: Leased, report: bytes) -> str:
        """Report the outcome of a poll; return the new state, or busy."""
        state: str = await self._pool.run(CALL_REPORT, leased.key, leased.version, report.decode())
        return state

    async def integrate(self, leased: Leased) -> str:
        """Pin a stored outcome; return the new state, or busy."""
        state: str = await self._pool.run(CALL_INTEGRATE, leased.key, leased.version)
        return state

    async def release(self, leased: Leased, reason: str) -> str:
        """Give a lease back, which counts as no failure; return released, or busy."""
        state: str = await self._pool.run(CALL_RELEASE, leased.key, leased.version, reason)
        return state

    async def renew(self, leased: Sequence[Leased]) -> int:
        """Renew leases; return how many were still ours."""
        ids, versions = [one.task_id for one in leased], [one.version for one in leased]
        renewed: int = await self._pool.run(RENEW, self._worker, ids, versions)
        return renewed

    async def sweep(self) -> None:
        """End attempts that can never be polled."""
        await self._pool.run(CALL_SWEEP)


class Sender:
    """Sends outcomes until they are answered.

    Args:
        attempts: where to.
    """

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._trouble = FailureLog(logger, "reporting polls of adapters")

    async def report(self, leased: Leased, executed: Executed) -> str | None:
        """Report a poll and have its outcome pinned; return the state, or None if the lease is lost.

        Raises:
            EngineError: the database refuses the report.
        """
        state = await self._sent(lambda: self._attempts.report(leased, report(executed)), leased)
        return await self.integrate(leased) if state in ("integrate_ok", "integrate_error") else state

    async def integrate(self, leased: Leased) -> str | None:
        """Have a stored outcome pinned; return the state, or None if the lease is lost."""
        return await self._sent(lambda: self._attempts.integrate(leased), leased)

    async def release(self, leased: Leased, reason: str) -> None:
        """Give a lease back; the reason not_served says that this worker has no such adapter."""
        await self._sent(lambda: self._attempts.release(leased, reason), leased)

    async def _sent(self, send: Callable[[], Awaitable[str]], leased: Leased) -> str | None:
        tries = 0
        while True:
            try:
                state = await send()
            except (Conflict, NotFound) as error:
                # the attempt has ended, or another worker has it: this outcome is void
                logger.info("attempt %s: %s", leased.key, error.message)
                return None
            except EngineError as error:
                if _is_final(error):
                    raise
                self._trouble.failed(error)
            else:
                self._trouble.succeeded()
                if state != _BUSY:
                    return state
            tries += 1
            await clock.sleep(resend_pause_s(tries, random))


def _is_final(error: EngineError) -> bool:
    """Whether sending the same again cannot help: locks and outages pass, wrong data does not."""
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return isinstance(error, InvalidRequest) or state.startswith(_FINAL)
