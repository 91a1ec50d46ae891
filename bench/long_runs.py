"""Long runs: does a resume cost more the longer its run is, and how fast is a journal replayed:
python -m bench.long_runs [--quick] [--dsn URL] [--out FILE]

What a warm resume costs is read from the journal itself: from each ExecutionResumed to the next
ExecutionAwaiting, with the same number of steps between. A cold replay is timed without a database, on the
rows that the run left.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

import msgspec
import psycopg

from bench.probe import commits_per_s
from bench.run import Line, fresh_database, report, server, worker
from pyengine.codec import Codec
from pyengine.model import Row, RunInfo
from pyengine.replay import Replay
from pyengine.retry import Randomness

EVERY = 10
_ROWS = (
    "select durable._rows(h.execution, h.bucket, h.id, 0, h.next_seq)::text, p.param_data "
    "from durable._executions h join durable._promises p on p.id = h.id where h.id = %s"
)
_SEGMENTS = (
    "select t from (select lead(j.ts) over w - j.ts as t, j.type, j.seq from durable._journal j "
    "join durable._executions h on h.execution = j.execution where h.id = %s and j.type in ('W', 'A') "
    "window w as (order by j.seq)) s where s.type = 'W' and s.t is not null order by s.seq"
)


def run_one(dsn: str, steps: int) -> str:
    """Have a worker take one long run to its end; return its id."""
    name = f"long-{steps}"
    with psycopg.connect(dsn, autocommit=True) as conn, worker(dsn, "bench.workloads.long:app"):
        conn.execute(
            "select durable.start('long_run', jsonb_build_array(%s::integer, %s::integer), id => %s, "
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


def replay_rate(dsn: str, run: str, steps: int, rounds: int) -> float:
    """Steps a second of a cold replay, the median of some rounds."""
    from bench.workloads.long import long_run

    with psycopg.connect(dsn) as conn:
        found = conn.execute(_ROWS, (run,)).fetchone()
    assert found is not None
    rows = msgspec.json.decode(found[0], type=list[Row])
    rates = []
    for _ in range(rounds):
        begin = time.perf_counter()
        info = RunInfo(id=run, execution=1, version=1, workflow="long_run", param=found[1])
        randomness: Randomness = random.Random(1)
        replay = Replay(long_run.definition, info, lambda: 0, randomness, Codec())
        replay.load(rows)
        replay.advance()
        assert replay.finished
        rates.append(steps / (time.perf_counter() - begin))
    return statistics.median(rates)


def measure(dsn: str, steps: int) -> list[Line]:
    """All figures of one length."""
    probe = commits_per_s(dsn)
    run = run_one(dsn, steps)
    first, last = resumes(dsn, run)
    rate = replay_rate(dsn, run, steps, 5)
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


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--dsn", help="a server that lets us make databases; an embedded one by default")
    parser.add_argument("--out", type=Path, help="file to write the Markdown to")
    options = parser.parse_args()
    lines: list[Line] = []
    with server(options.dsn) as dsn:
        for steps in (100, 1_000) if options.quick else (100, 1_000, 10_000):
            lines += measure(fresh_database(dsn, "long"), steps)
            print("  ".join(" | ".join(line) for line in lines[-2:]), flush=True)
        text = report(dsn, lines, "python -m bench.long_runs" + (" --quick" if options.quick else ""))
    if options.out is not None:
        options.out.write_text(text.replace("# First figures", "# Long runs"), encoding="utf-8")


if __name__ == "__main__":
    main()
