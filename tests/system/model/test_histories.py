"""Law: what sessions are answered, all at once, is what the model would have answered them one after another.

Each round records a history of 2 to 8 sessions on the engine itself (history.py) and looks for an order that
explains every answer and, at the end, every table (linear.py). The forged histories show that the search can
say no: each forgery is wrong whatever the order, so accepting one would be an error of the checker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, product
from random import Random
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import Connection
from tests.system.model.history import NEVER, World, answered, ask, asked, record, tables_operation
from tests.system.model.linear import History, Move, Operation, Request, Verdict, check
from tests.system.model.reference import Image, Reference
from tests.system.model.state import Json, State
from tests.system.model.tables import READ
from tests.system.model.timed import Timed, inner_status

Forger = Callable[[History, Random], History | None]
SIZE = 60
EMPTY: tuple[Image, tuple[()]] = (Image(State()), ())


@dataclass(kw_only=True)
class Tally:
    """Figures of all rounds."""

    rounds: int = 0
    operations: int = 0
    moves: int = 0
    explored: list[int] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    effective: Counter[str] = field(default_factory=Counter)
    sessions: Counter[int] = field(default_factory=Counter)

    def note(self, world: World, history: History, sessions: int, verdict: Verdict) -> None:
        """Add a round."""
        self.rounds += 1
        self.operations += world.tried.total()
        self.moves += len(history.moves)
        self.explored.append(verdict.explored)
        self.tried += world.tried
        self.effective += world.effective
        self.sessions[sessions] += 1

    def table(self, seed: int) -> str:
        """As a report."""
        lines = [
            f"{self.rounds} histories of {min(self.sessions)} to {max(self.sessions)} sessions, "
            f"{self.operations:,} operations, {self.moves:,} moves of the clock, seed {seed}: all "
            f"linearizable; {sum(self.explored):,} states explored, at most {max(self.explored):,} for one.",
            "",
            "| operation | tried | effective |",
            "|---|---|---|",
        ]
        for kind, tried in sorted(self.tried.items()):
            lines.append(f"| {kind} | {tried:,} | {100 * self.effective[kind] / tried:.0f} % |")
        return "\n".join(lines)


def verdict_of(history: History) -> Verdict:
    """The checker's verdict on a history of the engine."""
    return check(history, Timed(Reference()), EMPTY)


def rounds(dsn: str, clock: Clock, seed: int, number: int) -> Iterator[tuple[World, History, int]]:
    """Record that many histories, one after the other, on one database; the clock goes on."""
    now_ms = clock.now_ms
    for each in range(number):
        world = World(rng=Random(f"{seed} {each}"), size=SIZE, now_ms=now_ms)
        sessions = 2 + each % 7
        yield world, record(dsn, world, sessions), sessions
        now_ms = world.now_ms


SIZES = [pytest.param(6, id="6"), pytest.param(300, id="300", marks=pytest.mark.full)]


@pytest.mark.parametrize("number", SIZES)
@pytest.mark.session("the gates of its clock are locks of sessions")
def test_histories_are_linearizable(
    dsn: str, conn: Connection, clock: Clock, seed: int, number: int, figures: Callable[[str, str], None]
) -> None:
    """Whatever sessions do at once, some order of their operations explains all answers and all tables."""
    tally = Tally()
    for world, history, sessions in rounds(dsn, clock, seed, number):
        verdict = verdict_of(history)
        assert verdict, f"seed {seed}, round {tally.rounds}: {verdict}"
        broken = conn.execute("select * from durable.check()").fetchall()
        assert not broken, f"seed {seed}, round {tally.rounds}: {broken}"
        tally.note(world, history, sessions, verdict)
    figures("histories", tally.table(seed))


# what no order can explain


def spread(history: History) -> History:
    """The same history with room between the events, so that a forger can put some in."""

    def wide(each: Any) -> Any:
        return replace(each, called=each.called * 10, returned=each.returned * 10)

    return replace(
        history,
        moves=tuple(map(wide, history.moves)),
        operations=tuple(map(wide, history.operations)),
    )


def changed(history: History, operation: Operation, **fields: Any) -> History:
    """The history with one operation changed."""
    operations = [replace(each, **fields) if each is operation else each for each in history.operations]
    return replace(history, operations=tuple(operations))


