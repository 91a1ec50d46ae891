"""Law: as_of tells what the tables held at an earlier moment, from the journal alone."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.stories import Story, Wanderer, begin_story, cancelled, everything
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    begun,
    broken,
    claim,
    complete,
    done,
    fail,
    report,
    take_turn,
)

Json = dict[str, Any]
KINDS = {
    "child_run_scheduled": "run",
    "promise_registered": "promise",
    "timer_scheduled": "timer",
    "random_generated": "random",
    "time_recorded": "time",
    "signal_received": "signal",
    "join_set_created": "join_set",
}
LAST_ROWS = """
select distinct on (j.child) j.child, j.type::text, j.name, j.attempt, j.data
from durable._journal j where j.execution = %s and j.child is not null
  and j.type not in ('join_set_submitted', 'join_set_awaited')
order by j.child, j.seq desc
"""
MAKERS = """
select child, type::text, name from durable._journal where execution = %s and durable._allocates(type)
"""
MEMBERS = """
select type::text, child from durable._journal where execution = %s and attempt = %s
  and type in ('join_set_submitted', 'join_set_awaited')
order by seq
"""
OUTCOME = """
select state, case when state like 'rejected%%' then durable._error_of(state, value_data) else value_data end
from durable._promises where id = %s
"""


def as_of(id_: str, **more: Any) -> Call:
    """A look back."""
    extra = "".join(f", {name} => %s" for name in more)
    return f"select to_jsonb(a) from durable.as_of(%s{extra}) a", (id_, *more.values())


def state_as_of(conn: Connection, id_: str, **more: Any) -> Json:
    """What as_of tells, without the instant."""
    found: Json = ask(conn, as_of(id_, **more))[0]
    del found["at"], found["generation"]
    return found


def outcome(state: str, data: str | None) -> Json:
    """State with value or error."""
    if state == "resolved":
        return {"state": state, "value": None if data is None else json.loads(data)}
    return {"state": state} if state == "pending" else {"state": state, "error": json.loads(data or "null")}


def tables(conn: Connection, execution: int) -> Json:
    """What the tables hold of a run at this moment: the same document, from head, promises, inboxes and join
    sets."""
    query = """select h.id, h.next_seq, h.status, h.next_child, h.waiting_on, h.open_steps, h.open_attempts,
                      h.open_running
               from durable._executions h where h.execution = %s"""
    id_, seq, status, next_child, waiting_on, steps, attempts, open_running = ask(conn, (query, (execution,)))
    made = {child: (kind, name) for child, kind, name in conn.execute(MAKERS, (execution,)).fetchall()}
    running = [
        {"name": made[n][1], "child": n, "attempt": attempt, "state": state_of(attempt, runs, made[n][0])}
        for n, attempt, runs in zip(steps, attempts, open_running, strict=True)
    ]
    children: Json = {}
    for child, kind, name, attempt, data in conn.execute(LAST_ROWS, (execution,)).fetchall():
        maker, called = made[child]
        about: Json = {"kind": KINDS.get(maker, "step")} | ({} if called is None else {"name": called})
        if about["kind"] in ("run", "promise", "timer"):
            foreign = name if kind == "child_settled" and name else f"{id_}.{child}"
            found = conn.execute(OUTCOME, (foreign,)).fetchone()
            about |= (
                outcome(*found)
                if found and kind in ("open_child_settled", "child_settled", "timer_fired")
                else outcome("pending", None)
            )
        elif about["kind"] == "join_set":
            about |= set_of(conn, execution, child)
        elif about["kind"] == "signal":
            payload = "select data from durable._signals where execution = %s and name = %s and delivery = %s"
            about |= outcome("resolved", ask(conn, (payload, (execution, name, attempt)))[0])
        elif child in steps:
            about |= outcome("pending", None)
        else:
            about |= outcome(
                "rejected"
                if kind in ("step_failed", "open_step_failed", "last_attempt_failed")
                else "resolved",
                data,
            )
        children[str(child)] = about
    signals = "select name, delivered, received from durable._inboxes where execution = %s and delivered > 0"
    inboxes = conn.execute(signals, (execution,)).fetchall()
    return {
        "seq": seq,
        "status": status,
        "next_child": next_child,
        "waiting_on": [f"{id_}.{n}" for n in waiting_on or ()],
        "running": running,
        "children": children,
        "signals": {name: {"delivered": sent, "received": got} for name, sent, got in inboxes},
    }


def state_of(attempt: int, runs: bool, maker: str) -> str:
    """How an open step stands, by what the head says of its attempts."""
    if runs:
        return "running"
    return "scheduled" if maker == "step_scheduled" and attempt == 1 else "retrying"


def set_of(conn: Connection, execution: int, child: int) -> Json:
    """A join set."""
    members: dict[str, list[int]] = defaultdict(list)
    for kind, member in conn.execute(MEMBERS, (execution, child)).fetchall():
        members[kind].append(member)
    taken = "select child from durable._members where execution = %s and join_set = %s and taken"
    assert {n for (n,) in conn.execute(taken, (execution, child)).fetchall()} == set(
        members["join_set_awaited"]
    )
    query = "select closed from durable._join_sets where execution = %s and child = %s"
    if ask(conn, (query, (execution, child)))[0]:
        return {
            "state": "closed",
            "members": members["join_set_submitted"],
            "taken": members["join_set_awaited"],
        }
    return {"state": "open", "members": members["join_set_submitted"]}


def compare(conn: Connection, story: Story, seen: dict[int, Json]) -> None:
    """The present, as as_of tells it, is what the tables and the view of runs tell; it is remembered."""
    now = tables(conn, story.execution)
    assert state_as_of(conn, story.id) == now
    query = (
        "select r.events, r.children, array(select r.id || '.' || n from unnest(h.waiting_on) n) "
        "from durable.runs r join durable._executions h on h.execution = r.execution where r.id = %s"
    )
    assert ask(conn, (query, (story.id,))) == (now["seq"], now["next_child"], now["waiting_on"])
    seen[now["seq"]] = now


LIVES = {
    "completed": lambda story: everything(story, end=complete()),
    "failed": lambda story: everything(story, end=fail()),
    "live": everything,
    "cancelled": cancelled,
}


@pytest.mark.parametrize("name", LIVES)
def test_as_of_equals_the_state_seen_then(conn: Connection, clock: Clock, name: str) -> None:
    """At every step of a run with every row type, as_of now is what the tables hold; afterwards as_of(seq)
    is what was seen when the journal ended there."""
    story = begin_story(conn, clock, name)
    seen: dict[int, Json] = {}
    compare(conn, story, seen)
    for _ in LIVES[name](story):
        compare(conn, story, seen)
    assert {seq: state_as_of(conn, name, seq=seq) for seq in seen} == seen


@pytest.mark.parametrize(
    "number", [n if n < 2 else pytest.param(n, marks=pytest.mark.full) for n in range(6)]
)
def test_the_past_of_random_runs(conn: Connection, clock: Clock, seed: int, number: int) -> None:
    """The same for runs that went any legal way, and by the instant instead of the position."""
    story = Wanderer(conn, clock, "r", random.Random(seed + number))
    seen: dict[int, Json] = {}
    at: dict[int, int] = {}
    compare(conn, story, seen)
    for _ in story.wander(40):
        compare(conn, story, seen)
        at[clock.now_ms] = story.next_seq
        clock.advance(1)
    assert {seq: state_as_of(conn, "r", seq=seq) for seq in seen} == seen
    for now_ms, seq in at.items():
        instant = ask(conn, ("select durable._at(%s)", (now_ms,)))[0]
        assert state_as_of(conn, "r", at=instant) == seen[seq]


def test_the_middle_of_a_fused_row(conn: Connection) -> None:
    """A position inside a row tells the events before it: a step that is scheduled, then runs, then is
    done."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0), broken(1, retry_in=5)]))
    states = [state_as_of(conn, "r", seq=n)["running"] for n in range(2, 8)]
    about = {"name": "step", "attempt": 1}
    assert states == [
        [{**about, "child": 0, "state": "scheduled"}],
        [{**about, "child": 0, "state": "running"}],
        [],
        [{**about, "child": 1, "state": "scheduled"}],
        [{**about, "child": 1, "state": "running"}],
        [{**about, "child": 1, "attempt": 2, "state": "retrying"}],
    ]
    assert state_as_of(conn, "r", seq=3)["children"] == {
        "0": {"kind": "step", "name": "step", "state": "pending"}
    }


