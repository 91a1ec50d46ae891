"""Law: pause, resume and redrive set runs aside and bring them back, whatever comes meanwhile."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.stages import LIVE, PAUSE, RESUME, die, head, state, states, suspended
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    begun,
    cancel,
    claim,
    complete,
    create,
    done,
    promise,
    refusal,
    report,
    settle,
    start,
    take_turn,
    task_of,
    tick,
    types_of,
)

GRACE_MS = 30_000
REDRIVE: Call = ("select durable.redrive()", ())


@pytest.mark.parametrize("name", [name for name in LIVE if name not in ("paused", "dead")])
def test_pause_and_resume(conn: Connection, clock: Clock, name: str) -> None:
    """A paused run is nobody's, and its holder is fenced; resumed, it is ready, its journal as it was."""
    LIVE[name][0](conn, clock)
    before = types_of(conn, "r")
    ask(conn, PAUSE)
    assert state(conn) == "paused"
    clock.advance(60_000)
    assert take_turn(conn, "V", want=1, queues=["q-r"]).tasks == []
    version = (task_of(conn, "r") or ("", 0))[1]
    held = Held(execution=head(conn, "execution")[0], id="r", version=version, next=1)
    assert take_turn(conn, "W", report(held, outcomes=[done(9)])).of(held) == ("lost", "lost")
    ask(conn, RESUME)
    assert types_of(conn, "r") == before
    assert claim(conn, "V", "q-r").version == version + 1


def test_a_pause_closes_open_attempts(conn: Connection) -> None:
    """Steps under way are interrupted, which is no failure of theirs."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    ask(conn, PAUSE)
    assert types_of(conn, "r") == ["execution_started", "step_started", "open_attempt_failed"]
    assert head(conn, "open_attempts", "open_running") == ([2], [False])


def test_promises_settle_while_the_run_is_paused(conn: Connection) -> None:
    """Promises settle in the journal of a paused run; it stays set aside, and finds them when it goes on."""
    suspended(conn, promise(0))
    ask(conn, PAUSE)
    ask(conn, settle("r.0"))
    assert (state(conn), types_of(conn, "r")) == (
        "paused",
        [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ],
    )
    ask(conn, RESUME)
    assert [row[1] for row in claim(conn, "W", "q-r").rows] == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]


def test_a_pause_leaves_halted_ones(conn: Connection) -> None:
    """What is set aside already keeps its problem; a second pause is no error."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, end={"do": "halt", "problem": '{"type": "Nondeterminism"}'}))
    ask(conn, PAUSE)
    assert ask(conn, ("select state, problem ->> 'type' from durable.runs", ())) == (
        "halted",
        "Nondeterminism",
    )


def test_a_pause_of_a_run_that_is_cancelled(conn: Connection, clock: Clock) -> None:
    """A pause does not stop the grace."""
    begin_run(conn, "r")
    ask(conn, cancel("r"))
    ask(conn, PAUSE)
    assert state(conn) == "cancelling"
    clock.advance(GRACE_MS)
    tick(conn)
    assert state(conn) == "cancelled"


@pytest.mark.parametrize("verb", ["pause", "resume", "redrive"])
def test_missing_and_ended_runs_cannot_be_steered(conn: Connection, verb: str) -> None:
    """There must be such a run, and it must not have ended."""
    ask(conn, create("x", external="true"))
    take_turn(conn, "W", report(begin_run(conn, "r"), end=complete()))
    call = f"select durable.{verb}(%s)"
    assert refusal(conn, (call, ("nobody",))) == "WF001"
    assert refusal(conn, (call, ("x",))) == "WF001"
    assert refusal(conn, (call, ("r",))) == "WF003"


@pytest.mark.parametrize(
    ("id_", "words"),
    [
        ("nobody", "There is no promise 'nobody'"),
        ("x", "There is no run 'x'"),
        ("r", "Run 'r' has ended: resolved"),
        ("s", "Run 's' is not set aside: it goes on by itself"),
    ],
)
def test_resume_says_why_not(conn: Connection, id_: str, words: str) -> None:
    """Who resumes what cannot go on is told in terms of runs, with a query that shows more."""
    ask(conn, create("x", external="true"))
    take_turn(conn, "W", report(begin_run(conn, "r"), end=complete()))
    begin_run(conn, "s")
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute("select durable.resume(%s)", (id_,))
    assert words in (caught.value.diag.message_primary or "")
    if id_ in ("r", "s"):
        assert conn.execute((caught.value.diag.message_hint or "").encode()).fetchall()


@pytest.mark.parametrize("verb", ["resume", "redrive"])
def test_only_what_is_set_aside_goes_on(conn: Connection, verb: str) -> None:
    """A run that is not set aside is told of."""
    begin_run(conn, "r")
    assert refusal(conn, (f"select durable.{verb}('r')", ())) == "WF003"


def test_redrive_revives_the_dead(conn: Connection, clock: Clock) -> None:
    """All dead runs are ready again, their crashes forgotten; paused and halted ones stay where they are."""
    die(conn, clock, "a")
    die(conn, clock, "b")
    begin_run(conn, "r")
    ask(conn, PAUSE)
    assert ask(conn, REDRIVE) == (2,)
    assert states(conn) == {"a": "queued", "b": "queued", "r": "paused"}
    assert conn.execute("select distinct crashes from durable._tasks").fetchall() == [(0,)]
    assert ask(conn, REDRIVE) == (0,)


def test_redrive_of_one(conn: Connection, clock: Clock) -> None:
    """One dead run is revived, the other stays dead; a halted one that is not dead is refused."""
    die(conn, clock, "a")
    die(conn, clock, "b")
    assert ask(conn, ("select durable.redrive('a')", ())) == (1,)
    assert states(conn) == {"a": "queued", "b": "dead"}
    ask(conn, ("select durable.resume('b')", ()))
    assert states(conn)["b"] == "queued"
    begin_run(conn, "r")
    ask(conn, PAUSE)
    assert refusal(conn, ("select durable.redrive('r')", ())) == "WF003"


def test_redrive_skips_runs_past_their_deadline(conn: Connection, clock: Clock) -> None:
    """A dead run past its deadline does not keep the others from being revived."""
    die(conn, clock, "b")
    ask(conn, start("r", queue="late", timeout="1 hour"))
    claim(conn, "W", "late")
    clock.advance(TTL_MS)
    tick(conn)
    assert state(conn) == "dead"
    clock.advance(3_600_000)
    assert ask(conn, REDRIVE) == (1,)
