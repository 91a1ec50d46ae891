"""What ``pyengine start|ps|show`` answer, on runs that a worker without code plays."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from pyengine.core.values.codec import input_hash


def step(child: int, name: str, **outcome: Any) -> dict[str, Any]:
    """One outcome of a local step."""
    return {"child": child, "name": name, "hash": "0123456789abcdef", "attempt": 1} | outcome


@pytest.fixture
def finished(conn: psycopg.Connection[Any], player: Any) -> str:
    """A run with a step and a child run, both done."""
    conn.execute("select durable.start('parent', '[1]', id => 'order')")
    (task,) = player.claim("parent")
    child = {
        "do": "run",
        "child": 1,
        "name": "ship",
        "version": "1",
        "hash": input_hash("ship", "[2]"),
        "param": "[2]",
    }
    player.report(task, outcomes=[step(0, "charge", value='{"paid": true}')])
    player.report(task, commands=[child], end={"do": "suspend", "on": [1], "kind": "single"})
    (shipped,) = player.claim("ship")
    player.report(shipped, end={"do": "complete", "value": '"sent"'})
    (task,) = player.claim("parent")
    player.report(task, end={"do": "complete", "value": '["done"]'})
    return "order"


def test_start_answers_the_id(at_database: Any, player: Any) -> None:
    """A start answers id and state, and the same id again is the same run."""
    player.hello("hello")
    first = at_database("start", "hello", '["world"]', "--id", "a", "--json")
    assert (first.code, first.document["id"], first.document["state"]) == (0, "a", "queued")
    assert at_database("start", "hello", '["world"]', "--id", "a", "--json").document["id"] == "a"
    assert "a  queued" in at_database("start", "hello", '["world"]', "--id", "a").out


def test_start_goes_to_the_declared_queue(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """Without --queue that is where the worker of the workflow looks."""
    conn.execute(
        "select durable.worker_hello_v1('w', '{default}', '{report}', '{1}', '{}', null, null, '{reports}')"
    )
    assert at_database("start", "report", "--json").document["queue"] == "reports"
    assert at_database("start", "report", "--queue", "default", "--json").document["queue"] == "default"


def test_start_of_another_input_is_a_conflict(at_database: Any, player: Any) -> None:
    """The same id with other input exits 6 and names the run."""
    player.hello("hello")
    at_database("start", "hello", '["world"]', "--id", "a")
    again = at_database("start", "hello", '["you"]', "--id", "a")
    assert again.code == 6
    assert "Run 'a' exists with another input" in again.err


WRONG = (
    (["start", "hello", "world"], "not JSON"),
    (["start", "hello", "3"], "JSON array"),
    (["start", "hello", "[]", "--id", ""], "1 to"),
    (["start", "hello", "[]", "--id", "x" * 2000], "this one has 2000"),
    (["start", "hello", "[]", "--id", "x" * 600], "512 bytes"),
    (["start", "hello", "[]", "--queue", "a/b"], "not a queue name"),
    (["start", "", "[]"], "1 to 256 bytes"),
    (["start", "hello", '["\\u0000"]'], "u0000"),
    (["ps", "--state", "asleep"], "no state"),
    (["ps", "--limit", "0"], "limit"),
    (["show", ""], "this one has 0"),
    (["show", "x" * 5000], "this one has 5000"),
    (["show"], "'id'"),
    (["frobnicate"], "frobnicate"),
    (["db", "set", "lease_ttl_ms", "soon"], "whole number"),
)


def test_usage_errors_are_two_lines(at_database: Any) -> None:
    """Wrong arguments exit 2 with one or two lines: what is wrong, and what to type."""
    for words, said in WRONG:
        answer = at_database(*words)
        assert (words, answer.code, answer.out) == (words, 2, "")
        assert said.lower() in answer.err.lower()
        assert len(answer.err.strip().splitlines()) <= 2
        as_json = at_database(*words, "--json")
        assert (words, as_json.code, as_json.err) == (words, 2, "")
        assert as_json.document["error"]["message"]


def test_missing_things_are_named(at_database: Any, player: Any) -> None:
    """Unknown run, workflow and setting exit 3; what is near is offered."""
    player.hello("hello", "goodbye")
    assert "no run 'nowhere'" in at_database("show", "nowhere").err
    slip = at_database("start", "helo", "[]")
    assert (slip.code, "did you mean hello?" in slip.err) == (3, True)
    assert at_database("start", "helo", "[]", "--anyway").code == 0
    assert at_database("ps", "--workflow", "nothing").code == 3
    setting = at_database("db", "set", "lease_ttl", "3")
    assert (setting.code, "lease_ttl_ms" in setting.err) == (3, True)


def test_start_without_workers_prints_a_warning(at_database: Any) -> None:
    """Where no worker was ever seen, a run is started and people are told what it waits for."""
    answer = at_database("start", "hello", "[]")
    assert answer.code == 0
    assert "pyengine worker" in answer.err


def test_start_of_a_version_without_workers_prints_why(at_database: Any, player: Any) -> None:
    """The workers that there are serve another version, or another queue."""
    player.hello("hello")
    for option, value, says in (
        ("--workflow-version", "2", "no worker serves hello version 2"),
        ("--queue", "reprots", "no worker serves queue reprots"),
    ):
        answer = at_database("start", "hello", "[]", option, value)
        assert (answer.code, says in answer.err) == (0, True)
    assert at_database("start", "hello", "[]").err == ""


def test_far_dates_are_no_obstacle(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A date that Python has no year for, given by somebody in SQL, keeps nobody from listing runs."""
    conn.execute("select durable.start('ship', id => 'late', timeout => '9000 years')")
    conn.execute("select durable.start('ship', id => 'never', delay => '290000 years')")
    listed = {run["id"]: run for run in at_database("ps", "--json").document}
    assert (listed["late"]["deadline"], listed["never"]["not_before"]) == (None, None)
    assert at_database("show", "late").code == 0


