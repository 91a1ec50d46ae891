"""Law: the claim of one new run by plain statements leaves and answers what the batch path does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    cancel,
    claim,
    code,
    done,
    dump,
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
MANY = "select durable._claim(array[%s], %s, 'V', %s, '{}', array[%s], '{ab}', durable._now_ms())"
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


def test_a_fork_keeps_plain_claims_away(conn: Connection) -> None:
    """While there are forks, whose journal is another run's, every run is claimed the batch path."""
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    ask(conn, start("r"))
    with conn.transaction(force_rollback=True):
        assert ask(conn, (NEW, ("r", TTL_MS, code("w"), "r")))[0] is True
    held = claim(conn, "W", "default")
    take_turn(conn, "W", report(held, outcomes=[done(0)]))
    ask(conn, ("select durable.fork('r', seq => 3)", ()))
    ask(conn, start("s"))
    assert ask(conn, (NEW, ("s", TTL_MS, code("w"), "s")))[0] is False
