"""A client that uses every operation of the protocol, the older ones and the worker's turn too, with every
outcome that it can have.

What lives here: the scenes and the client. Each call is made in a transaction of its own. The laws are
asserted by the tests.
"""

from __future__ import annotations

import psycopg
from psycopg.types.json import Jsonb

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    TTL_MS,
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    begun,
    broken,
    claim,
    complete,
    continue_as_new,
    done,
    fail,
    halt,
    heartbeat,
    promise,
    receive,
    release,
    report,
    run,
    suspend,
    take_turn,
    tick,
    timer,
)


class Say:
    """A client of the protocol: each call is made in a transaction of its own, has the outcome that is
    expected and leaves a lawful state; what was called and how it ended is remembered."""

    def __init__(self, conn: Connection, clock: Clock) -> None:
        self.conn, self.clock = conn, clock
        self.said: set[tuple[str, str]] = set()

    def __call__(self, expected: str, name: str, *args: object) -> None:
        marks = ", ".join("%s" for _ in args)
        values = [Jsonb(arg) if isinstance(arg, dict) else arg for arg in args]
        try:
            cursor = self.conn.execute(f"select x.* from durable.{name}({marks}) as x".encode(), values)
        except psycopg.Error as error:
            told = error.sqlstate or "?"
        else:
            columns = [column.name for column in cursor.description or ()]
            place = next(
                (columns.index(each) for each in ("state", "status", "cursor") if each in columns), 0
            )
            told = " ".join(str(row[place]) for row in cursor.fetchall())
        assert told == expected, f"{name}{args}: {told}"
        laws = self.conn.execute("select * from durable.check()").fetchall()
        assert not laws, f"{name}{args} broke {laws}"
        self.said.add((name, told))

    def create(self, expected: str, id_: str, timeout_at: int = NEVER, /, **tags: str) -> None:
        """promise_create, tags named without their prefix."""
        self(expected, "promise_create", id_, timeout_at, None, None, tagged(tags))

    def take(self, id_: str, timeout_at: int = NEVER) -> None:
        """A task that process P holds at version 1."""
        self("acquired", "task_create", id_, timeout_at, "P", 1000, None, None, tagged({"target": "g"}))

    @property
    def now(self) -> int:
        """The instant."""
        return self.clock.now_ms

    def wait(self, ms: int) -> None:
        """Time passes, nobody looks."""
        self.clock.advance(ms)

    def sweep(self) -> None:
        """Everything that is due happens."""
        while tick(self.conn)["more"]:
            pass


def tagged(tags: dict[str, str]) -> dict[str, str]:
    """Reserved tags by their full names."""
    return {f"resonate:{name}": text for name, text in tags.items()}


def promises(say: Say) -> None:
    """Promises: made, looked at, settled, over."""
    say("WF001", "promise_get", "p")
    for wrong in (("", 9), ("p", -1), ("p", 9, None, None, {"resonate:target": "a b"})):
        say("WF004", "promise_create", *wrong)
    say.create("pending", "p")
    say.create("pending", "p", 5, external="true")
    say("pending", "promise_get", "p")
    say.create("rejected_timedout", "dead", say.now)
    say.create("resolved", "dead timer", say.now, timer="true")
    say.create("rejected_timedout", "dead task", say.now, target="g")
    say("fulfilled", "task_get", "dead task")
    say("WF001", "promise_settle", "q", "resolved")
    say("WF004", "promise_settle", "p", "rejected_timedout")
    for verdict in ("resolved", "rejected", "rejected_canceled"):
        say.create("pending", verdict, say.now + 9, external="true")
        say(verdict, "promise_settle", verdict, verdict, "1", {"a": "b"})
        say(verdict, "promise_settle", verdict, "resolved", "2")
    for name, tags in (
        ("seen", {}),
        ("swept", {"external": "true"}),
        ("late", {}),
        ("found", {"branch": "found"}),
    ):
        say.create("pending", name, say.now + 9, **tags)
    say.create("pending", "rung", say.now + 9, timer="true", branch="rung")
    say.create("pending", "both", say.now + 9, timer="true", target="g", branch="both")
    say.wait(9)
    say("rejected_timedout", "promise_get", "seen")
    say("rejected_timedout", "promise_settle", "late", "resolved", "1")
    say("rejected_timedout", "promise_search", "rejected_timedout", None, 10, None, "found")
    say("", "promise_preload", "rung")
    say.sweep()
    for name, state in (("swept", "rejected_timedout"), ("rung", "resolved"), ("both", "resolved")):
        say(state, "promise_get", name)
    say("WF004", "promise_search", "lost")


