"""A storm: sessions that do everything to the same few objects at once, mostly with versions that are
current, so that it has an effect.

What lives here: the crew of sessions, their operations, the counts, and the calm after the storm, in which
everything that was begun is driven to its end. The laws are asserted by the tests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from time import time
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.protocol.journal import ERRORS, RESULTS
from tests.support.verbs import (
    NEVER,
    Call,
    Held,
    Turn,
    cancel,
    complete,
    create,
    journal,
    release_unknown,
    report,
    send,
    settle,
    start,
    turn,
)
from tests.system.races.shadow import DETACHED, SIGNALS, Shadow

Session = psycopg.AsyncConnection[TupleRow]
EXPECTED = frozenset({"WF001", "WF002", "WF003", "WF004", "WF005", "WF009", "WF010"})
TASKS, PROMISES, RUNS = 16, 24, 10
TTLS = (60, 5_000, 15_000)
TICK: Call = ("select durable.tick_v1(50)", ())


@dataclass(kw_only=True)
class Known:
    """What somebody last heard of a protocol task."""

    id: str
    state: str = "pending"
    version: int = 0


@dataclass(kw_only=True)
class World:
    """What all sessions share."""

    rng: Random
    limit: int
    tasks: dict[str, Known] = field(default_factory=dict)
    promises: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    effective: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    numbers: count[int] = field(default_factory=count)
    recorded: dict[int, set[int]] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Operations so far."""
        return self.tried.total()

    def count(self, kind: str, effective: object) -> None:
        """Note an operation and whether it changed what it was meant to change."""
        self.tried[kind] += 1
        self.effective[kind] += bool(effective)

    def some_task(self, state: str) -> Known | None:
        """A task that is known to be in this state; now and then any task, to be refused."""
        fitting = [task for task in self.tasks.values() if task.state == state or self.rng.random() < 0.02]
        return self.rng.choice(fitting) if fitting else None

    def some_promise(self) -> str:
        """A promise that is probably pending."""
        return self.rng.choice(self.promises) if self.promises else "none"

    def share(self, *kinds: str) -> float:
        """Effective share of these kinds, in percent."""
        return (
            100
            * sum(self.effective[kind] for kind in kinds)
            / max(1, sum(self.tried[kind] for kind in kinds))
        )


