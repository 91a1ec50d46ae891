"""One poll of an adapter: a process with files, a time limit, and its answer.

Lives here: `Adapter` (a name and its program), and `poll`, which runs it once. May not: the meaning of stdout
(contract.py), the database. Design: stdin, stdout and stderr are files and no pipes, so a poll ends with its
adapter, whatever processes the adapter leaves behind. The process has a session and a process group of its
own, so a time limit ends all that it started, except jobs that have their own session. The environment is a
list of names that are passed on, because the worker's has secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyengine.core.process import clock
from pyengine.core.process.lease_terms import LeaseOver
from pyengine.errors import InvalidRequest
from pyengine.features.calls import contract
from pyengine.features.calls.adapters import SHIPPED
from pyengine.features.calls.contract import CannotRun, Executed, Failed, Request

ENVIRONMENT = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""The variables of the worker that adapters get; a worker may pass on more."""
_WATCH_EVERY_S = 0.25
# errors of exec that another machine or a later time does not repair
_PROGRAM_ERRORS = frozenset(
    {errno.ENOEXEC, errno.E2BIG, errno.EACCES, errno.EPERM, errno.ELIBBAD, errno.EISDIR}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a poll.

    Args:
        time_s: seconds after which it is ended.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    time_s: float = 60.0
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that a worker serves.

    Args:
        name: its name in function URIs.
        path: its program; None means the program of that name on the PATH, or one that is shipped.
    """

    name: str
    path: str | None = None

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """Return the adapter that ``NAME`` or ``NAME=PATH`` stands for.

        Raises:
            InvalidRequest: it is no name, or its path is not absolute.
        """
        name, equals, path = text.partition("=")
        contract.check_name(name)
        if name.startswith("python."):
            raise InvalidRequest(
                f"{name} is for a memo function", hint="pyengine worker MODULE:APP serves it"
            )
        if equals and not os.path.isabs(path):
            raise InvalidRequest(
                f"the program of the adapter {name} is {path!r}", hint="name it by its absolute path"
            )
        return cls(name=name, path=path or None)

    def command(self) -> list[str]:
        """Return the command that runs it, without its argument.

        Raises:
            CannotRun: there is no such program here.
        """
        if self.path is not None:
            if not os.path.exists(self.path):
                raise CannotRun(f"the program of the adapter {self.name}, {self.path}, does not exist")
            return [self.path]
        if self.name in SHIPPED:
            return [sys.executable, "-P", str(Path(__file__).parent / "adapters" / SHIPPED[self.name])]
        found = shutil.which(self.name)
        if found is None:
            raise CannotRun(f"there is no program {self.name} on the PATH of this worker")
        return [os.path.abspath(found)]


@dataclass(slots=True)
class _Files:
    """The files of one poll, which have no names, and its empty working directory."""

    work: str
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @classmethod
    @contextlib.contextmanager
    def made(cls, request: Request) -> Iterator[_Files]:
        """Make them for a block."""
        with contextlib.ExitStack() as stack:
            work = tempfile.mkdtemp(prefix="pyengine-adapter-")
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            stdin, stdout, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            stdin.write(request.document())
            stdin.seek(0)
            yield cls(work, stdin, stdout, stderr)

    def printed(self) -> bytes:
        """Return stdout, and one byte more than is allowed at most."""
        return os.pread(self.stdout.fileno(), contract.STDOUT_LIMIT_WITH_OBJECTS + 1, 0)

    def logged(self) -> str:
        """Return the end of stderr."""
        start = max(0, _size(self.stderr) - contract.STDERR_TAIL)
        return contract.readable(
            os.pread(self.stderr.fileno(), contract.STDERR_TAIL, start), contract.STDERR_TAIL
        )

    def over_limit(self) -> Failed | None:
        """Return the failure of an adapter that prints too much."""
        if _size(self.stdout) > contract.STDOUT_LIMIT_WITH_OBJECTS:
            found = f"more than {contract.STDOUT_LIMIT_WITH_OBJECTS} bytes"
            return contract.broken("size", found, self.printed())
        if _size(self.stderr) > contract.STDERR_LIMIT:
            return contract.broken("stderr", f"more than {contract.STDERR_LIMIT} bytes")
        return None


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def environment(
    request: Request, passed: tuple[str, ...] = (), given: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of an adapter.

    Args:
        request: names the attempt.
        passed: names of further variables that are passed on.
        given: the environment of the worker.
    """
    own = {name: given[name] for name in (*ENVIRONMENT, *passed) if name in given}
    return own | {
        "DURABLE_EXECUTION_KEY": request.execution_key,
        "DURABLE_EXECUTION_UUID": request.execution_uuid,
        "DURABLE_PROTOCOL": str(contract.VERSION),
    }


async def poll(
    adapter: Adapter,
    request: Request,
    *,
    limits: Limits | None = None,
    passed: tuple[str, ...] = (),
    may_begin: Callable[[], bool] = lambda: True,
) -> Executed:
    """Run an adapter once; a cancellation ends its process group.

    Args:
        adapter: the adapter.
        request: the document for its stdin.
        limits: its limits.
        passed: names of further environment variables that it gets.
        may_begin: asked immediately before its process begins.

    Raises:
        CannotRun: it cannot be run here.
        LeaseOver: it may not begin.
    """
    command = [*adapter.command(), request.function]
    with _Files.made(request) as files:
        started_ms, began_s = time.time_ns() // 1_000_000, clock.monotonic()
        if not may_begin():
            raise LeaseOver
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=files.stdin,
                stdout=files.stdout,
                stderr=files.stderr,
                cwd=files.work,
                env=environment(request, passed),
                start_new_session=True,
            )
        except OSError as error:
            answer = _not_started(adapter, command[0], error)
            return Executed(answer=answer, stderr="", started_ms=started_ms, took_s=0.0)
        code, ended_for = await _ended(process, files, limits or Limits())
        return Executed(
            answer=ended_for or contract.exit_answer(code, files.printed()),
            stderr=files.logged(),
            started_ms=started_ms,
            took_s=clock.monotonic() - began_s,
            exit_code=code,
            group=process.pid,
        )


