"""Programs that pages show, each in a process of its own in which the package is imported already.

Lives here: ``run``, which does with a text what ``python -`` does. The imports take most of the time of a
small program, so one process of ``multiprocessing`` has done them, and is forked for each program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [f"pyengine.{name}" for name in ("app", "app_runtime", "sync", "core.worker.worker")]
    + ["pyengine.features.checks.development", "pyengine.doors.embedded.server", "uvloop"]
)
_WAIT_S = 90.0


def run(text: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder to its end, and answer its exit code and what it printed."""
    with TemporaryDirectory() as place:
        printed = [Path(place, name) for name in ("stdout", "stderr")]
        process = _FORKS.Process(target=_be_program, args=(text, folder, dict(environment), printed))
        process.start()
        process.join(_WAIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        out, err = (path.read_text(encoding="utf-8") if path.exists() else "" for path in printed)
        assert process.exitcode is not None
        return subprocess.CompletedProcess(text, process.exitcode, out, err)


def _be_program(text: str, folder: Path, environment: dict[str, str], printed: list[Path]) -> None:
    for number, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = ["", *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv = ["-"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(text, "<stdin>", "exec"), main.__dict__)
