"""The shadow of a coroutine: what a worker must know of a run to report on it, moved at random instead of
by code.

It follows the rules that the worker follows: it is advanced only by rows that a turn returned, it takes
child numbers in order, it waits only for children that are open, and a run that is blocked already it lets
wait for the same again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.verbs import (
    Held,
    Turn,
    begun,
    broken,
    captured,
    complete,
    done,
    fail,
    halt,
    promise,
    release,
    run,
    suspend,
    timer,
)

WIDTHS = {"L": 3, "E": 3, "f": 3, "l": 2, "t": 2, "k": 2, "K": 2, "D": 2}
ALLOCATES = frozenset("LEflIXTnm")
RESOLVES = frozenset("LEcekKdDZ")
DETACHED = "d"  # workflow of children that nobody waits for
ATTEMPTS = {"l": 1, "s": 1, "f": -1, "r": -1, "t": -1}


@dataclass(kw_only=True)
class Shadow:
    """A held run."""

    execution: int
    id: str
    version: int
    next: int = 0
    next_child: int = 0
    open: set[int] = field(default_factory=set)
    steps: dict[int, int] = field(default_factory=dict)
    blocked: tuple[list[int], str] | None = None
    sent: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, held: Held, warm: Shadow | None) -> Shadow | None:
        """The run as it was claimed; None if the worker was given a tail and has lost the coroutine it
        belongs to."""
        if held.start and warm is None:
            return None
        shadow = cls(execution=held.execution, id=held.id, version=held.version)
        if held.start and warm is not None:
            assert 0 <= held.start - warm.next <= 1, (
                "the tail begins where the coroutine stopped, or after the await"
            )
            shadow.next_child, shadow.open, shadow.steps = warm.next_child, warm.open, warm.steps
        shadow.load(held.rows)
        shadow.next = held.next
        return shadow

    def load(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Advance by journal rows."""
        for seq, kind, child, attempt, name, _hash, data, _ok in rows:
            self.next = max(self.next, seq + WIDTHS.get(kind, 1))
            if kind in ALLOCATES:
                self.next_child = max(self.next_child, child + 1)
            if kind in "IXT" and name != DETACHED:
                self.open.add(child)
            if kind in ATTEMPTS:
                self.steps[child] = ATTEMPTS[kind] * attempt
            if kind in RESOLVES:
                self.open.discard(child)
                self.steps.pop(child, None)
            if kind == "A":
                wait = json.loads(data)
                self.blocked = (wait["on"], wait["kind"])
            elif kind == "W":
                self.blocked = None

    def move(self, rng: Random, *, spread: bool) -> dict[str, Any]:
        """A bundle: what the run does next. With `spread` it may start children."""
        facts: list[dict[str, Any]] = []
        acts: list[dict[str, Any]] = []
        end: dict[str, Any] | None = None
        if self.blocked is not None:
            on = sorted(set(self.blocked[0]) & self.open)
            end = rng.choice((suspend(*on, kind=self.blocked[1] if len(on) > 1 else None), release(), None))
        else:
            if rng.random() < 0.5:
                facts = self._facts(rng)
            if rng.random() < 0.6:
                acts = self._acts(rng, spread=spread)
            if not facts:
                end = self._end(rng)
        self.sent = {
            "execution": self.execution,
            "version": self.version,
            "seen": self.next,
            "facts": facts,
            "acts": acts,
            "end": end,
        }
        return self.sent

    def _take(self, rng: Random) -> int:
        number = self.next_child
        self.next_child += 1 + (rng.random() < 0.1)
        return number

    def _facts(self, rng: Random) -> list[dict[str, Any]]:
        facts: list[dict[str, Any]] = []
        for child, attempt in list(self.steps.items()):
            number = attempt if attempt > 0 else 1 - attempt
            kind = rng.randrange(4)
            if kind == 0:
                facts.append(done(child, attempt=number))
            elif kind == 1:
                facts.append(broken(child, attempt=number, retry_in=rng.choice((None, 5))))
            elif kind == 2 and attempt < 0:
                facts.append(begun(child, attempt=number))
        for _ in range(rng.randrange(1, 4)):
            child = self._take(rng)
            kind = rng.randrange(6)
            if kind == 0:
                facts.append(begun(child))
                if rng.random() < 0.5:
                    facts.append(done(child))
            elif kind == 1:
                facts.append(broken(child, retry_in=rng.choice((None, 5))))
            else:
                facts.append(done(child))
        return facts

    def _acts(self, rng: Random, *, spread: bool) -> list[dict[str, Any]]:
        kinds: list[Callable[[int], dict[str, Any]]] = [
            lambda n: timer(n, rng.choice((0, 1, 20))),
            captured,
            lambda n: promise(n, rng.choice((None, 30))),
        ]
        if spread:
            kinds += [run, run, lambda n: run(n, name=DETACHED, detached=True), lambda n: run(n, timeout=50)]
        return [rng.choice(kinds)(self._take(rng)) for _ in range(rng.randrange(1, 4))]

    def _end(self, rng: Random) -> dict[str, Any] | None:
        if self.open and rng.random() < 0.85:
            on = rng.sample(sorted(self.open), rng.randrange(1, len(self.open) + 1))
            return suspend(*on, kind=rng.choice(("any", "all")) if len(on) > 1 else None)
        kind = rng.randrange(20)
        if kind == 0:
            return halt()
        if kind < 5:
            return release(rng.choice((0, 0, 10)))
        return complete() if kind < 12 else fail() if kind < 14 else None

    def take_answer(self, turn: Turn) -> str:
        """Advance by the answer to the bundle that was sent; tells acquired, suspended (and warm), moved,
        gone."""
        held = Held(execution=self.execution, id=self.id, version=self.version, next=self.next)
        verdict, state = turn.of(held)
        if verdict != "ok":
            return "moved" if verdict == "moved" and state == "acquired" else "gone"
        for act in self.sent["acts"]:
            if act["do"] in ("run", "timer", "promise") and not act.get("detached"):
                self.open.add(act["child"])
        for fact in self.sent["facts"]:
            over = not fact.get("begun") and fact.get("retry_in") is None
            self.steps[fact["child"]] = (
                0 if over else fact["attempt"] if fact.get("begun") else -fact["attempt"]
            )
        self.steps = {child: attempt for child, attempt in self.steps.items() if attempt}
        about = turn.raw["bundles"]
        unseen = state == "released" and about["seq"][about["execution"].index(self.execution)] > self.next
        if not unseen:
            self.next = turn.next_of(held)
        if state == "acquired":
            self.load(turn.tail(held))
        later = state == "released" and (self.sent["end"] or {}).get("retry_in", 0) > 0
        return "suspended" if later else state if state in ("acquired", "suspended") else "gone"
