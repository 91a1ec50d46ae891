"""The tables of the engine, read back as a state of the model.

What lives here: the one query that reads all six tables, and the translation of its answer. Columns that
repeat what the tags say (target, timer, deadline, queue) are compared with the tags on the way; columns that
are hints for delivery or belong to the older API are not part of the protocol's state.
"""

from __future__ import annotations

from typing import Any

from tests.system.model.addresses import queue
from tests.system.model.state import Pairs, Promise, State, Task, Unblock, Value, pairs

READ = """
select json_build_object(
  'promises', (select coalesce(json_agg(json_build_array(
      p.id, p.state, p.timeout_at, p.created_at, p.settled_at, p.param_headers, p.param_data,
      p.value_headers, p.value_data, p.tags, p.external, p.target, p.timer, p.task_version)), '[]')
    from durable._promises p),
  'tasks', (select coalesce(json_agg(json_build_array(
      t.id, t.state, t.version, t.pid, t.ttl, t.expires_at, t.retry_at, t.releases,
      t.released_until, t.acquired_at, t.deadline, t.queue)), '[]')
    from durable._tasks t),
  'resumes', (select coalesce(json_agg(json_build_array(r.task_id, r.awaited_id)), '[]')
    from durable._resumes r),
  'callbacks', (select coalesce(json_agg(json_build_array(c.awaited_id, c.awaiter_id)), '[]')
    from durable._callbacks c),
  'listeners', (select coalesce(json_agg(json_build_array(l.awaited_id, l.address)), '[]')
    from durable._listeners l),
  'unblocks', (select coalesce(json_agg(json_build_array(
      u.promise_id, u.address, u.created_at, u.claimed_until, u.attempts)), '[]')
    from durable._unblocks u))
"""


def state_of(tables: dict[str, list[list[Any]]], like: State) -> State:
    """The answer of READ as a state with the settings of another one."""
    promises = {row[0]: _promise(row) for row in tables["promises"]}
    tasks = {row[0]: _task(row, promises, tables["resumes"]) for row in tables["tasks"]}
    for row in tables["promises"]:
        if row[-1] is not None:
            assert row[0] not in tasks, f"{row[0]} is settled, but its task is still there"
            tasks[row[0]] = Task(id=row[0], state="fulfilled", version=row[-1])
    assert {task for task, _ in tables["resumes"]} <= set(tasks), "a wake reason without a task"
    return State(
        profile=like.profile,
        retry_offer_ms=like.retry_offer_ms,
        promises=promises,
        tasks=tasks,
        callbacks=frozenset((awaited, awaiter) for awaited, awaiter in tables["callbacks"]),
        listeners=frozenset((awaited, address) for awaited, address in tables["listeners"]),
        unblocks={
            (promise, address): Unblock(created_at=created, claimed_until=until, attempts=attempts)
            for promise, address, created, until, attempts in tables["unblocks"]
        },
    )


def differences(model: State, engine: State) -> list[str]:
    """What two states disagree about, one line for each record."""
    found: list[str] = []
    if model == engine:
        return found
    for name in ("promises", "tasks", "unblocks"):
        ours, theirs = getattr(model, name), getattr(engine, name)
        for key in sorted(set(ours) | set(theirs)):
            if ours.get(key) != theirs.get(key):
                found.append(f"{name} {key}: model {ours.get(key)}, tables {theirs.get(key)}")
    for name in ("callbacks", "listeners"):
        ours, theirs = getattr(model, name), getattr(engine, name)
        if ours != theirs:
            found.append(f"{name}: only model {sorted(ours - theirs)}, only tables {sorted(theirs - ours)}")
    return found


def _promise(row: list[Any]) -> Promise:
    id_, state, timeout_at, created_at, settled_at, *rest = row
    param_headers, param_data, value_headers, value_data, tags, external, target, timer, version = rest
    promise = Promise(
        id=id_,
        state=state,
        timeout_at=timeout_at,
        created_at=created_at,
        settled_at=settled_at,
        param=Value(headers=_headers(param_headers), data=param_data),
        value=Value(headers=_headers(value_headers), data=value_data),
        tags=pairs(tags),
        external=external,
    )
    assert (target, timer) == (promise.target, promise.timer), f"{id_}: columns and tags differ"
    assert (version is not None) == (target is not None and state != "pending"), f"{id_}: task version"
    return promise


def _headers(stored: dict[str, str] | None) -> Pairs | None:
    return None if stored is None else pairs(stored)


def _task(row: list[Any], promises: dict[str, Promise], resumes: list[list[str]]) -> Task:
    id_, state, version, pid, ttl, expires_at, retry_at, releases, released_until, *rest = row
    acquired_at, deadline, where = rest
    promise = promises[id_]
    assert deadline == promise.timeout_at, f"{id_}: the deadline is a copy of the promise's"
    assert where == queue(promise.target or ""), f"{id_}: the queue follows from the target"
    return Task(
        id=id_,
        state=state,
        version=version,
        pid=pid,
        ttl=ttl,
        expires_at=expires_at,
        retry_at=retry_at,
        releases=releases,
        released_until=released_until,
        acquired_at=acquired_at,
        resumes=frozenset(awaited for task, awaited in resumes if task == id_),
    )
