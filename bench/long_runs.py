"""Long runs: does a resume cost more the longer its run is, and how fast is a journal replayed:
python -m bench.long_runs [--quick] [--dsn URL] [--out FILE]

The cost of a warm resume is read from the journal: from each ExecutionResumed to the next
ExecutionAwaiting, with the same number of steps between. A cold replay is timed without a database, on the
rows that the run left.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import psycopg

from bench import server
from bench.probe import commits_per_s
from bench.systems.pyengine import SYSTEM
from bench.workloads.replay import replays

Line = tuple[str, str, str]
EVERY = 10
_SEGMENTS = (
    "select t from (select lead(j.ts) over w - j.ts as t, j.type, j.seq from durable._journal j "
    "join durable._executions h on h.execution = j.execution where h.id = %s "
    "and j.type in ('execution_resumed', 'execution_awaiting') "
    "window w as (order by j.seq)) s where s.type = 'execution_resumed' and s.t is not null order by s.seq"
)


def run_one(dsn: str, steps: int) -> str:
    """Have a worker take one long run to its end; return its id."""
    name = f"long-{steps}"
    with psycopg.connect(dsn, autocommit=True) as conn, SYSTEM().workers(dsn):
        conn.execute(
            "select durable.start('napping', jsonb_build_array(%s::integer, %s::integer), id => %s, "
            "any_workflow => true)",
            (steps, EVERY, name),
        )
        while conn.execute("select state from durable.runs where id = %s", (name,)).fetchone() != (
            "completed",
        ):
            time.sleep(0.05)
    return name


def resumes(dsn: str, run: str) -> tuple[float, float]:
    """Mean milliseconds from a resume to the next wait, in the first and the last tenth of a run."""
    with psycopg.connect(dsn) as conn:
        spent = [float(row[0]) for row in conn.execute(_SEGMENTS, (run,))]
    tenth = max(1, len(spent) // 10)
    return statistics.fmean(spent[:tenth]), statistics.fmean(spent[-tenth:])


def measure(dsn: str, steps: int) -> list[Line]:
    """All figures of one length."""
    probe = commits_per_s(dsn)
    run = run_one(dsn, steps)
    first, last = resumes(dsn, run)
    rate = statistics.median(asyncio.run(replays(dsn, run, "napping", steps)))
    return [
        (
            f"warm resume and {EVERY} steps, run of {steps} steps",
            f"{first:.1f} ms in the first tenth, {last:.1f} ms in the last",
            f"last to first {last / first:.2f}",
        ),
        (
            f"cold replay of {steps} steps",
            f"{rate:,.0f} steps/s",
            f"{rate / probe:.0f} x probe ({probe:,.0f} commits/s)",
        ),
    ]


def report(lines: list[Line], about: dict[str, str], command: str) -> str:
    """The results as Markdown."""
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    return (
        f"# Long runs\n\nOne worker process, PostgreSQL {told}.\nRepeat with `{command}`.\n\n"
        f"| what | figure | against |\n|---|---:|---|\n{rows}\n"
    )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--dsn", help="a server that lets us make databases; an embedded one by default")
    parser.add_argument("--out", type=Path, help="file to write the Markdown to")
    options = parser.parse_args()
    lines: list[Line] = []
    with server.server(options.dsn) as dsn:
        about = server.settings(dsn)
        for steps in (100, 1_000) if options.quick else (100, 1_000, 10_000):
            made = server.create(dsn, "bench_long")
            SYSTEM().install(made)
            lines += measure(made, steps)
            print("  ".join(" | ".join(line) for line in lines[-2:]), flush=True)
        server.drop(dsn, "bench_long")
    if options.out is not None:
        text = report(lines, about, "python -m bench.long_runs" + (" --quick" if options.quick else ""))
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
