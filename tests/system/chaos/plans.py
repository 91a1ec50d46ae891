"""Random workflows as data: how they are made, what they return, which signals they want.

A program is a tree of nodes, JSON all through, so that it can be the argument of a run. Every node stands
for a number that does not depend on what finishes first; so a run under faults must return what a calm one
returns. Some roots never return: they are cancelled, and stand for the clean-up that they do then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, TypeAlias

Node: TypeAlias = list[Any]

LEAVES = (
    *("step", "step", "step", "thread", "flaky", "fails", "sleep", "promise", "random", "random", "late"),
    *("write", "write", "undo"),
)
BRANCHES = ("gather", "gather", "group", "all", "set", "torn", "aborted")
# what never ends by itself; a group that fails gives it up
SIBLINGS = ("never", "nap", "deaf", "dawdle", "tidy", "tidy")
DEPTH_MAX = 3


class Maker:
    """Makes one program.

    Args:
        seed: what it is made from.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0

    def program(self) -> Node:
        """Return the root of a program."""
        cancelled = self._random.random() < 0.3
        parts = [self._node(0, root=not cancelled) for _ in range(self._random.randint(2, 5))]
        if cancelled:
            return ["leave", ["seq", parts], [self._number() for _ in range(self._random.randint(2, 4))]]
        return ["seq", parts]

    def _node(self, depth: int, *, root: bool) -> Node:
        chance = self._random.random()
        if depth >= DEPTH_MAX or chance < 0.35:
            return self._leaf(root=root)
        if chance < 0.75:
            return self._branches(depth, root=root)
        if chance < 0.85:
            return ["child", self._node(depth + 1, root=False)]
        if chance < 0.9:
            return self._random.choice([["childfail", self._number()], ["doomed", self._number()]])
        return ["seq", [self._node(depth + 1, root=root) for _ in range(self._random.randint(2, 3))]]

    def _branches(self, depth: int, *, root: bool) -> Node:
        kind = self._random.choice(BRANCHES)
        width = self._random.randint(2, 4)
        if kind == "set":
            members = [self._member() for _ in range(width)]
            return ["set", members, self._random.choice(["next", "all", "mixed"])]
        if kind in ("torn", "aborted"):
            live = [self._sibling() for _ in range(width)]
            if kind == "torn":
                return ["torn", live, self._number()]
            return ["aborted", live, self._random.choice(["fails", "late"]), self._number()]
        return [kind, [self._node(depth + 1, root=root) for _ in range(width)]]

    def _sibling(self) -> Node:
        """Return a node that never ends; a run receives a name once at a time, so each has its own."""
        kind = self._random.choice(SIBLINGS)
        if kind == "deaf":
            self._names += 1
            return [kind, self._names]
        return [kind, self._number()]

    def _member(self) -> Node:
        """Return a node that is a single call, so that it can be a member of a join set."""
        kind = self._random.choice(["step", "step", "flaky", "child", "promise", "fails"])
        if kind == "child":
            return ["child", ["step", self._number()]]
        if kind == "flaky":
            return ["flaky", self._number(), self._random.randint(1, 2)]
        return [kind, self._number()]

    def _leaf(self, *, root: bool) -> Node:
        kind = self._random.choice(LEAVES)
        if root and self._random.random() < 0.25:
            self._names += 1
            return ["signal", f"s{self._names}", [self._number() for _ in range(self._random.randint(1, 3))]]
        if kind == "flaky":
            return ["flaky", self._number(), self._random.randint(1, 2)]
        if kind == "sleep":
            return ["sleep", self._random.randint(1, 40)]
        if kind == "late":
            self._names += 1
            return ["late", f"never{self._names}", self._random.randint(1, 30)]
        return ["random"] if kind == "random" else [kind, self._number()]

    def _number(self) -> int:
        return self._random.randint(1, 1000)


def value(node: Node) -> int:
    """Return what a program stands for."""
    match node:
        case ["step" | "thread" | "write", int(number)]:
            return 2 * number + 1
        case ["flaky", int(number), _]:
            return 3 * number
        case (
            ["fails" | "childfail" | "undo", int(number)]
            | ["torn", _, int(number)]
            | ["aborted", _, _, int(number)]
        ):
            return -number
        case ["promise", int(number)]:
            return number
        case ["doomed", int(number)]:
            return 7 * number
        case ["sleep" | "random" | "leave", *_]:
            return 0
        case ["late", *_]:
            return 5
        case ["signal", _, numbers]:
            return sum(place * number for place, number in enumerate(numbers, 1))
        case ["child", inner]:
            return value(inner)
        case ["set", members, _]:
            return sum(map(value, members))
        case [_, parts]:
            return sum(map(value, parts))
    raise ValueError(f"no such node: {node!r}")


def clean_ups(program: Node) -> list[int]:
    """Return the numbers of the steps with which a root cleans up; none for a root that returns."""
    return program[2] if program[0] == "leave" else []


def signals(node: Node) -> Iterator[tuple[str, list[int]]]:
    """Return the signals that a root run wants: name, and the numbers in their order."""
    match node:
        case ["signal", name, numbers]:
            yield name, numbers
        case ["seq" | "gather" | "group" | "all", parts]:
            for part in parts:
                yield from signals(part)
