"""``pyengine demo``: starts the audit and two workers, kills a worker twice, and tells the outcome.

Lives here: processes, and the questions to the database. May not: print (``cli/demo.py``).
Design: everything is observed through the database alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pyengine.core.process import clock
from pyengine.doors.admin import queries, queries_check, queries_runs
from pyengine.doors.demo import audit
from pyengine.errors import EngineError, NotFound

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

KILL_AT = (0.25, 0.6)
"""The parts of the work after which a worker is killed."""
QUERIES = (
    "select id, state, age, result from durable.runs",
    "select * from pyengine_demo.effects order by at",
)
"""Queries to look around with."""
POLL_S = 0.05
STOP_S = 8.0
BATCHES_WANTED = 100
LENGTH_WANTED_MS = 2000
"""A short audit waits in its steps, so that there is a middle to kill a worker in."""

_INSTALL = """
create schema if not exists pyengine_demo;
comment on schema pyengine_demo is 'Written by the steps of pyengine demo while they ran; may be dropped.';
create table if not exists pyengine_demo.effects (
  run_id text collate "C" not null,
  child integer not null,
  process integer not null,
  at timestamptz not null default clock_timestamp()
);
comment on table pyengine_demo.effects is
  'One row for each body of a step that ran to its end, written on a connection of its own.';
"""
_HALTED = """
select id, problem ->> 'message' from durable.runs
where state = 'halted' and (id = %(root)s or starts_with(id, %(root)s || '.')) limit 1"""
_OF_AUDIT = "(run_id = %(root)s or starts_with(run_id, %(root)s || '.'))"
# the journal has milliseconds
_REPEATED = f"""
select count(*) filter (where date_trunc('milliseconds', e.at) > r.at), count(*) from pyengine_demo.effects e
left join (select id, child, min(at) as at from durable.journal_events
           where event = 'InvokeCompleted' and (id = %(root)s or starts_with(id, %(root)s || '.'))
           group by id, child) r on r.id = e.run_id and r.child = e.child
where {_OF_AUDIT}"""
_INTERRUPTED = """
select promise_id from durable.journal_events
where id = %s and event = 'InvokeRetrying' and (payload ->> 'interrupted')::boolean order by seq"""
_BODIES = f"select count(distinct (run_id, child)) from pyengine_demo.effects where {_OF_AUDIT}"
_BUSIEST = """
select (w.about ->> 'process')::integer from durable.workers w
where %s = any (w.queues) and w.leased > 0 and (w.about ->> 'process')::integer = any (%s)
order by w.leased desc limit 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One audit: folders, packages found there, files in a step, its pause, and bodies that will run."""

    places: list[str]
    packages: int
    batch: int
    pause_ms: int
    bodies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an audit.

    Args:
        run: the run, as it ended.
        killed: the processes that were killed.
        interrupted: the runs that a killed worker had begun, and another one has ended.
        bodies: how often bodies of steps ran to their end.
        repeated: how many of them ran after their result was in the journal.
        broken_laws: rows of ``durable.check()``.
    """

    run: queries.Run
    killed: list[int]
    interrupted: list[str]
    bodies: int
    repeated: int
    broken_laws: list[dict[str, Any]]


