"""Law: the claim of one new run by plain statements leaves and answers what the batch path does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    cancel,
    code,
    done,
    dump,
    journal,
    promise,
    release,
    report,
    run,
    settle,
    start,
    suspend,
    take_turn,
    turn,
)

TABLES = ("_promises", "_executions", "_journal", "_tasks", "_resumes", "_callbacks", "_workers")
MANY = (
    "select c.tasks from durable._claim(array[%s], %s, 'V', %s, '{}', array[%s], '{ab}', durable._now_ms()) c"
)
NEW = (
    "select durable._claim_single(%s, h, 'V', %s, array[%s], '{ab}', durable._now_ms()) is not null "
    "from durable._executions h where h.id = %s"
)


def new(conn: Connection) -> str:
    """A run that nobody has claimed."""
    ask(conn, start("r"))
    return "r"


def unknown_code(conn: Connection) -> str:
    """A run whose head knows no digest, because no worker had registered its workflow."""
    ask(conn, ("delete from durable._workflows returning true", ()))
    return new(conn)


def released(conn: Connection) -> str:
    """A run that was held before and has done nothing."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=release()))
    return "r"


def begun(conn: Connection) -> str:
    """A run with a step in its journal."""
    take_turn(conn, "W", report(begin_run(conn, "r"), outcomes=[done(0)], end=release()))
    return "r"


def woken(conn: Connection) -> str:
    """A run that was asleep."""
    take_turn(conn, "W", report(begin_run(conn, "r"), commands=[promise(0)], end=suspend(0)))
    ask(conn, settle("r.0"))
    return "r"


def cancelled(conn: Connection) -> str:
    """A run that is asked to end before it has begun."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=release()))
    ask(conn, cancel("r"))
    return "r"


def child(conn: Connection) -> str:
    """A run that another one owns, whose journal tells of its attempts."""
    take_turn(conn, "W", report(begin_run(conn, "r"), commands=[run(0)]))
    return "r.0"


@pytest.mark.parametrize(
    ("scene", "is_new"),
    [
        (new, True),
        (unknown_code, False),
        (released, True),
        (begun, False),
        (woken, False),
        (cancelled, False),
        (child, None),
    ],
)
def test_the_single_row_path_equals_the_batch_path(
    conn: Connection, clock: Clock, scene: Callable[[Connection], str], is_new: bool | None
) -> None:
    """Rows of all tables and what the worker is handed, by both ways; a child goes the batch path."""
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    id_ = scene(conn)

    def outcome(statement: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
        conn.execute("savepoint before")
        answer = ask(conn, (statement, values))[0]
        left = dump(conn, TABLES)
        conn.execute("rollback to before")
        return answer, left

    alone, left = outcome(*turn("V", want=5, queues=("default", "q-r")))
    assert (alone["tasks"], left) == outcome(MANY, (id_, is_new is None, TTL_MS, code("w")))
    assert [task[1] for task in alone["tasks"]] == [id_]
    if is_new is not None:
        assert outcome(NEW, (id_, TTL_MS, code("w"), id_))[0] is is_new


def large(conn: Connection, id_: str, size: int) -> None:
    """A run that nobody has claimed, with an input of so many bytes."""
    ask(conn, ("select durable.start('w', jsonb_build_array(repeat('x', %s)), id => %s)", (size, id_)))


def handed(conn: Connection, *, want: int = 20, queues: tuple[str, ...] = ("default",)) -> list[str]:
    """The runs that a claim hands out, and no lease of any other."""
    answer = take_turn(conn, "W", want=want, queues=queues)
    ids = sorted(task[1] for task in answer.raw["tasks"])
    leased = conn.execute("select id from durable._tasks where state = 'acquired' order by 1").fetchall()
    assert set(ids) <= {id_ for (id_,) in leased}
    left = conn.execute(
        "select queue, sum(crashes) from durable._tasks where state = 'pending' group by 1 order by 1"
    ).fetchall()
    assert all(crashes == 0 for _, crashes in left)
    # a claim that has left something behind says that it is ready
    assert answer.raw["hints"] == ([queue for queue, _ in left] if len(ids) < want else [])
    return ids


def test_a_claim_is_bounded_by_bytes(conn: Connection, clock: Clock) -> None:
    """Small runs are handed out all together, large inputs until they have 8 MiB; the rest is ready for the
    next claim, before younger runs, and nobody has lost a lease.
    """
    for number in range(6):
        large(conn, f"l{number}", 3_000_000)
        ask(conn, start(f"s{number}"))
    small = [f"s{number}" for number in range(6)]
    assert handed(conn) == ["l0", "l1", "l2", *small]
    clock.advance(10)
    ask(conn, start("young"))
    assert handed(conn, want=1) == ["l3"]
    assert handed(conn) == ["l4", "l5", "young"]


def test_a_claim_of_one_run_has_no_bound(conn: Connection) -> None:
    """A claim answers one run at least, however large."""
    large(conn, "huge", 20_000_000)
    large(conn, "other", 20_000_000)
    assert handed(conn) == ["huge"]
    assert handed(conn) == ["other"]


def test_journals_are_bounded_too(conn: Connection) -> None:
    """Results in the journal count, also those that stand apart because they are large."""
    value = json.dumps("x" * 3_000_000)
    for number in range(4):
        held = begin_run(conn, f"r{number}")
        take_turn(conn, "W", report(held, outcomes=[done(0, value=value)], end=release()))
    queues = tuple(f"q-r{number}" for number in range(4))
    assert handed(conn, queues=queues) == ["r0", "r1", "r2"]
    assert handed(conn, queues=queues) == ["r3"]


def test_a_warm_run_that_is_left_out_stays_warm(conn: Connection) -> None:
    """The worker that has its coroutine is preferred still, and gets only the rows since it suspended."""
    value = json.dumps("x" * 5_000_000)
    for number in range(3):
        held = begin_run(conn, f"r{number}")
        take_turn(conn, "W", report(held, commands=[promise(0)], end=suspend(0)))
    for number in range(3):
        ask(conn, settle(f"r{number}.0", value))
    queues = ("q-r0", "q-r1", "q-r2")
    assert handed(conn, queues=queues) == ["r0", "r1"]
    (last,) = take_turn(conn, "W", want=5, queues=queues).handed
    assert last["id"] == "r2" and last["from"] > 0 and len(last["rows"]) == 2
    assert conn.execute("select count(*) from durable._tasks where crashes > 0").fetchone() == (0,)


def test_a_journal_that_cannot_be_sent_is_refused_by_its_size(conn: Connection) -> None:
    """Fourteen results that share a value of 60 MB are more than an answer can hold. The whole journal of a
    leased run is refused by that size, as a claim of it is; one value less in it is not.
    """
    held = begin_run(conn, "r")
    value = json.dumps("x" * 20_000)
    take_turn(conn, "W", report(held, outcomes=[done(child, value=value) for child in range(14)]))
    grow = "update durable._journal_values set data = '\"' || repeat('x', %s) || '\"'"
    conn.execute(grow, (60_000_000,))
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        ask(conn, journal("W", held))
    assert refused.value.sqlstate == "WF008"
    conn.execute(grow, (20_000,))
    assert len(ask(conn, journal("W", held))[0]["rows"]) == 15
