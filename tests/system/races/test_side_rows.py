"""Law: a row of a side table that somebody has locked by hand stops only the run or promise that needs it. No
turn, claim, tick, heartbeat, hello or farewell waits for it: what needs it is left out and named, everybody
else goes on, and after the commit it goes on too.

Each scene is a pair of the same kind, `h` and `f`: the user locks rows of `h`, and the engine needs those of
both. The tables are read from the sources: one that is written below an entry point needs a scene.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.style.test_waits import below, bodies
from tests.support.clock import Clock
from tests.support.rows import arm, events, shop, until
from tests.support.verbs import (
    TTL_MS,
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    cancel,
    complete,
    continue_as_new,
    create,
    done,
    heartbeat,
    join_set,
    pick,
    progress,
    promise,
    promise_of,
    receive,
    report,
    send,
    server_pid,
    settle,
    submit,
    suspend,
    take_turn,
    task_of,
    tick,
    timer,
)
from tests.system.races.plays import (
    HOLDS_OF_CALLS,
    PAIR,
    Play,
    backlogs_are_received,
    buffered_instants_start,
    calls_of_removed_runs,
    codes_come_back,
    keys_of_signals_are_forgotten,
    left_children_end,
    objects_are_unused,
    reporting,
    runs_set_progress,
    schedules_fire,
    single_runs_end_with_progress,
    ticking,
)
from tests.system.races.test_purging import PATIENT

OF_RUN = "execution in (select execution from durable._executions where id = 'h')"
HOLDS = {
    "_callbacks": "awaited_id like 'h%' or awaiter_id = 'h'",
    "_listeners": "awaited_id like 'h%'",
    "_resumes": "task_id = 'h'",
    "_row_waits": "promise_id like 'h%'",
    "_row_events": "promise_id like 'h%'",
    "_inboxes": OF_RUN,
    "_backlog": "id = 'h'",
    "_join_sets": OF_RUN,
    "_members": OF_RUN,
    "_progress": "id = 'h'",
    "_schedules": "id = 'h'",
    "_schedule_instants": "schedule = 'h'",
    "_code_waits": "id = 'h'",
    "_cancellations": "id = 'h.0'",
    "_removed": "id = 'h'",
    "_removed_signals": "id = 'h'",
    "_retention": "true",
    "_workers": "id = 'W'",
    "_workflows": "name = 'w'",
    "_idle_workers": "worker = 'W'",
    **HOLDS_OF_CALLS,
}


@pytest.fixture
def conn(session: Connection) -> Connection:
    """A session that gives up what it would have to wait for."""
    session.execute("set lock_timeout = '400ms'")
    return session


def waiting(conn: Connection, name: str, *acts: dict[str, Any], **options: Any) -> Held:
    """A run that has suspended over what it did."""
    held = begin_run(conn, name, **options)
    answer = take_turn(conn, "W", report(held, commands=acts))
    on = [act["child"] for act in acts]
    take_turn(conn, "W", report(held, end=suspend(*on), seen=answer.next_of(held)))
    return held


# -- ticks


def settling(conn: Connection, suffix: str = "") -> Play:
    """Ticks that settle promises."""
    return ticking(conn, lambda name: (promise_of(conn, name + suffix) or ("gone",))[0] != "pending")


def timers_fire(conn: Connection, clock: Clock) -> Play:
    """Two runs sleep, and somebody else listens to each."""
    for name in PAIR:
        waiting(conn, name, timer(0, 10))
        conn.execute("select durable.promise_register_listener(%s, 'poll://any@g')", (f"{name}.0",))
    clock.advance(10)
    return settling(conn, ".0")


def resumed_runs_expire(conn: Connection, clock: Clock) -> Play:
    """What two running runs have adopted settles, then their deadline passes."""
    for name in PAIR:
        held = begin_run(conn, name, timeout="1 minute")
        ask(conn, create(f"x-{name}", external="true"))
        take_turn(conn, "W", report(held, commands=[adopt(0, f"x-{name}")]))
        ask(conn, settle(f"x-{name}"))
    clock.advance(60_000)
    return settling(conn)


def waits_for_rows_expire(conn: Connection, clock: Clock) -> Play:
    """Two runs wait for rows as long as they may."""
    shop(conn)
    for number, name in enumerate(PAIR):
        waiting(conn, name, until(0, {"id": number}, timeout=60_000))
    arm(conn)
    clock.advance(60_000)
    return settling(conn, ".0")


def rows_come(conn: Connection, clock: Clock) -> Play:
    """The rows come that two runs wait for."""
    shop(conn)
    for number, name in enumerate(PAIR):
        waiting(conn, name, until(0, {"id": number}))
    arm(conn)
    conn.execute("insert into orders values (0, 'paid'), (1, 'paid')")
    return settling(conn, ".0")


def runs_expire_that_wait_for_rows(conn: Connection, clock: Clock) -> Play:
    """Two runs that wait for rows reach their own deadline."""
    shop(conn)
    for number, name in enumerate(PAIR):
        waiting(conn, name, until(0, {"id": number}), timeout="1 minute")
    arm(conn)
    clock.advance(60_000)
    return settling(conn)


def waits_are_tested(conn: Connection, clock: Clock) -> Play:
    """Two waits for rows are to be tested, and the rows are there."""
    shop(conn)
    conn.execute("insert into orders values (0, 'paid'), (1, 'paid')")
    for number, name in enumerate(PAIR):
        waiting(conn, name, until(0, {"id": number}))
    return settling(conn, ".0")


def graces_end(conn: Connection, clock: Clock) -> Play:
    """Two runs that others wait for were asked to end, and do not."""
    for name in PAIR:
        begin_run(conn, name)
        waiting(conn, f"a-{name}", adopt(0, name))
        ask(conn, cancel(name, grace_ms=10))
    clock.advance(10)
    return settling(conn)


def leases_are_lost(conn: Connection, clock: Clock) -> Play:
    """The leases of two runs end."""
    for name in PAIR:
        begin_run(conn, name)
    clock.advance(TTL_MS)
    return ticking(conn, lambda name: (task_of(conn, name) or ("",))[0] == "pending")


def removed_ids_are_forgotten(conn: Connection, clock: Clock) -> Play:
    """The ids of two runs that were removed long ago are to be forgotten."""
    for name in PAIR:
        ask(conn, create(name, external="true"))
        ask(conn, settle(name))
    clock.advance(1000)
    conn.execute("select durable.purge('0')")
    tick(conn)
    clock.advance(400 * 86_400_000)
    there = "select count(*) from durable._removed where id = %s"
    return ticking(conn, lambda name: ask(conn, (there, (name,))) == (0,))


def retention_is_due(conn: Connection, clock: Clock) -> Play:
    """Retention has something to do, and a timer is due: of which one does not need the other's row."""
    tick(conn)
    clock.advance(3_600_000)
    for name in PAIR:
        ask(conn, create(f"{name}-x", clock.now_ms + 10, external="true"))
    clock.advance(10)
    conn.execute("update durable._retention set due_at = 0")
    due = "select due_at > 0 from durable._retention"
    play = settling(conn, "-x")
    return Play(play.act, lambda name: ask(conn, (due, ()))[0] if name == "h" else play.is_done(name))


