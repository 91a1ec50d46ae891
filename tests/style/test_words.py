"""Law: names and prose use the standard words of the field, in plain sentences.

`PRIVATE` is the dictionary: a word that no module, function, class, table or column, and no SQL function,
parameter or variable has as a part of its name, and the word to use instead. `PROSE` are patterns that no
comment, docstring, message or page contains.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.style.lint import inventory
from tests.style.test_rooms import ROOMS
from tests.support.tree import ROOT, Module, files, modules, schema

PRIVATE = {
    "hold": "lease",
    "held": "leased",
    "holding": "lease",
    "rest": "idle",
    "resting": "idle",
    "rests": "idle",
    "note": "message, record",
    "noted": "message, recorded",
    "notes": "messages",
    "adrift": "unknown",
    "hasty": "async_commit",
    "early": "speculative",
    "keeper": "poller",
    "kept": "deferred, stored",
    "news": "dirty",
    "bundle": "report, batch",
    "fact": "outcome",
    "facts": "outcomes",
    "act": "command",
    "acts": "commands",
    "look": "poll",
    "looked": "polled",
    "looks": "polls, schedule",
    "pace": "throttle, schedule",
    "parked": "scheduled",
    "door": "entry_point",
    "judge": "check",
    "judged": "checked",
    "strayed": "advanced_while_blocked",
    "misfit": "conflict",
    "misfits": "conflicting",
    "misshapen": "invalid",
    "lone": "single",
    "lot": "random",
    "tell": "report, wake, notify",
    "told": "reported",
    "say": "report, print",
    "said": "reported",
    "words": "parameters, text",
    "who": "the noun",
    "what": "the noun",
    "nobody": "no_ and the noun",
    "anew": "again, new",
    "why": "reason, problem",
    "had": "known, locked",
    "born": "created",
    "beside": "side_rows, and the noun",
    "late": "after, and the noun",
    "away": "revoke",
    "fold": "update",
    "folded": "updated",
}
# names that are the field's own
ALLOWED = {
    "pyengine/doors/admin/bundle.py": "a bundle of SQL files, and a public command",
    "bundle": "its function",
    "look_up": "reads a name in a table",
    "note": "the text beside a progress, as ctx.progress takes it",
    "p_note": "its parameter",
    "why": "a verb of people: durable.why, run.why()",
    "why_all": "the same of all runs",
    "why_many": "the same of many runs",
}

PROSE = {
    "a sentence that begins with What, Who, Whoever or Nobody, and is no question": re.compile(
        r"(?:^|(?<=[.!?] )|(?<=[.!?]\*\* ))(?:What|Who|Whoever|Nobody|Whose|Whom)\b(?![^.!?]*\?)"
    ),
    "told, said, anew, by lot, brings, comes of": re.compile(
        r"\b(?:told|said|anew|by lot|brings|comes? of)\b", re.IGNORECASE
    ),
}
COMMENT_SENTENCES = 2


@dataclass(frozen=True, kw_only=True)
class Text:
    """A piece of prose: a docstring paragraph, a comment, a message, a paragraph of a page."""

    path: str
    line: int
    kind: str
    text: str


def parts(name: str) -> set[str]:
    """Parts of a snake_case or CamelCase name, in lower case."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def wrong_names(named: list[tuple[str, str]]) -> list[str]:
    """Names, with their places, that have a private word in them."""
    return [
        f"{place}: {name}: {word} -> {PRIVATE[word]}"
        for place, name in named
        for word in sorted(parts(name) & PRIVATE.keys())
        if place.partition(":")[0] not in ALLOWED and name not in ALLOWED
    ]


