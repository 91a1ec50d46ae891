"""Law: every normative sentence of the specifications has a row, with code and tests that exist.

The form of the tables is described in tests/ledger/README.md.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter

import pytest

from tests.support import ledger
from tests.support.tree import ROOT

SPECIFICATIONS = ledger.specifications()
ROWS = [(number, row) for number, (_, rows) in SPECIFICATIONS.items() for row in rows]


def listed(gaps: list[str]) -> str:
    """The gaps, for the message of a failure."""
    return "the ledger has gaps (see tests/ledger/README.md):\n" + "\n".join(gaps)


def test_every_specification_is_there() -> None:
    """The five specifications, none forgotten."""
    assert set(SPECIFICATIONS) == {"000", "001", "002", "003", "004"}


def test_rows_are_complete() -> None:
    """Each row says what is demanded and where, and names function and test, or a ruling."""
    gaps = [f"{row.get('id')} {flaw}" for number, row in ROWS for flaw in ledger.flaws(number, row)]
    assert not gaps, listed(gaps)


def test_ids_are_unique() -> None:
    """An id names one row."""
    assert [name for name, count in Counter(row["id"] for _, row in ROWS).items() if count > 1] == []


def test_functions_exist() -> None:
    """Each function, constraint and Python object that a row names is in the sources."""
    gaps = [
        f"{row['id']}: there is no {name}"
        for _, row in ROWS
        for name in row.get("function", [])
        if not ledger.exists(name)
    ]
    assert not gaps, listed(gaps)


def test_tests_exist() -> None:
    """Each test that a row names is in its file."""
    gaps = [
        f"{row['id']}: there is no {name}"
        for _, row in ROWS
        for name in row.get("test", [])
        if not ledger.is_test(name)
    ]
    assert not gaps, listed(gaps)


def test_decisions_exist() -> None:
    """Each decision record that a ruling names is there."""
    numbers = {path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md")}
    named = {number for _, row in ROWS for number in re.findall(r"\b0\d{3}\b", row.get("ruling", ""))}
    assert named <= numbers


@pytest.mark.parametrize("number", SPECIFICATIONS)
def test_every_normative_line_has_a_row(number: str) -> None:
    """No demanding line is without a row, and no row names a line that is not there or demands nothing."""
    seed, rows = SPECIFICATIONS[number]
    normative = ledger.numbers(seed["normative"])
    named = set().union(*(ledger.numbers(row["line"]) for row in rows))
    assert normative <= set(range(1, seed["lines"] + 1))
    assert not (gaps := sorted(normative - named)), f"lines of {number} without a row: {gaps}"
    assert not (gaps := sorted(named - normative)), f"rows of {number} name lines that demand nothing: {gaps}"


def test_the_page_shows_every_row() -> None:
    """The page of the reference is made from these tables, whole."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.on_page_markdown((ROOT / "docs/reference/ledger.md").read_text(encoding="utf-8"))
    shown = re.findall(r"^\| (\d{3}\.\S+) \|", page, re.M)
    assert shown == [row["id"] for _, row in ROWS]


COMPLETE = {
    "id": "000.x",
    "kind": "must",
    "line": 1,
    "says": "something",
    "function": ["durable.start"],
    "test": ["tests/style/test_ledger.py::test_a_gap_is_found"],
}


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        ({}, None),
        ({"id": "001.x"}, "does not begin"),
        ({"kind": "wish"}, "no known kind"),
        ({"says": ""}, "says nothing"),
        ({"line": None}, "has no line"),
        ({"test": []}, "neither"),
        ({"function": []}, "neither"),
        ({"ruling": "It is otherwise.", "test": []}, "without a test"),
        ({"ruling": "It is otherwise.", "test": [], "function": []}, None),
        ({"missing": "all of it"}, "missing: all of it"),
        ({"tests": []}, "no such key: tests"),
    ],
)
def test_a_gap_is_found(change: ledger.Row, flaw: str | None) -> None:
    """The check of a row refuses what has a gap, and nothing else."""
    found = list(ledger.flaws("000", COMPLETE | change))
    assert any(flaw in one for one in found) if flaw else not found


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("durable.start", True),
        ("durable._tasks.retry_at", True),
        ("durable._lawful_task.tasks_lease_iff_acquired", True),
        ("durable.startt", False),
        ("durable._tasks.retry", False),
        ("pyengine.features.calls.contract.RULES", True),
        ("pyengine.features.calls.contract.NO_RULES", False),
        ("pyengine.nothing", False),
    ],
)
def test_a_dead_name_is_found(name: str, there: bool) -> None:
    """A name is looked up in the sources, down to the constraint."""
    assert ledger.exists(name) is there


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("tests/style/test_ledger.py::test_a_dead_test_is_found", True),
        ("tests/style/test_ledger.py::test_a_gap_is_found[neither]", True),
        ("tests/style/test_ledger.py::" + "test_a_gap_is_found[" + "nei" + "ther of them]", False),
        ("tests/style/test_ledger.py::test_no_gap_is_found", False),
        ("tests/style/test_no_ledger.py::test_a_gap_is_found", False),
        ("tests/style/test_ledger.py", False),
    ],
)
def test_a_dead_test_is_found(name: str, there: bool) -> None:
    """A test is looked up in its file, with the value that it is named with."""
    assert ledger.is_test(name) is there


def test_lines_are_numbers_and_ranges() -> None:
    """A line is a number, a range, or a list of them."""
    assert ledger.numbers([3, "5-7", "9"]) == {3, 5, 6, 7, 9}
