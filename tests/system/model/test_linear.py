"""Law: the checker accepts every history that some order explains and refutes every other.

Small made-up objects (a register, a lock, promises with a deadline) and histories written by hand, so that
nothing of the real model or of a database is needed to believe the checker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations
from random import Random
from typing import Any

import pytest

from tests.system.model.linear import GaveUp, History, Move, Operation, Request, Response, Verdict, check
from tests.system.model.timed import Timed

DUE = 10
HOLD = 9  # steps that a lock is held at most, before and after the clock is read
Shelf = tuple[tuple[str, int], ...]


class Registers:
    """Numbers that are read, written and increased, the simplest objects that can be wrong; first 0."""

    def outcomes(self, state: Shelf, operation: Operation, now_ms: int) -> Iterator[Shelf]:
        """The one state after the operation, if the recorded answer fits."""
        kind, answer = operation.request["kind"], operation.answer["data"]
        name, value = operation.request["data"]
        kept = dict(state)
        if kind == "write":
            yield tuple(sorted({**kept, name: value}.items()))
        elif kind == "increase" and answer == kept.get(name, 0) + 1:
            yield tuple(sorted({**kept, name: answer}.items()))
        elif kind == "read" and answer == kept.get(name, 0):
            yield state

    def forget(self, state: Shelf, floor_ms: int) -> Shelf:
        """A register does not know of time."""
        return state

    def inert(self, operation: Operation) -> bool:
        """A read that fits has fitted."""
        return str(operation.request["kind"]) == "read"

    def touches(self, operations: Sequence[Operation]) -> list[frozenset[str] | None]:
        """The register that is named."""
        return [frozenset(operation.request["data"][0]) for operation in operations]


class Lock:
    """Somebody has it or nobody; 409 to all others."""

    def outcomes(self, state: str, operation: Operation, now_ms: int) -> Iterator[str]:
        """acquire is 200 if it was free, release is 200 for the holder."""
        kind, who = operation.request["kind"], operation.request["data"]
        free = state == ("" if kind == "acquire" else who)
        if operation.answer["status"] == (200 if free else 409):
            yield {"acquire": who, "release": ""}[kind] if free else state

    def forget(self, state: str, floor_ms: int) -> str:
        """A lock does not know of time."""
        return state

    def inert(self, operation: Operation) -> bool:
        """A refusal that fits has fitted."""
        return int(operation.answer["status"]) == 409

    def touches(self, operations: Sequence[Operation]) -> list[frozenset[str] | None]:
        """There is one lock."""
        return [None] * len(operations)


@dataclass(frozen=True)
class Pledge:
    """A promise of the mini machine: its deadline, its verdict, if one awaits it and was woken."""

    deadline: int
    state: str = "pending"
    awaiter: bool = False
    woken: bool = False


class Pledges:
    """Promises with a deadline and at most one awaiter each, of which task.get tells whether it was woken."""

    Store = frozenset[tuple[str, Pledge]]

    def step(self, state: Store, request: Request, now_ms: int) -> tuple[Store, Response]:
        """create, get, settle, register; what is told as timed out is written, as real engines do."""
        data, kept = request["data"], dict(state)
        id_ = data.get("id", data.get("awaited")).removeprefix("w:")
        if id_ not in kept and request["kind"] == "promise.create":
            kept[id_] = Pledge(deadline=data["timeoutAt"])
        if id_ not in kept:
            return state, {"status": 404, "data": ""}
        pledge = kept[id_]
        if request["kind"] == "task.get":
            return state, {"status": 200, "data": pledge.woken}
        live = pledge.state == "pending" and now_ms < pledge.deadline
        if pledge.state == "pending" and not live:
            state = self.expire(state, id_, now_ms)
            return state, {"status": 200, "data": "timedout"}
        if request["kind"] == "promise.settle" and live:
            kept[id_] = replace(pledge, state=f"{data['state']} at {now_ms}", woken=pledge.awaiter)
        elif request["kind"] == "promise.register_callback" and live:
            kept[id_] = replace(pledge, awaiter=True)
        return frozenset(kept.items()), {"status": 200, "data": kept[id_].state}

    def expire(self, state: Store, id_: str, now_ms: int) -> Store:
        """The deadline's verdict; wakes the awaiter."""
        kept = dict(state)
        kept[id_] = replace(kept[id_], state="timedout", woken=kept[id_].awaiter)
        return frozenset(kept.items())

    def lose(self, state: Store, id_: str, now_ms: int) -> Store:
        """There are no leases here."""
        raise AssertionError

    def due(self, state: Store, now_ms: int) -> list[str]:
        """Past the deadline, no verdict."""
        return sorted(id_ for id_, each in state if each.state == "pending" and each.deadline <= now_ms)

    swept = due

    def overdue(self, state: Store, now_ms: int) -> list[str]:
        """There are no leases here."""
        return []

    def awaiters(self, state: Store, id_: str) -> list[str]:
        """The awaiter has the name of what it awaits."""
        return ["w"] if dict(state)[id_].awaiter and dict(state)[id_].state == "pending" else []

    def pending(self, state: Store, id_: str) -> bool:
        """Known and without verdict."""
        return id_ in dict(state) and dict(state)[id_].state == "pending"


