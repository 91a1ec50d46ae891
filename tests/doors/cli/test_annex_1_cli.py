"""Typical mistakes of newcomers at the command line, rows 28 to 30 of the list, and the sentences that answer
them. The other rows are in tests/system/mistakes.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.doors.cli.conftest import Command

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://u:secret@127.0.0.1:1/x", "no connection to 127.0.0.1:1/x (from --database-url)"),
        ("mysql://u:secret@h/x", "does not begin with postgresql://"),
    ],
)
def test_row_28_a_database_that_is_not_there(pyengine: Command, url: str, text: str) -> None:
    """One sentence and one hint, without a stack and without the password."""
    answer = pyengine("--database-url", url, "ps")
    assert answer.code == 4 and text in answer.err and "\nhint: " in answer.err
    assert "secret" not in answer.err and "Traceback" not in answer.err


def test_row_29_a_database_without_the_schema(at_database: Command, conn: Connection) -> None:
    """The hint is the command to type."""
    conn.execute("drop schema durable cascade")
    answer = at_database("ps")
    assert (answer.code, answer.err) == (
        5,
        "error: this database has no schema durable\nhint: pyengine db init\n",
    )


def test_row_30_no_worker(at_database: Command) -> None:
    """The start says which command the run waits for; why and show say it later."""
    answer = at_database("start", "flow", "--id", "a")
    assert answer.out == "a  queued\n"
    assert (
        answer.err == "no worker that serves flow is running; the run waits for: pyengine worker MODULE:APP\n"
    )
    for command in ("why", "show"):
        first, second, *_ = at_database(command, "a").out.splitlines()
        assert first == "a" and second.startswith("  no worker runs; flow is queued in default since ")