class Sailor:
    """A session: a protocol client and a worker in one."""

    def __init__(self, world: World, session: Session, name: str) -> None:
        self.world = world
        self.session = session
        self.name = name
        self.held: dict[int, Shadow] = {}
        self.warm: dict[int, Shadow] = {}

    async def ask(self, call: Call) -> Any:
        """Run a statement; None if it was refused with a code that a race can bring about."""
        try:
            cursor = await self.session.execute(call[0].encode(), call[1])
        except psycopg.Error as error:
            if error.sqlstate not in EXPECTED:
                raise
            self.world.refused[error.sqlstate or ""] += 1
            return None
        row = await cursor.fetchone()
        return row if row and len(row) > 1 else row[0] if row else None

    async def sail(self) -> None:
        """Operations at random until the storm is over."""
        operations: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.create, 8),
            (self.make, 2),
            (self.acquire, 12),
            (self.suspend, 10),
            (self.settle, 8),
            (self.fence, 8),
            (self.release, 2),
            (self.fulfill, 1),
            (self.heartbeat, 3),
            (self.halt, 1),
            (self.go_on, 2),
            (self.register, 2),
            (self.read, 2),
            (self.search, 1),
            (self.deliver, 1),
            (self.tick, 3),
            (self.start, 2),
            (self.send, 4),
            (self.cancel, 1),
            (self.work, 25),
        ]
        choices, weights = [each for each, _ in operations], [weight for _, weight in operations]
        while self.world.done < self.world.limit:
            await self.world.rng.choices(choices, weights)[0]()

    async def create(self) -> None:
        """A new external promise or protocol task; the oldest ones go out of sight."""
        world = self.world
        name = f"{world.rng.choice('xyz')}{next(world.numbers)}"
        timeout = NEVER if world.rng.random() < 0.7 else int(time() * 1000) + world.rng.randrange(-5, 400)
        if world.rng.random() < 0.3 or len(world.tasks) < TASKS // 2:
            world.count(
                "create", await self.ask(create(name, timeout, target=f"any-{world.rng.randrange(3)}"))
            )
            world.tasks[name] = Known(id=name)
            for old in list(world.tasks)[:-TASKS]:
                world.promises.insert(0, old)
                del world.tasks[old]
        else:
            made = await self.ask(create(name, timeout, external="true"))
            world.count("create", made)
            world.made += [name] if made else []
            del world.made[:-PROMISES]
        world.promises.append(name)
        del world.promises[:-PROMISES]

    async def make(self) -> None:
        """A protocol task that is held from birth, or one that exists."""
        world = self.world
        old = world.some_task("pending") if world.rng.random() < 0.3 else None
        name = f"x{next(world.numbers)}" if old is None else old.id
        statement = (
            "select version from durable.task_create(%s, %s, %s, %s, "
            """p_tags => '{"resonate:target": "any-0"}')"""
        )
        version = await self.ask((statement, (name, NEVER, self.name, world.rng.choice(TTLS))))
        world.count("task create", version)
        if version:
            world.tasks[name] = Known(id=name, state="acquired", version=version)
            world.promises.append(name)

    async def acquire(self) -> None:
        """Take a pending task."""
        task = self.world.some_task("pending")
        if task is None:
            return
        statement = "select version from durable.task_acquire(%s, %s, %s, %s)"
        version = await self.ask((statement, (task.id, task.version, self.name, self.world.rng.choice(TTLS))))
        self.world.count("acquire", version)
        if version is not None:
            task.state, task.version = "acquired", version
        else:
            await self.look(task)

    async def look(self, task: Known) -> None:
        """Read a task of which something else was heard."""
        found = await self.ask(("select state, version from durable.task_get(%s)", (task.id,)))
        if found is None or found[0] == "fulfilled":
            self.world.tasks.pop(task.id, None)
        else:
            task.state, task.version = found

    async def suspend(self) -> None:
        """Suspend a task on promises of all kinds, other tasks' too, so that awaits cross."""
        task = self.world.some_task("acquired")
        if task is None:
            return
        wanted = {self.world.some_promise() for _ in range(self.world.rng.randrange(1, 4))}
        wanted |= set(self.world.rng.sample(sorted(self.world.tasks), min(1, len(self.world.tasks))))
        wanted.discard(task.id)
        if not wanted:
            return
        statement = "select durable.task_suspend(%s, %s, %s)"
        parked = await self.ask((statement, (task.id, task.version, sorted(wanted))))
        self.world.count("suspend", parked)
        if parked:
            task.state = "suspended"
        else:
            await self.look(task)

    async def settle(self) -> None:
        """Settle a promise: an external one mostly, sometimes a task's or a run's."""
        world = self.world
        name = (
            world.some_promise()
            if world.rng.random() < 0.9 or not world.runs
            else world.rng.choice(world.runs)
        )
        value = f'"{next(world.numbers)}"'
        state = world.rng.choice(("resolved", "rejected", "rejected_canceled"))
        found = await self.ask(settle(name, value, state=state))
        world.count("settle", found == (state, value))
        self.forget(name)
        await self.wake_known(name)

    def forget(self, name: str) -> None:
        """A settled promise goes out of sight, mostly."""
        if name in self.world.promises and self.world.rng.random() < 0.8:
            self.world.promises.remove(name)
        self.world.tasks.pop(name, None)

    async def wake_known(self, name: str) -> None:
        """Somebody may have been woken: look at one suspended task."""
        task = self.world.some_task("suspended")
        if task is not None:
            await self.look(task)

    async def fence(self) -> None:
        """Settle or create something else under the lease of a task."""
        world = self.world
        task = world.some_task("acquired")
        if task is None:
            return
        if world.rng.random() < 0.7:
            name, value = world.some_promise(), f'"{next(world.numbers)}"'
            statement = "select value_data from durable.task_fence_settle(%s, %s, %s, 'resolved', %s)"
            found = await self.ask((statement, (task.id, task.version, name, value)))
            world.count("fence", found == value)
            if found is not None:
                self.forget(name)
                return
        else:
            name = world.some_promise() if world.rng.random() < 0.3 else f"f{next(world.numbers)}"
            statement = (
                "select state from durable.task_fence_create(%s, %s, %s, %s, "
                """p_tags => '{"resonate:external": "true"}')"""
            )
            found = await self.ask((statement, (task.id, task.version, name, NEVER)))
            world.count("fence", found == "pending" and name.startswith("f"))
            if found is not None:
                world.promises.append(name)
                return
        await self.look(task)

    async def release(self) -> None:
        """Give a task back."""
        task = self.world.some_task("acquired")
        if task is not None:
            await self.ask(("select durable.task_release(%s, %s)", (task.id, task.version)))
            before = task.state
            await self.look(task)
            self.world.count("release", before == "acquired" and task.state == "pending")

    async def fulfill(self) -> None:
        """Complete a task."""
        task = self.world.some_task("acquired")
        if task is not None:
            statement = "select state from durable.task_fulfill(%s, %s, 'resolved', '1')"
            found = await self.ask((statement, (task.id, task.version)))
            self.world.count("fulfill", found == "resolved")
            await self.look(task)

    async def heartbeat(self) -> None:
        """Renew everything that is thought to be held, by whoever."""
        mine = [task for task in self.world.tasks.values() if task.state == "acquired"]
        statement = "select durable.task_heartbeat(%s, %s, %s)"
        call = (statement, (self.name, [task.id for task in mine], [task.version for task in mine]))
        self.world.count("heartbeat", await self.ask(call))
        runs = [(shadow.execution, shadow.id, shadow.version) for shadow in self.held.values()]
        statement = "select durable.worker_heartbeat_v1(%s, %s, %s, %s)"
        lost = await self.ask((statement, (self.name, *([each[n] for each in runs] for n in range(3)))))
        for execution in lost or ():
            self.held.pop(execution, None)

    async def halt(self) -> None:
        """Set a task or a run aside."""
        world = self.world
        names = [*world.tasks, *world.runs]
        name = world.rng.choice(names) if names else "none"
        verb = "pause" if name in world.runs else "task_halt"
        await self.ask((f"select durable.{verb}(%s)", (name,)))
        world.count("halt", True)
        if name in world.tasks:
            await self.look(world.tasks[name])

    async def go_on(self) -> None:
        """Let halted ones go on."""
        cursor = await self.session.execute("select id from durable._tasks where state = 'halted' limit 3")
        for (name,) in await cursor.fetchall():
            await self.ask(("select durable.task_continue(%s)", (name,)))
            self.world.count("continue", True)
            if name in self.world.tasks:
                await self.look(self.world.tasks[name])

    async def register(self) -> None:
        """A callback or a listener, from outside."""
        world = self.world
        if world.rng.random() < 0.5 and world.tasks:
            waiter = world.rng.choice(sorted(world.tasks))
            call = (
                "select state from durable.promise_register_callback(%s, %s)",
                (world.some_promise(), waiter),
            )
        else:
            statement = "select state from durable.promise_register_listener(%s, %s)"
            call = (statement, (world.some_promise(), f"g{world.rng.randrange(3)}"))
        world.count("register", await self.ask(call))

    async def read(self) -> None:
        """Read a promise and the results of some."""
        names = [self.world.some_promise() for _ in range(3)]
        await self.ask(("select state from durable.promise_get(%s)", (names[0],)))
        await self.ask(("select count(*) from durable.results_v1(%s)", (names,)))
        self.world.count("read", True)

    async def search(self) -> None:
        """Read pages of promises and tasks, which settles what is found past its deadline."""
        state = self.world.rng.choice(("pending", "rejected_timedout", None))
        found = await self.ask(("select count(*) from durable.promise_search(%s, p_limit => 20)", (state,)))
        await self.ask(("select count(*) from durable.task_search(p_limit => 20)", ()))
        self.world.count("search", found)

    async def deliver(self) -> None:
        """Hand out what is due: execute messages of a group, unblock messages, some of them acknowledged."""
        group = f"any-{self.world.rng.randrange(3)}"
        await self.ask(("select count(*) from durable.task_offer(%s, 5, %s)", (group, self.name)))
        statement = "select array_agg(promise_id || ' ' || address) from durable.unblock_claim(p_limit => 5)"
        claimed = await self.ask((statement, ()))
        for message in claimed or ():
            if self.world.rng.random() < 0.7:
                promise, address = message.split(" ")
                await self.ask(("select durable.unblock_acknowledge(%s, %s)", (promise, address)))
        self.world.count("deliver", claimed)

    async def tick(self) -> None:
        """Sweep."""
        found = await self.ask(TICK)
        self.world.count("tick", found["promises"] + found["leases"])

    async def start(self) -> None:
        """Start a run, sometimes one that exists."""
        world = self.world
        name = (
            f"r{next(world.numbers)}"
            if not world.runs or world.rng.random() < 0.8
            else world.rng.choice(world.runs)
        )
        timeout = world.rng.choice((None, None, "150 ms"))
        world.count("start", await self.ask(start(name, timeout=timeout, priority=world.rng.randrange(3))))
        world.runs.append(name)
        del world.runs[:-RUNS]

    async def send(self) -> None:
        """Send a signal to a run, sometimes one that was sent before."""
        world = self.world
        if world.runs:
            key = world.rng.choice((None, f"k{world.rng.randrange(4)}"))
            call = send(world.rng.choice(world.runs), world.rng.choice(SIGNALS), key=key)
            found = await self.ask(call)
            world.count("signal", found is not None and found[1])

    async def cancel(self) -> None:
        """Request the cancellation of a run, or of what is left of it."""
        world = self.world
        if world.runs:
            grace_ms, force = world.rng.choice((0, 100, 400)), world.rng.random() < 0.2
            found = await self.ask(cancel(world.rng.choice(world.runs), grace_ms=grace_ms, force=force))
            world.count("cancel", found)

    async def work(self) -> None:
        """A turn for some of the held runs; now and then the answer is lost and the same is sent again."""
        world = self.world
        moving = [shadow for shadow in self.held.values() if world.rng.random() < 0.7]
        foreign = world.rng.choice(world.made) if world.made else ""
        reports = [
            shadow.move(world.rng, spread=shadow.id.count(".") < 2, foreign=foreign) for shadow in moving
        ]
        if len(self.held) > len(moving) and world.rng.random() < 0.1:
            reports += self.stale()
        want = world.rng.choice((-1, 0, 1, 3)) if len(self.held) < 6 else -1
        call = turn(self.name, *reports, want=want, workflows=("w", DETACHED), ttl_ms=world.rng.choice(TTLS))
        answer = await self.ask(call)
        world.count("turn", reports or answer["tasks"])
        if reports and world.rng.random() < 0.05:
            self.held.clear()
            self.warm.clear()
            await self.ask(turn(self.name, *reports))
            await self.ask(release_unknown(self.name))
            return
        for shadow in moving:
            self.note_recorded(shadow, Turn(raw=answer))
            await self.after(shadow, shadow.take_answer(Turn(raw=answer)))
        await self.take_on(Turn(raw=answer))

    async def know(self, shadow: Shadow) -> None:
        """Tell a replayed run what its code would know: which of its receives still wait."""
        statement = (
            "select jsonb_object_agg(name, receiver) from durable._inboxes where execution = %s"
            " and receiver is not null"
        )
        shadow.know(await self.ask((statement, (shadow.execution,))) or {})

    def note_recorded(self, shadow: Shadow, answer: Turn) -> None:
        """Remember the results that the turn said it has written."""
        held = Held(execution=shadow.execution, id=shadow.id, version=shadow.version, next=shadow.next)
        if answer.of(held)[0] == "ok":
            over = {
                outcome["child"]
                for outcome in shadow.sent["outcomes"]
                if not outcome.get("begun") and "retry_in" not in outcome
            }
            self.world.recorded.setdefault(shadow.execution, set()).update(over)

    def hold(self, shadow: Shadow, held: Held) -> None:
        """Hold a run; a whole journal must have every result that was ever acknowledged."""
        if not held.start:
            found = {row[2] for row in held.rows if row[1] in RESULTS | ERRORS}
            assert self.world.recorded.get(held.execution, set()) <= found, f"results of {held.id} are lost"
        self.held[held.execution] = shadow

    def stale(self) -> list[dict[str, Any]]:
        """A report for a run that somebody else holds, or nobody any more."""
        other = max(self.held) + 1
        held = Held(execution=other, id="", version=1, next=0)
        return [] if other in self.held else [report(held, end=complete('"stale"'))]

    async def after(self, shadow: Shadow, state: str) -> None:
        """What a worker does with a run after its report was judged."""
        if state == "acquired":
            return
        del self.held[shadow.execution]
        if state == "suspended":
            self.warm[shadow.execution] = shadow
        elif state == "stale":
            about = {"execution": shadow.execution, "id": shadow.id, "first_child": shadow.first}
            await self.replay(Held(version=shadow.version, next=0, **about))

    async def take_on(self, answer: Turn) -> None:
        """Hold what the turn handed out."""
        for held in answer.tasks:
            warm = self.warm.pop(held.execution, None)
            shadow = Shadow.of(held, None if self.world.rng.random() < 0.2 else warm)
            if shadow is None:
                await self.replay(held)
            else:
                if not held.start:
                    await self.know(shadow)
                self.hold(shadow, held)

    async def replay(self, held: Held) -> None:
        """Start a held run again from its whole journal."""
        found = await self.ask(journal(self.name, held))
        if found is not None:
            rows = tuple(map(tuple, found["rows"]))
            whole = replace(held, next=found["next"], rows=rows, start=0)
            shadow = Shadow.of(whole, None)
            assert shadow is not None
            await self.know(shadow)
            self.hold(shadow, whole)


