"""What `pyengine call` answers, on calls that a test plays the adapter of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[Any]
SORT = "dml+exec://local/sort"


def call(conn: Connection, args: Any, scope: str = "exp-7") -> dict[str, Any]:
    """Call the function with plain values."""
    row = conn.execute("select durable.call(%s, %s, scope => %s)", (SORT, Jsonb(args), scope)).fetchone()
    assert row is not None
    found: dict[str, Any] = row[0]
    return found


def play(conn: Connection, **report: Any) -> None:
    """Lease one attempt and report."""
    (document,) = [row[0] for row in conn.execute("select durable.call_lease_v1('w', '{local}', 60000, 1)")]
    conn.execute(
        "select durable.call_report_v1(decode(%s, 'hex'), %s, %s)",
        (document["execution_key"], document["version"], Jsonb(report)),
    )


@pytest.fixture
def sorted_call(conn: Connection) -> str:
    """A call with a result."""
    node = call(conn, [[2, 1]])["node"]
    play(conn, **{"class": "done", "outcome": "ok", "value": {"list": [{"i64": 1}, {"i64": 2}]}})
    return str(node)


def test_psql_calls_with_plain_values(conn: Connection, sorted_call: str) -> None:
    """`durable.call` answers a promise first, then the result in plain JSON, also a failure."""
    found = call(conn, [[2, 1]])
    assert (found["at"], found["status"], found["value"]) == ("pinned_hit", "ok", [1, 2])
    started = call(conn, [[3]])
    assert (started["at"], started["status"]) == ("started", None)
    play(conn, **{"class": "done", "outcome": "error", "error": {"message": "no room", "type": "OSError"}})
    failed = call(conn, [[3]])
    assert (failed["status"], failed["error"]) == ("error", {"message": "no room", "type": "OSError"})


def test_ls_and_show(at_database: Any, conn: Connection, sorted_call: str) -> None:
    """A list of attempts, and one call with inputs, result and attempts; by the first digits too."""
    call(conn, [[9]], scope="other")
    rows = at_database("call", "ls", "--json").document
    assert [(row["state"], row["scope"]) for row in rows] == [
        ("poll_adapter", "other"),
        ("completed_ok", "exp-7"),
    ]
    assert [row["scope"] for row in at_database("call", "ls", "--live", "--json").document] == ["other"]
    assert sorted_call[:12] in at_database("call", "ls", "-s", "exp-7").out
    shown = at_database("call", "show", sorted_call[:8])
    assert shown.code == 0
    for part in (SORT, "input 1: [2,1]", "ok in exp-7: [1,2]", "attempt 0: completed_ok"):
        assert (
            part in shown.out.replace(", ", ",").replace("completed_ok,", "completed_ok") or part in shown.out
        )


def test_show_without_a_value(at_database: Any, conn: Connection, sorted_call: str) -> None:
    """A pin whose result was excised is shown with the reason, and the rest of the call with it."""
    conn.execute("select durable.object_excise(decode(result, 'hex'), 'secret') from durable.pins")
    shown = at_database("call", "show", sorted_call)
    assert (shown.code, "no value: " in shown.out, "attempt 0" in shown.out) == (0, True, True)
    (pin,) = at_database("call", "show", sorted_call, "--json").document["pins"]
    assert (pin["value"], "excised" in pin["problem"]) == (None, True)


def test_push_and_pull(at_database: Any, conn: Connection, tmp_path: Path) -> None:
    """A head goes to a folder; one that is not there names what makes it."""
    url = f"file://{tmp_path}/shared"
    missing = at_database("call", "push", "main", url)
    assert (missing.code, "durable.scope_open" in missing.err) == (3, True)
    conn.execute("select durable.scope_open('main', kind => 'head')")
    pushed = at_database("call", "push", "main", url, "--json").document
    assert (pushed["head"], pushed["version"], len(pushed["commit"])) == ("main", 1, 64)
    pulled = at_database("call", "pull", "main", url)
    assert (pulled.code, pulled.out.strip()) == (0, f"main is {pushed['commit'][:12]}, version 1, here")
    assert at_database("call", "pull", "main", "s3://x").code == 2


def test_a_call_that_nobody_serves_says_so(at_database: Any, conn: Connection) -> None:
    """With what to start; once a worker serves it, the line is gone."""
    node = call(conn, [[1]])["node"]
    line = "it waits: no worker serves local; pyengine adapter worker --adapter local"
    for verb in ("show", "why"):
        assert line in at_database("call", verb, node).out
    assert at_database("call", "show", node, "--json").document["unserved"] == "local"
    conn.execute("select durable.worker_hello_v1('w', '{adapter:local}', '{}', '{}', null)")
    assert "it waits" not in at_database("call", "show", node).out


def test_why_names_the_difference(at_database: Any, conn: Connection, sorted_call: str) -> None:
    """A hit is a hit; a call that would run says which part of which input differs from the nearest."""
    assert at_database("call", "why", sorted_call).out.startswith("hit: pinned hit")
    other = call(conn, [[2, 5]])["node"]
    conn.execute("select durable.call_cancel('exp-7', decode(%s, 'hex'))", (other,))
    answer = at_database("call", "why", other, "-s", "exp-7", "--json").document
    (difference,) = answer["nearest"]["differences"]
    assert (difference["what"], difference["path"]) == ("input 1", "[1]")
    text = at_database("call", "why", other, "-s", "exp-7").out
    assert "input 1[1]: 1 was recorded, 5 is asked" in text
    assert "cancelled" in text


def test_why_names_an_input_that_is_not_there(at_database: Any, conn: Connection, sorted_call: str) -> None:
    """In a scope where an input was never called, that is the reason."""
    row = conn.execute(
        "select durable.call_begin('exp-7', 'dml+exec://local/sum', array[decode(%s, 'hex')]) ->> 'node'",
        (sorted_call,),
    ).fetchone()
    assert row is not None
    conn.execute("select durable.scope_open('empty')")
    answer = at_database("call", "why", row[0], "-s", "empty")
    assert answer.code == 0 and "it was never called in this scope" in answer.out


def test_retry_cancel_invalidate(at_database: Any, conn: Connection, sorted_call: str) -> None:
    """Each answers what it did."""
    again = at_database("call", "retry", sorted_call, "--json").document
    assert (again["at"], again["generation"]) == ("started", 1)
    assert at_database("call", "cancel", sorted_call).out.strip() == f"{sorted_call[:12]}  cancelled"
    assert at_database("call", "cancel", sorted_call).out.strip() == f"{sorted_call[:12]}  not running"
    assert at_database("call", "invalidate", SORT, "--json").document == {"function": SORT, "calls": 1}
    assert call(conn, [[2, 1]], scope="new")["at"] == "started"


def test_plan_counts_and_stores_nothing(
    at_database: Any, conn: Connection, sorted_call: str, tmp_path: Path
) -> None:
    """Hits, joins and runs of calls that are not made."""
    call(conn, [[7]], scope="other")
    path = tmp_path / "calls.json"
    path.write_text(json.dumps([{"function": SORT, "args": [n]} for n in ([2, 1], [7], [8], [9])]))
    before = conn.execute("select count(*) from durable._objects").fetchone()
    answer = at_database("call", "plan", "exp-7", str(path))
    assert answer.out.splitlines()[-1] == "1 hit, 1 join, 2 runs"
    found = at_database("call", "plan", "exp-7", str(path), "--json").document["calls"]
    assert [row["at"] for row in found] == ["pinned_hit", "joined", "started", "started"]
    assert conn.execute("select count(*) from durable._objects").fetchone() == before


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("show", "abcd"), 3, "pyengine call ls"),
        (("show", "xyz"), 2, "pyengine call ls"),
        (("why", "ab"), 2, "pyengine call ls"),
        (("plan", "exp-7", "/nowhere"), 2, "pyengine call plan"),
    ],
)
def test_failures_name_the_next_command(
    at_database: Any, words: tuple[str, ...], code: int, hint: str
) -> None:
    """And have the exit code of their kind."""
    answer = at_database("call", *words)
    assert (answer.code, hint in answer.err) == (code, True), answer.err


def test_a_call_in_several_scopes_needs_one(at_database: Any, conn: Connection, sorted_call: str) -> None:
    """Its scopes are listed."""
    call(conn, [[2, 1]], scope="other")
    answer = at_database("call", "retry", sorted_call)
    assert answer.code == 2
    assert "'exp-7'" in answer.err or "exp-7" in answer.err
    assert "--scope" in answer.err
