"""The cost of the calls of a worker and of a client for the server: python -m bench.turns [--rounds N] [--out
FILE]

One session makes the calls one after the other, so nothing waits and nothing is shared. The cost is the time
that its backend was on a processor, as Linux counts it, which other work on the machine stretches less than a
clock; medians over the rounds. A turn is measured with one run and with 200 in it: the first is what an idle
system pays, the second what a step or a run costs under load.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from bench import server
from pyengine.doors.admin import migrate

Row = dict[str, Any]
MANY = 200
HELLO = "select durable.worker_hello_v1('w', '{default}', '{noop}', '{1}', null, '{ab}')"
TURN = "select durable.worker_turn_v1('w', '{default}', '{4:noop1}', '{ab}', %s, %s::jsonb, 15000)"
START = "select durable.start('noop', '[1]', any_workflow => true)"
START_MANY = (
    "select count(*) from durable.start_many('noop', array_fill('[1]'::jsonb, array[%s::integer]), "
    "any_workflow => true)"
)
OUTCOME = {"child": 0, "name": "tick", "hash": "0011223344556677", "attempt": 1, "value": '{"number": 1}'}
END = {"do": "complete", "value": "1"}


class Backend:
    """A session, and what its calls cost."""

    def __init__(self, conn: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._conn = conn
        self._path = Path(f"/proc/{conn.info.backend_pid}/schedstat")
        self.spent_us: dict[str, list[float]] = defaultdict(list)

    def call(self, what: str, statement: str, *args: object, share: int = 1) -> Any:
        """Make a call; record its cost for each of its runs; return its answer."""
        before = self._spent_ns()
        row = self._conn.execute(statement.encode(), args, prepare=True).fetchone()
        self.spent_us[what].append((self._spent_ns() - before) / 1000 / share)
        return row[0] if row else None

    def _spent_ns(self) -> int:
        return int(self._path.read_text().split()[0])


def turns(backend: Backend, runs: int) -> None:
    """Claim some runs, report a step of each, and complete them."""

    def turn(what: str, want: int, reports: list[Row]) -> Row:
        name = f"turn, {runs} runs: {what}"
        answer: Row = backend.call(name, TURN, want, json.dumps(reports), share=runs)
        assert not reports or set(answer["verdicts"]["verdict"]) == {"ok"}, answer
        return answer

    held = [
        {"execution": execution, "id": id, "version": version, "seen": seen}
        for execution, id, version, _, _, _, _, seen, *_ in turn("claim", runs, [])["tasks"]
    ]
    assert len(held) == runs
    answer = turn("a step", 0, [{**one, "outcomes": [OUTCOME]} for one in held])["verdicts"]
    after = dict(zip(answer["execution"], answer["next"], strict=True))
    turn("completion", 0, [{**one, "seen": after[one["execution"]], "end": END} for one in held])


def measure(dsn: str, rounds: int) -> dict[str, float]:
    """Medians in microseconds of backend time, by call."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        backend = Backend(conn)
        conn.execute(HELLO)
        for warm in (True, False):
            for _ in range(5 if warm else rounds):
                backend.call("durable.start", START)
                backend.call("durable.start_many, each of 200", START_MANY, MANY, share=MANY)
                turns(backend, MANY)
                turns(backend, 1)
            if warm:
                backend.spent_us.clear()
                conn.execute("vacuum analyze")
        broken = conn.execute("select * from durable.check()").fetchall()
    assert not broken, broken
    return {what: statistics.median(spent) for what, spent in backend.spent_us.items()}


def report(dsn: str, medians: dict[str, float]) -> str:
    """The medians as Markdown."""
    rows = "\n".join(f"| {what} | {spent:,.0f} |" for what, spent in medians.items())
    return (
        f"# What calls cost the server\n\nCommit {server.commit()[:12]}; {_told(server.machine())}; "
        f"PostgreSQL {_told(server.settings(dsn))}.\nRepeat with `python -m bench.turns`.\n\n"
        f"| call | microseconds of backend time, median, for each run |\n|---|---:|\n{rows}\n"
    )


def _told(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, help="file to write the Markdown to")
    options = parser.parse_args()
    with server.server(None) as dsn:
        url = server.create(dsn, "bench_turns")
        migrate.install(url)
        text = report(url, measure(url, options.rounds))
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
