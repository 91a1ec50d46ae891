"""The style rules of the SQL sources that can be checked in their text.

    python -m tests.style.lint          prints file:line: [rule] message; exit code 1 if any

Lives here: running the rules of ``shape``, ``places`` and ``hooks``. May not: rewrite SQL, connect, know
PostgreSQL's types (``tests/style`` checks those in a live catalogue). Each rule has a test with a source that
breaks it. Design: PL/pgSQL checks no name when a function is created, and readers overlook violations of
"only this file does that". So these are rules about tokens. A rule yields (statement, line, message); its
name is its function's name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.core.sources import Sources, found
from tests.style.lint import hooks, places, shape
from tests.style.lint.inventory import Inventory, read

__all__ = ["RULES", "Finding", "findings_in", "lint", "main"]

RULES = {**shape.RULES, **places.RULES, **hooks.RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation of one rule."""

    rule: str
    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"sql/{self.file}:{self.line}: [{self.rule}] {self.message}"


def lint(sources: Sources, only: Sequence[str] = ()) -> list[Finding]:
    """Return all findings in a tree of SQL files, or those of the named rules."""
    return findings_in(read(sources), only)


def findings_in(inventory: Inventory, only: Sequence[str] = ()) -> list[Finding]:
    """Return the same of files that were read before."""
    return [
        Finding(rule=name, file=statement.file.name, line=line, message=message)
        for name, check in RULES.items()
        if not only or name in only
        for statement, line, message in check(inventory)
    ]


def main() -> int:
    """Print the findings; return the exit code."""
    findings = lint(found())
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
