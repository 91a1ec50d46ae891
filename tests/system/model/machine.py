"""The reference model of the promise and task protocol: one function from a state, a request and an instant
to the next state and the answer.

What lives here: `step` (every operation of promises and tasks), `sweep` (what time does), and the settlement
chain that both share. May not: know of SQL, of sessions or of how requests travel. It is deterministic and
pure: a state is never changed, and a refused request gives back the very state it was given.

Two readings of a deadline are lawful: to answer the projection and write nothing, or to write the verdict
first. The model writes exactly what it has told: a promise whose record is in an answer, or whose task was
answered as fulfilled, is settled before it is answered (so "timed out" is always a stored fact); whatever an
operation only looks at, to refuse or to choose, stays as stored. The one exception is a preload, which comes
after a task was taken and answers the projection alone. A settlement that comes early or late moves wake-ups,
so comparing "up to projection" would hide the very chain that matters; with this rule tables can be compared
row by row after every step.

A task that becomes pending has `retry_at` = now (or its delay): dispatch is a step of its own, `task.offer`.
A settled promise's task stays as a row in state fulfilled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.system.model import request_checks as checks
from tests.system.model.addresses import canonical, queue, whole
from tests.system.model.request_checks import Creation, Refused, Verdict
from tests.system.model.state import Json, Promise, State, Task, Unblock

__all__ = ["KINDS", "Draft", "State", "run", "step", "sweep"]

Handler = Callable[["Draft", Json], tuple[int, Json]]
OK = 200
GO_ON = 300
HOUR = 3_600_000
# how long a task waits that was released once, twice, ...: whoever cannot run it would take it again at once
WAITS = (0, 100, 500, 2000, 5000)


class Draft:
    """The next state while an operation works on it."""

    def __init__(self, state: State, now: int) -> None:
        self.now = now
        self.state = state
        self.promises = dict(state.promises)
        self.tasks = dict(state.tasks)
        self.callbacks = set(state.callbacks)
        self.listeners = set(state.listeners)
        self.unblocks = dict(state.unblocks)
        self.outcomes: Counter[str] = Counter()

    def freeze(self) -> State:
        """The next state."""
        return replace(
            self.state,
            promises=self.promises,
            tasks=self.tasks,
            callbacks=frozenset(self.callbacks),
            listeners=frozenset(self.listeners),
            unblocks=self.unblocks,
        )

    # looking

    def promise(self, id_: str) -> Promise:
        """A promise as stored; 404."""
        if id_ not in self.promises:
            raise Refused(404, f"no promise {id_}")
        return self.promises[id_]

    def task(self, id_: str) -> Task:
        """A task as stored; 404."""
        if id_ not in self.tasks:
            raise Refused(404, f"no task {id_}")
        return self.tasks[id_]

    def live(self, id_: str) -> bool:
        """Whether a promise is pending at this instant."""
        promise = self.promises[id_]
        return promise.state == "pending" and promise.timeout_at > self.now

    def hold(self, id_: str, version: int) -> Task:
        """The guard of a lease: acquired, at this version, alive; 404, 409. An overdue lease still holds."""
        task = self.task(id_)
        if task.state != "acquired" or task.version != version or not self.live(id_):
            raise Refused(409, f"task {id_} is not held at version {version}")
        return task

    def projected(self, id_: str) -> Promise:
        """A promise as it is now, stored or not."""
        promise = self.promises[id_]
        if promise.state != "pending" or promise.timeout_at > self.now:
            return promise
        state = "resolved" if promise.timer else "rejected_timedout"
        return replace(promise, state=state, settled_at=promise.timeout_at)

    # answering

    def told(self, id_: str) -> Json:
        """A promise as answered: past its deadline it is settled first."""
        return self.told_all([id_])[0]

    def told_all(self, ids: list[str]) -> list[Json]:
        """Promises as answered together."""
        self.settle(ids)
        return [self.promises[id_].wire() for id_ in ids]

    def tasks_told(self, ids: list[str]) -> list[Json]:
        """Tasks as answered together: fulfilled once the promise is past its deadline."""
        self.settle(ids)
        return [self.tasks[id_].wire() for id_ in ids]

    def preload(self, id_: str) -> list[Json]:
        """The other promises of the same branch, by id, as they are now."""
        branch = self.promises[id_].tag("branch")
        others = sorted(
            each.id
            for each in self.promises.values()
            if branch is not None and each.tag("branch") == branch and each.id != id_
        )
        return [self.projected(other).wire() for other in others]

    def both(self, id_: str) -> Json:
        """A task with its promise and what it will ask for next."""
        promise = self.told(id_)
        return {"task": self.tasks[id_].wire(), "promise": promise, "preload": self.preload(id_)}

    # writing

    def got_on(self, id_: str) -> None:
        """Nobody has given the task back since."""
        self.tasks[id_] = replace(self.tasks[id_], releases=0, released_until=None)

    def change(self, id_: str, state: str, **fields: object) -> None:
        """Move a task; everything that belongs to the state it leaves is cleared."""
        bare = replace(self.tasks[id_], state=state, pid=None, ttl=None, expires_at=None, retry_at=None)
        self.tasks[id_] = replace(bare, **fields)  # type: ignore[arg-type]

    def acquire(self, id_: str, pid: str, ttl: int) -> None:
        """pending to acquired: the only place where a version rises."""
        self.change(
            id_,
            "acquired",
            version=self.tasks[id_].version + 1,
            pid=pid,
            ttl=ttl,
            expires_at=self.now + ttl,
            acquired_at=self.now,
            resumes=frozenset(),
        )

    def create(self, about: Creation) -> None:
        """A new promise, with its task; born dead if its deadline is not ahead."""
        dead = about.timeout_at <= self.now
        promise = Promise(
            id=about.id,
            state="pending",
            timeout_at=about.timeout_at,
            created_at=min(self.now, about.timeout_at),
            param=about.param,
            tags=about.tags,
        )
        external = promise.target is not None or promise.timer or promise.tag("external") == "true"
        self.promises[about.id] = replace(promise, external=external)
        if promise.target is not None:
            # SDKs give naps a target: nobody is asked to run them
            first = about.timeout_at if promise.timer else max(about.delay or 0, self.now)
            self.tasks[about.id] = Task(id=about.id, state="pending", version=0, retry_at=first)
        if dead:
            self.settle([about.id])

    def obligate(self, awaited: str) -> None:
        """Whoever is registered on a promise must be woken by its deadline too, so it becomes external."""
        self.promises[awaited] = replace(self.promises[awaited], external=True)

    def refuse_internal(self, awaited: str) -> None:
        """The strict profile registers on external promises only."""
        if self.state.profile == "strict" and not self.promises[awaited].external:
            raise Refused(422, f"{awaited} is internal")

    # the settlement chain: settle, resume, execute

    def settle(self, ids: Iterable[str], verdict: Verdict | None = None) -> list[str]:
        """Settle what is pending: by its deadline if that has come, else by the verdict if there is one.
        All of them first, then the listeners and the awaiters. Returns what was settled."""
        settled = [id_ for id_ in ids if self._settle_row(id_, verdict)]
        for id_ in settled:
            if id_ in self.tasks:
                self.change(id_, "fulfilled", resumes=frozenset(), acquired_at=None)
                self.got_on(id_)
        for id_ in settled:
            for awaited, address in sorted(self.listeners):
                if awaited == id_:
                    self.listeners.remove((awaited, address))
                    self.unblocks[awaited, address] = Unblock(created_at=self.now)
            for awaited, awaiter in sorted(self.callbacks):
                if awaited == id_:
                    self.callbacks.remove((awaited, awaiter))
                    self.outcomes[self._resume(awaiter, awaited)] += 1
        return settled

    def _settle_row(self, id_: str, verdict: Verdict | None) -> bool:
        promise = self.promises[id_]
        if promise.state != "pending":
            return False
        settled = self.projected(id_)
        if settled.state == "pending" and verdict is not None:
            settled = replace(promise, state=verdict.state, settled_at=self.now, value=verdict.value)
        self.promises[id_] = settled
        return settled.state != "pending"

    def _resume(self, awaiter: str, awaited: str) -> str:
        task = self.tasks.get(awaiter)
        if task is None:
            return "absent"
        if task.state == "fulfilled":
            return "fulfilled"
        if not self.live(awaiter):
            return "expired"
        if awaited in task.resumes:
            return "duplicate"
        if task.state == "suspended":
            self.change(awaiter, "pending", retry_at=self.now, resumes=frozenset([awaited]))
            return "resumed"
        self.tasks[awaiter] = replace(task, resumes=task.resumes | {awaited})
        return "buffered"


# promises


def promise_get(draft: Draft, data: Json) -> tuple[int, Json]:
    id_ = checks.text(data, "id")
    draft.promise(id_)
    return OK, {"promise": draft.told(id_)}


def promise_create(draft: Draft, data: Json) -> tuple[int, Json]:
    return OK, {"promise": created(draft, checks.creation(data, draft.state.profile))}


def created(draft: Draft, about: Creation) -> Json:
    """Create if absent; an existing promise answers as it is, whatever was asked."""
    if about.id not in draft.promises:
        draft.create(about)
    return draft.told(about.id)


def promise_settle(draft: Draft, data: Json) -> tuple[int, Json]:
    return OK, {"promise": settled(draft, checks.verdict(data))}


def settled(draft: Draft, about: Verdict) -> Json:
    """Settle if pending; a settled promise answers as it is. 404."""
    draft.promise(about.id)
    draft.settle([about.id], about)
    return draft.told(about.id)


def promise_register_callback(draft: Draft, data: Json) -> tuple[int, Json]:
    awaited, awaiter = checks.text(data, "awaited"), checks.text(data, "awaiter")
    if awaited == awaiter:
        raise checks.bad("a promise does not await itself")
    draft.promise(awaited)
    if awaiter not in draft.tasks:
        raise Refused(422, f"{awaiter} has no task")
    draft.refuse_internal(awaited)
    if draft.live(awaited) and draft.live(awaiter):
        draft.obligate(awaited)
        draft.callbacks.add((awaited, awaiter))
    return OK, {"promise": draft.told(awaited)}


def promise_register_listener(draft: Draft, data: Json) -> tuple[int, Json]:
    awaited, address = checks.text(data, "awaited"), canonical(data.get("address"), listener=True)
    if address is None or (draft.state.profile == "strict" and not whole(data["address"])):
        raise checks.bad("the address cannot be routed")
    draft.promise(awaited)
    draft.refuse_internal(awaited)
    if draft.live(awaited):
        draft.obligate(awaited)
        draft.listeners.add((awaited, address))
    return OK, {"promise": draft.told(awaited)}


def promise_search(draft: Draft, data: Json) -> tuple[int, Json]:
    page = checks.page(data, checks.PROMISE_STATES)
    ids = [
        id_
        for id_, promise in sorted(draft.promises.items())
        if id_ > page.cursor
        and set(page.tags) <= set(promise.tags)
        and page.state in (None, draft.projected(id_).state)
    ]
    return OK, listing("promises", ids, page.limit, draft.told_all)


def listing(name: str, ids: list[str], limit: int, told: Callable[[list[str]], list[Json]]) -> Json:
    """A page of what was found: the cursor is its last id, and only there if something follows. That is
    looked at together with the page."""
    found = told(ids[: limit + 1])
    page: Json = {name: found[:limit]}
    return {**page, "cursor": ids[limit - 1]} if len(found) > limit else page


# tasks


def task_get(draft: Draft, data: Json) -> tuple[int, Json]:
    id_ = checks.text(data, "id")
    draft.task(id_)
    return OK, {"task": draft.tasks_told([id_])[0]}


def task_create(draft: Draft, data: Json) -> tuple[int, Json]:
    pid, ttl = checks.lease(data)
    about = checks.creation(checks.action(data, "promise.create"), draft.state.profile)
    if about.delay is not None or "resonate:target" not in dict(about.tags):
        raise checks.bad("task.create names a target and no delay")
    id_ = about.id
    if id_ not in draft.promises:
        draft.create(about)
    elif id_ not in draft.tasks:
        raise Refused(422, f"{id_} has no task")
    draft.settle([id_])
    if draft.tasks[id_].state == "pending":
        draft.acquire(id_, pid, ttl)
    elif draft.tasks[id_].state != "fulfilled":
        raise Refused(409, f"task {id_} is {draft.tasks[id_].state}")
    return OK, draft.both(id_)


def is_acquired_again(draft: Draft, task: Task, version: int, pid: str) -> bool:
    """Whether a process asks again for what it has, and has neither renewed nor written anything."""
    return (
        draft.state.profile != "strict"
        and task.state == "acquired"
        and (task.version, task.pid) == (version + 1, pid)
        and draft.live(task.id)
        and task.acquired_at is not None
        and task.expires_at == task.acquired_at + (task.ttl or 0)
        and not any(
            promise.tag("branch") == task.id
            and promise.id != task.id
            and (
                promise.created_at >= task.acquired_at
                or (
                    (promise.settled_at or promise.timeout_at) < promise.timeout_at
                    and (promise.settled_at or 0) >= task.acquired_at
                )
            )
            for promise in draft.promises.values()
        )
    )


def task_acquire(draft: Draft, data: Json) -> tuple[int, Json]:
    id_, version = checks.leased(data)
    pid, ttl = checks.lease(data)
    task = draft.task(id_)
    if is_acquired_again(draft, task, version, pid):
        return OK, draft.both(id_)
    if task.state != "pending" or task.version != version or not draft.live(id_):
        raise Refused(409, f"task {id_} is not pending at version {version}")
    draft.acquire(id_, pid, ttl)
    return OK, draft.both(id_)


def task_release(draft: Draft, data: Json) -> tuple[int, Json]:
    id_, version = checks.leased(data)
    releases = min(draft.hold(id_, version).releases + 1, len(WAITS))
    draft.change(id_, "pending", retry_at=draft.now)
    until = draft.now + WAITS[releases - 1]
    draft.tasks[id_] = replace(draft.tasks[id_], releases=releases, released_until=until)
    return OK, {}


def task_suspend(draft: Draft, data: Json) -> tuple[int, Json]:
    id_, version = checks.leased(data)
    awaited = checks.awaited(data)
    task = draft.hold(id_, version)
    for each in awaited:
        if each not in draft.promises:
            raise Refused(422, f"no promise {each}")
        draft.refuse_internal(each)
    if not all(draft.live(each) for each in awaited):
        draft.tasks[id_] = replace(task, resumes=frozenset())
        return GO_ON, {"preload": draft.preload(id_)}
    for each in awaited:
        draft.obligate(each)
        draft.callbacks.add((each, id_))
    draft.change(id_, "suspended", resumes=frozenset())
    draft.got_on(id_)
    return OK, {}


def task_fulfill(draft: Draft, data: Json) -> tuple[int, Json]:
    id_, version = checks.leased(data)
    about = checks.verdict(checks.action(data, "promise.settle"))
    if about.id != id_:
        raise checks.bad("a task fulfils its own promise")
    draft.hold(id_, version)
    return OK, {"promise": settled(draft, about)}


def task_fence(draft: Draft, data: Json) -> tuple[int, Json]:
    id_, version = checks.leased(data)
    about = checks.fenced(data, draft.state.profile)
    draft.hold(id_, version)
    kind = data["action"]["kind"]
    answer: Json
    try:
        if isinstance(about, Refused):
            raise about
        record = created(draft, about) if isinstance(about, Creation) else settled(draft, about)
        answer = {"kind": kind, "status": OK, "data": {"promise": record}}
    except Refused as refused:
        answer = {"kind": kind, "status": refused.status, "data": refused.why}
    return OK, {"action": answer, "preload": []}


def task_heartbeat(draft: Draft, data: Json) -> tuple[int, Json]:
    pid, claimed = checks.text(data, "pid"), checks.claimed(data)
    if not claimed and draft.state.profile == "compatible":
        # an older SDK means all that it holds
        claimed = tuple((task.id, task.version) for task in draft.tasks.values())
    for id_, version in claimed:
        task = draft.tasks.get(id_)
        if task and (task.state, task.version, task.pid) == ("acquired", version, pid) and draft.live(id_):
            draft.tasks[id_] = replace(task, expires_at=draft.now + (task.ttl or 0))
    return OK, {}


def task_halt(draft: Draft, data: Json) -> tuple[int, Json]:
    id_ = checks.text(data, "id")
    task = draft.task(id_)
    if task.state == "fulfilled" or not draft.live(id_):
        raise Refused(409, f"task {id_} is fulfilled")
    draft.change(id_, "halted")
    return OK, {}


def task_continue(draft: Draft, data: Json) -> tuple[int, Json]:
    id_ = checks.text(data, "id")
    task = draft.task(id_)
    if task.state != "halted" or not draft.live(id_):
        raise Refused(409, f"task {id_} is not halted")
    draft.change(id_, "pending", retry_at=draft.now)
    draft.got_on(id_)
    return OK, {}


def task_search(draft: Draft, data: Json) -> tuple[int, Json]:
    page = checks.page(data, checks.TASK_STATES)
    ids = [
        id_
        for id_, task in sorted(draft.tasks.items())
        if id_ > page.cursor and page.state in (None, task.state if draft.live(id_) else "fulfilled")
    ]
    return OK, listing("tasks", ids, page.limit, draft.tasks_told)


# delivery: not on the wire, asked by couriers


def task_offer(draft: Draft, data: Json) -> tuple[int, Json]:
    """Execute messages: due tasks of a queue, each offered again after a while unless acquired."""
    due = [
        task
        for task in draft.tasks.values()
        if task.state == "pending"
        and (task.retry_at or 0) <= draft.now
        and (task.released_until or 0) <= draft.now
        and draft.live(task.id)
        and queue(draft.promises[task.id].target or "") == data["queue"]
    ]
    due.sort(key=lambda task: (task.retry_at or 0, task.id))
    for task in due[: data["limit"]]:
        draft.tasks[task.id] = replace(task, retry_at=draft.now + draft.state.retry_offer_ms)
    return OK, {"tasks": [[task.id, task.version] for task in due[: data["limit"]]]}


def unblock_claim(draft: Draft, data: Json) -> tuple[int, Json]:
    """Unblock messages whose turn it is: each comes again, after twice the time, until acknowledged."""
    due = [
        (key, row)
        for key, row in sorted(draft.unblocks.items())
        if row.claimed_until <= draft.now and data["address"] in (None, key[1])
    ]
    messages = []
    for key, row in due:
        wait = min(data["ttl"] * 2 ** min(row.attempts, 30), max(data["ttl"], HOUR))
        again = replace(row, attempts=row.attempts + 1, claimed_until=draft.now + wait)
        draft.unblocks[key] = again
        messages.append([*key, again.attempts, draft.promises[key[0]].wire()])
    return OK, {"messages": messages}


def unblock_acknowledge(draft: Draft, data: Json) -> tuple[int, Json]:
    """The message arrived."""
    return OK, {"known": draft.unblocks.pop((data["promiseId"], data["address"]), None) is not None}


KINDS: dict[str, Handler] = {
    handler.__name__.replace("_", ".", 1): handler
    for handler in (
        promise_get,
        promise_create,
        promise_settle,
        promise_register_callback,
        promise_register_listener,
        promise_search,
        task_get,
        task_create,
        task_acquire,
        task_release,
        task_suspend,
        task_fulfill,
        task_fence,
        task_heartbeat,
        task_halt,
        task_continue,
        task_search,
        task_offer,
        unblock_claim,
        unblock_acknowledge,
    )
}


def run(state: State, request: Json, now: int) -> tuple[State, Json, Counter[str]]:
    """Like `step`, and what became of the awaiters of all that was settled."""
    draft = Draft(state, now)
    try:
        if request["kind"] not in KINDS:
            raise checks.bad(f"unknown kind {request['kind']!r}")
        status, data = KINDS[request["kind"]](draft, checks.inner(request))
    except Refused as refused:
        return state, {"status": refused.status, "data": refused.why}, Counter()
    return draft.freeze(), {"status": status, "data": data}, draft.outcomes


def step(state: State, request: Json, now: int) -> tuple[State, Json]:
    """One request `{"kind", "data"}` at an instant in ms: the next state and the answer
    `{"status", "data"}`, where data is a text if the status is 400 or more."""
    after, answer, _ = run(state, request, now)
    return after, answer


def sweep(state: State, now: int) -> tuple[State, Json, Counter[str]]:
    """What time does: every due external promise is settled, then every lease that is over is taken. The
    answer counts both, names the queues that got ready tasks, and says how long it is until the next
    deadline (null: there is none)."""
    draft = Draft(state, now)
    due = [each.id for each in state.promises.values() if each.state == "pending" and each.external]
    promises = draft.settle(sorted(due))
    leases = [
        task.id
        for task in draft.tasks.values()
        if task.state == "acquired" and (task.expires_at or 0) <= now and draft.live(task.id)
    ]
    for id_ in leases:
        draft.change(id_, "pending", retry_at=now)
    ahead = [
        each.timeout_at - now
        for each in draft.promises.values()
        if each.state == "pending" and each.external and each.timeout_at < checks.NEVER
    ]
    ready = [
        task.id
        for task in draft.tasks.values()
        if task.state == "pending" and state.tasks[task.id].state != "pending"
    ]
    answer: Json = {
        "promises": len(promises),
        "leases": len(leases),
        "next_due_ms": min(ahead, default=None),
        "hints": sorted({queue(draft.promises[id_].target or "") for id_ in ready}),
        "more": False,
    }
    return draft.freeze(), answer, draft.outcomes
