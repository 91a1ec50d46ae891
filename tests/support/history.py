"""Laws of transitions: what may happen between one state and the next, judged after the outcome.

What lives here: switching the record on (history.sql) and the catalogue of laws over one step (steps.py);
those of runs alone stand in run_laws.py.
Laws about one row look at every version that it had in the step, because a turn does what are several
operations of the protocol: a run is woken and taken in one turn. Laws about several rows look at the ends.

Where the engine differs from the protocol's own machine, and what is asserted instead:

- a pending task is its own execute message: sent when it becomes pending and when it is offered again;
- callbacks of a run's own children are born with the child, and a run that waits for all of them is woken by
  the last one: the others leave no wake reason;
- a run may be released for later, and is pulled forward when a child settles meanwhile; a run that lost too
  many leases is halted by the sweep;
- a suspended task may hold callbacks from before: it needs one on a pending promise, not a new one;
- an awaiter past its own deadline is not resumed, and a callback of the older API that is past its own
  timeout is dropped;
- messages disappear when they are acknowledged;
- a run is woken by a signal that ends its wait and by a request of cancellation too, without a wake reason;
- a run that continues as new lets go what it waited for: its promise is the result of another journal now;
- the sweep ends runs that were asked to end and did not within their grace;
- a promise that a schedule creates too late is born settled, as of its instant;
- a fork is born with copies of its origin's settled children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import psycopg

from tests.support import run_laws
from tests.support.steps import (
    LEASE,
    NONE,
    TIMES,
    Connection,
    Edge,
    Key,
    Row,
    Step,
    promise_edges,
    schedule_edges,
    steps,
    task_edges,
)
from tests.support.verbs import NEVER

Finding: TypeAlias = tuple[str, str, str]
Seen: TypeAlias = Iterator[tuple[str, object]]
Holds: TypeAlias = Callable[[Edge], object]
Check: TypeAlias = Callable[[Step], Seen]

SOURCE = Path(__file__).parent / "history.sql"
BIRTH = ("param_headers", "param_data", "tags", "timeout_at", "created_at", "target", "timer", "ikey_create")
VALUE = ("value_headers", "value_data")
RECORD = ("state", "settled_at", "ikey_complete", *VALUE)
TEMPLATE = ("promise_id", "promise_timeout", "promise_param_headers", "promise_param_data", "promise_tags")
SCHEDULE = ("cron", "timezone", "created_at", *TEMPLATE)
VERDICTS = {"resolved", "rejected", "rejected_canceled", "rejected_timedout"}
EDGES = {
    "none": {"pending", "acquired", "fulfilled"},
    "pending": {"pending", "acquired", "halted", "fulfilled"},
    "acquired": {"pending", "acquired", "suspended", "halted", "fulfilled"},
    "suspended": {"pending", "suspended", "halted", "fulfilled"},
    "halted": {"pending", "halted", "fulfilled"},
    "fulfilled": {"fulfilled"},
}
SWEPT = {
    "none": {"pending", "fulfilled"},
    "pending": {"pending", "fulfilled"},
    "acquired": {"pending", "acquired", "fulfilled"},
    "suspended": {"pending", "suspended", "fulfilled"},
    "halted": {"halted", "fulfilled"},
    "fulfilled": {"fulfilled"},
}


def install(dsn: str) -> None:
    """Record from now on what happens in a database that has the schema; what it holds is the first state.

    A clock of the test's own has to be there before: the record watches what it shows to each call.
    """
    with psycopg.connect(dsn) as conn:
        install_into(conn)


def install_into(conn: Connection) -> None:
    """The same on a connection, within its transaction if it is in one."""
    conn.execute(SOURCE.read_bytes())


def broken(conn: Connection) -> list[Finding]:
    """Every law that a step broke, with the id of the object and what was seen: (law, id, detail)."""
    return [finding for step in steps(conn) for finding in judge(step)]


def judge(step: Step) -> Iterator[Finding]:
    """The laws that one step broke."""
    for law, check in LAWS.items():
        for id_, seen in check(step):
            yield law, id_, f"{seen} [transaction {step.txid}, now {step.since_ms}..{step.now_ms}]"


def has_no_value(row: Row) -> bool:
    """Whether a promise has no value."""
    return row["value_data"] is None and not row["value_headers"]


def verdict(row: Row) -> str:
    """What the deadline makes of a promise."""
    return "resolved" if row["timer"] else "rejected_timedout"


def queue_of(address: str) -> str:
    """The queue of a canonical address."""
    group = address.removeprefix("poll://any@")
    return address if group == address else group.split("/")[0]


def is_stamped(edge: Edge) -> bool:
    """Whether a settlement is a client's, now and before the deadline, or the deadline's own."""
    new, step = edge.new, edge.step
    if new["settled_at"] == new["timeout_at"]:
        return bool(new["timeout_at"] <= step.now_ms and new["state"] == verdict(new) and edge.same(*VALUE))
    client = step.is_now(new["settled_at"]) and new["settled_at"] < new["timeout_at"]
    return bool(client and new["state"] != "rejected_timedout")


def is_leased(row: Row) -> bool:
    """Whether a task has a whole lease."""
    return all(row[column] is not None for column in LEASE)


def is_free(row: Row, *columns: str) -> bool:
    """Whether a task has none of these, which is nothing of a lease unless told."""
    return all(row[column] is None for column in columns or LEASE)


def is_acquired_whole(edge: Edge) -> bool:
    """Whether an acquisition did all that belongs to it."""
    old, new, step = edge.old, edge.new, edge.step
    started = is_leased(new) and step.is_now(new["expires_at"] - new["ttl"]) and new["retry_at"] is None
    raised = old["state"] == "pending" and new["version"] > old["version"]
    return bool(started and raised and not step.all_after("_resumes", edge.id))


def is_out_of_grace(edge: Edge) -> bool:
    """Whether a run that is ended by the sweep had been asked to end."""
    return edge.new["head"] is not None and edge.step.status(edge.new["head"])[0] == "cancelling"


def has_continued(edge: Edge) -> bool:
    """Whether a promise became the result of the journal that follows the one before, which has ended, and
    its task with it."""
    step, next_ = edge.step, edge.step.after("_executions", (edge.new["head"],))
    task = step.task(edge.id)
    return bool(
        next_
        and next_["previous"] == edge.old["head"]
        and step.status(edge.old["head"])[1] == "completed"
        and edge.new["state"] == "pending"
        and (task or NONE)["execution"] == edge.new["head"]
    )


def awaits_something(edge: Edge) -> bool:
    """Whether a task that was suspended has a callback on a pending promise, or had one until it was woken
    in the same step; a run may wait for a signal instead."""
    step = edge.step
    if edge.is_run and step.receives(edge.new["execution"]):
        return True
    awaited = {key[0] for key in step.store.awaited_by[edge.id]}
    pending = any((promise := step.promise(id_)) and promise["state"] == "pending" for id_ in awaited)
    return pending or bool(step.enters(edge.id, "pending", "fulfilled") and step.consumed[edge.id])


PROMISE: dict[str, Holds] = {
    "preserved_promise_birth_fields_immutable": lambda e: e.same(*BIRTH),
    "preserved_promise_state_frozen_once_settled": lambda e: e.old["state"] == "pending" or e.same("state"),
    "preserved_promise_settlement_is_one_way": lambda e: (
        e.new["state"] != "pending" or e.old["state"] == "pending"
    ),
    "consistent_promise_settled_at_moves_with_state": lambda e: e.same("settled_at") == e.same("state"),
    "preserved_promise_value_until_settlement": lambda e: e.new["state"] != "pending" or e.same(*VALUE),
    "consistent_promise_state_edge_admissible": lambda e: (
        e.new["state"] in VERDICTS if e.settles else e.same("state")
    ),
    "consistent_settlement_fulfils_task": lambda e: (
        not e.settles or (e.step.task(e.id) or {"state": "fulfilled"})["state"] == "fulfilled"
    ),
    "consistent_promise_settlement_stamp": lambda e: not e.settles or is_stamped(e),
    "preserved_timedout_is_server_owned": lambda e: (
        not (e.settles and e.new["state"] == "rejected_timedout")
        or e.new["settled_at"] == e.new["timeout_at"] <= e.step.now_ms
    ),
    "consistent_promise_state_edge_internal_admissible": lambda e: (
        e.step.mark != "tick"
        or e.same("state")
        or (e.old["state"] == "pending" and e.new["state"] == verdict(e.new))
        or (e.new["state"] == "rejected_canceled" and is_out_of_grace(e))
    ),
    "consistent_head_is_that_of_the_last_generation": lambda e: e.same("head") or has_continued(e),
}
TASK: dict[str, Holds] = {
    "monotone_task_version_increases_only_on_acquisition": lambda e: (
        e.is_birth
        or e.new["version"] - e.old["version"] == (e.old["state"] == "pending" and e.becomes("acquired"))
    ),
    "preserved_fulfilled_task": lambda e: e.old["state"] != "fulfilled" or e.same("state", "version", *TIMES),
    "consistent_task_state_edge_admissible": lambda e: e.new["state"] in EDGES[e.old["state"]],
    "preserved_task_acquisition_only_from_pending": lambda e: (
        not e.becomes("acquired") or e.is_birth or e.old["state"] == "pending"
    ),
    "preserved_task_suspension_only_from_acquired": lambda e: (
        not e.becomes("suspended") or e.old["state"] == "acquired"
    ),
    "preserved_task_halted_only_reenters_via_pending": lambda e: (
        e.old["state"] != "halted" or e.new["state"] in EDGES["halted"]
    ),
    "consistent_task_fulfilment_needs_settlement": lambda e: (
        not e.becomes("fulfilled") or e.is_birth or e.id in e.step.settled
    ),
    "consistent_wake_follows_callback_consumption": lambda e: (
        not e.wakes or e.called or e.step.consumed[e.id] & e.step.recorded(e.id)
    ),
    "consistent_suspension_registers_callback": lambda e: not e.becomes("suspended") or awaits_something(e),
    "consistent_task_lease_released_atomically": lambda e: (
        e.old["state"] != "acquired" or e.new["state"] == "acquired" or (is_free(e.new) and e.same("version"))
    ),
    "preserved_task_lease_holder_stable": lambda e: (
        not (e.old["state"] == e.new["state"] == "acquired" and e.same("version")) or e.same("pid", "ttl")
    ),
    "consistent_task_lease_fields_move_together": lambda e: (
        e.same(*LEASE)
        or (is_free(e.old) and is_leased(e.new))
        or (is_leased(e.old) and is_free(e.new))
        or (e.old["state"] == e.new["state"] == "acquired" and e.same("pid", "ttl"))
    ),
    "preserved_no_dead_dispatch": lambda e: not e.becomes("pending") or e.step.lives(e.id),
    "preserved_execute_only_for_live_task": lambda e: not e.rearms or e.step.lives(e.id),
    "consistent_task_acquisition_is_atomic": lambda e: (
        not e.becomes("acquired") or e.is_birth or is_acquired_whole(e)
    ),
    "consistent_task_lease_deadline_is_now_plus_ttl": lambda e: (
        e.same("expires_at")
        or e.new["expires_at"] is None
        or e.step.is_now(e.new["expires_at"] - (e.new["ttl"] or 0))
    ),
    "consistent_task_pending_entry_arms_retry": lambda e: (
        not e.becomes("pending")
        or e.is_birth
        or e.step.is_now(e.new["retry_at"])
        or (e.is_run and e.old["state"] == "acquired" and (e.new["retry_at"] or 0) > e.step.now_ms)
    ),
    "consistent_task_retry_rearm_only_when_due": lambda e: (
        not e.rearms or e.old["retry_at"] <= e.step.now_ms or e.pulled_forward
    ),
    "monotone_task_retry_rearm_advances": lambda e: (
        not e.rearms or e.new["retry_at"] > e.step.since_ms or e.pulled_forward
    ),
    "consistent_task_wake_records_resume": lambda e: (
        not e.wakes
        or ((e.called or e.step.recorded(e.id)) and e.step.is_now(e.new["retry_at"]) and e.same("version"))
    ),
    "consistent_new_execute_matches_task_and_target": lambda e: (
        e.new["state"] != "pending"
        or (promise := e.step.promise(e.id)) is None
        or e.new["queue"] == queue_of(e.new["recv"] or promise["target"] or "")
    ),
    "consistent_task_state_edge_internal_admissible": lambda e: (
        e.step.mark != "tick"
        or e.new["state"] in SWEPT[e.old["state"]]
        or (e.is_run and (e.old["state"], e.new["state"]) == ("acquired", "halted") and not e.same("crashes"))
    ),
}
SCHEDULES: dict[str, Holds] = {
    "preserved_schedule_birth_fields_immutable": lambda e: e.same(*SCHEDULE),
    "S17 schedule_fires_what_was_due": lambda e: (
        e.same("last_run_at") or e.old["next_run_at"] <= (e.new["last_run_at"] or -1) <= e.step.now_ms
    ),
    "S18 S19 schedule_runs_advance": lambda e: (
        e.old["next_run_at"] <= e.new["next_run_at"]
        if e.same("last_run_at")
        else (e.old["last_run_at"] or -1) < (e.new["last_run_at"] or -1)
        and e.old["next_run_at"] < e.new["next_run_at"]
    ),
    "S20 S21 S22 schedule_firing_creates_its_promise": lambda e: e.same("last_run_at") or has_fired(e),
}


def has_fired(edge: Edge) -> bool:
    """Whether a schedule's last instant made its promise, unless the id was taken or promise_create refuses
    it."""
    at, schedule = edge.new["last_run_at"], edge.new
    id_ = schedule["promise_id"].replace("{{.timestamp}}", str(at)).replace("{{.id}}", edge.id)
    chain = edge.step.images["_promises"].get((id_,), [])
    if chain[:1] != [None] or chain[1] is None:
        return edge.step.promise(id_) is not None or is_refused(id_, schedule, edge.step)
    tags, tree = chain[1]["tags"], ("origin", "prefix", "branch", "parent")
    rooted = chain[1]["target"] is None or all(tags[f"resonate:{name}"] == id_ for name in tree)
    born_at = chain[1]["created_at"]
    due = chain[1]["timeout_at"] == min(born_at + schedule["promise_timeout"], NEVER)
    first = at if "{{.timestamp}}" in schedule["promise_id"] else edge.old["next_run_at"]
    return bool(rooted and due and first <= born_at <= at)


def is_refused(id_: str, schedule: Row, step: Step) -> bool:
    """Whether an instant makes no promise: its id is too long, a run's or outside of the tree that the tags
    name, or its delay outlasts it."""
    tags, parts = schedule["promise_tags"], id_.split(".")
    delay = int(tags.get("resonate:delay", -1))
    outlasted = delay >= schedule["last_run_at"] + schedule["promise_timeout"]
    owners = (step.promise(".".join(parts[:count])) for count in range(1, len(parts)))
    stems = (tags.get(f"resonate:{name}", id_) for name in ("origin", "branch", "parent"))
    strayed = "resonate:target" not in tags and not all(
        id_ == stem or id_.startswith((f"{stem}.", f"{stem}:")) for stem in stems
    )
    owned = any(owner and owner["head"] for owner in owners)
    return not 1 <= len(id_.encode()) <= 512 or outlasted or strayed or owned


def preserved_settled_promise_record(step: Step) -> Seen:
    """A settled promise stays, with its verdict and value."""
    for edge in promise_edges(step):
        if edge.old["state"] != "pending" and not edge.same(*RECORD):
            yield edge.id, edge.moved
    for (id_,), row in step.gone("_promises"):
        if row["state"] != "pending":
            yield id_, "deleted"


def monotone_promise_set_grows(step: Step) -> Seen:
    """No promise disappears."""
    for (id_,), _ in step.gone("_promises"):
        yield id_, "deleted"


def monotone_task_set_grows(step: Step) -> Seen:
    """No task disappears but by being fulfilled."""
    for (id_,), _ in step.gone("_tasks"):
        if step.task(id_) is None:
            yield id_, "deleted"


def preserved_promise_no_duplicate_ids(step: Step) -> Seen:
    """No id is inserted twice."""
    yield from ((key[0], "inserted again") for name, key in step.doubled if name == "_promises")


def grow_while_pending(relation: str) -> Check:
    """Who waits for a promise stays registered while it is pending; a new one has nobody but its owner."""

    def check(step: Step) -> Seen:
        for key, row in step.gone(relation):
            promise = step.promise(key[0])
            if promise and promise["state"] == "pending" and not is_dropped(key, row, step):
                yield key[0], f"pending, but {key[1]} does not wait any more"
        for (id_,), row in step.born("_promises"):
            for key in step.all_after(relation, id_):
                if row["state"] == "pending" and not is_own(row, key):
                    yield id_, f"new, but {key[1]} waits"

    return check


def shrink_once_settled(relation: str) -> Check:
    """Nobody registers on a settled promise."""

    def check(step: Step) -> Seen:
        for key, _ in step.born(relation):
            promise = step.promise(key[0])
            if promise and promise["state"] != "pending":
                yield key[0], f"settled, but {key[1]} waits"

    return check


def is_own(promise: Row, callback: Key) -> bool:
    """Whether a callback is that of the run which owns the promise."""
    return promise["execution"] is not None and promise["id"] == f"{callback[1]}.{promise['child']}"


def is_dropped(key: Key, row: Row, step: Step) -> bool:
    """Whether a callback of the older API is past its own timeout, or of a generation that has ended."""
    return (row.get("timeout_at") or step.now_ms + 1) <= step.now_ms or step.renewed(str(key[1]))


def consistent_obligation_discharge_requires_settled(step: Step) -> Seen:
    """Who waits is let go by a settlement only."""
    for relation in ("_callbacks", "_listeners"):
        for key, row in step.gone(relation):
            promise = step.promise(key[0])
            if (promise is None or promise["state"] == "pending") and not is_dropped(key, row, step):
                yield key[0], f"{key[1]} does not wait any more"


def consistent_callback_consumption_resumes_awaiter(step: Step) -> Seen:
    """A callback that goes leaves a wake reason, unless its task is over or waits for more."""
    for key, row in step.gone("_callbacks"):
        awaited, awaiter = key[:2]
        task = step.task(awaiter)
        if task is None or task["state"] == "fulfilled" or task["deadline"] <= step.now_ms:
            continue
        waits_for_all = task["execution"] is not None and any(
            image and image["state"] == "suspended" for image in step.task_images(awaiter)
        )
        if awaited not in step.recorded(awaiter) and not waits_for_all and not is_dropped(key, row, step):
            yield awaiter, f"was not told that {awaited} settled"


def consistent_listener_consumption_enqueues_unblock(step: Step) -> Seen:
    """A listener that goes leaves a message."""
    for key, _ in step.gone("_listeners"):
        if step.after("_unblocks", key) is None and key not in step.images["_unblocks"]:
            yield key[0], f"{key[1]} was not told"


def monotone_outbox_keys_never_disappear(step: Step) -> Seen:
    """Only an acknowledgement removes messages, and it does nothing else."""
    others = [name for name, images in step.images.items() if images and name != "_unblocks"]
    for key, _ in step.gone("_unblocks"):
        if others:
            yield key[0], f"message to {key[1]} removed by a step that changed {', '.join(others)}"


def consistent_new_unblock_carries_stored_record(step: Step) -> Seen:
    """A message names a promise that is settled, which is the record that it carries."""
    for key, row in step.born("_unblocks"):
        promise = step.promise(key[0])
        if not promise or promise["state"] == "pending" or row["created_at"] < promise["settled_at"]:
            yield key[0], f"message to {key[1]} without a settled promise"


def consistent_new_unblock_discharges_its_listener(step: Step) -> Seen:
    """A message takes the place of its listener."""
    for key, _ in step.born("_unblocks"):
        if key not in step.images["_listeners"] or step.after("_listeners", key):
            yield key[0], f"message to {key[1]}, who did not listen or still does"


def consistent_new_promise_born_clean(step: Step) -> Seen:
    """A promise is born pending before its deadline, or settled by it, without a value and unwatched; only
    a fork's copies of what its origin had are born as they were."""
    for (id_,), row in step.born("_promises"):
        watched = any(
            not is_own(row, key)
            for relation in ("_callbacks", "_listeners")
            for key in step.all_after(relation, id_)
        )
        copied = run_laws.is_copied(row, step)
        if row["state"] == "pending":
            sound = row["created_at"] < row["timeout_at"]
        elif copied:
            sound = row["created_at"] <= row["settled_at"] <= step.now_ms
        else:
            dead = row["settled_at"] == row["timeout_at"] <= step.now_ms and row["state"] == verdict(row)
            sound = dead and (row["created_at"] == row["timeout_at"] or "resonate:schedule" in row["tags"])
        if watched or not sound or not (copied or has_no_value(row)) or row["created_at"] > step.now_ms:
            yield id_, f"born {row['state']}, created {row['created_at']}, settled {row['settled_at']}"


