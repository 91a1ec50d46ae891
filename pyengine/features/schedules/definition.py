"""Schedules that code declares, and the arguments of their runs.

Lives here: `ScheduleDef`, and `scheduled_input`, which writes the arguments of a scheduled run. May not:
instants of cron expressions or clocks; SQL has both (sql/logic/features/75_schedules). Design: a parameter
named `scheduled_at` gets the instant of the run, `fired_at` the time at which it begins, and `last_result`
what the run before it returned. The arguments are recorded once, with placeholders in their places, and SQL
replaces them at each instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.texts import is_text
from pyengine.errors import EncodeError, InvalidRequest
from pyengine.features.schedules.expression import check_expression
from pyengine.features.schedules.policy import SchedulePolicy

PLACEHOLDERS = {
    "scheduled_at": "{{.instant}}",
    "fired_at": "{{.fired_at}}",
    "last_result": "{{.last_result}}",
}
"""The text in the arguments of a schedule for a parameter of this name, until SQL replaces it."""

# in the places of instants while the arguments are checked
_SAMPLE = datetime(2000, 1, 1, tzinfo=UTC)
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
        kwargs |= dict.fromkeys(_asked(signature, self.args, kwargs))
        try:
            check_expression(self.cron)
            _check_zone(self.timezone)
            signature.bind(self.args, kwargs)
            if _is_resolvable(signature):
                scheduled_input(signature, self.args, dict(self.kwargs))
        except (InvalidRequest, EncodeError) as error:
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


def _is_resolvable(signature: Signature) -> bool:
    """Return whether the annotations can be read now. A module may define its types below its workflows: then
    a worker checks the arguments when it starts.
    """
    try:
        return bool(signature.codecs)
    except InvalidRequest:
        return False


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
    """Return the JSON text of the arguments of a schedule's runs, with the placeholders of `PLACEHOLDERS`.

    Raises:
        InvalidRequest: the arguments do not fit the signature.
        EncodeError: an argument cannot be recorded.
    """
    asked = _asked(signature, args, kwargs)
    form = _decode_form(_with_samples(signature, args, kwargs, asked))
    for name in asked:
        raw = msgspec.Raw(msgspec.json.encode(PLACEHOLDERS[name]))
        if isinstance(form, dict):
            form[name] = raw
        else:
            form[cast("int", signature.place_of(name))] = raw
    return msgspec.json.encode(form).decode()


def _asked(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the parameters that get something at each instant: no argument is given for them."""
    places = {name: signature.place_of(name) for name in PLACEHOLDERS if name not in kwargs}
    return [name for name, place in places.items() if place is not None and len(args) <= place]


def _with_samples(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], asked: list[str]
) -> str:
    """Return the checked arguments with a value in each place of a placeholder: an instant, or its text."""
    samples = [(None,) if name == "last_result" else (_SAMPLE, PLACEHOLDERS[name]) for name in asked]
    failed: EncodeError | InvalidRequest | None = None
    for values in product(*samples):
        try:
            return signature.encode(args, {**kwargs, **dict(zip(asked, values, strict=True))})
        except (EncodeError, InvalidRequest) as error:
            failed = error
    if failed is not None and "last_result" in asked and "last_result" in failed.message:
        raise InvalidRequest(
            f"{failed.message}; a first run has no result before it",
            hint="annotate it: last_result: ... | None",
        ) from None
    raise cast("Exception", failed)
