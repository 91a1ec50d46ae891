"""Law: a command about many runs says what became of each, asks before a filter is let loose, and does what
the verb for many does."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pyengine.doors.cli import steering_many

Connection = psycopg.Connection[Any]


@pytest.fixture
def orders(conn: Connection) -> list[str]:
    """Three runs that nobody has taken yet, and one of another workflow."""
    ids = ["a", "b", "c"]
    for id in ids:
        conn.execute("select durable.start('order', id => %s, tags => %s)", (id, f'{{"lot": "{id}"}}'))
    conn.execute("select durable.start('mail', id => 'other', any_workflow => true)")
    return ids


def states(conn: Connection) -> dict[str, str]:
    """What people read."""
    return dict(conn.execute("select id, state from durable.runs").fetchall())


@pytest.mark.usefixtures("orders")
def test_several_ids(at_database: Any, conn: Connection) -> None:
    """Ids are steered together; one that is not there is told, and the code says that it was."""
    answer = at_database("pause", "a", "b", "none", "--json")
    assert answer.code == 1
    assert answer.document == [
        {"id": "a", "outcome": "done", "state": "paused"},
        {"id": "b", "outcome": "done", "state": "paused"},
        {"id": "none", "outcome": "not_found", "state": None},
    ]
    answer = at_database("resume", "a", "b", "c")
    assert answer.code == 0
    assert "2 done, 1 already" in answer.out
    assert set(states(conn).values()) == {"queued"}


@pytest.mark.usefixtures("orders")
def test_a_filter(at_database: Any, conn: Connection) -> None:
    """A filter is looked at with --dry-run, refused where nobody can be asked, and done with --yes."""
    words = ("cancel", "--workflow", "order", "--state", "queued")
    assert at_database(*words, "--dry-run", "--json").document == ["a", "b", "c"]
    assert at_database(*words, "--dry-run").out.split() == ["a", "b", "c"]
    nothing = at_database("cancel", "--workflow", "nothing", "--dry-run")
    assert (nothing.code, nothing.out, nothing.err.strip()) == (0, "", "the filter selects nothing")
    refused = at_database(*words)
    assert refused.code != 0
    assert "3 runs" in refused.err
    assert "--yes" in refused.err
    assert set(states(conn).values()) == {"queued"}
    assert "3 done" in at_database(*words, "--reason", "late", "--yes").out
    assert states(conn) == {"a": "cancelled", "b": "cancelled", "c": "cancelled", "other": "queued"}
    assert at_database(*words, "--yes", "--json").document == []


@pytest.mark.usefixtures("orders")
def test_large_selections_are_sent_in_batches(
    at_database: Any, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a batch is changed in several transactions, and every outcome is reported."""
    monkeypatch.setattr(steering_many, "BATCH", 2)
    monkeypatch.setattr(steering_many, "LINES", 2)
    words = ("--workflow", "order", "--started-before", "2900-01-01", "--yes")
    answer = at_database("signal-many", "go", '{"n": 1}', *words)
    assert "3 done" in answer.out
    assert "1 more" in answer.out
    sent = (
        "select count(*), count(distinct xmin::text) from durable._signals where data::jsonb = '{\"n\": 1}'"
    )
    assert conn.execute(sent.encode()).fetchone() == (3, 2)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (("--tag", "lot=b"), ["b"]),
        (("--started-after", "2900-01-01"), []),
        (("--started-after", "2000-01-01"), ["a", "b", "c", "other"]),
        (("--state", "paused"), []),
        (("--workflow", "mail"), ["other"]),
    ],
)
def test_filters(at_database: Any, words: tuple[str, ...], ids: list[str]) -> None:
    """Runs are found by tag, state, workflow and when they were started."""
    assert at_database("pause", *words, "--dry-run", "--json").document == ids


def test_settle(at_database: Any, conn: Connection) -> None:
    """Promises are resolved with a value, or rejected with an error."""
    for id in ("p", "q"):
        conn.execute("select durable.create_promise(%s)", (id,))
    assert at_database("settle", "p", "--value", "7").code == 0
    answer = at_database("settle", "p", "q", "--error", '{"type": "No"}', "--json")
    assert (answer.code, [one["outcome"] for one in answer.document]) == (1, ["ended", "done"])
    assert [one["state"] for one in answer.document] == ["resolved", "rejected"]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    "words",
    [
        ("cancel",),
        ("cancel", "a", "--workflow", "order"),
        ("cancel", "--workflow", "order", "--dry-run", "--state", "completed"),
        ("cancel", "--tag", "lot", "--dry-run"),
        ("cancel", "--started-after", "yesterday or so", "--dry-run"),
        ("signal-many", "go", "--id", ""),
        ("signal-many", "go", "{", "--id", "a"),
        ("settle", "p", "--value", "1", "--error", "2"),
    ],
)
def test_refused(at_database: Any, conn: Connection, words: tuple[str, ...]) -> None:
    """What is not clear is refused in a sentence, with something to type, and nothing is done."""
    answer = at_database(*words)
    assert answer.code != 0
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err
    assert set(states(conn).values()) == {"queued"}


def test_ended_runs_are_forked_once(at_database: Any, conn: Connection) -> None:
    """fork-many selects runs that have ended, names each fork, and makes none twice; it asks for its key."""
    for id in ("x", "y"):
        conn.execute("select durable.start('order', id => %s)", (id,))
        conn.execute("select durable.cancel(%s, force => true)", (id,))
    words = ("fork-many", "--state", "cancelled", "--ended-after", "2020-01-01", "--key", "k")
    assert at_database(*words, "--dry-run", "--json").document == ["y", "x"]
    told = at_database(*words, "--yes", "--json").document
    assert [(one["outcome"], one["problem"]) for one in told] == [("done", None)] * 2
    assert states(conn)[told[0]["fork"]] == "queued"
    again = at_database(*words, "--yes")
    assert (again.code, "2 already" in again.out, told[0]["fork"] in again.out) == (0, True, True)
    keyless = at_database("fork-many", "x")
    assert (keyless.code, "--key today" in keyless.err) == (2, True)
    assert at_database("fork-many", "--state", "cancelled", "--dry-run", "--json").document == ["y", "x"]
    twice = at_database("fork-many", "x", "--key", "k", "--seq", "1", "--step", "pay")
    assert (twice.code, "a fork has one position" in twice.err) == (2, True)
    assert "--state failed --dry-run" in at_database("fork-many", "--key", "k").err
    conn.execute("select durable.start('order', id => 'live')")
    living = at_database("fork-many", "live", "--key", "k")
    assert (living.code, "it has not ended" in living.out) == (1, True)