TICKS: dict[Callable[[Connection, Clock], Play], tuple[str, ...]] = {
    timers_fire: ("_callbacks", "_listeners"),
    resumed_runs_expire: ("_resumes",),
    waits_for_rows_expire: ("_callbacks", "_row_waits"),
    rows_come: ("_callbacks", "_row_waits"),
    runs_expire_that_wait_for_rows: ("_row_waits",),
    waits_are_tested: ("_row_waits",),
    graces_end: ("_callbacks",),
    schedules_fire: ("_schedules",),
    buffered_instants_start: ("_schedule_instants",),
    removed_ids_are_forgotten: ("_removed",),
    keys_of_signals_are_forgotten: ("_removed_signals",),
    retention_is_due: ("_retention",),
    calls_of_removed_runs: (
        *("_refs", "_pins", "_pin_log", "_call_steps", "_calls", "_call_attempts", "_call_waiters"),
        *("_call_polls", "_claims"),
    ),
    objects_are_unused: ("_objects", "_object_uses"),
    codes_come_back: ("_code_waits",),
    left_children_end: ("_cancellations",),
}

# -- claims and turns


def ready(conn: Connection, clock: Clock) -> None:
    """Two runs are ready, h first, because what they waited for has settled."""
    for name in PAIR:
        ask(conn, create(f"x-{name}", external="true"))
        waiting(conn, name, adopt(0, f"x-{name}"))
        ask(conn, settle(f"x-{name}"))
        clock.advance(1)
    clock.advance(1000)


