"""Pages of documentation, and how their code blocks are run.

Lives here: reading a page into blocks, and running them in their order against one database. A page is run
as a reader would run it:

- ``python`` is a program of its own (programs.py); with a title it is a file of that name, which others
  import or serve;
- ``sql`` goes to psql; ``console`` holds commands behind ``$``, each with its output below it;
- ``text`` below ``python`` or ``sql`` is what they print; ``...`` stands for anything;
- ``sh`` is not run, but its commands and options exist;
- a block whose title contains ``not run`` is not run, and the reader sees that.

The front matter may hold ``test``: ``before`` (SQL), ``worker`` (``module:app``, which serves while the
blocks run), and ``session`` (why the page needs a session of its own behind a pooler).
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from pyengine.doors.embedded.binaries import find_binaries
from tests.examples import programs
from tests.support.tree import ROOT, files
from tests.system.crash.processes import environment, kill, stop, until

_FENCE = re.compile(r"^```(\w+)(?: (.*?))?\n(.*?)^```$", re.M | re.S)
_FRONT = re.compile(r"\A---\n(.*?)^---\n", re.M | re.S)
LANGUAGES = {"python", "sql", "console", "text", "sh", "ini", "js"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """One code block of a page."""

    language: str
    title: str
    text: str
    line: int

    @property
    def is_run(self) -> bool:
        """Whether the page's test runs it."""
        return self.language in ("python", "sql", "console") and "not run" not in self.title


@dataclass(frozen=True)
class Page:
    """A Markdown file of this repository.

    Args:
        path: from the root of the repository.
    """

    path: str

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def options(self) -> dict[str, str]:
        """What its front matter says about its test."""
        front = _FRONT.match(self.text)
        return dict((yaml.safe_load(front[1]) or {}).get("test", {})) if front else {}

    @cached_property
    def blocks(self) -> list[Block]:
        """Its code blocks, in order."""
        return [
            Block(
                language=match[1],
                title=found[1] if (found := re.search(r'title="(.*?)"', match[2] or "")) else "",
                text=match[3],
                line=self.text[: match.start()].count("\n") + 1,
            )
            for match in _FENCE.finditer(self.text)
        ]

    def block(self, language: str, heading: str) -> str:
        """The first block of a language under a heading."""
        (section,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.text, re.M | re.S)
        (first, *_) = [match[3] for match in _FENCE.finditer(section) if match[1] == language]
        return str(first)


def pages() -> list[Page]:
    """The README and every page of the documentation."""
    return [Page(path) for path in files() if path.endswith(".md") and path.startswith(("README", "docs/"))]


def matches(expected: str, printed: str) -> bool:
    """Whether a program printed what the page shows; white space apart, ``...`` is anything."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, options)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with its output."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


@dataclass
class Reader:
    """Somebody who types what a page shows.

    Args:
        dsn: the database.
        folder: where the page's files go.
        may_warn: whether the page shows a workflow that a replay cannot repeat.
    """

    dsn: str
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    may_warn: bool = False

    def read(self, page: Page) -> None:
        """Run the blocks of a page in their order, and compare what they print."""
        self.may_warn = "DeterminismWarning" in page.text
        for block in page.blocks:
            if block.language == "python" and block.title and block.is_run:
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
        with ExitStack() as at_end:
            at_end.callback(self.leave)
            if "before" in page.options:
                self.psql(page.options["before"])
            if "worker" in page.options:
                self.work(["pyengine", "worker", page.options["worker"]])
            for block, below in zip(page.blocks, [*page.blocks[1:], None], strict=True):
                if block.is_run:
                    where = f"{page.path}:{block.line}"
                    printed = self.run(block, where)
                    if below is not None and below.language == "text" and block.language != "console":
                        assert matches(below.text, printed), f"{where} printed:\n{printed}"

    def run(self, block: Block, where: str) -> str:
        """Run one block and answer what it printed."""
        if block.language == "sql":
            return self.psql(block.text, where)
        if block.language == "python":
            text = f"import {Path(block.title).stem}" if block.title else block.text
            return self.good(programs.run(text, self.folder, self.environment()), where)
        for command, expected in commands(block.text):
            printed = self.type(command, where)
            assert matches(expected, printed), f"{where}: {command} printed:\n{printed}"
        return ""

    def type(self, command: str, where: str) -> str:
        """Type one command; a worker goes on in the background, and is what pkill kills."""
        words = shlex.split(command)
        if words[:2] == ["pyengine", "worker"]:
            self.work(words)
            return ""
        if words[0] == "pkill":
            kill(self.workers.pop())
            return ""
        return self.succeed(["bash", "-c", command], where)

    def work(self, words: list[str]) -> None:
        """Start a worker of the page, and wait until the database knows it."""
        command = [sys.executable, "-m", *words]
        known = f"select count(*) > {len(self.workers)} from durable.workers"
        self.workers.append(subprocess.Popen(command, env=self.environment(), cwd=self.folder))
        until(self.dsn, known)

    def leave(self) -> None:
        """Stop the page's workers."""
        while self.workers:
            stop(self.workers.pop())

    def psql(self, text: str, where: str = "before") -> str:
        """Run SQL in psql and answer what it printed."""
        psql = str(find_binaries().bin_dir / "psql")
        return self.succeed([psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", self.dsn], where, text)

    def succeed(self, command: list[str], where: str, text: str = "") -> str:
        """Run a program to its end, which must be a good one, and answer what it printed."""
        done = subprocess.run(
            command,
            input=text,
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=90,
        )
        return self.good(done, where)

    def good(self, done: subprocess.CompletedProcess[str], where: str) -> str:
        """What a program printed that has ended, and as it should."""
        assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"
        assert self.may_warn or "DeterminismWarning" not in done.stderr, f"{where}\n{done.stderr}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The environment of a reader: the database, our commands, the page's folder."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = environment(self.dsn)
        own["PYTHONPATH"] = os.pathsep.join([str(self.folder), own["PYTHONPATH"]])
        return {**own, "PATH": path, "COLUMNS": "120", "PGCLIENTENCODING": "UTF8"}
