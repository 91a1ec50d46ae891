"""Law: a clock that goes back, and forth, halts nothing and breaks no law: what is written is clamped to what
was written before it, and what waits for an instant happens late rather than never.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest

from tests.features.journal import client_events as client
from tests.features.journal.keeper import append, begin
from tests.support.clock import Clock
from tests.support.hands import laws_of
from tests.support.stories import KIDS, Command, Story, Wanderer, begin_story, receive
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    acquire,
    ask,
    begin_run,
    begun,
    broken,
    cancel,
    captured,
    complete,
    continue_as_new,
    create,
    done,
    fail,
    heartbeat,
    park,
    promise,
    release,
    run,
    settle,
    start,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    timer,
)

MINUTE = 60_000
DAY = 86_400_000


class World:
    """Everything but runs of ours: promises, protocol tasks, the older API, schedules, forks, retention."""

    def __init__(self, conn: Connection, clock: Clock, rng: random.Random) -> None:
        self.conn, self.clock, self.rng = conn, clock, rng
        self.names: list[str] = []
        self.runs: list[str] = []

    def fresh(self, kind: str) -> str:
        """A new id."""
        self.names.append(f"{kind}{len(self.names)}")
        return self.names[-1]

    def any_of(self, kind: str) -> str:
        """An id that was made, or none."""
        return self.rng.choice([name for name in self.names if name.startswith(kind)] or ["none"])

    def try_(self, call: Call) -> None:
        """Say it; a refusal of the engine is an answer."""
        try:
            with self.conn.transaction():
                self.conn.execute(call[0].encode(), call[1])
        except psycopg.Error as refused:
            if not (refused.sqlstate or "").startswith("WF"):
                raise

    def act(self) -> None:
        """One verb, chosen at random."""
        self.rng.choice(self.verbs())()

    def verbs(self) -> list[Callable[[], None]]:
        """All of them."""
        rng, now = self.rng, self.clock.now_ms
        until = now + rng.choice([1, 1000, 5 * MINUTE])
        listen = "select from durable.promise_register_listener(%s, 'g')"
        schedule = "select from durable.schedule_create(%s, '* * * * *', %s, 100000)"
        claimed = "select * from durable.unblock_claim('poll://uni@g')"
        offered = "select * from durable.task_offer('g')"
        older = "select * from durable.promise_create_v0(%s, null, null, null, %s)"
        invoked = "select * from durable.promise_create_v0(%s, null, null, null, %s, false, %s)"
        called = "select * from durable.promise_callback_v0(%s, %s, %s, %s, '\"poll://any@g\"')"
        tasks = [
            lambda: take(self.conn, self.fresh("t")),
            lambda: self.try_(acquire(self.any_of("t"), 1)),
            lambda: self.try_(park(self.any_of("t"), self.any_of("p"))),
            lambda: self.try_(("select from durable.task_release(%s, 1)", (self.any_of("t"),))),
            lambda: self.try_(("select from durable.task_heartbeat('P', '{}', '{}')", ())),
            lambda: self.try_((offered, ())),
        ]
        promises = [
            lambda: self.try_(create(self.fresh("p"), until, external="true")),
            lambda: self.try_(create(self.fresh("p"), until, timer="true")),
            lambda: self.try_(create(self.fresh("p"), external="true")),
            lambda: self.try_((listen, (self.any_of("p"),))),
            lambda: self.try_((claimed, ())),
            lambda: self.try_(settle(self.any_of("p"))),
            lambda: self.try_(settle(self.any_of("p"), state="rejected_canceled")),
        ]
        name = self.fresh("v")
        others = [
            lambda: self.try_((older, (self.fresh("p"), until))),
            lambda: self.try_((invoked, (name, until, '{"resonate:invoke": "poll://any@v"}'))),
            lambda: self.try_(
                ("select * from durable.task_claim_v0(%s, 1, 'p', 60000)", (self.any_of("v"),))
            ),
            lambda: self.try_((called, (self.fresh("c"), self.any_of("p"), self.any_of("v"), until))),
            lambda: self.try_(("select * from durable.task_complete_v0(%s, 1)", (self.any_of("v"),))),
            lambda: self.try_((schedule, (self.fresh("s"), f"{self.fresh('f')}.{{{{.timestamp}}}}"))),
            lambda: self.try_(("select durable.fork(%s)", (rng.choice(self.runs),))),
            lambda: self.try_(start(self.fresh("r"), delay="30 s")),
            lambda: self.try_(cancel(self.any_of("r"), grace_ms=5000)),
            lambda: self.try_(("select durable.purge(older_than => '0')", ())),
            lambda: self.try_(("select durable.tick()", ())),
        ]
        return [*tasks, *promises, *others]


SECOND = 1000
PRESENT = """insert into durable._workers (id, present, seen_at, started_at, queues, workflows, versions)
select 'W', true, durable._now_ms(), durable._now_ms(), '{}', '{}', '{}'"""
HOUR = 3_600_000
SETTLING: dict[str, Call] = {
    "resolve": settle("p"),
    "reject": settle("p", state="rejected"),
    "cancel": settle("p", state="rejected_canceled"),
    "older API": ("select durable.promise_resolve_v0('p')", ()),
    "protocol": (
        """select durable.rpc('{"kind": "promise.settle", "head": {"corrId": "c", "version": "2026-04-01"},
           "data": {"id": "p", "state": "resolved", "value": {}}}')""",
        (),
    ),
}


