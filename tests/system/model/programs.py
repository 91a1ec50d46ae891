"""Random programs: from a few bytes to the next request, given what the model knows.

What lives here: the small universe in which requests meet, and the reading of bytes as steps. A step is
`LENGTH` bytes: the first says what is done, the others choose among what is there. Bytes are all that
hypothesis draws, so a failing program shrinks by losing steps and by smaller numbers.

Requests are chosen so that most have an effect: a release mostly names a task that is held, at its version.
The rest names anything, and some are malformed. Deadlines and leases lie close together, and the clock
mostly jumps to exactly an instant at which something ends, or to one millisecond beside it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from tests.system.model.addresses import canonical
from tests.system.model.request_checks import NEVER, PROMISE_STATES, TASK_STATES, VERDICTS
from tests.system.model.state import Json, State

T = TypeVar("T")
LENGTH = 16
START = 1_800_000_000_000
# in the order of bytes: B before a, the last one after all
IDS = ("a", "a.1", "b", "a:2", "b.x", "c", "a.3", "B", "\u00e9", "c.1")
PIDS = ("p", "q")
# the longest names of a process, and those that are one character longer
NAMES = PIDS * 30 + ("x" * 512, "\u00e9" * 256, "x" * 513, "\u00e9" * 257)
ADDRESSES = ("poll://any@g", "poll://g:u", "https://h.example/in", "poll://uni@g/u")
TARGETS = ("g", "poll://any@g/u", "https://h.example/in")
QUEUES = ("g", "https://h.example/in")
TTLS = (10, 30, 5, 1)
SPANS = (NEVER, 40, 10, 20, 100, NEVER, 40, 5, 1, 0, -5)
VALUES: tuple[Json, ...] = (
    {"data": "1"},
    {},
    {"headers": {"h": "1"}, "data": ""},
    {"headers": {}},
    {"data": '{"x": "\u00e9"}'},
)
TAGS: tuple[dict[str, str], ...] = (
    *({"target": "g"}, {"external": "true"}, {"target": "poll://any@g/u", "branch": "own"}) * 2,
    *({"timer": "true"}, {"target": "g", "branch": "top"}, {"external": "true", "branch": "top"}) * 2,
    {"target": "https://h.example/in", "branch": "top", "origin": "top", "parent": "top", "prefix": "x"},
    {},
    {"branch": "top", "timer": "false"},
    {"target": "g", "delay": "+5"},
    {"target": "g", "delay": "+0"},
    {"target": "g", "delay": "0000000000000005"},
    {"target": "g", "timer": "true"},
    {"target": "g", "origin": "own", "parent": "elsewhere", "prefix": "x.y"},
)
REFUSED: tuple[dict[str, str], ...] = (
    {"target": "poll://uni@g/u", "delay": "+1000"},
    {"delay": "5", "external": "true"},
    {"target": "g", "delay": "00000000000000005"},
    {"target": "poll://"},
    {"external": "true", "origin": "b.x"},
    {"external": "true", "origin": "a"},
    {"external": "true", "parent": "b"},
    {"external": "true", "branch": "c."},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens next: the clock moves, time does its work, or somebody asks something."""

    now: int
    request: Json | None = None
    tick: bool = False

    @property
    def kind(self) -> str:
        """How the step is counted."""
        if self.request is not None:
            return str(self.request["kind"])
        return "tick" if self.tick else "clock"


class Dice:
    """Bytes read as choices; read to the end, they say 0."""

    def __init__(self, numbers: bytes) -> None:
        self._numbers = iter(numbers)

    def roll(self) -> int:
        """The next byte."""
        return next(self._numbers, 0)

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[self.roll() % len(choices)]

    def likely(self, fitting: Iterable[T], others: Sequence[T]) -> T:
        """Mostly one that fits, if there is any."""
        number, found = self.roll(), sorted(fitting, key=str)
        return found[number % len(found)] if found and number < 246 else others[number % len(others)]