def waiting(say: Say) -> None:
    """Callbacks and listeners: registered, consumed, refused."""
    for name in ("a", "b"):
        say.create("pending", name, say.now + 50, external="true")
        say("pending", "promise_register_listener", name, "poll://any@g")
        say("pending", "promise_register_listener", name, "poll://any@g")
    say.create("pending", "inside")
    say("WF004", "promise_register_listener", "a", "nowhere://x")
    say("WF001", "promise_register_listener", "nobody", "poll://any@g")
    say.take("w")
    for name in ("dying", "waits too long"):
        say.take(name, say.now + 5)
    say("True", "task_suspend", "waits too long", 1, ["a"])
    say("WF004", "promise_register_callback", "w", "w")
    say("WF001", "promise_register_callback", "nobody", "w")
    say("WF010", "promise_register_callback", "a", "nobody")
    say("WF010", "promise_register_callback", "a", "b")
    for awaited in ("a", "b", "inside", "w"):
        for _ in range(2):
            say("pending", "promise_register_callback", awaited, "dying" if awaited == "w" else "w")
    say("compatible", "set_setting", "conformance", "strict")
    say.create("pending", "hidden")
    say("WF005", "promise_register_callback", "hidden", "w")
    say("WF005", "promise_register_listener", "hidden", "poll://any@g")
    say("WF005", "promise_subscribe_v0", "hidden", {"type": "poll", "data": {"group": "g"}})
    say("WF005", "promise_callback_v0", "c", "hidden", "w", NEVER, {"type": "poll", "data": {"group": "g"}})
    say("WF005", "task_suspend", "w", 1, ["hidden"])
    say("strict", "set_setting", "conformance", "compatible")
    say.wait(5)
    say("pending", "promise_register_callback", "a", "dying")
    say("True", "task_suspend", "w", 1, ["inside"])
    say("resolved", "promise_settle", "inside", "resolved")
    say("resolved", "promise_settle", "a", "resolved")
    say("resolved", "promise_register_listener", "a", "poll://any@h")
    say("resolved", "promise_register_callback", "a", "w")
    say.wait(45)
    say.sweep()
    say("WF004", "unblock_claim", "g", 0)
    say("WF004", "unblock_claim_many", ["poll://any@g"], 0)
    say("WF004", "unblock_claim_each", ["poll://any@g"], [])
    say("a b", "unblock_claim", "poll://any@g", 9, 5)
    say("", "unblock_claim", "poll://any@g")
    say.wait(9)
    say("a b", "unblock_claim")
    for expected in ("True", "False"):
        say(expected, "unblock_acknowledge", "a", "poll://any@g")


