"""Law: the types of journal rows are words, in SQL and in Python, and both sides have the same ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pyengine.core.protocol.journal import RowType

Connection = psycopg.Connection[tuple[str, ...]]
ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "pyengine").rglob("*.py"), *(ROOT / "bench").glob("**/*.py")]
SQL = [*(ROOT / "sql").rglob("*.sql")]
LETTER = re.compile(r"""\btype(?:::text)? (?:=|<>|(?:not )?in) \(?'[A-Za-z]'""")


def letters_in(tree: ast.AST) -> Iterator[int]:
    """Lines that compare a type with a letter or make a set of the letters of a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "frozenset":
            if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.args):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            typed = any(isinstance(each, ast.Attribute) and each.attr == "type" for each in sides)
            if typed and any(
                isinstance(each, ast.Constant) and isinstance(each.value, str) for each in sides
            ):
                yield node.lineno


def test_both_sides_have_the_same_words(conn: Connection) -> None:
    """The enum of the database, the list of events and RowType agree."""
    (words,) = conn.execute("select enum_range(null::durable.row_type)::text[]").fetchone() or ([],)
    listed = [kind for (kind,) in conn.execute("select type::text from durable.journal_types()")]
    assert sorted(words) == sorted(listed) == sorted(RowType)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", word) for word in words)


def test_no_column_or_argument_is_a_letter(conn: Connection) -> None:
    """Nothing in the schema has the type "char"."""
    columns = """select a.attrelid::regclass::text || '.' || a.attname
                 from pg_attribute a join pg_class c on c.oid = a.attrelid
                 where c.relnamespace = 'durable'::regnamespace and a.atttypid = '"char"'::regtype"""
    functions = """select p.oid::regprocedure::text from pg_proc p
                   where p.pronamespace = 'durable'::regnamespace and '"char"'::regtype = any (
                     p.proargtypes::oid[] || coalesce(p.proallargtypes, '{}') || p.prorettype)"""
    assert conn.execute(f"{columns} union all {functions}".encode()).fetchall() == []


def test_no_source_compares_a_type_with_a_letter() -> None:
    """Neither in SQL nor in Python."""
    found = [f"{path.name}:{line}" for path in SOURCES for line in letters_in(ast.parse(path.read_text()))]
    found += [
        f"{path.name}: {match[0]}" for path in [*SQL, *SOURCES] for match in LETTER.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "row.type == 'S'",
        "row.type in 'SW'",
        "kinds = frozenset('SW')",
        "query = \"where type in ('S', 'W')\"",
    ],
)
def test_a_letter_would_be_seen(text: str) -> None:
    """The search can fail."""
    assert list(letters_in(ast.parse(text))) or LETTER.search(text)
