"""Law: every finding that is to be mended has its tests, which exist."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from tests.support import ledger
from tests.support.tree import ROOT

FINDINGS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (ROOT / "tests/findings.toml").read_text(encoding="utf-8")
)
CASES = """1 3 4 5 6 7 8 10 19 24 26 28 29 33 34 42 45 46
50 51 54 59 60 63 64 65 66 67 78 80 81 83 84 86 87 89 91 94 97"""
DEMANDED = {
    "executor": {str(number) for number in range(1, 13)},
    "security": {f"F{number}" for number in range(1, 14)} - {"F6"},
    "chaos": {"1", "2", "3", "4", "5", "6", "7", "8", "9", "13", "a"},
    "conformance": {"1", "2", "3", "4", "5a", "5b", "5c", "6", "7", "8"},
    "cases": {f"C{int(number):03}" for number in CASES.split()},
    "samples": {f"F{number}" for number in (1, 3, 5, 6, 7, 8, 9, 10, 11, 13)},
    "newcomer": {f"W{number}" for number in (1, 2, 3, 4, 5, 8, 9, 10, 12)},
    "fresh": {f"D0{number}" for number in ("06", "22", "25", "26", "28", "36", "40", "45", "47", "57")},
}


def gaps(findings: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """What is demanded and not there, and what is there and not sound."""
    for source, numbers in DEMANDED.items():
        for number in sorted(numbers - findings.get(source, {}).keys()):
            yield f"{source} {number} is not there"
    for source, by_number in findings.items():
        for number, finding in by_number.items():
            if set(finding) != {"says", "test"} or not finding["says"] or not finding["test"]:
                yield f"{source} {number} has what is right and its tests, and nothing else"
            for name in finding.get("test", []):
                if not ledger.is_test(name):
                    yield f"{source} {number}: there is no {name}"


def test_every_finding_has_its_tests() -> None:
    """None is missing, and each test is in its file."""
    assert list(gaps(FINDINGS)) == []


def test_a_gap_is_found() -> None:
    """A finding that is not there, one without a test, and a test that is gone."""
    here = FINDINGS["fresh"]["D025"]
    broken = {
        **FINDINGS,
        "fresh": {
            **{number: found for number, found in FINDINGS["fresh"].items() if number != "D025"},
            "D045": {**here, "test": []},
            "D047": {**here, "test": ["tests/style/no.py::test_x"]},
        },
    }
    assert list(gaps(broken)) == [
        "fresh D025 is not there",
        "fresh D045 has what is right and its tests, and nothing else",
        "fresh D047: there is no tests/style/no.py::test_x",
    ]