def prepare(path: Path | None) -> Job:
    """Describe the audit of a folder, or of the running environment.

    Raises:
        NotFound: there is nothing to audit.
    """
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} if path is None else {path}
    places = sorted(os.path.abspath(place) for place in paths)
    found = audit.packages(places)
    if not found:
        raise NotFound(f"there is nothing to audit in {', '.join(places)}: no *.dist-info/RECORD")
    sizes = [len(audit.hashed_lines(package)) for package in found]
    batch = max(sum(sizes) // BATCHES_WANTED, 1)
    batches = sum(-(-size // batch) for size in sizes)
    pause_ms = 0 if batches >= BATCHES_WANTED else min(LENGTH_WANTED_MS * 8 // max(batches, 1), 400)
    bodies = 1 + len(found) + batches
    return Job(places=places, packages=len(found), batch=batch, pause_ms=pause_ms, bodies=bodies)


def install(conn: Connection[TupleRow]) -> None:
    """Create the table of effects, if it does not exist."""
    with conn.transaction():
        conn.execute("set local client_min_messages = warning")
        conn.execute("select pg_advisory_xact_lock(1685417599)")
        conn.execute(_INSTALL)


def start(conn: Connection[TupleRow], job: Job) -> str:
    """Start the audit of these folders, or find the one that was not ended; return its id."""
    name = "demo-" + hashlib.sha256(repr(job.places).encode()).hexdigest()[:8]
    known = sorted(queries_runs.ids_like(conn, f"{name}-"), key=lambda id: int(id.rpartition("-")[2]))
    if known and (last := queries.run(conn, known[-1])) is not None and last.settled_at is None:
        return last.id
    id, args = f"{name}-{len(known) + 1}", json.dumps([job.places, job.batch, job.pause_ms])
    return queries.start(conn, workflow="audit", args=args, id=id, key=None, queue=id, version="1")


def drive(
    conn: Connection[TupleRow],
    url: str,
    job: Job,
    root: str,
    report: Callable[[int, str], object],
) -> Outcome:
    """Run an audit to its end with two workers, two of which are killed and replaced.

    Args:
        conn: the database.
        url: its URL, for the workers; passed in the environment, where other users cannot read it.
        job: the audit.
        root: its run.
        report: is called with the bodies of steps that have run, each counted once, and a sentence about what
            happened, or an empty one.

    Raises:
        EngineError: a run was halted, or a worker ended by itself.
        KeyboardInterrupt: Ctrl-C; the workers are stopped, the run can be continued.
    """
    killed: list[int] = []
    with tempfile.TemporaryFile(prefix="pyengine-demo-") as log, _workers(url, root, log) as workers:
        for _ in range(2):
            workers.add()
        while (run := queries.run(conn, root)) is None or run.settled_at is None:
            done = _scalar(conn, _BODIES, {"root": root})
            report(done, "")
            if len(killed) < len(KILL_AT) and KILL_AT[len(killed)] * job.bodies <= done < job.bodies:
                victim = _scalar(conn, _BUSIEST, (root, [one.pid for one in workers.processes]))
                if victim is not None:
                    workers.kill(victim)
                    killed.append(victim)
                    part = f"{done / job.bodies:.0%} of the work"
                    report(done, f"kill -9: worker {victim}, at {part}; one more starts")
                    workers.add()
            workers.refuse_lost()
            _refuse_halted(conn, root)
            clock.pause(POLL_S)
    report(job.bodies, "")
    repeated, bodies = conn.execute(_REPEATED, {"root": root}).fetchone() or (0, 0)
    return Outcome(
        run=run,
        killed=killed,
        interrupted=[str(id) for (id,) in conn.execute(_INTERRUPTED, (root,)).fetchall()],
        bodies=bodies,
        repeated=repeated,
        broken_laws=queries_check.broken_laws(conn),
    )


class _Workers:
    """The worker processes; each in a session of its own, so that Ctrl-C reaches only the command."""

    def __init__(self, url: str, queue: str, log: IO[bytes]) -> None:
        self._environment = os.environ | {"PYENGINE_DATABASE_URL": url}
        self._queue = queue
        self._log = log
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        """Start one more."""
        folder = Path(__file__).resolve().parents[3]
        command = [sys.executable, "-m", "pyengine.doors.demo.audit", self._queue]
        self.processes.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        )

    def kill(self, pid: int) -> None:
        """Kill one like ``kill -9``, and wait for its end."""
        (process,) = (one for one in self.processes if one.pid == pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.processes.remove(process)

    def refuse_lost(self) -> None:
        """Raise an EngineError if one has ended by itself."""
        for process in self.processes:
            if process.poll() is not None:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip().splitlines()
                raise EngineError(
                    f"worker {process.pid} ended by itself with exit code {process.returncode}",
                    detail=" | ".join(said[-6:]),
                    hint="pyengine db status",
                )

    def stop(self) -> None:
        """Stop all in an orderly way; kill those that do not stop."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@contextmanager
def _workers(url: str, queue: str, log: IO[bytes]) -> Iterator[_Workers]:
    workers = _Workers(url, queue, log)
    try:
        yield workers
    finally:
        workers.stop()


def _refuse_halted(conn: Connection[TupleRow], root: str) -> None:
    found = conn.execute(_HALTED, {"root": root}).fetchone()
    if found is not None:
        raise EngineError(f"run {found[0]} is halted: {found[1]}", hint=f"pyengine show {found[0]}")


def _scalar(conn: Connection[TupleRow], query: str, values: Any) -> Any:
    row = conn.execute(query, values).fetchone()
    return None if row is None else row[0]
