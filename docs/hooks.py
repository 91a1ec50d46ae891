"""What the site takes from the sources while it is built: SQL functions and views, settings, commands.

Lives here: replacing the lines ``{{ name }}`` of pages by Markdown that is made from the code, and writing
reference/names.md, every public name. May not: connect to a database or to the network. The comments of the
schema are its manual, so the reference repeats them and adds nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyengine.core.sources import found

_TEXT = r"'((?:[^']|'')*)'"
_ROUTINE = re.compile(
    r"^create or replace (?:function|procedure) durable\.(\w+)\((.*?)\)\s+(?:returns (.*?)\s+)?language",
    re.M | re.S,
)
_COMMENT = re.compile(
    rf"^comment on (function|procedure|view) durable\.(\w+)(?:\([^)]*\))?\s+is\s+{_TEXT};", re.M
)
_SETTING = re.compile(rf"^  \({_TEXT}, {_TEXT}, {_TEXT}\)", re.M)
_MARK = re.compile(r"^\{\{ (\w+) \}\}$", re.M)
_OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:sql|tests|bench|pyengine|migrations)/[^)]*|[A-Z]+\.md)\)")
_QUOTED = re.compile(r"(: |-> )'([^']*)'")
_MADE = Path(__file__).parent / "reference/names.md"
_LEDGER = Path(__file__).parent.parent / "tests/ledger"
_RECORDS = sorted(Path(__file__).parent.glob("decisions/0*.md"))


@functools.cache
def _logic() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in found().logic_files())


def _plain(text: str) -> str:
    """A comment of the schema as Markdown."""
    return re.sub(r"([<>*_|\[\]])", r"\\\1", text.replace("''", "'"))


def _comments(*kinds: str) -> dict[str, list[str]]:
    comments: dict[str, list[str]] = {}
    for kind, name, text in _COMMENT.findall(_logic()):
        if kind in kinds and not name.startswith("_"):
            comments.setdefault(name, []).append(_plain(text))
    return comments


def _functions(wanted: Callable[[str], bool]) -> Iterator[str]:
    headers: dict[str, list[str]] = {}
    for name, parameters, result in _ROUTINE.findall(_logic()):
        returns = f"\n  returns {' '.join(result.split())}" if result else ""
        listed = ",\n  ".join(re.split(r",\s+(?=\w+ [\w\[\]\".]+)", " ".join(parameters.split())))
        head = f"durable.{name}(" if len(listed) < 80 else f"durable.{name}(\n  "
        headers.setdefault(name, []).append(f"{head}{listed}){returns}")
    for name, texts in sorted(_comments("function", "procedure").items()):
        if wanted(name):
            yield f"### `{name}` {{ #{name} }}\n"
            yield '```sql title="signature"\n' + "\n".join(headers[name]) + "\n```\n"
            yield from (f"{text}\n" for text in texts)


def sql_functions() -> str:
    """The functions that people and services call."""
    return "\n".join(_functions(lambda name: not re.search(r"_v\d+$", name)))


def sql_versioned() -> str:
    """Functions that programs of ours call (``_v1``) and those of the older promise API (``_v0``)."""
    return "\n".join(_functions(lambda name: re.search(r"_v\d+$", name) is not None))


def sql_views() -> str:
    """The views, with their comments."""
    views = sorted(_comments("view").items())
    return "\n".join(f"### `{name}` {{ #view-{name} }}\n\n{texts[0]}\n" for name, texts in views)


def settings() -> str:
    """The settings of a database: name, default, meaning."""
    rows = [f"| `{name}` | `{value}` | {_plain(text)} |" for name, value, text in _SETTING.findall(_logic())]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def adapter_rules() -> str:
    """The rules of an adapter's answer, with their names."""
    from pyengine.features.calls.contract import RULES

    return "\n".join(f"| `{name}` | {rule} |" for name, rule in RULES.items())


def commands() -> str:
    """The command line, as typer describes it."""
    import typer.cli
    from typer.main import get_command

    from pyengine.doors.cli.root import command_line

    command: Any = get_command(command_line())
    with command.make_context("pyengine", [], resilient_parsing=True) as context:
        text = typer.cli.get_docs_for_click(obj=command, ctx=context, name="pyengine")
    return re.sub(r"^#+ ", lambda match: f"#{match[0]}", re.sub(r"\A# .*\n", "", text), flags=re.M)


