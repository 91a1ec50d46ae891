"""All that a copy of a database must have: catalogue, partitions, rows, sequences.

What lives here: reading it, as readable lines. What may not: what may differ, which each test says.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg

from tests.support.catalogue import snapshot

TABLES = """
select c.relname from pg_class c
where c.relnamespace = 'durable'::regnamespace and c.relkind in ('r', 'p') and c.relpersistence = 'p'
order by c.relname
"""
PARTITIONS = """
select c.relname, pg_get_expr(c.relpartbound, c.oid) || ' of ' || i.inhparent::regclass::text
from pg_class c join pg_inherits i on i.inhrelid = c.oid
where c.relnamespace = 'durable'::regnamespace and c.relkind = 'r'
"""
SEQUENCES = "select sequencename, last_value from pg_sequences where schemaname = 'durable'"
TRIGGERS = """
select t.tgname || ' on ' || t.tgrelid::regclass::text, pg_get_triggerdef(t.oid)
from pg_trigger t where t.tgfoid = 'durable._row_changed'::regproc
"""
SETTINGS = "select name, value from durable.settings"
MIGRATIONS = "select name, sha256 from durable.migrations"


def contents(dsn: str, *, rights: bool = True) -> dict[str, str]:
    """Everything in the schema that a copy must have.

    Args:
        rights: also who may do what, which a restore as another role does not bring.
    """
    found = {
        f"catalogue: {name}": _plain(text)
        for name, text in snapshot(dsn).items()
        # from version 18 on these are constraints with a name; the column says the same
        if not text.startswith("NOT NULL ")
    }
    if not rights:
        found = {name: _without_rights(text) for name, text in found.items()}
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set search_path = ''")
        conn.execute("set timezone = 'UTC'")
        for kind, query in (
            ("partition", PARTITIONS),
            ("sequence", SEQUENCES),
            ("trigger", TRIGGERS),
            ("setting", SETTINGS),
            ("migration", MIGRATIONS),
        ):
            found |= {
                f"{kind}: {name}": str(value) for name, value in conn.execute(query.encode()).fetchall()
            }
        for (table,) in conn.execute(TABLES).fetchall():
            found[f"rows of {table}"] = _rows(conn, table)
    return found


def _rows(conn: psycopg.Connection[Any], table: str) -> str:
    """How many rows, and a digest of them all."""
    row = conn.execute(
        f"select count(*), md5(string_agg(t::text, e'\\n' order by t::text)) from durable.{table} t".encode()
    ).fetchone()
    return str(row)


def _plain(text: str) -> str:
    """Without the differences of versions, and of views that were restored."""
    if text.startswith("v | "):
        # which columns have the name of their table before them, and a name of their own in parts of a union
        return re.sub(r"\b[a-z_]+\.(?=[a-z_])", "", text).replace("'::text AS text", "'::text")
    # the default of a column's statistics target is null from version 17 on
    return text.replace(" | -1 | ", " | ")


def _without_rights(text: str) -> str:
    """Without the list of rights, the last or a middle part of a line of the catalogue."""
    return " | ".join(part for part in text.split(" | ") if "=" not in part or "/" not in part)
