"""Recording what many sessions did at once.

What lives here: a crew of real connections that run random programs over a few ids, a session that moves the
clock, one that holds row locks for a moment so that others queue, and the recorder of it all. Not: any
judgement; `linear.py` decides, the tests assert.

All sessions live in one event loop, and every call and return takes the next number of one counter: the call
before it is sent, the return after its answer is here. So a return that precedes a call did so in truth.

Programs go by what the answers said (states, versions, deadlines), so that most operations have an effect;
since everybody acts on the same news at once, the others are refused, which is an answer like any other.

The clock is the row of tests/support/clock.sql between two gates, advisory locks that every reading passes
and of which the mover closes one now and then. Whoever comes to read the clock, or has just read it, waits
there with the row locks that it has: the moment in which an engine goes wrong that has read the clock before
its locks, or reads it once more.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from tests.system.model.linear import History, Move, Operation, Request, Response
from tests.system.model.reference import Image, Reference
from tests.system.model.state import Json, State
from tests.system.model.tables import READ, state_of
from tests.system.model.timed import inner_status
from tests.system.model.wire import RPC, TABLES, envelope

Session = psycopg.AsyncConnection[TupleRow]
NEVER = 9007199254740991
BEFORE, AFTER = 1685417998, 1685417999  # the gates: advisory locks
PAUSE_S = 0.005  # a lock or a gate stays closed at most so long, and others queue
SPANS = (3, 8, 20, 50)
TTLS = (2, 20, 1_000, 1_000)
PIDS = ("P", "Q")
TASKS, PROMISES = "abcd", "xyz"
TAGS: dict[str, dict[str, str]] = {
    "a": {"resonate:target": "g", "resonate:branch": "r"},
    "b": {"resonate:target": "poll://any@g/P"},
    "c": {"resonate:target": "g"},
    "d": {"resonate:target": "g"},
    "x": {"resonate:external": "true", "resonate:branch": "r"},
    "y": {"resonate:timer": "true"},
    "z": {},
}
READING = f"""
create or replace function durable._now_ms() returns bigint language plpgsql volatile as $$
declare
  v_now bigint;
begin
  perform pg_advisory_lock_shared({BEFORE});
  perform pg_advisory_unlock_shared({BEFORE});
  select i.now_ms into v_now from test_clock.instant i;
  perform pg_advisory_lock_shared({AFTER});
  perform pg_advisory_unlock_shared({AFTER});
  return v_now;
end
$$
"""


@dataclass(kw_only=True)
class Known:
    """What somebody last heard of a promise or a task; `state` is the task's if it has one."""

    id: str
    deadline: int
    state: str = "pending"
    version: int = 0
    pid: str = PIDS[0]
    lease_end: int = 0
    owner: str = ""
    awaited: bool = False


@dataclass(kw_only=True)
class World:
    """What all sessions share: the dice, the counter, what is known, and the record."""

    rng: Random
    size: int
    now_ms: int
    known: dict[str, Known] = field(default_factory=dict)
    places: count[int] = field(default_factory=count)
    numbers: count[int] = field(default_factory=count)
    operations: list[Operation] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    effective: Counter[str] = field(default_factory=Counter)
    called: int = 0
    me: str = ""

    def chance(self, share: float) -> bool:
        """True that often."""
        return self.rng.random() < share

    def some(self, letters: str, *states: str) -> Known | None:
        """Mostly one that is believed to be alive and in one of these states; of what is held, one's own."""
        fitting = [each for each in self.known.values() if letter_of(each.id) in letters]
        if self.chance(0.9):
            fitting = [each for each in fitting if each.state in states and each.deadline > self.now_ms]
        if states == ("acquired",) and self.chance(0.75):
            fitting = [each for each in fitting if each.owner == self.me]
        return self.rng.choice(fitting) if fitting else None

    def mark(self) -> str:
        """A payload that nobody else writes."""
        return str(next(self.numbers))

    def version(self, task: Known) -> int:
        """Mostly the current one."""
        return max(0, task.version + self.rng.choices((0, -1, 1), (16, 1, 1))[0])