def _entry(name: str, given: Any) -> Iterator[str]:
    """The signature of a public function or class and the first paragraph of its docstring."""
    try:
        shown = _QUOTED.sub(r"\1\2", str(inspect.signature(given)))
    except ValueError:  # some classes of the standard library have none
        shown = ""
    if not inspect.isclass(given) or not issubclass(given, BaseException):
        yield f"### `{name}{shown}`\n"
    else:
        yield f"### `{name}`\n"
    first = (inspect.getdoc(given) or "").partition("\n\n")[0]
    if first:
        yield " ".join(first.split()).replace("<", "\\<").replace("](", "] (") + "\n"


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Its public methods and properties, those that it inherits from the package too."""
    for name in sorted({one for one in dir(cls) if not one.startswith("_")}):
        home = next((base for base in cls.__mro__ if name in vars(base)), object)
        found = inspect.getattr_static(cls, name)
        if not home.__module__.startswith("pyengine"):
            continue
        if isinstance(found, property) or inspect.isroutine(getattr(cls, name)):
            yield name, found.fget if isinstance(found, property) else getattr(cls, name)


def python_names() -> str:
    """The public names of the package with their signatures, and the methods of those with verbs."""
    import pyengine
    from pyengine.context import Context
    from pyengine.features.promises.client import Promises
    from pyengine.features.schedules.client import Schedules

    verbs: dict[str, Any] = {"app": pyengine.App, "ctx": Context, "tx": pyengine.Transaction}
    verbs |= {"client": pyengine.Client, "client.promises": Promises, "client.schedules": Schedules}
    verbs |= {"run": pyengine.Run, "signal": pyengine.Signal, "join_set": pyengine.JoinSet}
    lines: list[str] = ["## Names of `pyengine`\n"]
    for name in sorted(pyengine.__all__):
        if not name.startswith("_") and callable(given := getattr(pyengine, name)):
            lines += _entry(name, given)
    for name, cls in verbs.items():
        lines.append(f"## Verbs of `{name}`\n")
        for member, given in _members(cls):
            lines += _entry(f"{name}.{member}", given)
    return "\n".join(lines)


def _ledger_rows(number: str, tables: list[dict[str, Any]]) -> Iterator[str]:
    """One specification of the ledger: its title, and a table of its rows."""
    (title,) = (table["seed"]["title"] for table in tables if "seed" in table)
    yield f"## {number}: {title} {{ #ledger-{number} }}\n"
    yield "| row | kind | demands | done by | proved by |\n|---|---|---|---|---|"
    for row in (row for table in tables for row in table["row"]):
        done = [f"`{name}`" for name in row.get("function", ())]
        proved = [f"`{name.removeprefix('tests/')}`" for name in row.get("test", ())]
        if ruling := row.get("ruling"):
            done.append(f"*Ruling:* {ruling}")
        cells = (row["id"], row["kind"], row["says"], "<br>".join(done), "<br>".join(proved))
        yield "| " + " | ".join(re.sub(r"\s*\n\s*", " ", cell).replace("|", r"\|") for cell in cells) + " |"
    yield ""


def ledger() -> str:
    """What the specifications demand, the functions that do it and the tests that prove it."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(_LEDGER.glob("*.toml")):
        tables.setdefault(path.stem[:3], []).append(tomllib.loads(path.read_text(encoding="utf-8")))
    return "\n".join(line for number in tables for line in _ledger_rows(number, tables[number]))


def names_page() -> str:
    """The page of names as it stands in the repository, for readers without the site."""
    head = "# Python in brief\n\nEvery public name with its signature, made by `python docs/hooks.py`.\n"
    return f"{head}[Python](python.md) has arguments and errors, on the site.\n\n{python_names()}"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the marks of a page, and name files of the repository that are no pages; called by MkDocs."""
    makers = (sql_functions, sql_versioned, sql_views, settings, adapter_rules, commands, ledger)
    by_name = {maker.__name__: maker for maker in makers}
    return _OUTSIDE.sub(r"`\2`", _MARK.sub(lambda match: by_name[match[1]](), markdown))


def on_config(config: Any) -> Any:
    """List the decision records below their page; called by MkDocs."""
    (section,) = (entry for entry in config.nav if "Decisions" in entry)
    section["Decisions"] = ["decisions/index.md", *(f"decisions/{path.name}" for path in _RECORDS)]
    return config


if __name__ == "__main__":
    _MADE.write_text(names_page(), encoding="utf-8")