@pytest.mark.parametrize("text", ["[" * 6000 + "]" * 6000, '{"a":' * 300 + "1" + "}" * 300])
def test_deep_json_is_no_obstacle(
    at_database: Any, conn: psycopg.Connection[Any], player: Any, text: str
) -> None:
    """A payload that is nested too deeply for Python, wherever it is stored, is shown as its text, and keeps
    nobody from listing runs."""
    player.hello("ship")
    for id in ("open", "good", "bad"):
        at_database("start", "ship", "[]", "--id", id)
    conn.execute("select durable._settle_promise('good', 'resolved', '1', null)")
    conn.execute("select durable._settle_promise('bad', 'rejected', '1', null)")
    # no door takes it any more, but it may have come in before
    conn.execute("update durable._promises set param_data = %s", (text,))
    conn.execute("update durable._promises set value_data = %s where state <> 'pending'", (text,))
    listed = {run["id"]: run for run in at_database("ps", "-a", "--json").document}
    shown = (listed["open"]["args"], listed["good"]["result"])
    assert [each.replace(" ", "") for each in shown] == [text] * 2
    assert listed["bad"]["error"].replace(" ", "") == text
    for words in (["ps", "-a"], ["ps", "-s", "failed"], ["show", "bad"], ["show", "good", "--json"]):
        answer = at_database(*words)
        assert (words, answer.code, answer.err) == (words, 0, "")
    conn.execute("update durable._promises set param_data = '[]'")


def test_ps_lists_roots_and_filters(at_database: Any, finished: str) -> None:
    """Without a filter, the runs that people started; with one, or with --all, children too."""
    assert [run["id"] for run in at_database("ps", "--json").document] == ["order"]
    assert [run["id"] for run in at_database("ps", "--all", "--json").document] == ["order.1", "order"]
    assert [run["id"] for run in at_database("ps", "-w", "ship", "--json").document] == ["order.1"]
    assert at_database("ps", "-s", "failed", "--json").document == []
    shown = at_database("ps").out
    assert "order" in shown
    assert "completed" in shown


