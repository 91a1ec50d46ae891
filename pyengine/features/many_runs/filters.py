"""Filters of runs: which ones a verb for many is about.

Lives here: `RunFilter`, and the statement that answers the ids which it selects. May not: SQL text, paging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from pyengine.core.client.arguments import check_instant
from pyengine.core.client.run_status import ENDED, RunState
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.values.error_access import class_name
from pyengine.errors import InvalidRequest
from pyengine.features.many_runs.statements import MATCHING_ENDED_RUNS, MATCHING_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Selects runs, child runs too; None means any.

    Without one of `ended_after`, `ended_before`, `error` and a state of runs that have ended it selects runs
    that have not.

    Args:
        workflow: of this workflow.
        state: in this state.
        tags: with all of these tags.
        started_after: started at this instant or later; it has a time zone.
        started_before: started before this instant; it has a time zone.
        ended_after: ended at this instant or later; it has a time zone.
        ended_before: ended before this instant; it has a time zone.
        error: failed with an error of this class: the class, or its name without its module.
    """

    workflow: str | None = None
    state: RunState | None = None
    tags: Mapping[str, str] | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    ended_after: datetime | None = None
    ended_before: datetime | None = None
    error: type[BaseException] | str | None = None

    @property
    def ended(self) -> bool:
        """Whether it selects runs that have ended."""
        wanted = (self.ended_after, self.ended_before, self.error)
        return self.state in ENDED or any(one is not None for one in wanted)


def matching(runs: RunFilter, *, ended: bool) -> tuple[Procedure, tuple[Any, ...]]:
    """Return the statement that answers the ids, and its values but the place and the number of ids.

    Args:
        runs: the filter.
        ended: whether the verb is about runs that have ended.

    Raises:
        InvalidRequest: the filter selects the others, or an instant has no time zone.
    """
    if runs.ended is not ended:
        raise InvalidRequest(
            "this filter selects runs that have ended, and this verb is about others"
            if runs.ended
            else "this verb is about runs that have ended, and this filter selects others",
            hint="client.fork_many(filter, key=...) tries them again"
            if runs.ended
            else 'RunFilter(state="failed"), or ended_after=...',
        )
    for instant in (runs.started_after, runs.started_before, runs.ended_after, runs.ended_before):
        check_instant("the instant of a filter", instant)
    tags = None if runs.tags is None else msgspec.json.encode(dict(runs.tags)).decode()
    started = (runs.started_after, runs.started_before)
    if not ended:
        return MATCHING_RUNS, (runs.workflow, runs.state, tags, *started)
    error = class_name(runs.error) if isinstance(runs.error, type) else runs.error
    span = (runs.ended_after, runs.ended_before)
    return MATCHING_ENDED_RUNS, (runs.workflow, runs.state, tags, error, *span, *started)