async def _ended(
    process: asyncio.subprocess.Process, files: _Files, limits: Limits
) -> tuple[int, Failed | None]:
    """Wait for the end of the process; end it if it breaks a limit, and return which."""
    until_s = clock.monotonic() + limits.time_s
    waiting = asyncio.create_task(process.wait())
    try:
        while True:
            left_s = until_s - clock.monotonic()
            await clock.wait((waiting,), max(0.0, min(left_s, _WATCH_EVERY_S)))
            if waiting.done():
                return waiting.result(), None
            if (ended_for := files.over_limit()) is not None:
                break
            if left_s <= 0:
                message = f"the adapter gave no answer within {limits.time_s:g} s"
                ended_for = Failed(True, {"code": "adapter_timeout", "message": message})
                break
        await _end_group(process.pid, waiting, limits.grace_s)
        return await waiting, ended_for
    finally:
        if not waiting.done():
            # cancelled: nothing is waited for any more
            _signal_group(process.pid, signal.SIGTERM)
            _signal_group(process.pid, signal.SIGKILL)
            await asyncio.shield(waiting)


async def _end_group(group: int, waiting: asyncio.Task[int], grace_s: float) -> None:
    """Send SIGTERM to a process group, and SIGKILL if a process of it is left after the grace."""
    until_s = clock.monotonic() + grace_s
    alive = _signal_group(group, signal.SIGTERM)
    while alive and clock.monotonic() < until_s:
        await clock.wait((waiting,), 0.05)
        if waiting.done():
            await clock.sleep(0.05)
        alive = _signal_group(group, 0)
    if alive:
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; return whether it has a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _not_started(adapter: Adapter, program: str, error: OSError) -> Failed:
    """Return the failure of a program that cannot be executed.

    Raises:
        CannotRun: the reason is this machine, or the program has just vanished.
    """
    reason = error.strerror or str(error)
    if not os.path.exists(program) or error.errno not in _PROGRAM_ERRORS | {errno.ENOENT}:
        raise CannotRun(f"the adapter {adapter.name} could not be started here: {reason}") from error
    if error.errno == errno.ENOENT:
        reason = "its interpreter does not exist"
    return Failed(False, {"code": "adapter_broken", "message": f"{program} cannot be executed: {reason}"})