def claiming(conn: Connection, want: int, *reports: dict[str, Any]) -> Play:
    """Claims by another worker, of the runs of both queues."""

    def act() -> list[str]:
        answer = take_turn(conn, "V", *reports, want=want, queues=["q-h", "q-f"])
        return list(answer.raw["locked"])

    return Play(act, lambda name: task_of(conn, name) == ("acquired", 2, "V"))


def one_is_claimed(conn: Connection, clock: Clock) -> Play:
    """A claim has room for one."""
    ready(conn, clock)
    return claiming(conn, 1)


def many_are_claimed(conn: Connection, clock: Clock) -> Play:
    """A claim has room for both."""
    ready(conn, clock)
    return claiming(conn, 5)


def a_turn_claims(conn: Connection, clock: Clock) -> Play:
    """A turn reports a step, and claims."""
    ready(conn, clock)
    other = begin_run(conn, "other", "V")
    return claiming(conn, 2, report(other, outcomes=[done(0)]))


def a_turn_claims_what_it_woke(conn: Connection, clock: Clock) -> Play:
    """Runs end that two runs of the same worker wait for, which have resumes from before."""
    enders = []
    for name in PAIR:
        ask(conn, create(f"x-{name}", target="g"))
        held = waiting(conn, name, adopt(0, f"x-{name}"))
        conn.execute("insert into durable._resumes values (%s, 'long-ago')", (name,))
        enders.append(begin_run(conn, f"e-{name}"))
        conn.execute("select durable.promise_register_callback(%s, %s)", (f"e-{name}", name))
        assert held.version == 1
    reports = [report(ender, end=complete()) for ender in enders]

    def act() -> list[str]:
        if promise_of(conn, "e-f") == ("pending", None):
            take_turn(conn, "W", *reports, want=0)
            # who was left out is claimed later
            return ["h"]
        return list(take_turn(conn, "W", want=5, queues=["q-h"]).raw["locked"])

    return Play(act, lambda name: task_of(conn, name) == ("acquired", 2, "W"))


CLAIMS: dict[Callable[[Connection, Clock], Play], tuple[str, ...]] = {
    one_is_claimed: ("_resumes",),
    many_are_claimed: ("_resumes",),
    a_turn_claims: ("_resumes",),
    a_turn_claims_what_it_woke: ("_resumes",),
}


def single_runs_end(conn: Connection, clock: Clock) -> Play:
    """Each of two runs that nobody waits for ends in a turn of its own; they have resumes."""
    held = {name: begin_run(conn, name) for name in PAIR}
    for name in PAIR:
        conn.execute("insert into durable._resumes values (%s, 'x')", (name,))
    ends = {name: report(each, end=complete()) for name, each in held.items()}
    return reporting(conn, ends, one_by_one=True)


def runs_end(conn: Connection, clock: Clock) -> Play:
    """Two runs end in one turn: with a listener, somebody who waits, resumes and waits for rows."""
    shop(conn)
    reports = {}
    for number, name in enumerate(PAIR):
        held = begin_run(conn, name)
        answer = take_turn(conn, "W", report(held, commands=[until(0, {"id": number})]))
        waiting(conn, f"a-{name}", adopt(0, name))
        conn.execute("select durable.promise_register_listener(%s, 'poll://any@g')", (name,))
        conn.execute("insert into durable._resumes values (%s, 'x')", (name,))
        reports[name] = report(held, end=complete(), seen=answer.next_of(held))
    return reporting(conn, reports)


