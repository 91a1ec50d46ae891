"""Law: a journal has one writer at a time, whoever writes: its client twice, who settles what it waits for,
and time."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.features.journal.client_events import COMPLETED, ClientEvent, external, fired, step, timer, wait
from tests.features.journal.keeper import Json, append, begin, types
from tests.support.barrier import Player, Stage, Step
from tests.support.verbs import Connection, ask


@pytest.fixture
def seat(dsn: str) -> Iterator[Connection]:
    """A connection that commits at once, to the database of the stage."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def say(player: Player, event: str, payload: Json, *, version: int | None = 1) -> Step:
    """A player appends an event to j."""
    call = "select seq from durable.journal_append('j', %s, %s, %s)"
    return player.do(call, (version, event, Jsonb(payload)))


def live(conn: Connection, *past: ClientEvent) -> None:
    """A run j with this past."""
    begin(conn)
    for event, payload in past:
        append(conn, "j", event, payload)


def test_two_clients_say_the_same(seat: Connection, stage: Stage) -> None:
    """Of two sessions that take the same child number the second waits, and is refused: it is gone."""
    live(seat)
    first, second = stage.player("first"), stage.player("second")
    first.begin()
    assert say(first, *step(0)).value() == 1
    late = say(second, *step(0))
    assert late.blocked
    first.commit()
    assert isinstance(late.error, psycopg.Error)
    assert late.error.sqlstate == "WF006"
    assert types(seat, "j") == ["ExecutionStarted", "InvokeScheduled"]


def test_two_clients_start_the_same(seat: Connection, stage: Stage) -> None:
    """Of two sessions that start one run the second waits, and finds it."""
    first, second = stage.player("first"), stage.player("second")
    said = {"component_digest": "d", "input": 1}
    first.begin()
    say(first, "ExecutionStarted", said, version=None).rows()
    late = say(second, "ExecutionStarted", said, version=None)
    assert late.blocked
    first.commit()
    assert late.value() == 0
    assert types(seat, "j") == ["ExecutionStarted"]


def test_a_timer_that_somebody_else_fires(seat: Connection, stage: Stage) -> None:
    """A client that tells of a timer while another session settles it finds it told, once."""
    live(seat, timer(0), wait("Single", 0))
    other, client = stage.player("other"), stage.player("client")
    other.begin()
    other.do("select durable.promise_settle('j.0', 'resolved')").rows()
    late = say(client, *fired(0))
    assert late.blocked
    other.commit()
    assert late.value() == 3
    assert types(seat, "j")[-1] == "TimerFired"
    assert say(client, "ExecutionResumed", {}).value() == 4


def test_an_end_and_a_settlement(seat: Connection, stage: Stage) -> None:
    """What is settled while the run ends is settled, and the journal has ended (R16)."""
    live(seat, external(0))
    client, other = stage.player("client"), stage.player("other")
    client.begin()
    say(client, *COMPLETED).rows()
    late = other.do("select (durable.promise_settle('j.0', 'resolved')).state")
    assert late.blocked
    client.commit()
    assert late.value() == "resolved"
    assert types(seat, "j") == ["ExecutionStarted", "InvokeScheduled", "ExecutionCompleted"]
    assert ask(seat, ("select state from durable.runs where id = 'j'", ())) == ("completed",)