def shown(operation: Operation) -> Json | None:
    """The promise in an answer."""
    data = operation.answer["data"]
    if operation.answer["status"] != 200 or not isinstance(data, dict):
        return None
    if "action" in data:
        data = data["action"]["data"] if inner_status(data) == 200 else {}
    found: Json | None = data.get("promise")
    return found


def task_of(operation: Operation) -> Json | None:
    """The task in an answer."""
    data = operation.answer["data"]
    found: Json | None = (
        data.get("task") if operation.answer["status"] == 200 and isinstance(data, dict) else None
    )
    return found


def of_kind(history: History, *kinds: str) -> list[Operation]:
    """Operations of some kinds that were answered 200."""
    return [
        each for each in history.operations if each.request["kind"] in kinds and each.answer["status"] == 200
    ]


def pick(rng: Random, found: list[Operation]) -> Operation | None:
    """One of them, if there is any."""
    return rng.choice(found) if found else None


def with_promise(operation: Operation, **fields: Any) -> Json:
    """The answer with another promise record in the place of `promise`; None takes a field away."""
    data = operation.answer["data"]
    record = {**data["promise"], **fields}
    bare = {name: value for name, value in record.items() if value is not None}
    return {"status": 200, "data": {**data, "promise": bare}}


def settled(operation: Operation) -> bool:
    """The answer shows a promise with its verdict."""
    promise = shown(operation)
    return promise is not None and promise["state"] != "pending"


def another_value(history: History, rng: Random) -> History | None:
    """A read shows a result that nobody wrote."""
    reads = of_kind(history, "promise.get", "promise.settle", "task.fulfill", "promise.create")
    chosen = pick(rng, [each for each in reads if (shown(each) or {}).get("value")])
    return (
        None
        if chosen is None
        else changed(history, chosen, answer=with_promise(chosen, value={"data": "forged"}))
    )


def second_claim(history: History, rng: Random) -> History | None:
    """After an acquire one of another process, with the same version, succeeds too."""
    chosen = pick(rng, of_kind(history, "task.acquire"))
    if chosen is None:
        return None
    request = {**chosen.request, "data": {**chosen.request["data"], "pid": "forger"}}
    data = chosen.answer["data"]
    answer = {**chosen.answer, "data": {**data, "task": {**data["task"], "pid": "forger"}}}
    times = {"called": chosen.returned + 1, "returned": chosen.returned + 2}
    again = replace(chosen, session="forger", request=request, answer=answer, **times)
    return replace(history, operations=(*history.operations, again))


def claim_beside(history: History, rng: Random) -> History | None:
    """An acquire that was refused, as somebody else had that version, succeeds too."""
    won = {
        (each.request["data"]["id"], each.request["data"]["version"]): each
        for each in of_kind(history, "task.acquire")
    }
    lost = [
        each
        for each in history.operations
        if each.request["kind"] == "task.acquire"
        and each.answer["status"] == 409
        and (beside := won.get((each.request["data"]["id"], each.request["data"]["version"])))
        and beside.request["data"]["pid"] != each.request["data"]["pid"]
    ]
    chosen = pick(rng, lost)
    if chosen is None:
        return None
    other = won[chosen.request["data"]["id"], chosen.request["data"]["version"]]
    data = other.answer["data"]
    lease = {name: chosen.request["data"][name] for name in ("pid", "ttl")}
    answer = {"status": 200, "data": {**data, "task": {**data["task"], **lease}}}
    return changed(history, chosen, answer=answer)


def pending_again(history: History, rng: Random) -> History | None:
    """A promise that somebody was shown settled is pending for one who asks later."""
    first: dict[str, int] = {}
    for each in history.operations:
        if settled(each):
            id_ = (shown(each) or {})["id"]
            first[id_] = min(each.returned, first.get(id_, each.returned))
    kinds = ("get", "create", "settle", "register_callback", "register_listener")
    late = [
        each
        for each in of_kind(history, *(f"promise.{kind}" for kind in kinds))
        if settled(each) and first[(shown(each) or {})["id"]] < each.called
    ]
    chosen = pick(rng, late)
    if chosen is None:
        return None
    return changed(history, chosen, answer=with_promise(chosen, state="pending", value={}, settledAt=None))