@dataclass(frozen=True, slots=True)
class Table:
    """What a player sees: the model's state at an instant, and the bytes of this step."""

    state: State
    now: int
    dice: Dice

    def tasks(self, *states: str) -> list[str]:
        """Live tasks in one of these states."""
        return [id_ for id_, task in self.state.tasks.items() if task.state in states and self.live(id_)]

    def live(self, id_: str) -> bool:
        """Whether a promise is pending now."""
        promise = self.state.promises[id_]
        return promise.state == "pending" and promise.timeout_at > self.now

    def some_task(self, *states: str) -> str:
        """Mostly a live task in one of these states."""
        return self.dice.likely(self.tasks(*states), IDS)

    def version(self, id_: str) -> int:
        """Mostly the version that the task has."""
        known = self.state.tasks[id_].version if id_ in self.state.tasks else 0
        return self.dice.pick((known,) * 60 + (known + 1, max(known - 1, 0), 0, 1))

    def held(self, *states: str) -> Json:
        """Mostly a task in this state and its version."""
        id_ = self.some_task(*states)
        return {"id": id_, "version": self.version(id_)}

    def open(self, *, not_: str = "") -> list[str]:
        """Live promises but one."""
        return [id_ for id_ in self.state.promises if id_ != not_ and self.live(id_)]

    def value(self) -> Json:
        """Something to say: a parameter, a result."""
        return self.dice.pick(
            (
                {"data": "1"},
                {},
                {"headers": {"h": "1"}, "data": ""},
                {"headers": {}},
                {"data": '{"x": "\u00e9"}'},
            )
        )


def create(table: Table, id_: str | None = None) -> Json:
    """promise.create, mostly of something new."""
    if id_ is None:
        id_ = table.dice.likely([each for each in IDS if each not in table.state.promises][:2], IDS)
    timeout_at = min(max(table.now + table.dice.pick(SPANS), 0), NEVER)
    number = table.dice.roll()
    named = dict(TAGS[number % len(TAGS)] if number < 242 else REFUSED[number % len(REFUSED)])
    if named.get("delay", "").startswith("+"):
        named["delay"] = str(table.now + int(named["delay"]))
    top = {"own": id_, "top": re.split("[.:]", id_)[0]}
    tags = {f"resonate:{name}": top.get(text, text) for name, text in named.items()}
    about: Json = {"id": id_, "timeoutAt": timeout_at}
    if tags or table.dice.roll() % 2:
        about["tags"] = tags | ({"color": "red"} if table.dice.roll() % 3 == 2 else {})
    if table.dice.roll() % 4 == 3:
        about["param"] = table.value()
    return about


def settle(table: Table, id_: str | None = None, *, not_: str = "") -> Json:
    """promise.settle, mostly of something pending that is awaited."""
    if id_ is None:
        fitting = table.open(not_=not_)
        awaited = {each for each, _ in (*table.state.callbacks, *table.state.listeners)}
        if awaited & set(fitting) and table.dice.roll() % 2:
            fitting = sorted(awaited & set(fitting))
        id_ = table.dice.likely(fitting, IDS)
    about: Json = {"id": id_, "state": table.dice.pick(VERDICTS)}
    return {**about, "value": table.value()} if table.dice.roll() % 3 else about


def register_callback(table: Table) -> Json:
    awaiter = table.some_task("acquired", "pending", "suspended", "halted")
    return {"awaited": table.dice.likely(table.open(not_=awaiter), IDS), "awaiter": awaiter}


def register_listener(table: Table) -> Json:
    return {"awaited": table.dice.likely(table.open(), IDS), "address": table.dice.pick(ADDRESSES)}


def page(table: Table, states: Sequence[str]) -> Json:
    about: Json = {}
    if table.dice.roll() % 2:
        about["state"] = table.dice.pick(states)
    if table.dice.roll() % 2:
        about["limit"] = 1 + table.dice.roll() % 3
    if table.dice.roll() % 3 == 0:
        about["cursor"] = table.dice.pick(IDS)
    return about


def promise_search(table: Table) -> Json:
    tags = table.dice.pick(({}, None, {"color": "red"}, {"resonate:target": "g"}, {"resonate:branch": "a"}))
    about = page(table, PROMISE_STATES)
    return about if tags is None else {**about, "tags": tags}


def lease(table: Table) -> Json:
    return {"pid": table.dice.pick(NAMES), "ttl": table.dice.pick(TTLS)}


def task_create(table: Table) -> Json:
    data = create(table, table.some_task("pending") if table.dice.roll() % 3 == 1 else None)
    tags = data.get("tags", {})
    if table.dice.roll() % 8:
        tags = {name: text for name, text in tags.items() if name != "resonate:delay"}
        tags.setdefault("resonate:target", table.dice.pick(TARGETS))
        data["tags"] = tags
    return {**lease(table), "action": {"kind": "promise.create", "data": data}}


