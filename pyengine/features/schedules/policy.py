"""The policies of schedules: overlap, missed instants, jitter, begin, end and limits.

Lives here: `SchedulePolicy`. May not: decide when something fires; SQL does that
(sql/logic/features/75_schedules/22_policies.sql).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

from pyengine.core.definitions.retry import Duration, optional_duration
from pyengine.errors import InvalidRequest

Overlap: TypeAlias = Literal["allow", "skip", "buffer_one", "buffer_all", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """The policies of a schedule of runs; `durable.schedule` in SQL has them as arguments.

    Args:
        overlap: what becomes of an instant while the latest run has not ended. "allow" starts its run,
            "skip" leaves it out, "buffer_one" and "buffer_all" start its run afterwards (one of them, or all
            in their order), and "cancel" cancels the latest run and starts it then.
        catch_up: an instant that is older than this when the schedule fires is left out and recorded; None
            makes up for all of them.
        jitter: a run begins up to this much later than its instant, by a part that its id decides.
        starts: no instant is before it.
        ends: no instant is after it.
        max_runs: it is over after so many runs.
        pause_after: so many failures in a row pause it; None means it goes on.

    Raises:
        InvalidRequest: a value is none of these.
    """

    overlap: Overlap = "allow"
    catch_up: Duration | None = None
    jitter: Duration | None = None
    starts: datetime | None = None
    ends: datetime | None = None
    max_runs: int | None = None
    pause_after: int | None = None

    def __post_init__(self) -> None:
        if self.overlap not in get_args(Overlap):
            raise InvalidRequest(
                f"{self.overlap!r} is no overlap of a schedule", hint=f"one of {', '.join(get_args(Overlap))}"
            )
        for name in ("starts", "ends"):
            _refuse(name, getattr(self, name), _is_instant, "a datetime with a time zone")
        _refuse("max_runs", self.max_runs, _is_count, "a number from 1 on")
        _refuse("pause_after", self.pause_after, _is_failures, "a number from 1 to 1000")
        self._check_spans()

    def _check_spans(self) -> None:
        """Refuse what SQL refuses, so that an error names the place in the code."""
        columns = self.columns()
        if columns["catch_up"] is not None and columns["catch_up"] < 10_000:
            raise InvalidRequest(
                "the window of catch_up is at least 10 seconds", hint='a tick comes late by some ms: "1m"'
            )
        if columns["jitter"] is not None and not 0 <= columns["jitter"] <= 86_400_000:
            raise InvalidRequest("a jitter has 0 to 24 hours", hint='jitter="30s" spreads the starts')
        if self.starts is not None and self.ends is not None and self.ends < self.starts:
            raise InvalidRequest("a schedule ends before it starts", hint="starts is before ends")

    def columns(self) -> dict[str, Any]:
        """Return it as SQL records it: spans and instants in ms.

        Raises:
            InvalidRequest: a duration cannot be read.
        """
        return {
            "overlap": self.overlap,
            "catch_up": optional_duration(self.catch_up, what="catch_up"),
            "jitter": optional_duration(self.jitter, what="jitter"),
            "starts_at": _ms(self.starts),
            "ends_at": _ms(self.ends),
            "max_runs": self.max_runs,
            "pause_after": self.pause_after,
        }


def _refuse(name: str, value: object, fits: Callable[[object], bool], what: str) -> None:
    if value is not None and not fits(value):
        raise InvalidRequest(
            f"{name} of a schedule is {what}, not {value!r}", hint=f"{name}=None: without it"
        )


def _is_instant(value: object) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_failures(value: object) -> bool:
    return _is_count(value) and value in range(1, 1001)


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else round(instant.timestamp() * 1000)
