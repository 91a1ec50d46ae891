"""The steps of content-addressed calls in a journal, as people read them.

Lives here: `CallLines`: which step belongs to which call, whether the call found a result (hit), waits for an
attempt of somebody else (joined) or started one (ran), and how it ended. May not: the lines of other events
(timeline.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyengine.doors.cli.output import printable

_PARTS = {
    "durable.call_v1": "call",
    "durable.call_result_v1": "result of call",
    "durable.call_value_v1": "value of a call",
    "durable.call_leave_v1": "end of a call",
}
_FOUND = {
    "pinned_hit": "hit",
    "shared_hit": "hit",
    "step_hit": "hit",
    "joined": "joined",
    "started": "ran",
    "aborted": "given up",
}
_SHORT = 12


class CallLines:
    """The calls of one run.

    Args:
        events: number, name and payload of each event of the run.
    """

    def __init__(self, events: Iterable[tuple[int | None, str | None, Any]]) -> None:
        self._subjects: dict[int, str] = {}
        self._ends: dict[int, tuple[str, str]] = {}
        called: dict[str, str] = {}
        for child, name, payload in events:
            if child is None or name is None or not (name in _PARTS or name in called):
                continue
            found = payload.get("result") if isinstance(payload, dict) else None
            found = found if isinstance(found, dict) else {}
            if name == "durable.call_v1" and "at" in found:
                function = str(found.get("function", "")).removeprefix("dml+exec://").partition("?source=")[0]
                label = str(found.get("name") or function)
                called |= dict.fromkeys((str(found.get("promise")), str(found.get("node"))), label)
                self._ends[child] = _FOUND.get(found["at"], str(found["at"])), _shown(found)
            elif name == "durable.call_result_v1" and "status" in found:
                self._ends[child] = str(found["status"]), _shown(found)
            part = _PARTS.get(name, "attempt of call")
            own = called.get(name) or called.get(str(found.get("node")), "")
            self._subjects[child] = printable(" ".join(filter(None, (part, own, f"[{child}]"))))

    def subject(self, child: int | None) -> str | None:
        """Return the call of a step or promise; None if it is not one of a call."""
        return None if child is None else self._subjects.get(child)

    def end(self, child: int | None) -> tuple[str, str] | None:
        """Return how the step of a call ended, and what is shown of that; None for any other step."""
        return None if child is None else self._ends.get(child)


def _shown(found: dict[str, Any]) -> str:
    """Return the beginning of the node's id, which `pyengine call show` takes, and the status."""
    return " ".join(filter(None, (str(found.get("node") or "")[:_SHORT], found.get("status"))))
