"""What ``pyengine check`` answers: of everything, of one run, of what happened since."""

from __future__ import annotations

import io
import sys
from typing import Any

import psycopg
import pytest


def broken(answer: Any) -> set[tuple[str, str]]:
    """Law and object of each line."""
    return {(row["law"], row["id"]) for row in answer.document}


def start(conn: psycopg.Connection[Any], *names: str) -> None:
    """Runs that nobody serves."""
    for name in names:
        conn.execute("select durable.start('hello', '[]', id => %s)", (name,))


def test_check_is_empty(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A healthy database breaks no law: exit 0 and an empty list, whatever is asked for."""
    start(conn, "a")
    for words in ([], ["a"], ["--since", "1h"]):
        answer = at_database("check", *words, "--json")
        assert (answer.code, answer.document) == (0, [])
    assert "no law is broken" in at_database("check").out


@pytest.mark.unlawful
def test_check_names_a_broken_law(at_database: Any, conn: psycopg.Connection[Any]) -> None:
    """A broken law exits 1 and is named with its object; one run is looked at alone, and what began since."""
    start(conn, "a", "b", "c")
    conn.execute("delete from durable._tasks where id in ('a', 'b')")
    conn.execute(
        "with promise as (update durable._promises set created_at = 1 where id = 'b'),"
        " head as (update durable._executions h set last_at = 1 where h.id = 'b' returning h.execution)"
        " update durable._journal j set ts = 1 from head h where h.execution = j.execution"
    )
    answer = at_database("check")
    assert answer.code == 1
    assert "orphan_invokes" in answer.out
    laws = ("consistent_task_iff_targeted_promise", "orphan_invokes")
    assert broken(at_database("check", "--json")) == {(law, id_) for law in laws for id_ in "ab"}
    assert broken(at_database("check", "b", "--json")) == {(law, "b") for law in laws}
    assert broken(at_database("check", "--since", "1h", "--json")) == {(law, "a") for law in laws}
    assert at_database("check", "c").code == 0


def test_what_cannot_be_checked(at_database: Any) -> None:
    """An id that is not there, what is no age, and two questions at once are refused."""
    assert at_database("check", "nobody").code == 3
    assert at_database("check", "--since", "soon").code == 2
    assert at_database("check", "a", "--since", "1h").code == 2


def test_a_check_shows_its_progress(
    at_database: Any, conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal each portion is told beside the answer, and wiped away in the end; the answer is one
    document."""

    class Terminal(io.StringIO):
        """A stream that somebody looks at."""

        def isatty(self) -> bool:
            """Somebody does."""
            return True

    start(conn, "a")
    conn.execute("vacuum analyze durable._executions")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert at_database("check", "--json").document == []
    assert "checked 1 runs, 0 promises" in screen.getvalue()
    assert "checked 1 runs, 1 promises" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")
