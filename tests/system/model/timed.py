"""What an engine with locks may do with a specification: the model that `linear.check` asks.

What lives here: `Machine`, the specification as `step(state, request, now)` with what the checker must know
of its objects, and `Timed`, which asks it backwards and remembers which instant was read under which lock.
May not: know how promises and tasks are stored, or in which order the search goes.

Deadlines and leases are events that nobody asks for. An expired promise shows by projection that it is
expired, but that its awaiters are woken shows only once it is settled: by whoever is told of it, which the
machine does, or by a sweep. A lease ends in a sweep only. A sweep is one atomic step that takes as many
leases as its answer says and at most as many promises; it and a heartbeat may skip what others have locked,
hence only if they overlap with something. The search makes no other choice on behalf of the engine.

Each of the other operations has one outcome for each instant. The locks are those that the engine is known to
take with that answer and that the design demands: rows of promises to write or to register, rows of tasks to
move them. Where it may do without, none is assumed, so nothing correct is refuted. What is settled needs no
lock: nothing that is said of it depends on time any more.

A preload is not a part of its operation but one reading for each promise that it shows, fresher maybe. It
does not wait while its operation holds something, so it may leave out a promise whose deadline somebody else
is just settling; here too only if they overlap with something. A page of a search is one reading of all that
it shows, whole, and what it shows past its deadline it has settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Generic, Protocol

from tests.system.model.linear import Operation, Request, Response, S


class Machine(Protocol[S]):
    """A specification that answers, and what the checker must know of its objects."""

    def step(self, state: S, request: Request, now_ms: int) -> tuple[S, Response]:
        """One operation at one instant. Of deadlines it writes those that it tells somebody of."""

    def expire(self, state: S, id_: str, now_ms: int) -> S:
        """The deadline's verdict on one promise that is due, with all that settling it brings about."""

    def lose(self, state: S, id_: str, now_ms: int) -> S:
        """The end of one lease that is over."""

    def due(self, state: S, now_ms: int) -> Sequence[str]:
        """Promises that a sweep would settle or a touch persist: stored pending, past their deadline."""

    def swept(self, state: S, now_ms: int) -> Sequence[str]:
        """Those of `due` that a sweep looks for."""

    def overdue(self, state: S, now_ms: int) -> Sequence[str]:
        """Tasks of live promises that are acquired and past the end of their lease."""

    def awaiters(self, state: S, id_: str) -> Sequence[str]:
        """Tasks that are registered on a promise."""

    def pending(self, state: S, id_: str) -> bool:
        """There is such a promise, and no verdict is stored."""


Stamps = tuple[tuple[str, int], ...]  # (lock, instant read under it), only those that may still bind somebody
Stamped = tuple[S, Stamps]
Locks = frozenset[str]


