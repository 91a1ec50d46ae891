"""The content of the SQL sources as records: files, statements, tables, functions, bodies.

Lives here: reading ``sql/`` into records with sqlglot's tokenizer. May not: apply rules (``lint``), connect,
write SQL. Design: sqlglot's parser treats a function's body as opaque text and fails on some headers, but its
tokenizer is right about strings, comments and dollar quotes everywhere. So everything is read from tokens,
bodies too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sqlglot import TokenType
from sqlglot.dialects.postgres import Postgres

from pyengine.core.sources import GROUPS, SCHEMA, Sources

__all__ = [
    "File",
    "Found",
    "Inventory",
    "Item",
    "Routine",
    "Rule",
    "Statement",
    "Table",
    "Token",
    "Tokens",
    "read",
]

_STRINGS = {TokenType.STRING, TokenType.RAW_STRING, TokenType.NATIONAL_STRING, TokenType.BYTE_STRING}
_VOLATILITY = ("immutable", "stable", "volatile")
_FILLERS = (
    "or",
    "replace",
    "unlogged",
    "unique",
    "materialized",
    "recursive",
    "constraint",
    "temporary",
    "temp",
)
# keywords that open a clause of a function header, in the required order
CLAUSES = (
    ("returns",),
    ("language",),
    _VOLATILITY,
    ("strict", "called"),
    ("security",),
    ("parallel", "leakproof"),
    ("cost",),
    ("rows",),
    ("as", "begin"),
    ("set",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One word, sign, string or body; words are in lower case, lines count from 1."""

    text: str
    line: int
    kind: str = "word"


