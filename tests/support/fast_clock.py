"""A clock of the process by which hours pass in seconds: when nothing is under way, the next timer is due.

The time stands still while a statement runs or a task goes on, so a lease lasts as many renewals as it does
in real time, and no time limit is over because the machine was slow. The database goes by the same time:
before each statement its clock is set, in a file, which costs no statement and leaves no versions behind
while a transaction is open. What libraries do by themselves stays real, and so does the time of threads that
were there before, such as servers of other tests in this process.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pyengine.core.process.clock import Clock, Limit, Timer
from tests.support.clock import START_MS
from tests.support.cluster import FOLDER

T = TypeVar("T")
STATEMENTS = ("fetch", "fetchrow", "fetchval", "execute", "close", "reset", "add_listener", "remove_listener")
# how long a thread that is blocked may not notice something else than the clock, in real time
_SLICE_S = 0.02
_LOOK_S = 0.0002
_INSTALL = """
create or replace function durable._now_ms() returns bigint
language sql volatile parallel unsafe security definer
as $$ select pg_catalog.pg_read_file({path})::bigint $$
"""


class _Timer:
    """A call that is to come: in a loop, or the end of the pause of a thread."""

    def __init__(self, clock: FastClock, when: float, call: Callable[[], object]) -> None:
        self.when, self.call, self.over = when, call, False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._clock = clock

    def cancel(self) -> None:
        """Let it not come."""
        self.over = True

    def fire(self) -> None:
        """Call it, in the thread to which it belongs; then the clock goes on."""
        if self.loop is None:
            self.call()
            return

        def run() -> None:
            try:
                if not self.over:
                    self.over = True
                    self.call()
            finally:
                self._clock.settle()

        try:
            (self.loop.call_soon if self.loop is _running() else self.loop.call_soon_threadsafe)(run)
        except RuntimeError:  # the loop is closed
            self._clock.done()


class _Limit:
    """A time limit of a block, by this clock."""

    def __init__(self, clock: FastClock, inner: asyncio.Timeout) -> None:
        self._clock, self._inner = clock, inner
        self._timer: Any = None

    def reschedule(self, when: float | None) -> None:
        """Move it to another time."""
        if self._timer is not None:
            self._timer.cancel()
        if when is not None:
            self._timer = self._clock.call_at(when, self._expire)

    def _expire(self) -> None:
        self._inner.reschedule(asyncio.get_running_loop().time())


class FastClock(Clock):
    """The clock; it goes at the real pace except within `span`.

    Args:
        dsn: the database that goes by it too.

    Attributes:
        unreachable: whether connections are refused.
        refused: how many were.
        others: threads that were there before.
        fired: how many timers were due within spans.
    """

    def __init__(self, dsn: str) -> None:
        self._real = Clock()
        self.others = set(threading.enumerate()) - {threading.current_thread()}
        # the server's user may enter that folder, and it is there until the session of tests ends
        path = Path(os.environ[FOLDER]) / f"now_ms_{conninfo_to_dict(dsn)['dbname']}"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        os.pwrite(self._file, b"%d" % START_MS, 0)
        with psycopg.connect(dsn, autocommit=True) as database:
            database.execute(sql.SQL(_INSTALL).format(path=str(path)))
            # a start that comes before the first tick finds the partition of its week
            database.execute("select durable._create_partitions()")
        self._lock = threading.RLock()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._settling: dict[asyncio.AbstractEventLoop, int] = {}
        self._numbers = itertools.count()
        self._busy = 0
        self._now_s: float | None = None
        self._offset_s = 1000.0 - time.monotonic()
        self._until_s = inf
        self._reached: Callable[[], object] = lambda: None
        self._set_s = -1.0
        self.unreachable = False
        self.refused = 0
        self.fired = 0

    # -- the clock

    def is_elsewhere(self) -> bool:
        """Whether this is a thread that was there before."""
        return threading.current_thread() in self.others

    def monotonic(self) -> float:
        """Return the time."""
        if self.is_elsewhere():
            return self._real.monotonic()
        now_s = self._now_s
        return time.monotonic() + self._offset_s if now_s is None else now_s

    def elapsed(self) -> float:
        """Return the same: nothing is suspended."""
        return self.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait in a task."""
        if self.is_elsewhere():
            await self._real.sleep(seconds)
            return
        over = asyncio.get_running_loop().create_future()
        timer = self.call_at(self.monotonic() + seconds, lambda: over.done() or over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def pause(self, seconds: float) -> None:
        """Wait in a thread."""
        if self.is_elsewhere():
            self._real.pause(seconds)
        else:
            self.block(None, seconds)

    def block(self, wait: Callable[[float], T] | None, seconds: float) -> T:  # type: ignore[override]
        """Wait in a thread, which works otherwise, by a function that takes a time limit."""
        if wait is not None and self.is_elsewhere():
            return self._real.block(wait, seconds)
        over = threading.Event()
        timer = self._add(_Timer(self, self.monotonic() + seconds, over.set))
        self.done()
        try:
            while True:
                ended = over.wait(_SLICE_S) or self.monotonic() >= timer.when
                found = cast("T", ended) if wait is None else wait(_LOOK_S)
                if found or ended:
                    return found
        finally:
            with self._lock:
                timer.cancel()
                self._busy += not over.is_set()

    def timeout_at(self, when: float | None) -> AbstractAsyncContextManager[Limit]:
        """Return a block that raises TimeoutError at that time."""
        return self._real.timeout_at(when) if self.is_elsewhere() else self._timeout_at(when)

    @asynccontextmanager
    async def _timeout_at(self, when: float | None) -> AsyncIterator[Limit]:
        async with asyncio.timeout(None) as inner:
            limit = _Limit(self, inner)
            limit.reschedule(when)
            try:
                yield limit
            finally:
                limit.reschedule(None)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call something in the running loop at that time."""
        if self.is_elsewhere():
            return self._real.call_at(when, callback, *args)
        timer = _Timer(self, when, lambda: callback(*args))
        timer.loop = asyncio.get_running_loop()
        return self._add(timer)

    # -- its pace

    async def span(self, seconds: float) -> None:
        """Let so much time pass, as fast as it can."""
        loop, reached = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._now_s = self.monotonic()
            self._until_s = self._now_s + seconds
            self._reached = lambda: loop.call_soon_threadsafe(reached.set)
            self._busy += 1
        self.settle()
        await reached.wait()
        with self._lock:
            self._offset_s = self._until_s - time.monotonic()
            self._now_s, self._until_s = None, inf
            self._busy -= 1
            for _, _, timer in self._timers:
                self._arm(timer)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the clock stand still while something is under way."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            self.settle()

    def begin(self) -> None:
        """A thread begins, which says `done` at its end."""
        with self._lock:
            self._busy += 1

    def settle(self) -> None:
        """Something has ended: once the loop has nothing left to do, the clock may go on."""
        if self._now_s is None:
            self.done()
            return
        loop = asyncio.get_running_loop()
        before = self._settling.get(loop, 0)
        self._settling[loop] = before + 1
        if not before:
            loop.call_soon(self._settled, loop)

    def _settled(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look whether there is something left to do: what has ended may have let others go on."""
        if loop._ready:  # type: ignore[attr-defined]  # asyncio tells it nowhere else
            loop.call_soon(self._settled, loop)
        else:
            self.done(self._settling.pop(loop))

    def done(self, things: int = 1) -> None:
        """So many things less are under way; if they were the last ones, the next timer is due."""
        with self._lock:
            self._busy -= things
            while not self._busy and self._now_s is not None:
                while self._timers and self._timers[0][2].over:
                    heapq.heappop(self._timers)
                if not self._timers or self._timers[0][0] > self._until_s:
                    self._now_s = self._until_s
                    self._busy += 1
                    self._reached()
                    return
                when, _, timer = heapq.heappop(self._timers)
                self._now_s = max(self._now_s, when)
                self._busy += 1
                self.fired += 1
                timer.fire()

    def _add(self, timer: _Timer) -> _Timer:
        with self._lock:
            heapq.heappush(self._timers, (timer.when, next(self._numbers), timer))
            if self._now_s is None:
                self._arm(timer)
        return timer

    def _arm(self, timer: _Timer) -> None:
        """Have a timer called at the real pace."""
        loop, delay_s = timer.loop, timer.when - self.monotonic()
        if loop is None or timer.over:
            return

        def due() -> None:
            if not timer.over and self._now_s is None:
                timer.over = True
                timer.call()

        if loop is _running():
            loop.call_later(delay_s, due)
        else:
            loop.call_soon_threadsafe(loop.call_later, delay_s, due)

    # -- the database

    def set_database(self) -> None:
        """Let the database have this time."""
        now_s = self.monotonic()
        if now_s != self._set_s:
            self._set_s = now_s
            # nothing reads it meanwhile: the time goes on when no statement is under way
            os.pwrite(self._file, b"%d" % (START_MS + round(now_s * 1000)), 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def install(clock: FastClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process go by a clock, and let it stand still during statements."""
    monkeypatch.setattr("pyengine.core.process.clock._clock", clock)

    def counted(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def statement(*args: Any, **options: Any) -> Any:
            if clock.is_elsewhere():
                return await run(*args, **options)
            with clock.working():
                clock.set_database()
                return await run(*args, **options)

        return statement

    for name in STATEMENTS:
        monkeypatch.setattr(asyncpg.Connection, name, counted(getattr(asyncpg.Connection, name)))
    connect, connect_sync = counted(asyncpg.connect), psycopg.connect

    async def reached(*args: Any, **options: Any) -> Any:
        if clock.unreachable and not clock.is_elsewhere():
            clock.refused += 1
            raise ConnectionRefusedError("the server is not there")
        return await connect(*args, **options)

    def reached_sync(*args: Any, **options: Any) -> Any:
        if clock.unreachable and str(options.get("application_name", "")).startswith("pyengine"):
            raise psycopg.OperationalError("the server is not there")
        return connect_sync(*args, **options)

    monkeypatch.setattr(asyncpg, "connect", reached)
    monkeypatch.setattr(psycopg, "connect", reached_sync)
