"""The check of an adapter against the contract, without a database.

Lives here: `check`, which polls an adapter as a worker would and as a worker that was killed would. May not:
the contract (contract.py), the output (cli/adapter.py). Design: the check sees what a worker sees. It cannot
see whether a poll that is repeated starts a second job.
"""

from __future__ import annotations

import json
import os
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pyengine.core.process import clock
from pyengine.errors import EngineError
from pyengine.features.calls import adapter_process, contract
from pyengine.features.calls.adapter_process import Adapter, Limits
from pyengine.features.calls.contract import CannotRun, Done, Executed, Failed, Pending, Request
from pyengine.features.calls.datums import from_tagged
from pyengine.features.calls.remotes import Manifest

CHECKS: dict[str, str] = {
    "program": "its program is found and can be executed",
    "answer": "the first poll is answered",
    "again": "the first poll is answered when it is repeated, because its answer may be lost",
    "token": "later polls, with the newest token, are answered",
    "same_result": "a poll after the last one gives the same result, because that answer may be lost too",
    "session": "an adapter leaves no process in its process group, which a time limit would end",
    "cancel": "a cancellation ends in time",
}
"""The checks, in their order."""
_PAUSE_MAX_S = 5.0
# a backend that is busy for a moment is no broken adapter
_TRIES = 4
_RETRY_S = 0.5
_TEMPORARY_EXIT = 75
_LEAVE_S = 0.5


class Finding(msgspec.Struct, frozen=True):
    """One check.

    Args:
        check: its name, a key of `CHECKS`.
        ok: whether the contract is kept.
        detail: what was seen.
        rule: the broken rule of an answer, or the code of another failure.
        tested: false if the adapter asked to be polled later each time, which the contract allows.
    """

    check: str
    ok: bool
    detail: str
    rule: str | None = None
    tested: bool = True


@dataclass(slots=True)
class _Check:
    """A check that goes on: what is polled, and what was found so far."""

    adapter: Adapter
    limits: Limits
    passed: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    is_alone: bool = True

    async def poll(self, name: str, request: Request) -> Executed | None:
        """Poll until it is answered; return None if the contract was broken, which ends the check, or if the
        adapter asks for a later poll each time."""
        tries = 0
        while True:
            try:
                poll = await adapter_process.poll(
                    self.adapter, request, limits=self.limits, passed=self.passed
                )
            except CannotRun as error:
                self.findings.append(Finding("program", False, error.message, "adapter_not_found"))
                return None
            tries += 1
            if tries == _TRIES or not _asks_for_later(poll):
                break
            await clock.sleep(_RETRY_S)
        self.is_alone = self.is_alone and not await _left_behind(poll.group)
        if request.op == "cancel":
            return poll
        if isinstance(poll.answer, Done) and (flaw := _result_flaw(poll.answer)) is not None:
            poll = poll.with_answer(contract.broken("value", flaw))
        if not isinstance(poll.answer, Failed):
            return poll
        failure = poll.answer.error
        detail = f"{failure['message']}{_excerpt(poll, failure)}"
        broken = "program" if failure["code"] == "adapter_broken" else name
        rule = failure.get("rule", failure["code"])
        self.findings.append(Finding(broken, False, detail, rule, tested=not _asks_for_later(poll)))
        return None

    def keeps(self, name: str, detail: str) -> None:
        """Record that a check found nothing wrong."""
        self.findings.append(Finding(name, True, detail))


async def check(
    adapter: Adapter,
    *,
    function: str | None = None,
    values: Sequence[Any] = (),
    limits: Limits | None = None,
    wait_s: float = 60.0,
    passed: Sequence[str] = (),
) -> list[Finding]:
    """Poll an adapter until its job has ended, and return what was found; the first broken rule ends it.

    Args:
        adapter: the adapter.
        function: the URI of a function that it can execute.
        values: inputs, as tagged values.
        limits: the limits of a poll.
        wait_s: how long to wait for the end of the job.
        passed: names of further environment variables that it gets.
    """
    run = _Check(adapter, limits or Limits(), tuple(passed))
    request = Request(
        node=secrets.token_hex(32),
        function=function or f"dml+exec://{adapter.name}/check",
        inputs=[secrets.token_hex(32) for _ in values],
        execution_key=secrets.token_hex(32),
        execution_uuid=str(uuid.uuid4()),
        values=list(values),
    )
    first = await run.poll("answer", request)
    if first is not None:
        run.keeps("program", " ".join(adapter.command()))
        run.keeps("answer", _described(first))
        again = await run.poll("again", request)
        if again is not None:
            run.keeps("again", _described(again))
            await _until_done(run, request, again, wait_s)
        if run.is_alone:
            run.keeps("session", "none is left")
        else:
            detail = "a process was left: start jobs in a session of their own, with setsid"
            run.findings.append(Finding("session", False, detail, "session"))
    return run.findings


