"""How long a statement may be without its answer, by its purpose.

Lives here: `limit_s`. May not: what follows when the time is over: the connection is closed, and the outcome
is unknown (database/connection.py). Design: a connection may die without a word, and nobody else does
meanwhile what this one waits for. So statements that take milliseconds are given up long before those that
may read a large journal, or wait for a transaction of a user.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import (
    BYE,
    HEARTBEAT,
    HELLO,
    IDLE,
    PRESENT,
    START_FRESH,
    TAKE_PRESENCE,
    TICK,
    TURN,
    Procedure,
)

LIMIT_S = 60.0
"""Of all others: journals, queries, statements that may wait for somebody."""

_LIMITS_S = {
    TURN.sql: 20.0,
    START_FRESH.sql: 20.0,
    TICK.sql: 30.0,
    HELLO.sql: 10.0,
    HEARTBEAT.sql: 10.0,
    TAKE_PRESENCE.sql: 10.0,
    PRESENT.sql: 10.0,
    IDLE.sql: 10.0,
    BYE.sql: 10.0,
}


def limit_s(procedure: Procedure) -> float:
    """Return after how many seconds without an answer a statement is given up."""
    return _LIMITS_S.get(procedure.sql, LIMIT_S)