def tasks(say: Say) -> None:
    """Tasks: taken, held, given back, lost."""
    say("WF001", "task_get", "t")
    for wrong in (("", 9), ("P", 0)):
        say("WF004", "task_create", "t", NEVER, *wrong, None, None, {"resonate:target": "g"})
    say("WF004", "task_create", "t", NEVER, "P", 9)
    say("fulfilled", "task_create", "too late", say.now, "P", 9, None, None, {"resonate:target": "g"})
    say("WF010", "task_create", "p", NEVER, "P", 9, None, None, {"resonate:target": "g"})
    say.take("t")
    say("WF003", "task_create", "t", NEVER, "P", 9, None, None, {"resonate:target": "g"})
    say.create("pending", "u", say.now + 100, target="line")
    say.create("pending", "delayed", NEVER, target="line", delay=str(say.now + 20))
    say("acquired", "task_create", "u", NEVER, "P", 9, None, None, {"resonate:target": "line"})
    say("WF001", "task_acquire", "nobody", 0, "P", 9)
    say("WF004", "task_acquire", "t", 1, "P", 0)
    say("WF003", "task_acquire", "t", 1, "P", 9)
    say("WF001", "task_release", "nobody", 1)
    say("WF002", "task_release", "u", 7)
    say("", "task_release", "u", 1)
    say("WF003", "task_acquire", "u", 0, "P", 9)
    say("acquired", "task_acquire", "u", 1, "P", 9)
    say("WF004", "task_heartbeat", "P", ["u"], [])
    say("1", "task_heartbeat", "P", ["u", "t"], [2, 9])
    say("0", "task_heartbeat", "Q", ["u"], [2])
    say("acquired", "task_search", "acquired", 9, "t")
    say("WF004", "task_search", "lost")
    say.wait(9)
    say.sweep()
    say("pending", "task_get", "u")
    say("WF004", "task_offer_many", ["poll://uni@line/P"], [1, 2])
    say("u", "task_offer", "line", 1)
    say("", "task_offer", "line", 1)
    say.create("pending", "unheeded", say.now + 91, target="line")
    say.wait(91)
    say("delayed", "task_offer", "line")
    say("fulfilled", "task_get", "u")
    say("WF003", "task_acquire", "u", 2, "P", 9)
    say.wait(5000)
    say("delayed", "task_offer", "line")
    say("acquired", "task_acquire", "delayed", 0, "P", 9)


def holders(say: Say) -> None:
    """What the holder of a lease may do: suspend, fence, fulfil."""
    say.take("h")
    say.take("i", say.now + 30)
    for name in ("open", "soon", "other"):
        say.create("pending", name, say.now + (20 if name == "soon" else 5000), external="true")
    for wrong in ([], ["h"], ["open", "open"]):
        say("WF004", "task_suspend", "h", 1, wrong)
    say("WF001", "task_suspend", "nobody", 1, ["open"])
    say("WF002", "task_suspend", "h", 2, ["open"])
    say("WF005", "task_suspend", "h", 1, ["nobody"])
    say("WF004", "task_fence_settle", "h", 1, "h", "resolved")
    say("WF001", "task_fence_settle", "nobody", 1, "open", "resolved")
    say("WF002", "task_fence_settle", "h", 2, "open", "resolved")
    say("WF001", "task_fence_settle", "h", 1, "nobody", "resolved")
    say("pending", "promise_register_callback", "other", "h")
    say("rejected", "task_fence_settle", "h", 1, "other", "rejected", "1", {"a": "b"})
    say("False", "task_suspend", "h", 1, ["open", "other"])
    say("WF004", "task_fence_create", "h", 1, "h", NEVER)
    say("WF001", "task_fence_create", "nobody", 1, "made", NEVER)
    say("WF002", "task_fence_create", "h", 2, "made", NEVER)
    say("pending", "task_fence_create", "h", 1, "made", NEVER, None, None, {"resonate:target": "g"})
    say("pending", "task_fence_create", "h", 1, "made", 5)
    say("True", "task_suspend", "h", 1, ["open", "soon"])
    say.take("parked")
    say.create("pending", "aside", external="true")
    say("pending", "promise_register_callback", "aside", "parked")
    say("resolved", "promise_settle", "aside", "resolved")
    say("True", "task_suspend", "parked", 1, ["open"])
    say("rejected_canceled", "promise_settle", "parked", "rejected_canceled")
    say("WF002", "task_fulfill", "h", 1, "resolved")
    say.wait(20)
    say.sweep()
    say("acquired", "task_acquire", "h", 1, "P", 9)
    say("True", "task_suspend", "h", 2, ["open"])
    say("resolved", "promise_settle", "open", "resolved")
    say("acquired", "task_acquire", "h", 2, "P", 9)
    say("WF004", "task_fulfill", "h", 3, "pending")
    say("WF001", "task_fulfill", "nobody", 1, "resolved")
    say("resolved", "task_fulfill", "h", 3, "resolved", "1")
    say("WF002", "task_fulfill", "h", 3, "resolved", "1")
    say.wait(10)
    say("WF002", "task_fulfill", "i", 1, "resolved")
    say("rejected_timedout", "promise_get", "i")