def swapped(history: History, rng: Random) -> History | None:
    """Two answers to the same question, one after the other, come in the wrong order."""
    asked = of_kind(history, "promise.get", "promise.create", "task.acquire")
    pairs = [
        (early, late)
        for early, late in product(asked, asked)
        if early.returned < late.called
        and early.request["kind"] == late.request["kind"]
        and early.request["data"]["id"] == late.request["data"]["id"]
        and (
            (task_of(early) or {}).get("version") != (task_of(late) or {}).get("version")
            or (settled(late) and not settled(early))
        )
    ]
    if not pairs:
        return None
    early, late = rng.choice(pairs)
    return changed(changed(history, early, answer=late.answer), late, answer=early.answer)


def lost_write(history: History, rng: Random) -> History | None:
    """The one who settled a promise was never there, but everybody sees the result."""
    winners = [
        each
        for each in of_kind(history, "promise.settle")
        if (shown(each) or {}).get("value") == each.request["data"]["value"]
    ]
    chosen = pick(rng, winners)
    left = tuple(each for each in history.operations if each is not chosen)
    return None if chosen is None else replace(history, operations=left)


def too_early(history: History, rng: Random) -> History | None:
    """A promise is seen before it was created."""
    chosen = pick(rng, of_kind(history, "promise.get"))
    return None if chosen is None else changed(history, chosen, called=-2, returned=-1)


def stale_holder(history: History, rng: Random) -> History | None:
    """Who gave a task back does so once more, after another has acquired it."""
    pairs = [
        (done, claim)
        for done in of_kind(history, "task.release", "task.suspend")
        for claim in of_kind(history, "task.acquire", "task.create")
        if done.returned < claim.called
        and (task_of(claim) or {}).get("state") == "acquired"
        and (task_of(claim) or {})["id"] == done.request["data"]["id"]
    ]
    if not pairs:
        return None
    done, claim = rng.choice(pairs)
    again = replace(done, session="forger", called=claim.returned + 1, returned=claim.returned + 2)
    return replace(history, operations=(*history.operations, again))


def before_its_time(history: History, rng: Random) -> History | None:
    """A promise has timed out while no clock has reached its deadline."""
    found = []
    for each in of_kind(history, "promise.get"):
        promise = shown(each)
        if promise is None or promise["state"] != "pending" or "resonate:timer" in promise["tags"]:
            continue
        if all(history.instants[place] < promise["timeoutAt"] for place in history.shown(each)):
            found.append(each)
    chosen = pick(rng, found)
    if chosen is None:
        return None
    deadline = (shown(chosen) or {})["timeoutAt"]
    answer = with_promise(chosen, state="rejected_timedout", settledAt=deadline)
    return changed(history, chosen, answer=answer)


def short_page(history: History, rng: Random) -> History | None:
    """A search for everything lacks a promise, or its task, that somebody was shown before."""
    first: dict[str, int] = {}
    for each in history.operations:
        if (promise := shown(each)) is not None:
            first[promise["id"]] = min(each.returned, first.get(promise["id"], each.returned))
    found = [
        (each, name, record)
        for each in of_kind(history, "promise.search", "task.search")
        if "state" not in each.request["data"]
        for name, page in each.answer["data"].items()
        for record in page
        if record["id"] in first and first[record["id"]] < each.called
    ]
    if not found:
        return None
    chosen, name, record = rng.choice(found)
    page = [each for each in chosen.answer["data"][name] if each is not record]
    return changed(history, chosen, answer={"status": 200, "data": {name: page}})


FORGERS: tuple[Forger, ...] = (
    another_value,
    second_claim,
    claim_beside,
    pending_again,
    swapped,
    lost_write,
    too_early,
    stale_holder,
    before_its_time,
    short_page,
)