async def _until_done(run: _Check, request: Request, last: Executed, wait_s: float) -> None:
    """Poll until the job has ended, then once more; cancel it at last."""
    polls, until_s = 0, clock.monotonic() + wait_s
    while isinstance(last.answer, Pending) and clock.monotonic() < until_s:
        pause_s = (last.answer.poll_after_ms or 0) / 1000
        await clock.sleep(min(pause_s, _PAUSE_MAX_S, max(0.0, until_s - clock.monotonic())))
        request = msgspec.structs.replace(request, token=last.answer.token)
        polled = await run.poll("token", request)
        if polled is None:
            return
        last, polls = polled, polls + 1
    if polls:
        run.keeps("token", f"{polls} polls; the last one: {_described(last)}")
    if isinstance(last.answer, Done):
        repeated = await run.poll("same_result", request)
        if repeated is None:
            return
        if repeated.answer != last.answer:
            detail = f"first {_described(last)}, then {_described(repeated)}"
            run.findings.append(Finding("same_result", False, detail, "same_result"))
            return
        run.keeps("same_result", _described(repeated))
    cancelled = await run.poll("cancel", msgspec.structs.replace(request, op="cancel"))
    if cancelled is not None:
        is_late = isinstance(cancelled.answer, Failed) and cancelled.answer.error["code"] == "adapter_timeout"
        detail = f"it took {cancelled.took_s:.1f} s"
        run.findings.append(Finding("cancel", not is_late, detail, "adapter_timeout" if is_late else None))


def _asks_for_later(poll: Executed) -> bool:
    """Return whether an adapter asks to be polled again, in one of the two ways that the contract has."""
    answer = poll.answer
    if not isinstance(answer, Failed) or not answer.retryable:
        return False
    return poll.exit_code in (0, _TEMPORARY_EXIT)


def _described(poll: Executed) -> str:
    """Return an answer in a few words."""
    answer = poll.answer
    if isinstance(answer, Pending):
        return f"pending, token {answer.token[:40]!r}"
    if isinstance(answer, Done):
        kind = "result" if answer.result is not None else "value" if answer.outcome == "ok" else "error"
        return f"done, {answer.outcome}, with its {kind}"
    return f"failed: {answer.error['message']}"


def _result_flaw(done: Done) -> str | None:
    """Return what is wrong with a value or the objects of an answer, as the database would say."""
    try:
        if done.outcome == "ok" and done.result is None:
            from_tagged(done.value)
        if done.objects is not None:
            Manifest.from_json(json.dumps({"v": 1, "objects": done.objects}))
    except EngineError as error:
        place = getattr(error, "where", None)
        found = f"{place}: {error.message}" if place else error.detail or error.message
        return f"{contract.RULES['value']}: {found}"
    return None


def _excerpt(poll: Executed, failure: dict[str, Any]) -> str:
    """Return the beginning of stdout and the last line of stderr, for people."""
    parts = [f"; stdout began with {failure['stdout'][:60]!r}"] if "stdout" in failure else []
    lines = poll.stderr.strip().splitlines()
    return "".join([*parts, f"; stderr: {lines[-1][:200]}" if lines else ""])


async def _left_behind(group: int | None) -> bool:
    """Return whether a process group has a process that does not end by itself in a moment."""
    until_s = clock.monotonic() + _LEAVE_S
    while group is not None and clock.monotonic() < until_s:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        await clock.sleep(0.02)
    return group is not None
