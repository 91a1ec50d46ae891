"""Law: what `pytest --full` adds is listed with its last run (tests/full.toml)."""

from __future__ import annotations

import re
import tomllib

from tests.support.sampling import left_out
from tests.support.tree import ROOT

LARGER = re.compile(r'mark\.full\b|mark\.sample\b|PYENGINE_TEST_FULL|getoption\("--full"\)')
DAY = re.compile(r"20\d\d-[01]\d-[0-3]\d|unknown")


def is_larger(source: str) -> bool:
    """Whether a file of tests does more with --full."""
    return LARGER.search(source) is not None


def test_each_file_that_full_enlarges_is_listed() -> None:
    """None is missing, and none is listed that does the same without it."""
    listed = tomllib.loads((ROOT / "tests/full.toml").read_text(encoding="utf-8"))
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != "test_full.py" and is_larger(path.read_text(encoding="utf-8"))
    }
    assert sorted(listed) == sorted(found)
    assert {file: day for file, day in listed.items() if not DAY.fullmatch(day)} == {}


def test_a_larger_size_is_found() -> None:
    """Self-test: a mark, and an option that a test asks for."""
    assert is_larger("@pytest.mark." + "full")
    assert is_larger('request.config.getoption("--' + 'full")')
    assert not is_larger("@pytest.mark.session('x')")


def test_a_sample_is_drawn_by_the_seed() -> None:
    """As many forms as are asked for, the same ones again with the same seed, and in the end each of them."""
    forms = [(f"a.py::test_it[{number}]", 3) for number in range(8)] + [("b.py::test_it[0]", 3)]
    names = {name for name, _ in forms}
    drawn = [names - left_out(forms, str(seed)) for seed in range(40)]
    assert {len(each) for each in drawn} == {4} and all("b.py::test_it[0]" in each for each in drawn)
    assert names - left_out(forms, "7") == drawn[7]
    assert set().union(*drawn) == names
