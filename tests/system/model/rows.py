"""The tables of operations as cases: what came before, what is asked, the status, what is stored afterwards.

What lives here: short ways to write requests, the state as lines, and one case for each row of the
protocol's tables of promise and task operations, of the outcomes of a resume and of what time does.

A state is written as lines: `a pending`, `a resolved at 7`, `task a acquired 1 by p until 15`,
`task a pending 1 from 5 woken by x`, `b waits for a`, `g hears of a`, `tell g of a`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.system.model import machine
from tests.system.model.state import Json, State

G = "poll://any@g"
TASK = {"resonate:target": "g"}
EXTERNAL = {"resonate:external": "true"}
TIMER = {"resonate:timer": "true"}
BRANCH = {"resonate:branch": "a"}
Asked = tuple[int, str, Json]


# what is asked, at which instant


def create(at: int, id_: str, tags: Json | None = None, *, until: int = 100, **more: object) -> Asked:
    return at, "promise.create", {"id": id_, "timeoutAt": until, **({"tags": tags} if tags else {}), **more}


def settle(at: int, id_: str, state: str = "resolved", **more: object) -> Asked:
    return at, "promise.settle", {"id": id_, "state": state, **more}


def acquire(at: int, id_: str, version: int = 0, *, pid: str = "p", ttl: int = 10) -> Asked:
    return at, "task.acquire", {"id": id_, "version": version, "pid": pid, "ttl": ttl}


def born(at: int, id_: str, tags: Json | None = None, *, until: int = 100, ttl: int = 10) -> Asked:
    inner = create(at, id_, TASK if tags is None else tags, until=until)
    return at, "task.create", {"pid": "p", "ttl": ttl, "action": {"kind": inner[1], "data": inner[2]}}


def task(at: int, verb: str, id_: str, version: int | None = None) -> Asked:
    return at, f"task.{verb}", {"id": id_} | ({} if version is None else {"version": version})


def callback(at: int, awaited: str, awaiter: str) -> Asked:
    return at, "promise.register_callback", {"awaited": awaited, "awaiter": awaiter}


def listener(at: int, awaited: str, address: str = "g") -> Asked:
    return at, "promise.register_listener", {"awaited": awaited, "address": address}


def suspend(at: int, id_: str, version: int, *awaited: str, awaiter: str = "") -> Asked:
    actions = [
        {"kind": "promise.register_callback", "data": {"awaited": each, "awaiter": awaiter or id_}}
        for each in awaited
    ]
    return at, "task.suspend", {"id": id_, "version": version, "actions": actions}


def fulfill(at: int, id_: str, version: int, state: str = "resolved", *, of: str = "") -> Asked:
    action = {"kind": "promise.settle", "data": {"id": of or id_, "state": state}}
    return at, "task.fulfill", {"id": id_, "version": version, "action": action}


def fence(at: int, id_: str, version: int, asked: Asked) -> Asked:
    return at, "task.fence", {"id": id_, "version": version, "action": {"kind": asked[1], "data": asked[2]}}


def heartbeat(at: int, *tasks: tuple[str, int], pid: str = "p") -> Asked:
    named = [{"id": id_, "version": version} for id_, version in tasks]
    return at, "task.heartbeat", {"pid": pid, "tasks": named}


def tick(at: int) -> Asked:
    return at, "tick", {}


# what is stored, as lines


def image(state: State) -> set[str]:
    """A state as lines."""
    lines = set()
    for promise in state.promises.values():
        settled = "" if promise.settled_at is None else f" at {promise.settled_at}"
        value = f" {promise.value.data}" if promise.value.data is not None else ""
        lines.add(f"{promise.id} {promise.state}{settled}{value}")
    for each in state.tasks.values():
        words = [f"task {each.id} {each.state} {each.version}"]
        words += [f"by {each.pid} until {each.expires_at}"] if each.pid else []
        words += [f"from {each.retry_at}"] if each.retry_at is not None else []
        words += [f"woken by {' '.join(sorted(each.resumes))}"] if each.resumes else []
        lines.add(" ".join(words))
    lines |= {f"{awaiter} waits for {awaited}" for awaited, awaiter in state.callbacks}
    lines |= {f"{address} hears of {awaited}" for awaited, address in state.listeners}
    return lines | {f"tell {address} of {awaited}" for awaited, address in state.unblocks}


def play(moves: Iterable[Asked], profile: str = "compatible") -> tuple[State, Json]:
    """The state after these moves, and the last answer; all but the last must have gone well."""
    state, answer = State(profile=profile), {"status": 200}
    for at, kind, data in moves:
        assert answer.get("status", 200) <= 300, answer
        if kind == "tick":
            state, answer, _ = machine.sweep(state, at)
        else:
            state, answer = machine.step(state, {"kind": kind, "data": data}, at)
    return state, answer


Row = tuple[list[Asked], Asked, int, set[str] | None]
READY = [create(0, "w", TASK), create(0, "x", EXTERNAL), create(0, "y", EXTERNAL, until=20)]
HELD = [*READY, acquire(1, "w")]
HELD_IS = {"w pending", "x pending", "y pending", "task w acquired 1 by p until 11"}
RELEASED_TWICE = [
    create(0, "w", TASK, until=1000),
    acquire(1, "w"),
    task(4, "release", "w", 1),
    acquire(4, "w", 1),
    task(5, "release", "w", 2),
]
READY_IS = {"w pending", "x pending", "y pending", "task w pending 0 from 0"}
SLEEPING = [*HELD, suspend(2, "w", 1, "x", "y")]
SLEEPING_IS = {
    "w pending",
    "x pending",
    "y pending",
    "task w suspended 1",
    "w waits for x",
    "w waits for y",
}
HALTED = [*HELD, task(2, "halt", "w")]

# name: what came before, what is asked, the status, what is stored afterwards (None: as before)
ROWS: dict[str, Row] = {
    "get: none": ([], (0, "promise.get", {"id": "a"}), 404, None),
    "get: live": ([create(0, "a")], (99, "promise.get", {"id": "a"}), 200, None),
    "get: at its deadline": (
        [create(0, "a")],
        (100, "promise.get", {"id": "a"}),
        200,
        {"a rejected_timedout at 100"},
    ),
    "get: a timer at its deadline": (
        [create(0, "a", TIMER)],
        (150, "promise.get", {"id": "a"}),
        200,
        {"a resolved at 100"},
    ),
    "get: a timer tag that is not true": (
        [create(0, "a", {"resonate:timer": "True"})],
        (150, "promise.get", {"id": "a"}),
        200,
        {"a rejected_timedout at 100"},
    ),
    "create: exists, other content": ([create(0, "a")], create(1, "a", TASK, until=7), 200, None),
    "create: exists, expired": ([create(0, "a")], create(100, "a"), 200, {"a rejected_timedout at 100"}),
    "create: pending": ([], create(0, "a"), 200, {"a pending"}),
    "create: with a task": ([], create(5, "a", TASK), 200, {"a pending", "task a pending 0 from 5"}),
    "create: delayed": (
        [],
        create(5, "a", TASK | {"resonate:delay": "50"}),
        200,
        {"a pending", "task a pending 0 from 50"},
    ),
    "create: delay is over": (
        [],
        create(5, "a", TASK | {"resonate:delay": "4"}),
        200,
        {"a pending", "task a pending 0 from 5"},
    ),
    "create: born dead": ([], create(100, "a"), 200, {"a rejected_timedout at 100"}),
    "create: born dead, timer": ([], create(101, "a", TIMER), 200, {"a resolved at 100"}),
    "create: born dead, with a task": (
        [],
        create(100, "a", TASK),
        200,
        {"a rejected_timedout at 100", "task a fulfilled 0"},
    ),
    "settle: none": ([], settle(0, "a"), 404, None),
    "settle: pending": (
        [create(0, "a")],
        settle(7, "a", "rejected", value={"data": "!"}),
        200,
        {"a rejected at 7 !"},
    ),
    "settle: twice": ([create(0, "a"), settle(7, "a")], settle(8, "a", "rejected"), 200, None),
    "settle: late": (
        [create(0, "a")],
        settle(100, "a", value={"data": "!"}),
        200,
        {"a rejected_timedout at 100"},
    ),
    "settle: somebody's task": (
        HELD,
        settle(3, "w"),
        200,
        {"w resolved at 3", "task w fulfilled 1", "x pending", "y pending"},
    ),
    "settle: an unknown state before existence": ([], settle(0, "a", "rejected_timedout"), 400, None),
    "callback: itself": ([], callback(0, "a", "a"), 400, None),
    "callback: awaited missing": (READY, callback(1, "z", "w"), 404, None),
    "callback: awaiter missing": (READY, callback(1, "x", "z"), 422, None),
    "callback: awaiter without a task": (READY, callback(1, "x", "y"), 422, None),
    "callback: both live": (READY, callback(1, "x", "w"), 200, READY_IS | {"w waits for x"}),
    "callback: again": ([*READY, callback(1, "x", "w")], callback(2, "x", "w"), 200, None),
    "callback: awaiter dead": (
        [create(0, "w", TASK, until=10), create(0, "x", EXTERNAL)],
        callback(10, "x", "w"),
        200,
        None,
    ),
    "callback: awaited settled, awaiter suspended": (
        [*READY, settle(1, "y"), *HELD[3:], suspend(2, "w", 1, "x")],
        callback(3, "y", "w"),
        200,
        None,
    ),
    "callback: awaited expired": (
        READY,
        callback(20, "y", "w"),
        200,
        READY_IS - {"y pending"} | {"y rejected_timedout at 20"},
    ),
    "listener: bad address before existence": ([], listener(0, "a", "poll://"), 400, None),
    "listener: missing": ([], listener(0, "a"), 404, None),
    "listener: live": ([create(0, "a", EXTERNAL)], listener(1, "a"), 200, {"a pending", f"{G} hears of a"}),
    "listener: another spelling": (
        [create(0, "a", EXTERNAL), listener(1, "a")],
        listener(1, "a", G),
        200,
        None,
    ),
    "listener: settled": ([create(0, "a", EXTERNAL), settle(1, "a")], listener(2, "a"), 200, None),
    "task.get: none": ([create(0, "a")], task(1, "get", "a"), 404, None),
    "task.get: live": (HELD, task(50, "get", "w"), 200, None),
    "task.get: dead": (
        HELD[:1],
        task(100, "get", "w"),
        200,
        {"w rejected_timedout at 100", "task w fulfilled 0"},
    ),
    "task.create: new": ([], born(5, "a"), 200, {"a pending", "task a acquired 1 by p until 15"}),
    "task.create: born dead": (
        [],
        born(100, "a"),
        200,
        {"a rejected_timedout at 100", "task a fulfilled 0"},
    ),
    "task.create: no target": ([], born(0, "a", {}), 400, None),
    "task.create: delayed": ([], born(0, "a", TASK | {"resonate:delay": "9"}), 400, None),
    "task.create: exists without a task": (READY, born(0, "x"), 422, None),
    "task.create: pending": (
        HELD[:1],
        born(5, "w"),
        200,
        {"w pending", "task w acquired 1 by p until 15"},
    ),
    "task.create: acquired": (HELD, born(5, "w"), 409, None),
    "task.create: suspended": (SLEEPING, born(5, "w"), 409, None),
    "task.create: halted": (HALTED, born(5, "w"), 409, None),
    "task.create: fulfilled": ([*HELD, settle(2, "w")], born(5, "w"), 200, None),
    "task.create: dead": (
        [create(0, "w", TASK)],
        born(100, "w"),
        200,
        {"w rejected_timedout at 100", "task w fulfilled 0"},
    ),
    "acquire: none": (READY, acquire(0, "x"), 404, None),
    "acquire: pending": (
        READY,
        acquire(3, "w"),
        200,
        READY_IS - {"task w pending 0 from 0"} | {"task w acquired 1 by p until 13"},
    ),
    "acquire: before its delay": (
        [create(0, "a", TASK | {"resonate:delay": "50"})],
        acquire(3, "a"),
        200,
        {"a pending", "task a acquired 1 by p until 13"},
    ),
    "acquire: another version": (READY, acquire(3, "w", 1), 409, None),
    "acquire: twice": (HELD, acquire(3, "w", 1), 409, None),
    "acquire: suspended": (SLEEPING, acquire(3, "w", 1), 409, None),
    "acquire: halted": (HALTED, acquire(3, "w", 1), 409, None),
    "acquire: dead": (READY, acquire(100, "w"), 409, None),
    "release: held": (
        HELD,
        task(4, "release", "w", 1),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w pending 1 from 4"},
    ),
    "release: overdue": (
        HELD,
        task(40, "release", "w", 1),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w pending 1 from 40"},
    ),
    "release: another version": (HELD, task(4, "release", "w", 0), 409, None),
    "release: not held": (READY, task(4, "release", "w", 0), 409, None),
    "release: dead": (HELD, task(100, "release", "w", 1), 409, None),
    "release: none": (READY, task(4, "release", "x", 0), 404, None),
    "suspend: on nothing": (HELD, suspend(2, "w", 1), 400, None),
    "suspend: on itself": (HELD, suspend(2, "w", 1, "w"), 400, None),
    "suspend: on one twice": (HELD, suspend(2, "w", 1, "x", "x"), 400, None),
    "suspend: for another": (HELD, suspend(2, "w", 1, "x", awaiter="y"), 400, None),
    "suspend: no task": (READY, suspend(2, "x", 0, "y"), 404, None),
    "suspend: another version": (HELD, suspend(2, "w", 2, "x"), 409, None),
    "suspend: dead": (HELD, suspend(100, "w", 1, "x"), 409, None),
    "suspend: one is missing, one settled": (
        [*HELD, settle(2, "x")],
        suspend(2, "w", 1, "x", "z"),
        422,
        None,
    ),
    "suspend: one settled": ([*HELD, settle(2, "x")], suspend(2, "w", 1, "x", "y"), 300, None),
    "suspend: one expired": (HELD, suspend(20, "w", 1, "x", "y"), 300, None),
    "suspend: wake reasons end, the lease stays": (
        [*HELD, callback(2, "x", "w"), settle(2, "x")],
        suspend(3, "w", 1, "x"),
        300,
        {"w pending", "x resolved at 2", "y pending", "task w acquired 1 by p until 11"},
    ),
    "suspend: all live": (HELD, suspend(2, "w", 1, "x", "y"), 200, SLEEPING_IS),
    "suspend: buffered wake reasons do not matter": (
        [*HELD, callback(2, "x", "w"), settle(2, "x")],
        suspend(3, "w", 1, "y"),
        200,
        {"w pending", "x resolved at 2", "y pending", "task w suspended 1", "w waits for y"},
    ),
    "fulfill: a state nobody settles to": (HELD, fulfill(2, "w", 1, "pending"), 400, None),
    "fulfill: another promise": (HELD, fulfill(2, "w", 1, of="x"), 400, None),
    "fulfill: no task": (READY, fulfill(2, "x", 1), 404, None),
    "fulfill: another version": (HELD, fulfill(2, "w", 0), 409, None),
    "fulfill: held": (
        HELD,
        fulfill(2, "w", 1),
        200,
        {"w resolved at 2", "task w fulfilled 1", "x pending", "y pending"},
    ),
    "fulfill: twice": ([*HELD, fulfill(2, "w", 1)], fulfill(2, "w", 1), 409, None),
    "fulfill: late": (HELD, fulfill(100, "w", 1), 409, None),
    "fence: its own promise": (HELD, fence(2, "w", 1, settle(2, "w")), 400, None),
    "fence: unknown action": (HELD, fence(2, "w", 1, (2, "promise.get", {"id": "x"})), 400, None),
    "fence: malformed action": (HELD, fence(2, "w", 1, settle(2, "x", "done")), 400, None),
    "fence: no task": (READY, fence(2, "z", 1, settle(2, "x")), 404, None),
    "fence: another version": (HELD, fence(2, "w", 2, settle(2, "x")), 409, None),
    "fence: create": (
        HELD,
        fence(2, "w", 1, create(2, "v", TASK)),
        200,
        HELD_IS | {"v pending", "task v pending 0 from 2"},
    ),
    "fence: create what exists": (HELD, fence(2, "w", 1, create(2, "x")), 200, None),
    "fence: settle": (
        HELD,
        fence(2, "w", 1, settle(2, "x")),
        200,
        HELD_IS - {"x pending"} | {"x resolved at 2"},
    ),
    "fence: settle late": (
        HELD,
        fence(20, "w", 1, settle(20, "y")),
        200,
        HELD_IS - {"y pending"} | {"y rejected_timedout at 20"},
    ),
    "fence: settle nothing": (HELD, fence(2, "w", 1, settle(2, "z")), 200, None),
    "heartbeat: no tasks means all": (
        HELD,
        heartbeat(5),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w acquired 1 by p until 15"},
    ),
    "release: not offered while it waits": (
        RELEASED_TWICE,
        (104, "task.offer", {"queue": "g", "limit": 1}),
        200,
        {"w pending", "task w pending 2 from 5"},
    ),
    "release: offered when it has waited": (
        RELEASED_TWICE,
        (105, "task.offer", {"queue": "g", "limit": 1}),
        200,
        {"w pending", "task w pending 2 from 5105"},
    ),
    "heartbeat: held": (
        HELD,
        heartbeat(5, ("w", 1)),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w acquired 1 by p until 15"},
    ),
    "heartbeat: overdue": (
        HELD,
        heartbeat(50, ("w", 1)),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w acquired 1 by p until 60"},
    ),
    "heartbeat: another version and a right one": (
        HELD,
        heartbeat(5, ("w", 0), ("z", 1), ("w", 1)),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w acquired 1 by p until 15"},
    ),
    "heartbeat: another process": (HELD, heartbeat(5, ("w", 1), pid="q"), 200, None),
    "heartbeat: dead": (HELD, heartbeat(100, ("w", 1)), 200, None),
    "halt: none": (READY, task(2, "halt", "x"), 404, None),
    "halt: fulfilled": ([*HELD, settle(2, "w")], task(2, "halt", "w"), 409, None),
    "halt: dead": (HELD, task(100, "halt", "w"), 409, None),
    "halt: acquired": (
        HELD,
        task(2, "halt", "w"),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w halted 1"},
    ),
    "halt: suspended": (
        SLEEPING,
        task(3, "halt", "w"),
        200,
        SLEEPING_IS - {"task w suspended 1"} | {"task w halted 1"},
    ),
    "halt: pending": (
        READY,
        task(2, "halt", "w"),
        200,
        READY_IS - {"task w pending 0 from 0"} | {"task w halted 0"},
    ),
    "halt: again": (HALTED, task(3, "halt", "w"), 200, None),
    "continue: none": (READY, task(2, "continue", "x"), 404, None),
    "continue: not halted": (HELD, task(2, "continue", "w"), 409, None),
    "continue: halted": (
        HALTED,
        task(9, "continue", "w"),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w pending 1 from 9"},
    ),
    "continue: dead": (HALTED, task(100, "continue", "w"), 409, None),
    "resumed": (
        SLEEPING,
        settle(5, "x"),
        200,
        {"w pending", "x resolved at 5", "y pending", "task w pending 1 from 5 woken by x", "w waits for y"},
    ),
    "buffered: pending": (
        [*SLEEPING, settle(5, "x")],
        settle(6, "y"),
        200,
        {"w pending", "x resolved at 5", "y resolved at 6", "task w pending 1 from 5 woken by x y"},
    ),
    "buffered: halted": (
        [*SLEEPING, task(3, "halt", "w")],
        settle(5, "x"),
        200,
        {"w pending", "x resolved at 5", "y pending", "task w halted 1 woken by x", "w waits for y"},
    ),
    "buffered: acquired, kept by release": (
        [*HELD, callback(2, "x", "w"), settle(3, "x")],
        task(4, "release", "w", 1),
        200,
        {"w pending", "x resolved at 3", "y pending", "task w pending 1 from 4 woken by x"},
    ),
    "fulfilled: nothing happens to it": (
        [*SLEEPING, settle(3, "w")],
        settle(5, "x"),
        200,
        {"w resolved at 3", "task w fulfilled 1", "x resolved at 5", "y pending", "w waits for y"},
    ),
    "expired: neither pending nor fulfilled by it": (
        [*HELD, create(2, "z", EXTERNAL, until=500), suspend(2, "w", 1, "z")],
        settle(100, "z"),
        200,
        {"w pending", "task w suspended 1", "x pending", "y pending", "z resolved at 100"},
    ),
    "listeners are told once": (
        [create(0, "a", EXTERNAL), listener(0, "a"), listener(0, "a", "http://h")],
        settle(3, "a"),
        200,
        {"a resolved at 3", f"tell {G} of a", "tell http://h of a"},
    ),
    "tick: a deadline": (
        SLEEPING,
        tick(20),
        200,
        {
            "w pending",
            "x pending",
            "y rejected_timedout at 20",
            "task w pending 1 from 20 woken by y",
            "w waits for x",
        },
    ),
    "tick: nobody waits for what is internal": ([create(0, "a")], tick(200), 200, None),
    "tick: before the deadline": (SLEEPING, tick(19), 200, None),
    "tick: a lease": (
        HELD,
        tick(11),
        200,
        HELD_IS - {"task w acquired 1 by p until 11"} | {"task w pending 1 from 11"},
    ),
    "tick: before the lease ends": (HELD, tick(10), 200, None),
    "tick: all settle before anybody is woken": (
        SLEEPING,
        tick(100),
        200,
        {
            "w rejected_timedout at 100",
            "task w fulfilled 1",
            "x rejected_timedout at 100",
            "y rejected_timedout at 20",
        },
    ),
    "offer: due": (
        READY,
        (3, "task.offer", {"queue": "g", "limit": 1}),
        200,
        READY_IS - {"task w pending 0 from 0"} | {"task w pending 0 from 5003"},
    ),
    "offer: another queue": (READY, (3, "task.offer", {"queue": "h", "limit": 1}), 200, None),
    "unknown kind": ([], (0, "promise.delete", {"id": "a"}), 400, None),
}