def suspend(table: Table) -> Json:
    held = table.held("acquired")
    count = 1 + table.dice.roll() % 3
    fitting = table.open(not_=held["id"])
    if table.state.profile == "strict" and table.dice.roll() % 8:
        fitting = [each for each in fitting if table.state.promises[each].external]
    known = table.state.tasks.get(held["id"])
    if known and known.resumes and table.dice.roll() % 2:
        fitting += known.resumes
    awaited = [table.dice.likely(fitting, IDS) for _ in range(count)]
    if table.dice.roll() % 16:
        awaited = [each for each in dict.fromkeys(awaited) if each != held["id"]] or awaited[:1]
    return {**held, "actions": [registration(each, held["id"]) for each in awaited]}


def registration(awaited: str, awaiter: str) -> Json:
    return {"kind": "promise.register_callback", "data": {"awaited": awaited, "awaiter": awaiter}}


def fulfill(table: Table) -> Json:
    held = table.held("acquired")
    return {**held, "action": {"kind": "promise.settle", "data": settle(table, held["id"])}}


def fence(table: Table) -> Json:
    held = table.held("acquired")
    number = table.dice.roll()
    fresh = [each for each in IDS if each not in table.state.promises]
    action = {"kind": "promise.create", "data": create(table, fresh[0] if fresh and number < 224 else None)}
    if number % 2:
        action = {"kind": "promise.settle", "data": settle(table, not_=held["id"])}
    return {**held, "action": action}


def heartbeat(table: Table) -> Json:
    count = table.dice.roll() % 4
    tasks = [table.held("acquired") for _ in range(count)]
    holder = table.state.tasks.get(tasks[0]["id"]) if tasks else None
    pid = table.dice.likely([holder.pid] if holder and holder.pid else [], PIDS)
    return {"pid": pid, "tasks": tasks}


def unblock(table: Table) -> Json:
    known = table.dice.likely(table.state.unblocks, [(id_, ADDRESSES[0]) for id_ in IDS])
    return {"promiseId": known[0], "address": known[1]}


def offer(table: Table) -> Json:
    return {"queue": table.dice.pick(QUEUES), "limit": 1 + table.dice.roll() % 3}


def claim(table: Table) -> Json:
    addresses = (None, None, *(canonical(each, listener=True) for each in ADDRESSES))
    return {"address": table.dice.pick(addresses), "ttl": table.dice.pick(TTLS)}


def new(table: Table) -> bool:
    return len(table.state.promises) < len(IDS)


def holding(table: Table) -> bool:
    return bool(table.tasks("acquired"))


def renewing(table: Table) -> bool:
    held = [table.state.tasks[id_] for id_ in table.tasks("acquired")]
    return any(task.expires_at != table.now + (task.ttl or 0) for task in held)


def waiting(table: Table) -> bool:
    return bool(table.tasks("pending"))


def due(table: Table) -> bool:
    return any((table.state.tasks[id_].retry_at or 0) <= table.now for id_ in table.tasks("pending"))


def working(table: Table) -> bool:
    return bool(table.tasks("acquired", "pending", "suspended"))


def meeting(table: Table) -> bool:
    strict = table.state.profile == "strict"
    awaitable = [id_ for id_ in table.open() if not strict or table.state.promises[id_].external]
    return working(table) and len(awaitable) > 1


def opening(table: Table) -> bool:
    return bool(table.open())


def sending(table: Table) -> bool:
    return any(each.claimed_until <= table.now for each in table.state.unblocks.values())


def ending(table: Table) -> bool:
    state = table.state
    pending = [each for each in state.promises.values() if each.state == "pending"]
    ends = [each.timeout_at for each in pending if each.external]
    ends += [each.expires_at for each in state.tasks.values() if each.expires_at is not None]
    return any(end <= table.now for end in ends)


def always(table: Table) -> bool:
    return True