def letter_of(id_: str) -> str:
    """Which kind of promise an id is of: it is r.<letter><number>."""
    return id_[2]


Maker = Callable[[World], Json | None]


def ask(kind: str, **data: Any) -> Json:
    """A request."""
    return {"kind": kind, "data": data}


def birth(world: World, letters: str) -> Json:
    """promise.create of the next id of a letter, or of one that is there."""
    letter = world.rng.choice(letters)
    there = [
        each for each in world.known.values() if letter_of(each.id) == letter and each.state != "fulfilled"
    ]
    again = there and world.chance(0.3)
    id_ = there[-1].id if again else f"r.{letter}{sum(letter_of(known) == letter for known in world.known)}"
    deadline = world.now_ms + world.rng.choice(SPANS) if world.chance(0.35) else NEVER
    if world.chance(0.05):
        deadline = world.now_ms
    if letter == "y":
        deadline = world.now_ms + world.rng.choice(SPANS)
    about = {"id": id_, "timeoutAt": deadline, "param": {"data": world.mark()}, "tags": TAGS[letter]}
    return ask("promise.create", **about)


def create(world: World) -> Json | None:
    """Something new, while little is alive."""
    alive = Counter(letter_of(each.id) for each in world.known.values() if each.state != "fulfilled")
    scarce = "".join(letter for letter in TASKS + PROMISES if not alive[letter])
    return birth(world, scarce or TASKS + PROMISES)


def task_create(world: World) -> Json | None:
    """A new task for its creator, or one that is pending."""
    action = birth(world, TASKS)
    if (task := world.some(TASKS, "pending")) and world.chance(0.5):
        action["data"]["id"] = task.id
    return ask("task.create", pid=world.rng.choice(PIDS), ttl=world.rng.choice(TTLS), action=action)


def verdict(world: World, id_: str) -> Json:
    """promise.settle of that one."""
    state = world.rng.choice(("resolved", "rejected", "rejected_canceled"))
    return ask("promise.settle", id=id_, state=state, value={"data": world.mark()})


def settle(world: World) -> Json | None:
    """Above all what somebody awaits; rarely what has a task otherwise."""
    awaited = [each for each in world.known.values() if each.awaited and each.state != "fulfilled"]
    if awaited and world.chance(0.6):
        return verdict(world, world.rng.choice(awaited).id)
    found = world.some(
        TASKS if world.chance(0.15) else PROMISES, "pending", "acquired", "suspended", "halted"
    )
    return verdict(world, found.id) if found else None


def get(world: World) -> Json | None:
    """Any promise; task.get asks for tasks."""
    found = world.some(PROMISES + TASKS, "pending", "suspended")
    return ask("promise.get", id=found.id) if found else None


def task_get(world: World) -> Json | None:
    """Any task, above all one that somebody may have woken."""
    found = world.some(TASKS, "suspended", "acquired", "halted")
    return ask("task.get", id=found.id) if found else None


def callback(world: World) -> Json | None:
    """Somebody awaits somebody."""
    awaited, awaiter = world.some(PROMISES + TASKS, "pending", "acquired"), world.some(TASKS, "acquired")
    if awaited is None or awaiter is None or awaited is awaiter:
        return None
    return ask("promise.register_callback", awaited=awaited.id, awaiter=awaiter.id)


def listener(world: World) -> Json | None:
    """An address awaits somebody."""
    awaited = world.some(PROMISES + TASKS, "pending", "acquired")
    return ask("promise.register_listener", awaited=awaited.id, address="poll://uni@g/l") if awaited else None


def acquire(world: World) -> Json | None:
    """A task that is believed to be free."""
    task = world.some(TASKS, "pending")
    lease = {"pid": world.rng.choice(PIDS), "ttl": world.rng.choice(TTLS)}
    return ask("task.acquire", id=task.id, version=world.version(task), **lease) if task else None