@pytest.mark.parametrize("how", SETTLING)
def test_a_promise_settles_not_before_its_birth(conn: Connection, clock: Clock, how: str) -> None:
    """Whoever settles it while the clock is behind: at its birth, and its listener is told no sooner."""
    born = clock.now_ms
    ask(conn, create("p", external="true"))
    ask(conn, ("select from durable.promise_register_listener('p', 'poll://uni@g/1')", ()))
    clock.advance(-SECOND)
    ask(conn, SETTLING[how])
    assert ask(conn, ("select settled_at from durable._promises where id = 'p'", ())) == (born,)
    assert ask(conn, ("select created_at from durable._unblocks where promise_id = 'p'", ())) == (born,)
    assert laws_of(conn) == set()


@pytest.mark.parametrize("end", [complete(), fail()], ids=["completed", "failed"])
@pytest.mark.parametrize("several", [False, True], ids=["alone", "with a step"])
def test_a_run_ends_not_before_its_birth(conn: Connection, clock: Clock, several: bool, end: Command) -> None:
    """Its promise, its failure and the rows of its journal."""
    story = begin_story(conn, clock, "r")
    born = clock.now_ms
    clock.advance(-SECOND)
    story.report(outcomes=[done(0)] if several else [], end=end)
    failed_at = "coalesce(extract(epoch from failed_at) * 1000, settled_at)"
    query = f"select settled_at, {failed_at} from durable._promises where id = 'r'"
    assert ask(conn, (query, ())) == (born, born)
    assert ask(conn, ("select min(ts), max(ts) from durable._journal", ())) == (born, born)


@pytest.mark.parametrize("force", [False, True])
def test_a_run_is_cancelled_not_before_its_birth(conn: Connection, clock: Clock, force: bool) -> None:
    """A request, a forced end, and the end of the grace, by a clock that is behind."""
    begin_story(conn, clock, "r")
    clock.advance(-MINUTE)
    ask(conn, cancel("r", grace_ms=SECOND, force=force))
    assert laws_of(conn) == set()
    clock.advance(SECOND)
    tick(conn)
    assert ask(conn, ("select state from durable._promises where id = 'r'", ())) == ("rejected_canceled",)


BACK: dict[str, Callable[[Story], object]] = {
    "one result": lambda story: story.report(outcomes=[done(1)]),
    "a failure": lambda story: story.report(outcomes=[broken(1, retry_in=5)]),
    "results and commands": lambda story: story.report(outcomes=[done(1), begun(2)], commands=[captured(3)]),
    "children": lambda story: story.report(commands=[promise(1), timer(2, 5), run(3, queue=KIDS)]),
    "a wait": lambda story: story.report(commands=[promise(1)], end=suspend(1)),
    "a signal": lambda story: story.signal("go", 1),
    "a receipt": lambda story: (story.signal("go", 1), story.report(commands=[receive(1, "go")])),
    "a lost lease": lambda story: story.lose(),
    "a release": lambda story: story.report(end=release()),
    "a generation": lambda story: story.report(end=continue_as_new(on=1)),
}


@pytest.mark.parametrize("what", BACK)
def test_a_row_is_not_older_than_the_row_before_it(conn: Connection, clock: Clock, what: str) -> None:
    """Whatever writes to the journal while the clock is behind."""
    story = begin_story(conn, clock, "r")
    clock.advance(MINUTE)
    story.report(outcomes=[begun(0)])
    at = clock.now_ms
    clock.advance(-MINUTE + SECOND)
    BACK[what](story)
    rows = conn.execute("select ts from durable._journal where seq > 0 order by execution, seq").fetchall()
    assert len(rows) > 0 and min(rows) == (at,)
    assert laws_of(conn) == set()


