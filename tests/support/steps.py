"""Recorded changes as steps: what one call of a client did, and the state that it left.

What lives here: the fold of what history.sql wrote down. A step is one call: a transaction that makes several
calls has several steps. May not: know what is allowed (history.py).

Two rows of the engine are read as the protocol means them: a task whose promise is settled has no row any
more, it is fulfilled at the promise's task_version; an object that did not exist before is in state "none".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import psycopg
from psycopg.rows import TupleRow

Connection: TypeAlias = psycopg.Connection[TupleRow]
Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]

KEYS: dict[str, tuple[str, ...]] = {
    "_promises": ("id",),
    "_tasks": ("id",),
    "_schedules": ("id",),
    "_callbacks": ("awaited_id", "awaiter_id", "id", "child"),
    "_listeners": ("awaited_id", "address"),
    "_resumes": ("task_id", "awaited_id"),
    "_unblocks": ("promise_id", "address"),
    "_executions": ("execution",),
    "_inboxes": ("execution", "name"),
    "_signals": ("execution", "name", "delivery"),
    "_backlog": ("id", "name", "number"),
    "_journal": ("execution", "seq"),
}
LEASE = ("pid", "ttl", "expires_at")
TIMES = (*LEASE, "retry_at")
NONE: Row = {"state": "none", **dict.fromkeys((*TIMES, "version", "execution"))}


class Store:
    """The rows as they are after the last step that was folded in."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, Row]] = {relation: {} for relation in KEYS}
        self.under: dict[tuple[str, Any], set[Key]] = defaultdict(set)
        self.awaited_by: dict[str, set[Key]] = defaultdict(set)

    def put(self, relation: str, key: Key, row: Row | None) -> None:
        """Store a row, or forget it."""
        if row is None:
            self.rows[relation].pop(key, None)
        else:
            self.rows[relation][key] = row
        indexes = [self.under[relation, key[0]]]
        if relation == "_callbacks":
            indexes.append(self.awaited_by[key[1]])
        for index in indexes:
            (index.discard if row is None else index.add)(key)

    def clear(self, relation: str) -> None:
        """Forget all rows of a table."""
        for key in list(self.rows[relation]):
            self.put(relation, key, None)