def op(
    called: int, returned: int, kind: str, data: Any = 0, answer: Any = None, *, status: int = 200
) -> Operation:
    """An operation, on the register r unless `data` says otherwise."""
    about = ("r", data) if kind in ("write", "increase", "read") and isinstance(data, int) else data
    return Operation(
        session=str(called),
        called=called,
        returned=returned,
        request={"kind": kind, "data": about},
        answer={"status": status, "data": answer},
    )


def verdict_of(*operations: Operation) -> Verdict:
    """The registers' verdict."""
    return check(History(start_ms=0, operations=operations), Registers(), ())


def judge_lock(*operations: Operation) -> Verdict:
    """The lock's verdict; it starts free."""
    return check(History(start_ms=0, operations=operations), Lock(), "")


def judge_pledges(*operations: Operation, moves: tuple[Move, ...] = ()) -> Verdict:
    """The verdict on promises; the clock starts at 0, and every deadline in these tests is DUE."""
    history = History(start_ms=0, moves=moves, operations=operations)
    return check(history, Timed(Pledges()), (frozenset(), ()))


def create(called: int, returned: int) -> Operation:
    """The promise p is born; first in most histories."""
    return op(called, returned, "promise.create", {"id": "p", "timeoutAt": DUE}, "pending")


def get(called: int, returned: int, shown: str) -> Operation:
    """The promise p is read."""
    return op(called, returned, "promise.get", {"id": "p"}, shown)


def settle(called: int, returned: int, shown: str, asked: str = "resolved") -> Operation:
    """The promise p is settled by somebody, who was shown this."""
    return op(called, returned, "promise.settle", {"id": "p", "state": asked}, shown)


def register(called: int, returned: int, shown: str) -> Operation:
    """Somebody awaits p."""
    return op(called, returned, "promise.register_callback", {"awaited": "p", "awaiter": "w"}, shown)


def woken(called: int, returned: int, shown: bool) -> Operation:
    """Whether the awaiter of p was woken."""
    return op(called, returned, "task.get", {"id": "w:p"}, shown)


def tick(called: int, returned: int, promises: int, *, crowded: bool = True) -> Operation:
    """A sweep that says how many promises it settled."""
    swept = op(called, returned, "tick", {}, {"promises": promises, "leases": 0})
    return replace(swept, crowded=crowded)


def test_one_after_the_other_is_accepted() -> None:
    """A history without overlap has one order, found with as many states as there are operations."""
    verdict = verdict_of(op(1, 2, "write", 5), op(3, 4, "increase", answer=6), op(5, 6, "read", answer=6))
    assert verdict and verdict.explored == 4
    assert [operation.request["kind"] for operation, _ in verdict.order] == ["write", "increase", "read"]


def test_overlap_may_be_read_either_way() -> None:
    """While a write is under way both its old and its new value may be read, the new one for good."""
    write = op(1, 10, "write", 5)
    assert verdict_of(write, op(2, 3, "read", answer=0), op(4, 5, "read", answer=5))
    assert not verdict_of(write, op(2, 3, "read", answer=5), op(4, 5, "read", answer=0))


def test_a_lost_update_is_refuted() -> None:
    """Two increases that both answer 1 are no increases."""
    assert not verdict_of(op(1, 4, "increase", answer=1), op(2, 3, "increase", answer=1))
    assert verdict_of(op(1, 4, "increase", answer=2), op(2, 3, "increase", answer=1))


def test_a_stale_read_is_refuted() -> None:
    """Whoever asks after a write has returned sees it."""
    assert not verdict_of(op(1, 2, "write", 5), op(3, 4, "read", answer=0))
    assert verdict_of(op(1, 3, "write", 5), op(2, 4, "read", answer=0))


def test_real_time_binds_over_sessions() -> None:
    """Two writes in succession cannot be read in the other order by anybody."""
    writes = (op(1, 2, "write", 1), op(3, 4, "write", 2))
    assert verdict_of(*writes, op(5, 6, "read", answer=2))
    assert not verdict_of(*writes, op(5, 6, "read", answer=1))