def release(world: World) -> Json | None:
    """Give a task back."""
    task = world.some(TASKS, "acquired")
    return ask("task.release", id=task.id, version=world.version(task)) if task else None


def suspend(world: World) -> Json | None:
    """A task waits for one or two others, other tasks too."""
    task = world.some(TASKS, "acquired")
    if task is None:
        return None
    found = [world.some(PROMISES + TASKS, "pending", "acquired", "suspended") for _ in range(2)]
    ids = sorted({each.id for each in found[: world.rng.choice((1, 2))] if each and each is not task})
    actions = [ask("promise.register_callback", awaited=id_, awaiter=task.id) for id_ in ids]
    return ask("task.suspend", id=task.id, version=world.version(task), actions=actions) if ids else None


def fulfill(world: World) -> Json | None:
    """Complete a task."""
    task = world.some(TASKS, "acquired")
    if task is None:
        return None
    return ask("task.fulfill", id=task.id, version=world.version(task), action=verdict(world, task.id))


def fence(world: World) -> Json | None:
    """Settle or create something else under a lease."""
    task, other = world.some(TASKS, "acquired"), world.some(PROMISES + TASKS, "pending", "suspended")
    if task is None:
        return None
    if other is None or world.chance(0.3):
        action = birth(world, PROMISES + TASKS)
    else:
        action = verdict(world, other.id)
    same = action["data"]["id"] == task.id
    return None if same else ask("task.fence", id=task.id, version=world.version(task), action=action)


def heartbeat(world: World) -> Json | None:
    """Renew all that a process holds."""
    pid = world.rng.choice(PIDS)
    acquired = [each for each in world.known.values() if each.state == "acquired"]
    held = [each for each in acquired if each.pid == pid or world.chance(0.2)]
    pairs = [{"id": each.id, "version": world.version(each)} for each in held]
    return ask("task.heartbeat", pid=pid, tasks=pairs) if pairs else None


def search(world: World) -> Json | None:
    """All promises, or all tasks, at once."""
    kind, state = world.rng.choice((("promise.search", "pending"), ("task.search", "acquired")))
    return ask(kind, **({"state": state} if world.chance(0.5) else {}))


def halt(world: World) -> Json | None:
    """Set a task aside."""
    task = world.some(TASKS, "pending", "acquired", "suspended")
    return ask("task.halt", id=task.id) if task else None


def go_on(world: World) -> Json | None:
    """Let a halted task go on."""
    task = world.some(TASKS, "halted")
    return ask("task.continue", id=task.id) if task else None


def tick(world: World) -> Json | None:
    """A sweep; not on the wire."""
    return ask("tick", limit=500)


MAKERS: tuple[tuple[Maker, int], ...] = (
    (create, 10),
    (task_create, 5),
    (acquire, 16),
    (suspend, 18),
    (settle, 9),
    (fence, 10),
    (get, 7),
    (task_get, 7),
    (callback, 12),
    (listener, 3),
    (release, 5),
    (fulfill, 3),
    (heartbeat, 4),
    (halt, 2),
    (go_on, 4),
    (search, 5),
    (tick, 5),
)


AFTERWARDS = {
    "task.release": "pending",
    "task.suspend": "suspended",
    "task.halt": "halted",
    "task.continue": "pending",
    "task.fulfill": "fulfilled",
}


def learn(world: World, name: str, request: Request, answer: Response) -> None:
    """Remember what an answer says of promises and tasks."""
    if answer["status"] != 200:
        return
    kind, data = request["kind"], answer["data"]
    if kind == "task.fence":
        data = data["action"]["data"] if inner_status(data) == 200 else {}
    if promise := data.get("promise"):
        known = world.known.setdefault(promise["id"], Known(id=promise["id"], deadline=promise["timeoutAt"]))
        if promise["state"] != "pending":
            known.state = "fulfilled"
    if task := data.get("task"):
        known = world.known[task["id"]]
        known.state, known.version, known.pid = task["state"], task["version"], task.get("pid", "")
        known.lease_end = world.now_ms + task.get("ttl", 0)
        known.owner = name if kind in ("task.acquire", "task.create") else known.owner
    for action in request["data"].get("actions", [request] if kind == "promise.register_callback" else []):
        world.known[action["data"]["awaited"]].awaited = True
    if kind in AFTERWARDS:
        world.known[request["data"]["id"]].state = AFTERWARDS[kind]