def test_show_prints_the_whole_run(at_database: Any, finished: str) -> None:
    """A run is shown with its children and one line for each thing that happened."""
    document = at_database("show", finished, "--json").document
    assert document["run"]["result"] == ["done"]
    assert [child["id"] for child in document["children"]] == ["order.1"]
    assert [event["seq"] for event in document["journal"]] == list(range(len(document["journal"])))
    shown = at_database("show", finished).out
    for words in (
        "started with",
        "step charge [0] done",
        "child run ship [1] started",
        "waits for",
        "completed",
    ):
        assert words in shown
    assert '{"paid": true}' in shown


def test_wait_prints_the_end(at_database: Any, player: Any) -> None:
    """--wait exits 0 with the result of a completed run and 1 for a failed one."""
    player.hello("hello")
    for id, end in (
        ("good", {"do": "complete", "value": '"hi"'}),
        ("bad", {"do": "fail", "error": '{"type": "Oops"}'}),
    ):
        at_database("start", "hello", "[]", "--id", id)
        (task,) = player.claim("hello")
        player.report(task, end=end)
    good = at_database("start", "hello", "[]", "--id", "good", "--wait", "--json")
    assert (good.code, good.document["result"]) == (0, "hi")
    bad = at_database("start", "hello", "[]", "--id", "bad", "--wait")
    assert (bad.code, "Oops" in bad.out) == (1, True)
    late = at_database("start", "hello", "[]", "--id", "late", "--wait", "--timeout", "0")
    assert (late.code, "pyengine show late" in late.err) == (1, True)


def test_wait_stops_at_a_halted_run(at_database: Any, player: Any) -> None:
    """A halted run is not waited for: what it is halted for is shown."""
    player.hello("hello")
    at_database("start", "hello", "[]", "--id", "a")
    (task,) = player.claim("hello")
    player.report(
        task, end={"do": "halt", "problem": '{"type": "NondeterminismError", "message": "other code"}'}
    )
    answer = at_database("start", "hello", "[]", "--id", "a", "--wait")
    assert answer.code == 1
    assert "other code" in answer.out


def test_foreign_text_is_no_markup(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """Ids and values reach the terminal as they are: neither markup nor control characters."""
    id = "[red]x[/red]\x1b[31m"
    conn.execute("select durable.start('hello', %s::jsonb, id => %s)", (json.dumps([id]), id))
    for words in (["ps"], ["show", id]):
        answer = at_database(*words)
        assert answer.code == 0
        assert "[red]x[/red]" in answer.out
        assert "\x1b" not in answer.out


def test_show_lists_earlier_journals(at_database: Any, conn: psycopg.Connection[Any], player: Any) -> None:
    """Of a run that failed and was tried again, and continued as new; a run with one journal has no list."""
    conn.execute("select durable.start('shaky', '[1]', id => 'shaky-1')")
    assert "earlier journals" not in at_database("show", "shaky-1").out
    again = {"do": "continue", "value": "[1]", "on": [0]}
    (task,) = player.claim("shaky")
    player.report(task, end=again | {"error": '{"type": "Boom", "message": "no luck"}', "retry_in": 0})
    (task,) = player.claim("shaky")
    player.report(task, end=again)
    shown = at_database("show", "shaky-1").out.partition("earlier journals")[2].splitlines()
    assert "attempt 1  Boom: no luck" in shown[1] and "continued as new" in shown[2]
    document = at_database("show", "shaky-1", "--json").document["generations"]
    assert [(one["attempt"], one["status"]) for one in document] == [
        (1, "failed"),
        (2, "completed"),
        (1, "running"),
    ]


def test_start_sets_tags(at_database: Any, player: Any) -> None:
    """By --tag, once for each; ps finds the run by them."""
    started = at_database("start", "tagged", "--anyway", "--tag", "customer=7", "--tag", "kind=", "--json")
    assert started.document["tags"] == {"customer": "7", "kind": ""}
    found = at_database("ps", "--where", "tags.customer=7", "--json").document
    assert [run["id"] for run in found] == [started.document["id"]]
    refused = at_database("start", "tagged", "--anyway", "--tag", "customer")
    assert refused.code == 2 and "KEY=VALUE" in refused.err
