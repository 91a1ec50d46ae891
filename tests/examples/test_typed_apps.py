"""Law: mypy and pyright, both strict, find nothing in the three apps, and nothing in a program of a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.examples.pages import Page, pages
from tests.support.tree import ROOT
from tests.support.typed import wrong_lines, wrong_lines_of_pyright

APPS = ("shop/app", "shop/web", "shop/bank", "agent/app", "agent/model", "etl/app", "etl/load")
# asyncpg says nothing about its types
UNTYPED = "# pyright: reportMissingTypeStubs=false" + "".join(
    f", reportUnknown{what}Type=false" for what in ("Argument", "Member", "Variable")
)
Checker = Callable[[Path, Mapping[str, str]], dict[str, list[int]]]


def programs_of(page: Page) -> Iterator[tuple[str, str]]:
    """The programs of a page that are run, under names that no other page has."""
    stem = re.sub(r"\W", "_", page.path.removesuffix(".md"))
    blocks = [block for block in page.blocks if block.language == "python" and block.is_run]
    files = [block.title.removesuffix(".py") for block in blocks if block.title.endswith(".py")]
    named = re.compile(rf"^(from|import) (?=(?:{'|'.join(files) or '$.'})\b)", re.M)
    for block in blocks:
        name = block.title.removesuffix(".py") if block.title.endswith(".py") else f"line_{block.line}"
        yield f"{stem}_{name}", f"{UNTYPED}\n" + named.sub(rf"\1 {stem}_", block.text)


@pytest.mark.parametrize(
    "checker", [wrong_lines, pytest.param(wrong_lines_of_pyright, marks=pytest.mark.full)]
)
def test_both_checkers_are_content(tmp_path: Path, checker: Checker) -> None:
    """The texts of the apps and pages, as programs in a folder of their own."""
    programs = {name.replace("/", "_"): (ROOT / "tests/examples" / f"{name}.py").read_text() for name in APPS}
    programs.update(one for page in pages() for one in programs_of(page))
    assert len(programs) > 50
    assert {name: lines for name, lines in checker(tmp_path, programs).items() if lines} == {}