@dataclass(kw_only=True)
class Step:
    """What one call changed, and the state that it left.

    Args:
        since_ms: the call's now is not before this instant.
        now_ms: nor after this one.
        mark: "tick" for a background step.
        images: for each changed row its versions, the first as it was before; None where it did not exist.
        doubled: keys that were inserted though they existed.
    """

    txid: int
    since_ms: int
    now_ms: int
    mark: str
    store: Store
    images: dict[str, dict[Key, list[Row | None]]] = field(default_factory=lambda: defaultdict(dict))
    doubled: list[tuple[str, Key]] = field(default_factory=list)

    def note(self, relation: str, old: Row | None, new: Row | None) -> None:
        """Take in one changed row."""
        key = key_of(relation, new or old or {})
        known = self.store.rows[relation].get(key)
        if old is None and known is not None:
            self.doubled.append((relation, key))
        elif old != known:
            raise AssertionError(f"the history is not in the order of commits: {relation} {key}")
        self.images[relation].setdefault(key, [old]).append(new)
        self.store.put(relation, key, new)

    def before(self, relation: str, key: Key) -> Row | None:
        """The row as it was."""
        chain = self.images[relation].get(key)
        return chain[0] if chain else self.store.rows[relation].get(key)

    def after(self, relation: str, key: Key) -> Row | None:
        """The row as it is at the end."""
        return self.store.rows[relation].get(key)

    def all_after(self, relation: str, first: str) -> set[Key]:
        """Keys of the rows that begin with this id, at the end."""
        return self.store.under[relation, first]

    def all_before(self, relation: str, first: str) -> set[Key]:
        """The same at the beginning."""
        changed = self._changed[relation, first]
        return (self.all_after(relation, first) - changed) | {
            key for key in changed if self.images[relation][key][0]
        }

    @cached_property
    def _changed(self) -> dict[tuple[str, Any], set[Key]]:
        found: dict[tuple[str, Any], set[Key]] = defaultdict(set)
        for relation, images in self.images.items():
            for key in images:
                found[relation, key[0]].add(key)
        return found

    def gone(self, relation: str) -> Iterator[tuple[Key, Row]]:
        """Rows that existed and do not any more, or not even until the end."""
        for key, chain in self.images[relation].items():
            if chain[-1] is None:
                yield key, next(row for row in reversed(chain) if row is not None)

    def born(self, relation: str) -> Iterator[tuple[Key, Row]]:
        """Rows that are new, as they were born."""
        for key, chain in self.images[relation].items():
            if chain[0] is None and chain[-1] is not None:
                yield key, next(row for row in chain if row is not None)

    def is_now(self, instant: int | None) -> bool:
        """Whether the call may have taken this instant for now."""
        return instant is not None and self.since_ms <= instant <= self.now_ms

    def promise(self, id_: str) -> Row | None:
        """A promise at the end."""
        return self.after("_promises", (id_,))

    def task(self, id_: str) -> Row | None:
        """A task at the end."""
        return self.task_images(id_)[-1]

    def task_images(self, id_: str) -> list[Row | None]:
        """The versions of a task, the fulfilled one included, which has no row."""
        chain = self.images["_tasks"].get((id_,)) or [self.after("_tasks", (id_,))] * 2
        first, last = self.before("_promises", (id_,)), self.promise(id_)
        return [row or fulfilled(last if place else first) for place, row in enumerate(chain)]

    @cached_property
    def consumed(self) -> dict[str, set[str]]:
        """For each task the promises whose callback for it is gone."""
        found: dict[str, set[str]] = defaultdict(set)
        for key, _ in self.gone("_callbacks"):
            found[key[1]].add(key[0])
        return found

    @cached_property
    def settled(self) -> set[str]:
        """Promises that the step settled."""
        return {edge.id for edge in promise_edges(self) if edge.settles}

    def recorded(self, task: str) -> set[str]:
        """Wake reasons that the task has, or had until it was handed out in the same step."""
        within = {key for key in self._changed["_resumes", task] if any(self.images["_resumes"][key][1:])}
        return {key[1] for key in within | self.all_after("_resumes", task)}

    def status(self, execution: int | None) -> tuple[str | None, str | None]:
        """Status of a run's journal before and after."""
        rows = (self.before("_executions", (execution,)), self.after("_executions", (execution,)))
        return rows[0] and rows[0]["status"], rows[1] and rows[1]["status"]

    def receives(self, execution: int | None) -> bool:
        """Whether a run waits for a signal, or did within the step."""
        keys = self.store.under["_inboxes", execution] | {
            key for key in self.images["_inboxes"] if key[0] == execution
        }
        rows = (self.images["_inboxes"].get(key) or [self.after("_inboxes", key)] for key in keys)
        return any(row and row["receiver"] is not None for chain in rows for row in chain)

    def signalled(self, execution: int | None) -> bool:
        """Whether a run got a signal."""
        return any(key[0] == execution for key, _ in self.born("_signals"))

    def asked(self, execution: int | None) -> bool:
        """Whether a run was asked to end, and did not end at once."""
        before, after = self.status(execution)
        return before != after == "cancelling"

    def renewed(self, id_: str) -> bool:
        """Whether a run began its next generation."""
        return len({image["execution"] for image in self.task_images(id_) if image}) > 1

    def enters(self, id_: str, *states: str) -> bool:
        """Whether a task came into one of the states, for however short."""
        return any(
            b and b["state"] in states and (a or NONE)["state"] != b["state"]
            for a, b in pairwise(self.task_images(id_))
        )

    def lives(self, id_: str) -> bool:
        """Whether a promise was live when the call looked; one that the call went on to settle was."""
        before, after = self.before("_promises", (id_,)), self.promise(id_)
        if after is None:
            return True
        settled_before = before is not None and before["state"] != "pending"
        return bool(after["timeout_at"] > self.since_ms and not settled_before)


def fulfilled(promise: Row | None) -> Row | None:
    """The task of a settled promise."""
    if promise is None or promise["state"] == "pending" or promise["task_version"] is None:
        return None
    about = {"id": promise["id"], "version": promise["task_version"], "execution": promise["head"]}
    return {**about, "state": "fulfilled", **dict.fromkeys(TIMES)}


