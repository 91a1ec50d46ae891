"""What the commands that steer a run answer, on runs that a worker without code plays."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest

from pyengine.core.protocol.commands import StepOutcome
from pyengine.core.worker.attempts import pause

Connection = psycopg.Connection[Any]


@pytest.fixture
def order(conn: Connection) -> str:
    """A run that nobody has taken yet."""
    conn.execute("select durable.start('order', '[1]', id => 'order-42')")
    return "order-42"


def state(conn: Connection, id: str) -> str:
    """State of a run."""
    row = conn.execute("select state from durable.runs where id = %s", (id,)).fetchone()
    return str(row and row[0])


def test_signal_prints_its_number(at_database: Any, conn: Connection, order: str) -> None:
    """A signal answers its number among those of its name; the same key is the same signal."""
    first = at_database("signal", order, "approve", '{"ok": true}', "--json")
    assert (first.code, first.document) == (0, {"id": order, "signal": "approve", "delivery": 1})
    for _ in range(2):
        assert "number 2" in at_database("signal", order, "approve", "--dedup", "k").out
    rows = conn.execute("select delivery, data::jsonb from durable._signals order by 1").fetchall()
    assert rows == [(1, {"ok": True}), (2, None)]


def test_cancel_ends_what_never_ran(at_database: Any, conn: Connection, order: str) -> None:
    """A cancel answers the run as it is then; its reason is kept; a second one is no error."""
    answer = at_database("cancel", order, "--reason", "customer called", "--grace", "5s", "--json")
    assert (answer.code, answer.document["state"]) == (0, "cancelled")
    assert "customer called" in answer.document["error"]["message"]
    again = at_database("cancel", order, "--force")
    assert (again.code, again.out.strip()) == (0, f"{order}  cancelled")


def test_cancel_lets_code_clean_up(at_database: Any, player: Any, order: str) -> None:
    """A run that has begun is cancelling until its code or the grace is done; --force ends it at once."""
    (task,) = player.claim("order")
    player.report(task)
    asked = at_database("cancel", order)
    assert (asked.code, asked.out.strip()) == (0, f"{order}  cancelling")
    assert f"pyengine why {order}; to end it now: pyengine cancel {order} --force" in asked.err
    assert at_database("cancel", order, "--json").document["state"] == "cancelling"
    assert at_database("cancel", order, "--force", "--json").document["state"] == "cancelled"


def test_a_run_that_paused_by_itself(at_database: Any, player: Any, order: str) -> None:
    """A step that used up its attempts paused it: `ps` and `show` have the state and the reason, and it goes
    on as one that a person paused."""
    error = '{"type": "OSError", "message": "the bank is closed"}'
    failure = StepOutcome(child=0, name="charge", hash="ab" * 8, attempt=1, error=error, retry_in_ms=0)
    policy = '{"max_attempts": 1, "on_exhausted": "pause"}'
    outcome = {**msgspec.to_builtins(failure), "retry": policy}
    (task,) = player.claim("order")
    player.report(task, outcomes=[outcome], end={"do": "halt", "problem": pause([failure]).problem})
    reason = "step charge failed in attempt 1: OSError: the bank"
    assert reason in at_database("ps", "--state", "paused").out
    assert f"{reason} is closed" in " ".join(at_database("show", order).out.split())
    assert at_database("resume", order, "--json").document["state"] == "queued"
    (task,) = player.claim("order")
    assert [row[1] for row in task["rows"]].count("first_attempt_failed") == 1


def test_pause_resume_and_redrive(at_database: Any, conn: Connection, order: str) -> None:
    """A paused run says how it goes on; a dead one is revived by its id or with all others."""
    answer = at_database("pause", order)
    assert (answer.code, answer.out.strip()) == (0, f"{order}  paused")
    assert f"pyengine resume {order}" in answer.err
    assert at_database("ps", "--state", "paused", "--json").document[0]["id"] == order
    assert at_database("resume", order, "--json").document["state"] == "queued"
    for words in ([order], ["--all"]):
        conn.execute(
            'select durable._halt_runs(array[%s], array[\'{"type": "Crashed"}\'], durable._now_ms())',
            (order,),
        )
        assert state(conn, order) == "dead"
        listed = at_database("redrive", *words, "--dry-run", "--json")
        assert (listed.code, listed.document) == (0, [order])
        assert at_database("redrive", *words, "--json").document["redriven"] == 1
        assert state(conn, order) == "queued"
    assert at_database("redrive", "--all").out.strip() == "0 dead runs redriven"


def test_a_start_is_moved_and_a_run_deleted(at_database: Any, conn: Connection, order: str) -> None:
    """A start is moved to later and back to now; a run is deleted once it has ended and --yes is given."""
    assert at_database("reschedule", order, "--delay", "1h", "--json").document["state"] == "scheduled"
    assert at_database("reschedule", order, "--at", "2001-01-01").out.strip() == f"{order}  queued"
    assert "pyengine show order-42" in at_database("delete", order, "--yes").err
    conn.execute("select durable.cancel(%s, force => true)", (order,))
    assert (at_database("delete", order).code, state(conn, order)) == (2, "cancelled")
    assert at_database("delete", order, "--yes", "--json").document == {"id": order, "deleted": True}


def test_fork_prints_the_new_run(at_database: Any, conn: Connection, player: Any, order: str) -> None:
    """A fork takes over what was done before a step, with values put in place, under an id of its own."""
    (task,) = player.claim("order")
    outcomes = [
        {"child": child, "name": name, "hash": "0123456789abcdef", "attempt": 1, "value": value}
        for child, (name, value) in enumerate((("charge", '{"paid": false}'), ("ship", '"sent"')))
    ]
    player.report(task, outcomes=outcomes, end={"do": "complete", "value": '"done"'})
    words = ("--step", "ship", "--set", 'charge={"paid": true}', "--id", "second")
    answer = at_database("fork", order, *words, "--json")
    assert (answer.code, answer.document["id"], answer.document["state"]) == (0, "second", "queued")
    (task,) = player.claim("order")
    assert [(row[1], row[4], row[6]) for row in task["rows"] if row[2] is not None] == [
        ("step_completed", "charge", '{"paid": true}')
    ]
    taken = at_database("fork", order, "--id", "second")
    assert (taken.code, "Id 'second' is taken" in taken.err) == (6, True)
    assert state(conn, order) == "completed"


def test_as_of_shows_an_earlier_moment(at_database: Any, player: Any, order: str) -> None:
    """A run is shown as it was after so many events: its children and their values, what it waited for."""
    (task,) = player.claim("order")
    step = {"child": 0, "name": "charge", "hash": "0123456789abcdef", "attempt": 1, "value": '{"paid": true}'}
    player.report(task, outcomes=[step], commands=[{"do": "promise", "child": 1, "name": "go"}])
    player.report(task, end={"do": "suspend", "on": [1], "kind": "single"})
    at_database("signal", order, "ping")
    first = at_database("as-of", order, "--seq", "1", "--json")
    assert (first.code, first.document["status"], first.document["children"]) == (0, "running", {})
    now = at_database("as-of", order).out
    for words in ("blocked after 7 events", "waits for order-42.1", "charge  resolved", '{"paid": true}'):
        assert words in now
    assert "signal ping: 1 delivered, 0 received" in now
    again = at_database("as-of", order, "--at", first.document["at"], "--json")
    assert again.code == 0


WRONG = (
    (["signal", "order-42", "approve", "yes"], 2, "pyengine signal order-42 approve '{\"ok\": true}'"),
    (["signal", "order-42", ""], 2, "pyengine signal --help"),
    (["signal", "order-42", "x" * 300], 2, "pyengine signal --help"),
    (["cancel", "order-42", "--grace", "soon"], 2, '"30s"'),
    (["redrive"], 2, "pyengine ps --state dead"),
    (["redrive", "order-42", "--all"], 2, "pyengine ps --state dead"),
    (["redrive", "order-42"], 6, "pyengine show order-42"),
    (["reschedule", "order-42"], 2, "pyengine reschedule order-42 --delay 2h"),
    (["reschedule", "order-42", "--at", "infinity"], 2, "pyengine reschedule --help"),
    (["reschedule", "nowhere", "--delay", "1h"], 3, "pyengine ps --all"),
    (["delete", "order-42", "--yes"], 6, "pyengine show order-42"),
    (["delete", "nowhere", "--yes"], 3, "pyengine ps --all"),
    (["fork-many", "order-42"], 2, "pyengine fork-many"),
    (["resume", "order-42"], 6, "pyengine show order-42"),
    (["fork", "order-42", "--seq", "900"], 2, "pyengine fork --help"),
    (["fork", "order-42", "--seq", "1", "--step", "charge"], 2, "leave out"),
    (["fork", "order-42", "--step", "charge"], 3, "pyengine show order-42"),
    (["fork", "order-42", "--set", "charge"], 2, "pyengine fork order-42 --step charge"),
    (["fork", "order-42", "--set", "charge=x"], 2, "pyengine fork order-42 --step charge"),
    (["fork", "order-42", "--set", "charge=1"], 2, "pyengine fork --help"),
    (["signal", "nowhere", "x"], 3, "pyengine ps --all"),
    (["cancel", "nowhere"], 3, "pyengine ps --all"),
    (["pause", "nowhere"], 3, "pyengine ps --all"),
    (["resume", "nowhere"], 3, "pyengine ps --all"),
    (["redrive", "nowhere"], 3, "pyengine ps --all"),
    (["as-of", "order-42", "--seq", "900"], 2, "pyengine as-of --help"),
    (["as-of", "order-42", "--at", "2001-01-01"], 2, "pyengine as-of --help"),
    (["as-of", "order-42", "--at", "soonish"], 2, "pyengine as-of --help"),
    (["as-of", "nowhere"], 3, "pyengine ps --all"),
    (["fork", "nowhere"], 3, "pyengine ps --all"),
)


def test_refusals_name_the_next_command(at_database: Any, conn: Connection, order: str) -> None:
    """Every refusal exits with its code and one or two lines, the last of which is what to type or to change;
    with --json the same in one document; the run stays as it was.
    """
    for words, code, said in WRONG:
        answer = at_database(*words)
        assert (words, answer.code, answer.out) == (words, code, "")
        assert (words, said in answer.err.splitlines()[-1], len(answer.err.splitlines())) == (words, True, 2)
        document = at_database(*words, "--json").document
        assert (document["error"]["exit_code"], said in document["error"]["hint"]) == (code, True)
    assert state(conn, order) == "queued"


def test_conflicts_name_the_state(at_database: Any, conn: Connection, order: str) -> None:
    """A conflict names the state that is in the way."""
    conn.execute("select durable.cancel(%s, force => true)", (order,))
    conn.execute("select durable.start('order', '[1]', id => 'done')")
    conn.execute("select durable._settle_promise('done', 'resolved', '1', null)")
    for words in (["signal", "done", "x"], ["cancel", "done"], ["pause", "done"], ["resume", "done"]):
        answer = at_database(*words)
        assert (words, answer.code, "run 'done' is completed" in answer.err) == (words, 6, True)
    assert "run 'order-42' is cancelled" in at_database("signal", order, "x").err