def runs_suspend(conn: Connection, clock: Clock) -> Play:
    """Two runs suspend, which have resumes that their code has seen."""
    reports = {}
    for name in PAIR:
        held = begin_run(conn, name)
        answer = take_turn(conn, "W", report(held, commands=[promise(0)]))
        conn.execute("insert into durable._resumes values (%s, 'x')", (name,))
        reports[name] = report(held, end=suspend(0), seen=answer.next_of(held))
    return reporting(conn, reports)


def runs_receive(conn: Connection, clock: Clock) -> Play:
    """Two runs receive signals that lie there."""
    held = {name: begin_run(conn, name) for name in PAIR}
    for name in PAIR:
        ask(conn, send(name))
    ends = {name: report(each, commands=[receive(0)], seen=each.next + 1) for name, each in held.items()}
    return reporting(conn, ends)


def runs_begin_to_receive(conn: Connection, clock: Clock) -> Play:
    """Two runs wait for the second signal of a name."""
    reports = {}
    for name in PAIR:
        held = begin_run(conn, name)
        ask(conn, send(name))
        answer = take_turn(conn, "W", report(held, commands=[receive(0)], seen=held.next + 1))
        reports[name] = report(held, commands=[receive(1)], seen=answer.next_of(held) + 1)
    return reporting(conn, reports)


def runs_take_results(conn: Connection, clock: Clock) -> Play:
    """Two runs take the first result of a join set."""
    reports = {}
    for name in PAIR:
        held = begin_run(conn, name)
        seen = take_turn(conn, "W", report(held, outcomes=[done(0)])).next_of(held)
        made = take_turn(conn, "W", report(held, commands=[join_set(1), submit(0, 1)], seen=seen))
        reports[name] = report(held, commands=[pick(0, 1)], seen=made.next_of(held))
    return reporting(conn, reports)


def runs_continue_as_new(conn: Connection, clock: Clock) -> Play:
    """Two runs go on in new journals, and leave behind children, waits for rows, receives and resumes."""
    shop(conn)
    reports = {}
    for number, name in enumerate(PAIR):
        held = begin_run(conn, name)
        acts = [promise(0), receive(1), until(2, {"id": number})]
        answer = take_turn(conn, "W", report(held, commands=acts))
        conn.execute("insert into durable._resumes values (%s, 'x')", (name,))
        reports[name] = report(held, end=continue_as_new(on=3), seen=answer.next_of(held))
    return reporting(conn, reports)


TURNS: dict[Callable[[Connection, Clock], Play], tuple[str, ...]] = {
    single_runs_end: ("_resumes",),
    single_runs_end_with_progress: ("_progress",),
    runs_set_progress: ("_progress",),
    runs_end: ("_callbacks", "_listeners", "_resumes", "_row_waits"),
    runs_suspend: ("_resumes",),
    runs_receive: ("_inboxes",),
    runs_begin_to_receive: ("_inboxes",),
    runs_take_results: ("_join_sets", "_members"),
    runs_continue_as_new: ("_callbacks", "_inboxes", "_resumes", "_row_waits"),
    backlogs_are_received: ("_backlog",),
}
SCENES = [
    pytest.param(scene, table, id=f"{scene.__name__}-{table}")
    for scene, tables in {**TICKS, **CLAIMS, **TURNS}.items()
    for table in tables
]
# rows that are reached with SKIP LOCKED and named by nobody: what is done to them can as well be done later
UNNAMED = (
    *("_removed", "_removed_signals", "_backlog", "_retention", "_cancellations"),
    *TICKS[calls_of_removed_runs],
    *TICKS[objects_are_unused],
)


@pytest.mark.sample(12)
@pytest.mark.parametrize(("scene", "table"), SCENES)
def test_locked_side_rows_are_left_out(
    dsn: str, conn: Connection, clock: Clock, scene: Callable[[Connection, Clock], Play], table: str
) -> None:
    """Only that one stands still, it is named, nothing of it is written, and it goes on after the commit."""
    play = scene(conn, clock)
    with psycopg.connect(dsn) as user:
        assert user.execute(f"select from durable.{table} where {HOLDS[table]} for update".encode()).rowcount
        held = play.act()
        assert (play.is_done("h"), play.is_done("f")) == (False, True)
        if table not in UNNAMED and scene is not waits_are_tested:
            assert [one for one in held if one.split(".")[0] == "h"] and not [o for o in held if o[0] == "f"]
            holders = "select distinct pid from durable._holders(%s)"
            assert conn.execute(holders, (held,)).fetchall() == [(server_pid(user),)]
        user.commit()
    clock.advance(6000)
    play.act()
    assert play.is_done("h")