def test_a_child_settles_not_before_the_end_of_its_owner(conn: Connection, clock: Clock) -> None:
    """An owner that has ended records nothing, and the laws can tell that from a row that is missing."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[promise(0), run(1, queue=KIDS), promise(2)])
    kid = story.kid(1)
    clock.advance(MINUTE)
    story.report(end=complete())
    ended = clock.now_ms
    clock.advance(-SECOND)
    story.settle(0)
    story.kid_reports(kid, fail())
    assert laws_of(conn) == set()
    query = "select settled_at from durable._promises where id in ('r.0', 'r.1')"
    assert conn.execute(query).fetchall() == [(ended,), (ended,)]


@pytest.mark.unlawful
def test_a_row_that_is_missing_is_still_found(conn: Connection, clock: Clock) -> None:
    """A child that settled before its owner ended, and of which the owner has no row."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[promise(0)])
    clock.advance(SECOND)
    story.report(end=complete())
    settled = "state = 'resolved', settled_at = created_at + 1, value_headers = '{}'"
    conn.execute(f"update durable._promises set {settled} where id = 'r.0'".encode())
    conn.execute("delete from durable._callbacks")
    assert laws_of(conn) == {"C-1 settled_iff_resolved_in_owner"}


def test_a_lease_from_a_clock_that_was_ahead_ends(conn: Connection, clock: Clock) -> None:
    """A lease that was given by a clock an hour ahead lasts one more lease once the clock is right again, not
    an hour."""
    clock.advance(HOUR)
    begin_run(conn, "r")
    clock.advance(-HOUR)
    tick(conn)
    clock.advance(TTL_MS - 1)
    tick(conn)
    assert (task_of(conn, "r") or "")[0] == "acquired"
    clock.advance(1)
    tick(conn)
    assert (task_of(conn, "r") or "")[0] == "pending"


def test_a_renewal_puts_a_lease_right(conn: Connection, clock: Clock) -> None:
    """A worker that lives keeps its lease, whichever way the clock goes."""
    held = begin_run(conn, "r")
    conn.execute(PRESENT.replace("true", "false"))
    for step in (HOUR, -HOUR, -MINUTE, MINUTE):
        clock.advance(step)
        assert ask(conn, heartbeat("W", held)) == ([],)
        assert ask(conn, ("select expires_at from durable._tasks", ())) == (clock.now_ms + TTL_MS,)
        tick(conn)
    assert (task_of(conn, "r") or "")[0] == "acquired"


def test_a_worker_that_was_missed_by_a_clock_ahead_is_gone(conn: Connection, clock: Clock) -> None:
    """The grace of a worker whose presence lock is free begins again, and lasts no hour."""
    clock.advance(HOUR)
    begin_run(conn, "r")
    conn.execute(PRESENT)
    for step in (0, -HOUR, SECOND):
        clock.advance(step)
        assert (task_of(conn, "r") or "")[0] == "acquired"
        while tick(conn)["more"]:
            pass
    assert (task_of(conn, "r") or "")[0] == "pending"


def test_a_preference_of_a_clock_ahead_ends(conn: Connection, clock: Clock) -> None:
    """Another worker gets a run that preferred one, once the clock is past the instant at which it woke."""
    story = begin_story(conn, clock, "r")
    story.report(commands=[promise(0)], end=suspend(0))
    conn.execute(PRESENT)
    story.settle(0)
    conn.execute("update durable._tasks set prefer_until = prefer_until + %s", (HOUR,))
    assert len(take_turn(conn, "V", want=1, queues=["q-r"]).tasks) == 1


def test_a_release_by_a_clock_ahead_keeps_nobody_out(conn: Connection, clock: Clock) -> None:
    """A protocol client that released a task gets it again."""
    take(conn, "t")
    for version in (1, 2):
        ask(conn, (f"select from durable.task_release('t', {version})", ()))
        ask(conn, acquire("t", version))
    ask(conn, ("select from durable.task_release('t', 3)", ()))
    offer = "select count(*) from durable.task_offer('g', 10, 'P')"
    assert ask(conn, (offer, ())) == (0,)
    conn.execute("update durable._tasks set released_until = released_until + %s", (HOUR,))
    assert ask(conn, (offer, ())) == (1,)


