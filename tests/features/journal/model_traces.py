"""Random journals of the published model, step by step, each step with the verdict that the rulings give
it.

`traces/traces.jsonl.xz` is a copy of what the model's authors made, without what can be derived and without
the steps after the first that the model took and the rulings refuse: from there on the states part. Where
the originals lie next to the repository (`../shared/journal-traces`), test_traces.py compares; `python -m
tests.features.journal.model_traces` writes the copy anew.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "traces" / "traces.jsonl.xz"
ORIGINALS = Path(__file__).parents[4] / "shared" / "journal-traces"
FAMILIES = ("own", "mix", "ruled")
Json = dict[str, Any]

EVENTS = {
    "startExecution": "ExecutionStarted",
    "completeExecution": "ExecutionCompleted",
    "failExecution": "ExecutionFailed",
    "requestCancel": "CancelRequested",
    "cancelExecution": "ExecutionCancelled",
    "scheduleInvoke": "InvokeScheduled",
    "startInvoke": "InvokeStarted",
    "completeInvoke": "InvokeCompleted",
    "retryInvoke": "InvokeRetrying",
    "generateRandom": "RandomGenerated",
    "recordTime": "TimeRecorded",
    "scheduleTimer": "TimerScheduled",
    "fireTimer": "TimerFired",
    "deliverSignal": "SignalDelivered",
    "receiveSignal": "SignalReceived",
    "awaitExecution": "ExecutionAwaiting",
    "resumeExecution": "ExecutionResumed",
    "createJoinSet": "JoinSetCreated",
    "submitToJoinSet": "JoinSetSubmitted",
    "awaitJoinSet": "JoinSetAwaited",
}
# the model's bound: three retries of each promise, whatever its policy is called
ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action. `refusal` is the reason of the rulings, or None where it is taken; then `entry`, `status`
    and `next_child` are what it leads to."""

    action: str
    run: str
    ts: int
    payload: Json
    refusal: str | None
    entry: Json | None
    status: Json | None
    next_child: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One random history of up to three executions."""

    family: str
    name: str
    steps: tuple[Step, ...]


def in_our_terms(payload: Json) -> Json:
    """A payload of the model as we write and show it: a policy is an object that bounds attempts, an error
    one with a kind."""
    ours = dict(payload)
    if "retry_policy" in ours:
        ours["retry_policy"] = {"name": ours["retry_policy"], "max_attempts": ATTEMPTS}
    if "error" in ours:
        ours["error"] = {"kind": "Uncategorized", "message": ours["error"]}
    return ours


def _step(raw: Json) -> Step:
    args = dict(raw["args"])
    run, ts = args.pop("execution_id"), args.pop("ts")
    entry, status, next_child = raw["yes"] or (None, None, None)
    if entry is not None:
        entry = {**entry, "payload": in_our_terms(entry["payload"])}
    return Step(
        action=raw["do"],
        run=run,
        ts=ts,
        # the model's simulator also drew ids that this action does not take
        payload={} if raw["do"] == "resumeExecution" else in_our_terms(args),
        refusal=raw["no"],
        entry=entry,
        status=status,
        next_child=next_child,
    )


def parsed(raw: Json) -> Trace:
    """A line of the copy."""
    return Trace(family=raw["family"], name=raw["trace"], steps=tuple(map(_step, raw["steps"])))


def traces() -> list[Trace]:
    """All traces of the copy."""
    return [parsed(json.loads(line)) for line in lzma.decompress(HERE.read_bytes()).decode().splitlines()]


def originals(family: str) -> Iterator[Json]:
    """The traces of a family as they were published."""
    with gzip.open(ORIGINALS / f"{family}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def reduced(family: str, original: Json) -> Json:
    """A published trace as the copy has it."""
    steps: list[Json] = []
    for step in original["steps"]:
        ruled = step["verdicts"]["ruled"]
        told = (
            [step["appended"], step["status_after"], step["next_child_after"]] if step["accepted"] else None
        )
        steps.append(
            {"do": step["action"], "args": step["args"], "no": ruled, "yes": None if ruled else told}
        )
        if step["accepted"] and ruled is not None:
            break
    return {"family": family, "trace": original["trace"], "steps": steps}


def copy() -> None:
    """Write the copy anew."""
    lines = [json.dumps(reduced(f, one), sort_keys=True) for f in FAMILIES for one in originals(f)]
    packed = lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    HERE.parent.mkdir(exist_ok=True)
    HERE.write_bytes(packed)


if __name__ == "__main__":
    copy()
