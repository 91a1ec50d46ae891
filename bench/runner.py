"""The order of measurements: round by round, workload by workload, the systems in turns, each in a database
of its own and in a process of its own, which ends with everything it started when its time is over.

Theory: what drifts (a neighbour, a disk, a CPU's heat) must meet every system alike, so the systems of one
workload follow each other at once and begin with another one in each round; a probe of the server stands
beside each figure.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psycopg

from bench import server
from bench.probe import commits_per_s
from bench.record import Fault, Figure, Measure
from bench.systems import System, system
from bench.workloads import Site, needs, workload

# Where a process can be forked, the child has all modules already; nothing in this process has threads.
_START = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
_CHECK_MS = 600_000  # of a million runs it takes minutes
_WHY = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One system's turn at one workload."""

    system: str
    workload: str
    round: int
    quick: bool
    dsn: str


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a turn."""

    turn: Turn
    figures: list[Figure]
    faults: list[Fault]
    seconds: float


def turns(
    dsn: str, systems: Sequence[System], workloads: Sequence[str], rounds: int, quick: bool
) -> Iterator[Turn]:
    """All turns, in their order."""
    for number in range(rounds):
        for name in workloads:
            able = [one.name for one in systems if needs(name) in one.abilities]
            first = number % len(able) if able else 0
            for who in able[first:] + able[:first]:
                yield Turn(system=who, workload=name, round=number + 1, quick=quick, dsn=dsn)


def take(turn: Turn) -> Done:
    """Run one turn in a process of its own, and return even if it fails."""
    begin = time.monotonic()
    context: Any = multiprocessing.get_context(_START)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(turn, theirs))
    process.start()
    theirs.close()
    bound_s = workload(turn.workload).bound_s
    figures, faults = [], []
    try:
        for said in _said(ours, begin + bound_s):
            if isinstance(said, Figure):
                figures.append(said)
            else:
                faults.append(_fault(turn, str(said)))
        late = time.monotonic() > begin + bound_s
        if late:
            faults.append(_fault(turn, f"not done after {bound_s:.0f} s, ended"))
        _end(process, 0 if late else 5)
    except BaseException:
        _end(process, 0)
        raise
    if process.exitcode and not faults:
        faults.append(_fault(turn, f"its process ended with {process.exitcode}"))
    if not turn.quick:  # a drop waits for a checkpoint, and what is left is vacuumed beside the next turns
        server.drop(turn.dsn, _database(turn.system, turn.workload))
    return Done(turn, figures, faults, time.monotonic() - begin)


def _said(pipe: Connection, until: float) -> Iterator[object]:
    with suppress(EOFError):
        while pipe.poll(max(until - time.monotonic(), 0)):
            yield pipe.recv()


def _fault(turn: Turn, why: str) -> Fault:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", why)
    for place, name in ((str(server.ROOT), "."), (sys.prefix, "venv"), (sys.base_prefix, "python")):
        plain = plain.replace(place, name)  # a report may be published, so it has no local paths
    if len(plain) > _WHY:  # the error is at the beginning, the end of the worker's log is at the end
        plain = f"{plain[: _WHY // 2]} ... {plain[-_WHY // 2 :]}"
    return Fault(system=turn.system, workload=turn.workload, round=turn.round, why=plain)


def _end(process: multiprocessing.process.BaseProcess, patience_s: float) -> None:
    """The child and all that it started: it made a group of its own, which nobody else is in."""
    process.join(patience_s)
    assert process.pid is not None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _database(who: str, work: str) -> str:
    return f"bench_{who}_{work}"


def _child(turn: Turn, pipe: Connection) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _measure(turn, pipe)
    except Exception as error:  # the boundary of a turn: the next one runs, and the report has the error
        notes = " ".join(getattr(error, "__notes__", []))
        last = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send(
            f"{type(error).__name__} ({os.path.basename(last.filename)}:{last.lineno}): {error} {notes}"
        )
    finally:
        pipe.close()


def _measure(turn: Turn, pipe: Connection) -> None:
    who = system(turn.system)
    dsn = server.create(turn.dsn, _database(who.name, turn.workload), _template(turn.dsn, who))
    probe = commits_per_s(dsn, 0.3)
    site = Site(who, dsn, turn.quick)
    for measure in workload(turn.workload).run(site):
        pipe.send(_figure(turn, measure, probe))
    with psycopg.connect(dsn, autocommit=True, options=f"-c statement_timeout={_CHECK_MS}") as conn:
        try:
            for law in who.violations(conn):
                pipe.send(f"violated: {law}")
        except psycopg.errors.QueryCanceled:
            pipe.send(f"its own check of its tables took over {_CHECK_MS // 1000} s")


def _figure(turn: Turn, measure: Measure, probe: float) -> Figure:
    return Figure(
        system=turn.system,
        workload=turn.workload,
        round=turn.round,
        what=measure.what,
        value=measure.value,
        unit=measure.unit,
        better=measure.better,
        probe=probe,
    )


def _template(dsn: str, who: System) -> str:
    """A database with the system in it, made once: installing takes seconds, copying it does not."""
    name = f"bench_{who.name}_template"
    if not server.exists(dsn, name):
        made = server.create(dsn, f"{name}_new")
        who.install(made)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(f"alter database {name}_new rename to {name}".encode())
    return name


def clear(dsn: str, systems: Sequence[System], workloads: Sequence[str]) -> None:
    """Remove our databases from a server that is not ours."""
    for who in systems:
        for name in (*workloads, "template", "template_new"):
            server.drop(dsn, f"bench_{who.name}_{name}")
