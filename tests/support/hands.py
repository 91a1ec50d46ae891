"""Hands in the tables: how laws of durable.check() are broken on purpose, and what it then reports.

What lives here: the description of a hand, its templates, and the frame of the tests that use it. The laws
and their hands stand with the tests of the files that state them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.folds import Line, write_rows
from tests.support.verbs import Connection

LOGIC = Path(__file__).parent.parent.parent / "sql" / "logic"
P = "update durable._promises set {} where id = '{}'"
T = "update durable._tasks set {} where id = '{}'"
OBJECT = "update durable._objects set {} where sub = '{}'"
H = "update durable._executions set {} where id = '{}'"
AGAIN = "insert into durable.{0} select * from durable.{0} where {1} limit 1"
OF_RUN = "durable._executions h where h.execution = x.execution and h.id = '{}' and {}"
J = f"update durable._journal x set {{}} from {OF_RUN}"
CUT = f"delete from durable._journal x using {OF_RUN}"
INBOX = f"update durable._inboxes x set {{}} from {OF_RUN}"
FAR = 32503680000000
"""The year 3000."""
OPEN: Line = ("step_started", 0, 1)
SET: tuple[Line, ...] = (
    OPEN,
    ("step_started", 1, 1),
    ("join_set_created", 2),
    ("join_set_submitted", 0, 2),
    ("join_set_submitted", 1, 2),
    ("open_step_completed", 0, 1),
)
CALLBACK = "insert into durable._callbacks (awaited_id, awaiter_id) values ('{}', '{}')"


@dataclass(frozen=True)
class Break:
    """A hand in the tables.

    Args:
        sql: what breaks the law, statements separated by semicolons.
        drop: constraints that have to go first, as table.constraint.
        also: other laws that the same hand breaks.
        rows: rows that are written to the journal of `run` first, its head and tables made to agree.
        run: the run whose journal that is.
    """

    sql: str = ""
    drop: str = ""
    also: str = ""
    rows: tuple[Line, ...] = field(default=())
    run: str = "m"


def let_go(conn: Connection, constraint: str) -> None:
    """Drop a law of a table's rows, given as table.constraint: it is the table's, or that of the domain which
    the table asks its rows to be of."""
    table, name = constraint.split(".")
    domain = conn.execute(
        "select d.contypid::regtype::text from pg_constraint d join pg_depend u on u.refobjid = d.contypid"
        " join pg_constraint t on t.oid = u.objid and t.conrelid = ('durable.' || %s)::regclass"
        " where d.conname = %s and u.refclassid = 'pg_type'::regclass",
        (table, name),
    ).fetchone()
    holder = f"domain {domain[0]}" if domain else f"table durable.{table}"
    conn.execute(f"alter {holder} drop constraint {name}".encode())


def lay(conn: Connection, hand: Break) -> None:
    """Do what the hand does."""
    for constraint in hand.drop.split():
        let_go(conn, constraint)
    if hand.rows:
        write_rows(conn, hand.run, hand.rows)
    for statement in filter(None, hand.sql.split("; ")):
        conn.execute(statement.encode())


def reported(hand: Break, law: str) -> set[str]:
    """What has to be reported of it."""
    return {law, *filter(None, hand.also.split(", "))}


def laws_of(conn: Connection) -> set[str]:
    """Names that durable.check() reports."""
    return {law for (law,) in conn.execute("select law from durable.check()").fetchall()}


def laws_in(noun: str) -> set[str]:
    """Names that the file of sql/logic of that noun can report."""
    (path,) = LOGIC.rglob(f"[0-9][0-9]_{noun}.sql")
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^\s+\('([^']+)',(?: |$)", text, re.M)
    return {*found, *re.findall(r"^\s*select '([^']+)', ", text, re.M)}