def effective(request: Request, answer: Response) -> bool:
    """The operation did what it is for; a read or a heartbeat that is answered at all has done it."""
    kind, data = request["kind"], answer["data"]
    if kind == "tick":
        return bool(data["promises"] or data["leases"])
    if answer["status"] != 200:
        return False
    if kind == "task.fence":
        inner = request["data"]["action"]
        return inner_status(data) == 200 and effective(inner, {"status": 200, "data": data["action"]["data"]})
    if kind in ("promise.settle", "task.fulfill"):
        asked = request["data"].get("value") or request["data"]["action"]["data"]["value"]
        return bool(data["promise"]["value"] == asked)
    if kind == "promise.create":
        return bool(data["promise"]["param"] == request["data"]["param"])
    if kind.startswith("promise.register"):
        return bool(data["promise"]["state"] == "pending")
    return kind != "task.create" or bool(data["task"]["state"] == "acquired")


def asked(request: Request) -> tuple[bytes, tuple[Any, ...]]:
    """The statement that asks it: the envelope, or the sweep, which is not on the wire."""
    if request["kind"] == "tick":
        return b"select durable.tick_v1(%s)", (request["data"]["limit"],)
    return RPC.encode(), (json.dumps(envelope(dict(request), "1")),)


def answered(request: Request, told: Json) -> Response:
    """Its answer in the model's shape."""
    if request["kind"] == "tick":
        return {"status": 200, "data": told}
    return {"status": told["head"]["status"], "data": told["data"]}


async def call(world: World, session: Session, name: str, request: Json) -> Response:
    """Ask, and record when and what."""
    world.called += 1
    called = next(world.places)
    cursor = await session.execute(*asked(request))
    row = await cursor.fetchone()
    returned = next(world.places)
    assert row is not None
    answer = answered(request, row[0])
    world.operations.append(
        Operation(session=name, called=called, returned=returned, request=request, answer=answer)
    )
    world.tried[request["kind"]] += 1
    world.effective[request["kind"]] += effective(request, answer)
    learn(world, name, request, answer)
    return answer


async def play(world: World, session: Session, name: str) -> None:
    """One session: operations at random, and a look at what one was refused."""
    makers, weights = [maker for maker, _ in MAKERS], [weight for _, weight in MAKERS]
    while world.called < world.size:
        world.me = name
        request = world.rng.choices(makers, weights)[0](world)
        if request is None:
            continue
        answer = await call(world, session, name, request)
        id_ = request["data"].get("id", "")
        if answer["status"] == 409 and id_ in world.known and world.chance(0.5):
            await call(world, session, name, ask("task.get", id=id_))


async def move(world: World, session: Session) -> None:
    """Now and then the clock goes on, mostly to where something ends or beside it."""
    while world.called < world.size:
        due = world.called + world.rng.randrange(3, 9)
        while world.called < min(due, world.size):
            await asyncio.sleep(0.0005)
        ends = {each.deadline for each in world.known.values() if each.state != "fulfilled"}
        ends |= {each.lease_end for each in world.known.values() if each.state == "acquired"}
        ahead = sorted(end for end in ends if world.now_ms < end < NEVER)[:3] or [world.now_ms + 5]
        target = max(world.now_ms + 1, world.rng.choice(ahead) + world.rng.choice((-1, 0, 0, 1)))
        begun, gate = next(world.places), world.rng.choice((BEFORE, AFTER, None))
        if gate:
            await session.execute("select pg_advisory_lock(%s)", (gate,))
            await asyncio.sleep(world.rng.uniform(0, PAUSE_S))
        called = next(world.places)
        await session.execute("update test_clock.instant set now_ms = %s", (target,))
        world.moves.append(Move(called=called, returned=next(world.places), now_ms=target))
        world.now_ms = target
        if gate:
            await asyncio.sleep(world.rng.uniform(0, PAUSE_S))
            await session.execute("select pg_advisory_unlock(%s)", (gate,))
        world.spans.append((begun, next(world.places)))


