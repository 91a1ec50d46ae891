"""Settings that a role or a database may have, and that the engine must not care for.

Lives here: their names and values, and putting them on a database. May not: say what happens then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import sql

__all__ = ["ODD", "TEXTS", "put_on", "singly"]

TEXTS: dict[str, str] = {
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "bytea_output": "escape",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
    "extra_float_digits": "-15",
    "search_path": "pg_temp, public",
    "plpgsql.extra_errors": "all",
}
"""What changes how a statement is read, and how a value is written."""

ODD: dict[str, str] = TEXTS | {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "lock_timeout": "5ms",
    "statement_timeout": "100ms",
    # long enough from BEGIN to the statement after it, and short beside the work of an install
    "idle_in_transaction_session_timeout": "40ms",
    "jit": "on",
    "jit_above_cost": "0",
    "default_toast_compression": "pglz",
    "max_parallel_workers_per_gather": "4",
    "row_security": "off",
}
"""The same, and what changes when a statement ends and how it is planned."""


def singly(settings: Iterable[str] | Iterable[tuple[str, str]]) -> list[Any]:
    """Parameters of a test: all of these settings together, and with --full each by itself."""
    chosen = {
        one: ODD[one] for one in sorted(each if isinstance(each, str) else each[0] for each in settings)
    }
    each = [pytest.param({n: v}, id=n, marks=pytest.mark.full) for n, v in chosen.items()]
    return [pytest.param(chosen, id="together"), *each]


def put_on(dsn: str, settings: Mapping[str, str]) -> None:
    """Let every session of a database begin with these settings, from the next one on."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set default_transaction_read_only = off")
        name = sql.Identifier(conn.info.dbname)
        for setting, value in settings.items():
            plain = setting not in ("datestyle", "search_path")
            given = sql.Literal(value) if plain else sql.SQL(value)  # type: ignore[arg-type]
            setting_name = sql.SQL(".").join(map(sql.Identifier, setting.split(".")))
            conn.execute(sql.SQL("alter database {} set {} = {}").format(name, setting_name, given))
