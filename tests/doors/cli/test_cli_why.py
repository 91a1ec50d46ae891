"""What ``pyengine why`` answers: of one run, of all, of an id that is none."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pyengine.core.values.codec import input_hash


@pytest.fixture
def parent(conn: psycopg.Connection[Any], player: Any) -> str:
    """A run that waits for a child run, whose queue nobody serves."""
    player.hello("parent")
    conn.execute("select durable.start('parent', id => 'order')")
    (task,) = player.claim("parent")
    about = {
        "name": "ship",
        "version": "1",
        "hash": input_hash("ship", "[2]"),
        "param": "[2]",
        "queue": "kids",
    }
    command = {"do": "run", "child": 0, "hash": input_hash("ship", "[2]"), **about}
    player.report(task, commands=[command], end={"do": "suspend", "on": [0], "kind": "single"})
    return "order"


def test_causes_stand_below_each_other(at_database: Any, parent: str) -> None:
    """Each line is a sentence; what a run waits for stands below it with its id."""
    answer = at_database("why", parent)
    assert answer.code == 0
    first, second, third = answer.out.splitlines()
    assert first == "order"
    assert second.startswith("  waits for child run ship [0] since ")
    assert third == "    order.0: no worker serves queue kids; 1 worker serves default"


def test_a_schedule_is_no_beginning_of_its_run(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """Its id is its own, also where one run alone begins so."""
    plan = "'nightly', '0 3 * * *', workflow => 'report', any_workflow => true"
    conn.execute(f"select durable.schedule({plan}), durable.trigger_schedule('nightly')".encode())
    first, second, *_ = at_database("why", "nightly").out.splitlines()
    assert first == "nightly" and second.startswith("  is a schedule (0 3 * * *, UTC)")


def test_causes_as_json(at_database: Any, parent: str) -> None:
    """The rows of durable.why."""
    rows = at_database("why", parent, "--json").document
    assert [(row["depth"], row["id"], row["cause"]) for row in rows] == [
        (0, "order", "child"),
        (1, "order.0", "no_worker_for_queue"),
    ]
    assert rows[1]["details"]["queue"] == "kids"


def test_all_runs_by_cause(at_database: Any, parent: str) -> None:
    """One line for each cause; nothing waits in an empty database."""
    answer = at_database("why", "--all")
    assert answer.code == 0
    header, *lines = answer.out.splitlines()
    assert header.split() == ["CAUSE", "NAME", "RUNS", "OLDEST", "EXAMPLE"]
    assert sorted(line.split()[0] for line in lines) == ["child", "no_worker_for_queue"]
    assert len(at_database("why", "--all", "--json").document) == 2


def test_nothing_waits(at_database: Any) -> None:
    """An empty database says so."""
    assert at_database("why", "--all").out == "no run waits\n"


def test_an_id_that_is_none(at_database: Any, parent: str) -> None:
    """A mistyped id exits 3 and names the one that was meant; neither id nor --all is wrong usage."""
    answer = at_database("why", "ordre")
    assert answer.code == 3
    assert "near are order" in answer.err
    assert at_database("why").code == 2
    assert at_database("why", "order", "--all").code == 2


def test_show_begins_with_the_causes(at_database: Any, parent: str) -> None:
    """The first lines below the id are those of pyengine why; the document has the rows."""
    first, *lines = at_database("show", parent).out.splitlines()
    assert first == "order"
    assert lines[0].startswith("  waits for child run ship [0] since ")
    assert lines[1] == "    order.0: no worker serves queue kids; 1 worker serves default"
    assert [row["cause"] for row in at_database("show", parent, "--json").document["why"]] == [
        *("child", "no_worker_for_queue"),
    ]


def test_several_runs(at_database: Any, conn: psycopg.Connection[Any], parent: str) -> None:
    """Each run that is named, or that a condition selects, has its block of lines; as JSON, its object."""
    conn.execute("select durable.start('parent', id => 'second')")
    named = at_database("why", "second", parent)
    assert [line for line in named.out.splitlines() if not line.startswith(" ")] == ["second", "order"]
    assert "  is next in queue default since " in named.out
    assert "    order.0: no worker serves queue kids" in named.out
    found = at_database("why", "--where", "workflow=parent", "--json").document
    assert [(one["id"], one["why"][0]["cause"]) for one in found] == [
        ("second", "queued"),
        ("order", "child"),
    ]
    one = at_database("why", "--where", "id=order", "--json").document
    assert [each["id"] for each in one] == ["order"]
    assert len(at_database("why", "--where", "workflow=parent", "--limit", "1", "--json").document) == 1
    assert at_database("why", "--where", "state=dead").out == "no runs\n"
    unknown = at_database("why", parent, "nobody")
    assert (unknown.code, "no run, promise or schedule has this id" in unknown.err) == (3, True)
    for words in (["why", parent, "--all"], ["why", "--all", "--where", "state=dead"], ["why"]):
        assert at_database(*words).code == 2
    assert "stat" in at_database("why", "--where", "stat=x").err
