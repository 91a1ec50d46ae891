"""Law: mypy and pyright, both strict, find nothing in the three apps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.tree import ROOT
from tests.support.typed import wrong_lines, wrong_lines_of_pyright

APPS = ("shop/app", "shop/web", "shop/bank", "agent/app", "etl/app", "etl/load")
Checker = Callable[[Path, Mapping[str, str]], dict[str, list[int]]]


@pytest.mark.parametrize(
    "checker", [wrong_lines, pytest.param(wrong_lines_of_pyright, marks=pytest.mark.full)]
)
def test_both_checkers_are_content_with_the_apps(tmp_path: Path, checker: Checker) -> None:
    """The texts of the apps, as programs in a folder of their own."""
    programs = {name.replace("/", "_"): (ROOT / "tests/examples" / f"{name}.py").read_text() for name in APPS}
    assert checker(tmp_path, programs) == {name: [] for name in programs}
