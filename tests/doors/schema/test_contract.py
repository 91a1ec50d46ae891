"""Law: Python and the schema mean the same by the same name: statements, SQLSTATEs, and what a public
function is called with."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import TupleRow

from pyengine.core.database.statements import procedures
from pyengine.core.database.statements.procedures import Procedure
from pyengine.errors import ERROR_CODES, EngineError, from_sqlstate
from pyengine.features.checks import statements as journals
from pyengine.features.sql import statements as sql_functions

Connection = psycopg.Connection[TupleRow]

PROCEDURES = {
    name: value
    for name, value in (vars(procedures) | vars(journals) | vars(sql_functions)).items()
    if isinstance(value, Procedure)
}


def refusal(conn: Connection, statement: str) -> str:
    """Why the server cannot prepare a statement under an empty search_path; empty if it can."""
    conn.execute("set search_path = ''")
    result = conn.pgconn.prepare(b"", statement.encode())
    return "" if result.status == psycopg.pq.ExecStatus.COMMAND_OK else result.error_message.decode()


@pytest.mark.parametrize("name", PROCEDURES)
def test_every_procedure_prepares(conn: Connection, name: str) -> None:
    """Each statement of procedures.py names functions, parameters and columns that exist."""
    for statement in PROCEDURES[name].sql.split(";"):
        assert not refusal(conn, statement)


def test_a_wrong_statement_would_not_prepare(conn: Connection) -> None:
    """A misspelt function and one more argument are refused, so the test above can fail."""
    assert "does not exist" in refusal(conn, "select durable.tock_v1($1)")
    assert "does not exist" in refusal(conn, "select durable.tick_v1($1, $2, $3)")


def test_error_codes_are_the_same_on_both_sides(conn: Connection) -> None:
    """durable.error_codes() and errors.py list the same SQLSTATEs, all of class WF."""
    codes = {code for (code,) in conn.execute("select code from durable.error_codes()")}
    assert codes == set(ERROR_CODES)
    assert all(code.startswith("WF") for code in codes)


@pytest.mark.parametrize("code", sorted(ERROR_CODES))
def test_a_code_becomes_its_class(code: str) -> None:
    """An error of the database with this SQLSTATE becomes this class, and says it."""
    error = from_sqlstate(code, "what", "where", "what next")
    assert type(error) is ERROR_CODES[code]
    assert error.sqlstate == code
    assert str(error) == "what\ndetail: where\nhint: what next"
    assert isinstance(error, EngineError)
