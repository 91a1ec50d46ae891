"""Request checks: errors of a request that do not depend on stored state (status 400), and its values.

What lives here: one reader for each kind of request, which refuses or answers a frozen record. The reader
of a request is called before anything is looked at, which is how "400 never depends on stored state"
becomes an outcome of the model. May not: see a state or an instant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests.system.model.addresses import canonical
from tests.system.model.state import NOTHING, Json, Pairs, Value, pairs

NEVER = 9007199254740991
VERDICTS = ("resolved", "rejected", "rejected_canceled")
PROMISE_STATES = ("pending", *VERDICTS, "rejected_timedout")
TASK_STATES = ("pending", "acquired", "suspended", "halted", "fulfilled")


class Refused(Exception):
    """An answer that is no success; nothing was written."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{status} {why}")
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A promise to be."""

    id: str
    timeout_at: int
    param: Value
    tags: Pairs
    delay: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a promise is to end."""

    id: str
    state: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing."""

    state: str | None
    tags: Pairs
    limit: int
    cursor: str


def bad(why: str) -> Refused:
    """A malformed request."""
    return Refused(400, why)


def text(data: Json, name: str, *, most: int | None = None) -> str:
    """A field that holds text, not empty, without NUL, and of so many bytes at most."""
    value = data.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise bad(f"{name} is a text, not {value!r}")
    if most is not None and len(value.encode()) > most:
        raise bad(f"{name} has at most {most} bytes")
    return value


def number(data: Json, name: str, *, low: int = 0, high: int = NEVER) -> int:
    """A field that holds a whole number within bounds."""
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad(f"{name} is a whole number from {low} to {high}, not {value!r}")
    return value


def strings(data: Json, name: str) -> Pairs | None:
    """A field that holds an object of strings; None: absent."""
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise bad(f"{name} is an object of strings, not {value!r}")
    return pairs(value)


def inner(data: Json, name: str = "data") -> Json:
    """A field that holds an object."""
    value = data.get(name)
    if not isinstance(value, dict):
        raise bad(f"{name} is an object, not {value!r}")
    return value


def payload(data: Json, name: str) -> Value:
    """A parameter or a result."""
    if data.get(name) is None:
        return NOTHING
    given = inner(data, name)
    content = given.get("data")
    if content is not None and not isinstance(content, str):
        raise bad(f"{name}.data is a text")
    return Value(headers=strings(given, "headers"), data=content)


def creation(data: Json, profile: str) -> Creation:
    """promise.create, also as an action."""
    id_ = text(data, "id", most=512)
    timeout_at = number(data, "timeoutAt")
    param = payload(data, "param")
    tags = dict(strings(data, "tags") or ())
    named = {name[9:]: value for name, value in tags.items() if name.startswith("resonate:")}
    if "target" in named and canonical(named["target"]) is None:
        raise bad("the target cannot be routed")
    if "target" in named and named.get("timer") == "true" and profile == "strict":
        raise bad("a timer has no target")
    _family(id_, named)
    return Creation(
        id=id_,
        timeout_at=timeout_at,
        param=param,
        tags=pairs(tags),
        delay=_delay(named, timeout_at),
    )


def _delay(named: dict[str, str], timeout_at: int) -> int | None:
    if "delay" not in named:
        return None
    delay = named["delay"]
    digits = delay.isascii() and delay.isdigit() and len(delay) <= 16
    if "target" not in named or not digits or int(delay) >= timeout_at:
        raise bad("a delay is an instant before the timeout of a task")
    return int(delay)


def _family(id_: str, named: dict[str, str]) -> None:
    for name in ("origin", "branch", "parent"):
        if name in named and not re.match(f"{re.escape(named[name])}([.:]|$)", id_, re.S):
            # a detached call is an origin of its own, and names its caller
            if name == "parent" and named.get("origin") == id_:
                continue
            raise bad(f"{id_} is not below its {name} {named[name]}")


def verdict(data: Json) -> Verdict:
    """promise.settle, also as an action."""
    id_ = text(data, "id")
    if data.get("state") not in VERDICTS:
        raise bad(f"nobody settles to {data.get('state')!r}")
    return Verdict(id=id_, state=data["state"], value=payload(data, "value"))


def action(data: Json, *kinds: str) -> Json:
    """The data of a nested request, which must be of one of these kinds."""
    nested = inner(data, "action")
    if nested.get("kind") not in kinds:
        raise bad(f"an action is {' or '.join(kinds)}, not {nested.get('kind')!r}")
    return inner(nested)


def lease(data: Json) -> tuple[str, int]:
    """The process and the length of a lease."""
    return text(data, "pid", most=512), number(data, "ttl", low=1)


def leased(data: Json) -> tuple[str, int]:
    """A task and the version of the lease that the caller claims to have."""
    return text(data, "id"), number(data, "version")


def awaited(data: Json) -> tuple[str, ...]:
    """What task.suspend waits for."""
    id_ = text(data, "id")
    actions = data.get("actions")
    if not isinstance(actions, list) or not actions:
        raise bad("a suspend awaits something")
    found = []
    for each in actions:
        about = action({"action": each}, "promise.register_callback")
        if text(about, "awaiter") != id_:
            raise bad("only the task itself awaits")
        found.append(text(about, "awaited"))
    if id_ in found or len(set(found)) < len(found):
        raise bad("a suspend awaits distinct others")
    return tuple(found)


def fenced(data: Json, profile: str) -> Creation | Verdict | Refused:
    """The action of task.fence; in the strict profile what is wrong with it is told behind the guard."""
    nested = action(data, "promise.create", "promise.settle")
    if nested.get("id") == text(data, "id"):
        raise bad("a task does not fence its own promise")
    try:
        create = data["action"]["kind"] == "promise.create"
        return creation(nested, profile) if create else verdict(nested)
    except Refused as refused:
        if profile == "strict":
            return refused
        raise


def claimed(data: Json) -> tuple[tuple[str, int], ...]:
    """The pairs of task.heartbeat."""
    tasks: Any = data.get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(each, dict) for each in tasks):
        raise bad("a heartbeat names tasks")
    return tuple(leased(each) for each in tasks)


def page(data: Json, states: tuple[str, ...]) -> Page:
    """A search."""
    state, cursor = data.get("state"), data.get("cursor")
    if state is not None and state not in states:
        raise bad(f"no state is called {state!r}")
    limit = 100 if data.get("limit") is None else number(data, "limit", low=1, high=1000)
    return Page(
        state=state,
        tags=strings(data, "tags") or (),
        limit=limit,
        cursor="" if cursor is None else text(data, "cursor"),
    )
