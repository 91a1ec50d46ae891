"""Law: an excerpt in a page is what stands in the file that it names."""

from __future__ import annotations

import re

import pytest

from tests.examples.pages import Page
from tests.support.tree import ROOT, files

_NAMED = re.compile(r"(an excerpt|the whole) of ([\w/.]+\.py)")
_FOLDER = re.compile(r"\btests\.examples\.\w+\.")  # a reader has the programs in one folder


def excerpts(kind: str) -> list[tuple[str, int, str, str]]:
    """Page, line, file and text of each block that says which file it is from."""
    return [
        (path, block.line, named[2], block.text)
        for path in files()
        if path.startswith("docs/") and path.endswith(".md")
        for block in Page(path).blocks
        if (named := _NAMED.search(block.title)) and named[1] == kind
    ]


def missing(text: str, source: str) -> list[str]:
    """The lines of an excerpt that do not stand in its file, in that order."""
    lines = iter(line.rstrip() for line in source.splitlines())
    return [line for line in text.splitlines() if line.strip() and line.rstrip() not in lines]


@pytest.mark.parametrize(("page", "line", "file", "text"), excerpts("an excerpt"))
def test_an_excerpt_is_what_the_file_says(page: str, line: int, file: str, text: str) -> None:
    """Docstrings and functions may be left out; nothing may be added or moved."""
    found = missing(text, (ROOT / file).read_text())
    assert not found, f"{page}:{line}: not in {file}, or not in this order: {found}"


@pytest.mark.parametrize(("page", "line", "file", "text"), excerpts("the whole"))
def test_a_listing_is_the_file(page: str, line: int, file: str, text: str) -> None:
    """Whoever has the page has the program, in a folder of his own."""
    assert text == _FOLDER.sub("", (ROOT / file).read_text()), f"{page}:{line}"


def test_a_changed_excerpt_is_found() -> None:
    """A line that the file does not have, and one that stands earlier in it."""
    source = "a = 1\nb = 2\n"
    assert missing("a = 1\nb = 2\n", source) == []
    assert missing("a = 1\nb = 3\n", source) == ["b = 3"]
    assert missing("b = 2\na = 1\n", source) == ["a = 1"]