# -- what a worker says of itself


def hello(conn: Connection) -> Any:
    """Worker W comes, or comes back after a loss of its connection."""
    return ask(
        conn, ("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}', '{cd}') ->> 'number'", ())
    )


def go_idle(conn: Connection) -> Any:
    """Worker W has nothing to do."""
    address = f"durable_to_{'0' * 32}:{'0' * 32}"
    words = "select durable.worker_idle_v1('W', %s, '{q}', '{w}', '{ab}', 15000, 60000)"
    return ask(conn, (words, (address,)))


def says(statement: str) -> Callable[[Connection], Any]:
    """A statement of a worker's."""
    return lambda conn: ask(conn, (statement, ()))


SIGNS: dict[str, tuple[Callable[[Connection], Any], tuple[str, ...]]] = {
    "worker_hello_v1": (hello, ("_workers", "_workflows")),
    "worker_idle_v1": (go_idle, ("_workers", "_idle_workers")),
    "worker_present_v1": (says("select durable.worker_present_v1('W', true)"), ("_workers",)),
    "worker_blocked_v1": (says("select durable.worker_blocked_v1('W', '{h}')"), ("_workers",)),
    "worker_bye_v1": (says("select durable.worker_bye_v1('W')"), ("_workers", "_idle_workers")),
    "tick_v1": (says("select durable.tick_v1(100)"), ("_workers", "_idle_workers")),
}


@pytest.mark.parametrize(
    ("sign", "table"), [(sign, table) for sign, (_, of) in SIGNS.items() for table in of]
)
def test_a_worker_waits_for_nobody(dsn: str, conn: Connection, clock: Clock, sign: str, table: str) -> None:
    """Its hello, its farewell, its idle row and the tick that forgets it are answered at once."""
    say = SIGNS[sign][0]
    number = hello(conn)
    with psycopg.connect(dsn) as presence, psycopg.connect(dsn) as user:
        presence.execute("select pg_advisory_lock(1685417570, %s)", (int(number[0]),))
        assert ask(conn, ("select durable.worker_present_v1('W', true)", ())) == (True,)
        assert go_idle(conn) == (True,)
        clock.advance(4_000_000 if sign == "tick_v1" else 1)
        assert user.execute(f"select from durable.{table} where {HOLDS[table]} for update".encode()).rowcount
        say(conn)
        user.commit()
        say(conn)
        assert hello(conn) == number or sign == "worker_bye_v1"
        told = "select digest, seen_at from durable._workflows where name = 'w'"
        assert ask(conn, (told, ())) == (b"\xcd", clock.now_ms)


@pytest.mark.parametrize("table", ["_workers", "_tasks"])
def test_a_heartbeat_waits_for_nobody(dsn: str, conn: Connection, clock: Clock, table: str) -> None:
    """The other lease is renewed, and nothing is told as lost."""
    hello(conn)
    held, free = begin_run(conn, "h"), begin_run(conn, "f")
    clock.advance(TTL_MS - 1)
    row = "_workers where id = 'W'" if table == "_workers" else "_tasks where id = 'h'"
    with psycopg.connect(dsn) as user:
        assert user.execute(f"select from durable.{row} for update".encode()).rowcount == 1
        assert ask(conn, heartbeat("W", held, free)) == ([],)
        user.commit()
    ends = dict(conn.execute("select id, expires_at from durable._tasks").fetchall())
    assert ends["f"] == clock.now_ms + TTL_MS


