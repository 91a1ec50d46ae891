"""The reference machine as `timed.py` asks it: states that know themselves again, and what has been asked
already.

What lives here: the bridge from machine.py to the checker. No rule of the protocol.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from itertools import chain

from tests.system.model import machine
from tests.system.model.linear import Request, Response
from tests.system.model.state import Json, State


class Image:
    """A state that knows itself again: equal if no answer and no table to come tells the two apart."""

    def __init__(self, state: State) -> None:
        self.state = state

    @cached_property
    def key(self) -> tuple[frozenset[Hashable], ...]:
        """What makes the difference. When a task was last offered, what the dead await, and whether a sweep
        would look at what is settled, do not."""
        state = self.state
        return (
            frozenset(
                promise if promise.external or promise.state == "pending" else replace(promise, external=True)
                for promise in state.promises.values()
            ),
            frozenset(
                replace(task, retry_at=None if task.retry_at is None else 0, releases=0, released_until=None)
                for task in state.tasks.values()
            ),
            frozenset(each for each in state.callbacks if state.tasks[each[1]].state != "fulfilled"),
            state.listeners,
            frozenset(state.unblocks),
        )

    @cached_property
    def hashed(self) -> int:
        """The hash of the key."""
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Image) and self.key == other.key)

    def __hash__(self) -> int:
        return self.hashed

    def __repr__(self) -> str:
        return "\n  ".join(sorted(map(str, chain.from_iterable(self.key))))


class Reference:
    """The reference machine as `Timed` asks it; remembers what it was asked, for a search asks often."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Image, int, int], tuple[Image, Response, Request]] = {}
        self.ends: dict[tuple[Image, str, int], Image] = {}

    def start(self) -> Image:
        """Nothing is there."""
        return self.image(State())

    def image(self, state: State) -> Image:
        """One object for all states that look the same."""
        return Image(state)

    def step(self, state: Image, request: Request, now_ms: int) -> tuple[Image, Response]:
        """One operation; `tables` answers how the tables look once all that is due is settled, `peek` and
        `preload` what one is told of others."""
        if request["kind"] == "tables":
            return state, {"status": 200, "data": self.settled(state, now_ms)}
        if request["kind"] in ("peek", "preload"):
            return state, {"status": 200, "data": self.seen(state, request["data"], now_ms)}
        place = (state, id(request), now_ms)
        if place not in self.steps:
            found, answer = machine.step(state.state, dict(request), now_ms)
            after = state if found is state.state else self.image(found)
            # the request is kept, as its identity stands for it
            self.steps[place] = (after, answer, request)
        return self.steps[place][:2]

    def seen(self, state: Image, data: Json, now_ms: int) -> Json:
        """What a preload shows: a promise as it is now, or all of a branch."""
        draft = machine.Draft(state.state, now_ms)
        if "branch" not in data:
            known = data["id"] in draft.promises
            return {"promise": draft.projected(data["id"]).wire() if known else None}
        mates = [
            each.id
            for each in draft.promises.values()
            if data["branch"] and each.tag("branch") == data["branch"]
        ]
        return {"preload": [draft.projected(id_).wire() for id_ in sorted(mates) if id_ != data["id"]]}

    def settled(self, state: Image, now_ms: int) -> Image:
        """The state in which nothing is due any more."""
        for id_ in self.due(state, now_ms):
            state = self.expire(state, id_, now_ms)
        return state

    def expire(self, state: Image, id_: str, now_ms: int) -> Image:
        """The deadline's verdict."""
        if (state, id_, now_ms) not in self.ends:
            draft = machine.Draft(state.state, now_ms)
            draft.settle([id_])
            self.ends[state, id_, now_ms] = self.image(draft.freeze())
        return self.ends[state, id_, now_ms]

    def lose(self, state: Image, id_: str, now_ms: int) -> Image:
        """The end of a lease."""
        draft = machine.Draft(state.state, now_ms)
        draft.change(id_, "pending", retry_at=now_ms)
        return self.image(draft.freeze())

    def due(self, state: Image, now_ms: int) -> list[str]:
        """Stored pending, past the deadline."""
        promises = state.state.promises.values()
        return sorted(each.id for each in promises if each.state == "pending" and each.timeout_at <= now_ms)

    def swept(self, state: Image, now_ms: int) -> list[str]:
        """Those of them that are external."""
        return [id_ for id_ in self.due(state, now_ms) if state.state.promises[id_].external]

    def overdue(self, state: Image, now_ms: int) -> list[str]:
        """Acquired, past the lease, alive."""
        draft = machine.Draft(state.state, now_ms)
        tasks = state.state.tasks.values()
        over = [each.id for each in tasks if each.expires_at is not None and each.expires_at <= now_ms]
        return sorted(id_ for id_ in over if draft.live(id_))

    def awaiters(self, state: Image, id_: str) -> list[str]:
        """Tasks that are registered and not over."""
        return sorted(awaiter for awaited, awaiter in state.state.callbacks if awaited == id_)

    def pending(self, state: Image, id_: str) -> bool:
        """Stored pending."""
        found = state.state.promises.get(id_)
        return found is not None and found.state == "pending"
