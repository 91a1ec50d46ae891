"""What tests of the command line have: the command itself, in this process, and runs to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from pyengine.doors.cli.root import run
from tests.support.verbs import Turn, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that ``--json`` printed."""
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def pyengine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command with some words, without a database in the environment."""
    for name in ("PYENGINE_DATABASE_URL", "DATABASE_URL", "PYENGINE_LISTEN_URL", "PYENGINE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("COLUMNS", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["pyengine", *words])
        capsys.readouterr()
        code = run(list(words))
        printed = capsys.readouterr()
        return Answer(code=code, out=printed.out, err=printed.err)

    return call


@pytest.fixture
def at_database(pyengine: Command, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with the test's own database named by the environment."""
    monkeypatch.setenv("PYENGINE_DATABASE_URL", dsn)
    return pyengine


class Player:
    """A worker without code: it reports what a test tells it to."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def hello(self, *workflows: str) -> None:
        """Say that these workflows are served."""
        self.conn.execute(
            "select durable.worker_hello_v1('player', '{default}', %s, %s, '{}')",
            (list(workflows), ["1"] * len(workflows)),
        )

    def claim(self, *workflows: str) -> list[dict[str, Any]]:
        """Take all runs of these workflows that are ready."""
        return Turn(raw=self._turn(list(workflows), 100, [])).handed

    def report(self, task: dict[str, Any], **report: Any) -> dict[str, Any]:
        """Report outcomes, commands and an end of a run."""
        made = {"outcomes": [], "commands": [], "end": None} | report
        made |= {
            "execution": task["execution"],
            "id": task["id"],
            "version": task["version"],
            "seen": task["next"],
        }
        answer = self._turn([], -1, [made])
        task["next"] = answer["verdicts"]["next"][0]
        return answer

    def _turn(self, workflows: list[str], want: int, reports: list[Any]) -> dict[str, Any]:
        row = self.conn.execute(
            "select durable.worker_turn_v1('player', '{default}', %s, %s, %s, %s::jsonb, 15000)",
            ([code(name) for name in workflows], ["00"] * len(workflows), want, json.dumps(reports)),
        ).fetchone()
        assert row is not None
        answer: dict[str, Any] = row[0]
        return answer


@pytest.fixture
def player(session: psycopg.Connection[Any]) -> Player:
    """A worker without code."""
    return Player(session)