# kind: how often while it can have an effect, whether it can, how it is asked
REQUESTS: dict[str, tuple[int, Callable[[Table], bool], Callable[[Table], Json]]] = {
    "rest": (1, always, lambda table: {}),
    "promise.create": (14, new, create),
    "promise.settle": (10, opening, settle),
    "task.create": (8, new, task_create),
    "task.acquire": (20, waiting, lambda table: {**table.held("pending"), **lease(table)}),
    "task.suspend": (22, lambda table: holding(table) and meeting(table), suspend),
    "task.fence": (12, holding, fence),
    "task.fulfill": (2, holding, fulfill),
    "task.release": (4, holding, lambda table: table.held("acquired")),
    "task.heartbeat": (8, renewing, heartbeat),
    "task.halt": (3, working, lambda table: {"id": table.some_task("acquired", "pending", "suspended")}),
    "task.continue": (
        6,
        lambda table: bool(table.tasks("halted")),
        lambda table: {"id": table.some_task("halted")},
    ),
    "promise.register_callback": (5, meeting, register_callback),
    "promise.register_listener": (7, opening, register_listener),
    "promise.get": (2, opening, lambda table: {"id": table.dice.likely(table.state.promises, IDS)}),
    "task.get": (2, working, lambda table: {"id": table.dice.likely(table.state.tasks, IDS)}),
    "promise.search": (3, opening, promise_search),
    "task.search": (3, working, lambda table: page(table, TASK_STATES)),
    "task.offer": (4, due, offer),
    "unblock.claim": (4, sending, claim),
    "unblock.acknowledge": (4, lambda table: bool(table.state.unblocks), unblock),
    "broken": (3, opening, lambda table: {}),
    "tick": (10, ending, lambda table: {}),
    "clock": (14, opening, lambda table: {}),
}
ASKED = tuple(kind for kind in REQUESTS if kind.split(".")[0] in ("promise", "task") and kind != "task.offer")


def lottery(table: Table) -> str:
    """Kinds as often as they are worth here; now and then those, too, that can have no effect."""
    number = table.dice.roll() * 256 + table.dice.roll()
    blind = number >= 61_000
    weights = [weight if blind or fits(table) else 0 for weight, fits, _ in REQUESTS.values()]
    place = number % sum(weights)
    return next(kind for kind, end in zip(REQUESTS, accumulate(weights), strict=True) if place < end)


WRONG: tuple[Any, ...] = (
    *(None, "", -1, 1.5, True, [], {}, "x" * 600, 2**53, {"x": 1}, [1], "\u00e9", 0),
    # an id, an address: as long as it may be, and longer
    *("x" * 512, "x" * 513, "x" * 1013, "x" * 1014),
)


def broken(table: Table) -> Json:
    """A request with one field gone or replaced, anywhere inside it."""
    kind = table.dice.pick(ASKED)
    data = copy.deepcopy(REQUESTS[kind][2](table))
    place: Any = data
    while place:
        name = table.dice.pick(sorted(place))
        if isinstance(place[name], dict) and place[name] and table.dice.roll() % 4:
            place = place[name]
        elif isinstance(place[name], list) and place[name] and table.dice.roll() % 4:
            place = place[name][0]
        elif table.dice.roll() % 3:
            place[name] = table.dice.pick(WRONG)
            break
        else:
            del place[name]
            break
    return {"kind": kind, "data": data}


def next_instant(table: Table) -> int:
    """Mostly an instant at which something ends, or one beside it; never back."""
    state, dice = table.state, table.dice
    ends = {promise.timeout_at for promise in state.promises.values()}
    ends |= {task.expires_at or task.retry_at or 0 for task in state.tasks.values()}
    ends |= {unblock.claimed_until for unblock in state.unblocks.values()}
    ahead = sorted(end for end in ends if table.now < end < table.now + 10_000)
    if not ahead or dice.roll() % 4 == 3:
        return table.now + dice.pick((1, 3, 10))
    return max(table.now, ahead[dice.roll() % min(len(ahead), 3)] + dice.pick((0, 0, 0, 1, -1)))


def read(numbers: bytes, state: State, now: int) -> Step | None:
    """The step that these bytes mean here and now; None: nothing, to which every step can shrink."""
    table = Table(state, now, Dice(numbers))
    kind = lottery(table)
    if kind == "rest":
        return None
    if kind == "clock":
        return Step(now=next_instant(table))
    if kind == "tick":
        return Step(now=now, tick=True)
    if kind == "broken":
        return Step(now=now, request=broken(table))
    return Step(now=now, request={"kind": kind, "data": REQUESTS[kind][2](table)})
