"""Plays of test_side_rows.py about calls, objects, progress and codes: the engine is about to act on two of
a kind, `h` and `f`, while a user holds rows of `h`.

Nothing here asserts, but that a play begins as it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Turn,
    ask,
    begin_run,
    claim,
    complete,
    continue_as_new,
    done,
    halt,
    progress,
    receive,
    report,
    run,
    send,
    start,
    take_turn,
    task_of,
    tick,
)

PAIR = ("h", "f")
OF_CALL = (
    "select a.{} from durable._call_attempts a join durable._calls c using (value_key) where c.scope = 'h'"
)
HOLDS_OF_CALLS = {
    "_refs": "name = 'h'",
    "_pins": "scope = 'h'",
    "_pin_log": "scope = 'h'",
    "_call_steps": "run_id = 'h'",
    "_calls": f"value_key in ({OF_CALL.format('value_key')})",
    "_call_attempts": f"execution_key in ({OF_CALL.format('execution_key')})",
    "_call_waiters": f"execution_key in ({OF_CALL.format('execution_key')})",
    "_call_polls": f"execution_key in ({OF_CALL.format('execution_key')})",
    "_claims": "execution_key = sha256('h')",
    "_objects": "id = any (durable._literal_ids('h'))",
    "_object_uses": "id = any (durable._literal_ids('h'))",
}


@dataclass(frozen=True, slots=True)
class Play:
    """What is about to happen to two of a kind.

    Args:
        act: lets the engine do it; answers the ids that it names as held.
        is_done: whether it has happened to one of them.
    """

    act: Callable[[], list[str]]
    is_done: Callable[[str], bool]


def reporting(conn: Connection, reports: dict[str, dict[str, Any]], *, one_by_one: bool = False) -> Play:
    """Turns that report what both did; who is busy reports it again."""
    verdicts: dict[str, str] = {}

    def act() -> list[str]:
        left = [each for name, each in reports.items() if verdicts.get(name) != "ok"]
        answers: list[Turn] = [take_turn(conn, "W", each) for each in left] if one_by_one else []
        for answer in answers or [take_turn(conn, "W", *left)]:
            verdicts.update(dict.fromkeys(reports, "busy") if not verdicts else {})
            about = answer.raw["verdicts"]
            for name, each in reports.items():
                if each["execution"] in (about["execution"] or []):
                    verdicts[name] = about["verdict"][about["execution"].index(each["execution"])]
        return [one for answer in answers or [answer] for one in answer.raw["locked"]]

    return Play(act, lambda name: verdicts.get(name) == "ok")


def runs_set_progress(conn: Connection, clock: Clock) -> Play:
    """Two runs that have made progress make more, in one turn."""
    reports = {}
    for name in PAIR:
        held = begin_run(conn, name)
        take_turn(conn, "W", report(held, progress=progress(held, 1, 1)))
        reports[name] = report(held, outcomes=[done(0)], progress=progress(held, 1, 2))
    return reporting(conn, reports)


def single_runs_end_with_progress(conn: Connection, clock: Clock) -> Play:
    """Two runs that have made progress end, each in a turn of its own."""
    reports = {}
    for name in PAIR:
        held = begin_run(conn, name)
        take_turn(conn, "W", report(held, progress=progress(held, 1, 1)))
        reports[name] = report(held, end=complete(), progress=progress(held, 1, 2))
    return reporting(conn, reports, one_by_one=True)


def retaining(conn: Connection, clock: Clock, is_done: Callable[[str], bool]) -> Play:
    """Ticks for an hour and a day of the sweeps of retention; they name nobody."""

    def act() -> list[str]:
        conn.execute("update durable._retention set due_at = 0")
        for _ in range(25):
            clock.advance(100)
            tick(conn)
        return []

    return Play(act, is_done)


def calls_of_removed_runs(conn: Connection, clock: Clock) -> Play:
    """Two runs were removed, each with a scope, a step and a call that was not shared; and two orchestrators
    are gone for long.
    """
    conn.execute("select durable.set_setting('retention_days', '1')")
    conn.execute("select durable.set_setting('removed_ids_days', '0')")
    call = "select durable.call_v1('dml+exec://fake/f', %s, '{\"share\": false}', %s, null)"
    for name in PAIR:
        held = begin_run(conn, name)
        ask(conn, (call, (json.dumps([{"datum": {"string": name}}]), f"{name}.0")))
        (document,) = ask(conn, ("select durable.call_lease_v1('A', '{fake}', 15000, 10)", ()))
        done_ = json.dumps({"class": "done", "outcome": "ok", "value": {"string": name}})
        report_ = "select durable.call_report_v1(%s, %s, %s)"
        key = bytes.fromhex(document["execution_key"])
        assert ask(conn, (report_, (key, document["version"], done_))) == ("completed_ok",)
        take_turn(conn, "W", report(held, end=complete()))
        ask(conn, ("select durable.claim_acquire(sha256(%s), 'o', 1000)", (name.encode(),)))
    clock.advance(3 * 86_400_000)
    while ask(conn, ("select durable.tick_v1(500, false)", ()))[0]["more"]:
        pass
    conn.execute("select durable.purge('1 day')")
    left = """
    select (select count(*) from durable._refs where name = %(name)s)
      + (select count(*) from durable._pin_log where scope = %(name)s)
      + (select count(*) from durable._call_steps where run_id = %(name)s)
      + (select count(*) from durable._call_attempts a join durable._calls c using (value_key)
         where c.scope = %(name)s)
      + (select count(*) from durable._calls where scope = %(name)s)
      + (select count(*) from durable._claims where execution_key = sha256(%(key)s))"""

    def is_done(name: str) -> bool:
        row = conn.execute(left, {"name": name, "key": name.encode()}).fetchone()
        return row == (0,)

    tick(conn)
    return retaining(conn, clock, is_done)


def objects_are_unused(conn: Connection, clock: Clock) -> Play:
    """Two values were used again, and that is long ago."""
    conn.execute(
        """create or replace function durable._literal_ids(p_text text) returns bytea[] language sql stable
        as $$ select array_agg(o.id) from durable._objects o where o.scalar = convert_to(p_text, 'UTF8') $$"""
    )
    for _ in range(2):
        for name in PAIR:
            ask(conn, ("select durable.literal(%s)", (json.dumps(name),)))
        clock.advance(7_200_000)
    tick(conn)
    clock.advance(2 * 86_400_000)
    there = "select durable._literal_ids(%s) is null"
    return retaining(conn, clock, lambda name: ask(conn, (there, (name,)))[0])


def ticking(conn: Connection, is_done: Callable[[str], bool]) -> Play:
    """Rounds of housekeeping, until one does not ask for the next at once."""

    def act() -> list[str]:
        for number in range(6):
            # as workers do: what is done alone and the rest take turns
            answer = ask(conn, ("select durable.tick_v1(500, %s)", (number % 2 == 0,)))[0]
            if not answer["more"]:
                return list(answer["locked"])
        raise AssertionError(f"the tick spins: {answer}")

    return Play(act, is_done)


def codes_come_back(conn: Connection, clock: Clock) -> Play:
    """Two runs are halted because their worker had other code than began them; now theirs is there."""
    hello = "select durable.worker_hello_v1(%s, '{q-h,q-f}', '{w}', '{1}', null, %s)"
    ask(conn, (hello, ("N", ["cd"])))
    for name in PAIR:
        ask(conn, start(name, queue=f"q-{name}"))
    ask(conn, ("select durable.worker_bye_v1('N')", ()))
    for name in PAIR:
        held = claim(conn, "W", f"q-{name}")
        take_turn(conn, "W", report(held, end=halt()))
    ask(conn, (hello, ("N2", ["cd"])))
    return ticking(conn, lambda name: (task_of(conn, name) or ("gone",))[0] == "pending")


def left_children_end(conn: Connection, clock: Clock) -> Play:
    """Two runs have asked that their child runs end, which no worker has begun."""
    for name in PAIR:
        held = begin_run(conn, name)
        take_turn(conn, "W", report(held, commands=[run(0, queue="kids")]))
        take_turn(conn, "W", report(held, commands=[{"do": "cancel", "child": 0}]))
    return ticking(conn, lambda name: task_of(conn, f"{name}.0") is None)


def keys_of_signals_are_forgotten(conn: Connection, clock: Clock) -> Play:
    """The keys of signals to generations of two runs that were removed long ago are to be forgotten."""
    for name in PAIR:
        held = begin_run(conn, name)
        ask(conn, send(name, key="k"))
        for number in range(3):
            (seen,) = ask(
                conn, ("select next_seq from durable._executions where execution = %s", (held.execution,))
            )
            take_turn(conn, "W", report(held, end=continue_as_new(on=number), seen=seen))
            clock.advance(1000)
            held = claim(conn, "W", f"q-{name}")
    conn.execute("select durable.purge('0')")
    tick(conn)
    clock.advance(400 * 86_400_000)
    there = "select count(*) from durable._removed_signals where id = %s"
    assert ask(conn, (there, ("h",))) == (1,)
    return ticking(conn, lambda name: ask(conn, (there, (name,))) == (0,))


def backlogs_are_received(conn: Connection, clock: Clock) -> Play:
    """Two runs have received the first of what a generation left unread, and continue as new."""
    held = {}
    for name in PAIR:
        first = begin_run(conn, name)
        for _ in range(2):
            ask(conn, send(name))
        take_turn(conn, "W", report(first, end=continue_as_new(), seen=first.next + 2))
        held[name] = claim(conn, "W", f"q-{name}")
        take_turn(conn, "W", report(held[name], commands=[receive(0)]))

    rows = "select next_seq from durable._executions where execution = %s"

    def act() -> list[str]:
        for name in PAIR:
            one = held[name]
            (seen,) = ask(conn, (rows, (one.execution,)))
            take_turn(conn, "W", report(one, end=continue_as_new(on=1), seen=seen))
            held[name] = claim(conn, "W", f"q-{name}")
        return []

    there = "select count(*) from durable._backlog where id = %s and number = 1"
    return Play(act, lambda name: ask(conn, (there, (name,))) == (0,))


def schedules_fire(conn: Connection, clock: Clock) -> Play:
    """Two schedules are due."""
    for name in PAIR:
        plan = "select durable.schedule_create(%s, '@hourly', %s, 3600000, null, null, '{}', 'UTC')"
        conn.execute(plan, (name, f"{name}-{{{{.timestamp}}}}"))
    clock.advance(3_600_000)
    fired = "select last_run_at is not null from durable._schedules where id = %s"
    return ticking(conn, lambda name: ask(conn, (fired, (name,)))[0])


def buffered_instants_start(conn: Connection, clock: Clock) -> Play:
    """Two schedules have an instant that waits for a run, which has ended."""
    for name in PAIR:
        conn.execute(
            "select durable.schedule(%s, '@hourly', workflow => 'w', overlap => 'buffer_all', "
            "any_workflow => true)",
            (name,),
        )
    clock.advance(3_600_000)
    tick(conn)
    clock.advance(3_600_000)
    tick(conn)
    runs = conn.execute("select id from durable.runs where tags ? 'resonate:schedule'").fetchall()
    for (id_,) in runs:
        conn.execute("select durable.cancel(%s, force => true)", (id_,))
    clock.advance(10_000)
    left = "select count(*) from durable._schedule_instants where schedule = %s"
    return ticking(conn, lambda name: ask(conn, (left, (name,))) == (0,))
