"""Law: where a command's name comes first, that command is as in the whole command line, and no other one is
imported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from typer.main import get_command

from pyengine.cli.root import command_line

IMPORTED = """
import sys
from pyengine.cli.root import run
run(["ps", "--help"])
print(*(name for name in sys.modules if name.startswith("pyengine.cli.")))
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


def test_other_commands_are_not_imported() -> None:
    """Commands that a shell calls in a loop start sooner."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "pyengine.cli.ps" in imported
    assert imported.isdisjoint({"pyengine.cli.db", "pyengine.cli.demo", "pyengine.cli.worker"})
