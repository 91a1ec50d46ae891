"""Law: where a command is named, it is as in the whole command line, and no other one is imported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from pyengine.doors.cli.root import _WITH_VALUE, command_line

IMPORTED = """
import sys
from pyengine.doors.cli.root import run
run(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("pyengine.doors.cli.")))
"""


def names(*argv: str) -> set[str]:
    """The commands of a command line."""
    root: Any = get_command(command_line(argv))
    return set(root.commands)


def test_each_command_is_there_alone() -> None:
    """With it are at most the commands of its module."""
    every = names()
    assert {"db", "worker", "ps", "as-of", "settle"} <= every
    for name in every:
        assert name in names(name) and len(names(name)) < 10, name


@pytest.mark.parametrize(
    "before",
    [
        "",
        "--database-url postgresql://h/db",
        "--database-url db",
        "--database-url=db",
        "--json --data-dir demo",
        "--data-dir=demo",
    ],
)
def test_other_commands_are_not_imported(before: str) -> None:
    """Commands that a shell calls in a loop start sooner, also with common options before their name."""
    argv = [sys.executable, "-c", IMPORTED, *before.split(), "ps", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "pyengine.doors.cli.ps" in imported
    assert imported.isdisjoint(
        {"pyengine.doors.cli.db", "pyengine.doors.cli.demo", "pyengine.doors.cli.worker"}
    )


def test_the_options_with_a_value_are_known() -> None:
    """Those of the root command that are no flags; the word after one is no command."""
    root: Any = get_command(command_line())
    valued = [name for one in root.params if not one.is_flag for name in one.opts]
    assert sorted(valued) == sorted(_WITH_VALUE)


@pytest.mark.parametrize("argv", ["", "--help", "--version", "--json", "--data-dir ps", "nonsense ps"])
def test_without_the_name_of_a_command_all_are_there(argv: str) -> None:
    """For the help, and to name what is near a mistyped name."""
    assert names(*argv.split()) == names()
