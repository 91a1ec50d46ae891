"""The ids of runs, as lists show them and as people type them.

Lives here: cutting ids to a width, and finding the id that a cut or unfinished one stands for. May not:
contain SQL (``admin/queries_runs.py``). An id stands for itself first, whatever else begins with it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from pyengine.doors.cli.database import Database
from pyengine.doors.cli.output import Output, clip, printable
from pyengine.doors.cli.runs import checked_id
from pyengine.errors import InvalidRequest

ELLIPSIS = "…"
CANDIDATES = 8
_CUT = re.compile(r"(.*?)(?:…|\.\.\.)(.*)", re.DOTALL)


def cut(id: str, width: int, head: int | None = None) -> str:
    """Return an id of at most this width: its beginning, an ellipsis, its end.

    Args:
        id: the id.
        width: the greatest number of cells of a terminal.
        head: how many characters are the beginning; by default half.
    """
    from rich.cells import cell_len

    if cell_len(id) <= width:
        return id
    tail = width - 1
    head = tail // 2 if head is None else head
    tail -= head
    while cell_len(shorter := f"{id[:head]}{ELLIPSIS}{id[len(id) - tail :]}") > width:
        # some characters have two cells
        head, tail = (head - 1, tail) if head > tail else (head, tail - 1)
    return shorter


def cut_all(ids: Sequence[str], width: int) -> list[str]:
    """Return ids of at most this width, cut where they stay different if there is such a place."""
    middle = (width - 1) // 2
    for head in sorted(range(1, width - 1), key=lambda head: abs(head - middle)):
        shorter = [cut(id, width, head) for id in ids]
        if len(set(shorter)) == len(set(ids)):
            return shorter
    return [cut(id, width) for id in ids]


def whole_id(out: Output, db: Database, text: str, *, changes: bool = False, promises: bool = False) -> str:
    """Return the id that a text stands for.

    That is the id itself; else the only one that begins so, or that begins and ends as the text does before
    and after its ellipsis; else the text. A command that changes runs takes a mere beginning from people,
    because a program that names a run which is gone must not change another one.

    Args:
        out: prints which id a beginning stands for, if the command changes the run.
        db: the database.
        text: from the command line.
        changes: whether the command changes the run.
        promises: ids of promises count too.

    Raises:
        InvalidRequest: the text stands for several ids, or is no id.
    """
    (id,) = whole_ids(out, db, [text], changes=changes, promises=promises)
    return id


def whole_ids(
    out: Output,
    db: Database,
    texts: Sequence[str],
    *,
    changes: bool = False,
    promises: bool = False,
    schedules: bool = False,
) -> list[str]:
    """Return the ids that several texts stand for, each once, as `whole_id` does; a schedule's is its own."""
    from pyengine.doors.admin import queries_runs

    known = queries_runs.existing(db.conn, [checked_id(text) for text in texts], schedules=schedules)
    ids = []
    for text in texts:
        beginning = _CUT.fullmatch(text) is None
        if text in known or (beginning and changes and not _is_terminal(out)):
            ids.append(text)
            continue
        ids.append(_only(db, text, promises=promises))
        if beginning and changes and ids[-1] != text:
            out.remark(f"{text} stands for {ids[-1]}")
    return list(dict.fromkeys(ids))


def only_beginning(db: Database, text: str) -> str | None:
    """Return the id of the only run that begins so."""
    from pyengine.doors.admin import queries_runs

    found = queries_runs.ids_like(db.conn, text, limit=2)
    return found[0] if len(found) == 1 else None


def _only(db: Database, text: str, *, promises: bool) -> str:
    """Return the only id that a text stands for, or the text if there is none."""
    from pyengine.doors.admin import queries_runs

    parts = _CUT.fullmatch(text)
    head, tail = (parts[1], parts[2]) if parts else (text, "")
    found = queries_runs.ids_like(db.conn, head, tail, CANDIDATES + 1, promises=promises)
    if len(found) < 2:
        return found[0] if found else text
    more = ["..."] if len(found) > CANDIDATES else []
    lines = [f"  {printable(id)}" for id in found[:CANDIDATES]] + more
    raise InvalidRequest(
        "\n".join([f"{clip(printable(text), 80)} stands for several ids:", *lines]),
        hint="type more of it",
    )


def _is_terminal(out: Output) -> bool:
    return not out.json and sys.stdin.isatty()
