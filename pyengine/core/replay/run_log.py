"""The log about runs: one record for each event in the life of a run at a worker.

Lives here: the sentences, and the fields of each record: `event`, `run`, `workflow` and `queue`; of an
attempt also `step`, `attempt` and `retry_at`. May not: the decision that an event happened
(worker/run_manager.py), handlers or levels, which belong to the program. The theory: a log travels further
than the database does, so no record holds an argument, a result, or a sentence of the engine that shows one;
messages of users' exceptions are theirs. Each sentence can be read without its fields, because a plain
handler prints nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.loop.futures import UnhandledError
from pyengine.core.protocol.commands import (
    Cancelled,
    Complete,
    ContinueAsNew,
    Ending,
    Fail,
    Halt,
    Refuse,
    StepOutcome,
)
from pyengine.core.values.error_records import public_headline, public_traceback, read_record

logger = logging.getLogger("pyengine.worker")
of_code = logging.getLogger("pyengine.workflow")
each_run = logging.getLogger("pyengine.runs")
"""The logger of what happens to every run; a busy worker switches it off."""

_NAMES_MAX = 5
_WELL = (Complete, Cancelled)
_UNFIT = (Halt, Refuse)
_ENDS: dict[type, str] = {Complete: "completed", Cancelled: "cancelled", ContinueAsNew: "continued as new"}


def _fields(info: RunInfo, event: str, **more: Any) -> dict[str, Any]:
    fields = {"event": event, "run": info.id, "workflow": info.workflow, "queue": info.queue}
    return fields | more


def _instant(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="seconds")


def _with_traceback(sentence: str, record: Any) -> str:
    text = public_traceback(record).rstrip()
    return f"{sentence}\n{text}" if text else sentence


def attempt_failed(info: RunInfo, outcome: StepOutcome, now_ms: int, *, pauses: bool = False) -> None:
    """Warn of an attempt of a step that failed.

    Args:
        info: its run.
        outcome: its outcome, which has an error.
        now_ms: the database's time, epoch milliseconds.
        pauses: its run is paused because of it.
    """
    record = read_record(outcome.error)
    sentence = f"step {outcome.name} of run {info.id} failed in attempt {outcome.attempt}"
    sentence += f": {public_headline(record)}"
    fields = _fields(info, "attempt_failed", step=outcome.name, attempt=outcome.attempt)
    if outcome.retry_in_ms is None:
        sentence += "; there is no other attempt"
    elif pauses:
        sentence += "; the run is paused, and tries again when it is resumed"
    else:
        at = _instant(now_ms + outcome.retry_in_ms)
        sentence += f"; attempt {(outcome.attempt or 0) + 1} in {outcome.retry_in_ms / 1000:g} s, at {at}"
        fields["retry_at"] = at
    logger.warning(_with_traceback(sentence, record), extra=fields)


def run_claimed(info: RunInfo, *, is_new: bool) -> None:
    """Report that a run begins, or goes on, at this worker."""
    if each_run.isEnabledFor(logging.INFO):
        event = "run_began" if is_new else "run_resumed"
        sentence = f"run {info.id} of {info.workflow} {'begins' if is_new else 'goes on'}"
        each_run.info(sentence, extra=_fields(info, event))


def run_ended(info: RunInfo, end: Ending, now_ms: int, state: str) -> None:
    """Report the end of a run, as the journal has it now; a failure and a halt are errors.

    Args:
        info: the run.
        end: how it ended.
        now_ms: the database's time, epoch milliseconds.
        state: of its task.
    """
    if isinstance(end, _WELL) or (isinstance(end, ContinueAsNew) and end.error is None):
        # first: it is the end of most runs
        if each_run.isEnabledFor(logging.INFO):
            ending = _ENDS[type(end)]
            fields = _fields(info, f"run_{ending.replace(' ', '_')}")
            each_run.info(f"run {info.id} of {info.workflow} {ending}", extra=fields)
    elif isinstance(end, _UNFIT) and state == "released":
        record = read_record(end.problem)
        reason = record.get("message") if isinstance(record, dict) else None
        sentence = f"run {info.id} of {info.workflow} does not fit the code of this worker; "
        sentence += f"it is left to a worker with the code that wrote its journal: {reason}"
        logger.warning(sentence, extra=_fields(info, "run_left_to_its_code"))
    elif isinstance(end, Fail) or (isinstance(end, Refuse) and state != "halted"):
        record = read_record(end.error)
        sentence = f"run {info.id} of {info.workflow} failed: {public_headline(record)}"
        logger.error(_with_traceback(sentence, record), extra=_fields(info, "run_failed"))
    elif isinstance(end, _UNFIT):
        run_halted(info, end.problem)
    elif isinstance(end, ContinueAsNew):
        record, delay_ms = read_record(end.error), end.retry_in_ms or 0
        at = _instant(now_ms + delay_ms)
        sentence = f"run {info.id} of {info.workflow} failed: {public_headline(record)}"
        sentence += f"; it is tried again in {delay_ms / 1000:g} s, at {at}"
        logger.warning(_with_traceback(sentence, record), extra=_fields(info, "run_retried", retry_at=at))


def signals_unread(info: RunInfo, unread: Mapping[str, int]) -> None:
    """Warn of signals that a run has not received; whoever waits for an answer to one gets none.

    Args:
        info: the run, which has ended.
        unread: how many, by name.
    """
    total = sum(unread.values())
    names = [f"{name} ({unread[name]})" for name in sorted(unread)]
    more = ", ..." if len(names) > _NAMES_MAX else ""
    sentence = f"run {info.id} of {info.workflow} ended without receiving "
    sentence += "a signal" if total == 1 else f"{total} signals"
    sentence += f": {', '.join(names[:_NAMES_MAX])}{more}"
    logger.warning(sentence, extra=_fields(info, "run_signals_unread", signals=dict(unread)))


def children_left(info: RunInfo, end: Ending, ids: Sequence[str]) -> None:
    """Report that a run whose code has ended waits for its child runs, which are cancelled.

    Args:
        info: the run.
        end: how its code ended.
        ids: the child runs; nothing waits for them any more.
    """
    names = ", ".join(ids[:_NAMES_MAX]) + (", ..." if len(ids) > _NAMES_MAX else "")
    runs = "a child run" if len(ids) == 1 else f"{len(ids)} child runs"
    sentence = f"the code of run {info.id} of {info.workflow} has ended before {runs}, which the run cancels "
    sentence += f"and waits for: {names}"
    fields = _fields(info, "run_children_left", children=list(ids[:_NAMES_MAX]), count=len(ids))
    if isinstance(end, Complete):
        sentence += "; await them, or start them by ctx.start(..., detached=True)"
        logger.warning(sentence, extra=fields)
    else:
        each_run.info(sentence, extra=fields)


def run_halted(info: RunInfo, problem: str | None = None) -> None:
    """Report that a run is halted, or paused after a failure; `pyengine show` shows the values."""
    record = read_record(problem)
    if isinstance(record, dict) and record.get("type") == "Paused":
        sentence = f"run {info.id} of {info.workflow} is paused; type: pyengine show {info.id}"
        logger.warning(sentence, extra=_fields(info, "run_paused"))
        return
    sentence = f"run {info.id} of {info.workflow} is halted"
    if isinstance(record, dict):
        data = record.get("data") or {}
        child = record.get("child")
        at = "" if child is None else f" at child {child}"
        sentence += f": {record.get('type')}{at}"
        if data.get("hint"):
            sentence += f": {data['hint']}"
    logger.error(f"{sentence}; type: pyengine show {info.id}", extra=_fields(info, "run_halted"))


def run_left(info: RunInfo, state: str) -> None:
    """Report that a run has left this worker: suspended, released, halted, or ended by others."""
    if state == "halted":
        run_halted(info)
    elif each_run.isEnabledFor(logging.INFO):
        event = state if state in ("suspended", "released") else "ended"
        sentence = f"run {info.id} of {info.workflow} is {state}"
        each_run.info(sentence, extra=_fields(info, f"run_{event}"))


def run_lost(info: RunInfo, version: int) -> None:
    """Report that another worker has the lease of a run."""
    sentence = f"run {info.id} of {info.workflow} is lost: its lease (version {version}) has another owner"
    logger.info(sentence, extra=_fields(info, "run_lost", version=version))


def run_stuck(info: RunInfo) -> None:
    """Report that the database found a run stale whose journal holds nothing new; it is given back."""
    sentence = (
        f"run {info.id} of {info.workflow} is stale and its journal holds nothing new; it is given back"
    )
    logger.warning(sentence, extra=_fields(info, "run_stuck"))


def run_evicted(info: RunInfo, problem: str) -> None:
    """Warn of code of a run that did not let its coroutine be thrown away quietly."""
    sentence = f"the code of run {info.id} of {info.workflow} was thrown away, and answered with {problem}"
    logger.warning(sentence, extra=_fields(info, "run_evicted"))


def cancellation_swallowed(info: RunInfo, at: str) -> None:
    """A run goes on however often it is cancelled, and is stopped."""
    sentence = (
        f"run {info.id} of {info.workflow} swallows asyncio.CancelledError and goes on: "
        f"it is stopped at {at}; let it out of `except:` and `except BaseException:`"
    )
    logger.error(sentence, extra=_fields(info, "cancellation_swallowed"))


def steps_go_on(info: RunInfo, steps: Sequence[str]) -> None:
    """A run cleans up beside steps that it gave up: they have not ended in time."""
    sentence = (
        f"run {info.id} of {info.workflow} has waited for steps that it gave up, and goes on beside them: "
        f"{', '.join(steps[:_NAMES_MAX])}; a step in a thread ends if it looks at ctx.step.cancelled"
    )
    logger.warning(sentence, extra=_fields(info, "run_steps_go_on", steps=list(steps[:_NAMES_MAX])))


def errors_unhandled(info: RunInfo, errors: list[UnhandledError]) -> None:
    """Errors of the code of a run have reached no code; they are reported once."""
    for one in errors:
        sentence = f"an error of the code of run {info.id} of {info.workflow} reached no code: {one.message}"
        of_code.warning(sentence, extra=_fields(info, "workflow_unhandled_error"), exc_info=one.error)
    errors.clear()


def run_failed_to_replay(info: RunInfo, error: BaseException) -> None:
    """Report an error of the machine that drives the code of a run; the run is halted because of it."""
    sentence = f"the code of run {info.id} of {info.workflow} cannot be driven: {type(error).__name__}"
    logger.exception(sentence, extra=_fields(info, "run_replay_failed"))


def report_refused(run_id: str, request: str, problem: str) -> None:
    """Report that the database refuses a report of a run with an error."""
    fields = {"event": "run_report_refused", "run": run_id}
    logger.error(f"run {run_id}: the database refuses {request}: {problem}", extra=fields)


def run_set_aside(run_id: str, code: str, problem: str) -> None:
    """Report that a run cannot be handed to a worker: it is halted, or put off for a minute."""
    sentence = f"run {run_id} is set aside, because it cannot be claimed: {problem} (SQLSTATE {code})"
    logger.error(sentence, extra={"event": "run_set_aside", "run": run_id})


def transaction_repeated(info: RunInfo, problem: str, *, is_expected: bool) -> None:
    """Report that a transaction of a run did not come to its end, and begins again."""
    sentence = f"a transaction of run {info.id} of {info.workflow} begins again: {problem}"
    level = logging.INFO if is_expected else logging.WARNING
    logger.log(level, sentence, extra=_fields(info, "transaction_repeated"))


def transaction_failed(info: RunInfo) -> None:
    """Report the error that is being handled: a transaction of a run cannot go on, so the run is halted."""
    sentence = f"a transaction of run {info.id} of {info.workflow} cannot go on"
    logger.exception(sentence, extra=_fields(info, "transaction_failed"))