Tokens = tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Everything up to a semicolon."""

    file: File
    tokens: Tokens
    end_line: int

    @property
    def line(self) -> int:
        """First line."""
        return self.tokens[0].line

    @property
    def head(self) -> str:
        """Its verb and kind of object: ``create table``, ``comment on``; without ``or replace``."""
        words = [token.text for token in self.tokens[:8]]
        return " ".join([word for word in words if word not in _FILLERS][:2])


_ROOMS = ("state", "logic", "debug")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of sql/state, sql/logic or sql/debug."""

    path: Path
    text: str

    @property
    def room(self) -> str:
        """``state``, ``logic`` or ``debug``."""
        return self.name.split("/", 1)[0]

    @property
    def order(self) -> tuple[int, int, str]:
        """Place in the dependency order: state, the groups of logic, debug."""
        group = self.name.split("/")[1]
        return _ROOMS.index(self.room), (*GROUPS, group).index(group), self.name

    @property
    def name(self) -> str:
        """``logic/core/30_promises/20_settlement.sql``."""
        parts = self.path.parts
        return "/".join(parts[max(at for at, part in enumerate(parts) if part in _ROOMS) :])

    @property
    def noun(self) -> str:
        """``settlement``: the topic of the file, by which rules name it."""
        return self.path.stem.split("_", 1)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A named thing that is neither table nor function: index, view, domain, type, schema, trigger."""

    kind: str
    name: str
    statement: Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its columns (name -> tokens of the definition) and its table constraints."""

    name: str
    statement: Statement
    columns: dict[str, Tokens]
    constraints: tuple[Tokens, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """A function with its header and body."""

    name: str
    statement: Statement
    parameters: tuple[str, ...]
    clauses: tuple[str, ...]
    header: Tokens
    body: Tokens

    @property
    def public(self) -> bool:
        """Whether it is called from outside the schema."""
        return not self.name.startswith("_")

    @property
    def is_procedure(self) -> bool:
        """Whether it is called by CALL and may commit; then it is not pinned and has no volatility."""
        return self.statement.head == "create procedure"

    @property
    def language(self) -> str:
        """``sql`` or ``plpgsql``; empty if the header does not name it."""
        return self._word_after("language")

    @property
    def volatility(self) -> str:
        """``immutable``, ``stable``, ``volatile``, or empty if left to the default."""
        return next((word for word in self.clauses if word in _VOLATILITY), "")

    @property
    def pinned(self) -> bool:
        """Whether it sets search_path."""
        words = [token.text for token in self.header]
        return ("set", "search_path") in itertools.pairwise(words)

    def breach(self, text: str) -> tuple[Statement, int, str]:
        """Return a breach of a rule, at the line of the function."""
        return self.statement, self.statement.line, f"{self.name}: {text}"

    def _word_after(self, word: str) -> str:
        words = [token.text for token in self.header]
        return words[words.index(word) + 1] if word in words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything in the sources."""

    files: tuple[File, ...]
    statements: tuple[Statement, ...]
    tables: dict[str, Table]
    routines: tuple[Routine, ...]
    items: tuple[Item, ...]
    comments: dict[tuple[str, str], list[Statement]] = field(default_factory=dict)

    def bodies(self) -> Iterator[tuple[str, Statement, Tokens]]:
        """Yield name, statement and tokens of function bodies, views and DO blocks."""
        for routine in self.routines:
            yield routine.name, routine.statement, routine.body
        for item in self.items:
            if item.kind == "view":
                yield item.name, item.statement, item.statement.tokens
        for statement in self.statements:
            if statement.tokens[0].text == "do":
                yield "do block", statement, tuple(_body(statement.tokens))


Found = Iterator[tuple[Statement, int, str]]
Rule = Callable[[Inventory], Found]


class _Tokenizer(Postgres.Tokenizer):
    """sqlglot's tokenizer, but DO, LOCK and EXECUTE do not make the rest of a statement one token."""

    COMMANDS: ClassVar[set[TokenType]] = set()


def read(sources: Sources) -> Inventory:
    """Read all files of sql/state, sql/logic and sql/debug."""
    files = tuple(
        File(path=path, text=path.read_text(encoding="utf-8"))
        for path in (*sources.state_files(), *sources.functions(debug=True))
    )
    statements = tuple(statement for file in files for statement in _statements(file))
    tables: dict[str, Table] = {}
    routines: list[Routine] = []
    items: list[Item] = []
    comments: dict[tuple[str, str], list[Statement]] = {}
    for statement in statements:
        if statement.head == "create table":
            table = _table(statement)
            tables[table.name] = table
        elif statement.head in ("create function", "create procedure"):
            routines.append(_routine(statement))
        elif statement.head.startswith("create "):
            items.append(_item(statement))
        elif statement.head == "comment on":
            comments.setdefault(_commented(statement), []).append(statement)
    return Inventory(
        files=files,
        statements=statements,
        tables=tables,
        routines=tuple(routines),
        items=tuple(items),
        comments=comments,
    )


def tokenize(text: str, first_line: int = 1) -> list[Token]:
    """Tokens of a SQL or PL/pgSQL text; a dollar-quoted body stays one token of kind ``body``."""
    tokens: list[Token] = []
    for token in _Tokenizer(dialect="postgres").tokenize(text):
        line = first_line + token.line - 1
        if token.token_type == TokenType.HEREDOC_STRING:
            tokens.append(Token(text=token.text, line=line - token.text.count("\n"), kind="body"))
        elif token.token_type in _STRINGS:
            tokens.append(Token(text=token.text, line=line - token.text.count("\n"), kind="string"))
        elif token.token_type == TokenType.IDENTIFIER:
            tokens.append(Token(text=token.text, line=line, kind="quoted"))
        else:
            tokens += (Token(text=word.lower(), line=line) for word in token.text.split())
    return tokens


def split(tokens: Sequence[Token]) -> list[Tokens]:
    """Return the parts between the commas outside of all parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([") - (token.text in ")]") if token.kind == "word" and token.text else 0
        if token.text == "," and token.kind == "word" and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the parenthesis that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].kind == "word":
            depth += (tokens[index].text == "(") - (tokens[index].text == ")")
            if depth == 0:
                return index
    raise ValueError(f"line {tokens[opening].line}: parenthesis is never closed")


def at(tokens: Tokens, index: int, *words: str) -> bool:
    """Return whether exactly these words are at this place."""
    if not 0 <= index < len(tokens) or tokens[index].text != words[0]:
        return False
    return tuple(token.text for token in tokens[index : index + len(words)] if token.kind == "word") == words


def of_schema(tokens: Tokens, index: int) -> str | None:
    """Return the name after ``durable.`` at this place, if there is one."""
    if at(tokens, index, SCHEMA, ".") and index + 2 < len(tokens):
        return tokens[index + 2].text
    return None


def _statements(file: File) -> Iterator[Statement]:
    current: list[Token] = []
    for token in tokenize(file.text):
        if token.text == ";" and token.kind == "word":
            if current:
                yield Statement(file=file, tokens=tuple(current), end_line=token.line)
            current = []
        else:
            current.append(token)
    if current:
        yield Statement(file=file, tokens=tuple(current), end_line=current[-1].line)


def _name_at(tokens: Sequence[Token], index: int) -> str:
    if index + 2 < len(tokens) and tokens[index + 1].text == ".":
        return (
            tokens[index + 2].text
            if tokens[index].text == SCHEMA
            else f"{tokens[index].text}.{tokens[index + 2].text}"
        )
    return tokens[index].text


def _body(tokens: Sequence[Token]) -> list[Token]:
    return [inner for token in tokens if token.kind == "body" for inner in tokenize(token.text, token.line)]


def _table(statement: Statement) -> Table:
    tokens = statement.tokens
    columns: dict[str, Tokens] = {}
    constraints: list[Tokens] = []
    words = [token.text for token in tokens]
    if "(" in words and "of" not in words[: words.index("(")]:
        opening = words.index("(")
        for part in split(tokens[opening + 1 : closing(tokens, opening)]):
            if part[0].text in ("constraint", "check", "primary", "unique", "foreign", "exclude", "like"):
                constraints.append(part)
            else:
                columns[part[0].text] = part[1:]
    skip = words.index("table") + 1
    skip += 3 if words[skip : skip + 3] == ["if", "not", "exists"] else 0
    return Table(
        name=_name_at(tokens, skip), statement=statement, columns=columns, constraints=tuple(constraints)
    )


def _routine(statement: Statement) -> Routine:
    tokens = statement.tokens
    words = [token.text for token in tokens]
    opening = words.index("(")
    end = closing(tokens, opening)
    parameters = []
    for part in split(tokens[opening + 1 : end]):
        names = [token.text for token in part if token.text not in ("in", "inout", "variadic")]
        if part[0].text != "out":
            parameters.append(names[0] if len(names) > 1 else "")
    header = tokens[end + 1 :]
    clauses, depth = [], 0
    for token in header:
        if token.kind == "word":
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0 and any(token.text in clause for clause in CLAUSES):
                clauses.append(token.text)
    kind = next(index for index, word in enumerate(words) if word in ("function", "procedure"))
    return Routine(
        name=_name_at(tokens, kind + 1),
        statement=statement,
        parameters=tuple(parameters),
        clauses=tuple(clauses),
        header=header,
        body=tuple(_body(header)),
    )


def _item(statement: Statement) -> Item:
    words = [token.text for token in statement.tokens]
    index = next(place for place, word in enumerate(words) if place and word not in _FILLERS)
    kind, place = words[index], index + 1
    if words[place] == "concurrently":
        place += 1
    if words[place : place + 3] == ["if", "not", "exists"]:
        place += 3
    name = "" if words[place] == "on" else _name_at(statement.tokens, place)
    return Item(kind=kind, name=name, statement=statement)


def _commented(statement: Statement) -> tuple[str, str]:
    words = [token.text for token in statement.tokens]
    upto = next(index for index in range(len(words) - 1, 0, -1) if words[index] == "is")
    kind = words[2]
    name = re.sub(rf"^{SCHEMA}\.", "", "".join(words[3:upto]).split("(")[0])
    return kind, name
