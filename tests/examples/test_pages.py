"""The code blocks of the README and of the documentation do what the text around them says.

One test runs one page from its top to its end, as a reader would (pages.py). What stands in no block is
checked below: links, names of functions and files, commands and their options.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pyengine
from pyengine import Client, Run, ctx
from pyengine.core.sources import found
from pyengine.doors.cli.root import command_line
from tests.examples.pages import LANGUAGES, Block, Page, Reader, commands, matches, pages
from tests.support.roles import MAY_WORK
from tests.support.tree import ROOT, files

PAGES = pages()
README = Page("README.md")


def params() -> list[object]:
    """Pages with something to run, marked where they need a session of their own."""
    return [
        pytest.param(
            page,
            id=page.path,
            marks=[pytest.mark.session(page.options["session"])] if "session" in page.options else [],
        )
        for page in PAGES
        if any(block.is_run for block in page.blocks)
    ]


@pytest.mark.parametrize("page", params())
def test_the_page_runs(page: Page, dsn: str, tmp_path: Path) -> None:
    """Every block of the page runs, in their order, and prints what stands below it."""
    Reader(dsn, tmp_path).read(page)


def test_a_wrong_page_is_found(dsn: str, tmp_path: Path) -> None:
    """A block that prints something else, or fails, fails the test of its page."""
    for text in ("```sql\nselect 1\n```\n\n```text\n2\n```\n", "```python\nraise SystemExit(3)\n```\n"):
        page = Page("wrong.md")
        page.__dict__["text"] = text
        with pytest.raises(AssertionError, match=r"wrong.md:1"):
            Reader(dsn, tmp_path).read(page)
    assert matches("a ...\nb", "a  1 2\nb\n")
    assert list(commands("$ a\nb\n$ c\n")) == [("a", "b\n"), ("c", "")]


def test_the_rights_are_those_of_the_tests() -> None:
    """The page grants what the tests grant to a role that only works, but for the tables of tests."""
    granted = MAY_WORK.format("shop", "db").strip().splitlines()
    blocks = Page("docs/how-to/deploy-workers.md").blocks
    block = next(one for one in blocks if "the role is yours" in one.title)
    assert block.text.splitlines() == [line for line in granted if "on database" not in line]


def test_the_readme_is_short() -> None:
    """The README has 150 lines at most, and its first program fewer than ten lines of code."""
    assert len(README.text.splitlines()) <= 150
    code = README.block("python", "Hello world")
    assert len([line for line in code.splitlines() if line.strip()]) < 10


def test_blocks_are_run_or_say_that_they_are_not() -> None:
    """A block has a language whose blocks are run or checked; what is not run says why to its reader."""
    blocks = [(page.path, block) for page in PAGES for block in page.blocks]
    assert [(path, block) for path, block in blocks if block.language not in LANGUAGES] == []
    excused = [block.title for _, block in blocks if "not run" in block.title]
    assert [title for title in excused if not re.search(r"not run: .{8,}", title)] == []
    fences = {page.path: len(re.findall(r"^\s*```", page.text, re.M)) for page in PAGES}
    assert {page.path: 2 * len(page.blocks) for page in PAGES} == fences, "indented, or without a language"


# -- commands


def typed() -> list[tuple[str, ...]]:
    """The pyengine commands of all pages, each with its options."""
    lines = [
        line.removeprefix("$ ")
        for page in PAGES
        for block in page.blocks
        if block.language in ("sh", "console")
        for line in block.text.splitlines()
        if line.startswith(("pyengine ", "$ pyengine "))
    ]
    inline = [text for page in PAGES for text in re.findall(r"`(pyengine [a-z][^`]*)`", page.text)]
    names: dict[str, set[str]] = {}
    for line in (*lines, *inline):
        command = re.match(r"pyengine ((?:(?:adapter|call|db|schedules) )?[a-z-]+)", line)
        if command is not None:
            options = re.findall(r"(?<=\s)--?[a-z][a-z-]*", line.partition("#")[0])
            names.setdefault(command[1], set()).update(options)
    return [(name, *sorted(options)) for name, options in sorted(names.items())]


@pytest.mark.parametrize("command", typed(), ids=lambda command: command[0])
def test_commands_exist(command: tuple[str, ...]) -> None:
    """Every pyengine command that a page names has a help text, which names the options that pages show."""
    name, *options = command
    shown = CliRunner().invoke(command_line(name.split()), [*name.split(), "--help"], prog_name="pyengine")
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.output
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown.output))
    assert set(options) <= known


# -- names


@cache
def schema() -> frozenset[str]:
    """Names of all that the schema makes."""
    paths = (*found().state_files(), *found().logic_files(), *sorted((ROOT / "sql/debug").glob("*.sql")))
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return frozenset(re.findall(r"\bdurable\.(\w+)", text))


@cache
def project() -> tuple[frozenset[str], frozenset[str]]:
    """The files and the folders of the project."""
    known = frozenset(files())
    return known, frozenset(str(parent) for path in known for parent in Path(path).parents)


def unknown_names(text: str) -> set[str]:
    """Functions, views, methods and files that a text names and that do not exist."""
    unknown = {f"durable.{name}" for name in re.findall(r"\bdurable\.(\w+)", text) if name not in schema()}
    for owner, home in (("ctx", type(ctx)), ("client", Client), ("run", Run)):
        names = set(re.findall(rf"`{owner}\.([a-z]\w+)", text)) - {"promises", "schedules"}
        unknown |= {f"{owner}.{name}" for name in names if not hasattr(home, name)}
    known, folders = project()
    for name in re.findall(r"`((?:pyengine|sql|migrations|tests|bench|docs)/[\w/.-]*)`", text):
        path = name.rstrip("/")
        if path not in known | folders and f"{path.replace('.', '/')}.py" not in known:
            unknown.add(name)
    for name in re.findall(r"`((?:\w+/)*\d\d_\w+\.sql)`", text):
        if not any(f"/{path}".endswith(f"/{name}") for path in known):
            unknown.add(name)
    return unknown


DOCUMENTS = [path for path in files() if path.endswith(".md") and not path.startswith("bench/results/")]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_names_exist(path: str) -> None:
    """Functions of the schema, methods of `ctx`, client and run, and files that a document names exist."""
    assert unknown_names((ROOT / path).read_text(encoding="utf-8")) == set()


def test_unknown_names_are_found() -> None:
    """A name that does not exist is found."""
    assert unknown_names("`ctx.nap`, `durable.begin('x')`, `sql/none.sql`, `10_x.sql`, `ctx.sleep`") == {
        *("ctx.nap", "durable.begin", "sql/none.sql", "10_x.sql"),
    }


# -- the reference


def test_every_public_name_is_in_the_reference() -> None:
    """The page that a reader of the repository has. `python docs/hooks.py` writes it."""
    text = (ROOT / "docs/reference/names.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^### `(\w+)", text, re.M))
    assert {name for name in pyengine.__all__ if callable(getattr(pyengine, name))} <= named


@pytest.mark.full
def test_the_reference_is_what_the_package_says() -> None:
    """Signatures and sentences too. (They are written by the oldest Python; others print types otherwise.)"""
    made = runpy.run_path(str(ROOT / "docs/hooks.py"))["names_page"]()
    if sys.version_info[:2] == (3, 11):
        assert (ROOT / "docs/reference/names.md").read_text(encoding="utf-8") == made


# -- the site


@pytest.mark.full
def test_the_site_builds(tmp_path: Path) -> None:
    """MkDocs makes the site without a warning, and no page of it asks another server for anything."""
    build = ["mkdocs", "build", "--strict", "-f", str(ROOT / "docs/mkdocs.yml"), "-d", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *build], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"https?://", text) == [], page
    assert "durable.start(" in (tmp_path / "reference/sql.html").read_text(encoding="utf-8")


# -- links


def anchors(text: str) -> set[str]:
    """The anchors of a Markdown text: of its headings, and those that it sets itself."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = [re.sub(r"[`*]|\{.*\}$", "", title).strip() for title in re.findall(r"^#+ (.*)$", plain, re.M)]
    slugs = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-") for title in headings}
    return slugs | set(re.findall(r"\{ ?#([\w-]+) ?\}", text)) | set(re.findall(r'id="([\w-]+)"', text))


def broken_links(path: str, text: str) -> list[str]:
    """Links of a document that lead nowhere, within this repository."""
    broken = []
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", plain):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (ROOT / path).parent.joinpath(file) if file else ROOT / path
        leads = there.exists() and there.resolve().is_relative_to(ROOT)
        if leads and anchor and there.suffix == ".md":
            leads = anchor in anchors(there.read_text(encoding="utf-8"))
        if not leads:
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_somewhere(path: str) -> None:
    """Every relative link of a document names a file of this repository, and an anchor in it."""
    assert broken_links(path, (ROOT / path).read_text(encoding="utf-8")) == []


def test_broken_links_are_found() -> None:
    """A file and an anchor that do not exist are told apart from those that do."""
    text = "# A b\n[x](#a-b) [x](#c) [x](LICENSE) [x](NONE.md) [x](https://example.org)\n"
    assert broken_links("README.md", text.replace("(#a-b)", "(CONTRIBUTING.md)")) == ["#c", "NONE.md"]
    assert anchors(text) == {"a-b"}


def test_a_block_knows_whether_it_is_run() -> None:
    """Programs, SQL and consoles are run, unless their title excuses them."""
    runs = [
        Block(language=language, title=title, text="", line=1).is_run
        for language, title in (("python", ""), ("sql", "x.sql"), ("sh", ""), ("python", "not run: slow"))
    ]
    assert runs == [True, True, False, False]
