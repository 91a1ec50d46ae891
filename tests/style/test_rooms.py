"""Law: every folder has a room, told in one sentence of rooms.toml, and every file says itself what it is."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyengine.core.sources import GROUPS
from tests.support.tree import ROOT, files

ROOMS: dict[str, str] = tomllib.loads((Path(__file__).parent / "rooms.toml").read_text(encoding="utf-8"))[
    "rooms"
]


def room_of(path: str) -> str:
    """The folder of a file, or the file itself at the top."""
    folder = str(Path(path).parent)
    return path if folder == "." else folder


def homeless(paths: Iterable[str], rooms: Mapping[str, str]) -> list[str]:
    """Files whose folder is not in the map."""
    return [path for path in paths if room_of(path) not in rooms]


def empty_rooms(paths: Iterable[str], rooms: Mapping[str, str]) -> list[str]:
    """Lines of the map that have no file."""
    return sorted(rooms.keys() - {room_of(path) for path in paths})


def is_told(path: str, text: str) -> bool:
    """Whether a source begins with what it is for."""
    if path.endswith(".py"):
        return bool(ast.get_docstring(ast.parse(text)))
    return not path.endswith(".sql") or text.startswith("-- ")


def test_every_folder_has_its_sentence() -> None:
    """A new folder needs a sentence first: what lives there."""
    without = homeless(files(), ROOMS)
    assert not without, "give their folders a sentence in tests/style/rooms.toml:\n" + "\n".join(without)


def test_every_sentence_has_its_folder() -> None:
    """The map names no folder that is gone."""
    gone = empty_rooms(files(), ROOMS)
    assert not gone, "these lines of tests/style/rooms.toml have no file any more:\n" + "\n".join(gone)


def test_every_source_says_what_it_is() -> None:
    """A Python file begins with a docstring, a SQL file with a comment."""
    silent = [path for path in files() if not is_told(path, (ROOT / path).read_text(errors="replace"))]
    assert not silent, silent


# their laws are those of others: races, journals, models, protocol
TESTED_ELSEWHERE = {
    *("try_locks", "row_types", "signal_rows", "tombstones", "client_events", "client_append", "blocked"),
    "removal",
    *("check_scope", "side_rows", "start_checks", "fork_plan", "site_views", "replay_check"),
    *("keys", "call_locks", "call_try_locks", "call_views"),
    *("when", "due", "firing", "schedule_steering", "schedule_texts"),
}


def test_tests_of_logic_bear_its_names() -> None:
    """A file of sql/logic or sql/debug has a noun of its own, and its tests begin with it."""
    logic = [path for path in files() if path.startswith("sql/logic/")]
    nouns = [Path(path).stem.split("_", 1)[1] for path in logic]
    assert sorted(set(nouns)) == sorted(nouns)
    tests = [
        Path(path).stem
        for path in files()
        if re.match(r"tests/((core|features|doors)/sql|features/calls)/test_", path)
    ]
    without = [noun for noun in nouns if not any(name.startswith(f"test_{noun}") for name in tests)]
    assert set(without) == TESTED_ELSEWHERE


# what users are told to write
EXAMPLES = {"hello.py"}


def strangers(path: str, text: str, known: Iterable[str]) -> list[str]:
    """Files that a source names and that are not there: beside it, or from a root."""
    roots = {str(Path(path).parent), "pyengine", "sql", "sql/logic", "sql/state"}
    roots |= {f"{root}/{group}" for root in ("pyengine", "sql/logic") for group in GROUPS}
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
    """A stray file, a dead line, a file at the top and a silent source are told apart."""
    rooms = {"a": "What a is here for.", "top.md": "The front page of all.", "gone": "Was here once upon."}
    assert homeless(["a/x.py", "a/b/x.py", "top.md", "x.md"], rooms) == ["a/b/x.py", "x.md"]
    assert empty_rooms(["a/x.py", "top.md"], rooms) == ["gone"]
    assert [is_told("x.py", text) for text in ("import os\n", '"""Why."""\n')] == [False, True]
    assert [is_told("x.sql", text) for text in ("select 1;\n", "-- Why.\n")] == [False, True]
