"""The budgets of the architecture, as limits on medians of one run of the bench. A limit is on a figure of
ours: by itself, against the same figure of a peer, or against another figure of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.record import Results


@dataclass(frozen=True, slots=True)
class Limit:
    """One figure and its bound.

    Args:
        what: the title of the row.
        sign: the required side of the bound.
        bound: of the quotient, or of the figure itself if it stands alone.
        peer: the peer whose figure is the divisor.
        of: the other figure of ours that is the divisor.
    """

    what: str
    sign: Literal[">=", "<="]
    bound: float
    peer: str | None = None
    of: str | None = None

    def measured(self, results: Results) -> float | None:
        """The figure or quotient to compare with the bound, or None if a part of it was not measured."""
        ours = results.median(self.what)
        if ours is None:
            return None
        if self.peer is None and self.of is None:
            return ours.value
        other = results.median(self.what, self.peer) if self.peer else results.median(self.of or "")
        return ours.value / other.value if other and other.value else None

    def met(self, measured: float) -> bool:
        """Whether the figure is on the required side of the bound."""
        return measured >= self.bound if self.sign == ">=" else measured <= self.bound

    def text(self) -> str:
        """The limit as text."""
        against = f" x {self.peer}" if self.peer else f" x {self.of}" if self.of else ""
        return f"{self.sign} {self.bound:,g}{against}"


NOOP = "no-op runs/s"
STEPS = "steps/s, runs of 10"
P50, P99 = "start to result, idle, p50", "start to result, idle, p99"
BUDGETS: list[tuple[str, list[Limit]]] = [
    ("no-op runs a second from a backlog", [Limit(NOOP, ">=", 1, "pgqueuer")]),
    (
        "steps a second, runs of 10",
        [
            Limit(STEPS, ">=", 60, "dbos"),
            Limit(STEPS, ">=", 25, "absurd"),
            Limit(STEPS, ">=", 15, "resonate_pg"),
            Limit(STEPS, ">=", 6, "restate"),
        ],
    ),
    (
        "start to result, idle",
        [
            Limit(P50, "<=", 0.7, "restate"),
            Limit(P99, "<=", 0.7, "restate"),
            Limit(P50, "<=", 0.5, "absurd"),
            Limit(P50, "<=", 0.25, "dbos"),
        ],
    ),
    (
        "start to result, idle, runs of steps",
        [
            Limit("start to result, idle, 1 step, p50", "<=", 0.7, "restate"),
            Limit("start to result, idle, 3 steps, p50", "<=", 0.7, "restate"),
        ],
    ),
    ("fan-out and fan-in of 200", [Limit("fan-out and fan-in of 200", "<=", 0.5, "restate")]),
    ("signal to result", [Limit("signal to result, p50", "<=", 1, "restate")]),
    (
        "a run of 5,000 steps",
        [Limit("last tenth to first, long run", "<=", 1.2), Limit("cold replay, steps/s", ">=", 100_000)],
    ),
    ("800 suspends, two workers", [Limit("last tenth to first, naps, 2 workers", "<=", 1.2)]),
    (
        "a run of 10 steps leaves",
        [
            Limit("bytes left, run of 10 steps", "<=", 1, "absurd"),
            Limit("WAL, run of 10 steps", "<=", 1, "dbos"),
        ],
    ),
    (
        "a million finished runs in the tables",
        [
            Limit("time of a no-op, full to empty", "<=", 1.3),
            Limit("time of a start, full to empty", "<=", 1.3),
        ],
    ),
    (
        "reads beside a million finished runs",
        [
            *(
                Limit(f"read: {what}", "<=", 50)
                for what in (
                    "pyengine ps",
                    "newest five",
                    "failed, 20",
                    "failed in the last hour",
                    "running, queued or waiting, none there",
                    "not settled, none there",
                    "run by id",
                    "promise by id",
                    "pending promises, 10",
                    "promise_search, pending, none there",
                )
            ),
            Limit("read: check(since => '1 hour')", "<=", 2000),
        ],
    ),
    ("kill -9 with 100 runs", [Limit("killed worker: all 100 runs done", "<=", 3)]),
    (
        "a run that a user's transaction held for longer than its lease",
        [Limit("held run goes on after the commit, longest", "<=", 1000)],
    ),
    (
        "an upgrade in which every function changes",
        [
            Limit("latest start, during the upgrade", "<=", 200),
            Limit("latest run, during the upgrade", "<=", 200),
        ],
    ),
    ("a worker idle for a minute", [Limit("idle worker, queries/s", "<=", 1)]),
    (
        "16 SQL clients, hints on, 40 listeners",
        [
            Limit(
                "starts/s, 16 SQL clients, hints on, 40 listeners",
                ">=",
                0.7,
                of="the four rows of a start by one statement/s, 16 clients",
            ),
            # at full speed it is the length of a queue: decisions/0087
            Limit("start to claim, 16 clients at half of full speed, p99", "<=", 100),
        ],
    ),
    (
        "starts from Python",
        [
            Limit("starts/s, 16 callers of one client", ">=", 1, peer)
            for peer in ("dbos", "resonate_pg", "restate")
        ],
    ),
]


def table(results: Results) -> list[tuple[str, str, float | None, bool | None]]:
    """Work, target, measured figure, and whether the target is met; None where nothing was measured."""
    rows: list[tuple[str, str, float | None, bool | None]] = []
    for work, limits in BUDGETS:
        for limit in limits:
            measured = limit.measured(results)
            met = None if measured is None else limit.met(measured)
            rows.append((f"{work}: {limit.what}", limit.text(), measured, met))
    return rows
