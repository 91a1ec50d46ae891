"""The text of ``sql/logic`` as definitions: each function and view with the statements about it.

Lives here: splitting SQL into statements, and ``Definition`` with its key and checksum. May not: open a
connection, decide what to replace (``migration_plan``). Design: a definition is a `create or replace` and
the comments, grants and settings that follow and name its object. So an upgrade can compare definitions and
replace only what changed. Everything else is a loose statement and runs in every upgrade of the logic. Only
the outline of SQL is read (comments, strings, dollar quotes, parentheses), without a parser of the language.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyengine.core.sources import FACADE, SCHEMA, text_sha256

_OPAQUE = re.compile(
    r"""--[^\n]*|/\*.*?\*/|(?<!\w)[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<!\w)(\$\w*\$).*?\1""",
    re.S,
)
_LEADING = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.S)
_CREATED = re.compile(
    rf'create or replace (function|procedure|view) ({SCHEMA}|{FACADE})\.(\w+|"[^"]+")|'
    rf"create or replace (trigger) (\w+)\s.*?\son ({SCHEMA}\.\w+)",
    re.I | re.S,
)
_TABLE = re.compile(r"create (?:unlogged )?table if not exists ", re.I)
_ABOUT = re.compile(r"(?:comment|alter|grant|revoke)\b", re.I)
_MODE = re.compile(r"(in|out|inout|variadic)\s+", re.I)
_DEFAULT = re.compile(r"\s+default\b.*|\s*:?=.*", re.I | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loose:
    """A statement that defines no object of its own.

    Args:
        text: the statement, without its semicolon.
        path: its file.
        line: its first line there.
    """

    text: str
    path: Path
    line: int

    @property
    def inserts(self) -> bool:
        """Whether it writes rows, so it changes no function or view."""
        return self.text.lower().startswith("insert")

    @property
    def is_of_facade(self) -> bool:
        """Whether it belongs to the facade, so it changes no object of the engine."""
        return self.path.parent.name == "facade"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function, view or trigger.

    Args:
        kind: ``function``, also for a procedure, ``view`` or ``trigger``.
        schema: its schema; of a trigger, the table with its schema.
        name: its name without the schema.
        types: types of its input parameters as written; empty for a view.
        signature: parameters and result as written. If it changes, replacing in place may be impossible. None
            for a view, whose columns are not read, and a trigger.
        required: how many of its parameters have no default.
        text: all statements about it, each with its semicolon.
        path: its file.
        line: its first line there.
    """

    kind: str
    schema: str
    name: str
    types: tuple[str, ...]
    signature: str | None
    required: int
    text: str
    path: Path
    line: int

    @property
    def key(self) -> str:
        """``function durable.pack(id text)`` is ``function durable.pack(text)``; no two have the same."""
        arguments = f"({','.join(self.types)})" if self.kind == "function" else ""
        return f"{self.place}{arguments}"

    @property
    def place(self) -> str:
        """The key without types: functions that have the same are overloads."""
        if self.kind == "trigger":
            return f"trigger {self.name} on {self.schema}"
        return f"{self.kind} {self.schema}.{self.name}"

    @property
    def sha256(self) -> str:
        """Checksum of the statements."""
        return text_sha256(self.text)


def read(files: Iterable[Path]) -> tuple[Definition | Loose, ...]:
    """Return definitions and loose statements in their order; of two with one key only the last.

    Raises:
        ValueError: a statement creates something else than a function or view.
    """
    items: dict[str, Definition | Loose] = {}
    for path in files:
        for number, item in enumerate(_of_file(path)):
            key = item.key if isinstance(item, Definition) else f"{path} {number}"
            items.pop(key, None)
            items[key] = item
    return tuple(items.values())


def split(text: str) -> Iterator[tuple[str, int]]:
    """Yield each statement without its semicolon and leading comments, and its first line."""
    begin = 0
    for end in [*_semicolons(text), len(text)]:
        match = _LEADING.match(text, begin, end)
        first = match.end() if match else begin
        if statement := text[first:end].strip():
            yield statement, text.count("\n", 0, first) + 1
        begin = end + 1


def _semicolons(text: str) -> list[int]:
    return [match.start() for match in re.finditer(";", _blanked(text))]


def _blanked(text: str) -> str:
    """Return the text with comments and quoted parts as blanks, so that positions stay."""
    return _OPAQUE.sub(lambda match: " " * len(match.group()), text)


def _of_file(path: Path) -> list[Definition | Loose]:
    items: list[Definition | Loose] = []
    for text, line in split(path.read_text(encoding="utf-8").replace("\r\n", "\n")):
        last = items[-1] if items else None
        if text.lower().startswith("create ") and not _TABLE.match(text):
            items.append(_definition(text, path, line))
        elif isinstance(last, Definition) and _ABOUT.match(text) and _names(text, last):
            items[-1] = replace(last, text=f"{last.text}{text};\n")
        else:
            items.append(Loose(text=text, path=path, line=line))
    return items


def _names(text: str, one: Definition) -> bool:
    if one.kind == "trigger":
        return f" {one.place} " in text
    return f"{one.schema}.{one.name}" in text or f'{one.schema}."{one.name}"' in text


def _definition(text: str, path: Path, line: int) -> Definition:
    match = _CREATED.match(text)
    if match is None:
        first = text.split("\n", 1)[0]
        raise ValueError(
            f"{path}:{line}: logic creates functions and views, by 'create or replace' and with a schema; "
            f"all else is a step in migrations/: {first}"
        )
    kind, schema, name = (
        (match[1].lower(), match[2], match[3].strip('"')) if match[1] else ("trigger", match[6], match[5])
    )
    is_function = kind in ("function", "procedure")
    types, signature, required = _header(text, match.end()) if is_function else ((), None, 0)
    return Definition(
        kind="function" if is_function else kind,
        schema=schema,
        name=name,
        types=types,
        signature=signature,
        required=required,
        text=f"{text};\n",
        path=path,
        line=line,
    )


def _header(text: str, begin: int) -> tuple[tuple[str, ...], str, int]:
    """Return the types of the input parameters, parameters and result as written, and how many have to be
    given."""
    blanked = _blanked(text)
    opened = blanked.index("(", begin)
    commas, closed = _commas(blanked, opened)
    bounds = [opened, *commas, closed]
    parts = [blanked[left + 1 : right].strip() for left, right in itertools.pairwise(bounds)]
    inputs = [part for part in parts if part and _type(part) is not None]
    types = tuple(kind for part in inputs if (kind := _type(part)) is not None)
    required = sum(_DEFAULT.search(part) is None for part in inputs)
    language = re.search(r"\blanguage\b", blanked[closed:], re.I)
    end = closed + language.start() if language else len(text)
    return types, " ".join(text[opened:end].split()), required


def _commas(blanked: str, opened: int) -> tuple[list[int], int]:
    """Return the commas directly in a pair of parentheses, and where it closes."""
    depth = 0
    commas: list[int] = []
    for match in re.finditer(r"[(),]", blanked[opened:]):
        sign, at = match.group(), opened + match.start()
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return commas, at
        if sign == "," and depth == 1:
            commas.append(at)
    raise ValueError(f"no end of the parameters: {blanked[opened:].strip()[:60]}")


def _type(parameter: str) -> str | None:
    """``p_id text default null`` -> ``text``; None for an output parameter."""
    words = _DEFAULT.sub("", parameter)
    mode = _MODE.match(words)
    if mode is not None:
        if mode[1].lower() == "out":
            return None
        words = words[mode.end() :]
    name, _, kind = words.partition(" ")
    return " ".join((kind or name).split())