def consistent_task_birth_couples_promise_birth(step: Step) -> Seen:
    """A task is born with its promise, and a targeted promise with its task."""
    versions = {"pending": {0}, "acquired": {1}, "fulfilled": {0}}
    promises = {id_: row for (id_,), row in step.born("_promises")}
    for edge in task_edges(step):
        promise = promises.get(edge.id)
        if edge.is_birth and not (
            promise
            and promise["target"] is not None
            and (promise["state"] == "pending") == (edge.new["state"] != "fulfilled")
            and edge.new["version"] in versions.get(edge.new["state"], ())
        ):
            yield edge.id, f"task born {edge.new['state']} at version {edge.new['version']}"
    for id_, row in promises.items():
        if row["target"] is not None and not any(step.task_images(id_)):
            yield id_, "targeted, but without a task"


def consistent_task_birth_state(step: Step) -> Seen:
    """A new task waits for its dispatch, or is leased, or is over; it has no wake reasons."""
    for edge in task_edges(step):
        row, state = edge.new, edge.new["state"]
        sound = (
            (state == "pending" and row["retry_at"] is not None and is_free(row))
            or (state == "acquired" and row["version"] >= 1 and is_leased(row) and row["retry_at"] is None)
            or (state == "fulfilled" and is_free(row, *TIMES))
        )
        if edge.is_birth and (not sound or step.all_after("_resumes", edge.id)):
            yield edge.id, f"task born {state}, {[row[column] for column in TIMES]}"


