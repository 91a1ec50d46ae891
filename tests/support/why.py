"""What tests ask `durable.why`.

Lives here: the question, and answers as tuples. May not: assert.
"""

from __future__ import annotations

from typing import Any

from tests.support.verbs import Call, Connection, ask

Answer = list[tuple[int, str, str, str]]


def why(conn: Connection, id_: str = "r", at_most: int = 100) -> Answer:
    """Depth, id, cause and sentence of each cause, in UTC."""
    conn.execute("set timezone to 'UTC'")
    query = "select depth, id, cause, sentence from durable.why(%s, %s)"
    return conn.execute(query, (id_, at_most)).fetchall()


def details(conn: Connection, id_: str = "r") -> dict[str, Any]:
    """The details of the first cause."""
    found: dict[str, Any] = ask(conn, ("select details from durable.why(%s) limit 1", (id_,)))[0]
    return found


def hello(worker: str = "W", *, queue: str = "default", workflow: str = "w", version: str = "1") -> Call:
    """A worker registers, with one queue and one workflow."""
    about = (worker, [queue], [workflow], [version])
    return "select durable.worker_hello_v1(%s, %s, %s, %s, '{}')", about
