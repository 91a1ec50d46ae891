"""Running memo functions: what a worker does with an attempt whose adapter is a function of its app.

Lives here: `MemoRunner`, which runs one attempt in this process. May not: leases, heartbeats, reports
(adapter_worker.py). Design: a function that returns has a result, and one that raises has a failed result:
both are values. A worker is offered only the versions that it has, because a version is part of the name
under which a memo is served. Large inputs and results are read and written in threads of ours.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from pyengine.core.database.connection import Database
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.process.lease_terms import LeaseOver
from pyengine.core.process.thread_pool import ThreadPool, ValueThreads
from pyengine.core.values.error_describing import error_message
from pyengine.core.values.sizes import is_large
from pyengine.errors import DecodeError, EngineError, InvalidRequest, Unavailable
from pyengine.features.calls.contract import Answer, CannotRun, Done, Executed, Failed, Request
from pyengine.features.calls.datums import from_tagged, value_of
from pyengine.features.calls.functions import Memo
from pyengine.features.calls.statements.calls import INPUTS
from pyengine.features.frameworks.connections import as_requests

_CONNECTIONS = 2
_STACK_MAX = 50
_TEXT_MAX = 20_000


class MemoRunner:
    """Runs memo functions.

    Args:
        memos: the functions, by the name of their adapter.
        database: where the values of their inputs are.
        threads: sync functions that run at a time.
    """

    def __init__(self, memos: Mapping[str, Memo[..., Any]], database: Database, threads: int = 16) -> None:
        self.adapters = tuple(memo.served_as for memo in memos.values())
        self._pool = ConnectionPool(database, "memos", _CONNECTIONS)
        self._memos = {memo.function: memo for memo in memos.values()}
        self._size = threads
        self._threads: ThreadPool | None = None
        self._values: ValueThreads | None = None

    async def execute(self, adapter: str, request: Request, may_begin: Callable[[], bool]) -> Executed:
        """Run a function once.

        Raises:
            CannotRun: it is none of these.
            LeaseOver: it may not begin.
        """
        started_ms = time.time_ns() // 1_000_000
        return Executed(answer=await self._answer(request, may_begin), started_ms=started_ms)

    async def cancel(self, adapter: str, request: Request) -> None:
        """Do nothing: a function that runs is cancelled when its lease is lost."""

    async def close(self) -> None:
        """Let go of the threads; a function that runs in one goes on to its end and is not reported."""
        for threads in (self._threads, self._values):
            if threads is not None:
                threads.close()
        await self._pool.close()

    async def _answer(self, request: Request, may_begin: Callable[[], bool]) -> Answer:
        memo = self._memos.get(request.function)
        if memo is None:
            served = ", ".join(sorted(self._memos))
            raise CannotRun(f"this worker serves {served}, not {request.function}")
        threads = self._values = self._values or ValueThreads(asyncio.get_running_loop())
        try:
            (row,) = await self._pool.rows(INPUTS, request.execution_key)
            read = partial(_arguments, memo, request)
            args, kwargs = await threads.made_of(row[0], read, large=is_large(row[0]))
        except EngineError as error:
            code = "wrong_inputs" if isinstance(error, DecodeError | InvalidRequest) else "no_inputs"
            return Failed(isinstance(error, Unavailable), {"code": code, "message": error.message})

        def begin() -> Any:
            # it has waited for its values, and in a thread for that one
            if not may_begin():
                raise LeaseOver
            return memo.fn(*args, **kwargs)

        result, failed = await self._run(memo, begin)
        if isinstance(failed, LeaseOver):
            raise failed
        if failed is None:
            try:
                write = partial(memo.result.encode, where=f"the result of memo {memo.name}")
                return Done("ok", value=await threads.made_of(result, write, large=is_large(result)))
            except Exception as error:  # boundary to user code: a value may do anything
                failed = error
        return Done("error", error=_error_document(failed))

    async def _run(self, memo: Memo[..., Any], begin: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Return what a function returns, or what it raises: SystemExit too ends no worker."""
        value: Any = None
        if not memo.is_async:
            value, failed = await self._run_in_thread(begin)
            if failed is not None or not inspect.isawaitable(value):
                return value, failed
        try:
            return await (begin() if memo.is_async else value), None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None, EngineError(f"memo {memo.name} cancelled itself (asyncio.CancelledError)")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # boundary to user code: its error is the result
            return None, error

    async def _run_in_thread(self, begin: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        loop = asyncio.get_running_loop()
        if self._threads is None:
            self._threads = ThreadPool(loop, self._size, around=as_requests)
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def body() -> Any:
            # the attempt may have been given up while it waited for a thread
            return None if ended.done() else begin()

        def done(value: Any, error: BaseException | None) -> None:
            if not ended.done():
                # a future takes no StopIteration as its error
                ended.set_result((value, error))

        job = self._threads.submit(body, done)
        try:
            return await ended
        except asyncio.CancelledError:
            self._threads.leave_behind(job)
            raise


def _arguments(memo: Memo[..., Any], request: Request, inputs: str) -> tuple[Any, Any]:
    """Return the arguments of a function: its inputs as the database has them, and those that are ignored."""
    ignored = (request.request or {}).get("ignored") or {}
    return memo.arguments(
        [value_of(from_tagged(one)) for one in msgspec.json.decode(inputs)],
        {name: value_of(from_tagged(one)) for name, one in ignored.items()},
    )


def _error_document(error: BaseException) -> dict[str, Any]:
    """Return a failure as the root of its DAG: message, type, origin, stack."""
    frames = traceback.extract_tb(error.__traceback__)[1:][-_STACK_MAX:]
    stack = [
        {
            "filename": _clean(frame.filename),
            "function": _clean(frame.name),
            "lineno": frame.lineno or 0,
            "line": _clean(frame.line or ""),
        }
        for frame in frames
    ]
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"message": _clean(error_message(error)), "type": _clean(name), "origin": "python", "stack": stack}


def _clean(text: str) -> str:
    """Return a text that every reader of JSON takes."""
    return text[:_TEXT_MAX].replace("\0", "\\x00").encode(errors="backslashreplace").decode()
