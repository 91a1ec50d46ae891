"""The output of ``durable.health``, which checks that ticks, partitions and snapshots are on time.

Lives here: a message for each row that is not ok. May not: decide; the view does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyengine.doors.cli.output import Output


def print_problems(out: Output, rows: list[dict[str, Any]]) -> None:
    """Print the rows that are not ok, with advice."""
    for one in rows:
        if not one["ok"]:
            out.remark(f"{one['subject']}: {one['detail']}. {one['hint']}")
