"""A turn on the wire: what a worker reports and what it gets back.

What lives here: the shapes of reports and answers, and how they are written and read. What may not: sending
(worker/turn_sender.py), what a report means for a run (worker/run_manager.py). The theory: a turn is one JSON
text each way, short enough to be read in a log: what is absent is left out, and what the database only hands
on (arguments, results, errors) goes as text inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from pyengine.protocol.commands import (
    Adopt,
    Cancelled,
    Captured,
    Command,
    Complete,
    ContinueAsNew,
    Ending,
    Fail,
    Halt,
    Intend,
    MakeJoinSet,
    MakePromise,
    Receive,
    Release,
    RolledBack,
    RunChild,
    StartTimer,
    StepOutcome,
    Submit,
    Suspend,
    Take,
)
from pyengine.protocol.journal import Row

__all__ = [
    "NEVER_MS",
    "Answer",
    "ClaimedRun",
    "EndedRun",
    "HandedOff",
    "Journal",
    "Lease",
    "RunReport",
    "Verdict",
    "Verdicts",
    "decode_answer",
    "decode_handoff",
    "decode_journal",
    "decode_result",
    "encode_reports",
    "encode_texts",
]


NEVER_MS = 2**53 - 1
"""What the database writes for an instant that never comes, in milliseconds."""


class Lease(NamedTuple):
    """Which run a worker speaks of, and under which lease: all that it tells of a run begins with that.

    Args:
        execution: number of the run; after a crash of the server it may be that of another one.
        id: id of the run.
        version: version of the lease.
    """

    execution: int
    id: str
    version: int


class RunReport(msgspec.Struct, omit_defaults=True, gc=False):
    """What one execution reports in one turn. One with nothing but outcomes is written as it stands here.

    Args:
        execution: number of the run.
        id: id of the run.
        version: version of the lease.
        seen: the logical number through which the coroutine was advanced.
        outcomes: what became of steps.
        commands: what the coroutine did.
        end: how it leaves the task, if it does.
        reply: address to which the end is to be sent.
    """

    execution: int
    id: str
    version: int
    seen: int
    outcomes: Sequence[StepOutcome] = ()
    commands: Sequence[Command] = ()
    end: Ending | None = None
    reply: str | None = None


class _Command(msgspec.Struct, omit_defaults=True, gc=False):
    do: str
    child: int
    name: str | None = None
    version: str | None = None
    queue: str | None = None
    hash: str | None = None
    param: str | None = None
    timeout: int | None = None
    detached: bool = False
    duration: int | None = None
    value: str | None = None
    set: int | None = None
    abandon: bool = False
    retry: str | None = None


class _End(msgspec.Struct, omit_defaults=True, gc=False):
    do: str
    on: tuple[int, ...] | None = None
    kind: str | None = None
    value: str | None = None
    error: str | None = None
    retry_in: int | None = None
    problem: str | None = None


class _RunReport(msgspec.Struct, omit_defaults=True, gc=False):
    execution: int
    id: str
    version: int
    seen: int
    outcomes: Sequence[StepOutcome] = ()
    commands: list[_Command] = []
    end: _End | None = None
    reply: str | None = None


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer to a report.

    Args:
        execution: number of the run.
        verdict: ok, stale or lost.
        state: state of its task now.
        seq: logical number at which the rows of the report begin.
        next: logical number after them.
    """

    execution: int
    verdict: str
    state: str
    seq: int
    next: int


class Verdicts(msgspec.Struct, gc=False):
    """The answers to the reports, as parallel arrays; None where no reports were sent."""

    execution: list[int] | None
    verdict: list[str] | None
    state: list[str] | None
    seq: list[int | None] | None
    next: list[int | None] | None

    def each(self) -> Iterator[Verdict]:
        """Return one verdict after the other."""
        arrays: Any = (self.execution, self.verdict, self.state, self.seq, self.next)
        return map(Verdict, *arrays)


