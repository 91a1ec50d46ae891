"""House rules about the shape of the SQL sources: statements, headers, names, lengths, comments.

Lives here: what one object at a time must look like. May not: say which file may do what (that is
``places``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyengine.core.sources import SCHEMA
from tests.style.lint.inventory import CLAUSES, Found, Inventory, Routine, Rule, Statement, Tokens, at, split

__all__ = ["RULES"]

MAX_LINES = 60
MAX_WIDTH = 130
LANGUAGES = ("sql", "plpgsql")
# inlined, so that their parameter becomes a column of the caller's query
INLINED_LOOKUPS = frozenset({"_rows"})
_TEXTS = re.compile(r"""--[^\n]*|"[^"]*"|(?<!\w)[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'""", re.DOTALL)


def statements(inventory: Inventory) -> Found:
    """State is made with plain CREATE, logic with CREATE OR REPLACE, and nothing drops."""
    allowed = {
        "state": ("create", "comment", "alter", "insert"),
        "logic": ("create", "comment", "grant", "revoke", "alter", "do"),
        "debug": ("create", "comment"),
    }
    # rows that every installation has, and what makes the first partitions
    seeds = (["insert", "into", SCHEMA, ".", "settings"], ["select", SCHEMA, ".", "_create_partitions", "("])
    for statement in inventory.statements:
        words = [token.text for token in statement.tokens[:12]]
        room = statement.file.room
        if words[0] not in allowed[room] and words[:5] not in seeds:
            yield statement, statement.line, f"{words[0]} does not belong in sql/{room}"
        if words[0] == "create" and "exists" in words:
            yield statement, statement.line, "create if not exists hides drift"
        if statement.head in ("create function", "create procedure", "create view") and room == "state":
            yield statement, statement.line, f"{statement.head} belongs in sql/logic"
        if words[0] == "create" and room != "state" and words[1:3] != ["or", "replace"]:
            yield statement, statement.line, "logic is applied again and again: create or replace"


def header_order(inventory: Inventory) -> Found:
    """Clauses in one order: returns, language, volatility, strict, security, parallel, as, set."""
    ranks = {word: rank for rank, words in enumerate(CLAUSES) for word in words}
    for routine in inventory.routines:
        order = [ranks[word] for word in routine.clauses]
        if order != sorted(order):
            yield routine.breach(f"clauses stand as {routine.clauses}")


def language(inventory: Inventory) -> Found:
    """SQL or PL/pgSQL with a dollar-quoted body."""
    for routine in inventory.routines:
        if routine.language not in LANGUAGES or not any(token.kind == "body" for token in routine.header):
            yield routine.breach("language sql or plpgsql, body in dollar quotes")


def volatility(inventory: Inventory) -> Found:
    """Immutable, stable or volatile is written out."""
    for routine in inventory.routines:
        if not routine.volatility and not routine.is_procedure:
            yield routine.breach("volatility is left to the default")


def search_path(inventory: Inventory) -> Found:
    """Entry points get it from 99_entry_points, helpers in SQL never: those could not be inlined then."""
    for routine in inventory.routines:
        if routine.is_procedure:
            yield from _unpinned(routine)
        elif routine.public and routine.pinned and routine.statement.file.room == "logic":
            yield routine.breach("settings of entry points stand in 99_entry_points")
        if not routine.public and routine.language == "sql" and routine.pinned:
            yield routine.breach("a pinned sql helper is never inlined")
        words = [token.text for token in routine.header]
        # '' searches temporary types first, which a caller could make: not with the rights of another user
        definer = "definer" in words
        wanted = ["=", "pg_catalog", ",", "pg_temp"] if definer else ["=", ""]
        path = "pg_catalog, pg_temp" if definer else "''"
        found = words[words.index("search_path") + 1 :][: len(wanted)] if routine.pinned else []
        if (routine.pinned or definer) and found != wanted:
            yield routine.breach(f"search_path is pinned to {path} only")


def settings(inventory: Inventory) -> Found:
    """A function that pins its path or its plans also pins other settings: compiling a plan that has been
    made dear on purpose costs a hundred times what it saves, and names are compared as they are quoted.
    """
    for routine in inventory.routines:
        words = " ".join(token.text for token in routine.header)
        wanted = ["set jit = off"] if routine.pinned or "set enable_" in words else []
        wanted += ["set quote_all_identifiers = off"] if routine.pinned else []
        for clause in wanted:
            if clause not in words:
                yield routine.breach(f"without {clause}")


def backslashes(inventory: Inventory) -> Found:
    """A text with a backslash is written E'...': without, the session says what it means."""
    for file in inventory.files:
        statements = [one for one in inventory.statements if one.file is file]
        for text in _TEXTS.finditer(file.text):
            if text[0].startswith("'") and "\\" in text[0]:
                line = file.text.count("\n", 0, text.start()) + 1
                statement = next(one for one in reversed(statements) if one.line <= line)
                if statement.head != "comment on":
                    yield statement, line, "a text with a backslash and without E before it"


def _unpinned(routine: Routine) -> Found:
    """A procedure is there to commit, which a SET clause forbids; so its body may hold nothing that a search
    path could turn into something else: no operators, and no call without its schema.
    """
    tokens = routine.body
    if routine.pinned or not any(token.text == "commit" and token.kind == "word" for token in tokens):
        yield routine.breach("a procedure that does not commit")
    for index, token in enumerate(tokens):
        if token.kind == "word" and not re.fullmatch(r"[\w$]+|[(),;.:]|:=", token.text):
            yield (
                routine.statement,
                token.line,
                f"{routine.name}: operator {token.text} under any search_path",
            )
        if token.text == "(" and token.kind == "word" and not at(tokens, index - 2, "."):
            yield (
                routine.statement,
                token.line,
                f"{routine.name}: {tokens[index - 1].text}( without its schema",
            )