def test_two_lock_owners_are_refuted() -> None:
    """Of two acquires that overlap one is 200, unless the lock was given back in between."""
    first = op(1, 9, "acquire", "a")
    second = op(2, 8, "acquire", "b")
    assert judge_lock(first, replace(second, answer={"status": 409}))
    assert not judge_lock(first, second)
    given_back = op(3, 7, "release", "a")
    assert judge_lock(first, second, given_back)
    assert not judge_lock(first, replace(second, returned=6), replace(given_back, called=7, returned=8))


def test_a_refusal_needs_its_reason() -> None:
    """409 to the only one who asks is as wrong as 200 to two."""
    assert not judge_lock(op(1, 2, "acquire", "a", status=409))


def brute(operations: tuple[Operation, ...]) -> bool:
    """Whether any order explains the registers, by trying them all."""
    for order in permutations(operations):
        pairs = ((early, late) for place, late in enumerate(order) for early in order[:place])
        if any(late.returned < early.called for early, late in pairs):
            continue
        states: list[Shelf] = [()]
        for operation in order:
            states = [after for state in states for after in Registers().outcomes(state, operation, 0)]
        if states:
            return True
    return False


def test_the_search_agrees_with_trying_all_orders(seed: int) -> None:
    """On small random histories, right and wrong, an order is found if and only if there is one."""
    rng, verdicts = Random(seed), [0, 0]
    for _ in range(400):
        places = iter(rng.sample(range(100), 12))
        operations = []
        for _ in range(rng.randrange(2, 7)):
            called, returned = sorted((next(places), next(places)))
            about = (rng.choice("rs"), rng.randrange(1, 3))
            kind = rng.choice(("write", "increase", "read"))
            operations.append(op(called, returned, kind, about, answer=rng.randrange(4)))
        expected = brute(tuple(operations))
        assert bool(verdict_of(*operations)) == expected, "\n".join(map(str, operations))
        verdicts[expected] += 1
    assert min(verdicts) > 20, verdicts


def test_giving_up_is_no_verdict() -> None:
    """A search beyond its limit raises instead of answering."""
    many = [op(place, 100 + place, "read", answer=0) for place in range(12)]
    with pytest.raises(GaveUp):
        check(History(start_ms=0, operations=tuple(many)), Registers(), (), limit=3)


def test_a_refutation_names_the_operation_without_an_order() -> None:
    """The longest beginning that works and the operations that do not fit after it are in the message."""
    verdict = verdict_of(op(1, 2, "write", 5), op(3, 4, "read", answer=7))
    assert [operation.request["kind"] for operation, _ in verdict.order] == ["write"]
    assert [operation.answer["data"] for operation in verdict.stuck] == [7]
    assert "read ('r', 0)" in str(verdict)


def test_timed_out_is_for_ever() -> None:
    """Told "timed out", then "resolved", is refuted, be it concurrent with the clock's move or not."""
    move = Move(called=10, returned=40, now_ms=DUE)
    late = (get(11, 12, "timedout"), settle(13, 14, "resolved at 10"))
    assert not judge_pledges(create(1, 2), *late, moves=(move,))
    assert not judge_pledges(
        create(1, 2), settle(5, 14, "resolved at 0"), get(11, 12, "timedout"), moves=(move,)
    )
    assert judge_pledges(create(1, 2), late[0], settle(13, 14, "timedout"), moves=(move,))
    assert judge_pledges(create(1, 2), settle(5, 14, "resolved at 0"), get(11, 12, "pending"), moves=(move,))


def test_an_instant_was_shown_while_it_was_read() -> None:
    """Nobody sees a deadline before the clock is there, or lives after it for all to see."""
    move = Move(called=10, returned=11, now_ms=DUE)
    assert not judge_pledges(create(1, 2), get(3, 4, "timedout"), moves=(move,))
    assert not judge_pledges(create(1, 2), get(12, 13, "pending"), moves=(move,))
    assert judge_pledges(create(1, 2), get(3, 13, "pending"), moves=(move,))
    assert judge_pledges(create(1, 2), get(3, 13, "timedout"), moves=(move,))


def test_the_clock_knows_no_inversion() -> None:
    """Who is called after somebody has read the new instant reads it too, even while the clock is moving."""
    move = Move(called=10, returned=90, now_ms=DUE)
    other = replace(create(1, 2), request={"kind": "promise.create", "data": {"id": "q", "timeoutAt": DUE}})
    births = (create(3, 4), other)
    read_q = replace(get(20, 21, "timedout"), request={"kind": "promise.get", "data": {"id": "q"}})
    assert not judge_pledges(*births, read_q, get(22, 23, "pending"), moves=(move,))
    assert judge_pledges(*births, read_q, get(19, 23, "pending"), moves=(move,))


