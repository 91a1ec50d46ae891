"""Law: a step that is retried without end keeps its first attempt and the last failures only. Attempts are
counted by their numbers, so none is lost or counted twice with the rows; every free sequence number is
accounted for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.core.sql.test_reports import journal_rows_read
from tests.support.verbs import (
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    broken,
    claim,
    complete,
    done,
    release,
    report,
    take_turn,
)

HELLO = "select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}', null, null, %s)"
KEPT = 10
ROWS_MAX = 2 * KEPT
"""The most rows of a step whose attempts have one row each."""

Outcome = dict[str, Any]


@pytest.fixture
def held(conn: Connection) -> Held:
    """A run that was born with rules under which old attempts are removed."""
    ask(conn, (HELLO, (3,)))
    return begin_run(conn, "r")


def say(conn: Connection, held: Held, *outcomes: Outcome, **more: Any) -> str:
    """Report outcomes of a coroutine that has seen everything; answers the verdict."""
    (seen,) = ask(conn, ("select next_seq from durable._executions where execution = %s", (held.execution,)))
    return take_turn(conn, "W", report(held, seen=seen, outcomes=list(outcomes), **more)).of(held)[0]


def fails(attempt: int, child: int = 0, policy: str = '{"max_attempts": null}') -> Outcome:
    """A failed attempt; the first one carries the policy."""
    outcome = broken(child, attempt=attempt, retry_in=0)
    return {**outcome, "retry": policy} if attempt == 1 else outcome


def kept(conn: Connection, child: int = 0, id_: str = "r") -> list[int]:
    """The attempts of a step of which the journal has rows."""
    return ask(
        conn,
        (
            "select array_agg(distinct j.attempt order by j.attempt) from durable._journal j"
            " join durable._executions h using (execution) where h.id = %s and j.child = %s",
            (id_, child),
        ),
    )[0]


def rows(conn: Connection) -> int:
    """How many rows the journals have."""
    return int(ask(conn, ("select count(*) from durable._journal", ()))[0])


def problems(conn: Connection) -> list[tuple[Any, ...]]:
    """What breaks a law."""
    return conn.execute("select * from durable.check()").fetchall()


def remaining(last: int) -> list[int]:
    """The attempts that are kept when so many have failed."""
    return [1, *range(max(2, last // KEPT * KEPT - KEPT + 1), last + 1)]


def test_a_poll_keeps_the_last_failures(conn: Connection, held: Held, pytestconfig: pytest.Config) -> None:
    """However often a step fails, its journal has a bounded number of rows, a claim hands out no more, and
    the head counts on."""
    number = 2000 if pytestconfig.getoption("--full") else 45
    for attempt in range(1, number + 1):
        assert say(conn, held, fails(attempt)) == "ok"
        assert kept(conn) == remaining(attempt)
        assert rows(conn) <= 1 + ROWS_MAX
    assert problems(conn) == []
    assert say(conn, held, end=release()) == "ok"
    again = claim(conn, "V", "q-r")
    assert [row[3] for row in again.rows if row[2] == 0] == remaining(number)
    assert ask(conn, ("select next_seq, open_attempts from durable._executions", ())) == (
        2 + 2 * number,
        [number + 1],
    )
    assert again.next == 2 + 2 * number


def test_what_a_failure_reads_is_bounded(conn: Connection, held: Held) -> None:
    """Also the failures at which old ones are removed read no more rows the longer the step fails."""
    reads = []
    for attempt in range(1, 101):
        before = journal_rows_read(conn)
        assert say(conn, held, fails(attempt)) == "ok"
        reads.append(journal_rows_read(conn) - before)
    assert reads[29::KEPT] == [reads[29]] * 8
    assert max(reads) == reads[29] <= 5 + 2 * ROWS_MAX


def test_runs_of_earlier_rules_keep_all(conn: Connection) -> None:
    """A worker that counts the rows of failures finds them all."""
    ask(conn, (HELLO, (2,)))
    held = begin_run(conn, "r")
    assert say(conn, held, *(fails(attempt) for attempt in range(1, 41))) == "ok"
    assert kept(conn) == list(range(1, 41))
    assert problems(conn) == []


@pytest.mark.parametrize("steps", [1, 2])
def test_begun_attempts_and_steps_side_by_side(conn: Connection, held: Held, steps: int) -> None:
    """An attempt that was begun has two rows, which go together, also where those of another step stand
    between them; a step that ends keeps what it had."""
    children = range(steps)
    for attempt in range(1, 33):
        policy = {"retry": '{"max_attempts": null}'} if attempt == 1 else {}
        assert say(conn, held, *({**begun(n, attempt=attempt), **policy} for n in children)) == "ok"
        assert say(conn, held, *(broken(n, attempt=attempt, retry_in=0) for n in children)) == "ok"
    assert [kept(conn, n) for n in children] == [remaining(32)] * steps
    assert rows(conn) == 1 + steps * 2 * len(remaining(32))
    assert problems(conn) == []
    assert say(conn, held, *(done(n, attempt=33) for n in children), end=complete()) == "ok"
    assert problems(conn) == []


def test_many_failures_in_one_turn(conn: Connection, held: Held) -> None:
    """Rows that one turn writes are removed by the same turn, if they lie far back."""
    assert say(conn, held, *(fails(attempt) for attempt in range(1, 58)), done(0, attempt=58)) == "ok"
    assert kept(conn) == [*remaining(57), 58]
    assert problems(conn) == []


def test_large_errors_go_too(conn: Connection, held: Held) -> None:
    """An error that is stored apart goes with its row, and so do its parts, unless something else of the run
    refers to them."""
    shared = "s" * 9_000

    def failure(attempt: int) -> Outcome:
        error = {"type": "Oops", "shared": shared, "own": [str(attempt) * 9_000, attempt]}
        return {**fails(attempt), "error": json.dumps(error)}

    values = "select count(*) from durable._journal_values"
    for attempt in range(1, 20):
        assert say(conn, held, failure(attempt)) == "ok"
    before = ask(conn, (values, ()))[0]
    assert say(conn, held, done(1, json.dumps([shared, "3" * 9_000])), failure(20)) == "ok"
    assert problems(conn) == []
    for attempt in range(21, 42):
        assert say(conn, held, failure(attempt)) == "ok"
    assert ask(conn, (values, ()))[0] <= before + 8
    assert kept(conn) == remaining(41)
    assert problems(conn) == []
    result = "select durable._data(j) from durable._journal j where j.type = 'step_completed'"
    assert json.loads(ask(conn, (result, ()))[0]) == [shared, "3" * 9_000]


def test_large_values_of_the_run_are_not_read(conn: Connection, held: Held) -> None:
    """To remove the large error of an old attempt the server looks at the beginning of what else is stored:
    a text refers to nothing, nor does a list or map whose parts are small.
    """
    for attempt in (1, 2):
        error = json.dumps({"type": "Oops", "own": [str(attempt) * 9_000]})
        assert say(conn, held, {**fails(attempt), "error": error}) == "ok"
    remove = (
        "explain (analyze, buffers, format json) select durable._remove_values(h.bucket, h.execution,"
        " array(select v.hash from durable._journal_values v where v.execution = h.execution limit 1))"
        " from durable._executions h"
    )

    def blocks() -> int:
        with conn.transaction(force_rollback=True):
            (plan,) = ask(conn, (remove, ()))
        return int(plan[0]["Plan"]["Shared Hit Blocks"]) + int(plan[0]["Plan"]["Shared Read Blocks"])

    blocks()  # once the functions are compiled it reads less
    rng = random.Random(7)
    texts = [json.dumps(rng.randbytes(1 << 20).hex()) for _ in range(2)]
    many = [rng.randbytes(120).hex() for _ in range(2_000)]
    texts += [json.dumps(many), json.dumps({str(n): part for n, part in enumerate(many)})]
    assert say(conn, held, *(done(1 + number, value=text) for number, text in enumerate(texts))) == "ok"
    assert blocks() < 100


DENSE = ("S-1 INV-2 seq_is_dense", "C-4 next_seq_is_journal_length")
MISSING: dict[str, tuple[str, set[str]]] = {
    "one of the last": ("child = 0 and attempt = 33", {"the_last_attempts_are_kept"}),
    "the oldest of the last": ("child = 0 and attempt = 31", {"the_last_attempts_are_kept"}),
    "the newest": ("child = 0 and attempt = 45", {DENSE[1], "C-5 open_steps_of_head"}),
    "a row of another step": (
        "child = 1",
        {*DENSE, "A-1 gaps_are_reserved", "A-1 next_child_follows_journal"},
    ),
}
