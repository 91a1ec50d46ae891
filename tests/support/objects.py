"""Puts of objects for tests: one function for each thing that a program does, and the refusals of puts."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import psycopg

from tests.support.verbs import Connection, ask

URI = "dml+exec://local/sort"
EMPTY: tuple[bytes, ...] = ()


def put(
    conn: Connection,
    kind: str,
    sub: str = "",
    scalar: bytes | None = None,
    refs: Sequence[bytes] = EMPTY,
    *,
    names: Sequence[str] = (),
) -> bytes:
    """Put one object; answers its id."""
    given = (kind, sub, scalar, list(refs), list(names))
    return bytes(ask(conn, ("select durable._put(%s, %s, %s, %s::bytea[], %s::text[])", given))[0])


def i64(conn: Connection, number: int) -> bytes:
    """The datum of an integer."""
    return put(conn, "datum", "i64", struct.pack(">q", number))


def literal(conn: Connection, number: int) -> bytes:
    """The node of an integer."""
    return put(conn, "node", "literal", None, [i64(conn, number)])


def dag(conn: Connection, root: bytes, **names: bytes) -> bytes:
    """A DAG with names."""
    ordered = sorted(names)
    return put(conn, "dag", "", None, [root, *(names[name] for name in ordered)], names=["", *ordered])


def call(conn: Connection, *inputs: bytes, function: str = URI) -> bytes:
    """The node of a call."""
    return bytes(ask(conn, ("select durable.node_call(%s, %s::bytea[])", (function, list(inputs))))[0])


def closure(conn: Connection, id_: bytes) -> str:
    """Whether all that an object reaches is readable."""
    return str(ask(conn, ("select durable.closure_status(%s)", (id_,)))[0])


def flaw(
    conn: Connection,
    kind: str,
    sub: str = "",
    scalar: bytes | None = None,
    refs: Sequence[bytes] = EMPTY,
    *,
    names: Sequence[str] = (),
) -> str:
    """SQLSTATE and detail with which a put is refused; empty if it is not."""
    try:
        with conn.transaction():
            put(conn, kind, sub, scalar, refs, names=names)
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    return ""