def test_a_commit_may_come_after_the_clock_moved_on() -> None:
    """Who reads without lock may still find pending what is being settled at an earlier instant."""
    move = Move(called=10, returned=11, now_ms=5)
    slow = settle(5, 30, "resolved at 0")
    assert judge_pledges(
        create(1, 2), slow, get(12, 13, "pending"), get(31, 32, "resolved at 0"), moves=(move,)
    )
    assert not judge_pledges(
        create(1, 2), slow, get(12, 13, "pending"), get(31, 32, "pending"), moves=(move,)
    )


def test_time_is_monotone_under_a_lock() -> None:
    """Who had the lock later has read the clock later; an instant from before the lock is refuted."""
    move = Move(called=10, returned=11, now_ms=5)
    other = register(12, 13, "pending")
    assert not judge_pledges(create(1, 2), settle(5, 30, "resolved at 0"), other, moves=(move,))
    assert judge_pledges(create(1, 2), settle(5, 30, "resolved at 5"), other, moves=(move,))
    assert judge_pledges(
        create(1, 2), settle(5, 30, "resolved at 0"), register(6, 13, "pending"), moves=(move,)
    )


def test_a_wake_has_a_cause() -> None:
    """An awaiter is woken by a touch or a sweep after the deadline, maybe late, and by nothing else."""
    move = Move(called=10, returned=11, now_ms=DUE)
    births = (create(1, 2), register(3, 4, "pending"))
    assert not judge_pledges(*births, woken(5, 6, True), moves=(move,))
    assert not judge_pledges(*births, woken(12, 13, True), moves=(move,))
    assert judge_pledges(*births, woken(12, 13, False), get(14, 15, "timedout"), moves=(move,))
    assert judge_pledges(*births, tick(12, 13, 1), woken(14, 15, True), moves=(move,))
    assert not judge_pledges(
        *births, tick(12, 13, 1), woken(14, 15, True), woken(16, 17, False), moves=(move,)
    )


def test_a_sweep_skips_only_what_somebody_may_have_locked() -> None:
    """A sweep that nothing overlaps settles all that is due; it never settles more than it says."""
    move = Move(called=10, returned=11, now_ms=DUE)
    births = (create(1, 2), register(3, 4, "pending"))
    asleep = woken(14, 15, False)
    assert judge_pledges(*births, tick(12, 13, 0), asleep, moves=(move,))
    assert not judge_pledges(*births, tick(12, 13, 0, crowded=False), asleep, moves=(move,))
    assert not judge_pledges(*births, tick(12, 13, 0), woken(14, 15, True), moves=(move,))


def test_a_registration_with_a_verdict_registers_nothing() -> None:
    """A registration that was answered with a verdict has registered nothing."""
    move = Move(called=10, returned=11, now_ms=DUE)
    dead = (create(1, 2), register(12, 13, "timedout"))
    assert judge_pledges(*dead, woken(14, 15, False), moves=(move,))
    assert not judge_pledges(*dead, woken(14, 15, True), moves=(move,))


