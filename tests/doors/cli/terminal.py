"""Commands typed in a terminal of a given size.

Lives here: a pseudo terminal with a process in it, and what that process has printed.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

from tests.support.tree import ROOT
from tests.system.crash.processes import environment

__all__ = ["Terminal", "plain"]

CTRL_C = b"\x03"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_REMOVED = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYENGINE_DATA_DIR", "PYENGINE_LISTEN_URL")


def plain(text: str) -> str:
    """A text without its colours."""
    return _STYLE.sub("", text)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A terminal in which one command of ours runs.

    Args:
        dsn: the database that its environment names.
        words: the command's arguments.
        columns: the width.
        lines: the height.
        variables: more environment.
    """

    def __init__(self, dsn: str, *words: str, columns: int = 80, lines: int = 40, **variables: str) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (lines, columns))
        named = {name: value for name, value in environment(dsn).items() if name not in _REMOVED}
        self._process = subprocess.Popen(
            [str(Path(sys.executable).parent / "pyengine"), *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**named, "TERM": "xterm-256color", "PGTZ": "UTC", "TZ": "UTC", **variables},
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(theirs)
        self._printed = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    @property
    def printed(self) -> str:
        """All that was printed until now, with the lines' ends as the program wrote them."""
        return self._printed.decode("utf-8", "replace").replace("\r\n", "\n")

    def read_until(self, text: str, timeout_s: float = 30) -> str:
        """Read until a text was printed, and return all that was."""
        ends_at = time.monotonic() + timeout_s
        while text not in self.printed:
            assert self._read(ends_at), f"ended without {text!r}: {self.printed}"
        return self.printed

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def end(self, timeout_s: float = 30) -> tuple[int, str]:
        """Wait for the end of the command; return its exit code and all that it has printed."""
        ends_at = time.monotonic() + timeout_s
        while self._read(ends_at):
            pass
        return self._process.wait(timeout_s), self.printed

    def _read(self, ends_at: float) -> bool:
        """Read what there is; False at the end."""
        ready, _, _ = select.select([self._ours], [], [], max(ends_at - time.monotonic(), 0))
        assert ready, f"nothing more was printed in time: {self.printed}"
        try:
            read = os.read(self._ours, 65536)
        except OSError:  # the last process has closed it
            return False
        self._printed += read
        return bool(read)