def steps(conn: Connection) -> Iterator[Step]:
    """The steps in the order of their last changes, each together with the state that it left.

    Locks are held until the commit, so two steps that touch the same object stand in the order of commits.
    """
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for change in conn.execute(
        "select txid, call, since_ms, now_ms, mark, relation, old, new from test_history.changes order by seq"
    ):
        group = groups.pop(change[:2], [])
        group.append(change)
        groups[change[:2]] = group
    store = Store()
    for changes in groups.values():
        step = fold(store, changes)
        if step.mark not in ("base", "reset"):
            yield step


def fold(store: Store, changes: list[tuple[Any, ...]]) -> Step:
    """Carry the changes of one call into the store; answers them as a step."""
    step = Step(
        txid=changes[0][0],
        since_ms=min(change[2] for change in changes),
        now_ms=max(change[3] for change in changes),
        mark=changes[0][4],
        store=store,
    )
    for *_, relation, old, new in changes:
        if old is None and new is None:
            store.clear(relation)
            step.images[relation].clear()
        elif old is not None and new is not None and key_of(relation, old) != key_of(relation, new):
            step.note(relation, old, None)
            step.note(relation, None, new)
        elif old != new:
            step.note(relation, old, new)
    return step


def key_of(relation: str, row: Row) -> Key:
    """The primary key of a row."""
    return tuple(row[column] for column in KEYS[relation])


@dataclass(frozen=True, slots=True)
class Edge:
    """Two versions of an object that follow each other in a step."""

    step: Step
    id: str
    old: Row
    new: Row

    def same(self, *columns: str) -> bool:
        """Whether these columns are as they were."""
        return all(self.old.get(column) == self.new.get(column) for column in columns)

    @property
    def is_birth(self) -> bool:
        """Whether there was no object before."""
        return bool(self.old["state"] == "none")

    @property
    def moved(self) -> str:
        """The columns that changed."""
        names = [name for name in self.new if not self.same(name)]
        return ", ".join(f"{name} {self.old.get(name)} -> {self.new[name]}" for name in names)

    def becomes(self, state: str) -> bool:
        """Whether this is the entry into a state."""
        return bool(self.old["state"] != state and self.new["state"] == state)

    @property
    def wakes(self) -> bool:
        """Whether a suspended task becomes pending."""
        return bool(self.old["state"] == "suspended" and self.new["state"] == "pending")

    @property
    def rearms(self) -> bool:
        """Whether a pending task gets another instant of dispatch."""
        return bool(self.old["state"] == self.new["state"] == "pending" and not self.same("retry_at"))

    @property
    def settles(self) -> bool:
        """Whether a pending promise is settled."""
        return bool(self.old["state"] == "pending" and self.new["state"] != "pending")

    @property
    def is_run(self) -> bool:
        """Whether the task has a journal."""
        return self.new["execution"] is not None

    @property
    def pulled_forward(self) -> bool:
        """A run that waits before a retry goes on at once when a child settles, when it receives a signal,
        when it is asked to end, and when it was put off in this step over something that it had not seen."""
        return (
            self.is_run
            and self.step.is_now(self.new["retry_at"])
            and (bool(self.step.recorded(self.id)) or self.called or self.step.enters(self.id, "pending"))
        )

    @property
    def called(self) -> bool:
        """Whether a run got a signal, which ended its wait if it had one, or was asked to end."""
        execution = self.new["execution"]
        over = self.old["state"] != "suspended" or self.step.status(execution) == ("blocked", "running")
        return self.is_run and ((self.step.signalled(execution) and over) or self.step.asked(execution))


def promise_edges(step: Step) -> Iterator[Edge]:
    """Versions of promises that follow each other."""
    for (id_,), chain in step.images["_promises"].items():
        yield from (Edge(step, id_, a, b) for a, b in pairwise(chain) if a and b)


def task_edges(step: Step) -> Iterator[Edge]:
    """Versions of tasks that follow each other, births and fulfilled ones included."""
    for id_ in dict.fromkeys(key[0] for name in ("_tasks", "_promises") for key in step.images[name]):
        yield from (Edge(step, id_, a or NONE, b) for a, b in pairwise(step.task_images(id_)) if b and a != b)


def schedule_edges(step: Step) -> Iterator[Edge]:
    """Versions of schedules that follow each other."""
    for (id_,), chain in step.images["_schedules"].items():
        yield from (Edge(step, id_, a, b) for a, b in pairwise(chain) if a and b)
