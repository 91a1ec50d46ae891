"""Laws of transitions of runs: signals, cancellation, generations and adopted promises, over one step.

What lives here: laws over heads, inboxes, signals and journals, which the protocol does not have. May not:
judge tasks and promises by themselves (history.py).

A journal row has no version but its birth, so "the journal says so" means that the row was born in the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

from pyengine.core.protocol.journal import ALLOCATING, RowType
from tests.support.steps import NONE, Key, Row, Step

Seen: TypeAlias = Iterator[tuple[str, object]]
Check: TypeAlias = Callable[[Step], Seen]

LIVE = ("running", "blocked")
ENDED = ("completed", "failed", "cancelled")
STATUS = {
    "none": {*LIVE},
    "running": {*LIVE, "cancelling", *ENDED},
    "blocked": {*LIVE, "cancelling", *ENDED},
    "cancelling": {"cancelling", *ENDED},
    **{status: {status} for status in ENDED},
}
BIRTH = ("id", "previous", "first_child", "abandoned", "written_by_client")
# rows that give away a child number, other than the receipt of a signal
SIGNALS = {RowType.SIGNAL_DELIVERED, RowType.SIGNAL_RECEIVED}
NUMBERED = ALLOCATING - {RowType.SIGNAL_RECEIVED}
EMPTY: Row = {"delivered": 0, "received": 0, "receiver": None}


def heads(step: Step) -> Iterator[tuple[Row | None, Row]]:
    """Heads that changed or are new, before and after."""
    for (execution,), chain in step.images["_executions"].items():
        if chain[-1] is not None:
            yield step.before("_executions", (execution,)), chain[-1]


def written(step: Step, execution: int, *types: str) -> list[Row]:
    """Rows of these types that the step wrote into a journal, in order."""
    rows = [row for _, row in step.born("_journal") if row["execution"] == execution and row["type"] in types]
    return sorted(rows, key=lambda row: int(row["seq"]))


def rows_of(step: Step, execution: int, *types: str) -> list[Row]:
    """All rows of these types in a journal."""
    found = (step.store.rows["_journal"][key] for key in step.store.under["_journal", execution])
    return [row for row in found if row["type"] in types]


def status(step: Step, execution: int) -> str:
    """Status of a run at the end, or none."""
    head = step.after("_executions", (execution,))
    return str(head["status"]) if head else "none"


def awaiter(step: Step, id_: str) -> int | None:
    """The journal of a run that waits, or waited before it ended in the step."""
    images = [image for image in step.task_images(id_) if image]
    return images[0]["execution"] if images else None


def inboxes(step: Step) -> Iterator[tuple[Key, Row, Row]]:
    """Inboxes that the step had to do with, before and after."""
    keys = {key[:2] for key in (*step.images["_inboxes"], *step.images["_signals"])}
    for key in keys | {
        (row["execution"], row["name"]) for _, row in step.born("_journal") if row["type"] in SIGNALS
    }:
        yield key, step.before("_inboxes", key) or EMPTY, step.after("_inboxes", key) or EMPTY


def is_taken(step: Step, execution: int, child: int) -> bool:
    """Whether a number that a receive had was used for something else: the code changed."""
    keys = step.store.under["_journal", execution]
    rows = (step.store.rows["_journal"][key] for key in keys)
    return any(row["child"] == child and row["type"] in NUMBERED for row in rows)


def is_copied(promise: Row, step: Step) -> bool:
    """Whether a new promise that is settled belongs to a run that is as new: a fork."""
    owner = (promise["execution"],)
    return bool(
        promise["state"] != "pending"
        and step.before("_executions", owner) is None
        and step.after("_executions", owner)
    )


def preserved_journal(step: Step) -> Seen:
    """A journal row never changes and never goes."""
    for key, chain in step.images["_journal"].items():
        if any(row is not None for row in chain[:-1]):
            yield str(key), f"row {chain[0]} became {chain[-1]}"


def consistent_run_status_edge_admissible(step: Step) -> Seen:
    """A run that was asked to end goes on to an end only, and nothing leaves an end."""
    for key, chain in step.images["_executions"].items():
        for old, new in pairwise(chain):
            edge = (old or {"status": "none"})["status"], (new or {"status": "none"})["status"]
            if edge[1] not in STATUS[edge[0]]:
                yield str(key[0]), f"{edge[0]} -> {edge[1]}"


def preserved_run_birth_fields_immutable(step: Step) -> Seen:
    """A head keeps its id, what was before it, where its children begin and who reaches it."""
    for old, new in heads(step):
        if old and any(old[column] != new[column] for column in BIRTH):
            yield new["id"], f"{[old[column] for column in BIRTH]} -> {[new[column] for column in BIRTH]}"


def consistent_request_of_cancellation_is_told_once(step: Step) -> Seen:
    """Who is asked to end has one CancelRequested, at the place that the head names, and a grace, or has
    ended with it."""
    for old, new in heads(step):
        told, before = (
            written(step, new["execution"], RowType.CANCEL_REQUESTED),
            old or {"status": "none", "cancel_seq": None},
        )
        asked = new["status"] == "cancelling" != before["status"]
        if len(rows_of(step, new["execution"], RowType.CANCEL_REQUESTED)) > 1:
            yield new["id"], "asked to end twice"
        elif told and before["status"] != "none" and not asked and new["status"] not in ENDED:
            yield new["id"], f"asked to end, and {new['status']}"
        elif asked and (not told or new["cancel_seq"] != told[0]["seq"] or new["cancel_until"] is None):
            yield new["id"], f"cancelling since {new['cancel_seq']} until {new['cancel_until']}, told: {told}"
        elif not told and new["cancel_seq"] != before["cancel_seq"]:
            yield new["id"], f"cancel_seq {before['cancel_seq']} -> {new['cancel_seq']}, and nobody was told"


def consistent_request_of_cancellation_reaches_the_family(step: Step) -> Seen:
    """When a run is asked to end, so is each of its children that lives and was not abandoned."""
    for old, new in heads(step):
        if new["status"] != "cancelling" or (old and old["status"] == "cancelling"):
            continue
        for row in rows_of(step, new["execution"], RowType.CHILD_RUN_SCHEDULED):
            child = step.promise(f"{new['id']}.{row['child']}")
            if child is None or child["state"] != "pending" or child["timeout_at"] <= step.now_ms:
                continue
            head = step.after("_executions", (child["head"],))
            if head and head["status"] in LIVE and not head["abandoned"]:
                yield child["id"], f"{head['status']} though {new['id']} was asked to end"


def consistent_request_of_cancellation_finds_a_worker(step: Step) -> Seen:
    """Who is asked to end is ready or held: nobody sleeps through it, put off or set aside."""
    for old, new in heads(step):
        if new["status"] == "cancelling" != (old or {"status": None})["status"]:
            task = step.task(new["id"]) or {"state": "none"}
            if task["state"] != "acquired" and not (
                task["state"] == "pending" and task["retry_at"] <= step.now_ms
            ):
                yield new["id"], f"asked to end, and {task['state']} until {task.get('retry_at')}"


def consistent_grace_is_kept(step: Step) -> Seen:
    """The sweep cancels nobody whose grace is not over."""
    for id_ in step.settled if step.mark == "tick" else ():
        promise = step.promise(id_)
        if promise and promise["state"] == "rejected_canceled":
            head = step.before("_executions", (promise["head"],)) or {"cancel_until": None}
            if head["cancel_until"] is None or head["cancel_until"] > step.now_ms:
                yield id_, f"cancelled, though it has until {head['cancel_until']}"


def preserved_signals(step: Step) -> Seen:
    """What was delivered stays delivered, as it was; of a backlog rows go, and none changes."""
    for key, chain in step.images["_signals"].items():
        if any(row is not None for row in chain[:-1]):
            yield str(key), f"signal {chain[0]} became {chain[-1]}"
    for key, chain in step.images["_backlog"].items():
        if chain[0] is not None and chain[-1] not in (None, chain[0]):
            yield str(key), f"signal {chain[0]} became {chain[-1]}"


def preserved_no_signal_after_the_end(step: Step) -> Seen:
    """Nothing is delivered to a run that has ended, and nothing put into its backlog."""
    for key, _ in step.born("_backlog"):
        if (step.promise(key[0]) or NONE)["state"] != "pending":
            yield str(key), "put into the backlog of a run that has ended"
    for key, _ in step.born("_signals"):
        if step.status(key[0])[0] in ENDED:
            yield str(key), f"delivered to a run that is {status(step, key[0])}"


def consistent_signals_are_counted(step: Step) -> Seen:
    """Deliveries and receipts of a name go up by one each, and the journal has every one of them."""
    for (execution, name), old, new in inboxes(step):
        sent = sorted(key[2] for key, _ in step.born("_signals") if key[:2] == (execution, name))
        for kind, counter in ((RowType.SIGNAL_DELIVERED, "delivered"), (RowType.SIGNAL_RECEIVED, "received")):
            told = [row["attempt"] for row in written(step, execution, kind) if row["name"] == name]
            due = list(range(old[counter] + 1, new[counter] + 1))
            if (
                told != due
                or new[counter] < old[counter]
                or (kind == RowType.SIGNAL_DELIVERED and sent != due)
            ):
                yield f"{execution} {name}", f"{old[counter]} -> {new[counter]}, told {told}, stored {sent}"


def consistent_signal_ends_a_wait(step: Step) -> Seen:
    """A delivery to which a receive waits is received at once, by the child that the inbox names."""
    for (execution, name), old, new in inboxes(step):
        child = old["receiver"]
        if child is None or new["delivered"] == old["delivered"]:
            continue
        got = [
            row["child"] for row in written(step, execution, RowType.SIGNAL_RECEIVED) if row["name"] == name
        ]
        if child not in got and status(step, execution) in LIVE and not is_taken(step, execution, child):
            yield f"{execution} {name}", f"child {child} waits, and {new['delivered']} was received by {got}"


def consistent_receive_is_kept(step: Step) -> Seen:
    """A receive waits until it has received, or its run was asked to end or has ended."""
    for (execution, name), old, new in inboxes(step):
        child = old["receiver"]
        if child in (None, new["receiver"]) or status(step, execution) not in LIVE:
            continue
        got = any(
            row["child"] == child and row["name"] == name
            for row in written(step, execution, RowType.SIGNAL_RECEIVED)
        )
        if not got and not is_taken(step, execution, child):
            yield f"{execution} {name}", f"child {child} waits no more, and received nothing"


def consistent_resumption_wakes(step: Step) -> Seen:
    """A run whose wait has ended does not sleep on."""
    for old, new in heads(step):
        if (old or new)["status"] == "blocked" and new["status"] == "running":
            task = step.task(new["id"]) or {"state": "none"}
            if task["state"] == "suspended":
                yield new["id"], "its wait has ended, and it is suspended"


def births_of_generations(step: Step) -> Iterator[tuple[Row, Row, Row]]:
    """Heads that go on from one that was before: it before and after, and the new one."""
    for (execution,), _ in step.born("_executions"):
        new = step.after("_executions", (execution,))
        if new and new["previous"] is not None:
            key = (new["previous"],)
            none: Row = {"id": None, "status": "none", "abandoned": None, "next_child": 0}
            yield step.before("_executions", key) or none, step.after("_executions", key) or none, new


def consistent_generation_follows_an_end(step: Step) -> Seen:
    """The next generation begins when the one before completes, under the same id and with further child
    numbers, and is ready; a journal goes on once."""
    for before, old, new in births_of_generations(step):
        promise, task = step.promise(new["id"]), step.task(new["id"])
        others = [
            row for row in step.store.rows["_executions"].values() if row["previous"] == new["previous"]
        ]
        sound = (
            (before["status"], old["status"], new["status"]) == ("running", "completed", "running")
            and (old["id"], old["abandoned"]) == (new["id"], new["abandoned"])
            and new["first_child"] >= before["next_child"]
            and promise
            and (promise["state"], promise["head"]) == ("pending", new["execution"])
            and task
            and (task["state"], task["execution"]) == ("pending", new["execution"])
            and written(step, old["execution"], RowType.EXECUTION_COMPLETED)
            and written(step, new["execution"], RowType.EXECUTION_STARTED)
        )
        if not sound or len(others) > 1:
            yield new["id"], f"{before} -> {old} goes on as {new}, {len(others)} times; task {task}"


def consistent_signals_are_carried(step: Step) -> Seen:
    """What was sent and not received lies before the next generation, in the same order."""
    for _, old, new in births_of_generations(step):
        if "execution" not in old:
            continue
        for key in step.store.under["_inboxes", old["execution"]]:
            inbox = step.store.rows["_inboxes"][key]
            own = (old["execution"], inbox["name"])
            left = payloads(step, "_signals", own, inbox["received"])
            if inbox["backlog_upto"] is not None:
                next_number = inbox["backlog_from"] + inbox["delivered"]
                left += payloads(step, "_backlog", (old["id"], inbox["name"]), next_number)
            after = step.after("_inboxes", (new["execution"], inbox["name"])) or {"backlog_from": 2**31}
            carried = payloads(step, "_backlog", (new["id"], inbox["name"]), after["backlog_from"])
            if left and carried[-len(left) :] != left:
                yield new["id"], f"{left} of {inbox['name']} lay there, {carried} went on"


def payloads(step: Step, relation: str, inbox: Key, after: int) -> list[tuple[object, object]]:
    """Key and payload of the signals of one inbox or backlog after a number, in order."""
    keys = [key for key in step.store.under[relation, inbox[0]] if key[1] == inbox[1] and key[2] > after]
    rows = (step.store.rows[relation][key] for key in sorted(keys))
    return [(row["key"], row["data"]) for row in rows]


def consistent_generation_lets_go(step: Step) -> Seen:
    """What the generation before waited for does not wake the next one."""
    for _, _, new in births_of_generations(step):
        for key in step.store.awaited_by[new["id"]]:
            promise = step.promise(key[0])
            if key[3] >= 0 or (promise and promise["execution"] == new["previous"]):
                yield new["id"], f"{key[0]} would still wake it"


def adoptions(keys: Iterable[tuple[Key, Row]]) -> Iterator[tuple[str, str, int]]:
    """Of callbacks those of adopted promises: awaited, awaiter, child."""
    for key, _ in keys:
        if key[3] >= 0:
            yield key[0], key[1], key[3]


def consistent_adoption_is_in_the_journal(step: Step) -> Seen:
    """Who adopts a promise has scheduled it by its id, and its deadline is enforced from then on."""
    for awaited, id_, child in adoptions(step.born("_callbacks")):
        execution, promise = awaiter(step, id_), step.promise(awaited)
        told = execution is not None and any(
            (row["child"], row["name"]) == (child, awaited)
            for row in written(step, execution, RowType.PROMISE_REGISTERED)
        )
        if not told or promise is None or not promise["external"]:
            yield id_, f"adopted {awaited} as child {child}, told: {told}"


def consistent_adoption_ends_in_the_journal(step: Step) -> Seen:
    """Who adopted a promise that settles is told by its id, under the number of its own, and at no other
    time."""
    for awaited, id_, child in adoptions(step.gone("_callbacks")):
        execution = awaiter(step, id_)
        over = execution is None or status(step, execution) in ENDED or step.renewed(id_)
        told = execution is not None and any(
            (row["child"], row["name"]) == (child, awaited)
            for row in written(step, execution, RowType.CHILD_SETTLED)
        )
        if not over and not told:
            yield id_, f"child {child}, {awaited}, is over, and nobody was told"
    for _, row in step.born("_journal"):
        if row["type"] == RowType.CHILD_SETTLED and row["name"] is not None:
            promise = step.promise(row["name"])
            if promise is None or promise["state"] == "pending":
                yield str(row["execution"]), f"told that {row['name']} is over, which is pending"


LAWS: dict[str, Check] = {
    check.__name__: check
    for check in (
        preserved_journal,
        consistent_run_status_edge_admissible,
        preserved_run_birth_fields_immutable,
        consistent_request_of_cancellation_is_told_once,
        consistent_request_of_cancellation_reaches_the_family,
        consistent_request_of_cancellation_finds_a_worker,
        consistent_grace_is_kept,
        preserved_signals,
        preserved_no_signal_after_the_end,
        consistent_signals_are_counted,
        consistent_signal_ends_a_wait,
        consistent_receive_is_kept,
        consistent_resumption_wakes,
        consistent_generation_follows_an_end,
        consistent_signals_are_carried,
        consistent_generation_lets_go,
        consistent_adoption_is_in_the_journal,
        consistent_adoption_ends_in_the_journal,
    )
}
