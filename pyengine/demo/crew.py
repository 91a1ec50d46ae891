"""The worker processes of the demo: started, watched, killed, stopped.

Lives here: processes. May not: know the job. Each process has a session of its own, so that Ctrl-C reaches
only the command; the end of its standard input shows it that the command has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyengine import clock
from pyengine.errors import EngineError

__all__ = ["Crew", "Member"]

STOP_TIMEOUT_S = 8.0
LOST_MEMBERS_MAX = 3
_LOG_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One worker process."""

    label: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class Crew:
    """The worker processes that serve one queue.

    Args:
        url: the database; passed in the environment, where other users cannot read it.
        queue: the queue.
        log: receives their output.
    """

    def __init__(self, url: str, queue: str, log: IO[bytes]) -> None:
        self._url = url
        self._queue = queue
        self._log = log
        self._started = 0
        self._lost = 0
        self.members: list[Member] = []

    def start(self) -> Member:
        """Start one more worker."""
        self._started += 1
        label = f"worker {self._started}"
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH")) if part)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pyengine.demo.worker", self._queue],
            env=os.environ
            | {"PYENGINE_DATABASE_URL": self._url, "PYENGINE_DEMO_WORKER": label, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.members.append(Member(label=label, process=process))
        return self.members[-1]

    def kill(self, member: Member) -> None:
        """Kill one worker like ``kill -9``, and wait for its end."""
        os.kill(member.pid, signal.SIGKILL)
        self._remove(member)

    def replace_the_lost(self) -> list[Member]:
        """Start a worker for each one that ended by itself; return those that ended.

        Raises:
            EngineError: too many have ended.
        """
        lost = [member for member in self.members if member.process.poll() is not None]
        for member in lost:
            self._remove(member)
            self._lost += 1
            if self._lost > LOST_MEMBERS_MAX:
                raise EngineError(
                    f"{member.label} ended by itself with exit code {member.process.returncode}",
                    detail=self._end_of_log(),
                    hint="pyengine db status",
                )
            self.start()
        return lost

    def stop(self) -> None:
        """Stop all workers in an orderly way; kill those that do not stop."""
        for member in self.members:
            if member.process.poll() is None:
                member.process.terminate()
        ends_at = clock.monotonic() + STOP_TIMEOUT_S
        for member in list(self.members):
            try:
                member.process.wait(max(ends_at - clock.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                member.process.kill()
            self._remove(member)

    def _remove(self, member: Member) -> None:
        member.process.wait()
        if member.process.stdin is not None:
            member.process.stdin.close()
        self.members.remove(member)

    def _end_of_log(self) -> str:
        self._log.flush()
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-_LOG_LINES:])