def test_the_instant_is_that_of_the_last_event(conn: Connection, clock: Clock) -> None:
    """The answer carries the instant of the last event that it knows; between two events nothing changes."""
    held = begin_run(conn, "r")
    began = clock.now_ms
    clock.advance(500)
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    query = "select extract(epoch from (durable.as_of('r', at => durable._at(%s))).at) * 1000"
    told = [int(ask(conn, (query, (began + ms,)))[0]) - began for ms in (0, 499, 500, 9999)]
    assert told == [0, 0, 500, 500]


REFUSED = {
    "before it began": (as_of("r", at="2001-01-01"), "WF004", "began at"),
    "seq 0": (as_of("r", seq=0), "WF004", "4 events"),
    "beyond the end": (as_of("r", seq=5), "WF004", "4 events"),
    "two moments": (as_of("r", seq=1, at="infinity"), "WF004", "not both"),
    "no such generation": (as_of("r", generation=2), "WF004", "no generation 2"),
    "no such run": (as_of("nobody"), "WF001", "nobody"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_positions_are_refused(conn: Connection, name: str) -> None:
    """A moment that was not there is refused with words that say what there is."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0)]))
    call, state, words = REFUSED[name]
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, call)
    assert (caught.value.sqlstate, words in str(caught.value.diag.message_primary)) == (state, True)


def test_an_infinite_instant_is_the_present(conn: Connection) -> None:
    """However late the instant, nothing is known beyond the last event."""
    begin_run(conn, "r")
    assert state_as_of(conn, "r", at="infinity") == state_as_of(conn, "r")


def test_an_instant_finds_its_generation(conn: Connection, clock: Clock) -> None:
    """Of a run that continued as new, an instant finds the journal that was the present one then; others are
    asked for by number."""
    held = begin_run(conn, "r", args='["one"]')
    clock.advance(1000)
    end = {"do": "continue", "value": "[2]", "on": [1]}
    take_turn(conn, "W", report(held, outcomes=[done(0, '"old"')], end=end))
    clock.advance(1000)
    held = claim(conn, "W", "q-r")
    take_turn(conn, "W", report(held, outcomes=[done(1, '"new"')]))
    query = "select (durable.as_of('r', at => durable._at(%s))).generation"
    assert [ask(conn, (query, (clock.now_ms - ms,)))[0] for ms in (2000, 1001, 1000, 0)] == [1, 1, 2, 2]
    assert state_as_of(conn, "r", generation=1)["children"]["0"]["value"] == "old"
    assert state_as_of(conn, "r")["children"]["1"]["value"] == "new"
    assert state_as_of(conn, "r", generation=1)["status"] == "completed"
