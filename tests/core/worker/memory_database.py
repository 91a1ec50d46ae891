"""A database of a page for tests of the worker's logic: journals, leases, and the verdicts on reports.

It knows as many row types and commands as the workflows of these tests use. It answers `stale` where a report
repeats a row, or has not seen a request of cancellation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pyengine.core.protocol.commands import (
    Cancelled,
    Captured,
    Command,
    Complete,
    Fail,
    Halt,
    Intend,
    MakePromise,
    Release,
    RolledBack,
    StartTimer,
    Suspend,
)
from pyengine.core.protocol.journal import ALLOCATING, RESOLVING, ROW_WIDTH, Row, RowType
from pyengine.core.protocol.turn import ClaimedRun, Journal, RunReport
from pyengine.core.replay.history import History, outcome_row
from pyengine.core.worker.events import ReportAnswered

LAST = (Complete, Fail, Halt, Cancelled)


@dataclass
class Stored:
    """One run.

    Attributes:
        state: pending, acquired, suspended, or how it ended.
        left_at: the logical number after its journal when a worker last left it with a coroutine kept.
        waits_for: children of a suspend.
        end: how it ended.
    """

    execution: int
    workflow: str
    rows: list[Row] = field(default_factory=lambda: [Row(0, RowType.EXECUTION_STARTED)])
    version: int = 0
    state: str = "pending"
    left_at: int = 0
    waits_for: frozenset[int] = frozenset()
    end: object = None

    @property
    def next(self) -> int:
        """The logical number after the journal."""
        return self.rows[-1].seq + ROW_WIDTH[self.rows[-1].type]

    @property
    def cancelling(self) -> bool:
        """Whether somebody has asked it to end."""
        return any(row.type == RowType.CANCEL_REQUESTED for row in self.rows)

    def numbers(self, types: frozenset[RowType]) -> set[int | None]:
        """Child numbers of rows of these types."""
        return {row.child for row in self.rows if row.type in types}

    def since(self, seq: int) -> list[Row]:
        """Rows from that number on."""
        return [row for row in self.rows if row.seq >= seq]

    def append(self, type: RowType, child: int | None = None, **more: object) -> None:
        """Append a row; what settles wakes a run that waits for it."""
        self.rows.append(Row(self.next, type, child, **more))  # type: ignore[arg-type]
        if self.state == "suspended" and (child in self.waits_for or type == RowType.CANCEL_REQUESTED):
            self.state = "pending"


class MemoryDatabase:
    """The runs, by execution."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.runs: dict[int, Stored] = {}

    def start(self, workflow: str) -> Stored:
        """Start a run."""
        stored = Stored(len(self.runs) + 1, workflow)
        self.runs[stored.execution] = stored
        return stored

    def claim(self, stored: Stored, *, warm: bool, whole: bool = True, rules: int = 1) -> ClaimedRun:
        """Lease a run: with its whole journal, with what a warm coroutine lacks, or without a journal."""
        stored.version += 1
        stored.state = "acquired"
        from_seq = stored.left_at if warm else (0 if whole else None)
        return ClaimedRun(
            stored.execution,
            f"r{stored.execution}",
            stored.version,
            stored.workflow,
            "1",
            "[]",
            from_seq,
            stored.next,
            [] if from_seq is None else stored.since(from_seq),
            0,
            self.now_ms,
            "default",
            rules=rules,
        )

    def journal(self, execution: int, version: int) -> Journal | None:
        """The whole journal of a run; None if the lease is lost."""
        stored = self.runs[execution]
        mine = stored.version == version and stored.state == "acquired"
        return Journal(stored.next, list(stored.rows)) if mine else None

    def settle(self, stored: Stored) -> None:
        """Fire every timer and resolve every promise of a run."""
        done = stored.numbers(RESOLVING)
        for row in tuple(stored.rows):
            if row.type == RowType.TIMER_SCHEDULED and row.child not in done:
                stored.append(RowType.TIMER_FIRED, row.child)
            elif row.type == RowType.PROMISE_REGISTERED and row.child not in done:
                stored.append(RowType.OPEN_CHILD_SETTLED, row.child, data="5", ok=True)

    def commit(self, execution: int, seen: int, row: Row) -> Journal | None:
        """Record a transaction, or a step in SQL; None if the journal holds what was not seen."""
        stored = self.runs[execution]
        if any(one.type == RowType.CANCEL_REQUESTED for one in stored.since(seen)):
            return None
        stored.append(row.type, row.child, attempt=1, name=row.name, hash=row.hash, data=row.data)
        return Journal(stored.next, stored.since(seen))

    def report(self, report: RunReport) -> ReportAnswered:
        """Record a report."""
        stored = self.runs[report.execution]
        if stored.version != report.version or stored.state != "acquired":
            return self._answer(report, "lost", [])
        before = stored.since(report.seen)
        unseen = any(row.type == RowType.CANCEL_REQUESTED for row in before)
        writes = report.outcomes or report.commands or isinstance(report.end, LAST)
        repeats = {one.child for one in report.outcomes if not one.begun} & stored.numbers(RESOLVING)
        repeats |= {one.child for one in report.commands} & stored.numbers(ALLOCATING)
        if repeats or (unseen and writes) or report.seen > stored.next:
            return self._answer(report, "stale", [])
        self._append(stored, report)
        end = report.end
        if isinstance(end, LAST):
            stored.end, stored.state = end, "halted" if isinstance(end, Halt) else "ended"
        elif isinstance(end, Release):
            stored.state, stored.left_at = "pending", stored.next
            return self._answer(report, "ok", before, state="released")
        elif isinstance(end, Suspend) and not (set(end.on) & stored.numbers(RESOLVING) or stored.cancelling):
            stored.append(RowType.EXECUTION_AWAITING, data=json.dumps({"on": end.on}))
            stored.state, stored.left_at, stored.waits_for = "suspended", stored.next, frozenset(end.on)
        return self._answer(report, "ok", before)

    def _answer(
        self, report: RunReport, verdict: str, before: list[Row], *, state: str = ""
    ) -> ReportAnswered:
        stored = self.runs[report.execution]
        return ReportAnswered(report, verdict, state or stored.state, stored.next, before, [], self.now_ms)

    def _append(self, stored: Stored, report: RunReport) -> None:
        for command in report.commands:
            self._append_command(stored, command)
        for outcome in report.outcomes:
            history = History()
            history.add(stored.rows, stored.next)
            stored.rows.append(outcome_row(outcome, stored.next, history))

    def _append_command(self, stored: Stored, command: Command) -> None:
        child = command.child
        match command:
            case StartTimer():
                data = {"duration": command.duration_ms, "fire_at": self.now_ms + command.duration_ms}
                stored.append(RowType.TIMER_SCHEDULED, child, data=json.dumps(data))
            case MakePromise():
                stored.append(RowType.PROMISE_REGISTERED, child, name=command.name)
            case Captured():
                kind = RowType.RANDOM_GENERATED if command.kind == "random" else RowType.TIME_RECORDED
                stored.append(kind, child, name=command.name, data=command.value)
            case Intend():
                text = f'{{"input": {command.param}}}'
                stored.append(
                    RowType.STEP_STARTED,
                    child,
                    attempt=1,
                    name=command.name,
                    hash=command.hash,
                    data=text,
                )
            case RolledBack():
                stored.append(
                    RowType.STEP_COMPLETED,
                    child,
                    attempt=1,
                    name=command.name,
                    hash=command.hash,
                    data=command.value,
                )
            case _:
                raise AssertionError(command)
