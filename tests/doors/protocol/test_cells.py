"""Law: each cell of the table "who calls whom" names a test that is there, or says why the cell cannot be."""

from __future__ import annotations

import ast
import copy
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WHO = ("workflow", "service", "python", "typescript", "python-0.6", "python-0.4")
VERBS = ("call", "await", "settle", "error", "cancel")
CELLS: dict[str, Any] = tomllib.loads((HERE / "cells.toml").read_text(encoding="utf-8"))
NEVER = "never: "


@cache
def names_in(file: str) -> set[str]:
    """The tests of a file of this folder."""
    tree = ast.parse((HERE / f"{file}.py").read_text(encoding="utf-8"))
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def is_there(said: str) -> bool:
    """Whether the text of a cell is a reason, or the name of a test."""
    if said.startswith(NEVER):
        return len(said.removeprefix(NEVER).split()) > 3
    file, dot, name = said.rpartition(".")
    return name.startswith("test_") and name in names_in(file if dot else "test_who_calls_whom")


def untried(cells: dict[str, Any]) -> list[str]:
    """Cells without a test and without a reason."""
    every = ((who, whom, verb) for who in WHO for whom in WHO for verb in VERBS)
    said = {(who, whom, verb): cells.get(who, {}).get(whom, {}).get(verb, "") for who, whom, verb in every}
    return [f"{who} {verb} {whom}" for (who, whom, verb), text in said.items() if not is_there(text)]


def test_each_cell_has_a_test_or_a_reason() -> None:
    """All hundred and eighty of them."""
    assert not untried(CELLS)


@pytest.mark.parametrize(
    "said", ["", "test_that_is_gone", "test_sdks.test_that_is_gone", "begin", "never: hard"]
)
def test_a_cell_without_either_is_found(said: str) -> None:
    """A name that is none, a helper and a word too few are told."""
    cells = copy.deepcopy(CELLS)
    cells["python"]["service"]["await"] = said
    assert untried(cells) == ["python await service"]
