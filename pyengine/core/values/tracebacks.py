"""Tracebacks as text, such that they lead to the code of the user.

Lives here: the text of a traceback without the frames of the package, the place at which an error was raised,
and the memory of both in an error that was read from a journal. May not: the record of an error
(error_describing.py), its presentation (error_records.py). The theory: a step fails in one process, and its
error is raised again where a workflow waits for it, perhaps in another process, after a crash. A Python
traceback cannot travel, so its text does: it stays with the error object, and is put below the frames that
the error goes through later.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from pyengine import errors
from pyengine.core.values.error_access import RECORDED, asked, class_name, dict_of, is_a, traceback_of

_HEADER = "Traceback (most recent call last):\n"
_LENGTH_MAX = 16_000
_PACKAGE = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep
_PATHS = sysconfig.get_paths()
# modules without a file have a name in angle brackets
_LIBRARIES = ("<", *(_PATHS[name] + os.sep for name in ("stdlib", "purelib", "platlib")))
_DEMONSTRATION = os.path.join(_PACKAGE, "demo") + os.sep


class Recorded:
    """The origin of an error that was read from a journal.

    Args:
        traceback: text of its traceback.
        origin: run, step, attempt, worker, file and line, as far as they are known.
        record: all of it, if the error came back as one of another class.
    """

    __slots__ = ("origin", "record", "traceback")

    def __init__(
        self,
        traceback: str | None,
        origin: Mapping[str, Any] | None,
        record: dict[str, Any] | None = None,
    ) -> None:
        self.traceback = traceback
        self.origin = origin
        self.record = record


def remember(error: BaseException, traceback: object, origin: object) -> None:
    """Keep the recorded origin of an error with it, for the case that it is recorded again."""
    text = traceback if isinstance(traceback, str) and '  File "' in traceback else None
    place = origin if isinstance(origin, dict) else None
    before = recorded_of(error)
    if text or place:
        dict_of(error)[RECORDED] = Recorded(text, place, None if before is None else before.record)


def keep_record(error: BaseException, record: dict[str, Any]) -> None:
    """Keep the record of an error with it, which came back as one of another class."""
    dict_of(error)[RECORDED] = Recorded(None, None, record)


def recorded_of(error: BaseException) -> Recorded | None:
    """Return the recorded origin of an error; None if it was raised in this process."""
    found = dict_of(error).get(RECORDED)
    return found if isinstance(found, Recorded) else None


def is_ours(file: str) -> bool:
    """Whether a file is one of the package, and no example in it."""
    return file.startswith(_PACKAGE) and not file.startswith(_DEMONSTRATION)


def place_of(trace: TracebackType | None) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of the user's own code, or else of a library; None if all
    frames are the package's.
    """
    found = in_library = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_ours(file):
            if file.startswith(_LIBRARIES):
                in_library = (file, trace.tb_lineno)
            else:
                found = (file, trace.tb_lineno)
        trace = trace.tb_next
    return found or in_library


def traceback_text(error: BaseException, *, fold: bool = False) -> str:
    """Return the traceback of an error, without its causes.

    Frames of the package are counted and left out, unless there are no others. The recorded traceback of an
    error that was raised in another process follows the frames of this one.

    Args:
        error: the error.
        fold: leave them out in any case, as of an error of the engine: it is the cause of one.
    """
    trace = traceback_of(error)
    lines = asked(lambda: _lines(error, trace, fold=fold), None)
    if lines is None:
        # its class raises when it is looked at
        lines = [*([_HEADER] if trace else ()), *traceback.format_tb(trace), f"{class_name(type(error))}\n"]
    return "".join(lines)[-_LENGTH_MAX:]


def _lines(error: BaseException, trace: TracebackType | None, *, fold: bool) -> list[str]:
    shown = traceback.TracebackException(type(error), error, trace, compact=True)
    left_out = _leave_out(shown, is_engine_error=fold or is_a(error, errors.EngineError))
    lines = list(shown.format(chain=False))
    if trace is not None and lines[:1] == [_HEADER]:
        frames = len(shown.stack.format())
        if left_out:
            lines.insert(1 + frames, f"  (frames of pyengine left out: {left_out})\n")
        if not frames:
            # nothing is left below the header
            del lines[: 1 + bool(left_out)]
    recorded = _recorded_text(error)
    if recorded:
        frames = max(len(lines) - len(list(shown.format_exception_only())), 0)
        lines = [*lines[:frames], recorded.removeprefix(_HEADER)] if frames else [recorded]
    return lines


def _recorded_text(error: BaseException) -> str | None:
    if isinstance(error, errors.RemoteError):
        return error.traceback
    recorded = recorded_of(error)
    return None if recorded is None else recorded.traceback


def _leave_out(shown: traceback.TracebackException, *, is_engine_error: bool) -> int:
    """Remove the frames of the package from a traceback and from those of the members of a group; return
    how many there were.
    """
    for member in shown.exceptions or ():
        _leave_out(member, is_engine_error=False)
    frames = [one for one in shown.stack if not is_ours(one.filename)]
    left_out = len(shown.stack) - len(frames)
    if not (frames or is_engine_error):
        # an error of the engine's code itself: its frames are all that there is
        return 0
    shown.stack = traceback.StackSummary.from_list(frames)
    return left_out
