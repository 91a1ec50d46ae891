"""Is a history of concurrent operations one that the specification allows? A linearizability checker.

What lives here: operations with their intervals, the search for an order, and the clock's part in it. Nothing
here knows a database or decides what an operation means; `timed.py` does.

The search is that of Wing and Gong: try every operation that no other has to precede, go on with every state
in which the model could have given the recorded answer, turn back at a dead end. Lowe's memo makes it quick:
a pair (set of operations done, state reached) is never entered twice. Giving up raises; it is never a pass.

Time is a part of the specification, and the clock is a register of its own: one session writes it (a `Move`),
operations read it once, after their last lock, and take effect when they commit, later than they read. So a
commit may come after a move and still carry the instant before it, and nobody is wrong. What holds is

1. the instant is one that the clock showed between the call and the return of the operation;
2. no new-old inversion: whoever was called after somebody returned reads at least what that one read;
3. time is monotone along each lock: who locks an object after another reads the clock after it too;
4. an operation takes effect after it has read the clock, hence after all that returned before the move.

1 and 2 say exactly that the clock is atomic (one writer), 3 is what "clock after locks" promises. The order
is found together with an instant for each operation; every engine that keeps its locks until it commits and
reads the clock while it has them all passes (its commits and lock-free reads, in the order in which they
happened, are such an order). One that reads the clock too early, or twice, is refuted where it shows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

Request = Mapping[str, Any]
Response = Mapping[str, Any]
S = TypeVar("S", bound=Hashable)
LIMIT = 400_000


class GaveUp(Exception):
    """The search was larger than its limit: neither accepted nor refuted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A call and its return, as places in one sequence of events; `crowded`: something else was under way."""

    session: str
    called: int
    returned: int
    request: Request
    answer: Response
    crowded: bool = True

    def __str__(self) -> str:
        place = f"[{self.called}..{self.returned}] {self.session}"
        return f"{place} {self.request.get('kind')} {self.request.get('data')} -> {dict(self.answer)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The clock was set to an instant, in ms; moves follow each other and go forward."""

    called: int
    returned: int
    now_ms: int


@dataclass(frozen=True, kw_only=True)
class History:
    """What was recorded: the clock's first instant, its moves, and all operations."""

    start_ms: int
    moves: tuple[Move, ...] = ()
    operations: tuple[Operation, ...]

    @cached_property
    def instants(self) -> tuple[int, ...]:
        """Every instant that the clock ever showed."""
        return (self.start_ms, *(move.now_ms for move in self.moves))

    def shown(self, operation: Operation) -> range:
        """Which of the instants the clock can have shown between call and return."""
        first = sum(move.returned < operation.called for move in self.moves)
        return range(first, 1 + sum(move.called < operation.returned for move in self.moves))


class Model(Protocol[S]):
    """A specification that is asked backwards: which states can follow, given what was answered."""

    def outcomes(self, state: S, operation: Operation, now_ms: int) -> Iterable[S]:
        """States after the operation, in each way in which it can have had its answer at that instant."""

    def forget(self, state: S, floor_ms: int) -> S:
        """The same state without what cannot matter, as nobody to come reads the clock below the floor."""

    def inert(self, operation: Operation) -> bool:
        """With this answer it changes something now, or it never will."""

    def touches(self, operations: Sequence[Operation]) -> Sequence[frozenset[str] | None]:
        """What each may read or change; those with nothing in common commute. None: maybe everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Linearizable or not; the order and instants found, or the longest beginning and who then had no way."""

    linearizable: bool
    order: tuple[tuple[Operation, int], ...]
    state: Any
    stuck: tuple[Operation, ...] = ()
    explored: int

    def __bool__(self) -> bool:
        return self.linearizable

    def __str__(self) -> str:
        if self.linearizable:
            return f"linearizable, {self.explored} states"
        done = "\n".join(f"  {now} {operation}" for operation, now in self.order[-12:])
        rest = "\n".join(f"  {operation}" for operation in self.stuck)
        return (
            f"not linearizable, {self.explored} states; after\n{done}\n"
            f"in the state\n  {self.state}\nnone of these fits:\n{rest}"
        )


Seen = tuple[tuple[int, int], ...]  # (place of an instant, return of the first one known to have read it)
Node = tuple[int, Any, Seen]


