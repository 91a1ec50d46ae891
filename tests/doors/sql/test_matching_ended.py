"""Law: matching_ended_runs answers the runs that have ended and match, the latest first, in portions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    claim,
    complete,
    continue_as_new,
    create,
    fail,
    refusal,
    report,
    take_turn,
)

CARD = '{"type": "CardDeclined", "message": "no"}'


def matching(named: str = "", values: Sequence[object] = ()) -> Call:
    """The ids that match."""
    return f"select durable.matching_ended_runs({named})", values


@pytest.fixture
def ended(conn: Connection, clock: Clock) -> Connection:
    """Runs that ended in each way, one each second from the second second on; one that lives, and a promise
    that was rejected."""
    begin_run(conn, "live")
    for id_ in "abcdef":
        clock.advance(1_000)
        held = paying(conn, id_) if id_ in "ac" else begin_run(conn, id_)
        if id_ == "e":
            ask(conn, ("select durable.cancel('e', force => true)", ()))
            continue
        end = complete() if id_ in "bf" else fail(CARD if id_ == "c" else '{"type": "Boom"}')
        take_turn(conn, "W", report(held, end=end))
    ask(conn, create("plain"))
    ask(conn, ("select durable.reject('plain')", ()))
    return conn


def paying(conn: Connection, id_: str) -> Held:
    """A run of another workflow, with a tag."""
    text = "select durable.start('pay', id => %s, queue => %s, tags => '{\"team\": \"x\"}')"
    ask(conn, (text, (id_, f"q-{id_}")))
    return take_turn(conn, "W", want=1, queues=[f"q-{id_}"], workflows=["pay"]).tasks[0]


AGO = "durable._at(durable._now_ms() - %s000)"
FILTERS: list[tuple[str, str]] = [
    ("", "fedcba"),
    ("state => 'failed'", "dca"),
    ("state => 'completed'", "fb"),
    ("state => 'cancelled'", "e"),
    ("state => 'timed_out'", ""),
    ("workflow => 'pay'", "ca"),
    ("workflow => 'pay', state => 'failed'", "ca"),
    ("workflow => 'w', state => 'failed'", "d"),
    ("error => 'CardDeclined'", "c"),
    ("error => 'CardDeclined', state => 'failed'", "c"),
    ("error => 'Cancelled'", "e"),
    ('tags => \'{"team": "x"}\'', "ca"),
    ("tags => '{\"team\": \"x\"}', state => 'failed'", "ca"),
    (f"ended_after => {AGO % 2}", "fed"),
    (f"ended_after => {AGO % 3}, state => 'failed'", "dc"),
    (f"ended_before => {AGO % 3}", "ba"),
    (f"ended_before => {AGO % 2}, state => 'failed'", "ca"),
    (f"ended_after => {AGO % 4}, ended_before => {AGO % 2}", "cb"),
    (f"started_after => {AGO % 1}", "fe"),
    (f"started_before => {AGO % 4}, state => 'failed'", "a"),
    ("at_most => 2", "fe"),
    ("at_most => 2, after => 'e'", "dc"),
    ("at_most => 2, state => 'failed'", "dc"),
    ("after => 'c', state => 'failed'", "a"),
    ("after => 'a'", ""),
]


def test_filters(ended: Connection) -> None:
    """By workflow, state, tags, error and instants, alone and together, in portions; one that ends at the
    same instant as the last of a portion is not lost.
    """
    for named, expected in FILTERS:
        assert ask(ended, matching(named))[0] == list(expected), named
    with ended.transaction(force_rollback=True):
        ended.execute("update durable._promises set failed_at = '2020-01-01' where failure = 'failed'")
        for last, expected in (("d", "ca"), ("c", "a")):
            assert ask(ended, matching(f"state => 'failed', after => '{last}'"))[0] == list(expected)


def test_generations_are_one_run(conn: Connection) -> None:
    """A run that continued as new and ended is there once; one that lives is not there."""
    for id_ in ("lives", "ends"):
        take_turn(conn, "W", report(begin_run(conn, id_), end=continue_as_new()))
    held = claim(conn, "W", "q-ends")
    take_turn(conn, "W", report(held, end=complete()))
    assert ask(conn, matching()) == (["ends"],)
    assert ask(conn, matching("state => 'completed'")) == (["ends"],)


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ("state => 'waiting'", "WF004"),
        ("state => 'nonsense'", "WF004"),
        ("at_most => 0", "WF004"),
        ("at_most => 10001", "WF004"),
        ("at_most => null", "WF004"),
        ("tags => '[]'", "WF004"),
        ("ended_after => '2025-01-02', ended_before => '2025-01-01'", "WF004"),
        ("started_after => '2025-01-02', started_before => '2025-01-01'", "WF004"),
        ("after => 'nobody'", "WF001"),
    ],
)
def test_refused(conn: Connection, named: str, code: str) -> None:
    """What is malformed is refused, and so is a portion behind a run that is gone."""
    assert refusal(conn, matching(named)) == code
