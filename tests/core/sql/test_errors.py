"""Law: every failure that has a name has one SQLSTATE of class WF, a message that is a sentence and names
the object, a hint, and no detail."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from tests.support.verbs import Call, Connection

FAILURES: dict[str, tuple[Call, str]] = {
    "WF001": (("select durable._fail_not_found('run', 'r1')", ()), "'r1'"),
    "WF002": (("select durable._fail_lease_lost('t1', 7)", ()), "'t1' is not acquired at version 7"),
    "WF003": (("select durable._fail_conflict('It is so.')", ()), "It is so."),
    "WF004": (("select durable._fail_invalid('It is bad.')", ()), "It is bad."),
    "WF005": (("select durable._fail_not_awaitable('p1')", ()), "'p1'"),
    "WF006": (
        ("select durable._fail_append('r1', 'InvokeStarted of r1.4', 'why')", ()),
        "Run 'r1', InvokeStarted of r1.4: why.",
    ),
    "WF008": (("select durable._fail_too_large('Input', 11, 10)", ()), "Input has 11 bytes, the limit is 10"),
    "WF009": (("select durable._fail_run_conflict('r1', 'input')", ()), "'r1' exists with another input"),
    "WF010": (("select durable._fail_not_targeted('p1')", ()), "'p1'"),
    "WF011": (("select durable._fail_forbidden('It is off.')", ()), "It is off."),
    "WF012": (
        ("select durable._fail_await_cycle(array['a', 'b', 'a'])", ()),
        "a -> b -> a would wait for itself",
    ),
    "WF013": (("select durable._fail_no_route('x:y', '{batch}')", ()), "function 'x:y'"),
    "WF014": (
        ("select durable._fail_input_unresolved(sha256('a'), 'pending')", ()),
        "bb has no value: pending",
    ),
    "WF015": (("select durable._fail_excised(sha256('a'))", ()), "Object ca978112ca1bbdcafac231b39a23dc4"),
    "WF016": (("select durable._fail_not_adopted()", ()), "was adopted on another server"),
}
RAISED_BY_PROGRAMS = {"WF007"}


@pytest.mark.parametrize("code", FAILURES)
def test_a_failure_says_what_where_and_what_next(conn: Connection, code: str) -> None:
    """Code, a sentence with the object, a hint; the first line that psql prints says all of it once."""
    call, words = FAILURES[code]
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(call[0].encode())
    assert caught.value.sqlstate == code
    assert words in (caught.value.diag.message_primary or "")
    assert caught.value.diag.message_hint and not caught.value.diag.message_detail


def test_the_catalogue_of_codes_is_complete(conn: Connection) -> None:
    """durable.error_codes() lists every code once, none of them retryable by blind repetition."""
    rows = conn.execute("select code, retryable from durable.error_codes()").fetchall()
    assert [code for code, _ in rows] == sorted({*FAILURES, *RAISED_BY_PROGRAMS})
    assert not any(retryable for _, retryable in rows)


LOGIC = Path(__file__).parents[3] / "sql" / "logic"


def class_handlers(text: str) -> list[str]:
    """Codes that PL/pgSQL takes for a whole class of errors: those that end with three zeros."""
    return re.findall(r"(?:sqlstate|errcode =) '(\w{2}000)'", text)


def test_no_handler_catches_a_whole_class() -> None:
    """A code that ends with 000 stands for its class in `exception when`, so none is raised or caught: a loop
    that begins anew by it would catch every refusal, and never end.
    """
    files = {path.name: path.read_text(encoding="utf-8") for path in LOGIC.rglob("*.sql")}
    assert {name: found for name, text in files.items() if (found := class_handlers(text))} == {}
    assert class_handlers("exception when sqlstate 'WF000' then") == ["WF000"]