def reach(request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids whose promise row, and ids whose task row, an operation may read or lock by name."""
    data = request["data"]
    match request["kind"]:
        case "promise.register_callback" | "promise.register_listener":
            return (data["awaited"],), ()
        case "task.create":
            return (data["action"]["data"]["id"],), (data["action"]["data"]["id"],)
        case "task.heartbeat":
            return (), tuple(dict.fromkeys(pair["id"] for pair in data["tasks"]))
        case "task.suspend":
            return tuple(each["data"]["awaited"] for each in data["actions"]), (data["id"],)
        case "task.fence":
            return (data["action"]["data"]["id"],), (data["id"], data["action"]["data"]["id"])
        case "task.acquire" | "task.release" | "task.halt" | "task.continue":
            return (), (data["id"],)
        case "peek":
            return (data["id"],), ()
        case "promise.get" | "promise.create" | "promise.settle" | "task.get" | "task.fulfill":
            return (data["id"],), (data["id"],)
        case "tick" | "tables" | "preload" | "promise.search" | "task.search":
            return (), ()
        case other:
            raise ValueError(f"{other} is not an operation of recorded histories")


def agrees(expected: Response, found: Response) -> bool:
    """The recorded answer is the specified one; the wording of a refusal is free."""
    if expected["status"] >= 400 or expected["status"] != found["status"]:
        return bool(expected["status"] == found["status"])
    return bool(_bare(expected["data"]) == _bare(found["data"]))


def inner_status(data: Mapping[str, Any]) -> int:
    """Status of the operation inside a fence, from its answer."""
    action = data["action"]
    return int(action["status"] if "status" in action else action["head"]["status"])


def _bare(data: Any) -> Any:
    """An answer without what names the call instead of answering it, and without the preload."""
    if not isinstance(data, Mapping):
        return data
    bare = {name: value for name, value in data.items() if name != "preload"}
    if "action" in data:
        status = inner_status(data)
        bare["action"] = (status, data["action"]["data"] if status < 400 else None)
    return bare


def _by_deadline(promise: Mapping[str, Any]) -> bool:
    """The verdict is that of its deadline."""
    return bool(promise.get("settledAt") == promise["timeoutAt"])


def _subsets(ids: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Every subset, the whole first."""
    whole = tuple(ids)
    for size in range(len(whole), -1, -1):
        yield from combinations(whole, size)


def _rows(promises: Iterable[str], tasks: Iterable[str]) -> Locks:
    """Names of the locks on promise rows and on task rows."""
    return frozenset((*(f"p:{id_}" for id_ in promises), *(f"t:{id_}" for id_ in tasks)))


READS = frozenset({"promise.get", "promise.create", "task.get", "task.create"})  # of what is there and live
ONCE = READS | {"preload", "peek", "promise.settle", "promise.register_callback", "promise.register_listener"}
SETTLES = frozenset({"promise.settle", "task.fulfill", "task.fence"})


class Timed(Generic[S]):
    """A model for `check`: the machine, the instants under its locks, and what the engine may do unasked."""

    def __init__(self, machine: Machine[S]) -> None:
        self.machine = machine
        self.settled: dict[tuple[S, int], S] = {}
        self.parts: dict[tuple[int, tuple[str, ...]], tuple[Request, Request]] = {}

    def outcomes(self, state: Stamped[S], operation: Operation, now_ms: int) -> Iterator[Stamped[S]]:
        """States after it, where the answer agrees and time has not run backwards under any lock.

        What is settled keeps no instant: nothing that is said of it depends on one any more.
        """
        core, stamps = state
        known = dict(stamps)
        for after, read, locked in self._ways(core, operation, now_ms):
            if all(known.get(lock, now_ms) <= now_ms for lock in read | locked):
                fresh = {**known, **dict.fromkeys(locked, now_ms)}
                alive = [each for each in fresh.items() if self.machine.pending(after, each[0][2:])]
                yield after, tuple(sorted(alive))

    def forget(self, state: Stamped[S], floor_ms: int) -> Stamped[S]:
        """Instants up to the floor bind nobody; what is dead for all and awaited by none is settled."""
        core, stamps = state
        if (core, floor_ms) not in self.settled:
            after = core
            for id_ in self.machine.due(core, floor_ms):
                if not self.machine.awaiters(core, id_):
                    after = self.machine.expire(after, id_, floor_ms)
            self.settled[core, floor_ms] = after
        return self.settled[core, floor_ms], tuple(each for each in stamps if each[1] > floor_ms)

    def inert(self, operation: Operation) -> bool:
        """Refusals, and what is done once: a promise that is settled or a row that is there stays so."""
        return operation.answer["status"] >= 400 or operation.request["kind"] in ONCE

    def touches(self, operations: Sequence[Operation]) -> list[frozenset[str] | None]:
        """The ids that it names, and whoever may be registered on them and be woken."""
        waiters: dict[str, set[str]] = {}
        branches: set[str] = set()
        for each in operations:
            data = each.request["data"]
            about = data["action"]["data"] if "action" in data else data
            if "resonate:branch" in about.get("tags", ()):
                branches.add(about["id"])
            for action in data.get("actions", [{"data": data}] if "awaiter" in data else []):
                waiters.setdefault(action["data"]["awaited"], set()).add(action["data"]["awaiter"])
        found: list[frozenset[str] | None] = []
        for each in operations:
            promises, tasks = reach(each.request)
            woken = [awaiter for id_ in promises for awaiter in waiters.get(id_, ())]
            told = each.answer["data"] if each.request["kind"] == "tick" else None
            idle = told is not None and not told["promises"] and not told["leases"]
            seen = branches if each.request["kind"] == "preload" else ()
            found.append(frozenset() if idle else frozenset((*promises, *tasks, *woken, *seen)) or None)
        return found

    def _ways(self, core: S, operation: Operation, now_ms: int) -> Iterator[tuple[S, Locks, Locks]]:
        """Every way to the recorded answer: the state after it, the locks that it read under and took."""
        kind = operation.request["kind"]
        if kind == "tick":
            yield from self._sweep(core, operation, now_ms)
        elif kind == "peek":
            yield from self._peek(core, operation, now_ms)
        elif kind == "preload":
            yield from self._preload(core, operation, now_ms)
        elif kind in ("promise.search", "task.search"):
            yield from self._page(core, operation, now_ms)
        elif kind == "task.heartbeat":
            yield from self._renew(core, operation, now_ms)
        else:
            promises, tasks = reach(operation.request)
            near = frozenset(self.machine.due(core, now_ms)).intersection(promises + tasks)
            after, answer = self.machine.step(core, operation.request, now_ms)
            if agrees(answer, operation.answer):
                yield after, _rows(promises, tasks), self._locks(core, operation, near)

    def _locks(self, before: S, operation: Operation, near: Iterable[str]) -> Locks:
        """Rows that are there and are locked whenever this operation gets this answer."""
        kind, answer = operation.request["kind"], operation.answer
        promises, tasks = reach(operation.request)
        if answer["status"] == 409:
            return _rows((), tasks[:1])
        if answer["status"] >= 400:
            return frozenset()
        if kind in READS and not near and self.machine.pending(before, promises[0]):
            return _rows((), tasks if kind == "task.create" else ())
        if kind == "task.fence" and inner_status(answer["data"]) >= 400:
            return _rows((), tasks[:1])
        woken = self.machine.awaiters(before, promises[0]) if kind in SETTLES else ()
        return _rows(promises, (*tasks, *woken))

    def _expire(self, core: S, ids: Iterable[str], now_ms: int) -> tuple[S, Locks]:
        """Persist the deadline verdicts of these promises."""
        locked: set[str] = set()
        for id_ in ids:
            locked |= _rows((id_,), (id_, *self.machine.awaiters(core, id_)))
            core = self.machine.expire(core, id_, now_ms)
        return core, frozenset(locked)

    def _sweep(self, core: S, operation: Operation, now_ms: int) -> Iterator[tuple[S, Locks, Locks]]:
        """A sweep settles what is due and free, and takes the leases that it says it took."""
        due = self.machine.swept(core, now_ms)
        settled, told = (int(operation.answer["data"][name]) for name in ("promises", "leases"))
        for chosen in _subsets(due) if operation.crowded else [tuple(due)]:
            # it may also have settled what the model has forgotten to be pending
            if len(chosen) > settled:
                continue
            swept, locked = self._expire(core, chosen, now_ms)
            overdue = self.machine.overdue(swept, now_ms)
            if len(overdue) < told or (len(overdue) > told and not operation.crowded):
                continue
            for lost in combinations(overdue, told):
                after = swept
                for id_ in lost:
                    after = self.machine.lose(after, id_, now_ms)
                yield after, frozenset(), locked | _rows((), lost)

    def _preload(self, core: S, operation: Operation, now_ms: int) -> Iterator[tuple[S, Locks, Locks]]:
        """Reading a branch waits for nobody: whose deadline somebody is just settling may be left out."""
        expected = self.machine.step(core, operation.request, now_ms)[1]["data"]["preload"]
        found = operation.answer["data"]["preload"]
        missing = [each for each in expected if each["id"] not in found]
        if not missing or (operation.crowded and all(map(_by_deadline, missing))):
            yield core, frozenset(), frozenset()

    def _peek(self, core: S, operation: Operation, now_ms: int) -> Iterator[tuple[S, Locks, Locks]]:
        """A promise as it is shown in a preload; nothing is written, but what is due is locked."""
        expected = self.machine.step(core, operation.request, now_ms)[1]["data"]["promise"]
        found = operation.answer["data"]["promise"]
        if expected == found:
            yield core, _rows([found["id"]], ()), _rows([found["id"]] if _by_deadline(found) else (), ())

    def _page(self, core: S, operation: Operation, now_ms: int) -> Iterator[tuple[S, Locks, Locks]]:
        """A search shows nothing that was written after the instant that it read, and settles what is due."""
        _, answer = self.machine.step(core, operation.request, now_ms)
        if not agrees(answer, operation.answer):
            return
        page = answer["data"].get("promises", answer["data"].get("tasks")) if answer["status"] == 200 else ()
        shown = [each["id"] for each in page]
        due = [id_ for id_ in self.machine.due(core, now_ms) if id_ in shown]
        after, locked = self._expire(core, due, now_ms)
        yield after, _rows(shown, shown), locked

    def _renew(self, core: S, operation: Operation, now_ms: int) -> Iterator[tuple[S, Locks, Locks]]:
        """A heartbeat renews what is held at that version, unless somebody has locked it."""
        _, answer = self.machine.step(core, operation.request, now_ms)
        if not agrees(answer, operation.answer):
            return
        ids = reach(operation.request)[1] if answer["status"] == 200 else ()
        held = [id_ for id_ in ids if self._beat(core, operation.request, [id_], now_ms) != core]
        for renewed in _subsets(held) if operation.crowded else [tuple(held)]:
            yield self._beat(core, operation.request, renewed, now_ms), frozenset(), _rows((), renewed)

    def _beat(self, core: S, request: Request, ids: Sequence[str], now_ms: int) -> S:
        """The state after a heartbeat that reached these ids only."""
        part = (id(request), tuple(ids))
        if part not in self.parts:
            pairs = [pair for pair in request["data"]["tasks"] if pair["id"] in ids]
            self.parts[part] = (request, {**request, "data": {**request["data"], "tasks": pairs}})
        return self.machine.step(core, self.parts[part][1], now_ms)[0] if ids else core
