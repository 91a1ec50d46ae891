"""SIGINT and SIGTERM of a process that serves: they arrive whatever its code does.

Lives here: `StopSignals`, which tells of the first signal and ends the process at the second, or when the
first has had no effect in time; and `end_process`. May not: what stops (foreground.py). Design: handlers of
an event loop run in the loop, and handlers of Python between two instructions of the main thread. Code of
users may hold up both. So a thread reads the descriptor to which the interpreter writes each signal as it
comes. A forked child inherits handlers and descriptor, and would stop its parent when it is ended: a child
gets back the handlers of before, and no signal in between.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from pyengine.core.process import clock

logger = logging.getLogger("pyengine.app")

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_END = b"\0"
_FLUSH_S = 1.0


class StopSignals:
    """Listens for signals while its block runs; only the main thread can.

    Args:
        stop: called once, in a thread of its own, at the first signal; returns how many seconds the block may
            still run. Then the process is ended.
    """

    _current: StopSignals | None = None

    def __init__(self, stop: Callable[[], float]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._before_fd = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread() or StopSignals._current is not None:
            return self
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="pyengine-signals", daemon=True)
        self._thread.start()
        self._before_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._caught) for number in _NUMBERS}
        StopSignals._current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if StopSignals._current is not self:
            return
        StopSignals._current = None
        self._restore(self._before_fd)
        self._write.send(_END)
        self._thread.join()
        self._read.close()
        self._write.close()

    def _restore(self, wakeup_fd: int) -> None:
        with contextlib.suppress(ValueError, OSError):  # the loop that it belongs to has ended
            signal.set_wakeup_fd(wakeup_fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        """The interpreter has written it to the descriptor already, if that is still ours."""
        wakeup_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        if wakeup_fd != self._write.fileno():
            signal.set_wakeup_fd(wakeup_fd)
            with contextlib.suppress(OSError):
                self._write.send(bytes([number]))

    # -- the thread

    def _listen(self) -> None:
        """Read signals until the block ends."""
        ends_s: float | None = None
        while True:
            try:
                if ends_s is None:
                    received = self._read.recv(64)
                else:
                    received = clock.block(self._receive, max(0.001, ends_s - clock.monotonic()))
            except TimeoutError:
                self._overdue()
            for number in received:
                if number == _END[0]:
                    return
                if number not in _NUMBERS:
                    self._pass_on(number)
                elif ends_s is None:
                    ends_s = clock.monotonic() + self._stop()
                    logger.info("signal %d: stopping; a second one ends the process at once", number)
                else:
                    os._exit(128 + number)

    def _receive(self, within_s: float) -> bytes:
        self._read.settimeout(within_s)
        return self._read.recv(64)

    def _pass_on(self, number: int) -> None:
        """Hand a signal of others to the loop that listened before."""
        if self._before_fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._before_fd, bytes([number]))

    def _overdue(self) -> NoReturn:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        logger.error(
            "the process does not stop in time and is ended; its main thread is here:\n%s",
            "".join(traceback.format_stack(frame)),
        )
        end_process(0)

    # -- forks

    def reset(self) -> None:
        """Forget the signals, in a forked child."""
        StopSignals._current = None
        self._restore(-1)
        self._read.close()
        self._write.close()


def end_process(code: int) -> NoReturn:
    """End the process at once: whatever still runs in it is left behind. Logs and streams are flushed."""
    ending = threading.Thread(target=_flush, daemon=True)
    ending.start()
    # somebody who does not give way may hold a lock of a stream
    ending.join(_FLUSH_S)
    os._exit(code)


def _flush() -> None:
    processes = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes is not None else ():
        if child.daemon:
            child.terminate()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


_masks = threading.local()


def _before_fork() -> None:
    if StopSignals._current is not None:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def _after_fork() -> None:
    before = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    if StopSignals._current is not None:
        StopSignals._current.reset()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
