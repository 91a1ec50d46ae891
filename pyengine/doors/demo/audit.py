"""The program of the demo: an audit of installed packages as a durable job.

Lives here: its workflows and steps, and the worker process that runs them. May not: kill anybody (`run`).
Design: a run survives the death of any worker, because the result of each step is in the journal before the
next step begins. Each body also writes a row into ``pyengine_demo.effects``, outside every transaction of the
engine, so that this table tells how often bodies ran, independently of the journal.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pyengine import App, ctx
from pyengine.core.process import clock
from pyengine.core.servers import libpq_url

app = App()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that is not as RECORD says; `kind`: mismatch, missing or unreadable."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on some files: how many, their bytes, and those that are not as they should be."""

    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __add__(self, other: Verdict) -> Verdict:
        """Return the verdict on the files of both."""
        return Verdict(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            problems=self.problems + other.problems,
        )


@app.workflow
async def audit(places: list[str], batch: int, pause_ms: int) -> Verdict:
    """Verify every package that is installed in some folders, each in a run of its own."""
    found = await list_packages(places)
    runs = [ctx.start(audit_package, package, batch, pause_ms) for package in found]
    return sum(await ctx.gather(*runs), Verdict())


@app.workflow
async def audit_package(package: str, batch: int, pause_ms: int) -> Verdict:
    """Verify one package, some files in each step."""
    total = Verdict()
    for first in range(0, await count_files(package), batch):
        total += await verify_files(package, first, batch, pause_ms)
    return total


@app.step
def list_packages(places: list[str]) -> list[str]:
    """Return the ``*.dist-info`` folders in some folders."""
    found = packages(places)
    record_effect()
    return found


@app.step
def count_files(package: str) -> int:
    """Return how many files RECORD knows by a hash."""
    count = len(hashed_lines(package))
    record_effect()
    return count


@app.step
def verify_files(package: str, first: int, batch: int, pause_ms: int) -> Verdict:
    """Read some files, and compare each with its line of RECORD."""
    clock.pause(pause_ms / 1000)
    lines = hashed_lines(package)[first : first + batch]
    verdict = sum((verify_file(Path(package).parent / path, known) for path, known in lines), Verdict())
    record_effect()
    return verdict


def packages(places: list[str]) -> list[str]:
    """Return the ``*.dist-info`` folders in some folders that have a RECORD."""
    return sorted(str(record.parent) for place in places for record in Path(place).glob("*.dist-info/RECORD"))


def record_effect() -> None:
    """Tell the world that this body has run to its end."""
    url = libpq_url(os.environ["PYENGINE_DATABASE_URL"])
    with psycopg.connect(url, autocommit=True, prepare_threshold=None, client_encoding="utf8") as conn:
        conn.execute(
            "insert into pyengine_demo.effects (run_id, child, process) values (%s, %s, %s)",
            (ctx.step.run_id, ctx.step.child, os.getpid()),
        )


def hashed_lines(package: str) -> list[tuple[str, str]]:
    """Return path and hash of the files in RECORD; its own line, for one, has no hash."""
    text = Path(package, "RECORD").read_text(encoding="utf-8", errors="backslashreplace")
    return [(line[0], line[1]) for line in csv.reader(text.splitlines()) if len(line) == 3 and line[1]]


def verify_file(path: Path, known: str) -> Verdict:
    """Compare one file with the hash that RECORD knows, as ``sha256=...``."""
    name = str(path).encode("utf-8", "backslashreplace").decode()
    algorithm, _, digest = known.partition("=")
    # a RECORD may name anything; a pipe or a device is never read
    if not path.is_file():
        return Verdict(files=1, problems=[Problem(kind="missing", path=name)])
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).digest()
            size = file.tell()
    except (OSError, ValueError, TypeError):  # not ours to read; an algorithm that is unknown, or has no end
        return Verdict(files=1, problems=[Problem(kind="unreadable", path=name)])
    if base64.urlsafe_b64encode(found).decode().rstrip("=") == digest:
        return Verdict(files=1, bytes=size)
    return Verdict(files=1, bytes=size, problems=[Problem(kind="mismatch", path=name)])


def _stop_with_the_parent() -> None:
    """End in an orderly way when the process that started this one is gone: standard input ends then."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    # few runs and steps at a time, so that both workers have some
    app.serve(queues=[sys.argv[1]], concurrency=4, threads=4)
