"""The progress and the named values that `ctx` shows to those who watch a run.

Lives here: `ctx.progress` and `ctx.set`, in workflows and steps. May not: a decision about sending; a
workflow's values belong to its run (replay/progress.py), those of a step to its attempt
(worker/step_runner.py).
"""

from __future__ import annotations

import contextlib
from math import inf
from numbers import Real
from typing import Any, cast

from pyengine.core.definitions.current_run import current_step, scope
from pyengine.errors import InvalidRequest

_NAME_BYTES_MAX = 256
_NOTE_MAX = 500


class ContextProgress:
    """The part of `ctx` that shows what a run has done so far."""

    __slots__ = ()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Show how far the run has come: `ctx.progress(3, 10, "resizing")`, in workflows and steps.

        Only the last call counts. It is not recorded in the journal and costs no round trip of its own: it
        leaves with the next report of the run, or a moment later. `Run.get`, `Run.watch` and the view
        `durable.progress` show it, also after the end of the run. Outside a run it does nothing, so that a
        step can be called as the function that it is.

        Args:
            done: how much is done, in units of your own.
            total: how much there is to do; None means unknown.
            note: what is being done, for people; longer notes are cut.

        Raises:
            InvalidRequest: it is no number, or no finite one that is 0 or more.
        """
        count = _count("done", done)
        most = None if total is None else _count("total", total)
        if note is not None:
            if not isinstance(note, str):
                raise InvalidRequest(f"ctx.progress: the note is a text, not {note!r}")
            note = note.replace("\0", "")[:_NOTE_MAX].encode(errors="replace").decode()
        step, run = current_step.get(), scope.get()
        if step is not None and step.reporter is not None:
            step.reporter.set_progress(step, count, most, note)
        elif step is None and run is not None:
            run.set_progress(count, most, note)

    def set(self, name: str, value: Any) -> None:
        """Show a value under a name: `ctx.set("stage", "packing")`, in workflows and steps.

        `Run.get(name)`, the SQL function `durable.get_value` and the view `durable.progress` read the last
        value of each name, also after the end of the run. As `progress` it is not recorded in the journal: it
        is for those who watch, so set small values, and keep results in the result of the run.

        Args:
            name: the name.
            value: anything that can be written as JSON.

        Raises:
            InvalidRequest: the name is not a text of 1 to 256 bytes, or the run has set too many names.
            EncodeError: the value cannot be written as JSON.
            PayloadTooLarge: it is too large.
        """
        if not _is_name(name):
            raise InvalidRequest(
                f"ctx.set: {name!r} is not a name", hint=f"a text of 1 to {_NAME_BYTES_MAX} bytes, no NUL"
            )
        step, run = current_step.get(), scope.get()
        if step is not None and step.reporter is not None:
            step.reporter.set_value(step, name, value)
        elif step is None and run is not None:
            run.set_value(name, value)


def _is_name(name: object) -> bool:
    # half a surrogate pair has no bytes
    with contextlib.suppress(UnicodeEncodeError):
        return isinstance(name, str) and "\0" not in name and 1 <= len(name.encode()) <= _NAME_BYTES_MAX
    return False


def _count(kind: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(cast("object", value), bool):
        with contextlib.suppress(OverflowError):
            count = float(value)
            if 0 <= count < inf:
                return count
    raise InvalidRequest(f"ctx.progress: {kind} is {value!r}", hint="a finite number, 0 or more")
