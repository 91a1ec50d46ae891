"""Journals by hand: rows as they are written into a test's text, and the fold of a head as Python does it.

What lives here: writing rows past the engine's guards, and a second opinion on what head, inboxes and join
sets follow from a journal. The theory: who breaks one law of journals on purpose must keep all others, so
whatever is derived from rows is derived again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.support.row_sets import LOCAL
from tests.support.verbs import NEVER, Connection

# type, child, attempt (or delivery, or join set), name, data; what is missing is null
Line: TypeAlias = tuple[Any, ...]
STATUS = {
    "execution_started": "running",
    "execution_resumed": "running",
    "execution_awaiting": "blocked",
    "cancel_requested": "cancelling",
    "execution_completed": "completed",
    "execution_failed": "failed",
    "execution_cancelled": "cancelled",
}


WITH_RESULTS = {
    *("step_completed", "step_failed", "open_step_completed", "open_step_failed", "last_attempt_completed"),
    *("last_attempt_failed", "random_generated", "time_recorded"),
}
"""Rows that are nothing without their data."""


@dataclass(kw_only=True)
class Fold:
    """What follows from a journal.

    Args:
        signals: deliveries by name.
        receipts: how many of each name were received.
        sets: join sets, and whether something was taken from them.
        members: their members, with the set and whether it was taken.
    """

    next_seq: int = 0
    status: str | None = None
    next_child: int = 0
    carried: set[int] = field(default_factory=set)
    open_steps: dict[int, tuple[int, bool]] = field(default_factory=dict)
    request: int | None = None
    signals: dict[str, list[int]] = field(default_factory=dict)
    receipts: dict[str, int] = field(default_factory=dict)
    sets: dict[int, bool] = field(default_factory=dict)
    members: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def reserved(self, first_child: int) -> list[int]:
        """Numbers below the next one that no row carries."""
        return sorted(set(range(first_child, self.next_child)) - self.carried)

    def take(self, seq: int, kind: str, child: int, attempt: int, name: str) -> None:
        """Take in one row."""
        self.status = STATUS.get(kind, self.status)
        self.request = seq if kind == "cancel_requested" else self.request
        if kind in LOCAL:
            self.open_steps.pop(child, None)
            if kind in ("step_started", "attempt_started"):
                self.open_steps[child] = (attempt, True)
            elif kind in ("first_attempt_failed", "open_attempt_failed", "attempt_failed"):
                self.open_steps[child] = (attempt + 1, False)
            elif kind == "step_scheduled":
                self.open_steps[child] = (1, False)
        if kind == "signal_delivered":
            self.signals.setdefault(name, []).append(attempt)
        elif kind == "signal_received":
            self.receipts[name] = self.receipts.get(name, 0) + 1
        elif kind == "join_set_created":
            self.sets[child] = False
        elif kind == "join_set_submitted":
            self.members[child] = (attempt, False)
        elif kind == "join_set_awaited":
            if attempt in self.sets:
                self.sets[attempt] = True
            if child in self.members:
                self.members[child] = (self.members[child][0], True)


def fold(conn: Connection, execution: int, first_child: int = 0) -> Fold:
    """What follows from the journal of an execution."""
    grammar = dict(grammar_of(conn))
    found = Fold(next_child=first_child)
    for seq, kind, child, attempt, name in conn.execute(
        "select seq, type::text, child, attempt, name from durable._journal where execution = %s order by 1",
        (execution,),
    ):
        width, allocates = grammar[kind]
        found.next_seq += width
        if allocates:
            found.carried.add(child)
            found.next_child = max(found.next_child, child + 1)
        found.take(seq, kind, child, attempt, name)
    found.open_steps = dict(sorted(found.open_steps.items()))
    return found


def grammar_of(conn: Connection) -> Iterable[tuple[str, tuple[int, bool]]]:
    """Width of each type, and whether it takes a child number."""
    for kind, width, allocates in conn.execute(
        "select type::text, cardinality(events), allocates from durable.journal_types()"
    ):
        yield kind, (width, allocates)


def write_rows(conn: Connection, id_: str, rows: Iterable[Line]) -> None:
    """Write rows to the end of a run's journal, whatever they say, and make its tables agree."""
    grammar = dict(grammar_of(conn))
    execution, bucket, seq = conn.execute(
        "select h.execution, h.bucket, h.next_seq from durable._executions h"
        " join durable._promises p on p.head = h.execution where h.id = %s",
        (id_,),
    ).fetchone() or (0, 0, 0)
    for row in rows:
        kind, child, attempt, name, data = (*row, None, None, None, None)[:5]
        if data is None and kind in WITH_RESULTS:
            data = "1"
        conn.execute(
            "insert into durable._journal (execution, bucket, ts, seq, type, child, attempt, name, data)"
            " select %s, %s, coalesce(max(j.ts), 1), %s, %s::durable.row_type, %s, %s, %s, %s"
            " from durable._journal j where j.execution = %s",
            (execution, bucket, seq, kind, child, attempt, name, data, execution),
        )
        seq += grammar[kind][0]
    refold(conn, execution)


def refold(conn: Connection, execution: int) -> None:
    """Make a head, its inboxes and its join sets what follows from the journal."""
    (first_child,) = conn.execute(
        "select first_child from durable._executions where execution = %s", (execution,)
    ).fetchone() or (0,)
    found = fold(conn, execution, first_child)
    cancelling = found.status == "cancelling"
    conn.execute(
        "update durable._executions set next_seq = %s, status = %s, next_child = %s, reserved = %s,"
        " open_steps = %s, open_attempts = %s, open_running = %s, cancel_seq = %s,"
        " cancel_until = %s where execution = %s",
        (
            found.next_seq,
            found.status or "running",
            found.next_child,
            found.reserved(first_child),
            list(found.open_steps),
            [attempt for attempt, _ in found.open_steps.values()],
            [running for _, running in found.open_steps.values()],
            found.request if cancelling else None,
            NEVER if cancelling else None,
            execution,
        ),
    )
    for table in ("_inboxes", "_signals", "_join_sets", "_members"):
        conn.execute(f"delete from durable.{table} where execution = %s".encode(), (execution,))
    for name in {*found.signals, *found.receipts}:
        numbers = found.signals.get(name, [])
        conn.execute(
            "insert into durable._inboxes (execution, name, delivered, received) values (%s, %s, %s, %s)",
            (execution, name, len(numbers), found.receipts.get(name, 0)),
        )
        for number in numbers:
            conn.execute(
                "insert into durable._signals (execution, name, delivery) values (%s, %s, %s)",
                (execution, name, number),
            )
    for child, closed in found.sets.items():
        conn.execute("insert into durable._join_sets values (%s, %s, %s)", (execution, child, closed))
    for child, (join_set, taken) in found.members.items():
        conn.execute(
            "insert into durable._members values (%s, %s, %s, %s)", (execution, child, join_set, taken)
        )