def halting(say: Say) -> None:
    """Tasks are set aside from every state, and go on."""
    say("WF001", "task_halt", "nobody")
    say("WF001", "task_continue", "nobody")
    say("WF003", "task_halt", "h")
    say.create("pending", "ahead", NEVER, external="true")
    for state in ("pending", "acquired", "suspended"):
        say.create("pending", state, say.now + 50, target="g")
        if state != "pending":
            say("acquired", "task_acquire", state, 0, "P", 10)
        if state == "suspended":
            say("True", "task_suspend", state, 1, ["ahead"])
        say("WF003", "task_continue", state)
        say("", "task_halt", state)
        say("", "task_halt", state)
    say("pending", "promise_register_callback", "ahead", "pending")
    say("rejected", "promise_settle", "ahead", "rejected")
    say("WF003", "task_create", "suspended", NEVER, "P", 9, None, None, {"resonate:target": "g"})
    say("", "task_continue", "suspended")
    say("acquired", "task_acquire", "suspended", 1, "P", 9)
    say("resolved", "promise_settle", "pending", "resolved")
    say.wait(50)
    say("WF003", "task_continue", "acquired")
    say("WF003", "task_halt", "acquired")
    say.sweep()


def schedules(say: Say) -> None:
    """Schedules fire, catch up, come too late, and go."""
    say("WF001", "schedule_get", "s")
    say("WF001", "schedule_delete", "s")
    say("WF004", "schedule_create", "s", "soon", "x", 5)
    minutely = ("s", "* * * * *", "{{.id}}.{{.timestamp}}", 90_000, "1", {"a": "b"}, {"resonate:target": "g"})
    say("s", "schedule_create", *minutely)
    say("s", "schedule_create", "s", "@daily", "once", 5)
    say("once", "schedule_create", "once", "@hourly", "once", NEVER)
    say("s", "schedule_get", "s")
    say("WF004", "schedule_search", None, 0)
    say("once s", "schedule_search")
    for minutes in (1, 5, 120):
        say.wait(minutes * 60_000)
        say.sweep()
    for name in ("s", "once"):
        say(name, "schedule_delete", name)


def older(say: Say) -> None:
    """The older API: keys, receivers, callbacks with a timeout."""
    poll = {"type": "poll", "data": {"group": "g", "id": "w"}}
    for status in ("201", "200"):
        say(status, "promise_create_v0", "v", "k", None, None, NEVER)
    say("409", "promise_create_v0", "v", None, None, None, NEVER)
    say("WF004", "promise_create_v0", "", None, None, None, NEVER)
    say("201", "promise_create_v0", "root", None, None, None, NEVER, False, {"resonate:invoke": "g"})
    say("acquired", "task_acquire", "root", 0, "P", 9)
    say("404", "promise_callback_v0", "c", "nobody", "root", NEVER, poll)
    say("WF004", "promise_callback_v0", "c", "v", "v", NEVER, poll)
    say("WF010", "promise_callback_v0", "c", "v", "p", NEVER, poll)
    for status in ("201", "200"):
        say(status, "promise_callback_v0", "c", "v", "root", NEVER, poll)
        say(status, "promise_subscribe_v0", "v", poll)
    say("404", "promise_subscribe_v0", "nobody", poll)
    say("WF004", "promise_subscribe_v0", "v", {})
    say("201", "promise_callback_v0", "dropped", "v", "made", say.now + 1, poll)
    say("True", "task_suspend", "root", 1, ["v"])
    say.wait(1)
    for name, verdict in (("resolve", "v"), ("reject", "v2"), ("cancel", "v3")):
        say("WF004", f"promise_{name}_v0", "")
        say("404", f"promise_{name}_v0", "nobody")
        say("201" if verdict != "v" else "409", "promise_create_v0", verdict, None, None, None, NEVER)
        for status in ("201", "200"):
            say(status, f"promise_{name}_v0", verdict, "k")
        say("403", f"promise_{name}_v0", verdict, "other")
    say("200", "promise_read_v0", "v")
    say("None", "promise_search_v0", "v*", "RESOLVED")
    say("WF004", "promise_search_v0", "")
    say("WF004", "messages_v0", "a b")
    say("WF004", "task_claim_v0", "root", 0, "", 9)
    say("WF004", "task_heartbeat_v0", "")
    say("WF004", "promise_task_v0", "", None, None, None, NEVER, False, {}, "P", 9)
    # when it succeeds it makes two transitions in one transaction, and the laws are about one
    for status, id_, root in (("WF004", "", "root"), ("WF010", "paired", "p")):
        made = (id_, None, None, None, NEVER, False, {})
        say(status, "promise_with_callback_v0", *made, "c", root, NEVER, poll)
    say("WF004", "schedule_create_v0", "z", "soon", "x", 5)
    say("acquired", "task_acquire", "root", 1, "P", 9)