def test_a_worker_whose_idle_row_is_held(dsn: str, conn: Connection) -> None:
    """Its last run ends, and it is not registered as idle."""
    hello(conn)
    conn.execute("update durable._workers set present = true")
    assert go_idle(conn) == (True,)
    held = begin_run(conn, "h")
    with psycopg.connect(dsn) as user:
        assert user.execute("select from durable._idle_workers for update").rowcount == 1
        answer = take_turn(conn, "W", report(held, end=complete()), idle_ms=1000)
    assert (answer.of(held), answer.raw["idle"]) == (("ok", "done"), False)


def test_a_hint_that_is_held(dsn: str, conn: Connection) -> None:
    """Progress is written while somebody has locked the record of the last hint about it."""
    held = begin_run(conn, "h")
    take_turn(conn, "W", report(held, progress=progress(held, 1, 1)))
    with psycopg.connect(dsn) as user:
        assert user.execute("select from durable._hints for update").rowcount
        assert take_turn(conn, "W", report(held, progress=progress(held, 1, 2))).of(held)[0] == "ok"
    assert ask(conn, ("select done from durable.progress", ())) == (2,)


def test_news_that_is_held(dsn: str, conn: Connection, clock: Clock) -> None:
    """What a trigger has left is acted upon once; the row that says so is deleted later."""
    play = rows_come(conn, clock)
    with psycopg.connect(dsn) as user:
        assert user.execute("select from durable._row_events where promise_id = 'h.0' for update").rowcount
        assert play.act() == []
        assert play.is_done("h") and play.is_done("f")
        assert play.act() == []
        assert events(conn) == 1
    play.act()
    assert events(conn) == 0


IN_COPIES: dict[str, Callable[[Connection], Any]] = {
    "worker_turn_v1": lambda conn: take_turn(conn, "W", want=1),
    "worker_hello_v1": hello,
    "worker_idle_v1": go_idle,
    "worker_heartbeat_v1": lambda conn: ask(conn, heartbeat("W")),
    "tick_v1": says("select durable.tick_v1(100)"),
}


@pytest.mark.parametrize("sign", IN_COPIES)
def test_the_site_of_an_idle_copy_is_held(dsn: str, conn: Connection, sign: str) -> None:
    """What comes first into a copy is answered at once; what comes after the commit adopts the copy."""
    say = IN_COPIES[sign]
    conn.execute("update durable._site set system_identifier = 1")
    state = "select state from durable.site"
    with psycopg.connect(dsn) as user:
        assert user.execute("select from durable._site for update").rowcount == 1
        say(conn)
        assert ask(conn, (state, ())) == ("idle copy",)
        user.commit()
    say(conn)
    assert ask(conn, (state, ())) == ("adopted",)


# -- the list of tables

ENTRY_POINTS = {
    "worker_turn_v1": {table for of in (CLAIMS, TURNS) for tables in of.values() for table in tables}
    | {"_idle_workers", "_hints"},
    "tick_v1": {table for tables in TICKS.values() for table in tables}
    | {"_workers", "_idle_workers", "_row_events", "_hints"},
    **{sign: set(tables) for sign, (_, tables) in SIGNS.items() if sign != "tick_v1"},
    "worker_heartbeat_v1": {"_workers"},
    "worker_release_unknown_v1": set(),
}
ENTRY_POINTS |= {sign: ENTRY_POINTS[sign] | {"_site"} for sign in IN_COPIES}
# test_try_locks.py holds these, and test_old_attempts.py the last two
MAIN = {"_promises", "_tasks", "_executions", "_journal", "_journal_values"}
# of all entry points only a turn appends rows about signals and join sets
OF_TURNS = {"_update_inboxes": "", "_update_join_sets": ""}
WRITES = re.compile(
    r"\b(?:update|delete from) durable\.(_\w+)"
    r"|insert into durable\.(_\w+)(?:(?!insert into|;).)*?on conflict[^;]*?do update",
    re.S,
)


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_every_table_is_held_in_some_scene(entry: str) -> None:
    """A row that is changed below an entry point of workers can be locked by somebody."""
    of = {**bodies(), **dict.fromkeys(PATIENT, "")}
    if entry != "worker_turn_v1":
        of |= OF_TURNS
    written = {one or two for name in below(entry, of) for one, two in WRITES.findall(of[name])}
    assert written - MAIN - ENTRY_POINTS[entry] == set()
