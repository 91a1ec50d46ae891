"""Plays small programs of several sessions in a given order and tells how each statement ended.

A program is a list of transactions, a transaction a list of actions. An action is a statement or a function
of Python (which moves the clock). The order names whose turn it is; a session that waits for another's lock
keeps its further actions until it is free. Turns and ticks wait for nobody: one that answers that something
is held has written nothing of it, so its transaction ends, and it is sent again when others have moved.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support.barrier import LIMIT_S, Player, Stage, Step, interleavings
from tests.support.verbs import Call

Action = Call | Callable[[], object] | str
Program = Sequence[Action]


@dataclass(kw_only=True)
class Ending:
    """What became of one session's program."""

    answers: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    blocked: bool = False
    busy: int = 0

    @property
    def won(self) -> bool:
        """No statement of it failed."""
        return not self.errors

    def answer(self) -> Any:
        """First column of the first row of the last statement that answered rows."""
        return self.answers[-1][0][0]


@dataclass(kw_only=True)
class Part:
    """One session in a performance."""

    player: Player
    left: deque[Action] = field(default_factory=deque)
    step: Step | None = None
    action: Action = ""
    again: list[Action] = field(default_factory=list)
    in_block: bool = False
    ending: Ending = field(default_factory=Ending)


def transaction(*actions: Call) -> list[Action]:
    """A transaction of its own; it begins with its first action."""
    return ["begin", *actions, "commit"]


def orders(programs: Mapping[str, Program]) -> list[tuple[str, ...]]:
    """Every order of the programs' actions; a begin belongs to the action after it."""
    counts = {
        name: [name] * sum(action != "begin" for action in program) for name, program in programs.items()
    }
    return list(interleavings(*counts.values()))


class Drama:
    """Sessions that play one performance after the other."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._players: dict[str, Player] = {}

    def perform(self, programs: Mapping[str, Program], order: Sequence[str]) -> dict[str, Ending]:
        """Play the programs in this order to their end."""
        for name in programs:
            if name not in self._players:
                self._players[name] = self._stage.player(name)
        parts = {name: Part(player=self._players[name]) for name in programs}
        scripts = {name: deque(program) for name, program in programs.items()}
        for name in order:
            action = scripts[name].popleft()
            parts[name].left.append(action)
            if action == "begin":
                parts[name].left.append(scripts[name].popleft())
            self._go_on(parts)
        while any(part.left or part.step or part.again for part in parts.values()):
            self._go_on(parts)
        return {name: part.ending for name, part in parts.items()}

    def _go_on(self, parts: Mapping[str, Part]) -> None:
        for part in parts.values():
            part.left.extendleft(reversed(part.again))
            part.again = []
        moved = True
        while moved:
            moved = False
            for part in parts.values():
                if part.step is not None:
                    if self._waits(part.step, part.player):
                        continue
                    self._note(part, part.step)
                    moved = True
                if part.left and not part.again:
                    self._act(part, part.left.popleft())
                    moved = True

    def _act(self, part: Part, action: Action) -> None:
        if callable(action):
            action()
            return
        part.action = action
        text, parameters = (action, ()) if isinstance(action, str) else action
        part.in_block = text == "begin" or (part.in_block and text not in ("commit", "rollback"))
        part.step = part.player.do(text, parameters)
        if part.step.blocked:
            part.ending.blocked = True

    def _waits(self, step: Step, player: Player) -> bool:
        end = time.monotonic() + LIMIT_S
        while not step.done:
            if self._stage.blockers(player.pid):
                return True
            assert time.monotonic() < end, f"{player.name} neither returns nor waits for a lock"
        return False

    @staticmethod
    def _note(part: Part, step: Step) -> None:
        try:
            rows = step.rows()
        except psycopg.Error as error:
            part.ending.errors.append(error.sqlstate or str(error))
        else:
            if _is_held(part.action, rows):
                part.ending.busy += 1
                part.ending.blocked = True
                if part.in_block:
                    part.player.do("commit").rows()
                part.again = ["begin", part.action] if part.in_block else [part.action]
            elif rows:
                part.ending.answers.append(rows)
        part.step = None


def _is_held(action: Action, rows: list[tuple[Any, ...]]) -> bool:
    """Whether that is the answer of a turn, claim or tick that left out what others hold."""
    if callable(action) or isinstance(action, str):
        return False
    text, parameters = action
    if "tick_v1" in text:
        return bool(rows[0][0].get("locked"))
    if "worker_turn_v1" not in text:
        return False
    return bool(rows[0][0]["busy"] or (rows[0][0]["locked"] and "[]" in parameters))