def weighty(say: Say) -> None:
    """Payloads over the limit."""
    say("67108864", "set_setting", "payload_max_bytes", "2000")
    large = "x" * 3000
    say("WF008", "promise_create", "large", NEVER, large)
    say("WF008", "promise_create_v0", "large", None, large, None, NEVER)
    say("WF008", "schedule_create", "large", "@daily", "x", 5, large)
    say("WF008", "task_create", "large", NEVER, "P", 9, large, None, {"resonate:target": "g"})
    say("WF008", "promise_settle", "p", "resolved", large)
    target = {"resonate:invoke": "g"}
    say("WF008", "promise_task_v0", "big", None, large, None, NEVER, False, target, "P", 9)
    waits = ("c", "root", NEVER, {"type": "poll", "data": {"group": "g"}})
    say("WF008", "promise_with_callback_v0", "big", None, large, None, NEVER, False, {}, *waits)
    say("WF008", "schedule_create_v0", "z", "* * * * *", "z.{{.timestamp}}", 5, large)
    for name in ("resolve", "reject", "cancel"):
        say("WF008", f"promise_{name}_v0", "p", None, large)
    say("WF008", "task_fulfill", "t", 1, "resolved", large)
    say("WF008", "task_fence_create", "t", 1, "large", NEVER, large)
    say("WF008", "task_fence_settle", "t", 1, "p", "resolved", large)


def runs(say: Say) -> None:
    """Runs: children, waits of every kind, retries, losses, ends."""
    conn = say.conn
    held = begin_run(conn, "r")
    commands = [
        promise(2),
        promise(3),
        timer(4, 9),
        run(5, queue="kids"),
        run(6, queue="kids", detached=True),
    ]
    seen = take_turn(conn, "W", report(held, outcomes=[done(0), begun(1)], commands=commands)).next_of(held)
    take_turn(conn, "W", report(held, outcomes=[broken(1, retry_in=50)], end=release(50), seen=seen))
    say("pending", "task_get", "r")
    say("resolved", "_settle_promise", "r.2", "resolved", None, None)
    held = claim(conn, "W", "q-r")
    seen = take_turn(conn, "W", report(held, outcomes=[done(1, attempt=2)])).next_of(held)
    take_turn(conn, "W", report(held, end=suspend(3, 4, 5, kind="all"), seen=seen))
    say.wait(9)
    say.sweep()
    say("suspended", "task_get", "r")
    say("resolved", "_settle_promise", "r.3", "resolved", None, None)
    first, second = take_turn(conn, "W", want=2, queues=["kids"]).tasks
    turn = take_turn(conn, "W", report(first, end=complete()), report(second, end=fail()), want=0)
    held = next(task for task in turn.tasks if task.id == "r")
    take_turn(conn, "W", report(held, end=halt()))
    say("", "task_continue", "r")
    held = claim(conn, "W", "q-r")
    seen = take_turn(conn, "W", report(held, commands=[promise(7), run(8, queue="late", timeout=5)])).next_of(
        held
    )
    say.create("pending", "stranger", external="true")
    say("pending", "promise_register_callback", "stranger", "r")
    take_turn(conn, "W", report(held, end=suspend(7, 8, kind="any"), seen=seen))
    say("resolved", "promise_settle", "stranger", "resolved")
    held = claim(conn, "W", "q-r")
    take_turn(conn, "W", report(held, end=suspend(7, 8, kind="any")))
    say.wait(5)
    say.sweep()
    held = claim(conn, "W", "q-r")
    take_turn(conn, "W", report(held, end=complete()))
    lost = begin_run(conn, "lost")
    while ask(conn, ("select state from durable.task_get('lost')", ()))[0] != "halted":
        say.wait(TTL_MS)
        say.sweep()
        take_turn(conn, "W", want=1, queues=["q-lost"])
    say("lost", "start", "w", Jsonb([]), "lost")
    say("rejected_canceled", "_settle_promise", "lost", "rejected_canceled", None, None)
    given_back(say, lost)


