"""Roles that may work in a schema which they do not own.

Lives here: making them, and taking them away. May not: say what they must be able to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

__all__ = ["who_works"]

MAY_WORK = """
grant usage on schema durable to {0};
grant select, insert, update, delete on all tables in schema durable to {0};
grant usage on all sequences in schema durable to {0};
grant create, temporary on database {1} to {0};
"""


@contextmanager
def who_works(conn: psycopg.Connection[Any], *, connections: int = -1) -> Iterator[str]:
    """A role that has all rights which a worker needs and owns nothing, with so many connections at most."""
    role = f"app_{conn.info.dbname}"
    conn.execute(f"create role {role} login connection limit {connections}".encode())
    conn.execute(MAY_WORK.format(role, conn.info.dbname).encode())
    try:
        yield role
    finally:
        conn.execute(f"drop owned by {role} cascade; drop role {role}".encode())
