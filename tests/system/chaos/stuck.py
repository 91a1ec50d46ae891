"""What to look at when runs do not end: what is left of them, who holds locks, what the workers said.

Reads only; asserts nothing, and goes on when a question cannot be answered.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psycopg

LEFT = "not in ('completed', 'failed', 'cancelled', 'timed_out')"
QUESTIONS = {
    "runs that did not end": f"""
        select id, state, worker, crashes, problem, waits_for, events from durable.runs
        where state {LEFT} order by id limit 20""",
    "tasks": """
        select id, state, version, pid, crashes, expires_at - clock_timestamp() as lease,
               retry_at - clock_timestamp() as retry
        from durable.tasks where state <> 'fulfilled' order by id limit 20""",
    "ends of journals": f"""
        select e.id, string_agg(concat_ws(' ', e.seq, e.event, e.name, e.promise_id), ', ' order by e.seq)
        from durable.runs r
        join durable.journal_events e on e.execution = r.execution and e.seq >= r.events - 5
        where r.state {LEFT} group by e.id order by e.id limit 20""",
    "sessions": """
        select a.pid, a.application_name, a.state, a.wait_event_type, a.wait_event,
               clock_timestamp() - a.xact_start as open, clock_timestamp() - a.state_change as since,
               pg_blocking_pids(a.pid) as blocked_by, left(a.query, 100) as query,
               (select string_agg(distinct concat_ws(' ', l.locktype, l.relation::regclass, l.mode,
                                                     case when not l.granted then 'awaited' end), ', ')
                from pg_locks l where l.pid = a.pid and l.mode <> 'AccessShareLock') as locks
        from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid() and a.state <> 'idle'
        order by a.pid""",
}
LOG_TAIL = 8_000


def told(dsn: str, processes: Sequence[subprocess.Popen[bytes]], log: IO[bytes]) -> str:
    """Return what is left to do, who is at it, and the end of what workers wrote.

    Args:
        dsn: the database.
        processes: the workers.
        log: the file that all of them write to.
    """
    parts = []
    with psycopg.connect(dsn, autocommit=True, options="-c statement_timeout=10s") as conn:
        for heading, question in QUESTIONS.items():
            try:
                rows = conn.execute(question.encode()).fetchall()
            except psycopg.Error as error:
                rows = [(str(error),)]
            parts += [f"{heading}:", *(f"  {row}" for row in rows)]
    parts += ["workers:", *(f"  {process.pid} {_life(process)}" for process in processes)]
    size = log.seek(0, 2)
    log.seek(max(0, size - LOG_TAIL))
    parts += [f"end of the {size} bytes that workers wrote:", log.read().decode(errors="replace")]
    return "\n".join(parts)


def _life(process: subprocess.Popen[bytes]) -> str:
    """Whether a process has ended, and else what the kernel calls it: T is frozen."""
    if process.poll() is not None:
        return f"ended with {process.returncode}"
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "alive"
