"""The server of a folder, and its end by kill -9."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pyengine.doors.embedded.postmaster import Postmaster, is_postmaster, read_postmaster


def server_of(home: Path) -> Postmaster:
    """The server that runs in a folder."""
    server = read_postmaster(home / "data")
    assert server is not None
    return server


def kill(home: Path) -> int:
    """End the server of a folder with kill -9, wait until the system has done so, and return its number."""
    pid = server_of(home).pid
    os.kill(pid, signal.SIGKILL)
    while is_postmaster(pid, home / "data"):
        time.sleep(0.002)
    return pid
