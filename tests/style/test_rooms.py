"""Law: every file has a room, told in one sentence of rooms.toml, and every sentence has its file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from tests.support.tree import ROOT, files

ROOMS: dict[str, str] = tomllib.loads((Path(__file__).parent / "rooms.toml").read_text(encoding="utf-8"))[
    "rooms"
]


def homeless(paths: Iterable[str], rooms: Mapping[str, str]) -> list[str]:
    """Files that no line of the map covers."""
    return [path for path in paths if not any(fnmatchcase(path, pattern) for pattern in rooms)]


def empty_rooms(paths: Iterable[str], rooms: Mapping[str, str]) -> list[str]:
    """Lines of the map that cover no file."""
    known = list(paths)
    return [pattern for pattern in rooms if not any(fnmatchcase(path, pattern) for path in known)]


def test_every_file_has_its_sentence() -> None:
    """A new file needs a sentence first: what lives there."""
    without = homeless(files(), ROOMS)
    assert not without, "give these files a sentence in tests/style/rooms.toml:\n" + "\n".join(without)


def test_every_sentence_has_its_file() -> None:
    """The map names no file that is gone."""
    gone = empty_rooms(files(), ROOMS)
    assert not gone, "these lines of tests/style/rooms.toml have no file any more:\n" + "\n".join(gone)


# their laws are those of others: races, journals, models, protocol
TESTED_ELSEWHERE = {
    *("try_locks", "row_types", "signal_rows", "tombstones", "client_events", "client_append", "blocked"),
    "removal",
    *("check_scope", "side_rows", "start_checks", "fork_plan", "site_views", "replay_check"),
    *("keys", "call_locks", "call_try_locks", "call_views"),
}


def test_tests_of_logic_bear_its_names() -> None:
    """A file of sql/logic or sql/debug has a noun of its own, and its tests begin with it."""
    logic = [path for path in files() if path.startswith("sql/logic/")]
    nouns = [Path(path).stem.split("_", 1)[1] for path in logic]
    assert sorted(set(nouns)) == sorted(nouns)
    tests = [Path(path).stem for path in files() if path.startswith(("tests/sql/test_", "tests/calls/test_"))]
    without = [noun for noun in nouns if not any(name.startswith(f"test_{noun}") for name in tests)]
    assert set(without) == TESTED_ELSEWHERE


# what users are told to write
EXAMPLES = {"hello.py"}


def strangers(path: str, text: str, known: Iterable[str]) -> list[str]:
    """Files that a source names and that are not there: beside it, or from a root."""
    roots = {str(Path(path).parent), "pyengine", "sql", "sql/logic", "sql/state"}
    there = {name.removeprefix(f"{one}/") for one in roots for name in known if name.startswith(f"{one}/")}
    there |= set(known)
    named = re.findall(r"(?<![\w/.])((?:\w+/)*(?:[a-z_]+\.py|\d\d_[a-z_]+\.sql))\b", text)
    return sorted({name for name in named if name not in there and name not in EXAMPLES})


def test_files_that_are_named_are_there() -> None:
    """A comment that sends a reader to a file sends him to one that exists."""
    known = files()
    found = {
        path: gone
        for path in known
        if path.startswith(("pyengine/", "sql/")) and path.endswith((".py", ".sql"))
        if (gone := strangers(path, (ROOT / path).read_text(encoding="utf-8"), known))
    }
    assert not found
    assert strangers(
        "pyengine/a/b.py", "see c.py, a/d.py and e.py", ["pyengine/a/c.py", "pyengine/a/d.py"]
    ) == ["e.py"]


def test_sentences_are_sentences() -> None:
    """What stands in the map is a sentence, and says more than the name."""
    short = [
        path for path, sentence in ROOMS.items() if not sentence.endswith(".") or len(sentence.split()) < 4
    ]
    assert not short


def test_the_map_can_be_broken() -> None:
    """A stray file, a dead line and a pattern are told apart."""
    rooms = {
        "a.py": "What a is here for.",
        "results/*.md": "Results of the measurements.",
        "gone.py": "Was here once upon.",
    }
    assert homeless(["a.py", "b.py", "results/x.md", "results/x.json"], rooms) == ["b.py", "results/x.json"]
    assert empty_rooms(["a.py", "results/x.md"], rooms) == ["gone.py"]