def parameter_names(inventory: Inventory) -> Found:
    """``p_`` everywhere, except in the verbs that people call with ``id => 'x'``."""
    for routine in inventory.routines:
        bare = [name for name in routine.parameters if not name.startswith("p_")]
        for_people = routine.public and not re.search(r"_v\d+$", routine.name)
        if bare and (not for_people or len(bare) != len(routine.parameters)):
            yield routine.breach(f"parameter {', '.join(bare)} without p_")


def length(inventory: Inventory) -> Found:
    """A function fits a screen."""
    for routine in inventory.routines:
        lines = routine.statement.end_line - routine.statement.line + 1
        if lines > MAX_LINES:
            yield routine.breach(f"{lines} lines, {MAX_LINES} allowed")


def layout(inventory: Inventory) -> Found:
    """No tabs, trailing blanks, capital keywords; lines of a readable width (texts of comments excepted)."""
    for file in inventory.files:
        statement = next((s for s in inventory.statements if s.file is file), None)
        if statement is None:
            continue
        for number, line in enumerate(file.text.split("\n"), start=1):
            if "\t" in line or line != line.rstrip():
                yield statement, number, "tab or trailing blank"
            if len(line) > MAX_WIDTH and not line.lstrip().startswith(("'", "comment on")):
                yield statement, number, f"{len(line)} columns, {MAX_WIDTH} allowed"
            if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|COMMENT|BEGIN|WITH)\b", line):
                yield statement, number, "keywords are written in lower case"


def comments(inventory: Inventory) -> Found:
    """Everything that psql lists is explained by COMMENT ON in the same file."""
    named: list[tuple[str, str, Statement]] = [
        ("table", t.name, t.statement) for t in inventory.tables.values()
    ]
    named += (
        ("procedure" if routine.is_procedure else "function", routine.name, routine.statement)
        for routine in inventory.routines
    )
    named += (
        (i.kind, i.name, i.statement)
        for i in inventory.items
        if i.kind in ("view", "domain", "index", "type")
    )
    for table in inventory.tables.values():
        if not at(table.statement.tokens, 4, "partition"):
            named += (
                ("column", f"{table.name}.{c}", table.statement) for c in _columns_with_rule(table.columns)
            )
    for kind, name, statement in named:
        written = inventory.comments.get((kind, name), [])
        if not written:
            yield statement, statement.line, f"{kind} {name} has no comment on {kind}"
        elif not any(comment.file is statement.file for comment in written):
            yield (
                written[0],
                written[0].line,
                f"the comment on {kind} {name} stands in another file than {kind} {name}",
            )


def _columns_with_rule(columns: dict[str, Tokens]) -> Iterator[str]:
    """Columns whose meaning, unit or content is not clear from the name."""
    for name, definition in columns.items():
        words = {token.text for token in definition}
        if name.endswith(("_at", "_ms", "_hash", "_until")) or words & {
            "jsonb",
            "epoch_ms",
            "char",
            "bytea",
            "[",
        }:
            yield name


def array_lookups(inventory: Inventory) -> Found:
    """``= any (array[x])`` is for a key that varies by row; a parameter is compared by ``=``."""
    for name, statement, tokens in inventory.bodies():
        for index in range(len(tokens)):
            if name in INLINED_LOOKUPS or not at(tokens, index, "=", "any", "(", "array", "["):
                continue
            end = next(place for place in range(index, len(tokens)) if at(tokens, place, "]"))
            element = tokens[index + 5 : end]
            named = [one.text for one in element if one.kind == "word" and re.match(r"[a-z_]", one.text)]
            varies = [one for one in named if not one.startswith(("p_", "v_"))]
            if not varies and len(split(element)) == 1:
                yield (
                    statement,
                    tokens[index].line,
                    f"{name}: = any (array[...]) of a parameter, write = alone",
                )


def names_of_constraints(inventory: Inventory) -> Found:
    """Every constraint and index has a name of its own."""
    kinds = {"primary", "unique", "check", "references", "foreign", "exclude"}
    for table in inventory.tables.values():
        parts = [*table.constraints, *table.columns.values()]
        for part in parts:
            yield from _unnamed(table.statement, part, kinds)
    for statement in inventory.statements:
        if statement.head == "alter table":
            yield from _unnamed(statement, statement.tokens, kinds)
    for item in inventory.items:
        if item.kind == "index" and not item.name:
            yield item.statement, item.statement.line, "index without a name"
        if item.kind == "domain" and any(token.text == "check" for token in item.statement.tokens):
            yield from _unnamed(item.statement, item.statement.tokens, kinds)


def _unnamed(statement: Statement, tokens: Tokens, kinds: set[str]) -> Found:
    depth = 0
    for index, token in enumerate(tokens):
        if token.kind != "word":
            continue
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.text in kinds and not (index >= 2 and tokens[index - 2].text == "constraint"):
            inside = [earlier.text for earlier in tokens[:index]]
            if "constraint" not in inside or token.text in ("primary", "unique", "check", "exclude"):
                yield statement, token.line, f"{token.text} without constraint <name>"


RULES: dict[str, Rule] = {
    check.__name__: check
    for check in (
        statements,
        header_order,
        language,
        volatility,
        search_path,
        settings,
        backslashes,
        parameter_names,
        length,
        layout,
        comments,
        array_lookups,
        names_of_constraints,
    )
}
