"""Law: only what is the run's own fault may halt it. Every SQLSTATE class and every error of the driver has a
line in the table of faults, the page repeats it, and the sender of turns acts on it.
"""

from __future__ import annotations

import asyncio
import json
import re
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import psycopg
import pytest

from pyengine.core.database.connection import Database, ReconnectingConnection, mapped
from pyengine.core.database.faults import FAULTS, Fault, fault_of
from pyengine.core.process.background import Background
from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.core.process.thread_pool import ValueThreads
from pyengine.core.protocol.commands import Halt
from pyengine.core.protocol.turn import RunReport
from pyengine.core.worker.effects import FetchJournal
from pyengine.core.worker.events import Event, JournalFetched, ReportRejected
from pyengine.core.worker.journal_poller import JournalFetcher
from pyengine.core.worker.run_state import Fetching
from pyengine.core.worker.turn_sender import Identity, TurnSender
from pyengine.errors import EngineError

IDENTITY = Identity(worker="W", queues=["default"], names=[], codes=[], digests=[], ttl_ms=1000)
ANSWER = '{"now":0,"verdicts":null,"tails":[],"tasks":[],"hints":[],"settled":false,"due_in":null}'
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "faults.md"
LINE = re.compile(r"^\| `(\w+)` \| ([a-z]+) \|", re.MULTILINE)
# no statement can meet them: success, warnings, no data
NO_ERRORS = {"00", "01", "02"}
WHOSE = {
    "22003": "run",
    "22021": "run",
    "22P02": "run",
    "22P05": "run",
    "23505": "run",
    "23514": "run",
    "54000": "run",
    "XX001": "run",
    "WF004": "run",
    "WF006": "run",
    "WF008": "run",
    "WF002": "report",
    "40001": "report",
    "40P01": "report",
    "55P03": "report",
    "0A000": "session",
    "26000": "session",
    "25P02": "session",
    "XX000": "session",
    "08006": "server",
    "53100": "server",
    "53200": "server",
    "57014": "server",
    "57P01": "server",
    "58030": "server",
    "25P04": "server",
    "53400": "operator",
    "54001": "operator",
    "54023": "operator",
    "P0001": "operator",
    "38000": "operator",
    "HV000": "operator",
    "42501": "operator",
    "42883": "operator",
    "3F000": "operator",
    "25006": "operator",
    "WF016": "operator",
    "ZZ999": "operator",
}


def _error(code: str) -> EngineError:
    cause = asyncpg.PostgresError("no")
    cause.sqlstate = code
    error = mapped(cause, "the database")
    error.__cause__ = cause
    return error


class Server:
    """Refuses the reports of run 5 with an error while it is ill.

    Attributes:
        error: what it raises.
        lasts: how many turns with run 5 it refuses; None: all.
        turns: the runs of each turn that came.
        drops: how often the connection was dropped.
    """

    def __init__(self, error: EngineError, lasts: int | None) -> None:
        self.error, self.lasts, self.drops = error, lasts, 0
        self.turns: list[list[int]] = []
        self.halted: list[int] = []

    async def run(self, link: object, procedure: object, *given: Any) -> str:
        """Execute a turn."""
        reports = json.loads(given[5])
        self.turns.append([one["execution"] for one in reports])
        halts = [one["execution"] for one in reports if (one.get("end") or {}).get("do") == "halt"]
        if 5 in self.turns[-1] and not halts and (self.lasts is None or self.lasts > 0):
            if self.lasts is not None:
                self.lasts -= 1
            raise self.error
        self.halted += halts
        return ANSWER

    def drop(self) -> None:
        """The connection goes."""
        self.drops += 1


def _send(
    monkeypatch: pytest.MonkeyPatch, error: EngineError, lasts: int | None
) -> tuple[Server, list[int], list[int]]:
    """Send eight reports: the server, the runs whose report is left for later, and those rejected."""
    server, rejected = Server(error, lasts), []
    monkeypatch.setattr("pyengine.core.worker.turn_sender.backoff_s", lambda failures: 0.0)
    monkeypatch.setattr(ReconnectingConnection, "run", lambda *given: server.run(*given))
    monkeypatch.setattr("pyengine.core.worker.turn_sender.ADOPTION_RETRY_S", 0.0)
    monkeypatch.setattr(ReconnectingConnection, "drop", lambda link: server.drop())

    async def connected(link: object, *, purpose: str) -> None:
        """The server is there."""

    monkeypatch.setattr(ReconnectingConnection, "connected_eventually", connected)

    async def main() -> list[int]:
        def post(event: object) -> None:
            assert isinstance(event, ReportRejected)
            rejected.append(event.report.execution)

        nowhere = Database("postgresql://127.0.0.1:1/none")
        turns = TurnSender(nowhere, IDENTITY, lambda: inf, post, cast("Any", None))
        answers = await turns.send([RunReport(n, f"r{n}", 1, 0) for n in range(8)], 0)
        return [execution for answer in answers for execution in answer.busy]

    return server, asyncio.run(main()), rejected