async def hold(world: World, session: Session) -> None:
    """Now and then somebody has locked a row for a moment, and then changes nothing."""
    while world.called < world.size:
        await asyncio.sleep(world.rng.uniform(0, PAUSE_S))
        if world.known:
            table = world.rng.choice(("promises", "tasks"))
            statement = f"select from durable._{table} where id = %s for no key update"
            begun = next(world.places)
            await session.execute("begin")
            await session.execute(statement.encode(), (world.rng.choice(sorted(world.known)),))
            await asyncio.sleep(world.rng.uniform(0, PAUSE_S))
            await session.execute("rollback")
            world.spans.append((begun, next(world.places)))


async def gather(dsn: str, world: World, sessions: int) -> Json:
    """Everybody at once until enough was asked; then the tables, as the last answer."""
    crew = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(sessions + 2)]
    try:
        for table in TABLES:
            await crew[0].execute(f"delete from durable.{table}".encode())
        await crew[0].execute(READING.encode())
        await crew[0].execute("update test_clock.instant set now_ms = %s", (world.now_ms,))
        mover, holder, *players = crew
        named = [play(world, session, f"S{number}") for number, session in enumerate(players)]
        await asyncio.gather(move(world, mover), hold(world, holder), *named)
        row = await (await mover.execute(READ)).fetchone()
        assert row is not None
        tables: Json = row[0]
    finally:
        for session in crew:
            await session.close()
    return tables


def split(operation: Operation) -> list[Operation]:
    """The operation, and each thing that it was told of its branch as a reading of its own: a preload is read
    last, sees what its own transaction has written, and waits for nobody."""
    data = operation.answer["data"]
    fenced = operation.request["kind"] == "task.fence"
    if operation.answer["status"] >= 400 or "preload" not in data or fenced:
        return [operation]
    about = operation.request["data"]
    id_ = about["id"] if "id" in about else about["action"]["data"]["id"]
    branch = TAGS[letter_of(id_)].get("resonate:branch")
    parts = [
        replace(
            operation, request=ask("peek", id=each["id"]), answer={"status": 200, "data": {"promise": each}}
        )
        for each in data["preload"]
    ]
    answer = {"status": 200, "data": {"preload": [each["id"] for each in data["preload"]]}}
    return [
        operation,
        replace(operation, request=ask("preload", id=id_, branch=branch), answer=answer),
        *parts,
    ]


def tables_operation(tables: Json, now_ms: int, place: int) -> Operation:
    """Looking at the tables, as an operation: its answer is the state once all that is due is settled."""
    reference = Reference()
    engine = reference.settled(Image(state_of(tables, State())), now_ms)
    answer = {"status": 200, "data": engine}
    return Operation(session="tables", called=place, returned=place + 1, request=ask("tables"), answer=answer)


def record(dsn: str, world: World, sessions: int) -> History:
    """A history of that many sessions; its last operation says how the tables look."""
    start_ms = world.now_ms
    tables = asyncio.run(gather(dsn, world, sessions))
    last = tables_operation(tables, world.now_ms, next(world.places))
    spans = world.spans + [(each.called, each.returned) for each in world.operations]

    def crowded(operation: Operation) -> bool:
        return sum(begin < operation.returned and operation.called < end for begin, end in spans) > 1

    operations = [part for each in world.operations for part in split(replace(each, crowded=crowded(each)))]
    return History(start_ms=start_ms, moves=tuple(world.moves), operations=(*operations, last))