def python_names(module: Module) -> list[tuple[str, str]]:
    """The module's own name, and its functions and classes."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [
        (module.path, module.dotted.rpartition(".")[2]),
        *((f"{module.path}:{node.lineno}", node.name) for node in module.nodes if isinstance(node, kinds)),
    ]


def variables(routine: inventory.Routine) -> Iterator[str]:
    """The variables that a body declares."""
    words = [token.text for token in routine.body]
    if words[:1] == ["declare"]:
        declared = words[: words.index("begin")]
        yield from (name for before, name in pairwise(declared) if before in ("declare", ";"))


def sql_names() -> list[tuple[str, str]]:
    """Functions, their parameters and variables, tables and columns of the schema."""
    sources = schema()
    named = [
        (f"sql/{one.statement.file.name}:{one.statement.line}", name)
        for one in sources.routines
        for name in (one.name, *one.parameters, *variables(one))
    ]
    for table in sources.tables.values():
        place = f"sql/{table.statement.file.name}:{table.statement.line}"
        named += [(place, name) for name in (table.name, *table.columns)]
    return named


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table cells of a text, with the lines before them, each on one line."""
    start, current = 0, ""
    for number, line in enumerate([*text.split("\n"), ""]):
        stripped = line.strip()
        begins = re.match(r"([-*] |\d+\. |\w+: |\||#)", stripped)
        if current and (not stripped or begins):
            yield start, current
            current = ""
        if stripped.startswith("|"):
            yield from ((number, cell.strip()) for cell in stripped.strip("|").split("|"))
        elif stripped and not stripped.startswith("#"):
            start = start if current else number
            current = f"{current} {stripped}".strip()


def python_texts(module: Module) -> Iterator[Text]:
    """Docstrings, comments and other strings with a space in them."""
    docstrings = set()
    for node in module.nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.add(id(node.value))
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            kind = "docstring" if id(node) in docstrings else "message"
            for line, text in paragraphs(node.value):
                yield Text(path=module.path, line=node.lineno + line, kind=kind, text=text)
    yield from comment_blocks(module)


def comment_blocks(module: Module) -> Iterator[Text]:
    """Comments, each with those of the lines below it."""
    last, start, text = -1, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        alone = not token.line[: token.start[1]].strip()
        if not (alone and token.start[0] == last + 1):
            if text:
                yield Text(path=module.path, line=start, kind="comment", text=text)
            start, text = token.start[0], ""
        text = f"{text} {token.string.lstrip('# ')}".strip()
        last = token.start[0] if alone else -1
    if text:
        yield Text(path=module.path, line=start, kind="comment", text=text)


def sql_texts(path: str, text: str) -> Iterator[Text]:
    """Comments and texts of COMMENT ON in a file of sql/."""
    lines = [*text.split("\n"), ""]
    start, current = 0, ""
    for number, line in enumerate(lines, 1):
        comment = re.match(r"\s*--\s?(.*)", line)
        if comment and comment[1]:
            start = start if current else number
            current = f"{current} {comment[1].strip()}".strip()
        elif current:
            yield Text(path=path, line=start, kind="comment", text=current)
            current = ""
    for match in re.finditer(r"(?s)\bcomment on [^;]*? is\s+'((?:[^']|'')*)'", text):
        line = text.count("\n", 0, match.start()) + 1
        yield Text(path=path, line=line, kind="comment on", text=match[1].replace("''", "'"))


def page_texts(path: str, text: str) -> Iterator[Text]:
    """Prose of a page, without its code."""
    prose = re.sub(r"(?ms)^( *)```.*?^\1```", lambda block: "\n" * block[0].count("\n"), text)
    for line, part in paragraphs(re.sub(r"`[^`\n]*`", "code", prose)):
        yield Text(path=path, line=line + 1, kind="page", text=part.lstrip("-*# ").strip())


def texts() -> Iterator[Text]:
    """All prose of package, bench, schema, pages, and of the map of files."""
    for module in modules("pyengine", "bench"):
        yield from python_texts(module)
    for path in files():
        if path.startswith("sql/") and path.endswith(".sql"):
            yield from sql_texts(path, (ROOT / path).read_text(encoding="utf-8"))
        elif path.endswith(".md") and path.startswith(("docs/", "README.md", "CONTRIBUTING.md")):
            yield from page_texts(path, (ROOT / path).read_text(encoding="utf-8"))
    for path, sentence in ROOMS.items():
        yield Text(path=f"tests/style/rooms.toml: {path}", line=0, kind="sentence", text=sentence)