def monotone_task_resumes_grow_or_clear(step: Step) -> Seen:
    """Wake reasons are added to, or all handed over."""
    for id_ in {key[0] for key in step.images["_resumes"]}:
        before, after = step.all_before("_resumes", id_), step.all_after("_resumes", id_)
        if after and not after >= before and not step.enters(id_, "acquired", "suspended"):
            yield id_, f"lost {before - after}"


def consistent_task_resumes_cleared_only_on_dispatch_or_park(step: Step) -> Seen:
    """Wake reasons are handed over to a holder, dropped when the task suspends or is over."""
    places = ("acquired", "suspended", "fulfilled")
    for id_ in {key[0] for key in step.images["_resumes"]}:
        before, after = step.all_before("_resumes", id_), step.all_after("_resumes", id_)
        state = (step.task(id_) or {"state": "fulfilled"})["state"]
        if before and not after and state not in places and not step.enters(id_, *places):
            yield id_, f"{state}, but lost {before}"


def over(edges: Callable[[Step], Iterable[Edge]], holds: Holds) -> Check:
    """A law about versions that follow each other."""
    return lambda step: ((edge.id, edge.moved) for edge in edges(step) if not holds(edge))


LAWS: dict[str, Check] = {
    **{name: over(promise_edges, holds) for name, holds in PROMISE.items()},
    **{name: over(task_edges, holds) for name, holds in TASK.items()},
    **{name: over(schedule_edges, holds) for name, holds in SCHEDULES.items()},
    "monotone_promise_callbacks_grow_while_pending": grow_while_pending("_callbacks"),
    "monotone_promise_callbacks_shrink_once_settled": shrink_once_settled("_callbacks"),
    "monotone_promise_listeners_grow_while_pending": grow_while_pending("_listeners"),
    "monotone_promise_listeners_shrink_once_settled": shrink_once_settled("_listeners"),
    **{
        check.__name__: check
        for check in (
            preserved_settled_promise_record,
            monotone_promise_set_grows,
            monotone_task_set_grows,
            preserved_promise_no_duplicate_ids,
            consistent_obligation_discharge_requires_settled,
            consistent_callback_consumption_resumes_awaiter,
            consistent_listener_consumption_enqueues_unblock,
            monotone_outbox_keys_never_disappear,
            consistent_new_unblock_carries_stored_record,
            consistent_new_unblock_discharges_its_listener,
            consistent_new_promise_born_clean,
            consistent_task_birth_couples_promise_birth,
            consistent_task_birth_state,
            monotone_task_resumes_grow_or_clear,
            consistent_task_resumes_cleared_only_on_dispatch_or_park,
        )
    },
    **run_laws.LAWS,
}