async def rage(dsn: str, world: World, sessions: int) -> None:
    """The storm."""
    crew = []
    for number in range(sessions):
        session = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        crew.append(Sailor(world, session, f"W{number}"))
    try:
        await asyncio.gather(*(sailor.sail() for sailor in crew))
    finally:
        for sailor in crew:
            await sailor.session.close()


async def calm(dsn: str) -> int:
    """Drive everything to its end with nothing but protocol operations and turns; returns how many rings of
    awaits had to be broken."""
    rings = 0
    session = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with session:
        await session.execute("update durable._tasks set expires_at = 0 where state = 'acquired'")
        # what was offered in the storm is offered again only after retry_offer_ms
        await session.execute("update durable._tasks set retry_at = 0 where state = 'pending'")
        await session.execute(
            "select durable.promise_settle(id, 'resolved', '1') from durable._promises "
            "where state = 'pending' and target is null and not timer"
        )
        for _ in range(2000):
            if not await stir(session):
                cursor = await session.execute(
                    "select id from durable._tasks where state = 'suspended' order by id limit 1"
                )
                stuck = await cursor.fetchone()
                if stuck is None:
                    break
                rings += 1
                await session.execute("select durable._settle_promise(%s, 'rejected', '0', null)", stuck)
    return rings


async def stir(session: Session) -> bool:
    """One round of the calm; tells whether anything is left that moves by itself."""
    await session.execute("select durable.tick_v1(500)")
    await session.execute("select durable.task_continue(id) from durable._tasks where state = 'halted'")
    await session.execute(
        "select durable.signal(t.id, i.name) from durable._inboxes i join durable._tasks t"
        " on t.execution = i.execution where i.receiver is not null and t.deadline > durable._now_ms()"
    )
    for queue in ("any-0", "any-1", "any-2"):
        await session.execute(
            "select (durable.task_acquire(o.id, o.version, 'calm', 60000)).version from "
            "durable.task_offer(%s) o",
            (queue,),
        )
    await session.execute(
        "select durable.task_fulfill(id, version, 'resolved', '1') from durable._tasks "
        "where pid = 'calm' and deadline > durable._now_ms()"
    )
    call = turn("end", want=100, workflows=("w", DETACHED))
    row = await (await session.execute(call[0].encode(), call[1])).fetchone()
    assert row is not None
    ended = [report(held, end=complete()) for held in Turn(raw=row[0]).tasks]
    call = turn("end", *ended)
    await session.execute(call[0].encode(), call[1])
    cursor = await session.execute(
        "select count(*) from durable._tasks t where t.state <> 'suspended' or exists (select from "
        "durable._callbacks c "
        "join durable._promises p on p.id = c.awaited_id where c.awaiter_id = t.id and p.timeout_at "
        "< 9007199254740991)"
    )
    left = await cursor.fetchone()
    return left is not None and left[0] > 0
