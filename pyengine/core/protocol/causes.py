"""Why runs wait, as the database says it.

Lives here: `Cause`, a row of `durable.why`, and `CauseGroup`, a row of `durable.why_all`, for the client and
for the command line; and how they are read from rows. May not: a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a run waits: one sentence, and the same as data.

    Args:
        depth: 0 for the causes of the run itself, 1 for the causes of what it waits for, and so on.
        id: the run or promise that the sentence is about.
        cause: a code that programs may use, such as "signal", "retry" or "no_worker_for_version".
        sentence: for people; instants are in the time zone of the database session.
        since: since when, if that is known.
        until: when it ends by itself; None if it does not.
        details: what the sentence says, as plain JSON values; its "name" is what the cause is about. If
            they are nested too deeply to be read they have one key, "text": all of them as JSON text.
    """

    depth: int
    id: str
    cause: str
    sentence: str
    since: datetime | None
    until: datetime | None
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseGroup:
    """Runs that wait for the same.

    Args:
        cause: a code, as in `Cause`.
        name: what it is about: a signal, a step, a queue.
        runs: how many runs.
        oldest: since when the first of them waits.
        example: id of that run.
        sentence: why that run waits.
    """

    cause: str
    name: str | None
    runs: int
    oldest: datetime | None
    example: str
    sentence: str


def read_cause(row: Any, decode: Callable[[str], Any] = msgspec.json.decode) -> Cause:
    """Return the cause that a row of a client's statement describes.

    Args:
        row: the row, with its details as text.
        decode: reads such a text.
    """
    fields = {name: row[name] for name in Cause.__dataclass_fields__}
    try:
        details = decode(row["details"])
    except RecursionError:
        details = None
    return Cause(**fields | {"details": details if isinstance(details, dict) else {"text": row["details"]}})


def read_causes(
    ids: Iterable[str], rows: Iterable[Any], decode: Callable[[str], Any] = msgspec.json.decode
) -> dict[str, list[Cause]]:
    """Return by id what the rows of a statement about many ids describe; `decode` as for `read_cause`."""
    found: dict[str, list[Cause]] = {id: [] for id in ids}
    for row in rows:
        found[row["asked"]].append(read_cause(row, decode))
    return found
