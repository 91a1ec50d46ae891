"""Recorded errors as texts for people.

Lives here: the first line of an error, its hint, its traceback with those of its causes, and the place at
which it was raised, each read from its record (exceptions.py) or from the exception. May not: making such a
record. Two readers: `headline` and its like take everything; `public_headline` and `public_traceback` are for
logs, and leave out the sentences of the engine that show a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pyengine.core.values.depth import read_plain
from pyengine.core.values.error_access import asked, class_name, dict_of, is_a, leaves_of
from pyengine.errors import EngineError, RemoteError, RunFailed

_DEPTH_MAX = 8
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
# errors of the engine whose message shows a part of the value that they are about
_SHOWS_VALUES = frozenset({"EncodeError", "DecodeError", "NondeterminismError"})
_NOT_LOGGED = "its message shows a value, and is not logged"
# beginnings of a place in the code; a place within a value shows the value
_PLACES = ("the ", "argument ", "an argument ")


def read_record(text: str | None) -> Any:
    """Return the record of an error; the text itself if it is no JSON, or too deep to be read."""
    try:
        return None if text is None else read_plain(text)
    except msgspec.DecodeError:
        return text


def describe_error(error: BaseException) -> str:
    """Return class and message of an exception, with its hint and notes; of a group, those of the member
    that explains it.
    """
    member = _explaining(error)
    text = asked(lambda: str(member), "")
    name = class_name(type(member))
    # the text of a RemoteError begins with the class that the original had
    first = text if is_a(member, RemoteError) or not text else f"{name}: {text}"
    # those of a RunFailed repeat the traceback of its cause
    noted = () if is_a(member, RunFailed) else dict_of(member).get("__notes__", ())
    notes = asked(lambda: [str(one) for one in noted], list[str]())
    lines = [*(first or name).split("\n"), *notes]
    if member is not error:
        lines[0] += _in_group(type(error).__name__, sum(1 for _ in leaves_of(error)))
    return "\n".join(lines)


def _explaining(error: BaseException) -> BaseException:
    """Return the member of a group that says what to do: one of the engine with a hint, or the only one."""
    leaves = list(leaves_of(error))
    for one in leaves:
        if is_a(one, EngineError) and dict_of(one).get("hint"):
            return one
    return leaves[0] if len(leaves) == 1 else error


def _in_group(group: str, count: int) -> str:
    return f" (in an {group})" if count == 1 else f" (one of {count} errors in an {group})"


def headline(record: Any) -> str:
    """Return class and message of a recorded error on one line; of a group, those of the member that
    explains it.
    """
    if not isinstance(record, dict):
        return record if isinstance(record, str) else msgspec.json.encode(record).decode()
    members = list(_members(record))
    hinted = [one for one in members if _data(one).get("hint")]
    chosen = hinted[0] if hinted else members[0] if len(members) == 1 else record
    kind, message = chosen.get("type"), chosen.get("message")
    text = f"{kind}: {message}" if kind and message else str(kind or message or "an error")
    return text if chosen is record else text + _in_group(str(record.get("type")), len(members))


def _members(record: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    inner = record.get("exceptions")
    if isinstance(inner, list) and inner and depth < _DEPTH_MAX:
        for one in inner:
            if isinstance(one, dict):
                yield from _members(one, depth + 1)
    else:
        yield record


def _data(record: dict[str, Any]) -> dict[str, Any]:
    data = record.get("data")
    return data if isinstance(data, dict) else {}


def public_headline(record: Any) -> str:
    """Return class and message of a recorded error on one line, for a log.

    A value that was rejected, and a sentence of the engine that shows a value, are left out: the class, the
    place and the hint remain, and the word that there is a message.
    """
    if not isinstance(record, dict):
        return "an error that is no exception"
    if not _shows_values(record):
        return headline(record)
    data = _data(record)
    where = str(data.get("where") or data.get("run_id") or "")
    if record.get("type") != "NondeterminismError" and not where.startswith(_PLACES):
        where = ""
    hint = f"; hint: {data['hint']}" if data.get("hint") else ""
    left_out = f"{_NOT_LOGGED}{hint}" if record.get("type") in _SHOWS_VALUES else ""
    parts = [record.get("type"), where, left_out]
    if isinstance(record.get("cause"), dict):
        parts.append(public_headline(record["cause"]))
    return ": ".join(str(one) for one in parts if one)


def _shows_values(record: dict[str, Any], depth: int = 0) -> bool:
    """Whether an error, a cause of it or a member of it has a sentence that shows a value."""
    ours = str(record.get("module", "")).startswith("pyengine")
    if ours and record.get("type") in _SHOWS_VALUES:
        return True
    inner = [record.get("cause"), *(record.get("exceptions") or ())]
    return depth < _DEPTH_MAX and any(_shows_values(one, depth + 1) for one in inner if isinstance(one, dict))


def traceback_of(record: Any) -> str:
    """Return the traceback of a recorded error, after those of its causes; empty if it has no frame."""
    texts = list(_chain(record))
    has_frames = any('\n  File "' in text for text in texts)
    return _CAUSED.join(texts) if has_frames else ""


def public_traceback(record: Any) -> str:
    """Return the same for a log: nothing if a sentence in it shows a value."""
    return "" if isinstance(record, dict) and _shows_values(record) else traceback_of(record)


def _chain(record: Any, depth: int = 0) -> Iterator[str]:
    """Return the traceback of each cause, the first one first, and of the error."""
    if not isinstance(record, dict) or depth == _DEPTH_MAX:
        return
    yield from _chain(record.get("cause"), depth + 1)
    text = record.get("traceback")
    if isinstance(text, str) and text:
        yield text if text.endswith("\n") else f"{text}\n"


def origin_lines(record: Any) -> list[str]:
    """Return the place at which an error was raised: run, step, attempt and worker; then file and line.

    Args:
        record: the recorded error; of a run that failed because of another one, the origin is there.
    """
    origin: dict[str, Any] = {}
    while isinstance(record, dict):
        found = record.get("origin")
        origin = found if isinstance(found, dict) else origin
        record = record.get("cause") if record.get("type") == "RunFailed" else None
    where = [f"{name} {origin[name]}" for name in ("run", "step", "attempt", "worker") if name in origin]
    lines = [f"in {', '.join(where)}"] if where else []
    if "file" in origin:
        lines.append(f'File "{origin["file"]}", line {origin.get("line")}')
    return lines
