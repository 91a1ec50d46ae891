"""A journal as readable lines.

Lives here: folding the logical events of a run into lines, and printing them. May not: query the database.
Events of one instant about one child (scheduled, started, completed) are one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from pyengine.core.values.error_records import headline
from pyengine.doors.cli.display.call_lines import CallLines
from pyengine.doors.cli.output import clip, compact, listed, printable, span

if TYPE_CHECKING:
    from rich.console import Console

_KINDS = {"TimerScheduled": "Timer", "SignalReceived": "Signal"}
_KIND_NAMES = {
    "Local": "step",
    "Http": "request",
    "Function": "child run",
    "External": "promise",
    "Timer": "sleep",
    "Signal": "signal",
}
LEAST_VALUE = 24
OK, FAILED, RETRY, DIM = "green", "bold red", "yellow", "dim"


class JournalEvent(Protocol):
    """The attributes of an event that its line shows."""

    @property
    def seq(self) -> int: ...
    @property
    def event(self) -> str: ...
    @property
    def at(self) -> datetime: ...
    @property
    def child(self) -> int | None: ...
    @property
    def attempt(self) -> int | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def payload(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: instant, position in the journal, text, value, and colour."""

    at: datetime
    seq: int
    text: str
    value: str = ""
    style: str = ""


def lines(events: Sequence[JournalEvent]) -> list[Line]:
    """Fold the events of one run into lines."""
    names: dict[int | None, str] = {
        one.child: one.name for one in events if one.name and one.child is not None
    }
    kinds: dict[int | None, str] = {
        one.child: _payload(one).get("kind", _KINDS.get(one.event, ""))
        for one in events
        if one.event in ("InvokeScheduled", *_KINDS)
    }
    calls = CallLines((one.child, names.get(one.child), one.payload) for one in events)
    made = []
    for group in _moments(events):
        first = group[0]
        subject = calls.subject(first.child) or _subject(first, kinds, names)
        text, value, style = _line(group, subject)
        end = calls.end(first.child) if group[-1].event == "InvokeCompleted" else None
        if end is not None:
            text, value = f"{subject} {end[0]}", end[1]
        made.append(Line(at=first.at, seq=first.seq, text=text, value=value, style=style))
    return made


def _moments(events: Sequence[JournalEvent]) -> Iterator[list[JournalEvent]]:
    """Group the events of one instant about one child; the event of an end closes the group."""
    for _, together in groupby(events, key=lambda one: (one.child, one.at)):
        group: list[JournalEvent] = []
        for one in together:
            group.append(one)
            if one.child is None or one.event in ("InvokeCompleted", "InvokeRetrying", "TimerFired"):
                yield group
                group = []
        if group:
            yield group


def _payload(event: JournalEvent) -> dict[str, Any]:
    return event.payload if isinstance(event.payload, dict) else {}


def _subject(event: JournalEvent, kinds: dict[int | None, str], names: dict[int | None, str]) -> str:
    kind = _KIND_NAMES.get(kinds.get(event.child, ""), "")
    name = names.get(event.child) or ""
    if name and kinds.get(event.child) == "Timer":
        kind = "timeout of signal"
    number = "" if event.child is None else f"[{event.child}]"
    return printable(" ".join(part for part in (kind, name, number) if part))


def _line(group: list[JournalEvent], subject: str) -> tuple[str, str, str]:
    """Return text, value and style of the line for a group of events."""
    last, payload = group[-1], _payload(group[-1])
    attempt = f", attempt {last.attempt}" if (last.attempt or 1) > 1 else ""
    match last.event:
        case "ExecutionStarted":
            return "started with", compact(payload.get("input")), ""
        case "ExecutionCompleted":
            return "completed", compact(payload.get("result")), OK
        case "ExecutionFailed":
            return "failed", error_text(payload.get("error")), FAILED
        case "ExecutionCancelled" | "CancelRequested":
            what = "cancelled" if last.event[0] == "E" else "cancel requested"
            return what, compact({"reason": payload.get("reason")}), RETRY
        case "ExecutionAwaiting":
            return "waits for", _waits(payload), DIM
        case "ExecutionResumed":
            return "resumed", "", DIM
        case "InvokeCompleted" if "error" in payload:
            return f"{subject} failed{attempt}", error_text(payload["error"]), FAILED
        case "InvokeCompleted":
            return f"{subject} done{attempt}", compact(payload.get("result")), OK
        case "InvokeRetrying":
            how = (
                "interrupted, attempt {}" if payload.get("interrupted") else "failed, attempt {}, tried again"
            )
            return f"{subject} {how.format(last.attempt)}", error_text(payload.get("error")), RETRY
        case "InvokeStarted":
            return f"{subject} began{attempt}", "", ""
        case "InvokeScheduled":
            return f"{subject} started", compact(payload["input"]) if "input" in payload else "", ""
        case "TimerScheduled":
            return f"{subject} for {span(float(payload.get('duration', 0)) / 1000)}", "", ""
        case "TimerFired":
            return f"{subject} over", "", OK
        case "RandomGenerated" | "TimeRecorded":
            kind = "random value" if last.event[0] == "R" else "time"
            return f"{kind} [{last.child}]", compact(payload.get("value", payload.get("time"))), DIM
        case "SignalDelivered":
            return f"signal {printable(last.name or '')} came", compact(payload.get("payload")), ""
        case "SignalReceived":
            return f"{subject} received", compact(payload.get("payload")), OK
        case "JoinSetCreated":
            return f"join set [{last.child}]", "", DIM
        case "JoinSetSubmitted" | "JoinSetAwaited":
            verb = "put into" if last.event == "JoinSetSubmitted" else "taken from"
            return f"{subject} {verb} join set {_number(payload.get('join_set_id'))}", "", DIM
        case other:
            return printable(other), compact(last.payload), ""


def _waits(payload: dict[str, Any]) -> str:
    on, kind = payload.get("waiting_on", []), payload.get("kind", {})
    if kind.get("tag") == "Signal":
        return printable(f"signal {kind.get('name') or ''} {_number(on[0])}".replace("  ", " "))
    quantity = {"All": "all of ", "Any": "any of "}.get(str(kind.get("tag")), "") if len(on) > 1 else ""
    return quantity + listed([_number(one) for one in on], 6)


def _number(id: Any) -> str:
    """Return the child number in an id, as lines show it."""
    return f"[{str(id).rpartition('.')[2]}]"


def error_text(error: Any) -> str:
    """Return an error of the journal on one line: its class and its message."""
    named = isinstance(error, dict) and (error.get("type") or error.get("message"))
    return printable(headline(error)) if named else compact(error)


def show(console: Console, folded: Sequence[Line]) -> None:
    """Print lines, with times relative to the first."""
    from rich.text import Text

    room = max(console.width - LEAST_VALUE - 20, 20)
    width = min(max((len(line.text) for line in folded), default=0), 48, room)
    for line in folded:
        offset = (line.at - folded[0].at).total_seconds()
        text = Text(f"  {offset:>8.3f} s  {line.seq:>4}  ", style="dim")
        text.append(line.text.ljust(width) if line.value else line.text, style=line.style)
        if line.value:
            text.append("  " + clip(line.value, max(console.width - text.cell_len - 2, 20)))
        console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
