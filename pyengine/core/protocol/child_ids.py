"""The ids of what a run makes: how long they may be, and the short ones of detached runs.

Lives here: `check_room`, and `detached_id`, which says what `durable._detached_id` says. May not: the id of
any other child, which is the run's id, a dot and the child number. Design: ids of children grow with each
level, so a run whose children would have no room is refused where it is called. A detached run is nobody's
child, so a chain of them has short ids (rules 2): what would be more than 60 bytes longer than the id of the
first run becomes that id, a tilde and a hash.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from pyengine.errors import InvalidRequest

LONG_ID_BYTES = 900
"""Ids of runs up to this length have room for a child of any number, and for children of it."""
_ID_MAX_BYTES = 1024
_NUMBER_BYTES = 11
_TAIL_MAX_BYTES = 60
_TAIL = re.compile(r"(~[0-9a-f]{32})?(\.[0-9]{1,9})*\Z")


def check_room(id: str, *, is_run: bool) -> None:
    """Check that the id of a child has room.

    Args:
        id: the id that the child would have.
        is_run: it is a run, which has children of its own.

    Raises:
        InvalidRequest: it has none.
    """
    most = _ID_MAX_BYTES - (_NUMBER_BYTES if is_run else 0)
    if len(id.encode()) > most:
        raise InvalidRequest(
            f"child runs are nested too deeply: the id {id[:40]}... would have {len(id.encode())} bytes, "
            f"and {most} are allowed",
            hint="each level adds a dot and a number to the id; "
            "a loop, ctx.continue_as_new or detached=True has no such limit",
        )


def detached_id(run_id: str, child: int) -> str:
    """Return the id of a detached run.

    Args:
        run_id: the run that starts it.
        child: child number of the start.
    """
    plain = f"{run_id}.{child}"
    found = _TAIL.search(plain)
    first = plain[: found.start()] if found else plain
    if len(plain.encode()) - len(first.encode()) <= _TAIL_MAX_BYTES:
        return plain
    return f"{first}~{hashlib.sha256(plain.encode()).hexdigest()[:32]}"


def read_started_id(data: str) -> str:
    """Return the short id of a detached run from the data of the row of its start."""
    return str(msgspec.json.decode(data)["id"])