def wrong_prose(text: Text) -> list[str]:
    """Patterns that a text contains, and a comment that is too long."""
    where = f"{text.path}:{text.line}"
    wrong = [
        f"{where}: {name}: ...{text.text[max(0, match.start() - 20) : match.end() + 40]}..."
        for name, pattern in PROSE.items()
        for match in pattern.finditer(text.text)
    ]
    sentences = len(re.findall(r"[.!?](?=\s+[A-Z`(]|$)", text.text)) + (text.text[-1:] not in ".!?")
    if text.kind == "comment" and text.path.endswith(".py") and sentences > COMMENT_SENTENCES:
        wrong.append(f"{where}: a comment of {sentences} sentences, {COMMENT_SENTENCES} allowed")
    return wrong


def test_names_are_standard_words() -> None:
    """No module, function, class, table or column, and no name in a SQL function, has a private word."""
    named = [each for module in modules("pyengine") for each in python_names(module)] + sql_names()
    wrong = wrong_names(named)
    assert not wrong, "\n".join(wrong)


def test_prose_is_plain() -> None:
    """No docstring, comment, message or page has a sentence of a forbidden pattern."""
    wrong = [each for text in texts() for each in wrong_prose(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "name",
    ["held_run", "HeldRun", "_hand_over_note", "what_ended", "resting", "judge", "_looks", "keeper_of"],
)
def test_the_check_of_names_reports(name: str) -> None:
    """A private word is found as a part of snake_case and of CamelCase."""
    assert wrong_names([("pyengine/x.py:1", name)])


def test_variables_are_found() -> None:
    """Declared variables are names, those of bodies and of SQL without a declaration are none."""
    body = inventory.tokenize("declare v_told text := 'a; b'; v_some integer; begin v_other := 1; end")
    routine = inventory.Routine(
        name="_f",
        statement=schema().routines[0].statement,
        parameters=(),
        clauses=(),
        header=(),
        body=tuple(body),
    )
    assert list(variables(routine)) == ["v_told", "v_some"]


def test_the_check_of_names_lets_pass() -> None:
    """A private word inside another word is none: restore, factory, bundled, notebook, actual."""
    assert not wrong_names(
        [("x.py:1", "restore_factory"), ("x.py:2", "Notebook"), ("x.py:3", "actual_pacer")]
    )


@pytest.mark.parametrize(
    "text",
    [
        '"""A module.\n\nWhat lives here: nothing."""\n',
        '"""Who cannot hear does not rest."""\n',
        "# first this; then that. Nobody knows why\nx = 1\n",
        'x = "the run is told to stop"\n',
        '"""Made anew."""\n',
        '"""Drawn by lot."""\n',
        '"""It brings rows."""\n',
        '"""Nothing comes of it."""\n',
        "# One. Two.\n# Three.\nx = 1\n",
    ],
)
def test_the_check_of_prose_reports(text: str) -> None:
    """Each pattern is found in docstrings, comments and messages."""
    assert [
        each for one in python_texts(Module(path="pyengine/x.py", text=text)) for each in wrong_prose(one)
    ]


def test_the_check_of_prose_reports_in_schema_and_pages() -> None:
    """Comments, COMMENT ON and paragraphs are read, code and questions are not."""
    schema = "-- Who waits is resumed.\ncomment on table durable.x is\n  'Runs. What is told.';\n"
    assert len([each for one in sql_texts("sql/x.sql", schema) for each in wrong_prose(one)]) == 3
    page = (
        "# What is it?\n\n- Who waits, waits.\n\n```\nWhat is told\n```\n\n| a | Nobody waits. |\n\n`told`\n"
    )
    assert len([each for one in page_texts("README.md", page) for each in wrong_prose(one)]) == 2
