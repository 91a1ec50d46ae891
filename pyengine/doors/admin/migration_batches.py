"""The parts of a migration that are more than one transaction: backfills and indexes.

Lives here: ``fill`` and ``index``. May not: decide what they contain (``migration_plan``). Design: both can
be repeated from any point at which they were interrupted, and record their step at their end.
"""

from __future__ import annotations

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.process import clock
from pyengine.doors.admin.migration_locks import Limits, Patience, Tell
from pyengine.doors.admin.migration_parts import SESSION, Part, invalid_index

_PAUSE_MAX_S = 2.0

Connection = psycopg.Connection[TupleRow]


def fill(conn: Connection, part: Part, limits: Limits, tell: Tell | None) -> None:
    """Run the batches of a backfill; each is followed by a pause as long as it took."""
    batch, record = part.segments
    patience = Patience(limits, tell)
    while True:
        begin = clock.monotonic()
        patience.at = part
        try:
            with conn.transaction():
                conn.execute(SESSION.encode())
                is_done = conn.execute(batch.text.encode()).rowcount <= 0
                if is_done:
                    conn.execute(record.text.encode())
        except psycopg.Error as error:
            if not patience.covers(error):
                raise
            patience.pause(conn, error, part)
            continue
        if is_done:
            return
        patience = Patience(limits, tell)
        clock.pause(min(clock.monotonic() - begin, _PAUSE_MAX_S))


def index(conn: Connection, part: Part, limits: Limits) -> None:
    """Make an index while others write its table; one that a failure left unfinished is made again."""
    made, record = part.segments
    # it waits for the transactions of others, and nobody waits behind it
    conn.execute(f"set lock_timeout = {int(limits.wait_s * 1000)}; set statement_timeout = 0".encode())
    try:
        for (unfinished,) in conn.execute(invalid_index(made).encode()).fetchall():
            conn.execute(unfinished.encode())
        conn.execute(made.text.encode())
    finally:
        if not conn.broken:
            conn.execute("reset lock_timeout; reset statement_timeout")
    with conn.transaction():
        conn.execute(f"{SESSION}{record.text}".encode())