def test_a_schedule_fires_each_instant_once(conn: Connection, clock: Clock) -> None:
    """Neither twice nor never, though the clock goes back over instants that were fired and on again."""
    ask(conn, ("select from durable.schedule_create('s', '* * * * *', 's.{{.timestamp}}', 1000)", ()))
    first = clock.now_ms
    for step in (3 * MINUTE, -2 * MINUTE, MINUTE, -SECOND, MINUTE, 2 * MINUTE, -5 * MINUTE, 6 * MINUTE):
        clock.advance(step)
        tick(conn)
        assert laws_of(conn) == set()
    fired = [int(i.split(".")[1]) for (i,) in conn.execute("select id from durable._promises order by id")]
    assert fired == list(range(first + MINUTE, clock.now_ms + 1, MINUTE))


def test_a_schedule_that_is_made_and_paused_by_a_clock_behind(conn: Connection, clock: Clock) -> None:
    """Its instants go on from the latest that it knows."""
    ask(conn, ("select from durable.schedule_create('s', '* * * * *', 's.{{.timestamp}}', 1000)", ()))
    clock.advance(2 * MINUTE)
    tick(conn)
    clock.advance(-2 * MINUTE)
    for verb in ("pause_schedule", "resume_schedule"):
        ask(conn, (f"select from durable.{verb}('s')", ()))
    assert laws_of(conn) == set()
    clock.advance(3 * MINUTE)
    tick(conn)
    assert laws_of(conn) == set()


def test_a_week_begins_again(conn: Connection, clock: Clock) -> None:
    """The clock goes back over the boundary of a week, where a partition of the journal begins."""
    week = 604_800_000
    clock.set(clock.now_ms // week * week + week)
    tick(conn)
    story = begin_story(conn, clock, "r")
    clock.advance(-SECOND)
    ask(conn, start("s"))
    story.report(outcomes=[done(0)], commands=[promise(1)], end=suspend(1))
    story.settle(1)
    ask(conn, ("select durable.fork('r', new_id => 'f')", ()))
    story.again()
    story.report(end=continue_as_new(on=2))
    assert laws_of(conn) == set()
    clock.advance(2 * SECOND)
    assert len(take_turn(conn, "W", want=5, queues=["q-r"]).tasks) >= 1
    assert laws_of(conn) == set()


def test_retention_is_put_off_by_no_jump(conn: Connection, clock: Clock) -> None:
    """The sweep that a clock a year ahead has put off begins when the clock is right."""
    ask(conn, ("select durable.set_setting('retention_days', '1')", ()))
    begin_run(conn, "r")
    tick(conn)
    conn.execute("update durable._retention set due_at = due_at + 365 * 86400000::bigint")
    clock.advance(HOUR)
    assert conn.execute("select due_at from durable._retention").fetchall() != []
    while tick(conn)["more"]:
        pass
    (due_at,) = ask(conn, ("select max(due_at) from durable._retention where subject = 'runs'", ()))
    assert due_at <= clock.now_ms + HOUR


def test_a_journal_of_a_client(conn: Connection, clock: Clock) -> None:
    """Events of a client, in order, by a clock that goes back before each of them."""
    begin(conn, "j")
    events = (
        client.timer(0),
        client.value(1),
        client.step(2),
        client.sent(),
        client.CANCEL,
        client.CANCELLED,
    )
    for event in events:
        clock.advance(-SECOND)
        append(conn, "j", *event)
        assert laws_of(conn) == set()


def hold(story: Wanderer) -> None:
    """Let the worker know whether it still has its lease."""
    task = task_of(story.conn, story.id)
    if task is None or task[0] != "acquired":
        story.held = None


def test_any_life_under_a_clock_that_moves(conn: Connection, clock: Clock, seed: int) -> None:
    """Random verbs of all kinds, the clock moved by up to a minute between them, both ways: no law is broken
    at any time, and when time has passed all that has a deadline is settled."""
    rng = random.Random(seed)
    stories = [Wanderer(conn, clock, f"w{n}", rng) for n in range(3)]
    world = World(conn, clock, rng)
    world.runs = [story.id for story in stories]
    lives = [story.wander(40) for story in stories]
    while lives:
        clock.advance(rng.randint(-MINUTE, MINUTE))
        for story in stories:
            hold(story)
        life = rng.choice(lives)
        if next(life, "over") == "over":
            lives.remove(life)
        world.act()
        assert laws_of(conn) == set(), seed
    conn.execute("select durable.schedule_delete(s.id) from durable._schedules s")
    clock.advance(12 * DAY)
    while tick(conn)["more"]:
        pass
    assert laws_of(conn) == set(), seed
    held = "select id from durable._tasks where state = 'acquired' and expires_at <= durable._now_ms()"
    assert conn.execute(held).fetchall() == []
    late = "select id from durable._promises where due_at <= durable._now_ms()"
    assert conn.execute(late).fetchall() == []
