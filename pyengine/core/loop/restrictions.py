"""The loop methods that workflow code may not call, and the alternatives to them.

Lives here: the table of loop methods with its refusals, and the three calls of asyncio that order by address
or by thread. May not: the loop (``event_loop.py``, which asks this module), looking for such calls in code
(``features/checks/rules.py``, which reads the table). The theory: a useful refusal
names the call and an alternative that works. So each method has a row there, and none raises a bare
NotImplementedError deep inside asyncio.

``as_completed``, ``wait`` and ``wrap_future`` offer no hook, so they are recognised by the code object that
calls into the loop. If a later Python renames them, the refusals are lost and their tests fail; nothing else
changes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Final, NoReturn, TypeVar

from pyengine.errors import ForbiddenInWorkflow

_Loop = TypeVar("_Loop", bound=type)

STEP: Final = "a step: an `async def` step runs on the worker's loop, a plain `def` step in its thread pool"
HTTP: Final = f"ctx.http, or {STEP}"

LOOP_METHODS: Final[Mapping[str, str]] = {
    STEP: """
        run_in_executor call_soon_threadsafe set_default_executor shutdown_default_executor
        getnameinfo create_server create_unix_connection create_unix_server
        create_datagram_endpoint connect_accepted_socket connect_read_pipe connect_write_pipe
        start_tls sendfile subprocess_shell subprocess_exec add_reader remove_reader add_writer remove_writer
        sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendto
        sock_connect sock_accept sock_sendfile""",
    "ctx.receive() or ctx.promise(); signals to the process belong to the worker": """
        add_signal_handler remove_signal_handler""",
    "await the coroutine; the worker drives this loop": """
        run_forever run_until_complete stop shutdown_asyncgens""",
    HTTP: "create_connection getaddrinfo",
    "nothing: this loop belongs to the engine and cannot be changed": """
        set_debug set_task_factory set_exception_handler get_exception_handler
        default_exception_handler""",
}
"""Methods of an event loop that the deterministic loop refuses, by their alternative."""

_CALLERS: Final = {
    "run_in_executor": "which is asyncio.to_thread(),",
    "create_connection": "which clients of HTTP call",
    "getaddrinfo": "which clients of HTTP call",
}
"""The usual callers of methods that code seldom calls itself."""

_NOT_ITS_CODE: Final = ("pyengine", "asyncio", "contextlib")

_FROM_OUTSIDE: Final = "call_soon_threadsafe"

# Python 3.12 dropped the inner twin of ensure_future; 3.13 moved the set into an iterator class of its own.
_ensure_future: Final[Any] = getattr(asyncio.tasks, "_ensure_future", asyncio.ensure_future)
_iterator: Final[Any] = getattr(asyncio.tasks, "_AsCompletedIterator", None)
_as_completed: Final[Any] = asyncio.as_completed if _iterator is None else _iterator.__init__

ENSURE_FUTURE: Final[CodeType] = _ensure_future.__code__
WAIT: Final[CodeType] = getattr(asyncio.tasks, "_wait", asyncio.wait).__code__
WRAP_FUTURE: Final[CodeType] = asyncio.wrap_future.__code__
_AS_COMPLETED: Final[CodeType] = _as_completed.__code__


class _Unreachable(ForbiddenInWorkflow, NotImplementedError):
    """Libraries know by a NotImplementedError that nothing outside of a loop can reach it."""

    # its name in the journal
    __module__ = ForbiddenInWorkflow.__module__
    __qualname__ = ForbiddenInWorkflow.__qualname__


def refuse(
    run: str, what: str, instead: str, kind: type[ForbiddenInWorkflow] = ForbiddenInWorkflow
) -> NoReturn:
    """Raise ForbiddenInWorkflow for a call that workflow code made.

    Args:
        run: name of the run.
        what: the call, as the user would write it.
        instead: the alternative.
        kind: the class of the error.

    Raises:
        ForbiddenInWorkflow: always.
    """
    message = f"workflow code may not call {what}: a replay could not repeat it (run {run!r})"
    raise kind(message, hint=f"use instead: {instead}")


def refusing(cls: _Loop) -> _Loop:
    """Set every method of the table on a loop class, each raising ForbiddenInWorkflow."""
    for instead, names in LOOP_METHODS.items():
        for name in names.split():
            setattr(cls, name, _refusal(name, instead))
    return cls


def _refusal(name: str, instead: str) -> Callable[..., NoReturn]:
    what = f"loop.{name}()" + (f", {_CALLERS[name]}" if name in _CALLERS else "")

    def refused(self: Any, *args: Any, **options: Any) -> NoReturn:
        _close_coroutines(args)
        refuse(self.run_id, what, instead, _Unreachable if name == _FROM_OUTSIDE else ForbiddenInWorkflow)

    refused.__name__ = refused.__qualname__ = name
    return refused


def check_future(frame: FrameType, run: str) -> None:
    """Refuse a future that wrap_future makes, or wait for a set that holds members ordered by address.

    Args:
        frame: the frame that asks the loop for a future; its code is WAIT or WRAP_FUTURE.
        run: name of the run.

    Raises:
        ForbiddenInWorkflow: see above.
    """
    if frame.f_code is WRAP_FUTURE:
        refuse(run, "asyncio.wrap_future()", STEP)
    by_address: Any = object.__hash__
    waited = frame.f_locals.get("fs", ())
    if len(waited) > 1 and any(type(each).__hash__ is by_address for each in waited):
        what = "asyncio.wait() with a bare gather() or Future(), which a set orders by address"
        refuse(run, what, "asyncio.create_task() around each")


def check_task(frame: FrameType | None, coro: Any, run: str) -> None:
    """Refuse a task for as_completed, which has put coroutines into a set, where they are ordered by address.

    Args:
        frame: the frame that asks the loop for a task; its code is ENSURE_FUTURE.
        coro: closed on refusal, like all others that were given to as_completed.
        run: name of the run.

    Raises:
        ForbiddenInWorkflow: see above.
    """
    for _ in range(4):  # ensure_future may have an inner twin, and the set comprehension a frame of its own
        if frame is None:
            return
        if frame.f_code is _AS_COMPLETED:
            given = frame.f_locals.get("fs", frame.f_locals.get("aws"))
            _close_coroutines((coro, *(given if isinstance(given, (list, tuple, set, frozenset)) else ())))
            what = "asyncio.as_completed() with coroutines, which a set orders by address"
            refuse(run, what, "ctx.as_completed(), or asyncio.create_task() around each")
        frame = frame.f_back


def _close_coroutines(values: tuple[Any, ...]) -> None:
    for value in values:
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that it was never awaited


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame belongs to code of the user."""
    return str(frame.f_globals.get("__name__", "")).split(".")[0] not in _NOT_ITS_CODE


