"""Law: a decision record has a number of its own, says what was decided, and stands in the index."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from tests.support.tree import ROOT

FOLDER = ROOT / "docs/decisions"
RECORDS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("0*.md"))}
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")


def flaws(records: Mapping[str, str], index: str) -> Iterator[str]:
    """What is wrong with the records and the index of them."""
    listed = Counter(re.findall(r"^\* (\[.+\]\(0.+\.md\))$", index, re.M))
    for name, text in records.items():
        title = text.partition("\n")[0].removeprefix("# ")
        if not title.startswith(f"{int(name[:4])}. "):
            yield f"{name}: the title does not begin with the number of the file"
        if "\n**Decided:** " not in text:
            yield f"{name}: no paragraph begins with **Decided:**"
        if listed.pop(f"[{title}]({name})", 0) != 1:
            yield f"index.md: has not one line * [{title}]({name})"
    yield from (f"index.md: {line} is no record" for line in listed)
    numbers = Counter(name[:4] for name in records)
    yield from (f"{number} names {count} records" for number, count in numbers.items() if count > 1)


def test_every_record_is_complete_and_listed() -> None:
    """Each record has its number, its decision, and one line of the index, by its title."""
    found = list(flaws(RECORDS, INDEX))
    assert not found, "\n".join(found)


GOOD = {"0001-one.md": "# 1. One\n\n**Decided:** so.\n"}
LINE = "* [1. One](0001-one.md)\n"


@pytest.mark.parametrize(
    ("records", "index", "flaw"),
    [
        (GOOD, LINE, None),
        (GOOD, "", "has not one line"),
        (GOOD, LINE * 2, "has not one line"),
        (GOOD, LINE.replace("One]", "Two]"), "has not one line"),
        (GOOD, LINE + "* [2. Two](0002-two.md)\n", "is no record"),
        ({"0001-one.md": "# 2. One\n\n**Decided:** so.\n"}, LINE, "number of the file"),
        ({"0001-one.md": "# 1. One\n\nSo.\n"}, LINE, "no paragraph"),
        (GOOD | {"0001-two.md": "# 1. Two\n\n**Decided:** so.\n"}, LINE, "names 2 records"),
    ],
)
def test_a_flaw_is_found(records: dict[str, str], index: str, flaw: str | None) -> None:
    """The check refuses each flaw, and nothing else."""
    found = list(flaws(records, index))
    assert any(flaw in one for one in found) if flaw else not found