class ClaimedRun(msgspec.Struct, array_like=True, gc=False):
    """A claimed task with its run's journal, or the end of it; on the wire an array (`durable._claimed_run`).

    A run that was handed off says where its result is to be sent.
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


class HandedOff(msgspec.Struct, array_like=True, gc=False):
    """The direct message by which an idle worker gets a run (`durable._hand_off`).

    Args:
        task: the run, as a claim would answer it.
        timeout: milliseconds until its deadline; None if it has none.
        reply: address to which its result is to be sent.
    """

    task: ClaimedRun
    timeout: int | None
    reply: str | None

    def answer(self) -> Answer:
        """Return the answer of a turn that had claimed it; it may be old, so it does not tell the time."""
        self.task.reply = self.reply
        return Answer(0, None, [], [self.task], [], False, self.timeout)


class EndedRun(msgspec.Struct, array_like=True, gc=False):
    """The direct message by which a client gets the end of a run: a row of `RESULTS`."""

    id: str
    state: str
    value: str | None
    error: str | None


class Answer(msgspec.Struct):
    """What a turn answers.

    Args:
        now: the database's time, epoch milliseconds; 0 if it does not tell.
        verdicts: the answers to the reports.
        tails: rows of others, by execution, before and after those of the report.
        tasks: what was claimed.
        hints: queues in which runs became ready.
        settled: something settled.
        due_in: milliseconds to the next deadline, maybe `NEVER_MS`; None where the turn did not look.
        busy: runs of which nothing was written, because somebody has locked what their reports need.
        held: ids of what is locked, for the sake of reports and claims.
        idle: the worker is idle again, since this turn.
    """

    now: int
    verdicts: Verdicts | None
    tails: list[tuple[int, list[Row], list[Row]]]
    tasks: list[ClaimedRun]
    hints: list[str]
    settled: bool
    due_in: int | None
    busy: list[int] = []
    held: list[str] = []
    idle: bool = False


class Journal(msgspec.Struct):
    """A journal, or the end of one, and the logical number after it."""

    next: int
    rows: list[Row]


_encode = msgspec.json.Encoder().encode
decode_journal = msgspec.json.Decoder(Journal).decode
decode_answer = msgspec.json.Decoder(Answer).decode
decode_handoff = msgspec.json.Decoder(HandedOff).decode
decode_result = msgspec.json.Decoder(EndedRun).decode


def _wire_command(command: Command) -> _Command:
    match command:
        case RunChild():
            return _Command(
                "run",
                command.child,
                command.name,
                command.version,
                command.queue,
                command.hash,
                command.param,
                command.timeout_ms,
                command.detached,
                abandon=command.abandon,
            )
        case StartTimer():
            return _Command("timer", command.child, duration=command.duration_ms)
        case MakePromise():
            do = "promise" if command.key is None else "until"
            return _Command(
                do,
                command.child,
                command.name,
                hash=command.hash,
                param=command.key,
                timeout=command.timeout_ms,
            )
        case Captured():
            return _Command(command.kind, command.child, command.name, value=command.value)
        case RolledBack():
            return _Command(
                "transaction", command.child, command.name, hash=command.hash, value=command.value
            )
        case Adopt():
            return _Command("adopt", command.child, command.name)
        case Receive():
            return _Command("receive", command.child, command.name)
        case MakeJoinSet():
            return _Command("join_set", command.child)
        case Submit():
            return _Command("submit", command.child, set=command.join_set)
        case Take():
            return _Command("take", command.child, set=command.join_set)
        case Intend():
            return _Command(
                "intent",
                command.child,
                command.name,
                hash=command.hash,
                param=command.param,
                retry=command.retry,
            )


def _wire_end(end: Ending) -> _End:
    match end:
        case Suspend():
            return _End("suspend", end.on, end.kind)
        case Complete():
            return _End("complete", value=end.value)
        case Fail():
            return _End("fail", error=end.error)
        case Halt():
            return _End("halt", problem=end.problem)
        case Cancelled():
            return _End("cancel")
        case ContinueAsNew():
            return _End("continue", (end.next_child, *end.kept), value=end.value)
        case Release():
            return _End("release", retry_in=end.retry_in_ms)


def _wire(report: RunReport) -> RunReport | _RunReport:
    if not report.commands and report.end is None:
        return report
    wire = _RunReport(report.execution, report.id, report.version, report.seen, report.outcomes)
    if report.commands:
        wire.commands = [_wire_command(command) for command in report.commands]
    if report.end is not None:
        wire.end = _wire_end(report.end)
        wire.reply = report.reply
    return wire


def encode_reports(reports: Iterable[RunReport]) -> str:
    """Return the JSON text that the turn takes."""
    return _encode([_wire(report) for report in reports]).decode()


def encode_texts(texts: Iterable[str]) -> str:
    """Return the array literal that the database reads as text[]."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
