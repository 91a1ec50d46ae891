"""Law: the SQL texts of the core ask functions and views of the core, but for those that a client reads with.

A text in Python is no call that a linter of SQL sees. In a database of the core alone a worker finds all that
it asks; a client can start, steer and await runs there, and look at none.
"""

from __future__ import annotations

import ast
import re

from tests.style.test_parts import part_of
from tests.support.tree import modules, schema

# what shows runs to people, and forks them; none may be added
OF_CLIENTS = {
    *("as_of", "child_counts", "failed", "fork", "get_value", "live", "newest", "progress", "runs"),
    *("why", "why_all"),
}


def strangers(text: str, parts: dict[str, str]) -> set[str]:
    """Functions and views of features and doors that a text of SQL names."""
    return {name for name in re.findall(r"durable\.(\w+)", text) if parts.get(name, "core") != "core"}


def test_statements_of_the_core_ask_the_core() -> None:
    """The list is what is still to be opened: one more is refused, and one that is gone leaves it."""
    parts: dict[str, str] = {}
    for one in (*schema().routines, *(item for item in schema().items if item.kind == "view")):
        # a hook is defined in the core first
        parts.setdefault(one.name, part_of(f"sql/{one.statement.file.name}"))
    texts = [
        node.value
        for module in modules("pyengine")
        if module.path.startswith("pyengine/core/database/statements/")
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert set().union(*(strangers(text, parts) for text in texts)) == OF_CLIENTS


def test_a_stranger_is_found() -> None:
    """A view of a door is one, a function of the core is none."""
    parts = {"runs": "doors.read", "start": "core"}
    assert strangers("select durable.start('w') from durable.runs", parts) == {"runs"}