@pytest.mark.parametrize("number", [3, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.session("the gates of its clock are locks of sessions")
def test_forged_histories_are_refuted(
    dsn: str, clock: Clock, seed: int, number: int, figures: Callable[[str, str], None]
) -> None:
    """A recorded history with one forged answer, call or gap is refuted, and most forgers find work."""
    done: Counter[str] = Counter()
    for place, (_, history, _) in enumerate(rounds(dsn, clock, seed, number)):
        for forger in FORGERS:
            forged = forger(spread(history), Random(f"{seed} {place} {forger.__name__}"))
            if forged is not None:
                assert not verdict_of(forged), f"seed {seed}, round {place}: {forger.__name__} went through"
                done[forger.__name__] += 1
    assert len(done) > len(FORGERS) // 2, done
    figures(
        "forgeries", ", ".join(f"{name} {times}" for name, times in sorted(done.items())) + ": all refuted"
    )


# the laws of answers, protocol.md 6.6


def regressions(history: History) -> list[str]:
    """Promises whose verdict changed, tasks that came back or whose version fell, for one who asked later."""
    found = []
    for early, late in product(history.operations, history.operations):
        if early.returned > late.called:
            continue
        before, after = shown(early), shown(late)
        if before and after and before["id"] == after["id"] and settled(early) and before != after:
            found.append(f"promise: {early}\nthen {late}")
        older, newer = task_of(early) or {}, task_of(late) or {"id": ""}
        if older.get("id") == newer["id"] and (
            newer["version"] < older["version"] or (older["state"] == "fulfilled" and newer != older)
        ):
            found.append(f"task: {early}\nthen {late}")
    return found


def claims(history: History) -> Counter[tuple[str, int]]:
    """To how many processes each version of a task was granted; the same one may ask again."""
    granted = [task_of(each) for each in of_kind(history, "task.acquire", "task.create")]
    taken = {
        (task["id"], task["version"], task["pid"]) for task in granted if task and task["state"] == "acquired"
    }
    return Counter((id_, version) for id_, version, _ in taken)


@pytest.mark.session("the gates of its clock are locks of sessions")
def test_answers_never_regress(dsn: str, clock: Clock, seed: int) -> None:
    """Once somebody was shown a verdict everybody sees it, versions never fall, and each has one process."""
    for place, (_, history, _) in enumerate(rounds(dsn, clock, seed, 7)):
        assert not regressions(history), f"seed {seed}, round {place}: {regressions(history)[0]}"
        twice = [claim for claim, times in claims(history).items() if times > 1]
        assert not twice, f"seed {seed}, round {place}: {twice}"
        forged = pending_again(spread(history), Random(seed))
        assert forged is None or regressions(forged)
        forged = second_claim(spread(history), Random(seed))
        assert forged is None or max(claims(forged).values()) > 1


# one instant for each operation, without any race

NOW, DUE = 1_800_000_000_000, 1_800_000_000_010
STEPPING = """
create sequence test_clock.readings;
create table test_clock.turn (after bigint);
insert into test_clock.turn values (null);
create or replace function durable._now_ms() returns bigint language sql volatile as $$
  select case when nextval('test_clock.readings') > t.after then {due} else {now} end from test_clock.turn t
$$
"""


def born(id_: str, deadline: int, **tags: str) -> Json:
    """promise.create."""
    named = {f"resonate:{name}": text for name, text in tags.items()}
    return ask("promise.create", id=id_, timeoutAt=deadline, param={}, tags=named)


def taken(id_: str, deadline: int, ttl: int = 1_000) -> Json:
    """task.create."""
    return ask("task.create", pid="P", ttl=ttl, action=born(id_, deadline, target="g"))


def waits(id_: str, *awaited: str) -> Json:
    """task.suspend at version 1."""
    actions = [ask("promise.register_callback", awaited=each, awaiter=id_) for each in awaited]
    return ask("task.suspend", id=id_, version=1, actions=actions)


def scene(mine: int, other: int, ttl: int) -> list[Json]:
    """w is held, p is pending, h halted, s suspended on x; x, y (a timer) and z (internal) have no task."""
    return [
        born("x", other, external="true"),
        born("y", other, timer="true"),
        born("z", other),
        taken("w", mine, ttl),
        born("p", mine, target="g"),
        born("h", mine, target="g"),
        ask("task.halt", id="h"),
        taken("s", NEVER),
        waits("s", "x", "w"),
        ask("promise.register_callback", awaited="y", awaiter="w"),
    ]


SCENES = {
    "its deadline": scene(DUE, NEVER, 1_000),
    "the other's deadline": scene(NEVER, DUE, 1_000),
    "both deadlines": scene(DUE, DUE, 1_000),
    "its lease": scene(NEVER, NEVER, DUE - NOW),
}
VALUE = {"data": "v"}
SETTLE_X = ask("promise.settle", id="x", state="resolved", value=VALUE)
SETTLE_W = ask("promise.settle", id="w", state="rejected", value=VALUE)
QUESTIONS: dict[str, Json] = {
    "get": ask("promise.get", id="x"),
    "create": born("n", DUE, external="true"),
    "create a task's promise": born("n", DUE, target="g"),
    "create again": born("x", NEVER),
    "settle": SETTLE_X,
    "settle a task's promise": SETTLE_W,
    "register": ask("promise.register_callback", awaited="x", awaiter="w"),
    "register on internal": ask("promise.register_callback", awaited="z", awaiter="w"),
    "listen": ask("promise.register_listener", awaited="z", address="poll://uni@g/l"),
    "look": ask("task.get", id="w"),
    "take new": taken("n", DUE),
    "take pending": taken("p", DUE),
    "take held": taken("w", DUE),
    "acquire": ask("task.acquire", id="p", version=0, pid="P", ttl=5),
    "release": ask("task.release", id="w", version=1),
    "suspend": waits("w", "x", "z"),
    "fulfill": ask("task.fulfill", id="w", version=1, action=SETTLE_W),
    "fence create": ask("task.fence", id="w", version=1, action=born("n", DUE, target="g")),
    "fence create again": ask("task.fence", id="w", version=1, action=born("x", DUE)),
    "fence settle": ask("task.fence", id="w", version=1, action=SETTLE_X),
    "heartbeat": ask("task.heartbeat", pid="P", tasks=[{"id": "w", "version": 1}]),
    "halt": ask("task.halt", id="w"),
    "continue": ask("task.continue", id="h"),
    "search": ask("promise.search"),
    "search what is pending": ask("promise.search", state="pending"),
    "search tasks": ask("task.search"),
    "search held tasks": ask("task.search", state="acquired"),
    "tick": ask("tick", limit=500),
}


def put(conn: Connection, places: count[int], request: Request, after: int | None) -> Operation:
    """Ask one thing; the clock shows DUE after that many readings, None: never."""
    conn.execute("select setval('test_clock.readings', 1, false)")
    conn.execute("update test_clock.turn set after = %s", (after,))
    row = conn.execute(*asked(request)).fetchone()
    assert row is not None
    called = next(places)
    answer = answered(request, row[0])
    return Operation(session="S", called=called, returned=next(places), request=request, answer=answer)


def history_of(conn: Connection, places: count[int], request: Request, after: int) -> History:
    """What happens if the clock moves after that many readings, and how the tables look then."""
    one = put(conn, places, request, after)
    between = replace(one, returned=one.returned + 2)
    move = Move(called=one.called + 1, returned=one.called + 2, now_ms=DUE)
    row = conn.execute(READ).fetchone()
    assert row is not None
    last = tables_operation(row[0], DUE, one.called + 4)
    return History(start_ms=NOW, moves=(move,), operations=(between, last))


@pytest.mark.parametrize("passing", SCENES)
def test_every_operation_has_one_instant(conn: Connection, clock: Clock, passing: str) -> None:
    """If a deadline or a lease passes between any two readings of the clock, the answer fits an instant."""
    conn.execute(STEPPING.format(now=NOW, due=DUE).encode())
    places = count()
    wrong = []
    with conn.transaction(force_rollback=True):
        before = tuple(put(conn, places, request, None) for request in SCENES[passing])
        for name, request in QUESTIONS.items():
            for after in range(12):
                with conn.transaction(force_rollback=True):
                    history = history_of(conn, places, request, after)
                    row = conn.execute("select last_value from test_clock.readings").fetchone()
                history = replace(history, operations=(*before, *history.operations))
                if not verdict_of(history):
                    wrong.append(
                        f"{name}, {after} readings before {passing}: {history.operations[-2].answer}"
                    )
                if row is None or row[0] <= after:
                    break
    assert not wrong, "\n".join(wrong)