@pytest.mark.parametrize(("code", "whose"), WHOSE.items())
def test_what_is_done_about_a_fault(monkeypatch: pytest.MonkeyPatch, code: str, whose: str) -> None:
    """The run's: it alone is halted. The report's, the operator's, or a session's that lasts: the report is
    left for later, alone. The server's, and a session's that passes: all is sent again. No other is lost.
    """
    error = _error(code)
    assert fault_of(error) is Fault(whose)
    # a copy is waited for, because nothing at all runs in it
    passes = whose in ("server", "session") or code == "WF016"
    server, busy, rejected = _send(monkeypatch, error, 1 if passes else None)
    assert set().union(*server.turns) == {*range(8)}
    assert rejected == server.halted == ([5] if whose == "run" else [])
    assert busy == ([5] if whose in ("report", "operator") and not passes else [])
    if passes:
        assert server.turns == [[*range(8)], [*range(8)]]
    assert server.drops == (whose == "session")
    if whose == "session":
        monkeypatch.undo()
        server, busy, rejected = _send(monkeypatch, error, None)
        assert (busy, rejected, server.halted) == ([5], [], [])


def test_a_halt_names_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem of a run that is set aside is the error of the database."""
    seen: list[Halt] = []
    send_once = TurnSender.send_once

    async def watch(sender: TurnSender, reports: list[RunReport], *given: Any, **more: Any) -> Any:
        seen.extend(one.end for one in reports if isinstance(one.end, Halt))
        return await send_once(sender, reports, *given, **more)

    monkeypatch.setattr(TurnSender, "send_once", watch)
    _send(monkeypatch, _error("23514"), None)
    (halt,) = seen
    assert "SQLSTATE 23514" in str(halt.problem)


DRIVER = [
    (ConnectionResetError("gone"), Fault.SERVER),
    (TimeoutError(), Fault.SERVER),
    (asyncpg.ConnectionDoesNotExistError("gone"), Fault.SERVER),
    (asyncpg.TooManyConnectionsError("full"), Fault.SERVER),
    (asyncpg.InvalidCachedStatementError("stale"), Fault.SESSION),
    (asyncpg.OutdatedSchemaCacheError("stale"), Fault.SESSION),
    (asyncpg.InterfaceError("closed"), Fault.SESSION),
    (asyncpg.InternalClientError("odd"), Fault.SESSION),
    (asyncpg.DataError("an argument"), Fault.RUN),
    (ValueError("hour must be in 0..23"), Fault.RUN),
    (OverflowError("date value out of range"), Fault.RUN),
    (RuntimeError("a fault of ours"), Fault.OPERATOR),
]


@pytest.mark.parametrize(("error", "fault"), DRIVER, ids=lambda one: type(one).__name__)
def test_an_error_of_the_driver(error: Exception, fault: Fault) -> None:
    """Errors without a SQLSTATE are told by their class, also when ours was raised from them."""
    assert fault_of(error) is fault
    ours = EngineError("it failed")
    ours.__cause__ = error
    assert fault_of(ours) is fault


def test_every_class_has_a_line() -> None:
    """PostgreSQL has no class of errors that the table leaves to chance."""
    codes = {getattr(one, "sqlstate", None) for one in vars(psycopg.errors).values()}
    classes = {code[:2] for code in codes if isinstance(code, str)} - NO_ERRORS
    assert len(classes) > 30
    assert classes - {code[:2] for code in FAULTS} == set()


def test_the_page_is_the_table() -> None:
    """What an operator reads is what the code does."""
    assert dict(LINE.findall(PAGE.read_text("utf8"))) == {code: fault.value for code, fault in FAULTS.items()}


@pytest.mark.parametrize(("code", "is_left"), [("WF008", True), ("57014", False)])
def test_a_journal_that_cannot_be_read_is_left(
    monkeypatch: pytest.MonkeyPatch, code: str, is_left: bool
) -> None:
    """A replay asks again for a journal that has no answer now. One that cannot be read by a fault of its run
    is not asked for again: the run is let go, so that the next claim sets it aside.
    """
    asked = 0
    events: list[Event] = []

    class Side:
        """Refuses to read once; then it answers."""

        async def run(self, *given: Any) -> str:
            """Read a journal."""
            nonlocal asked
            asked += 1
            if asked == 1:
                raise _error(code)
            return '{"next": 1, "rows": []}'

    run: Any = SimpleNamespace(
        phase=Fetching({}, (), rejected=False, poll=False), lease=(1, "r", 1), info=SimpleNamespace(id="r")
    )
    monkeypatch.setattr("pyengine.core.worker.journal_poller._AGAIN_S", 0.0)

    async def main() -> None:
        background = Background(events.append)
        values = ValueThreads(asyncio.get_running_loop())
        terms = LeaseTerms(60)
        run.known_until_s = terms.asked()
        side = cast("Any", Side())
        fetcher = JournalFetcher(side, "W", terms, events.append, background=background, values=values)
        fetcher.fetch(FetchJournal(run))
        await background.ended()

    asyncio.run(main())
    (event,) = events
    assert isinstance(event, JournalFetched)
    assert (asked, event.journal is None) == ((1, True) if is_left else (2, False))
