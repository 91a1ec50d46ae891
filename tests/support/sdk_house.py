"""Programs of published SDKs as processes, before a database.

Lives here: which program plays the scenes in which SDK, what a client of each scene gets, and the processes
of a test. May not: how they reach the database.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.sdks import (
    OLDER_PYTHON_SDK,
    OLDER_TYPESCRIPT_SDK,
    PYTHON_SDK,
    PYTHON_SDK_0_4,
    PYTHON_SDK_0_6,
    TYPESCRIPT_SDK,
    Sdk,
    python_sdk,
    python_sdk_here,
    python_sdk_with_postgres,
    typescript_sdk,
    typescript_sdk_with_postgres,
)
from tests.support.tree import ROOT
from tests.support.verbs import Connection

__all__ = ["LANGUAGES", "LONG_SCENES", "OLDER", "SCENES", "SDKS", "UNSETTLED", "WAIT_S", "House", "Program"]

PROGRAMS = ROOT / "tests" / "doors" / "protocol" / "sdks"
WAIT_S = 120.0
LANGUAGES = ("python", "typescript")
OLDER = ("older-python", "older-typescript")
# how an SDK is made, which version of it, and its program
SDKS: dict[str, tuple[Callable[[str], Sdk], str, str]] = {
    "python": (python_sdk, PYTHON_SDK, "program.py"),
    "typescript": (typescript_sdk, TYPESCRIPT_SDK, "program.mjs"),
    "older-python": (python_sdk, OLDER_PYTHON_SDK, "program.py"),
    "older-typescript": (typescript_sdk, OLDER_TYPESCRIPT_SDK, "program.mjs"),
    "python-0.6": (python_sdk, PYTHON_SDK_0_6, "program_0_6.py"),
    "python-0.4": (python_sdk_here, PYTHON_SDK_0_4, "program_0_4.py"),
    "python-postgres": (python_sdk_with_postgres, PYTHON_SDK, "program.py"),
    "typescript-postgres": (typescript_sdk_with_postgres, TYPESCRIPT_SDK, "program.mjs"),
    "older-typescript-postgres": (typescript_sdk_with_postgres, OLDER_TYPESCRIPT_SDK, "program.mjs"),
}
# scene -> what the client gets
SCENES: dict[str, Any] = {
    "run": 6,
    "rpc": 5,
    "fan-out": 210,
    "recursion": 8,
    "sleep": "awake",
    "detached": 5,
    "rejected": "no luck",
    "retries": 2,
    "again": [2, 2],
    "schedule": "* * * * *",
}
LONG_SCENES: dict[str, Any] = {"fan-out-of-hundred": 5050, "deep-recursion": 34}
UNSETTLED = """
select p.id from durable._promises p
where p.tags ->> 'resonate:origin' = %s and p.state = 'pending' and p.target is null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A process of an SDK.

    Args:
        pid: its name in its group, where the messages for it go.
    """

    pid: str
    process: subprocess.Popen[str]
    errors: IO[str]

    def answers(self) -> list[Any]:
        """What a client printed before it ended well."""
        try:
            told, _ = self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            told = self.end()
        assert self.process.returncode == 0, f"{told}\n{self.said()}"
        return [json.loads(line) for line in told.splitlines()]

    def said(self) -> str:
        """Its log."""
        self.errors.seek(0)
        return self.errors.read()

    def end(self) -> str:
        """Kill it, unless it has ended; returns what it had printed."""
        if self.process.returncode is not None:
            return ""
        self.process.kill()
        return self.process.communicate()[0]


class House:
    """A database, the gateway before it, and processes of SDKs that talk to it."""

    def __init__(
        self, url: str, conn: Connection, sdk: Callable[[str], Sdk], folder: Path, **urls: str
    ) -> None:
        """At `url`; SDKs whose names begin with that of one of `urls` are told that instead."""
        self.conn = conn
        self._url = url
        self._urls = urls
        self._sdk = sdk
        self._folder = folder
        self._programs: list[Program] = []
        self._groups: set[str] = set()

    def begin(self, language: str, group: str, role: str, *more: str) -> Program:
        """Start a process; nothing that this one was told of the engine is in its environment."""
        sdk = self._sdk(language)
        pid = f"{language}-{len(self._programs)}"
        errors = (self._folder / f"{pid}-{role}").open("w+", encoding="utf-8")
        url = next((url for name, url in self._urls.items() if language.startswith(name)), self._url)
        process = subprocess.Popen(
            [*sdk.command, PROGRAMS / SDKS[language][2], sdk.folder, url, group, pid, role, *more],
            env={
                key: text for key, text in os.environ.items() if not key.startswith(("RESONATE_", "PYTHON"))
            },
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._programs.append(Program(pid=pid, process=process, errors=errors))
        return self._programs[-1]

    def worker(self, language: str) -> str:
        """The group of the worker of this language, which is started when it is first asked for."""
        if language not in self._groups:
            self._groups.add(language)
            self.begin(language, language, "worker")
        return language

    def until(self, text: str, *values: object) -> Any:
        """The first row of a query as soon as it has one."""
        late = time.monotonic() + WAIT_S
        while (row := self.conn.execute(text.encode(), values).fetchone()) is None:
            assert time.monotonic() < late, f"no row in {WAIT_S} s: {text}\n{self.said()}"
            time.sleep(0.05)
        return row[0]

    def said(self) -> str:
        """The logs of all processes."""
        return "\n".join(f"{each.errors.name}:\n{each.said()}" for each in self._programs)

    def end(self) -> None:
        """Kill every process."""
        for each in self._programs:
            each.end()
            each.errors.close()
