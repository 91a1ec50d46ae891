"""The shadow of a coroutine: what a worker must know of a run to report on it, moved at random instead of
by code.

It follows the rules that the worker follows: it is advanced only by rows that a turn returned, it takes
child numbers in order, it waits only for children that are open, and a run that is blocked already it lets
wait for the same again. It has one receive of a name at a time, and one that was asked to end it soon ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.row_sets import ALLOCATING, RESOLVING, WIDTHS
from tests.support.verbs import (
    Held,
    Turn,
    adopt,
    begun,
    broken,
    cancelled,
    captured,
    complete,
    continue_as_new,
    done,
    fail,
    halt,
    intent,
    join_set,
    pick,
    promise,
    receive,
    release,
    run,
    submit,
    suspend,
    timer,
)

DETACHED = "d"  # workflow of children that nobody waits for
ATTEMPTS = {
    "step_started": 1,
    "attempt_started": 1,
    "first_attempt_failed": -1,
    "open_attempt_failed": -1,
    "attempt_failed": -1,
}
SET_ROWS = {"join_set": "join_set_created", "submit": "join_set_submitted", "take": "join_set_awaited"}
SIGNALS = ("a", "b")
WAITED = ("run", "timer", "promise", "adopt", "receive")


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
    busy: bool = False
    first: int = 0
    cancelling: bool = False
    receivers: dict[str, int] = field(default_factory=dict)
    sets: dict[int, set[int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, held: Held, warm: Shadow | None) -> Shadow | None:
        """The run as it was claimed; None if the worker was given a tail and has lost the coroutine it
        belongs to."""
        if held.start and warm is None:
            return None
        shadow = cls(execution=held.execution, id=held.id, version=held.version, first=held.first_child)
        shadow.next_child = held.first_child
        if held.start and warm is not None:
            assert 0 <= held.start - warm.next <= 1, (
                "the tail begins where the coroutine stopped, or after the await"
            )
            shadow.next_child, shadow.open, shadow.steps = warm.next_child, warm.open, warm.steps
            shadow.receivers, shadow.cancelling = warm.receivers, warm.cancelling
            shadow.sets, shadow.closed, shadow.complete = warm.sets, warm.closed, warm.complete
        shadow.load(held.rows)
        shadow.next = held.next
        return shadow

    def load(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Advance by journal rows."""
        for seq, kind, child, attempt, name, _hash, data, _ok in rows:
            self.next = max(self.next, seq + WIDTHS.get(kind, 1))
            if kind in ALLOCATING:
                self.next_child = max(self.next_child, child + 1)
            if kind in ("child_run_scheduled", "promise_registered", "timer_scheduled") and name != DETACHED:
                self.open.add(child)
            if kind in ATTEMPTS:
                self.steps[child] = ATTEMPTS[kind] * attempt
            if kind in RESOLVING:
                self.open.discard(child)
                self.steps.pop(child, None)
                self.complete.add(child)
            if kind == "signal_received":
                self.receivers.pop(name, None)
            if kind == "execution_awaiting":
                wait = json.loads(data)
                self.blocked = (wait["on"], wait["kind"])
                self.open.update(wait["on"])
            elif kind in ("execution_resumed", "cancel_requested"):
                self.blocked = None
                self.cancelling |= kind == "cancel_requested"
            elif kind in ("join_set_created", "join_set_submitted", "join_set_awaited"):
                self._note_set(kind, child, attempt)

    def _note_set(self, kind: str, child: int, join_set: int) -> None:
        if kind == "join_set_created":
            self.sets[child] = set()
        elif kind == "join_set_submitted":
            self.sets[join_set].add(child)
        else:
            self.sets[join_set].discard(child)
            self.closed.add(join_set)

    def know(self, receivers: dict[str, int]) -> None:
        """What code that was replayed would know: its receives that still wait."""
        self.receivers = receivers
        self.open.update(receivers.values())
        self.next_child = max([self.next_child, *(number + 1 for number in receivers.values())])

    def move(self, rng: Random, *, spread: bool, foreign: str = "") -> dict[str, Any]:
        """A report: what the run does next. With `spread` it may start children; `foreign` is a promise of
        somebody else that it may take in. The same as before, if that met what somebody else holds."""
        if self.busy:
            return self.sent
        outcomes: list[dict[str, Any]] = []
        commands: list[dict[str, Any]] = []
        end: dict[str, Any] | None = None
        if self.blocked is not None:
            on = sorted(set(self.blocked[0]) & self.open)
            end = rng.choice((suspend(*on, kind=self.blocked[1] if len(on) > 1 else None), release(), None))
        else:
            if rng.random() < 0.5:
                outcomes = self._outcomes(rng)
            if rng.random() < 0.6:
                commands = self._commands(rng, spread=spread) + self._joins(rng)
                if foreign and foreign != self.id and rng.random() < 0.15:
                    commands.append(adopt(self._take(rng), foreign))
            if not outcomes:
                end = self._last(rng) if self.cancelling else self._end(rng)
        self.sent = {
            "execution": self.execution,
            "id": self.id,
            "version": self.version,
            "seen": self.next,
            "outcomes": outcomes,
            "commands": commands,
            "end": end,
        }
        return self.sent

    def _take(self, rng: Random) -> int:
        number = self.next_child
        self.next_child += 1 + (rng.random() < 0.1)
        return number

    def _outcomes(self, rng: Random) -> list[dict[str, Any]]:
        outcomes: list[dict[str, Any]] = []
        for child, attempt in list(self.steps.items()):
            number = attempt if attempt > 0 else 1 - attempt
            kind = rng.randrange(4)
            if kind == 0:
                outcomes.append(done(child, attempt=number))
            elif kind == 1:
                outcomes.append(broken(child, attempt=number, retry_in=rng.choice((None, 5))))
            elif kind == 2 and attempt < 0:
                outcomes.append(begun(child, attempt=number))
        for _ in range(rng.randrange(1, 4)):
            child = self._take(rng)
            kind = rng.randrange(6)
            if kind == 0:
                outcomes.append(begun(child))
                if rng.random() < 0.5:
                    outcomes.append(done(child))
            elif kind == 1:
                outcomes.append(broken(child, retry_in=rng.choice((None, 5))))
            else:
                outcomes.append(done(child))
        return outcomes

    def _commands(self, rng: Random, *, spread: bool) -> list[dict[str, Any]]:
        kinds: list[Callable[[int], dict[str, Any]]] = [
            lambda n: timer(n, rng.choice((0, 1, 20))),
            captured,
            lambda n: promise(n, rng.choice((None, 30))),
        ]
        if spread:
            kinds += [run, run, lambda n: run(n, name=DETACHED, detached=True), lambda n: run(n, timeout=50)]
        commands = [rng.choice(kinds)(self._take(rng)) for _ in range(rng.randrange(1, 4))]
        for name in SIGNALS:
            if name not in self.receivers and not self.cancelling and rng.random() < 0.2:
                commands.append(receive(self._take(rng), name))
        return commands

    def _joins(self, rng: Random) -> list[dict[str, Any]]:
        """What is done with join sets: one is made with a step begun for it, or a result is taken."""
        if rng.random() < 0.15:
            new, step = self._take(rng), self._take(rng)
            return [join_set(new), intent(step, retry='{"max_attempts": 1000}'), submit(step, new)]
        ready = [(child, new) for new, members in self.sets.items() for child in members & self.complete]
        return [pick(*rng.choice(ready))] if ready else []

    def _last(self, rng: Random) -> dict[str, Any] | None:
        """How a run ends that was asked to."""
        kind = rng.randrange(8)
        return cancelled() if kind < 4 else complete() if kind < 5 else None

    def _end(self, rng: Random) -> dict[str, Any] | None:
        if self.open and rng.random() < 0.85:
            on = rng.sample(sorted(self.open), rng.randrange(1, len(self.open) + 1))
            return suspend(*on, kind=rng.choice(("any", "all")) if len(on) > 1 else None)
        kind = rng.randrange(20)
        if kind == 0:
            return halt()
        if kind == 1 and not self.steps:
            return continue_as_new(on=self.next_child)
        if kind < 5:
            return release(rng.choice((0, 0, 10)))
        return complete() if kind < 12 else fail() if kind < 14 else None

    def take_answer(self, turn: Turn) -> str:
        """Advance by the answer to the report that was sent; tells acquired, suspended (and warm), stale,
        gone."""
        held = Held(execution=self.execution, id=self.id, version=self.version, next=self.next)
        verdict, state = turn.of(held)
        self.busy = verdict == "busy"
        if self.busy:
            return "acquired"
        if verdict != "ok":
            return "stale" if verdict == "stale" and state == "acquired" else "gone"
        for command in self.sent["commands"]:
            self._note_command(command)
        for outcome in self.sent["outcomes"]:
            over = not outcome.get("begun") and outcome.get("retry_in") is None
            self.complete |= {outcome["child"]} if over else set()
            self.steps[outcome["child"]] = (
                0 if over else outcome["attempt"] if outcome.get("begun") else -outcome["attempt"]
            )
        self.steps = {child: attempt for child, attempt in self.steps.items() if attempt}
        about = turn.raw["verdicts"]
        unseen = state == "released" and about["seq"][about["execution"].index(self.execution)] > self.next
        if not unseen:
            self.next = turn.next_of(held)
        if state == "acquired":
            self.load(turn.tail(held))
        later = state == "released" and (self.sent["end"] or {}).get("retry_in", 0) > 0
        return "suspended" if later else state if state in ("acquired", "suspended") else "gone"

    def _note_command(self, command: dict[str, Any]) -> None:
        """Take in a command that was accepted."""
        do, child = command["do"], command["child"]
        if do in WAITED and not command.get("detached"):
            self.open.add(child)
        if do == "receive":
            self.receivers[command["name"]] = child
        elif do == "intent":
            self.steps[child] = 1
        elif do in ("join_set", "submit", "take"):
            self._note_set(SET_ROWS[do], child, command.get("set", child))
