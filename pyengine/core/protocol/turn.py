"""A turn on the wire: the reports of a worker, and the answer of the database.

Lives here: the records of reports and answers, their encoding and decoding. May not: sending
(worker/turn_sender.py), the effect of an answer on a run (worker/run_manager.py). The theory: a turn is one
JSON text each way, short enough to be read in a log. Absent fields are left out; arguments, results and
errors, which the database only passes on, are texts inside it; but large results stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pyengine.core.protocol.commands import Command, Complete, Ending, StepOutcome, text_bytes, weight
from pyengine.core.protocol.journal import Row
from pyengine.core.protocol.progress import ProgressReport

NEVER_MS = 2**53 - 1
"""The database's value for an instant that never comes, in milliseconds."""


class Lease(NamedTuple):
    """The lease of a run: every message of a worker about a run begins with these fields.

    Args:
        execution: number of the run; after a crash of the server it may belong to another run.
        id: id of the run.
        version: version of the lease.
    """

    execution: int
    id: str
    version: int


class RunReport(msgspec.Struct, omit_defaults=True, gc=False):
    """The report of one run in one turn.

    Args:
        execution: number of the run.
        id: id of the run.
        version: version of the lease.
        seen: the logical number through which the coroutine was advanced.
        outcomes: outcomes of its steps.
        commands: commands of its code.
        end: how it leaves the worker, if it does.
        reply: with an end: the address to which the end is sent.
        progress: what it has set for those who watch it, if anything.
    """

    execution: int
    id: str
    version: int
    seen: int
    outcomes: Sequence[StepOutcome] = ()
    commands: Sequence[Command] = ()
    end: Ending | None = None
    reply: str | None = None
    progress: ProgressReport | None = None


class Verdicts(msgspec.Struct, gc=False):
    """The answers to the reports, as parallel arrays; None where no reports were sent.

    Args:
        execution: number of the run.
        verdict: ok, stale or lost.
        state: state of its task now.
        next: logical number after the rows of the report; None if it was not accepted.
    """

    execution: list[int] | None
    verdict: list[str] | None
    state: list[str] | None
    next: list[int | None] | None

    def each(self) -> Iterator[tuple[int, str, str, int | None]]:
        """Return the fields of one answer after the other."""
        return zip(self.execution or (), self.verdict or (), self.state or (), self.next or (), strict=True)


class ClaimedRun(msgspec.Struct, array_like=True, gc=False):
    """A claimed run with its journal from `from_seq` on; on the wire an array (`durable._claimed_run`).

    A run that was handed off has a `reply`: the address to which its result is sent.
    """

    execution: int
    id: str
    version: int
    workflow: str
    workflow_version: str
    param: str | None
    from_seq: int | None
    next: int
    rows: list[Row]
    crashes: int
    started_at: int
    queue: str
    first_child: int = 0
    reply: str | None = None
    rules: int = 1


class HandedOff(msgspec.Struct, array_like=True, gc=False):
    """The direct message by which an idle worker gets a run (`durable._hand_off`).

    Args:
        task: the run, as in the answer to a claim.
        timeout: milliseconds until its deadline; None if it has none.
        reply: address to which its result is to be sent.
    """

    task: ClaimedRun
    timeout: int | None
    reply: str | None

    def answer(self) -> Answer:
        """Return the answer of a turn that claimed the run; without a time, since the message may be old."""
        self.task.reply = self.reply
        return Answer(0, None, [], [self.task], [], False, self.timeout)


class EndedRun(msgspec.Struct, array_like=True, gc=False):
    """The direct message by which a client gets the end of a run: a row of `RESULTS`."""

    id: str
    state: str
    value: str | None
    error: str | None


class Answer(msgspec.Struct):
    """The answer of a turn.

    Args:
        now: the database's time, epoch milliseconds; 0 if unknown.
        verdicts: the answers to the reports.
        tails: rows of others, by execution, before and after those of the report.
        tasks: claimed runs.
        hints: queues in which runs became ready.
        settled: some promise settled.
        due_in: milliseconds to the next deadline, possibly `NEVER_MS`; None if the turn did not look.
        busy: runs whose reports were not written, because other sessions lock rows that they need.
        locked: ids of those rows, of reports and claims.
        idle: the worker was registered as idle by this turn.
        aside: id, SQLSTATE and message, one after the other, of runs that could not be handed out.

    Not on the wire:
        known_until_s: until when the leases of the tasks are known to hold, by the clock of their worker.
    """

    now: int
    verdicts: Verdicts | None
    tails: list[tuple[int, list[Row], list[Row]]]
    tasks: list[ClaimedRun]
    hints: list[str]
    settled: bool
    due_in: int | None
    busy: list[int] = []
    locked: list[str] = []
    idle: bool = False
    aside: list[str] = []
    known_until_s: float = 0.0


class Journal(msgspec.Struct):
    """Rows of a journal up to its end, and the logical number after them."""

    next: int
    rows: list[Row]


_BESIDE = 16 << 10
# no JSON text begins with it
_SUB = "\x1a"

_encode = msgspec.json.Encoder().encode
decode_journal = msgspec.json.Decoder(Journal).decode
decode_answer = msgspec.json.Decoder(Answer).decode
decode_handoff = msgspec.json.Decoder(HandedOff).decode
decode_result = msgspec.json.Decoder(EndedRun).decode


def encode_reports(reports: Iterable[RunReport]) -> str:
    """Return the JSON text of reports, the argument of a turn."""
    return _encode(list(reports)).decode()


def weight_of(reports: Iterable[RunReport]) -> int:
    """Return the payload of reports, in bytes."""
    return sum(
        weight(report.commands, report.end)
        + sum(text_bytes(one.value or one.error or one.param or "") for one in report.outcomes)
        + (report.progress.weight if report.progress is not None else 0)
        for report in reports
    )


def encode_large_reports(reports: Iterable[RunReport]) -> tuple[str, list[str]]:
    """Return the JSON text of reports, and the large results to which it refers: they would have to be quoted
    in it, and the database would read them with every report.
    """
    texts: list[str] = []
    return encode_reports([_without_large(report, texts) for report in reports]), texts


def _without_large(report: RunReport, texts: list[str]) -> RunReport:
    outcomes = [
        one if one.value is None or len(one.value) < _BESIDE else replace(one, value=_put(one.value, texts))
        for one in report.outcomes
    ]
    end = report.end
    if isinstance(end, Complete) and len(end.value) >= _BESIDE:
        end = Complete(value=_put(end.value, texts))
    return replace(report, outcomes=outcomes, end=end)


def _put(text: str, texts: list[str]) -> str:
    texts.append(text)
    return f"{_SUB}{len(texts)}"


def encode_texts(texts: Iterable[str]) -> str:
    """Return the Postgres array literal of texts (text[])."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
