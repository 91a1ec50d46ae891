"""Schedules that code declares, and the arguments of their runs.

Lives here: `ScheduleDef`, and `scheduled_input`, which writes the arguments of a scheduled run. May not:
instants of cron expressions or clocks; SQL has both (sql/logic/features/75_schedules). Design: a parameter
named `scheduled_at` gets the instant of the run. The arguments are recorded once, with a placeholder in its
place, and SQL replaces the placeholder at each instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.texts import is_text
from pyengine.errors import EncodeError, InvalidRequest
from pyengine.features.schedules.expression import check_expression
from pyengine.features.schedules.policy import SchedulePolicy

INSTANT = "{{.instant}}"
"""In the arguments of a schedule: becomes the instant, in the time zone of the schedule."""

_SCHEDULED_AT = "scheduled_at"
# in the place of the instant while the arguments are checked
_SAMPLE = datetime(2000, 1, 1, tzinfo=UTC)
_PLACEHOLDER = msgspec.Raw(msgspec.json.encode(INSTANT))
_decode_form = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDef:
    """A schedule that code declares.

    Args:
        id: its id.
        cron: when it fires.
        timezone: the time zone in which it is read.
        workflow: the workflow of which each instant starts a run.
        args: arguments of the runs.
        kwargs: arguments by name.
        priority: priority of the runs.
        tags: tags of the runs.
        policy: overlap, window, jitter, begin, end and limits.
    """

    id: str
    cron: str
    timezone: str
    workflow: WorkflowDef
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    policy: SchedulePolicy = field(default_factory=SchedulePolicy)

    def check(self) -> None:
        """Check what the code alone shows, so that an error names the declaration.

        Raises:
            InvalidRequest: the expression cannot be read, there is no such time zone, or the arguments do not
                fit the workflow.
        """
        signature, kwargs = self.workflow.signature, dict(self.kwargs)
        place = signature.place_of(_SCHEDULED_AT)
        if place is not None and len(self.args) <= place:
            kwargs.setdefault(_SCHEDULED_AT, _SAMPLE)
        try:
            check_expression(self.cron)
            _check_zone(self.timezone)
            signature.bind(self.args, kwargs)
        except InvalidRequest as error:
            raise InvalidRequest(f"schedule {self.id}: {error.message}", hint=error.hint) from None

    def record(self) -> dict[str, Any]:
        """Return it as SQL takes it; the annotations of the workflow are resolved here.

        Raises:
            InvalidRequest: its arguments do not fit the workflow.
            EncodeError: an argument cannot be recorded.
        """
        workflow = self.workflow
        return {
            "id": self.id,
            "cron": self.cron,
            "timezone": self.timezone,
            "workflow": workflow.name,
            "version": workflow.version,
            "queue": workflow.queue or "default",
            "input": scheduled_input(workflow.signature, self.args, dict(self.kwargs)),
            "deadline": workflow.deadline_ms,
            "priority": self.priority,
            "tags": dict(self.tags),
            **self.policy.columns(),
        }


def _check_zone(name: str) -> None:
    if not _is_zone(name) and _is_zone("Europe/Berlin"):  # this machine knows time zones
        raise InvalidRequest(f"there is no time zone {name!r}", hint='a full name, such as "Europe/Berlin"')


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def checked_schedule_id(id: object) -> str:
    """Return an id of a schedule.

    Raises:
        InvalidRequest: it is none.
    """
    if not is_text(id, 480):
        raise InvalidRequest(f"{id!r} can be no id of a schedule: it is a text of 1 to 480 bytes")
    return id


def scheduled_input(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the JSON text of the arguments of a schedule's runs; `scheduled_at` gets the placeholder.

    Raises:
        InvalidRequest: the arguments do not fit the signature.
        EncodeError: an argument cannot be recorded.
    """
    place = signature.place_of(_SCHEDULED_AT)
    if place is None or _SCHEDULED_AT in kwargs or len(args) > place:
        return signature.encode(args, kwargs)
    try:
        text = signature.encode(args, {**kwargs, _SCHEDULED_AT: _SAMPLE})
    except (EncodeError, InvalidRequest):
        text = signature.encode(args, {**kwargs, _SCHEDULED_AT: INSTANT})
    form = _decode_form(text)
    if isinstance(form, dict):
        form[_SCHEDULED_AT] = _PLACEHOLDER
    else:
        form[place] = _PLACEHOLDER
    return msgspec.json.encode(form).decode()