class Simulation:
    """An engine in memory, step by step: rows with locks, a clock that others move, commits that come late.

    `flaw` names what it does wrong; without one every history of it is linearizable.
    """

    def __init__(self, rng: Random, flaw: str = "") -> None:
        self.rng, self.flaw = rng, flaw
        self.rows: dict[str, Pledge] = {}
        self.locked: set[str] = set()
        self.now = 0
        self.places = count()
        self.operations: list[Operation] = []
        self.moves: list[Move] = []
        self.machine = Pledges()

    def apply(self, request: Request, now_ms: int) -> Response:
        """Run one operation on the committed rows; other rows may have changed meanwhile, this one not."""
        after, answer = self.machine.step(frozenset(self.rows.items()), request, now_ms)
        self.rows.update(after)
        return answer

    def locking(self, request: Request) -> Iterator[Response | None]:
        """settle and register: lock, read the clock, answer, commit."""
        id_ = request["data"].get("id", request["data"].get("awaited"))
        while id_ in self.locked:
            yield None
        self.locked.add(id_)
        for _ in range(self.rng.randrange(HOLD)):
            yield None
        now_ms = self.now
        for _ in range(self.rng.randrange(HOLD)):
            yield None
        before = self.rows.get(id_)
        if self.flaw == "the clock is read twice" and before and now_ms < before.deadline <= self.now:
            self.apply(request, now_ms)
            now_ms = self.now
        answer = self.apply(request, now_ms)
        self.locked.discard(id_)
        yield answer

    def reading(self, request: Request) -> Iterator[Response | None]:
        """get: no lock, unless it is past its deadline."""
        id_ = request["data"]["id"]
        row = self.rows.get(id_)
        yield None
        if row and row.state == "pending" and row.deadline <= self.now:
            if self.flaw == "what is told is not written":
                yield {"status": 200, "data": "timedout"}
            yield from self.locking(request)
        yield {"status": 404, "data": ""} if row is None else {"status": 200, "data": row.state}

    def sweeping(self, request: Request) -> Iterator[Response | None]:
        """tick: settles what is due and not locked."""
        due = self.machine.due(frozenset(self.rows.items()), self.now)
        free = [id_ for id_ in due if id_ not in self.locked]
        self.locked.update(free)
        yield None
        for id_ in free:
            self.rows.update(self.machine.expire(frozenset(self.rows.items()), id_, self.now))
        self.locked.difference_update(free)
        yield {"status": 200, "data": {"promises": len(free), "leases": 0}}

    def session(self, requests: Sequence[Request]) -> Iterator[None]:
        """One after the other; a yield is where others may come in between."""
        for request in requests:
            called = next(self.places)
            yield None
            ways = {"promise.get": self.reading, "task.get": self.watching, "tick": self.sweeping}
            for answer in ways.get(request["kind"], self.locking)(request):
                yield None
                if answer is not None:
                    break
            assert answer is not None
            self.operations.append(
                Operation(
                    session=str(id(requests)),
                    called=called,
                    returned=next(self.places),
                    request=request,
                    answer=answer,
                )
            )

    def watching(self, request: Request) -> Iterator[Response | None]:
        """task.get of the awaiter: no lock."""
        yield self.machine.step(frozenset(self.rows.items()), request, self.now)[1]

    def clock(self, instants: Sequence[int]) -> Iterator[None]:
        """Moves; a move is seen some time between its call and its return."""
        for instant in instants:
            yield None
            yield None
            called = next(self.places)
            yield None
            self.now = instant
            yield None
            self.moves.append(Move(called=called, returned=next(self.places), now_ms=instant))

    def run(self) -> History:
        """Four sessions and the clock, in an order of the dice."""
        for id_ in "pq":
            self.rows[id_] = Pledge(deadline=DUE + ord(id_) - ord("p"))
        births = tuple(
            op(place, place + 1, "promise.create", {"id": id_, "timeoutAt": row.deadline}, "pending")
            for place, (id_, row) in zip((-4, -2), self.rows.items(), strict=True)
        )
        going = [self.session([self.request() for _ in range(4)]) for _ in range(4)]
        going.append(self.clock([4, 8, DUE, DUE + 1]))
        while going:
            one = self.rng.choice(going)
            if next(one, self) is self:
                going.remove(one)
        for _ in self.session([{"kind": "task.get", "data": {"id": f"w:{id_}"}} for id_ in "pq"]):
            pass
        return History(start_ms=0, moves=tuple(self.moves), operations=(*births, *self.operations))

    def request(self) -> Request:
        """Anything, on one of two promises."""
        id_ = self.rng.choice("pq")
        about: dict[str, dict[str, str]] = {
            "promise.get": {"id": id_},
            "promise.settle": {"id": id_, "state": self.rng.choice(("resolved", "rejected"))},
            "promise.register_callback": {"awaited": id_, "awaiter": f"w:{id_}"},
            "task.get": {"id": f"w:{id_}"},
            "tick": {},
        }
        kind = self.rng.choice(list(about))
        return {"kind": kind, "data": about[kind]}


def refuted(rng: Random, flaw: str, runs: int) -> int:
    """How many histories of such an engine the checker refutes."""
    start: tuple[Pledges.Store, tuple[()]] = (frozenset(), ())
    return sum(not check(Simulation(rng, flaw).run(), Timed(Pledges()), start) for _ in range(runs))


def test_an_engine_that_locks_before_it_reads_the_clock_passes(seed: int) -> None:
    """Every history of an engine with two-phase locks and one late reading of the clock is accepted."""
    assert refuted(Random(seed), "", 300) == 0


@pytest.mark.parametrize("flaw", ["the clock is read twice", "what is told is not written"])
def test_an_engine_with_a_flaw_is_caught(flaw: str, seed: int) -> None:
    """An engine that reads the clock twice, or tells a verdict that it does not write, is refuted."""
    assert refuted(Random(seed), flaw, 300) > 0
