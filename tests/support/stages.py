"""Runs in every state in which a person may find them, each brought there by what brings runs there.

What lives here: the stages, and what tests read of a run. No law is stated here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    broken,
    promise,
    receive,
    release,
    report,
    start,
    suspend,
    take_turn,
    tick,
    timer,
)

PAUSE: Call = ("select durable.pause('r')", ())
RESUME: Call = ("select durable.resume('r')", ())


def state(conn: Connection, id_: str = "r") -> str:
    """What people read."""
    return str(ask(conn, ("select state from durable.runs where id = %s", (id_,)))[0])


def head(conn: Connection, *columns: str, id_: str = "r") -> tuple[Any, ...]:
    """Columns of a head."""
    return ask(conn, (f"select {', '.join(columns)} from durable._executions where id = %s", (id_,)))


def seen(held: Held, next_: int, version: int = 1) -> Held:
    """The same run, advanced through this many events."""
    return Held(execution=held.execution, id=held.id, version=version, next=next_)


def suspended(conn: Connection, *commands: dict[str, Any], kind: str | None = None) -> Held:
    """A run that waits for the numbers of its commands."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=commands))
    on = [command["child"] for command in commands]
    answer = take_turn(conn, "W", report(held, end=suspend(*on, kind=kind), seen=answer.next_of(held)))
    assert answer.of(held) == ("ok", "suspended")
    return held


def die(conn: Connection, clock: Clock, id_: str = "r") -> None:
    """The run's workers are lost too often."""
    ask(conn, ("select durable.set_setting('max_crashes', '0')", ()))
    begin_run(conn, id_)
    clock.advance(TTL_MS)
    tick(conn)
    assert state(conn, id_) == "dead"


Stage = Callable[[Connection, Clock], object]


def released(conn: Connection, clock: Clock) -> None:
    """A run that was given back."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=release()))


def postponed(conn: Connection, clock: Clock) -> None:
    """A run that waits to try a step again."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[broken(0, retry_in=60_000)], end=release(60_000)))


def paused(conn: Connection, clock: Clock) -> None:
    """A run that was held and is set aside."""
    begin_run(conn, "r")
    ask(conn, PAUSE)


# state: how a run comes into it, and the word that people read
LIVE: dict[str, tuple[Stage, str]] = {
    "held": (lambda conn, clock: begin_run(conn, "r"), "running"),
    "released": (released, "queued"),
    "postponed": (postponed, "scheduled"),
    "waiting for one": (lambda conn, clock: suspended(conn, promise(0)), "waiting"),
    "waiting for any": (lambda conn, clock: suspended(conn, promise(0), timer(1, 5)), "waiting"),
    "waiting for all": (lambda conn, clock: suspended(conn, promise(0), receive(1), kind="all"), "waiting"),
    "waiting for a signal": (lambda conn, clock: suspended(conn, receive(0), kind="signal"), "waiting"),
    "paused": (paused, "paused"),
    "dead": (die, "dead"),
}
NEVER_RUN: dict[str, tuple[Stage, str]] = {
    "queued": (lambda conn, clock: ask(conn, start("r")), "queued"),
    "delayed": (lambda conn, clock: ask(conn, start("r", delay="1 hour")), "scheduled"),
    "paused unclaimed": (lambda conn, clock: (ask(conn, start("r")), ask(conn, PAUSE)), "paused"),
}


def states(conn: Connection) -> dict[str, str]:
    """What people read of all runs."""
    return dict(conn.execute("select id, state from durable.runs").fetchall())