def given_back(say: Say, stale: Held) -> None:
    """Leases of workers: renewed, given back, taken by nobody."""
    conn = say.conn
    held = begin_run(conn, "kept")
    assert take_turn(conn, "W", report(stale, end=complete())).of(stale)[0] == "lost"
    say.wait(TTL_MS - 1)
    take_turn(conn, "W", report(held))
    for worker in ("W", "X"):
        ask(conn, heartbeat(worker, held))
    begin_run(conn, "overdue", timeout="10 ms")
    say.wait(10)
    say("1", "worker_bye_v1", "W")
    say("fulfilled", "task_get", "overdue")
    take_turn(conn, "X", report(claim(conn, "X", "q-kept"), end=complete()), want=0)


def steered(say: Say) -> None:
    """Runs that get signals, take in promises of others, are paused, go on as new, and are asked to end."""
    conn = say.conn
    say.create("pending", "shared", external="true")
    held = begin_run(conn, "s")
    commands = [receive(0), adopt(1, "shared"), receive(2, "later")]
    seen = take_turn(conn, "W", report(held, commands=commands)).next_of(held)
    take_turn(conn, "W", report(held, end=suspend(0, 1, kind="all"), seen=seen))
    say("resolved", "promise_settle", "shared", "resolved", "1")
    say("suspended", "task_get", "s")
    for number in "12":
        say(number, "signal", "s", "go", Jsonb(1))
    held = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(held, end=release(60_000)))
    say("1", "signal", "s", "later")
    held = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(held, commands=[receive(3)], end=release(60_000)))
    held = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(held, commands=[receive(4)], end=suspend(4, kind="signal")))
    say("", "pause", "s")
    say("3", "signal", "s", "go")
    say("", "resume", "s")
    held = claim(conn, "W", "q-s")
    seen = take_turn(conn, "W", report(held, commands=[promise(5), run(6, queue="kids")])).next_of(held)
    take_turn(conn, "W", report(held, end=continue_as_new(on=7), seen=seen))
    for name in ("s.6", "s"):
        say("pending", "task_get", name)
    held = claim(conn, "W", "q-s")
    take_turn(conn, "W", report(held, commands=[receive(7)], end=suspend(7)))
    say("cancelling", "cancel", "s", Jsonb("why"))
    say("cancelling", "cancel", "s")
    claim(conn, "W", "q-s")
    say.wait(30_000)
    say.sweep()
    say("rejected_canceled", "promise_get", "s")
    asked, forced = (begin_run(conn, name) for name in ("asked", "forced"))
    take_turn(conn, "W", report(forced, outcomes=[begun(1)], commands=[adopt(0, asked.id)]))
    say("WF003", "promise_settle", "forced.1", "resolved")
    say("WF003", "task_fence_settle", "asked", 1, "forced.1", "resolved")
    say("WF012", "task_suspend", "asked", 1, ["forced"])
    say("cancelling", "cancel", "asked")
    say.create("pending", "open ended", external="true")
    say("WF003", "task_suspend", "asked", 1, ["open ended"])
    say("cancelled", "cancel", "forced", None, None, True)
    say.wait(30_000)
    say.sweep()


SCENES = (waiting, promises, tasks, holders, halting, schedules, older, runs, weighty, steered)
