"""``pyengine demo``: starts the audit and two workers, kills one of them twice, and returns the outcome.

Lives here: the orchestration. May not: print a result (``cli/demo_report.py``), SQL (``effects.py``,
``admin/queries.py``).

Design: everything is observed through the database alone. A worker is killed only while it has leased runs;
a query afterwards finds those that it had not finished at that moment.
"""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from pyengine import clock
from pyengine.admin import queries, queries_runs
from pyengine.demo import effects
from pyengine.demo.crew import Crew, Member
from pyengine.errors import EngineError

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from pyengine.demo.job import Job

__all__ = ["Kill", "Outcome", "Screen", "drive", "settle_id"]

KILL_AT = (0.25, 0.6)
"""The parts of the remaining work after which a worker is killed."""
KILLS_TRIED = 5
POLL_S = 0.01
CHECK_HALTED_S = 2.0


class Database(Protocol):
    """An open database: an autocommit connection, and the URL by which workers find it."""

    @property
    def conn(self) -> Connection[TupleRow]: ...

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One worker that was killed.

    Args:
        worker: its label.
        pid: its process id.
        at: the instant after its death, by the database's clock.
        held: runs that it had leased when it died.
        part: the finished part of the audit, 0 to 1.
        successor: label of the worker that was started in its place.
    """

    worker: str
    pid: int
    at: datetime
    held: list[str]
    part: float
    successor: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of an audit."""

    run_id: str
    found_finished: bool
    state: str
    value: Any
    error: Any
    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0


class Screen(Protocol):
    """Shows the progress."""

    def begin(self, run_id: str) -> None:
        """Show that the work begins."""

    def print(self, text: str) -> None:
        """Show an event."""

    def progress(self, done: effects.Progress, *, waiting: bool) -> None:
        """Show the progress; `waiting`: for the leases of a killed worker to expire."""


def settle_id(conn: Connection[TupleRow], job: Job, *, fresh: bool) -> str:
    """Return the run id: the newest one of this audit, or a new one.

    Args:
        conn: the database.
        job: the audit.
        fresh: always return a new id.
    """
    known = queries_runs.ids_like(conn, job.id)
    numbers = [int(match[1] or 1) for id in known if (match := re.fullmatch(rf"{job.id}(?:-(\d+))?", id))]
    newest = max(numbers, default=1) + (1 if fresh and numbers else 0)
    return job.id if newest == 1 else f"{job.id}-{newest}"


def drive(db: Database, job: Job, run_id: str, screen: Screen) -> Outcome:
    """Run an audit to its end, and replace workers that die.

    Raises:
        EngineError: it was halted, or no worker stays alive.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the workers are stopped, the run can be continued.
    """
    began = clock.monotonic()
    outcome = _outcome(db.conn, run_id)
    if outcome is not None:
        outcome.found_finished = True
        return outcome
    screen.begin(run_id)
    queue = f"demo-{run_id}"
    queries.start(
        db.conn, workflow="audit_environment", args=job.args, id=run_id, key=None, queue=queue, version="1"
    )
    kills: list[Kill] = []
    with tempfile.NamedTemporaryFile(prefix="pyengine-demo-", suffix=".log") as log, _sigterm_is_ctrl_c():
        crew = Crew(db.url, queue, log)
        try:
            outcome = _watch(db.conn, job, run_id, _Stage(crew=crew, screen=screen, kills=kills))
        finally:
            crew.stop()
    outcome.kills = kills
    outcome.seconds = clock.monotonic() - began
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    crew: Crew
    screen: Screen
    kills: list[Kill]


def _watch(conn: Connection[TupleRow], job: Job, run_id: str, stage: _Stage) -> Outcome:
    for _ in range(2):
        stage.crew.start()
    first = effects.progress(conn, run_id).steps
    kill_at = [first + part * max(job.steps - first, 1) for part in KILL_AT]
    last, moved_at, checked_at = -1, clock.monotonic(), clock.monotonic()
    while (outcome := _outcome(conn, run_id)) is None:
        done, now = effects.progress(conn, run_id), clock.monotonic()
        if done.steps != last:
            last, moved_at = done.steps, now
        stage.screen.progress(done, waiting=bool(stage.kills) and now - moved_at > 0.4)
        effective = sum(bool(kill.held) for kill in stage.kills)
        if (
            effective < len(kill_at)
            and kill_at[effective] <= done.steps < job.steps
            and len(stage.kills) < KILLS_TRIED
        ):
            _kill_one(conn, run_id, stage, min(done.steps / job.steps, 1.0))
        for member in stage.crew.replace_the_lost():
            stage.screen.print(
                f"{member.label} (process {member.pid}) ended by itself; another one is started"
            )
        if now - checked_at > CHECK_HALTED_S:
            checked_at = now
            _refuse_halted(conn, run_id)
        clock.pause(POLL_S)
    stage.screen.progress(effects.progress(conn, run_id), waiting=False)
    return outcome


def _outcome(conn: Connection[TupleRow], run_id: str) -> Outcome | None:
    """Return the outcome of a run that has ended, else None."""
    run = queries.run(conn, run_id)
    if run is None or run.settled_at is None:
        return None
    return Outcome(run_id=run_id, found_finished=False, state=run.state, value=run.result, error=run.error)


def _kill_one(conn: Connection[TupleRow], run_id: str, stage: _Stage, part: float) -> None:
    """Kill the worker with most leased runs, if there are any, and start another one."""
    leased = effects.leased_runs(conn, run_id)
    victims = [member for member in stage.crew.members if leased.get(member.pid)]
    if not victims:
        return
    victim: Member = max(victims, key=lambda member: len(leased[member.pid]))
    stage.crew.kill(victim)
    # runs that it finished between the query and the kill do not count
    left = effects.leased_runs(conn, run_id).get(victim.pid, [])
    successor = stage.crew.start()
    stage.kills.append(
        Kill(
            worker=victim.label,
            pid=victim.pid,
            at=effects.now(conn),
            held=left,
            part=part,
            successor=successor.label,
        )
    )
    runs = f"{len(left)} unfinished run{'s' if len(left) != 1 else ''}" if left else "nothing any more"
    stage.screen.print(
        f"kill -9: {victim.label} (process {victim.pid}) at {part:.0%} of the work, holding {runs}; "
        f"{successor.label} started"
    )


def _refuse_halted(conn: Connection[TupleRow], run_id: str) -> None:
    for run in (queries.run(conn, run_id), *queries.family(conn, run_id)):
        if run is not None and run.state == "halted":
            problem = run.problem.get("message", "") if isinstance(run.problem, dict) else run.problem
            raise EngineError(f"run {run.id} is halted: {problem}", hint=f"pyengine show {run.id}")


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
