"""What a fork at a position must own, told from its origin's rows by a fold in plain Python.

What lives here: `expected`, which reads the origin and says what the fork's tables hold, and `found`, which
reads them. May not: call durable.fork. The fold goes row by row, as a person would; the engine works on sets.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.support.row_sets import ALLOCATING, LOCAL, RESOLVING, WIDTHS
from tests.support.verbs import Connection, ask

CANCELLED = "rejected_canceled"
NEWS = RESOLVING | {
    "cancel_requested",
    "child_run_scheduled",
    "promise_registered",
    "timer_scheduled",
    "random_generated",
    "time_recorded",
    "join_set_created",
    "join_set_submitted",
    "join_set_awaited",
}
NEVER_COPIED = {"execution_completed", "execution_failed", "execution_cancelled", "cancel_requested"}
ROWS = """
select j.seq, j.type::text, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'), j.data, j.ts
from durable._journal j where j.execution = %s order by j.seq
"""
INTERRUPTED = {"error": {"type": "Interrupted", "message": "forked"}, "interrupted": True}
Row = tuple[Any, ...]
PROMISES = """
select p.child, p.state, p.value_data, p.timer, t.id is not null, t.attempt
from durable._promises p left join durable._tasks t on t.id = p.id where p.execution = %s
"""


@dataclass
class Copy:
    """What a run owns beside its promise.

    Args:
        rows: (type, child, attempt, name, hash, data as JSON, ts or None where it is the fork's own).
        head: next_seq, next_child, reserved, open_steps, open_attempts, open_running, first_child, status.
        inboxes: deliveries, receipts and payloads of each signal.
        sets: join sets with whether they are closed.
        members: their members: set, taken.
        promises: own promises by child: (state, value, timer, has a task, attempt of the task).
        waits: what its task is resumed by.
        receivers: receives that wait, by the name of their signal.
    """

    rows: list[Row] = field(default_factory=list)
    head: tuple[Any, ...] = ()
    inboxes: dict[str, tuple[int, int, list[Any]]] = field(default_factory=dict)
    sets: dict[int, bool] = field(default_factory=dict)
    members: dict[int, tuple[int, bool]] = field(default_factory=dict)
    promises: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    waits: set[tuple[str, int]] = field(default_factory=set)
    receivers: dict[str, int] = field(default_factory=dict)


def journal(conn: Connection, execution: int) -> list[Row]:
    """The rows of a journal."""
    return [tuple(row) for row in conn.execute(ROWS.encode(), (execution,)).fetchall()]


def present(conn: Connection, id_: str) -> int:
    """The execution that a run has now."""
    return int(ask(conn, ("select head from durable._promises where id = %s", (id_,)))[0])


def copied_rows(rows: list[Row], upto: int, cancelled_runs: set[int]) -> list[Row]:
    """The rows that a fork at this position copies; a child run that was cancelled after the request begins
    anew."""
    cancelled = next((row[0] for row in rows if row[1] == "cancel_requested"), upto)
    before = [row for row in rows if row[0] + WIDTHS.get(row[1], 1) <= upto]
    known = {row[2] for row in rows if row[0] < cancelled and row[1] in ALLOCATING}
    below = max(known, default=-1)
    kept = []
    for row in before:
        seq, kind, child = row[:3]
        if kind in NEVER_COPIED:
            continue
        if kind == "execution_awaiting" and not any(
            later[1] == "execution_resumed" and later[0] > seq for later in before
        ):
            continue
        if seq > cancelled and (
            kind in ("join_set_created", "join_set_submitted", "join_set_awaited")
            or (child is not None and child > below)
        ):
            continue
        if seq > cancelled and kind in ("open_child_settled", "child_settled") and child in cancelled_runs:
            continue
        kept.append(row)
    return kept


def fold(rows: list[Row], first_child: int) -> tuple[Any, ...]:
    """The head of a running run with these rows: (type, child, attempt, ...)."""
    steps: dict[int, tuple[int, bool]] = {}
    numbers: list[int] = []
    for kind, child, attempt in (row[:3] for row in rows):
        if kind in ALLOCATING:
            numbers.append(child)
        if kind in ("step_started", "attempt_started"):
            steps[child] = (attempt, True)
        elif kind in ("first_attempt_failed", "open_attempt_failed", "attempt_failed"):
            steps[child] = (attempt + 1, False)
        elif kind == "step_scheduled":
            steps[child] = (1, False)
        elif kind in LOCAL:
            steps.pop(child, None)
    next_child = max(numbers, default=first_child - 1) + 1
    reserved = [n for n in range(first_child, next_child) if n not in numbers]
    opened = sorted(steps)
    width = sum(WIDTHS.get(row[0], 1) for row in rows)
    attempts, running = [steps[n][0] for n in opened], [steps[n][1] for n in opened]
    return (width, next_child, reserved, opened, attempts, running, first_child, "running")


def expected(conn: Connection, id_: str, upto: int) -> Copy:
    """What a fork of the present generation of a run at this position owns."""
    execution = present(conn, id_)
    about = "select first_child, previous is null from durable._executions where execution = %s"
    first_child, is_first = ask(conn, (about, (execution,)))
    promises = {
        row[0]: row[1:]
        for row in conn.execute(
            "select child, state, value_data, timer, head is not null, id from durable._promises "
            "where execution = %s",
            (execution,),
        ).fetchall()
    }
    copy = Copy()
    ended = {child for child, (state, _, _, is_run, _) in promises.items() if is_run and state == CANCELLED}
    own = copied_rows(journal(conn, execution), upto, ended)
    copy.rows = [(*row[1:6], row[6] if row[0] or is_first else None, row[7]) for row in own]
    done = {row[2] for row in own if row[1] in RESOLVING}
    head = fold(copy.rows, first_child)
    for child, attempt, runs in zip(*head[3:6], strict=True):
        if runs:
            copy.rows.append(("open_attempt_failed", child, attempt, None, None, INTERRUPTED, None))
    attempts: dict[int, list[str]] = defaultdict(list)
    for row in own:
        if row[1] in ("child_run_started", "child_run_interrupted"):
            attempts[row[2]].append(row[1])
    for child in sorted(attempts):
        if child not in done and attempts[child][-1] == "child_run_started":
            number = attempts[child].count("child_run_started")
            copy.rows.append(("child_run_interrupted", child, number, None, None, INTERRUPTED, None))
    for row in own:
        if row[1] not in ("child_run_scheduled", "promise_registered", "timer_scheduled"):
            continue
        child, is_done = row[2], row[2] in done
        if child in promises:
            state, value, timer, is_run, origin_id = promises[child]
            runs = is_run and not is_done
            tries = attempts[child].count("child_run_started") if runs else None
            ended = (state, value) if is_done else ("pending", None)
            copy.promises[child] = (*ended, timer, runs, tries)
            if not is_done and not is_detached(conn, id_, origin_id):
                copy.waits.add((f"{child}", -1))
        elif not is_done:
            state = ask(conn, ("select state from durable._promises where id = %s", (row[4],)))[0]
            if state == "pending":
                copy.waits.add((row[4], child))
            else:
                copy.rows.append(("child_settled", child, 1, row[4], None, None, None))
    next_child = fold(copy.rows, first_child)[1]
    for name, child in sorted(called(conn, execution, own, next_child), key=lambda one: one[1]):
        sent = sum(row[1] == "signal_delivered" and row[4] == name for row in own)
        got = sum(row[1] == "signal_received" and row[4] == name for row in own)
        if sent > got:
            copy.rows.append(("signal_received", child, got + 1, name, None, None, None))
        else:
            copy.receivers[name] = child
            copy.inboxes[name] = (0, 0, [])
    copy.head = fold(copy.rows, first_child)
    fold_state(conn, execution, copy)
    return copy


def called(conn: Connection, execution: int, own: list[Row], next_child: int) -> list[tuple[str, int]]:
    """Receives that the copied part is known to have called and was not served: (name, child)."""
    rows = journal(conn, execution)
    copied = {row[0] for row in own}
    left = [row for row in rows if row[0] not in copied]
    news = next((row[0] for row in left if row[1] in NEWS), None)
    waits = [row for row in rows if row[1] == "execution_awaiting" and (news is None or row[0] < news)]
    served: dict[str, tuple[int, int | None]] = {}
    for row in left:
        if row[1] == "signal_received":
            served.setdefault(row[4], (row[2], row[0]))
    query = "select name, receiver from durable._inboxes where execution = %s and receiver is not null"
    for name, child in conn.execute(query, (execution,)).fetchall():
        served.setdefault(name, (child, None))
    return [
        (name, child)
        for name, (child, seq) in served.items()
        if child < next_child or seq == news or any(child in json.loads(row[6])["on"] for row in waits)
    ]


def is_detached(conn: Connection, id_: str, child_id: str) -> bool:
    """Whether nobody waits for a pending child run."""
    query = """select p.state = 'pending' and h.abandoned and not exists (
      select from durable._callbacks k where k.awaited_id = p.id and k.awaiter_id = %s)
    from durable._promises p left join durable._executions h on h.execution = p.head where p.id = %s"""
    return bool(ask(conn, (query, (id_, child_id)))[0])


def fold_state(conn: Connection, execution: int, copy: Copy) -> None:
    """Inboxes and join sets of the rows of a copy; payloads are the origin's."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for kind, child, attempt, name in (row[:4] for row in copy.rows):
        if kind in ("signal_delivered", "signal_received"):
            counts[name][kind == "signal_received"] = attempt
        elif kind == "join_set_created":
            copy.sets[child] = False
        elif kind == "join_set_submitted":
            copy.members[child] = (attempt, False)
        elif kind == "join_set_awaited":
            copy.sets[attempt] = True
            copy.members[child] = (attempt, True)
    for name, (delivered, received) in counts.items():
        payloads = signals(conn, execution, name)[:delivered]
        copy.inboxes[name] = (delivered, received, payloads)


def signals(conn: Connection, execution: int, name: str) -> list[Any]:
    """Keys and payloads of what was sent by a name."""
    query = "select key, data from durable._signals where execution = %s and name = %s order by delivery"
    return [tuple(row) for row in conn.execute(query, (execution, name)).fetchall()]


def found(conn: Connection, id_: str, born_ms: int) -> Copy:
    """What a run owns in outcome; rows that are as old as the run count as its own."""
    execution = present(conn, id_)
    copy = Copy()
    for seq, kind, child, attempt, name, digest, data, ts in journal(conn, execution):
        assert seq == sum(WIDTHS.get(row[0], 1) for row in copy.rows), f"seq {seq} is not dense"
        own = ts == born_ms
        value = json.loads(data) if own and data is not None else data
        copy.rows.append((kind, child, attempt, name, digest, value, None if own else ts))
    copy.head = ask(
        conn,
        (
            "select next_seq, next_child, reserved, open_steps, open_attempts, open_running, "
            "first_child, status from durable._executions where execution = %s",
            (execution,),
        ),
    )
    for name, delivered, received, receiver in conn.execute(
        "select name, delivered, received, receiver from durable._inboxes where execution = %s", (execution,)
    ).fetchall():
        if receiver is not None:
            copy.receivers[name] = receiver
        copy.inboxes[name] = (delivered, received, signals(conn, execution, name))
    sets = "select child, closed from durable._join_sets where execution = %s"
    copy.sets = dict(conn.execute(sets, (execution,)).fetchall())
    members = "select child, join_set, taken from durable._members where execution = %s"
    for child, into, taken in conn.execute(members, (execution,)).fetchall():
        copy.members[child] = (into, taken)
    copy.promises = {row[0]: row[1:] for row in conn.execute(PROMISES, (execution,)).fetchall()}
    for awaited, child in conn.execute(
        "select awaited_id, child from durable._callbacks where awaiter_id = %s", (id_,)
    ).fetchall():
        copy.waits.add((awaited.removeprefix(f"{id_}."), child))
    return copy