class _Search(Generic[S]):
    """One search: what it needs to know of the history, and the memo."""

    def __init__(self, history: History, model: Model[S], limit: int) -> None:
        self.model, self.limit, self.moves = model, limit, history.moves
        self.operations = sorted(history.operations, key=lambda each: each.called)
        self.instants = history.instants
        self.calls = [each.called for each in self.operations]
        self.shown = [history.shown(each) for each in self.operations]
        self.inert = [model.inert(each) for each in self.operations]
        self.all = (1 << len(self.operations)) - 1
        self.rivals = self.related(model.touches(self.operations))
        self.memo: set[Node] = set()

    def run(self, state: S) -> Verdict:
        """Depth first, with a stack of its own: a history may be longer than Python's recursion."""
        node: Node = (0, state, ())
        path: list[tuple[int, int]] = []
        best: tuple[list[tuple[int, int]], Node] = ([], node)
        stack = [self.following(node)]
        self.memo.add(node)
        while stack and node[0] != self.all:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                del path[len(stack) - 1 :]
                continue
            step, node = found
            path.append(step)
            stack.append(self.following(node))
            if len(path) > len(best[0]):
                best = (list(path), node)
        found_all = node[0] == self.all
        return Verdict(
            linearizable=found_all,
            order=self.named(best[0]),
            state=best[1][1],
            stuck=tuple(self.operations[place] for place in self.open(best[1][0])),
            explored=len(self.memo),
        )

    def named(self, path: Sequence[tuple[int, int]]) -> tuple[tuple[Operation, int], ...]:
        return tuple((self.operations[place], self.instants[instant]) for place, instant in path)

    def following(self, node: Node) -> Iterator[tuple[tuple[int, int], Node]]:
        """New nodes one operation further, the earliest return first: mostly that is the order of commits.

        An inert operation that fits and changes nothing goes first and alone: whatever follows from here with
        that operation later also follows with it now.
        """
        done, state, _ = node
        places = self.chosen(done)
        for place in places:
            if self.inert[place]:
                found = list(self.choices(node, place))
                if found and all(self.model.forget(each, self.floor(done)) == state for _, each in found):
                    yield from self.entered(node, place, found[:1])
                    return
        for place in places:
            yield from self.entered(node, place, self.choices(node, place))

    def related(self, touched: Sequence[frozenset[str] | None]) -> list[int]:
        """For each operation, as bits: who may come before it, and does not commute with it or has returned
        before the last instant that it may have read."""
        found = []
        for mine, operation, shown in zip(touched, self.operations, self.shown, strict=True):
            bits, read = 0, self.moves[shown[-1] - 1].called if shown[-1] else -1
            for place, theirs in enumerate(touched[: bisect_right(self.calls, operation.returned)]):
                common = mine is None or theirs is None or bool(mine & theirs)
                if common or self.operations[place].returned < read:
                    bits |= 1 << place
            found.append(bits)
        return found

    def chosen(self, done: int) -> list[int]:
        """Which of the open operations need be tried first: a stubborn set, the smallest one that is found.

        It has, with each operation, all its rivals to come, and where one of those is not open yet, who must
        return before it. In any order that ends well, the first operation of the set commutes with all before
        it, so the same order with that one first ends well too: the others may wait.
        """
        places = sorted(self.open(done), key=lambda each: self.operations[each].returned)
        best = places
        for seed in places:
            found, waiting = 0, 1 << seed
            while waiting:
                place = waiting.bit_length() - 1
                found |= 1 << place
                waiting |= self.rivals[place] if place in places else 1 << places[0]
                waiting &= ~(found | done)
            inside = [place for place in places if found >> place & 1]
            if len(inside) < len(best):
                best = inside
            if len(best) == 1:
                break
        return best

    def choices(self, node: Node, place: int) -> Iterator[tuple[int, S]]:
        """Instants at which an operation can have had its answer here, and the states after it."""
        done, state, seen = node
        operation = self.operations[place]
        first = max((at for at, by in seen if by < operation.called), default=0)
        end = min(self.operations[each].returned for each in self.open(done))
        for instant in self.shown[place]:
            if instant < first or (instant and self.moves[instant - 1].called > end):
                continue
            for outcome in self.model.outcomes(state, operation, self.instants[instant]):
                yield instant, outcome

    def entered(
        self, node: Node, place: int, choices: Iterable[tuple[int, S]]
    ) -> Iterator[tuple[tuple[int, int], Node]]:
        """The nodes that these choices lead to, without those that were entered before."""
        after = node[0] | 1 << place
        for instant, outcome in choices:
            state = self.model.forget(outcome, self.floor(after))
            fresh = (after, state, self.note(node[2], self.operations[place], instant, after))
            if fresh not in self.memo:
                if len(self.memo) >= self.limit:
                    raise GaveUp(f"more than {self.limit} states for {len(self.operations)} operations")
                self.memo.add(fresh)
                yield (place, instant), fresh

    def first(self, done: int) -> int:
        """Place of the earliest call that is not done."""
        return ((done + 1) & ~done).bit_length() - 1

    def open(self, done: int) -> list[int]:
        """Operations that may be next: called before any other that is not done has returned."""
        found: list[int] = []
        end = None
        for place in range(self.first(done), len(self.operations)):
            operation = self.operations[place]
            if done >> place & 1:
                continue
            if end is not None and operation.called > end:
                break
            found.append(place)
            end = operation.returned if end is None else min(end, operation.returned)
        return [place for place in found if end is not None and self.calls[place] < end]

    def floor(self, done: int) -> int:
        """The earliest instant that anybody to come may read."""
        place = self.first(done)
        return self.instants[self.shown[place].start if place < len(self.shown) else -1]

    def note(self, seen: Seen, operation: Operation, instant: int, after: int) -> Seen:
        """Remember who has read a moved clock before its mover returned, as long as it binds somebody."""
        known = dict(seen)
        for at in range(1, instant + 1):
            known[at] = min(known.get(at, self.moves[at - 1].returned), operation.returned)
        return tuple(sorted((at, by) for at, by in known.items() if self.binds(at, by, after)))

    def binds(self, at: int, by: int, done: int) -> bool:
        """Somebody not done was called after that read and before the move was over."""
        low, high = bisect_right(self.calls, by), bisect_right(self.calls, self.moves[at - 1].returned)
        return high > low and (~done >> low) & ((1 << high - low) - 1) != 0


def check(history: History, model: Model[S], start: S, *, limit: int = LIMIT) -> Verdict:
    """Search an order of the history that the model allows. Raises GaveUp beyond `limit` states."""
    return _Search(history, model, limit).run(start)