def place_of(callback: Any) -> str:
    """Return where the code of a callback, or of the task that it advances, stands: " at FILE, line N,"."""
    owner = getattr(callback, "__self__", None)
    code = getattr(callback, "__code__", getattr(getattr(callback, "func", None), "__code__", None))
    place = (code.co_filename, code.co_firstlineno) if code is not None else None
    waiting = owner.get_coro() if isinstance(owner, asyncio.Task) else None
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None)
        if frame is not None and is_of_user(frame):
            place = (frame.f_code.co_filename, frame.f_lineno)
        waiting = getattr(waiting, "cr_await", None)
    return "" if place is None else f" at {place[0]}, line {place[1]},"


def asyncio_hint(error: BaseException) -> str | None:
    """Return the alternative, for an error that asyncio raised for what workflow code did; else None.

    That is a second loop, or a wait for calls that are coroutines as well.
    """
    if isinstance(error, TypeError) and str(error).startswith("Passing coroutines is forbidden"):
        return "asyncio.create_task() around each call, or ctx.first(...), ctx.gather(...)"
    texts = ("cannot be called from a running event loop", "while another loop is running")
    if isinstance(error, RuntimeError) and any(text in str(error) for text in texts):
        return "use instead: await the coroutine; workflow code already runs in a loop of its own"
    return None
