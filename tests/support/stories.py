"""Runs that live through everything: scripted and random lives of one run, step by step.

What lives here: `Story`, which reports for the worker of one run, plays everybody around it (children, other
workers, senders, people) and remembers what is open. May not: judge anything. A life is an iterator: it
yields after each call, so that whoever reads it can look at the database in between. `everything` writes
rows of every type; `wander` goes any legal way, by a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from pyengine.core.protocol.journal import RowType
from tests.support.clock import Clock
from tests.support.verbs import (
    HASH,
    TTL_MS,
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    broken,
    captured,
    claim,
    complete,
    create,
    done,
    fail,
    promise,
    release,
    report,
    run,
    settle,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
)

KIDS = "kids"
ALL_TYPES = set(RowType)
Command = dict[str, Any]


def intent(child: int, *, name: str = "step", retry: str | None = None) -> Command:
    """A command: a step begins, recorded before it runs."""
    command = {"do": "intent", "child": child, "name": name, "hash": HASH, "param": "[]"}
    return command if retry is None else {**command, "retry": retry}


def receive(child: int, name: str) -> Command:
    """A command: wait for a signal."""
    return {"do": "receive", "child": child, "name": name}


def join_set(child: int) -> Command:
    """A command: make a join set."""
    return {"do": "join_set", "child": child}


def submit(child: int, to: int) -> Command:
    """A command: put a child into a join set."""
    return {"do": "submit", "child": child, "set": to}


def take_result(child: int, of: int) -> Command:
    """A command: take the result of a member."""
    return {"do": "take", "child": child, "set": of}


def adopt(child: int, id_: str) -> Command:
    """A command: wait for a promise of somebody else."""
    return {"do": "adopt", "child": child, "name": id_}


def named(outcome: Command, name: str) -> Command:
    """An outcome about a step of that name."""
    return {**outcome, "name": name}


class Story:
    """One run, its worker and its world.

    Args:
        conn: a connection.
        clock: the database's clock.
        id_: id of the run; its queue has the same.
        more: options of durable.start.
    """

    def __init__(self, conn: Connection, clock: Clock, id_: str, **more: Any) -> None:
        self.conn, self.clock, self.id = conn, clock, id_
        self.held: Held | None = begin_run(conn, id_, **more)
        self.execution = self.held.execution

    @property
    def next_seq(self) -> int:
        """How many events the journal has."""
        query = "select next_seq from durable._executions where execution = %s"
        return int(ask(self.conn, (query, (self.execution,)))[0])

    def report(
        self,
        *,
        outcomes: Sequence[Command] = (),
        commands: Sequence[Command] = (),
        end: Command | None = None,
    ) -> None:
        """A turn of the worker, which has seen all."""
        assert self.held is not None
        given = report(self.held, outcomes=outcomes, commands=commands, end=end, seen=self.next_seq)
        verdict, state = take_turn(self.conn, "W", given).of(self.held)
        assert verdict == "ok", (outcomes, commands, end)
        if state != "acquired":
            self.held = None

    def again(self) -> None:
        """The worker takes the run up again."""
        self.held = claim(self.conn, "W", f"q-{self.id}")
        self.execution = self.held.execution

    def lose(self) -> None:
        """The lease of the worker runs out."""
        self.clock.advance(TTL_MS)
        tick(self.conn)
        self.held = None

    def settle(self, child: int, value: str = "1", *, state: str = "resolved") -> None:
        """Somebody settles a child."""
        ask(self.conn, settle(f"{self.id}.{child}", value, state=state))

    def kid(self, child: int) -> Held:
        """A worker takes a child run up."""
        queue = {"queues": [KIDS], "workflows": ["w", "kid"]}
        # a worker that was lost may have had several, which would be claimed one by one
        self.conn.execute("update durable._tasks set suspect = false")
        tasks = take_turn(self.conn, "V", want=100, ttl_ms=TTL_MS // 2, **queue).tasks
        return next(task for task in tasks if task.id == f"{self.id}.{child}")

    def kid_reports(self, kid: Held, end: Command) -> None:
        """A child run ends."""
        take_turn(self.conn, "V", report(kid, end=end))

    def signal(self, name: str, payload: Any, key: str | None = None) -> None:
        """Somebody sends a signal."""
        call = "select durable.signal(%s, %s, %s::jsonb, %s)"
        ask(self.conn, (call, (self.id, name, json.dumps(payload), key)))

    def append(self, type_: str, child: int, data: str) -> None:
        """A row that no worker of ours writes."""
        row = "row(%s, %s, %s, null, 'foreign', null, %s)::durable._event"
        call = f"select durable._append(array[{row}], durable._now_ms())"
        ask(self.conn, (call, (self.execution, type_, child, data)))


def everything(story: Story, *, end: Command | None = None) -> Iterator[None]:
    """A run whose journal has rows of all types, those of a cancellation excepted; children:

    0 intent, done; 1 random; 2 time; 3 timer, fired; 4 promise, resolved; 5 child run, lost once, done;
    6 adopted, resolved; 7 join set of 5, 4 and 0; 8 receive "go", served from a wait; 9 done; 10 error;
    11 done at its fifth attempt; 12 failed at its second; 13 intent, failed; 14 child run, settled from
    outside, rejected; 15 promise, timed out; 16 receive "go", buffered; 17 foreign; 18 timer, pending;
    19 promise, pending; 20 child run, running; 21 adopted, pending; 22 intent, running; 23 tried once;
    24 receive "later", registered; 25 detached child run, never run.
    """
    yield from _calls(story)
    yield from _waits(story)
    yield from _leftovers(story)
    if end is not None:
        story.report(outcomes=[done(22, name="running")], end=end)
        yield


def _calls(story: Story) -> Iterator[None]:
    """Children 0 to 13 begin, and most steps among them end."""
    for name in ("there", "nowhere"):
        ask(story.conn, create(f"{story.id}-{name}", external="true"))
    numbers = [captured(1), captured(2, "17", kind="time"), timer(3, 1000), promise(4)]
    kids = [run(5, queue=KIDS, name="kid"), adopt(6, f"{story.id}-there"), join_set(7)]
    sets = [submit(5, 7), submit(4, 7), submit(0, 7), receive(8, "go")]
    story.report(commands=[named(intent(0, retry='{"max_attempts": 3}'), "first"), *numbers, *kids, *sets])
    yield
    story.report(outcomes=[done(9, '"nine"', name="nine"), named(broken(10), "ten"), broken(11, retry_in=5)])
    yield
    again = [broken(11, attempt=attempt, retry_in=5) for attempt in (2, 3)]
    story.report(outcomes=[begun(11, attempt=2), *again])
    yield
    story.report(outcomes=[broken(12, retry_in=5), broken(12, attempt=2), begun(13), broken(13)])
    yield
    story.kid(5)
    yield


def _waits(story: Story) -> Iterator[None]:
    """What others do to the children 3 to 8 while the run waits for them."""
    story.report(outcomes=[begun(11, attempt=4)])
    story.report(end=suspend(3, 4, 5, 6, 8))
    yield
    story.clock.advance(1000)
    tick(story.conn)
    yield
    story.again()
    story.report(end=suspend(4, 5, 6, kind="all"))
    yield
    story.lose()
    yield
    kid = story.kid(5)
    yield
    story.settle(4, '{"paid": true}')
    ask(story.conn, settle(f"{story.id}-there", '"there"'))
    yield
    story.kid_reports(kid, complete('"kid"'))
    yield
    story.again()
    story.report(end=suspend(8, kind="signal"))
    yield
    story.signal("go", 1, "k1")
    yield
    for number in (2, 3):
        story.signal("go", number, f"k{number}")
        yield


def _leftovers(story: Story) -> Iterator[None]:
    """Children 14 to 25, many of them open at the end."""
    story.again()
    commands = [take_result(4, 7), run(14, queue="nobody"), promise(15, 500), receive(16, "go")]
    story.report(outcomes=[done(0, '"zero"', name="first"), done(11, attempt=5)], commands=commands)
    yield
    story.append("step_scheduled", 17, '{"kind": "Local", "input": 1}')
    yield
    story.settle(14, '{"type": "No"}', state="rejected")
    yield
    story.report(commands=[timer(18, 10**7), promise(19, 10**6), run(20, queue=KIDS, timeout=10**6)])
    yield
    story.report(
        commands=[adopt(21, f"{story.id}-nowhere"), named(intent(22), "running"), receive(24, "later")]
    )
    yield
    story.clock.advance(500)
    tick(story.conn)
    yield
    story.kid(20)
    commands = [run(25, queue="nobody", detached=True)]
    story.report(outcomes=[broken(23, retry_in=10**6, name="failing")], commands=commands)
    yield
    story.signal("later still", {"x": [1, None]})
    yield


def cancelled(story: Story) -> Iterator[None]:
    """A run that is cancelled while it waits and cleans up: child 0 done, 1 promise, 2 in flight without a
    row, 3 timer; after the request 2 and 1 complete, 4 and 5 are clean-up."""
    story.report(
        outcomes=[done(0, name="zero")], commands=[promise(1), timer(3, 10**7), join_set(4), submit(1, 4)]
    )
    yield
    story.report(end=suspend(1, 3))
    yield
    ask(story.conn, ("select durable.cancel(%s)", (story.id,)))
    yield
    story.again()
    yield
    story.settle(1, '"late"')
    story.signal("s", 1)
    yield
    story.report(outcomes=[done(2, '"two"', name="two")], commands=[take_result(1, 4), captured(5)])
    yield
    story.report(outcomes=[done(6, name="refund")])
    yield
    story.report(end={"do": "cancel"})
    yield


def forced(story: Story) -> Iterator[None]:
    """A run that is cancelled by force while it waits: child 0 done, 1 and 2 child runs, 2 is running, 3 a
    child run that was cancelled by itself before, 4 a promise."""
    kids = [run(1, queue="nobody"), run(2, queue=KIDS), run(3, queue="nobody"), promise(4)]
    story.report(outcomes=[done(0, name="zero")], commands=kids)
    yield
    story.kid(2)
    ask(story.conn, ("select durable.cancel(%s)", (f"{story.id}.3",)))
    yield
    story.report(end=suspend(1, 2, 4, kind="all"))
    yield
    ask(story.conn, ("select durable.cancel(%s, force => true)", (story.id,)))
    yield


class Wanderer(Story):
    """A run that goes any legal way.

    Args:
        rng: decides.
    """

    def __init__(self, conn: Connection, clock: Clock, id_: str, rng: random.Random) -> None:
        super().__init__(conn, clock, id_)
        self.rng = rng
        self.next_child = 0
        self.gaps: list[int] = []
        self.sets: list[int] = []
        self.members: dict[int, int] = {}

    def rows(self, query: str, *values: Any) -> list[Any]:
        """First columns of what a query finds."""
        return [row[0] for row in self.conn.execute(query.encode(), values).fetchall()]

    def open_steps(self) -> dict[int, tuple[int, bool]]:
        """Open local steps with their attempts and whether those run, as in the head."""
        query = "select open_steps, open_attempts, open_running from durable._executions where execution = %s"
        steps, attempts, running = ask(self.conn, (query, (self.execution,)))
        return dict(zip(steps, zip(attempts, running, strict=True), strict=True))

    def pending(self) -> list[int]:
        """Children whose promises are pending."""
        query = "select child from durable._promises where execution = %s and state = 'pending'"
        return sorted(self.rows(query, self.execution))

    def number(self) -> int:
        """The number of a new call; one in five calls is a step whose row comes later."""
        if self.rng.random() < 0.2:
            self.gaps.append(self.next_child)
            self.next_child += 1
        self.next_child += 1
        return self.next_child - 1

    def outcome(self) -> Command:
        """Something happens to a step: a new one, one in flight or one that is open."""
        steps, rng = self.open_steps(), self.rng
        if steps and rng.random() < 0.6:
            child = rng.choice(sorted(steps))
            attempt, runs = steps[child]
        else:
            child = self.gaps.pop(0) if self.gaps and rng.random() < 0.5 else self.number()
            attempt, runs = 1, False
        kinds = [
            done(child, str(rng.randrange(99)), attempt=attempt),
            broken(child, attempt=attempt),
            broken(child, attempt=attempt, retry_in=5),
        ]
        kinds += [] if runs else [begun(child, attempt=attempt)]
        return named(rng.choice(kinds), f"step{child % 3}")

    def commands(self) -> list[Command]:
        """The code does something."""
        child, rng = self.number(), self.rng
        name = f"s{rng.randrange(2)}"
        plain = [timer(child, rng.choice([1, 500, 10**6])), promise(child), promise(child, 700)]
        plain += [run(child, queue=KIDS), run(child, queue=KIDS, abandon=True)]
        plain += [intent(child, name=f"step{child % 3}")]
        plain += [captured(child), captured(child, "3", kind="time")]
        plain += [join_set(child), receive(child, name), adopt(child, f"{self.id}-{child}")]
        command = rng.choice(plain)
        if command["do"] == "join_set":
            self.sets.append(child)
        elif command["do"] == "adopt":
            ask(self.conn, create(command["name"], external="true"))
        elif command["do"] == "receive" and name in self.receivers():
            self.next_child -= 1
            return []
        elif self.sets and command["do"] in ("run", "promise", "intent") and rng.random() < 0.5:
            home = rng.choice(self.sets)
            query = "select child from durable._join_sets where execution = %s and closed"
            if home not in self.rows(query, self.execution):
                self.members[child] = home
                return [command, submit(child, home)]
        return [command]

    def receivers(self) -> dict[str, int]:
        """Receives that wait."""
        query = "select name, receiver from durable._inboxes where execution = %s and receiver is not null"
        return dict(self.conn.execute(query, (self.execution,)).fetchall())

    def adopted(self) -> dict[int, str]:
        """Promises of others that the run waits for."""
        query = "select child, awaited_id from durable._callbacks where awaiter_id = %s and child >= 0"
        return dict(self.conn.execute(query, (self.id,)).fetchall())

    def take_one(self) -> None:
        """The code takes the result of a member that is complete."""
        query = """select m.child from durable._members m join durable._journal j using (execution, child)
                   where m.execution = %s and not m.taken and durable._resolves(j.type) order by j.seq"""
        ready = self.rows(query, self.execution)
        if ready:
            self.report(commands=[take_result(ready[0], self.members[ready[0]])])

    def wait(self) -> None:
        """The code waits."""
        alone = set(self.receivers().values())
        able = sorted({*self.pending(), *self.adopted(), *alone})
        if able:
            on = self.rng.sample(able, self.rng.randint(1, len(able)))
            kind = self.rng.choice(["any", "all"])
            if len(on) == 1:
                kind = "signal" if on[0] in alone else "single"
            self.report(end=suspend(*sorted(on), kind=kind))

    def outside(self) -> None:
        """Something happens around the run."""
        rng, children = self.rng, self.pending()
        what = rng.randrange(6)
        if what == 0 and children:
            state = rng.choice(["resolved", "rejected"])
            child, value = rng.choice(children), str(rng.randrange(9))
            # an error of another form is put into one that has a type
            self.settle(child, value if state == "resolved" else f'{{"type": "No{value}"}}', state=state)
        elif what == 1:
            self.signal(f"s{rng.randrange(2)}", rng.randrange(9))
        elif what == 2:
            self.clock.advance(rng.choice([1, 600, TTL_MS]))
            tick(self.conn)
        elif what == 3:
            take_turn(self.conn, "V", want=rng.randrange(3), queues=[KIDS])
        elif what == 4:
            for id_ in self.adopted().values():
                ask(self.conn, settle(id_, "7"))
        task = task_of(self.conn, self.id)
        if task is None or task[0] != "acquired":
            self.held = None

    def wander(self, steps: int) -> Iterator[None]:
        """Live for so many steps, then end in one of the ways; or be cut off."""
        for _ in range(steps):
            choice = self.rng.random()
            if self.held is None and self.rng.random() < 0.5:
                self.clock.advance(1000)
                found = take_turn(self.conn, "W", want=1, queues=[f"q-{self.id}"]).tasks
                self.held = found[0] if found else None
            elif self.held is None or choice < 0.3:
                self.outside()
            elif choice < 0.6:
                self.report(outcomes=[self.outcome()])
            elif choice < 0.85:
                self.report(commands=self.commands())
            elif choice < 0.9:
                self.take_one()
            elif choice < 0.93:
                self.report(end=release())
            else:
                self.wait()
            yield
        if self.held is not None and self.rng.random() < 0.7:
            self.report(end=self.rng.choice([complete(), fail()]))
        elif self.rng.random() < 0.5:
            ask(self.conn, ("select durable.cancel(%s, force => %s)", (self.id, self.rng.random() < 0.5)))
        yield


def begin_story(conn: Connection, clock: Clock, id_: str, **more: Any) -> Story:
    """A run of a workflow with a limit of time, tags and a priority."""
    options = {"timeout": "10 days", "tags": '{"customer": "7"}', "priority": 3, **more}
    return Story(conn, clock, id_, **options)
