"""Law: entry points have their settings after every installation, and the file that gives them names no
function that is gone.
"""

from __future__ import annotations

import re

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.sources import found
from pyengine.doors.admin import migrate

Connection = psycopg.Connection[TupleRow]

SETTINGS = """
select p.oid::regprocedure::text, p.proconfig from pg_proc p
where p.pronamespace = 'durable'::regnamespace and p.proconfig is not null order by 1
"""


def test_an_installation_sets_them_again(dsn: str) -> None:
    """An installation replaces every function, which drops its settings."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        before = conn.execute(SETTINGS).fetchall()
        assert migrate.install(dsn, reapply=True).logic
        assert conn.execute(SETTINGS).fetchall() == before


def test_no_function_of_the_lists_is_gone(conn: Connection) -> None:
    """A name that no function has would give its settings to nothing, without an error."""
    (path,) = (path for path in found().logic_files() if path.stem == "10_entry_points")
    lists = re.findall(r"'\{?([a-z0-9_,]+)\}?'", path.read_text(encoding="utf-8"))
    names = {name for one in lists for name in one.split(",") if name} - {"f", "plpgsql", "_", "durable"}
    assert {"hint_v1", "_end_sql_step", "fork"} <= names
    known = {
        name
        for (name,) in conn.execute(
            "select proname from pg_proc where pronamespace = 'durable'::regnamespace"
        )
    }
    assert names <= known
